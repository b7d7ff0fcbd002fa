"""Reads of partitions and of the map, linearizable unless a stale read is requested.

A linearizable read is answered on the leader's node, from a snapshot taken after the leader has
confirmed its leadership (ReadIndex): it shows everything that was acknowledged before the read
began. A stale read is answered from any local replica, as of its last turn.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import msgspec

from querator.model.calls import BlockDamage, LeaseCall, PartitionCounts
from querator.model.errors import ErrorCode, QueratorError
from querator.model.execution_calls import ReadActivation
from querator.model.ids import PLACEMENT_GROUP, GroupId
from querator.model.limits import OVERLOADED_RETRY_MS, REPLY_BYTES_DEFAULT
from querator.model.queues import Queue
from querator.model.rates import ItemRates
from querator.model.reader_calls import ReaderState
from querator.partition import dedup_export, queries, reader_queries, recurrence_queries
from querator.partition.dedup_export import SharingQuery
from querator.partition.flow_queries import FlowPage, flow_page
from querator.partition.item_queries import items_at
from querator.partition.lease_queries import LeaseSummaries, lease_summaries
from querator.partition.payloads import BlockDamaged
from querator.partition.queries import ItemPage, LeasePage
from querator.partition.reader_queries import Outlook
from querator.partition.recurrence_queries import RecurrencePage
from querator.partition.rows import RowState
from querator.partition.txn_steps import TransactionQuery
from querator.service.reading.browsing import Scans
from querator.service.reading.executions import answer_executions, are_leased, read_activations
from querator.service.repair.damage import DamagedBlocks
from querator.service.routing.answers import QueryAnswers
from querator.service.routing.forwarder import (
    ActivationsQuery,
    AdvanceQuery,
    AheadQuery,
    BatchQuery,
    BrowseQuery,
    DamageQuery,
    DueQuery,
    EpochQuery,
    ExecutionsQuery,
    FlowsQuery,
    ItemsQuery,
    JournalQuery,
    LeasesQuery,
    LetterCountsQuery,
    LettersQuery,
    PeekQuery,
    ReadersQuery,
    RecurrencesQuery,
    StatsQuery,
    StreamLeasesQuery,
)
from querator.service.routing.outcomes import stopping_error
from querator.service.routing.route import PartitionRoute
from querator.service.routing.router import Router
from querator.storage.environment import Environment

if TYPE_CHECKING:
    from querator.raft.host import Host

T = TypeVar("T")

NOT_OPEN = "replica"
"""Error field of a node that cannot open its replica: another node may lead the group."""

PartitionQuery = (
    StatsQuery
    | PeekQuery
    | ItemsQuery
    | LettersQuery
    | LetterCountsQuery
    | ReadersQuery
    | FlowsQuery
    | LeasesQuery
)
_ANSWERED = (
    EpochQuery,
    AheadQuery,
    BatchQuery,
    BrowseQuery,
    StreamLeasesQuery,
    *get_args(SharingQuery),
    *get_args(TransactionQuery),
    DamageQuery,
    ActivationsQuery,
    ExecutionsQuery,
    JournalQuery,
    RecurrencesQuery,
    AdvanceQuery,
    StatsQuery,
    PeekQuery,
    ItemsQuery,
    LettersQuery,
    LetterCountsQuery,
    ReadersQuery,
    FlowsQuery,
    LeasesQuery,
    *get_args(DueQuery),
)


class Queries:
    """Reads of one node. Used on the event loop."""

    def __init__(
        self,
        *,
        host: "Host",
        router: Router,
        environment: Environment,
        damage: DamagedBlocks,
        transactions: Callable[[TransactionQuery], Awaitable[Any]],
        rates: Callable[[GroupId], tuple[ItemRates, ...]],
        answers: QueryAnswers,
    ) -> None:
        """`transactions` answers queries about transactions of a group that this node leads.
        `rates` are those of a group, as far as this node knows them.
        """
        self._host = host
        self._router = router
        self._environment = environment
        self._damage = damage
        self._transactions = transactions
        self._rates = rates
        self._scans = Scans(environment)
        answers.register(self.answer, *_ANSWERED)

    # --- anywhere ------------------------------------------------------------------------------

    async def stats(
        self, groups: Sequence[GroupId], *, stale: bool, deadline: float | None = None
    ) -> list[PartitionCounts]:
        """Counts of each partition, in order. Raises QueratorError."""
        return await self._all([StatsQuery(group, stale) for group in groups], deadline)

    async def readers(
        self, groups: Sequence[GroupId], *, stale: bool, deadline: float | None = None
    ) -> list[tuple[ReaderState, ...]]:
        """Readers of each partition, in order. Raises QueratorError."""
        return await self._all([ReadersQuery(group, stale) for group in groups], deadline)

    async def damage(
        self, group: GroupId, *, deadline: float | None = None
    ) -> tuple[BlockDamage, ...]:
        """The blocks of a partition that its leader cannot repair, after one more attempt. Raises
        QueratorError.
        """
        found: tuple[BlockDamage, ...] = await self._router.read(
            group, DamageQuery(group), deadline=deadline
        )
        return found

    async def page(
        self, query: PeekQuery | LettersQuery | ItemsQuery, *, deadline: float | None = None
    ) -> ItemPage:
        """Raises QueratorError."""
        [page] = await self._all([query], deadline)
        assert isinstance(page, ItemPage)
        return page

    async def letters(
        self, query: LetterCountsQuery, *, deadline: float | None = None
    ) -> tuple[int, int]:
        """Raises QueratorError."""
        [(found, next_seq)] = await self._all([query], deadline)
        return found, next_seq

    async def flows(self, query: FlowsQuery, *, deadline: float | None = None) -> FlowPage:
        """Raises QueratorError."""
        page = await self._one(query, deadline)
        assert isinstance(page, FlowPage)
        return page

    async def leases(self, query: LeasesQuery, *, deadline: float | None = None) -> LeaseSummaries:
        """Raises QueratorError."""
        page = await self._one(query, deadline)
        assert isinstance(page, LeaseSummaries)
        return page

    async def recurrences(
        self, query: RecurrencesQuery, *, deadline: float | None = None
    ) -> RecurrencePage:
        """Raises QueratorError."""
        page: RecurrencePage = await self._router.read(query.group, query, deadline=deadline)
        return page

    async def due(self, query: DueQuery, *, deadline: float | None = None) -> Any:
        """The answer to a query about scheduled items. Raises QueratorError."""
        return await self._one(query, deadline)

    async def _all(
        self, queries: Sequence[PartitionQuery], deadline: float | None = None
    ) -> list[Any]:
        return await all_results([self._one(query, deadline) for query in queries])

    async def _one(self, query: PartitionQuery | DueQuery, deadline: float | None) -> Any:
        if query.stale and self._host.status(query.group) is not None:
            return await self.answer(query)
        return await self._router.read(query.group, query, deadline=deadline)

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
            raise self._damage.refusal(error) from error

    async def _answer(self, query: Any) -> Any:
        if isinstance(query, EpochQuery):
            await self._host.confirm_read(PLACEMENT_GROUP)
            return self._router.map.epoch
        if isinstance(query, BatchQuery | BrowseQuery | AheadQuery):
            await self._host.confirm_read(query.group)
            return await self._scan(query)
        if isinstance(query, StreamLeasesQuery):
            await self._host.confirm_read(query.group)
            return self._stream_leases(query)
        if isinstance(query, SharingQuery):
            self._check_open(GroupId(query.group))
            await self._host.confirm_read(GroupId(query.group))
            with self._environment.snapshot() as txn:
                return dedup_export.answer(txn, query)
        if isinstance(query, TransactionQuery):
            await self._host.confirm_read(GroupId(query.group))
            return await self._transactions(query)
        if isinstance(query, DamageQuery):
            await self._host.confirm_read(query.group)
            return await self._damage.unmended(query.group)
        if isinstance(query, RecurrencesQuery | ExecutionsQuery | JournalQuery):
            await self._host.confirm_read(query.group)
            return self._kept(query)
        if isinstance(query, ActivationsQuery):
            return await self._activations(query)
        if isinstance(query, AdvanceQuery):
            return await self._outlook(query)
        assert isinstance(query, PartitionQuery | DueQuery)
        if not query.stale:
            await self._host.confirm_read(query.group)
        elif self._host.status(query.group) is None:
            message = f"this node has no replica of group {query.group}"
            raise QueratorError(ErrorCode.NOT_LEADER, message)
        return await self._scans.due(query) if isinstance(query, DueQuery) else self._read(query)

    async def _scan(self, query: BatchQuery | BrowseQuery | AheadQuery) -> Any:
        match query:
            case BatchQuery():
                return await self._scans.batch(query)
            case BrowseQuery():
                return await self._scans.page(query)
            case AheadQuery():
                return await self._scans.ahead(query, self._damage.set_aside(query.group))

    def _check_open(self, group: GroupId) -> None:
        """Raises NOT_LEADER when this node should have a replica of the group that is not open
        here; with field NOT_OPEN when it cannot be opened. A new replica is opened soon.
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
        found = await self._scans.outlook(query)
        if query.wait_ms and found.result is not None and found.result.batch is None:
            until = asyncio.get_running_loop().time() + query.wait_ms / 1000
            await self._router.route(query.group).something_ready(until)
            await self._host.confirm_read(query.group)
            found = await self._scans.outlook(query)
        return found

    async def _activations(self, query: ActivationsQuery) -> tuple[ReadActivation, ...]:
        """The lease confirms the read, if it holds the activations here; else a majority does."""
        with self._environment.snapshot() as txn:
            if are_leased(txn, query):
                return read_activations(txn, query)
        await self._host.confirm_read(query.group)
        with self._environment.snapshot() as txn:
            return read_activations(txn, query)

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

    def _kept(self, query: RecurrencesQuery | ExecutionsQuery | JournalQuery) -> Any:
        """Recurrences, executions or records of one."""
        with self._environment.snapshot() as txn:
            if not isinstance(query, RecurrencesQuery):
                return answer_executions(txn, query)
            if query.name:
                return recurrence_queries.by_name(txn, query.group, query.name)
            return recurrence_queries.page(
                txn,
                query.group,
                after=query.after,
                limit=query.limit,
                bytes_max=REPLY_BYTES_DEFAULT,
            )

    def _read(self, query: PartitionQuery) -> Any:
        group = query.group
        with self._environment.snapshot() as txn:
            match query:
                case StatsQuery():
                    status = self._host.status(group)
                    return msgspec.structs.replace(
                        queries.stats(txn, group),
                        damaged=self._damage.items(group)[1],
                        behind_ms=0 if status is None else status.behind_ms,
                        rates=self._rates(group),
                    )
                case ReadersQuery():
                    return reader_queries.readers(txn, group)
                case PeekQuery():
                    return queries.peek(
                        txn,
                        group,
                        RowState(query.state) if query.state else None,
                        after_seq=query.after_seq,
                        limit=query.limit,
                        bytes_max=query.bytes_max,
                    )
                case ItemsQuery():
                    return items_at(txn, group, query.seqs, bytes_max=query.bytes_max)
                case FlowsQuery():
                    return flow_page(txn, group, after=query.after, limit=query.limit)
                case LeasesQuery():
                    return lease_summaries(
                        txn,
                        group,
                        client_id=query.client_id,
                        older_than_ms=query.older_than_ms,
                        after_lease=query.after_lease,
                        limit=query.limit,
                    )
                case LetterCountsQuery():
                    return queries.count_letters(
                        txn, group, query.origin_queue, query.chosen, after_seq=query.after_seq
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
    """Error for a queue without a partition whose leader is known here."""
    for route in router.routes(queue):
        if (error := router.cut_off(route)) is not None:
            return error
    return QueratorError(
        ErrorCode.NOT_LEADER,
        f"no partition of queue {queue.name} has a leader",
        retry_delay_ms=OVERLOADED_RETRY_MS,
    )


def check_waited(
    router: Router, queue: Queue, call: LeaseCall, routes: Sequence[PartitionRoute]
) -> None:
    """Raises QueratorError when a lease call has got nothing, and it is not certain that nothing
    was ready during its whole wait.
    """
    if router.stopping:
        raise stopping_error()
    asked = routes if call.partition is None else routes[call.partition : call.partition + 1]
    if call.wait_ms and not any(route.is_reachable for route in asked):
        raise leaderless(router, queue)


async def all_results(awaitables: Sequence[Awaitable[T]]) -> list[T]:
    """The results in order. The first error ends the others, and is raised."""
    if len(awaitables) == 1:
        return [await awaitables[0]]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_run(one)) for one in awaitables]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


async def _run(awaitable: Awaitable[T]) -> T:
    return await awaitable
