"""Executions: starts, states, ends and lists."""

import asyncio
import contextlib
import time
from hashlib import blake2b

import pytest

from querator.v1 import execution_service_pb2 as v1
from querator.v1.admin_service_pb2 import QueueKind
from tests.conformance.door import Refused
from tests.conformance.executions import (
    Executions,
    begun,
    executions,
    kinds,
    payloads,
)
from tests.conformance.make import Make
from tests.conformance.queues import looks, refusal, soon

pytestmark = pytest.mark.doors("unary", "streams-1")

HOUR_S = 3600


# --- starts ---------------------------------------------------------------------------------------


async def test_a_start_makes_an_execution_that_can_run(make: Make):
    shop = await executions(make)
    started = await shop.start()
    assert (started.run, started.attached) == (1, False)
    assert await shop.state() == "RUNNABLE"


async def test_the_arguments_are_record_0(make: Make):
    shop = await executions(make)
    await shop.start(arguments=b"\0\xff args")
    [record] = await shop.journal()
    assert (record.index, record.kind, record.payload) == (
        0,
        v1.RECORD_KIND_STARTED,
        b"\0\xff args",
    )


async def test_arguments_may_be_empty(make: Make):
    shop = await executions(make)
    await shop.start(arguments=b"")
    assert payloads(await shop.journal()) == [b""]


async def test_arguments_may_have_a_mebibyte(make: Make):
    shop = await executions(make)
    arguments = bytes(range(256)) * 4096
    await shop.start(arguments=arguments)
    assert payloads(await shop.journal()) == [arguments]


async def test_a_start_that_is_repeated_attaches(make: Make):
    shop = await executions(make)
    first = await shop.start()
    again = await shop.start()
    assert (again.execution, again.run, again.attached) == (first.execution, 1, True)
    assert len(await shop.journal()) == 1


async def test_a_start_with_another_version_attaches(make: Make):
    shop = await executions(make)
    await shop.start(version="1")
    assert (await shop.start(version="2")).attached
    assert (await shop.get()).execution.version == "1"


async def test_a_start_with_other_arguments_is_refused(make: Make):
    shop = await executions(make)
    await shop.start(arguments=b"1")
    refused = await refusal(shop.start(arguments=b"2"))
    assert (refused.code, refused.retriable) == ("EXECUTION_EXISTS", False)
    assert payloads(await shop.journal()) == [b"1"]


async def test_a_start_of_another_function_is_refused(make: Make):
    shop = await executions(make)
    await shop.start(function="f")
    assert (await refusal(shop.start(function="g"))).code == "EXECUTION_EXISTS"


async def test_a_start_that_must_be_new_is_refused_for_one_that_is_there(make: Make):
    shop = await executions(make)
    assert not (await shop.start(key_policy=v1.KEY_POLICY_FAIL)).attached
    assert (await refusal(shop.start(key_policy=v1.KEY_POLICY_FAIL))).code == "EXECUTION_EXISTS"


async def test_a_start_attaches_to_one_that_has_ended(make: Make):
    shop, held = await begun(make)
    await shop.close(held)
    again = await shop.start()
    assert (again.attached, again.state) == (True, v1.EXECUTION_STATE_COMPLETED)


async def test_many_starts_of_one_id_at_once_make_one_execution(make: Make):
    shop = await executions(make)
    started = await asyncio.gather(*(shop.start() for _ in range(20)))
    assert len({one.execution for one in started}) == 1
    assert [one.attached for one in started].count(False) == 1
    assert len(await shop.lease(10)) == 1


async def test_an_id_means_another_execution_in_each_queue(make: Make):
    one, other = await executions(make), await executions(make)
    await one.start(arguments=b"one")
    await other.start(arguments=b"other")
    assert payloads(await one.journal()) == [b"one"]
    assert payloads(await other.journal()) == [b"other"]


async def test_ids_of_one_root_are_in_one_partition(make: Make):
    shop = await executions(make, partitions=8)
    started = [await shop.start(id_) for id_ in ("root", "root/1", "root/2", "root/1/deep")]
    assert len({one.partition for one in started}) == 1


async def test_ids_are_spread_over_the_partitions(make: Make):
    shop = await executions(make, partitions=4)
    started = [await shop.start(f"e-{number}") for number in range(40)]
    assert {one.partition for one in started} == {0, 1, 2, 3}


async def test_an_id_may_have_255_bytes(make: Make):
    shop = await executions(make)
    await shop.start("ü" * 127 + "x")
    assert await shop.list() == ["ü" * 127 + "x"]


