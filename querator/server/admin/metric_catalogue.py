"""Every metric that a node exposes, with its meaning for operators. `docs/metrics.md` is generated
from it.

Names follow the Prometheus conventions: base units (seconds, bytes), the unit last, then `_total`
for counters. Labels are bounded: methods and codes by the protocol, queues by the partitions that a
node may have (`NODE_PARTITIONS_MAX`). No label names an item, client, producer or partition.
"""

from collections.abc import Iterable, Sequence
from typing import Final, Literal

import msgspec
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from querator.model import limits
from querator.raft.stats import Distribution

Labels = Sequence[str]


class MetricSpec(msgspec.Struct, frozen=True):
    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()


class HistogramSpec(msgspec.Struct, frozen=True):
    """A histogram of whole numbers in units of `scale`, with edges at the powers of two from
    `2**first` to `2**last`."""

    metric: MetricSpec
    scale: float
    first: int
    last: int


_QUEUE: Final = ("namespace", "queue")
_PLACEMENT: Final = "without namespace and queue: the placement group"


def _gauge(name: str, help_: str, labels: tuple[str, ...] = ()) -> MetricSpec:
    return MetricSpec(f"querator_{name}", "gauge", help_, labels)


def _counter(name: str, help_: str, labels: tuple[str, ...] = ()) -> MetricSpec:
    return MetricSpec(f"querator_{name}_total", "counter", help_, labels)


def _histogram(
    name: str, help_: str, scale: float, first: int, last: int, labels: tuple[str, ...] = ()
) -> HistogramSpec:
    metric = MetricSpec(f"querator_{name}", "histogram", help_, labels)
    return HistogramSpec(metric, scale, first, last)


# --- the node ----------------------------------------------------------------------------

BUILD = _gauge("build_info", "Always 1: which release runs.", ("version", "python"))
NODE = _gauge(
    "node_info",
    "Always 1: which node this is. Not durable means that it keeps everything in memory.",
    ("node", "cluster_id", "incarnation", "durable"),
)
UNREADY = _gauge(
    "node_unready_reasons",
    "How many things are missing before the node can serve, as /readyz names them; 0: ready.",
)
STALLED = _gauge(
    "turn_stalled_seconds",
    "For how long the raft thread has been in its present turn, or has overslept; /livez fails "
    "beyond 30.",
)

LOOP_HANGS = _counter(
    "event_loop_hangs",
    "How often the event loop has hung since the start. Always 0 on a node that is alone.",
)
CONDITIONS = _gauge(
    "conditions",
    "How many queues or nodes have a condition, by kind: late items or doubtful replicas on this "
    "node.",
    ("kind",),
)
CERTIFICATE = _gauge(
    "certificate_expires_seconds",
    "Time until the loaded certificate of a port expires (clients, nodes); negative: it has "
    "expired.",
    ("port",),
)

# --- turns -------------------------------------------------------------------------------

_US: Final = 1e-6
TURN = _histogram(
    "turn_seconds",
    "How long turns of the raft thread took that wrote something: all groups of the node together.",
    _US, 5, 24,
)  # fmt: skip
TURN_PARTS = _histogram(
    name="turn_part_seconds",
    help_="How long each part of those turns took. Part `commit` is the synced commit: the disk.",
    scale=_US, first=5, last=24, labels=("part",),
)  # fmt: skip
TURN_COUNTS: Final[dict[str, HistogramSpec]] = {
    "entries": _histogram("turn_entries", "Log entries appended in one turn.", 1, 0, 10),
    "commands": _histogram(
        "turn_commands", "Commands in those entries: how well calls are gathered.", 1, 0, 16
    ),
    "bytes": _histogram("turn_bytes", "Bytes of those commands and their items.", 1, 8, 25),
}
"""Keyed by the name of the distribution in `TurnStats`."""

# --- calls -------------------------------------------------------------------------------

