"""The seam between the turn and the other nodes, with a real form (`raft.tcp.tcp_peers`) and a
simulated one (`tests/simulation`).

Promised by every form: between two nodes messages arrive in the order in which they were sent, each
at most once, as long as the connection lives. When it breaks, what was on its way is lost, both
sides are told, and nothing of the old connection arrives after `Connected` of the next one.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from querator.model.nodes import NodeKey
from querator.raft.messages import PeerMessage
from querator.raft.starts import StartMemory


class Received(msgspec.Struct, frozen=True, gc=False):
    node: NodeKey
    messages: list[PeerMessage]


class Connected(msgspec.Struct, frozen=True, gc=False):
    """Messages can be sent to the node."""

    node: NodeKey


class Disconnected(msgspec.Struct, frozen=True, gc=False):
    """What was sent and not answered may be lost. The transport connects again by itself."""

    node: NodeKey


class Quiet(msgspec.Struct, frozen=True, gc=False):
    """Nothing has come from the node for longer than its link's gaps explain: it hangs, or is cut
    off. The connection lasts, and may yet bring what is on its way.
    """

    node: NodeKey


PeerEvent = Received | Connected | Disconnected | Quiet


class Peers(Protocol):
    """Only the raft thread calls it."""

    def send(self, node: NodeKey, messages: Sequence[PeerMessage]) -> None:
        """Queues messages for the node; drops them when it is not connected. `flush` sends them."""
        ...

    def room_bytes(self, node: NodeKey) -> int:
        """How many bytes may be queued for the node before its buffer is full; 0 when it is not
        connected. More is taken all the same: replication keeps itself within it.
        """
        ...

    def flush(self) -> None:
        """Sends what is queued, as far as the connections take it."""
        ...


class PeerLink(Peers, Protocol):
    """Peers that a raft thread waits for and serves."""

    starts: StartMemory
    """By which it judges nodes. The turns keep it."""

    def fileno(self) -> int:
        """Readable when there is something to receive, or room to send."""
        ...

    def receive(self) -> list[PeerEvent]:
        """What has happened; connects, accepts and answers on the way. Does not wait."""
        ...

    def wait_s(self) -> float | None:
        """Seconds until `receive` has something to do although nothing happens."""
        ...

    def close(self) -> None:
        """Ends all connections. May be called again."""
        ...


class NoPeers:
    """Of a node that is alone."""

    def send(self, node: NodeKey, messages: Sequence[PeerMessage]) -> None:
        raise AssertionError("a node that is alone has nobody to send to")

    def room_bytes(self, node: NodeKey) -> int:
        return 0

    def flush(self) -> None:
        """Nothing is queued."""
