"""What goes wrong around whole nodes: faults of the raft room, and of what is above it."""

from collections.abc import Callable
from typing import Any

from querator.storage.memory_environment import MemoryEnvironment
from querator.storage.tables import ATTACHMENTS
from tests.simulation.faults import Faults
from tests.simulation.network import Network
from tests.simulation.node import SimulatedNode
from tests.simulation.whole.node import WholeNode

DAY_MS = 86_400_000


class TwoNetworks:
    """Connections of the raft room, and links: what breaks a wire breaks both."""

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
    damaged: SimulatedNode | None = None
    """The one node whose disk changes what was written, so that others have it whole."""
    jumped: tuple[SimulatedNode, int] | None = None
    """The one node whose clock is wrong by days, and by how many ms."""

    def heal(self) -> None:
        super().heal()
        self._jump_back()

    def _leave(self) -> None:
        """A process is stopped in order, and started again."""
        node = self._node()
        assert isinstance(node, WholeNode)
        node.leave()

    def _jump_clock(self) -> None:
        """The clock of one node jumps by days, and comes back."""
        if self.jumped is not None:
            self._jump_back()
            return
        node = self._node()
        difference_ms = self._chance.choice((-400, -1, 1, 30, 3_000)) * DAY_MS
        self.jumped = node, difference_ms
        node.clock.step(difference_ms)
        self._later(self._lasting(), self._jump_back)

    def _jump_back(self) -> None:
        if self.jumped is not None:
            node, difference_ms = self.jumped
            self.jumped = None
            node.clock.step(-difference_ms)

    def _damage(self) -> None:
        """Some bits of payloads on one disk turn round."""
        if len(self._grounds.all_nodes()) < 3:
            # Nobody else has it whole.
            return
        if self.damaged is None:
            self.damaged = self._node()
        environment = self.damaged.disk.environment
        assert isinstance(environment, MemoryEnvironment)
        rows = environment._rows
        payloads = [key for key in rows if key[:1] == ATTACHMENTS.letter and len(rows[key]) > 20]
        for key in self._chance.sample(payloads, min(len(payloads), 3)):
            row = bytearray(rows[key])
            row[self._chance.randrange(len(row))] ^= 1 << self._chance.randrange(8)
            rows[key] = bytes(row)
            self._timeline.tell(self.damaged.name, f"a bit of row {key.hex()} turns round")

    def _cut_links(self) -> None:
        """The link of two nodes breaks, or holds everything back, and the raft room goes on."""
        one, other = self._pair()
        if one == other:
            return
        if self._chance.random() < 0.5:
            self.links.cut(one, other)
            return
        self.links.block(one, other)
        self._later(self._lasting(8_000_000), lambda: self.links.unblock(one, other))
