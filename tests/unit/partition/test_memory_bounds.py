"""The memory of a partition is bounded, and each bound has its answer."""

from struct import pack

import pytest

from querator.model.commands import Complete, Extend, ItemSpecial, LeaseItems, Produce
from querator.model.entries import Proposal
from querator.model.errors import ErrorCode
from querator.model.limits import (
    APPLY_SEGMENTS_MAX,
    DAY_MS,
    DEDUP_KEYS_MAX,
    ENDED_LEASES_MAX,
    HOUR_MS,
    MINUTE_MS,
    PRODUCER_AHEAD_MS_MAX,
    PRODUCER_OUTCOMES_MAX,
    PRODUCERS_MAX,
)
from querator.partition.producers import FORGET_AT_ONCE
from querator.partition.rows import decode_state, encode
from querator.storage.overlay import OverlayTransaction
from querator.storage.tables import (
    DEDUP_KEYS,
    ENDED,
    LEASE_REQUESTS,
    PRODUCER_OUTCOMES,
    PRODUCERS,
    STATE,
)
from tests.unit.partition.partition_log import GROUP, START_MS, PartitionLog, lease_of

PRODUCER = START_MS.to_bytes(6, "big") + bytes(10)


def request(sequence: int, producer_id: bytes = PRODUCER) -> Proposal:
    return Proposal(Produce(pack("<I", 1), producer_id, sequence), b"x")


def pretend(log: PartitionLog, **numbers: int) -> None:
    """Sets counts of the state row, as if the partition had reached them."""
    txn = log.environment.begin()
    row = STATE.get(txn, GROUP)
    assert row is not None
    state = decode_state(row)
    for name, value in numbers.items():
        setattr(state, name, value)
    STATE.put(txn, GROUP, value=encode(state))
    txn.commit(sync=False)
    log.checked = False


def count(log: PartitionLog, table) -> int:
    with log.environment.snapshot() as txn:
        return len(list(table.rows(txn, GROUP)))


def test_the_last_outcomes_of_a_producer_are_remembered():
    log = PartitionLog()
    log.configure()
    log.checked = False
    last = PRODUCER_OUTCOMES_MAX + FORGET_AT_ONCE
    first = log.entry(*(request(n) for n in range(1, last + 1)))
    log.checked = True
    assert log.entry(request(FORGET_AT_ONCE))[0].code is ErrorCode.PRODUCER_EXPIRED
    again = log.entry(request(FORGET_AT_ONCE + 1))[0]
    assert (again.repeated, again.first_seq) == (True, first[FORGET_AT_ONCE].first_seq)
    assert count(log, PRODUCER_OUTCOMES) == PRODUCER_OUTCOMES_MAX


def test_there_are_only_so_many_producers():
    log = PartitionLog()
    log.configure()
    log.entry(request(1))
    pretend(log, producers=PRODUCERS_MAX)
    refused = log.entry(request(1, START_MS.to_bytes(6, "big") + b"0123456789"))[0]
    assert refused.code is ErrorCode.TOO_MANY_PRODUCERS
    assert log.entry(request(2))[0].count == 1


def born(log: PartitionLog, name: int) -> bytes:
    """The id of a producer that is born now."""
    return log.now_ms.to_bytes(6, "big") + bytes([name] * 10)


def test_producers_of_which_nothing_is_remembered_make_room(monkeypatch):
    monkeypatch.setattr("querator.partition.producers.PRODUCERS_MAX", 3)
    monkeypatch.setattr("querator.partition.producers.DISPLACED_AT_ONCE", 1)
    log = PartitionLog()
    log.configure(dedup_window_ms=10 * MINUTE_MS)
    names = []
    for name in range(3):
        names.append(born(log, name))
        assert log.entry(request(1, names[-1]))[0].count == 1
        log.advance(MINUTE_MS)
    log.entry(request(2, names[0]))
    refused = log.entry(request(1, born(log, 9)))[0]
    assert refused.code is ErrorCode.TOO_MANY_PRODUCERS, "all are within the window"
    log.advance(30 * MINUTE_MS)
    fresh = born(log, 3)
    assert log.entry(request(1, fresh))[0].count == 1
    # The second producer was silent for longest. It, and every producer that may have been
    # forgotten in the same way, is never applied again. The other producers continue.
    assert log.entry(request(1, names[1]))[0].code is ErrorCode.PRODUCER_EXPIRED
    assert log.entry(request(2, names[1]))[0].code is ErrorCode.PRODUCER_EXPIRED
    older = START_MS.to_bytes(6, "big") + bytes([7] * 10)
    assert log.entry(request(1, older))[0].code is ErrorCode.PRODUCER_EXPIRED
    assert log.entry(request(3, names[0]))[0].count == 1
    assert log.entry(request(2, names[2]))[0].count == 1
    assert log.entry(request(1, fresh))[0].repeated
    assert count(log, PRODUCERS) == 3