CALLS = _counter(
    "calls",
    "Calls that ended, by outcome: OK, CANCELLED (the caller went away) or the error code.",
    ("method", "code"),
)
CALL = _histogram(
    name="call_seconds",
    help_=(
        "How long calls took until they were answered. Lease calls are not in it: they wait for "
        "work."
    ),
    scale=_US,
    first=7,
    last=24,
    labels=("method",),
)
STREAMS = _gauge("open_streams", "Streams that clients have open.", ("method",))
INCOMPLETE = _gauge(
    "incomplete_message_bytes",
    "Bytes of messages that are incomplete or not read, on connections with more than 64 KiB of "
    "them.",
)
CONNECTIONS_ENDED = _counter(
    "ended_connections",
    f"Connections that the node ended because such messages took more than "
    f"{limits.INCOMPLETE_BYTES_MAX // limits.MIB} MiB.",
)
PEERS_REFUSED = _counter(
    "refused_connections",
    "Connections refused at the port for nodes, by the code of peers.refused. Those of a forming "
    "cluster do not count.",
    ("code",),
)
WAITING = _gauge(
    "waiting_calls",
    "Calls accepted and not answered. Beyond a limit of each kind calls are refused with "
    "OVERLOADED.",
    ("kind",),
)
WAITING_BYTES = _gauge("waiting_produce_bytes", "Bytes of produce calls that are not answered.")

# --- storage -----------------------------------------------------------------------------

USED = _gauge("storage_used_bytes", "Bytes that hold data. The file may be larger: it is reused.")
FREE = _gauge("storage_free_bytes", "Bytes that can still be written: quota or disk, the less.")
QUOTA = _gauge("storage_quota_bytes", "Most bytes that data may take.")
RESERVE = _gauge(
    "storage_reserve_bytes",
    "The last free bytes, kept for completes and deletes: with fewer free, produce is refused.",
)

# --- queues ------------------------------------------------------------------------------

ITEMS = _gauge(
    "queue_items",
    "Items by state, in the partitions that this node leads; sum over nodes.",
    (*_QUEUE, "state"),
)
ITEM_STATES: Final = ("ready", "leased", "scheduled", "moving", "reserved", "held")
"""Fields of `PartitionCounts`."""
ITEM_BYTES = _gauge("queue_bytes", "Bytes of those items.", _QUEUE)
LEASES = _gauge("queue_leases", "Live leases in the partitions that this node leads.", _QUEUE)
OLDEST_LEASE = _gauge(
    "queue_oldest_lease_age_seconds",
    "How long the oldest live lease has been held, with its extensions, in the partitions that "
    "this node leads; 0: none.",
    _QUEUE,
)
OLDEST = _gauge(
    "queue_oldest_ready_age_seconds",
    "Age of the oldest item that is first of its priority (of the 256 most urgent), over the "
    "partitions led here; 0: none.",
    _QUEUE,
)
OLDEST_BATCH = _gauge(
    "queue_oldest_open_batch_age_seconds",
    "How long the oldest batch of a reader has been open, in the partitions that this node leads; "
    "0: none.",
    _QUEUE,
)
STAGED_BYTES = _gauge(
    "queue_staged_bytes",
    "Bytes of items that are staged for transactions, in the partitions that this node leads.",
    _QUEUE,
)
RESULTS = _gauge(
    "queue_result_items",
    "Items of the queue whose results are kept, or will be, in the partitions that this node "
    "leads.",
    _QUEUE,
)
RESULT_BYTES = _gauge(
    "queue_result_bytes",
    "Bytes of the results that are kept, in the partitions that this node leads.",
    _QUEUE,
)
CHECKPOINT_BYTES = _gauge(
    "queue_checkpoint_bytes",
    "Bytes of the checkpoints of the queue's items, in the partitions that this node leads.",
    _QUEUE,
)
BREAKERS = _gauge(
    "queue_breaker_partitions",
    "Partitions of the queue that this node leads by the state of their breaker; only queues with "
    "a breaker.",
    (*_QUEUE, "state"),
)
EXECUTIONS = _gauge(
    "queue_executions",
    "Executions of the queue by state (runnable, parked, stuck, pinned, closed), in the partitions "
    "that this node leads.",
    (*_QUEUE, "state"),
)
PAUSED = _gauge(
    "queue_pause_info",
    "Always 1: what an operator has paused (leases, producers). Only paused queues have a value.",
    (*_QUEUE, "what"),
)
OLDEST_STAGE = _gauge(
    "queue_oldest_stage_age_seconds",
    "How long ago the oldest stage was begun in the partitions that this node leads; 0 when there "
    "is none.",
    _QUEUE,
)
PARTITIONS = _gauge(
    "queue_partitions",
    "Partitions by state on this node: leader, follower, leaderless, stopped, unreadable or "
    "absent.",
    (*_QUEUE, "state"),
)
PARTITION_STATES: Final = (
    "leader", "follower", "leaderless", "stopped", "unreadable", "absent"
)  # fmt: skip

