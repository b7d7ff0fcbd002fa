"""Readers of a queue: their calls are split by partition, and the answers merged.

    advance    every partition is asked what the command would come to (a read at its leader)
               what is ready is shared out among the partitions that have some
               whatever would change something is proposed, one entry for each partition

So a call that finds nothing to do costs the log nothing, however often it is repeated. One that
waits does so at the leaders.

Partition 0 says which epoch of a reader is the last: it is there as long as the queue is. A
partition that has not heard of a reader (it is younger) hears of it when it is met.

A partition that does not answer in time leaves the others what they are: it says why, and its open
batch is given out by the next call.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec
import uuid_utils

from querator.model.commands import Done
from querator.model.errors import ERRORS, ErrorCode, QueratorError, invalid
from querator.model.limits import (
    READER_LOOK_MS_MAX,
    READER_PARTITION_WAIT_MS,
)
from querator.model.queues import Queue, QueueState
from querator.model.reader_calls import (
    AdvancedReader,
    AdvanceReaderCall,
    BatchPage,
    OpenedReader,
    OpenReaderCall,
    ReadBatchCall,
    Reader,
    ReaderAck,
    ReaderPosition,
    ReaderProgress,
    ReaderState,
    ReleasedReader,
    ReleaseReaderCall,
)
from querator.model.readers import AdvanceReader, OpenReader, ReaderResult, ReleaseReader
from querator.partition.lease import fair_shares
from querator.partition.reader_queries import Outlook
from querator.partition.readers import unknown_reader
from querator.service.admission import Held
from querator.service.browsing import batch_slots
from querator.service.forwarder import AdvanceQuery, BatchQuery
from querator.service.outcomes import each, refused
from querator.service.reads import Reads
from querator.service.router import Router, deadline_after
from querator.service.validate import check_partition
from querator.service.views import PartitionView

ROUND_S = 0.2
"""Kept back of a call's time for what becomes ready at the last moment."""
LOOK_PAUSE_S = 0.02
"""Between two looks at a partition of which nothing could be had."""

_OF_PARTITIONS_THAT_GO = (ErrorCode.QUEUE_DELETING, ErrorCode.ACK_MISMATCH)
"""What they answer; one that is closed knows acknowledgements that the caller has given up."""

T = TypeVar("T")


class ReaderService:
    """The calls of readers. Every method raises QueratorError, and runs on the event loop."""

    def __init__(self, *, router: Router, reads: Reads, calls: Held) -> None:
        """`calls` counts what has been taken on and may wait."""
        self._reading = batch_slots()
        self._router = router
        self._reads = reads
        self._calls = calls

    async def open(self, call: OpenReaderCall) -> OpenedReader:
        if not call.request_id:
            # The router may repeat the command, and what was given up may come late.
            call = msgspec.structs.replace(call, request_id=str(uuid_utils.uuid7()))
        queue = await self._queue(call.namespace, call.queue)
        deadline = deadline_after(call.timeout_ms)
        return await self._as_it_is(
            queue, lambda it: open_reader(self._router, self._reads, it, call, deadline=deadline)
        )

    async def advance(self, call: AdvanceReaderCall) -> AdvancedReader:
        queue = await self._queue(call.namespace, call.queue)
        with self._calls.held():
            deadline = deadline_after(call.timeout_ms)
            until = asyncio.get_running_loop().time() + call.wait_ms / 1000
            if deadline is not None:
                until = min(until, deadline - ROUND_S)
            return await self._as_it_is(
                queue,
                lambda it: advance_reader(
                    self._router, self._reads, it, call, deadline=deadline, until=until
                ),
            )

    async def read(self, call: ReadBatchCall, caller: str = "") -> "BatchReading":
        """Opens a batch for reading by a connection, `caller`; its owner closes it."""
        queue = await self._queue(call.namespace, call.queue, partition=call.partition)
        check_partition(call.partition, queue)
        view = self._router.views(queue)[call.partition]
        return BatchReading(call, view, router=self._router, left=self._reading.enter(caller))

    async def list(
        self, namespace: str, name: str, *, stale: bool, timeout_ms: int = 0
    ) -> tuple[Reader, ...]:
        """By name."""
        deadline = deadline_after(timeout_ms)
        queue = await self._queue(namespace, name)
        return await self._as_it_is(
            queue, lambda it: list_readers(self._reads, it, stale=stale, deadline=deadline)
        )

    async def release(self, call: ReleaseReaderCall) -> ReleasedReader:
        queue = await self._queue(call.namespace, call.queue)
        # All are those of a map that is new.
        last = len(queue.groups) if call.partition is None else call.partition
        queue, _ = await self._reads.reaching(queue, last)
        deadline = deadline_after(call.timeout_ms)
        return await self._as_it_is(
            queue, lambda it: release_reader(self._router, self._reads, it, call, deadline=deadline)
        )

    async def _queue(self, namespace: str, name: str, *, partition: int = 0) -> Queue:
        queue = await self._reads.existing(lambda: self._router.queue(namespace, name))
        return (await self._reads.reaching(queue, partition))[0]

    async def _as_it_is(self, queue: Queue, work: Callable[[Queue], Awaitable[T]]) -> T:
        """What work that may be repeated comes to; begun anew when it meets a partition that has
        gone, or has gone and come again, of which this node had not heard.
        """
        while True:
            try:
                return await work(queue)
            except QueratorError as error:
                if error.code not in _OF_PARTITIONS_THAT_GO:
                    raise
                before = queue.groups
                queue = self._router.map.get(queue.id) or queue
                if queue.groups == before:
                    queue, _ = await self._reads.reaching(queue, len(before))
                if queue.groups == before or queue.state is QueueState.DELETING:
                    raise


