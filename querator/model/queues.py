"""The settings that an operator gives a queue, and the queue as the placement map knows it."""

from enum import IntEnum

import msgspec

from querator.model import limits
from querator.model.ids import GroupId, QueueId

REPLICAS_ALLOWED = (0, 1, 3, 5)

DEAD_QUEUE_DEFAULT = "dead"
"""Dead queue of the queues of a namespace that name no other one."""


class QueueState(IntEnum):
    CREATING = 1
    ACTIVE = 2
    DELETING = 3


class RetryBackoff(IntEnum):
    """How the wait after a failed attempt grows with the attempts."""

    FIXED = 1
    LINEAR = 2
    EXPONENTIAL = 3


class DedupUntil(IntEnum):
    """How long a dedup key counts: in the queue's window after its first item, or until its item is
    done.
    """

    WINDOW = 1
    DONE = 2


class QueueKind(IntEnum):
    """How a queue orders its items. Fixed when the queue is created."""

    PLAIN = 0
    FAIR = 1
    """Groups of items take turns."""
    KEYED = 2
    """Items of one key are leased one after the other."""
    EXECUTIONS = 3
    """It has executions of durable functions. Its items are their activations."""


class Fairness(IntEnum):
    """How the groups of a fair queue share its leases."""

    TURNS = 1
    """Weighted round robin: each group gets items in proportion to its weight."""
    IN_FLIGHT = 2
    """The group with the fewest leased items for its weight is first, then by TURNS."""


class BreakerState(IntEnum):
    """The state of the breaker of a partition. The wire uses the same numbers."""

    CLOSED = 1
    """Items are leased, and outcomes are counted."""
    OPEN = 2
    """Nothing is leased until the open time is over."""
    HALF_OPEN = 3
    """One item is leased at a time."""


class BreakerSettings(msgspec.Struct, frozen=True, array_like=True):
    """When the breaker of a partition stops leases: when `failure_percent` of at least
    `outcomes_min` outcomes in the last `window_ms` are failures. It stays open for `open_ms`. Then
    `probes` items that succeed one after the other close it.
    """

    failure_percent: int = limits.BREAKER_PERCENT_DEFAULT
    outcomes_min: int = limits.BREAKER_OUTCOMES_DEFAULT
    window_ms: int = limits.BREAKER_WINDOW_MS_DEFAULT
    open_ms: int = limits.BREAKER_OPEN_MS_DEFAULT
    probes: int = limits.BREAKER_PROBES_DEFAULT


class ExecutionSettings(msgspec.Struct, frozen=True, array_like=True):
    """The executions of a queue: how long they are kept when they have ended."""

    retention_ms: int = limits.EXECUTION_RETENTION_MS_DEFAULT


class RateSettings(msgspec.Struct, frozen=True, array_like=True):
    """At most `items` of a queue are leased in each `interval_ms`, by a token bucket. `burst`: how
    many tokens gather; 0: those of RATE_BURST_MS_DEFAULT.
    """

    items: int
    interval_ms: int = limits.SECOND_MS
    burst: int = 0


class GroupSettings(msgspec.Struct, frozen=True, array_like=True):
    """What an operator says about a group of a fair queue, which is named by its dotted path.
    `leased_max` is the limit of its leased items, with those of the groups below it; 0: none.
    `paused`: its items, and those of the groups below it, are not leased. `rate_limit`: how many of
    them are leased in a time; None: that of all groups.
    """

    path: str
    weight: int = 1
    leased_max: int = 0
    paused: bool = False
    rate_limit: RateSettings | None = None