_BY_LEADER: Final = "Counted by the node that leads the partition."
ITEM_COUNTS: Final[dict[str, MetricSpec]] = {
    field: _counter(f"queue_{name}_items", f"{help_} {_BY_LEADER}", _QUEUE)
    for field, name, help_ in (
        ("produced", "produced", "Items taken in by produce."),
        ("delivered", "delivered", "Items leased, each attempt counted."),
        ("completed", "completed", "Items completed."),
        ("acknowledged", "acknowledged", "Items in batches that readers have acknowledged."),
        ("retried", "retried", "Items retried, for an attempt or for later, and rejected."),
        ("released", "released", "Items given back at once, which is no attempt."),
        ("lapsed", "lapsed", "Items with a lapsed lease: a consumer died, or was too slow."),
        ("expired", "expired", "Items that expired before they were leased."),
        ("dead", "dead", "Items that became dead letters, by any reason."),
        (
            "dropped",
            "dropped",
            "Dead items dropped for want of a dead queue, and items that were given up.",
        ),
        (
            "given_up",
            "given_up",
            "Items given up because their payload was damaged and on no replica whole.",
        ),
        (
            "cancelled",
            "cancelled",
            "Items that operators have cancelled, purged, or dropped as dead letters.",
        ),
        (
            "replaced",
            "replaced",
            "Waiting items that later items with their dedup key have replaced.",
        ),
        (
            "completed_on_delivery",
            "completed_on_delivery",
            "Items that were completed when they were delivered.",
        ),
        ("duplicates", "duplicate", "Items of repeated produces, which were not stored again."),
        ("moved_in", "moved_in", "Items that came from another queue."),
        ("moved_out", "moved_out", "Items that went to another queue."),
    )
}
"""Keyed by field of `PartitionCounts`."""

RUNS = _counter(
    "queue_recurring_runs",
    f"Due times of recurrences by outcome: fired, skipped or missed. {_BY_LEADER}",
    (*_QUEUE, "outcome"),
)
RUN_OUTCOMES: Final = ("fired", "skipped", "missed")
"""Fields of `RunCounts`."""
RUNS_LATE = _counter(
    "queue_recurring_late_seconds",
    f"Sum of how late the items of recurrences came, beyond the jitter. {_BY_LEADER}",
    _QUEUE,
)
RUN_COUNTS: Final = (*RUN_OUTCOMES, "late_ms")
RUN_WAITS = _gauge(
    "queue_oldest_due_run_age_seconds",
    "For how long the earliest due time has waited to be decided, beyond its jitter, in partitions "
    "led here; 0: none waits.",
    _QUEUE,
)

# --- raft and cluster ------------------------------------------------------------------

