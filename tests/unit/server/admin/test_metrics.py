"""A scrape: text that Prometheus reads, with the values of the node's own counts."""

import asyncio
import time

import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)

from querator.model.errors import ErrorCode, QueratorError
from querator.raft.stats import Distribution, Gatherer, TurnStats
from querator.server.admin.admin_view import Observed
from querator.server.admin.health import Health
from querator.server.admin.metric_catalogue import (
    METRICS,
    TURN_COUNTS,
    HistogramSpec,
    MetricSpec,
    histogram,
)
from querator.server.admin.metrics import Metrics
from tests.unit.server.observed_node import Exposition, HeldEnvironment, observed
from tests.unit.service.service_node import ServiceNode, service_node

UNITS = (
    "seconds", "bytes", "items", "calls", "streams", "entries", "executions",
    "conditions", "hangs", "commands", "groups", "partitions", "rounds",
    "leases", "queues", "reasons", "terms", "epochs", "nodes", "snapshots", "info", "blocks",
    "connections", "runs",
)  # fmt: skip


def metrics_of(seen: Observed) -> Metrics:
    return Metrics(seen, Health(seen))


async def scrape(metrics: Metrics) -> Exposition:
    text, content_type = await metrics.exposition()
    assert content_type.startswith("text/plain")
    return Exposition(text.decode())


async def busy(node: ServiceNode) -> None:
    await node.create("q", partitions=2)
    for _ in range(4):
        await node.produce(*[b"work"] * 10)
    await node.lease(15)


# --- the catalogue -----------------------------------------------------------------------


def test_names_end_in_a_unit_and_are_used_once() -> None:
    names = [spec.name for spec in METRICS]
    assert len(set(names)) == len(names)
    for spec in METRICS:
        assert spec.name.startswith("querator_")
        assert spec.name.removesuffix("_total").endswith(UNITS), spec.name
        assert spec.name.endswith("_total") == (spec.kind == "counter")
        assert spec.help.endswith(".")
        assert "\n" not in spec.help


def test_every_part_of_a_turn_has_a_metric() -> None:
    counts = {field for field in TurnStats.__struct_fields__ if not field.endswith("_us")}
    assert counts == set(TURN_COUNTS), "a distribution of turns and its line in TURN_COUNTS"


def distribution(*values: int) -> Distribution:
    gatherer = Gatherer()
    for value in values:
        gatherer.add(value)
    return gatherer.distribution()


def test_a_histogram_counts_values_up_to_its_edges() -> None:
    spec = HistogramSpec(MetricSpec("x_seconds", "histogram", "X."), 1e-6, 2, 4)
    made = histogram(spec, [((), distribution(0, 1, 3, 4, 7, 8, 15, 16, 10**9))])
    said = [(sample.name, sample.labels.get("le"), sample.value) for sample in made.samples]
    assert said == [
        ("x_seconds_bucket", "3e-06", 3),
        ("x_seconds_bucket", "7e-06", 5),
        ("x_seconds_bucket", "1.5e-05", 7),
        ("x_seconds_bucket", "+Inf", 9),
        ("x_seconds_count", None, 9),
        ("x_seconds_sum", None, pytest.approx(1000.000054)),
    ]


# --- a scrape ----------------------------------------------------------------------------


async def test_every_metric_is_said_and_no_other() -> None:
    async with service_node() as node:
        await busy(node)
        seen = observed(node)
        assert seen.calls is not None
        seen.calls.ended("Produce", "OK", time.perf_counter())
        said = await scrape(metrics_of(seen))
        ours = {name for name in said.names() if name.startswith("querator_")}
        assert ours == {spec.name.removesuffix("_total") for spec in METRICS}
        assert {"process_resident_memory_bytes", "process_open_fds", "python_info"} <= {
            *said.names()
        }
        for spec in METRICS:
            found = said.families[spec.name.removesuffix("_total")]
            assert (found.type, found.documentation) == (spec.kind, spec.help)
            for sample in found.samples:
                assert {*sample.labels} - {"le"} == set(spec.labels), spec.name


async def test_openmetrics_for_who_asks_for_it() -> None:
    async with service_node() as node:
        await busy(node)
        asked = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"
        text, content_type = await metrics_of(observed(node)).exposition(asked)
        assert content_type.startswith("application/openmetrics-text; version=1.0.0")
        names = {each.name for each in openmetrics_families(text.decode())}
        assert "querator_turn_seconds" in names


async def test_the_values_are_those_of_the_node() -> None:
    async with service_node() as node:
        await busy(node)
        said = await scrape(metrics_of(observed(node)))
        total = await node.total()
        label = {"namespace": "default", "queue": "q"}
        for state in ("ready", "leased", "scheduled", "moving", "held"):
            assert said.value("querator_queue_items", **label, state=state) == getattr(total, state)
        assert said.value("querator_queue_produced_items_total", **label) == 40
        assert said.value("querator_queue_delivered_items_total", **label) == 15
        assert said.value("querator_queue_bytes", **label) == total.bytes > 0
        assert said.value("querator_queue_leases", **label) == total.leases > 0
        assert said.value("querator_queue_partitions", **label, state="leader") == 2
        assert said.value("querator_raft_groups", state="leader") == 3
        assert said.value("querator_placement_epochs_total") == node.placement.map.epoch
        usage = node.environment.usage()
        assert said.value("querator_storage_used_bytes") == usage.used_bytes
        assert said.value("querator_storage_free_bytes") == usage.free_bytes
        assert said.value("querator_storage_quota_bytes") == usage.quota_bytes
        assert said.value("querator_storage_reserve_bytes") == usage.reserve_bytes
        assert said.value("querator_waiting_calls", kind="lease") == 0
        assert said.value("querator_node_unready_reasons") == 0
        assert said.value(
            "querator_node_info", node="n1", cluster_id="c1", incarnation="i1", durable="false"
        )