async def test_a_start_for_later_is_not_leased_before_its_time(make: Make):
    shop = await executions(make)
    begins_s = time.time() + 1
    await shop.start("late", start_at=soon(1))
    await shop.start("now")
    assert [one.id for one in await shop.lease(2)] == ["now"]
    assert (await shop.lease_one()).id == "late"
    assert time.time() > begins_s - 0.5


async def test_an_execution_of_the_next_year_can_run_but_is_not_leased(make: Make):
    shop = await executions(make)
    await shop.start(start_at=soon(366 * 24 * HOUR_S))
    assert await shop.state() == "RUNNABLE"
    assert await shop.nothing_to_lease()


async def test_lower_priorities_are_leased_first(make: Make):
    shop = await executions(make)
    for id_, priority in (("last", 5), ("first", -5), ("second", 0)):
        await shop.start(id_, priority=priority)
    leased = [(await shop.lease_one()).id for _ in range(3)]
    assert leased == ["first", "second", "last"]


async def test_executions_of_one_priority_are_leased_in_the_order_of_their_starts(make: Make):
    shop = await executions(make)
    for number in range(5):
        await shop.start(f"e/{number}")
    assert [one.id for one in await shop.lease(5)] == [f"e/{number}" for number in range(5)]


async def test_a_paused_queue_starts_nothing(make: Make):
    shop, held = await begun(make)
    await shop.queue.update(produce_paused=True)
    refused = await refusal(shop.start("other"))
    assert (refused.code, refused.retriable) == ("QUEUE_PAUSED", True)
    assert (await shop.start()).attached
    await shop.close(held)
    assert await shop.state() == "COMPLETED"


async def test_a_queue_whose_leases_are_paused_keeps_executions_ready(make: Make):
    shop = await executions(make)
    await shop.queue.update(lease_paused=True)
    await shop.start()
    assert await shop.nothing_to_lease()
    await shop.queue.update(lease_paused=False)
    assert (await shop.lease_one()).id == "e"


# --- deadlines ------------------------------------------------------------------------------------


async def test_a_deadline_cancels_at_its_time(make: Make):
    shop = await executions(make)
    await shop.start(deadline=soon(0.3))
    held = await shop.lease_one()
    await shop.park(held, names=["never"])
    again = await shop.lease_one()
    assert kinds(await shop.journal()) == ["STARTED", "CANCEL"]
    assert (await shop.get()).execution.cancelled
    assert again.execution == held.execution


async def test_the_worker_and_readers_are_shown_the_deadline(make: Make):
    shop = await executions(make)
    deadline = soon(HOUR_S)
    await shop.start(deadline=deadline)
    found = (await shop.get()).execution
    assert abs(found.deadline.ToMilliseconds() - deadline.ToMilliseconds()) <= 1
    assert (await shop.lease_one()).deadline == found.deadline


async def test_an_execution_without_deadline_shows_none(make: Make):
    shop, held = await begun(make)
    assert not held.HasField("deadline")
    assert not (await shop.get()).execution.HasField("deadline")


async def test_a_deadline_does_not_touch_what_has_ended(make: Make):
    shop = await executions(make)
    await shop.start(deadline=soon(0.5))
    await shop.close(await shop.lease_one())
    await shop.start("other", deadline=soon(0.6))
    await shop.park(await shop.lease_one(), names=["never"])
    assert (await shop.lease_one()).id == "other"
    assert kinds(await shop.journal()) == ["STARTED", "COMPLETED"]


# --- ends -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", ["COMPLETED", "FAILED", "CANCELLED"])
async def test_a_close_says_how_it_has_ended(make: Make, outcome: str):
    shop, held = await begun(make)
    await shop.close(held, b"end", outcome=outcome)
    found = await shop.get()
    assert v1.ExecutionState.Name(found.execution.state) == f"EXECUTION_STATE_{outcome}"
    assert kinds([found.end]) == [outcome]
    assert found.end.payload == b"end"
    assert found.execution.HasField("closed_at")


async def test_an_end_is_the_last_record(make: Make):
    shop, held = await begun(make)
    await shop.close(held)
    assert (await shop.journal())[-1] == (await shop.get()).end


async def test_an_open_execution_has_no_end(make: Make):
    shop = await executions(make)
    await shop.start()
    found = await shop.get()
    assert not found.HasField("end")
    assert not found.execution.HasField("closed_at")


async def test_a_result_may_have_a_mebibyte(make: Make):
    shop, held = await begun(make)
    result = b"\xfe" * 2**20
    await shop.close(held, result)
    assert (await shop.get()).end.payload == result


async def test_what_has_ended_is_not_leased(make: Make):
    shop, held = await begun(make)
    await shop.close(held)
    assert await shop.nothing_to_lease()


