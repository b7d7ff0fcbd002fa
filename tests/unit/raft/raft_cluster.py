"""Several nodes in one thread, with links that deliver at once until they are cut."""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from querator.model.entries import Proposal
from querator.model.ids import GroupId
from querator.model.limits import MIB
from querator.model.nodes import NodeKey, Replica, Replicas, node_key
from querator.raft.clock import SimulatedClock
from querator.raft.engine import library
from querator.raft.messages import Envelope, GroupMessage, PeerMessage
from querator.raft.peers import Connected, Disconnected, PeerEvent, Quiet, Received
from querator.raft.requests import Call, Event, Open, Outcome, Request
from querator.raft.status import GroupStatus
from querator.raft.turn.turn import Turns
from querator.storage import generations
from querator.storage.environment import Usage
from querator.storage.memory_environment import MemoryEnvironment
from tests.unit.raft import fake_machine
from tests.unit.raft.fake_machine import Register, RegisterMachine

G = GroupId(1)
STEP_MS = 10


class FakePeers:
    """One node's ends of the links."""

    def __init__(self, cluster: "RaftCluster", name: str) -> None:
        self._cluster = cluster
        self._name = name
        self._queued: list[tuple[NodeKey, list[PeerMessage]]] = []

    def send(self, node: NodeKey, messages: Sequence[PeerMessage]) -> None:
        self._queued.append((node, list(messages)))

    def room_bytes(self, node: NodeKey) -> int:
        if not self._cluster.linked(self._name, key_name(node)):
            return 0
        return self._cluster.room_bytes.get((self._name, key_name(node)), MIB)

    def flush(self) -> None:
        for node, messages in self._queued:
            self._cluster.carry(self._name, key_name(node), messages)
        self._queued.clear()


def key(name: str) -> NodeKey:
    return node_key(name, "1")


def key_name(node: NodeKey) -> str:
    return node.partition("/")[0]


class Disk(MemoryEnvironment):
    """A disk that can report that it is full."""

    full = False

    def usage(self) -> Usage:
        usage = super().usage()
        return msgspec.structs.replace(usage, free_bytes=0) if self.full else usage


class NoFuture:
    """Stands for the future of a request; the outcome is in `RaftCluster.done`."""


class ClusterNode:
    """One node, on or off."""

    def __init__(self, cluster: "RaftCluster", name: str) -> None:
        self.name = name
        self.environment: MemoryEnvironment = Disk()
        self.clock = SimulatedClock()
        self.inbox: deque[PeerEvent] = deque()
        self._cluster = cluster
        self.machine = RegisterMachine(G)
        self.turns: Turns | None = None

    def start(self, replicas: Replicas) -> None:
        self.inbox.clear()
        library.bind(self.clock)
        self.machine = RegisterMachine(G)
        self.turns = Turns(
            self.environment,
            clock=self.clock,
            chance=self._cluster.chance,
            node=key(self.name),
            peers=FakePeers(self._cluster, self.name),
            log_bytes_kept=self._cluster.log_bytes_kept,
            early=self._told_early,
        )
        future: Any = NoFuture()
        self._cluster.turn(self, [Open(G, self.machine, future, replicas)])

    def _told_early(self, outcome: Outcome) -> None:
        assert not outcome.errors
        assert not outcome.done
        results = [result for _, result in outcome.results]
        with self.environment.snapshot() as snapshot:
            stored = fake_machine.read(generations.view(snapshot, G), G)
        self._cluster.early += [(result, stored) for result in results]
        self._cluster.take(self, outcome)

    @property
    def status(self) -> GroupStatus:
        assert self.turns is not None
        status = self.turns.status(G)
        assert status is not None
        return status


