"""Reads of partitions and of the map, linearizable unless a stale one is asked for.

A linearizable read is answered on the leader's node, from a snapshot that is taken after the leader
has confirmed its office to itself (ReadIndex): it shows everything that was acknowledged before the
read began. A stale one is answered from whatever replica is at hand, as of its last turn.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from querator.model.calls import DamagedBlock, LeaseCall, PartitionStats
from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import PLACEMENT_GROUP, GroupId
from querator.model.limits import OVERLOADED_RETRY_MS
from querator.model.queues import Queue
from querator.model.reader_calls import ReaderState
from querator.partition import facts, queries, reader_queries
from querator.partition.facts import ClosureQuery, FactsQuery
from querator.partition.payloads import BlockDamaged
from querator.partition.queries import ItemPage, LeasePage
from querator.partition.reader_queries import Outlook
from querator.partition.rows import ItemState
from querator.partition.txn_steps import TransactionQuery
from querator.service.reading.browsing import Scans
from querator.service.routing.forwarder import (
    AdvanceQuery,
    BatchQuery,
    BrowseQuery,
    DamageQuery,
    EpochQuery,
    LettersQuery,
    PeekQuery,
    ReadersQuery,
    StatsQuery,
    StreamLeasesQuery,
)
from querator.service.routing.outcomes import stopping_error
from querator.service.routing.router import Router
from querator.service.routing.views import PartitionView
from querator.storage.environment import Environment

if TYPE_CHECKING:
    from querator.raft.host import Host

CATCH_UP_S = 2.0
"""How long the map of this node may take to become as new as the leader's."""

NOT_OPEN = "replica"
"""The field of the error of a node that cannot open its replica: another may lead the group."""

_OF_THE_MAP = (
    ErrorCode.QUEUE_NOT_FOUND,
    ErrorCode.NAMESPACE_NOT_FOUND,
    ErrorCode.QUEUE_DELETING,
)

PartitionQuery = StatsQuery | PeekQuery | LettersQuery | ReadersQuery
T = TypeVar("T")


