"""Executions that go from a worker in one language to one in another, and workers that do not fit.

A worker and a node are killed, too: many times with ROUNDS=20 (`make go-worker`), and with a worker
in Python beside the one in Go.
"""

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from querator import Client, Node
from querator.durable import Executions
from tests.clients.durable_program import PROGRAM
from tests.clients.go_worker import (
    LEASE,
    WorkerProcess,
    begun,
    go_worker,
    in_state,
    python_worker,
    until,
)
from tests.clients.programs import BUILD_S, made
from tests.integration.processes import server, verify

pytestmark = pytest.mark.timeout(BUILD_S + 1_800)

WAIT = timedelta(seconds=60)
ROUNDS = int(os.environ.get("ROUNDS", "1"))
"""Kills of the worker, and of the node."""
OPEN = 200 if ROUNDS > 1 else 20
"""Executions at a time."""
MOMENTS = (0.3, 2.0) if ROUNDS > 1 else (0.2, 0.5)
"""Between two kills, in seconds."""
SEED = 20130101

LIFE: list[Any] = [
    ["step", "begin", None, 10],
    ["gather", [[["step", "beside", None, 10]], [["sleep", 50], ["step", "behind", None, 10]]]],
    ["call", [["step", "called", None, 10], ["step", "again", None, 10]]],
    ["sleep", 400],
    ["receive", "word"],
    ["once", "once", 1, 10],
    ["spawn", [["step", "of a child", None, 10]]],
    ["step", "end", None, 10],
]
"""All that a durable function may wait for; each step gives the number of its attempt."""
STEPS = 7
"""Of these, without the one at most once."""

WAITS: dict[str, tuple[list[Any], Any]] = {
    "a signal behind steps": (
        [["step", "a", 1], ["receive", "s"], ["step", "b", 2]],
        [1, "word", 2],
    ),
    "a signal in a task": (
        [["gather", [[["step", "a", 1], ["receive", "s"]], [["sleep", 100], ["step", "b", 2]]]]],
        [[[1, "word"], [None, 2]]],
    ),
    "a limit of an hour": ([["step", "a", 1], ["receive", "s", 3_600_000]], [1, "word"]),
    "a folded call": (
        [["call", [["step", "a", 1], ["sleep", 20], ["step", "b", 2]]], ["receive", "s"]],
        [[1, None, 2], "word"],
    ),
    "a call that is open": (
        [["call", [["step", "a", 1], ["receive", "s"], ["step", "b", 2]]]],
        [[1, "word", 2]],
    ),
    "a failure, and retries": (
        [["fails", "a", "no"], ["flaky", "b", 1, 1_100], ["receive", "s"]],
        ["no", 2, "word"],
    ),
    "a patch and UUIDs": (
        [["patched", "p"], ["uuid"], ["receive", "s"], ["uuid"], ["patched", "p"]],
        None,
    ),
    "a step at most once": ([["once", "a", 1], ["receive", "s"], ["once", "b", 2]], [1, "word", 2]),
    "a child that has ended": ([["spawn", [["step", "a", 1]]], ["receive", "s"]], [[1], "word"]),
    "a child that waits": ([["spawn", [["receive", "s"]]], ["step", "a", 1]], [["word"], 1]),
    "another run": (
        [["step", "a", 1], ["again", [["receive", "s"], ["step", "b", 2]]]],
        ["word", 2],
    ),
}
"""Executions that wait for the signal `s`, and what they give."""

Make = Callable[..., AbstractAsyncContextManager[WorkerProcess]]
MAKERS: dict[str, Make] = {"go": go_worker, "python": python_worker}


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    path = tmp_path / "ledger"
    path.touch()
    return path


@pytest_asyncio.fixture
async def shop(client: Client) -> AsyncIterator[Executions]:
    await client.create_queue("shop", kind="executions", partitions=2, lease_timeout=LEASE)
    yield Executions(client, "shop")


@pytest.mark.parametrize(("first", "second"), [("python", "go"), ("go", "python")])
async def test_executions_continue_in_the_other_language(
    node: Node, shop: Executions, ledger: Path, first: str, second: str
):
    made("go")
    handles = {name: await shop.start(PROGRAM, each, id=name) for name, (each, _) in WAITS.items()}
    async with MAKERS[first](node.address, "shop", ledger) as worker:
        for handle in handles.values():
            await waits_for_its_signal(handle)
            assert (await handle.get()).version.startswith(first)
        await worker.stop()
    before = {name: [each async for each in handle.journal()] for name, handle in handles.items()}
    async with MAKERS[second](node.address, "shop", ledger) as worker:
        async for info in shop.list():
            if not info.closed:
                await shop.signal(info.id, "s", "word")
        for name, handle in handles.items():
            given = await handle.result(timeout=WAIT)
            assert WAITS[name][1] in (None, given), name
            after = [each async for each in handle.journal()]
            if second == "go" or "call" not in name:  # The worker in Python folds.
                assert after[: len(before[name])] == before[name], name
            assert (await handle.get()).version.startswith(second)
        await worker.stop()
    assert all(len(tries) == 1 for key, tries in begun(ledger).items() if not key.endswith("/b"))


