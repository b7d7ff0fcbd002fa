"""Behaviours from the suites of other systems: what their tests expect, in words of executions.

Each names its source: A is Absurd (earendil-works/absurd, tests/), D is DBOS
(dbos-inc/dbos-transact-py, tests/), T is Temporal (temporalio/features, features/). Where a source
expects something else, the docstring says so. Behaviours of code are in
tests/unit/local/test_others_*.py.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from querator.v1 import execution_service_pb2 as v1
from tests.conformance.door import Refused
from tests.conformance.executions import (
    Executions,
    begun,
    executions,
    kind,
    kinds,
    payloads,
    step,
    timer,
    value,
)
from tests.conformance.make import Make
from tests.conformance.queues import refusal

pytestmark = pytest.mark.doors("unary", "streams-1")

ONE, TWO, THREE = b"\x01", b"\x02", b"\x03"
Call = Callable[[Executions, v1.Activation], Coroutine[Any, Any, Any]]

WRITES: dict[str, Call] = {
    "step": lambda shop, held: shop.record(held, step(ONE)),
    "park": lambda shop, held: shop.park(held, names=["word"]),
    "close": lambda shop, held: shop.close(held),
}
"""What a worker may write."""


async def handed_over(shop: Executions, held: v1.Activation) -> v1.Activation:
    """The activation of the next worker."""
    await shop.give_back(held)
    return await shop.lease_one()


# --- starts ---------------------------------------------------------------------------------------


async def test_ids_that_differ_make_executions_of_their_own(make: Make):
    """A test_idempotent_spawn: different keys create separate tasks."""
    shop = await executions(make)
    first, second = await shop.start("key-a"), await shop.start("key-b")
    assert first.execution != second.execution
    assert sorted(await shop.list()) == ["key-a", "key-b"]


async def test_an_id_keeps_its_result_when_it_is_started_again(make: Make):
    """A test_idempotent_spawn: the key persists after the task completes."""
    shop, held = await begun(make)
    await shop.close(held, b"result")
    again = await shop.start()
    assert (again.execution, again.run, again.attached) == (held.execution, 1, True)
    assert (await shop.get()).end.payload == b"result"
    assert await shop.nothing_to_lease()


async def test_an_id_belongs_to_one_function(make: Make):
    """A test_idempotent_spawn: the key works across task names. There the first task is returned;
    here the second start is refused.
    """
    shop = await executions(make)
    await shop.start(function="task-a")
    assert (await refusal(shop.start(function="task-b"))).code == "EXECUTION_EXISTS"
    assert (await shop.get()).execution.function == "task-a"


async def test_starts_of_one_id_are_at_work_once(make: Make):
    """D test_singleexec: two handles of one id, and one execution at a time."""
    shop = await executions(make)
    await asyncio.gather(shop.start(), shop.start())
    held = await shop.lease_one()
    assert await shop.nothing_to_lease()
    await shop.close(held, b"once")
    assert {one.end.payload for one in await shop.wait("e")} == {b"once"}


# --- events ---------------------------------------------------------------------------------------


async def test_an_event_wakes_what_waits_for_it(make: Make):
    """A test_events: await and emit."""
    shop, held = await begun(make)
    await shop.park(held, names=["test-event"])
    assert await shop.state() == "PARKED"
    await shop.signal(name="test-event", payload=b"42")
    assert await shop.state() == "RUNNABLE"
    resumed = await shop.lease_one()
    assert resumed.execution == held.execution
    assert payloads(await shop.journal())[-1] == b"42"


async def test_a_time_out_that_has_fired_is_not_waited_for_again(make: Make):
    """A test_events: a timeout does not recreate its wait."""
    shop, held = await begun(make)
    await shop.park(held, names=["foo"], paths=[ONE], timers=[timer(ONE, time.time())])
    resumed = await shop.lease_one()
    fired = (await shop.journal())[-1]
    assert (kinds([fired]), fired.path) == (["TIMER_FIRED"], ONE)
    await shop.park(resumed, names=["bar"], seen=fired.index)
    assert await shop.nothing_to_lease()
    assert kinds(await shop.journal()).count("TIMER_FIRED") == 1


async def test_an_event_between_the_look_and_the_park_is_not_lost(make: Make):
    """A test_events: the race of await and emit loses no wake-up."""
    shop, held = await begun(make)
    await shop.signal(name="race-event", payload=b"42")
    assert (await refusal(shop.park(held, names=["race-event"]))).code == "UNSEEN"
    seen = (await shop.journal())[-1]
    # What was refused has used no number.
    end = v1.Close(outcome=kind("COMPLETED"), payload=seen.payload)
    await shop.record(held, number=1, seen=seen.index, close=end)
    assert (await shop.get()).end.payload == b"42"


# --- cancellations --------------------------------------------------------------------------------


async def test_what_waits_for_a_worker_is_ended_at_once(make: Make):
    """A test_retry_and_cancellation: cancel a pending task. Here a termination does that."""
    shop = await executions(make)
    await shop.start()
    await shop.terminate()
    assert await shop.state() == "TERMINATED"
    assert await shop.nothing_to_lease()


@pytest.mark.parametrize("write", WRITES)
async def test_a_worker_of_what_was_ended_writes_nothing(make: Make, write: str):
    """A test_retry_and_cancellation: a cancel prevents checkpoints, awaits, and ends."""
    shop, held = await begun(make)
    await shop.terminate()
    before = await shop.journal()
    refused = await refusal(WRITES[write](shop, held))
    assert refused.code in ("LEASE_LOST", "EXECUTION_CLOSED")
    assert await shop.journal() == before


async def test_a_lease_of_what_was_ended_is_not_extended(make: Make):
    """A test_retry_and_cancellation: a cancel prevents an extension of the claim."""
    shop, held = await begun(make)
    await shop.terminate()
    refused = await refusal(shop.record(held, extend_s=30))
    assert refused.code in ("LEASE_LOST", "EXECUTION_CLOSED")


async def test_a_cancellation_of_what_has_failed_changes_nothing(make: Make):
    """A test_retry_and_cancellation: a cancel of a failed task is a no-op. Here it is refused."""
    shop, held = await begun(make)
    await shop.close(held, b"boom", outcome="FAILED")
    assert (await refusal(shop.cancel())).code == "EXECUTION_CLOSED"
    found = await shop.get()
    assert (found.end.kind, found.end.payload) == (kind("FAILED"), b"boom")


async def test_an_execution_that_is_not_there_is_not_cancelled(make: Make):
    """A test_retry_and_cancellation: a cancel of a task that does not exist raises."""
    shop = await executions(make)
    assert (await refusal(shop.cancel("unknown"))).code == "EXECUTION_NOT_FOUND"


async def test_a_cancelled_execution_may_record_how_it_cleans_up(make: Make):
    """D test_singleexec: a step that ends after the cancel is refused. Here code may clean up."""
    shop, held = await begun(make)
    await shop.cancel()
    cancelled = (await shop.journal())[-1]
    await shop.record(held, step(ONE, b"cleaned up", after=cancelled.index), seen=cancelled.index)
    await shop.close(held, b"", seen=cancelled.index, outcome="CANCELLED")
    assert payloads(await shop.journal())[-2] == b"cleaned up"


async def test_a_cancellation_and_an_end_at_the_same_time(make: Make):
    """A test_lock_ordering: cancel and complete, or fail, do not block each other. Here a result
    wins over a cancellation that its code has not seen.
    """
    for outcome in ("COMPLETED", "FAILED"):
        shop, held = await begun(make)
        _, refused = await asyncio.gather(
            shop.close(held, b"end", outcome=outcome), cancel_or_refusal(shop)
        )
        found = await shop.get()
        assert (found.end.kind, found.end.payload) == (kind(outcome), b"end")
        was_first = kinds(await shop.journal())[-2:] == ["CANCEL", outcome]
        assert refused == ("" if was_first else "EXECUTION_CLOSED")


async def cancel_or_refusal(shop: Executions) -> str:
    """The code of the refusal, if there is one."""
    try:
        await shop.cancel()
    except Refused as refused:
        return refused.code
    return ""


async def test_a_cancellation_wakes_what_sleeps(make: Make):
    """A test_retry_and_cancellation: cancel a sleeping task. Here its code may clean up."""
    shop, held = await begun(make)
    await shop.park(held, paths=[ONE], timers=[timer(ONE, time.time() + 86_400)])
    await shop.cancel(reason="enough")
    resumed = await shop.lease_one()
    assert (kinds(resumed.records), payloads(resumed.records)[-1]) == (
        ["STARTED", "CANCEL"], b"enough",
    )  # fmt: skip


# --- checkpoints ----------------------------------------------------------------------------------


async def test_steps_of_one_attempt_are_there_in_the_next(make: Make):
    """A test_checkpoints: checkpoints survive retries, of the first and the second attempt."""
    shop, held = await begun(make)
    await shop.record(held, step(ONE, b"first"), step(TWO, b"second"))
    held = await handed_over(shop, held)
    assert payloads(held.records)[1:] == [b"first", b"second"]
    await shop.record(held, step(THREE, b"third"))
    held = await handed_over(shop, held)
    assert payloads(held.records)[1:] == [b"first", b"second", b"third"]


async def test_sleeps_one_after_the_other_are_all_in_the_journal(make: Make):
    """A test_checkpoints: several sleeps of one task, each woken once."""
    shop, held = await begun(make)
    for path in (ONE, TWO):
        seen = (await shop.journal())[-1].index
        await shop.park(held, paths=[path], seen=seen, timers=[timer(path, time.time())])
        held = await shop.lease_one()
    fired = [one for one in await shop.journal() if one.kind == v1.RECORD_KIND_TIMER_FIRED]
    assert [one.path for one in fired] == [ONE, TWO]


async def test_a_result_is_written_once(make: Make):
    """D test_workflow_management: an outcome belongs to the row that is pending; a second one
    changes nothing.
    """
    shop, held = await begun(make)
    await shop.close(held, b"first")
    refused = await refusal(shop.close(held, b"second", outcome="FAILED"))
    assert refused.code in ("LEASE_LOST", "EXECUTION_CLOSED")
    assert (await shop.get()).end.payload == b"first"


async def test_published_values_are_read_without_a_worker(make: Make):
    """T query/timeout_due_to_no_active_workers: there a query needs a worker. Here the server has
    what was published.
    """
    shop, held = await begun(make)
    begun_value = value("state", b'"begun"')
    await shop.record(held, published=[begun_value], park=v1.Park(names=["word"]))
    found = await shop.published("state")
    assert [one.value for one in found.values] == [b'"begun"']


# --- workers that are late ------------------------------------------------------------------------


@pytest.mark.parametrize("write", WRITES)
async def test_a_worker_that_was_replaced_writes_nothing(make: Make, write: str):
    """D test_singleexec: a stale owner records no step, no wait, and no outcome."""
    shop, stale = await begun(make)
    owner = await handed_over(shop, stale)
    before = await shop.journal()
    assert (await refusal(WRITES[write](shop, stale))).code == "LEASE_LOST"
    assert await shop.journal() == before
    await shop.close(owner, b"of the owner")
    assert (await shop.get()).end.payload == b"of the owner"


async def test_a_lease_that_never_was_is_not_extended(make: Make):
    """A test_extend_claim: an extension of a run that does not exist is an error."""
    shop, held = await begun(make)
    never = f"ffff.{held.lease_id.partition('.')[2]}"
    known, unknown = await shop.extend(held.lease_id, never, timeout_s=30)
    assert (known.error, unknown.error) == (0, 8)  # LEASE_LOST


async def test_a_message_goes_to_the_worker_that_has_the_execution(make: Make):
    """D test_singleexec: a handoff while the code waits; the message is consumed once."""
    shop, stale = await begun(make)
    owner = await handed_over(shop, stale)
    await shop.signal(payload=b"hello")
    seen = (await shop.journal())[-1].index
    assert (await refusal(shop.close(stale, b"hello", seen=seen))).code == "LEASE_LOST"
    await shop.close(owner, b"hello", seen=seen)
    assert payloads(await shop.journal()).count(b"hello") == 2  # The signal, and the result.
