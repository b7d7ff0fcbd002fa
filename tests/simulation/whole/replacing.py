"""Machines that come and go: one that loses its disk and is replaced by an empty one, and nodes
that are drained and taken back.

The replacement is real (the operator's call, the map, the repair of all groups), except for the
questions at the peer port: the world describes the waiting node, which gets its place when the map
has it.
"""

import asyncio
from typing import TYPE_CHECKING

from querator.model.errors import ErrorCode
from querator.model.ids import PLACEMENT_GROUP, GroupId
from querator.model.nodes import NodeKey, Replicas
from querator.model.placement_map import PlacedNode
from querator.placement.bootstrap import learning
from querator.placement.joining.formation import VERSION, Description
from tests.simulation.timeline import SECOND
from tests.simulation.whole.node import WholeNode
from tests.simulation.whole.programs import Calling, Program

if TYPE_CHECKING:
    from tests.simulation.whole.world import WholeWorld

AGAIN_S = 0.5


class Replacing:
    """The replacement of one run, in which at most one disk is lost."""

    def __init__(self, world: "WholeWorld") -> None:
        self.lost: WholeNode | None = None
        self.waiting: WholeNode | None = None
        """The empty node, until it has a place."""
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
        if ended.error is not None:
            self.unexpected("a drain", ended)
        elif undo and not ended.gave_up:
            self._drained = ""


REPAIRED_US = 60 * SECOND
"""Within this time after the last fault every group has its replicas."""
