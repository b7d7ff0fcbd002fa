"""The input of a placement rule, and the change that it returns."""

from collections.abc import Mapping

import msgspec

from querator.model.commands import Done, Refusal
from querator.model.ids import GroupId, QueueId
from querator.model.nodes import NodeKey
from querator.model.placement_map import PlacedGroup, PlacedNode, PlacementMap
from querator.model.queues import Queue
from querator.placement.map.commands import QueueCreated, QueueDeleted, QueueUpdated


class View(msgspec.Struct, frozen=True):
    """The input of a rule. `configured` has the version of the settings that all partitions of a
    queue are known to have, `deleted_on` the nodes that have deleted their data of a queue that is
    being deleted, `closed_on` the nodes that have closed their replicas of it. `now_ms` never
    decreases.
    """

    map: PlacementMap
    configured: dict[QueueId, int]
    deleted_on: dict[QueueId, tuple[NodeKey, ...]]
    next_queue_id: QueueId
    now_ms: int
    closed_on: dict[QueueId, tuple[NodeKey, ...]] = {}


class Change(msgspec.Struct, frozen=True):
    """The effect of a command. `put` replaces the queue with its id; `configured`, `deleted_on` and
    `closed_on` belong to it. `also` are other queues, whose settings have another version. `nodes`
    and `groups` are added or replaced; `cluster_id` is set when it is not empty.
    """

    result: Refusal | QueueCreated | QueueUpdated | QueueDeleted | Done
    put: Queue | None = None
    configured: int = 0
    deleted_on: tuple[NodeKey, ...] = ()
    also: tuple[Queue, ...] = ()
    gone: QueueId | None = None
    cluster_id: str = ""
    nodes: tuple[PlacedNode, ...] = ()
    groups: Mapping[GroupId, PlacedGroup] = {}
    closed_on: tuple[NodeKey, ...] = ()

    @property
    def changes(self) -> bool:
        return bool(
            self.put or self.gone is not None or self.cluster_id or self.nodes or self.groups
        )
