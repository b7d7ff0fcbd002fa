"""Counts of a node's queues, read from its storage on request.

A partition is read only when it has applied entries since its last read, so idle partitions cost
nothing. The replicated state of a partition counts the events of its items: all replicas have the
same sums, also after restarts. A node counts only the growth of these sums while it leads the
partition. So the counters of all nodes add up, and do not jump when a leadership moves.
"""

from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from typing import Final

import msgspec

from querator.model.calls import PartitionCounts
from querator.model.ids import GroupId, QueueId
from querator.model.placement_map import PlacementMap
from querator.model.queues import BreakerState, Queue
from querator.model.recurrences import RunCounts
from querator.partition import queries, recurrence_queries
from querator.raft.status import GroupStatus
from querator.server.admin.metric_catalogue import ITEM_COUNTS, ITEM_STATES, RUN_COUNTS
from querator.storage.environment import Environment, StorageError

SNAPSHOT_PARTITIONS_MAX: Final = 64
"""Partitions that are read from one snapshot; a snapshot pins pages."""

_DAMAGE: Final = (StorageError, msgspec.MsgspecError, AssertionError)
"""Errors of reading a partition with damaged rows, when the node itself is not damaged."""

_Counts = PartitionCounts | RunCounts
Statuses = Mapping[GroupId, GroupStatus]


class QueueReading(msgspec.Struct):
    """One queue on this node. Items, bytes and leases count in the partitions that it leads."""

    queue: Queue
    states: dict[str, int]
    items: dict[str, int]
    counts: Mapping[str, int]
    runs: Mapping[str, int]
    bytes: int = 0
    leases: int = 0
    oldest_ready_at_ms: int = 0
    oldest_batch_at_ms: int = 0
    staged_bytes: int = 0
    checkpoint_bytes: int = 0
    results: int = 0
    result_bytes: int = 0
    oldest_stage_at_ms: int = 0
    oldest_lease_at_ms: int = 0
    run_waits_since_ms: int = 0
    breakers: dict[BreakerState, int] = {}
    """Partitions by the state of their breaker; empty: the queue has none."""
    executions: dict[str, int] = {}
    """By state; empty: the queue has none, or no partition is led."""


class _Known(msgspec.Struct, frozen=True):
    """The last read of a partition; `stats` None: it could not be read."""

    applied_index: int
    stats: PartitionCounts | None
    runs: RunCounts


