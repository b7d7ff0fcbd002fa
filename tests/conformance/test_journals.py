"""Journals: records, repeats, parking, folds and timers of executions."""

import time

import pytest

from querator.v1 import execution_service_pb2 as v1
from tests.conformance.executions import (
    begun,
    executions,
    kinds,
    payloads,
    step,
    timer,
)
from tests.conformance.make import Make
from tests.conformance.queues import looks, refusal

pytestmark = pytest.mark.doors("unary", "streams-1")

ONE, TWO, THREE = b"\x01", b"\x02", b"\x03"
HOUR_S = 3600


# --- records --------------------------------------------------------------------------------------


async def test_a_record_is_appended_behind_the_last_one(make: Make):
    shop, held = await begun(make)
    first = await shop.record(held, step(ONE, b"1"))
    second = await shop.record(held, step(TWO, b"2"))
    assert (first.first_index, second.first_index) == (1, 2)
    assert payloads(await shop.journal()) == [b"args", b"1", b"2"]


async def test_records_of_one_request_keep_their_order(make: Make):
    shop, held = await begun(make)
    answered = await shop.record(held, *(step(bytes([n]), b"%d" % n) for n in range(1, 101)))
    assert answered.first_index == 1
    assert payloads(await shop.journal()) == [b"args", *(b"%d" % n for n in range(1, 101))]


async def test_a_record_keeps_all_that_it_says(make: Make):
    shop, held = await begun(make)
    said = step(
        ONE, b"\0result", "charge", kind=v1.RECORD_KIND_ATTEMPT_FAILED, site="shop.py:41",
        at_ms=1_700_000_000_000,
    )  # fmt: skip
    await shop.record(held, said)
    kept = (await shop.journal())[1]
    said.index = 1
    assert kept == said


@pytest.mark.parametrize(
    "kind",
    ["STEP_DONE", "STEP_FAILED", "ATTEMPT_FAILED", "STEP_BEGUN", "TIMER_DONE", "CALL_DONE",
     "CALL_FAILED", "PATCHED"],
)  # fmt: skip
async def test_records_of_workers_have_these_kinds(make: Make, kind: str):
    shop, held = await begun(make)
    await shop.record(held, step(ONE, kind=v1.RecordKind.Value(f"RECORD_KIND_{kind}")))
    assert kinds(await shop.journal()) == ["STARTED", kind]


@pytest.mark.parametrize(
    "kind",
    ["STARTED", "COMPLETED", "FAILED", "CANCELLED", "SIGNAL", "RESOLVED", "REJECTED",
     "TIMER_FIRED", "CANCEL", "TERMINATED", "UNSPECIFIED"],
)  # fmt: skip
async def test_a_worker_cannot_record_these_kinds(make: Make, kind: str):
    shop, held = await begun(make)
    record = step(ONE, kind=v1.RecordKind.Value(f"RECORD_KIND_{kind}"))
    refused = await refusal(shop.record(held, record))
    assert (refused.code, refused.field) == ("INVALID_ARGUMENT", "records[0].kind")
    assert kinds(await shop.journal()) == ["STARTED"]


async def test_a_payload_may_have_a_mebibyte(make: Make):
    shop, held = await begun(make)
    large = b"x" * 2**20
    await shop.record(held, step(ONE, b"small"), step(TWO, large), step(THREE, b"small too"))
    assert payloads(await shop.journal()) == [b"args", b"small", large, b"small too"]


async def test_a_journal_comes_in_pages(make: Make):
    shop, held = await begun(make)
    await shop.record(held, *(step(bytes([n]), b"%d" % n) for n in range(1, 8)))
    records = await shop.journal(page=3)
    assert [one.index for one in records] == list(range(8))


async def test_large_records_come_in_further_pages(make: Make):
    shop, held = await begun(make)
    large = b"x" * 2**20
    for number in range(1, 7):
        await shop.record(held, step(bytes([number]), large))
    assert payloads(await shop.journal()) == [b"args", *[large] * 6]


async def test_the_journal_of_what_has_ended_can_be_read(make: Make):
    shop, held = await begun(make)
    await shop.close(held, b"done", step(ONE, b"1"))
    assert kinds(await shop.journal()) == ["STARTED", "STEP_DONE", "COMPLETED"]


