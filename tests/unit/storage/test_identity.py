from itertools import count
from pathlib import Path

import msgspec
import pytest

from querator.model.ids import PLACEMENT_GROUP
from querator.model.nodes import NodeKey, Replica
from querator.model.placement_map import PlacedNode, PlacementMap
from querator.model.starts import Met, Starts
from querator.storage import starts
from querator.storage.environment import Environment, StorageCorrupt
from querator.storage.identity import (
    FORMAT,
    DirectoryRefused,
    Empty,
    Identity,
    check_alone,
    check_directory,
    claim,
    give_up,
    join,
    wait,
)
from querator.storage.memory_environment import MemoryEnvironment
from querator.storage.sealed import seal
from querator.storage.tables import APPLIED, NODE, STARTS


def claimed(environment: Environment, *, empty: Empty, name: str = "a") -> Identity:
    numbers = count(1)
    return claim(environment, name=name, empty=empty, make_id=lambda: f"id{next(numbers)}")


def test_a_new_cluster_and_its_starts():
    environment = MemoryEnvironment()
    first = claimed(environment, empty=Empty.NEW_CLUSTER)
    alone = PlacedNode("a", "id1", "", "")
    assert first == Identity(
        format=FORMAT,
        cluster_id="id2",
        incarnation="id1",
        boots=1,
        name="a",
        replicas=(Replica(1, NodeKey("a/id1")),),
        founders=(alone,),
    )
    environment = environment.crash()
    second = claimed(environment, empty=Empty.REFUSED)
    assert second == msgspec.structs.replace(first, boots=2)
    environment = environment.crash()
    third = claimed(environment, empty=Empty.NEW_CLUSTER, name="")
    assert third == msgspec.structs.replace(first, boots=3)


def test_a_node_that_joins_the_others():
    environment = MemoryEnvironment()
    first = claimed(environment, empty=Empty.TO_BE_FORMED)
    assert first == Identity(FORMAT, "", "id1", 1, "a")
    assert not first.is_member
    environment = environment.crash()
    again = claimed(environment, empty=Empty.TO_BE_FORMED)
    assert again == msgspec.structs.replace(first, boots=2)
    replicas = (Replica(1, NodeKey("a/id1")), Replica(2, NodeKey("b/x")))
    founders = (PlacedNode("a", "id1", "a:1", "a:2"), PlacedNode("b", "x", "b:1", "b:2"))
    joined = join(environment, again, cluster_id="c", replicas=replicas, founders=founders)
    assert joined.is_member
    environment = environment.crash()
    assert claimed(environment, empty=Empty.TO_BE_FORMED) == msgspec.structs.replace(
        joined, boots=3
    )


def own_starts(environment: Environment) -> Starts:
    with environment.snapshot() as snapshot:
        return starts.read(snapshot)["a"].starts


def test_each_start_has_a_nonce_that_is_kept():
    environment = MemoryEnvironment()
    first = claimed(environment, empty=Empty.NEW_CLUSTER)
    environment = environment.crash()
    before = own_starts(environment)
    assert [start.boots for start in before] == [1]
    claimed(environment, empty=Empty.REFUSED)
    environment = environment.crash()
    after = own_starts(environment)
    assert after[:-1] == before
    assert after[-1].boots == 2
    assert after[-1].nonce != before[0].nonce
    # Starts of other data under the same name are not continued.
    txn = environment.begin()
    starts.put(txn, Met(NodeKey("a/other"), after))
    txn.commit(sync=True)
    claimed(environment, empty=Empty.REFUSED)
    with environment.snapshot() as snapshot:
        met = starts.read(snapshot)["a"]
    assert met.node == first.key
    assert [start.boots for start in met.starts] == [3]


def test_a_row_of_starts_that_cannot_be_read():
    environment = MemoryEnvironment()
    claimed(environment, empty=Empty.NEW_CLUSTER)
    txn = environment.begin()
    STARTS.put(txn, PLACEMENT_GROUP, bytes(16), value=b"?")
    txn.commit(sync=True)
    with pytest.raises(StorageCorrupt, match="starts"):
        claimed(environment, empty=Empty.REFUSED)


def test_an_old_copy_that_was_refused_is_not_started_again():
    environment = MemoryEnvironment()
    give_up(environment, claimed(environment, empty=Empty.NEW_CLUSTER), "it is old")
    environment = environment.crash()
    for _ in range(2):
        with pytest.raises(DirectoryRefused, match="refused before: it is old"):
            claimed(environment, empty=Empty.NEW_CLUSTER)


def test_a_node_that_waits_for_a_lost_ones_place():
    environment = MemoryEnvironment()
    waiting = wait(environment, claimed(environment, empty=Empty.TO_BE_FORMED), cluster_id="c")
    assert (waiting.cluster_id, waiting.is_member) == ("c", False)
    environment = environment.crash()
    waiting = claimed(environment, empty=Empty.TO_BE_FORMED)
    assert (waiting.cluster_id, waiting.boots) == ("c", 2)
    replicas = (Replica(1, NodeKey("b/x")), Replica(4, waiting.key, voter=False))
    joined = join(environment, waiting, cluster_id="c", replicas=replicas)
    assert joined.is_member
    assert joined.founders == ()


