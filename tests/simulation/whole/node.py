"""A process of the simulation with all its packages: `querator.node_core.NodeCore` over simulated
turns, an event loop under virtual time, and links over a simulated network.

The turns are those of `tests.simulation.node`. Their answers reach the event loop as from the raft
thread. A crash ends both, a pause stops both.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from querator.model.ids import GroupId
from querator.model.limits import STOP_WAIT_MS_MAX
from querator.model.nodes import NodeKey, Replicas, node_name
from querator.model.placement_map import PlacedNode, PlacementMap
from querator.node_core import NodeCore
from querator.placement.bootstrap import ClusterBootstrap, founding
from querator.placement.joining.formation import Description
from querator.raft.machine import Machine
from querator.raft.refusals import LastingRefusal, OtherTokens
from querator.raft.requests import Open, Outcome, Remove, Request, Stop
from querator.raft.starts import StartMemory
from querator.raft.turn.liveness import Liveness
from querator.raft.turn.thread import Deliver, Failed
from querator.raft.turn.turn import Turns
from querator.server.incoming import Incoming
from querator.server.link.forwarding import Forwarding
from querator.server.link.node_calls import NodeCalls
from querator.service.repair import scrub
from querator.storage import identity as identities
from querator.storage.environment import StorageError
from querator.storage.identity import Empty, Identity
from tests.simulation.clock import NodeClock
from tests.simulation.disk import Disk, PowerLoss
from tests.simulation.network import Network
from tests.simulation.node import REQUEST_US, SimulatedNode
from tests.simulation.timeline import MS, SECOND, Timeline
from tests.simulation.whole.loop import VirtualLoop
from tests.simulation.whole.muting import heard
from tests.simulation.whole.wires import AcceptedStream, Frame, LinkPort

scrub.ROUND_S_MIN = 2.0
"""A seed lasts only for seconds."""
if TYPE_CHECKING:
    from tests.simulation.whole.replacing import Replacing

TOKEN = b"of the simulated cluster"
CLUSTER_ID = "simulated"
HAND_OVER_S = 5.0


class Lost(Exception):
    """The node did not answer, and the outcome of the call is unknown."""


class Surroundings(Protocol):
    """What a node sees of the world."""

    timeline: Timeline
    stuck: frozenset[GroupId]
    """Groups whose replicas do not hear each other."""
    scrub_bytes_per_s: int
    watches_hangs: bool
    replacing: "Replacing"

    def after_turn(self, node: SimulatedNode, outcome: Outcome) -> None: ...

    def failed(self, node: SimulatedNode, error: BaseException) -> None: ...

    def stopped(self, node: SimulatedNode) -> None: ...

    def refused(self, node: "WholeNode") -> None:
        """Another node has refused it, for good."""
        ...

    def whole_nodes(self) -> "list[WholeNode]": ...

    def machine(self, node: "WholeNode", group: GroupId) -> Machine: ...

    def found(self, text: str) -> None: ...


class SimulatedLiveness(Liveness):
    """Reads the duration of a stall from the simulated turns, which do not report to it."""

    def __init__(self, node: "WholeNode") -> None:
        super().__init__(node.clock)
        self._node = node

    def stalled_s(self) -> float:
        return self._node.owes_us() / SECOND


class SimulatedTurns:
    """A `querator.raft.turn.turn.thread.TurnLoop`: the node's own turns."""

    def __init__(self, node: "WholeNode") -> None:
        node._make_turns()
        turns = node.turns
        assert turns is not None
        self.turns: Turns = turns
        self.liveness = SimulatedLiveness(node)
        self.watched = node.watched
        self._node = node
        self._ended: asyncio.Future[None] | None = None

    def start(self, deliver: Deliver, failed: Failed) -> None:
        self._ended = asyncio.get_running_loop().create_future()
        self._node.turns_begin(deliver, self._ended)

    def put(self, request: Request) -> None:
        self._node.put(request)

    async def ended(self) -> None:
        assert self._ended is not None
        await asyncio.shield(self._ended)


