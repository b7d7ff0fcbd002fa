"""State time was ahead, and is put back: later instants are dated again."""

from querator.model.commands import (
    Complete,
    Done,
    Expire,
    Extend,
    ItemSpecial,
    LeaseItems,
    Refusal,
    RepairTime,
)
from querator.model.errors import ErrorCode
from querator.model.limits import (
    APPLY_SEGMENTS_MAX,
    DAY_MS,
    HOUR_MS,
    LEASE_OUTCOME_WINDOW_MS,
    MINUTE_MS,
    PRODUCER_RETENTION_MS,
)
from querator.partition import dedup_export, queries
from querator.partition.dedup_export import ClosureQuery, FactsQuery
from querator.partition.rows import decode_lease, decode_state
from querator.storage.tables import LEASES, STATE
from tests.unit.partition.partition_log import START_MS, PartitionLog, lease_of

AHEAD_MS = 30 * DAY_MS


def log_of(**changes: int) -> PartitionLog:
    log = PartitionLog()
    log.configure(**changes)
    return log


def repair(log: PartitionLog, to_ms: int) -> Done:
    """Puts time back, and processes all that is due then."""
    log.now_ms = to_ms
    done = log.one(RepairTime(to_ms))
    log.advance(0)
    assert isinstance(done, Done)
    return done


def grants(log: PartitionLog) -> list[int]:
    with log.environment.snapshot() as snapshot:
        return [decode_lease(row).leased_ms for _, row in LEASES.rows(snapshot, log.group)]


def deadlines(log: PartitionLog) -> list[int]:
    with log.environment.snapshot() as snapshot:
        return [decode_lease(row).deadline_ms for _, row in LEASES.rows(snapshot, log.group)]


def born(at_ms: int, number: int = 1) -> bytes:
    return at_ms.to_bytes(6, "big") + number.to_bytes(10, "big")


def told(log: PartitionLog, since_ms: int) -> tuple[set[int], set[bytes], int]:
    """The facts since `since_ms` that the partition gives to an added one: sequences of requests,
    keys, and the state time at which they were read.
    """
    after, sequences, keys = b"", set[int](), set[bytes]()
    while True:
        with log.environment.snapshot() as txn:
            page = dedup_export.facts(txn, FactsQuery(log.group, 1, 2, after, since_ms))
        for _, found in page.facts:
            sequences |= {one.sequence for each in found.producers for one in each.outcomes}
            keys |= {one.key for one in found.keys}
        after = page.after
        if not after:
            return sequences, keys, page.now_ms


def is_pinned(log: PartitionLog) -> bool:
    with log.environment.snapshot() as txn:
        return dedup_export.closure(txn, ClosureQuery(log.group)).pinned


def test_leases_are_not_cut_short_and_do_not_last_for_ever():
    log = log_of(lease_timeout_ms=30_000)
    for _ in range(3):
        log.produce(1)
    log.one(lease_of(1, lease_timeout_ms=10 * HOUR_MS))
    log.one(lease_of(1, lease_timeout_ms=10 * HOUR_MS))
    log.now_ms += HOUR_MS
    log.one(lease_of(1))
    log.one(Extend((2,), lease_timeout_ms=20 * HOUR_MS))
    right_ms = START_MS + 1_000
    assert repair(log, right_ms) == Done(HOUR_MS - 1_000)
    assert deadlines(log) == [
        START_MS + 10 * HOUR_MS,
        right_ms + 20 * HOUR_MS,
        right_ms + 30_000,
    ]
    assert grants(log) == [START_MS, START_MS, right_ms]
    log.advance(29_999)
    assert len(deadlines(log)) == 3
    log.advance(1)
    assert len(deadlines(log)) == 2


def test_state_time_goes_on_from_there_and_is_not_put_forward():
    log = log_of()
    log.now_ms += AHEAD_MS
    log.produce(1)
    repair(log, START_MS + 1_000)
    assert repair(log, START_MS + 2_000) == Done(0), "it is not ahead"
    assert log.one(RepairTime()) == Done(0)
    log.produce(1)
    with log.environment.snapshot() as snapshot:
        state = decode_state(STATE.get(snapshot, log.group) or b"")
    assert (state.now_ms, state.redating) == (START_MS + 2_000, None)


def test_a_schedule_stays_where_it_was_and_what_was_leased_still_expires():
    log = log_of(lease_timeout_ms=DAY_MS)
    log.produce(1, specials=(ItemSpecial(0, enqueue_at_ms=START_MS + 40 * DAY_MS),))
    log.produce(1, specials=(ItemSpecial(0, expire_timeout_ms=2 * HOUR_MS),))
    log.one(lease_of(1))
    log.now_ms += 3 * HOUR_MS
    log.advance(0)
    repair(log, START_MS + 1_000)
    assert log.one(lease_of()).grants[0].segments == ()
    log.one(Complete((LeaseItems(9),)))
    with log.environment.snapshot() as snapshot:
        assert (log.applied.effects.ready, queries.stats(snapshot, log.group).scheduled) == (0, 1)
    log.advance(25 * HOUR_MS)
    with log.environment.snapshot() as snapshot:
        stats = queries.stats(snapshot, log.group)
    assert (stats.leases, stats.expired) == (0, 1), "its lease has lapsed, and its time was over"


