"""One advance of a reader: every partition is asked, and the call's limits are shared among them.

    look       every partition is asked for the outcome of the command (a read at its leader)
    share      the limits of the call are shared among the partitions with ready items
    act        a command that changes something is proposed, one entry per partition

A node may not know partitions that the queue has just got. The other partitions know of them: they
receive each version of the number of partitions before any item is routed by it. So when a call
finds nothing and a partition knows a later version than this node, the node asks the placement
group. If that does not answer, the next partition is reported as one that could not be asked.
"""

import asyncio
from collections.abc import Mapping, Sequence

import msgspec

from querator.model.errors import ERRORS, ErrorCode, QueratorError
from querator.model.fair_shares import fair_shares
from querator.model.limits import READER_LOOK_MS_MAX, READER_PARTITION_WAIT_MS
from querator.model.queues import Queue
from querator.model.reader_calls import (
    AdvancedReader,
    AdvanceOutcome,
    AdvanceReaderCall,
    ReaderAck,
)
from querator.model.readers import AdvanceReader, OpenReader, ReaderResult
from querator.partition.reader_queries import Outlook
from querator.service.routing.directory import QueueDirectory
from querator.service.routing.forwarder import AdvanceQuery
from querator.service.routing.outcomes import each
from querator.service.routing.route import PartitionRoute
from querator.service.routing.router import Router

LOOK_PAUSE_S = 0.02
"""Interval between two queries of a partition that had nothing."""


class _Piece(msgspec.Struct, frozen=True):
    """Part of a call for one partition."""

    partition: int
    route: PartitionRoute
    ack: ReaderAck


async def advance_reader(
    router: Router,
    directory: QueueDirectory,
    queue: Queue,
    call: AdvanceReaderCall,
    *,
    deadline: float | None,
    until: float,
) -> AdvancedReader:
    """Waits until `until` for ready items. Raises QueratorError: a permanent refusal of a
    partition, or when no partition answers.
    """
    bounded = any(ack.ready_upto for ack in call.acks)
    acks = {ack.partition: ack for ack in call.acks}
    told = 0
    queue, known = await directory.reaching(queue, max(acks, default=0), deadline=deadline)
    while True:
        pieces = [
            _Piece(partition, route, acks.get(partition, ReaderAck(partition, 0)))
            for partition, route in enumerate(router.routes(queue))
        ]
        look = _Round(router, call, pieces, deadline)
        progress = await look.run()
        if look.in_vain:
            continue
        given = any(one.batch for one in progress)
        if not given and look.routing > max(told, queue.routing):
            told = look.routing
            queue, known = await directory.since(directory.newest(queue), told, deadline=deadline)
            continue
        waits = not (bounded or call.acknowledge_only or given)
        if not (
            waits
            and await _until_ready(
                router=router,
                directory=directory,
                queue=queue,
                call=call,
                pieces=pieces,
                told=told,
                until=until,
            )
        ):
            return AdvancedReader((*progress, *_beyond(queue, acks, known=known)))
        newest = directory.newest(queue)
        if newest.groups != queue.groups:
            told = 0
            last = max(acks, default=0)
            queue, known = await directory.reaching(newest, last, deadline=deadline)


def _beyond(queue: Queue, acks: Mapping[int, ReaderAck], *, known: bool) -> list[AdvanceOutcome]:
    """Progress of partitions that are missing in this node's map. Unless the partitions are
    certain, those with acknowledgements may exist, and so may the next one.
    """
    numbers = {partition for partition in acks if partition >= len(queue.groups)}
    if not known:
        numbers.add(len(queue.groups))
    doubt = None if known else ErrorCode.UNAVAILABLE
    return [
        AdvanceOutcome(number, acks[number].ack_seq if number in acks else 0, None, doubt, known)
        for number in sorted(numbers)
    ]


