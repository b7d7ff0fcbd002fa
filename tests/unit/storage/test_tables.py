from collections.abc import Callable

import hypothesis.strategies as st
import pytest
from hypothesis import given

from querator.model.limits import KEY_BYTES_STORED_MAX
from querator.storage import tables
from querator.storage.environment import StorageCorrupt
from querator.storage.keys import ALL, Table, delete_group
from querator.storage.memory_environment import MemoryEnvironment
from querator.storage.tables import ATTACHMENTS, BLOCKS, SEGMENTS

NUMBERS = st.integers(0, 2**64 - 1)
PARTS = st.integers(0, 2**32 - 1)


def test_every_table_has_a_letter_of_its_own_and_keys_that_fit():
    made = [value for value in vars(tables).values() if isinstance(value, Table)]
    assert len({table.letter for table in made}) == len(made) > 20
    assert all(ALL[table.letter] is table for table in made)
    assert len({table.name for table in made}) == len(made)
    assert all(len(table.bounds(0)[0]) <= KEY_BYTES_STORED_MAX for table in made)


@given(st.lists(st.tuples(NUMBERS, NUMBERS, PARTS), max_size=20))
def test_keys_are_in_the_order_of_their_parts(rows):
    keys = [ATTACHMENTS.key(*row) for row in rows]
    assert sorted(keys) == [ATTACHMENTS.key(*row) for row in sorted(rows)]
    assert [ATTACHMENTS.parts(key) for key in keys] == [row[1:] for row in rows]


@given(NUMBERS, NUMBERS, NUMBERS, PARTS)
def test_bounds_hold_exactly_the_rows_that_begin_with_their_parts(group, index, other, part):
    start, stop = ATTACHMENTS.bounds(group, index)
    assert start <= ATTACHMENTS.key(group, index, part) < stop
    assert (start <= ATTACHMENTS.key(group, other, part) < stop) == (other == index)
    assert (start <= ATTACHMENTS.key(other, index, part) < stop) == (other == group)
    start, stop = ATTACHMENTS.bounds(group)
    assert start <= ATTACHMENTS.key(group, other, part) < stop


def test_a_letter_cannot_be_taken_twice():
    with pytest.raises(AssertionError, match="taken"):
        Table("again", ATTACHMENTS.letter, "Q")
    assert ALL[ATTACHMENTS.letter] is ATTACHMENTS


def filled(environment) -> None:
    txn = environment.begin()
    for group in (1, 2, 3):
        for number in range(20):
            ATTACHMENTS.put(txn, group, number, 0, value=bytes(1_000))
            BLOCKS.put(txn, group, number, value=b"block")
            SEGMENTS.put(txn, group, number, 0, value=b"segment")
    txn.commit(sync=True)


def left(environment, group: int) -> int:
    with environment.snapshot() as snapshot:
        return sum(len(list(table.rows(snapshot, group))) for table in ALL.values())


@pytest.mark.parametrize(
    ("rows_max", "bytes_max", "turns_min"),
    [(1_000, 1 << 20, 1), (60, 1 << 20, 1), (59, 1 << 20, 2), (7, 1 << 20, 9), (60, 4_100, 5)],
)
def test_a_group_goes_in_bounded_turns_and_no_other(environment, rows_max, bytes_max, turns_min):
    filled(environment)
    turns, before, done = 0, left(environment, 2), False
    while not done:
        txn = environment.begin()
        done = delete_group(txn, 2, rows_max=rows_max, bytes_max=bytes_max)
        txn.commit(sync=True)
        turns += 1
        after = left(environment, 2)
        assert 0 < before - after <= rows_max
        before = after
    assert before == 0
    assert turns >= turns_min
    assert left(environment, 1) == left(environment, 3) == 60


def test_a_row_larger_than_the_bound_goes_alone():
    environment = MemoryEnvironment()
    txn = environment.begin()
    for number in range(3):
        ATTACHMENTS.put(txn, 1, number, 0, value=bytes(100_000))
    assert not delete_group(txn, 1, rows_max=10, bytes_max=10)
    assert not delete_group(txn, 1, rows_max=10, bytes_max=10)
    assert delete_group(txn, 1, rows_max=10, bytes_max=10)
    assert delete_group(txn, 1, rows_max=10, bytes_max=10)
    txn.abort()


@pytest.mark.parametrize("change", [lambda key: key + b"\0", lambda key: key[:-1]])
def test_a_key_of_another_length_is_damage(change: Callable[[bytes], bytes]):
    """A flipped bit in the length of a key made `querator verify` fail with a traceback."""
    with pytest.raises(StorageCorrupt, match=r"a key of table log has 1[68] bytes instead of 17"):
        tables.LOG.parts(change(tables.LOG.key(1, 2)))
