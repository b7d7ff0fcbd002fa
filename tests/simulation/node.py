"""A process of the simulation: the real `Turns` over a simulated disk, clock and network.

A turn is one call, during which virtual time stands still. How long it takes is known afterwards
(most of it is the sync). Messages that it sends before its sync leave at its begin. Messages and
answers after the sync leave at its end. What arrives until then waits for the next turn.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

from querator.model.ids import GroupId
from querator.model.nodes import NodeKey, Replicas, node_name
from querator.raft.engine import library
from querator.raft.machine import Machine
from querator.raft.messages import PeerMessage, decode_frame, encode_frame
from querator.raft.peers import Connected, Disconnected, PeerEvent, Quiet, Received
from querator.raft.refusals import PeerRefused
from querator.raft.requests import Open, Outcome, Remove, Request
from querator.raft.starts import StartMemory
from querator.raft.turn.turn import Turns
from querator.storage import generations
from querator.storage.environment import EnvironmentFailed, EnvironmentFull, ReadTransaction
from tests.simulation.clock import NodeClock
from tests.simulation.disk import Disk, PowerLoss
from tests.simulation.network import Network
from tests.simulation.timeline import SECOND, Timeline

if TYPE_CHECKING:
    from asyncio import Future

TURN_US = 40
"""Duration of a turn without its sync."""
REQUEST_US = 10
IDLE_TURNS_MAX = 100
"""Turns of a group in a row without a request, a message or a commit. More mean a loop that waits
for nothing. A node that is cut off has a few for each failed election of each group.
"""


DOUBLE = "+"
"""Suffix of a node's key in the endpoint of a second process on its data."""


def owner(endpoint: str) -> NodeKey:
    return NodeKey(endpoint.removesuffix(DOUBLE))


class Lost(Exception):
    """The process ended before it answered."""


class Ticket:
    """Stands for the future of a request: `answer` is called once, with a result or an error."""

    def __init__(self, what: str, answer: Callable[[Any, BaseException | None], None]) -> None:
        self.what = what
        self.answer = answer
        self.taken_us = 0

    @property
    def future(self) -> "Future[Any]":
        return cast("Future[Any]", self)


class Watcher(Protocol):
    """Checks a node after each of its turns."""

    def after_turn(self, node: "SimulatedNode", outcome: Outcome) -> None: ...

    def failed(self, node: "SimulatedNode", error: BaseException) -> None: ...

    def stopped(self, node: "SimulatedNode") -> None:
        """An injected fault of its disk stopped the node in the middle of a turn."""
        ...


class SimulatedPeers:
    """A `querator.raft.peers.Peers` over the simulated network."""

    def __init__(self, network: Network[bytes], endpoint: str, clock: NodeClock) -> None:
        self._network = network
        self._endpoint = endpoint
        self._clock = clock
        self._queued: dict[NodeKey, list[PeerMessage]] = {}

    def send(self, node: NodeKey, messages: Sequence[PeerMessage]) -> None:
        network, endpoint = self._network, self._endpoint
        if network.connected(endpoint, network.at(endpoint, node)):
            self._queued.setdefault(node, []).extend(messages)

    def room_bytes(self, node: NodeKey) -> int:
        network, endpoint = self._network, self._endpoint
        return network.room_bytes(endpoint, network.at(endpoint, node))

    def flush(self) -> None:
        at_us = self._clock.now_us
        for node, messages in self._queued.items():
            frame = encode_frame(messages)
            receiver = self._network.at(self._endpoint, node)
            self._network.send(self._endpoint, receiver, frame, size=len(frame), at_us=at_us)
        self._queued.clear()


