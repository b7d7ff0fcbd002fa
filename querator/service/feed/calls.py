"""Calls of followers: each reads one partition, at its leader (`service.feed.waits`).

A position belongs to one feed, which is that of a group. A partition that was removed, or removed
and created again, has no events for the caller any more, and the error says so.
"""

import asyncio

from querator.model.errors import ErrorCode, QueratorError
from querator.model.event_calls import EventsReply, EventStart, ReadEventsCall
from querator.model.ids import GroupId
from querator.model.limits import EVENT_LOOK_MS_MAX, OVERLOADED_RETRY_MS
from querator.model.queues import Queue
from querator.partition.feed_queries import EventsPage
from querator.service.admission import ConnectionBudget
from querator.service.routing.directory import QueueDirectory
from querator.service.routing.forwarder import EventsQuery
from querator.service.routing.router import Router


class FeedService:
    """Used on the event loop."""

    def __init__(
        self, router: Router, directory: QueueDirectory, *, calls: ConnectionBudget
    ) -> None:
        """`calls` counts accepted calls that may wait."""
        self._router = router
        self._directory = directory
        self._calls = calls
        self._loop = asyncio.get_running_loop()

    async def read(self, call: ReadEventsCall) -> EventsReply:
        """Events, as soon as there is one; none, if none comes in time. Raises QueratorError."""
        queue = await self._directory.find(call.namespace, call.queue, call.partition)
        position = call.position or (-1 if call.start == EventStart.END else 0)
        until = self._loop.time() + call.wait_ms / 1000
        with self._calls.held():
            while True:
                queue = await self._certain(queue, call)
                group = _group_of(queue, call)
                left_ms = max(0, int((until - self._loop.time()) * 1000))
                query = EventsQuery(
                    group, position, call.kinds, call.events_max, min(left_ms, EVENT_LOOK_MS_MAX)
                )
                try:
                    page = await self._router.read(group, query)
                except QueratorError as error:
                    if self._directory.has_left(queue, group, error):
                        raise _gone(queue.name, call.partition, "it has left the queue") from error
                    raise
                assert isinstance(page, EventsPage)
                queue = self._directory.newest(queue)
                if page.events or not left_ms:
                    return EventsReply(
                        events=page.events,
                        partition=call.partition,
                        feed=group,
                        next_position=page.next,
                        first_position=page.first,
                        end_position=page.end,
                        partitions=len(queue.groups),
                    )
                position = page.next

    async def _certain(self, queue: Queue, call: ReadEventsCall) -> Queue:
        """The queue. If the partition has another feed than that of the caller, the map catches up
        first: another node may know a newer one. Raises UNAVAILABLE when that does not succeed.
        """
        if not call.feed or call.feed in queue.groups[call.partition : call.partition + 1]:
            return queue
        if await self._directory.catch_up():
            return self._directory.known(call.namespace, call.queue)
        raise QueratorError(
            ErrorCode.UNAVAILABLE,
            f"partition {call.partition} of queue {queue.name} has another feed by the map of this "
            "node, which may be old; not executed",
            field="feed",
            value=str(call.feed),
            retry_delay_ms=OVERLOADED_RETRY_MS,
        )


def _group_of(queue: Queue, call: ReadEventsCall) -> GroupId:
    if call.partition >= len(queue.groups):
        why = "it has left the queue" if call.feed else f"the queue has {len(queue.groups)}"
        raise _gone(queue.name, call.partition, why)
    group = queue.groups[call.partition]
    if call.feed and call.feed != group:
        why = "it was created again, with events from position 1 on"
        raise _gone(queue.name, call.partition, why, field="feed")
    return group


def _gone(queue: str, partition: int, why: str, *, field: str = "partition") -> QueratorError:
    return QueratorError(
        ErrorCode.EVENTS_GONE,
        f"partition {partition} of queue {queue} has no events for this position: {why}",
        field=field,
        value=str(partition),
    )
