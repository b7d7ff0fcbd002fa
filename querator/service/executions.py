"""Calls about executions: routed by the root of their ids, proposed, and read at leaders.

The root of an id, up to its first `/`, decides on its partition: neighbours have one root. The
number of partitions of such a queue is fixed, so the answer never changes. Leases of activations
are those of other items, on the same path; a worker then gets the executions and the beginnings of
their journals, read at the leaders of their partitions.
"""

import asyncio
import secrets
from collections.abc import Coroutine, Sequence
from typing import Any

import msgspec
import uuid_utils

from querator.model import limits
from querator.model.calls import LeaseCall
from querator.model.errors import ErrorCode, QueratorError
from querator.model.execution_calls import (
    ArriveCall,
    EndedExecution,
    EndedPage,
    EndedReply,
    ExecutionPage,
    ExecutionView,
    JournalCall,
    JournalPage,
    KnownJournal,
    LeasedActivation,
    ListExecutionsCall,
    News,
    NewsCall,
    NewsPage,
    ProgressCall,
    PublishedCall,
    PublishedPage,
    ReadActivation,
    RewindCall,
    ShownExecution,
    ShownExecutions,
    StartCall,
    StartReply,
    WaitExecutionsCall,
)
from querator.model.execution_commands import (
    Arrived,
    Recorded,
    RecordProgress,
    Rewound,
    SentItems,
    Started,
)
from querator.model.executions import ArriveKind
from querator.model.ids import (
    GroupId,
    LeaseNumber,
    PartitionNumber,
    format_lease_id,
    parse_lease_id,
)
from querator.model.queues import Queue, QueueKind
from querator.model.routing import partition_of_key
from querator.service.admission import ConnectionBudget
from querator.service.follow_ups import plan_follow_ups
from querator.service.lease.calls import LeaseService
from querator.service.lease.pinned import LeasedActivations, PinnedLeases, of_run
from querator.service.produce.calls import ProduceService
from querator.service.reading import paging
from querator.service.reading.queries import Queries
from querator.service.routing.directory import QueueDirectory
from querator.service.routing.first_found import first_found
from querator.service.routing.forwarder import (
    ActivationsQuery,
    EndedQuery,
    ExecutionsQuery,
    JournalQuery,
    NewsQuery,
    PublishedQuery,
)
from querator.service.routing.router import Router, deadline_after
from querator.service.validate import check_partition

_NEVER = (1 << 63) - 1
"""The index of no record."""
_News = tuple[bool, tuple[str, int]]
"""Whether a lease is lost, or something has arrived; the lease and the item of the activation."""