class _Round:
    """One query of all partitions, and the commands that follow from it."""

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
        self.routing = 0
        """The latest version of the number of partitions that any partition has received."""
        self.in_vain = False
        """Whether all ready items were gone when they were to be reserved: there may be more."""

    async def run(self) -> list[AdvanceOutcome]:
        outlooks = await self._outlooks()
        self.routing = max(
            (each.routing for each in outlooks if isinstance(each, Outlook)), default=0
        )
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
                progress.append(AdvanceOutcome(piece.partition, answer.acked_seq, answer.batch))
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
            # The other half is left for the next steps.
            latest = min(latest, (now_s + self._deadline) / 2)
        outlooks = await each([self._outlook(piece, latest) for piece in self._pieces])
        first = outlooks[0]
        if isinstance(first, QueratorError) and not ERRORS[first.code].retriable:
            return outlooks
        strangers = [
            place
            for place, outlook in enumerate(outlooks)
            if isinstance(outlook, QueratorError) and outlook.code is ErrorCode.READER_NOT_FOUND
        ]
        if isinstance(first, QueratorError):
            # Only partition 0 can say whether there is such a reader.
            for place in strangers:
                outlooks[place] = first
        elif strangers:
            # Partition 0 knows this epoch as the latest one.
            met = await each([self._introduce(self._pieces[place], latest) for place in strangers])
            for place, outlook in zip(strangers, met, strict=True):
                outlooks[place] = outlook
        return outlooks

    async def _outlook(self, piece: _Piece, latest: float) -> Outlook:
        query = AdvanceQuery(piece.route.group, _command(self._call, piece))
        outlook: Outlook = await self._router.read(piece.route.group, query, deadline=latest)
        if outlook.refusal is not None:
            raise outlook.refusal.as_error()
        return outlook

    async def _introduce(self, piece: _Piece, latest: float) -> Outlook:
        """Opens a reader in a partition that does not know it."""
        command = OpenReader(self._call.reader_id, self._call.epoch)
        await self._router.call(piece.route, command, deadline=latest)
        return await self._outlook(piece, latest)

    def _shares(self, outlooks: Sequence[Outlook | QueratorError]) -> list[tuple[int, int]]:
        """(items, bytes) that each partition may reserve, in addition to open batches."""
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
    ) -> ReaderResult | AdvanceOutcome:
        if isinstance(outlook, QueratorError):
            raise outlook
        if outlook.result is not None:
            return outlook.result
        if not outlook.acknowledges and not items:
            # Other partitions use up the limit of the call.
            return AdvanceOutcome(piece.partition, piece.ack.ack_seq)
        command = _command(self._call, piece, items=items, size=size)
        result = await self._router.call(piece.route, command, deadline=self._deadline)
        assert isinstance(result, ReaderResult)
        return result


def _command(
    call: AdvanceReaderCall, piece: _Piece, *, items: int | None = None, size: int = 0
) -> AdvanceReader:
    """`items` None: as many as the call wants."""
    if items is None:
        items, size = (0 if call.acknowledge_only else call.max_items), call.max_bytes
    return AdvanceReader(
        reader_id=call.reader_id,
        epoch=call.epoch,
        ack_seq=piece.ack.ack_seq,
        max_items=items,
        max_bytes=size,
        upto_position=piece.ack.ready_upto,
        skip_released=call.skip_released,
    )


def _failed(piece: _Piece, error: QueratorError) -> AdvanceOutcome:
    return AdvanceOutcome(piece.partition, piece.ack.ack_seq, error=error.code)


async def _until_ready(
    router: Router,
    directory: QueueDirectory,
    queue: Queue,
    call: AdvanceReaderCall,
    pieces: Sequence[_Piece],
    told: int,
    until: float,
) -> bool:
    """Waits at the leaders of all partitions until one of them has something, or the queue has
    other partitions; False: neither happened before `until`.
    """
    loop = asyncio.get_running_loop()
    if loop.time() >= until:
        return False
    # Owned: ended before this returns.
    told = max(told, queue.routing)
    tasks = [loop.create_task(_ready(router, call, piece, told, until)) for piece in pieces]
    tasks.append(loop.create_task(directory.other_partitions(queue, until)))
    try:
        for first in asyncio.as_completed(tasks):
            if await first:
                return True
        return False
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _ready(
    router: Router, call: AdvanceReaderCall, piece: _Piece, told: int, until: float
) -> bool:
    """Whether the partition has news before `until`; the next round finds out which. `told` is the
    latest known version of the number of partitions.
    """
    loop = asyncio.get_running_loop()
    command = _command(call, piece)
    while (left_s := until - loop.time()) > 0:
        wait_ms = min(READER_LOOK_MS_MAX, max(1, int(left_s * 1000)))
        query = AdvanceQuery(piece.route.group, command, wait_ms)
        try:
            outlook: Outlook | None = await router.read(piece.route.group, query, deadline=until)
        except QueratorError as error:
            if not error.retriable:
                return True
            # It has no leader at present, or too little time.
            outlook = None
        if outlook is not None and _says_something(outlook, told):
            return True
        await piece.route.pause(min(until, loop.time() + LOOK_PAUSE_S))
    return False


def _says_something(outlook: Outlook, told: int) -> bool:
    result = outlook.result
    return result is None or result.batch is not None or outlook.routing > told
