"""Pinned executions: they wait for a worker with a version of their function that fits."""

import asyncio
import time

import pytest

from querator.v1 import execution_service_pb2 as v1
from tests.conformance.executions import begun, executions, step, timer
from tests.conformance.make import Make
from tests.conformance.queues import refusal

pytestmark = pytest.mark.doors("unary", "streams-1")

ONE = b"\x01"
PINNED = v1.EXECUTION_STATE_PINNED


async def test_what_does_not_fit_is_leased_to_no_worker_like_it_and_says_why(make: Make):
    shop, held = await begun(make)
    await shop.pin(held, "2", "record 1 is another one")
    found = (await shop.get()).execution
    assert (found.state, found.reason, list(found.refused_versions)) == (
        PINNED, "record 1 is another one", ["2"],
    )  # fmt: skip
    assert await shop.nothing_to_lease()
    assert await shop.lease_as("2", wait_s=0.3) == []
    assert await shop.lease_as("2", wait_s=0) == []


async def test_the_version_that_it_has_gets_it(make: Make):
    shop, held = await begun(make)
    await shop.pin(held)
    [again] = await shop.lease_as("1")
    assert (again.execution, again.version) == (held.execution, "1")
    assert [one.payload for one in again.records] == [b"args"]
    await shop.close(again)
    assert await shop.state() == "COMPLETED"


async def test_a_lease_that_does_not_wait_gets_it(make: Make):
    shop, held = await begun(make)
    await shop.pin(held)
    assert [one.execution for one in await shop.lease_as("1", wait_s=0)] == [held.execution]


async def test_each_new_version_is_tried_once(make: Make):
    shop, held = await begun(make)
    await shop.pin(held, "2")
    [trial] = await shop.lease_as("3")
    await shop.pin(trial, "3", "not with 3 either")
    assert await shop.lease_as("3", wait_s=0.3) == []
    [fixed] = await shop.lease_as("4")
    await shop.record(fixed, step(ONE, b"1"), version="4", park=v1.Park(names=["word"]))
    assert (await shop.get()).execution.version == "4"


async def test_a_worker_that_waits_gets_what_is_pinned_meanwhile(make: Make):
    shop, held = await begun(make)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(shop.lease_as("1", client_id="older"))
        other = group.create_task(shop.lease_as("2", wait_s=1, client_id="newer"))
        await shop.pin(held, "2")
    assert [one.execution for one in waiting.result()] == [held.execution]
    assert other.result() == []


async def test_a_function_that_a_worker_does_not_have_waits_for_one_that_has_it(make: Make):
    shop, held = await begun(make)
    await shop.pin(held, "", "no function f")
    other = [v1.FunctionVersion(function="g", version="1")]
    assert await shop.lease(wait_s=0.3, functions=other) == []
    assert len(await shop.lease_as("9")) == 1


async def test_what_was_pinned_wakes_for_workers_that_fit(make: Make):
    shop, held = await begun(make)
    await shop.pin(held)
    [again] = await shop.lease_as("1")
    await shop.park(again, names=["word"])
    await shop.signal()
    assert await shop.state() == "PINNED"
    assert await shop.nothing_to_lease()
    assert len(await shop.lease_as("1")) == 1


async def test_a_timer_wakes_what_was_pinned(make: Make):
    shop, held = await begun(make)
    await shop.pin(held)
    [again] = await shop.lease_as("1")
    await shop.park(again, timers=[timer(ONE, time.time() + 0.1)], paths=[ONE])
    [woken] = await shop.lease_as("1")
    assert [one.kind for one in woken.records][-1] == v1.RECORD_KIND_TIMER_FIRED


async def test_what_lapses_waits_again(make: Make):
    shop, held = await begun(make)
    await shop.pin(held)
    [lost] = await shop.lease_as("1", timeout_s=1)
    [again] = await shop.lease_as("1")
    assert again.execution == lost.execution
    refused = await refusal(shop.close(lost))
    assert refused.code == "LEASE_LOST"
    await shop.close(again)


async def test_signals_of_a_pinned_one_are_kept(make: Make):
    shop, held = await begun(make)
    await shop.pin(held)
    signal = await shop.signal()
    [again] = await shop.lease_as("1")
    assert again.records[-1].index == signal.index


async def test_a_pinned_one_is_terminated(make: Make):
    shop, held = await begun(make)
    await shop.pin(held)
    await shop.terminate()
    assert await shop.state() == "TERMINATED"
    assert await shop.lease_as("1", wait_s=0.2) == []


async def test_a_retry_lets_every_worker_try_it(make: Make):
    shop, held = await begun(make)
    await shop.pin(held)
    assert await shop.retry()
    assert list((await shop.get()).execution.refused_versions) == []
    assert (await shop.lease_one()).execution == held.execution