class RetryWaits(msgspec.Struct, frozen=True, array_like=True):
    """How long an item waits after a failed attempt: a retry that says no time, or a lapsed lease.
    `delay_ms` 0: not at all. `delay_max_ms` counts if it is not shorter than `delay_ms`. `jitter`:
    each wait is a random part of the delay.
    """

    delay_ms: int = 0
    delay_max_ms: int = limits.RETRY_DELAY_MAX_MS_DEFAULT
    backoff: RetryBackoff = RetryBackoff.EXPONENTIAL
    jitter: bool = True

    def longest_ms(self, attempt: int) -> int:
        """The wait after this attempt (from 1 on) without jitter."""
        factor = attempt
        if self.backoff is RetryBackoff.FIXED:
            factor = 1
        elif self.backoff is RetryBackoff.EXPONENTIAL:
            # Every delay is at its maximum long before.
            factor = 1 << min(attempt - 1, 40)
        return min(self.delay_ms * factor, max(self.delay_ms, self.delay_max_ms))


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
    """Replicas of each partition, one of `REPLICAS_ALLOWED`. 0: three, or one per node while there
    are fewer nodes.
    """
    retry_delay_ms: int = 0
    retry_delay_max_ms: int = limits.RETRY_DELAY_MAX_MS_DEFAULT
    retry_backoff: RetryBackoff = RetryBackoff.EXPONENTIAL
    retry_jitter: bool = True
    priority_aging_ms: int = 0
    dedup_until: DedupUntil = DedupUntil.WINDOW
    kind: QueueKind = QueueKind.PLAIN
    fairness: Fairness = Fairness.IN_FLIGHT
    group_leased_max: int = 0
    """Limit of the leased items of each group that `groups` gives no limit of its own; 0: none."""
    groups: tuple[GroupSettings, ...] = ()
    """In ascending order of the paths."""
    key_leased_max: int = 1
    """Items of one key that are leased together, to one consumer."""
    key_retry_blocks: bool = True
    """Whether an item that is retried later keeps back the later items of its key."""
    lease_paused: bool = False
    """Whether no item is leased, and none given to a reader."""
    produce_paused: bool = False
    """Whether producers are refused. Items that move here are taken."""
    breaker: BreakerSettings | None = None
    """When a partition stops leases by itself; None: never."""
    rate_limit: RateSettings | None = None
    """How many items are leased in a time; None: any number."""
    lease_limit: int = 0
    """How many items are leased at a time; 0: any number. Not less than `partitions`."""
    group_rate_limit: RateSettings | None = None
    """How many items of each group that `groups` gives no rate of its own are leased in a time."""
    key_rate_limit: RateSettings | None = None
    """How many items of each key are leased in a time."""
    events_retention_ms: int = 0
    """How long events are kept; 0: none are recorded."""
    execution_retention_ms: int = limits.EXECUTION_RETENTION_MS_DEFAULT
    """How long executions are kept when they have ended, in a queue of them."""

    @property
    def has_limits(self) -> bool:
        """Whether partitions share limits of leases."""
        return self.rate_limit is not None or self.lease_limit > 0

    @property
    def retry_policy(self) -> RetryWaits:
        return RetryWaits(
            self.retry_delay_ms, self.retry_delay_max_ms, self.retry_backoff, self.retry_jitter
        )


class Queue(msgspec.Struct, frozen=True, array_like=True):
    """One incarnation of a queue. `groups[p]` is the Raft group of partition p.

    `settings.partitions` is the wanted number of partitions. Requests with an identity or keys are
    distributed over the first `routed` (0: all), as version `routing` of that number. While the two
    numbers differ, the change is under way. Partitions beyond both are closing: they accept
    nothing, and leave the map when they are empty. `first_seqs[p]` is the sequence at which
    partition p continues when it is created again (0: at the beginning). `reopening`: a change was
    given up, and requests continue by the old number as of this version, once its partitions have
    received it (0: none was). `closed`: the queue is being deleted, and no node can lead any of its
    partitions.
    """

    namespace: str
    name: str
    id: QueueId
    state: QueueState
    settings: QueueSettings
    settings_version: int
    created_at_ms: int
    groups: tuple[GroupId, ...]
    routing: int = 0
    routed: int = 0
    first_seqs: tuple[int, ...] = ()
    reopening: int = 0
    closed: bool = False

    @property
    def routed_partitions(self) -> int:
        """Number of partitions over which identities and keys are distributed."""
        return self.routed or len(self.groups)

    @property
    def producing_partitions(self) -> int:
        """Number of partitions that accept items without identity or key."""
        return min(self.routed_partitions, self.settings.partitions)

    @property
    def is_changing(self) -> bool:
        """Whether the number of partitions is being changed; closing ones may remain afterwards."""
        return self.routed_partitions != self.settings.partitions or self.reopening > 0

    @property
    def opening(self) -> int:
        """Number of partitions that will accept items and do not yet."""
        return max(0, self.settings.partitions - self.routed_partitions)

    @property
    def closing(self) -> int:
        """Number of partitions that leave the map when they are empty."""
        return max(0, len(self.groups) - self.settings.partitions)

    def first_seq(self, partition: int) -> int:
        return self.first_seqs[partition] if partition < len(self.first_seqs) else 0
