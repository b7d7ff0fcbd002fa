"""The feed of a partition: what happens to its items and to itself, by position.

A queue that asks for events (`events_retention_ms`) has them recorded. The rules note them while
they apply an entry, in a list in memory, and the entry ends with one row for all of them. So the
cost is per entry and per set of items, and not per item. In other queues the context has no feed,
and each rule makes one comparison.

    Configure with retention ──► STARTED, position n ──► n+1, n+2, … ──► Configure without: no feed

Positions count events from 1, without gaps, and are never used again: also when events stop and
start, `next` continues. All replicas write the same rows, so positions survive the change of a
leader, a snapshot and a restart.

The feed is a ring: events are kept for the time of the setting, and no more than EVENTS_BYTES_MAX
and EVENT_ROWS_MAX. Each entry deletes more rows than it writes, while there are too many. What has
aged is deleted by Expire. A reader of a position before `first` gets an error and not the next
events (`partition.feed_queries`). A partition that is closing stays until its events have been
there for EVENTS_CLOSING_MS, so that a follower has the time to read them.

Events of an entry are in the order in which the rules have carried out its commands. All have its
time. After a repair of time, later events have earlier times, and those before are kept longer.
"""

from typing import TYPE_CHECKING

from querator.model.event_calls import EventKind, PausedPart
from querator.model.limits import (
    EVENT_ROWS_DELETED_MAX,
    EVENT_ROWS_MAX,
    EVENTS_BYTES_MAX,
    EVENTS_CLOSING_MS,
    EVENTS_OF_ROW_MAX,
)
from querator.partition import masks
from querator.partition.feed_rows import EventRow, EventsRow, FeedRow, encode_events, time_of
from querator.partition.flows import ROOT, Flows
from querator.storage.tables import EVENTS

if TYPE_CHECKING:
    from querator.partition.apply_context import ApplyContext
    from querator.partition.rows import SettingsRow


