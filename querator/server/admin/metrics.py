"""The metrics of a node, made at each scrape; they cost nothing between scrapes.

State of the event loop is copied on the loop, in a few microseconds a partition. A separate thread
reads the storage and makes the text, one scrape after the other.
"""

import asyncio
import platform
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version

import msgspec
from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from querator.model.ids import PLACEMENT_GROUP, GroupId
from querator.model.nodes import node_name
from querator.model.placement_map import PlacementMap
from querator.raft.group.snapshot_schedule import SnapshotStats
from querator.raft.stats import Distribution, TurnStats
from querator.raft.status import GroupStatus
from querator.server.admin import metric_catalogue as catalogue
from querator.server.admin.admin_view import Observed, certificates
from querator.server.admin.health import Health
from querator.server.admin.metric_catalogue import METRICS, Labels, MetricSpec, family, histogram
from querator.server.admin.queue_metrics import QueueMetrics, QueueReading, Statuses, state_of
from querator.service.conditions import KINDS
from querator.service.repair.damage import DamageStats
from querator.service.repair.scrub import ScrubStats
from querator.storage.environment import Usage

_US = "_us"


class Look(msgspec.Struct, frozen=True):
    """The state of the event loop at one instant."""

    wall_ms: int
    missing: int
    stalled_s: float
    loop_hangs: int
    node: Labels | None
    turns: TurnStats | None
    snapshots: SnapshotStats | None
    calls: Mapping[tuple[str, str], int]
    lasted_us: Mapping[str, Distribution]
    streams: Mapping[str, int]
    incomplete_bytes: int
    connections_ended: int
    peers_refused: Mapping[str, int]
    waiting: Mapping[str, int]
    waiting_produce_bytes: int
    placed: PlacementMap
    pending: int
    statuses: Statuses
    connected: frozenset[str]
    """Names of the connected nodes."""
    clock_skew_ms: int
    damage: DamageStats | None
    conditions: Mapping[str, int]
    """Number of conditions by kind."""
    scrub: ScrubStats | None
    certificates_s: Mapping[str, float]
    """Remaining time of certificates by port."""


def look(observed: Observed, health: Health) -> Look:
    """Copies the state. On the event loop."""
    host, placement, calls = observed.host, observed.placement, observed.calls
    statuses: dict[GroupId, GroupStatus] = {}
    if host is not None:
        for group in host.groups():
            status = host.status(group)
            if status is not None:
                statuses[group] = status
    admissions = () if observed.service is None else observed.service.admissions
    return Look(
        wall_ms=time.time_ns() // 1_000_000,
        missing=len(health.missing()),
        stalled_s=health.stalled_s(),
        loop_hangs=0 if host is None else host.loop_hangs,
        node=_node(observed),
        turns=None if host is None else host.turn_stats(),
        snapshots=None if host is None else host.snapshot_stats(),
        calls={} if calls is None else calls.calls(),
        lasted_us={} if calls is None else calls.lasted_us(),
        streams={} if calls is None else calls.open_streams(),
        incomplete_bytes=0 if observed.incoming is None else observed.incoming.incomplete_bytes,
        connections_ended=0 if observed.incoming is None else observed.incoming.ended,
        peers_refused={} if observed.peers is None else observed.peers.refused(),
        waiting=dict(
            zip(("produce", "settle", "lease"), (each.calls for each in admissions), strict=False)
        ),
        waiting_produce_bytes=admissions[0].bytes if admissions else 0,
        placed=PlacementMap() if placement is None else placement.map,
        pending=0 if placement is None else len(placement.pending),
        statuses=statuses,
        connected=_connected(observed),
        clock_skew_ms=0 if host is None else host.skew_ms,
        damage=None if observed.service is None else observed.service.damage.stats(),
        conditions=_conditions(observed),
        scrub=None if observed.scrub is None else observed.scrub.stats(),
        certificates_s={one.port: one.left_ms / 1000 for one in certificates(observed)},
    )


def _conditions(observed: Observed) -> Mapping[str, int]:
    present = () if observed.conditions is None else observed.conditions.present
    counts = Counter(one.kind for one in present)
    return {kind: counts[kind] for kind in KINDS}


