"""Status of a group, for operators and for other packages."""

import msgspec

from querator.model.nodes import NodeKey, Replicas


class ReplicaStatus(msgspec.Struct, frozen=True):
    """Another replica as its leader sees it. `match` is the part of the leader's log on its disk,
    `applied` the part that it has applied, by its last message.
    """

    id: int
    node: NodeKey
    voter: bool
    state: str
    match: int
    applied: int


class GroupStatus(msgspec.Struct, frozen=True):
    """A group as of its last synced turn. `leader` is a node, or None when not known. `followers`
    is empty unless this replica leads. `replicas` are those of the last configuration in the log,
    which is entry `replicas_index` (0: the first) and may not be committed yet.
    """

    term: int
    leader: NodeKey | None
    leads: bool
    commit_index: int
    applied_index: int
    log_first: int
    log_last: int
    log_bytes: int
    now_ms: int
    due_ms: int | None
    quarantined: bool
    replica: int
    replicas: Replicas
    replicas_index: int
    followers: tuple[ReplicaStatus, ...]
    waits_for_clock: bool = False
    """Whether this replica does not stand for election because its node's clock is not believed."""
    behind_ms: int = 0
    """How far state time is behind the wall clock of this node, which leads; 0: not far."""
    waits_for_space: bool = False
    """Whether the next committed entry is not applied because the node has no space for it."""