async def test_an_execution_counts_its_records_and_bytes(make: Make):
    shop, held = await begun(make)
    before = (await shop.get()).execution
    await shop.record(held, step(ONE, b"x" * 500), step(TWO))
    after = (await shop.get()).execution
    assert after.records - before.records == 2
    assert after.journal_bytes - before.journal_bytes >= 500


async def test_a_request_without_records_is_answered(make: Make):
    shop, held = await begun(make)
    await shop.record(held)
    assert kinds(await shop.journal()) == ["STARTED"]


async def test_the_next_worker_gets_the_journal(make: Make):
    shop, held = await begun(make)
    await shop.record(held, step(ONE, b"1"))
    await shop.give_back(held)
    again = await shop.lease_one()
    assert payloads(again.records) == [b"args", b"1"]
    assert again.next_index == 0
    assert (again.id, again.function, again.version, again.run) == ("e", "f", "1", 1)
    assert again.secret == held.secret


async def test_a_long_journal_comes_with_its_beginning(make: Make):
    shop, held = await begun(make)
    for number in range(1, 4):
        await shop.record(held, step(bytes([number]), b"x" * 40_000))
    await shop.give_back(held)
    again = await shop.lease_one()
    assert again.next_index > 0
    assert [one.index for one in again.records] == list(range(again.next_index))
    assert len(await shop.journal()) == 4


async def test_each_execution_has_a_secret_of_its_own(make: Make):
    shop = await executions(make)
    await shop.start("a")
    await shop.start("b")
    one, other = await shop.lease(2)
    assert len(one.secret) == len(other.secret) == 16
    assert one.secret != other.secret


# --- repeats --------------------------------------------------------------------------------------


async def test_a_request_that_is_repeated_gets_its_first_answer(make: Make):
    shop, held = await begun(make)
    first = await shop.record(held, step(ONE, b"1"), number=1)
    again = await shop.record(held, step(ONE, b"1"), number=1)
    assert (again.first_index, again.repeated_answer) == (first.first_index, True)
    assert not first.repeated_answer
    assert payloads(await shop.journal()) == [b"args", b"1"]


async def test_a_repeat_may_come_after_later_requests(make: Make):
    shop, held = await begun(make)
    for number in range(1, 9):
        await shop.record(held, step(bytes([number])), number=number)
    again = await shop.record(held, step(ONE), number=1)
    assert (again.first_index, again.repeated_answer) == (1, True)
    assert len(await shop.journal()) == 9


async def test_a_park_that_is_repeated_gets_its_first_answer(make: Make):
    shop, held = await begun(make)
    park = v1.Park(names=["word"])
    await shop.record(held, step(ONE), number=1, park=park)
    again = await shop.record(held, step(ONE), number=1, park=park)
    assert (again.first_index, again.repeated_answer) == (1, True)
    assert await shop.state() == "PARKED"


async def test_a_close_that_is_repeated_gets_its_first_answer(make: Make):
    shop, held = await begun(make)
    end = v1.Close(outcome=v1.RECORD_KIND_COMPLETED, payload=b"done")
    await shop.record(held, step(ONE), number=1, close=end)
    again = await shop.record(held, step(ONE), number=1, close=end)
    assert (again.first_index, again.repeated_answer) == (1, True)
    assert kinds(await shop.journal()) == ["STARTED", "STEP_DONE", "COMPLETED"]


async def test_a_number_that_is_left_out_is_refused(make: Make):
    shop, held = await begun(make)
    refused = await refusal(shop.record(held, step(ONE), number=2))
    assert (refused.code, refused.field) == ("SEQUENCE_GAP", "number")
    assert kinds(await shop.journal()) == ["STARTED"]


async def test_the_numbers_of_the_next_lease_begin_at_1(make: Make):
    shop, held = await begun(make)
    await shop.record(held, step(ONE))
    await shop.give_back(held)
    again = await shop.lease_one()
    assert (await shop.record(again, step(TWO), number=1)).first_index == 2


# --- parking --------------------------------------------------------------------------------------


async def test_a_parked_execution_is_not_leased(make: Make):
    shop, held = await begun(make)
    await shop.park(held, names=["word"])
    assert await shop.state() == "PARKED"
    assert await shop.nothing_to_lease()


async def test_a_park_and_the_records_before_it_are_one_request(make: Make):
    shop, held = await begun(make)
    await shop.park(held, step(ONE, b"1"), names=["word"])
    assert payloads(await shop.journal()) == [b"args", b"1"]
    assert await shop.state() == "PARKED"


