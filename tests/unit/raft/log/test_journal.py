"""The journal on a real environment, used as a turn uses it."""

import pytest

from querator.model.entries import Entry
from querator.model.ids import GroupId
from querator.model.limits import (
    LOG_CACHE_BYTES,
    LOG_TERMS_MAX,
    LOG_UNAPPLIED_CACHE_BYTES,
    TRUNCATE_ENTRIES_TURN_MAX,
)
from querator.raft.engine.library import NO_OP
from querator.raft.log.journal import GroupDeleted, Journal, Stamped
from querator.raft.log.rows import mark_deleting
from querator.storage import attachments
from querator.storage.environment import StorageCorrupt
from querator.storage.memory_environment import MemoryEnvironment
from querator.storage.tables import ATTACHMENTS, LOG

G = GroupId(7)


def opened(environment: MemoryEnvironment) -> Journal:
    with environment.snapshot() as snapshot:
        return Journal.open(snapshot, G)


def synced(
    environment: MemoryEnvironment,
    journal: Journal,
    *,
    applied: int | None = None,
    bytes_max: int = 1 << 30,
) -> None:
    txn = environment.begin()
    journal.flush(txn)
    upto = journal.last_index if applied is None else applied
    journal.truncate_head(txn, upto, bytes_max=bytes_max)
    txn.commit(sync=True)
    journal.synced(upto)


def append(journal: Journal, command: bytes, *parts: bytes, now_ms: int = 0) -> int:
    index = journal.last_index + 1
    journal.add(Stamped(Entry(command, parts), now_ms), index, journal.getCurrentTerm())
    return index


def elect(journal: Journal) -> None:
    journal.setCurrentTerm(journal.getCurrentTerm() + 1, 1)
    journal.add(NO_OP, journal.last_index + 1, journal.getCurrentTerm())


def test_everything_is_there_after_a_crash():
    environment = MemoryEnvironment()
    journal = opened(environment)
    elect(journal)
    append(journal, b"first", now_ms=5)
    elect(journal)
    append(journal, b"second", b"part 0", b"part 1", now_ms=9)
    synced(environment, journal)
    append(journal, b"lost", now_ms=11)
    environment = environment.crash()
    again = opened(environment)
    assert (again.first_index, again.last_index, again.last_term) == (1, 4, 2)
    assert (again.getCurrentTerm(), again.getVotedForNodeId()) == (2, 1)
    assert (again.last_ms, again.durable_index) == (9, 4)
    assert [again.term_at(index) for index in range(5)] == [0, 1, 1, 2, 2]
    terms = {index: term for _, index, term in again[:]}
    assert terms == {0: 0, 1: 1, 2: 1, 3: 2, 4: 2}
    assert not again.changed
    with environment.snapshot() as snapshot:
        records = [again.record(snapshot, index) for index in range(1, 5)]
        assert attachments.read(snapshot, G, 4, 1) == b"part 1"
    assert [record.entry.command for record in records] == [b"", b"first", b"", b"second"]
    assert [record.is_command for record in records] == [False, True, False, True]
    assert records[3].attachments_count == 2
    assert again.bytes_kept == journal.bytes_kept - 128 - len(b"lost")


def test_a_vote_is_kept_without_any_entry():
    environment = MemoryEnvironment()
    journal = opened(environment)
    journal.setCurrentTerm(3, 2)
    synced(environment, journal)
    again = opened(environment.crash())
    assert (again.getCurrentTerm(), again.getVotedForNodeId()) == (3, 2)
    assert (len(again), again[-1]) == (1, (b"", 0, 0))


def test_the_head_goes_by_bytes_and_only_where_applied():
    environment = MemoryEnvironment()
    journal = opened(environment)
    elect(journal)
    for _ in range(20):
        append(journal, b"c" * 100, b"a" * 100)
    synced(environment, journal, applied=4, bytes_max=1_000)
    assert journal.first_index == 4
    synced(environment, journal, bytes_max=1_000)
    assert journal.bytes_kept <= 1_000
    first = journal.first_index
    assert first == 19
    again = opened(environment.crash())
    assert (again.first_index, again.last_index) == (first, 21)
    assert again.term_at(first - 1) == 1, "the sentinel keeps its term"
    assert again.bytes_kept == journal.bytes_kept


def test_attachments_that_the_machine_let_go_of_go_with_the_head():
    environment = MemoryEnvironment()
    journal = opened(environment)
    elect(journal)
    dropped, held = append(journal, b"", b"d" * 600), append(journal, b"", b"h" * 600)
    txn = environment.begin()
    journal.flush(txn)
    attachments.drop(txn, G, dropped, 0, log_first=journal.first_index)
    txn.commit(sync=True)
    journal.synced(held)
    append(journal, b"", b"l" * 600)
    synced(environment, journal, bytes_max=1_000)
    assert journal.first_index > held
    with environment.snapshot() as snapshot:
        parts = [ATTACHMENTS.parts(key) for key, _ in ATTACHMENTS.rows(snapshot, G)]
    assert parts == [(held, 0), (held + 1, 0)]


