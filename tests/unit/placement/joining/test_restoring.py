"""A copied data directory that is made safe to start."""

from itertools import count
from pathlib import Path

import msgspec
import pytest

from querator.model.ids import PLACEMENT_GROUP
from querator.model.nodes import NodeKey, Replica
from querator.placement.joining.restoring import KEPT_NAME, RESTORING_NAME, restore
from querator.storage import identity as identities
from querator.storage.environment import StorageCorrupt, StorageLocked
from querator.storage.identity import FORMAT, DirectoryRefused, Empty, Identity
from querator.storage.lmdb_environment import open_lmdb
from querator.storage.sealed import seal
from querator.storage.tables import LOG, NODE

REPLICAS = (Replica(1, NodeKey("a/x")), Replica(2, NodeKey("b/id1")))


def directory(path: Path, *, member: bool = True, empty: Empty = Empty.TO_BE_FORMED) -> Path:
    """A directory with data of node b, and one row of a log."""
    environment = open_lmdb(path)
    numbers = count(1)
    identity = identities.claim(
        environment, name="b", empty=empty, make_id=lambda: f"id{next(numbers)}"
    )
    if member:
        identity = identities.join(environment, identity, cluster_id="c", replicas=REPLICAS)
        identities.give_up(environment, identity, "an old copy")
    txn = environment.begin()
    LOG.put(txn, 7, 1, value=seal(LOG.key(7, 1), b"entry"))
    txn.commit(sync=True)
    environment.close()
    return path


def restored(path: Path) -> Identity:
    return restore(path, make_id=lambda: "new")


def kept(path: Path) -> tuple[Identity | None, bool]:
    """The identity of the data, and whether there are rows of a log."""
    environment = open_lmdb(path)
    with environment.snapshot() as snapshot:
        found = identities.read(snapshot), LOG.get(snapshot, 7, 1) is not None
    environment.close()
    return found


def test_it_waits_as_a_new_copy_of_its_node(tmp_path: Path):
    path = directory(tmp_path / "data")
    new = restored(path)
    assert new == Identity(FORMAT, "c", "new", 1, "b")
    assert not new.is_member
    assert kept(path) == (new, False)
    assert sorted(one.name for one in path.iterdir()) == [
        KEPT_NAME,
        "data.mdb",
        "lock.mdb",
        "querator.lock",
    ]
    # The node starts as one that waits for its replacement.
    environment = open_lmdb(path)
    again = identities.claim(environment, name="b", empty=Empty.REFUSED, make_id=str)
    environment.close()
    assert again == msgspec.structs.replace(new, boots=2)


def test_what_was_there_is_kept(tmp_path: Path):
    path = directory(tmp_path / "data")
    restored(path)
    (path / "data.mdb").unlink()
    (path / KEPT_NAME).rename(path / "data.mdb")
    identity, log = kept(path)
    assert identity is not None
    assert identity.incarnation == "id1"
    assert log


def test_one_that_was_cut_short_is_done_again(tmp_path: Path):
    path = directory(tmp_path / "data")
    (path / "data.mdb").rename(path / KEPT_NAME)
    (path / RESTORING_NAME).mkdir()
    (path / RESTORING_NAME / "data.mdb").touch()
    assert restored(path).incarnation == "new"
    assert kept(path)[0] is not None
    assert not (path / RESTORING_NAME).exists()


def refused(path: Path, words: str) -> None:
    before = sorted((one, one.stat().st_mtime_ns) for one in path.glob("data*"))
    with pytest.raises(DirectoryRefused, match=words):
        restored(path)
    assert sorted((one, one.stat().st_mtime_ns) for one in path.glob("data*")) == before


def test_what_is_no_data_of_a_node_of_several_is_left_alone(tmp_path: Path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    (tmp_path / "file").touch()
    for name in ("missing", "other", "file"):
        refused(tmp_path / name, "no data of Querator there")
    alone = directory(tmp_path / "alone", member=False, empty=Empty.NEW_CLUSTER)
    refused(alone, "node b, which is alone")
    waits = directory(tmp_path / "waits", member=False)
    refused(waits, "no member of a cluster.*querator node replace b")
    twice = directory(tmp_path / "twice")
    (twice / KEPT_NAME).touch()
    refused(twice, "before an earlier restore; remove it first")


def test_a_format_that_is_not_known_is_left_alone(tmp_path: Path):
    path = directory(tmp_path / "data")
    environment = open_lmdb(path)
    txn = environment.begin()
    row = msgspec.msgpack.encode([FORMAT + 1, "anything"])
    NODE.put(txn, PLACEMENT_GROUP, value=seal(NODE.key(PLACEMENT_GROUP), row))
    txn.commit(sync=True)
    environment.close()
    refused(path, f"format {FORMAT + 1}")


def test_a_directory_in_use_is_left_alone(tmp_path: Path):
    path = directory(tmp_path / "data")
    environment = open_lmdb(path)
    with pytest.raises(StorageLocked):
        restored(path)
    environment.close()
    assert kept(path)[1]


def test_a_file_that_is_no_data_file(tmp_path: Path):
    path = tmp_path / "data"
    path.mkdir()
    (path / "data.mdb").write_bytes(b"?" * 10_000)
    with pytest.raises(StorageCorrupt):
        restored(path)