async def test_what_has_ended_takes_no_signal(make: Make):
    shop, held = await begun(make)
    await shop.close(held)
    assert (await refusal(shop.signal())).code == "EXECUTION_CLOSED"
    assert kinds(await shop.journal()) == ["STARTED", "COMPLETED"]


async def test_what_has_ended_is_not_cancelled(make: Make):
    shop, held = await begun(make)
    await shop.close(held)
    assert (await refusal(shop.cancel())).code == "EXECUTION_CLOSED"


async def test_a_cancellation_is_repeated_after_the_end(make: Make):
    shop, held = await begun(make)
    first = await shop.cancel()
    await shop.close(held, outcome="CANCELLED", seen=first.index)
    again = await shop.cancel()
    assert (again.index, again.repeated_answer) == (first.index, True)
    assert kinds(await shop.journal()) == ["STARTED", "CANCEL", "CANCELLED"]


async def test_what_has_ended_is_not_terminated(make: Make):
    shop, held = await begun(make)
    await shop.close(held)
    assert (await refusal(shop.terminate())).code == "EXECUTION_CLOSED"
    assert await shop.state() == "COMPLETED"


async def test_a_termination_ends_what_is_leased(make: Make):
    shop, held = await begun(make)
    await shop.terminate(reason="by hand")
    assert await shop.state() == "TERMINATED"
    assert (await refusal(shop.close(held))).code in ("EXECUTION_CLOSED", "LEASE_LOST")
    assert b"by hand" in (await shop.get()).end.payload


async def test_a_termination_ends_what_is_parked(make: Make):
    shop, held = await begun(make)
    await shop.park(held, names=["never"])
    await shop.terminate()
    assert await shop.state() == "TERMINATED"
    assert await shop.nothing_to_lease()


async def test_a_termination_ends_what_is_stuck(make: Make):
    shop, held = await begun(make)
    await shop.give_back(held, "defect", stuck=True)
    await shop.terminate()
    assert await shop.state() == "TERMINATED"


async def test_a_termination_ends_what_waits_for_a_worker(make: Make):
    shop = await executions(make)
    await shop.start()
    await shop.terminate()
    assert await shop.nothing_to_lease()


async def test_a_termination_ends_what_begins_later(make: Make):
    shop = await executions(make)
    await shop.start(start_at=soon(HOUR_S))
    await shop.terminate()
    assert kinds(await shop.journal()) == ["STARTED", "TERMINATED"]


async def test_a_termination_that_is_repeated_gets_its_first_answer(make: Make):
    shop = await executions(make)
    await shop.start()
    first = await shop.terminate()
    again = await shop.terminate()
    assert (again.index, again.repeated_answer) == (first.index, True)
    assert not first.repeated_answer


async def test_an_execution_of_another_queue_is_not_touched(make: Make):
    one, other = await executions(make), await executions(make)
    await one.start()
    await other.start()
    await one.terminate()
    assert await other.state() == "RUNNABLE"


# --- reads ----------------------------------------------------------------------------------------


async def test_an_execution_shows_what_it_is(make: Make):
    shop = await executions(make)
    before_s = time.time()
    started = await shop.start("order-17", "checkout", b"args", version="abc")
    found = (await shop.get("order-17")).execution
    assert (found.id, found.function, found.version) == ("order-17", "checkout", "abc")
    assert (found.run, found.execution, found.partition) == (
        1, started.execution, started.partition,
    )  # fmt: skip
    assert abs(found.created_at.ToMilliseconds() / 1000 - before_s) < HOUR_S
    assert (found.records, found.unread_signals, found.timers) == (1, 0, 0)


async def test_what_a_replay_needs_comes_with_an_execution(make: Make):
    shop, held = await begun(make)
    timers = [v1.Timer(path=bytes([one]), due_ms=held.now_ms + HOUR_S * 1000) for one in (1, 2)]
    await shop.park(held, paths=[b"\x01"], timers=timers)
    found = await shop.get(for_replay=True)
    assert found.replay == v1.ExecutionReplay(
        origin_run=1, timers=[b"\x01", b"\x02"], next_index=1,
        chance=blake2b(b"chance", key=held.secret, digest_size=16).digest(),
    )  # fmt: skip
    assert held.secret not in found.SerializeToString()
    await shop.rewind(0)
    found = await shop.get(for_replay=True)
    assert (found.execution.run, found.replay.origin_run, list(found.replay.timers)) == (2, 1, [])
    assert not (await shop.get()).HasField("replay")


async def test_an_unknown_id_is_not_found(make: Make):
    shop = await executions(make)
    for call in (
        shop.get("nothing"), shop.journal("nothing"), shop.signal("nothing"),
        shop.cancel("nothing"), shop.terminate("nothing"), shop.retry("nothing"),
    ):  # fmt: skip
        assert (await refusal(call)).code == "EXECUTION_NOT_FOUND"


