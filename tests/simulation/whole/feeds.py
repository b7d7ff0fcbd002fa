"""The events of all partitions, as followers read them through any node.

the events of an answer have the positions from the one that was asked for up to before the next one
the same position has the same event, whenever and wherever it is read
events that followers have read are those in the tables at the end, and none is missing there
all events of a partition lead to the states of its items, and sum up to its counts (`feed_fold`)
events are kept longer than the run, so none is gone
"""

from collections.abc import Iterable

from querator.model.event_calls import EventsReply, RecordedEvent
from querator.storage.environment import ReadTransaction
from tests.checkers import feed_fold


class Feeds:
    def __init__(self) -> None:
        self.found: list[str] = []
        self._read: dict[int, dict[int, RecordedEvent]] = {}
        """By feed, and by position."""
        self.compared = 0
        """Events that a follower has read, and that were in the tables at the end."""

    def answered(self, position: int, reply: EventsReply) -> None:
        """A follower that asked from a position on, without a filter, has an answer."""
        wanted = list(range(position, reply.next_position))
        if [event.position for event in reply.events] != wanted:
            told = [event.position for event in reply.events]
            self.found.append(f"feed {reply.feed}: events at {told}, asked for {wanted}")
        self._same(reply.feed, reply.events)

    def gone(self, feed: int, position: int) -> None:
        self.found.append(f"feed {feed}: events from {position} on are gone")

    def _same(self, feed: int, events: Iterable[RecordedEvent]) -> None:
        known = self._read.setdefault(feed, {})
        for event in events:
            first = known.setdefault(event.position, event)
            if first != event:
                self.found.append(f"feed {feed}: {event} was {first} before")

    def judge(self, txn: ReadTransaction, feed: int) -> Iterable[str]:
        """`txn` shows the leader at the end."""
        if feed_fold.page(txn, feed, 1).lost:
            yield f"feed {feed}: its first events are not kept"
            return
        events = feed_fold.all_events(txn, feed)
        read = self._read.pop(feed, {})
        for event in events:
            first = read.pop(event.position, None)
            self.compared += first is not None
            if first is not None and first != event:
                yield f"feed {feed}: {event} at the end; a follower has read {first}"
        for event in read.values():
            yield f"feed {feed}: a follower has read {event}, which is not there at the end"
        for text in feed_fold.differences(txn, feed, events):
            yield f"feed {feed}: {text}"
