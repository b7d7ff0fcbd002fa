"""Calls of readers of a queue: split by partition, and their answers merged.

The call that is repeated all the time is in `advancing`. When it finds nothing to do, it writes
nothing to the log, however often it is repeated. When it waits, it does so at the leaders.

Partition 0 decides which epoch of a reader is the latest: it exists as long as the queue. A
partition that does not know a reader, because the partition is younger, learns of it at the next
contact.

A partition that does not answer in time does not affect the others: the answer has its error, and
its open batch is given out by the next call.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
import uuid_utils

from querator.model.commands import Done
from querator.model.errors import ErrorCode, QueratorError, invalid
from querator.model.limits import OVERLOADED_RETRY_MS
from querator.model.queues import Queue, QueueState
from querator.model.reader_calls import (
    AdvancedReader,
    AdvanceReaderCall,
    BatchPage,
    OpenedReader,
    OpenReaderCall,
    ReadBatchCall,
    ReaderPartitions,
    ReaderStart,
    ReaderState,
    ReleasedReader,
    ReleaseReaderCall,
)
from querator.model.readers import OpenReader, ReaderResult, ReleaseReader
from querator.partition.readers import unknown_reader
from querator.service.admission import ConnectionBudget
from querator.service.reading.advancing import advance_reader
from querator.service.reading.browsing import batch_slots
from querator.service.reading.queries import Queries
from querator.service.routing.directory import QueueDirectory
from querator.service.routing.forwarder import BatchQuery
from querator.service.routing.outcomes import each
from querator.service.routing.route import PartitionRoute
from querator.service.routing.router import Router, deadline_after
from querator.service.validate import check_partition

ROUND_S = 0.2
"""Part of a call's time that is reserved for items that become ready at the last moment."""

_OF_PARTITIONS_THAT_GO = (ErrorCode.QUEUE_DELETING, ErrorCode.ACK_MISMATCH)
"""Errors of such partitions. A closed one knows acknowledgements that the caller has given up."""

T = TypeVar("T")


class ReaderService:
    """The calls of readers. Every method raises QueratorError, and runs on the event loop."""

    def __init__(
        self, *, router: Router, directory: QueueDirectory, reads: Queries, calls: ConnectionBudget
    ) -> None:
        """`calls` counts accepted calls that may wait."""
        self._reading = batch_slots()
        self._router = router
        self._directory = directory
        self._reads = reads
        self._calls = calls

    async def open(self, call: OpenReaderCall) -> OpenedReader:
        if not call.request_id:
            # The router may repeat the command, and an abandoned command may arrive late.
            call = msgspec.structs.replace(call, request_id=str(uuid_utils.uuid7()))
        queue = await self._directory.find(call.namespace, call.queue)
        deadline = deadline_after(call.timeout_ms)
        return await self._as_it_is(
            queue,
            lambda it: open_reader(
                self._router, self._directory, self._reads, it, call, deadline=deadline
            ),
        )

    async def advance(self, call: AdvanceReaderCall) -> AdvancedReader:
        queue = await self._directory.find(call.namespace, call.queue)
        with self._calls.held():
            deadline = deadline_after(call.timeout_ms)
            until = asyncio.get_running_loop().time() + call.wait_ms / 1000
            if deadline is not None:
                until = min(until, deadline - ROUND_S)
            return await self._as_it_is(
                queue,
                lambda it: advance_reader(
                    self._router, self._directory, it, call, deadline=deadline, until=until
                ),
            )

    async def read(self, call: ReadBatchCall, caller: str = "") -> "BatchReading":
        """Opens a batch for reading by a connection, `caller`; its owner closes it."""
        queue = await self._directory.find(call.namespace, call.queue, call.partition)
        check_partition(call.partition, queue)
        route = self._router.routes(queue)[call.partition]
        return BatchReading(call, route, router=self._router, left=self._reading.enter(caller))

    async def list(
        self, namespace: str, name: str, *, stale: bool, timeout_ms: int = 0
    ) -> tuple[ReaderPartitions, ...]:
        """Readers of the queue, ordered by name."""
        deadline = deadline_after(timeout_ms)
        queue = await self._directory.find(namespace, name)
        if not stale:
            queue = await self._directory.whole(queue, deadline=deadline)
        return await self._as_it_is(
            queue, lambda it: list_readers(self._reads, it, stale=stale, deadline=deadline)
        )

    async def release(self, call: ReleaseReaderCall) -> ReleasedReader:
        queue = await self._directory.find(call.namespace, call.queue)
        deadline = deadline_after(call.timeout_ms)
        if call.partition is None:
            queue = await self._directory.whole(queue, deadline=deadline)
        else:
            queue = await self._directory.certain_of(queue, call.partition, deadline=deadline)
        return await self._as_it_is(
            queue, lambda it: release_reader(self._router, self._reads, it, call, deadline=deadline)
        )

    async def _as_it_is(self, queue: Queue, work: Callable[[Queue], Awaitable[T]]) -> T:
        """Result of repeatable work on the queue. The work begins again when it meets a partition
        that has gone, or has gone and come again, without this node's knowledge.
        """
        while True:
            try:
                return await work(queue)
            except QueratorError as error:
                if error.code not in _OF_PARTITIONS_THAT_GO:
                    raise
                before = queue.groups
                queue = self._directory.newest(queue)
                if queue.groups == before:
                    queue, _ = await self._directory.reaching(queue, len(before))
                if queue.groups == before or queue.state is QueueState.DELETING:
                    raise