class ExecutionService:
    """Used on the event loop. Every method raises QueratorError."""

    def __init__(
        self,
        *,
        router: Router,
        directory: QueueDirectory,
        reads: Queries,
        leasing: LeaseService,
        pinned: PinnedLeases,
        producing: ProduceService,
        calls: ConnectionBudget,
        waits: ConnectionBudget,
    ) -> None:
        """`calls` counts accepted calls that are not answered, `waits` those that may wait for
        executions.
        """
        self._router = router
        self._directory = directory
        self._reads = reads
        self._leasing = leasing
        self._pinned = pinned
        self._producing = producing
        self._calls = calls
        self._waits = waits

    async def start(self, call: StartCall) -> StartReply:
        queue = await self._queue(call.namespace, call.queue)
        partition = _home(queue, call.command.id)
        command = msgspec.structs.replace(
            call.command,
            secret=secrets.token_bytes(limits.EXECUTION_SECRET_BYTES),
            # The command may be sent more than once when a leader fails.
            request=call.command.request or secrets.token_bytes(limits.START_REQUEST_BYTES),
        )
        started: Started = await self._propose(
            queue, partition, command, call.attachment, call.timeout_ms
        )
        return StartReply(partition, started)

    async def record(self, call: ProgressCall) -> Recorded:
        queue = await self._queue(call.namespace, call.queue)
        group, partition, _ = parse_lease_id(call.lease_id, field="lease_id")
        if partition >= len(queue.groups) or queue.groups[partition] != group:
            raise _of_no_partition(queue, call.lease_id)
        for nth, child in enumerate(call.command.children):
            _check_neighbour(queue, partition, child.id, field=f"children[{nth}].id")
        command, attachment = call.command, call.attachment
        if call.produced:
            try:
                plan = await plan_follow_ups(
                    self._directory, self._producing, queue, partition, call.produced,
                    field="produced", undone="nothing was recorded",
                )  # fmt: skip
            except QueratorError as error:
                if error.retriable:
                    raise
                return await self._recorded_before(queue, partition, call, error)
            sent = SentItems(plan.lengths, plan.targets, plan.specials, plan.slots)
            command = msgspec.structs.replace(command, sent=sent)
            attachment += plan.items
        recorded: Recorded = await self._propose(
            queue, partition, command, attachment, call.timeout_ms
        )
        return recorded

    async def _recorded_before(
        self, queue: Queue, partition: int, call: ProgressCall, refusal: QueratorError
    ) -> Recorded:
        """The first answer to a Record, if the partition has it: a queue of its items has gone
        since. Otherwise raises the refusal, or what the partition says.
        """
        command = call.command
        # A Record that has seen what has not come is refused, unless it is a repeat.
        asked = RecordProgress(
            command.execution, command.item, command.lease, command.number, seen=_NEVER
        )
        try:
            recorded: Recorded = await self._propose(queue, partition, asked, b"", call.timeout_ms)
        except QueratorError as error:
            raise (refusal if error.field == "seen" else error) from error
        return recorded

    async def arrive(self, call: ArriveCall) -> Arrived:
        queue = await self._queue(call.namespace, call.queue)
        command, partition = call.command, call.partition
        if partition < 0:
            partition = _home(queue, command.id)
        else:
            check_partition(partition, queue)
        if command.kind == ArriveKind.SIGNAL and not command.message_id:
            # The command may be sent more than once when a leader fails.
            command = msgspec.structs.replace(command, message_id=uuid_utils.uuid7().hex)
        arrived: Arrived = await self._propose(
            queue, partition, command, call.attachment, call.timeout_ms
        )
        return arrived

    async def rewind(self, call: RewindCall) -> Rewound:
        queue = await self._queue(call.namespace, call.queue)
        request = call.command.request or secrets.token_bytes(limits.START_REQUEST_BYTES)
        command = msgspec.structs.replace(call.command, request=request)
        rewound: Rewound = await self._propose(
            queue, _home(queue, command.id), command, b"", call.timeout_ms
        )
        return rewound

    async def lease(self, call: LeaseCall) -> list[LeasedActivation]:
        """Waits as a lease of items does. Activations whose execution cannot be read stay leased
        until their leases lapse.
        """
        queue = await self._queue(call.namespace, call.queue)
        if (call.versions and call.partition is None) or call.given_up:
            runs = await self._pinned.lease(queue, call)
        else:
            reply = await self._leasing.lease(call)
            runs = [of_run(batch) for batch in reply.batches]
        batches = [self._activations(run) for run in runs]
        return [one for batch in await asyncio.gather(*batches) for one in batch]

    async def _activations(self, run: LeasedActivations) -> list[LeasedActivation]:
        group, partition, lease = parse_lease_id(run.lease_id, field="lease_id")
        query = ActivationsQuery(group, lease, tuple(run.attempts))
        found: tuple[ReadActivation, ...] = await self._router.read(group, query)
        return [
            LeasedActivation(
                lease_id=run.lease_id,
                item=one.view.activation,
                partition=partition,
                attempt=run.attempts[one.view.activation],
                remaining_ms=run.remaining_ms,
                now_ms=one.now_ms,
                view=one.view,
                journal=one.journal,
            )
            for one in found
        ]

    async def get(
        self, namespace: str, name: str, execution_id: str, *, timeout_ms: int
    ) -> ShownExecution:
        deadline = deadline_after(timeout_ms)
        queue = await self._queue(namespace, name)
        partition = _home(queue, execution_id)
        view = await self._view(queue.groups[partition], execution_id, deadline)
        end = None
        if view.closed_ms:
            group = queue.groups[partition]
            page = await self._journal(
                group, view.number, first=view.end_index, count_max=1, deadline=deadline
            )
            end = page.records[0] if page.records else None
        return ShownExecution(partition, view, end)

    async def wait(self, call: WaitExecutionsCall) -> EndedReply:
        """The executions that have ended, as soon as one has; none, if none has in time. Those that
        do not exist count as ended.
        """
        loop = asyncio.get_running_loop()
        queue = await self._queue(call.namespace, call.queue)
        ids: dict[int, list[str]] = {}
        for one in call.ids:
            ids.setdefault(_home(queue, one), []).append(one)
        until = loop.time() + call.wait_ms / 1000
        with self._waits.held():
            while True:
                left_ms = max(0, int((until - loop.time()) * 1000))
                wait_ms = min(left_ms, limits.EXECUTION_LOOK_MS_MAX)
                asks = {
                    partition: self._ended(queue.groups[partition], tuple(some), wait_ms)
                    for partition, some in ids.items()
                }
                found = await first_found(asks, "waiting for executions")
                if found or not left_ms:
                    return EndedReply(tuple(_fitting(found)))
                queue = self._directory.newest(queue)

    async def news(self, call: NewsCall) -> News:
        """What has happened to executions at work, as soon as something has; nothing, if nothing
        has in time.
        """
        loop = asyncio.get_running_loop()
        queue = await self._queue(call.namespace, call.queue)
        gone = [
            _held(*place, one)
            for place, known in call.known.items()
            if place[1] >= len(queue.groups) or queue.groups[place[1]] != place[0]
            for one in known
        ]
        if gone:
            # The queue was deleted, and made again.
            return News((), tuple(gone))
        until = loop.time() + call.wait_ms / 1000
        with self._waits.held():
            while True:
                left_ms = max(0, int((until - loop.time()) * 1000))
                wait_ms = min(left_ms, limits.EXECUTION_LOOK_MS_MAX)
                asks: dict[int, Coroutine[Any, Any, Sequence[_News]]] = {
                    partition: self._news(group, partition, known, wait_ms)
                    for (group, partition), known in call.known.items()
                }
                found = await first_found(asks, "waiting for arrivals")
                if found or not left_ms:
                    arrived = tuple(one for _, (is_lost, one) in found if not is_lost)
                    return News(arrived, tuple(one for _, (is_lost, one) in found if is_lost))

    async def _news(
        self,
        group: GroupId,
        partition: PartitionNumber,
        known: tuple[KnownJournal, ...],
        wait_ms: int,
    ) -> Sequence[_News]:
        page: NewsPage = await self._router.read(group, NewsQuery(group, known, wait_ms))
        held = [_held(group, partition, one) for one in known]
        return [
            *((False, held[place]) for place in page.arrived),
            *((True, held[place]) for place in page.lost),
        ]

    async def _ended(
        self, group: GroupId, ids: tuple[str, ...], wait_ms: int
    ) -> Sequence[EndedExecution]:
        page: EndedPage = await self._router.read(group, EndedQuery(group, ids, wait_ms))
        return page.executions

    async def published(self, call: PublishedCall) -> PublishedPage:
        """Published values, as soon as there is one; none, if there is none in time, or if the
        execution has ended.
        """
        loop = asyncio.get_running_loop()
        queue = await self._queue(call.namespace, call.queue)
        group = queue.groups[_home(queue, call.id)]
        until = loop.time() + call.wait_ms / 1000
        with self._waits.held():
            while True:
                left_ms = max(0, int((until - loop.time()) * 1000))
                wait_ms = min(left_ms, limits.EXECUTION_LOOK_MS_MAX)
                query = PublishedQuery(group, call.id, call.key, call.after, wait_ms)
                page: PublishedPage = await self._router.read(group, query)
                if not page.found:
                    raise _not_found(call.id)
                if page.is_final or not left_ms:
                    return page

    async def journal(self, call: JournalCall) -> JournalPage:
        deadline = deadline_after(call.timeout_ms)
        queue = await self._queue(call.namespace, call.queue)
        group = queue.groups[_home(queue, call.id)]
        view = await self._view(group, call.id, deadline)
        return await self._journal(
            group,
            view.number,
            first=call.first,
            count_max=call.records_max,
            bytes_max=limits.REPLY_BYTES_DEFAULT,
            deadline=deadline,
        )

    async def page(self, call: ListExecutionsCall) -> ShownExecutions:
        """Partition by partition. One call reads a bounded number of rows, so a page may be empty
        although others follow.
        """
        deadline = deadline_after(call.timeout_ms)
        queue = await self._queue(call.namespace, call.queue)
        scope = f"executions/{queue.id}/{call.function}/{call.state or 0}"
        partition, after = 0, 0
        if call.page_token:
            partition, after = paging.decode_item(scope, call.page_token)
            check_partition(partition, queue)
        found = await self._page(
            ExecutionsQuery(
                queue.groups[partition],
                after=after,
                function=call.function,
                state=call.state or 0,
                limit=call.page_size,
            ),
            deadline,
        )
        shown = tuple(ShownExecution(partition, view) for view in found.executions)
        if not found.after:
            partition += 1
        token = ""
        if partition < len(queue.groups):
            token = paging.encode_item(scope, partition, found.after)
        return ShownExecutions(shown, token)

    # --- the partition -------------------------------------------------------------------------

    async def _queue(self, namespace: str, name: str) -> Queue:
        queue = await self._directory.find(namespace, name)
        if queue.settings.kind is not QueueKind.EXECUTIONS:
            raise QueratorError(
                ErrorCode.QUEUE_KIND,
                f"queue {queue.name} has items; executions need a queue of kind executions",
                field="queue",
                value=queue.name,
            )
        return queue

    async def _propose(
        self, queue: Queue, partition: int, command: Any, attachment: bytes, timeout_ms: int
    ) -> Any:
        with self._calls.held(1):
            route = self._router.routes(queue)[partition]
            deadline = deadline_after(timeout_ms)
            return await self._router.call(route, command, attachment, deadline=deadline)

    async def _view(
        self, group: GroupId, execution_id: str, deadline: float | None
    ) -> ExecutionView:
        page = await self._page(ExecutionsQuery(group, execution_id), deadline)
        if not page.executions:
            raise _not_found(execution_id)
        return page.executions[0]

    async def _page(self, query: ExecutionsQuery, deadline: float | None) -> ExecutionPage:
        page: ExecutionPage = await self._router.read(query.group, query, deadline=deadline)
        return page

    async def _journal(
        self,
        group: GroupId,
        number: int,
        *,
        first: int = 0,
        count_max: int = limits.PAGE_ITEMS_MAX,
        bytes_max: int = limits.ACTIVATION_JOURNAL_BYTES_MAX,
        deadline: float | None = None,
    ) -> JournalPage:
        query = JournalQuery(group, number, first, count_max, bytes_max)
        page: JournalPage = await self._router.read(group, query, deadline=deadline)
        return page


