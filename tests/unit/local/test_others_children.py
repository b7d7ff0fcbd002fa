"""What the suites of other systems expect of children, cancellations and runs.

The sources are named as in `test_others_steps`.
"""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from querator.durable import (
    ChildRefused,
    ExecutionCancelled,
    ExecutionTerminated,
    call,
    continue_as_new,
    durable,
    promise,
    receive,
    sleep,
    spawn,
)
from querator.errors import ExecutionClosed
from querator.local import Harness

WEEK = timedelta(days=7)


@durable
async def echo(text: str) -> str:
    return text


@durable
async def waits() -> str:
    return await receive("go", str)


async def states(h: Harness, *ids: str) -> list[str]:
    return [(await h.executions.get(one)).state for one in ids]


# --- children -------------------------------------------------------------------------------------


async def test_a_child_and_its_parent_know_each_other():
    """T child_workflow/start, child_workflow/handle, child_workflow/result; D test_dbos, child
    workflows, of a given id and without one.
    """

    @durable
    async def parent() -> list[str]:
        given = await spawn(echo, "given", id="a/given")
        made = await spawn(echo, "made")
        return [given.id, await given, made.id, await made]

    async def test(h: Harness) -> list[str]:
        result = await h.run(parent, id="a")
        assert [(await h.executions.get(one)).parent for one in ("a", *result[::2])] == [
            "", "a", "a",
        ]  # fmt: skip
        return result

    assert await Harness([parent, echo]).every_crash(test) == [
        "a/given", "given", "a/1-2", "made",
    ]  # fmt: skip


async def test_an_error_of_a_child_goes_up_to_the_caller():
    """T child_workflow/throws_on_execute, R UserErrors.internalCallFailurePropagation."""

    @durable
    async def fails() -> None:
        raise ValueError("propagated error")

    @durable
    async def parent() -> None:
        await (await spawn(fails))

    with pytest.raises(ValueError, match="propagated error"):
        await Harness([parent, fails]).run(parent)


async def test_a_child_whose_id_is_taken():
    """T child_workflow/throws_on_start: the second start of an id fails. Here it is the same child
    if function and arguments are the same, and fails for others. R
    ServiceToServiceCommunication.callWithIdempotencyKey: one call, and one result.
    """

    @durable
    async def parent() -> list[str]:
        twice = [await spawn(echo, "one", id="a/child") for _ in range(2)]
        try:
            await spawn(echo, "two", id="a/child")
        except ChildRefused as refused:
            return [refused.code, *[await one for one in twice]]
        return []

    h = Harness([parent, echo])
    assert await h.run(parent, id="a") == ["EXECUTION_EXISTS", "one", "one"]
    assert [one.id async for one in h.executions.list(function="echo")] == ["a/child"]


async def test_a_child_that_was_terminated():
    """T child_workflow/throws_on_termination."""

    @durable
    async def parent() -> str:
        child = await spawn(waits, id="a/child")
        try:
            return await child
        except ExecutionTerminated:
            return "terminated"

    h = Harness([parent, waits])
    handle = await h.start(parent, id="a")
    await h.executions.terminate("a/child")
    assert await handle.result() == "terminated"


@pytest.mark.parametrize("how", ["", "cancel=False", "detached"])
async def test_a_child_that_takes_too_long(how: str):
    """T child_workflow/throws_on_timeout, cancel_try_cancel, cancel_abandon: the wait ends at once;
    the child is given the cancellation, or is not.
    """

    @durable
    async def parent() -> str:
        child = await spawn(
            waits, id="a/child", cancel=how != "cancel=False", detached=how == "detached"
        )
        try:
            async with asyncio.timeout(60):
                return await child
        except TimeoutError:
            return await receive("end", str)

    h = Harness([parent, waits])
    handle = await h.start(parent, id="a")
    await h.skip(timedelta(minutes=1))
    during = await states(h, "a", "a/child")
    await handle.signal("end", "late")
    assert await handle.result() == "late"
    assert (during, await states(h, "a/child")) == {
        "": (["parked", "cancelled"], ["cancelled"]),
        "cancel=False": (["parked", "parked"], ["cancelled"]),
        "detached": (["parked", "parked"], ["parked"]),
    }[how]


