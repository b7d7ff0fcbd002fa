"""Runs of durable functions by a harness: `continue_as_new`, signals, workers that die."""

import asyncio
import sys
from collections.abc import Iterator
from datetime import timedelta

import pytest

from querator.durable import (
    CodecError,
    ExecutionCancelled,
    RunGoesOn,
    continue_as_new,
    current,
    durable,
    promise,
    publish,
    receive,
    saga,
    sleep,
    spawn,
    step,
    sync,
)
from querator.durable.machine import living
from querator.errors import ExecutionClosed, ExecutionExists, InvalidArgument, TokenInvalid
from querator.local import Harness


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    before = living()
    yield
    assert living() == before, "a machine stays in memory"


@step
async def say(text: str) -> str:
    return text


@durable
async def shout(text: str) -> str:
    return await say(text.upper())


@durable
async def linger() -> str:
    await sleep(100)
    return "lingered"


@durable
async def rounds(left: int, heard: list[str]) -> str:
    """Three signals in each run."""
    heard += [await say(await receive("word", str)) for _ in range(3)]
    publish("left", left)
    if left:
        continue_as_new(left - 1, heard)
    return " ".join(heard)


@durable
def count(left: int, total: int = 0) -> int:
    sync.sleep(10)
    if left:
        continue_as_new(left - 1, total=total + left)
    return total


async def test_a_result_is_that_of_the_last_run():
    harness = Harness([rounds])
    handle = await harness.start(rounds, 2, [], id="a")
    for nth in range(9):
        await handle.signal("word", f"w{nth}")
    assert await handle.result() == "w0 w1 w2 w3 w4 w5 w6 w7 w8"
    info = await handle.get()
    assert (info.run, info.state) == (3, "completed")
    assert (await handle.all_published())["left"].value == 0
    # The journal is that of the last run alone.
    kinds = [entry.kind async for entry in handle.journal()]
    assert kinds.count("STEP_DONE") == 3
    # A repeated start is compared with the first arguments.
    assert await (await harness.start(rounds, 2, [], id="a")).result()


async def test_signals_that_come_while_a_run_ends_are_not_lost():
    async def test(harness: Harness) -> str:
        handle = await harness.start(rounds, 1, [], id="a")
        # All of them are in the journal before the first run has read three.
        await asyncio.gather(*(handle.signal("word", str(nth)) for nth in range(6)))
        return await handle.result()

    harness = Harness([rounds])
    said = await harness.every_crash(test)
    assert sorted(said.split()) == list("012345")


async def test_every_crash_of_a_sync_function():
    async def test(harness: Harness) -> int:
        return await harness.run(count, 3, id="a")

    harness = Harness([count])
    assert await harness.every_crash(test) == 6


async def test_steps_of_another_run_have_other_keys():
    keys = []

    @durable
    async def two(left: int) -> None:
        await say("x")
        if left:
            continue_as_new(left - 1)

    harness = Harness([two])
    await harness.run(two, 1, id="a")
    keys = [one.step_key for one in harness.begun]
    assert len(set(keys)) == 2


async def test_a_token_of_an_older_run_is_refused_by_name():
    @durable
    async def approve(nth: int) -> str:
        approval = promise(str)
        publish("token", approval.token)
        if nth == 1:
            await receive("next")
            continue_as_new(2)
        return await approval

    harness = Harness([approve])
    handle = await harness.start(approve, 1, id="a")
    old = (await handle.all_published())["token"].value
    await handle.signal("next")
    new = (await handle.all_published())["token"].value
    with pytest.raises(TokenInvalid, match="of run 1 of execution a, which is in run 2") as seen:
        await harness.executions.resolve(old, "early")
    assert (seen.value.field, seen.value.limit, seen.value.value) == ("run", "2", "1")
    await harness.executions.resolve(new, "yes")
    assert await handle.result() == "yes"


async def test_a_run_does_not_end_while_a_child_is_at_work():
    @durable
    async def parent(nth: int) -> str:
        if nth == 2:
            return "second"
        child = await spawn(linger, id="a/child")
        with pytest.raises(RunGoesOn, match="child a/child has not ended"):
            continue_as_new(2)
        assert await child == "lingered"
        continue_as_new(2)

    harness = Harness([parent, linger])
    assert await harness.run(parent, 1, id="a") == "second"