@pytest.mark.parametrize(
    "ahead_ms", [PRODUCER_AHEAD_MS_MAX + 1, 365 * DAY_MS, 2**48 - 1 - START_MS]
)
def test_a_producer_that_was_born_in_the_future_is_refused(ahead_ms):
    log = PartitionLog()
    log.configure()
    log.entry(request(1))
    ahead = (START_MS + ahead_ms).to_bytes(6, "big") + bytes(10)
    refused = log.entry(request(1, ahead))[0]
    assert (refused.code, refused.field) == (ErrorCode.INVALID_ARGUMENT, "producer_id")
    assert (refused.limit, refused.value) == (f"{PRODUCER_AHEAD_MS_MAX} ms", f"{ahead_ms} ms")
    assert "clock of the client" in refused.message
    assert count(log, PRODUCERS) == 1


def test_a_partition_whose_time_is_days_behind_takes_new_producers():
    log = PartitionLog()
    log.configure()
    born_days_later = (START_MS + 3 * DAY_MS).to_bytes(6, "big") + bytes(10)
    assert log.entry(request(1, born_days_later))[0].count == 1


def test_producers_whose_clocks_are_ahead_are_taken_and_forgotten():
    log = PartitionLog()
    log.configure()
    ahead = (START_MS + PRODUCER_AHEAD_MS_MAX).to_bytes(6, "big") + bytes(10)
    assert log.entry(request(1, ahead))[0].count == 1
    log.advance(PRODUCER_AHEAD_MS_MAX + 7 * DAY_MS - HOUR_MS)
    assert count(log, PRODUCERS) == 1
    log.advance(2 * HOUR_MS)
    assert count(log, PRODUCERS) == 0
    assert log.entry(request(2, ahead))[0].code is ErrorCode.PRODUCER_EXPIRED


def test_a_crowd_of_producers_is_searched_once_and_not_for_each_request(monkeypatch):
    monkeypatch.setattr("querator.partition.producers.PRODUCERS_MAX", 50)
    log = PartitionLog()
    log.configure(dedup_window_ms=10 * MINUTE_MS)
    ahead = (START_MS + 50 * MINUTE_MS).to_bytes(6, "big")
    log.entry(*(request(1, ahead + bytes([name] * 10)) for name in range(50)))
    # The partition remembers no outcomes of these producers. They may return until their birth is
    # out of the window.
    log.advance(25 * MINUTE_MS)
    assert log.entry(request(1, born(log, 100)))[0].code is ErrorCode.TOO_MANY_PRODUCERS
    scanned: list[bytes] = []
    scan = OverlayTransaction.scan

    def counted(self, start, *more, **options):
        for row in scan(self, start, *more, **options):
            scanned.append(row[0])
            yield row

    log.checked = False
    with monkeypatch.context() as patched:
        patched.setattr(OverlayTransaction, "scan", counted)
        results = log.entry(*(request(1, born(log, name)) for name in range(100, 150)))
        assert {result.code for result in results} == {ErrorCode.TOO_MANY_PRODUCERS}
    assert scanned == []
    log.checked = True
    log.advance(40 * MINUTE_MS)
    assert log.entry(request(1, born(log, 200)))[0].count == 1, "there is room again"


def keyed(log: PartitionLog, *keys: bytes):
    specials = tuple(ItemSpecial(n, dedup_key=key) for n, key in enumerate(keys))
    return log.produce(len(keys), specials=specials)


