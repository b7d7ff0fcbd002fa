"""What a node does, periodically, for the groups that it leads. No other node triggers it, and
failed work is checked again a moment later.

    it leads               and it sees                                   it does
    anything, or nothing   that a node without a cluster has asked it    JoinNode
    the placement group    that a connected node describes itself        RegisterNode
                           differently than the map does
    the placement group    that replicas should be elsewhere             PlaceGroups, a few at a
                           (`placement.tasks.balancing`)                  time
    the placement group    that a node that leaves has no replica of     NodeGone
                           it any more, which is its last one
    a group                that it is moving, and its replicas are       GroupSettled
                           those of the map
    a group                that it is moving, and can never arrive       GiveUpTarget
    a group                that its replicas are not those of the map    `placement.tasks.steps`
    a group                that the map prefers another leader, which    transfers the leadership,
                           could lead                                    a few at a time
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import msgspec

from querator import telemetry
from querator.model.commands import Refusal
from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import PLACEMENT_GROUP, GroupId
from querator.model.nodes import NodeKey
from querator.model.placement_map import NodeState, PlacedNode, PlacementMap
from querator.placement.bootstrap import Propose
from querator.placement.map.commands import (
    Command,
    GiveUpTarget,
    GroupSettled,
    HandOffNode,
    JoinNode,
    NodeGone,
    PlaceGroups,
    RegisterNode,
)
from querator.placement.map.majorities import is_deleting
from querator.placement.tasks.balancing import next_places, planned
from querator.placement.tasks.group_worklist import GroupWorklist, some_at_once
from querator.placement.tasks.plan import Placing
from querator.placement.tasks.steps import (
    LeadershipTransfer,
    has_settled,
    is_out_of_reach,
    moves_home,
    next_step,
    transfer_target,
)
from querator.raft.configuration import Change
from querator.raft.host import Host

ROUND_S = 0.5
CHANGING_MAX = 4
"""Groups whose replicas change at once: learners that catch up use disk and network."""
HOMEWARD_AGAIN_S = 10.0
"""A leadership that was not accepted, or came back, is offered again after this time."""
HANDING_MAX = 16
"""Leaderships that are transferred at once when the node is about to stop."""
HANDING_PAUSE_S = 0.05
ANNOUNCE_S = 1.0
"""Limit of one attempt to tell the map that this node has handed off. The node hands off even if
that fails.
"""

Newcomers = Callable[[], Iterable[PlacedNode]]
"""Nodes without a cluster that have asked this one since the last call."""
Connected = Callable[[], Mapping[NodeKey, PlacedNode]]
"""The nodes with open connections, as they describe themselves."""

_log = telemetry.logger(__name__)


class HandoffOutcome(msgspec.Struct, frozen=True):
    """The outcome of a handover of all leaderships. `left` are groups that no other node could take
    over.
    """

    moved: int
    left: tuple[GroupId, ...]


class LeaderTasks:
    """Belongs to one event loop. The owner runs `run`, and may call `hand_over` meanwhile."""

    def __init__(
        self,
        host: Host,
        placed: Callable[[], PlacementMap],
        *,
        node: NodeKey,
        propose: Propose,
        connected: Connected,
        said: Callable[[], PlacedNode],
        newcomers: Newcomers = tuple,
    ) -> None:
        """`said` returns this node's own description. `newcomers` returns the nodes that have asked
        to join since the last call.
        """
        self._host = host
        self._placed = placed
        self._node = node
        self._propose = propose
        self._connected = connected
        self._said = said
        self._newcomers = newcomers
        self._joining: set[str] = set()
        self._plan: tuple[int, Mapping[GroupId, Placing]] = (-1, {})
        """The plan for the map of an epoch."""
        self._balanced_epoch = -1
        """Epoch of the last map that needed no changes of places."""
        self._changing: set[GroupId] = set()
        self._offered_s: dict[GroupId, float] = {}
        self._declined: dict[GroupId, Counter[NodeKey]] = {}
        """How often nodes did not accept the leadership of a group that this node must give up."""
        self._led = GroupWorklist()
        self.handing = False
        """Whether this node has handed off, or is doing it: it takes no leadership."""
        self._announcing = False

    async def run(self) -> None:
        """Runs until cancelled. Raises any error that is not a QueratorError: a defect."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self._register()
                await self._arrange()
                for newcomer in self._newcomers():
                    if self._may_join(newcomer):
                        self._joining.add(newcomer.name)
                        tasks.create_task(self._take_in(newcomer))
                now_s = asyncio.get_running_loop().time()
                self._led.refresh(self._host.led_groups, self._placed(), now_s)
                for group in self._declined.keys() - self._host.led_groups - self._changing:
                    del self._declined[group]
                for group in self._led.left:
                    if group not in self._changing:
                        if len(self._changing) < CHANGING_MAX and self._next(group) is not None:
                            self._changing.add(group)
                            tasks.create_task(self._change(group))
                        elif self._report(group) is not None:
                            self._changing.add(group)
                            tasks.create_task(self._tell(group))
                        elif self._is_done(group):
                            self._led.done(group)
                if self.handing:
                    if self._must_announce():
                        self._announcing = True
                        tasks.create_task(self._announce())
                    # A leadership may have been on its way here when the handoff was announced.
                    await self._hand_over_some(Counter())
                else:
                    await self._move_home()
                await asyncio.sleep(ROUND_S)

    # --- registering -------------------------------------------------------------

    async def _register(self) -> None:
        """Proposes nodes' changed descriptions to the map, while this node leads it."""
        if not self._host.leads(PLACEMENT_GROUP):
            return
        for said in (self._said(), *self._connected().values()):
            known = self._placed().node(said.name)
            if known is None or not differs(said, known):
                continue
            if await self._proposed(RegisterNode(said)):
                _log.info("placement.node_registered", name=said.name, boots=said.boots)

    def _may_join(self, newcomer: PlacedNode) -> bool:
        placed = self._placed()
        known = placed.node(newcomer.name)
        return bool(placed.nodes) and known is None and newcomer.name not in self._joining

    async def _take_in(self, newcomer: PlacedNode) -> None:
        """Proposes a node that wants to join to the leader of the map."""
        try:
            if await self._proposed(JoinNode(newcomer)):
                _log.info("placement.node_joined", name=newcomer.name)
        finally:
            self._joining.discard(newcomer.name)

    async def _proposed(self, command: Command) -> bool:
        """Proposes a command for the map; whether it was carried out. A failure is logged."""
        try:
            result = await self._propose(PLACEMENT_GROUP, command)
        except QueratorError as error:
            _log.info("placement.proposal_failed", command=repr(command), error=str(error))
            return False
        if isinstance(result, Refusal):
            _log.warning("placement.refused", command=repr(command), reason=result.message)
            return False
        return True

    def _must_announce(self) -> bool:
        """Whether the map does not say that this node has handed off. Without a majority, the
        announcement before the handoff fails.
        """
        known = self._placed().node(self._said().name)
        return not self._announcing and known is not None and known.takes_leaderships

    async def report_handoff(self) -> None:
        """Tells the map that this node has handed off. A failure is logged. Raises TimeoutError
        after ANNOUNCE_S without an answer.
        """
        said = self._said()
        async with asyncio.timeout(ANNOUNCE_S):
            await self._proposed(HandOffNode(said.name, said.incarnation, said.boots))

    async def _announce(self) -> None:
        try:
            with contextlib.suppress(TimeoutError):
                await self.report_handoff()
        finally:
            self._announcing = False

    # --- replicas ----------------------------------------------------------------

    async def _arrange(self) -> None:
        """Proposes places for replicas, a few groups at a time, while this node leads the map."""
        placed = self._placed()
        if not self._host.leads(PLACEMENT_GROUP) or placed.epoch == self._balanced_epoch:
            return
        if placed.epoch != self._plan[0]:
            self._plan = placed.epoch, await asyncio.to_thread(planned, placed)
        connected = (self._node, *self._connected())
        if places := next_places(placed, self._plan[1], connected):
            await self._proposed(PlaceGroups(places))
            return
        staying = [one for one in placed.groups if not is_deleting(placed, one)]
        if any(placed.groups[one].moving for one in staying):
            return
        leaving = [node for node in placed.nodes if node.state is NodeState.LEAVING]
        for node in leaving:
            if placed.groups[PLACEMENT_GROUP].replica_on(node.key) is None:
                await self._proposed(NodeGone(node.name))
        if not leaving:
            self._balanced_epoch = placed.epoch

    def _report(self, group: GroupId) -> GroupSettled | GiveUpTarget | None:
        """The end of the group's move, if it has arrived, or never can."""
        status, placed = self._host.status(group), self._placed().placed(group)
        if status is None or placed is None or not status.leads:
            return None
        if has_settled(status, placed):
            return GroupSettled(group, placed.next_replica)
        committed = status.replicas_index <= status.commit_index
        if committed and is_out_of_reach(status.replicas, placed, lost=self._is_lost):
            voters = tuple(replica for replica in status.replicas if replica.voter)
            return GiveUpTarget(group, placed.next_replica, voters, status.replica)
        return None

    async def _tell(self, group: GroupId) -> None:
        try:
            report = self._report(group)
            if report is not None and self._host.leads(group) and await self._proposed(report):
                if isinstance(report, GiveUpTarget):
                    _log.info("placement.target_given_up", group=group, voters=report.voters)
        finally:
            self._changing.discard(group)

    def _is_done(self, group: GroupId) -> bool:
        """Whether no work is pending, by this map."""
        status, placed = self._host.status(group), self._placed().placed(group)
        return (
            status is not None
            and placed is not None
            and not placed.moving
            and status.replicas == placed.target
            and self._placed().preferred(group) == self._node
        )

    def _next(self, group: GroupId) -> Change | LeadershipTransfer | None:
        status, placed = self._host.status(group), self._placed().placed(group)
        if status is None or placed is None:
            return None
        return next_step(
            status.replicas,
            placed,
            own=status.replica,
            lost=self._is_lost,
            declined=self._declined.get(group, {}),
        )

    def _is_lost(self, node: NodeKey) -> bool:
        """Whether the node was replaced, or is being removed while it is down."""
        known = self._placed().node(node.partition("/")[0])
        if known is None or known.key != node:
            return True
        leaves = known.state is NodeState.LEAVING
        return leaves and node not in (self._node, *self._connected())

    async def _change(self, group: GroupId) -> None:
        """Takes the next steps of one group, until one is refused or none is left."""
        try:
            while self._host.leads(group) and (step := self._next(group)) is not None:
                if isinstance(step, LeadershipTransfer):
                    self._declined.setdefault(group, Counter())[step.to] += 1
                    await self._host.transfer(group, step.to)
                    del self._declined[group]
                    return
                await self._host.change_replicas(group, step)
                _log.info("placement.replicas_changed", group=group, step=repr(step))
        except QueratorError as error:
            if error.code not in (ErrorCode.UNAVAILABLE, ErrorCode.NOT_LEADER):
                _log.warning("placement.replica_change_failed", group=group, error=str(error))
        finally:
            self._led.tried(group)
            self._changing.discard(group)

    # --- leaderships -------------------------------------------------------------

    def _able(self) -> set[NodeKey]:
        """The connected nodes that take leaderships."""
        placed = self._placed()
        return {
            key
            for key in self._connected()
            if (known := placed.node(key.partition("/")[0])) is not None
            and known.key == key
            and known.takes_leaderships
        }

    async def _move_home(self) -> None:
        """Transfers a few leaderships to the preferred nodes."""
        able = self._able()
        if not able:
            return
        placed, now_s = self._placed(), asyncio.get_running_loop().time()
        homeward = {
            group: preferred
            for group in self._led.left
            if (preferred := placed.preferred(group)) is not None
            and preferred in able
            and self._may_go(group, preferred, able, now_s)
        }
        async with asyncio.TaskGroup() as tasks:
            for group in some_at_once(homeward, placed):
                self._offered_s[group] = now_s + HOMEWARD_AGAIN_S
                tasks.create_task(self._transfer(group, homeward[group]))

    def _may_go(self, group: GroupId, preferred: NodeKey, able: set[NodeKey], now_s: float) -> bool:
        """Whether the leadership may move to the preferred node, which is one of the able ones."""
        if group in self._changing or not self._host.leads(group):
            return False
        status = self._host.status(group)
        if status is None or now_s < self._offered_s.get(group, 0.0):
            return False
        led_s = self._led.led_s(group, now_s)
        return moves_home(status, self._placed().replicas(group), preferred, able, led_s=led_s)

    async def _transfer(self, group: GroupId, to: NodeKey) -> bool:
        """Transfers the leadership; whether that succeeded."""
        try:
            await self._host.transfer(group, to)
        except QueratorError as error:
            _log.info("placement.leadership_not_transferred", group=group, to=to, error=str(error))
            return False
        _log.debug("placement.leadership_transferred", group=group, to=to)
        return True

    async def hand_over(self, timeout_s: float) -> HandoffOutcome:
        """Transfers all leaderships that other nodes can take over, within the timeout. From then
        on this node transfers any leadership that it gets.
        """
        self.handing = True
        loop = asyncio.get_running_loop()
        until_s = loop.time() + timeout_s
        given: Counter[NodeKey] = Counter()
        while self._followed() and loop.time() < until_s:
            if not await self._hand_over_some(given):
                await asyncio.sleep(HANDING_PAUSE_S)
        kept = tuple(sorted(self._host.led_groups))
        return HandoffOutcome(moved=given.total(), left=kept)

    async def _hand_over_some(self, given: Counter[NodeKey]) -> bool:
        """Transfers leaderships concurrently and counts them; whether there were some and all
        succeeded.
        """
        async with asyncio.TaskGroup() as tasks:
            moves = [
                (group, to, tasks.create_task(self._transfer(group, to)))
                for group, to in self._heirs(given)[:HANDING_MAX]
            ]
        given.update(to for _, to, move in moves if move.result())
        for group, to, move in moves:
            if not move.result():
                self._declined.setdefault(group, Counter())[to] += 1
        return bool(moves) and all(move.result() for *_, move in moves)

    def _followed(self) -> bool:
        """Whether this node leads a group that another node may take over, now or later."""
        able = self._able()
        return any(
            follower.voter and follower.node in able
            for group in self._host.led_groups
            if (status := self._host.status(group)) is not None
            for follower in status.followers
        )

    def _heirs(self, given: Mapping[NodeKey, int]) -> list[tuple[GroupId, NodeKey]]:
        """The groups led here that another node can take over, each with that node."""
        able, promised = self._able(), Counter(given)
        found = []
        for group in sorted(self._host.led_groups):
            status = self._host.status(group)
            if status is None:
                continue
            to = transfer_target(
                status,
                self._placed().preferred(group),
                able - {self._node},
                promised,
                self._declined.get(group, {}),
            )
            if to is not None:
                promised[to] += 1
                found.append((group, to))
        return found


def differs(said: PlacedNode, known: PlacedNode) -> bool:
    """Whether the map should adopt a node's description: not of other data, nor of an earlier
    start.
    """
    if said.incarnation != known.incarnation or said.boots < known.boots:
        return False
    return said.as_known(known) != known
