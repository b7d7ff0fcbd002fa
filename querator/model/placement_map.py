"""The placement map: the nodes, the queues, the Raft group of each partition, and the nodes of each
group.

A map is one version (`epoch`) of the state that the placement group keeps. It is immutable: a later
version is another object, so a reader can keep one consistent map. A name belongs to at most one
queue at any time, in any state. The name of a queue that is being deleted is free again only when
the queue has left the map.

A group's replicas in the map are its *target*. The group's own configuration, which it keeps in its
log, is changed to match the target. Its *founding* replicas are the configuration with which it
began. They never change, so a founding replica that is opened late begins like the others.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Final

import msgspec

from querator.model.ids import DEFAULT_NAMESPACE, PLACEMENT_GROUP, GroupId, QueueId
from querator.model.nodes import NodeKey, Replica, Replicas, node_key
from querator.model.queues import Queue


class NodeState(Enum):
    """The state of a node; `placement.map.commands` has the transitions."""

    ACTIVE = "active"
    DRAINING = "draining"
    """Its replicas move to other nodes; it gets none."""
    LEAVING = "leaving"
    """As DRAINING; the node is removed when no replica is left."""
    REMOVED = "removed"
    """Its name is kept, so that it is refused when it returns."""
    FORGOTTEN = "forgotten"
    """As REMOVED, but its name may be used again, with other data."""


_FIRST_GROUP: Final = GroupId(PLACEMENT_GROUP + 1)
_GONE: Final = (NodeState.REMOVED, NodeState.FORGOTTEN)


_MAP_VOTERS: Final = ((7, 5), (3, 3), (0, 1))
"""(Nodes that take replicas, from this number on; replicas of the placement group that vote.)"""


def map_voters_wanted(nodes: int) -> int:
    """The number of voters of the placement group, when `nodes` nodes take replicas."""
    return next(voters for least, voters in _MAP_VOTERS if nodes >= least)


class PlacedNode(msgspec.Struct, frozen=True, array_like=True):
    """A node as it described itself at its last start. Addresses are `HOST:PORT`.

    `boots` counts the starts on this copy of its data. `handoff_boots` is the start in which the
    node last gave its leaderships away (0: in none); it gets none until it starts again. `state` is
    set by operators.
    """

    name: str
    incarnation: str
    peer_address: str
    client_address: str
    zone: str = ""
    boots: int = 1
    version: str = ""
    handoff_boots: int = 0
    state: NodeState = NodeState.ACTIVE

    @property
    def key(self) -> NodeKey:
        return node_key(self.name, self.incarnation)

    @property
    def takes_leaderships(self) -> bool:
        return self.handoff_boots < self.boots

    @property
    def takes_replicas(self) -> bool:
        return self.state is NodeState.ACTIVE

    def as_known(self, known: "PlacedNode") -> "PlacedNode":
        """The node, with the fields that a node does not set itself taken from `known`."""
        return msgspec.structs.replace(self, handoff_boots=known.handoff_boots, state=known.state)


class PlacedGroup(msgspec.Struct, frozen=True, array_like=True):
    """The places of a group's replicas. `next_replica` is an id that no replica of the group ever
    had; `preferred` is the id of the replica that should lead when it can. `moving`: the target has
    changed, and the group's leader has not yet reported that its configuration is the same; until
    then the target stays. `former` are the nodes that had voters before the move began; empty
    otherwise. `next_added`: the group's leader has given up a target of this move. Replicas with
    lower ids have all been in the configuration, and one that has left is never added again.
    """

    founding: Replicas
    target: Replicas
    next_replica: int
    preferred: int
    moving: bool = False
    former: tuple[NodeKey, ...] = ()
    next_added: int = 0

    @property
    def voters(self) -> tuple[NodeKey, ...]:
        """The nodes of the target that vote."""
        return tuple(replica.node for replica in self.target if replica.voter)

    def replica_on(self, node: NodeKey) -> Replica | None:
        """The replica that the node should hold."""
        return next((replica for replica in self.target if replica.node == node), None)


class PlacementMap:
    """One version of the map. Lookups cost O(1) and ignore queue states: callers decide how to
    treat a CREATING or DELETING queue.
    """

    __slots__ = (
        "_by_group",
        "_by_id",
        "_by_name",
        "_groups",
        "_namespaces",
        "_nodes",
        "cluster_id",
        "epoch",
        "next_group",
    )

    def __init__(
        self,
        epoch: int = 0,
        namespaces: Iterable[str] = (),
        queues: Iterable[Queue] = (),
        *,
        cluster_id: str = "",
        nodes: Iterable[PlacedNode] = (),
        groups: Mapping[GroupId, PlacedGroup] | None = None,
        next_group: GroupId = _FIRST_GROUP,
    ) -> None:
        """Costs O(queues × partitions). Names, ids and groups must be unique (asserted)."""
        self.epoch = epoch
        self.next_group = next_group
        """No map up to this one has named a group of this id or a higher one."""
        self.cluster_id = cluster_id
        """Empty until the cluster is formed."""
        self._namespaces: frozenset[str] = frozenset(namespaces)
        self._by_id: dict[QueueId, Queue] = {}
        self._by_name: dict[tuple[str, str], Queue] = {}
        self._by_group: dict[GroupId, tuple[Queue, int]] = {}
        self._nodes: dict[str, PlacedNode] = {node.name: node for node in nodes}
        self._groups: dict[GroupId, PlacedGroup] = dict(groups or {})
        for queue in queues:
            self._put(queue)

    def _put(self, queue: Queue) -> None:
        assert queue.namespace in self._namespaces
        named = self._by_name.get((queue.namespace, queue.name))
        assert named is None or named.id == queue.id, "a name belongs to one queue"
        self._by_id[queue.id] = queue
        self._by_name[queue.namespace, queue.name] = queue
        for partition, group in enumerate(queue.groups):
            other = self._by_group.get(group)
            assert other is None or other[0].id == queue.id, "a group belongs to one queue"
            self._by_group[group] = (queue, partition)

    def evolve(
        self,
        epoch: int,
        *,
        put: Iterable[Queue] = (),
        gone: QueueId | None = None,
        cluster_id: str = "",
        nodes: Iterable[PlacedNode] = (),
        groups: Mapping[GroupId, PlacedGroup] | None = None,
    ) -> "PlacementMap":
        """The map of the next epoch. Queues are added or replaced (with their namespaces). One
        queue is left out with its groups and, if it was the last one there, its namespace. Nodes
        and groups are added or replaced, and the cluster id is set if given. Groups that a queue
        has no more leave the map. Copies dictionaries: about 20 µs for 1,000 partitions.
        """
        assert epoch > self.epoch
        after = PlacementMap(
            epoch,
            self._namespaces,
            cluster_id=cluster_id or self.cluster_id,
            next_group=self.next_group,
        )
        after._by_id = self._by_id.copy()
        after._by_name = self._by_name.copy()
        after._by_group = self._by_group.copy()
        after._nodes = self._nodes | {node.name: node for node in nodes}
        after._groups = {**self._groups, **groups} if groups else self._groups.copy()
        if gone is not None:
            queue = after._by_id.pop(gone)
            del after._by_name[queue.namespace, queue.name]
            after._leave(queue.groups)
            if queue.namespace != DEFAULT_NAMESPACE and not after.queues(queue.namespace):
                after._namespaces -= {queue.namespace}
        for queue in put:
            after._namespaces |= {queue.namespace}
            before = after._by_id.get(queue.id)
            if before is not None:
                after._leave(group for group in before.groups if group not in queue.groups)
            after._put(queue)
            after.next_group = GroupId(max(after.next_group, queue.groups[-1] + 1))
        return after

    def _leave(self, groups: Iterable[GroupId]) -> None:
        for group in groups:
            del self._by_group[group]
            self._groups.pop(group, None)

    # --- queues ------------------------------------------------------------------

    def find(self, namespace: str, name: str) -> Queue | None:
        """The queue of this name, in any state."""
        return self._by_name.get((namespace, name))

    def get(self, queue_id: QueueId) -> Queue | None:
        return self._by_id.get(queue_id)

    def by_group(self, group: GroupId) -> tuple[Queue, int] | None:
        """The queue that the group belongs to, and the number of the partition it holds."""
        return self._by_group.get(group)

    def has_namespace(self, namespace: str) -> bool:
        return namespace in self._namespaces

    @property
    def namespaces(self) -> tuple[str, ...]:
        """The namespaces, by name."""
        return tuple(sorted(self._namespaces))

    def queues(self, namespace: str) -> tuple[Queue, ...]:
        """The queues of a namespace, by name; empty when it is unknown. Scans all queues."""
        found = [queue for queue in self._by_id.values() if queue.namespace == namespace]
        return tuple(sorted(found, key=lambda queue: queue.name))

    def __iter__(self) -> Iterator[Queue]:
        """All queues, in no defined order."""
        return iter(self._by_id.values())

    def __len__(self) -> int:
        """Number of queues."""
        return len(self._by_id)

    @property
    def partitions(self) -> int:
        """Number of partitions of all queues."""
        return len(self._by_group)

    # --- nodes and replicas ------------------------------------------------------

    @property
    def nodes(self) -> tuple[PlacedNode, ...]:
        """The nodes by name, without those that were removed."""
        return tuple(node for node in self._by_node_name() if node.state not in _GONE)

    @property
    def removed(self) -> tuple[PlacedNode, ...]:
        """The removed nodes by name, also those whose names may be used again."""
        return tuple(node for node in self._by_node_name() if node.state in _GONE)

    def _by_node_name(self) -> list[PlacedNode]:
        return sorted(self._nodes.values(), key=lambda node: node.name)

    def node(self, name: str) -> PlacedNode | None:
        """The node of this name, unless it was removed."""
        known = self._nodes.get(name)
        return None if known is None or known.state in _GONE else known

    @property
    def groups(self) -> Mapping[GroupId, PlacedGroup]:
        """The places of each group's replicas, the placement group included."""
        return self._groups

    def placed(self, group: GroupId) -> PlacedGroup | None:
        return self._groups.get(group)

    def replicas(self, group: GroupId) -> Replicas:
        """The group's target; empty for a group that is not in the map."""
        placed = self._groups.get(group)
        return () if placed is None else placed.target

    def preferred(self, group: GroupId) -> NodeKey | None:
        """The node that should lead the group when it can."""
        placed = self._groups.get(group)
        if placed is None:
            return None
        return next(
            (replica.node for replica in placed.target if replica.id == placed.preferred), None
        )

    def holders(self, queue: Queue) -> frozenset[NodeKey]:
        """The nodes that should hold replicas of the queue's partitions."""
        return frozenset(replica.node for group in queue.groups for replica in self.replicas(group))