async def test_a_park_ends_the_lease(make: Make):
    shop, held = await begun(make)
    await shop.park(held, names=["word"])
    assert (await refusal(shop.record(held, step(ONE)))).code == "LEASE_LOST"


async def test_a_park_for_a_name_is_woken_by_its_signal(make: Make):
    shop, held = await begun(make)
    await shop.park(held, names=["word"])
    await shop.signal(name="word")
    assert kinds((await shop.lease_one()).records) == ["STARTED", "SIGNAL"]


async def test_a_park_for_a_name_sleeps_through_other_signals(make: Make):
    shop, held = await begun(make)
    await shop.park(held, names=["word"])
    await shop.signal(name="other")
    assert await shop.nothing_to_lease()
    assert await shop.state() == "PARKED"
    assert kinds(await shop.journal()) == ["STARTED", "SIGNAL"]


async def test_a_park_for_anything_is_woken_by_any_signal(make: Make):
    shop, held = await begun(make)
    await shop.park(held, anything=True)
    await shop.signal(name="whatever")
    assert (await shop.lease_one()).id == "e"


async def test_a_park_for_paths_is_woken_by_the_first(make: Make):
    shop, held = await begun(make)
    await shop.park(held, paths=[ONE, TWO], timers=[timer(ONE, time.time() + HOUR_S)])
    await shop.resolve(held, TWO)
    assert kinds((await shop.lease_one()).records) == ["STARTED", "RESOLVED"]


async def test_a_park_for_all_paths_is_woken_by_the_last(make: Make):
    shop, held = await begun(make)
    await shop.park(held, paths=[ONE, TWO], all_of=True)
    await shop.resolve(held, TWO)
    assert await shop.nothing_to_lease()
    await shop.resolve(held, ONE)
    assert kinds((await shop.lease_one()).records) == ["STARTED", "RESOLVED", "RESOLVED"]


async def test_a_park_over_a_signal_that_it_waits_for_is_refused(make: Make):
    shop, held = await begun(make)
    await shop.signal(name="word")
    refused = await refusal(shop.park(held, step(ONE), names=["word"]))
    assert refused.code == "UNSEEN"
    assert kinds(await shop.journal()) == ["STARTED", "SIGNAL"]
    assert await shop.state() == "RUNNABLE"


async def test_the_worker_continues_after_a_park_that_was_refused(make: Make):
    shop, held = await begun(make)
    arrived = await shop.signal(name="word")
    await refusal(shop.record(held, number=1, park=v1.Park(names=["word"])))
    await shop.record(held, step(ONE), number=1, seen=arrived.index)
    assert kinds(await shop.journal()) == ["STARTED", "SIGNAL", "STEP_DONE"]


async def test_a_park_over_a_signal_that_the_code_has_is_taken(make: Make):
    shop, held = await begun(make)
    arrived = await shop.signal(name="word")
    await shop.park(held, seen=arrived.index, names=["word"])
    assert await shop.state() == "PARKED"


async def test_a_park_over_a_cancellation_is_refused(make: Make):
    shop, held = await begun(make)
    await shop.cancel()
    assert (await refusal(shop.park(held, names=["word"]))).code == "UNSEEN"


async def test_a_park_over_a_resolution_is_refused(make: Make):
    shop, held = await begun(make)
    await shop.resolve(held, ONE)
    assert (await refusal(shop.park(held, paths=[ONE]))).code == "UNSEEN"


async def test_a_park_for_nothing_is_refused(make: Make):
    shop, held = await begun(make)
    refused = await refusal(shop.park(held))
    assert (refused.code, refused.field) == ("INVALID_ARGUMENT", "park")
    assert await shop.state() == "RUNNABLE"


async def test_an_execution_may_park_again_and_again(make: Make):
    shop, held = await begun(make)
    for number in range(5):
        seen = (await shop.journal())[-1].index
        await shop.park(held, seen=seen, names=["word"])
        await shop.signal(payload=b"%d" % number)
        held = await shop.lease_one()
    assert payloads(held.records) == [b"args", b"0", b"1", b"2", b"3", b"4"]


async def test_a_close_that_drains_is_refused_over_an_unread_signal(make: Make):
    shop, held = await begun(make)
    arrived = await shop.signal()
    assert (await refusal(shop.close(held, drain=True))).code == "UNSEEN"
    assert await shop.state() == "RUNNABLE"
    await shop.record(
        held, number=1, seen=arrived.index,
        close=v1.Close(outcome=v1.RECORD_KIND_COMPLETED, drain=True),
    )  # fmt: skip
    assert await shop.state() == "COMPLETED"


