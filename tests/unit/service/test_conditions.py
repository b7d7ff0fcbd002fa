"""Conditions that make items late or replicas doubtful. Each one appears in the status, the metric
and the log, and disappears there when it ends.
"""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from querator.model.cluster import ClusterCondition
from querator.model.commands import Expire
from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import GroupId
from querator.model.limits import CLOCK_SKEW_MS_MAX, MIB
from querator.model.nodes import NodeKey, Replica
from querator.model.placement_map import PlacementMap
from querator.placement import placement
from querator.placement.tasks import partition_calls
from querator.raft.clock import SimulatedClock
from querator.raft.host import Host
from querator.raft.refusals import LastingRefusal, OtherTokens
from querator.raft.status import GroupStatus, ReplicaStatus
from querator.server.admin.admin_server import AdminServer
from querator.server.admin.health import Health
from querator.server.admin.metrics import Metrics
from querator.service import storage_watch
from querator.service.admission import PartitionBudget
from querator.service.conditions import KINDS, LOOK_S, MEMORY_S, PATIENCE_S, Conditions
from querator.service.storage_watch import StorageWatch
from querator.storage.environment import StorageCorrupt, Usage
from querator.storage.memory_environment import MemoryEnvironment
from tests.unit.placement.conftest import node as placed_node
from tests.unit.server.http_client import get
from tests.unit.server.observed_node import Exposition, observed
from tests.unit.service.service_node import LONG_MS, ServiceNode, code, service_node
from tests.unit.service.storage_damage import damaged
from tests.unit.service.test_moves import drain, kill_all, settled
from tests.unit.service.test_undone_partition_changes import Road, change, ended

OTHER = NodeKey("n2/i2")