def _fitting(found: list[tuple[int, EndedExecution]]) -> list[tuple[int, EndedExecution]]:
    """Those that fit into a reply, but at least one."""
    size = 0
    for place, (_, one) in enumerate(found):
        size += 0 if one.end is None else len(one.end.note.payload)
        if place and size > limits.REPLY_BYTES_DEFAULT:
            return found[:place]
    return found


def _check_neighbour(queue: Queue, partition: int, child_id: str, *, field: str) -> None:
    """Raises INVALID_ARGUMENT for a child that would be in another partition than its parent."""
    if _home(queue, child_id) != partition:
        raise QueratorError(
            ErrorCode.INVALID_ARGUMENT,
            f"{field} is {child_id}, which belongs to another partition than its parent; the "
            "part up to the first `/` must be the one of the parent's id",
            field=field,
            value=child_id,
        )


def _not_found(execution_id: str) -> QueratorError:
    return QueratorError(
        ErrorCode.EXECUTION_NOT_FOUND,
        f"there is no execution {execution_id}",
        field="id",
        value=execution_id,
    )


def _held(group: GroupId, partition: PartitionNumber, one: KnownJournal) -> tuple[str, int]:
    """The lease and the item of an activation."""
    return format_lease_id(group, partition, LeaseNumber(one.lease)), one.item


def _of_no_partition(queue: Queue, lease_id: str) -> QueratorError:
    message = f"lease {lease_id} is of no partition of queue {queue.name}"
    return QueratorError(ErrorCode.LEASE_LOST, message, field="lease_id", value=lease_id)


def _home(queue: Queue, execution_id: str) -> int:
    """The partition of an execution: that of the root of its id."""
    root = execution_id.partition("/")[0]
    return partition_of_key(root.encode(), len(queue.groups))
