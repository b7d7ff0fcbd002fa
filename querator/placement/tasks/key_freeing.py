"""How partitions learn that items of other partitions are done, and free their dedup keys.

When the number of partitions changes, an item stays where it is, and its dedup key may belong to
another partition from then on. Where keys last until their item is done, that partition remembers
the key and the item. A producer that comes with such a key has it asked at once
(`service.produce.distant_keys`). Keys that no producer uses again are freed here, so that they do
not stay for ever.

    gone     a partition has left the map, or has another group: its items are done, because a
             partition leaves when it is empty
    done     a partition reports that the item has no key any more. That stays true for ever
    unknown  a partition does not answer. It is asked again later

A check reads up to PAGES_AT_ONCE pages of a partition's keys, and the next one continues there.
"""

from collections.abc import Sequence

from querator import telemetry
from querator.model.commands import FreeKeys
from querator.model.errors import QueratorError
from querator.model.ids import GroupId
from querator.model.placement_map import PlacementMap
from querator.model.queues import Queue
from querator.partition.dedup_export import AwayKeysQuery, KeptKeysQuery
from querator.placement.tasks.partition_calls import PartitionCalls

PAGES_AT_ONCE = 10
"""Pages of one partition in one check, each of up to KEYS_FREED_MAX keys."""

_log = telemetry.logger(__name__)

Items = Sequence[tuple[int, int]]
"""Items, as (partition, sequence)."""


class KeyFreeing:
    """Belongs to one event loop."""

    def __init__(self, partition_calls: PartitionCalls) -> None:
        self._partition_calls = partition_calls
        self._after: dict[GroupId, tuple[int, int]] = {}
        """By group, the item after which the next check continues."""

    async def free(self, queue: Queue, group: GroupId) -> None:
        """Frees keys that the partition of `group` remembers for items that are done. Raises
        QueratorError.
        """
        after = self._after.pop(group, (0, 0))
        for _ in range(PAGES_AT_ONCE):
            page: Items = await self._partition_calls.ask(group, AwayKeysQuery(group, after))
            if not page:
                return
            after = page[-1]
            if done := await self._done(queue, page):
                await self._partition_calls.accepted(group, FreeKeys(tuple(done)))
        self._after[group] = after

    def forget_gone(self, placed: PlacementMap) -> None:
        self._after = {one: at for one, at in self._after.items() if placed.by_group(one)}

    async def _done(self, queue: Queue, items: Items) -> list[tuple[int, int]]:
        by_partition: dict[int, list[int]] = {}
        for partition, seq in items:
            by_partition.setdefault(partition, []).append(seq)
        done: list[tuple[int, int]] = []
        for partition, seqs in by_partition.items():
            kept: Sequence[int] = ()
            if partition < len(queue.groups):
                group = queue.groups[partition]
                try:
                    kept = await self._partition_calls.ask(group, KeptKeysQuery(group, tuple(seqs)))
                except QueratorError as error:
                    _log.info("placement.no_answer", group=group, error=str(error))
                    continue
            done += [(partition, seq) for seq in sorted(set(seqs).difference(kept))]
        return done