def test_an_empty_environment_is_not_made_a_cluster_unasked():
    with pytest.raises(DirectoryRefused, match=r"--new.*--peers"):
        claimed(MemoryEnvironment(), empty=Empty.REFUSED)


def test_data_of_a_node_of_another_name():
    environment = MemoryEnvironment()
    claimed(environment, empty=Empty.NEW_CLUSTER)
    with pytest.raises(DirectoryRefused, match="the data is of node a, not of b"):
        claimed(environment, empty=Empty.NEW_CLUSTER, name="b")


def test_data_from_before_the_first_release():
    environment = MemoryEnvironment()
    txn = environment.begin()
    row = msgspec.msgpack.encode([1, "cluster", "incarnation", 7])
    NODE.put(txn, PLACEMENT_GROUP, value=seal(NODE.key(PLACEMENT_GROUP), row))
    txn.commit(sync=True)
    with pytest.raises(DirectoryRefused, match="format 1"):
        claimed(environment, empty=Empty.NEW_CLUSTER)


def test_data_of_nobody():
    environment = MemoryEnvironment()
    txn = environment.begin()
    APPLIED.put(txn, 1, value=b"")
    txn.commit(sync=True)
    with pytest.raises(StorageCorrupt):
        claimed(environment, empty=Empty.NEW_CLUSTER)


def test_a_later_format():
    environment = MemoryEnvironment()
    txn = environment.begin()
    row = msgspec.msgpack.encode([FORMAT + 1, {"anything": "else"}])
    NODE.put(txn, PLACEMENT_GROUP, value=seal(NODE.key(PLACEMENT_GROUP), row))
    txn.commit(sync=True)
    with pytest.raises(DirectoryRefused, match=f"format {FORMAT + 1}"):
        claimed(environment, empty=Empty.NEW_CLUSTER)


@pytest.mark.parametrize("position", [0, 4, 5, -1])
def test_a_flipped_bit_is_found(position: int):
    environment = MemoryEnvironment()
    claimed(environment, empty=Empty.NEW_CLUSTER)
    txn = environment.begin()
    row = bytearray(NODE.get(txn, PLACEMENT_GROUP) or b"")
    row[position] ^= 1
    NODE.put(txn, PLACEMENT_GROUP, value=bytes(row))
    txn.commit(sync=True)
    with pytest.raises(StorageCorrupt, match="names the node of the data"):
        claimed(environment, empty=Empty.REFUSED)


@pytest.mark.parametrize("names", [[], ["lost+found"], ["querator.lock", "lock.mdb"]])
def test_directories_without_data(tmp_path: Path, names: list[str]):
    for name in names:
        (tmp_path / name).touch()
    check_directory(tmp_path, empty=Empty.NEW_CLUSTER)
    with pytest.raises(DirectoryRefused, match="--new"):
        check_directory(tmp_path, empty=Empty.REFUSED)


def test_a_directory_that_is_missing(tmp_path: Path):
    check_directory(tmp_path / "a" / "b", empty=Empty.NEW_CLUSTER)
    with pytest.raises(DirectoryRefused, match="--new"):
        check_directory(tmp_path / "a" / "b", empty=Empty.REFUSED)


def test_a_directory_with_data(tmp_path: Path):
    (tmp_path / "data.mdb").touch()
    check_directory(tmp_path, empty=Empty.REFUSED)
    check_directory(tmp_path, empty=Empty.NEW_CLUSTER)


def test_somebody_elses_directory(tmp_path: Path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(DirectoryRefused, match=r"thesis\.tex"):
        check_directory(tmp_path, empty=Empty.NEW_CLUSTER)


def test_a_file(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(DirectoryRefused, match="Not a directory"):
        check_directory(tmp_path / "file", empty=Empty.NEW_CLUSTER)


def test_what_a_start_that_was_cut_short_leaves_is_no_data(tmp_path: Path):
    for name in ("data.new", "lock.mdb", "querator.lock"):
        (tmp_path / name).touch()
    check_directory(tmp_path, empty=Empty.NEW_CLUSTER)
    with pytest.raises(DirectoryRefused, match="--new"):
        check_directory(tmp_path, empty=Empty.REFUSED)


def test_a_node_that_began_alone_is_alone_until_others_have_joined():
    identity = claimed(MemoryEnvironment(), empty=Empty.NEW_CLUSTER)
    a, b = (PlacedNode(name, "id1", f"{name}:1", f"{name}:2") for name in "ab")
    check_alone(identity, PlacementMap())
    check_alone(identity, PlacementMap(1, nodes=(a,)))
    with pytest.raises(DirectoryRefused, match=r"cluster of several nodes with b: .*--peers"):
        check_alone(identity, PlacementMap(2, nodes=(a, b)))
