"""Activations: how workers lease executions, keep them, give them back and lose them."""

import asyncio
import time

import pytest

from querator.v1 import execution_service_pb2 as v1
from querator.v1 import queue_service_pb2 as pb
from querator.v1.items_pb2 import SeqRange
from tests.conformance.executions import begun, executions, kinds, step, timer
from tests.conformance.make import Make
from tests.conformance.queues import refusal

pytestmark = pytest.mark.doors("unary", "streams-1")

ONE, TWO = b"\x01", b"\x02"


# --- leases ---------------------------------------------------------------------------------------


async def test_answers_say_the_time_of_the_partition(make: Make):
    shop, held = await begun(make)
    recorded = await shop.record(held, extend_s=60)
    [started] = await shop.journal()
    assert started.at_ms <= held.now_ms <= recorded.now_ms
    assert abs(held.now_ms / 1000 - time.time()) < 30
    assert recorded.now_ms + 59_000 <= recorded.deadline.ToMilliseconds()


async def test_a_lease_of_nothing_waits_and_is_empty(make: Make):
    shop = await executions(make)
    assert await shop.lease(wait_s=0.2) == []


async def test_a_lease_that_does_not_wait_is_empty(make: Make):
    shop = await executions(make)
    assert await shop.lease(wait_s=0) == []


async def test_a_lease_waits_for_a_start(make: Make):
    shop = await executions(make)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(shop.lease())
        await shop.start()
    assert [one.id for one in waiting.result()] == ["e"]


async def test_a_lease_waits_for_what_is_woken(make: Make):
    shop, held = await begun(make)
    await shop.park(held, names=["word"])
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(shop.lease())
        await shop.signal()
    assert [one.id for one in waiting.result()] == ["e"]


async def test_an_execution_is_leased_to_one_worker(make: Make):
    shop = await executions(make)
    await shop.start()
    leased = await asyncio.gather(*(shop.lease(wait_s=1, client_id=f"w{n}") for n in range(5)))
    assert sum(map(len, leased)) == 1


async def test_each_of_many_executions_is_leased_once(make: Make):
    shop = await executions(make, partitions=3)
    for number in range(30):
        await shop.start(f"e-{number}")
    ids: list[str] = []
    while len(ids) < 30:
        ids += [one.id for one in await shop.lease(7)]
    assert sorted(ids) == sorted(f"e-{number}" for number in range(30))
    assert await shop.nothing_to_lease()


async def test_a_lease_has_at_most_as_many_as_were_asked_for(make: Make):
    shop = await executions(make)
    for number in range(5):
        await shop.start(f"e/{number}")
    assert len(await shop.lease(3)) == 3
    assert len(await shop.lease(3)) == 2


async def test_a_request_that_is_repeated_at_its_partition_returns_the_same_activations(make: Make):
    shop = await executions(make)
    await shop.start()
    [first] = await shop.lease(request_id="r")
    [again] = await shop.lease(request_id="r", partition=first.partition)
    assert (again.lease_id, again.item) == (first.lease_id, first.item)
    await shop.close(again)
    assert await shop.state() == "COMPLETED"


async def test_a_request_that_is_repeated_after_its_lease_has_ended_is_refused(make: Make):
    shop = await executions(make)
    await shop.start()
    [held] = await shop.lease(request_id="r")
    await shop.close(held)
    refused = await refusal(shop.lease(request_id="r", partition=held.partition))
    assert refused.code == "LEASE_ENDED"


async def test_a_partition_that_the_queue_does_not_have_is_refused(make: Make):
    shop = await executions(make, partitions=2)
    refused = await refusal(shop.lease(partition=2))
    assert (refused.code, refused.field) == ("INVALID_ARGUMENT", "partition")


async def test_a_lease_lasts_as_long_as_was_asked_for(make: Make):
    shop = await executions(make)
    await shop.start()
    held = await shop.lease_one(timeout_s=100)
    assert 90 < held.remaining.ToMilliseconds() / 1000 <= 100


async def test_a_lease_lasts_as_long_as_the_queue_says(make: Make):
    shop = await executions(make, lease_timeout={"seconds": 200})
    await shop.start()
    held = await shop.lease_one()
    assert 190 < held.remaining.ToMilliseconds() / 1000 <= 200


async def test_a_record_extends_the_lease(make: Make):
    shop, held = await begun(make)
    extended = await shop.record(held, step(ONE), extend_s=1000)
    assert extended.deadline.ToMilliseconds() / 1000 > time.time() + 900


async def test_a_lease_is_extended_as_a_lease_of_items(make: Make):
    shop = await executions(make)
    await shop.start()
    held = await shop.lease_one(timeout_s=1)
    [outcome] = await shop.extend(held.lease_id, timeout_s=60)
    assert outcome.lease_remaining.ToMilliseconds() > 50_000
    assert not await shop.lease(wait_s=1.5)
    await shop.close(held)