class Faulty:
    """A host that reports the values which a test sets instead of its own."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.skew_ms = 0
        self.clock_differs: tuple[NodeKey, int] | None = None
        self.loop_hangs = 0
        self.unreadable: Callable[[], Mapping[GroupId, QueratorError]] = host.unreadable
        self.changed: dict[GroupId, dict[str, Any]] = {}
        """Replaced fields of the status, by group."""
        self.slow_syncs = 0
        self.stalled_s = 0.0
        self.liveness = SimpleNamespace(stalled_s=lambda: self.stalled_s)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._host, name)

    def status(self, group: GroupId) -> GroupStatus | None:
        status = self._host.status(group)
        if status is None or group not in self.changed:
            return status
        return msgspec.structs.replace(status, **self.changed[group])

    def turn_stats(self) -> Any:
        buckets = (0,) * 21 + (self.slow_syncs,) + (0,) * 18
        return SimpleNamespace(commit_us=SimpleNamespace(buckets=buckets))


class Watch:
    """Checks the conditions of a node in the places where operators see them."""

    def __init__(self, node: ServiceNode, logged: pytest.LogCaptureFixture) -> None:
        self.host = Faulty(node.host)
        self._later_s = 0.0
        self.away: set[str] = set()
        """Names of the nodes that are out of reach."""
        self.other_tokens = OtherTokens()
        self.refusals: tuple[LastingRefusal, ...] = ()
        loop = asyncio.get_running_loop()
        self.conditions = Conditions(
            host=cast(Any, self.host),
            placement=node.placement,
            service=node.queues,
            clock=node.clock,
            out_of_reach=lambda: self.away,
            other_tokens=lambda: self.other_tokens,
            lasting_refusals=lambda: self.refusals,
            now_s=lambda: loop.time() + self._later_s,
        )
        self._observed = observed(node)
        self._observed.conditions = self.conditions
        self._logged = logged

    def wait(self, seconds: float) -> None:
        self._later_s += seconds

    def look(self) -> list[ClusterCondition]:
        self.conditions.check()
        return list(self.conditions.present)

    async def seen(self, kind: str) -> str:
        """The sentence of the only present condition, which the metric and the log report too."""
        self._logged.clear()
        [condition] = self.look()
        assert condition.kind == kind
        assert await self._counted() == {kind: 1}
        assert f"condition.began kind={kind}" in self._logged.text
        return condition.sentence

    async def gone(self, kind: str) -> None:
        self._logged.clear()
        assert self.look() == []
        assert await self._counted() == {}
        assert f"condition.ended kind={kind}" in self._logged.text

    async def _counted(self) -> dict[str, float]:
        metrics = Metrics(self._observed, Health(self._observed))
        text, _ = await metrics.exposition()
        metrics.close()
        said = Exposition(text.decode())
        counts = {kind: said.value("querator_conditions", kind=kind) for kind in KINDS}
        return {kind: count for kind, count in counts.items() if count}


@asynccontextmanager
async def watching(
    caplog: pytest.LogCaptureFixture, clock: SimulatedClock | None = None
) -> AsyncIterator[tuple[ServiceNode, Watch]]:
    with caplog.at_level(logging.INFO, "querator"):
        async with service_node(clock=clock) as node:
            watch = Watch(node, caplog)
            assert watch.look() == []
            yield node, watch


async def test_a_clock_that_is_wrong(caplog: pytest.LogCaptureFixture) -> None:
    async with watching(caplog) as (_, watch):
        watch.host.skew_ms = CLOCK_SKEW_MS_MAX
        assert watch.look() == []
        watch.host.skew_ms = -3_040
        assert "is 3.0 s ahead of that of the others" in await watch.seen("clock_wrong")
        watch.host.skew_ms = 0
        await watch.gone("clock_wrong")


async def test_a_clock_that_is_not_believed(caplog: pytest.LogCaptureFixture) -> None:
    async with watching(caplog) as (node, watch):
        group = (await node.create(partitions=2)).groups[1]
        watch.host.changed[group] = {"waits_for_clock": True}
        assert (await watch.seen("clock_not_believed")).startswith("q/1: ")
        watch.host.changed.clear()
        await watch.gone("clock_not_believed")


async def test_time_that_is_ahead(caplog: pytest.LogCaptureFixture) -> None:
    clock = SimulatedClock()
    async with watching(caplog, clock) as (node, watch):
        await node.create()
        await node.produce(b"x")
        clock.step_wall(-86_400_000)
        sentence = await watch.seen("time_ahead")
        assert "q/0 is ahead of the clock of node node, by up to 86,400 s" in sentence
        clock.step_wall(86_400_000)
        await watch.gone("time_ahead")


async def test_time_that_is_behind(caplog: pytest.LogCaptureFixture) -> None:
    clock = SimulatedClock()
    async with watching(caplog, clock) as (node, watch):
        await node.create()
        clock.step_wall(3_600_000)
        await node.produce(b"x", enqueue_at_ms=clock.wall_ms() + 600_000)
        sentence = await watch.seen("time_behind")
        assert "q/0 is behind the clock of node node, by up to 3,600 s" in sentence
        assert sentence.endswith("When all clocks are right: querator cluster repair-time q")
        [told] = await node.admin.repair_time("default", "q", dry_run=True)
        assert (told.repaired, told.ahead_ms) == (False, -3_600_000)
        [done] = await node.admin.repair_time("default", "q", dry_run=False)
        assert (done.repaired, done.ahead_ms) == (True, -3_600_000)
        assert await node.admin.repair_time("default", "q", dry_run=True) == ()
        clock.advance(600_000)
        await node.until(lambda: node.counts().ready == 1)
        await watch.gone("time_behind")


async def test_a_partition_that_is_stopped(caplog: pytest.LogCaptureFixture) -> None:
    async with watching(caplog) as (node, watch):
        queue = await node.create(partitions=7)
        watch.host.changed = {group: {"quarantined": True} for group in queue.groups}
        sentence = await watch.seen("partition_stopped")
        assert "q/0, q/1, q/2, q/3, q/4 and 2 more: stopped by a defect on node node" in sentence
        watch.host.changed.clear()
        await watch.gone("partition_stopped")


async def test_a_partition_that_cannot_be_opened(caplog: pytest.LogCaptureFixture) -> None:
    async with watching(caplog) as (node, watch):
        queue = await node.create(partitions=2)
        broken = {queue.groups[1]: QueratorError(ErrorCode.INTERNAL, "a row is damaged")}
        watch.host.unreadable = lambda: broken
        assert "q/1: stopped by a defect on node node" in await watch.seen("partition_stopped")
        broken.clear()
        await watch.gone("partition_stopped")


async def test_two_clocks_of_which_nobody_knows_which_is_wrong(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with watching(caplog) as (_, watch):
        for other, names in (("zebra", "node and zebra"), ("aardvark", "aardvark and node")):
            watch.host.clock_differs = NodeKey(f"{other}/i2"), -86_400_000
            sentence = await watch.seen("clocks_differ")
            assert sentence.startswith(f"The clocks of nodes {names} differ by 86,400.0 s: one")
            watch.host.clock_differs = None
            await watch.gone("clocks_differ")


async def test_a_replica_without_room_for_what_is_committed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with watching(caplog) as (node, watch):
        group = (await node.create()).groups[0]
        watch.host.changed[group] = {"waits_for_space": True}
        sentence = await watch.seen("no_space")
        assert "q/0: node node has no space for committed entries" in sentence
        watch.host.changed.clear()
        await watch.gone("no_space")


@pytest.mark.parametrize(
    ("tokens", "by"),
    [
        (OtherTokens(frozenset({"n2"}), unnamed=True), "n2 and other nodes"),
        (OtherTokens(unnamed=True), "other nodes"),
        (OtherTokens(frozenset({"n2", "n3"})), "n2 and n3"),
    ],
)
async def test_a_node_with_another_token_than_all_others(
    tokens: OtherTokens,
    by: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was said to be behind, to have handed off, and to be ready."""
    async with watching(caplog) as (node, watch):
        three = PlacementMap(nodes=map(placed_node, ("node", "n2", "n3")))
        seen = observed(node)
        seen.conditions = watch.conditions
        with monkeypatch.context() as patched:
            patched.setattr(placement.Placement, "map", three)
            watch.away, watch.other_tokens = {"n2", "n3"}, tokens
            sentence = await watch.seen("token_refused")
            assert sentence == (
                f"Node node is refused by {by}: it has another cluster token. Start it with the "
                "token of the others."
            )
            assert sentence in Health(seen).missing()
            assert Health(seen).dead() == []
            watch.other_tokens = OtherTokens()
            await watch.gone("token_refused")
            assert Health(seen).missing() == []


