from itertools import count
from pathlib import Path

import msgspec
import pytest

from querator.model.ids import PLACEMENT_GROUP
from querator.storage.environment import Environment, StorageCorrupt
from querator.storage.identity import FORMAT, DirectoryRefused, Identity, check_directory, claim
from querator.storage.memory_environment import MemoryEnvironment
from querator.storage.sealed import seal
from querator.storage.tables import APPLIED, NODE


def claimed(environment: Environment, *, new: bool) -> Identity:
    numbers = count(1)
    return claim(environment, new=new, make_id=lambda: f"id{next(numbers)}")


def test_a_new_cluster_and_its_starts():
    environment = MemoryEnvironment()
    first = claimed(environment, new=True)
    assert first == Identity(FORMAT, cluster_id="id1", incarnation="id2", boots=1)
    environment = environment.crash()
    assert claimed(environment, new=False) == Identity(FORMAT, "id1", "id2", boots=2)
    environment = environment.crash()
    assert claimed(environment, new=True) == Identity(FORMAT, "id1", "id2", boots=3)


def test_an_empty_environment_is_not_made_a_cluster_unasked():
    with pytest.raises(DirectoryRefused, match="--new"):
        claimed(MemoryEnvironment(), new=False)


def test_data_of_nobody():
    environment = MemoryEnvironment()
    txn = environment.begin()
    APPLIED.put(txn, 1, value=b"")
    txn.commit(sync=True)
    with pytest.raises(StorageCorrupt):
        claimed(environment, new=True)


def test_a_later_format():
    environment = MemoryEnvironment()
    txn = environment.begin()
    row = msgspec.msgpack.encode([FORMAT + 1, {"anything": "else"}])
    NODE.put(txn, PLACEMENT_GROUP, value=seal(NODE.key(PLACEMENT_GROUP), row))
    txn.commit(sync=True)
    with pytest.raises(DirectoryRefused, match=f"format {FORMAT + 1}"):
        claimed(environment, new=True)


@pytest.mark.parametrize("position", [0, 4, 5, -1])
def test_a_flipped_bit_is_found(position: int):
    environment = MemoryEnvironment()
    claimed(environment, new=True)
    txn = environment.begin()
    row = bytearray(NODE.get(txn, PLACEMENT_GROUP) or b"")
    row[position] ^= 1
    NODE.put(txn, PLACEMENT_GROUP, value=bytes(row))
    txn.commit(sync=True)
    with pytest.raises(StorageCorrupt, match="whose data this is"):
        claimed(environment, new=False)


@pytest.mark.parametrize("names", [[], ["lost+found"], ["querator.lock", "lock.mdb"]])
def test_directories_without_data(tmp_path: Path, names: list[str]):
    for name in names:
        (tmp_path / name).touch()
    check_directory(tmp_path, new=True)
    with pytest.raises(DirectoryRefused, match="--new"):
        check_directory(tmp_path, new=False)


def test_a_directory_that_is_missing(tmp_path: Path):
    check_directory(tmp_path / "a" / "b", new=True)
    with pytest.raises(DirectoryRefused, match="--new"):
        check_directory(tmp_path / "a" / "b", new=False)


def test_a_directory_with_data(tmp_path: Path):
    (tmp_path / "data.mdb").touch()
    check_directory(tmp_path, new=False)
    check_directory(tmp_path, new=True)


def test_somebody_elses_directory(tmp_path: Path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(DirectoryRefused, match=r"thesis\.tex"):
        check_directory(tmp_path, new=True)


def test_a_file(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(DirectoryRefused, match="Not a directory"):
        check_directory(tmp_path / "file", new=True)
