import hypothesis.strategies as st
import pytest
from hypothesis import given

from querator.storage import attachments, generations, tables
from querator.storage.environment import StorageCorrupt
from querator.storage.generations import Generations
from querator.storage.keys import ALL
from querator.storage.memory_environment import MemoryEnvironment
from querator.storage.tables import ATTACHMENTS, BLOCKS, GENERATIONS, INCOMING, NODE, SEGMENTS

GROUPS = (0, 7, 8, (1 << 48) - 2)
U64_MAX = (1 << 64) - 1


def rows(txn, group: int) -> dict[bytes, bytes]:
    return {
        key: value
        for table in ALL.values()
        if table.in_generations
        for key, value in table.rows(txn, group)
    }


def fill(txn, group: int, value: bytes) -> None:
    for number in (0, 5, U64_MAX):
        BLOCKS.put(txn, group, number, value=value)
        SEGMENTS.put(txn, group, number, 255, value=value)
        attachments.write(txn, group, number, 3, value)


@pytest.mark.parametrize("generation", [0, 1, generations.GENERATIONS_MAX - 1])
def test_a_view_has_the_rows_of_its_generation_under_the_groups_own_id(environment, generation):
    txn = environment.begin()
    for group in GROUPS:
        fill(txn, group, b"plain")
        fill(generations.write_view(txn, group, generation), group, b"%d" % group)
    txn.commit(sync=True)
    with environment.snapshot() as snapshot:
        for group in GROUPS:
            view = generations.view_of(snapshot, group, generation)
            assert set(rows(view, group).values()) >= {b"%d" % group}
            assert len(rows(view, group)) == 9
            assert rows(view, group).keys() == rows(snapshot, group).keys()
            assert attachments.read(view, group, 5, 3) == b"%d" % group
            assert BLOCKS.get(view, group, U64_MAX) == b"%d" % group
            start, stop = BLOCKS.bounds(group, U64_MAX)
            assert list(view.keys(start, stop)) == [BLOCKS.key(group, U64_MAX)]
            backwards = [key for key, _ in BLOCKS.rows(view, group, reverse=True)]
            assert backwards == sorted(backwards, reverse=True)
            if generation:
                assert attachments.read(snapshot, group, 5, 3) == b"plain"


def raise_in_a_child(view) -> None:
    with view.child() as child:
        BLOCKS.put(child, 7, 1, value=b"undone")
        assert BLOCKS.get(view, 7, 1) == b"undone"
        raise ZeroDivisionError


def test_changes_and_children_of_a_view(environment):
    txn = environment.begin()
    fill(txn, 8, b"another group")
    view = generations.write_view(txn, 7, 2)
    BLOCKS.put(view, 7, 1, value=b"kept")
    with pytest.raises(ZeroDivisionError):
        raise_in_a_child(view)
    with view.child() as child:
        assert not SEGMENTS.delete(child, 7, 1, 1)
        SEGMENTS.put(child, 7, 1, 1, value=b"kept too")
        assert SEGMENTS.delete(child, 7, 1, 1)
    assert view.changes() == {BLOCKS.key(7, 1): b"kept", SEGMENTS.key(7, 1, 1): None}
    assert view.before(BLOCKS.key(7, 1)) is None
    for end in (view.abort, lambda: view.commit(sync=True)):
        with pytest.raises(AssertionError, match="does not end"):
            end()
    txn.commit(sync=True)
    with environment.snapshot() as snapshot:
        assert rows(snapshot, 7) == {}
        assert rows(generations.view_of(snapshot, 7, 2), 7) == {BLOCKS.key(7, 1): b"kept"}


@pytest.mark.parametrize("key", [BLOCKS.key(8, 1), BLOCKS.key(6, 1)])
def test_a_view_is_of_one_group(environment, key):
    with environment.snapshot() as snapshot:
        view = generations.view_of(snapshot, 7, 1)
        with pytest.raises(AssertionError, match="one group"):
            view.get(key)
        with pytest.raises(AssertionError, match="one group"):
            view.scan(BLOCKS.key(7, 1), BLOCKS.key(9, 0))


def test_the_generation_in_use_is_what_the_row_says(environment):
    with environment.snapshot() as snapshot:
        assert generations.read(snapshot, 7) == Generations()
        assert generations.view(snapshot, 7) is snapshot
    txn = environment.begin()
    fill(generations.write_view(txn, 7, 3), 7, b"third")
    generations.write(txn, 7, Generations(current=3, staged=4, doomed=(1, 2)))
    txn.commit(sync=True)
    with environment.snapshot() as snapshot:
        assert generations.read(snapshot, 7) == Generations(current=3, staged=4, doomed=(1, 2))
        assert attachments.read(generations.view(snapshot, 7), 7, 5, 3) == b"third"
        assert generations.view(snapshot, 8) is snapshot
    txn = environment.begin()
    generations.write(txn, 7, Generations())
    txn.commit(sync=True)
    with environment.snapshot() as snapshot:
        assert GENERATIONS.get(snapshot, 7) is None


def test_a_damaged_row_or_one_of_another_format_is_found():
    environment = MemoryEnvironment()
    for row in (Generations(current=1), Generations(format=2)):
        txn = environment.begin()
        generations.write(txn, 7, row)
        stored = GENERATIONS.get(txn, 7)
        assert stored is not None
        if row.format == 1:
            GENERATIONS.put(txn, 7, value=stored[:-1] + bytes([stored[-1] ^ 1]))
        with pytest.raises(StorageCorrupt):
            generations.read(txn, 7)
        txn.abort()


@given(st.integers(0, GROUPS[-1]), st.integers(0, generations.GENERATIONS_MAX - 1))
def test_a_storage_group_tells_its_group(group, generation):
    storage = generations.storage_group(group, generation)
    assert generations.group_of(storage) == group
    assert storage < U64_MAX


def test_numbers_of_generations_go_round_and_are_never_taken_twice():
    assert Generations().next() == 1
    assert Generations(current=2, doomed=(3, 4)).next() == 5
    last = generations.GENERATIONS_MAX - 1
    assert Generations(current=last, staged=0, doomed=(1,)).next() == 2


def test_a_group_is_deleted_with_all_its_generations_and_what_is_the_nodes_stays(environment):
    txn = environment.begin()
    for generation in (0, 2, 3, 5):
        fill(generations.write_view(txn, 0, generation), 0, b"value")
    fill(txn, 7, b"another")
    NODE.put(txn, 0, value=b"whose")
    INCOMING.put(txn, 0, value=b"half")
    generations.write(txn, 0, Generations(current=2, staged=5, doomed=(0, 3)))
    txn.commit(sync=True)
    done = False
    turns = 0
    while not done:
        with environment.snapshot() as snapshot:
            assert turns > 26 or rows(generations.view(snapshot, 0), 0)
        txn = environment.begin()
        done = generations.delete_generations(txn, 0, rows_max=1, bytes_max=1_000)
        txn.commit(sync=True)
        turns += 1
        assert turns < 100
    with environment.snapshot() as snapshot:
        assert NODE.get(snapshot, 0) == b"whose"
        left = {
            key[1:9] for key, _ in snapshot.scan(b"\0", b"\xff") if key[:1] != tables.NODE.letter
        }
        assert left == {(7).to_bytes(8, "big")}
        assert all(ATTACHMENTS.get(snapshot, 7, number, 3) for number in (0, 5, U64_MAX))
