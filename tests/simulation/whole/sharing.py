"""Consumers of one partition at three nodes, each of which holds two items at most: how many items
each one gets. Nothing breaks; frames of links between nodes take time, as on a busy machine.
"""

import asyncio
from collections import Counter
from struct import pack
from typing import Any

from querator.model.calls import CompleteCall, LeasedRanges, ProduceCall, SubscribeCall
from querator.node_core import NodeCore
from querator.service.lease.subscriptions import Subscription
from tests.simulation.network import Nature
from tests.simulation.timeline import MS, SECOND
from tests.simulation.whole.node import WholeNode
from tests.simulation.whole.profile import WholeProfile
from tests.simulation.whole.programs import NAMESPACE, seqs_of, wire_item
from tests.simulation.whole.world import WholeWorld

QUEUE = "q0"
AT_EACH_NODE = 5
HELD_MAX = 2
PRODUCED_AT_ONCE = 100
LED_WITHIN_US = 30 * SECOND
DONE_WITHIN_US = 120 * SECOND


class SharingWorld(WholeWorld):
    """`peers_us` and `links_us`: how long frames of the raft package and of links take; `work_us`:
    how long a consumer works on an item.
    """

    def __init__(self, *, peers_us: int, links_us: int, work_us: int, items: int) -> None:
        super().__init__(1, profile=_quiet(peers_us))
        self.links.nature = Nature(latency_us=links_us, jitter_us=0)
        self.got: dict[str, Counter[int]] = {}
        """Number of items of each consumer, by node."""
        self._work_s = work_us / SECOND
        self._items = items
        self._completed = 0

    @property
    def uneven(self) -> float:
        """Ratio of the most items of a consumer to the fewest."""
        counts = [count for consumers in self.got.values() for count in consumers.values()]
        return max(counts) / min(counts)

    def _under_load(self) -> None:
        if not self._until(self._is_led, within_us=LED_WITHIN_US):
            self.found("the partition has no leader")
            return
        for node in self.whole_nodes():
            self.got[node.name] = Counter(dict.fromkeys(range(AT_EACH_NODE), 0))
            for number in range(AT_EACH_NODE):
                self._start(_Consumer(self, node, number).run, node)
        self._start(self._produce, self._leader())
        if not self._until(lambda: self._completed == self._items, within_us=DONE_WITHIN_US):
            self.found(f"{self._completed} of {self._items} items were completed: {self.got}")

    def _come_to_rest(self) -> None:
        """Does nothing: there was no fault."""

    def _look_at_the_end(self) -> None:
        """All items were completed."""

    def _is_led(self) -> bool:
        queue = self.queue(QUEUE)
        return queue is not None and self.leader(queue.groups[0]) is not None

    def _leader(self) -> WholeNode:
        queue = self.queue(QUEUE)
        assert queue is not None
        found = self.leader(queue.groups[0])
        assert found is not None
        return found[0]

    def _start(self, work: Any, node: WholeNode) -> None:
        def ended(_: object, error: BaseException | None) -> None:
            if error is not None:
                self.found(f"at {node.name}: {error!r}")

        node.call(work, ended)

    async def _produce(self, core: NodeCore) -> None:
        for _ in range(0, self._items, PRODUCED_AT_ONCE):
            items = [wire_item(b"x")] * PRODUCED_AT_ONCE
            sizes = pack(f"<{PRODUCED_AT_ONCE}I", *map(len, items))
            await core.service.produce(ProduceCall(NAMESPACE, QUEUE, b"".join(items), sizes))

    async def work(self, node: str, number: int) -> None:
        self.got[node][number] += 1
        await asyncio.sleep(self._work_s)

    def completed(self) -> None:
        self._completed += 1


class _Consumer:
    """A consumer like the SDK's: it works on one item after the other, and grants credit for each
    at its end.
    """

    def __init__(self, world: SharingWorld, node: WholeNode, number: int) -> None:
        self._world = world
        self._node = node.name
        self._number = number

    async def run(self, core: NodeCore) -> None:
        call = SubscribeCall(NAMESPACE, QUEUE, f"{self._node} {self._number}", 0, 0)
        stream = await core.service.subscribe(call)
        stream.grant(HELD_MAX, 0)
        held: asyncio.Queue[LeasedRanges] = asyncio.Queue()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._receive(stream, held))
            while True:
                item = await held.get()
                await self._world.work(self._node, self._number)
                tasks.create_task(self._complete(stream, item))
                stream.grant(1, 0)

    async def _receive(self, stream: Subscription, held: "asyncio.Queue[LeasedRanges]") -> None:
        while True:
            for batch in (await stream.next()).batches:
                for seq in seqs_of(batch.loaded):
                    held.put_nowait(LeasedRanges(batch.lease_id, ((seq, 1),)))

    async def _complete(self, stream: Subscription, item: LeasedRanges) -> None:
        await stream.complete(CompleteCall("", "", (item,)))
        self._world.completed()


def _quiet(latency_us: int) -> WholeProfile:
    return WholeProfile(
        nodes=3,
        queues=1,
        partitions=1,
        programs=0,
        pause_us=SECOND,
        item_bytes=10,
        delays=False,
        faulty_us=0,
        fault_every_us=SECOND,
        faults=(),
        nature=Nature(latency_us=latency_us, jitter_us=0),
        sync_us=1 * MS,
        offset_ms=0,
        drift_ppm=0,
        log_bytes_kept=1 << 26,
        loss=0.0,
    )