def test_keys_and_outcomes_are_remembered_for_their_time():
    log = log_of(dedup_window_ms=HOUR_MS, lease_timeout_ms=30_000)
    log.now_ms += AHEAD_MS
    keyed = (ItemSpecial(0, dedup_key=b"k"),)
    log.produce(1, specials=keyed)
    log.one(lease_of(1))
    log.one(Complete((LeaseItems(1),)))
    log.produce(1, producer_id=born(log.now_ms), sequence=1)
    repair(log, START_MS + 1_000)
    assert log.produce(1, specials=keyed).duplicates
    assert log.produce(1, producer_id=born(START_MS + AHEAD_MS), sequence=1).repeated
    assert log.one(Complete((LeaseItems(1),))).outcomes
    log.advance(HOUR_MS + LEASE_OUTCOME_WINDOW_MS + 3 * MINUTE_MS)
    assert not log.produce(1, specials=keyed).duplicates
    with log.environment.snapshot() as snapshot:
        state = decode_state(STATE.get(snapshot, log.group) or b"")
    assert state.ended == 0


def test_a_producer_that_may_have_been_forgotten_too_early_is_refused():
    log = log_of(dedup_window_ms=HOUR_MS)
    old, young = born(START_MS - DAY_MS), born(START_MS + 2_000, 2)
    log.produce(1, producer_id=old, sequence=1)
    for _ in range(10):
        log.advance(DAY_MS)
    log.advance(AHEAD_MS)
    expired = log.produce(1, producer_id=young, sequence=1)
    assert isinstance(expired, Refusal)
    assert expired.code is ErrorCode.PRODUCER_EXPIRED
    repair(log, START_MS + 2_000)
    again = log.produce(1, producer_id=old, sequence=1)
    assert isinstance(again, Refusal)
    assert again.code is ErrorCode.PRODUCER_EXPIRED
    log.advance(1_000)
    assert log.produce(1, producer_id=born(START_MS + 2_500, 3), sequence=1).count == 1


def test_after_a_small_step_only_those_are_refused_that_were_about_to_be_forgotten():
    log = log_of()
    log.now_ms += DAY_MS
    log.produce(1)
    repair(log, START_MS + 1_000)
    limit_ms = START_MS + DAY_MS - PRODUCER_RETENTION_MS
    refused = log.produce(1, producer_id=born(limit_ms), sequence=1)
    assert isinstance(refused, Refusal)
    assert log.produce(1, producer_id=born(limit_ms + 1), sequence=1).count == 1


def test_much_goes_back_in_bounded_steps():
    log = log_of()
    log.now_ms += AHEAD_MS
    log.checked = False
    many = APPLY_SEGMENTS_MAX + 100
    for number in range(many):
        log.produce(1, specials=(ItemSpecial(0, dedup_key=b"%d" % number),))
        log.one(lease_of(1))
    log.checked = True
    log.now_ms = START_MS + 1_000
    log.one(RepairTime(log.now_ms))
    steps = 0
    while log.machine.due_commands(log.now_ms):
        assert log.one(Expire()).changed <= APPLY_SEGMENTS_MAX
        steps += 1
    assert steps >= 4
    assert set(deadlines(log)) == {START_MS + 31_000}


def test_what_is_stored_after_the_repair_is_handed_over_since_a_time_before_it():
    log = log_of()
    log.now_ms += DAY_MS
    producer_id = born(log.now_ms)
    log.produce(1, producer_id=producer_id, sequence=1)
    ahead_ms = told(log, 0)[2]
    repair(log, START_MS + 1_000)
    log.now_ms += 1_000
    for sequence in range(2, 10):
        special = ItemSpecial(0, dedup_key=b"%d" % sequence)
        log.produce(1, producer_id=producer_id, sequence=sequence)
        log.produce(1, specials=(special,))
    everything = told(log, 0)
    assert everything[0] == {2, 4, 6, 8}
    assert everything[1]
    assert told(log, ahead_ms) == everything
    log.now_ms += 2 * DAY_MS
    log.produce(1)
    assert told(log, log.now_ms) == (set(), set(), log.now_ms), "time has passed it again"


def test_partitions_do_not_change_while_rows_are_dated_anew():
    log = log_of()
    log.now_ms += DAY_MS
    log.produce(1)
    assert not is_pinned(log)
    log.now_ms = START_MS + 1_000
    log.one(RepairTime(log.now_ms))
    assert is_pinned(log)
    log.advance(0)
    assert not is_pinned(log)