class BatchReading:
    """One part of a batch, by the page. Its owner closes it, once."""

    def __init__(
        self, call: ReadBatchCall, view: PartitionView, *, router: Router, left: Callable[[], None]
    ) -> None:
        self._call = call
        self._view = view
        self._router = router
        self._deadline = deadline_after(call.timeout_ms)
        self.close = left

    async def page(self, from_index: int) -> BatchPage:
        """The page that begins there. Raises QueratorError."""
        call = self._call
        query = BatchQuery(
            self._view.group,
            call.partition,
            call.reader_id,
            call.batch_seq,
            from_index,
            call.upto_index,
            call.with_value,
        )
        group = self._view.group
        page: BatchPage = await self._router.read(group, query, deadline=self._deadline)
        return page


class _Piece(msgspec.Struct, frozen=True):
    """What a call asks of one partition."""

    partition: int
    view: PartitionView
    ack: ReaderAck


async def open_reader(
    router: Router, reads: Reads, queue: Queue, call: OpenReaderCall, *, deadline: float | None
) -> OpenedReader:
    """Every partition knows the epoch when this returns. Raises QueratorError."""
    # One that cannot begin everywhere would end the run that goes on, and count as a replay.
    await reads.readers(queue.groups, stale=False, deadline=deadline)
    views = router.views(queue)
    opening = OpenReader(call.reader_id, request_id=call.request_id)
    first = await _opened(router, views[0], opening, deadline)
    command = OpenReader(call.reader_id, first.epoch)
    others = await each([_opened(router, view, command, deadline) for view in views[1:]])
    positions = []
    for partition, result in enumerate([first, *others]):
        if isinstance(result, QueratorError):
            raise result
        positions.append(
            ReaderPosition(
                partition, result.acked_seq, result.batch, result.position, result.dead_seq
            )
        )
    return OpenedReader(first.epoch, tuple(positions))


async def _opened(
    router: Router, view: PartitionView, command: OpenReader, deadline: float | None
) -> ReaderResult:
    result = await router.call(view, command, deadline=deadline)
    assert isinstance(result, ReaderResult)
    return result


async def advance_reader(
    router: Router,
    reads: Reads,
    queue: Queue,
    call: AdvanceReaderCall,
    *,
    deadline: float | None,
    until: float,
) -> AdvancedReader:
    """Waits until then for what becomes ready. Raises QueratorError: what a partition refuses for
    good, or when none of them answers.
    """
    bounded = any(ack.ready_upto for ack in call.acks)
    acks = {ack.partition: ack for ack in call.acks}
    queue, known = await reads.reaching(queue, max(acks, default=0))
    pieces = [
        _Piece(partition, view, acks.pop(partition, ReaderAck(partition, 0)))
        for partition, view in enumerate(router.views(queue))
    ]
    # What this node has not heard of may be there.
    doubt = None if known else ErrorCode.UNAVAILABLE
    gone = [
        ReaderProgress(ack.partition, ack.ack_seq, error=doubt, gone=known) for ack in acks.values()
    ]
    while True:
        look = _Round(router, call, pieces, deadline)
        progress = await look.run()
        if look.in_vain:
            continue
        waits = not (bounded or call.acknowledge_only or any(one.batch for one in progress))
        if not (waits and await _until_ready(router, call, pieces, until)):
            return AdvancedReader((*progress, *sorted(gone, key=lambda one: one.partition)))


