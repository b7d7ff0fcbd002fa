"""`make deployments`: code is deployed back and forth under load, and nothing is lost, doubled or
failed.

EXECUTIONS (1,000) executions of the first code wait for an approval, while other executions are
started and end all the time. Two workers are replaced, one after the other, with a quarter of the
approvals between:

    workers                   what happens to what is approved
    first, compatible         it ends: the compatible code continues it, too
    compatible, unfit         it ends: what does not fit the one waits for the other
    unfit, unfit              it is pinned, with both lines named; new executions run
    unfit, compatible         what was pinned ends, without a person
    unfit, unfit              the last quarter is pinned
    unfit, fixed              all ends: the fix continues what was pinned, the unfit code its own

Then each execution has its result, and each effect has happened once. The last line is JSON:
counts, and how long it took until what was pinned had ended. Raises AssertionError if something is
wrong.
"""

import argparse
import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any, Final

import msgspec

from querator import Client
from querator.client.executions import ExecutionInfo
from querator.durable import Durable, Executions, Worker, current, durable, patched, receive, step
from scripts.bench.durable import cluster

WAIT: Final = timedelta(minutes=5)
CONCURRENCY: Final = 200
AT_A_TIME: Final = 64
FUNCTION: Final = "order"
_EFFECTS: Counter[tuple[str, str]] = Counter()
"""By execution and step. Both workers are in this process."""


class Summary(msgspec.Struct, frozen=True):
    executions: int
    beside: int
    """Executions that were started meanwhile."""
    effects: int
    pinned: int
    """Executions that were pinned when no worker fitted, both times."""
    reverted_s: float
    """From the return of the compatible code until the last pinned one had ended."""
    fixed_s: float
    """The same, from the fix."""


@step
async def charge() -> str:
    return _happens("charge")


@step
async def check() -> str:
    return _happens("check")


@step
async def ship() -> str:
    return _happens("ship")


@step
async def thank() -> str:
    return _happens("thank")


def _happens(name: str) -> str:
    _EFFECTS[current().execution_id, name] += 1
    return name


@durable(name=FUNCTION)
async def first() -> list[str]:
    done = [await charge()]
    await receive("approved")
    return [*done, await ship()]


@durable(name=FUNCTION)
async def compatible() -> list[str]:
    done = [await charge()]
    await receive("approved")
    return [*done, await ship(), await thank()]


@durable(name=FUNCTION)
async def unfit() -> list[str]:
    done = [await check(), await charge()]
    await receive("approved")
    return [*done, await ship()]


@durable(name=FUNCTION)
async def fixed() -> list[str]:
    done = [await check()] if patched("check-first") else []
    done.append(await charge())
    await receive("approved")
    return [*done, await ship()]


@durable
async def beside() -> str:
    return await ship()


class Deployments:
    """Two places for workers."""

    def __init__(self, client: Client, queue: str) -> None:
        self._client = client
        self._queue = queue
        self._workers: list[tuple[Worker, asyncio.Task[None]]] = []

    async def put(self, *functions: Durable[..., Any]) -> None:
        """Replaces the workers one after the other: each begins before the one before it ends."""
        for place, function in enumerate(functions):
            worker = Worker(
                self._client, self._queue, [function, beside], concurrency=CONCURRENCY
            )  # fmt: skip
            # Owned: awaited when it is replaced, and at the end.
            begun = worker, asyncio.get_running_loop().create_task(worker.run())
            if place < len(self._workers):
                before, self._workers[place] = self._workers[place], begun
                await _stopped(*before)
            else:
                self._workers.append(begun)

    async def end(self) -> None:
        for worker, task in self._workers:
            await _stopped(worker, task)


async def _stopped(worker: Worker, task: "asyncio.Task[None]") -> None:
    worker.stop()
    await task


@contextlib.asynccontextmanager
async def load(shop: Executions) -> AsyncIterator[list[str]]:
    """Starts executions one after the other and waits for each, within the block."""
    ended: list[str] = []
    stopping = asyncio.Event()

    async def some() -> None:
        while not stopping.is_set():
            ended.append(await (await shop.start(beside)).result(timeout=WAIT))

    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(some())
        try:
            yield ended
        finally:
            stopping.set()


