"""Machines that come and go: one that loses its disk and is replaced by an empty one, nodes that
are drained and taken back, and one that is removed.

The replacement is real (the operator's call, the map, the repair of all groups), except for the
questions at the peer port: the world describes the waiting node, which gets its place when the map
has it. Likewise the removal: the world ends the process of a node that the map has removed, as the
refusal at the peer port does.
"""

import asyncio
from typing import TYPE_CHECKING

from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import PLACEMENT_GROUP, GroupId
from querator.model.nodes import NodeKey, Replicas
from querator.model.placement_map import PlacedNode
from querator.placement.bootstrap import learning
from querator.placement.joining.formation import VERSION, Description
from tests.simulation.timeline import MS, SECOND
from tests.simulation.whole.node import WholeNode
from tests.simulation.whole.programs import Calling, Program

if TYPE_CHECKING:
    from tests.simulation.whole.world import WholeWorld

AGAIN_S = 0.5
LOOK_US = 10 * MS
ARRIVALS = 100
"""How often the operator looks for nodes to which partitions move."""


class Replacing:
    """The replacement or the removal of one run, in which at most one disk is lost, or one node is
    removed.
    """

    def __init__(self, world: "WholeWorld") -> None:
        self.lost: WholeNode | None = None
        self.waiting: WholeNode | None = None
        """The empty node, until it has a place."""
        self.leaving: WholeNode | None = None
        """The node that is removed, or was."""
        self._world = world

    def is_allowed(self) -> bool:
        """Whether everything is whole."""
        world = self._world
        return (
            self.lost is None
            and len(world.whole_nodes()) > 2
            and all(node.serves for node in world.whole_nodes())
            and not self.unrepaired()
        )

    def lose(self, node: WholeNode) -> None:
        world = self._world
        world.timeline.note("lost disk", node.key)
        world.timeline.tell(node.name, "its disk is LOST")
        node.crash(silent=True)
        node.gone = True
        self.lost = node
        self.waiting = world.make_node(int(node.name.removeprefix("n")), "2")
        operator = Calling(world, "replacing", "", world.faults._chance)
        world.client_loop.start(self._replace(operator, node.name)).add_done_callback(
            world._program_ended
        )

    def description(self, node: PlacedNode) -> Description | str:
        """What a node answers when another one asks for its description."""
        waiting = self.waiting
        if waiting is None or waiting.name != node.name:
            return "nobody answers"
        return Description(VERSION, _said(waiting), ())

    async def _replace(self, operator: Calling, name: str) -> None:
        waiting = self.waiting
        assert waiting is not None
        while not (place := self._place(waiting.key)):
            ended = await operator.call(
                "replace", lambda core: core.cluster.replace(name), again=True
            )
            # The node has its place, and the answer to that was lost; or a change is under way.
            allowed = (ErrorCode.INVALID_ARGUMENT, ErrorCode.VERSION_CONFLICT)
            if ended.error is not None and ended.error.code not in allowed:
                operator.unexpected("a replacement", ended)
            await asyncio.sleep(AGAIN_S)
        self.waiting = None
        waiting.joins = place
        self._world.bring_in(waiting)

    def _place(self, key: NodeKey) -> Replicas:
        """Its initial replicas; empty: the map does not have it yet."""
        replicas = learning(self._world.newest_map().replicas(PLACEMENT_GROUP), key)
        return replicas if any(replica.node == key for replica in replicas) else ()

    def unrepaired(self) -> str:
        """A group that lacks one of its replicas, as text."""
        world = self._world
        if self.waiting is not None:
            return f"{self.waiting.name} waits to be taken in"
        if self.leaving is not None and not self.has_left():
            return f"{self.leaving.name} is not removed"
        placed = world.newest_map()
        for group in (PLACEMENT_GROUP, *(group for _, _, group in world._groups())):
            found = world.leader(group)
            if found is None:
                return f"group {group} has no leader"
            replicas = found[1].replicas
            there = placed.placed(GroupId(group))
            if any(not replica.voter or world.is_gone(replica.node) for replica in replicas):
                return f"group {group} has the replicas {replicas}"
            if there is None or there.moving or _nodes(there.target) != _nodes(replicas):
                return f"group {group} has the replicas {replicas}, and should have {there}"
        return ""

    # --- removing ------------------------------------------------------------------------

    def arriving(self) -> list[WholeNode]:
        """The nodes that should vote in a group and do not yet."""
        world, found = self._world, set[NodeKey]()
        for group, known in world.newest_map().groups.items():
            led = world.leader(group) if known.moving else None
            if led is not None:
                voting = {replica.id for replica in led[1].replicas if replica.voter}
                found |= {one.node for one in known.target if one.voter and one.id not in voting}
        return [node for node in world.whole_nodes() if node.key in found]

    def go_down(self, node: WholeNode, *, back_us: int) -> None:
        """The node goes down, and is to be removed. It comes back after `back_us`; 0: never."""
        world = self._world
        world.timeline.note("goes for ever", node.key, back_us)
        world.timeline.tell(node.name, f"goes down, and is to be removed; is back after {back_us}")
        self.leaving = node
        node.crash(silent=True)
        node.gone = True
        if back_us:
            world.timeline.after(back_us, self._come_back)

    def has_left(self) -> bool:
        assert self.leaving is not None
        return self._world.newest_map().node(self.leaving.name) is None

    def _come_back(self) -> None:
        node = self.leaving
        assert node is not None
        if not self.has_left():
            node.gone = False
            node.start()
            self._end_when_it_has_left()

    def _end_when_it_has_left(self) -> None:
        node = self.leaving
        assert node is not None
        if self.has_left():
            node.crash()
            node.gone = True
        else:
            self._world.timeline.after(LOOK_US, self._end_when_it_has_left)