async def test_another_node_with_another_token(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watching(caplog) as (node, watch):
        three = PlacementMap(nodes=map(placed_node, ("node", "n2", "n3")))
        seen = observed(node)
        seen.conditions = watch.conditions
        with monkeypatch.context() as patched:
            patched.setattr(placement.Placement, "map", three)
            watch.away = {"n2"}
            # A stranger that is no node of the cluster is no condition.
            watch.other_tokens = OtherTokens(frozenset({"n2", "x"}), unnamed=True)
            sentence = await watch.seen("token_refused")
            assert sentence == (
                "Node n2 has another cluster token than node node: they refuse each other. Start "
                "node n2 with the token of the others."
            )
            assert Health(seen).missing() == []
            watch.other_tokens = OtherTokens(unnamed=True)
            await watch.gone("token_refused")


@pytest.mark.parametrize(
    ("refusal", "sentence"),
    [
        (
            LastingRefusal("n2", dialed=True, by_peer=False, reason="it shows no certificate"),
            "Nodes node and n2 do not connect. Node node reports of the other one: it shows no "
            "certificate.",
        ),
        (
            LastingRefusal("10.0.0.9", dialed=False, by_peer=False, reason="another token"),
            "A process at 10.0.0.9 asks node node for a connection, and is refused: another token. "
            "If it should be a node of this cluster, correct its settings. If not, stop it, or "
            "keep it from the port for nodes.",
        ),
        (
            LastingRefusal("10.0.0.9", dialed=False, by_peer=True, reason="it refuses"),
            "A process at 10.0.0.9 asks node node for a connection, and refuses it: it refuses. "
            "If it should be a node of this cluster, correct its settings. If not, stop it, or "
            "keep it from the port for nodes.",
        ),
    ],
)
async def test_a_process_that_is_refused(
    refusal: LastingRefusal, sentence: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It was only in the logs and the metrics."""
    async with watching(caplog) as (_, watch):
        watch.refusals = (refusal,)
        assert await watch.seen("peer_refused") == sentence
        watch.refusals = ()
        await watch.gone("peer_refused")


@pytest.mark.parametrize(
    ("tokens", "sentences"),
    [
        (
            OtherTokens(frozenset({"z2"})),
            ["Node z2 has another cluster token than node node: they refuse each other. Start "
             "node z2 with the token of the others."],
        ),
        (OtherTokens(unnamed=True), []),
        (OtherTokens(frozenset({"gone"})), []),
    ],
    ids=["one", "a stranger", "a removed node"],
)  # fmt: skip
async def test_nodes_that_are_down_refuse_no_token(
    tokens: OtherTokens,
    sentences: list[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nodes of larger names are dialed: their refusals have a name."""
    async with watching(caplog) as (_, watch):
        three = PlacementMap(nodes=map(placed_node, ("node", "z2", "z3")))
        with monkeypatch.context() as patched:
            patched.setattr(placement.Placement, "map", three)
            watch.away, watch.other_tokens = {"z2", "z3"}, tokens
            found = [one.sentence for one in watch.look() if one.kind == "token_refused"]
    assert found == sentences


async def test_most_replicas_that_are_out_of_reach(caplog: pytest.LogCaptureFixture) -> None:
    async with watching(caplog) as (node, watch):
        queue = await node.create("q", partitions=2)
        three = tuple(
            Replica(number, NodeKey(f"{name}/i"), voter=True)
            for number, name in enumerate(("node", "n2", "n3"), start=1)
        )
        watch.host.changed = {group: {"replicas": three} for group in queue.groups}
        watch.away = {"n3"}
        assert watch.look() == []
        watch.away = {"n3", "n2"}
        sentence = await watch.seen("no_majority")
        assert sentence.startswith(
            "Node node reaches no majority of the replicas of q/0, q/1: n2, n3 are out of reach."
        )
        assert "Nothing that was acknowledged is lost." in sentence
        assert "WARNING" in caplog.text
        watch.away = {"n2"}
        await watch.gone("no_majority")


async def test_storage_that_is_full(caplog: pytest.LogCaptureFixture) -> None:
    reserve = 64 * MIB

    def free(open_bytes: int, *, disk: bool = False) -> Usage:
        quota = 512 * MIB
        free_bytes = reserve + open_bytes
        used_bytes = MIB if disk else quota - free_bytes
        return Usage(used_bytes, free_bytes, quota, reserve)

    async with watching(caplog) as (_, watch):
        watch.conditions.storage = free(4 * MIB)
        assert watch.look() == []
        watch.conditions.storage = free(4 * MIB - 1)
        sentence = await watch.seen("storage_full")
        assert "68.0 MiB of its quota of 512.0 MiB are free, and 64.0 MiB are kept" in sentence
        assert "refuses new items with STORAGE_FULL; leases and completes continue" in sentence
        watch.conditions.storage = free(8 * MIB - 1, disk=True)
        [condition] = watch.look()
        assert "72.0 MiB on its disk are free" in condition.sentence
        watch.conditions.storage = free(-reserve // 2 - 1)
        [condition] = watch.look()
        assert "refuses new items, leases and retries" in condition.sentence
        watch.conditions.storage = free(-reserve)
        [condition] = watch.look()
        assert "0.0 MiB of its quota" in condition.sentence
        assert "refuses every change with STORAGE_FULL, also completes" in condition.sentence
        assert "Raise the quota" in condition.sentence
        watch.conditions.storage = free(8 * MIB)
        await watch.gone("storage_full")


async def test_the_space_of_the_storage_is_read(caplog: pytest.LogCaptureFixture) -> None:
    async with watching(caplog) as (node, watch):
        storage = StorageWatch(node.environment, watch.conditions)
        await storage.read()
        assert watch.conditions.storage == node.environment.usage()
        await storage.stop()


async def test_a_status_has_the_space_of_this_moment(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sentence had the space of up to two checks ago."""
    async with watching(caplog) as (node, watch):
        storage = StorageWatch(node.environment, watch.conditions)
        storage.start()
        await storage.refresh()
        full = Usage(512 * MIB, 0, 512 * MIB, 64 * MIB)
        monkeypatch.setattr(node.environment, "usage", lambda: full)
        await storage.refresh()
        assert watch.conditions.storage == full
        await storage.stop()


async def test_a_status_does_not_wait_for_a_file_system_that_hangs(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watching(caplog) as (node, watch):
        storage = StorageWatch(node.environment, watch.conditions)
        goes_on, reads = threading.Event(), 0

        def hangs() -> Usage:
            nonlocal reads
            reads += 1
            goes_on.wait()
            return Usage(512 * MIB, 0, 512 * MIB, 64 * MIB)

        monkeypatch.setattr(node.environment, "usage", hangs)
        monkeypatch.setattr(storage_watch, "REFRESH_S", 0.01)
        for _ in range(3):
            await storage.refresh()
        assert watch.conditions.storage is None
        goes_on.set()
        await storage.stop()
        assert reads == 1, "one read at a time"


async def test_space_that_cannot_be_read_is_no_condition(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watching(caplog) as (node, watch):
        storage = StorageWatch(node.environment, watch.conditions)
        await storage.read()
        with monkeypatch.context() as patch:

            def fails() -> Usage:
                raise StorageCorrupt("a meta page is damaged")

            patch.setattr(node.environment, "usage", fails)
            for _ in range(3):
                await storage.read()
        assert watch.conditions.storage is None
        said = [one for one in caplog.messages if "storage.space_unknown" in one]
        assert len(said) == 1
        await storage.read()
        assert watch.conditions.storage is not None
        await storage.stop()


async def test_a_node_whose_storage_is_full_is_ready_with_a_note(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with watching(caplog) as (node, watch):
        seen = observed(node)
        seen.conditions = watch.conditions
        server = AdminServer(seen, listen="127.0.0.1:0")
        address = await server.start()
        watch.conditions.storage = Usage(512 * MIB, 0, 512 * MIB, 64 * MIB)
        [full] = watch.look()
        assert (await get(address, "/readyz"))[::2] == (200, f"ok\nnote: {full.sentence}\n")
        assert (await get(address, "/livez"))[::2] == (200, "ok\n")
        await server.stop()


async def test_a_block_that_is_damaged(caplog: pytest.LogCaptureFixture) -> None:
    async with watching(caplog) as (node, watch):
        queue = await node.create()
        await node.produce(b"x")
        assert isinstance(node.environment, MemoryEnvironment)
        with damaged(node.environment, queue.groups[0], 0):
            assert not (await node.lease(wait_ms=50)).batches
            assert "q/0 on node node: 1 block damaged" in await watch.seen("blocks_damaged")
        await node.admin.delete_queue("default", "q")
        await node.until(lambda: not node.queues.damage.stats().aside)
        await watch.gone("blocks_damaged")


async def test_a_copy_that_is_behind(caplog: pytest.LogCaptureFixture) -> None:
    async with watching(caplog) as (node, watch):
        group = (await node.create()).groups[0]

        def copied(match: int, last: int, *, voter: bool = True) -> None:
            follower = ReplicaStatus(
                2, OTHER, voter=voter, state="replicate", match=match, applied=match
            )
            watch.host.changed[group] = {"log_last": last, "followers": (follower,)}

        for match, last in ((90, 100), (100, 110), (110, 120)):
            # The follower keeps up, some entries behind.
            copied(match, last)
            assert watch.look() == []
            watch.wait(PATIENCE_S)
        copied(119, 2_090)
        sentence = await watch.seen("copy_behind")
        assert "Node n2 has been behind for 10 s, by up to 1,971 log entries" in sentence
        copied(120, 2_090)
        await watch.gone("copy_behind")
        watch.wait(PATIENCE_S)
        copied(120, 2_090, voter=False)
        assert watch.look() == [], "one that learns is told of as such"


async def test_a_disk_that_is_slow(caplog: pytest.LogCaptureFixture) -> None:
    async with watching(caplog) as (_, watch):
        watch.host.stalled_s = 14.2
        assert "node node has made no progress for 14.2 s" in await watch.seen("disk_slow")
        watch.host.stalled_s, watch.host.slow_syncs = 0, 1
        [slow] = watch.look()
        assert "a sync took more than 1 s" in slow.sentence
        watch.wait(MEMORY_S)
        await watch.gone("disk_slow")


async def test_an_event_loop_that_has_hung(caplog: pytest.LogCaptureFixture) -> None:
    async with watching(caplog) as (_, watch):
        watch.host.loop_hangs = 1
        assert "node node hung within the last 30 s" in await watch.seen("event_loop_hung")
        watch.wait(MEMORY_S)
        await watch.gone("event_loop_hung")


async def moves(node: ServiceNode, *, wait: bool) -> None:
    while bool(node.queues.mover.waiting()) is not wait:  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0)


async def test_moves_that_wait(caplog: pytest.LogCaptureFixture) -> None:
    async with watching(caplog) as (node, watch):
        await node.create("dead", partition_items_max=2)
        await node.create(dead_queue="dead")
        await node.produce(b"1", b"2", b"3")
        await kill_all(node, 3)
        await settled(node, "dead", ready=2)
        await settled(node, "q", moving=1)
        await moves(node, wait=True)
        assert watch.look() == []
        watch.wait(PATIENCE_S)
        sentence = await watch.seen("moves_wait")
        assert "Items of q/0 have waited for 10 s to be moved to queue dead: " in sentence
        await drain(node, "dead", 2)
        await settled(node, "q", moving=0)
        await moves(node, wait=False)
        await watch.gone("moves_wait")


async def test_a_change_that_cannot_go_on(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_calls, "ANSWER_S", 0.05)
    monkeypatch.setattr(placement, "AGAIN_AFTER_S_MAX", 0.05)
    async with watching(caplog) as (node, watch):
        queue = await node.create(partitions=4)
        road = Road(node)
        road.away = {queue.groups[3]}
        changing = change(node, 2)
        await node.until(lambda: bool(node.placement.last_error(queue.id)))
        assert watch.look() == []
        watch.wait(PATIENCE_S)
        sentence = await watch.seen("change_waits")
        assert "Queue q has waited for its change to 2 partitions for 10 s: " in sentence
        road.away = set()
        await node.until(lambda: not node.placement.pending)
        await ended(changing)
        await watch.gone("change_waits")


async def test_a_queue_that_refuses(caplog: pytest.LogCaptureFixture) -> None:
    async with watching(caplog) as (node, watch):
        await node.create(partition_items_max=1)
        await node.produce(b"x")
        for _ in range(3):
            assert await code(node.produce(b"y")) is ErrorCode.QUEUE_FULL
        sentence = await watch.seen("queue_refuses")
        assert "q/0: 3 calls of clients of node node refused" in sentence
        assert "QUEUE_FULL" in sentence
        watch.wait(MEMORY_S)
        await watch.gone("queue_refuses")


async def test_what_is_refused_on_the_way_counts_as_well() -> None:
    async with service_node() as node:
        group = (await node.create()).groups[0]
        router = node.queues.router
        full = PartitionBudget("produces", calls_max=1)
        full.enter(group, 0, waits=False, named=str)
        call = router.call(router.route(group), Expire(), budget=full)
        assert await code(call) is ErrorCode.OVERLOADED
        assert router.refusals.since(0)[group].error.code is ErrorCode.OVERLOADED
        assert router.refusals.since(float("inf")) == {}


async def test_the_node_looks_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    async with watching(caplog) as (_, watch):
        watch.host.skew_ms = 3_000
        looked = asyncio.Event()
        watch.conditions.check = looked.set  # type: ignore[method-assign]
        later = asyncio.get_running_loop().call_later
        delays: list[float] = []

        def at_once(delay_s: float, call: Any) -> Any:
            delays.append(delay_s)
            return later(0 if len(delays) == 1 else LONG_MS, call)

        cast(Any, watch.conditions)._loop = SimpleNamespace(call_later=at_once)
        watch.conditions.start()
        await looked.wait()
        watch.conditions.stop()
        assert delays == [LOOK_S, LOOK_S]
