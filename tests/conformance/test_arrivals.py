"""Arrivals: signals, promises and cancellations of executions."""

import asyncio
from typing import Any

import pytest

from querator.v1 import execution_service_pb2 as v1
from tests.conformance.executions import begun, executions, kinds, payloads, step
from tests.conformance.make import Make
from tests.conformance.queues import refusal, soon

pytestmark = pytest.mark.doors("unary", "streams-1")

ONE, TWO = b"\x01", b"\x02"
LARGE = b"x" * 2**20


# --- signals --------------------------------------------------------------------------------------


async def test_a_signal_is_a_record(make: Make):
    shop = await executions(make)
    await shop.start()
    sent = await shop.signal(name="word", payload=b"hello")
    record = (await shop.journal())[1]
    assert (sent.index, sent.repeated_answer) == (1, False)
    assert (record.index, record.kind, record.name, record.payload) == (
        1, v1.RECORD_KIND_SIGNAL, "word", b"hello",
    )  # fmt: skip


async def test_signals_keep_the_order_of_their_answers(make: Make):
    shop = await executions(make)
    await shop.start()
    for number in range(10):
        assert (await shop.signal(payload=b"%d" % number)).index == number + 1
    assert payloads(await shop.journal())[1:] == [b"%d" % number for number in range(10)]


async def test_signals_that_are_sent_at_once_all_arrive(make: Make):
    shop = await executions(make)
    await shop.start()
    sent = await asyncio.gather(*(shop.signal(payload=b"%d" % n) for n in range(30)))
    journal = await shop.journal()
    for number, one in enumerate(sent):
        assert journal[one.index].payload == b"%d" % number
    assert len(journal) == 31


async def test_a_signal_with_a_message_id_arrives_once(make: Make):
    shop = await executions(make)
    await shop.start()
    first = await shop.signal(payload=b"first", message_id="m")
    again = await shop.signal(payload=b"again", message_id="m")
    assert (again.index, again.repeated_answer) == (first.index, True)
    assert payloads(await shop.journal()) == [b"args", b"first"]


async def test_signals_without_a_message_id_are_different_ones(make: Make):
    shop = await executions(make)
    await shop.start()
    await shop.signal()
    await shop.signal()
    assert kinds(await shop.journal()) == ["STARTED", "SIGNAL", "SIGNAL"]


async def test_a_message_id_is_known_while_the_execution_is_parked_and_leased_again(make: Make):
    shop, held = await begun(make)
    await shop.park(held, names=["word"])
    await shop.signal(message_id="m")
    await shop.lease_one()
    assert (await shop.signal(message_id="m")).repeated_answer


async def test_a_message_id_means_another_message_at_each_execution(make: Make):
    shop = await executions(make)
    await shop.start("a")
    await shop.start("b")
    assert not (await shop.signal("a", message_id="m")).repeated_answer
    assert not (await shop.signal("b", message_id="m")).repeated_answer


async def test_a_signal_may_have_a_mebibyte(make: Make):
    shop = await executions(make)
    await shop.start()
    await shop.signal(payload=LARGE)
    assert payloads(await shop.journal()) == [b"args", LARGE]


async def test_a_signal_may_be_empty(make: Make):
    shop = await executions(make)
    await shop.start()
    await shop.signal(payload=b"")
    assert payloads(await shop.journal()) == [b"args", b""]


async def test_a_signal_comes_before_the_first_worker(make: Make):
    shop = await executions(make)
    await shop.start()
    await shop.signal()
    assert kinds((await shop.lease_one()).records) == ["STARTED", "SIGNAL"]


async def test_a_signal_that_comes_while_it_is_leased_stands_in_its_place(make: Make):
    shop, held = await begun(make)
    await shop.record(held, step(ONE, b"1"))
    await shop.signal()
    await shop.record(held, step(TWO, b"2"))
    assert kinds(await shop.journal()) == ["STARTED", "STEP_DONE", "SIGNAL", "STEP_DONE"]
    assert [one.after for one in await shop.journal()] == [0, 0, 0, 0]


async def test_a_record_says_which_arrival_its_code_had(make: Make):
    shop, held = await begun(make)
    arrived = await shop.signal()
    await shop.record(held, step(ONE, after=arrived.index), seen=arrived.index)
    assert (await shop.journal())[-1].after == arrived.index