class _Round:
    """One look at all partitions, and what follows from it."""

    def __init__(
        self,
        router: Router,
        call: AdvanceReaderCall,
        pieces: Sequence[_Piece],
        deadline: float | None,
    ) -> None:
        self._router = router
        self._call = call
        self._pieces = pieces
        self._deadline = deadline
        self.in_vain = False
        """Whether all that was ready has died when it was to be reserved: there may be more."""

    async def run(self) -> list[ReaderProgress]:
        outlooks = await self._outlooks()
        shares = self._shares(outlooks)
        answers = await each(
            [
                self._act(piece, outlook, items, size)
                for piece, outlook, (items, size) in zip(
                    self._pieces, outlooks, shares, strict=True
                )
            ]
        )
        progress = []
        for piece, answer in zip(self._pieces, answers, strict=True):
            if isinstance(answer, QueratorError):
                if not ERRORS[answer.code].retriable:
                    raise answer
                progress.append(_failed(piece, answer))
            else:
                progress.append(ReaderProgress(piece.partition, answer.acked_seq, answer.batch))
        errors = [answer for answer in answers if isinstance(answer, QueratorError)]
        if len(errors) == len(answers):
            raise errors[0]
        self.in_vain = not any(one.batch for one in progress) and any(
            items and not isinstance(answer, QueratorError)
            for (items, _), answer in zip(shares, answers, strict=True)
        )
        return progress

    async def _outlooks(self) -> list[Outlook | QueratorError]:
        now_s = asyncio.get_running_loop().time()
        latest = now_s + READER_PARTITION_WAIT_MS / 1000
        if self._deadline is not None:
            # The other half is for what follows.
            latest = min(latest, (now_s + self._deadline) / 2)
        outlooks = await each([self._look(piece, latest) for piece in self._pieces])
        first = outlooks[0]
        if isinstance(first, QueratorError) and not ERRORS[first.code].retriable:
            return outlooks
        strangers = [
            place
            for place, outlook in enumerate(outlooks)
            if isinstance(outlook, QueratorError) and outlook.code is ErrorCode.READER_NOT_FOUND
        ]
        if isinstance(first, QueratorError):
            # It alone can say whether there is such a reader.
            for place in strangers:
                outlooks[place] = first
        elif strangers:
            # Partition 0 knows this epoch as the last one.
            met = await each([self._introduce(self._pieces[place], latest) for place in strangers])
            for place, outlook in zip(strangers, met, strict=True):
                outlooks[place] = outlook
        return outlooks

    async def _look(self, piece: _Piece, latest: float) -> Outlook:
        query = AdvanceQuery(piece.view.group, _command(self._call, piece))
        outlook: Outlook = await self._router.read(piece.view.group, query, deadline=latest)
        if outlook.refusal is not None:
            raise refused(outlook.refusal)
        return outlook

    async def _introduce(self, piece: _Piece, latest: float) -> Outlook:
        """Tells a partition of a reader that it does not know."""
        command = OpenReader(self._call.reader_id, self._call.epoch)
        await self._router.call(piece.view, command, deadline=latest)
        return await self._look(piece, latest)

    def _shares(self, outlooks: Sequence[Outlook | QueratorError]) -> list[tuple[int, int]]:
        """(items, bytes) that each partition may reserve, besides what is open."""
        items_left, bytes_left = self._call.max_items, self._call.max_bytes
        ready = []
        for outlook in outlooks:
            there = 0
            if isinstance(outlook, Outlook):
                there = outlook.ready
                batch = None if outlook.result is None else outlook.result.batch
                if batch is not None:
                    items_left -= batch.count
                    bytes_left -= batch.bytes
            ready.append(there)
        shares = fair_shares(ready, max(0, items_left))
        total = sum(shares)
        bytes_left = max(0, bytes_left)
        return [(share, bytes_left * share // total if share else 0) for share in shares]

    async def _act(
        self, piece: _Piece, outlook: Outlook | QueratorError, items: int, size: int
    ) -> ReaderResult | ReaderProgress:
        if isinstance(outlook, QueratorError):
            raise outlook
        if outlook.result is not None:
            return outlook.result
        if not outlook.acknowledges and not items:
            # Others have what the call may have.
            return ReaderProgress(piece.partition, piece.ack.ack_seq)
        command = _command(self._call, piece, items=items, size=size)
        result = await self._router.call(piece.view, command, deadline=self._deadline)
        assert isinstance(result, ReaderResult)
        return result


def _command(
    call: AdvanceReaderCall, piece: _Piece, *, items: int | None = None, size: int = 0
) -> AdvanceReader:
    """`items` None: as many as the call wants."""
    if items is None:
        items, size = (0 if call.acknowledge_only else call.max_items), call.max_bytes
    return AdvanceReader(
        call.reader_id,
        call.epoch,
        piece.ack.ack_seq,
        items,
        size,
        piece.ack.ready_upto,
        call.skip_released,
    )


def _failed(piece: _Piece, error: QueratorError) -> ReaderProgress:
    return ReaderProgress(piece.partition, piece.ack.ack_seq, error=error.code)


async def _until_ready(
    router: Router, call: AdvanceReaderCall, pieces: Sequence[_Piece], until: float
) -> bool:
    """Waits at the leaders of all partitions until one of them has something; False: none had,
    until then.
    """
    loop = asyncio.get_running_loop()
    if loop.time() >= until:
        return False
    # Owned: ended before this returns.
    tasks = [loop.create_task(_ready(router, call, piece, until)) for piece in pieces]
    try:
        for first in asyncio.as_completed(tasks):
            if await first:
                return True
        return False
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _ready(router: Router, call: AdvanceReaderCall, piece: _Piece, until: float) -> bool:
    """Whether the partition has something to say, until then; the next round finds out what."""
    loop = asyncio.get_running_loop()
    command = _command(call, piece)
    while (left_s := until - loop.time()) > 0:
        wait_ms = min(READER_LOOK_MS_MAX, max(1, int(left_s * 1000)))
        query = AdvanceQuery(piece.view.group, command, wait_ms)
        try:
            outlook: Outlook | None = await router.read(piece.view.group, query, deadline=until)
        except QueratorError as error:
            if not error.retriable:
                return True
            # It has no leader at present, or not enough time.
            outlook = None
        if outlook is not None and (outlook.result is None or outlook.result.batch is not None):
            return True
        await piece.view.pause(min(until, loop.time() + LOOK_PAUSE_S))
    return False


async def list_readers(
    reads: Reads, queue: Queue, *, stale: bool, deadline: float | None
) -> tuple[Reader, ...]:
    """By name. Raises QueratorError."""
    found: dict[str, list[tuple[int, ReaderState]]] = {}
    states_of = await reads.readers(queue.groups, stale=stale, deadline=deadline)
    for partition, states in enumerate(states_of):
        for state in states:
            found.setdefault(state.reader_id, []).append((partition, state))
    return tuple(Reader(reader_id, tuple(found[reader_id])) for reader_id in sorted(found))


async def release_reader(
    router: Router, reads: Reads, queue: Queue, call: ReleaseReaderCall, *, deadline: float | None
) -> ReleasedReader:
    """Releases what is open when the call comes, not what is given out meanwhile. Raises
    QueratorError; a repeat then does the rest.
    """
    if call.partition is not None:
        if call.remove:
            raise invalid("partition", "must not be given when the reader is removed")
        check_partition(call.partition, queue)
    views = router.views(queue)
    there: list[tuple[PartitionView, int]] = []
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
                    there.append((views[partition], seq))
    if not known:
        raise refused(unknown_reader(call.reader_id))
    # Partition 0 first: a reader that it does not know is made known nowhere else, and one that it
    # keeps, for it still reads, goes on everywhere.
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
    router: Router, call: ReleaseReaderCall, view: PartitionView, seq: int, deadline: float | None
) -> Done:
    command = ReleaseReader(call.reader_id, seq, call.remove, call.dead)
    result = await router.call(view, command, deadline=deadline)
    assert isinstance(result, Done)
    return result