async def test_detached_children_continue_and_their_results_go_nowhere():
    @durable
    async def parent(nth: int) -> str:
        if nth == 2:
            await sleep(1000)
            return "second"
        await spawn(linger, id="a/child", detached=True)
        continue_as_new(2)

    harness = Harness([parent, linger])
    handle = await harness.start(parent, 1, id="a")
    assert await harness.executions.handle("a/child", linger).result() == "lingered"
    assert await handle.result() == "second"
    kinds = [entry.kind async for entry in handle.journal()]
    assert not [kind for kind in kinds if kind.startswith("CHILD")]


async def test_a_parent_hears_of_the_last_run_of_its_child():
    @durable
    async def parent() -> int:
        return await (await spawn(count, 2))

    harness = Harness([parent, count])
    assert await harness.run(parent) == 3


async def test_a_cancelled_execution_begins_no_other_run():
    @durable
    async def stubborn(nth: int) -> str:
        try:
            await sleep(1000)
        except asyncio.CancelledError:
            with pytest.raises(RunGoesOn, match="was cancelled"):
                continue_as_new(nth + 1)
            raise
        return "slept"

    harness = Harness([stubborn])
    handle = await harness.start(stubborn, 1, id="a")
    await handle.cancel()
    with pytest.raises(ExecutionCancelled):
        await handle.result()
    assert (await handle.get()).run == 1


async def test_where_a_run_cannot_end():
    @durable
    async def called() -> None:
        continue_as_new()

    @durable
    async def outer() -> list[str]:
        said = []
        for what in (called(), asyncio.gather(other())):
            try:
                await what
            except RunGoesOn as error:
                said.append(str(error))
        return said

    async def other() -> None:
        continue_as_new()

    harness = Harness([outer, called])
    in_call, in_task = await harness.run(outer)
    assert "in a durable function that another one calls" in in_call
    assert "in another task" in in_task
    with pytest.raises(Exception, match="continue_as_new was called outside of an execution"):
        continue_as_new()


async def test_arguments_that_the_next_run_cannot_have():
    @durable
    async def checked(nth: int) -> list[str]:
        said = []
        for args in ((), (1, 2), (object(),), ("x" * 2_000_000,)):
            try:
                continue_as_new(*args)
            except (TypeError, CodecError) as error:
                said.append(type(error).__name__)
        return said

    harness = Harness([checked])
    assert await harness.run(checked, 1) == [
        "TypeError", "TypeError", "CodecError", "ValueTooLarge",
    ]  # fmt: skip


async def test_a_saga_undoes_nothing_and_finally_runs():
    log: list[str] = []

    @step
    async def undo() -> None:
        log.append("undone")

    @durable
    async def careful(nth: int) -> str:
        if nth == 2:
            return current().execution_id
        try:
            async with saga() as block:
                block.add(undo)
                await say("x")
                continue_as_new(2)
        finally:
            log.append("finally")

    harness = Harness([careful])
    assert await harness.run(careful, 1, id="a") == "a"
    assert log == ["finally"]


async def test_large_arguments_and_signals_are_kept():
    @durable
    async def large(nth: int, data: str) -> int:
        if nth == 3:
            return len(data) + len(await receive("more", str))
        await say("x")
        continue_as_new(nth + 1, data + "y" * 5000)

    harness = Harness([large])
    handle = await harness.start(large, 1, "y" * 3000, id="a")
    await handle.signal("more", "z" * 4000)
    assert await handle.result() == 17_000


async def test_signals_that_come_before_a_run_begins_are_not_lost():
    @durable
    async def pairs(left: int, heard: list[str]) -> str:
        heard += [await receive("word", str), await receive("word", str)]
        if left:
            continue_as_new(left - 1, heard)
        return "".join(heard)

    async def test(harness: Harness) -> str:
        handle = await harness.start(pairs, 2, [], id="a", delay=timedelta(minutes=1))
        for nth in range(6):
            await handle.signal("word", str(nth))
        return await handle.result()

    assert await Harness([pairs]).every_crash(test) == "012345"


# --- beginning again ------------------------------------------------------------------------------


@durable
async def report(day: str) -> str:
    await spawn(linger, detached=True)
    publish("day", day)
    return await say(f"report of {day}")


