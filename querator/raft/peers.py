"""Interface between the turn and the other nodes. It has a real form (`raft.tcp.tcp_peers`) and a
simulated one (`tests/simulation`).

Every form guarantees: between two nodes messages arrive in the order in which they were sent, each
at most once, as long as the connection lives. When a connection breaks, messages on their way are
lost and both sides get an event. Nothing of the old connection arrives after `Connected` of the
next one.
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
    """Unanswered messages may be lost. The transport connects again by itself."""

    node: NodeKey


class Quiet(msgspec.Struct, frozen=True, gc=False):
    """Nothing has come from the node for longer than the usual gaps of its link: it hangs, or is
    cut off. The connection stays open, and may still deliver messages that are on their way.
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
        connected. `send` accepts more: replication itself keeps to this bound.
        """
        ...

    def flush(self) -> None:
        """Sends queued messages as far as the connections accept them."""
        ...


class PeerLink(Peers, Protocol):
    """Peers that a raft thread waits for and serves."""

    starts: StartMemory
    """The record by which the link judges nodes. The turns write it to disk."""

    def fileno(self) -> int:
        """A descriptor that is readable when there is something to receive, or space to send."""
        ...

    def receive(self, *, readable: bool = True) -> list[PeerEvent]:
        """Returns the events since the last call; also connects, accepts and answers. Does not
        wait. `readable`: whether the descriptor may be readable. If not, only what is due by the
        clock is done.
        """
        ...

    def wait_s(self) -> float | None:
        """Seconds until `receive` has something to do even if no event comes."""
        ...

    def close(self) -> None:
        """Ends all connections. May be called again."""
        ...


class NoPeers:
    """The peers of a node that is alone."""

    def send(self, node: NodeKey, messages: Sequence[PeerMessage]) -> None:
        raise AssertionError("a node that is alone has no node to send to")

    def room_bytes(self, node: NodeKey) -> int:
        return 0

    def flush(self) -> None:
        """Does nothing: no message is ever queued."""
