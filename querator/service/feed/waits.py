"""Questions about events that wait at the leader of a partition. Nothing polls.

A question that finds no event is parked, and the effects of an entry that has recorded some wake
it. It looks also when this node leads no more, and when the queue is being deleted: then the
reading itself fails, and the error says why.

A question is parked before it reads, so that no event falls between the two.
"""

import asyncio
from typing import TYPE_CHECKING

from querator.model.commands import PartitionEffects
from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import GroupId
from querator.model.limits import (
    EVENT_LOOK_MS_MAX,
    EVENT_QUESTIONS_MAX,
    EVENT_RANGES_MAX,
    OVERLOADED_RETRY_MS,
)
from querator.model.queues import Queue, QueueState
from querator.partition.feed_queries import EventsPage, events_page
from querator.service.routing.answers import QueryAnswers
from querator.service.routing.forwarder import EventsQuery
from querator.service.routing.outcomes import stopping_error
from querator.service.routing.router import Router
from querator.service.validate import gone
from querator.storage.environment import Environment

if TYPE_CHECKING:
    from querator.raft.host import Host


class _Partition:
    """The parked questions of a partition. `events` is as in its effects."""

    __slots__ = ("events", "parked")

    def __init__(self, events: int) -> None:
        self.events = events
        self.parked: set[asyncio.Event] = set()


class FeedWaits:
    """Answers questions about events of the partitions that this node leads. Used on the event
    loop.
    """

    def __init__(
        self, host: "Host", router: Router, *, environment: Environment, answers: QueryAnswers
    ) -> None:
        self._host = host
        self._router = router
        self._environment = environment
        self._partitions: dict[GroupId, _Partition] = {}
        self._questions = 0
        self._loop = asyncio.get_running_loop()
        answers.register(self.answer, EventsQuery)

    @property
    def questions(self) -> int:
        """Number of questions that are being answered, or parked."""
        return self._questions

    async def answer(self, query: EventsQuery) -> EventsPage:
        """The events, as soon as there is one; none, if there is none in time. Raises
        QueratorError.
        """
        if self._questions >= EVENT_QUESTIONS_MAX:
            raise _too_many(self._questions)
        until = self._loop.time() + min(query.wait_ms, EVENT_LOOK_MS_MAX) / 1000
        woken = asyncio.Event()
        position = query.position
        self._questions += 1
        self._park(query.group, woken)
        try:
            while True:
                woken.clear()
                page = await self._look(query, position)
                position = page.next
                if page.events or self._loop.time() >= until:
                    return page
                if position < page.end:
                    # The filter has left out a whole page.
                    continue
                try:
                    async with asyncio.timeout_at(until):
                        await woken.wait()
                except TimeoutError:
                    return page
        finally:
            self._questions -= 1
            self._unpark(query.group, woken)

    async def _look(self, query: EventsQuery, position: int) -> EventsPage:
        group = query.group
        if self._router.stopping:
            raise stopping_error()
        owner = self._router.map.by_group(group)
        if owner is None or owner[0].state is QueueState.DELETING:
            raise gone(None if owner is None else owner[0])
        await self._host.confirm_read(group)
        with self._environment.snapshot() as txn:
            page = events_page(
                txn, group, position,
                kinds=query.kinds, events_max=query.events_max, ranges_max=EVENT_RANGES_MAX,
            )  # fmt: skip
        # The settings may be on their way to the partition.
        if not page.kept and not owner[0].settings.events_retention_ms:
            raise _off(owner[0])
        if page.lost:
            raise _lost(owner[0], owner[1], position, page)
        return page

    def _park(self, group: GroupId, woken: asyncio.Event) -> None:
        there = self._partitions.get(group)
        if there is None:
            there = self._partitions[group] = _Partition(self._router.route(group).effects.events)
        there.parked.add(woken)

    def _unpark(self, group: GroupId, woken: asyncio.Event) -> None:
        there = self._partitions[group]
        there.parked.remove(woken)
        if not there.parked:
            del self._partitions[group]

    # --- events --------------------------------------------------------------------------------

    def on_effects(self, group: GroupId, effects: PartitionEffects) -> None:
        """An apply has changed a partition, or its effects were counted again."""
        there = self._partitions.get(group)
        if there is not None and effects.events != there.events:
            there.events = effects.events
            _wake(there)

    def on_leadership(self, group: GroupId) -> None:
        """This node has begun or ceased to lead the group: its questions look again."""
        there = self._partitions.get(group)
        if there is not None:
            _wake(there)

    def on_map(self) -> None:
        """Questions about queues that are gone or being deleted look again."""
        for group, there in self._partitions.items():
            owner = self._router.map.by_group(group)
            if owner is None or owner[0].state is QueueState.DELETING:
                _wake(there)

    def stop(self) -> None:
        """Ends all waits with UNAVAILABLE. The router stops before."""
        for there in self._partitions.values():
            _wake(there)


def _wake(there: _Partition) -> None:
    for woken in there.parked:
        woken.set()


def _off(queue: Queue) -> QueratorError:
    return QueratorError(
        ErrorCode.EVENTS_OFF,
        f"queue {queue.name} records no events; set its events_retention",
        field="queue",
        value=queue.name,
    )


def _lost(queue: Queue, partition: int, position: int, page: EventsPage) -> QueratorError:
    if position > page.end:
        return QueratorError(
            ErrorCode.INVALID_ARGUMENT,
            f"position {position} of partition {partition} of queue {queue.name} does not exist; "
            f"the next event will be at {page.end}",
            field="position",
            limit=str(page.end),
            value=str(position),
        )
    return QueratorError(
        ErrorCode.EVENTS_GONE,
        f"events of partition {partition} of queue {queue.name} are kept from position "
        f"{page.first} on; those from position {position} on are gone",
        field="position",
        limit=str(page.first),
        value=str(position),
    )


def _too_many(questions: int) -> QueratorError:
    limit = f"{EVENT_QUESTIONS_MAX} questions"
    return QueratorError(
        ErrorCode.OVERLOADED,
        f"questions about events on this node are {questions}; the limit is {limit}; wait and "
        "repeat",
        field="node",
        limit=limit,
        value=f"{questions + 1} questions",
        retry_delay_ms=OVERLOADED_RETRY_MS,
    )
