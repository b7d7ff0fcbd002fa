"""What goes wrong around whole nodes: faults of the raft room, and of what is above it."""

from collections.abc import Callable
from typing import Any

from tests.simulation.faults import Faults
from tests.simulation.network import Network


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
