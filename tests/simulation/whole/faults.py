"""Faults around whole nodes: those of the raft package, and those of what is above it."""

from collections.abc import Callable
from typing import Any

from querator.storage.memory_environment import MemoryEnvironment
from querator.storage.tables import ATTACHMENTS
from tests.simulation.faults import Faults
from tests.simulation.network import Network
from tests.simulation.node import SimulatedNode
from tests.simulation.timeline import MS, SECOND
from tests.simulation.whole.copies import Copies
from tests.simulation.whole.node import WholeNode
from tests.simulation.whole.profile import WholeProfile

DAY_MS = 86_400_000
LOOK_US = 5 * MS


class TwoNetworks:
    """Connections of the raft package, and links: a broken wire breaks both."""

    def __init__(self, *networks: Network[Any]) -> None:
        self._networks = networks

    def __getattr__(self, name: str) -> Callable[..., None]:
        assert name in ("cut", "block", "unblock", "slow", "heal")

        def both(*args: Any, **more: Any) -> None:
            for network in self._networks:
                getattr(network, name)(*args, **more)

        return both


class WholeFaults(Faults):
    """`links` is the network of links."""

    links: Network[Any]
    copies: Copies
    damaged: SimulatedNode | None = None
    """The one node whose disk changes what was written. The other nodes have the data whole."""
    _waits_to_lose = False
    jumped: tuple[SimulatedNode, int] | None = None
    """The one node whose clock is wrong by days, and by how many ms."""

    def heal(self) -> None:
        super().heal()
        for node in self._grounds.all_nodes():
            assert isinstance(node, WholeNode)
            node.loop_goes_on()
        self._jump_back()
        profile = self._grounds.profile
        assert isinstance(profile, WholeProfile)
        if profile.clocks_mended:
            for node in self._grounds.all_nodes():
                node.clock.set_right()

    def _leave(self) -> None:
        """Stops a process in order, and starts it again."""
        node = self._node()
        assert isinstance(node, WholeNode)
        node.leave()

    def _hung_disk(self) -> None:
        """One sync takes seconds: the raft thread hangs, and the event loop continues."""
        self._node().disk.hangs_us = self._chance.randrange(500 * MS, 6 * SECOND)

    def _hung_loop(self) -> None:
        """The event loop of a node, often of a leader, stands still; its raft thread continues."""
        node = self._node()
        assert isinstance(node, WholeNode)
        if node.listening:
            node.loop.pause()
            self._later(self._lasting(), node.loop_goes_on)

    def _lost_disk(self) -> None:
        """A disk is lost as soon as everything is whole."""
        if self._grounds.may_lose_a_disk():
            self._grounds.lose_disk(self._node())
        elif not self._waits_to_lose:
            self._waits_to_lose = True
            self._later(300 * MS, self._look_to_lose)

    def _look_to_lose(self) -> None:
        self._waits_to_lose = False
        self._lost_disk()

    def _away_at_change(self) -> None:
        """A node goes away as soon as a queue gets another number of partitions."""
        self._look_for_change(self._timeline.now_us + 4 * SECOND)

    def _look_for_change(self, until_us: int) -> None:
        world = self._grounds
        if any(queue.is_changing for queue in world.newest_map()):  # type: ignore[attr-defined]
            self._away()
        elif self._timeline.now_us < until_us:
            self._later(LOOK_US, lambda: self._look_for_change(until_us))

    def _jump_clock(self) -> None:
        """The clock of one node jumps by days, and comes back. A single node believes a clock that
        is wrong by a day, and may forget what a producer repeats. That is correct.
        """
        if self.jumped is not None:
            self._jump_back()
            return
        node = self._node()
        alone = self._grounds.profile.nodes == 1
        days = (-400, 30, 3_000) if alone else (-400, -1, 1, 30, 3_000)
        difference_ms = self._chance.choice(days) * DAY_MS
        self.jumped = node, difference_ms
        node.clock.step(difference_ms)
        self._later(self._lasting(), self._jump_back)

    def _jump_back(self) -> None:
        if self.jumped is not None:
            node, difference_ms = self.jumped
            self.jumped = None
            node.clock.step(-difference_ms)

    def _damage(self) -> None:
        """Some bits of payloads on one disk flip."""
        if len(self._grounds.all_nodes()) < 3:
            # No other node has the data whole.
            return
        if self.damaged is None:
            self.damaged = self._node()
            self.damaged.disk.damages = True
        environment = self.damaged.disk.environment
        assert isinstance(environment, MemoryEnvironment)
        rows = environment._rows
        payloads = [key for key in rows if key[:1] == ATTACHMENTS.letter and len(rows[key]) > 20]
        for key in self._chance.sample(payloads, min(len(payloads), 3)):
            row = bytearray(rows[key])
            row[self._chance.randrange(len(row))] ^= 1 << self._chance.randrange(8)
            rows[key] = bytes(row)
            self._timeline.tell(self.damaged.name, f"a bit of row {key.hex()} turns round")

    def _old_copy(self) -> None:
        """A node's directory is an older image of itself."""
        node = self._node()
        assert isinstance(node, WholeNode)
        self.copies.older(node)

    def _twins(self) -> None:
        """Two processes run on the same directory."""
        node = self._node()
        assert isinstance(node, WholeNode)
        self.copies.twins(node)

    def _cut_links(self) -> None:
        """The link of two nodes breaks, or holds everything back, and the raft package
        continues.
        """
        one, other = self._pair()
        if one == other:
            return
        if self._chance.random() < 0.5:
            self.links.cut(one, other)
            return
        self.links.block(one, other)
        self._later(self._lasting(8_000_000), lambda: self.links.unblock(one, other))
