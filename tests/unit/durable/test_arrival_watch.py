"""The question of a worker about its executions at work."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import cast

import pytest

from querator.client.errors import make_error
from querator.client.executions import AtWork, ExecutionCalls
from querator.durable import arrival_watch
from querator.durable.arrival_watch import ArrivalWatch
from querator.errors import ErrorCode

Told = tuple[list[tuple[str, int]], list[tuple[str, int]]]


class Run:
    def __init__(self, item: int) -> None:
        self.asked_from = 0.0
        self.known = 0
        self.item = item
        self.heard: list[bool] = []
        self.was_told = asyncio.Event()

    @property
    def at_work(self) -> AtWork:
        return AtWork("lease", self.item, self.item, self.known)

    def heard_of(self, *, is_lost: bool) -> None:
        self.heard.append(is_lost)
        self.was_told.set()


class Calls:
    """Answers by hand."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[list[int]] = asyncio.Queue()
        self.answers: asyncio.Queue[Told | Exception] = asyncio.Queue()

    async def arrivals(self, queue: str, known: Sequence[AtWork], *, seconds: float) -> Told:
        assert queue == "shop"
        assert 0 < seconds <= 5
        self.asked.put_nowait([one.item for one in known])
        answer = await self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer


@asynccontextmanager
async def watching(calls: Calls) -> AsyncIterator[ArrivalWatch]:
    watch = ArrivalWatch(cast(ExecutionCalls, calls), "shop")
    task = asyncio.get_running_loop().create_task(watch.watch())
    try:
        async with asyncio.timeout(30):
            yield watch
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrival_watch, "_YOUNG_SECONDS", 0.01)


async def test_runs_that_last_are_asked_for_together():
    calls = Calls()
    async with watching(calls) as watch:
        one, other = Run(1), Run(2)
        watch.add(one)
        watch.add(other)
        assert await calls.asked.get() == [1, 2]
        calls.answers.put_nowait(([("lease", 2)], []))
        assert 1 in await calls.asked.get()
        assert (one.heard, other.heard) == ([], [False])


async def test_a_lost_lease_is_heard():
    calls = Calls()
    async with watching(calls) as watch:
        run = Run(1)
        watch.add(run)
        await calls.asked.get()
        calls.answers.put_nowait(([], [("lease", 1)]))
        await calls.asked.get()
        assert run.heard == [True]


async def test_a_run_that_has_ended_is_not_asked_for():
    calls = Calls()
    async with watching(calls) as watch:
        one, other = Run(1), Run(2)
        watch.add(one)
        watch.add(other)
        await calls.asked.get()
        watch.remove(one)
        # It has ended meanwhile.
        calls.answers.put_nowait(([("lease", 1)], []))
        assert await calls.asked.get() == [2]
        assert one.heard == []


async def test_a_question_that_fails_is_asked_again():
    calls = Calls()
    async with watching(calls) as watch:
        watch.add(Run(1))
        for code in (ErrorCode.UNAVAILABLE, ErrorCode.OVERLOADED):
            assert await calls.asked.get() == [1]
            calls.answers.put_nowait(make_error(code, "as the test says"))
        assert await calls.asked.get() == [1]


async def test_a_new_run_comes_to_the_next_question():
    calls = Calls()
    async with watching(calls) as watch:
        watch.add(Run(1))
        assert await calls.asked.get() == [1]
        watch.add(Run(2))
        calls.answers.put_nowait(([], []))
        found = await calls.asked.get()
        while found != [1, 2]:
            assert found == [1]
            calls.answers.put_nowait(([], []))
            found = await calls.asked.get()


async def test_runs_that_are_too_many_for_one_question_take_turns(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(arrival_watch, "EXECUTION_WAIT_IDS_MAX", 2)
    calls = Calls()
    async with watching(calls) as watch:
        for item in (1, 2, 3):
            watch.add(Run(item))
        await asyncio.sleep(0.02)
        asked = []
        for _ in range(3):
            asked.append(await calls.asked.get())
            calls.answers.put_nowait(([], []))
        assert asked == [[1, 2], [3, 1], [2, 3]]


async def test_what_has_arrived_and_is_not_read_is_not_asked_for_without_a_pause(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(arrival_watch, "_YOUNG_SECONDS", 3_600.0)
    calls = Calls()
    async with watching(calls) as watch:
        run = Run(1)
        watch.add(run)
        run.asked_from = 0.0
        watch.add(Run(2))
        watch._changed.set()
        assert await calls.asked.get() == [1]
        calls.answers.put_nowait(([("lease", 1)], []))
        await run.was_told.wait()
        await asyncio.sleep(0.05)
        assert calls.asked.empty()


async def test_a_question_about_many_runs_that_found_something_is_followed_by_a_pause(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(arrival_watch, "_PAUSE_SECONDS", 1_800.0)
    calls = Calls()
    async with watching(calls) as watch:
        one, other = Run(1), Run(2)
        watch.add(one)
        watch.add(other)
        assert await calls.asked.get() == [1, 2]
        calls.answers.put_nowait(([("lease", 1)], []))
        await one.was_told.wait()
        await asyncio.sleep(0.05)
        assert calls.asked.empty()


async def test_a_run_that_cannot_read_its_journal_is_asked_for_less_and_less():
    calls = Calls()
    async with watching(calls) as watch:
        run = Run(1)
        watch.add(run)
        pauses = []
        for known in (0, 0, 0, 1):
            run.known = known
            assert await calls.asked.get() == [1]
            run.was_told.clear()
            calls.answers.put_nowait(([("lease", 1)], []))
            await run.was_told.wait()
            pauses.append(watch._unread["lease", 1][1])
        assert pauses == [0.01, 0.02, 0.04, 0.01]
