"""Copies of a node's directory: an older image in its place, and two processes on the same data.

One case is left out, because no protocol can detect it: a copy whose successors were met only by
nodes that are down. So an image is put back only when every other node has stored that the original
went further. A second process starts only when the single node that it reaches has heard of the
first one.

    older    an image is made, and the node starts again. When the others have worked without one of
             them for a while, the node and the other one stop, and the image is started.
    twins    a node starts, and reaches one of the others; a second process on what it had before
             starts, and reaches only the other one. Then these two do not hear each other.
"""

import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from querator.model.nodes import NodeKey
from querator.model.starts import Kin, Starts, kin, next_starts
from querator.raft.starts import StartMemory
from tests.simulation.clock import NodeClock
from tests.simulation.disk import Disk
from tests.simulation.node import DOUBLE, owner
from tests.simulation.timeline import MS, SECOND
from tests.simulation.whole.node import WholeNode

if TYPE_CHECKING:
    from tests.simulation.whole.world import WholeWorld

Image = dict[bytes, bytes]


class Copies:
    """Copies of a run of three nodes. One node at a time has a copy. `happened` counts starts of
    copies.
    """

    def __init__(self, world: "WholeWorld", chance: random.Random) -> None:
        self.doubles: list[WholeNode] = []
        """Second processes, also those that have ended."""
        self.happened = 0
        self._world = world
        self._chance = chance
        self._made = False
        self._aside: tuple[WholeNode, Image] | None = None
        """The node with an older image in place, and the newer content of its disk."""
        self._apart: tuple[str, str] | None = None
        """A node that has a double, and the one that reaches only the double."""
        self._over = False

    @property
    def _busy(self) -> bool:
        return self._over or self._made or self._aside is not None or self._apart is not None

    def _others(self, node: WholeNode) -> list[WholeNode]:
        others = [other for other in self._world.whole_nodes() if other is not node]
        self._chance.shuffle(others)
        return others

    def _later(self, most_us: int, action: Callable[[], None]) -> None:
        def act() -> None:
            if not self._over:
                action()

        self._world.timeline.after(self._chance.randrange(most_us // 4, most_us), act)

    # --- older images ----------------------------------------------------------------------

    def older(self, node: WholeNode) -> None:
        if self._busy or len(self._world.whole_nodes()) != 3 or not node.up:
            return
        self._made = True
        image, starts = node.disk.image(), _memory(node).own
        node.crash()
        self._start(node)
        self._later(SECOND, partial(self._wait, node, image, starts))

    def _wait(self, node: WholeNode, image: Image, starts: Starts) -> None:
        """Waits until all others have met a later start of the node, or a later mark."""
        away, other = self._others(node)
        if not all(_is_older(starts, _memory(one).known(node.key)) for one in (away, other)):
            self._later(SECOND, partial(self._wait, node, image, starts))
            return
        away.crash(silent=self._chance.random() < 0.5)
        self._later(2 * SECOND, partial(self._put_back, node, other, away, image))

    def _put_back(self, node: WholeNode, other: WholeNode, away: WholeNode, image: Image) -> None:
        world = self._world
        self.happened += 1
        self._made = False
        world.timeline.note("older", node.name)
        world.timeline.tell(node.name, "STARTS FROM AN OLDER IMAGE")
        other.crash()
        node.crash()
        self._aside = node, node.disk.image()
        node.disk.put_back(image)
        world.checks.put_aside(node)
        self._start(node)
        self._start(away)
        self._later(8 * SECOND, partial(self._start, other))

    def _start(self, node: WholeNode) -> None:
        if not node.up and not node.gone:
            node.start()

    # --- two processes -------------------------------------------------------------------------

    def twins(self, node: WholeNode) -> None:
        world = self._world
        if self._busy or self.doubles or len(world.whole_nodes()) != 3 or not node.up:
            return
        with_first, with_second = self._others(node)
        node.crash()
        image = node.disk.image()
        self._apart = node.key, with_second.key
        self._start(node)
        second = partial(self._start_second, node, with_first, with_second, image)
        self._later(3 * SECOND, second)

    def _start_second(
        self, node: WholeNode, with_first: WholeNode, with_second: WholeNode, image: Image
    ) -> None:
        world = self._world
        own = _memory(node).own
        known = _memory(with_second).known(node.key)
        if not with_second.up or not known or known[-1].nonce != own[-1].nonce:
            # The other node could not distinguish it from the first process.
            self._reunite()
            return
        self.happened += 1
        world.timeline.note("twin", node.name)
        world.timeline.tell(node.name, "IS STARTED A SECOND TIME")
        clock = NodeClock(world.timeline, offset_ms=0, drift_ppm=0)
        disk = Disk(clock, random.Random(f"double {len(self.doubles)}"), None)
        disk.sync_us = world.profile.sync_us
        disk.put_back(image)
        disk.damages = node.disk.damages
        endpoint = f"{node.key}{DOUBLE}"
        double = world.make_process(node.key, clock, disk, endpoint)
        self.doubles.append(double)
        world.frames.doubles[node.key] = endpoint
        double.start()
        self._later(2 * SECOND, partial(self._part, with_first.key, with_second.key))

    def _part(self, a: str, b: str) -> None:
        for one, other in ((a, b), (b, a)):
            self._world.network.block(one, other)

        def end() -> None:
            for one, other in ((a, b), (b, a)):
                self._world.network.unblock(one, other)
            self._reunite()

        self._later(6 * SECOND, end)

    def _reunite(self) -> None:
        """All nodes reach the node, and none its double."""
        if self._apart is None:
            return
        self._apart = None
        for double in self.doubles:
            double.crash()
        world = self._world
        world.frames.doubles.clear()
        for node in world.whole_nodes():
            if node.listening:
                world.frames.came_up(node.endpoint)

    def reach(self, a: str, b: str) -> bool:
        """Whether the raft transports of two endpoints have a way to each other."""
        if DOUBLE not in a + b:
            return self._apart is None or {a, b} != set(self._apart)
        ends = {a, b}
        return self._apart is not None and ends == {self._apart[0] + DOUBLE, self._apart[1]}

    def process(self, endpoint: str) -> WholeNode:
        if endpoint.endswith(DOUBLE):
            return next(one for one in self.doubles if one.endpoint == endpoint)
        key = owner(endpoint)
        return next(node for node in self._world.whole_nodes() if node.key == key)

    # --- their ends ----------------------------------------------------------------------------

    def refused(self, node: WholeNode) -> None:
        """The operator brings back what the node had, or leaves the refused second process
        stopped.
        """
        if self._aside is not None and self._aside[0] is node:
            self._world.timeline.after(50 * MS, self._bring_back)
        elif node not in self.doubles:
            self._world.found(f"{node.name} was refused: {node.refused}")

    def _bring_back(self) -> None:
        if self._aside is None:
            return
        node, newest = self._aside
        self._aside = None
        node.crash()
        node.disk.put_back(newest)
        self._world.checks.brought_back(node)
        self._start(node)

    def end(self) -> None:
        self._over = True
        self._bring_back()
        self._reunite()


def _memory(node: WholeNode) -> StartMemory:
    """The starts that the node has on its disk: its own and those of others."""
    with node.disk.environment.snapshot() as snapshot:
        return StartMemory.load(snapshot, NodeKey(node.key))


def _is_older(image: Starts, known: Starts) -> bool:
    """Whether a start from the image is recognised as one."""
    if not (image and known):
        return False
    started = next_starts(image, boots=image[-1].boots + 1, nonce=-1)
    return kin(started, known[-1]) in (Kin.OLD, Kin.OTHER)