async def test_unread_signals_are_counted_until_the_code_has_them(make: Make):
    shop, held = await begun(make)
    await shop.signal()
    arrived = await shop.signal()
    assert (await shop.get()).execution.unread_signals == 2
    await shop.record(held, seen=arrived.index)
    assert (await shop.get()).execution.unread_signals == 0


async def test_signals_wake_once(make: Make):
    shop, held = await begun(make)
    await shop.park(held, names=["word"])
    for _ in range(5):
        await shop.signal()
    assert len(await shop.lease(10)) == 1
    assert await shop.nothing_to_lease()


async def test_a_stuck_execution_takes_signals(make: Make):
    shop, held = await begun(make)
    await shop.give_back(held, "defect", stuck=True)
    await shop.signal()
    assert await shop.state() == "STUCK"
    assert await shop.retry()
    assert kinds((await shop.lease_one()).records) == ["STARTED", "SIGNAL"]


async def test_an_execution_that_begins_later_takes_signals(make: Make):
    shop = await executions(make)
    await shop.start(start_at=soon(3600))
    await shop.signal()
    assert kinds(await shop.journal()) == ["STARTED", "SIGNAL"]
    assert await shop.nothing_to_lease()


# --- promises -------------------------------------------------------------------------------------


async def test_a_promise_is_resolved_by_its_proof(make: Make):
    shop, held = await begun(make)
    resolved = await shop.resolve(held, ONE, b"yes")
    assert (resolved.index, resolved.kind, resolved.repeated_answer) == (
        1, v1.RECORD_KIND_RESOLVED, False,
    )  # fmt: skip
    record = (await shop.journal())[1]
    assert (record.path, record.payload) == (ONE, b"yes")


async def test_a_promise_is_rejected(make: Make):
    shop, held = await begun(make)
    rejected = await shop.resolve(held, ONE, b"no", reject=True)
    assert rejected.kind == v1.RECORD_KIND_REJECTED
    assert kinds(await shop.journal()) == ["STARTED", "REJECTED"]


async def test_the_first_resolution_wins(make: Make):
    shop, held = await begun(make)
    first = await shop.resolve(held, ONE, b"yes")
    second = await shop.resolve(held, ONE, b"no", reject=True)
    assert (second.index, second.kind, second.repeated_answer) == (
        first.index, v1.RECORD_KIND_RESOLVED, True,
    )  # fmt: skip
    assert payloads(await shop.journal()) == [b"args", b"yes"]


async def test_one_of_many_resolutions_at_once_wins(make: Make):
    shop, held = await begun(make)
    answers = await asyncio.gather(*(shop.resolve(held, ONE, b"%d" % n) for n in range(20)))
    assert [one.repeated_answer for one in answers].count(False) == 1
    assert {one.index for one in answers} == {1}
    assert len(await shop.journal()) == 2


async def test_promises_at_different_paths_are_different_ones(make: Make):
    shop, held = await begun(make)
    assert (await shop.resolve(held, ONE)).index == 1
    assert (await shop.resolve(held, TWO)).index == 2


async def test_a_promise_may_be_resolved_before_the_code_waits_for_it(make: Make):
    shop, held = await begun(make)
    await shop.resolve(held, ONE)
    await shop.give_back(held)
    assert kinds((await shop.lease_one()).records) == ["STARTED", "RESOLVED"]


async def test_a_resolution_may_have_a_mebibyte(make: Make):
    shop, held = await begun(make)
    await shop.resolve(held, ONE, LARGE)
    assert payloads(await shop.journal()) == [b"args", LARGE]


async def test_a_resolution_wakes_only_what_waits_for_its_path(make: Make):
    shop, held = await begun(make)
    await shop.park(held, paths=[ONE])
    await shop.resolve(held, TWO)
    assert await shop.nothing_to_lease()
    await shop.resolve(held, ONE)
    assert (await shop.lease_one()).id == "e"


@pytest.mark.parametrize(
    "changed",
    [{"proof": bytes(16)}, {"at": b"\x09"}, {"run": 2}],
    ids=["proof", "path", "run"],
)
async def test_a_token_with_another_part_is_refused(make: Make, changed: dict[str, Any]):
    shop, held = await begun(make)
    assert (await refusal(shop.resolve(held, ONE, **changed))).code == "TOKEN_INVALID"
    assert kinds(await shop.journal()) == ["STARTED"]


