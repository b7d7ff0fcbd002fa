"""A `service.routing.forwarder.Forwarder`: one link to each other node of the map."""

import asyncio
from typing import Any

from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import GroupId, QueueId
from querator.model.placement_map import PlacementMap
from querator.raft.refusals import RefusalLog
from querator.server.link.grpc_wire import grpc_connect
from querator.server.link.link_handshake import link_key
from querator.server.link.link_wire import Connect
from querator.server.link.node_frames import LINK_VERSION, LinkHello
from querator.server.link.node_link import NodeLink
from querator.service.routing.forwarder import ForwarderEvents, Query


class Forwarding:
    """Links of the node `name`. On the event loop; the owner passes each map and calls `close`."""

    def __init__(self, name: str, *, token: bytes, connect: Connect | None = None) -> None:
        """`connect` opens connections; None: by gRPC, without TLS."""
        self.name = name
        self.key = link_key(token)
        self._connect = connect or grpc_connect(None)
        self.refusals = RefusalLog()
        self._events: ForwarderEvents | None = None
        self._cluster_id = ""
        self._links: dict[str, NodeLink] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = False

    def watch(self, events: ForwarderEvents) -> None:
        assert self._events is None
        self._events = events

    def hello(self, to: str) -> LinkHello:
        """This node's description of itself for the node `to`."""
        return LinkHello(LINK_VERSION, self._cluster_id, self.name, to)

    def on_map(self, placed: PlacementMap) -> None:
        """Opens and ends links, so that there is one to each other node at its address."""
        self._cluster_id = placed.cluster_id
        wanted = {
            node.name: node.client_address
            for node in placed.nodes
            if node.name != self.name and node.client_address
        }
        for name, link in list(self._links.items()):
            if wanted.get(name) != link.address:
                del self._links[name]
                self._end(link)
        if self._closed:
            return
        for name, address in wanted.items():
            if name not in self._links:
                self._links[name] = NodeLink(
                    name,
                    address,
                    key=self.key,
                    connect=self._connect,
                    own=self.hello,
                    refusals=self.refusals,
                    on_reach=self._reach,
                    on_offer=self._offer,
                )
                self._reach(name)

    def _end(self, link: NodeLink) -> None:
        # Owned: `close` awaits it.
        task = asyncio.get_running_loop().create_task(link.close())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        self._closed = True
        links, self._links = self._links, {}
        for link in links.values():
            self._end(link)
        await asyncio.gather(*self._ending)

    def _reach(self, node: str) -> None:
        if self._events is not None:
            self._events.on_reach(node)

    def _offer(self, node: str, group: GroupId, items: int) -> None:
        if self._events is not None:
            self._events.on_offer(node, group, items)

    # --- calls from the service package --------------------------------------------------------

    def on_link_opened(self, node: str) -> None:
        """The node has opened a link to this node, so it runs; a link that is down is retried."""
        link = self._links.get(node)
        if link is not None:
            link.hurry()

    def reaches(self, node: str) -> bool:
        link = self._links.get(node)
        return link is not None and link.worth_trying

    def open(self) -> frozenset[str]:
        """The nodes to which a link is open."""
        return frozenset(name for name, link in self._links.items() if link.open)

    def propose(
        self, node: str, group: GroupId, command: Any, attachment: bytes = b""
    ) -> "asyncio.Future[Any]":
        link = self._links.get(node)
        return _unknown(node) if link is None else link.propose(group, command, attachment)

    def query(self, node: str, query: Query) -> "asyncio.Future[Any]":
        link = self._links.get(node)
        return _unknown(node) if link is None else link.query(query)

    def demand(self, node: str, queue: QueueId, *, waiters: int, items: int) -> None:
        link = self._links.get(node)
        if link is not None:
            link.demand(queue, waiters, items)


def _unknown(node: str) -> "asyncio.Future[Any]":
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    message = f"node {node} is not in the map; not executed"
    future.set_exception(QueratorError(ErrorCode.UNAVAILABLE, message))
    return future
