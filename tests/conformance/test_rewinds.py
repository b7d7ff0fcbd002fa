"""Rewinds: an execution continues from one of its records, in a new run."""

from typing import Any

import pytest

from querator.v1 import execution_service_pb2 as v1
from tests.conformance.executions import (
    Executions,
    begun,
    child,
    executions,
    kind,
    kinds,
    payloads,
    proof,
    step,
    timer,
    value,
)
from tests.conformance.make import Make
from tests.conformance.queues import refusal

pytestmark = pytest.mark.doors("unary")

ONE, TWO, THREE = b"\x01", b"\x02", b"\x03"
HOUR_S = 3600


async def ended(make: Make, **settings: Any) -> tuple[Executions, v1.Activation]:
    """Records 1 to 3 are steps, and 4 is the end."""
    shop, held = await begun(make, **settings)
    await shop.close(held, b"first", *(step(path) for path in (ONE, TWO, THREE)))
    return shop, held


async def test_an_execution_that_has_ended_continues_from_a_record(make: Make):
    shop, held = await ended(make)
    done = await shop.rewind(2)
    assert (done.run, done.removed_records, done.cancelled_children) == (2, 2, 0)
    again = await shop.lease_one()
    assert (again.execution, again.run, again.origin_run) == (held.execution, 2, 1)
    assert [one.index for one in again.records] == [0, 1, 2]
    await shop.close(again, b"second")
    [found] = await shop.wait("e")
    assert (found.execution.run, found.end.payload) == (2, b"second")


async def test_a_rewind_to_the_arguments_leaves_nothing_else(make: Make):
    shop, _ = await ended(make)
    await shop.rewind(0)
    assert kinds(await shop.journal()) == ["STARTED"]


async def test_a_rewind_ends_the_lease(make: Make):
    shop, held = await begun(make)
    await shop.record(held, step(ONE), step(TWO))
    await shop.rewind(1)
    assert (await refusal(shop.record(held, step(THREE)))).code == "LEASE_LOST"
    assert (await shop.lease_one()).item != held.item


async def test_a_parked_execution_runs_when_it_is_rewound(make: Make):
    shop, held = await begun(make)
    await shop.park(held, step(ONE), names=["word"])
    await shop.rewind(0)
    assert await shop.state() == "RUNNABLE"


async def test_a_stuck_execution_runs_when_it_is_rewound(make: Make):
    shop, held = await begun(make)
    await shop.give_back(held, "help", stuck=True)
    await shop.rewind(0)
    assert (await shop.get()).execution.reason == ""
    assert len(await shop.lease()) == 1


async def test_a_terminated_execution_continues(make: Make):
    shop, _ = await begun(make)
    await shop.terminate()
    await shop.rewind(0)
    assert await shop.state() == "RUNNABLE"


async def test_a_cancelled_execution_is_not_cancelled_before_the_cancellation(make: Make):
    shop, held = await begun(make)
    await shop.record(held, step(ONE))
    index = (await shop.cancel()).index
    await shop.close(held, seen=index, outcome="CANCELLED")
    await shop.rewind(1)
    assert not (await shop.get()).execution.cancelled
    assert not (await shop.cancel()).repeated_answer


async def test_signals_behind_the_record_are_unread_again(make: Make):
    shop, held = await begun(make)
    first = (await shop.signal(payload=b"one", message_id="m")).index
    await shop.close(held, b"", step(ONE), seen=first)
    await shop.rewind(0)
    assert payloads(await shop.journal()) == [b"args", b"one"]
    assert (await shop.get()).execution.unread_signals == 1
    assert (await shop.signal(message_id="m")).repeated_answer


async def test_timers_behind_the_record_do_not_fire(make: Make):
    shop, held = await begun(make)
    await shop.park(held, step(ONE), timers=[timer(TWO, 1)], paths=[TWO])
    await shop.until_state("RUNNABLE")
    await shop.rewind(1)
    assert kinds(await shop.journal()) == ["STARTED", "STEP_DONE"]
    assert (await shop.get()).execution.timers == 0


