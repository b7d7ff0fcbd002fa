import pytest

from querator.storage import attachments
from querator.storage.environment import StorageCorrupt
from querator.storage.tables import ATTACHMENTS, ATTACHMENTS_DEAD

GROUP = 7


@pytest.fixture
def txn(environment):
    txn = environment.begin()
    yield txn
    txn.abort()


def row_of(txn) -> bytes:
    row = ATTACHMENTS.get(txn, GROUP, 1, 0)
    assert row is not None
    return row


def stored(txn, group: int = GROUP) -> list[tuple[int | bytes, ...]]:
    return [ATTACHMENTS.parts(key) for key, _ in ATTACHMENTS.rows(txn, group)]


def marks(txn) -> list[tuple[int | bytes, ...]]:
    return [ATTACHMENTS_DEAD.parts(key) for key, _ in ATTACHMENTS_DEAD.rows(txn, GROUP)]


def entry(txn, index: int, parts: int) -> None:
    for part in range(parts):
        attachments.write(txn, GROUP, index, part, b"%d-%d" % (index, part))


@pytest.mark.parametrize("size", [0, 1, 5_120, 5_121, 100_000, 1 << 20])
def test_what_is_written_is_read(txn, size):
    data = bytes(range(251)) * (size // 251 + 1)
    attachments.write(txn, GROUP, 1, 0, data[:size])
    assert attachments.read(txn, GROUP, 1, 0) == data[:size]


def test_a_missing_part_is_none(txn):
    entry(txn, 1, 1)
    assert attachments.read(txn, GROUP, 1, 1) is None
    assert attachments.read(txn, GROUP, 2, 0) is None
    assert attachments.read(txn, GROUP + 1, 1, 0) is None


@pytest.mark.parametrize("at", [0, 3, 4, 6_000, -1], ids=str)
def test_a_flipped_bit_is_corrupt(txn, at):
    attachments.write(txn, GROUP, 1, 0, bytes(10_000))
    row = bytearray(row_of(txn))
    row[at] ^= 1
    ATTACHMENTS.put(txn, GROUP, 1, 0, value=bytes(row))
    with pytest.raises(StorageCorrupt, match="attachment 0 of entry 1 in group 7"):
        attachments.read(txn, GROUP, 1, 0)


def test_bytes_in_anothers_place_are_corrupt(txn):
    attachments.write(txn, GROUP, 1, 0, b"older")
    attachments.write(txn, GROUP, 2, 0, b"newer")
    ATTACHMENTS.put(txn, GROUP, 2, 0, value=row_of(txn))
    with pytest.raises(StorageCorrupt, match="attachment 0 of entry 2 in group 7"):
        attachments.read(txn, GROUP, 2, 0)


@pytest.mark.parametrize("length", [0, 3, 4, 100])
def test_a_row_cut_short_is_corrupt(txn, length):
    attachments.write(txn, GROUP, 1, 0, b"data" * 100)
    ATTACHMENTS.put(txn, GROUP, 1, 0, value=row_of(txn)[:length])
    with pytest.raises(StorageCorrupt):
        attachments.read(txn, GROUP, 1, 0)


def test_a_part_that_both_held_goes_with_the_log_when_the_machine_was_first(txn):
    entry(txn, 5, 3)
    attachments.drop(txn, GROUP, 5, 1, log_first=5)
    assert stored(txn) == [(5, 0), (5, 1), (5, 2)]
    attachments.release(txn, GROUP, 5, 3)
    assert stored(txn) == [(5, 0), (5, 2)]
    assert marks(txn) == []


def test_a_part_goes_with_the_machine_when_the_log_was_first(txn):
    entry(txn, 5, 2)
    attachments.release(txn, GROUP, 5, 2)
    assert stored(txn) == [(5, 0), (5, 1)]
    attachments.drop(txn, GROUP, 5, 0, log_first=6)
    assert stored(txn) == [(5, 1)]
    assert marks(txn) == []


def test_release_touches_its_entry_only(txn):
    for index in (4, 5, 6):
        entry(txn, index, 1)
        attachments.drop(txn, GROUP, index, 0, log_first=1)
    attachments.write(txn, GROUP + 1, 5, 0, b"other group")
    attachments.release(txn, GROUP, 5, 1)
    assert stored(txn) == marks(txn) == [(4, 0), (6, 0)]
    assert stored(txn, GROUP + 1) == [(5, 0)]


def test_an_entry_off_the_tail_takes_all_its_parts_along(txn):
    for index in (4, 5, 6):
        entry(txn, index, 2)
    attachments.discard(txn, GROUP, 6)
    attachments.discard(txn, GROUP, 5)
    attachments.discard(txn, GROUP, 5)
    assert stored(txn) == [(4, 0), (4, 1)]


def test_an_applied_entry_cannot_be_discarded(txn):
    entry(txn, 5, 1)
    attachments.drop(txn, GROUP, 5, 0, log_first=1)
    with pytest.raises(AssertionError):
        attachments.discard(txn, GROUP, 5)