@pytest.mark.parametrize("ignores", [False, True])
async def test_a_parent_waits_for_the_end_of_a_child_that_it_cancels(ignores: bool):
    """T child_workflow/cancel_wait_completed, cancel_wait_requested: the child cleans up first; if
    it ignores the cancellation, its result is returned.
    """
    seen: list[str] = []

    @durable
    async def child() -> str:
        try:
            return await receive("go", str)
        except asyncio.CancelledError:
            await sleep(60)
            await call(seen.append, "cleaned up")
            if not ignores:
                raise
            return "in spite of it"

    @durable
    async def parent() -> str:
        started = await spawn(child)
        started.cancel()
        try:
            return await started
        except ExecutionCancelled:
            return "cancelled"

    expected = "in spite of it" if ignores else "cancelled"
    assert await Harness([parent, child]).run(parent) == expected
    assert seen == ["cleaned up"]


async def test_a_child_that_nothing_waits_for():
    """D test_async, a workflow that is not awaited: it completes, or fails, behind the end of its
    parent. Here one that is detached does, and any other one is cancelled.
    """

    @durable
    async def fails() -> None:
        await sleep(60)
        raise RuntimeError("alice")

    @durable
    async def parent() -> None:
        await spawn(fails, id="a/attached")
        await spawn(fails, id="a/detached", detached=True)

    h = Harness([parent, fails])
    await h.run(parent, id="a")
    with pytest.raises(RuntimeError, match="alice"):
        await h.executions.handle("a/detached", fails).result()
    assert await states(h, "a/attached", "a/detached") == ["cancelled", "failed"]


async def test_the_first_of_several_children():
    """D test_dbos, wait_first."""

    @durable
    async def after(seconds: int) -> int:
        await sleep(seconds)
        return seconds

    @durable
    async def parent() -> list[int]:
        loop = asyncio.get_running_loop()
        children = [await spawn(after, seconds) for seconds in (120, 60)]
        tasks = [loop.create_task(one.wait()) for one in children]
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        first = [task.result() for task in done]
        return [*first, *await asyncio.gather(*pending)]

    async def test(h: Harness) -> list[int]:
        return await h.run(parent)

    assert await Harness([parent, after]).every_crash(test) == [60, 120]


async def test_a_child_of_the_same_queue_is_waited_for():
    """A test_task_result: a task may not await one of its own queue, because all workers could be
    waiting. Here a wait takes no worker.
    """

    @durable
    async def nested(depth: int) -> int:
        return depth if depth == 0 else 1 + await (await spawn(nested, depth - 1))

    assert await Harness([nested]).run(nested, 10) == 10


# --- cancellations --------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["call", "sleep", "awakeable", "signal"])
async def test_a_cancellation_of_what_is_blocked(operation: str):
    """R Cancellation.cancelFromAdminAPI: on a call, a sleep, or an awakeable. The called one is
    cancelled as well.
    """
    seen: list[str] = []

    @durable
    async def code() -> None:
        try:
            if operation == "call":
                await (await spawn(waits, id="a/child"))
            elif operation == "sleep":
                await sleep(WEEK)
            elif operation == "awakeable":
                await promise(str)
            else:
                await receive("go", str)
        finally:
            await call(seen.append, "cleaned up")

    h = Harness([code, waits])
    handle = await h.start(code, id="a")
    assert await handle.cancel("enough")
    with pytest.raises(ExecutionCancelled, match="enough"):
        await handle.result()
    assert seen == ["cleaned up"]
    if operation == "call":
        assert await states(h, "a/child") == ["cancelled"]


