"""What the suites of other systems expect of lives: starts, results, signals, and promises.

The sources are named as in `test_others_steps`. `test_others_children` has children and ends.
"""

import asyncio
from datetime import timedelta

import pytest

from querator.durable import (
    ExecutionCancelled,
    PromiseRejected,
    call,
    current,
    durable,
    promise,
    publish,
    receive,
    receive_all,
    sleep,
    spawn,
)
from querator.errors import ExecutionClosed, ExecutionExists, ExecutionNotFound
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


# --- starts and results ---------------------------------------------------------------------------


async def test_a_life_is_seen_from_outside():
    """A test_task_result: an unknown task, and snapshots of its life; one that was cancelled has no
    result.
    """
    h = Harness([waits])
    with pytest.raises(ExecutionNotFound):
        await h.executions.get("a")
    handle = await h.start(waits, id="a", delay=WEEK)
    seen = [(await handle.get()).state]
    await h.skip(WEEK)
    seen.append((await handle.get()).state)
    await handle.signal("go", "on")
    seen.append((await handle.get()).state)
    assert seen == ["runnable", "parked", "completed"]
    other = await h.start(waits, id="b")
    await other.cancel()
    with pytest.raises(ExecutionCancelled):
        await other.result()


async def test_starts_without_an_id_are_different_executions():
    """A test_idempotency: a spawn without a key always creates a task."""
    h = Harness([echo])
    first = await h.executions.start(echo, "a")
    second = await h.executions.start(echo, "a")
    assert first.id != second.id


async def test_a_second_start_attaches_to_the_first():
    """R IngressTest.idempotentSendThenAttachWIthIdempotencyKey, idempotentInvokeSend: the output is
    not ready, then it is the same for both. D test_duplication_policy, return-existing attaches:
    there the arguments of the second call are dropped; here they must be the same.
    """
    h = Harness([waits, echo])
    first = await h.start(waits, id="a")
    second = await h.start(waits, id="a")
    assert await states(h, "a") == ["parked"]
    await first.signal("go", "on")
    assert [await first.result(), await second.result()] == ["on", "on"]
    with pytest.raises(ExecutionExists):
        await h.start(echo, "other", id="a")


async def test_a_journal_is_kept_behind_the_end():
    """R JournalRetentionTest.journalShouldBeRetained."""

    @durable
    async def code() -> str:
        return await call(lambda: "hello")

    h = Harness([code])
    await h.run(code, id="a")
    kinds = [one.kind async for one in h.executions.handle("a").journal()]
    assert kinds == ["STARTED", "STEP_DONE", "COMPLETED"]


async def test_what_waits_for_a_result_may_be_cancelled():
    """D test_async, task cancellation: the workflow continues without what waits for it."""
    h = Harness([waits])
    handle = await h.start(waits)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(handle.result())
        await asyncio.sleep(0)
        waiting.cancel()
    assert (await handle.get()).state == "parked"
    await handle.signal("go", "on")
    assert await handle.result() == "on"


async def test_failed_executions_are_listed():
    """D test_workflow_introspection: workflows are listed by name and status."""

    @durable
    async def fails() -> None:
        raise RuntimeError("no")

    h = Harness([fails, waits, echo])
    await h.start(fails, id="a")
    await h.start(waits, id="b")
    await h.start(echo, "text", id="c")
    assert [one.id async for one in h.executions.list(state="failed")] == ["a"]
    assert [one.id async for one in h.executions.list(state="parked")] == ["b"]
    assert [one.id async for one in h.executions.list(function="echo")] == ["c"]


async def test_a_retry_of_what_does_not_exist():
    """D test_workflow_management: resume of a workflow that does not exist raises."""
    with pytest.raises(ExecutionNotFound):
        await Harness([echo]).executions.retry("a")


# --- signals --------------------------------------------------------------------------------------


async def test_a_signal_is_sent_from_outside():
    """T signal/basic, signal/external: it arrives; one to no execution is an error. D test_dbos,
    send to a destination that does not exist.
    """
    h = Harness([waits])
    handle = await h.start(waits, id="a")
    await h.executions.signal("a", "go", "on")
    assert await handle.result() == "on"
    with pytest.raises(ExecutionNotFound):
        await h.executions.signal("b", "go", "on")


async def test_signals_are_taken_by_name():
    """D test_dbos, send and receive: topics are apart, and messages of one are in their order."""

    @durable
    async def code() -> list[str]:
        return [await receive(name, str) for name in ("topic", "plain", "plain")]

    h = Harness([code])
    handle = await h.start(code)
    for name, text in (("plain", "test1"), ("topic", "test2"), ("plain", "test3")):
        await handle.signal(name, text)
    assert await handle.result() == ["test2", "test1", "test3"]


