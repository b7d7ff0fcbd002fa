"""Purge of a queue: its waiting items are removed, step by step.

The counts of the partitions say which of them have anything to remove, and the last sequence of
each. A step is one command of a partition, of bounded work, so that the partition answers other
calls between two steps. A call makes at most PURGE_COMMANDS_MAX steps. Its token has the partitions
that are not done, each with the place where it continues and its last sequence. Sequences are never
used again, also when partitions are removed and added meanwhile: an old token removes nothing that
was produced after the first call.
"""

import msgspec

from querator.model.calls import PartitionCounts, PurgeCall, PurgeReply
from querator.model.commands import ItemsRemoved, Purge
from querator.model.ids import GroupId
from querator.model.limits import PURGE_COMMANDS_MAX
from querator.model.queues import Queue
from querator.service.item_changes import ItemChanges
from querator.service.reading import paging
from querator.service.reading.queries import Queries, all_results
from querator.service.routing.router import deadline_after

STEPS_MAX = 16
"""Partitions that take a step at a time."""


class _Rest(msgspec.Struct, frozen=True, array_like=True):
    """What is left to do in a partition."""

    partition: int
    from_seq: int
    upto_seq: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[_Rest]).decode


class Purging:
    """Every method raises QueratorError, and runs on the event loop."""

    def __init__(self, *, changes: ItemChanges, reads: Queries) -> None:
        self._changes = changes
        self._reads = reads
        self.commands_max = PURGE_COMMANDS_MAX
        """Commands of one call at most. Tests set it."""

    async def purge(self, call: PurgeCall) -> PurgeReply:
        """Removes items until all is done or the call has made its steps. After an error some may
        be removed; call again.
        """
        deadline = deadline_after(call.timeout_ms)
        queue = await self._changes.whole_queue(call.namespace, call.queue, deadline)
        scope = f"purge/{queue.id}/{call.keep_scheduled}"
        rest = _decode(paging.decode(scope, call.page_token)) if call.page_token else None
        counts = await self._counts(queue, deadline)
        each = counts.values()
        reply = PurgeReply(
            removed=0,
            leased=sum(one.leased for one in each),
            reserved=sum(one.reserved for one in each),
            moving=sum(one.moving for one in each),
            scheduled=sum(one.scheduled for one in each) if call.keep_scheduled else 0,
        )
        if call.dry_run:
            waiting = sum(_waiting(one, call) for one in each)
            return msgspec.structs.replace(reply, removed=waiting)
        if rest is None:
            rest = [
                _Rest(partition, 0, one.head_seq)
                for partition, one in counts.items()
                if _waiting(one, call)
            ]
        removed, rest = await self._remove(queue, rest, call, deadline)
        token = paging.encode(scope, _encode(rest)) if rest else ""
        return msgspec.structs.replace(reply, removed=removed, next_page_token=token)

    async def _counts(self, queue: Queue, deadline: float | None) -> dict[int, PartitionCounts]:
        """The counts of each partition that has not left the queue."""

        async def ask(group: GroupId) -> list[PartitionCounts]:
            none: list[PartitionCounts] = []
            asked = self._reads.stats([group], stale=False, deadline=deadline)
            return await self._changes.asked(queue, group, none, asked)

        found = await all_results([ask(group) for group in queue.groups])
        return {partition: one for partition, counts in enumerate(found) for one in counts}

    async def _remove(
        self, queue: Queue, rest: list[_Rest], call: PurgeCall, deadline: float | None
    ) -> tuple[int, list[_Rest]]:
        """Makes steps. Returns the number of removed items, and what is left to do."""

        async def step(one: _Rest) -> ItemsRemoved:
            group = queue.groups[one.partition]
            command = Purge(one.from_seq, one.upto_seq, scheduled=not call.keep_scheduled)
            proposed = self._changes.remove(group, command, deadline)
            return await self._changes.asked(queue, group, ItemsRemoved(0, 0), proposed)

        removed = commands = 0
        rest = [one for one in rest if one.partition < len(queue.groups)]
        while rest and commands < self.commands_max:
            steps = min(STEPS_MAX, self.commands_max - commands)
            now, later = rest[:steps], rest[steps:]
            results = await all_results([step(one) for one in now])
            commands += len(now)
            removed += sum(result.removed for result in results)
            unfinished = [
                _Rest(one.partition, result.next_seq, one.upto_seq)
                for one, result in zip(now, results, strict=True)
                if result.next_seq
            ]
            rest = unfinished + later
        return removed, rest


def _waiting(counts: PartitionCounts, call: PurgeCall) -> int:
    """The number of items that the call removes."""
    return counts.ready + counts.held + (0 if call.keep_scheduled else counts.scheduled)