class QueueMetrics:
    """Reads the queues of one node. Used by one thread at a time."""

    def __init__(self, *, began_ms: int) -> None:
        """`began_ms` is when the node was created. All events of younger queues are counted."""
        self._began_ms = began_ms
        self._known: dict[GroupId, _Known] = {}
        self._seen: dict[GroupId, tuple[PartitionCounts, RunCounts]] = {}
        """The sums of each partition at the last comparison."""
        self._counts: dict[QueueId, tuple[dict[str, int], dict[str, int]]] = {}
        """Of items, and of runs of recurrences."""

    def read(
        self, environment: Environment | None, placed: PlacementMap, statuses: Statuses
    ) -> list[QueueReading]:
        """Reads all queues of the map. Without an environment, the last reads remain valid."""
        self._forget(placed)
        if environment is not None:
            self._refresh(environment, placed, statuses)
        return [self._reading(queue, statuses) for queue in placed]

    def _forget(self, placed: PlacementMap) -> None:
        for group in [group for group in self._known if placed.by_group(group) is None]:
            del self._known[group]
            self._seen.pop(group, None)
        for queue_id in [queue_id for queue_id in self._counts if placed.get(queue_id) is None]:
            del self._counts[queue_id]

    def _refresh(self, environment: Environment, placed: PlacementMap, statuses: Statuses) -> None:
        changed = (
            (group, status.applied_index)
            for group, status in statuses.items()
            if placed.by_group(group) is not None and self._changed(group, status)
        )
        while some := list(islice(changed, SNAPSHOT_PARTITIONS_MAX)):
            with environment.snapshot() as txn:
                for group, applied_index in some:
                    stats, runs = None, RunCounts()
                    # Both or neither.
                    with suppress(*_DAMAGE):
                        runs = recurrence_queries.run_counts(txn, group)
                        stats = queries.stats(txn, group)
                    # The snapshot may be ahead of `applied_index`. Then the next index differs,
                    # and the partition is read again.
                    self._known[group] = _Known(applied_index, stats, runs)

    def _changed(self, group: GroupId, status: GroupStatus) -> bool:
        known = self._known.get(group)
        return known is None or known.applied_index != status.applied_index

    def _reading(self, queue: Queue, statuses: Statuses) -> QueueReading:
        counts, runs = self._counts.setdefault(
            queue.id, (dict.fromkeys(ITEM_COUNTS, 0), dict.fromkeys(RUN_COUNTS, 0))
        )
        reading = QueueReading(queue, {}, dict.fromkeys(ITEM_STATES, 0), counts, runs)
        for group in queue.groups:
            status = statuses.get(group)
            known = self._known.get(group)
            stats = None if known is None else known.stats
            state = state_of(status)
            if known is not None and stats is None:
                state = "unreadable"
            reading.states[state] = reading.states.get(state, 0) + 1
            if known is not None and stats is not None:
                leads = status is not None and status.leads
                before = self._seen.get(group)
                self._seen[group] = (stats, known.runs)
                # Events of older queues before the first read are not counted.
                if leads and (before is not None or queue.created_at_ms >= self._began_ms):
                    _count(counts, stats, None if before is None else before[0])
                    _count(runs, known.runs, None if before is None else before[1])
                if leads:
                    _add_items(reading, stats)
                    reading.run_waits_since_ms = _older(
                        reading.run_waits_since_ms, known.runs.waits_since_ms
                    )
        return reading


def _count(counts: dict[str, int], found: _Counts, before: _Counts | None) -> None:
    """Adds the growth of the sums of a partition."""
    for field in counts:
        since = 0 if before is None else getattr(before, field)
        counts[field] += max(0, getattr(found, field) - since)


def _add_items(reading: QueueReading, stats: PartitionCounts) -> None:
    for state in ITEM_STATES:
        reading.items[state] += getattr(stats, state)
    reading.bytes += stats.bytes
    reading.leases += stats.leases
    reading.oldest_ready_at_ms = _older(reading.oldest_ready_at_ms, stats.oldest_ready_at_ms)
    reading.oldest_batch_at_ms = _older(reading.oldest_batch_at_ms, stats.oldest_batch_at_ms)
    reading.oldest_stage_at_ms = _older(reading.oldest_stage_at_ms, stats.oldest_stage_at_ms)
    reading.oldest_lease_at_ms = _older(reading.oldest_lease_at_ms, stats.oldest_lease_at_ms)
    reading.staged_bytes += stats.staged_bytes
    if stats.breaker is not None:
        reading.breakers = reading.breakers or dict.fromkeys(BreakerState, 0)
        reading.breakers[stats.breaker.state] += 1
    if stats.executions is not None:
        for state, count in msgspec.structs.asdict(stats.executions).items():
            reading.executions[state] = reading.executions.get(state, 0) + count
    reading.checkpoint_bytes += stats.checkpoint_bytes
    reading.results += stats.results
    reading.result_bytes += stats.result_bytes


def _older(first_ms: int, second_ms: int) -> int:
    """The earlier of two instants; 0: none."""
    return min(first_ms or second_ms, second_ms or first_ms)


def state_of(status: GroupStatus | None) -> str:
    """One of PARTITION_STATES."""
    if status is None:
        return "absent"
    if status.quarantined:
        return "stopped"
    if status.leads:
        return "leader"
    return "leaderless" if status.leader is None else "follower"
