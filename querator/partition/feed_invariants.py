"""The invariants of the feed, as `invariants` checks those of the other tables."""

from collections.abc import Iterator

from querator.partition.feed_rows import FeedRow, decode_events, time_of
from querator.partition.rows import PartitionState
from querator.storage.environment import ReadTransaction
from querator.storage.tables import EVENTS


def check_feed(txn: ReadTransaction, group: int, state: PartitionState) -> Iterator[str]:
    """The rows have all positions up to the next one without gaps, from the first one or an earlier
    one on.
    """
    feed = state.feed or FeedRow()
    rows = [(int.from_bytes(key[-8:], "big"), bytes(raw)) for key, raw in EVENTS.rows(txn, group)]
    size = sum(len(raw) for _, raw in rows)
    if (feed.rows, feed.bytes) != (len(rows), size):
        yield (
            f"the feed counts {feed.rows} rows of {feed.bytes} bytes; a scan finds {len(rows)} of "
            f"{size}"
        )
    at = rows[0][0] if rows else feed.next
    if at > feed.first or not 1 <= feed.first <= feed.next:
        yield f"the feed has positions from {at} on; they must be there from {feed.first} on"
    for position, raw in rows:
        if position != at:
            yield f"a row of events is at position {position}; {at} is next"
        at = position + len(decode_events(raw).events)
    if at != feed.next:
        yield f"the feed ends before position {at}; its next one is {feed.next}"
    head_ms = time_of(rows[0][1]) if rows else 0
    if head_ms != feed.head_ms or (rows and rows[0][0] != feed.head):
        yield f"the oldest events are of {head_ms}; the feed has {feed.head_ms} at {feed.head}"
    if rows and not state.cleanup_head_ms:
        yield "events would never be cleaned up"
