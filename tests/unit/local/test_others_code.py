"""What the suites of other systems expect of code: values, replays, time, and waits for several.

The sources are named as in `test_others_steps`.
"""

import asyncio
from collections.abc import Coroutine, Generator
from datetime import timedelta
from typing import Any, TypeVar

import pytest

from querator.durable import (
    CodecError,
    PromiseRejected,
    RemoteError,
    call,
    current,
    durable,
    promise,
    publish,
    receive,
    sleep,
    sleep_until,
    spawn,
)
from querator.durable.errors import RecordedTraceback
from querator.local import Harness, Stalled

T = TypeVar("T")


class Fatal(Exception):
    """What an attempt may raise, so that there is no other one."""


def task_of(code: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
    return asyncio.get_running_loop().create_task(code)


# --- values and exceptions ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "value"),
    [(bytes, b"\xde\xad\xbe\xef"), (dict[str, bool], {"spec": True}), (None, None)],
)
async def test_values_come_back_as_they_were(kind: Any, value: Any):
    """T data_converter/binary, data_converter/json, data_converter/empty: what is echoed by the
    code and by an activity is what was sent, and its bytes in the journal are the same. D
    test_dbos, a workflow that returns None.
    """

    async def same(given: kind) -> kind:
        assert given == value
        return given

    @durable
    async def echo(given: kind) -> kind:
        return await call(same, given)

    h = Harness([echo])
    assert await h.run(echo, value, id="a") == value
    _, done, end = [one async for one in h.executions.handle("a").journal()]
    assert done.payload == end.payload


async def test_an_error_has_the_traceback_of_its_place():
    """T data_converter/failure: message and stack trace are recorded, of the error and of its
    cause. Here the cause of what is raised is the traceback as text, which has both.
    """

    async def fails() -> None:
        try:
            raise KeyError("the inner one")
        except KeyError as error:
            raise ValueError("the outer one") from error

    @durable
    async def code() -> None:
        await call(fails)

    with pytest.raises(ValueError, match="the outer one") as caught:
        await Harness([code]).run(code)
    cause = caught.value.__cause__
    assert isinstance(cause, RecordedTraceback)
    assert "in code" in str(cause)


async def test_an_error_whose_arguments_are_not_its_text():
    """D test_failures, serialization of errors: an exception that cannot be made again from its
    arguments still ends the execution, with its type and text.
    """

    class Bad(Exception):
        def __init__(self, left: int, right: int) -> None:
            super().__init__(f"{left} of {right}")

    def fails() -> None:
        raise Bad(1, 2)

    @durable
    async def code() -> None:
        await call(fails)

    h = Harness([code], errors=[Bad])
    with pytest.raises(Exception, match="1 of 2"):
        await h.run(code)
    assert [one.id async for one in h.executions.list(state="failed")] == ["code-1"]


async def test_a_result_that_has_no_json_fails_the_step():
    """D test_failures, test_dbos: values that cannot be serialized."""

    def fetch() -> Generator[str, None, None]:
        return (letter for letter in "val")

    @durable
    async def code() -> str:
        with pytest.raises(CodecError, match=r"the result of fetch .* is a generator"):
            await call(fetch)
        return "caught"

    assert await Harness([code]).run(code) == "caught"


async def test_executions_fail_one_after_the_other():
    """R UserErrors.invokeTerminallyFailingCall, failSeveralTimes: each fails with its own text, and
    what comes later is not disturbed.
    """

    @durable
    async def code(text: str) -> str:
        if text:
            raise RuntimeError(text)
        return "done"

    h = Harness([code])
    for text in ("one", "two", "three"):
        with pytest.raises(RuntimeError, match=text):
            await h.run(code, text)
    assert await h.run(code, "") == "done"


async def test_an_error_of_an_effect_reaches_the_caller():
    """R UserErrors.sideEffectWithTerminalError. A type that is not registered is a RemoteError."""

    def fails() -> None:
        raise Fatal("failed side effect")

    @durable
    async def code() -> None:
        await call(fails)

    with pytest.raises(Fatal, match="failed side effect"):
        await Harness([code], errors=[Fatal]).run(code)
    with pytest.raises(RemoteError, match=r"test_others_code\.Fatal: failed side effect"):
        await Harness([code]).run(code)


