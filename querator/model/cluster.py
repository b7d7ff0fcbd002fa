"""What a node reports to operators about its cluster."""

import msgspec

from querator.model.ids import GroupId

LEASES_CONTINUE = "leases and completes continue"
"""Words of a condition `storage_full` on a node that refuses new items alone."""


class ClusterNode(msgspec.Struct, frozen=True):
    """A node of the map. `connected`: to the reporting node; `handed_off`: it takes no leaderships
    until it starts again; `state` is a `NodeState`. `old_copy`: why the reporting node has refused
    a process of this name for an old copy of the data; empty: the last process was in order.
    """

    name: str
    incarnation: str
    peer_address: str
    client_address: str
    zone: str
    boots: int
    version: str
    connected: bool
    handed_off: bool
    state: str
    old_copy: str = ""


class ClusterReplica(msgspec.Struct, frozen=True):
    """`lag_entries` is the number of entries of the leader's log that the replica does not have on
    disk; None unless the reporting node leads.
    """

    id: int
    node: str
    incarnation: str
    voter: bool
    lag_entries: int | None = None


class ClusterGroup(msgspec.Struct, frozen=True):
    """A partition, or the placement group (its queue is empty), as the reporting node knows it.

    `leader` and `preferred_leader` are names of nodes, empty when there is none. `replicas` is what
    the group has, `target` what it should have; `moving` while it changes to the target. `closing`:
    it accepts no items, and leaves the map when it is empty. `held` items of keys wait for earlier
    ones in the partitions with the numbers `waits_for`; 0 unless the reporting node leads. The
    reporting node cannot read `damaged_items` in `damaged_blocks` blocks. State time is
    `time_ahead_ms` ahead of the wall clock of the reporting node; 0 unless it leads, and in an idle
    partition, whose last entry is older.
    `waits_for_clock`: that node does not stand for election because its clock is not trusted.
    """

    group: GroupId
    namespace: str
    queue: str
    partition: int
    leads: bool
    leader: str
    preferred_leader: str
    term: int
    open: bool
    stopped: bool
    applied_index: int
    replicas: tuple[ClusterReplica, ...]
    target: tuple[ClusterReplica, ...]
    moving: bool
    closing: bool = False
    held: int = 0
    waits_for: tuple[int, ...] = ()
    damaged_blocks: int = 0
    damaged_items: int = 0
    time_ahead_ms: int = 0
    waits_for_clock: bool = False


class ClusterPending(msgspec.Struct, frozen=True):
    """A queue with pending work. `waits_for` are names of nodes; empty: the work waits for the
    leaders of partitions.
    """

    namespace: str
    queue: str
    doing: str
    waits_for: tuple[str, ...]


class ClusterCondition(msgspec.Struct, frozen=True):
    """A condition on the reporting node that delays items or makes replicas doubtful. `kind` is one
    of `service.conditions.KINDS`; `about` names the affected queue or node.
    """

    kind: str
    about: str
    sentence: str


class ClusterScrub(msgspec.Struct, frozen=True):
    """A node's progress in comparing the checksums of its payloads, since its start: complete
    `rounds`, bytes of the current round or the last one, and the time since that ended, or since
    the node started. `on`: whether the node compares checksums.
    """

    on: bool = False
    rounds: int = 0
    round_bytes: int = 0
    age_ms: int = 0


class ClusterWaiting(msgspec.Struct, frozen=True):
    """A node with data of no cluster, which asks the reporting node and is not a member."""

    name: str
    incarnation: str
    peer_address: str


class ClusterCertificate(msgspec.Struct, frozen=True):
    """A certificate of the reporting node. `port`: `clients` or `nodes`. It expires at
    `expires_at_ms` (Unix time), which by the clock of that node is in `left_ms`.
    """

    port: str
    expires_at_ms: int
    left_ms: int


class ClusterStatus(msgspec.Struct, frozen=True):
    """`node` is the name of the reporting node; `clock_ahead_ms` is how far its wall clock is ahead
    of the median of all, negative: behind. `conditions`, `scrub` and `certificates` are those of
    that node.
    """

    cluster_id: str
    epoch: int
    node: str
    nodes: tuple[ClusterNode, ...]
    groups: tuple[ClusterGroup, ...]
    pending: tuple[ClusterPending, ...]
    clock_ahead_ms: int = 0
    conditions: tuple[ClusterCondition, ...] = ()
    scrub: ClusterScrub = ClusterScrub()
    waiting: tuple[ClusterWaiting, ...] = ()
    certificates: tuple[ClusterCertificate, ...] = ()


class ClusterMove(msgspec.Struct, frozen=True):
    """A partition whose replicas or leadership will move; places are names of nodes. `moving`: that
    is under way, and `origin` has the nodes with voters before the move.
    """

    namespace: str
    queue: str
    partition: int
    origin: tuple[str, ...]
    to: tuple[str, ...]
    leader: str
    reason: str
    moving: bool


class ClusterPlan(msgspec.Struct, frozen=True):
    """The current and the next moves, at a version of the map."""

    epoch: int
    moves: tuple[ClusterMove, ...]


class NodeHandedOff(msgspec.Struct, frozen=True):
    """The result of a handoff. `left` are the groups that no other node could take."""

    node: str
    moved: int
    left: tuple[GroupId, ...]


class NodeRetired(msgspec.Struct, frozen=True):
    """A node that is drained or removed, and the number of partitions with a replica on it."""

    node: ClusterNode
    partitions: int


class NodeReplaced(msgspec.Struct, frozen=True):
    """The replaced node, and the number of partitions that are rebuilt on it."""

    node: ClusterNode
    partitions: int