async def test_a_close_leaves_unread_signals_in_the_journal(make: Make):
    shop, held = await begun(make)
    await shop.signal()
    await shop.close(held)
    found = (await shop.get()).execution
    assert (found.unread_signals, found.records) == (1, 3)


# --- timers ---------------------------------------------------------------------------------------


async def test_a_timer_wakes_what_waits_for_it(make: Make):
    shop, held = await begun(make)
    due_s = time.time() + 0.5
    await shop.park(held, paths=[ONE], timers=[timer(ONE, due_s)])
    again = await shop.lease_one()
    assert time.time() > due_s - 0.5
    assert (again.records[1].kind, again.records[1].path) == (v1.RECORD_KIND_TIMER_FIRED, ONE)


async def test_a_timer_of_the_past_fires_at_once(make: Make):
    shop, held = await begun(make)
    await shop.park(held, paths=[ONE], timers=[timer(ONE, time.time() - HOUR_S)])
    assert kinds((await shop.lease_one()).records) == ["STARTED", "TIMER_FIRED"]


async def test_timers_fire_in_the_order_of_their_times(make: Make):
    shop, held = await begun(make)
    now_s = time.time()
    timers = [timer(ONE, now_s + 0.8), timer(TWO, now_s + 0.3)]
    await shop.park(held, paths=[ONE, TWO], all_of=True, timers=timers)
    assert [one.path for one in (await shop.lease_one()).records[1:]] == [TWO, ONE]


async def test_a_timer_that_is_not_waited_for_wakes_nothing(make: Make):
    shop, held = await begun(make)
    await shop.park(held, names=["word"], timers=[timer(ONE, time.time() - 1)])
    assert await shop.nothing_to_lease()
    assert await shop.state() == "PARKED"
    assert kinds(await shop.journal()) == ["STARTED", "TIMER_FIRED"]


async def test_a_timer_fires_while_the_execution_is_leased(make: Make):
    shop, held = await begun(make)
    await shop.record(held, timers=[timer(ONE, time.time() + 0.1)])
    async for _ in looks():
        if len(await shop.journal()) == 2:
            break
    assert kinds(await shop.journal()) == ["STARTED", "TIMER_FIRED"]
    assert (await refusal(shop.park(held, paths=[ONE]))).code == "UNSEEN"


async def test_a_timer_may_be_withdrawn(make: Make):
    shop, held = await begun(make)
    await shop.record(held, timers=[timer(ONE, time.time() + HOUR_S)])
    assert (await shop.get()).execution.timers == 1
    await shop.record(held, timers=[v1.Timer(path=ONE)])
    assert (await shop.get()).execution.timers == 0


async def test_a_timer_may_be_moved(make: Make):
    shop, held = await begun(make)
    await shop.record(held, timers=[timer(ONE, time.time() + HOUR_S)])
    await shop.park(held, paths=[ONE], timers=[timer(ONE, time.time() + 0.1)])
    assert kinds((await shop.lease_one()).records) == ["STARTED", "TIMER_FIRED"]


async def test_a_timer_of_a_year_is_kept(make: Make):
    shop, held = await begun(make)
    await shop.park(held, paths=[ONE], timers=[timer(ONE, time.time() + 366 * 24 * HOUR_S)])
    assert (await shop.get()).execution.timers == 1
    assert await shop.nothing_to_lease()


async def test_a_timer_in_eleven_years_is_refused(make: Make):
    shop, held = await begun(make)
    late = timer(ONE, time.time() + 11 * 366 * 24 * HOUR_S)
    refused = await refusal(shop.park(held, step(ONE), paths=[ONE], timers=[late]))
    assert (refused.code, refused.field) == ("LIMIT_EXCEEDED", "timers[0].due_ms")
    assert kinds(await shop.journal()) == ["STARTED"]


async def test_the_timers_of_what_has_ended_do_not_fire(make: Make):
    shop, held = await begun(make)
    await shop.record(held, timers=[timer(ONE, time.time() + 0.2)])
    await shop.close(held)
    await shop.start("other")
    other = await shop.lease_one()
    await shop.park(other, paths=[ONE], timers=[timer(ONE, time.time() + 0.4)])
    await shop.lease_one()
    assert kinds(await shop.journal()) == ["STARTED", "COMPLETED"]


# --- folds ----------------------------------------------------------------------------------------