async def test_a_cancellation_from_another_execution():
    """R Cancellation.cancelFromContext."""

    @durable
    async def cancels(execution_id: str) -> bool:
        return await call(cancel, execution_id)

    async def cancel(execution_id: str) -> bool:
        return await h.executions.cancel(execution_id)

    h = Harness([cancels, waits])
    await h.start(waits, id="a")
    assert await h.run(cancels, "a")
    assert await states(h, "a") == ["cancelled"]


@durable
async def tree(depth: int) -> None:
    child = await spawn(tree, depth - 1, id=f"a/{depth - 1}") if depth else None
    await (receive("go") if child is None else child.wait())


@pytest.mark.parametrize("end", ["cancel", "terminate", "deadline"])
async def test_a_tree_ends_with_its_root(end: str):
    """R KillInvocation.kill: the call tree is killed. D test_workflow_management, children of a
    cancelled workflow: there only if it is asked for. D test_dbos, a workflow's time limit goes to
    its children.
    """
    h = Harness([tree])
    deadline = h.now + WEEK if end == "deadline" else None
    handle = await h.start(tree, 2, id="a", deadline=deadline)
    assert await states(h, "a", "a/1", "a/0") == ["parked"] * 3
    if end == "deadline":
        await h.skip(WEEK)
    else:
        await (handle.cancel() if end == "cancel" else handle.terminate())
    root = "terminated" if end == "terminate" else "cancelled"
    assert await states(h, "a", "a/1", "a/0") == [root, "cancelled", "cancelled"]


async def test_children_at_different_places_are_cancelled_together():
    """T bugs/go/child_workflow_cancel_panic: some have ended, some wait, some are being started."""

    @durable
    async def parent() -> None:
        done = await spawn(echo, "text", id="a/done")
        await done
        await spawn(waits, id="a/waits")
        loop = asyncio.get_running_loop()
        starts = loop.create_task(receive("never"))
        await (await spawn(waits, id="a/awaited"))
        await starts

    h = Harness([parent, waits, echo])
    handle = await h.start(parent, id="a")
    await handle.cancel()
    with pytest.raises(ExecutionCancelled):
        await handle.result()
    assert await states(h, "a/done", "a/waits", "a/awaited") == [
        "completed", "cancelled", "cancelled",
    ]  # fmt: skip


async def test_a_cancellation_behind_the_last_step():
    """D test_workflow_management, cancel after the final step: there it is cancelled. Here the
    result wins, because the code has not seen the cancellation.
    """

    @durable
    async def code() -> str:
        await call(cancels_it)
        return "done"

    async def cancels_it() -> None:
        assert await h.executions.cancel("a")

    h = Harness([code])
    assert await h.run(code, id="a") == "done"
    assert await states(h, "a") == ["completed"]


async def test_a_cancellation_is_an_end():
    """D test_workflow_management, cancel and resume: there a cancelled workflow is resumed. Here it
    has ended; a start with `key_policy` begins a new run.
    """
    h = Harness([waits])
    handle = await h.start(waits, id="a")
    await handle.cancel()
    with pytest.raises(ExecutionClosed):
        await handle.retry()
    assert await states(h, "a") == ["cancelled"]
    again = await h.start(waits, id="a", key_policy="restart_closed")
    await again.signal("go", "on")
    assert await again.result() == "on"


# --- runs -----------------------------------------------------------------------------------------


async def test_an_execution_continues_as_itself():
    """T continue_as_new/continue_as_same: the input is passed on, under the same id. T
    signals_block_continue_as_new: a signal that comes while a run ends is in the next one.
    """

    @durable
    async def code(rounds: int, seen: list[Any]) -> list[Any]:
        if rounds == 0:
            return [*seen, await receive("last", int)]
        await call(signal_itself, rounds)
        continue_as_new(rounds - 1, [*seen, rounds])

    async def signal_itself(rounds: int) -> None:
        if rounds == 1:
            await h.executions.signal("a", "last", 0)

    h = Harness([code])
    handle = await h.start(code, 3, [], id="a")
    assert await handle.result() == [3, 2, 1, 0]
    assert (await handle.get()).run == 4
