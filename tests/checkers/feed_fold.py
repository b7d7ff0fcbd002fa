"""The states of items as their events tell them, compared with the tables.

`fold` starts with nothing, and each event must be possible for the items that it names. So an event
that is missing, doubled or out of order shows.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from querator.model.event_calls import EventKind, RecordedEvent
from querator.partition import masks
from querator.partition.feed_queries import EventsPage, events_page
from querator.partition.rows import PartitionState, RowState, decode_segment, decode_state
from querator.storage.environment import ReadTransaction
from querator.storage.tables import SEGMENTS, STATE

WAITING, LEASED, MOVING, RESERVED = "waiting", "leased", "moving", "reserved"
GONE = None

_STATES = {
    RowState.READY: WAITING,
    RowState.HELD: WAITING,
    RowState.SCHEDULED: WAITING,
    RowState.LEASED: LEASED,
    RowState.MOVING: MOVING,
    RowState.RESERVED: RESERVED,
}
_STEPS: dict[EventKind, tuple[tuple[str | None, ...], str | None]] = {
    EventKind.PRODUCED: ((GONE,), WAITING),
    EventKind.ARRIVED: ((GONE,), WAITING),
    EventKind.LEASED: ((WAITING,), LEASED),
    EventKind.COMPLETED: ((LEASED,), GONE),
    EventKind.RETRIED: ((LEASED,), WAITING),
    EventKind.RELEASED: ((LEASED, RESERVED), WAITING),
    EventKind.LAPSED: ((LEASED,), WAITING),
    # A rejected item dies under its lease, a follow-up when it cannot be delivered.
    EventKind.DEAD: ((WAITING, LEASED, RESERVED, MOVING), MOVING),
    EventKind.MOVED: ((MOVING, WAITING), GONE),
    EventKind.RETURNED: ((MOVING,), WAITING),
    EventKind.DUE: ((WAITING,), WAITING),
    EventKind.REMOVED: ((WAITING,), GONE),
    EventKind.REPLACED: ((WAITING,), GONE),
    EventKind.GIVEN_UP: ((WAITING, MOVING), GONE),
    EventKind.RESCHEDULED: ((WAITING,), WAITING),
    EventKind.PRIORITIZED: ((WAITING,), WAITING),
    EventKind.RESERVED: ((WAITING,), RESERVED),
    EventKind.ACKNOWLEDGED: ((RESERVED,), GONE),
    EventKind.REDRIVEN: ((WAITING,), MOVING),
}


def page(txn: ReadTransaction, group: int, position: int = 0, **changes: Any) -> EventsPage:
    values: dict[str, Any] = {"events_max": 10**6, "ranges_max": 10**6}
    return events_page(txn, group, position, **(values | changes))


def all_events(txn: ReadTransaction, group: int, position: int = 1) -> list[RecordedEvent]:
    """All events of a feed from a position on, which must be without gaps."""
    found: list[RecordedEvent] = []
    while True:
        read = page(txn, group, position)
        assert not read.lost
        found += read.events
        assert [one.position for one in read.events] == list(range(position, read.next))
        if read.next == read.end:
            return found
        assert read.next > position
        position = read.next


def seqs(event: RecordedEvent) -> list[int]:
    return [seq for first, count in event.ranges for seq in range(first, first + count)]


def fold(events: Iterable[RecordedEvent]) -> tuple[dict[int, str], list[str]]:
    """The states of the items that still exist, and what is impossible in the events."""
    states: dict[int, str] = {}
    wrong: list[str] = []
    for event in events:
        kind = EventKind(event.kind)
        if (kind >= EventKind.STARTED) == bool(event.ranges):
            wrong.append(f"event {event.position}, {kind.name}, has the items {event.ranges}")
        if kind >= EventKind.STARTED:
            continue
        before, after = _STEPS[kind]
        if event.dropped:
            after = GONE
        for seq in seqs(event):
            at = states.get(seq)
            if at not in before:
                wrong.append(f"event {event.position}: {kind.name} of item {seq}, which is {at}")
            if after is GONE:
                states.pop(seq, None)
            else:
                states[seq] = after
    return states, wrong


def differences(txn: ReadTransaction, group: int, events: Iterable[RecordedEvent]) -> Iterator[str]:
    """How the events of a partition that has recorded all of them differ from its tables: from the
    states of its items, and from its counts. Items that are sent elsewhere at once, or when they
    come due, are WAITING in the fold until they have moved.
    """
    events = list(events)
    told, wrong = fold(events)
    yield from wrong
    stored: dict[int, str] = {}
    for key, raw in SEGMENTS.rows(txn, group):
        segment = decode_segment(raw)
        first_seq = int.from_bytes(key[-9:-1], "big")
        for ordinal in masks.ordinals(segment.mask):
            stored[first_seq + ordinal] = _STATES[RowState(segment.state)]
    for seq in sorted(told.keys() | stored.keys()):
        both = told.get(seq), stored.get(seq)
        if both[0] != both[1] and both != (WAITING, MOVING):
            yield f"item {seq} is {both[0]} by its events, and {both[1]} in the tables"
    row = STATE.get(txn, group)
    counts = Counter[EventKind]()
    for event in events:
        counts[EventKind(event.kind)] += len(seqs(event))
    state = PartitionState() if row is None else decode_state(row)
    for kind, counted in (
        (EventKind.PRODUCED, state.produced),
        (EventKind.ARRIVED, state.moved_in),
        (EventKind.LEASED, state.delivered),
        (EventKind.COMPLETED, state.completed),
        (EventKind.LAPSED, state.lapsed),
        (EventKind.DEAD, state.dead),
        (EventKind.MOVED, state.moved_out),
        (EventKind.REMOVED, state.cancelled),
        (EventKind.REPLACED, state.replaced),
        (EventKind.ACKNOWLEDGED, state.acknowledged),
    ):
        if counts[kind] != counted:
            yield f"{counts[kind]} items are {kind.name} by events; the partition counts {counted}"


def check_fold(txn: ReadTransaction, group: int) -> None:
    """For a partition that has recorded all of its events."""
    assert list(differences(txn, group, all_events(txn, group))) == []