async def waits_for_its_signal(handle: Any) -> None:
    """Its timers are over, and its children have ended, but those that stay."""
    stays = handle.id == "a limit of an hour", handle.id == "a child that waits"

    async def waits() -> bool:
        info = await handle.get()
        return info.state == "parked" and (info.timers, info.children) == stays

    await until(waits)


async def test_a_step_that_was_interrupted_is_so_in_the_other_language(
    node: Node, shop: Executions, ledger: Path
):
    handle = await shop.start(PROGRAM, [["once", "a", 1, 60_000], ["receive", "s"]])
    async with go_worker(node.address, "shop", ledger) as worker:
        await until(lambda: begun(ledger))
        await worker.kill()
    async with go_worker(node.address, "shop", ledger) as worker:
        await in_state(handle, "parked")
        await worker.stop()
    async with python_worker(node.address, "shop", ledger):
        await handle.signal("s", "word")
        assert await handle.result(timeout=WAIT) == ["interrupted", "word"]
    [numbers] = begun(ledger).values()
    assert len(numbers) == 1


async def test_changed_code_is_pinned_and_another_language_continues(
    node: Node, shop: Executions, ledger: Path
):
    handle = await shop.start(PROGRAM, [["step", "a", 1], ["receive", "s"], ["step", "b", 2]])
    async with go_worker(node.address, "shop", ledger) as worker:
        await in_state(handle, "parked")
        await worker.stop()
    async with go_worker(node.address, "shop", ledger, version="go-2", changed="!") as worker:
        await handle.signal("s", "word")
        info = await in_state(handle, "pinned")
        assert "record 1     step a   -   version go-1" in info.reason
        assert "now          step a!   version go-2   path 1" in info.reason
        assert info.reason.endswith("Nothing was run.")
        assert info.refused_versions == ("go-2",)
        await worker.stop()
    async with python_worker(node.address, "shop", ledger):
        assert await handle.result(timeout=WAIT) == [1, "word", 2]


async def test_changed_code_of_the_same_version_is_stuck(
    node: Node, shop: Executions, ledger: Path
):
    handle = await shop.start(PROGRAM, [["step", "a", 1], ["receive", "s"], ["step", "b", 2]])
    async with go_worker(node.address, "shop", ledger) as worker:
        await in_state(handle, "parked")
        await worker.stop()
    async with go_worker(node.address, "shop", ledger, changed="!"):
        await handle.signal("s", "word")
        assert "step a!" in (await in_state(handle, "stuck")).reason
    async with go_worker(node.address, "shop", ledger):
        await handle.retry()
        assert await handle.result(timeout=WAIT) == [1, "word", 2]


async def test_a_function_that_the_worker_does_not_have_is_pinned(
    client: Client, node: Node, shop: Executions, ledger: Path
):
    await client.executions.start("shop", "1", "other", version="-", arguments=b"[[],{}]")
    async with go_worker(node.address, "shop", ledger) as worker:
        info = await in_state(shop.handle("1"), "pinned")
        assert info.reason == "the worker has no function other"
        await worker.stop()


async def test_a_worker_that_ends_politely_gives_back_what_it_has(
    node: Node, shop: Executions, ledger: Path
):
    handle = await shop.start(
        PROGRAM, [["step", "a", "a", 500], ["step", "b", 1], ["receive", "s"]]
    )
    async with go_worker(node.address, "shop", ledger) as worker:
        await until(lambda: begun(ledger))
        await worker.stop()
    [number] = begun(ledger).values()
    assert len(number) == 1
    kinds = [each.kind async for each in handle.journal()]
    assert kinds == ["STARTED", "STEP_DONE"]
    assert (await handle.get()).state == "runnable"