async def test_a_token_of_another_execution_is_refused(make: Make):
    shop = await executions(make)
    await shop.start("a")
    await shop.start("b")
    held = {one.id: one for one in await shop.lease(2)}
    other: dict[str, Any] = {"execution": held["b"].execution, "partition": held["b"].partition}
    assert (await refusal(shop.resolve(held["a"], ONE, **other))).code == "TOKEN_INVALID"


async def test_a_token_of_no_execution_is_refused(make: Make):
    shop, held = await begun(make)
    refused = await refusal(shop.resolve(held, ONE, execution=held.execution + 1000))
    assert refused.code == "TOKEN_INVALID"


async def test_a_proof_of_another_length_is_refused(make: Make):
    shop, held = await begun(make)
    refused = await refusal(shop.resolve(held, ONE, proof=b"short"))
    assert refused.code in ("INVALID_ARGUMENT", "TOKEN_INVALID")


async def test_a_promise_of_what_has_ended_is_not_resolved(make: Make):
    shop, held = await begun(make)
    await shop.close(held)
    assert (await refusal(shop.resolve(held, ONE))).code == "EXECUTION_CLOSED"


# --- cancellations --------------------------------------------------------------------------------


async def test_a_cancellation_is_a_record_with_its_reason(make: Make):
    shop = await executions(make)
    await shop.start()
    cancelled = await shop.cancel(reason="out of stock")
    assert (cancelled.index, cancelled.repeated_answer) == (1, False)
    record = (await shop.journal())[1]
    assert record.kind == v1.RECORD_KIND_CANCEL
    assert b"out of stock" in record.payload
    assert (await shop.get()).execution.cancelled


async def test_a_cancellation_ends_nothing_by_itself(make: Make):
    shop, held = await begun(make)
    await shop.cancel()
    assert await shop.state() == "RUNNABLE"
    await shop.record(held, step(ONE))
    assert kinds(await shop.journal()) == ["STARTED", "CANCEL", "STEP_DONE"]


async def test_a_cancellation_that_is_repeated_gets_its_first_answer(make: Make):
    shop = await executions(make)
    await shop.start()
    first = await shop.cancel(reason="first")
    again = await shop.cancel(reason="again")
    assert (again.index, again.repeated_answer) == (first.index, True)
    assert kinds(await shop.journal()) == ["STARTED", "CANCEL"]


async def test_a_cancellation_wakes_whatever_it_waits_for(make: Make):
    shop, held = await begun(make)
    await shop.park(held, names=["word"])
    await shop.cancel()
    assert kinds((await shop.lease_one()).records) == ["STARTED", "CANCEL"]


async def test_a_cancellation_wakes_what_waits_for_all_of_several(make: Make):
    shop, held = await begun(make)
    await shop.park(held, paths=[ONE, TWO], all_of=True)
    await shop.cancel()
    assert (await shop.lease_one()).id == "e"


async def test_a_result_wins_over_a_cancellation_that_the_code_has_not_seen(make: Make):
    shop, held = await begun(make)
    await shop.cancel()
    await shop.close(held, b"done")
    assert await shop.state() == "COMPLETED"


async def test_code_that_was_cancelled_may_clean_up_and_park(make: Make):
    shop, held = await begun(make)
    cancelled = await shop.cancel()
    await shop.park(held, step(ONE, after=cancelled.index), seen=cancelled.index, names=["word"])
    assert await shop.state() == "PARKED"
    await shop.signal()
    again = await shop.lease_one()
    await shop.close(again, seen=again.records[-1].index, outcome="CANCELLED")
    assert await shop.state() == "CANCELLED"


async def test_a_cancelled_execution_may_complete(make: Make):
    shop, held = await begun(make)
    cancelled = await shop.cancel()
    await shop.close(held, b"done", seen=cancelled.index)
    assert await shop.state() == "COMPLETED"


async def test_what_begins_later_is_cancelled_at_once(make: Make):
    shop = await executions(make)
    await shop.start(start_at=soon(3600))
    await shop.cancel()
    assert kinds(await shop.journal()) == ["STARTED", "CANCEL"]
