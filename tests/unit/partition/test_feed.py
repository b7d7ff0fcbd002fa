"""The feed of a partition: what is recorded at which position, for how long, and what it costs."""

from typing import Any

import pytest

from querator.model.commands import (
    Activate,
    Cancel,
    Complete,
    Expire,
    FlowNames,
    FlowSettings,
    GiveUp,
    ItemSpecial,
    LeaseGrant,
    LeaseItems,
    Move,
    MovedItem,
    MoveDone,
    MoveReturn,
    Prioritize,
    Produce,
    Purge,
    RepairTime,
    Reschedule,
    Retry,
    Route,
    SetBreaker,
)
from querator.model.entries import Proposal
from querator.model.event_calls import EventKind, PausedPart, RecordedEvent
from querator.model.item_options import OnDuplicate
from querator.model.limits import (
    EVENT_ROWS_DELETED_MAX,
    EVENTS_CLOSING_MS,
    EVENTS_OF_ROW_MAX,
    HOUR_MS,
    MINUTE_MS,
)
from querator.model.queues import BreakerSettings, BreakerState, DedupUntil, QueueKind
from querator.partition import feed, feed_queries, invariants
from querator.partition.dedup_export import ClosureQuery, closure
from querator.partition.feed_queries import EventsPage
from querator.partition.feed_rows import FeedRow
from querator.partition.rows import DeadCause, decode_state, encode
from querator.storage.tables import EVENTS, STATE
from tests.checkers.feed_fold import all_events, page, seqs
from tests.unit.partition.partition_log import (
    GROUP,
    START_MS,
    PartitionLog,
    dead_to,
    lease_of,
    produce,
)

KIND = EventKind


def recording(**changes: Any) -> PartitionLog:
    log = PartitionLog()
    log.configure(events_retention_ms=HOUR_MS, **changes)
    return log


@pytest.fixture
def log() -> PartitionLog:
    return recording()


def events(log: PartitionLog, position: int = 1) -> list[RecordedEvent]:
    with log.environment.snapshot() as txn:
        return all_events(txn, log.group, position)


def read(log: PartitionLog, position: int = 0, **changes: Any) -> EventsPage:
    with log.environment.snapshot() as txn:
        return page(txn, log.group, position, **changes)


def told(log: PartitionLog, position: int = 2) -> list[tuple[EventKind, list[int]]]:
    """Kinds and items from a position on: by default, after the start."""
    return [(EventKind(one.kind), seqs(one)) for one in events(log, position)]


def of(log: PartitionLog) -> FeedRow:
    with log.environment.snapshot() as txn:
        raw = STATE.get(txn, log.group)
    assert raw is not None
    row = decode_state(raw).feed
    assert row is not None
    return row


def rows(log: PartitionLog) -> int:
    with log.environment.snapshot() as txn:
        return len(list(EVENTS.rows(txn, log.group)))


def lease(log: PartitionLog, count: int = 100, **changes: Any) -> int:
    grant = log.one(lease_of(count, **changes)).grants[0]
    assert isinstance(grant, LeaseGrant)
    return grant.lease


def test_a_queue_that_does_not_ask_records_nothing():
    log = PartitionLog()
    log.configure()
    log.produce(3)
    log.one(Complete((LeaseItems(lease(log)),)))
    assert rows(log) == 0
    with log.environment.snapshot() as txn:
        raw = STATE.get(txn, log.group)
    assert raw is not None
    assert decode_state(raw).feed is None
    assert log.applied.effects.events == 0
    assert not read(log).kept


