"""Questions about executions that wait at the leader of a partition. Nothing polls.

A question waits for the end of one of its executions, for published values of one, for pinned
executions that a worker may run, or for arrivals for some at work. If it finds nothing, it is
parked. The effects of an entry name the executions that have ended or published in it, those at
work for which something has arrived, and the functions of those that were pinned, and the number of
all such notices. If that number shows that the node has missed an entry, all questions of the
partition look again. They look also when this node leads no more, and when the queue is being
deleted: then the reading itself fails, and the error says why.

A question is parked before it reads, so that nothing falls between the two.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from querator.model.commands import PartitionEffects
from querator.model.errors import ErrorCode, QueratorError
from querator.model.execution_calls import EndedPage, NewsPage, PinsPage, PublishedPage
from querator.model.ids import GroupId, QueueId
from querator.model.limits import (
    EXECUTION_LOOK_MS_MAX,
    EXECUTIONS_AWAITED_MAX,
    EXECUTIONS_AWAITED_QUEUE_MAX,
    OVERLOADED_RETRY_MS,
    REPLY_BYTES_DEFAULT,
)
from querator.model.queues import Queue, QueueState
from querator.partition.execution_queries import ended_executions, news_page, published_page
from querator.partition.pins import fitting_pins
from querator.service.repair.damage import DamagedBlocks
from querator.service.routing.answers import QueryAnswers
from querator.service.routing.forwarder import EndedQuery, NewsQuery, PinsQuery, PublishedQuery
from querator.service.routing.outcomes import stopping_error
from querator.service.routing.router import Router
from querator.service.validate import gone
from querator.storage import generations
from querator.storage.attachments import AttachmentDamaged
from querator.storage.environment import Environment

if TYPE_CHECKING:
    from querator.raft.host import Host

T = TypeVar("T")
_END, _VALUE, _PIN, _ARRIVAL = 0, 1, 2, 3
_Thing = tuple[int, str | int]
"""The end of an execution, a change of its published values, a pin of a function, or an arrival for
the execution of a number.
"""


class _Question:
    """A question that waits for some things. `ended` are those of its executions that have ended
    meanwhile.
    """

    __slots__ = ("ended", "things", "woken")

    def __init__(self, things: list[_Thing]) -> None:
        self.things = things
        self.woken = asyncio.Event()
        self.ended: dict[str, None] = {}


class _Partition:
    """The parked questions of a partition. `notices` is as in its effects."""

    __slots__ = ("notices", "parked")

    def __init__(self, notices: int) -> None:
        self.notices = notices
        self.parked: dict[_Thing, dict[_Question, None]] = {}
        """By what they wait for."""


class ExecutionWaits:
    """Answers questions about executions of the partitions that this node leads. Used on the event
    loop.
    """

    def __init__(
        self,
        host: "Host",
        router: Router,
        *,
        environment: Environment,
        damage: DamagedBlocks,
        answers: QueryAnswers,
    ) -> None:
        self._host = host
        self._router = router
        self._environment = environment
        self._damage = damage
        self._partitions: dict[GroupId, _Partition] = {}
        self._awaited: dict[QueueId, int] = {}
        """Executions that the questions about a queue name."""
        self._loop = asyncio.get_running_loop()
        answers.register(self.ended, EndedQuery)
        answers.register(self.published, PublishedQuery)
        answers.register(self.pins, PinsQuery)
        answers.register(self.news, NewsQuery)

    @property
    def awaited(self) -> int:
        """Number of executions that are named by questions."""
        return sum(self._awaited.values())

    async def ended(self, query: EndedQuery) -> EndedPage:
        """The executions that have ended, as soon as one has; none, if none has in time. Raises
        QueratorError.
        """
        asked = _Question([(_END, one) for one in query.ids])

        async def look() -> EndedPage:
            known = self._known(query.group, asked)
            if known.executions:
                return known
            await self._confirm(query.group)
            return self._read(query.group, query.ids)

        return await self._wait(query, asked, look, lambda page: bool(page.executions))

    async def published(self, query: PublishedQuery) -> PublishedPage:
        """The published values, as soon as there is one; none, if there is none in time, or if the
        execution has ended. Raises QueratorError.
        """

        async def look() -> PublishedPage:
            await self._confirm(query.group)
            with self._environment.snapshot() as txn:
                view = generations.view(txn, query.group)
                return published_page(view, query.group, query.id, key=query.key, after=query.after)

        asked = _Question([(_VALUE, query.id)])
        return await self._wait(query, asked, look, lambda page: page.is_final)

    async def pins(self, query: PinsQuery) -> PinsPage:
        """The pins that a worker may run, as soon as there is one; none, if there is none in time.
        Raises QueratorError.
        """
        versions = dict(query.versions)

        async def look() -> PinsPage:
            await self._confirm(query.group)
            with self._environment.snapshot() as txn:
                view = generations.view(txn, query.group)
                return PinsPage(fitting_pins(view, query.group, versions, query.limit))

        asked = _Question([(_PIN, function) for function in versions])
        return await self._wait(query, asked, look, lambda page: bool(page.pins))

    async def news(self, query: NewsQuery) -> NewsPage:
        """What has happened to executions at work, as soon as something has; nothing, if nothing
        has in time. Raises QueratorError.
        """

        async def look() -> NewsPage:
            await self._confirm(query.group)
            with self._environment.snapshot() as txn:
                return news_page(generations.view(txn, query.group), query.group, query.known)

        numbers = {one.execution for one in query.known}
        asked = _Question([(_ARRIVAL, number) for number in sorted(numbers)])
        return await self._wait(query, asked, look, lambda page: bool(page.arrived or page.lost))

    async def _wait(
        self,
        query: EndedQuery | PublishedQuery | PinsQuery | NewsQuery,
        asked: _Question,
        look: Callable[[], Awaitable[T]],
        is_final: Callable[[T], bool],
    ) -> T:
        """The first answer that is final, or the last one in time."""
        until = self._loop.time() + min(query.wait_ms, EXECUTION_LOOK_MS_MAX) / 1000
        queue = self._queue(query.group)
        # The leases that ask for pins are counted as such.
        count = 0 if isinstance(query, PinsQuery) else len(asked.things)
        with self._counted(queue, count), self._parked(query.group, asked):
            while True:
                asked.woken.clear()
                page = await look()
                if is_final(page) or self._loop.time() >= until:
                    return page
                try:
                    async with asyncio.timeout_at(until):
                        await asked.woken.wait()
                except TimeoutError:
                    return page

    def _known(self, group: GroupId, asked: _Question) -> EndedPage:
        """The executions that have ended since the first look. An end is final, so the leadership
        of this node needs no other confirmation.
        """
        ids, asked.ended = tuple(asked.ended), {}
        found = self._read(group, ids).executions if ids else ()
        return EndedPage(tuple(one for one in found if one.view is not None))

    async def _confirm(self, group: GroupId) -> None:
        if self._router.stopping:
            raise stopping_error()
        self._queue(group)
        await self._host.confirm_read(group)

    def _read(self, group: GroupId, ids: tuple[str, ...]) -> EndedPage:
        try:
            with self._environment.snapshot() as txn:
                view = generations.view(txn, group)
                return ended_executions(view, group, ids, bytes_max=REPLY_BYTES_DEFAULT)
        except AttachmentDamaged as error:
            raise self._damage.unreadable(error) from error

    def _queue(self, group: GroupId) -> Queue:
        """The queue of a partition. Raises QueratorError if it is gone, or being deleted."""
        owner = self._router.map.by_group(group)
        if owner is None or owner[0].state is QueueState.DELETING:
            raise gone(None if owner is None else owner[0])
        return owner[0]

    @contextmanager
    def _counted(self, queue: Queue, count: int) -> Iterator[None]:
        """Counts executions that a question names. Raises OVERLOADED beyond the limits."""
        if not count:
            yield
            return
        mine = self._awaited.get(queue.id, 0) + count
        if mine > EXECUTIONS_AWAITED_QUEUE_MAX:
            raise _too_many(f"of queue {queue.name}", "queue", mine, EXECUTIONS_AWAITED_QUEUE_MAX)
        if self.awaited + count > EXECUTIONS_AWAITED_MAX:
            raise _too_many("on this node", "node", self.awaited + count, EXECUTIONS_AWAITED_MAX)
        self._awaited[queue.id] = mine
        try:
            yield
        finally:
            self._awaited[queue.id] -= count
            if not self._awaited[queue.id]:
                del self._awaited[queue.id]

    @contextmanager
    def _parked(self, group: GroupId, asked: _Question) -> Iterator[None]:
        there = self._partitions.get(group)
        if there is None:
            notices = self._router.route(group).effects.notices
            there = self._partitions[group] = _Partition(notices)
        for thing in asked.things:
            there.parked.setdefault(thing, {})[asked] = None
        try:
            yield
        finally:
            for thing in asked.things:
                parked = there.parked[thing]
                del parked[asked]
                if not parked:
                    del there.parked[thing]
            if not there.parked:
                del self._partitions[group]

    # --- events --------------------------------------------------------------------------------

    def on_effects(self, group: GroupId, effects: PartitionEffects) -> None:
        """An apply has changed a partition, or its effects were counted again."""
        there = self._partitions.get(group)
        if there is None or effects.notices <= there.notices:
            return
        news = len(effects.ended_ids) + len(effects.published_ids)
        news += len(effects.pinned_functions) + len(effects.arrived_numbers)
        missed = effects.notices - news != there.notices
        there.notices = effects.notices
        if missed:
            _wake(there)
            return
        for one in effects.ended_ids:
            for asked in there.parked.get((_END, one), ()):
                asked.ended[one] = None
                asked.woken.set()
        for one in effects.ended_ids + effects.published_ids:
            for asked in there.parked.get((_VALUE, one), ()):
                asked.woken.set()
        for one in set(effects.pinned_functions):
            for asked in there.parked.get((_PIN, one), ()):
                asked.woken.set()
        for number in set(effects.arrived_numbers):
            for asked in there.parked.get((_ARRIVAL, number), ()):
                asked.woken.set()

    def on_leadership(self, group: GroupId) -> None:
        """This node has begun or ceased to lead the group: its questions look again."""
        there = self._partitions.get(group)
        if there is not None:
            there.notices = 0
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
    for parked in there.parked.values():
        for asked in parked:
            asked.woken.set()


def _too_many(whose: str, field: str, value: int, limit: int) -> QueratorError:
    return QueratorError(
        ErrorCode.OVERLOADED,
        f"executions {whose} that calls wait for would be {value}; the limit is {limit}; wait and "
        "repeat",
        field=field,
        limit=f"{limit} executions",
        value=f"{value} executions",
        retry_delay_ms=OVERLOADED_RETRY_MS,
    )
