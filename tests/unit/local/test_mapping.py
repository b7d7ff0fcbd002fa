"""`map` by a harness: a child for each of many items, in portions, with failures and crashes."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from querator.durable import (
    ExecutionCancelled,
    ValueTooLarge,
    durable,
    mapping,
    sleep,
    step,
    sync,
)
from querator.durable import map as map_items
from querator.durable.machine import living
from querator.local import Harness


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    before = living()
    yield
    assert living() == before, "a machine stays in memory"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Portions of three items."""
    monkeypatch.setattr(mapping, "PORTION_ITEMS", 3)


@durable
async def double(nth: int) -> int:
    # The later ones end first.
    await sleep(1_000 - nth % 100)
    return 2 * nth


@step
async def say(text: str) -> str:
    return text


@durable
async def picky(nth: int) -> int:
    if nth % 4 == 1:
        raise ValueError(f"{nth} is wrong")
    await sleep(nth * 10)
    return nth


async def doubled(count: int, parallel: int = 100) -> tuple[list[int], Harness]:
    @durable
    async def parent() -> list[int]:
        return await map_items(double, range(count), parallel=parallel)

    harness = Harness([parent, double])
    return await harness.run(parent, id="a"), harness


@pytest.mark.parametrize("count", [0, 1, 99, 100, 101, 250])
async def test_results_are_in_the_order_of_the_items(count: int) -> None:
    result, harness = await doubled(count)
    assert result == [2 * nth for nth in range(count)]
    # One record is left of each portion of several children, beside the start and the end.
    info = await harness.executions.get("a")
    singles = count % 100 == 1
    assert info.records <= -(-count // 100) + 2 + singles


@pytest.mark.parametrize(("parallel", "most"), [(1, 1), (3, 1), (10, 2), (100, 100)])
async def test_no_more_are_at_work_than_parallel(parallel: int, most: int) -> None:
    at_work = {"now": 0, "most": 0}

    @step
    async def enter() -> None:
        at_work["now"] += 1
        at_work["most"] = max(at_work.values())

    @step
    async def leave() -> None:
        at_work["now"] -= 1

    @durable
    async def busy(nth: int) -> None:
        await enter()
        await sleep(60)
        await leave()

    @durable
    async def parent() -> None:
        await map_items(busy, range(min(450, 20 * parallel)), parallel=parallel)

    await Harness([parent, busy]).run(parent)
    assert most * 0.7 <= at_work["most"] <= parallel


@pytest.mark.usefixtures("small")
async def test_every_crash() -> None:
    @durable
    async def parent() -> list[int]:
        return await map_items(double, range(8), parallel=4)

    async def test(harness: Harness) -> list[int]:
        result: list[int] = await harness.run(parent, id="a")
        assert len([one async for one in harness.executions.list(function="double")]) == 8
        return result

    assert await Harness([parent, double]).every_crash(test) == [2 * nth for nth in range(8)]


@pytest.mark.usefixtures("small")
async def test_the_first_failure_is_raised_and_no_other_child_is_started() -> None:
    @durable
    async def parent() -> list[int]:
        try:
            return await map_items(picky, [0, 2, 3, 4, 6, 5, 7, 8, 10, 11], parallel=4)
        except ValueError as error:
            await sleep(1_000)
            return [len(str(error))]

    harness = Harness([parent, picky])
    assert await harness.run(parent, id="a") == [len("5 is wrong")]
    states = [one.state async for one in harness.executions.list(function="picky")]
    assert states.count("failed") == 1
    assert len(states) < 10
    # Those that were at work have continued.
    assert "cancelled" not in states


@pytest.mark.usefixtures("small")
async def test_exceptions_among_the_results() -> None:
    @durable
    async def parent() -> list[str]:
        found = await map_items(picky, range(8), return_exceptions=True)
        return [repr(one) for one in found]

    async def test(harness: Harness) -> list[str]:
        result: list[str] = await harness.run(parent, id="a")
        return result

    assert await Harness([parent, picky]).every_crash(test) == [
        "0", "ValueError('1 is wrong')", "2", "3", "4", "ValueError('5 is wrong')", "6", "7",
    ]  # fmt: skip


async def test_a_cancellation_cancels_what_is_at_work() -> None:
    @durable
    async def parent() -> list[int]:
        return await map_items(double, range(100), parallel=20)

    harness = Harness([parent, double])
    handle = await harness.start(parent, id="a")
    await handle.cancel()
    with pytest.raises(ExecutionCancelled):
        await handle.result()
    infos = [one async for one in harness.executions.list(function="double")]
    assert [(one.state, one.cancelled) for one in infos] == [("cancelled", True)] * 20


async def test_a_timeout_cancels_what_is_at_work() -> None:
    @durable
    async def parent() -> str:
        try:
            async with asyncio.timeout(1):
                await map_items(double, range(10))
        except TimeoutError:
            return "late"
        return "in time"

    harness = Harness([parent, double])
    assert await harness.run(parent) == "late"


async def test_a_sync_function_maps() -> None:
    @durable
    def parent() -> list[int]:
        return sync.map(double, range(5), parallel=2)

    assert await Harness([parent, double]).run(parent) == [0, 2, 4, 6, 8]


async def test_many_items_leave_one_record_for_a_hundred() -> None:
    @durable
    async def one(nth: int) -> int:
        return nth

    @durable
    async def parent() -> int:
        return sum(await map_items(one, range(2_000), parallel=400))

    harness = Harness([parent, one])
    assert await harness.run(parent, id="a") == sum(range(2_000))
    assert (await harness.executions.get("a")).records == 22


@pytest.mark.parametrize(
    ("parallel", "error", "text"),
    [
        (0, ValueError, "parallel is 0; it must be from 1 to 500"),
        (501, ValueError, "parallel is 501; it must be from 1 to 500"),
        (True, TypeError, "parallel is True; it must be a whole number"),
        (2.5, TypeError, "parallel is 2.5"),
    ],
)
async def test_bad_parallel(parallel: Any, error: type[Exception], text: str) -> None:
    @durable
    async def parent() -> None:
        with pytest.raises(error, match=text):
            await map_items(double, [1], parallel=parallel)

    await Harness([parent, double]).run(parent)


async def test_what_is_no_durable_function() -> None:
    function: Any = say

    @durable
    async def parent() -> None:
        with pytest.raises(TypeError, match="it must be a function with @durable"):
            await map_items(function, ["a"])

    await Harness([parent]).run(parent)


async def test_results_that_are_too_large_together() -> None:
    @durable
    async def large(nth: int) -> str:
        return "x" * 300_000

    @durable
    async def parent() -> str:
        with pytest.raises(ValueTooLarge, match="the result of large has 1200"):
            await map_items(large, range(4))
        return "refused"

    assert await Harness([parent, large]).run(parent) == "refused"