async def test_attempts_are_counted(make: Make):
    shop = await executions(make)
    await shop.start()
    assert (await shop.lease_one(timeout_s=1)).attempt == 1
    assert (await shop.lease_one()).attempt == 2


async def test_an_activation_after_a_wake_begins_its_attempts_again(make: Make):
    shop, held = await begun(make)
    await shop.park(held, names=["word"])
    await shop.signal()
    assert (await shop.lease_one()).attempt == 1


# --- fences ---------------------------------------------------------------------------------------


async def test_a_lease_that_lapses_is_leased_again(make: Make):
    shop = await executions(make)
    await shop.start()
    lost = await shop.lease_one(timeout_s=1)
    again = await shop.lease_one()
    assert again.lease_id != lost.lease_id
    assert again.execution == lost.execution


async def test_a_worker_whose_lease_is_over_records_nothing(make: Make):
    shop = await executions(make)
    await shop.start()
    lost = await shop.lease_one(timeout_s=1)
    again = await shop.lease_one()
    assert (await refusal(shop.record(lost, step(ONE, b"late")))).code == "LEASE_LOST"
    assert (await refusal(shop.close(lost))).code == "LEASE_LOST"
    await shop.record(again, step(ONE, b"mine"))
    assert [one.payload for one in await shop.journal()] == [b"args", b"mine"]


async def test_what_was_recorded_before_a_lapse_stays(make: Make):
    shop = await executions(make)
    await shop.start()
    lost = await shop.lease_one(timeout_s=1)
    await shop.record(lost, step(ONE, b"1"))
    assert [one.payload for one in (await shop.lease_one()).records] == [b"args", b"1"]


async def test_a_repeat_after_the_lapse_gets_its_first_answer(make: Make):
    shop = await executions(make)
    await shop.start()
    lost = await shop.lease_one(timeout_s=1)
    await shop.record(lost, step(ONE), number=1)
    await shop.lease_one()
    again = await shop.record(lost, step(ONE), number=1)
    assert (again.first_index, again.repeated_answer) == (1, True)
    assert kinds(await shop.journal()) == ["STARTED", "STEP_DONE"]


async def test_one_lease_of_several_is_a_fence_for_each(make: Make):
    shop = await executions(make)
    await shop.start("e/1")
    await shop.start("e/2")
    held = {one.id: one for one in await shop.lease(2)}
    assert held["e/1"].lease_id == held["e/2"].lease_id
    await shop.close(held["e/1"])
    await shop.record(held["e/2"], step(ONE))
    assert (await refusal(shop.record(held["e/1"], step(ONE)))).code in (
        "LEASE_LOST", "EXECUTION_CLOSED",
    )  # fmt: skip
    assert kinds(await shop.journal("e/2")) == ["STARTED", "STEP_DONE"]


async def test_a_lease_of_one_execution_is_no_lease_of_another(make: Make):
    shop = await executions(make)
    await shop.start("e/1")
    await shop.start("e/2")
    one, other = await shop.lease_one(), await shop.lease_one()
    mixed = v1.Activation()
    mixed.CopyFrom(one)
    mixed.execution = other.execution
    assert (await refusal(shop.record(mixed, step(ONE)))).code == "LEASE_LOST"
    assert kinds(await shop.journal(other.id)) == ["STARTED"]


async def test_the_lease_of_another_queue_is_refused(make: Make):
    _, held = await begun(make)
    other = await executions(make)
    await other.start()
    refused = await refusal(other.record(held, step(ONE)))
    assert refused.code == "LEASE_LOST"
    assert kinds(await other.journal()) == ["STARTED"]


async def test_an_activation_is_not_completed_as_an_item(make: Make):
    shop, held = await begun(make)
    request = pb.CompleteRequest(
        leases=[
            pb.LeaseItems(lease_id=held.lease_id, ranges=[SeqRange(first_seq=held.item, count=1)])
        ],
        **shop.queue.named,
    )
    assert (await refusal(shop.queue.door.complete(request))).code == "QUEUE_KIND"
    assert await shop.state() == "RUNNABLE"


# --- given back -----------------------------------------------------------------------------------


async def test_what_is_given_back_is_leased_at_once(make: Make):
    shop, held = await begun(make)
    await shop.give_back(held)
    assert (await shop.lease_one()).execution == held.execution


async def test_what_is_given_back_counts_no_attempt(make: Make):
    shop, held = await begun(make)
    await shop.give_back(held)
    assert (await shop.lease_one()).attempt == held.attempt