class SimulatedNode:
    """One machine and the process on it. `machines` makes the state machine of a group."""

    def __init__(
        self,
        key: NodeKey,
        *,
        timeline: Timeline,
        network: Network[bytes],
        clock: NodeClock,
        disk: Disk,
        seed: str,
        watcher: Watcher,
        machines: Callable[["SimulatedNode", GroupId], Machine],
        log_bytes_kept: int,
        turns_class: type[Turns] = Turns,
        endpoint: str = "",
    ) -> None:
        self.key = key
        self.endpoint = endpoint or key
        """Its name in the network; differs from the key for a second process on its data."""
        self.name = node_name(key)
        self.clock = clock
        self.disk = disk
        self.boots = 0
        self.turns: Turns | None = None
        self.paused = False
        self.gone = False
        """Whether its disk was lost: the node never comes back."""
        self.first_replicas: dict[GroupId, Replicas] = {}
        """Groups that the node holds, with the initial configuration for when nothing is stored."""
        self.leaving: dict[GroupId, None] = {}
        """Groups whose replica is being deleted."""
        self.removed: set[GroupId] = set()
        """Groups whose replica was deleted."""
        self.starts: StartMemory | None = None
        """What the process remembers of the starts of others, if they are simulated (`begins`)."""
        self.begins: Callable[[SimulatedNode], StartMemory] | None = None
        self.refused = ""
        """Why its process was refused; it has ended then."""
        self.tickets: dict[Ticket, None] = {}
        self._timeline = timeline
        self._network = network
        self._seed = seed
        self._watcher = watcher
        self._machines = machines
        self._log_bytes_kept = log_bytes_kept
        self._turns_class = turns_class
        self._requests: list[Request] = []
        self._events: list[PeerEvent] = []
        self._free_us = 0
        self._wake_us = -1
        self._idle_turns = 0
        self._resumed_us = 0
        self._longest_us = 0
        """The longest turn so far."""

    # --- on and off ------------------------------------------------------------------

    @property
    def up(self) -> bool:
        return self.turns is not None

    @property
    def listening(self) -> bool:
        return self.turns is not None and not self.paused

    def start(self) -> None:
        assert self.turns is None
        assert not self.gone
        self.boots += 1
        self._timeline.note("start", self.name, self.boots)
        self._timeline.tell(self.name, f"starts for the {self.boots}. time")
        self.paused = False
        self._make_turns()
        for group in self.first_replicas:
            self._open(group)
        for group in self.leaving:
            self._remove(group)
        self._network.came_up(self.endpoint)
        self._wake(self._timeline.now_us)

    def lets_in(self, other: "SimulatedNode") -> bool:
        """The decision of the transport in the handshake. A refused process ends."""
        assert self.starts is not None
        assert other.starts is not None
        try:
            self.starts.judge(other.key, other.starts.own)
        except PeerRefused as refused:
            other.refused = refused.reason
            self._timeline.tell(other.name, f"is refused: {refused.reason}")
            other.crash()
            other.on_refused()
            return False
        self.starts.meet(other.key, other.starts.own)
        return True

    def on_refused(self) -> None:
        """Its process was refused, and has ended."""

    def _make_turns(self) -> None:
        self._bind()
        self.starts = None if self.begins is None else self.begins(self)
        self.turns = self._turns_class(
            self.disk.environment,
            clock=self.clock,
            chance=random.Random(f"{self._seed} {self.key} {self.boots}"),
            log_bytes_kept=self._log_bytes_kept,
            node=self.key,
            peers=SimulatedPeers(self._network, self.endpoint, self.clock),
            early=self._answer_early,
            starts=self.starts,
        )
        self._free_us = self._timeline.now_us

    def crash(self, *, silent: bool = False) -> None:
        """The process ends here; the disk keeps what was synced. `silent`: the others get no
        notice.
        """
        if self.turns is None:
            return
        self._timeline.note("crash", self.name)
        self._timeline.tell(self.name, "CRASHES" + (" silently" if silent else ""))
        self.turns = None
        self.paused = False
        self.clock.within_us = 0
        self._requests.clear()
        self._events.clear()
        self.disk.crash()
        self._network.went_down(self.endpoint, silent=silent)
        tickets, self.tickets = self.tickets, {}
        for ticket in tickets:
            ticket.answer(None, Lost(self.name))

    def pause(self) -> None:
        if self.listening:
            self._timeline.note("pause", self.name)
            self._timeline.tell(self.name, "is PAUSED")
            self.paused = True
            self._network.paused(self.endpoint)

    def resume(self) -> None:
        if self.paused:
            self._timeline.note("resume", self.name)
            self._timeline.tell(self.name, "goes on")
            self.paused = False
            self._resumed_us = self._timeline.now_us
            self._network.resumed(self.endpoint)
            self._wake(self._timeline.now_us)

    @contextmanager
    def view(self, group: GroupId) -> Iterator[ReadTransaction]:
        """What is committed on its disk, as the group's state machine sees it."""
        with self.disk.snapshots() as snapshot:
            yield generations.view(snapshot, group)

    # --- what it is asked for -----------------------------------------------------------

    def hold(self, group: GroupId, replicas: Replicas) -> None:
        """Opens its replica of the group, also after each start."""
        assert group not in self.leaving
        self.removed.discard(group)
        self.first_replicas[group] = replicas
        if self.turns is not None:
            self._open(group)

    def drop(self, group: GroupId) -> None:
        """Deletes its replica of the group."""
        self.first_replicas.pop(group, None)
        self.leaving[group] = None
        if self.turns is not None:
            self._remove(group)

    def _remove(self, group: GroupId) -> None:
        def removed(_: Any, error: BaseException | None) -> None:
            if error is None:
                del self.leaving[group]
                self.removed.add(group)
            elif not isinstance(error, Lost):
                self._watcher.failed(self, error)

        self.request(Remove(group, Ticket("remove", removed).future))

    def _open(self, group: GroupId) -> None:
        machine = self._machines(self, group)
        ticket = Ticket("open", lambda _, error: self._opened(group, error))
        self.request(Open(group, machine, ticket.future, self.first_replicas[group]))

    def _opened(self, group: GroupId, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, Lost) and group in self.first_replicas:
            self._watcher.failed(self, error)

    def request(self, request: Request) -> None:
        assert self.turns is not None
        ticket: Any = request.future  # type: ignore[union-attr]
        self.tickets[ticket] = None
        self._requests.append(request)
        self._wake(self._timeline.now_us + REQUEST_US)

    # --- the network's side ---------------------------------------------------------------

    def on_connected(self, peer: str) -> None:
        self._event(Connected(owner(peer)))

    def on_disconnected(self, peer: str) -> None:
        self._event(Disconnected(owner(peer)))

    def on_quiet(self, peer: str) -> None:
        self._event(Quiet(owner(peer)))

    def on_message(self, peer: str, message: bytes) -> None:
        self._event(Received(owner(peer), decode_frame(message)))

    def _event(self, event: PeerEvent) -> None:
        if self.turns is not None:
            self._events.append(event)
            self._wake(self._timeline.now_us)

    # --- turns --------------------------------------------------------------------------

    def _wake(self, at_us: int) -> None:
        """Plans a turn, not before the present one is over; the earliest wish counts."""
        at_us = max(at_us, self._free_us)
        if self._wake_us < 0 or at_us < self._wake_us:
            self._wake_us = at_us
            self._timeline.at(at_us, self._woken)

    def _woken(self) -> None:
        if self._wake_us < 0 or self._timeline.now_us < self._wake_us:
            return
        self._wake_us = -1
        if self.listening:
            self._turn()

    def _bind(self) -> None:
        self.clock.within_us = 0
        library.bind(self.clock)

    def _turn(self) -> None:
        assert self.turns is not None
        requests, self._requests = self._requests, []
        events, self._events = self._events, []
        self._bind()
        self._takes(requests)
        try:
            outcome = self.turns.turn(requests, events)
        except PowerLoss:
            self._stop(silent=True)
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, it is found
            disk = self.disk
            injected = (isinstance(error, EnvironmentFailed) and disk.armed == "failed") or (
                isinstance(error, EnvironmentFull) and disk.overfull
            )
            if not injected:
                self._watcher.failed(self, error)
            self._stop(silent=False)
            return
        took_us = self.clock.within_us + TURN_US
        self._longest_us = max(self._longest_us, took_us)
        self._idle_turns = 0 if requests or events or self.clock.within_us else self._idle_turns + 1
        if self._idle_turns > IDLE_TURNS_MAX * max(1, len(self.turns.groups())):
            self._watcher.failed(self, RuntimeError("it has turns in which nothing happens"))
        self._timeline.note("turn", self.name, took_us, len(requests), len(events))
        self._watcher.after_turn(self, outcome)
        if not self.up:
            return
        self.clock.within_us = took_us
        wait_s = self.turns.wait_s()
        self.clock.within_us = 0
        self._free_us = self._timeline.now_us + took_us
        if wait_s is not None:
            self._wake(self._free_us + (self.clock.virtual_us(wait_s) if wait_s > 0 else 0))
        self._plan_answers(outcome)

    def _takes(self, requests: list[Request]) -> None:
        for request in requests:
            ticket: Any = request.future  # type: ignore[union-attr]
            ticket.taken_us = self._timeline.now_us

    def _plan_answers(self, outcome: Outcome) -> None:
        """The outcome of a turn becomes known at its end."""
        if outcome.results or outcome.errors or outcome.done:
            boots = self.boots
            self._timeline.at(self._free_us, lambda: self._answer(outcome, boots))

    def _stop(self, *, silent: bool) -> None:
        self.crash(silent=silent)
        self._watcher.stopped(self)

    def _answer_early(self, outcome: Outcome) -> None:
        """Answers before the sync of the turn, at which the process may end."""
        assert not outcome.errors
        assert not outcome.done
        for call, result in outcome.results:
            future: Any = call.future
            if future in self.tickets:
                del self.tickets[future]
                self._timeline.at(self._timeline.now_us, partial(future.answer, result, None))

    def _answer(self, outcome: Outcome, boots: int) -> None:
        if self.turns is None or self.boots != boots:
            return
        for call, result in outcome.results:
            self._one(call.future, result, None)
        for call, error in outcome.errors:
            self._one(call.future, None, error)
        for future, failure in outcome.done:
            self._one(future, None, failure)

    def _one(self, future: Any, result: Any, error: BaseException | None) -> None:
        if isinstance(future, Ticket) and future in self.tickets:
            del self.tickets[future]
            future.answer(result, error)

    def overdue(self, limit_us: int) -> list[Ticket]:
        """Requests that were accepted longer ago than `limit_us` plus some turns, and are not
        answered. Empty while the node may still be busy with requests that waited during its pause.
        """
        now_us = self._timeline.now_us
        limit_us += 3 * self._longest_us
        if now_us - self._resumed_us < SECOND + self._longest_us:
            return []
        return [ticket for ticket in self.tickets if 0 < ticket.taken_us < now_us - limit_us]
