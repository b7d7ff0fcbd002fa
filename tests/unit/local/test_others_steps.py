"""What the suites of other systems expect of steps: once, in order, with retries and time limits.

Each test names its source. T is Temporal (temporalio/features, features/), R is Restate
(restatedev/sdk-test-suite and restatedev/e2e, by class and test), D is DBOS
(dbos-inc/dbos-transact-py, tests/), A is Absurd (earendil-works/absurd, sdks/python/tests/). Where
a source expects something else, the docstring says so. `test_others_code` has what code does with
steps, `test_others_lives` and `test_others_children` the rest; tests/conformance has the wire.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from querator.durable import (
    Final,
    Retry,
    call,
    current,
    durable,
    sleep,
    step,
)
from querator.local import Harness

NOW = timedelta(0)


class Fatal(Exception):
    """What an attempt may raise, so that there is no other one."""


async def names(h: Harness, execution_id: str, kind: str = "STEP_DONE") -> list[str]:
    """The names of the records of a kind, in the order of the journal."""
    handle = h.executions.handle(execution_id)
    return [one.name for one in [each async for each in handle.journal()] if one.kind == kind]


# --- steps ----------------------------------------------------------------------------------------


async def test_a_step_runs_once_however_often_its_code_does():
    """R RunRetry.executedOnlyOnce: a side effect is run once."""
    runs: list[int] = []

    def effect() -> int:
        runs.append(1)
        return len(runs)

    @durable
    async def code() -> int:
        value = await call(effect)
        for _ in range(3):
            await sleep(60)
        return value

    assert await Harness([code]).run(code) == 1
    assert runs == [1]


async def test_an_effect_waits_for_the_records_before_it():
    """R RunFlush.flush: the result of one effect is durable before the next one begins."""
    h_writes: list[int] = []

    def effect(number: int) -> int:
        h_writes.append(len(h.writes))
        return number

    @durable
    async def code() -> list[int]:
        return [await call(effect, number) for number in range(3)]

    h = Harness([code])
    assert await h.run(code) == [0, 1, 2]
    assert h_writes == [0, 1, 2]


async def test_steps_of_a_gather_are_under_way_together():
    """T activity/running_concurrently, local_activity/concurrent: all results are there."""
    together = asyncio.Barrier(3)

    async def effect(number: int) -> int:
        await together.wait()
        return number

    @durable
    async def code() -> list[int]:
        return list(await asyncio.gather(*(call(effect, number) for number in range(3))))

    assert await Harness([code]).run(code) == [0, 1, 2]


async def test_steps_one_after_the_other_have_a_record_each():
    """T local_activity/serial: three activities leave three markers, in their order."""

    @durable
    async def named() -> None:
        for name in ("one", "two", "three"):
            await call(step(lambda: None, name=name))

    h = Harness([named])
    await h.run(named, id="a")
    assert await names(h, "a") == ["one", "two", "three"]


async def test_records_of_a_gather_are_in_the_places_of_its_calls():
    """D test_concurrency: a gather of steps numbers them in the order of the call, not in that in
    which they end, and a replay agrees.
    """

    async def ends_after(turns: int) -> int:
        for _ in range(turns):
            await asyncio.sleep(0)
        return turns

    @durable
    async def code() -> list[int]:
        found = await asyncio.gather(*(call(ends_after, turns) for turns in (30, 1, 10)))
        await sleep(60)
        return list(found)

    async def test(h: Harness) -> list[int]:
        result = await h.run(code, id="a")
        records = [one async for one in h.executions.handle("a").journal()]
        steps = [one for one in records if one.kind == "STEP_DONE"]
        by_place = sorted(steps, key=lambda one: one.path)
        assert [int(one.payload) for one in by_place] == [30, 1, 10]
        return result

    assert await Harness([code]).every_crash(test) == [30, 1, 10]


async def test_a_step_in_a_step_is_a_part_of_it():
    """D test_dbos, nested steps: the inner one is no step of its own."""

    @step
    async def inner() -> str:
        return current().execution_id

    @step
    async def outer() -> str:
        return await inner()

    @durable
    async def code() -> str:
        return await outer()

    h = Harness([code])
    assert await h.run(code, id="a") == "a"
    assert await names(h, "a") == ["outer"]


async def test_a_name_may_be_used_in_a_loop():
    """A test_step: repeated step names; each call has its own result, also after a crash."""

    @step(name="loop-step")
    async def tenfold(number: int) -> int:
        return number * 10

    @durable
    async def code() -> list[int]:
        return [await tenfold(number) for number in range(3)]

    async def test(h: Harness) -> list[int]:
        result = await h.run(code, id="a")
        assert await names(h, "a") == ["loop-step"] * 3
        return result

    assert await Harness([code]).every_crash(test) == [0, 10, 20]


async def test_only_steps_without_a_result_run_again():
    """A test_step: a task that fails before its third step runs only that one again. Here a crash
    of the worker is what makes the code run again.
    """
    runs: list[str] = []

    @durable
    async def code() -> list[str]:
        return [await call(runs_as, name) for name in ("one", "two", "three")]

    def runs_as(name: str) -> str:
        runs.append(name)
        return name

    h = Harness([code])
    h.crash_at(2)
    assert await h.run(code) == ["one", "two", "three"]
    assert runs == ["one", "two", "three"]


async def test_steps_have_the_names_that_they_are_given():
    """A test_step: the decorator without parentheses, with them, and with a custom name."""

    @step
    async def plain() -> None: ...

    @step()
    async def with_parentheses() -> None: ...

    @step(name="custom-name")
    async def named() -> None: ...

    @durable
    async def code() -> None:
        await plain()
        await with_parentheses()
        await named()

    h = Harness([code])
    await h.run(code, id="a")
    assert await names(h, "a") == ["plain", "with_parentheses", "custom-name"]


async def test_steps_outside_are_plain_functions():
    """D test_dbos, a step without DBOS; test_failures, a time limit that is inert outside of a
    workflow.
    """

    @step(timeout=timedelta(microseconds=1000), retry=Retry(attempts=3))
    async def slow(number: int) -> int:
        await asyncio.sleep(0.005)
        return number

    @step
    def sync(number: int) -> int:
        return number

    assert await slow(5) == 5
    assert sync(5) == 5


# --- retries --------------------------------------------------------------------------------------


def failing(attempts: list[int], *, until: int, retry: Retry) -> Callable[[], Awaitable[int]]:
    """A step that fails before this attempt."""

    @step(retry=retry)
    async def fails() -> int:
        attempts.append(current().attempt)
        if current().attempt < until:
            raise RuntimeError(f"attempt {current().attempt}")
        return current().attempt

    return fails


async def test_the_error_of_the_last_attempt_is_raised():
    """T activity/retry_on_error, local_activity/retry_on_error: five attempts without a wait, and
    the message of the fifth one. R RunRetry.withExhaustedAttempts. D test_failures, step retries:
    there an error of its own has the errors of all attempts.
    """
    attempts: list[int] = []
    fails = failing(attempts, until=99, retry=Retry(attempts=5, first=NOW, most=NOW))

    @durable
    async def code() -> int:
        return await fails()

    h = Harness([code])
    begin = h.now
    with pytest.raises(RuntimeError, match="attempt 5"):
        await h.run(code)
    assert (attempts, h.now) == ([1, 2, 3, 4, 5], begin)


async def test_an_effect_that_succeeds_at_last():
    """R UserErrors.invocationWithEventualSuccess: the fourth attempt succeeds. There the invocation
    is tried again; here a step is, and the code around it is not. D test_failures, step status: an
    attempt knows its number, from 1 here and from 0 there.
    """
    attempts: list[int] = []
    fails = failing(attempts, until=4, retry=Retry(attempts=8))

    @durable
    async def code() -> int:
        return await fails()

    assert await Harness([code]).run(code) == 4
    assert attempts == [1, 2, 3, 4]


@pytest.mark.parametrize("how", ["from the step", "in the options"])
async def test_an_error_that_is_not_retried(how: str):
    """T local_activity/non_retryable_error_from_activity, non_retryable_error_in_options."""
    attempts: list[int] = []

    @step(retry=Retry(attempts=9, unless=(Fatal,) if how == "in the options" else ()))
    async def fails() -> None:
        attempts.append(current().attempt)
        raise Fatal("no") if how == "in the options" else Final(Fatal("no"))

    @durable
    async def code() -> None:
        await fails()

    with pytest.raises(Fatal, match="no"):
        await Harness([code], errors=[Fatal]).run(code)
    assert attempts == [1]


async def test_an_error_that_is_not_retried_at_the_last_attempt():
    """D test_failures, should_retry on the last attempt: the exception itself is raised."""
    attempts: list[int] = []

    @step(retry=Retry(attempts=3, first=NOW, unless=(Fatal,)))
    async def mixed() -> None:
        attempts.append(current().attempt)
        raise Fatal("stop now") if current().attempt == 3 else RuntimeError("retry me")

    @durable
    async def code() -> None:
        await mixed()

    with pytest.raises(Fatal, match="stop now"):
        await Harness([code], errors=[Fatal]).run(code)
    assert attempts == [1, 2, 3]


async def test_nothing_is_waited_for_behind_the_last_attempt():
    """D test_failures, step retries without a final sleep."""
    attempts: list[int] = []
    hour = timedelta(hours=1)
    retry = Retry(attempts=2, first=hour, most=timedelta(days=9), factor=10, jitter=0)
    fails = failing(attempts, until=99, retry=retry)

    @durable
    async def code() -> int:
        return await fails()

    h = Harness([code])
    begin = h.now
    with pytest.raises(RuntimeError):
        await h.run(code)
    assert h.now - begin == hour


async def test_a_long_wait_between_attempts_is_a_durable_timer():
    """T local_activity/backoff_with_persistent_timer: the attempt that failed is recorded, and the
    next one has the next number, also after a crash. D test_failures, recovery during retries.
    """
    attempts: list[int] = []
    fails = failing(
        attempts, until=3, retry=Retry(first=timedelta(hours=1), most=timedelta(days=1))
    )

    @durable
    async def code() -> int:
        return await fails()

    h = Harness([code])
    h.crash_at(1)
    handle = await h.start(code)
    assert (await handle.get()).state == "parked"
    assert await handle.result() == 3
    assert attempts == [1, 2, 3]


async def test_a_wait_between_attempts_is_cancelled():
    """T local_activity/cancel_failing: a backing off activity is cancelled, and not tried again."""
    attempts: list[int] = []
    fails = failing(
        attempts, until=9, retry=Retry(first=timedelta(hours=1), most=timedelta(days=1))
    )

    @durable
    async def code() -> str:
        try:
            async with asyncio.timeout(60):
                await fails()
        except TimeoutError:
            await sleep(timedelta(days=9))
            return "cancelled"
        return "done"

    assert await Harness([code]).run(code) == "cancelled"
    assert attempts == [1]


async def test_a_success_beside_an_error_is_kept():
    """T local_activity/one_success_one_fail: the success is persisted while the other activity has
    attempts left; after a crash that one begins again, and the success does not.
    """
    begun: list[tuple[str, int]] = []

    @step
    async def succeeds() -> str:
        begun.append(("succeeds", current().attempt))
        return "success"

    @step(retry=Retry(first=timedelta(hours=1), most=timedelta(hours=1)))
    async def fails() -> str:
        begun.append(("fails", current().attempt))
        if current().attempt == 1:
            raise RuntimeError("not yet")
        return "late"

    @durable
    async def code() -> list[str]:
        return list(await asyncio.gather(succeeds(), fails()))

    h = Harness([code])
    h.crash_at(2, behind=False)
    assert await h.run(code) == ["success", "late"]
    assert begun == [("succeeds", 1), ("fails", 1), ("fails", 2), ("fails", 2)]


# --- time limits of steps -------------------------------------------------------------------------


async def test_a_step_over_its_time_is_cancelled_and_cleans_up():
    """D test_failures, a time limit bounds the duration of a step, is recorded, and is not run
    again by a replay.
    """
    seen: list[str] = []

    @step(timeout=timedelta(milliseconds=5))
    async def slow() -> None:
        seen.append("begun")
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("cleaned up")

    @durable
    async def code() -> str:
        try:
            await slow()
        except TimeoutError:
            await sleep(60)
            return "caught"
        return "done"

    h = Harness([code])
    h.crash_at(1)
    assert await h.run(code) == "caught"
    assert seen == ["begun", "cleaned up"]


async def test_a_time_limit_is_one_of_each_attempt():
    """D test_failures, a time limit with retries: an attempt over its time is tried again."""

    @step(timeout=timedelta(milliseconds=5), retry=Retry(attempts=2, first=NOW))
    async def slow_at_first() -> int:
        if current().attempt == 1:
            await asyncio.Event().wait()
        return current().attempt

    @durable
    async def code() -> int:
        return await slow_at_first()

    assert await Harness([code]).run(code) == 2


async def test_a_time_limit_leaves_other_outcomes_as_they_are():
    """D test_failures, a time limit preserves outcomes: an error of the step is that error. A step
    that ignores its cancellation and returns has failed by the limit there; here it has returned.
    """

    @step(timeout=timedelta(seconds=30))
    async def boom() -> None:
        raise ValueError("boom")

    @step(timeout=timedelta(milliseconds=5))
    async def stubborn() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
        return "returned"

    @durable
    async def code() -> str:
        with pytest.raises(ValueError, match="boom"):
            await boom()
        return await stubborn()

    assert await Harness([code]).run(code) == "returned"