class Workers:
    """Workers that are killed and started again, or frozen: one in Go; in the long form one in
    Python, too, so that each takes over what the other has begun.
    """

    def __init__(self, address: str, ledger: Path) -> None:
        self._address = address
        self._ledger = ledger
        self._makers: list[Make] = [go_worker, python_worker] if ROUNDS > 1 else [go_worker]
        self._running: list[tuple[WorkerProcess, AsyncExitStack]] = []

    async def start(self) -> None:
        """All that do not run."""
        for make in self._makers[len(self._running) :]:
            stack = AsyncExitStack()
            made = make(self._address, "shop", self._ledger)
            self._running.append((await stack.enter_async_context(made), stack))

    async def kill(self) -> None:
        """The one that runs for the longest time; the next one is of its language."""
        process, stack = self._running.pop(0)
        self._makers.append(self._makers.pop(0))
        await process.kill()
        await stack.aclose()

    async def freeze(self) -> None:
        """The same one, for longer than its leases last."""
        process, _ = self._running[0]
        process.send(signal.SIGSTOP)
        await asyncio.sleep(LEASE.total_seconds() + 1)
        process.send(signal.SIGCONT)

    async def end(self) -> None:
        while self._running:
            await self.kill()


async def live(
    shop: Executions, ends: asyncio.Event, results: dict[str, list[Any]], names: list[str]
) -> None:
    """Executions, one after the other."""
    while not ends.is_set():
        names.append(name := f"life-{len(names)}")
        handle = await shop.start(PROGRAM, LIFE, id=name)
        await handle.signal("word", f"word of {name}")
        results[name] = await handle.result(timeout=timedelta(seconds=180))


def numbers_in(given: Any) -> set[str]:
    """The numbers of attempts in a result, with those of children."""
    if isinstance(given, list):
        return set().union(*map(numbers_in, given))
    return {given} if isinstance(given, str) else set()


def check(results: dict[str, list[Any]], tries: dict[str, list[str]]) -> int:
    """How many attempts were not recorded, because a kill came first."""
    returned = numbers_in([*results.values()])
    lost = 0
    for key, numbers in tries.items():
        if key.endswith("/once"):
            assert len(numbers) == 1, f"{key} has begun {len(numbers)} times"
            continue
        assert [each for each in numbers if each in returned] == numbers[-1:], (
            f"{key}: another attempt than the last one was recorded"
        )
        lost += len(numbers) - 1
    for name, given in results.items():
        assert given[4] == f"word of {name}"
        assert given[5] in (1, "interrupted")
        assert len(numbers_in(given) - {given[4], given[5]}) == STEPS
    assert len([key for key in tries if not key.endswith("/once")]) == STEPS * len(results)
    return lost


async def test_kills_repeat_no_recorded_step(tmp_path: Path, ledger: Path):
    made("go")
    moments = random.Random(SEED)
    ends, results, names = asyncio.Event(), dict[str, list[Any]](), list[str]()
    async with (
        server(tmp_path / "data") as node,
        Client(node.address, request_timeout=timedelta(seconds=60)) as client,
        AsyncExitStack() as stack,
    ):
        await client.create_queue("shop", kind="executions", partitions=2, lease_timeout=LEASE)
        shop = Executions(client, "shop")
        workers = Workers(node.address, ledger)
        stack.push_async_callback(workers.end)
        await workers.start()
        async with asyncio.TaskGroup() as group:
            for _ in range(OPEN):
                group.create_task(live(shop, ends, results, names))
            for _ in range(ROUNDS):
                # The moments of the kills are the test's input, not waits for something to happen.
                await asyncio.sleep(moments.uniform(*MOMENTS))
                await workers.kill()
                await workers.start()
                await asyncio.sleep(moments.uniform(*MOMENTS))
                if ROUNDS > 1:
                    await workers.freeze()
                await node.kill()
                await node.start()
            ends.set()
        await workers.end()
        states = {each.state async for each in shop.list()}
        await node.kill()
    await verify(node.data_dir)
    lost = check(results, begun(ledger))
    assert states == {"completed"}
    print(  # noqa: T201 - the figures of `make go-worker`.
        f"{ROUNDS} kills of workers and {ROUNDS} of the node: {len(results)} executions "
        f"with {STEPS * len(results)} steps ended, {lost} attempts were lost, none behind a record"
    )


def test_the_check_sees_a_step_that_runs_again():
    tries = {f"e/{nth}/step": [f"{nth}"] for nth in range(STEPS)} | {"e/once": ["x"]}
    given = [*map(str, range(4)), "word of life-0", 1, ["4", "5", "6"]]
    assert check({"life-0": given}, tries) == 0
    assert check({"life-0": given}, tries | {"e/0/step": ["lost", "0"]}) == 1
    with pytest.raises(AssertionError, match="another attempt"):
        check({"life-0": given}, tries | {"e/0/step": ["0", "again"]})
    with pytest.raises(AssertionError, match="begun 2 times"):
        check({"life-0": given}, tries | {"e/once": ["x", "y"]})