async def test_an_execution_that_has_ended_begins_again() -> None:
    h = Harness([report, linger])
    assert await h.run(report, "monday", id="r") == "report of monday"
    assert await h.run(report, "monday", id="r") == "report of monday"
    found = await h.run(report, "tuesday", id="r", key_policy="restart_closed")
    assert found == "report of tuesday"
    assert (await h.executions.get("r")).run == 2
    with pytest.raises(ExecutionExists):
        await h.run(report, "monday", id="r")


async def test_an_execution_that_is_open_is_the_one_that_was_asked_for() -> None:
    h = Harness([linger])
    await h.start(linger, id="l")
    await h.start(linger, id="l", key_policy="restart_closed")
    assert (await h.executions.get("l")).run == 1


async def test_a_key_policy_that_is_unknown_is_refused() -> None:
    h = Harness([linger])
    with pytest.raises(ValueError, match="'never'; it must be one of attach, fail, restart_cl"):
        await h.start(linger, key_policy="never")


@durable
async def waiter() -> str:
    for nth in range(60):
        await say(str(nth))
    return await receive("word", str)


async def test_a_parked_execution_that_begins_again_is_not_continued_from_memory() -> None:
    h = Harness([waiter])
    handle = await h.start(waiter, id="w")
    await handle.terminate()
    handle = await h.start(waiter, id="w", key_policy="restart_closed")
    await handle.signal("word", "again")
    assert await handle.result() == "again"


# --- rewinds --------------------------------------------------------------------------------------

_BROKEN = True


@step
async def charge(amount: int) -> int:
    if _BROKEN:
        raise ValueError("the card was refused")
    return amount


@durable
async def order() -> str:
    price = await say("17")
    child = await spawn(shout, f"packed for {price}")
    approval = promise(str)
    await say(approval.token)
    approved = await approval
    return f"{await child}, {await charge(int(price))} {approved}"


@pytest.mark.parametrize("keep_children", [False, True])
async def test_an_execution_that_has_failed_continues_behind_a_record(
    monkeypatch: pytest.MonkeyPatch, keep_children: bool
) -> None:
    h = Harness([order, shout])
    handle = await h.start(order, id="o")
    tokens = [each.payload.decode().strip('"') async for each in handle.journal()
              if each.kind == "STEP_DONE"]  # fmt: skip
    await h.executions.resolve(tokens[-1], "yes")
    with pytest.raises(ValueError, match="refused"):
        await handle.result()
    journal = [each async for each in handle.journal()]
    [failed] = [each.index for each in journal if each.kind == "STEP_FAILED"]
    monkeypatch.setattr(sys.modules[__name__], "_BROKEN", False)
    done = await handle.rewind(failed - 1, keep_children=keep_children)
    assert (done.run, done.removed_records) == (2, 2)
    assert await handle.result() == "PACKED FOR 17, 17 yes"
    # To before everything: the promise has the same token, and can be resolved once more.
    await handle.rewind(0, keep_children=keep_children)
    await h.executions.resolve(tokens[-1], "once more")
    assert await handle.result() == "PACKED FOR 17, 17 once more"
    assert (await handle.get()).run == 3
    numbers = [info.id async for info in h.executions.list(function="shout")]
    assert len(numbers) == 1


async def test_a_rewind_that_cannot_be_is_refused() -> None:
    h = Harness([waiter])
    handle = await h.start(waiter, id="w")
    with pytest.raises(ValueError, match="to is -1"):
        await handle.rewind(-1)
    with pytest.raises(ValueError, match="run is 0"):
        await handle.rewind(1, run=0)
    with pytest.raises(InvalidArgument, match="record 61 of execution w is not there"):
        await handle.rewind(61)
    with pytest.raises(ExecutionClosed, match="run 2 of execution w is not the last one"):
        await handle.rewind(1, run=2)


async def test_a_parked_execution_that_is_rewound_is_not_continued_from_memory() -> None:
    h = Harness([waiter])
    handle = await h.start(waiter, id="w")
    await handle.rewind(30)
    await handle.signal("word", "behind")
    assert await handle.result() == "behind"
    kinds = [each.kind async for each in handle.journal()]
    assert kinds.count("STEP_DONE") == 60
