"""Faults: processes that die, stop and lose their data, and a network that fails.

Each fault begins, lasts, and is undone: after it the nodes run, and the network is whole. The seed
decides which faults come when, and to which node. The state in which they find the nodes varies.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from tests.checkers.history import Recorder
from tests.clients.fault_proxy import Way
from tests.integration.faulty_cluster import FaultyCluster

LONGEST_S = 8.0
"""Longest duration of a fault, without starts of nodes and the rebuilding of one."""


class Faults:
    """`run` continues until it is cancelled or `gone` is set."""

    def __init__(self, cluster: FaultyCluster, recorder: Recorder, seed: int) -> None:
        self.cluster = cluster
        self.recorder = recorder
        self.chance = random.Random(seed)
        self.mortal = cluster.names
        """Nodes whose process may end."""
        self.done: Counter[str] = Counter()
        self.spans: list[tuple[float, float]] = []
        """Begin and end of each time in which something was wrong."""
        self.kinds: list[tuple[float, Callable[[], Awaitable[None]]]] = [
            (3, self.kill_one),
            (1, self.kill_all),
            (2, self.stop_one),
            (3, self.freeze_one),
            (3, self.cut_off),
            (3, self.one_way),
            (2, self.no_link),
            (2, self.slow_links),
            (2, self.reset_links),
            (2, self.no_clients),
            (1, self.lose_data),
        ]

    async def run(self, until_s: float) -> None:
        """Runs one fault after the other, sometimes two at a time, until the loop's clock is
        `until_s`.
        """
        loop = asyncio.get_running_loop()
        while loop.time() < until_s:
            await asyncio.sleep(self.chance.uniform(0.5, 3))
            if loop.time() >= until_s:
                return
            weights, kinds = zip(*self.kinds, strict=True)
            (kind,) = self.chance.choices(kinds, weights)
            with self._noted(kind.__name__):
                await kind()

    @contextmanager
    def _noted(self, name: str) -> Iterator[None]:
        began_s = self.recorder.clock()
        self.done[name] += 1
        self.recorder.note(f"{name} begins")
        try:
            yield
        finally:
            self.recorder.note(f"{name} is over")
            self.spans.append((began_s, self.recorder.clock()))

    def one(self, names: str = "") -> str:
        """Any node, or one of these."""
        name = self.chance.choice(names or self.cluster.names)
        self.recorder.note(f"node {name}")
        return name

    async def last(self) -> None:
        await asyncio.sleep(self.chance.uniform(0.5, LONGEST_S))

    # --- processes ---------------------------------------------------------------------------

    async def kill_one(self) -> None:
        node = self.cluster[self.one(self.mortal)]
        await node.kill()
        await self.last()
        await node.start()

    async def kill_all(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for name in self.cluster.names:
                tasks.create_task(self.cluster[name].kill())
        await asyncio.sleep(self.chance.uniform(0, 1))
        await self.cluster.start()

    async def stop_one(self) -> None:
        """Stops a node in order, as for an upgrade."""
        node = self.cluster[self.one(self.mortal)]
        code = await node.stop()
        assert code == 0, f"node {node.name} ended with {code}:\n{node.said()[-4000:]}"
        await asyncio.sleep(self.chance.uniform(0, 2))
        await node.start()

    async def freeze_one(self) -> None:
        node = self.cluster[self.one()]
        node.freeze()
        await self.last()
        node.thaw()

    async def lose_data(self) -> None:
        """A node loses its disk; an operator has the node replaced."""
        name = self.one(self.mortal)
        node = self.cluster[name]
        asked = next(other for other in self.cluster.names if other != name)
        await self.cluster.until_well(asked)
        await node.kill()
        node.lose()
        await node.launch()
        await node.waiting(f"querator node replace {name}")
        await self.cluster.querator("node", "replace", name, "--yes", asked=asked)
        await node.ready()
        await self.cluster.until_well(asked)

    # --- the network -------------------------------------------------------------------------

    async def _blocked(self, *ways: Way) -> None:
        for way in ways:
            way.block()
        await self.last()
        for way in ways:
            way.unblock()

    async def cut_off(self) -> None:
        """A node neither hears other nodes nor is heard; clients still reach it, or do not."""
        name = self.one()
        proxy = self.cluster.clients[name]
        clients = (proxy.forth, proxy.back) if self.chance.random() < 0.5 else ()
        await self._blocked(*self.cluster.around(name), *clients)

    async def one_way(self) -> None:
        """A node hears the others and is not heard, or the reverse; all other nodes, or one of
        them.
        """
        name = self.one()
        others = [other for other in self.cluster.names if other != name]
        if self.chance.random() < 0.5:
            others = others[:1]
        ways: list[Way] = []
        deaf = self.chance.random() < 0.5
        for other in others:
            ways += self.cluster.ways(*((other, name) if deaf else (name, other)))
        await self._blocked(*ways)

    async def no_link(self) -> None:
        one, other = self.chance.sample(self.cluster.names, 2)
        await self._blocked(*self.cluster.between(one, other))

    async def slow_links(self) -> None:
        ways = self.cluster.around(self.one())
        for way in ways:
            way.delay_s = self.chance.choice([0.02, 0.1, 0.3])
            way.bytes_per_s = self.chance.choice([0, 100_000, 1_000_000])
        await self.last()
        for way in ways:
            way.heal()

    async def reset_links(self) -> None:
        for _ in range(self.chance.randint(1, 10)):
            one, other = self.chance.sample(self.cluster.names, 2)
            self.cluster.reset(one, other)
            await asyncio.sleep(self.chance.uniform(0, 0.5))

    async def no_clients(self) -> None:
        """Connections to a node break, answers are swallowed, or it cannot be reached at all."""
        proxy = self.cluster.clients[self.one()]
        style = self.chance.random()
        if style < 0.3:
            for _ in range(self.chance.randint(1, 10)):
                proxy.cut_after(self.chance.randint(1, 20_000))
                await asyncio.sleep(self.chance.uniform(0, 0.5))
            return
        ways = (proxy.back,) if style < 0.6 else (proxy.forth, proxy.back)
        await self._blocked(*ways)
        proxy.cut()
