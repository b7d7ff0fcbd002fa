"""The services of a service cluster behind real servers, with real links between them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, cast

from querator.model.ids import PLACEMENT_GROUP, GroupId
from querator.model.placement_map import PlacedNode, PlacementMap
from querator.server.grpc_server import GrpcServer
from querator.server.link.forwarding import Forwarding
from tests.unit.service.service_cluster import ServiceCluster
from tests.unit.service.service_node import service_node

TOKEN = b"of the cluster"


class LinkedCluster(ServiceCluster):
    """A cluster whose nodes communicate over gRPC. `addresses` has the address of each node."""

    def __init__(self, base: Any) -> None:
        super().__init__(base)
        self.links: dict[str, Forwarding] = {}
        self.servers: dict[str, GrpcServer] = {}
        self.addresses: dict[str, str] = {}
        self.epoch = 0

    async def serve(self, name: str, *, token: bytes = TOKEN) -> None:
        link = self.links[name] = Forwarding(name, token=token)
        service = self.add(name, link)
        server = self.servers[name] = GrpcServer(
            service, cast(Any, None), listen="127.0.0.1:0", forwarding=link
        )
        self.addresses[name] = await server.start()

    async def serve_again(self, name: str, listen: str = "127.0.0.1:0") -> None:
        """Starts a server for a service that has lost its former one."""
        server = self.servers[name] = GrpcServer(
            self.members[name], cast(Any, None), listen=listen, forwarding=self.links[name]
        )
        self.addresses[name] = await server.start()

    def tell(self, *names: str, cluster_id: str = "c") -> None:
        """Gives the nodes a map with the addresses of all nodes."""
        self.epoch += 1
        nodes = [PlacedNode(name, "1", "", address) for name, address in self.addresses.items()]
        placed = PlacementMap(self.epoch, cluster_id=cluster_id, nodes=nodes)
        for name in names or self.links:
            self.links[name].on_map(placed)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Polls, because gRPC has no event for links that open or break."""
        while not condition():  # noqa: ASYNC110 - gRPC has no event for it
            await asyncio.sleep(0.005)

    async def until_open(self) -> None:
        names = set(self.links)
        await self.until(
            lambda: all(link.open() == names - {name} for name, link in self.links.items())
        )

    async def stop(self, name: str, grace_s: float = 0.0) -> None:
        server = self.servers.pop(name, None)
        if server is not None:
            await server.stop(grace_s)


@asynccontextmanager
async def linked_cluster(*names: str, **settings: Any) -> AsyncIterator[LinkedCluster]:
    """Nodes of these names with a queue `q`, whose partitions they lead in turn."""
    async with service_node() as base, AsyncExitStack() as stack:
        cluster = LinkedCluster(base)
        told = base.on_effects

        def on_effects(group: GroupId, effects: Any) -> None:
            told(group, effects)
            if group != PLACEMENT_GROUP:
                cluster.on_effects(group, effects)

        base.on_effects = on_effects  # type: ignore[method-assign]
        for name in names:
            await cluster.serve(name)
            stack.push_async_callback(cluster.members[name].stop)
            stack.push_async_callback(cluster.stop, name)
            stack.push_async_callback(cluster.links[name].close)
        queue = await base.create(**settings)
        for number, group in enumerate(queue.groups):
            cluster.lead(group, names[number % len(names)])
        cluster.tell()
        yield cluster