async def test_a_token_from_before_the_record_stays_valid(make: Make):
    shop, held = await begun(make)
    await shop.resolve(held, TWO, b"lost")
    await shop.rewind(0)
    assert not (await shop.resolve(held, TWO, b"again")).repeated_answer
    again = await shop.lease_one()
    assert payloads(again.records) == [b"args", b"again"]
    assert proof(held, TWO) == proof(again, TWO)


async def test_published_values_stay(make: Make):
    shop, held = await begun(make)
    await shop.record(held, step(ONE), published=[value("k", b"v")])
    await shop.rewind(0)
    assert [one.value for one in (await shop.published("k")).values] == [b"v"]


async def test_children_behind_the_record_are_cancelled(make: Make):
    shop, held = await begun(make)
    await shop.record(held, step(ONE), children=[child(TWO)])
    done = await shop.rewind(1)
    assert done.cancelled_children == 1
    assert (await shop.get("e/child")).execution.cancelled
    again = await shop.lease(9)
    [parent] = [one for one in again if one.id == "e"]
    await shop.record(parent, children=[child(TWO, arguments=b"other")])
    assert kinds(await shop.journal())[-1] == "CHILD_STARTED"
    assert payloads(await shop.journal("e/child")) == [b"other"]


async def test_children_behind_the_record_may_be_kept(make: Make):
    shop, held = await begun(make)
    await shop.record(held, step(ONE), children=[child(TWO)])
    inner = await shop.lease_one()
    assert (await shop.rewind(1, keep_children=True)).cancelled_children == 0
    parent = await shop.lease_one()
    await shop.record(parent, children=[child(TWO)])
    await shop.close(inner, b"result of the first one")
    assert payloads(await shop.journal())[-1] == b"result of the first one"


async def test_the_result_of_an_earlier_child_stays(make: Make):
    shop, held = await begun(make)
    await shop.record(held, children=[child(ONE)])
    await shop.close(await shop.lease_one(), b"result")
    await shop.close(held, b"", step(TWO), seen=2)
    await shop.rewind(1)
    assert kinds(await shop.journal()) == ["STARTED", "CHILD_STARTED", "CHILD_DONE"]


async def test_a_record_inside_of_a_fold_is_refused_by_name(make: Make):
    shop, held = await begun(make)
    inner = [step(TWO + ONE), step(ONE), step(TWO + TWO)]
    done = v1.JournalRecord(kind=kind("CALL_DONE"), path=TWO, name="pack")
    fold = v1.Fold(index=3, record=done, removed=[v1.Fold.Run(first=1, count=1)])
    await shop.record(held, *inner)
    await shop.record(held, folds=[fold])
    refused = await refusal(shop.rewind(2))
    assert (refused.code, refused.field) == ("INVALID_ARGUMENT", "record")
    assert "inside of the call pack (path 2), whose records 1 to 3 are one" in refused.message
    assert (await shop.rewind(3)).run == 2


async def test_a_record_that_is_not_there_is_refused(make: Make):
    shop, _ = await ended(make)
    for record in (4, 5, 1 << 40):
        refused = await refusal(shop.rewind(record))
        assert (refused.code, refused.field) == ("INVALID_ARGUMENT", "record")
    assert await shop.state() == "COMPLETED"


async def test_a_rewind_of_an_earlier_run_is_refused(make: Make):
    shop, _ = await ended(make)
    await shop.rewind(1, run=1)
    assert (await refusal(shop.rewind(0, run=1))).code == "EXECUTION_CLOSED"


async def test_a_rewind_of_nothing_is_refused(make: Make):
    shop = await executions(make)
    assert (await refusal(shop.rewind(0))).code == "EXECUTION_NOT_FOUND"


async def test_a_rewind_that_is_repeated_rewinds_once(make: Make):
    shop, _ = await ended(make)
    await shop.rewind(1, request_id="r-1")
    await shop.close(await shop.lease_one(), b"second", step(TWO))
    again = await shop.rewind(1, request_id="r-1")
    assert (again.repeated_answer, again.run) == (True, 2)
    assert await shop.state() == "COMPLETED"


async def test_a_rewind_with_a_long_request_id_is_refused(make: Make):
    shop, _ = await ended(make)
    refused = await refusal(shop.rewind(0, request_id="r" * 129))
    assert (refused.code, refused.field) == ("LIMIT_EXCEEDED", "request_id")