def test_the_life_of_an_item(log):
    log.produce(3)
    number = lease(log, client_id="worker")
    log.one(Complete((LeaseItems(number, ((1, 1),)),)))
    log.one(Retry((LeaseItems(number, ((2, 1),)),), retry_at_ms=START_MS + 5_000))
    log.one(Retry((LeaseItems(number, ((3, 1),)),), count_attempt=False))
    assert told(log) == [
        (KIND.PRODUCED, [1, 2, 3]),
        (KIND.LEASED, [1, 2, 3]),
        (KIND.COMPLETED, [1]),
        (KIND.RETRIED, [2]),
        (KIND.RELEASED, [3]),
    ]
    start, _, leased, completed, retried, released = events(log)
    assert (start.kind, start.position, start.ranges) == (KIND.STARTED, 1, ())
    assert (leased.lease, leased.client_id, leased.attempt) == (number, "worker", 1)
    assert (completed.lease, completed.attempt, completed.produced_at_ms) == (number, 1, START_MS)
    assert (retried.due_ms, released.due_ms) == (START_MS + 5_000, 0)
    assert retried.at_ms == START_MS


def test_one_entry_is_one_row_whatever_its_items(log):
    log.entry(produce([b"a"] * 300), produce([b"b"] * 10))
    assert rows(log) == 2
    assert [len(seqs(one)) for one in events(log)[1:]] == [256, 54]
    log.one(lease_of(1000))
    assert rows(log) == 3


def test_lapses_deaths_and_what_is_dropped():
    log = recording(max_attempts=2)
    log.produce(2)
    for _ in range(2):
        lease(log)
        log.advance(31_000)
    assert told(log, 3) == [
        (KIND.LEASED, [1, 2]),
        (KIND.LAPSED, [1, 2]),
        (KIND.LEASED, [1, 2]),
        (KIND.LAPSED, [1, 2]),
        (KIND.DEAD, [1, 2]),
    ]
    dead = events(log)[-1]
    assert (dead.detail, dead.attempt, dead.dropped) == (DeadCause.ATTEMPTS, 2, True)


def test_a_dead_letter_moves():
    log = recording(dead_targets=dead_to(9))
    log.produce(3)
    log.one(Retry((LeaseItems(lease(log)),), dead=True))
    log.one(MoveDone(9, 2))
    assert told(log, 4) == [(KIND.DEAD, [1, 2, 3]), (KIND.MOVED, [1, 2])]
    assert not events(log)[3].dropped
    log.one(MoveReturn(9))
    assert told(log, 6) == [(KIND.RETURNED, [3])]


def test_what_arrives_from_another_partition(log):
    letter = MovedItem("q", 0, 5, 17, 3, DeadCause.ATTEMPTS, ("no",), START_MS, START_MS)
    log.entry(Proposal(Move(5, 1, (4).to_bytes(4, "little"), (letter,)), b"item"))
    log.entry(Proposal(Move(5, 1, (4).to_bytes(4, "little"), (letter,)), b"item"))
    assert told(log) == [(KIND.ARRIVED, [1])]


def test_schedules(log):
    at_ms = START_MS + 60_000
    log.produce(2, specials=(ItemSpecial(0, at_ms), ItemSpecial(1, at_ms)))
    log.one(Reschedule(((1, 1),), due_ms=at_ms + 1_000))
    log.now_ms = at_ms
    log.one(Activate())
    log.one(Reschedule(((1, 1),)))
    assert told(log) == [
        (KIND.PRODUCED, [1, 2]),
        (KIND.RESCHEDULED, [1]),
        (KIND.DUE, [2]),
        (KIND.DUE, [1]),
    ]
    assert events(log, 3)[0].due_ms == at_ms + 1_000


def test_changes_by_operators(log):
    log.produce(6)
    log.one(Prioritize(((1, 2),), -3))
    log.one(Prioritize(((1, 2),), -3))
    log.one(Cancel(((2, 1),)))
    log.one(Cancel(((3, 1),), dead=True))
    log.one(Purge(1, 4, scheduled=True))
    log.one(GiveUp((1,)))
    assert told(log, 3) == [
        (KIND.PRIORITIZED, [1, 2]),
        (KIND.REMOVED, [2]),
        (KIND.DEAD, [3]),
        (KIND.REMOVED, [1, 4]),
        (KIND.GIVEN_UP, [5, 6]),
    ]
    assert events(log, 3)[0].detail == -3


