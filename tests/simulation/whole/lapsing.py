"""A lease that is granted through another node, and ends before that node hears of it: the link
breaks with the answer on its way, and comes back when the lease has lapsed.

The consumer that waits at that node gets the item in the same wait, under another lease. Before
that wait, a client asks the node for the leader of the queue until the node reports one: its disk
may still hang, so it may not have heard yet of a queue that was created meanwhile. It never answers
that there is no queue.
"""

import random
from typing import TYPE_CHECKING

from querator.model.calls import LeaseCall, LeaseReply
from querator.model.errors import QueratorError
from querator.model.limits import MIB
from querator.partition import queries
from tests.simulation.timeline import SECOND
from tests.simulation.whole.draining import Draining
from tests.simulation.whole.node import Lost, WholeNode
from tests.simulation.whole.programs import NAMESPACE, Producing

if TYPE_CHECKING:
    from tests.simulation.whole.world import WholeWorld

QUEUE = "l"
TIMES = 3
LEASE_MS = 1_000
BROKEN_US = 5 * SECOND // 2
"""Longer than the lease."""
WAIT_MS = 12_000
LOOK_US = 200
"""Less than an answer takes."""


class Asking(Draining):
    """Asks one node for the leader of the queue, until the node reports it."""

    async def act(self) -> None:
        ended = await self.call(
            "ask", lambda core: core.service.routing(NAMESPACE, self.queue), again=True
        )
        if ended.error is not None:
            self.unexpected("a question", ended)
        elif ended.gave_up:
            self._ground.found(f"{self.node} does not say who leads {self.queue}")


class Lapsing(Draining):
    """Actions of a run with this scenario, after the faults have ended."""

    def __init__(self, world: "WholeWorld", chance: random.Random) -> None:
        super().__init__(world, "lapsing", QUEUE, chance, pause_us=SECOND)
        self._world = world
        self._producing = Producing(
            world, "lapsing p", QUEUE, chance,
            pause_us=SECOND, item_bytes=10, delays=False, identified=True,
        )  # fmt: skip
        self._producing.counts = (1,)
        asked = random.Random(f"lapsing a {world.seed}")
        self._asking = Asking(world, "lapsing a", QUEUE, asked, pause_us=SECOND)

    def look(self) -> None:
        """Records what it finds."""
        world = self._world
        world.queue_names.append(QUEUE)
        if not world._done(world._create(QUEUE), within_us=30 * SECOND):
            world.found(f"queue {QUEUE} cannot be created")
            return
        for _ in range(TIMES):
            self._lose()
            if world.checks.violations:
                return

    def _lose(self) -> None:
        world = self._world
        queue = world.queue(QUEUE)
        assert queue is not None
        [group] = queue.groups
        world._until(lambda: world.leader(group) is not None, within_us=10 * SECOND)
        found = world.leader(group)
        if found is None:
            world.found(f"queue {QUEUE} has no leader")
            return
        leader = found[0]
        node = self._chance.choice([one for one in world.whole_nodes() if one is not leader])
        self.node = self._asking.node = node.name
        if not world._done(self._asking.act(), within_us=30 * SECOND):
            return
        waiting = world.client_loop.start(self._wait(node))
        world._run_for(SECOND // 2)
        producing = world.client_loop.start(self._producing.act())

        def is_granted() -> bool:
            with leader.view(group) as snapshot:
                return queries.stats(snapshot, group).leased > 0

        world._until(lambda: is_granted() or waiting.done(), within_us=SECOND, look_us=LOOK_US)
        ways = ((node.key, leader.key), (leader.key, node.key))
        world.links.cut(node.key, leader.key)
        for way in ways:
            world.links.block(*way)
        world._run_for(BROKEN_US)
        for way in ways:
            world.links.unblock(*way)
        both = (waiting, producing)
        ended = world._until(lambda: all(task.done() for task in both), within_us=20 * SECOND)
        if world.checks.violations:
            return
        if not ended:
            world.found(f"who waits at {node.name} for {QUEUE} is not answered")
        elif what := waiting.result():
            world.found(f"who waits at {node.name} for {QUEUE} {what}")

    async def _wait(self, node: WholeNode) -> str:
        """Returns the error in the answer; empty when an item came, which is completed."""
        call = LeaseCall(
            NAMESPACE, QUEUE, client_id=self.name, request_id="", max_items=5, max_bytes=MIB,
            lease_timeout_ms=LEASE_MS, wait_ms=WAIT_MS,
        )  # fmt: skip
        asked_us = self._world.timeline.now_us
        try:
            reply: LeaseReply = await self._stub.call(
                node, lambda core: core.service.lease(call), patience_s=WAIT_MS / 1000 + 2
            )
        except QueratorError as error:
            return f"is refused: {error}"
        except Lost:
            return "is not answered"
        for lease_id, held in self.takes(asked_us, reply.batches).items():
            await self.complete(lease_id, held)
        if reply.batches:
            return ""
        return "gets nothing: its lease has lapsed when the link was broken"