async def test_those_of_all_partitions_are_leased_once(make: Make):
    shop = await executions(make, partitions=3)
    for number in range(20):
        await shop.start(f"e-{number}")
    left = 20
    while left:
        for held in await shop.lease(20):
            await shop.pin(held)
            left -= 1
    found: list[str] = []
    while len(found) < 20:
        leased = await shop.lease_as("1", 7)
        assert 0 < len(leased) <= 7
        found += [one.id for one in leased]
    assert sorted(found) == sorted(f"e-{number}" for number in range(20))
    assert await shop.lease_as("1", wait_s=0.2) == []


async def test_they_are_leased_while_others_are_always_ready(make: Make):
    shop, held = await begun(make)
    await shop.pin(held)
    for number in range(50):
        await shop.start(f"e-{number}")
    found = ""
    while found != held.id:
        [one] = await shop.lease_as("1")
        found = one.id
        if found != held.id:
            await shop.give_back(one)


async def test_they_are_listed_by_their_state(make: Make):
    shop, held = await begun(make)
    await shop.start("other")
    await shop.pin(held)
    assert await shop.list(state="PINNED") == [held.id]


async def test_a_pin_without_a_reason_is_refused(make: Make):
    shop, held = await begun(make)
    refused = await refusal(shop.pin(held, "2", ""))
    assert (refused.code, refused.field) == ("INVALID_ARGUMENT", "give_back.reason")


async def test_what_is_stuck_is_not_pinned_as_well(make: Make):
    shop, held = await begun(make)
    back = v1.GiveBack(pinned=True, stuck=True, reason="both")
    refused = await refusal(shop.record(held, give_back=back))
    assert (refused.code, refused.field) == ("INVALID_ARGUMENT", "give_back.pinned")


async def test_a_refused_version_of_65_bytes_is_refused(make: Make):
    shop, held = await begun(make)
    refused = await refusal(shop.pin(held, "v" * 65))
    assert (refused.code, refused.field, refused.limit) == (
        "LIMIT_EXCEEDED", "give_back.refused_version", "64 bytes",
    )  # fmt: skip


async def test_a_version_refused_without_a_pin_is_refused(make: Make):
    shop, held = await begun(make)
    refused = await refusal(shop.record(held, give_back=v1.GiveBack(refused_version="2")))
    assert (refused.code, refused.field) == ("INVALID_ARGUMENT", "give_back.refused_version")


@pytest.mark.parametrize(
    ("functions", "code", "field"),
    [
        ([("", "1")], "INVALID_ARGUMENT", "functions[0].function"),
        ([("f", "1"), ("g", "")], "INVALID_ARGUMENT", "functions[1].version"),
        ([("f", "1"), ("f", "2")], "INVALID_ARGUMENT", "functions[1].function"),
        ([("f", "v" * 65)], "LIMIT_EXCEEDED", "functions[0].version"),
        ([("f" * 256, "1")], "LIMIT_EXCEEDED", "functions[0].function"),
        ([(f"f{nth}", "1") for nth in range(1_001)], "LIMIT_EXCEEDED", "functions"),
    ],
)
async def test_versions_that_no_worker_has_are_refused(
    make: Make, functions: list[tuple[str, str]], code: str, field: str
):
    shop = await executions(make)
    named = [v1.FunctionVersion(function=name, version=version) for name, version in functions]
    refused = await refusal(shop.lease(functions=named))
    assert (refused.code, refused.field) == (code, field)


# --- what was given up ----------------------------------------------------------------------------


async def test_a_request_that_was_given_up_has_what_it_was_granted(make: Make):
    shop = await executions(make, partitions=3)
    await shop.start()
    [held] = await shop.lease(request_id="r1")
    await shop.start("other")
    [again] = await shop.lease(9, request_id="r1", given_up=True, wait_s=0)
    assert (again.lease_id, again.execution, again.secret) == (
        held.lease_id, held.execution, held.secret,
    )  # fmt: skip
    await shop.give_back(again)
    assert await shop.lease(9, request_id="r1", given_up=True, wait_s=0) == []
    assert await shop.lease(9, request_id="r2", given_up=True, wait_s=0) == []
    assert {(await shop.lease_one()).id, (await shop.lease_one()).id} == {"e", "other"}


async def test_what_was_pinned_is_among_what_a_request_was_granted(make: Make):
    shop, held = await begun(make)
    await shop.pin(held)
    [leased] = await shop.lease_as("1", request_id="r1")
    [again] = await shop.lease_as("1", 9, request_id="r1", given_up=True, wait_s=0)
    assert (again.lease_id, again.item) == (leased.lease_id, leased.item)


async def test_what_is_given_up_has_a_name(make: Make):
    shop = await executions(make)
    refused = await refusal(shop.lease(given_up=True))
    assert (refused.code, refused.field) == ("INVALID_ARGUMENT", "request_id")
