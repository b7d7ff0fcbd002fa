"""How closing partitions go: by the leader of group 0.

Partitions behind the number that a queue is to have are closing from the change on: they take no
items and no moves, and are leased from until they are empty. They leave the map, and then their
data goes (`reconcile`), when

* no item is in them or pinned for a transaction, and no outcome of a lease is remembered, for which
  somebody may ask again;
* they wait for nobody;
* no partition of the namespace has a move on its way to them: those know then which have arrived.

They go from the last one on, for partitions are numbered without gaps. One that comes again under
the same number goes on where its predecessor's sequences ended.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from functools import partial

from querator import telemetry
from querator.model.errors import QueratorError
from querator.model.ids import PLACEMENT_GROUP, GroupId, QueueId
from querator.model.placement_map import PlacementMap
from querator.model.queues import Queue, QueueState
from querator.partition.facts import Closure, ClosureQuery
from querator.placement.commands import PartitionsEmpty
from querator.placement.telling import Telling

CLOSING_S = 1.0
"""Between two looks at closing partitions."""

_log = telemetry.logger(__name__)


class Closing:
    """Belongs to one event loop."""

    def __init__(self, telling: Telling) -> None:
        self._telling = telling

    async def run(
        self, placed: Callable[[], PlacementMap], pending: Callable[[], Collection[QueueId]]
    ) -> None:
        """Again and again, while `placed` is not empty, until it is cancelled."""
        while True:
            await asyncio.sleep(CLOSING_S)
            for queue in placed():
                if queue.closing and queue.state is QueueState.ACTIVE and not queue.is_changing:
                    try:
                        await self._let_go(placed(), pending(), queue)
                    except QueratorError as error:
                        _log.info("placement.closing", queue=queue.name, error=str(error))

    async def _let_go(
        self, placed: PlacementMap, pending: Collection[QueueId], queue: Queue
    ) -> None:
        open_ = queue.settings.partitions
        seen = await self._look_at(queue.groups[open_:])
        left = len(queue.groups)
        while left > open_:
            last = seen[left - 1 - open_]
            if last.routing != queue.routing or not last.is_empty:
                break
            left -= 1
        if left == len(queue.groups) or await self._are_needed(
            placed, pending, queue, frozenset(queue.groups[left:])
        ):
            return
        first_seqs = tuple(one.next_seq for one in seen[left - open_ :])
        command = PartitionsEmpty(queue.id, queue.routing, left, first_seqs)
        await self._telling.accepted(PLACEMENT_GROUP, command)
        _log.info("placement.closed", queue=queue.name, queue_id=queue.id, left=left)

    async def _are_needed(
        self,
        placed: PlacementMap,
        pending: Collection[QueueId],
        queue: Queue,
        groups: frozenset[GroupId],
    ) -> bool:
        """Whether a partition may still want to move something to one of the groups."""
        sources = [
            source
            for source in placed.queues(queue.namespace)
            if source.state is not QueueState.DELETING
        ]
        if any(
            source.settings.dead_queue == queue.name and source.id in pending for source in sources
        ):
            return True
        seen = await self._look_at([group for source in sources for group in source.groups])
        return any(not groups.isdisjoint(one.targets) for one in seen)

    async def _look_at(self, groups: Sequence[GroupId]) -> list[Closure]:
        return await self._telling.all(
            [partial(self._telling.ask, group, ClosureQuery(group)) for group in groups]
        )
