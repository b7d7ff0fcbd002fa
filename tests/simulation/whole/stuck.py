"""A partition that is unavailable for a while, beside others that are available.

Its replicas do not hear each other while their nodes do, so the partition has no leader. Other
components see the same when the replicas of a partition are lost. First produces wait for it; then
a change of the number of partitions of its queue is under way. Each time the other partitions of
the queue must take the items that they are sent.
"""

import asyncio
import random
from struct import pack
from typing import TYPE_CHECKING

from querator.model.calls import ProduceCall
from querator.model.errors import ErrorCode, QueratorError
from querator.model.limits import MIB, PRODUCE_BYTES_WAITING_MAX, ROUTING_CLOSED_MS_MAX
from querator.model.queues import Queue, QueueSettings
from querator.model.routing import partition_of_producer
from querator.partition.dedup_export import ClosureQuery, closure
from tests.simulation.clock import EPOCH_MS
from tests.simulation.timeline import MS, SECOND
from tests.simulation.whole.node import Lost, WholeNode
from tests.simulation.whole.programs import NAMESPACE, Calling, wire_item

if TYPE_CHECKING:
    from tests.simulation.whole.world import WholeWorld

QUEUE = "s"
PARTITIONS = 3
WAITING = PRODUCE_BYTES_WAITING_MAX // MIB + 6
"""Produces of 1 MiB that wait for the partition: more than a node takes."""
WAITING_MS = 6_000
LARGE = MIB - 8
"""Bytes of a payload with a wire item of 1 MiB."""
assert len(wire_item(bytes(LARGE))) == MIB
LOOK_US = MS
STANDS_STILL_S = ROUTING_CLOSED_MS_MAX / 1000 + 10
"""By then a change of the number of partitions has been undone, and calls continue."""