def _connected(observed: Observed) -> frozenset[str]:
    if observed.peers is None:
        return frozenset()
    return frozenset(node_name(key) for key in observed.peers.connected())


def _node(observed: Observed) -> Labels | None:
    if observed.identity is None or observed.environment is None:
        return None
    identity = observed.identity
    durable = "true" if observed.environment.durable else "false"
    return identity.name, identity.cluster_id, identity.incarnation, durable


class Metrics:
    """The metrics of one node, in their own registry."""

    def __init__(self, observed: Observed, health: Health) -> None:
        self._observed = observed
        self._health = health
        self._queues = QueueMetrics(began_ms=observed.began_ms)
        self._collector = _NodeCollector()
        self._registry: CollectorRegistry | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="metrics")
        """Makes one text after the other, also texts whose client has gone."""

    async def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """Returns the text and its content type, by the HTTP header `accept`."""
        seen = look(self._observed, self._health)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._text, seen, accept)

    async def forget_storage(self) -> None:
        """Ends reads of the storage before it is closed. Returns when no read runs or will run."""
        self._observed.environment = None
        # All earlier work of the thread has ended when this runs.
        await asyncio.get_running_loop().run_in_executor(self._thread, int)

    def close(self) -> None:
        """To be called after the last exposition."""
        self._thread.shutdown(wait=False)

    def _text(self, seen: Look, accept: str) -> tuple[bytes, str]:
        environment = self._observed.environment
        usage = None if environment is None else environment.usage()
        queues = self._queues.read(environment, seen.placed, seen.statuses)
        self._collector.families = list(_families(seen, usage, queues))
        if self._registry is None:
            self._registry = _registry(self._collector)
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type


class _NodeCollector(Collector):
    """Returns the metrics that were made last."""

    def __init__(self) -> None:
        self.families: list[Metric] = []

    def describe(self) -> Iterable[Metric]:
        return [Metric(spec.name, spec.help, spec.kind) for spec in METRICS]

    def collect(self) -> Iterable[Metric]:
        return self.families


def _registry(collector: Collector) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(collector)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


def _families(seen: Look, usage: Usage | None, queues: list[QueueReading]) -> Iterator[Metric]:
    yield family(catalogue.BUILD, [((version("querator"), platform.python_version()), 1)])
    if seen.node is not None:
        yield family(catalogue.NODE, [(seen.node, 1)])
    yield family(catalogue.UNREADY, [((), seen.missing)])
    yield family(catalogue.STALLED, [((), seen.stalled_s)])
    yield family(catalogue.LOOP_HANGS, [((), seen.loop_hangs)])
    yield family(
        catalogue.CERTIFICATE, (((port,), left) for port, left in seen.certificates_s.items())
    )
    yield family(catalogue.CONDITIONS, (((kind,), n) for kind, n in seen.conditions.items()))
    if seen.turns is not None:
        yield from _turns(seen.turns)
    yield from _calls(seen)
    if usage is not None:
        yield family(catalogue.USED, [((), usage.used_bytes)])
        yield family(catalogue.FREE, [((), usage.free_bytes)])
        yield family(catalogue.QUOTA, [((), usage.quota_bytes)])
        yield family(catalogue.RESERVE, [((), usage.reserve_bytes)])
    yield from _queues(seen, queues)
    yield from _raft(seen)


def _turns(stats: TurnStats) -> Iterator[Metric]:
    parts: list[tuple[Labels, Distribution]] = []
    for field in stats.__struct_fields__:
        distribution: Distribution = getattr(stats, field)
        if field == "turn_us":
            yield histogram(catalogue.TURN, [((), distribution)])
        elif field.endswith(_US):
            parts.append(((field.removesuffix(_US),), distribution))
        else:
            yield histogram(catalogue.TURN_COUNTS[field], [((), distribution)])
    yield histogram(catalogue.TURN_PARTS, parts)


def _calls(seen: Look) -> Iterator[Metric]:
    yield family(catalogue.CALLS, seen.calls.items())
    yield histogram(catalogue.CALL, (((method,), d) for method, d in seen.lasted_us.items()))
    yield family(catalogue.STREAMS, (((method,), n) for method, n in seen.streams.items()))
    yield family(catalogue.INCOMPLETE, [((), seen.incomplete_bytes)])
    yield family(catalogue.CONNECTIONS_ENDED, [((), seen.connections_ended)])
    yield family(catalogue.PEERS_REFUSED, (((code,), n) for code, n in seen.peers_refused.items()))
    yield family(catalogue.WAITING, (((kind,), n) for kind, n in seen.waiting.items()))
    yield family(catalogue.WAITING_BYTES, [((), seen.waiting_produce_bytes)])


