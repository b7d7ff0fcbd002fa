"""Three real nodes under load. One is away for long, has no space, or starts again: the others
serve, nothing is lost, and in the end all replicas are equal.
"""

import asyncio
import contextlib
import resource
from collections import Counter
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest

from querator import Client
from querator.client import Item
from querator.client.errors import OutcomeUnknown, StorageFull, Unavailable
from querator.client.values import PartitionStats
from querator.model.limits import MIB
from querator.raft.log.journal import PINNED_WINDOWS
from querator.v1.cluster_service_pb2 import GetClusterStatusRequest
from querator.v1.cluster_service_pb2_grpc import ClusterServiceStub
from tests.chaos.users import parts_of
from tests.checkers.history import Look, Looked, Produce, Produced, Refused, Unknown
from tests.checkers.report import check
from tests.integration.process_cluster import (
    LOOK_S,
    START_S,
    ProcessCluster,
    is_well,
    process_cluster,
)
from tests.integration.processes import run
from tests.integration.stub_load import (
    StubLoad,
    acknowledged,
    completed,
    new_recorder,
    new_references,
)
from tests.integration.wall_clocks import WallClocks, built

pytestmark = pytest.mark.timeout(180)

QUEUE = "work"
PARTITIONS = 3
SEED = 20130101
PAUSE_S = 0.02
WINDOW_BYTES = MIB
ITEM_BYTES = 50_000
QUOTA_BYTES = 32 * MIB


