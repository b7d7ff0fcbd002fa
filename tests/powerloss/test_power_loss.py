"""Power loss at random moments under load: acknowledged items are there, completed items stay gone.
The same run detects a disk that lies about its syncs.

Each run has a seed: POWERLOSS_RUNS is their number, POWERLOSS_SEED the first. The seed decides the
moments and what a disk keeps; the machine decides what a node is doing at that moment.
"""

import asyncio
import contextlib
import itertools
import os
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from random import Random

import pytest
import uuid_utils

from tests.checkers.history import Look, Looked
from tests.checkers.report import check
from tests.integration.stub_load import StubLoad, acknowledged, completed, new_recorder
from tests.integration.test_kill9 import PARTITIONS, QUEUE, counts, create_queue
from tests.powerloss.disk import Kept
from tests.powerloss.nodes import PoweredNode, Totals, cluster, lose_power, start, verify_all

RUNS = int(os.environ.get("POWERLOSS_RUNS", "1"))
SEED = int(os.environ.get("POWERLOSS_SEED", "1"))
LOSSES = 3
"""Power losses in each run."""
DRAINS = 6
"""Consumers that empty the queue in the end."""


class Run:
    """Nodes under load that lose power; clients reach them at `address()`."""

    def __init__(
        self, nodes: Sequence[PoweredNode], address: Callable[[], str], seed: int, totals: Totals
    ) -> None:
        self.nodes = nodes
        self.address = address
        self.random = Random(seed)
        self.recorder = new_recorder(QUEUE, PARTITIONS)
        self.load = StubLoad(QUEUE, address, seed, self.recorder)
        self.totals = totals

    async def begin(self) -> None:
        await start(self.nodes)
        await create_queue(self.address())

    @contextlib.asynccontextmanager
    async def under_load(self) -> AsyncIterator[None]:
        """Producers and consumers, which end with the block."""
        async with asyncio.TaskGroup() as group:
            for n in range(3):
                group.create_task(self.load.produce(batch_items=(1, 10, 100)[n]))
                group.create_task(self.load.consume(f"c{n}"))
            yield
            self.load.gone.set()

    async def produce(self, count: int) -> None:
        """Returns when `count` items are acknowledged."""
        references = [f"by hand {n}" for n in range(count)]
        async with self.load.stub() as stub:
            await self.load.produce_once(stub, references, uuid_utils.uuid7().bytes, 1)

    async def lose_power(self, kept: Kept) -> None:
        await lose_power(self.nodes, kept, self.random, self.totals)

    async def violations(self) -> list[str]:
        """Empties the queue. Returns the violations in what the clients have seen."""
        async with asyncio.TaskGroup() as group:
            for n in range(DRAINS):
                drain = StubLoad(QUEUE, self.address, n, self.recorder)
                group.create_task(drain.consume(f"drain{n}", until_empty=True))
        look = self.recorder.begin("end", QUEUE, Look())
        total = await counts(self.address())
        if left := total.ready + total.leased + total.scheduled + total.moving:
            return [f"{left} items that no consumer gets", *check(self.recorder.history).violations]
        look.ended(Looked())
        return check(self.recorder.history).lines()[:-1]

    async def end(self) -> None:
        for node in self.nodes:
            if node.process.running:
                await node.process.kill()


@pytest.fixture(params=[1, 3], ids=["one", "three"])
async def run(
    request: pytest.FixtureRequest, seed: int, tmp_path: Path, library: Path, totals: Totals
) -> AsyncIterator[Run]:
    """One node, or a cluster of three with clients at each of them."""
    again = f"make powerloss RUNS=1 SEED={seed} PYTEST='-k {request.function.__name__}'"
    request.node.add_report_section("setup", "repeat", again)
    if request.param == 1:
        nodes = [PoweredNode(tmp_path / "node", library)]
    else:
        nodes = cluster(tmp_path, library, request.param)
    turns = itertools.cycle(nodes)
    run = Run(nodes, lambda: next(turns).process.address, seed, totals)
    try:
        await run.begin()
        yield run
    finally:
        await run.end()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(SEED, SEED + RUNS))
async def test_power_loss_loses_nothing(run: Run) -> None:
    async with run.under_load():
        for _ in range(LOSSES):
            # The moment of the loss is the test's input, not a wait for something to happen.
            await asyncio.sleep(run.random.uniform(0.05, 0.7))
            await run.lose_power(run.random.choice([Kept.NONE, Kept.SOME, Kept.SOME, Kept.ALL]))
            await verify_all(run.nodes)
            await start(run.nodes)
    assert await run.violations() == []
    for node in run.nodes:
        assert await node.process.terminate() == 0
    await run.lose_power(Kept.NONE)
    await verify_all(run.nodes)
    assert len(acknowledged(run.recorder.history)) > LOSSES
    assert completed(run.recorder.history) > LOSSES


async def found_by(run: Run, *lies: str) -> str:
    """The violations after a power loss under load, which show that the disk lied."""
    for node in run.nodes:
        assert await node.process.terminate() == 0
        node.lie(*lies)
    await start(run.nodes)
    async with run.under_load():
        await run.produce(100)
        await run.lose_power(Kept.NONE)
    try:
        await verify_all(run.nodes)
    except AssertionError as error:
        return str(error)
    await start(run.nodes)
    return "\n".join(await run.violations())


@pytest.mark.timeout(180)
@pytest.mark.parametrize("seed", [SEED])
@pytest.mark.parametrize(
    ("run", "lies"),
    [(1, ("fsync",)), (1, ("fsync", "dsync")), (3, ("fsync", "dsync"))],
    indirect=["run"],
)
async def test_without_the_sync_it_fails(run: Run, lies: tuple[str, ...]) -> None:
    found = await found_by(run, *lies)
    if "dsync" in lies:
        assert "acknowledged, but lost" in found
    else:
        assert "verify found" in found, "the newest state is there, and its pages are not"
