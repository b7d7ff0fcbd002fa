"""Rates of the partitions that a node leads, from samples of their counters.

The counters are in the replicated state anyway, so that items cost nothing more. Every SAMPLE_S the
node reads those of the partitions that have applied entries since. A node that begins to lead a
partition begins its rates as well: those of the former leader are lost.
"""

import asyncio
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec

from querator.model.ids import PLACEMENT_GROUP, GroupId
from querator.model.placement_map import PlacementMap
from querator.model.rates import ItemRates, Meter, MeteredCounts
from querator.partition.rows import PartitionState, decode_state
from querator.storage import generations
from querator.storage.environment import Environment, ReadTransaction, StorageError
from querator.storage.tables import STATE

if TYPE_CHECKING:
    from querator.raft.clock import Clock
    from querator.raft.host import Host

SAMPLE_S: Final = 5.0
PARTITIONS_AT_ONCE: Final = 64
"""Partitions that are sampled before the event loop does other work."""
_UNREADABLE: Final = (StorageError, msgspec.MsgspecError)
"""Errors of reading a damaged partition. Whatever else reads it says so."""


class PartitionRates:
    """The rates of one node, on its event loop. Call `start` once, and `stop` before the storage is
    closed.
    """

    def __init__(
        self,
        host: "Host",
        environment: Environment,
        placed: Callable[[], PlacementMap],
        *,
        clock: "Clock",
    ) -> None:
        self._host = host
        self._environment = environment
        self._placed = placed
        self._clock = clock
        self._meters: dict[GroupId, Meter] = {}
        self._applied: dict[GroupId, int] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        # Owned: `stop` ends and awaits it.
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    def of(self, group: GroupId) -> tuple[ItemRates, ...]:
        """The rates of a partition; empty: this node does not know them."""
        meter = self._meters.get(group)
        return () if meter is None or not self._host.leads(group) else meter.rates

    async def _run(self) -> None:
        while True:
            await self.sample()
            await asyncio.sleep(SAMPLE_S)

    async def sample(self) -> None:
        """Reads the counters of all partitions that this node leads, once."""
        led = [
            group
            for queue in self._placed()
            for group in queue.groups
            if group != PLACEMENT_GROUP and self._host.leads(group)
        ]
        for group in self._meters.keys() - set(led):
            del self._meters[group], self._applied[group]
        groups = iter(led)
        while some := list(islice(groups, PARTITIONS_AT_ONCE)):
            with self._environment.snapshot() as txn:
                for group in some:
                    self._sample(txn, group)
            await asyncio.sleep(0)

    def _sample(self, txn: ReadTransaction, group: GroupId) -> None:
        status = self._host.status(group)
        if status is None:
            return
        now_s = self._clock.monotonic_s()
        meter = self._meters.get(group)
        if meter is not None and self._applied[group] == status.applied_index:
            meter.idle(now_s)
            return
        try:
            totals = _totals(txn, group)
        except _UNREADABLE:
            return
        self._applied[group] = status.applied_index
        if meter is None:
            self._meters[group] = Meter(totals, now_s)
        else:
            meter.sample(totals, now_s)


def _totals(txn: ReadTransaction, group: GroupId) -> MeteredCounts:
    raw = STATE.get(generations.view(txn, group), group)
    state = PartitionState() if raw is None else decode_state(raw)
    came = state.produced + state.moved_in
    return MeteredCounts(came, state.completed + state.acknowledged, came - state.items)