def test_there_are_only_so_many_dedup_keys():
    log = PartitionLog()
    log.configure(dedup_window_ms=10 * MINUTE_MS)
    assert keyed(log, b"a", b"b").count == 2
    pretend(log, dedup_keys=DEDUP_KEYS_MAX - 1)
    refused = keyed(log, b"c", b"d")
    assert (refused.code, refused.field) == (ErrorCode.TOO_MANY_DEDUP_KEYS, "dedup_key")
    assert (refused.limit, refused.value) == (str(DEDUP_KEYS_MAX), str(DEDUP_KEYS_MAX + 1))
    assert count(log, DEDUP_KEYS) == 2
    assert log.produce(3).count == 3, "items without keys are taken"
    assert keyed(log, b"a", b"c", b"b").duplicates == ((0, 1), (2, 2))
    assert keyed(log, b"d").code is ErrorCode.TOO_MANY_DEDUP_KEYS
    assert keyed(log, b"a", b"c").duplicates, "repeats are answered"
    log.advance(11 * MINUTE_MS)
    assert count(log, DEDUP_KEYS) == 0
    assert keyed(log, b"d").count == 1


def test_a_repeated_item_without_a_dedup_key_does_not_make_room_for_one():
    log = PartitionLog()
    log.configure(dedup_window_ms=10 * MINUTE_MS)
    one, other = (1).to_bytes(2, "little"), (2).to_bytes(2, "little")
    identity = {"producer_id": PRODUCER, "sequence": 1}
    assert log.produce(1, **identity, slots=one).count == 1
    pretend(log, dedup_keys=DEDUP_KEYS_MAX)
    specials = (ItemSpecial(1, dedup_key=b"new"),)
    refused = log.produce(2, **identity, slots=one + other, specials=specials)
    assert refused.code is ErrorCode.TOO_MANY_DEDUP_KEYS
    assert refused.value == str(DEDUP_KEYS_MAX + 1)


def test_dedup_keys_are_counted_through_their_lives():
    """`PartitionLog` compares the count with the rows after each entry."""
    log = PartitionLog()
    log.configure(dedup_window_ms=MINUTE_MS)
    keyed(log, b"a", b"a", b"b")
    log.now_ms += 2 * MINUTE_MS
    assert keyed(log, b"a", b"c").count == 2, "out of the window, and not forgotten yet"
    log.configure(2, dedup_window_ms=0)
    log.advance(5 * MINUTE_MS)
    assert count(log, DEDUP_KEYS) == 0


def test_the_oldest_ended_lease_goes_first():
    log = PartitionLog()
    log.configure()
    log.produce(3)
    for number in (1, 2):
        log.one(lease_of(1, request_id=f"r{number}"))
        log.one(Complete((LeaseItems(number),)))
        log.advance(1000)
    pretend(log, ended=ENDED_LEASES_MAX)
    log.one(lease_of(1))
    log.one(Complete((LeaseItems(3),)))
    outcomes = log.one(Complete((LeaseItems(1), LeaseItems(2), LeaseItems(3)))).outcomes
    assert [outcome.unknown for outcome in outcomes] == [True, False, False]
    assert count(log, LEASE_REQUESTS) == 1


def test_a_client_with_too_many_leases_names_them():
    log = PartitionLog()
    log.configure()
    log.checked = False
    log.produce(APPLY_SEGMENTS_MAX + 1)
    log.entry(*[Proposal(lease_of(1))] * (APPLY_SEGMENTS_MAX + 1))
    assert log.one(Extend((), "c")).code is ErrorCode.LIMIT_EXCEEDED
    assert len(log.one(Extend((1, 2), "c")).outcomes) == 2


def test_memories_fade_without_any_call():
    log = PartitionLog()
    log.configure()
    log.entry(request(1))
    log.entry(request(2))
    log.one(lease_of(9, request_id="r"))
    log.one(Complete((LeaseItems(1),)))
    assert (count(log, ENDED), count(log, PRODUCER_OUTCOMES)) == (1, 2)
    log.advance(20 * MINUTE_MS)
    assert (count(log, ENDED), count(log, LEASE_REQUESTS)) == (0, 0)
    log.advance(2 * HOUR_MS)
    assert (count(log, PRODUCERS), count(log, PRODUCER_OUTCOMES)) == (1, 0)
    log.advance(8 * DAY_MS)
    assert (count(log, PRODUCERS), count(log, DEDUP_KEYS)) == (0, 0)
    assert log.applied.due_ms is None