class Trial:
    """A cluster with one queue, and what the clients of its loads saw."""

    def __init__(self, cluster: ProcessCluster) -> None:
        self.cluster = cluster
        self.recorder = new_recorder(QUEUE, PARTITIONS)

    @property
    def addresses(self) -> str:
        return ",".join(member.address for member in self.cluster.by_name.values())

    async def begin(self) -> None:
        """The nodes run, and each leads a partition."""
        await self.cluster.start()
        async with Client(self.addresses) as client:
            await client.create_queue(QUEUE, partitions=PARTITIONS, max_attempts=0, dead_queue="")
        await self.cluster.until(
            lambda view: (
                is_well(view)
                and {one["leader"] for one in view["partitions"] if one["queue"] == QUEUE}
                == set(self.cluster.by_name)
            )
        )

    # --- load ------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def load(self, at: str, *, payload_bytes: int = 0) -> AsyncIterator[None]:
        """A producer and a consumer at each of these nodes, while the block runs."""
        async with asyncio.TaskGroup() as tasks:
            loads = []
            for number, name in enumerate(at):
                load = self._load(name, number, payload_bytes)
                loads.append(load)
                tasks.create_task(load.produce(batch_items=10))
                tasks.create_task(load.consume(f"consumer at {name}"))
            yield
            for load in loads:
                load.gone.set()

    def _load(self, at: str, number: int = 0, payload_bytes: int = 0) -> StubLoad:
        return StubLoad(
            QUEUE,
            partial(getattr, self.cluster[at], "address"),
            SEED + number,
            self.recorder,
            pause_s=PAUSE_S,
            payload_bytes=payload_bytes,
        )

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits until the clients have seen it; each check reads the whole queue."""
        async with asyncio.timeout(START_S), Client(self.addresses) as client:
            while not condition():
                await client.stats(QUEUE)
                await asyncio.sleep(LOOK_S)

    def passed(self, items: int) -> Callable[[], bool]:
        """Whether `items` items have come to each partition since, and some were completed."""
        before, done = self.stored, completed(self.recorder.history)

        def have_passed() -> bool:
            more = self.stored - before
            enough = all(more[number] >= items for number in range(PARTITIONS))
            return enough and completed(self.recorder.history) > done

        return have_passed

    @property
    def stored(self) -> Counter[int]:
        """Acknowledged items, by partition."""
        counted: Counter[int] = Counter()
        for op in self.recorder.history.operations:
            if isinstance(op.outcome, Produced):
                for part in op.outcome.parts:
                    counted[part.partition] += part.count
        return counted

    async def fill(self) -> bool:
        """Produces items for each partition, which are not leased; False: one partition had no
        space for them.
        """
        has_room = True
        async with Client(self.addresses, request_timeout=timedelta(seconds=1)) as client:
            for _ in range(PARTITIONS):
                references = new_references(20)
                items = [Item(payload=bytes(ITEM_BYTES), reference=one) for one in references]
                pending = self.recorder.begin("filler", QUEUE, Produce(tuple(references)))
                try:
                    stored = await client.produce(QUEUE, *items)
                except StorageFull as error:
                    pending.ended(Refused(error.code.name))
                    has_room = False
                except (Unavailable, OutcomeUnknown):
                    pending.ended(Unknown())
                else:
                    pending.ended(Produced(parts_of(stored)))
        return has_room

    async def drain(self) -> None:
        """Completes all items that are there."""
        await self._load("a").consume("drain", until_empty=True)

    # --- the end -----------------------------------------------------------------------------

    async def end(self) -> None:
        """Completes the remaining items; then all replicas are whole and equal, and the history
        passes the checks.
        """
        await self.drain()
        look = self.recorder.begin("end", QUEUE, Look())
        total = await self.total()
        assert (total.ready, total.leased, total.scheduled, total.moving) == (0, 0, 0, 0)
        look.ended(Looked())
        await self._until_equal()
        # Nodes that stop in good order announce it to each other in the map.
        for member in self.cluster.by_name.values():
            await member.kill()
        digests = [await self._digests(name) for name in self.cluster.by_name]
        assert len(digests[0]) == PARTITIONS + 1
        assert all(others == digests[0] for others in digests)
        history = self.recorder.history
        history.write(self.cluster.home / "history")
        assert acknowledged(history)
        assert check(history).lines()[:-1] == []

    async def total(self) -> PartitionStats:
        async with Client(self.addresses) as client:
            return (await client.stats(QUEUE)).total

    async def _until_equal(self) -> None:
        """Waits until every node has applied all entries: no proposals come any more."""
        async with asyncio.timeout(START_S):
            while True:
                applied = [await self._applied(name) for name in self.cluster.by_name]
                if len(applied[0]) == PARTITIONS + 1 and applied.count(applied[0]) == len(applied):
                    return

    async def _applied(self, name: str) -> dict[int, int]:
        """The last applied entry by group, as the node reports it."""
        async with grpc.aio.insecure_channel(self.cluster[name].address) as channel:
            stub = ClusterServiceStub(channel)
            answer = await stub.GetClusterStatus(GetClusterStatusRequest())
        return {one.group: one.applied_index for one in answer.groups}

    async def _digests(self, name: str) -> dict[str, str]:
        data_dir = str(self.cluster[name].data_dir)
        code, out, err = await run("verify", "--data-dir", data_dir, "--output", "json")
        assert code == 0, out + err
        return {one["place"]: one["digest"] for one in msgspec.json.decode(out)["digests"]}


# --- away for long -----------------------------------------------------------------------------


async def kill(cluster: ProcessCluster) -> None:
    await cluster["c"].kill()


async def freeze(cluster: ProcessCluster) -> None:
    cluster["c"].freeze()


@pytest.mark.parametrize("go", [kill, freeze], ids=lambda go: go.__name__)
async def test_a_node_that_was_away_for_longer_than_the_log_gets_the_state(tmp_path: Path, go):
    """The node leads one partition and follows in the others when it goes."""
    async with process_cluster(tmp_path, "abc", "--log-bytes-kept", str(WINDOW_BYTES)) as cluster:
        trial = Trial(cluster)
        await trial.begin()
        async with trial.load("ab", payload_bytes=ITEM_BYTES):
            await trial.until(trial.passed(items=10))
            await go(cluster)
            for name in "ab":
                # Messages that were sent before may still be read.
                await cluster[name].says("peers.disconnected", "'peer': 'c/")
            # This much log is kept for a node that has been heard lately.
            await trial.until(trial.passed((PINNED_WINDOWS + 1) * WINDOW_BYTES // ITEM_BYTES))
            if go is kill:
                await cluster["c"].start()
            else:
                cluster["c"].thaw()
            # The others serve while it catches up.
            await trial.until(trial.passed(items=10))
            for group in range(1, PARTITIONS + 1):
                await cluster["c"].says("snapshot.installed", f"'group': {group},")
        await cluster.until_well()
        await trial.end()


# --- restarts ------------------------------------------------------------------------------------


async def test_restarts_of_one_and_of_all_under_load(tmp_path: Path):
    async with process_cluster(tmp_path) as cluster:
        trial = Trial(cluster)
        await trial.begin()
        async with trial.load("abc"):
            for name in "ab":
                await trial.until(trial.passed(items=10))
                assert await cluster[name].stop() == 0
                await trial.until(trial.passed(items=10))
                await cluster[name].start()
            await trial.until(trial.passed(items=10))
            await cluster.stop()
            await cluster.start()
            await trial.until(trial.passed(items=10))
            async with asyncio.TaskGroup() as tasks:
                for name in "abc":
                    tasks.create_task(cluster[name].kill())
            await cluster.start()
            await trial.until(trial.passed(items=10))
        await trial.end()


# --- clocks ------------------------------------------------------------------------------------


@pytest.fixture
def offset_library(tmp_path: Path) -> Path:
    return built(tmp_path)


def leaders(view: dict[str, Any]) -> Counter[str]:
    return Counter(one["leader"] for one in view["partitions"] if one["queue"] == QUEUE)


def are_led_by(names: set[str], view: dict[str, Any]) -> bool:
    return set(leaders(view)) == names


async def test_a_node_whose_clock_is_wrong_leads_nothing_and_says_so(
    tmp_path: Path, offset_library: Path
):
    async with process_cluster(tmp_path) as cluster:
        clocks = WallClocks(cluster, offset_library)
        clocks.step("a", 3_000)
        await cluster.start()
        await cluster.querator("queue", "create", QUEUE, "--dead-queue", "", "--partitions", "6")
        view = await cluster.until(partial(are_led_by, {"b", "c"}), "b")
        assert any(
            "The clock of node a is 3.0 s ahead of that of the others" in problem
            for problem in view["problems"]
        )
        await cluster["a"].says("clock.skew_exceeded")
        clocks.step("a", 0)
        await cluster["a"].says("clock.skew_ended")
        await cluster.until_well("b")
        await cluster.until(lambda view: leaders(view) == Counter(a=2, b=2, c=2), "b")


async def test_clocks_that_differ_and_are_stepped_under_load(tmp_path: Path, offset_library: Path):
    """Within the limit, different clocks have no effect; beyond it the others lead. No lease is cut
    short, and nothing is lost.
    """
    async with process_cluster(tmp_path) as cluster:
        clocks = WallClocks(cluster, offset_library)
        for name, offset_ms in (("a", -200), ("c", 200)):
            clocks.step(name, offset_ms)
        trial = Trial(cluster)
        await trial.begin()
        async with trial.load("abc"):
            await trial.until(trial.passed(items=10))
            for name, offset_ms in (("a", 3_600_000), ("b", -3_600_000)):
                clocks.step(name, offset_ms)
                await cluster.until(partial(are_led_by, set("abc") - {name}), "c")
                await trial.until(trial.passed(items=10))
                clocks.step(name, 0)
                await cluster.until(partial(are_led_by, set("abc")), "c")
                await trial.until(trial.passed(items=10))
        await trial.end()


# --- no room -------------------------------------------------------------------------------------


async def test_a_node_whose_disk_is_full_stops_and_comes_back(tmp_path: Path):
    """The data file cannot grow: a commit fails in its middle."""
    async with process_cluster(tmp_path) as cluster:
        trial = Trial(cluster)
        await trial.begin()
        async with trial.load("ab", payload_bytes=ITEM_BYTES):
            await trial.until(trial.passed(items=10))
            size = len((cluster["c"].data_dir / "data.mdb").read_bytes().rstrip(b"\0"))
            resource.prlimit(
                cluster["c"].pid, resource.RLIMIT_FSIZE, (size + MIB, resource.RLIM_INFINITY)
            )
            assert await cluster["c"].end() == 6
            await trial.until(trial.passed(items=10))
            await cluster["c"].start()
            await trial.until(trial.passed(items=10))
        await trial.end()


def mentions(view: dict[str, Any], words: str) -> bool:
    return any(words in problem for problem in view["problems"])


async def test_a_node_without_room_for_items_goes_on_when_they_are_completed(tmp_path: Path):
    """The node refuses items of the partition that it leads, and misses those that it should
    follow. The others continue.
    """
    async with process_cluster(tmp_path, "abc", "--log-bytes-kept", str(WINDOW_BYTES)) as cluster:
        cluster["c"].program = "tests.integration.small_quota"
        cluster["c"].options += ["--storage-quota-bytes", str(QUOTA_BYTES)]
        trial = Trial(cluster)
        await trial.begin()
        full = trial.stored
        while await trial.fill():
            full = trial.stored
        # The full node leads one partition. The logs of the others outgrow it.
        more = (PINNED_WINDOWS + 1) * WINDOW_BYTES + QUOTA_BYTES // 8
        while sorted((trial.stored - full).values())[-2:][0] * ITEM_BYTES < more:
            await trial.fill()
        await cluster.until(lambda view: mentions(view, "The storage of node c is full"))
        await trial.drain()
        await cluster.until(lambda view: not mentions(view, "The storage of node c is full"))
        async with trial.load("ab"):
            await trial.until(trial.passed(items=10))
        await trial.end()
