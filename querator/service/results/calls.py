"""Calls of producers that wait for results: split by partition, and their answers merged.

Each partition is asked at its leader, where the question waits (`service.results.waits`). The first
one that has items that have ended answers the call (`service.routing.first_found`); the others are
asked again by the next call.

An item never leaves its partition before its end, so its id says where its result is.
"""

import asyncio
from collections.abc import Sequence

from querator.model.errors import QueratorError
from querator.model.ids import GroupId
from querator.model.limits import REPLY_BYTES_DEFAULT, RESULT_LOOK_MS_MAX
from querator.model.queues import Queue
from querator.model.result_calls import EndedItem, ItemEnd, ResultsReply, WaitResultsCall
from querator.partition.result_queries import ResultsPage
from querator.service.admission import ConnectionBudget
from querator.service.routing.directory import QueueDirectory
from querator.service.routing.first_found import first_found
from querator.service.routing.forwarder import ResultsQuery
from querator.service.routing.router import Router

_Found = list[tuple[int, EndedItem]]


class ResultService:
    """Used on the event loop."""

    def __init__(
        self, router: Router, directory: QueueDirectory, *, calls: ConnectionBudget
    ) -> None:
        """`calls` counts accepted calls that may wait."""
        self._router = router
        self._directory = directory
        self._calls = calls
        self._loop = asyncio.get_running_loop()

    async def wait(self, call: WaitResultsCall) -> ResultsReply:
        """The items that have ended, as soon as one has; none, if none has in time. Raises
        QueratorError.
        """
        last = max(partition for partition, _ in call.items)
        queue = await self._directory.find(call.namespace, call.queue, last)
        seqs: dict[int, list[int]] = {}
        for partition, seq in call.items:
            seqs.setdefault(partition, []).append(seq)
        until = self._loop.time() + call.wait_ms / 1000
        with self._calls.held():
            while True:
                left_ms = max(0, int((until - self._loop.time()) * 1000))
                found = await self._first(queue, seqs, min(left_ms, RESULT_LOOK_MS_MAX))
                if found or not left_ms:
                    return ResultsReply(tuple(_fitting(found)))
                queue = self._directory.newest(queue)

    async def _first(self, queue: Queue, seqs: dict[int, list[int]], wait_ms: int) -> _Found:
        """The items of the first partition that has an answer, and of those that answer with it."""
        found: _Found = []
        for partition, wanted in seqs.items():
            if partition >= len(queue.groups):
                found += _of_no_partition(queue, partition, wanted)
        if found:
            return found
        asks = {
            partition: self._ask(queue, queue.groups[partition], tuple(wanted), wait_ms)
            for partition, wanted in seqs.items()
        }
        return await first_found(asks, "waiting for results")

    async def _ask(
        self, queue: Queue, group: GroupId, seqs: tuple[int, ...], wait_ms: int
    ) -> Sequence[EndedItem]:
        try:
            page = await self._router.read(group, ResultsQuery(group, seqs, wait_ms))
        except QueratorError as error:
            if not self._directory.has_left(queue, group, error):
                raise
            # It was closing, and has left when no result was kept any more.
            return [_none(seq, "its partition has closed") for seq in seqs]
        assert isinstance(page, ResultsPage)
        return page.items


def _of_no_partition(queue: Queue, partition: int, seqs: Sequence[int]) -> _Found:
    why = f"queue {queue.name} has no partition {partition}, or has none any more"
    return [(partition, _none(seq, why)) for seq in seqs]


def _none(seq: int, why: str) -> EndedItem:
    return EndedItem(seq, ItemEnd.NONE, error=why)


def _fitting(found: _Found) -> _Found:
    """Those that fit into a reply, but at least one."""
    size = 0
    for place, (_, item) in enumerate(found):
        size += len(item.data)
        if place and size > REPLY_BYTES_DEFAULT:
            return found[:place]
    return found