async def test_a_fold_puts_a_result_in_the_place_of_its_records(make: Make):
    shop, held = await begun(make)
    below = [step(ONE + bytes([n]), b"%d" % n) for n in (1, 2, 3)]
    await shop.record(held, *below)
    fold = v1.Fold(
        index=3, record=step(ONE, b"six", kind=v1.RECORD_KIND_CALL_DONE),
        removed=[v1.Fold.Run(first=1, count=2)],
    )  # fmt: skip
    await shop.record(held, step(TWO, b"next"), folds=[fold])
    journal = await shop.journal()
    assert [(one.index, one.payload) for one in journal] == [
        (0, b"args"), (3, b"six"), (4, b"next"),
    ]  # fmt: skip
    assert (await shop.get()).execution.records == 3


async def test_a_fold_outside_of_its_call_is_refused(make: Make):
    shop, held = await begun(make)
    await shop.record(held, step(ONE + ONE), step(TWO))
    fold = v1.Fold(
        index=1, record=step(ONE, kind=v1.RECORD_KIND_CALL_DONE),
        removed=[v1.Fold.Run(first=2, count=1)],
    )  # fmt: skip
    refused = await refusal(shop.record(held, folds=[fold]))
    assert refused.code == "INVALID_ARGUMENT"
    assert len(await shop.journal()) == 3


async def test_a_fold_of_what_is_not_there_is_refused(make: Make):
    shop, held = await begun(make)
    fold = v1.Fold(index=7, record=step(ONE, kind=v1.RECORD_KIND_CALL_DONE))
    refused = await refusal(shop.record(held, folds=[fold]))
    assert (refused.code, refused.field) == ("INVALID_ARGUMENT", "folds[0].index")


# --- bounds ---------------------------------------------------------------------------------------


async def test_257_records_are_refused(make: Make):
    shop, held = await begun(make)
    refused = await refusal(shop.record(held, *[step(ONE)] * 257))
    assert refused.facts == ("LIMIT_EXCEEDED", "records", "256", "257")


async def test_257_timers_are_refused(make: Make):
    shop, held = await begun(make)
    refused = await refusal(shop.record(held, timers=[timer(ONE, time.time())] * 257))
    assert refused.facts == ("LIMIT_EXCEEDED", "timers", "256", "257")


async def test_payloads_of_more_than_8_mib_are_refused(make: Make):
    shop, held = await begun(make)
    half = b"x" * (2**22 + 1)
    refused = await refusal(shop.record(held, step(ONE, half), step(TWO, half)))
    assert (refused.code, refused.limit) == ("LIMIT_EXCEEDED", "8388608 bytes")
    assert kinds(await shop.journal()) == ["STARTED"]


async def test_a_path_of_256_bytes_is_refused(make: Make):
    shop, held = await begun(make)
    refused = await refusal(shop.record(held, step(b"\x01" * 256)))
    assert refused.facts == ("LIMIT_EXCEEDED", "records[0].path", "255 bytes", "256 bytes")


async def test_a_path_that_is_not_made_of_numbers_is_refused(make: Make):
    shop, held = await begun(make)
    refused = await refusal(shop.record(held, step(b"\x80")))
    assert (refused.code, refused.field) == ("INVALID_ARGUMENT", "records[0].path")


async def test_a_step_name_of_256_bytes_is_refused(make: Make):
    shop, held = await begun(make)
    refused = await refusal(shop.record(held, step(ONE, name="x" * 256)))
    assert refused.facts == ("LIMIT_EXCEEDED", "records[0].name", "255 bytes", "256 bytes")


async def test_a_refused_record_is_refused_with_all_of_its_request(make: Make):
    shop, held = await begun(make)
    await refusal(shop.record(held, step(ONE, b"1"), step(b"\x80"), number=1))
    assert kinds(await shop.journal()) == ["STARTED"]
    assert (await shop.record(held, step(ONE, b"1"), number=1)).first_index == 1


async def test_what_the_code_has_seen_is_not_in_the_future(make: Make):
    shop, held = await begun(make)
    refused = await refusal(shop.record(held, step(ONE), seen=9))
    assert (refused.code, refused.field) == ("INVALID_ARGUMENT", "seen")
    refused = await refusal(shop.record(held, step(ONE, after=9), number=1))
    assert (refused.code, refused.field) == ("INVALID_ARGUMENT", "records[0].after")
    assert kinds(await shop.journal()) == ["STARTED"]
