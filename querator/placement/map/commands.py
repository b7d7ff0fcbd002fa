"""Commands that change the placement map, and their results.

The life of a queue; a command that is not listed for a state is refused or changes nothing:

    state      command           next       proposed by
    (none)     CreateQueue       CREATING   a client
    CREATING   QueueConfigured   ACTIVE     the leader of group 0, when all partitions have their
                                            settings
    CREATING   UpdateQueue       CREATING   a client
    ACTIVE     UpdateQueue       ACTIVE     a client
    CREATING   DeleteQueue       DELETING   a client
    ACTIVE     DeleteQueue       DELETING   a client
    DELETING   ReplicasClosed    DELETING   each node, when its replicas are closed
    DELETING   ReplicasGone      DELETING   each node, when its data of the queue is deleted
    DELETING   ReplicasGone      (none)     the last node that held data, when no node can lead a
                                            partition any more

An ACTIVE queue has two numbers of partitions: `settings.partitions`, and the number by which
requests are distributed (`model.queues.Queue`):

    numbers    command           next       proposed by
    the same   UpdateQueue       differ     a client; groups for new partitions are in the map
    differ     QueueRouted       the same   the leader of group 0, when all partitions distribute
                                            requests by the new number
    differ     UndoRouting       differ     the leader of group 0, when the partitions did not
                                            follow in time: the old number is reopened
    differ     UpdateQueue       differ     a client that asks for the old number again: it is
                                            reopened, and then the numbers are the same
    differ     QueueRouted       as asked   the leader of group 0, when the reachable partitions
                                            are reopened
    the same   PartitionsEmpty   the same   the leader of group 0: closing partitions that are not
                                            needed any more leave the map

The nodes; the name of a node is not given to another unless an operator says so:

    state      command           next       proposed by
    (no map)   FormCluster       ACTIVE     the first leader of group 0, with the founding nodes
    (none)     JoinNode          ACTIVE     a member that the node has asked
    known      RegisterNode      the same   the leader of group 0, when a node's description of
                                            itself differs from the map
    known      HandOffNode       the same   a node that is about to stop: it gets no leaderships
                                            until it starts again
    known      ReplaceNode       the same   an operator, when a node has lost its data
    ACTIVE     DrainNode         DRAINING   an operator; and back again
    ACTIVE,    RemoveNode        LEAVING    an operator
    DRAINING
    LEAVING    NodeGone          REMOVED    the leader of group 0, when the node has only replicas
                                            of queues that are being deleted
    REMOVED    ReadmitNode       FORGOTTEN  an operator
    FORGOTTEN  JoinNode          ACTIVE     as above, with other data

The places of a group's replicas:

    state      command           next       proposed by
    settled    PlaceGroups       moving     the leader of group 0, as `placement.tasks.plan` says
    moving     GroupSettled      settled    the leader of the group, when its configuration is the
                                            target
    moving     GiveUpTarget      moving     the leader of the group, when a replica that should
                                            vote is on a node that is removed while it is down: the
                                            target becomes the voters that the group has

Tag 5 is not given to another command: logs of 0.1 have it.
"""

import msgspec

from querator.model.ids import GroupId, QueueId
from querator.model.nodes import NodeKey, Replicas
from querator.model.placement_map import PlacedNode
from querator.model.queues import Queue, QueueSettings


