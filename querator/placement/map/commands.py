"""Commands that change the placement map, and the values that answer them.

The life of a queue as the commands drive it; what is absent is refused or changes nothing:

    state      command           next       who proposes it
    (none)     CreateQueue       CREATING   a client
    CREATING   QueueConfigured   ACTIVE     the leader of group 0, when all partitions have their
                                            settings
    CREATING   UpdateQueue       CREATING   a client
    ACTIVE     UpdateQueue       ACTIVE     a client
    CREATING   DeleteQueue       DELETING   a client
    ACTIVE     DeleteQueue       DELETING   a client
    DELETING   ReplicasClosed    DELETING   each node, when its replicas take part in nothing more
    DELETING   ReplicasGone      DELETING   each node, when its data of the queue is gone
    DELETING   ReplicasGone      (none)     the last node of those that held any, when nobody can
                                            lead a partition any more

The number of an ACTIVE queue's partitions, `settings.partitions` and by which one requests are
shared out (`model.queues.Queue`):

    numbers    command           next       who proposes it
    the same   UpdateQueue       differ     a client; groups for new partitions are in the map
    differ     QueueRouted       the same   the leader of group 0, when all partitions share
                                            requests out by the new number
    differ     UndoRouting       differ     the leader of group 0, when the partitions did not
                                            follow in time: the number of before is reopened
    differ     UpdateQueue       differ     a client who wants the number of before again: it is
                                            reopened, and then the numbers are the same
    differ     QueueRouted       as asked   the leader of group 0, when the partitions that can be
                                            reached are reopened
    the same   PartitionsEmpty   the same   the leader of group 0: closing partitions that nobody
                                            needs any more leave the map

The nodes, whose names are not given to others unless an operator says so:

    state      command           next       who proposes it
    (no map)   FormCluster       ACTIVE     the first leader of group 0, with the founding nodes
    (none)     JoinNode          ACTIVE     a member that the node has asked
    known      RegisterNode      the same   the leader of group 0, when a node says other things of
                                            itself than the map does
    known      HandOffNode       the same   a node that is about to stop: it gets no leaderships
                                            until it starts again
    known      ReplaceNode       the same   an operator, when a node has lost its data
    ACTIVE     DrainNode         DRAINING   an operator; and back again
    ACTIVE,    RemoveNode        LEAVING    an operator
    DRAINING
    LEAVING    NodeGone          REMOVED    the leader of group 0, when the node has no replicas
                                            but of queues that are being deleted
    REMOVED    ReadmitNode       FORGOTTEN  an operator
    FORGOTTEN  JoinNode          ACTIVE     as above, with other data

Where the replicas of a group are:

    state      command           next       who proposes it
    settled    PlaceGroups       moving     the leader of group 0, as `placement.tasks.plan` says
    moving     GroupSettled      settled    the leader of the group, when its configuration is the
                                            target

Tag 5 is not given to another command: logs of 0.1 have it.
"""

import msgspec

from querator.model.ids import GroupId, QueueId
from querator.model.nodes import NodeKey
from querator.model.placement_map import PlacedNode
from querator.model.queues import Queue, QueueSettings


class CreateQueue(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Repeats with the same settings are answered with the queue that is there."""

    namespace: str
    name: str
    settings: QueueSettings


class UpdateQueue(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Sets the fields of `QueueSettings` that `mask` names. `expected_version` 0: not checked."""

    namespace: str
    name: str
    settings: QueueSettings
    mask: tuple[str, ...]
    expected_version: int = 0


class DeleteQueue(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Cannot be undone once applied. Repeats are answered alike until the queue is gone."""

    namespace: str
    name: str


class QueueConfigured(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """All partitions of the queue exist and have the settings of `settings_version`."""

    queue_id: QueueId
    settings_version: int


class FormCluster(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """The founding nodes, once: repeats change nothing."""

    cluster_id: str
    nodes: tuple[PlacedNode, ...]


class RegisterNode(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """What a node says of itself, in the start that `node.boots` counts. Its `handoff_boots` are
    not looked at.
    """

    node: PlacedNode


class ReplaceNode(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """The node of this name has lost its data of incarnation `lost`, and goes on as `node`."""

    node: PlacedNode
    lost: str


class HandOffNode(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """The node gives its leaderships away, in the start that `boots` counts."""

    name: str
    incarnation: str
    boots: int


class JoinNode(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """A node with empty data that wants to be one of the cluster."""

    node: PlacedNode


class DrainNode(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """The node is to give its replicas away; `drain` False: it may have some again."""

    name: str
    drain: bool = True


class RemoveNode(msgspec.Struct, frozen=True, array_like=True, tag=13):
    """The node will not come back. Its replicas go elsewhere, and then it is gone."""

    name: str


class NodeGone(msgspec.Struct, frozen=True, array_like=True, tag=14):
    """A node that is LEAVING has no replica any more, but for one of the placement group."""

    name: str


class ReadmitNode(msgspec.Struct, frozen=True, array_like=True, tag=17):
    """The name of a removed node may be used again."""

    name: str


class Place(msgspec.Struct, frozen=True, array_like=True):
    """Where the replicas of a group should be instead of where the target has them (`before`).
    `voters` may lead, and count for majorities; `learners` only learn.
    """

    group: GroupId
    before: tuple[NodeKey, ...]
    voters: tuple[NodeKey, ...]
    leader: NodeKey
    learners: tuple[NodeKey, ...] = ()


class PlaceGroups(msgspec.Struct, frozen=True, array_like=True, tag=15):
    """New targets. One that was made for another state of the map changes nothing."""

    places: tuple[Place, ...]


class GroupSettled(msgspec.Struct, frozen=True, array_like=True, tag=16):
    """The configuration of the group is its target, which had `next_replica`."""

    group: GroupId
    next_replica: int


class ReplicasGone(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """The node holds no data any more of a queue that is being deleted."""

    queue_id: QueueId
    node: NodeKey


class ReplicasClosed(msgspec.Struct, frozen=True, array_like=True, tag=21):
    """The node's replicas of a queue that is being deleted will never vote or acknowledge anything
    again: that is on its disk. Their data may still be there.
    """

    queue_id: QueueId
    node: NodeKey


class QueueRouted(msgspec.Struct, frozen=True, array_like=True, tag=18):
    """All partitions of the queue share requests out among `partitions`, as version `routing`."""

    queue_id: QueueId
    routing: int
    partitions: int


class UndoRouting(msgspec.Struct, frozen=True, array_like=True, tag=20):
    """The change of the queue under version `routing` is given up; it is begun again later, under
    another version.
    """

    queue_id: QueueId
    routing: int


class PartitionsEmpty(msgspec.Struct, frozen=True, array_like=True, tag=19):
    """As of version `routing`, the partitions of the queue from number `left` on are empty for
    ever. `first_seqs` has where each of them would go on.
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
    | QueueRouted
    | UndoRouting
    | PartitionsEmpty
)


class QueueCreated(msgspec.Struct, frozen=True):
    """`created` False: a queue with these settings was there."""

    queue: Queue
    created: bool


class QueueDeleted(msgspec.Struct, frozen=True):
    """The queue, which is being deleted. `changed` False: it was already."""

    queue: Queue
    changed: bool


class QueueUpdated(msgspec.Struct, frozen=True):
    """The queue with its new settings, which its partitions may not have yet."""

    queue: Queue
