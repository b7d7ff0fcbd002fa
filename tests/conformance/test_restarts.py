"""Restarts: a start of an execution that has ended begins its next run, once per request."""

import asyncio
from typing import Any

import pytest

from querator.v1 import execution_service_pb2 as v1
from tests.conformance.executions import begun, child, executions, kinds, payloads, step, value
from tests.conformance.make import Make
from tests.conformance.queues import refusal

pytestmark = pytest.mark.doors("unary", "streams-1")

ONE = b"\x01"
RESTART: dict[str, Any] = {"key_policy": v1.KEY_POLICY_RESTART_CLOSED}


async def ended(make: Make, **settings):
    shop, held = await begun(make, **settings)
    await shop.close(held, b"first")
    return shop, held


async def test_a_start_begins_the_next_run_of_one_that_has_ended(make: Make):
    shop, held = await ended(make)
    started = await shop.start(arguments=b"second", **RESTART)
    assert (started.execution, started.run, started.attached) == (held.execution, 2, False)
    again = await shop.lease_one()
    assert (again.id, again.run, payloads(again.records)) == ("e", 2, [b"second"])
    await shop.close(again, b"second result")
    [found] = await shop.wait("e")
    assert (found.execution.run, found.end.payload) == (2, b"second result")


async def test_the_next_run_may_be_of_another_function(make: Make):
    shop, _ = await ended(make)
    await shop.start(function="other", **RESTART)
    assert (await shop.lease_one()).function == "other"


async def test_a_start_with_the_same_arguments_begins_the_next_run_too(make: Make):
    shop, _ = await ended(make)
    assert (await shop.start(**RESTART)).run == 2


async def test_a_restart_that_is_repeated_begins_one_run(make: Make):
    shop, _ = await ended(make)
    command: dict[str, Any] = {"request_id": "r-1", "arguments": b"second", **RESTART}
    for _ in range(2):
        assert (await shop.start(**command)).run == 2
    await shop.close(await shop.lease_one(), b"second result")
    again = await shop.start(**command)
    assert (again.run, again.state, again.attached) == (2, v1.EXECUTION_STATE_COMPLETED, False)
    assert await shop.nothing_to_lease()


async def test_restarts_with_other_request_ids_begin_runs_of_their_own(make: Make):
    shop, _ = await ended(make)
    for run, request in ((2, "r-1"), (3, "r-2"), (4, "")):
        assert (await shop.start(request_id=request, **RESTART)).run == run
        await shop.close(await shop.lease_one())


async def test_many_restarts_at_once_begin_one_run(make: Make):
    shop, _ = await ended(make)
    started = await asyncio.gather(*(shop.start(**RESTART) for _ in range(20)))
    assert {one.run for one in started} == {2}
    assert [one.attached for one in started].count(False) == 1
    assert len(await shop.lease(10)) == 1


async def test_a_restart_of_an_open_execution_attaches(make: Make):
    shop, _ = await begun(make)
    again = await shop.start(**RESTART)
    assert (again.run, again.attached) == (1, True)


async def test_a_restart_of_an_open_execution_with_other_arguments_is_refused(make: Make):
    shop, _ = await begun(make)
    assert (await refusal(shop.start(arguments=b"other", **RESTART))).code == "EXECUTION_EXISTS"
    assert payloads(await shop.journal()) == [b"args"]


async def test_a_restart_of_an_id_that_is_free_makes_the_execution(make: Make):
    shop = await executions(make)
    started = await shop.start(**RESTART)
    assert (started.run, started.attached) == (1, False)


async def test_a_restart_leaves_nothing_of_the_former_run(make: Make):
    shop, held = await begun(make)
    index = (await shop.signal(message_id="m")).index
    await shop.record(held, step(ONE), published=[value("k", b"v")])
    await shop.close(held, seen=index)
    await shop.start(arguments=b"second", **RESTART)
    assert kinds(await shop.journal()) == ["STARTED"]
    assert list((await shop.published()).values) == []
    assert (await shop.signal(message_id="m")).repeated_answer


async def test_a_restart_cancels_the_children_of_the_former_run(make: Make):
    shop, held = await begun(make)
    await shop.record(held, children=[child(ONE), child(b"\x02", "e/detached", detached=True)])
    await shop.close(held, seen=2)
    await shop.start(**RESTART)
    assert (await shop.get("e/child")).execution.cancelled
    assert not (await shop.get("e/detached")).execution.cancelled


async def test_the_lease_of_the_former_run_holds_nothing(make: Make):
    shop, held = await ended(make)
    await shop.start(**RESTART)
    assert (await refusal(shop.record(held, step(ONE)))).code == "LEASE_LOST"


async def test_a_start_that_must_be_new_may_be_repeated(make: Make):
    shop = await executions(make)
    command: dict[str, Any] = {"request_id": "r-1", "key_policy": v1.KEY_POLICY_FAIL}
    assert not (await shop.start(**command)).attached
    assert not (await shop.start(**command)).attached
    assert (await refusal(shop.start(**{**command, "request_id": "r-2"}))).code == (
        "EXECUTION_EXISTS"
    )


async def test_a_key_policy_that_is_unknown_is_refused(make: Make):
    shop = await executions(make)
    refused = await refusal(shop.start(key_policy=9))
    assert (refused.code, refused.field) == ("INVALID_ARGUMENT", "key_policy")


async def test_a_request_id_has_at_most_128_characters(make: Make):
    shop = await executions(make)
    refused = await refusal(shop.start(request_id="r" * 129))
    assert (refused.code, refused.field) == ("LIMIT_EXCEEDED", "request_id")
    assert not (await shop.start(request_id="r" * 128)).attached
