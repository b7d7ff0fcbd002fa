"""The states of items as their events tell them, compared with the tables.

`fold` starts with nothing, and each event must be possible for the items that it names. So an event
that is missing, doubled or out of order shows.
"""

from typing import Any

from querator.model.event_calls import EventKind, RecordedEvent
from querator.partition.feed_queries import EventsPage, events_page
from querator.partition.rows import RowState, decode_segment
from querator.storage.environment import ReadTransaction
from querator.storage.tables import SEGMENTS

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


def fold(events: list[RecordedEvent]) -> dict[int, str]:
    """The states of the items that still exist."""
    states: dict[int, str] = {}
    for event in events:
        kind = EventKind(event.kind)
        if kind >= EventKind.STARTED:
            assert not event.ranges
            continue
        assert event.ranges, f"{kind.name} names no items"
        before, after = _STEPS[kind]
        if event.dropped:
            after = GONE
        for seq in seqs(event):
            at = states.get(seq)
            assert at in before, f"{kind.name} of item {seq}, which is {at}"
            if after is GONE:
                states.pop(seq, None)
            else:
                states[seq] = after
    return states


def check_fold(txn: ReadTransaction, group: int) -> None:
    """The events of a partition that has recorded all of them lead to the states in its tables.
    Follow-ups that go elsewhere at once are WAITING in the fold until they have moved.
    """
    stored: dict[int, str] = {}
    for key, raw in SEGMENTS.rows(txn, group):
        segment = decode_segment(raw)
        first_seq = int.from_bytes(key[-9:-1], "big")
        for ordinal in range(256):
            if segment.mask >> ordinal & 1:
                stored[first_seq + ordinal] = _STATES[RowState(segment.state)]
    told = fold(all_events(txn, group))
    differing = {
        seq: (told.get(seq), stored.get(seq))
        for seq in told.keys() | stored.keys()
        if told.get(seq) != stored.get(seq)
        and (told.get(seq), stored.get(seq)) != (WAITING, MOVING)
    }
    assert not differing, differing