def test_an_item_that_replaces_another():
    log = recording(dedup_until=DedupUntil.DONE)
    special = (ItemSpecial(0, dedup_key=b"k", on_duplicate=OnDuplicate.REPLACE),)
    log.produce([b"a"], specials=special)
    log.produce([b"b"], specials=special)
    assert told(log) == [(KIND.PRODUCED, [1]), (KIND.REPLACED, [1]), (KIND.PRODUCED, [2])]
    # Two of one entry: the first one is never stored.
    log.entry(produce([b"c"], specials=special), produce([b"d"], specials=special))
    assert told(log, 5) == [
        (KIND.REPLACED, [2]),
        (KIND.PRODUCED, [3]),
        (KIND.REPLACED, [3]),
        (KIND.PRODUCED, [4]),
    ]


def test_pauses_settings_and_sizes(log):
    recorded = {"events_retention_ms": HOUR_MS}
    log.configure(version=2, lease_paused=True, **recorded)
    log.configure(version=2, lease_paused=False, **recorded)
    log.configure(version=3, produce_paused=True, **recorded)
    log.one(Route(1, 4, open=False))
    log.one(Route(1, 4, open=True))
    found = [(EventKind(one.kind), one.detail) for one in events(log, 2)]
    assert found == [
        (KIND.PAUSED, PausedPart.LEASES),
        (KIND.SETTINGS_CHANGED, 2),
        (KIND.RESUMED, PausedPart.LEASES),
        (KIND.PAUSED, PausedPart.PRODUCERS),
        (KIND.SETTINGS_CHANGED, 3),
        (KIND.RESIZED, 4),
    ]


def test_states_of_the_breaker():
    log = recording(breaker=BreakerSettings(50, 1, 60_000, 30_000, 1))
    log.produce(2)
    log.one(Retry((LeaseItems(lease(log, 1)),)))
    log.advance(30_000)
    log.one(SetBreaker(open=False))
    states = [one.detail for one in events(log) if one.kind == KIND.BREAKER_CHANGED]
    assert states == [BreakerState.OPEN, BreakerState.HALF_OPEN, BreakerState.CLOSED]


def test_events_name_the_group_of_their_items():
    log = recording(flows=FlowSettings(QueueKind.FAIR))
    names = FlowNames((b"eu", b"us"), b"\0\0\1\0\xff\xff")
    log.produce(3, flows=names)
    number = lease(log)
    log.one(Complete((LeaseItems(number),)))
    kinds = (KIND.LEASED, KIND.COMPLETED)
    by_flow = {(one.kind, one.flow): seqs(one) for one in events(log) if one.kind in kinds}
    assert by_flow == {
        (kind, flow): [seq] for kind in kinds for flow, seq in ((b"eu", 1), (b"us", 2), (b"", 3))
    }


def test_a_group_that_is_gone_before_the_entry_ends_is_named():
    log = recording(flows=FlowSettings(QueueKind.FAIR))
    log.produce(1, flows=FlowNames((b"eu",), b"\0\0"))
    log.produce(1, flows=FlowNames((b"us",), b"\0\0"))
    number = lease(log, 1)
    # The lease looks for the next group, and removes the one that has no items any more.
    log.entry(Proposal(Complete((LeaseItems(number),))), Proposal(lease_of()))
    completed, leased = events(log, 5)
    assert [(one.kind, one.flow) for one in (completed, leased)] == [
        (KIND.COMPLETED, b"eu"), (KIND.LEASED, b"us"),
    ]  # fmt: skip


