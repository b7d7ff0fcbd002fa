"""Reads of the feed of a partition for other threads, from a snapshot."""

from collections.abc import Iterator

import msgspec

from querator.model.event_calls import RecordedEvent
from querator.model.limits import EVENTS_SCANNED_MAX
from querator.partition import masks
from querator.partition.feed_rows import FeedRow, decode_events, time_of
from querator.partition.rows import PartitionState, decode_settings, decode_state
from querator.storage import generations
from querator.storage.environment import ReadTransaction
from querator.storage.tables import EVENTS, SETTINGS, STATE


class EventsPage(msgspec.Struct, frozen=True, array_like=True):
    """Events in the order of their positions. The next page begins at `next`. The feed has
    positions from `first` up to before `end`. Not `kept`: the partition records no events, or has
    no settings yet. `lost`: there is no such position, or none any more.
    """

    events: tuple[RecordedEvent, ...]
    next: int
    first: int
    end: int
    kept: bool = True
    lost: bool = False


def events_page(
    txn: ReadTransaction,
    group: int,
    position: int,
    *,
    kinds: frozenset[int] = frozenset(),
    events_max: int,
    ranges_max: int,
) -> EventsPage:
    """Events from a position on (0: the first one that is kept; -1: behind the last one) that are
    of one of `kinds` (empty: of any), up to `events_max`, and `ranges_max` ranges of items, but at
    least one. Ends also after EVENTS_SCANNED_MAX events, with or without an event.
    """
    txn = generations.view(txn, group)
    raw, settings = STATE.get(txn, group), SETTINGS.get(txn, group)
    state = PartitionState() if raw is None else decode_state(raw)
    kept = settings is not None and decode_settings(settings).settings.events_retention_ms > 0
    feed = state.feed or FeedRow()
    position = feed.next if position < 0 else position or feed.first
    lost = not feed.first <= position <= feed.next
    if lost or not kept:
        return EventsPage((), position, feed.first, feed.next, kept=kept, lost=lost)
    found: list[RecordedEvent] = []
    stop = min(position + EVENTS_SCANNED_MAX, feed.next)
    at, ranges = position, 0
    for event in _events(txn, group, position, stop):
        if not kinds or event.kind in kinds:
            ranges += len(event.ranges)
            if len(found) == events_max or (found and ranges > ranges_max):
                break
            found.append(event)
        at = event.position + 1
    return EventsPage(tuple(found), at, feed.first, feed.next)


def _events(txn: ReadTransaction, group: int, position: int, stop: int) -> Iterator[RecordedEvent]:
    """The events from `position` up to before `stop`."""
    first, end = EVENTS.bounds(group)
    start = EVENTS.key(group, position)
    for key, _ in txn.scan(first, start + b"\0", reverse=True):
        start = bytes(key)
        break
    for key, value in txn.scan(start, end):
        at = int.from_bytes(key[-8:], "big")
        if at >= stop:
            return
        row, at_ms = decode_events(value), time_of(value)
        clients, flows = dict(row.clients), dict(row.flows)
        skipped = max(0, position - at)
        for number, event in enumerate(row.events[skipped : stop - at], at + skipped):
            yield RecordedEvent(
                position=number,
                kind=event.kind,
                at_ms=at_ms,
                ranges=tuple(masks.to_ranges(event.first_seq, masks.from_bytes(event.mask))),
                lease=event.lease,
                client_id=clients.get(event.lease, ""),
                attempt=event.attempt,
                produced_at_ms=event.produced_at_ms,
                due_ms=event.due_ms,
                detail=event.detail,
                flow=flows.get(event.flow, b""),
                dropped=event.dropped,
            )
