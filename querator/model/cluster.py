"""What a node tells operators of its cluster."""

import msgspec

from querator.model.ids import GroupId


class ClusterNode(msgspec.Struct, frozen=True):
    """A node of the map. `connected`: to the node that tells; `handed_off`: it takes no leaderships
    until it starts again; `state` is a `NodeState`. `old_copy`: why the node that tells has refused
    a process of this name, as one with an old copy of the data; empty: the last one was in order.
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
    """`lag_entries`: what it does not have on disk of the leader's log; None unless the node that
    tells leads.
    """

    id: int
    node: str
    incarnation: str
    voter: bool
    lag_entries: int | None = None


class ClusterGroup(msgspec.Struct, frozen=True):
    """A partition, or the placement group (its queue is empty), as the node that tells knows it.

    `leader` and `preferred_leader` are names of nodes, empty when there is none. `replicas` is what
    the group has, `target` what it should have; `moving` while it is brought there. `closing`: it
    takes no items, and goes when it is empty. `held` items of keys wait for earlier ones in the
    partitions with the numbers `waits_for`; 0 unless the node that tells leads. `damaged_items` in
    `damaged_blocks` blocks cannot be read by the node that tells. State time is `time_ahead_ms`
    ahead of the wall clock of the node that tells; 0 unless it leads. `waits_for_clock`: that node
    does not stand for election because its clock is not believed.
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
    """A queue for which something is left to do. `waits_for` are names of nodes; empty: it is the
    partitions' leaders that are waited for.
    """

    namespace: str
    queue: str
    doing: str
    waits_for: tuple[str, ...]


class ClusterCondition(msgspec.Struct, frozen=True):
    """What makes items late or copies doubtful on the node that tells. `kind` is one of
    `service.conditions.KINDS`; `about` names the queue or the node that it is about.
    """

    kind: str
    about: str
    sentence: str


class ClusterScrub(msgspec.Struct, frozen=True):
    """How far a node is with comparing the checksums of its payloads, since its start: whole
    `rounds`, bytes of the one under way or of the last one, and how long ago that was over, or the
    node was started. `on`: whether it does so at all.
    """

    on: bool = False
    rounds: int = 0
    round_bytes: int = 0
    age_ms: int = 0


class ClusterStatus(msgspec.Struct, frozen=True):
    """`node` is the name of the node that tells; `clock_ahead_ms` tells how far its wall clock is
    ahead of the median of all, negative: behind. `conditions` and `scrub` are those of that node.
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


class ClusterMove(msgspec.Struct, frozen=True):
    """A partition whose replicas or leadership will be elsewhere; names of nodes. `moving`: that is
    under way, and `origin` is empty, for the map knows where replicas go to and not where from.
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
    """What is under way, and what comes next, at a version of the map."""

    epoch: int
    moves: tuple[ClusterMove, ...]


class NodeHandedOff(msgspec.Struct, frozen=True):
    """`left` are the groups that nobody could take."""

    node: str
    moved: int
    left: tuple[GroupId, ...]


class NodeRetired(msgspec.Struct, frozen=True):
    """A node that is drained or removed, and how many partitions have a replica on it."""

    node: ClusterNode
    partitions: int


class NodeReplaced(msgspec.Struct, frozen=True):
    """The node as it is known from here on, and how many partitions are rebuilt on it."""

    node: ClusterNode
    partitions: int
