"""Counts of queues: they equal the partitions' counts, are read only after changes, and can be
summed over the nodes of a cluster.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from querator.model.calls import PartitionCounts, SetBreakerCall
from querator.model.execution_calls import ArriveCall, StartCall
from querator.model.execution_commands import Arrive, StartExecution
from querator.model.executions import ArriveKind
from querator.model.ids import GroupId
from querator.model.queues import BreakerSettings, BreakerState, QueueKind
from querator.model.recurrence_calls import CreateRecurrenceCall, RecurrenceCall
from querator.model.recurrences import MissedRuns, Overlap, RecurrenceSpec, RunsRow
from querator.partition import recurrence_queries
from querator.raft.clock import SimulatedClock
from querator.raft.status import GroupStatus
from querator.server.admin.metric_catalogue import ITEM_COUNTS, ITEM_STATES
from querator.server.admin.queue_metrics import QueueMetrics, QueueReading
from querator.storage.environment import ReadTransaction
from querator.storage.memory_environment import MemoryEnvironment
from querator.storage.tables import STATE
from tests.unit.service.service_node import ServiceNode, service_node, whole


def statuses(node: ServiceNode, **changes: Any) -> dict[GroupId, GroupStatus]:
    found = {}
    for group in node.host.groups():
        status = node.host.status(group)
        assert status is not None
        found[group] = msgspec.structs.replace(status, **changes)
    return found


def read(metrics: QueueMetrics, node: ServiceNode, **changes: Any) -> dict[str, QueueReading]:
    """Readings by queue. `changes` replace fields of the status of all groups."""
    readings = metrics.read(node.environment, node.placement.map, statuses(node, **changes))
    return {reading.queue.name: reading for reading in readings}


def counted(reading: QueueReading) -> dict[str, int]:
    """The counts that are not 0."""
    return {field: count for field, count in reading.counts.items() if count}


def test_every_count_of_a_partition_has_a_metric() -> None:
    others = {"partition", "applied_index", "leases", "bytes"}
    others |= {"oldest_ready_at_ms", "oldest_batch_at_ms", "oldest_lease_at_ms"}
    others |= {"first_seq", "head_seq"}
    others |= {"checkpoint_bytes", "breaker", "limits", "results", "result_bytes", "executions"}
    others |= {"staged", "staged_bytes", "stages", "oldest_stage_at_ms", "waits_for", "state_ms"}
    # Prometheus computes rates from the counters.
    others.add("rates")
    # A metric of the node counts it, in blocks: querator_damaged_blocks.
    others.add("damaged")
    # A metric of the node counts it, in queues: querator_conditions{kind="time_behind"}.
    others.add("behind_ms")
    assert {*ITEM_COUNTS, *ITEM_STATES, *others} == set(PartitionCounts.__struct_fields__)


async def test_readings_equal_what_the_partitions_say() -> None:
    clock = SimulatedClock()
    async with service_node(clock=clock) as node:
        await node.create("q", partitions=3)
        await node.create("empty")
        metrics = QueueMetrics(began_ms=0)
        for number in range(6):
            await node.produce(*[b"x" * number] * 5)
        in_an_hour = clock.wall_ms() + 3_600_000
        await node.produce(b"later", enqueue_at_ms=in_an_hour)
        leased = (await node.lease(7)).batches
        await node.complete(whole(leased[0]))
        await node.retry(*[whole(batch) for batch in leased[1:]])
        await node.lease(3)
        total = await node.total()
        reading = read(metrics, node)["q"]
        assert reading.items == {state: getattr(total, state) for state in ITEM_STATES}
        assert (reading.items["scheduled"], total.ready > 0, total.leased > 0) == (1, True, True)
        assert reading.counts == {field: getattr(total, field) for field in ITEM_COUNTS}
        assert (reading.bytes, reading.leases) == (total.bytes, total.leases)
        assert reading.oldest_ready_at_ms == total.oldest_ready_at_ms > 0
        assert reading.oldest_lease_at_ms == total.oldest_lease_at_ms > 0
        assert (reading.staged_bytes, reading.oldest_stage_at_ms) == (0, 0)
        assert reading.states == {"leader": 3}
        empty = read(metrics, node)["empty"]
        assert (empty.items, counted(empty)) == (dict.fromkeys(ITEM_STATES, 0), {})


async def test_partitions_are_counted_by_the_state_of_their_breaker() -> None:
    async with service_node() as node:
        await node.create("q", partitions=3, breaker=BreakerSettings())
        await node.create("plain")
        metrics = QueueMetrics(began_ms=0)
        assert read(metrics, node)["q"].breakers == {
            BreakerState.CLOSED: 3, BreakerState.OPEN: 0, BreakerState.HALF_OPEN: 0,
        }  # fmt: skip
        await node.admin.breakers.set_breaker(SetBreakerCall("default", "q", open=True))
        readings = read(metrics, node)
        assert readings["q"].breakers[BreakerState.OPEN] == 3
        assert readings["plain"].breakers == {}
        assert read(metrics, node, leads=False)["q"].breakers == {}


async def test_executions_are_counted_by_their_state() -> None:
    async with service_node() as node:
        await node.create("shop", kind=QueueKind.EXECUTIONS, partitions=2)
        await node.create("plain")
        metrics = QueueMetrics(began_ms=0)
        for name in ("a", "b", "c"):
            command = StartExecution(name, "shop.checkout", "1", bytes(16), b"h" * 16)
            await node.queues.executions.start(StartCall("default", "shop", command, b"", 0))
        ending = ArriveCall("default", "shop", -1, Arrive(ArriveKind.TERMINATE, "c"), b"", 0)
        await node.queues.executions.arrive(ending)
        readings = read(metrics, node)
        assert readings["shop"].executions == {
            "runnable": 2, "parked": 0, "stuck": 0, "pinned": 0, "closed": 1,
        }  # fmt: skip
        assert readings["plain"].executions == {}
        assert read(metrics, node, leads=False)["shop"].executions == {}


async def test_runs_of_recurrences_are_counted_by_outcome_and_by_how_late_they_are() -> None:
    clock = SimulatedClock()
    async with service_node(clock=clock) as node:
        await node.create(partition_items_max=1)
        await node.produce(b"in the way")
        spec = RecurrenceSpec(
            interval_ms=60_000, phase_ms=0, overlap=Overlap.SKIP, missed=MissedRuns.SKIP
        )
        calls = node.admin.recurrences
        made = await calls.create(CreateRecurrenceCall("default", "q", "r", spec=spec))
        group = node.placement.map.find("default", "q").groups[0]  # type: ignore[union-attr]
        metrics = QueueMetrics(began_ms=0)
        first_ms = (made.recurrence.row.created_ms // 60_000 + 1) * 60_000

        def runs() -> RunsRow:
            with node.environment.snapshot() as txn:
                [found] = recurrence_queries.by_name(txn, group, "r").recurrences
            return found.runs

        await node.until(lambda: runs().next_due_ms == first_ms)
        clock.advance(first_ms + 700 - clock.wall_ms())
        await node.until(lambda: read(metrics, node)["q"].run_waits_since_ms == first_ms)
        await node.complete(whole((await node.lease()).batches[0]))
        await node.until(lambda: runs().fired == 1)
        clock.advance(60_000)
        await node.until(lambda: runs().skipped == 1)
        clock.advance(10 * 60_000)
        await node.until(lambda: runs().missed == 9)
        reading = read(metrics, node)["q"]
        assert reading.runs == {
            "fired": 1, "skipped": runs().skipped, "missed": 9, "late_ms": 700,
        }  # fmt: skip
        assert reading.run_waits_since_ms == 0
        await calls.delete(RecurrenceCall("default", "q", "r"))
        assert read(metrics, node)["q"].runs == reading.runs, "counts stay"


class CountingEnvironment(MemoryEnvironment):
    """Counts its snapshots."""

    snapshots = 0

    @contextmanager
    def snapshot(self) -> Iterator[ReadTransaction]:
        self.snapshots += 1
        with super().snapshot() as txn:
            yield txn


async def test_partitions_at_rest_are_not_read() -> None:
    # The quota is so large that the leader does not check the disk space of commands.
    environment = CountingEnvironment(quota_bytes=8 << 30)
    async with service_node(environment) as node:
        await node.create("q", partitions=2)
        await node.produce(b"work")
        metrics = QueueMetrics(began_ms=0)
        assert read(metrics, node)["q"].items["ready"] == 1
        before = environment.snapshots
        assert read(metrics, node)["q"].items["ready"] == 1
        assert environment.snapshots == before
        await node.produce(b"work")
        assert read(metrics, node)["q"].items["ready"] == 2
        assert environment.snapshots == before + 1


async def test_only_growth_is_counted_of_what_was_there_before_the_node() -> None:
    async with service_node() as node:
        await node.create("q")
        await node.produce(*[b"work"] * 5)
        began_ms = 2**62
        metrics = QueueMetrics(began_ms=began_ms)
        reading = read(metrics, node)["q"]
        assert (reading.items["ready"], counted(reading)) == (5, {})
        await node.produce(*[b"work"] * 3)
        assert counted(read(metrics, node)["q"]) == {"produced": 3}
        assert counted(read(metrics, node)["q"]) == {"produced": 3}


async def test_a_leadership_that_moves_is_counted_once_in_the_cluster() -> None:
    """Two nodes read the same log. Growth is counted by the node that leads at the reading."""
    async with service_node() as node:
        await node.create("q")
        one, two = QueueMetrics(began_ms=2**62), QueueMetrics(began_ms=2**62)

        def look(*, one_leads: bool) -> tuple[int, int]:
            first = read(one, node, leads=one_leads)["q"]
            second = read(two, node, leads=not one_leads)["q"]
            assert (first.items["ready"] == 0) is not one_leads
            assert (second.items["ready"] == 0) is one_leads
            return first.counts["produced"], second.counts["produced"]

        await node.produce(*[b"work"] * 5)
        assert look(one_leads=True) == (0, 0)
        await node.produce(*[b"work"] * 3)
        assert look(one_leads=True) == (3, 0)
        await node.produce(*[b"work"] * 2)
        assert look(one_leads=False) == (3, 2)
        await node.produce(b"work")
        assert look(one_leads=True) == (4, 2)


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, "leader"),
        ({"leads": False}, "follower"),
        ({"leads": False, "leader": None}, "leaderless"),
        ({"leads": False, "leader": None, "quarantined": True}, "stopped"),
    ],
)
async def test_what_the_node_is_to_a_partition(changes: dict[str, Any], state: str) -> None:
    async with service_node() as node:
        await node.create("q", partitions=2)
        assert read(QueueMetrics(began_ms=0), node, **changes)["q"].states == {state: 2}


async def test_a_partition_that_is_not_here() -> None:
    async with service_node() as node:
        await node.create("q")
        reading = QueueMetrics(began_ms=0).read(node.environment, node.placement.map, {})[0]
        assert reading.states == {"absent": 1}


async def test_a_damaged_partition_takes_only_itself_out() -> None:
    async with service_node() as node:
        whole_queue = await node.create("whole")
        broken = await node.create("broken")
        await node.produce(b"work", queue="whole")
        with node.environment.snapshot() as txn:
            rows = [(key, value) for key, value in txn.scan(b"\x00", b"\xff")]
        damaged = MemoryEnvironment()
        writing = damaged.begin()
        for key, value in rows:
            bad = key == STATE.key(broken.groups[0])
            writing.put(key, b"\xc1" if bad else value)
        writing.commit(sync=True)
        metrics = QueueMetrics(began_ms=0)
        readings = metrics.read(damaged, node.placement.map, statuses(node))
        found = {reading.queue.id: reading for reading in readings}
        assert found[whole_queue.id].items["ready"] == 1
        assert found[broken.id].states == {"unreadable": 1}


async def test_deleted_queues_are_forgotten_and_their_names_start_anew() -> None:
    async with service_node() as node:
        await node.create("q")
        await node.produce(*[b"work"] * 5)
        metrics = QueueMetrics(began_ms=0)
        assert counted(read(metrics, node)["q"]) == {"produced": 5}
        await node.admin.delete_queue("default", "q")
        await node.until(lambda: len(node.placement.map) == 0)
        assert read(metrics, node) == {}
        await node.create("q")
        await node.produce(b"work")
        assert counted(read(metrics, node)["q"]) == {"produced": 1}


async def test_without_the_storage_what_was_read_before_stands() -> None:
    async with service_node() as node:
        await node.create("q")
        await node.produce(b"work")
        metrics = QueueMetrics(began_ms=0)
        read(metrics, node)
        await node.produce(b"work")
        readings = metrics.read(None, node.placement.map, statuses(node))
        assert readings[0].items["ready"] == 1