class SimulatedPeerServices:
    """A `querator.node_core.PeerServices`."""

    def __init__(self, node: "WholeNode", world: Surroundings, network: Network[bytes]) -> None:
        self._node = node
        self._world = world
        self._network = network

    def connected(self) -> Mapping[NodeKey, PlacedNode]:
        return {
            other.key: other.said
            for other in self._world.whole_nodes()
            if other is not self._node
            and other.said is not None
            and other.core is not None
            and self._network.connected(self._node.endpoint, other.key)
        }

    def newcomers(self) -> tuple[PlacedNode, ...]:
        return ()

    def out_of_reach(self, placed: PlacementMap) -> frozenset[str]:
        near = {node_name(key) for key in self.connected()}
        return frozenset({node.name for node in placed.nodes} - near - {self._node.name})

    def other_tokens(self) -> OtherTokens:
        return OtherTokens()

    def lasting_refusals(self) -> Sequence[LastingRefusal]:
        return ()

    def old_copies(self) -> Mapping[str, str]:
        return {}

    async def ask(self, node: PlacedNode) -> Description | str:
        return self._world.replacing.description(node)

    def on_map(self, placed: PlacementMap) -> None:
        """Does nothing: no node is refused here."""


def _starts_of(node: SimulatedNode) -> StartMemory:
    """The starts by which the transport of a process judges others."""
    with node.disk.environment.snapshot() as snapshot:
        return StartMemory.load(snapshot, node.key)


@dataclass(eq=False)
class _Answering:
    """A call from outside that the process has accepted."""

    task: "asyncio.Task[Any]"
    answer: Callable[[Any, BaseException | None], None]