class RaftCluster:
    def __init__(self, *names: str, seed: int = 1, log_bytes_kept: int = 64 * MIB) -> None:
        self.log_bytes_kept = log_bytes_kept
        self.clock = SimulatedClock()
        self.chance = random.Random(seed)
        self.replicas = tuple(Replica(id_, key(name)) for id_, name in enumerate(names, 1))
        self.nodes = {name: ClusterNode(self, name) for name in names}
        self.cut: set[frozenset[str]] = set()
        self.muted: set[tuple[str, str]] = set()
        """(from, to): messages are lost, though the connection stands."""
        self.turns = 0
        self.results: list[Any] = []
        self.early: list[tuple[Any, Register]] = []
        """Results that were reported before the sync of the turn, and what was stored then."""
        self.errors: list[BaseException] = []
        self.done: list[tuple[Any, BaseException | None]] = []
        self.events: list[tuple[str, Event]] = []
        self.room_bytes: dict[tuple[str, str], int] = {}
        """Bytes that one node may send to another, where the number is lower than usual."""
        self.carried: list[tuple[str, str, PeerMessage]] = []
        """All messages that left a node for another, including lost ones."""
        for node in self.nodes.values():
            node.start(self.replicas)

    # --- links -------------------------------------------------------------------

    def linked(self, one: str, other: str) -> bool:
        return (
            frozenset((one, other)) not in self.cut
            and other in self.nodes
            and self.nodes[one].turns is not None
            and self.nodes[other].turns is not None
        )

    def carry(self, one: str, other: str, messages: list[PeerMessage]) -> None:
        self.carried += [(one, other, message) for message in messages]
        if self.linked(one, other) and (one, other) not in self.muted:
            self.nodes[other].inbox.append(Received(key(one), messages))

    def hear(self, name: str, sender: str, *messages: GroupMessage) -> None:
        """The node runs a turn in which these messages of the other's replica arrive together."""
        to, from_ = (1 + list(self.nodes).index(one) for one in (name, sender))
        envelopes: list[PeerMessage] = [Envelope(G, to, from_, message) for message in messages]
        self.nodes[name].inbox.append(Received(key(sender), envelopes))
        self.turn(self.nodes[name])

    def said(self, name: str) -> list[GroupMessage]:
        """The messages that the node's replica has sent since the last call."""
        found = [
            message.message
            for one, _, message in self.carried
            if one == name and isinstance(message, Envelope)
        ]
        self.carried.clear()
        return found

    def separate(self, *names: str) -> None:
        """Cuts the named nodes off from all others."""
        for one in names:
            for other in self.nodes:
                if other not in names and self.linked(one, other):
                    self.cut.add(frozenset((one, other)))
                    self._tell(one, other, up=False)

    def mute(self, one: str, other: str) -> None:
        """The other node no longer hears the first one, and receives a report of that."""
        self.muted.add((one, other))
        self.nodes[other].inbox.append(Quiet(key(one)))

    def heal(self) -> None:
        self.muted.clear()
        for pair in list(self.cut):
            self.cut.discard(pair)
            one, other = sorted(pair)
            if self.linked(one, other):
                self._tell(one, other, up=True)

    def _tell(self, one: str, other: str, *, up: bool) -> None:
        for name, peer in ((one, other), (other, one)):
            inbox = self.nodes[name].inbox
            if not up:
                for event in [event for event in inbox if event.node == key(peer)]:
                    inbox.remove(event)
            inbox.append(Connected(key(peer)) if up else Disconnected(key(peer)))

    # --- nodes -------------------------------------------------------------------

    def stop(self, name: str) -> None:
        """Kills the process; synced data stays."""
        for other in self.nodes:
            if other != name and self.linked(name, other):
                self._tell(name, other, up=False)
        self.nodes[name].turns = None
        self.nodes[name].environment = self.nodes[name].environment.crash()

    def start(self, name: str) -> None:
        self.nodes[name].start(self.replicas)
        for other in self.nodes:
            if other != name and self.linked(name, other):
                self._tell(name, other, up=True)

    def fill(self, name: str, *, full: bool = True) -> None:
        """The node's disk accepts nothing more from leaders."""
        environment = self.nodes[name].environment
        assert isinstance(environment, Disk)
        environment.full = full

    def turn(self, node: ClusterNode, requests: Sequence[Request] = ()) -> None:
        assert node.turns is not None
        self.turns += 1
        library.bind(node.clock)
        events = list(node.inbox)
        node.inbox.clear()
        self.take(node, node.turns.turn(requests, events))

    def take(self, node: ClusterNode, outcome: Outcome) -> None:
        self.results += [result for _, result in outcome.results]
        self.errors += [error for _, error in outcome.errors]
        self.done += outcome.done
        self.events += [(node.name, event) for event in outcome.events]

    def step(self) -> None:
        """Every node with work to do runs a turn; then a little time passes."""
        for node in self.nodes.values():
            if node.turns is not None and (node.inbox or node.turns.wait_s() == 0):
                self.turn(node)
        if not any(node.inbox for node in self.nodes.values() if node.turns is not None):
            self.clock.advance(STEP_MS)
            for node in self.nodes.values():
                node.clock.advance(STEP_MS)

    def until(self, condition: Callable[[], object], *, within_s: float = 10) -> None:
        latest_s = self.clock.monotonic_s() + within_s
        while not condition():
            assert self.clock.monotonic_s() < latest_s, "it did not come to that in time"
            self.step()

    def pass_s(self, seconds: float) -> None:
        latest_s = self.clock.monotonic_s() + seconds
        while self.clock.monotonic_s() < latest_s:
            self.step()

    # --- requests and results ----------------------------------------------------

    @property
    def leaders(self) -> list[str]:
        return [
            name
            for name, node in self.nodes.items()
            if node.turns is not None and node.status.leads
        ]

    def leader(self) -> str:
        """The name of the leader, as soon as there is exactly one."""
        self.until(lambda: len(self.leaders) == 1)
        return self.leaders[0]

    def ask(self, name: str, request: Request) -> None:
        self.turn(self.nodes[name], [request])

    def add(self, name: str, amount: int | str, attachment: bytes = b"") -> None:
        """Proposes to the node, and does not wait."""
        future: Any = NoFuture()
        self.ask(name, Call(G, Proposal(amount, attachment), future, len(attachment) + 100))

    def added(self, amount: int, attachment: bytes = b"") -> Any:
        """The result of a proposal to the leader."""
        known = len(self.results)
        self.add(self.leader(), amount, attachment)
        self.until(lambda: len(self.results) > known)
        return self.results[-1]

    def digests(self) -> set[bytes]:
        found = set()
        for node in self.nodes.values():
            if node.turns is not None:
                with node.environment.snapshot() as snapshot:
                    found.add(node.machine.digest(generations.view(snapshot, G)))
        return found

    def alike(self) -> bool:
        """Whether all nodes that are up have applied the same entries, and have them on disk."""
        up = [node for node in self.nodes.values() if node.turns is not None]
        if any(node.turns is not None and node.turns._transaction for node in up):
            return False
        applied = {node.status.applied_index for node in up}
        return len(applied) == 1 and len(self.digests()) == 1


def future() -> "asyncio.Future[None]":
    made: Any = NoFuture()
    return made  # type: ignore[no-any-return]