def test_positions_continue_when_events_stop_and_start(log):
    log.produce(1)
    log.configure(version=2)
    log.produce(1)
    assert not read(log).kept
    log.advance(MINUTE_MS)
    assert rows(log) == 0
    log.configure(version=3, events_retention_ms=HOUR_MS)
    log.produce(1)
    assert read(log, 2).lost
    found = read(log)
    assert [(one.position, one.kind) for one in found.events] == [
        (3, KIND.STARTED), (4, KIND.PRODUCED),
    ]  # fmt: skip
    assert seqs(found.events[1]) == [3]


def test_rows_that_are_left_of_former_events_are_no_events(log):
    for _ in range(19):
        log.produce(1)
    log.configure(version=2)
    # Before they are deleted.
    log.configure(version=3, events_retention_ms=HOUR_MS)
    assert rows(log) == 21 - EVENT_ROWS_DELETED_MAX
    assert [one.position for one in read(log).events] == [21]
    assert read(log, 20).lost
    log.advance(MINUTE_MS)
    assert rows(log) == 1
    assert of(log).first == 21


def test_events_are_kept_for_the_time_of_the_setting(log):
    log.produce(1)
    log.advance(HOUR_MS // 2)
    log.produce(1)
    log.advance(HOUR_MS // 2 - 1)
    assert of(log).first == 1
    log.advance(MINUTE_MS)
    assert (of(log).first, rows(log)) == (3, 1)
    assert read(log, 2).lost
    assert [seqs(one) for one in read(log, 3).events] == [[2]]
    log.configure(version=2, events_retention_ms=MINUTE_MS)
    log.advance(MINUTE_MS - 1)
    assert [one.kind for one in read(log).events] == [KIND.SETTINGS_CHANGED]
    log.advance(MINUTE_MS)
    assert rows(log) == 0


def test_a_read_at_the_end_is_not_lost_when_all_has_aged(log):
    log.produce(1)
    log.advance(2 * HOUR_MS)
    assert rows(log) == 0
    found = read(log, 3)
    assert (found.lost, found.events, found.next) == (False, (), 3)
    assert read(log, 2).lost
    assert read(log, 4).lost
    assert read(log).next == 3


def test_the_ring_is_bounded_in_rows(monkeypatch, log):
    monkeypatch.setattr(feed, "EVENT_ROWS_MAX", 5)
    for number in range(1, 20):
        log.produce(1)
        assert rows(log) == min(number + 1, 5)
    assert (of(log).first, of(log).next) == (16, 21)


def test_the_ring_is_bounded_in_bytes_and_gives_way_in_bounded_steps(monkeypatch, log):
    for _ in range(40):
        log.produce(1)
    size = of(log).bytes
    monkeypatch.setattr(feed, "EVENTS_BYTES_MAX", size // 4)
    log.produce(1)
    assert rows(log) == 42 - EVENT_ROWS_DELETED_MAX
    while of(log).bytes > size // 4:
        log.produce(1)
    assert of(log).first > 30
    assert [one.position for one in events(log, of(log).first)][-1] == of(log).next - 1


def test_an_entry_with_many_events_has_rows_of_bounded_size(monkeypatch, log):
    assert EVENTS_OF_ROW_MAX > 100
    monkeypatch.setattr(feed, "EVENTS_OF_ROW_MAX", 4)
    log.entry(*(Proposal(Produce((1).to_bytes(4, "little")), b"x") for _ in range(10)))
    number = lease(log)
    log.entry(*(Proposal(Complete((LeaseItems(number, ((seq, 1),)),))) for seq in range(1, 11)))
    found = events(log)
    assert rows(log) == 3 + 3
    assert [seqs(one) for one in found[3:]] == [[seq] for seq in range(1, 11)]
    # From within a row.
    assert [seqs(one) for one in events(log, 6)] == [[seq] for seq in range(3, 11)]


def test_pages(monkeypatch, log):
    for _ in range(10):
        log.produce(1)
    first = read(log, events_max=4)
    assert ([one.position for one in first.events], first.next, first.end) == (
        [1, 2, 3, 4], 5, 12,
    )  # fmt: skip
    assert read(log, 5, ranges_max=0).next == 6
    assert read(log, -1).events == ()
    assert read(log, -1).next == 12
    monkeypatch.setattr(feed_queries, "EVENTS_SCANNED_MAX", 3)
    assert read(log, 5).next == 8


def test_a_filter_leaves_out_positions(log):
    log.produce(2)
    number = lease(log)
    log.one(Complete((LeaseItems(number),)))
    found = read(log, kinds=frozenset({KIND.LEASED}))
    assert ([one.position for one in found.events], found.next) == ([3], 5)
    nothing = read(log, 4, kinds=frozenset({KIND.LEASED}))
    assert (nothing.events, nothing.next) == ((), 5)


def test_effects_change_with_each_event_and_at_the_end(log):
    seen = [log.applied.effects.events]
    log.produce(1)
    seen.append(log.applied.effects.events)
    log.one(Expire())
    assert log.applied.effects.events == seen[-1]
    log.configure(version=2)
    seen.append(log.applied.effects.events)
    assert len(set(seen)) == 3
    assert 0 not in seen


def test_a_closing_partition_stays_until_its_events_could_be_read():
    log = PartitionLog()
    log.configure(partition=2, events_retention_ms=24 * HOUR_MS)
    log.one(Route(1, 3, open=True))
    log.produce(1)
    log.one(Cancel(((1, 1),)))
    log.one(Route(2, 2, open=True))
    assert _closure(log).closing
    log.advance(EVENTS_CLOSING_MS - 1)
    assert _closure(log).outcomes
    log.advance(MINUTE_MS)
    assert not _closure(log).outcomes


def _closure(log: PartitionLog) -> Any:
    with log.environment.snapshot() as txn:
        return closure(txn, ClosureQuery(log.group))


def test_a_replica_that_starts_again_continues(log):
    log.produce(1)
    with log.environment.snapshot() as txn:
        assert log.machine.recover(txn).effects == log.applied.effects
    log.machine = type(log.machine)(GROUP)
    log.produce(1)
    assert told(log) == [(KIND.PRODUCED, [1]), (KIND.PRODUCED, [2])]


def test_time_that_goes_back_loses_no_event(log):
    log.advance(HOUR_MS // 2)
    log.produce(1)
    log.one(RepairTime(START_MS))
    log.now_ms = START_MS
    log.produce(1)
    log.advance(HOUR_MS - 1)
    assert [seqs(one) for one in events(log, 2)] == [[1], [2]]
    log.advance(2 * HOUR_MS)
    assert rows(log) == 0


@pytest.mark.parametrize("field", ["first", "next", "rows", "bytes", "head", "head_ms"])
def test_a_wrong_number_is_found(log, field):
    log.produce(1)
    txn = log.environment.begin()
    raw = STATE.get(txn, GROUP)
    assert raw is not None
    state = decode_state(raw)
    setattr(state.feed, field, getattr(state.feed, field) + 7)
    STATE.put(txn, GROUP, value=encode(state))
    assert invariants.check(txn, GROUP) != []
    txn.abort()


def test_a_lost_row_is_found(log):
    log.produce(1)
    log.produce(1)
    txn = log.environment.begin()
    EVENTS.delete(txn, GROUP, 2)
    assert any("position 3; 2 is next" in one for one in invariants.check(txn, GROUP))
    txn.abort()


def test_events_change_no_result_of_a_command():
    quiet, loud = PartitionLog(), PartitionLog()
    quiet.configure()
    loud.configure(events_retention_ms=HOUR_MS)
    for log in (quiet, loud):
        log.produce(5)
        number = lease(log, 3)
        log.one(Complete((LeaseItems(number, ((1, 1),)),)))
        log.one(Retry((LeaseItems(number),)))
    assert quiet.applied.results == loud.applied.results