async def test_only_paused_queues_have_a_value_of_what_is_paused() -> None:
    async with service_node() as node:
        await node.create("q", lease_paused=True)
        await node.create("plain")
        text, _ = await metrics_of(observed(node)).exposition()
        paused = [line for line in text.decode().splitlines() if "queue_pause_info{" in line]
        assert paused == [
            'querator_queue_pause_info{namespace="default",queue="q",what="leases"} 1.0'
        ]


async def test_the_turns_are_those_of_the_host() -> None:
    async with service_node() as node:
        await busy(node)
        said = await scrape(metrics_of(observed(node)))
        stats = node.host.turn_stats()
        assert said.value("querator_turn_seconds_count") == stats.turn_us.count > 0
        assert said.value("querator_turn_seconds_sum") == pytest.approx(stats.turn_us.total / 1e6)
        commit = stats.commit_us
        assert said.value("querator_turn_part_seconds_count", part="commit") == commit.count
        assert said.value("querator_turn_part_seconds_sum", part="commit") == pytest.approx(
            commit.total / 1e6
        )
        assert said.value("querator_turn_commands_sum") == stats.commands.total
        assert said.value("querator_turn_bytes_sum") == stats.bytes.total
        buckets = said.buckets("querator_turn_commands")
        assert [edge for edge, _ in buckets[:3]] == [0, 1, 3]
        assert buckets[-1] == (float("inf"), stats.commands.count)
        assert sorted(count for _, count in buckets) == [count for _, count in buckets]


async def test_logs_by_queue_and_of_the_placement_group() -> None:
    async with service_node() as node:
        await busy(node)
        said = await scrape(metrics_of(observed(node)))
        queue = node.placement.map.find("default", "q")
        assert queue is not None
        statuses = [node.host.status(group) for group in queue.groups]
        label = {"namespace": "default", "queue": "q"}
        assert said.value("querator_raft_log_bytes", **label) == sum(
            status.log_bytes for status in statuses if status is not None
        )
        assert said.value("querator_raft_terms_total", **label) == 2
        assert said.value("querator_raft_uncommitted_entries", **label) == 0
        assert said.value("querator_raft_unapplied_entries", **label) == 0
        assert said.value("querator_raft_log_bytes", namespace="", queue="") > 0


async def test_calls_by_what_became_of_them() -> None:
    async with service_node() as node:
        seen = observed(node)
        assert seen.calls is not None
        began_s = time.perf_counter()
        seen.calls.ended("Produce", "OK", began_s)
        seen.calls.ended("Produce", "OK", began_s)
        full = QueratorError(ErrorCode.QUEUE_FULL, "full")
        seen.calls.refused("ProduceStream/Produce", full, began_s)
        seen.calls.stream_began("ProduceStream")
        said = await scrape(metrics_of(seen))
        assert said.value("querator_calls_total", method="Produce", code="OK") == 2
        assert (
            said.value("querator_calls_total", method="ProduceStream/Produce", code="QUEUE_FULL")
            == 1
        )
        assert said.value("querator_call_seconds_count", method="Produce") == 2
        assert said.value("querator_open_streams", method="ProduceStream") == 1


async def test_a_lease_call_that_waits_is_seen_waiting() -> None:
    async with service_node() as node:
        await node.create("q")
        metrics = metrics_of(observed(node))
        async with asyncio.TaskGroup() as tasks:
            leasing = tasks.create_task(node.lease(1, wait_ms=60_000))
            await asyncio.sleep(0)
            said = await scrape(metrics)
            assert said.value("querator_waiting_calls", kind="lease") == 1
            await node.produce(b"work")
        assert leasing.result().batches


async def test_before_anything_is_there() -> None:
    seen = Observed()
    said = await scrape(metrics_of(seen))
    assert said.value("querator_node_unready_reasons") == 1
    assert "querator_storage_used_bytes" not in said.names()
    assert said.value("querator_raft_groups", state="leader") == 0


async def test_the_storage_is_forgotten_only_when_nobody_reads_it() -> None:
    environment = HeldEnvironment()
    async with service_node(environment) as node:
        await busy(node)
        seen = observed(node)
        metrics = metrics_of(seen)
        environment.passing.clear()
        async with asyncio.TaskGroup() as tasks:
            scraping = tasks.create_task(scrape(metrics))
            await asyncio.to_thread(environment.reached.wait)
            # The scrape is cancelled, but its thread continues to read.
            scraping.cancel()
            forgetting = tasks.create_task(metrics.forget_storage())
            await asyncio.sleep(0)
            assert seen.environment is None
            assert not forgetting.done()
            environment.passing.set()
        said = await scrape(metrics)
        assert "querator_storage_used_bytes" not in said.names()
        await metrics.forget_storage()


async def test_the_remaining_time_of_certificates() -> None:
    async with service_node() as node:
        seen = observed(node)
        assert "querator_certificate_expires_seconds" in (await scrape(metrics_of(seen))).names()
        now_s = time.time()
        seen.certificates = {"clients": lambda: now_s + 86_400, "nodes": lambda: None}
        found = (await scrape(metrics_of(seen))).families["querator_certificate_expires_seconds"]
        [sample] = found.samples
        assert sample.labels == {"port": "clients"}
        assert sample.value <= 86_400
