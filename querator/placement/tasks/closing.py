"""How closing partitions leave the map, by the leader of group 0.

Partitions from a queue's new number on are closing as soon as the change begins. They accept no
items and no moves, and are leased from until they are empty. They leave the map, and then their
data is deleted (`reconcile`), when

* they hold no item, no pin of a transaction, and no remembered outcome of a lease about which a
  client may ask again;
* they wait for no other partition;
* no partition of the namespace has a move on its way to them, because only then do all sources know
  which moves have arrived.

A closing partition accepts no moves, and knows the partitions from which it received some. Of the
partitions that do not answer, only these are waited for: a move from any other has not arrived, and
goes elsewhere.

Closing partitions are checked once in CLOSING_S. The pause doubles up to CLOSING_S_MAX while their
answers stay the same. The other partitions of the namespace are asked only about empty ones.

They leave from the last one on, because partitions are numbered without gaps. If a partition with
the same number is created later, its sequences continue after those of its predecessor.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from functools import partial

from querator import telemetry
from querator.model.errors import QueratorError
from querator.model.ids import PLACEMENT_GROUP, GroupId, QueueId
from querator.model.placement_map import PlacementMap
from querator.model.queues import Queue, QueueState
from querator.partition.dedup_export import Closure
from querator.placement.map.commands import PartitionsEmpty
from querator.placement.tasks.partition_calls import PartitionCalls

Seen = list[Closure | None]
"""The answers of partitions; None: no answer."""

CLOSING_S = 1.0
CLOSING_S_MAX = 30.0
"""Pause between two checks of closing partitions."""

_log = telemetry.logger(__name__)


class _Look:
    """The last check of a queue's closing partitions."""

    __slots__ = ("at_s", "pause_s", "queue", "seen")

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.seen: Seen = []
        self.pause_s = 0.0
        self.at_s = 0.0
        """Time of the next check, by the loop's clock."""

    def is_for(self, queue: Queue) -> bool:
        return self.queue == queue

    def saw(self, seen: Seen, now_s: float) -> None:
        again = seen == self.seen
        self.pause_s = min(2 * self.pause_s, CLOSING_S_MAX) if again else CLOSING_S
        self.at_s = now_s + self.pause_s
        self.seen = seen


class PartitionClosing:
    """Belongs to one event loop."""

    def __init__(self, partition_calls: PartitionCalls) -> None:
        self._partition_calls = partition_calls
        self._looks: dict[QueueId, _Look] = {}

    async def run(
        self, placed: Callable[[], PlacementMap], pending: Callable[[], Collection[QueueId]]
    ) -> None:
        """Checks closing partitions periodically while `placed` is not empty, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(CLOSING_S)
            closing = [queue for queue in placed() if _is_closing(queue)]
            looks = {queue.id: self._looks.get(queue.id) for queue in closing}
            self._looks = {
                queue.id: look if look is not None and look.is_for(queue) else _Look(queue)
                for queue in closing
                for look in (looks[queue.id],)
            }
            for look in self._looks.values():
                if look.at_s > loop.time():
                    continue
                try:
                    look.saw(
                        await self._remove_drained(placed(), pending(), look.queue), loop.time()
                    )
                except QueratorError as error:
                    _log.info("placement.closing_failed", queue=look.queue.name, error=str(error))

    async def _remove_drained(
        self, placed: PlacementMap, pending: Collection[QueueId], queue: Queue
    ) -> Seen:
        """Returns the answers of the closing partitions; removes those from the map that are not
        needed.
        """
        open_ = queue.settings.partitions
        seen: Seen = await self._look_at(queue.groups[open_:])
        going: list[Closure] = []
        for one in reversed(seen):
            if one is None or one.routing != queue.routing or not one.is_empty:
                break
            going.insert(0, one)
        if not going:
            return seen
        left = len(queue.groups) - len(going)
        groups = frozenset(queue.groups[left:])
        sources = frozenset(source for one in going for source in one.sources)
        if await self._are_needed(placed, pending, queue, groups, sources):
            return seen
        first_seqs = tuple(one.next_seq for one in going)
        command = PartitionsEmpty(queue.id, queue.routing, left, first_seqs)
        await self._partition_calls.accepted(PLACEMENT_GROUP, command)
        _log.info(
            "placement.partitions_closed", queue=queue.name, queue_id=queue.id, remaining=left
        )
        return seen

    async def _are_needed(
        self,
        placed: PlacementMap,
        pending: Collection[QueueId],
        queue: Queue,
        groups: frozenset[GroupId],
        sources: frozenset[int],
    ) -> bool:
        """Whether another partition may still move something to one of the groups, which have
        received moves from `sources`.
        """
        others = [
            other
            for other in placed.queues(queue.namespace)
            if other.state is not QueueState.DELETING
        ]
        if any(other.settings.dead_queue == queue.name and other.id in pending for other in others):
            return True
        asked = [group for other in others for group in other.groups if group not in groups]
        seen = await self._look_at(asked)
        return any(
            group in sources if one is None else not groups.isdisjoint(one.targets)
            for group, one in zip(asked, seen, strict=True)
        )

    async def _look_at(self, groups: Sequence[GroupId]) -> Seen:
        return await self._partition_calls.all(
            [partial(self._partition_calls.closure, group) for group in groups]
        )


def _is_closing(queue: Queue) -> bool:
    return queue.closing > 0 and queue.state is QueueState.ACTIVE and not queue.is_changing