class Reads:
    """Of one node. On the event loop."""

    def __init__(self, *, host: "Host", router: Router, environment: Environment) -> None:
        self._host = host
        self._router = router
        self._environment = environment
        self._scans = Scans(environment)
        self._catching_up: asyncio.Task[bool] | None = None
        self._newer = asyncio.Event()
        router.answers = self.answer
        self.damaged: Callable[[BlockDamaged], QueratorError] = _unexplained
        """What whoever reads a damaged block is told."""
        self.damaged_items: Callable[[GroupId], int] = lambda group: 0
        """Items of a group that cannot be read here."""
        self.damaged_blocks: Callable[[GroupId], Awaitable[tuple[DamagedBlock, ...]]] | None = None
        """What answers questions about them."""
        self.transactions: Callable[[TransactionQuery], Awaitable[Any]] | None = None
        """What answers questions about transactions."""

    # --- anywhere ------------------------------------------------------------------------------

    async def stats(
        self, groups: Sequence[GroupId], *, stale: bool, deadline: float | None = None
    ) -> list[PartitionStats]:
        """Of each partition, in order. Raises QueratorError."""
        return await self._all([StatsQuery(group, stale) for group in groups], deadline)

    async def readers(
        self, groups: Sequence[GroupId], *, stale: bool, deadline: float | None = None
    ) -> list[tuple[ReaderState, ...]]:
        """Of each partition, in order. Raises QueratorError."""
        return await self._all([ReadersQuery(group, stale) for group in groups], deadline)

    async def damage(
        self, group: GroupId, *, deadline: float | None = None
    ) -> tuple[DamagedBlock, ...]:
        """The blocks of a partition that its leader cannot mend, which tries once more. Raises
        QueratorError.
        """
        found: tuple[DamagedBlock, ...] = await self._router.read(
            group, DamageQuery(group), deadline=deadline
        )
        return found

    async def page(
        self, query: PeekQuery | LettersQuery, *, deadline: float | None = None
    ) -> ItemPage:
        """Raises QueratorError."""
        [page] = await self._all([query], deadline)
        assert isinstance(page, ItemPage)
        return page

    async def _all(
        self, queries: Sequence[PartitionQuery], deadline: float | None = None
    ) -> list[Any]:
        if len(queries) == 1:
            return [await self._one(queries[0], deadline)]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._one(query, deadline)) for query in queries]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _one(self, query: PartitionQuery, deadline: float | None) -> Any:
        if query.stale and self._host.status(query.group) is not None:
            try:
                return self._read(query)
            except BlockDamaged as error:
                raise self.damaged(error) from error
        return await self._router.read(query.group, query, deadline=deadline)

    # --- the map -------------------------------------------------------------------------------

    async def catch_up(self) -> bool:
        """Waits until this node's map is at least as new as what has been acknowledged anywhere.
        False: the placement group did not answer in time, and the map is what it is.
        """
        if self._router.forwarder is None:
            return True
        if self._catching_up is not None:
            # It may have asked before what this caller knows of was acknowledged.
            await asyncio.shield(self._catching_up)
        if self._catching_up is None:
            # Owned: whoever has waited for the one before shares it, and awaits it.
            self._catching_up = asyncio.get_running_loop().create_task(self._catch_up())
            self._catching_up.add_done_callback(self._caught_up)
        return await asyncio.shield(self._catching_up)

    def _caught_up(self, _: "asyncio.Task[bool]") -> None:
        self._catching_up = None

    async def _catch_up(self) -> bool:
        deadline = asyncio.get_running_loop().time() + CATCH_UP_S
        try:
            async with asyncio.timeout_at(deadline):
                epoch = await self._router.read(PLACEMENT_GROUP, EpochQuery(), deadline=deadline)
                while self._router.map.epoch < epoch:
                    await self._newer.wait()
        except (QueratorError, TimeoutError):
            return False
        return True

    async def existing(self, look: Callable[[], T], *, deadline: float | None = None) -> T:
        """What `look` returns. When it does not find what it looks for, or finds it unfinished or
        being deleted, it looks once more as `newly` does: another node may have made it just now.
        """
        try:
            return look()
        except QueratorError as error:
            if self._router.forwarder is None or not _is_perhaps_old(error):
                raise
        return await self.newly(look, deadline=deadline)

    async def newly(self, look: Callable[[], T], *, deadline: float | None = None) -> T:
        """What `look` returns after the map has caught up, as far as that comes in time (see
        `whole`). When the map has not, and has no such queue or one that is being deleted, it is
        UNAVAILABLE: the queue, or another one of that name, may have been made since.
        """
        known = await self._catch_up_by(deadline)
        try:
            return look()
        except QueratorError as error:
            if known or error.code not in _OF_THE_MAP:
                raise
            raise QueratorError(
                ErrorCode.UNAVAILABLE,
                f"{error.message}, as far as this node knows, whose map may be old; not executed",
                field=error.field,
                value=error.value,
                retry_delay_ms=OVERLOADED_RETRY_MS,
            ) from error

    async def reaching(
        self, queue: Queue, partition: int, *, deadline: float | None = None
    ) -> tuple[Queue, bool]:
        """The queue and whether it is certain which partitions it has: when this one has no such
        partition, as the map has it that has caught up, if that comes in time (see `whole`).
        """
        if partition < len(queue.groups):
            return queue, True
        known = await self._catch_up_by(deadline)
        return self.newest(queue), known

    async def certain_of(
        self, queue: Queue, partition: int, *, deadline: float | None = None
    ) -> Queue:
        """As `reaching`. Raises QueratorError: UNAVAILABLE when it is not certain that the queue
        has no such partition.
        """
        queue, known = await self.reaching(queue, partition, deadline=deadline)
        if known or partition < len(queue.groups):
            return queue
        raise QueratorError(
            ErrorCode.UNAVAILABLE,
            f"partition is {partition}; as far as this node knows, whose map may be old, queue "
            f"{queue.name} has partitions 0 to {len(queue.groups) - 1}; not executed",
            field="partition",
            value=str(partition),
            retry_delay_ms=OVERLOADED_RETRY_MS,
        )

    async def since(
        self, queue: Queue, routing: int, *, deadline: float | None = None
    ) -> tuple[Queue, bool]:
        """As `reaching`, for who knows that its partitions were told this version of their number:
        they are before the map is.
        """
        if routing <= queue.routing:
            return queue, True
        known = await self._catch_up_by(deadline)
        return self.newest(queue), known

    async def whole(self, queue: Queue, *, deadline: float | None = None) -> Queue:
        """The queue with all partitions that it has, as far as that is known in time: in half of
        what is left until the deadline, for the other half is for what follows.
        """
        await self._catch_up_by(deadline)
        return self.newest(queue)

    async def _catch_up_by(self, deadline: float | None) -> bool:
        now_s = asyncio.get_running_loop().time()
        latest = now_s + CATCH_UP_S if deadline is None else (now_s + deadline) / 2
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(latest):
                return await self.catch_up()
        return False

    async def other_partitions(self, queue: Queue, until: float) -> bool:
        """Waits until this node's map has other partitions of the queue; False: not until then."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                while self.newest(queue).groups == queue.groups:
                    await self._newer.wait()
                return True
        return False

    def newest(self, queue: Queue) -> Queue:
        """As this node's map has it."""
        return self._router.map.get(queue.id) or queue

    def on_map(self) -> None:
        newer, self._newer = self._newer, asyncio.Event()
        newer.set()

    async def close(self) -> None:
        """Returns when no scan reads the storage."""
        await self._scans.close()

    # --- here ----------------------------------------------------------------------------------

    async def answer(self, query: Any) -> Any:
        """The answer of this node, which leads the group, or has a replica and is asked for a stale
        read. Raises QueratorError.
        """
        try:
            return await self._answer(query)
        except BlockDamaged as error:
            raise self.damaged(error) from error

    async def _answer(self, query: Any) -> Any:
        if isinstance(query, EpochQuery):
            await self._host.confirm_read(PLACEMENT_GROUP)
            return self._router.map.epoch
        if isinstance(query, BatchQuery):
            await self._host.confirm_read(query.group)
            return await self._scans.batch(query)
        if isinstance(query, BrowseQuery):
            await self._host.confirm_read(query.group)
            return await self._scans.page(query)
        if isinstance(query, StreamLeasesQuery):
            await self._host.confirm_read(query.group)
            return self._stream_leases(query)
        if isinstance(query, FactsQuery | ClosureQuery):
            self._check_open(GroupId(query.group))
            await self._host.confirm_read(GroupId(query.group))
            with self._environment.snapshot() as txn:
                return facts.answer(txn, query)
        if isinstance(query, TransactionQuery):
            assert self.transactions is not None
            await self._host.confirm_read(GroupId(query.group))
            return await self.transactions(query)
        if isinstance(query, DamageQuery):
            assert self.damaged_blocks is not None
            await self._host.confirm_read(query.group)
            return await self.damaged_blocks(query.group)
        if isinstance(query, AdvanceQuery):
            return await self._outlook(query)
        assert isinstance(query, StatsQuery | PeekQuery | LettersQuery | ReadersQuery)
        if not query.stale:
            await self._host.confirm_read(query.group)
        elif self._host.status(query.group) is None:
            message = f"this node has no replica of group {query.group}"
            raise QueratorError(ErrorCode.NOT_LEADER, message)
        return self._read(query)

    def _check_open(self, group: GroupId) -> None:
        """Raises NOT_LEADER when this node should have a replica of the group that is not open
        here; of field NOT_OPEN when it cannot be opened. A new one is opened before long.
        """
        placed = self._router.map.placed(group)
        if placed is None or placed.replica_on(self._host.node) is None:
            return
        if self._host.status(group) is not None:
            return
        error = self._host.unreadable().get(group)
        if error is None:
            raise QueratorError(ErrorCode.NOT_LEADER, f"group {group} is not open yet")
        message = f"group {group} is not open, its data could not be read: {error.message}"
        raise QueratorError(ErrorCode.NOT_LEADER, message, field=NOT_OPEN)

    async def _outlook(self, query: AdvanceQuery) -> Outlook:
        await self._host.confirm_read(query.group)
        found = self._outlook_now(query)
        if query.wait_ms and found.result is not None and found.result.batch is None:
            until = asyncio.get_running_loop().time() + query.wait_ms / 1000
            await self._router.view(query.group).something_ready(until)
            await self._host.confirm_read(query.group)
            found = self._outlook_now(query)
        return found

    def _outlook_now(self, query: AdvanceQuery) -> Outlook:
        with self._environment.snapshot() as txn:
            return reader_queries.outlook(txn, query.group, query.command)

    def _stream_leases(self, query: StreamLeasesQuery) -> LeasePage:
        with self._environment.snapshot() as txn:
            return queries.stream_leases(
                txn,
                query.group,
                query.client_id,
                query.consumer_id,
                before=query.before,
                after_lease=query.after_lease,
                limit=query.limit,
            )

    def _read(self, query: PartitionQuery) -> PartitionStats | ItemPage | tuple[ReaderState, ...]:
        group = query.group
        with self._environment.snapshot() as txn:
            match query:
                case StatsQuery():
                    status = self._host.status(group)
                    return msgspec.structs.replace(
                        queries.stats(txn, group),
                        damaged=self.damaged_items(group),
                        behind_ms=0 if status is None else status.behind_ms,
                    )
                case ReadersQuery():
                    return reader_queries.readers(txn, group)
                case PeekQuery():
                    return queries.peek(
                        txn,
                        group,
                        ItemState(query.state) if query.state else None,
                        after_seq=query.after_seq,
                        limit=query.limit,
                        bytes_max=query.bytes_max,
                    )
                case LettersQuery():
                    return queries.dead_letters(
                        txn,
                        group,
                        query.origin_queue,
                        after_seq=query.after_seq,
                        limit=query.limit,
                        bytes_max=query.bytes_max,
                    )