def _queues(seen: Look, queues: list[QueueReading]) -> Iterator[Metric]:
    labelled = [((each.queue.namespace, each.queue.name), each) for each in queues]
    yield family(
        catalogue.ITEMS,
        (((*label, state), n) for label, each in labelled for state, n in each.items.items()),
    )
    yield family(catalogue.ITEM_BYTES, ((label, each.bytes) for label, each in labelled))
    yield family(catalogue.LEASES, ((label, each.leases) for label, each in labelled))
    yield family(
        catalogue.OLDEST_LEASE,
        ((label, _age_s(each.oldest_lease_at_ms, seen.wall_ms)) for label, each in labelled),
    )
    yield family(
        catalogue.OLDEST,
        ((label, _age_s(each.oldest_ready_at_ms, seen.wall_ms)) for label, each in labelled),
    )
    yield family(catalogue.STAGED_BYTES, ((label, each.staged_bytes) for label, each in labelled))
    yield family(catalogue.RESULTS, ((label, each.results) for label, each in labelled))
    yield family(catalogue.RESULT_BYTES, ((label, each.result_bytes) for label, each in labelled))
    yield family(
        catalogue.CHECKPOINT_BYTES, ((label, each.checkpoint_bytes) for label, each in labelled)
    )
    yield family(
        catalogue.BREAKERS,
        (
            ((*label, state.name.lower()), partitions)
            for label, each in labelled
            for state, partitions in each.breakers.items()
        ),
    )
    yield family(
        catalogue.EXECUTIONS,
        (
            ((*label, state), count)
            for label, each in labelled
            for state, count in each.executions.items()
        ),
    )
    yield family(
        catalogue.PAUSED,
        (
            ((*label, what), 1)
            for label, each in labelled
            for what, paused in (
                ("leases", each.queue.settings.lease_paused),
                ("producers", each.queue.settings.produce_paused),
            )
            if paused
        ),
    )
    yield family(
        catalogue.OLDEST_STAGE,
        ((label, _age_s(each.oldest_stage_at_ms, seen.wall_ms)) for label, each in labelled),
    )
    yield family(
        catalogue.OLDEST_BATCH,
        ((label, _age_s(each.oldest_batch_at_ms, seen.wall_ms)) for label, each in labelled),
    )
    yield family(
        catalogue.PARTITIONS,
        (((*label, state), n) for label, each in labelled for state, n in each.states.items()),
    )
    for field, spec in catalogue.ITEM_COUNTS.items():
        yield family(spec, ((label, each.counts[field]) for label, each in labelled))
    yield from _runs(seen, labelled)


def _runs(seen: Look, labelled: list[tuple[tuple[str, str], QueueReading]]) -> Iterator[Metric]:
    yield family(
        catalogue.RUNS,
        (
            ((*label, outcome), each.runs[outcome])
            for label, each in labelled
            for outcome in catalogue.RUN_OUTCOMES
        ),
    )
    yield family(
        catalogue.RUNS_LATE, ((label, each.runs["late_ms"] / 1000) for label, each in labelled)
    )
    yield family(
        catalogue.RUN_WAITS,
        ((label, _age_s(each.run_waits_since_ms, seen.wall_ms)) for label, each in labelled),
    )


def _age_s(at_ms: int, wall_ms: int) -> float:
    return max(0, wall_ms - at_ms) / 1000 if at_ms else 0.0