async def test_signals_before_the_code_waits_are_kept():
    """A test_events: an event that is emitted before the await is there."""

    @durable
    async def code() -> str:
        await sleep(WEEK)
        return await receive("go", str)

    h = Harness([code])
    handle = await h.start(code)
    await handle.signal("go", "early")
    assert await handle.result() == "early"


async def test_a_wait_of_no_time_takes_what_is_there():
    """D test_dbos, a time limit of 0: nothing is received. What has arrived before is."""

    @durable
    async def code() -> str:
        await sleep(WEEK)
        try:
            async with asyncio.timeout(0):
                return await receive("go", str)
        except TimeoutError:
            return "nothing"

    h = Harness([code])
    without, with_one = await h.start(code), await h.start(code)
    await with_one.signal("go", "on")
    assert [await without.result(), await with_one.result()] == ["nothing", "on"]


async def test_steps_run_for_each_signal():
    """T signal/activities: activities run for a signal. R CallOrdering.ordering: what was sent in
    an order is done in it.
    """
    done: list[int] = []

    @durable
    async def code() -> int:
        async for number in receive_all("append", int):
            if number < 0:
                break
            await call(done.append, number)
        return len(done)

    h = Harness([code])
    handle = await h.start(code)
    for number in (0, 1, 2, -1):
        await handle.signal("append", number)
    assert await handle.result() == 3
    assert done == [0, 1, 2]


async def test_a_signal_that_comes_at_the_end():
    """T signal/prevent_close: a signal keeps a workflow open until it is processed. Here code that
    returns has ended: the signal stays unread in the journal, and is counted.
    """

    @durable
    async def code() -> str:
        await call(signal_itself)
        return "done"

    async def signal_itself() -> None:
        await h.executions.signal(current().execution_id, "late", 1)

    h = Harness([code])
    assert await h.run(code, id="a") == "done"
    assert (await h.executions.get("a")).unread_signals == 1
    with pytest.raises(ExecutionClosed):
        await h.executions.signal("a", "late", 2)


async def test_a_signal_with_a_start():
    """T signal/signal_with_start: here a start, which may be repeated, and a signal."""
    h = Harness([waits])
    handle = await h.start(waits, id="a")
    again = await h.start(waits, id="a")
    await again.signal("go", "on")
    assert await handle.result() == "on"


async def test_an_execution_signals_another_one():
    """T signal/workflow_to_workflow, signal/child_workflow, child_workflow/signal: here a step
    sends it, to a child or to any other id.
    """

    async def send(execution_id: str) -> None:
        await h.executions.signal(execution_id, "go", "unblock")

    @durable
    async def parent() -> str:
        child = await spawn(waits)
        await call(send, child.id)
        return await child

    h = Harness([parent, waits])
    assert await h.run(parent) == "unblock"


# --- promises and published values ----------------------------------------------------------------


async def test_a_promise_is_resolved_once():
    """R WorkflowAPI.setAndResolve: what resolves it completes the workflow, whose output may be
    read again; a second submission has no effect. A test_events: the first emit wins.
    """
    tokens: list[str] = []
    h = Harness([approval], steps={keep_token: tokens.append})
    handle = await h.start(approval, id="a")
    await h.executions.resolve(tokens[0], "Till")
    assert not await h.executions.resolve(tokens[0], "Francesco")
    assert [await handle.result(), await handle.result()] == ["Till", "Till"]
    again = await h.start(approval, id="a")
    assert await again.result() == "Till"
    assert len(tokens) == 1


async def test_a_promise_is_rejected():
    """R AwakeableIngressEndpointTest.completeWithFailure: the reason reaches the caller."""
    tokens: list[str] = []
    h = Harness([approval], steps={keep_token: tokens.append})
    handle = await h.start(approval)
    await h.executions.reject(tokens[0], "my bad")
    with pytest.raises(PromiseRejected, match="my bad"):
        await handle.result()


def keep_token(token: str) -> None:
    """Each harness has another function in its place."""


@durable
async def approval() -> str:
    asked = promise(str)
    await call(keep_token, asked.token)
    return await asked


async def test_the_newest_published_value_is_read():
    """D test_dbos, an event that is set twice, all events, and a time limit of 0. T
    query/successful_query: a state is read from outside, also behind the end.
    """

    @durable
    async def code() -> None:
        publish("status", "one")
        publish("other", 1)
        await receive("go", str)
        publish("status", "two")

    h = Harness([code])
    handle = await h.start(code)
    assert await handle.published("missing") is None
    first = await handle.published("status", str)
    assert first is not None
    await handle.signal("go", "on")
    await handle.result()
    second = await handle.published("status", str, after=first.version)
    assert second is not None
    assert [first.value, second.value] == ["one", "two"]
    found = await handle.all_published()
    assert {key: one.value for key, one in found.items()} == {"status": "two", "other": 1}
