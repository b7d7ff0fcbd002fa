"""Three real nodes whose network fails: between any two of them, and before each one's clients,
there is a fault proxy.

    clients ──► clients[b] ──► node b ──► peers[b, c] ──► node c's peer port

A node knows the others by the addresses of its own proxies to them, and publishes its client proxy
as its address. So the links on which nodes forward commands to each other pass through that proxy
too, and cannot be distinguished from clients. The nodes decide which of two connects to the other.
A fault between two nodes is therefore applied to the proxies of both directions of connecting.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from itertools import permutations
from pathlib import Path
from typing import Any

from querator.cli.demo.local_nodes import free_ports
from tests.clients.fault_proxy import FaultProxy, Way
from tests.integration.process_cluster import ClusterProcess, ProcessCluster


class FaultyCluster(ProcessCluster):
    """Nodes a, b, c, …, none of them started; `start` starts them all."""

    def __init__(
        self,
        home: Path,
        names: str,
        clients: dict[str, FaultProxy],
        peers: dict[tuple[str, str], FaultProxy],
        ports: dict[str, tuple[int, int]],
        *more: str,
    ) -> None:
        """`ports`: (for clients, for peers) by name. `peers` are keyed by (connecting node, other
        node).
        """
        self.home = home
        self.names = names
        self.clients = clients
        self.links = peers
        self.token = home / "token"
        self.token.write_text("the secret of this test\n")
        self.by_name = {}
        for name in names:
            known = [f"{other}={self._known_at(name, other, ports[other][1])}" for other in names]
            options = [
                *("--peers", ",".join(known)),
                *("--listen-peers", f"127.0.0.1:{ports[name][1]}"),
                *("--advertise-client", clients[name].address),
                *("--cluster-token-file", str(self.token)),
                *more,
            ]
            self.by_name[name] = ClusterProcess(
                name, home, client_port=ports[name][0], options=options
            )

    def _known_at(self, name: str, other: str, peer_port: int) -> str:
        if name == other:
            return f"127.0.0.1:{peer_port}"
        return self.links[name, other].address

    @property
    def addresses(self) -> str:
        """Client addresses of all nodes."""
        return ",".join(proxy.address for proxy in self.clients.values())

    # --- the network between nodes ---------------------------------------------------------

    def ways(self, sender: str, receiver: str) -> tuple[Way, Way]:
        """All ways that carry bytes from one node to another."""
        return self.links[sender, receiver].forth, self.links[receiver, sender].back

    def between(self, one: str, other: str) -> tuple[Way, ...]:
        return *self.ways(one, other), *self.ways(other, one)

    def around(self, name: str) -> tuple[Way, ...]:
        """All ways that carry bytes between a node and the other nodes."""
        return tuple(
            way for other in self.names if other != name for way in self.between(name, other)
        )

    def reset(self, one: str, other: str) -> None:
        """Cuts their connections; they may connect again at once."""
        self.links[one, other].cut()
        self.links[other, one].cut()

    def proxies(self) -> Iterable[FaultProxy]:
        return [*self.clients.values(), *self.links.values()]

    def heal(self) -> None:
        """Ends all faults of the network."""
        for proxy in self.proxies():
            proxy.heal()

    # --- all nodes ---------------------------------------------------------------------------

    def running(self) -> list[str]:
        return [name for name in self.names if self[name].running]

    async def watch(self, asked: str = "a") -> AsyncGenerator[dict[str, Any], None]:
        """Continues when the node does not answer for a while."""
        while True:
            async with aclosing(super().watch(asked)) as views:
                async for view in views:
                    yield view


@asynccontextmanager
async def faulty_cluster(
    home: Path, names: str = "abc", *more: str
) -> AsyncIterator[FaultyCluster]:
    """Its processes have ended when the block is left."""
    held = free_ports(2 * len(names))
    ports = {name: (held[2 * n], held[2 * n + 1]) for n, name in enumerate(names)}
    async with AsyncExitStack() as stack:
        clients = {
            name: await stack.enter_async_context(FaultProxy.to(f"127.0.0.1:{ports[name][0]}"))
            for name in names
        }
        peers = {
            (one, other): await stack.enter_async_context(
                FaultProxy.to(f"127.0.0.1:{ports[other][1]}")
            )
            for one, other in permutations(names, 2)
        }
        cluster = FaultyCluster(home, names, clients, peers, ports, *more)
        try:
            yield cluster
        finally:
            for name in cluster.running():
                await cluster[name].kill()
