"""The scrub reads payloads in the background, and finds damage before an item is leased."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import pytest

from querator.service.repair import scrub as scrubs
from querator.service.repair.damage import DamageStats
from querator.service.repair.scrub import Scrub
from querator.storage import attachments, generations
from querator.storage.tables import ATTACHMENTS
from tests.unit.service.repair.test_damage import Whole, memory, three_blocks
from tests.unit.service.routing.test_router import group_of
from tests.unit.service.service_cluster import service_cluster
from tests.unit.service.service_node import LONG_MS, ServiceNode, payloads, service_node
from tests.unit.service.storage_damage import damage, damaged


@pytest.fixture(autouse=True)
def prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrubs, "REST_S_MIN", 0.0)
    monkeypatch.setattr(scrubs, "REST_SHARE", 0)


@asynccontextmanager
async def scrubbing(node: ServiceNode, bytes_per_s: int = 1_000_000_000) -> AsyncIterator[Scrub]:
    scrub = Scrub(node.environment, node.queues.damage, clock=node.clock, bytes_per_s=bytes_per_s)
    scrub.start()
    yield scrub
    await scrub.stop()


async def rounds(scrub: Scrub, count: int) -> None:
    while scrub.stats().rounds < count:  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0.001)


async def test_what_nobody_has_leased_yet_is_set_aside():
    async with service_node() as node:
        group = await three_blocks(node)
        with damaged(memory(node.environment), group, 1):
            async with scrubbing(node) as scrub:
                await rounds(scrub, 1)
            assert node.queues.damage.items(group) == (1, 1)
            before = node.counts().delivered
            assert payloads(*(await node.lease(wait_ms=LONG_MS)).batches) == [b"0", b"2"]
            assert node.counts().delivered - before == 2


async def test_it_is_mended_before_anybody_leases_it():
    async with service_cluster("a", "b") as cluster:
        await cluster.produce("a", b"one")
        group = group_of(cluster)
        environment = memory(cluster.base.environment)
        with environment.snapshot() as txn:
            [(key, _)] = list(ATTACHMENTS.rows(txn, group))
            index, part = map(int, ATTACHMENTS.parts(key))
            stored = attachments.read(txn, group, index, part)
        assert stored is not None
        damage(environment, group)
        other = Whole(stored)
        cluster.members["b"].damage.payload = other.payload  # type: ignore[method-assign]
        service = cluster.members["a"]
        scrub = Scrub(environment, service.damage, clock=cluster.base.clock, bytes_per_s=10**9)
        scrub.start()
        while service.damage.stats() != DamageStats(1, 1, {}):  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.001)
        await scrub.stop()
        assert payloads(*(await cluster.lease("a", wait_ms=LONG_MS)).batches) == [b"one"]


@pytest.mark.parametrize("start", range(5))
async def test_a_round_reads_everything_once_wherever_it_begins(monkeypatch, start):
    monkeypatch.setattr(scrubs, "SCRUB_PIECE_ROWS", 2)
    async with service_node() as node:
        await node.create("empty")
        groups = [(await node.create(name)).groups[0] for name in ("p", "q", "r")]
        for name in ("p", "q", "r"):
            for _ in range(5):
                await node.produce(b"x" * 100, queue=name)
        with node.environment.snapshot() as txn:
            size = sum(len(row) for group in groups for _, row in ATTACHMENTS.rows(txn, group))
        async with scrubbing(node) as scrub:
            scrub._chance.seed(start)
            await rounds(scrub, 1)
            assert scrub.stats().bytes == scrub.stats().round_bytes == size
        monkeypatch.setattr(scrubs, "ROUND_S_MIN", 0)
        async with scrubbing(node) as scrub:
            await rounds(scrub, 3)
        assert scrub.stats().bytes >= 3 * size


async def test_a_group_that_cannot_be_read_is_passed_over(monkeypatch):
    async with service_node() as node:
        await three_blocks(node)
        monkeypatch.setattr(generations, "view", None)
        scrub = Scrub(node.environment, node.queues.damage, clock=node.clock, bytes_per_s=1)
        scrub._thread = ThreadPoolExecutor(1)
        start, stop = ATTACHMENTS.bounds(1)
        scrub._spans.append((1, start, stop))
        await scrub._go_on(asyncio.get_running_loop())
        assert not scrub._spans
        scrub._thread.shutdown()


async def test_nothing_is_read_unless_it_is_asked_for():
    async with service_node() as node:
        await three_blocks(node)
        async with scrubbing(node, bytes_per_s=0) as scrub:
            assert scrub._task is None
        assert scrub.stats().bytes == 0