class Beside(Calling):
    """Actions of a run with this scenario, after the faults have ended."""

    def __init__(self, world: "WholeWorld", chance: random.Random) -> None:
        super().__init__(world, "beside", QUEUE, chance)
        self._world = world
        self._numbers = 0

    def look(self) -> None:
        """Records what it finds."""
        world = self._world
        world.queue_names.append(QUEUE)
        if not world._done(world._create(QUEUE), within_us=30 * SECOND):
            world.found(f"queue {QUEUE} cannot be created")
            return
        stuck = self._chance.randrange(PARTITIONS)
        self._stick(stuck)
        if not world._until(lambda: not self._is_led(stuck), within_us=10 * SECOND):
            world.found("a partition whose replicas do not hear each other has a leader")
            return
        waiting = [
            world.client_loop.start(
                self._wait_for(stuck, node, f"{self.name}.{node.name}.{number}")
            )
            for node in world.whole_nodes()
            for number in range(WAITING)
        ]
        world._run_for(SECOND)
        self._others_take(stuck, "while produces wait for another partition", within_s=3.0)
        if not world._until(lambda: all(task.done() for task in waiting), within_us=20 * SECOND):
            world.found("produces that wait for a partition are not answered after their deadline")
        self._free()
        self._change()

    def _change(self) -> None:
        """Changes the number of partitions, and takes one away in the middle of the change."""
        world = self._world
        world._until(lambda: all(map(self._is_led, range(PARTITIONS))), within_us=10 * SECOND)
        shares, routing = self._placed().routed_partitions, self._placed().routing
        resizing = world.client_loop.start(self._resize(self._chance.choice((2, 4))))
        if not world._until(
            lambda: any(self._is_closed(number, routing) for number in range(shares)),
            within_us=10 * SECOND, look_us=LOOK_US,
        ):  # fmt: skip
            world.found("a change of the number of partitions does not begin")
            return
        stuck = self._chance.randrange(shares)
        self._stick(stuck)
        self._others_take(
            stuck, "while a change of their number waits for another one", within_s=STANDS_STILL_S
        )
        self._free()
        world._until(resizing.done, within_us=20 * SECOND)
        resizing.cancel()

    # --- the partition -----------------------------------------------------------------------

    def _placed(self) -> Queue:
        queue = self._world.queue(QUEUE)
        assert queue is not None
        return queue

    def _is_led(self, partition: int) -> bool:
        return self._world.leader(self._placed().groups[partition]) is not None

    def _is_closed(self, partition: int, routing: int) -> bool:
        group = self._placed().groups[partition]
        found = self._world.leader(group)
        if found is None:
            return False
        with found[0].disk.snapshots() as snapshot:
            return closure(snapshot, ClosureQuery(group)).routing > routing

    def _stick(self, partition: int) -> None:
        world = self._world
        world.stuck = frozenset({self._placed().groups[partition]})
        world.timeline.tell("WORLD", f"partition {partition} of {QUEUE} is stuck: {world.stuck}")

    def _free(self) -> None:
        """What was not heard is lost: connections begin again."""
        world = self._world
        world.stuck = frozenset()
        names = [node.key for node in world.whole_nodes()]
        for one in names:
            for other in names:
                if one < other:
                    world.frames.cut(one, other)
        world.timeline.tell("WORLD", "nothing is stuck any more")

    # --- calls -------------------------------------------------------------------------------

    def _home(self, partition: int) -> bytes:
        """A new producer, whose items go to the partition."""
        while True:
            producer = EPOCH_MS.to_bytes(6, "big") + self._chance.randbytes(10)
            if partition == partition_of_producer(
                producer, 1, ordered=True, partitions=self._placed().routed_partitions
            ):
                return producer

    def _produce(self, partition: int, payload: bytes, timeout_ms: int) -> ProduceCall:
        item = wire_item(payload)
        return ProduceCall(
            NAMESPACE, QUEUE, item, pack("<I", len(item)),
            producer_id=self._home(partition), sequence=1, ordered=True, timeout_ms=timeout_ms,
        )  # fmt: skip

    async def _wait_for(self, partition: int, node: WholeNode, reference: str) -> None:
        """The item is not taken before the deadline, because the partition is away. If its outcome
        is unknown, it may be taken later, when the partition is there again.
        """
        call = self._produce(partition, reference.encode().ljust(LARGE), WAITING_MS)
        ledger = self._world.ledger
        try:
            await self._stub.call(node, lambda core: core.service.produce(call), patience_s=15)
        except Lost:
            ledger.produced([reference], known=False)
        except QueratorError as error:
            if error.code is ErrorCode.OUTCOME_UNKNOWN:
                ledger.produced([reference], known=False)
        else:
            ledger.produced([reference], known=True)

    def _others_take(self, stuck: int, when: str, *, within_s: float) -> None:
        world = self._world
        asked = [
            (partition, node.name, world.client_loop.start(self._take(partition, node, within_s)))
            for partition in range(self._placed().routed_partitions)
            if partition != stuck
            for node in world.whole_nodes()
        ]
        world._until(lambda: all(task.done() for _, _, task in asked), within_us=30 * SECOND)
        for partition, name, task in asked:
            if not task.done():
                task.cancel()
            elif task.result():
                world.found(
                    f"{when}, partition {partition} of {QUEUE} does not take an item through "
                    f"{name}: {task.result()}"
                )

    async def _take(self, partition: int, node: WholeNode, within_s: float) -> str:
        """Why the item was not taken in time; repeats the call as the SDK does."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + within_s
        self._numbers += 1
        reference = f"{self.name}.{self._numbers}"
        self._world.ledger.produced([reference], known=False)
        call = self._produce(partition, reference.encode(), 0)
        while True:
            left_s = until_s - loop.time()
            try:
                if left_s <= 0:
                    raise Lost(node.name)
                await self._stub.call(
                    node, lambda core: core.service.produce(call), patience_s=left_s
                )
            except QueratorError as error:
                if error.code is ErrorCode.OVERLOADED or until_s <= loop.time():
                    return f"{error!r}"
                await asyncio.sleep(0.1)
            except Lost:
                return f"no answer in {within_s} s"
            else:
                return ""

    async def _resize(self, partitions: int) -> None:
        settings = QueueSettings(partitions=partitions)
        await self.call(
            "resize",
            lambda core: core.admin.update_queue(NAMESPACE, QUEUE, settings, ("partitions",), 0),
            again=True,
        )