GROUPS = _gauge(
    "raft_groups",
    "Open groups of this node, the placement group included, by what the node is to them.",
    ("state",),
)
GROUP_STATES: Final = PARTITION_STATES[:4]
LOG_BYTES = _gauge(
    "raft_log_bytes", f"Bytes of the logs of this node's replicas; {_PLACEMENT}.", _QUEUE
)
UNCOMMITTED = _gauge(
    "raft_uncommitted_entries",
    f"Entries in those logs that are not known to be on disk on a majority; {_PLACEMENT}.",
    _QUEUE,
)
UNAPPLIED = _gauge(
    "raft_unapplied_entries",
    f"Entries that are committed and not applied here; {_PLACEMENT}.",
    _QUEUE,
)
FOLLOWER_LAG = _gauge(
    "raft_follower_lag_entries",
    "Entries that are not yet on another node's disk, in the group with the most of them, of those "
    "that this node leads.",
    ("follower",),
)
SNAPSHOTS = _counter(
    "raft_snapshots",
    "Snapshots for replicas far behind: sent or failed, counted by the leader; installed, by the "
    "receiving node.",
    ("outcome",),
)
SNAPSHOTS_SENDING = _gauge("raft_sending_snapshots", "Snapshots that this node is sending.")
SNAPSHOT_BYTES = _counter(
    "raft_snapshot_bytes", "Bytes of snapshots: sent, received.", ("direction",)
)
TERMS = _counter(
    "raft_terms", f"Sum of the groups' terms; each election adds one or more; {_PLACEMENT}.", _QUEUE
)
NODES = _gauge(
    "cluster_nodes",
    "The other nodes of the placement map, by whether there is a connection to them: connected, "
    "unreachable.",
    ("state",),
)
DAMAGED = _gauge(
    "damaged_blocks",
    "Blocks with a payload that this node cannot read, set aside until another replica sends them; "
    "0: none.",
    _QUEUE,
)
DAMAGE = _counter(
    "damage_blocks",
    "Damaged blocks since the start: found, and mended with what another replica has sent.",
    ("event",),
)
SCRUB_BYTES = _counter(
    "scrub_bytes", "Bytes of payload that were checked against checksums in the background."
)
SCRUB_ROUNDS = _counter(
    "scrub_rounds", "Times that all payloads of the node were read in the background."
)
SCRUB_ROUND_BYTES = _gauge(
    "scrub_round_bytes", "Bytes of payload that were read in the round that is under way."
)
SCRUB_AGE = _gauge(
    "scrub_round_age_seconds",
    "How long ago the last such round was over, or the process began; grows without end with "
    "`scrub_bytes_per_s` 0.",
)
CLOCK_SKEW = _gauge(
    "clock_skew_seconds",
    "How far the median of the nodes' wall clocks is ahead of this node's; beyond ±0.5 s it does "
    "not lead.",
)
TIME_AHEAD = _gauge(
    "time_ahead_seconds",
    "How far time is ahead of this node's wall clock, the most of the partitions that this node "
    "leads.",
)
EPOCHS = _counter("placement_epochs", "Version of the placement map that this node knows.")
PENDING = _gauge(
    "placement_pending_queues", "Queues with partitions that do not yet follow the placement map."
)


def _specs() -> tuple[MetricSpec, ...]:
    """All metrics, in the order of this file."""
    found: list[MetricSpec] = []
    for value in list(globals().values()):
        each = list(value.values()) if isinstance(value, dict) else [value]
        found += [spec for spec in each if isinstance(spec, MetricSpec)]
        found += [spec.metric for spec in each if isinstance(spec, HistogramSpec)]
    return tuple(found)


METRICS: Final = _specs()


# --- families ----------------------------------------------------------------------------


def family(spec: MetricSpec, rows: Iterable[tuple[Labels, float]]) -> Metric:
    """The metric with its samples; a row is (values of the labels, value)."""
    if spec.kind == "counter":
        counter = CounterMetricFamily(spec.name, spec.help, labels=spec.labels)
        for labels, value in rows:
            counter.add_metric(labels, value)
        return counter
    assert spec.kind == "gauge"
    gauge = GaugeMetricFamily(spec.name, spec.help, labels=spec.labels)
    for labels, value in rows:
        gauge.add_metric(labels, value)
    return gauge


def histogram(spec: HistogramSpec, rows: Iterable[tuple[Labels, Distribution]]) -> Metric:
    """The metric with its distributions; a row is (values of the labels, distribution)."""
    metric = spec.metric
    made = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, distribution in rows:
        made.add_metric(labels, _buckets(spec, distribution), distribution.total * spec.scale)
    return made


def _buckets(spec: HistogramSpec, distribution: Distribution) -> list[tuple[str, float]]:
    """Upper edges with the number of values up to each. The edges are those of the distribution:
    whole numbers below a power of two.
    """
    seen = sum(distribution.buckets[: spec.first])
    edges: list[tuple[str, float]] = []
    for exponent in range(spec.first, spec.last + 1):
        seen += distribution.buckets[exponent]
        edges.append((f"{(2**exponent - 1) * spec.scale:.9g}", seen))
    # Not `distribution.count`: during an addition it may be ahead of the buckets.
    edges.append(("+Inf", sum(distribution.buckets)))
    return edges
