"""Consumers that take all items after the faults, each at one node."""

import asyncio

from tests.simulation.whole.node import WholeNode
from tests.simulation.whole.programs import Consuming, Producing


class Draining(Consuming):
    """Completes everything that it gets, and always waits, at one node. It pauses only when it gets
    nothing: of a group with a limit, each lease may have one item.
    """

    completes_all = True
    waits_ms = (2_000,)
    node = ""

    async def act(self) -> None:
        while not self.stopped:
            leases = await self.lease(self._chance.choice(self.most))
            for lease_id, held in leases.items():
                await self.use(lease_id, held)
            if not leases:
                return

    def _choose(self) -> WholeNode:
        [node] = [node for node in self._ground.whole_nodes() if node.name == self.node]
        return node


class Probing(Draining):
    """Waits first. Then an item is produced, which must come before the wait is over."""

    waits_ms = (5_000,)
    came = False

    async def probe(self, producing: Producing) -> None:
        """Returns when the item has come, or its wait is over."""
        waiting = asyncio.get_running_loop().create_task(self.lease(1))
        await asyncio.sleep(0.3)
        await producing.act()
        for lease_id, held in (await waiting).items():
            self.came = True
            await self.complete(lease_id, held)