class BatchReading:
    """One part of a batch, page by page. Its owner closes it once."""

    def __init__(
        self,
        call: ReadBatchCall,
        route: PartitionRoute,
        *,
        router: Router,
        left: Callable[[], None],
    ) -> None:
        self._call = call
        self._route = route
        self._router = router
        self._deadline = deadline_after(call.timeout_ms)
        self.close = left

    async def page(self, from_index: int) -> BatchPage:
        """The page that begins at `from_index`. Raises QueratorError."""
        call = self._call
        query = BatchQuery(
            group=self._route.group,
            partition=call.partition,
            reader_id=call.reader_id,
            batch_seq=call.batch_seq,
            from_index=from_index,
            upto_index=call.upto_index,
            with_value=call.with_value,
        )
        group = self._route.group
        page: BatchPage = await self._router.read(group, query, deadline=self._deadline)
        return page


async def open_reader(
    router: Router,
    directory: QueueDirectory,
    reads: Queries,
    queue: Queue,
    call: OpenReaderCall,
    *,
    deadline: float | None,
) -> OpenedReader:
    """Every partition knows the epoch when this returns. Raises QueratorError."""
    # A run that cannot begin everywhere would end the current one, and count as a replay.
    await reads.readers(queue.groups, stale=False, deadline=deadline)
    opening = OpenReader(call.reader_id, request_id=call.request_id)
    first = await _opened(router, router.route(queue.groups[0]), opening, deadline)
    queue, known = await directory.since(directory.newest(queue), first.routing, deadline=deadline)
    if not known:
        raise _behind(queue, first.routing)
    routes = router.routes(queue)
    command = OpenReader(call.reader_id, first.epoch)
    others = await each([_opened(router, route, command, deadline) for route in routes[1:]])
    positions = []
    for partition, result in enumerate([first, *others]):
        if isinstance(result, QueratorError):
            raise result
        positions.append(
            ReaderStart(partition, result.acked_seq, result.batch, result.position, result.dead_seq)
        )
    return OpenedReader(first.epoch, tuple(positions))


async def _opened(
    router: Router, route: PartitionRoute, command: OpenReader, deadline: float | None
) -> ReaderResult:
    result = await router.call(route, command, deadline=deadline)
    assert isinstance(result, ReaderResult)
    return result


def _behind(queue: Queue, routing: int) -> QueratorError:
    return QueratorError(
        ErrorCode.UNAVAILABLE,
        f"this node knows routing version {queue.routing} of queue {queue.name}, its partitions "
        f"have routing version {routing}, and the placement group does not answer",
        retry_delay_ms=OVERLOADED_RETRY_MS,
    )


async def list_readers(
    reads: Queries, queue: Queue, *, stale: bool, deadline: float | None
) -> tuple[ReaderPartitions, ...]:
    """Readers ordered by name. Raises QueratorError."""
    found: dict[str, list[tuple[int, ReaderState]]] = {}
    states_of = await reads.readers(queue.groups, stale=stale, deadline=deadline)
    for partition, states in enumerate(states_of):
        for state in states:
            found.setdefault(state.reader_id, []).append((partition, state))
    return tuple(
        ReaderPartitions(reader_id, tuple(found[reader_id])) for reader_id in sorted(found)
    )


async def release_reader(
    router: Router, reads: Queries, queue: Queue, call: ReleaseReaderCall, *, deadline: float | None
) -> ReleasedReader:
    """Releases batches that are open when the call comes, not those given out meanwhile. Raises
    QueratorError; a repeat then releases the rest.
    """
    if call.partition is not None:
        if call.remove:
            raise invalid("partition", "must not be given when the reader is removed")
        check_partition(call.partition, queue)
    routes = router.routes(queue)
    there: list[tuple[PartitionRoute, int]] = []
    states = await reads.readers(queue.groups, stale=False, deadline=deadline)
    known = False
    for partition, of_partition in enumerate(states):
        if call.partition not in (None, partition):
            continue
        for state in of_partition:
            if state.reader_id == call.reader_id:
                known = True
                seq = 0 if state.batch is None else state.batch.seq
                if call.batch_seq not in (0, seq):
                    seq = 0
                if seq or call.remove:
                    there.append((routes[partition], seq))
    if not known:
        raise unknown_reader(call.reader_id).as_error()
    # Partition 0 first: a reader that it does not know is not opened in other partitions, and a
    # reader that it keeps because it still reads continues everywhere.
    items: list[int] = []
    for some in (there[:1], there[1:]):
        results = await each([_release(router, call, *one, deadline) for one in some])
        items += [_items(result) for result in results]
    return ReleasedReader(sum(1 for _, seq in there if seq), sum(items))


def _items(result: Done | QueratorError) -> int:
    if isinstance(result, QueratorError):
        raise result
    return result.changed


async def _release(
    router: Router, call: ReleaseReaderCall, route: PartitionRoute, seq: int, deadline: float | None
) -> Done:
    command = ReleaseReader(call.reader_id, seq, call.remove, call.dead)
    result = await router.call(route, command, deadline=deadline)
    assert isinstance(result, Done)
    return result