async def test_a_list_has_all_executions(make: Make):
    shop = await executions(make, partitions=3)
    for number in range(12):
        await shop.start(f"e-{number}")
    assert sorted(await shop.list()) == sorted(f"e-{number}" for number in range(12))


async def test_a_list_of_nothing_is_empty(make: Make):
    assert await (await executions(make)).list() == []


async def test_a_list_comes_in_pages(make: Make):
    shop = await executions(make, partitions=2)
    for number in range(7):
        await shop.start(f"e-{number}")
    listed = await shop.list(page_size=2)
    assert sorted(listed) == sorted(f"e-{number}" for number in range(7))


async def test_a_list_is_filtered_by_function(make: Make):
    shop = await executions(make)
    await shop.start("one", "f")
    await shop.start("two", "g")
    assert await shop.list(function="g") == ["two"]
    assert await shop.list(function="h") == []


async def test_a_list_is_filtered_by_state(make: Make):
    shop = await executions(make)
    for id_ in ("ends", "parks", "sticks", "waits"):
        await shop.start(id_)
    held = {one.id: one for one in await shop.lease(4)}
    await shop.close(held["ends"])
    await shop.park(held["parks"], names=["word"])
    await shop.give_back(held["sticks"], "defect", stuck=True)
    assert await shop.list(state="COMPLETED") == ["ends"]
    assert await shop.list(state="PARKED") == ["parks"]
    assert await shop.list(state="STUCK") == ["sticks"]
    assert await shop.list(state="RUNNABLE") == ["waits"]
    assert await shop.list(state="FAILED") == []


async def test_a_list_is_filtered_by_function_and_state(make: Make):
    shop = await executions(make)
    for id_, function in (("one", "f"), ("two", "g"), ("three", "g")):
        await shop.start(id_, function)
    await shop.terminate("two")
    assert await shop.list(function="g", state="TERMINATED") == ["two"]
    assert await shop.list(function="f", state="TERMINATED") == []


async def test_an_execution_that_ends_leaves_the_list_of_its_state(make: Make):
    shop, held = await begun(make)
    assert await shop.list(state="RUNNABLE") == ["e"]
    await shop.close(held)
    assert await shop.list(state="RUNNABLE") == []
    assert await shop.list() == ["e"]


# --- queues ---------------------------------------------------------------------------------------


async def test_a_queue_of_items_has_no_executions(make: Make):
    stranger = Executions(await make(), make.nodes)
    for call in (stranger.start(), stranger.get(), stranger.list(), stranger.lease()):
        refused = await refusal(call)
        assert refused.code == "QUEUE_KIND"
        assert "executions need a queue of kind executions" in refused.message


async def test_a_queue_that_does_not_exist_has_no_executions(make: Make):
    stranger = Executions(make.queue(), make.nodes)
    for call in (stranger.start(), stranger.get(), stranger.list(), stranger.lease()):
        assert (await refusal(call)).code == "QUEUE_NOT_FOUND"


async def test_a_queue_of_executions_takes_no_items(make: Make):
    shop = await executions(make)
    refused = await refusal(shop.queue.produce("a"))
    assert refused.code == "QUEUE_KIND"
    assert "is of kind executions: it has executions, and no items" in refused.message
    await shop.start()
    assert (await refusal(shop.queue.lease())).code == "QUEUE_KIND"
    assert (await shop.lease_one()).id == "e"


async def test_the_number_of_partitions_cannot_be_changed(make: Make):
    shop = await executions(make, partitions=2)
    refused = await refusal(shop.queue.update(partitions=4))
    assert (refused.code, refused.field) == ("QUEUE_KIND", "settings.partitions")


async def test_a_deleted_queue_takes_its_executions_along(make: Make):
    shop, held = await begun(make)
    await shop.queue.delete()
    for call in (shop.get(), shop.close(held)):
        assert (await refusal(call)).code in ("QUEUE_NOT_FOUND", "QUEUE_DELETING")


async def test_a_queue_that_is_made_again_knows_no_execution(make: Make):
    shop, held = await begun(make)
    await shop.queue.delete()
    async for _ in looks():
        with contextlib.suppress(Refused):
            # Its data may still be there.
            await shop.queue.create(kind=QueueKind.QUEUE_KIND_EXECUTIONS)
            break
    assert (await refusal(shop.get())).code == "EXECUTION_NOT_FOUND"
    assert (await refusal(shop.close(held))).code == "LEASE_LOST"
    assert not (await shop.start()).attached
