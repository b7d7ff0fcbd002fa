"""Peers on loopback sockets, driven in one thread as the raft thread drives them."""

import random
import select
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

import msgspec

from querator.config import PeerTlsSettings
from querator.model.nodes import NodeKey
from querator.raft.clock import Clock, RealClock
from querator.raft.messages import Heartbeat, PeerMessage
from querator.raft.peers import Connected, Disconnected, PeerEvent, Received
from querator.raft.starts import StartMemory
from querator.raft.tcp import dialing
from querator.raft.tcp.channel import PeerTls
from querator.raft.tcp.hello import KnownPeer, PeerInfo
from querator.raft.tcp.tcp_peers import TcpPeers

TOKEN = b"the token of the cluster"
STEPS_MAX = 100_000


def info(name: str, incarnation: str = "1", cluster_id: str | None = "cluster") -> PeerInfo:
    return PeerInfo(
        name=name,
        incarnation=incarnation,
        cluster_id=cluster_id,
        peer_address="",
        client_address=f"{name}.example:4470",
        zone="zone",
        boots=1,
        version="0.1.0",
    )


def beat(number: int) -> Heartbeat:
    return Heartbeat(number, 0, ())


class TcpNode:
    """A node's transport, and the events that it has reported."""

    def __init__(
        self,
        own: PeerInfo,
        *,
        token: bytes = TOKEN,
        clock: Clock | None = None,
        listen: str = "127.0.0.1:0",
        peers: Mapping[str, KnownPeer] | None = None,
        description: bytes = b"",
        tls: PeerTlsSettings | None = None,
        resolve: dialing.Resolve = dialing.resolve,
        starts: StartMemory | None = None,
        on_old_copy: Callable[[str], None] | None = None,
    ) -> None:
        self.info = own
        self.name = own.name
        self.key = own.key
        self.peers = TcpPeers(
            own,
            listen=listen,
            token=token,
            peers=peers or {},
            clock=clock if clock is not None else RealClock(),
            description=description,
            tls=None if tls is None else PeerTls(tls),
            chance=random.Random(1),
            resolve=resolve,
            starts=starts,
            on_old_copy=on_old_copy,
        )
        self.events: list[PeerEvent] = []

    def knows(self, *others: "TcpNode", **addresses: str) -> None:
        known = {other.name: KnownPeer(other.peers.address) for other in others}
        known |= {name: KnownPeer(address) for name, address in addresses.items()}
        self.peers.set_peers(known)

    def messages(self, sender: "TcpNode") -> list[PeerMessage]:
        return [
            message
            for event in self.events
            if isinstance(event, Received) and event.node == sender.key
            for message in event.messages
        ]

    def links(self, other: "TcpNode") -> list[type[PeerEvent]]:
        """The connections to the other node and their ends, in order."""
        return [
            type(event)
            for event in self.events
            if event.node == other.key and isinstance(event, Connected | Disconnected)
        ]

    def sees(self, other: "TcpNode") -> bool:
        return other.key in self.peers.connected()

    def say(self, other: "TcpNode", *numbers: int) -> None:
        for number in numbers:
            self.peers.send(other.key, [beat(number)])
        self.peers.flush()


def drive(
    *tcp_nodes: TcpNode,
    until: Callable[[], bool],
    also: socket.socket | None = None,
    after_each: Callable[[], None] | None = None,
) -> None:
    """Calls `receive` as the nodes' descriptors and timers ask for it. The test's timeout bounds
    it.
    """
    watched = [tcp_node.peers.fileno() for tcp_node in tcp_nodes]
    if also is not None:
        watched.append(also.fileno())
    for _ in range(STEPS_MAX):
        for tcp_node in tcp_nodes:
            tcp_node.events.extend(tcp_node.peers.receive())
            check_order(tcp_node.events)
        if after_each is not None:
            after_each()
        if until():
            return
        waits = [wait for s in tcp_nodes if (wait := s.peers.wait_s()) is not None]
        select.select(watched, [], [], min(waits, default=1.0))
    raise AssertionError("it does not come to an end")


def settle(*tcp_nodes: TcpNode) -> None:
    """Drives the nodes until nothing is to be read and no timer is due."""
    drive(
        *tcp_nodes,
        until=lambda: not select.select([s.peers.fileno() for s in tcp_nodes], [], [], 0.02)[0],
    )


def check_order(events: list[PeerEvent]) -> None:
    """Checks what every form of `Peers` promises about the order of its events."""
    connected: set[NodeKey] = set()
    for event in events:
        match event:
            case Connected(node):
                assert node not in connected
                connected.add(node)
            case Disconnected(node):
                connected.remove(node)
            case Received(node):
                assert node in connected


@contextmanager
def tcp_nodes(*made: TcpNode) -> Iterator[None]:
    try:
        yield
    finally:
        for tcp_node in made:
            tcp_node.peers.close()


@contextmanager
def tcp_cluster(
    *names: str, clock: Clock | None = None, tls: PeerTlsSettings | None = None
) -> Iterator[list[TcpNode]]:
    """Nodes of one cluster that know each other and are connected."""
    made = [TcpNode(info(name), clock=clock, tls=tls) for name in names]
    with tcp_nodes(*made):
        for tcp_node in made:
            tcp_node.knows(*made)
        pairs = [(one, other) for one in made for other in made if one is not other]
        drive(*made, until=lambda: all(one.sees(other) for one, other in pairs))
        yield made


@contextmanager
def reserved() -> Iterator[str]:
    """An address at which no process listens, and which no other process gets."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{sock.getsockname()[1]}"


def restarted(tcp_node: TcpNode, **changes: str) -> TcpNode:
    """Another process with the same data (or with `changes`), at the same address."""
    tcp_node.peers.close()
    return TcpNode(msgspec.structs.replace(tcp_node.info, **changes), listen=tcp_node.peers.address)


@contextmanager
def caller(tcp_node: TcpNode) -> Iterator[socket.socket]:
    """A plain TCP client of the peer port."""
    host, _, port = tcp_node.peers.address.rpartition(":")
    with socket.create_connection((host, int(port))) as sock:
        sock.setblocking(False)
        yield sock


def read_to_end(sock: socket.socket, *driven: TcpNode) -> bytes:
    """The node's answer, up to the end of the connection."""
    data = bytearray()
    ended = False

    def read() -> None:
        nonlocal ended
        with suppress(BlockingIOError):
            try:
                chunk = sock.recv(65_536)
            except ConnectionError:
                chunk = b""
            data.extend(chunk)
            ended = ended or not chunk

    drive(*driven, until=lambda: ended, also=sock, after_each=read)
    return bytes(data)