class CreateQueue(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Creates a queue. If it exists, the settings that `given` names must be those in force, and
    the existing queue is returned. None: all settings.
    """

    namespace: str
    name: str
    settings: QueueSettings
    given: tuple[str, ...] | None = None


class UpdateQueue(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Sets the fields of `QueueSettings` that `mask` names. `expected_version` 0: not checked."""

    namespace: str
    name: str
    settings: QueueSettings
    mask: tuple[str, ...]
    expected_version: int = 0


class DeleteQueue(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Deletes a queue. Cannot be undone once applied. Repeats get the same answer until the queue
    is gone.
    """

    namespace: str
    name: str


class QueueConfigured(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """All partitions of the queue exist and have the settings of `settings_version`."""

    queue_id: QueueId
    settings_version: int


class FormCluster(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Sets the founding nodes, once: repeats change nothing."""

    cluster_id: str
    nodes: tuple[PlacedNode, ...]


class RegisterNode(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """A node's description of itself, in the start that `node.boots` counts. Its `handoff_boots`
    are ignored.
    """

    node: PlacedNode


class ReplaceNode(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """The node of this name has lost its data of incarnation `lost`, and continues as `node`."""

    node: PlacedNode
    lost: str


class HandOffNode(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """The node transfers its leaderships away, in the start that `boots` counts."""

    name: str
    incarnation: str
    boots: int


class JoinNode(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """A node with empty data wants to join the cluster."""

    node: PlacedNode


class DrainNode(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """The node is to move its replicas elsewhere; `drain` False: it may hold replicas again."""

    name: str
    drain: bool = True


class RemoveNode(msgspec.Struct, frozen=True, array_like=True, tag=13):
    """The node will not come back. It leaves the map once its replicas have moved elsewhere."""

    name: str


class NodeGone(msgspec.Struct, frozen=True, array_like=True, tag=14):
    """A LEAVING node has only the placement group's replica left, or none."""

    name: str


class ReadmitNode(msgspec.Struct, frozen=True, array_like=True, tag=17):
    """The name of a removed node may be used again."""

    name: str


class Place(msgspec.Struct, frozen=True, array_like=True):
    """The wanted places of a group's replicas, instead of the target's places (`before`). `voters`
    may lead and count for majorities; `learners` only replicate.
    """

    group: GroupId
    before: tuple[NodeKey, ...]
    voters: tuple[NodeKey, ...]
    leader: NodeKey
    learners: tuple[NodeKey, ...] = ()


class PlaceGroups(msgspec.Struct, frozen=True, array_like=True, tag=15):
    """Sets new targets. A target that was made for another state of the map changes nothing."""

    places: tuple[Place, ...]


class GroupSettled(msgspec.Struct, frozen=True, array_like=True, tag=16):
    """The group's configuration equals its target, which had this `next_replica`."""

    group: GroupId
    next_replica: int


class GiveUpTarget(msgspec.Struct, frozen=True, array_like=True, tag=22):
    """The target that had this `next_replica` cannot be reached. The target becomes the voters of
    the group's configuration, by replica id, and `leader` the replica that should lead.
    """

    group: GroupId
    next_replica: int
    voters: Replicas
    leader: int


class ReplicasGone(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """The node has deleted its data of a queue that is being deleted."""

    queue_id: QueueId
    node: NodeKey


class ReplicasClosed(msgspec.Struct, frozen=True, array_like=True, tag=21):
    """The node's replicas of a queue that is being deleted will never vote or acknowledge again,
    which is stored durably. Their data may still exist.
    """

    queue_id: QueueId
    node: NodeKey


class QueueRouted(msgspec.Struct, frozen=True, array_like=True, tag=18):
    """All partitions of the queue distribute requests over `partitions`, as version `routing`."""

    queue_id: QueueId
    routing: int
    partitions: int


class UndoRouting(msgspec.Struct, frozen=True, array_like=True, tag=20):
    """The queue's change of version `routing` is given up. It begins again later, under another
    version.
    """

    queue_id: QueueId
    routing: int


class PartitionsEmpty(msgspec.Struct, frozen=True, array_like=True, tag=19):
    """As of version `routing`, the queue's partitions from number `left` on are empty for ever.
    `first_seqs` has the sequence at which each of them would continue.
    """

    queue_id: QueueId
    routing: int
    left: int
    first_seqs: tuple[int, ...]


Command = (
    CreateQueue
    | UpdateQueue
    | DeleteQueue
    | QueueConfigured
    | FormCluster
    | RegisterNode
    | ReplaceNode
    | HandOffNode
    | ReplicasGone
    | ReplicasClosed
    | JoinNode
    | DrainNode
    | RemoveNode
    | NodeGone
    | ReadmitNode
    | PlaceGroups
    | GroupSettled
    | GiveUpTarget
    | QueueRouted
    | UndoRouting
    | PartitionsEmpty
)


class QueueCreated(msgspec.Struct, frozen=True):
    """The result of CreateQueue. `created` False: a queue with the given settings existed."""

    queue: Queue
    created: bool


class QueueDeleted(msgspec.Struct, frozen=True):
    """The queue, which is being deleted. `changed` False: it was being deleted already."""

    queue: Queue
    changed: bool


class QueueUpdated(msgspec.Struct, frozen=True):
    """The queue with its new settings, which may not have reached its partitions."""

    queue: Queue
