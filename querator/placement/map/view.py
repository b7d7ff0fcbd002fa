"""What a placement rule looks at, and what it may change."""

from collections.abc import Mapping

import msgspec

from querator.model.commands import Done, Refusal
from querator.model.ids import GroupId, QueueId
from querator.model.nodes import NodeKey
from querator.model.placement_map import PlacedGroup, PlacedNode, PlacementMap
from querator.model.queues import Queue
from querator.placement.map.commands import QueueCreated, QueueDeleted, QueueUpdated


class View(msgspec.Struct, frozen=True):
    """What a rule may look at. `configured` has the version of the settings that all partitions of
    a queue are known to have, `deleted_on` the nodes that hold nothing any more of a queue that is
    being deleted, `closed_on` those whose replicas of it take part in nothing any more; `now_ms`
    never goes backwards.
    """

    map: PlacementMap
    configured: dict[QueueId, int]
    deleted_on: dict[QueueId, tuple[NodeKey, ...]]
    next_queue_id: QueueId
    now_ms: int
    closed_on: dict[QueueId, tuple[NodeKey, ...]] = {}


class Change(msgspec.Struct, frozen=True):
    """What a command does. `put` replaces the queue of its id; `configured`, `deleted_on` and
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
