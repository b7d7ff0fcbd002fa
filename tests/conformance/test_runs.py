"""Runs: an execution continues with new arguments and an empty journal."""

import time

import pytest

from querator.v1 import execution_service_pb2 as v1
from tests.conformance.executions import begun, child, kinds, payloads, step, timer, value
from tests.conformance.make import Make
from tests.conformance.queues import refusal

pytestmark = pytest.mark.doors("unary")

ONE, TWO = b"\x01", b"\x02"
NEXT = v1.NewRun(arguments=b"next")


def unread(first: int, count: int = 1) -> v1.NewRun:
    return v1.NewRun(arguments=b"next", unread=[v1.NewRun.Run(first=first, count=count)])


async def test_a_new_run_begins_with_its_arguments(make: Make):
    shop, held = await begun(make)
    await shop.record(held, step(ONE), new_run=NEXT)
    journal = await shop.journal()
    assert (kinds(journal), payloads(journal), journal[0].index) == (["STARTED"], [b"next"], 0)
    assert (await shop.get()).execution.run == 2
    assert await shop.state() == "RUNNABLE"


async def test_a_new_run_is_leased_again(make: Make):
    shop, held = await begun(make)
    await shop.record(held, new_run=NEXT)
    again = await shop.lease_one()
    assert (again.id, again.run, payloads(again.records)) == ("e", 2, [b"next"])
    assert (again.execution, again.secret) == (held.execution, held.secret)


async def test_the_lease_of_a_run_ends_with_it(make: Make):
    shop, held = await begun(make)
    await shop.record(held, new_run=NEXT)
    assert (await refusal(shop.record(held, step(ONE)))).code == "LEASE_LOST"


async def test_a_record_that_begins_a_run_may_be_repeated(make: Make):
    shop, held = await begun(make)
    await shop.record(held, number=1, new_run=NEXT)
    assert (await shop.record(held, number=1, new_run=NEXT)).repeated_answer
    assert (await shop.get()).execution.run == 2


async def test_a_wait_hears_of_the_last_run(make: Make):
    shop, held = await begun(make)
    await shop.record(held, new_run=NEXT)
    assert await shop.wait("e", wait_s=0) == []
    await shop.close(await shop.lease_one(), b"last")
    [ended] = await shop.wait("e")
    assert (ended.execution.run, ended.end.payload) == (2, b"last")


async def test_signals_that_were_not_given_come_along(make: Make):
    shop, held = await begun(make)
    for word in (b"one", b"two"):
        await shop.signal(payload=word)
    await shop.record(held, new_run=NEXT)
    assert payloads((await shop.lease_one()).records) == [b"next", b"one", b"two"]


async def test_signals_that_were_given_and_not_received_come_along(make: Make):
    shop, held = await begun(make)
    indexes = [(await shop.signal(payload=word)).index for word in (b"one", b"two", b"three")]
    await shop.record(held, seen=indexes[1], new_run=unread(indexes[1]))
    assert payloads((await shop.lease_one()).records) == [b"next", b"two", b"three"]
    assert (await shop.get()).execution.unread_signals == 2


async def test_message_ids_stay_known_to_the_next_run(make: Make):
    shop, held = await begun(make)
    first = await shop.signal(message_id="m")
    await shop.record(held, seen=first.index, new_run=NEXT)
    assert (await shop.signal(message_id="m")).repeated_answer
    assert kinds(await shop.journal()) == ["STARTED"]


async def test_published_values_stay(make: Make):
    shop, held = await begun(make)
    await shop.record(held, published=[value("k", b"v")], new_run=NEXT)
    assert [one.value for one in (await shop.published("k")).values] == [b"v"]


async def test_timers_of_a_run_do_not_fire_in_the_next_one(make: Make):
    shop, held = await begun(make)
    await shop.record(held, timers=[timer(ONE, time.time() + 1_000)])
    await shop.record(held, new_run=NEXT)
    assert (await shop.get()).execution.timers == 0


async def test_a_promise_of_the_run_before_is_refused_by_name(make: Make):
    shop, held = await begun(make)
    await shop.record(held, new_run=NEXT)
    assert (await refusal(shop.resolve(held, ONE))).facts == ("TOKEN_INVALID", "run", "2", "1")
    again = await shop.lease_one()
    await shop.resolve(again, ONE)
    assert kinds(await shop.journal()) == ["STARTED", "RESOLVED"]


async def test_a_child_that_has_not_ended_prevents_a_new_run(make: Make):
    shop, held = await begun(make)
    await shop.record(held, number=1, children=[child(ONE)])
    refused = await refusal(shop.record(held, number=2, new_run=NEXT))
    assert (refused.code, refused.field) == ("INVALID_ARGUMENT", "new_run")
    await shop.close(await shop.lease_one())
    await shop.record(held, number=2, new_run=NEXT)


async def test_a_detached_child_outlives_the_run(make: Make):
    shop, held = await begun(make)
    await shop.record(held, children=[child(ONE, detached=True)])
    await shop.record(held, new_run=NEXT)
    assert not (await shop.get("e/child")).execution.cancelled
    assert kinds(await shop.journal()) == ["STARTED"]


async def test_a_cancellation_that_was_not_given_comes_along(make: Make):
    shop, held = await begun(make)
    await shop.cancel()
    await shop.record(held, new_run=NEXT)
    assert kinds((await shop.lease_one()).records) == ["STARTED", "CANCEL"]


async def test_a_cancelled_execution_begins_no_run(make: Make):
    shop, held = await begun(make)
    cancelled = await shop.cancel()
    refused = await refusal(shop.record(held, seen=cancelled.index, new_run=NEXT))
    assert (refused.code, refused.field) == ("INVALID_ARGUMENT", "new_run")


async def test_a_repeated_start_is_compared_with_the_first_arguments(make: Make):
    shop, held = await begun(make)
    await shop.record(held, new_run=NEXT)
    assert (await shop.start()).attached
    assert (await refusal(shop.start(arguments=b"next"))).code == "EXECUTION_EXISTS"


async def test_runs_of_signals_must_ascend(make: Make):
    shop, held = await begun(make)
    refused = await refusal(shop.record(held, new_run=unread(0)))
    assert (refused.code, refused.field) == ("INVALID_ARGUMENT", "new_run.unread[0]")


async def test_arguments_of_a_new_run_have_a_limit(make: Make):
    shop, held = await begun(make)
    large = v1.NewRun(arguments=b"x" * (8 * 2**20 + 1))
    refused = await refusal(shop.record(held, new_run=large))
    assert (refused.code, refused.limit) == ("LIMIT_EXCEEDED", "8388608 bytes")


async def test_large_arguments_of_a_new_run(make: Make):
    shop, held = await begun(make)
    await shop.record(held, step(TWO), new_run=v1.NewRun(arguments=b"x" * 100_000))
    assert payloads((await shop.lease_one()).records) == [b"x" * 100_000]