async def rolling(client: Client, shop: Executions, executions: int) -> Summary:
    """The whole story, at a queue of executions."""
    _EFFECTS.clear()
    deployments = Deployments(client, shop.queue)
    ids = [f"order-{number}" for number in range(executions)]
    quarters = [ids[place::4] for place in range(4)]
    later = [f"later-{number}" for number in range(max(1, executions // 10))]
    try:
        async with load(shop) as ended:
            await deployments.put(first, first)
            await _each(ids, lambda one: shop.start(first, id=one))
            await until_states(shop, ids, "parked")
            await deployments.put(first, compatible)
            await _approved(shop, quarters[0])
            await deployments.put(compatible, unfit)
            await _approved(shop, quarters[1])
            await deployments.put(unfit, unfit)
            await _each(quarters[2], lambda one: shop.signal(one, "approved"))
            pinned = await until_states(shop, quarters[2], "pinned")
            for info in pinned:
                assert "step charge" in info.reason, info
                assert "step check" in info.reason, info
                assert info.refused_versions == (unfit.version,), info
            await _each(later, lambda one: shop.start(unfit, id=one))
            await until_states(shop, later, "parked")
            began = time.monotonic()
            await deployments.put(unfit, compatible)
            await _results(shop, quarters[2])
            reverted_s = time.monotonic() - began
            await deployments.put(unfit, unfit)
            await _each(quarters[3], lambda one: shop.signal(one, "approved"))
            pinned += await until_states(shop, quarters[3], "pinned")
            began = time.monotonic()
            await deployments.put(unfit, fixed)
            await _results(shop, quarters[3])
            fixed_s = time.monotonic() - began
            await _each(later, lambda one: shop.signal(one, "approved"))
            await _results(shop, later)
    finally:
        await deployments.end()
    await _check(shop, quarters, later)
    return Summary(
        executions, len(ended), sum(_EFFECTS.values()), len(pinned), round(reverted_s, 2),
        round(fixed_s, 2),
    )  # fmt: skip


async def _check(shop: Executions, quarters: list[list[str]], later: list[str]) -> None:
    twice = {key: count for key, count in _EFFECTS.items() if count != 1}
    assert not twice, twice
    left = [one.id async for one in shop.list(function=FUNCTION) if one.state != "completed"]
    assert not left, left
    ends = await _results(shop, quarters[2])
    assert all(one == ["charge", "ship", "thank"] for one in ends), ends
    ends = await _results(shop, quarters[3])
    assert all(one == ["charge", "ship"] for one in ends), ends
    ends = await _results(shop, later)
    assert all(one == ["check", "charge", "ship"] for one in ends), ends


async def _approved(shop: Executions, ids: Sequence[str]) -> None:
    await _each(ids, lambda one: shop.signal(one, "approved"))
    await _results(shop, ids)


async def _results(shop: Executions, ids: Sequence[str]) -> list[list[str]]:
    return await _each(ids, lambda one: shop.handle(one, first).result(timeout=WAIT))


async def _each(ids: Sequence[str], call: Any) -> list[Any]:
    """Some at a time."""
    found: list[Any] = []
    for at in range(0, len(ids), AT_A_TIME):
        found += await asyncio.gather(*(call(one) for one in ids[at : at + AT_A_TIME]))
    return found


async def until_states(shop: Executions, ids: Sequence[str], state: Any) -> list[ExecutionInfo]:
    """Waits until all of these executions are in a state."""
    wanted = set(ids)
    async with asyncio.timeout(WAIT.total_seconds()):
        while True:
            found = [one async for one in shop.list(state=state) if one.id in wanted]
            if len(found) == len(wanted):
                return found
            await asyncio.sleep(0.1)


async def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench.deployments",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--nodes", type=int, default=3, help="default: 3")
    parser.add_argument("--executions", type=int, default=1_000, help="default: 1,000")
    arguments = parser.parse_args()
    async with cluster(arguments.nodes) as (servers, shop), Client(servers.address) as client:
        summary = await rolling(client, shop, arguments.executions)
    print(msgspec.json.encode(summary).decode())


if __name__ == "__main__":
    asyncio.run(main())
