"""kill -9 of a worker and of the node, in turns, while 200 executions are open: all of them end,
no step runs again after its result was recorded, and each of these has produced one item.
"""

import asyncio
import os
import random
import sys
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from querator import Client
from querator.durable import Executions
from tests.integration.conftest import TOLD
from tests.integration.durable_ledger import MAIL, Effect, audited, effects
from tests.integration.processes import ServerProcess, server, verify

KILLS = int(os.environ.get("KILLS", "3"))
"""Of a worker, and as many of the node."""
SEED = 20130101
OPEN = 200
"""Executions at a time."""
STEPS = 8
WORKERS = 2
WAIT = timedelta(seconds=120)


class Workers:
    """Processes of `durable_ledger`."""

    def __init__(self, node: ServerProcess, ledger: Path) -> None:
        self._node = node
        self._ledger = ledger
        self._processes: list[asyncio.subprocess.Process] = []

    async def start(self) -> None:
        with self._ledger.with_name("workers.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tests.integration.durable_ledger", self._node.address,
                "shop", str(self._ledger), stderr=log,
            )  # fmt: skip
        self._processes.append(process)

    async def kill(self) -> None:
        """The oldest one. It may have ended by itself: at its start no node answered."""
        process = self._processes.pop(0)
        if process.returncode is None:
            process.kill()
        await process.wait()

    async def kill_all(self) -> None:
        while self._processes:
            await self.kill()


@asynccontextmanager
async def working(node: ServerProcess, ledger: Path) -> AsyncIterator[Workers]:
    workers = Workers(node, ledger)
    try:
        for _ in range(WORKERS):
            await workers.start()
        yield workers
    finally:
        await workers.kill_all()


class Lives:
    """Starts executions until `enough` is set, and keeps what each returned."""

    def __init__(self, shop: Executions) -> None:
        self._shop = shop
        self._started = 0
        self.enough = asyncio.Event()
        self.results: dict[str, list[str]] = {}

    async def live(self) -> None:
        """One execution after the other."""
        while not self.enough.is_set():
            name = f"life-{self._started}"
            self._started += 1
            handle = await self._shop.start(audited, id=name)
            await handle.signal("word", f"word of {name}")
            self.results[name] = await handle.result(timeout=WAIT)


async def drained(client: Client) -> list[str]:
    """What the executions have produced, when all of it has arrived."""
    found: list[str] = []
    async with asyncio.timeout(WAIT.total_seconds()):
        while (await client.stats("shop")).total.moving:  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(0.05)
    while leased := await client.lease(MAIL, max_items=1_000, wait=timedelta(seconds=0.2)):
        found += [item.payload.decode() for item in leased]
        await asyncio.gather(*(item.complete() for item in leased))
    return found


def check_items(results: dict[str, list[str]], items: list[str]) -> None:
    """An item for each step that was recorded, and for no other one."""
    steps = [value for values in results.values() for value in values if "word" not in value]
    assert sorted(items) == sorted(steps), f"{len(items)} items of {len(steps)} steps"


def check(results: dict[str, list[str]], ledger: list[Effect]) -> int:
    """The number of effects that were not recorded, because a kill came first."""
    attempts: dict[str, list[Effect]] = defaultdict(list)
    for one in ledger:
        attempts[one.key].append(one)
    returned = {result for values in results.values() for result in values}
    for key, tries in attempts.items():
        recorded = [one for one in tries if one.result in returned]
        assert len(recorded) == 1, f"{key}: {len(recorded)} results were recorded"
        last = max(tries, key=lambda one: one.begun)
        assert last is recorded[0], f"{key}: the step began again after its result was recorded"
    assert len(attempts) == STEPS * len(results)
    for name, values in results.items():
        assert f"word of {name}" in values
        assert len(values) == len(set(values)) == STEPS + 1
    return len(ledger) - len(attempts)


@pytest.mark.timeout(1800)
async def test_kills_of_workers_and_of_the_node_repeat_no_recorded_step(
    tmp_path: Path, request: pytest.FixtureRequest
):
    moments = random.Random(SEED)
    ledger = tmp_path / "ledger"
    ledger.touch()
    async with (
        server(tmp_path / "data") as node,
        Client(node.address, request_timeout=timedelta(seconds=30)) as client,
    ):
        await client.create_queue(MAIL, partitions=2)
        await client.create_queue(
            "shop", kind="executions", partitions=4, lease_timeout=timedelta(seconds=3)
        )
        lives = Lives(Executions(client, "shop"))
        async with working(node, ledger) as workers, asyncio.TaskGroup() as group:
            for _ in range(OPEN):
                group.create_task(lives.live())
            for _ in range(KILLS):
                # The moment of a kill is the test's input, not a wait for something to happen. In
                # the first two seconds of a node no lease lapses: the work of a killed worker
                # must have time to come to another one between two kills.
                await asyncio.sleep(moments.uniform(0.2, 3))
                await workers.kill()
                await workers.start()
                await asyncio.sleep(moments.uniform(1, 5))
                await node.kill()
                await node.start()
            lives.enough.set()
        items = await drained(client)
        await node.kill()
    await verify(node.data_dir)
    repeated = check(lives.results, effects(ledger))
    check_items(lives.results, items)
    line = (
        f"{KILLS} kills of a worker and {KILLS} of the node: {len(lives.results)} executions of "
        f"{STEPS} steps ended, {repeated} effects came before their record, none after it"
    )
    request.node.user_properties.append((TOLD, line))
    assert len(lives.results) >= OPEN


def test_the_check_sees_a_step_that_runs_again():
    step = [Effect(f"e/{number}", f"r{number}", 1.0) for number in range(STEPS)]
    results = {"life-0": [*(one.result for one in step), "word of life-0"]}
    assert check(results, step) == 0
    assert check(results, [Effect("e/0", "lost", 0.5), *step]) == 1
    with pytest.raises(AssertionError, match="began again"):
        check(results, [*step, Effect("e/0", "again", 2.0)])
    with pytest.raises(AssertionError, match="0 results"):
        check({"life-0": [*results["life-0"][1:], "other"]}, step)


def test_the_check_sees_items_that_are_missing_or_there_twice():
    results = {"life-0": ["a", "b", "word of life-0"]}
    check_items(results, ["b", "a"])
    for wrong in (["a"], ["a", "b", "b"], ["a", "b", "c"]):
        with pytest.raises(AssertionError, match="items of 2 steps"):
            check_items(results, wrong)