class WholeNode(SimulatedNode):
    """`key` names the machine and its copy of the data, as in the raft package."""

    def __init__(
        self,
        key: NodeKey,
        *,
        world: Surroundings,
        network: Network[bytes],
        links: Network[Frame],
        clock: NodeClock,
        disk: Disk,
        seed: str,
        log_bytes_kept: int,
        founders: tuple[PlacedNode, ...],
        turns_class: type[Turns] = Turns,
        endpoint: str = "",
    ) -> None:
        super().__init__(
            key,
            timeline=world.timeline,
            network=network,
            clock=clock,
            disk=disk,
            seed=seed,
            watcher=world,
            machines=lambda node, group: world.machine(self, group),
            log_bytes_kept=log_bytes_kept,
            turns_class=turns_class,
            endpoint=endpoint,
        )
        self.begins = _starts_of
        self.core: NodeCore | None = None
        self.said: PlacedNode | None = None
        self.serves = False
        """Whether the map names it, and clients are let in."""
        self.loops: list[VirtualLoop] = []
        """Loops of all its starts; the last one belongs to the running process."""
        self.port = LinkPort(links, self.endpoint, lambda: not self.paused)
        links.add(self.endpoint, self.port)
        self.watched = len(founders) > 1 and world.watches_hangs
        self.joins: Replicas = ()
        """Initial replicas in a cluster that it did not found."""
        self._turned_us = 0
        """When its last turn began."""
        self._world = world
        self._network = network
        self._founders = founders
        self._deliver: Deliver | None = None
        self._stopped: asyncio.Future[None] | None = None
        self._stopping = self._leaving = False
        self._running = AsyncExitStack()
        self._answering: dict[_Answering, None] = {}
        self._removing: dict[asyncio.Future[None], GroupId] = {}
        """Deletions that its turns have accepted."""

    # --- on and off --------------------------------------------------------------------------

    @property
    def loop(self) -> VirtualLoop:
        return self.loops[-1]

    def start(self) -> None:
        assert self.turns is None
        assert not self.gone
        self.boots += 1
        self._timeline.note("start", self.name, self.boots)
        self._timeline.tell(self.name, f"starts for the {self.boots}. time")
        self.paused = False
        self.clock.within_us = 0
        self._stopping = self._leaving = False
        self._running = AsyncExitStack()
        try:
            identity = self._claim()
        except (PowerLoss, StorageError):
            self.clock.within_us = 0
            self.disk.crash()
            self._watcher.stopped(self)
            return
        self.clock.within_us = 0
        chance = random.Random(f"{self._seed} loop {self.endpoint} {self.boots}")
        loop = VirtualLoop(self._timeline, self.clock, chance, self.failed)
        self.loops.append(loop)
        self.port.begin(self)
        loop.within(self._build, identity)
        loop.start(self._live())

    def _claim(self) -> Identity:
        """What the start of a process writes before anything else."""
        environment = self.disk.environment
        name, incarnation = node_name(self.key), self.key.rpartition("/")[2]
        chance = random.Random(f"{self._seed} start {self.endpoint} {self.boots}")
        identity = identities.claim(
            environment,
            name=name,
            empty=Empty.TO_BE_FORMED,
            make_id=lambda: incarnation,
            make_nonce=lambda: chance.getrandbits(63),
        )
        if not identity.is_member:
            identity = identities.join(
                environment,
                identity,
                cluster_id=CLUSTER_ID,
                replicas=self.joins or founding(self._founders),
                founders=() if self.joins else self._founders,
            )
        return identity

    def _build(self, identity: Identity) -> None:
        said = PlacedNode(
            identity.name,
            identity.incarnation,
            peer_address=f"{identity.name}:7472",
            client_address=f"{identity.name}:7471",
            boots=identity.boots,
        )
        self.said = said
        forwarding = Forwarding(identity.name, token=TOKEN, connect=self._connect)
        self.core = NodeCore(
            self.disk.environment,
            clock=self.clock,
            bootstrap=ClusterBootstrap(
                identity.cluster_id, said, identity.replicas, identity.founders
            ),
            on_failure=self._on_failure,
            on_hand_off=self._on_hand_off,
            turn_loop=SimulatedTurns(self),
            peer_services=SimulatedPeerServices(self, self._world, self._network),
            forwarding=forwarding,
            machine_for=lambda group: self._world.machine(self, group),
            scrub_bytes_per_s=self._world.scrub_bytes_per_s,
            # Not the number that `identity` counts: other copies of the node's data count the same.
            born=f"{self.endpoint.replace('/', '.')}.{self.boots}",
        )
        self._forwarding = forwarding

    def _connect(self, address: str) -> Any:
        name = address.partition(":")[0]
        peers = [node.key for node in self._world.whole_nodes() if node.name == name]
        return self.port.connect(peers[-1] if peers else "")

    async def _live(self) -> None:
        core = self.core
        assert core is not None
        await core.start(self._running)
        await core.placement.until_formed()
        self.serves = True
        self._timeline.tell(self.name, "serves")

    async def _on_hand_off(self) -> None:
        """Does nothing: clients of the simulation do not ask for the node's health."""

    def _on_failure(self, error: BaseException) -> None:
        self._world.failed(self, error)

    def on_refused(self) -> None:
        self._world.refused(self)

    def failed(self, text: str, error: BaseException | None) -> None:
        """An exception on the event loop was not caught."""
        if self.loop.ended:
            return
        if error is None:
            error = RuntimeError(text)
        self._timeline.tell(self.name, f"{text}: {error!r}")
        self._world.failed(self, error)

    def crash(self, *, silent: bool = False) -> None:
        if not self.loops or self.loop.ended:
            return
        self.loop.end()
        self.serves = False
        self.core = None
        self._deliver = None
        answering, self._answering = self._answering, {}
        self._removing.clear()
        self.port.crash(silent=silent)
        super().crash(silent=silent)
        for each in answering:
            each.answer(None, Lost(self.name))

    def leave(self) -> None:
        """Ends the process in order, as an operator's stop does."""
        if self.serves and not self.paused and not self._leaving:
            self._timeline.note("leave", self.name)
            self._timeline.tell(self.name, "stops in order")
            self._leaving = True
            self.loop.start(self._leave())

    async def _leave(self) -> None:
        core = self.core
        assert core is not None
        await core.placement.hand_over(HAND_OVER_S)
        self.serves = False
        self.port.drain()
        await core.service.stop()
        await self._running.aclose()
        boots = self.boots

        def gone() -> None:
            if self.boots == boots and self.up:
                self.crash()
                self._watcher.stopped(self)

        self._timeline.after(0, gone)

    def pause(self) -> None:
        if self.listening:
            self.loop.pause()
        super().pause()

    def resume(self) -> None:
        if self.paused:
            super().resume()
            self.loop.resume()
            self.port.resumed()

    def dispose(self) -> None:
        for loop in self.loops:
            loop.dispose()

    def loop_goes_on(self) -> None:
        """Resumes the event loop, unless the whole process is paused."""
        if self.up and self.loop.paused and not self.paused:
            self.loop.resume()

    # --- turns -----------------------------------------------------------------------------

    def owes_us(self) -> int:
        """How long its turn has lasted, or by how much a wait is overdue."""
        now_us = self._timeline.now_us
        if now_us < self._free_us:
            return now_us - self._turned_us
        return max(0, now_us - self._wake_us) if self._wake_us >= 0 else 0

    def _turn(self) -> None:
        self._turned_us = self._timeline.now_us
        super()._turn()

    def turns_begin(self, deliver: Deliver, stopped: "asyncio.Future[None]") -> None:
        self._deliver, self._stopped = deliver, stopped
        self._network.came_up(self.endpoint)
        self._wake(self._timeline.now_us)

    def put(self, request: Request) -> None:
        if isinstance(request, Stop):
            self._stopping = True
            boots = self.boots
            self._timeline.after(STOP_WAIT_MS_MAX * MS, lambda: self._end_turns(boots))
        else:
            self._requests.append(request)
        self._wake(self._timeline.now_us + REQUEST_US)

    def _takes(self, requests: list[Request]) -> None:
        """Notes which replicas are removed and opened. The answers are futures of the event loop,
        which the host keeps.

        The order is that of the turns. The event loop may hear that a replica is gone when it has
        already asked for another one.
        """
        for request in requests:
            if isinstance(request, Remove):
                self._removing[request.future] = request.group
            elif isinstance(request, Open):
                self.removed.discard(request.group)

    def _note_removed(self, outcome: Outcome) -> None:
        for future, error in outcome.done:
            group = self._removing.pop(future, None)
            if group is not None and error is None:
                self.removed.add(group)

    def _answer_early(self, outcome: Outcome) -> None:
        self._hand_over(outcome)

    def _hand_over(self, outcome: Outcome) -> None:
        assert self._deliver is not None
        self.loop.call_soon(self._deliver, outcome)

    def _plan_answers(self, outcome: Outcome) -> None:
        self._note_removed(outcome)
        if not outcome and not self._stopping:
            return
        boots = self.boots

        def deliver() -> None:
            if self.turns is None or self.boots != boots:
                return
            if outcome:
                self._hand_over(outcome)
            if self._stopping and self.turns.all_answered:
                self._end_turns(boots)

        self._timeline.at(self._free_us, deliver)

    def _end_turns(self, boots: int) -> None:
        stopped = self._stopped
        if self.boots == boots and self.up and stopped is not None and not stopped.done():
            stopped.set_result(None)

    def on_message(self, peer: str, message: bytes) -> None:
        stuck = self._world.stuck
        super().on_message(peer, heard(message, stuck) if stuck else message)

    # --- calls from outside ------------------------------------------------------------------

    def node_calls(self, context: AcceptedStream) -> NodeCalls | None:
        if self.core is None or not self.serves:
            return None
        exchange = self.core.service.exchange
        assert exchange is not None
        return NodeCalls(
            context, "link", exchange, self._forwarding, Incoming().messages_of("link")
        )

    def call(
        self,
        work: Callable[[NodeCore], Awaitable[Any]],
        answer: Callable[[Any, BaseException | None], None],
    ) -> Callable[[], None]:
        """Has the process do what a client asks. The returned function cancels the call, as a
        transport does when the client has gone. Only while the process serves.
        """
        core = self.core
        assert core is not None
        loop = self.loop

        async def run() -> None:
            try:
                result = await work(core)
            except Exception as error:  # noqa: BLE001 - what the call has come to
                ended(None, error)
            else:
                ended(result, None)

        answering = _Answering(loop.start(run()), answer)
        self._answering[answering] = None

        def ended(result: Any, error: BaseException | None) -> None:
            if self._answering.pop(answering, 0) is None:
                answer(result, error)

        def cancel() -> None:
            if self._answering.pop(answering, 0) is None and not loop.ended:
                answering.task.cancel()

        return cancel