async def test_what_was_published_before_a_failure_stays():
    """R UserErrors.setStateThenFailShouldPersistState."""

    @durable
    async def code() -> None:
        publish("count", 1)
        raise RuntimeError("behind it")

    h = Harness([code])
    handle = await h.start(code)
    with pytest.raises(RuntimeError):
        await handle.result()
    found = await handle.published("count", int)
    assert found is not None
    assert found.value == 1
    with pytest.raises(CodecError):
        # T query/unexpected_return_type: read as another type than it is.
        await handle.published("count", str)


# --- replays --------------------------------------------------------------------------------------


@pytest.mark.parametrize("changed", ["a step for a sleep", "another step", "another child"])
async def test_code_that_does_something_else_does_not_go_on(changed: str):
    """R NonDeterminismErrors (eitherSleepOrCall, callDifferentMethod,
    backgroundInvokeWithDifferentTargets), D test_failures, nondeterministic workflow: there the
    invocation fails; here it is stuck, for a person, and nothing of it has run. Published values
    (setDifferentKey) are not compared: nothing in the code reads them.
    """
    runs: list[str] = []

    def one() -> None:
        runs.append("one")

    def two() -> None:
        runs.append("two")

    @durable
    async def child() -> None: ...

    @durable
    async def other() -> None:
        runs.append("other")

    @durable
    async def code() -> None:
        first = not runs
        runs.append("code")
        if changed == "a step for a sleep":
            await (sleep(60) if first else call(two))
        elif changed == "another step":
            await call(one if first else two)
        else:
            await (await spawn(child if first else other))
        await sleep(timedelta(hours=1))

    h = Harness([code, child, other])
    with pytest.raises(Stalled, match="the code does not do what the journal says"):
        await h.run(code)
    assert not {"two", "other"} & set(runs)


# --- time -----------------------------------------------------------------------------------------