def _raft(seen: Look) -> Iterator[Metric]:
    states = dict.fromkeys(catalogue.GROUP_STATES, 0)
    for status in seen.statuses.values():
        states[state_of(status)] += 1
    yield family(catalogue.GROUPS, (((state,), n) for state, n in states.items()))
    logs = list(_logs(seen))
    for spec, field in _LOG_FIELDS:
        yield family(spec, ((label, getattr(log, field)) for label, log in logs))
    yield family(catalogue.FOLLOWER_LAG, (((node,), n) for node, n in _lags(seen).items()))
    if seen.snapshots is not None:
        yield from _snapshots(seen.snapshots)
    yield family(catalogue.NODES, _others(seen))
    if seen.damage is not None:
        yield from _damage(seen.placed, seen.damage)
    scrub = ScrubStats(0, 0, 0.0, 0) if seen.scrub is None else seen.scrub
    yield family(catalogue.SCRUB_BYTES, [((), scrub.bytes)])
    yield family(catalogue.SCRUB_ROUNDS, [((), scrub.rounds)])
    yield family(catalogue.SCRUB_ROUND_BYTES, [((), scrub.round_bytes)])
    yield family(catalogue.SCRUB_AGE, [((), scrub.age_s)])
    yield family(catalogue.CLOCK_SKEW, [((), seen.clock_skew_ms / 1000)])
    ahead_ms = max(
        (
            status.now_ms - seen.wall_ms
            for group, status in seen.statuses.items()
            if status.leads and group != PLACEMENT_GROUP
        ),
        default=0,
    )
    yield family(catalogue.TIME_AHEAD, [((), max(0, ahead_ms) / 1000)])
    yield family(catalogue.EPOCHS, [((), seen.placed.epoch)])
    yield family(catalogue.PENDING, [((), seen.pending)])


def _damage(placed: PlacementMap, stats: DamageStats) -> Iterator[Metric]:
    aside: dict[Labels, int] = {("", ""): 0}
    for group, blocks in stats.aside.items():
        owner = placed.by_group(group)
        label = ("", "") if owner is None else (owner[0].namespace, owner[0].name)
        aside[label] = aside.get(label, 0) + blocks
    yield family(catalogue.DAMAGED, aside.items())
    yield family(catalogue.DAMAGE, [(("found",), stats.found), (("mended",), stats.mended)])


def _snapshots(stats: SnapshotStats) -> Iterator[Metric]:
    yield family(
        catalogue.SNAPSHOTS,
        [(("sent",), stats.sent), (("failed",), stats.failed), (("installed",), stats.installed)],
    )
    yield family(catalogue.SNAPSHOTS_SENDING, [((), stats.sending)])
    yield family(
        catalogue.SNAPSHOT_BYTES,
        [(("sent",), stats.bytes_sent), (("received",), stats.bytes_received)],
    )


def _others(seen: Look) -> list[tuple[Labels, float]]:
    itself = None if seen.node is None else seen.node[0]
    others = {node.name for node in seen.placed.nodes} - {itself}
    connected = len(others & seen.connected)
    return [(("connected",), connected), (("unreachable",), len(others) - connected)]


def _lags(seen: Look) -> Mapping[str, int]:
    """By name of the other node: most entries that it lacks in a group that this node leads."""
    lags: dict[str, int] = {}
    for status in seen.statuses.values():
        for follower in status.followers:
            name = node_name(follower.node)
            lags[name] = max(lags.get(name, 0), status.log_last - follower.match)
    return lags


class _Logs(msgspec.Struct, frozen=True):
    """Sums over all replicas of a queue on this node."""

    bytes: int
    uncommitted: int
    unapplied: int
    terms: int


_LOG_FIELDS: tuple[tuple[MetricSpec, str], ...] = (
    (catalogue.LOG_BYTES, "bytes"),
    (catalogue.UNCOMMITTED, "uncommitted"),
    (catalogue.UNAPPLIED, "unapplied"),
    (catalogue.TERMS, "terms"),
)


def _logs(seen: Look) -> Iterator[tuple[Labels, _Logs]]:
    """Log sums by namespace and queue."""
    owners: list[tuple[Labels, tuple[GroupId, ...]]] = [(("", ""), (PLACEMENT_GROUP,))]
    owners += [((queue.namespace, queue.name), queue.groups) for queue in seen.placed]
    for label, groups in owners:
        statuses = [seen.statuses[group] for group in groups if group in seen.statuses]
        yield (
            label,
            _Logs(
                sum(status.log_bytes for status in statuses),
                sum(max(0, status.log_last - status.commit_index) for status in statuses),
                sum(max(0, status.commit_index - status.applied_index) for status in statuses),
                sum(status.term for status in statuses),
            ),
        )