async def test_records_go_with_what_is_given_back(make: Make):
    shop, held = await begun(make)
    await shop.record(held, step(ONE, b"1"), give_back=v1.GiveBack())
    assert [one.payload for one in (await shop.lease_one()).records] == [b"args", b"1"]


async def test_what_is_stuck_is_not_leased_and_says_why(make: Make):
    shop, held = await begun(make)
    await shop.give_back(held, "no function f", stuck=True)
    found = (await shop.get()).execution
    assert (found.state, found.reason) == (v1.EXECUTION_STATE_STUCK, "no function f")
    assert await shop.nothing_to_lease()


async def test_what_is_stuck_without_a_reason_is_refused(make: Make):
    shop, held = await begun(make)
    refused = await refusal(shop.give_back(held, "", stuck=True))
    assert (refused.code, refused.field) == ("INVALID_ARGUMENT", "give_back.reason")
    assert await shop.state() == "RUNNABLE"


async def test_a_retry_lets_a_stuck_one_run(make: Make):
    shop, held = await begun(make)
    await shop.give_back(held, "defect", stuck=True)
    assert await shop.retry()
    assert (await shop.get()).execution.reason == ""
    assert (await shop.lease_one()).execution == held.execution


async def test_a_retry_of_what_is_not_stuck_changes_nothing(make: Make):
    shop, held = await begun(make)
    assert not await shop.retry()
    await shop.park(held, names=["word"])
    assert not await shop.retry()
    assert await shop.state() == "PARKED"


async def test_a_retry_that_is_repeated_changes_nothing(make: Make):
    shop, held = await begun(make)
    await shop.give_back(held, "defect", stuck=True)
    assert await shop.retry()
    assert not await shop.retry()
    assert len(await shop.lease(10)) == 1


async def test_a_stuck_execution_is_not_woken_by_a_cancellation(make: Make):
    shop, held = await begun(make)
    await shop.give_back(held, "defect", stuck=True)
    await shop.cancel()
    assert await shop.state() == "STUCK"
    assert await shop.nothing_to_lease()


# --- queues ---------------------------------------------------------------------------------------


async def test_the_statistics_count_executions_that_can_run(make: Make):
    shop = await executions(make)
    await shop.start("a")
    await shop.start("b")
    await shop.lease_one()
    total = await shop.queue.stats()
    assert (total.ready, total.leased) == (1, 1)


async def test_a_parked_execution_is_no_item(make: Make):
    shop, held = await begun(make)
    await shop.park(held, names=["word"])
    total = await shop.queue.stats()
    assert (total.ready, total.leased, total.scheduled) == (0, 0, 0)


async def test_executions_are_seen_through_all_nodes(make: Make):
    shop = await executions(make)
    await shop.start()
    for node in range(make.size):
        other = shop.through(node)
        assert await other.state() == "RUNNABLE"
        assert await other.list() == ["e"]
        assert kinds(await other.journal()) == ["STARTED"]


async def test_a_life_through_all_nodes(make: Make):
    shop = await executions(make)
    await shop.start()
    others = [shop.through(node) for node in range(make.size)]
    held = await others[-1].lease_one()
    await others[0].record(held, step(ONE, b"1"), number=1)
    await others[-1].record(held, number=2, park=v1.Park(names=["word"]))
    await others[0].signal()
    again = await others[-1].lease_one()
    await others[0].close(again)
    assert [await other.state() for other in others] == ["COMPLETED"] * make.size


# --- versions -------------------------------------------------------------------------------------


async def test_an_execution_has_the_version_with_which_it_was_started(make: Make):
    shop = await executions(make)
    await shop.start(version="9f31c2")
    held = await shop.lease_one()
    assert (held.version, (await shop.get()).execution.version) == ("9f31c2", "9f31c2")


async def test_an_execution_has_the_version_with_which_it_has_run_last(make: Make):
    shop, held = await begun(make)
    await shop.record(held, step(ONE), version="b07a11")
    await shop.park(held, names=["word"])
    assert (await shop.get()).execution.version == "b07a11"
    await shop.signal()
    assert (await shop.lease_one()).version == "b07a11"


async def test_an_activation_names_the_timers_that_have_not_fired(make: Make):
    shop, held = await begun(make)
    later = [timer(ONE, time.time() + 900), timer(TWO, time.time() + 900)]
    await shop.record(held, timers=later)
    await shop.park(held, names=["word"], timers=[v1.Timer(path=ONE)])
    await shop.signal()
    assert list((await shop.lease_one()).timers) == [TWO]


@pytest.mark.parametrize("version", ["x" * 65, "a\nb"], ids=["long", "unprintable"])
async def test_a_record_with_a_bad_version_is_refused(make: Make, version: str):
    shop, held = await begun(make)
    error = await refusal(shop.record(held, version=version))
    assert error.field == "version"
    await shop.record(held, step(ONE), number=1)