class EventNotes:
    """The events of the entry that is being applied."""

    __slots__ = ("_clients", "_events", "_flows", "_names")

    def __init__(self, flows: Flows | None) -> None:
        self._events: list[EventRow] = []
        self._clients: dict[int, str] = {}
        self._flows = flows
        self._names: dict[int, bytes] = {}
        """Of the flows of the events. A flow may be gone before the entry ends."""

    def items(
        self,
        kind: EventKind,
        first_seq: int,
        mask: int,
        *,
        lease: int = 0,
        attempt: int = 0,
        produced_at_ms: int = 0,
        due_ms: int = 0,
        detail: int = 0,
        flow: int = 0,
        dropped: bool = False,
    ) -> None:
        """Notes what has happened to items of a block. There must be some."""
        if flow > ROOT and flow not in self._names:
            assert self._flows is not None
            self._names[flow] = self._flows.name_of(flow)
        self._events.append(
            EventRow(
                kind=kind, first_seq=first_seq, mask=masks.to_bytes(mask), lease=lease,
                attempt=attempt, produced_at_ms=produced_at_ms, due_ms=due_ms, detail=detail,
                flow=flow, dropped=dropped,
            )
        )  # fmt: skip

    def granted(self, lease: int, client_id: str) -> None:
        self._clients[lease] = client_id

    def partition(self, kind: EventKind, detail: int = 0) -> None:
        """Notes what has happened to the partition itself."""
        self._events.append(EventRow(kind, detail=detail))

    def write(self, context: "ApplyContext") -> None:
        """Writes what was noted, and deletes as many old rows as there are too many, up to the
        bound. Called once.
        """
        state, events = context.state, self._events
        row = state.feed
        assert row is not None, "a partition that notes events has a feed"
        if not events:
            return
        for start in range(0, len(events), EVENTS_OF_ROW_MAX):
            self._write_row(context, row, events[start : start + EVENTS_OF_ROW_MAX])
        delete_old(context, EVENT_ROWS_DELETED_MAX + len(events) // EVENTS_OF_ROW_MAX)

    def _write_row(self, context: "ApplyContext", row: FeedRow, events: list[EventRow]) -> None:
        clients: tuple[tuple[int, str], ...] = ()
        flows: tuple[tuple[int, bytes], ...] = ()
        if self._clients:
            leases = sorted({event.lease for event in events} & self._clients.keys())
            clients = tuple((lease, self._clients[lease]) for lease in leases)
        if self._names:
            numbers = sorted({event.flow for event in events} & self._names.keys())
            flows = tuple((number, self._names[number]) for number in numbers)
        data = encode_events(context.now_ms, EventsRow(tuple(events), clients, flows))
        EVENTS.put(context.txn, context.group, row.next, value=data)
        if not row.rows:
            row.head, row.head_ms = row.next, context.now_ms
            _clean_at(context, context.now_ms + _retention_ms(context))
        row.next += len(events)
        row.rows += 1
        row.bytes += len(data)


def configured(context: "ApplyContext", before: "SettingsRow | None") -> None:
    """The partition has settings in place of those `before`."""
    state, queue = context.state, context.queue
    was = None if before is None else before.settings
    kept = was is not None and was.events_retention_ms > 0
    if not queue.events_retention_ms:
        if kept:
            assert state.feed is not None
            state.feed.first = state.feed.next
            context.feed = None
            _clean_at(context, context.now_ms)
        return
    if was is None or not kept:
        state.feed = state.feed or FeedRow()
        context.feed = EventNotes(context.flows)
        context.feed.partition(EventKind.STARTED)
        return
    feed = context.feed
    assert feed is not None
    assert state.feed is not None
    for part, is_paused, was_paused in (
        (PausedPart.LEASES, queue.lease_paused, was.lease_paused),
        (PausedPart.PRODUCERS, queue.produce_paused, was.produce_paused),
    ):
        if is_paused is not was_paused:
            feed.partition(EventKind.PAUSED if is_paused else EventKind.RESUMED, part)
    feed.partition(EventKind.SETTINGS_CHANGED, context.share.version)
    if queue.events_retention_ms != was.events_retention_ms:
        _clean_at(context, context.now_ms)


def routed(context: "ApplyContext") -> None:
    """The partition has got another Route. It may be closing: then events are kept for a shorter
    time, for which the partition stays.
    """
    if context.feed is not None:
        context.feed.partition(EventKind.RESIZED, context.share.routed)
        _clean_at(context, context.now_ms)


def delete_old(context: "ApplyContext", rows_max: int) -> int:
    """Deletes the oldest rows that are too old or too many, up to `rows_max`. Returns their
    number.
    """
    row = context.state.feed
    if row is None or not row.rows:
        return 0
    oldest_ms = context.now_ms - _retention_ms(context)
    if (
        row.head >= row.first
        and row.head_ms > oldest_ms
        and row.rows <= EVENT_ROWS_MAX
        and row.bytes <= EVENTS_BYTES_MAX
    ):
        return 0
    doomed: list[bytes] = []
    size, row.head, row.head_ms = 0, row.next, 0
    for key, value in EVENTS.rows(context.txn, context.group):
        position, at_ms = int.from_bytes(key[-8:], "big"), time_of(value)
        needed = (
            position >= row.first
            and at_ms > oldest_ms
            and row.rows - len(doomed) <= EVENT_ROWS_MAX
            and row.bytes - size <= EVENTS_BYTES_MAX
        )
        if needed or len(doomed) == rows_max:
            row.head, row.head_ms = position, at_ms
            break
        doomed.append(key)
        size += len(value)
    for key in doomed:
        context.txn.delete(key)
    row.rows -= len(doomed)
    row.bytes -= size
    row.first = max(row.first, row.head)
    return len(doomed)


def cleanup_ms(context: "ApplyContext") -> int:
    """When the next row may be deleted; 0: there is none."""
    row = context.state.feed
    if row is None or not row.rows:
        return 0
    if row.head < row.first:
        return context.now_ms
    return row.head_ms + _retention_ms(context)


def _retention_ms(context: "ApplyContext") -> int:
    retention_ms = context.queue.events_retention_ms
    return min(retention_ms, EVENTS_CLOSING_MS) if context.share.closing else retention_ms


def _clean_at(context: "ApplyContext", due_ms: int) -> None:
    head_ms = context.state.cleanup_head_ms
    context.state.cleanup_head_ms = due_ms if head_ms == 0 else min(head_ms, due_ms)