def test_a_turn_truncates_a_bounded_number_of_entries():
    environment = MemoryEnvironment()
    journal = opened(environment)
    elect(journal)
    for _ in range(3 * TRUNCATE_ENTRIES_TURN_MAX):
        append(journal, b"c")
    synced(environment, journal, bytes_max=0)
    assert journal.first_index == TRUNCATE_ENTRIES_TURN_MAX + 1
    for _ in range(3):
        synced(environment, journal, bytes_max=0)
    assert journal.first_index == journal.last_index, "the last applied entry stays"


def test_many_elections_do_not_grow_the_member_row_for_ever():
    environment = MemoryEnvironment()
    journal = opened(environment)
    for _ in range(LOG_TERMS_MAX + 100):
        elect(journal)
        synced(environment, journal)
    assert len(journal) <= LOG_TERMS_MAX + 2
    again = opened(environment.crash())
    assert again.term_at(again.first_index) == again.first_index


def test_memory_holds_the_newest_entries_and_those_that_are_not_applied():
    environment = MemoryEnvironment()
    journal = opened(environment)
    elect(journal)
    for _ in range(8):
        append(journal, b"", b"a" * (LOG_CACHE_BYTES // 2))
    synced(environment, journal, applied=3)
    with environment.snapshot() as snapshot:
        held = [bool(journal.record(snapshot, index).entry.attachments) for index in range(2, 10)]
        assert held == [False] * 2 + [True] * 6
        journal.synced(9)
        held = [bool(journal.record(snapshot, index).entry.attachments) for index in range(2, 10)]
        assert held == [False] * 7 + [True]


def test_memory_is_bounded_also_of_what_is_on_disk_and_not_applied():
    environment = MemoryEnvironment()
    journal = opened(environment)
    elect(journal)
    for _ in range(10):
        append(journal, b"", b"a" * (LOG_UNAPPLIED_CACHE_BYTES // 4))
    synced(environment, journal, applied=1)
    for _ in range(8):
        append(journal, b"", b"b" * (LOG_UNAPPLIED_CACHE_BYTES // 4))
    with environment.snapshot() as snapshot:
        held = [bool(journal.record(snapshot, index).entry.attachments) for index in range(2, 20)]
    assert held == [False] * 7 + [True] * 11, "what is not on disk stays"
    journal.take_back(environment.snapshot, 4)
    assert [len(entry.attachments) for entry in journal.entries(environment.snapshot, 2, 1)] == [1]
    synced(environment, journal, applied=4)


@pytest.mark.parametrize("position", [0, 5, -1])
def test_a_flipped_bit_is_found(position):
    environment = MemoryEnvironment()
    journal = opened(environment)
    elect(journal)
    append(journal, b"command")
    synced(environment, journal)
    txn = environment.begin()
    row = bytearray(LOG.get(txn, G, 2) or b"")
    row[position] ^= 1
    LOG.put(txn, G, 2, value=bytes(row))
    txn.commit(sync=True)
    with pytest.raises(StorageCorrupt, match="entry 2"):
        opened(environment)


def test_an_entry_in_anothers_place_is_found():
    environment = MemoryEnvironment()
    journal = opened(environment)
    elect(journal)
    for _ in range(3):
        append(journal, b"command")
    synced(environment, journal)
    txn = environment.begin()
    LOG.put(txn, G, 3, value=LOG.get(txn, G, 2) or b"")
    LOG.delete(txn, G, 2)
    txn.commit(sync=True)
    again = opened(environment)
    with environment.snapshot() as snapshot:
        with pytest.raises(StorageCorrupt, match="entry 2 of the log is missing"):
            again.record(snapshot, 2)
        with pytest.raises(StorageCorrupt, match="entry 3 in the log of group 7: wrong checksum"):
            again.record(snapshot, 3)


def test_a_group_that_is_being_deleted_does_not_open():
    environment = MemoryEnvironment()
    txn = environment.begin()
    mark_deleting(txn, G)
    txn.commit(sync=True)
    with pytest.raises(GroupDeleted):
        opened(environment)


def test_time_in_the_log_never_goes_back():
    journal = opened(MemoryEnvironment())
    elect(journal)
    append(journal, b"later", now_ms=10)
    append(journal, b"earlier", now_ms=7)
    assert journal.last_ms == 10


@pytest.mark.parametrize("index", [1, 3])
def test_a_gap_in_the_log_is_refused(index):
    journal = opened(MemoryEnvironment())
    elect(journal)
    with pytest.raises(AssertionError):
        journal.add(Stamped(Entry(b""), 0), index, 1)