async def test_a_timer_that_is_cancelled_does_not_fire():
    """T timer: a timer that is cancelled is resolved at once, and the server fires it no more."""

    @durable
    async def code() -> str:
        task = task_of(sleep(timedelta(days=7)))
        await sleep(60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await sleep(timedelta(days=9))
        return "done"

    h = Harness([code])
    begin = h.now
    assert await h.run(code, id="a") == "done"
    assert h.now - begin == timedelta(days=9, seconds=60)
    records = [one async for one in h.executions.handle("a").journal()]
    assert [one.kind for one in records].count("TIMER_FIRED") == 2


async def test_many_sleeps_of_many_executions():
    """R Sleep.sleep, Sleep.manySleeps: each ends with its longest one, and not before."""

    @durable
    async def code(seconds: list[int]) -> None:
        await asyncio.gather(*(sleep(one) for one in seconds))

    h = Harness([code])
    begin = h.now
    lengths = [
        [1 + (number * 7 + sleeps * 11) % 50 for sleeps in range(20)] for number in range(10)
    ]
    handles = [await h.start(code, one) for one in lengths]
    for _, handle in sorted(zip(lengths, handles, strict=True), key=lambda pair: max(pair[0])):
        await handle.result()
    for seconds, handle in zip(lengths, handles, strict=True):
        info = await handle.get()
        assert info.closed_at is not None
        assert info.closed_at - begin == timedelta(seconds=max(seconds))


async def test_a_sleep_suspends_until_its_time():
    """A test_step: sleep_for suspends; sleep_until does not begin again when its time has come."""
    seen: list[timedelta] = []

    @durable
    async def code() -> None:
        await sleep_until(begin + timedelta(hours=2))
        await call(note)
        await sleep_until(begin + timedelta(hours=1))
        await call(note)

    def note() -> None:
        seen.append(h.now - begin)

    h = Harness([code])
    begin = h.now
    handle = await h.start(code)
    await h.skip(timedelta(minutes=119))
    assert ((await handle.get()).state, seen) == ("parked", [])
    await handle.result()
    assert seen == [timedelta(hours=2)] * 2


# --- combinators ----------------------------------------------------------------------------------


async def after(seconds: int, text: str) -> str:
    await sleep(seconds)
    if text == "boom":
        raise ValueError(text)
    return text


@pytest.mark.parametrize(
    ("texts", "options", "first"),
    [
        (("a", "b"), {"return_when": asyncio.FIRST_COMPLETED}, ["a"]),
        (("boom", "b"), {"return_when": asyncio.FIRST_EXCEPTION}, ["boom"]),
        (("a", "b"), {"timeout": 30}, []),
        (("a", "b"), {}, ["a", "b"]),
    ],
    ids=["first", "exception", "timeout", "all"],
)
async def test_wait_says_the_same_in_each_replay(
    texts: tuple[str, ...], options: dict[str, Any], first: list[str]
):
    """D test_async, asyncio_wait: for the first one, all, the first exception, and for a time; then
    for the rest. There a replay needs a wait of its own; here it is that of asyncio.
    """

    @durable
    async def code() -> list[list[str]]:
        tasks = [task_of(after(60 * n, text)) for n, text in enumerate(texts, 1)]
        seen = []
        pending = set(tasks)
        while pending:
            done, pending = await asyncio.wait(pending, **options)
            seen.append([texts[n] for n, task in enumerate(tasks) if task in done])
            for task in done:
                task.exception()
        return seen

    async def test(h: Harness) -> list[list[str]]:
        return await h.run(code)

    seen = await Harness([code]).every_crash(test)
    assert seen[0] == first
    assert sorted(text for texts in seen for text in texts) == sorted(texts)


async def test_a_promise_or_a_time():
    """R Combinators.awakeableOrTimeoutUsingAwaitAny: the sleep wins.
    awakeableOrTimeoutUsingAwakeableTimeoutCommand: the time limit is raised.
    """

    @durable
    async def code() -> str:
        asked = promise(str)
        waits = task_of(asked.wait())
        done, _ = await asyncio.wait(
            [waits, slept := task_of(sleep(60))],
            return_when=asyncio.FIRST_COMPLETED,
        )
        assert done == {slept}
        try:
            async with asyncio.timeout(60):
                await waits
        except TimeoutError:
            return "await-timeout"
        return "resolved"

    assert await Harness([code]).run(code) == "await-timeout"


async def test_the_first_success_among_failures():
    """R Combinators.firstSuccessfulCompletedAwakeable, signalFirstSuccessfulOrAllFailed: effects
    that fail and a promise that is rejected are passed over. There signals may be rejected; here
    promises may.
    """
    tokens: dict[int, str] = {}

    def fails(number: int) -> str:
        raise RuntimeError(f"run {number}")

    @durable
    async def code() -> str:
        asked = [promise(str) for _ in range(3)]
        await call(tokens.update, {n: one.token for n, one in enumerate(asked)})
        tasks = [task_of(call(fails, n)) for n in range(3)]
        tasks += [task_of(one.wait()) for one in asked]
        for next_one in asyncio.as_completed(tasks):
            try:
                return await next_one
            except (RuntimeError, PromiseRejected):
                pass
        return "none"

    h = Harness([code])
    handle = await h.start(code)
    await h.executions.reject(tokens[2], "fail")
    assert not (await handle.get()).closed
    await h.executions.resolve(tokens[1], "awk1-result")
    assert await handle.result() == "awk1-result"


async def test_all_or_the_first_failure():
    """R Combinators.signalAllSuccessfulOrFirstFailed, signalAllCompleted: results are in the order
    of the calls, whatever came first; a failure ends the first kind, and is a value of the second.
    """
    tokens: dict[str, list[str]] = {}

    @durable
    async def code(settled: bool) -> list[str]:
        asked = [promise(str) for _ in range(3)]
        await call(tokens.update, {current().execution_id: [one.token for one in asked]})
        found = await asyncio.gather(*(one.wait() for one in asked), return_exceptions=settled)
        return [f"err:{one}" if isinstance(one, Exception) else f"ok:{one}" for one in found]

    h = Harness([code])
    for id_, settled in (("all", False), ("fails", False), ("settled", True)):
        await h.start(code, settled, id=id_)
    for id_ in tokens:
        await h.executions.resolve(tokens[id_][2], "val2")
        await h.executions.resolve(tokens[id_][0], "val0")
        if id_ == "all":
            await h.executions.resolve(tokens[id_][1], "val1")
        else:
            await h.executions.reject(tokens[id_][1], "err1")
    handles = {id_: h.executions.handle(id_, code) for id_ in tokens}
    assert await handles["all"].result() == ["ok:val0", "ok:val1", "ok:val2"]
    assert await handles["settled"].result() == ["ok:val0", "err:err1", "ok:val2"]
    with pytest.raises(PromiseRejected, match="err1"):
        await handles["fails"].result()


async def test_an_effect_wins_against_a_signal_that_never_comes():
    """R Combinators.mixedRunWinsRaceAgainstSignal."""

    @durable
    async def code() -> str:
        done, pending = await asyncio.wait(
            [
                task_of(receive("sig", str)),
                task_of(call(lambda: "runval")),
            ],
            return_when=asyncio.FIRST_COMPLETED,
        )
        for task in pending:
            task.cancel()
        return done.pop().result()

    assert await Harness([code]).run(code) == "runval"
