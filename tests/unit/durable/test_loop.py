"""The event loop: plain asyncio on it, one event at a time."""

import asyncio
import subprocess
import sys

import pytest

from querator.durable.errors import DurableError, Evicted, TurnTooLong
from querator.durable.loop import Loop
from querator.durable.paths import main_line

KEPT: list[Loop] = []
"""Loops with tasks that do not end: they must not be left to the collector of garbage."""


def begin(coro, loop=None):
    loop = Loop() if loop is None else loop  # type: ignore[abstract]
    task = loop.begin_task(coro, main_line())
    loop.run()
    return loop, task


def fire_all(loop):
    while (timer := loop.next_local()) is not None:
        loop.now_ms = max(loop.now_ms, timer.due_ms)
        loop.fire(timer)
        loop.run()


def test_asyncio_works_as_it_is():
    async def main():
        queue: asyncio.Queue[int] = asyncio.Queue(1)
        lock, event, condition = asyncio.Lock(), asyncio.Event(), asyncio.Condition()
        semaphore = asyncio.Semaphore(1)
        seen: list[int] = []

        async def producer():
            for number in range(3):
                await queue.put(number)
                async with lock, semaphore:
                    await asyncio.sleep(1)
            event.set()
            async with condition:
                condition.notify_all()

        async def consumer():
            while len(seen) < 3:
                seen.append(await queue.get())
            async with condition:
                await event.wait()

        async with asyncio.TaskGroup() as group:
            group.create_task(producer())
            group.create_task(consumer())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.Event().wait()
        done, rest = await asyncio.wait(
            [asyncio.ensure_future(asyncio.sleep(n, n)) for n in (3, 1, 2)],  # noqa: TID251
            return_when=asyncio.FIRST_COMPLETED,
        )
        for task in rest:
            task.cancel()
        return seen, [task.result() for task in done], await asyncio.shield(asyncio.sleep(1, "x"))

    loop, task = begin(main())
    fire_all(loop)
    assert task.result() == ([0, 1, 2], [1], "x")
    assert loop.time() == 3 + 5 + 1 + 1
    assert loop.put_away() == []


def test_wait_for_and_as_completed():
    async def main():
        tasks = [asyncio.get_running_loop().create_task(asyncio.sleep(n, n)) for n in (2, 1)]
        found = [await each for each in asyncio.as_completed(tasks)]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.sleep(10), 1)  # noqa: TID251
        return found

    loop, task = begin(main())
    fire_all(loop)
    assert task.result() == [1, 2]
    assert loop.put_away() == []


async def test_it_runs_within_a_task_of_another_loop():
    async def inner():
        return asyncio.get_running_loop(), asyncio.current_task()

    outer_loop, outer_task = asyncio.get_running_loop(), asyncio.current_task()
    loop, task = begin(inner())
    assert task.result() == (loop, task)
    assert asyncio.get_running_loop() is outer_loop
    assert asyncio.current_task() is outer_task
    async with asyncio.timeout(10):
        await asyncio.sleep(0)


def test_sets_of_tasks_iterate_in_the_order_of_their_creation():
    program = """
import asyncio
from querator.durable.loop import Loop
from querator.durable.paths import main_line

async def one(number):
    await asyncio.sleep(0)
    return number

async def main():
    junk = [object() for _ in range(hash("x") % 997)]
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(one(number)) for number in range(40)]
    done, _ = await asyncio.wait(tasks[::-1])
    return [task.result() for task in done]

loop = Loop()
task = loop.begin_task(main(), main_line())
loop.run()
print(task.result())
"""
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in (1, 2, 3)
    }
    assert len(outputs) == 1


def test_a_generator_that_is_dropped_is_closed_on_the_loop():
    closed = []

    async def numbers():
        try:
            yield 1
        finally:
            await asyncio.sleep(0)
            closed.append(asyncio.get_running_loop())

    async def main():
        async for _ in numbers():
            break

    loop, task = begin(main())
    assert task.done()
    assert closed == [loop]
    assert loop.put_away() == []


def test_code_that_never_waits_is_ended(monkeypatch):
    monkeypatch.setattr("querator.durable.loop.TURN_CALLBACKS_MAX", 20_000)

    async def spin():
        while True:  # noqa: ASYNC110 - that is the point.
            await asyncio.sleep(0)

    loop = Loop()  # type: ignore[abstract]
    loop.begin_task(spin(), main_line())
    with pytest.raises(TurnTooLong, match=r"20000 callbacks without waiting"):
        loop.run()
    assert loop.put_away() == []


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda loop: loop.run_in_executor(None, print), r"run_in_executor \(and asyncio.to_thr"),
        (lambda loop: loop.call_soon_threadsafe(print), "call_soon_threadsafe is not for"),
        (lambda loop: loop.create_connection(object), "a connection is not for a durable"),
        (lambda loop: loop.subprocess_exec(object), "a process is not for a durable"),
        (lambda loop: loop.getaddrinfo("a", 1), "a lookup of names is not for"),
        (lambda loop: loop.stop(), "cannot be stopped"),
        (lambda loop: loop.close(), "cannot be stopped"),
    ],
)
def test_what_needs_the_world_is_refused(use, words):
    with pytest.raises(DurableError, match=words):
        use(Loop())  # type: ignore[abstract]


@pytest.mark.parametrize("when", [float("inf"), float("nan"), 10 * 365 * 86_400 + 1])
def test_a_timer_is_due_within_ten_years(when):
    with pytest.raises(ValueError, match=r"must be due within 10 years"):
        Loop().call_at(when, print)  # type: ignore[abstract]


def test_exceptions_of_callbacks_are_kept():
    async def main():
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)
        await asyncio.sleep(0)

    loop, _ = begin(main())
    [failure] = loop.failures
    assert isinstance(failure["exception"], ZeroDivisionError)


def test_cancelled_timers_are_forgotten():
    async def main():
        for _ in range(1_000):
            async with asyncio.timeout(1_000):  # noqa: ASYNC100 - only its timer matters.
                pass

    loop, task = begin(main())
    assert task.done()
    assert not loop.timers
    assert loop.next_local() is None
    assert len(loop._heap) < 200


def test_putting_away_ends_tasks_that_catch_everything():
    raised = []

    async def stubborn():
        while True:
            try:
                await asyncio.sleep(1_000)
            except BaseException as error:
                raised.append(type(error))
                if len(raised) > 5:
                    raise

    loop, task = begin(stubborn())
    assert loop.put_away() == []
    assert task.done()
    assert raised[0] is Evicted


def test_tasks_that_do_not_end_are_returned():
    async def endless():
        while True:
            try:
                await asyncio.get_running_loop().create_future()
            except BaseException:  # noqa: BLE001 - that is the point.
                continue

    loop, task = begin(endless())
    assert loop.put_away() == [task]
    KEPT.append(loop)
