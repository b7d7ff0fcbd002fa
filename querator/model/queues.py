"""What an operator decides about a queue, and what the placement map knows about it."""

from enum import IntEnum

import msgspec

from querator.model import limits
from querator.model.ids import GroupId, QueueId

REPLICAS_ALLOWED = (0, 1, 3, 5)


class QueueState(IntEnum):
    CREATING = 1
    ACTIVE = 2
    DELETING = 3


class QueueSettings(msgspec.Struct, frozen=True, array_like=True):
    """Settings with defaults filled in. Durations in ms; 0 means none where that is allowed."""

    partitions: int = 1
    lease_timeout_ms: int = limits.LEASE_TIMEOUT_MS_DEFAULT
    expire_timeout_ms: int = 0
    max_attempts: int = 0
    dead_queue: str = ""
    dedup_window_ms: int = limits.DEDUP_WINDOW_MS_DEFAULT
    partition_items_max: int = 0
    description: str = ""
    replicas: int = 0
    """Copies of each partition, one of `REPLICAS_ALLOWED`; 0: three, or as many as there are nodes
    while there are fewer.
    """


class Queue(msgspec.Struct, frozen=True, array_like=True):
    """One incarnation of a queue. `groups[p]` is the Raft group of partition p."""

    namespace: str
    name: str
    id: QueueId
    state: QueueState
    settings: QueueSettings
    settings_version: int
    created_at_ms: int
    groups: tuple[GroupId, ...]