def leaderless(router: Router, queue: Queue) -> QueratorError:
    """No partition of the queue is led by anybody that is known here."""
    for view in router.views(queue):
        if (error := router.cut_off(view)) is not None:
            return error
    return QueratorError(
        ErrorCode.NOT_LEADER,
        f"no partition of queue {queue.name} has a leader",
        retry_delay_ms=OVERLOADED_RETRY_MS,
    )


def check_waited(
    router: Router, queue: Queue, call: LeaseCall, views: Sequence[PartitionView]
) -> None:
    """Raises QueratorError when a lease call has got nothing, and it is not certain that nothing
    was ready for its whole wait.
    """
    if router.stopping:
        raise stopping_error()
    asked = views if call.partition is None else views[call.partition : call.partition + 1]
    if call.wait_ms and not any(view.led for view in asked):
        raise leaderless(router, queue)


def _unexplained(error: BlockDamaged) -> QueratorError:
    return QueratorError(ErrorCode.UNAVAILABLE, str(error))


def _is_perhaps_old(error: QueratorError) -> bool:
    """Whether a newer map may answer otherwise. Of the refusals as UNAVAILABLE, that of a queue
    that is being created names a field.
    """
    unfinished = error.code is ErrorCode.UNAVAILABLE and error.field == "queue"
    return unfinished or error.code in _OF_THE_MAP