def _nodes(replicas: Replicas) -> set[NodeKey]:
    return {replica.node for replica in replicas}


def _said(node: WholeNode) -> PlacedNode:
    return PlacedNode(
        node.name,
        node.key.rpartition("/")[2],
        peer_address=f"{node.name}:7472",
        client_address=f"{node.name}:7471",
    )


class Retiring(Program):
    """Drains a node, and takes it back."""

    _drained = ""

    async def act(self) -> None:
        if self._drained:
            await self._drain(self._drained, undo=True)
        else:
            await self._drain(self._chance.choice(self._ground.whole_nodes()).name, undo=False)

    async def finish(self) -> None:
        while self._drained:
            await self._drain(self._drained, undo=True)

    async def _drain(self, name: str, *, undo: bool) -> None:
        self._drained = name
        ended = await self.call(
            "drain", lambda core: core.cluster.drain(name, undo=undo), again=True
        )
        if ended.error is not None and self._has_left(ended.error):
            self._drained = ""
        elif ended.error is not None:
            self.unexpected("a drain", ended)
        elif undo and not ended.gave_up:
            self._drained = ""

    def _has_left(self, error: QueratorError) -> bool:
        """Whether the node cannot be drained, nor taken back, because it is removed."""
        return False


class Removing(Retiring):
    """Drains nodes and takes them back, until one goes down for good, often one to which partitions
    move. That one is removed, also if it has come back meanwhile.
    """

    async def act(self) -> None:
        replacing = self._ground.replacing
        if replacing.leaving is not None:
            await self._remove(replacing.leaving)
        elif self._drained and self._chance.random() < 0.7:
            victim = await self._victim()
            back_us = self._chance.choice((0, 400 * MS, 700 * MS, 2 * SECOND))
            replacing.go_down(victim, back_us=back_us)
            await self._remove(victim)
        else:
            await super().act()

    async def finish(self) -> None:
        replacing = self._ground.replacing
        leaving = replacing.leaving
        while leaving is not None and not replacing.has_left():
            await self._remove(leaving)
            await asyncio.sleep(AGAIN_S)
        if leaving is not None and self._drained == leaving.name:
            self._drained = ""
        await super().finish()

    def _has_left(self, error: QueratorError) -> bool:
        # A node with an older map may have refused the removal, which was decided.
        replacing = self._ground.replacing
        left = replacing.leaving is not None and replacing.has_left()
        return left or "is leaving" in error.message

    async def _victim(self) -> WholeNode:
        for _ in range(ARRIVALS):
            if arriving := self._ground.replacing.arriving():
                return self._chance.choice(arriving)
            await asyncio.sleep(LOOK_US / SECOND)
        return self._chance.choice(self._ground.whole_nodes())

    async def _remove(self, node: WholeNode) -> None:
        """One attempt. The nodes that stay must be able to take all replicas."""
        if self._drained not in ("", node.name):
            await self._drain(self._drained, undo=True)
        ended = await self.call("remove", lambda core: core.cluster.remove(node.name), again=True)
        error = ended.error
        if error is None or self._ground.replacing.has_left():
            return
        if "which is up" not in error.message:
            self.unexpected("a removal", ended)
        elif self._drained != node.name:
            await self._drain(node.name, undo=False)


REPAIRED_US = 60 * SECOND
"""Within this time after the last fault every group has its replicas."""
