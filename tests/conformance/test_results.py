"""Results: what asks for one, returns one, and waits for one; and how an item ends without one."""

import asyncio
from typing import Any

import pytest

from querator.v1 import items_pb2
from querator.v1 import queue_service_pb2 as pb
from querator.v1.items_pb2 import Item
from tests.conformance.door import Door
from tests.conformance.make import Make
from tests.conformance.queues import DONE, LOST, REPEATED, Queue, refusal, soon, span

FULL = b"x" * 1_048_576


def asks(text: str = "a", keep_s: float = 600, **fields: Any) -> Item:
    """An item that asks for its result."""
    return Item(payload=text.encode(), keep_result=span(keep_s), **fields)


async def asked(make: Make, *texts: str, **settings: Any) -> tuple[Queue, list[str]]:
    """Items that have asked for their results, with their ids."""
    queue = await make(**settings)
    produced = await queue.produce(*map(asks, texts or ("a",)))
    return queue, [one.id for one in produced]


async def test_a_result_is_what_the_consumer_has_returned(make: Make):
    queue, [item_id] = await asked(make)
    assert await queue.answer([await queue.lease_one()], [b"\0\xff done"]) == [DONE]
    end = await queue.end(item_id)
    assert (end.outcome, end.data) == (pb.ITEM_OUTCOME_COMPLETED, b"\0\xff done")
    assert end.HasField("ended_at")


async def test_a_complete_without_a_result_leaves_an_empty_one(make: Make):
    queue, [item_id] = await asked(make)
    assert await queue.complete(await queue.lease_one()) == [DONE]
    end = await queue.end(item_id)
    assert (end.outcome, end.data) == (pb.ITEM_OUTCOME_COMPLETED, b"")


async def test_a_wait_ends_when_the_item_does(make: Make):
    queue, [item_id] = await asked(make)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(queue.end(item_id))
        item = await queue.lease_one()
        assert not waiting.done()
        await queue.answer([item], [b"done"])
    assert waiting.result().data == b"done"


async def test_a_call_that_does_not_wait_is_empty_before_the_end(make: Make):
    queue, [item_id] = await asked(make)
    assert await queue.ends(item_id) == {}


async def test_a_wait_that_times_out_is_empty(make: Make):
    queue, [item_id] = await asked(make)
    assert await queue.ends(item_id, wait_s=0.2) == {}


async def test_a_result_can_be_read_again(make: Make):
    queue, [item_id] = await asked(make)
    await queue.answer([await queue.lease_one()], [b"done"])
    assert [(await queue.end(item_id)).data for _ in range(3)] == [b"done"] * 3


async def test_one_complete_returns_many_results(make: Make):
    queue, ids = await asked(make, *[f"item {number}" for number in range(100)])
    items = await queue.lease(100)
    assert await queue.answer(items, [item.text.encode() for item in items]) == [DONE] * 100
    ends = await queue.ends(*ids)
    assert [ends[one].data for one in ids] == [b"item %d" % number for number in range(100)]


async def test_a_wait_for_many_returns_those_that_have_ended(make: Make):
    queue, ids = await asked(make, "a", "b", "c")
    items = await queue.lease(3)
    await queue.complete(items[1])
    assert list(await queue.ends(*ids, wait_s=20)) == [items[1].id]


async def test_results_larger_than_a_reply_come_by_several_calls(make: Make):
    queue, ids = await asked(make, *"abcd")
    for item in await queue.lease(4):
        await queue.answer([item], [FULL])
    found = await queue.ends(*ids)
    assert 0 < len(found) < 4
    found |= await queue.ends(*(one for one in ids if one not in found))
    assert {one.data for one in found.values()} == {FULL}
    assert set(found) == set(ids)


async def test_the_first_result_of_an_item_stays(make: Make):
    queue, [item_id] = await asked(make)
    item = await queue.lease_one()
    await queue.answer([item], [b"first"])
    assert await queue.answer([item], [b"second"]) == [REPEATED]
    assert (await queue.end(item_id)).data == b"first"


async def test_a_lease_that_has_ended_returns_nothing(make: Make):
    queue, [item_id] = await asked(make)
    item = await queue.lease_one()
    await queue.retry(item)
    assert await queue.answer([item], [b"late"]) == [LOST]
    assert await queue.ends(item_id) == {}
    await queue.answer([await queue.lease_one()], [b"done"])
    assert (await queue.end(item_id)).data == b"done"


async def test_a_rejected_item_answers_with_its_error(make: Make):
    queue, [item_id] = await asked(make)
    await queue.reject(await queue.lease_one(), error="bounced")
    end = await queue.end(item_id)
    assert (end.outcome, end.reason) == (pb.ITEM_OUTCOME_DEAD, items_pb2.DEAD_REASON_REJECTED)
    assert (end.error, end.attempts, end.data) == ("bounced", 1, b"")


async def test_an_item_whose_attempts_are_used_up_answers_with_the_last_error(make: Make):
    queue, [item_id] = await asked(make, max_attempts=2)
    for error in ("slow", "broken"):
        await queue.retry(await queue.lease_one(), error=error)
    end = await queue.end(item_id)
    assert (end.reason, end.error) == (items_pb2.DEAD_REASON_ATTEMPTS, "broken")
    assert end.attempts == 2


async def test_an_item_that_lapses_for_the_last_time_answers(make: Make):
    queue, [item_id] = await asked(make, max_attempts=1)
    await queue.lease_one(timeout_s=1)
    end = await queue.end(item_id)
    assert (end.reason, end.error) == (items_pb2.DEAD_REASON_ATTEMPTS, "")


async def test_an_item_that_expires_answers(make: Make):
    queue = await make()
    [produced] = await queue.produce(asks(expire_timeout=span(0.1)))
    end = await queue.end(produced.id)
    assert (end.reason, end.attempts) == (items_pb2.DEAD_REASON_EXPIRED, 0)


async def test_a_redriven_item_does_not_change_the_answer(make: Make):
    dead = await make()
    queue, [item_id] = await asked(make, dead_queue=dead.name)
    await queue.reject(await queue.lease_one(), error="bounced")
    letter = await dead.lease_one()
    await dead.release(letter)
    assert await queue.redrive(letter.id) == 1
    again = await queue.lease_one()
    assert await queue.answer([again], [b"late"]) == [DONE]
    assert (await queue.end(item_id)).error == "bounced"
    assert (await queue.end(again.id)).outcome == pb.ITEM_OUTCOME_NONE


async def test_a_retried_item_is_still_waited_for(make: Make):
    queue, [item_id] = await asked(make)
    await queue.retry(await queue.lease_one(), error="busy", at=soon(0.2))
    assert await queue.ends(item_id) == {}
    await queue.answer([await queue.lease_one()], [b"done"])
    end = await queue.end(item_id)
    assert (end.outcome, end.data, end.error) == (pb.ITEM_OUTCOME_COMPLETED, b"done", "")


async def test_a_purged_item_answers_that_it_was_removed(make: Make):
    queue, [item_id] = await asked(make)
    await queue.purge()
    assert (await queue.end(item_id)).outcome == pb.ITEM_OUTCOME_REMOVED


async def test_a_replaced_item_answers_that_it_was_removed(make: Make):
    queue = await make(dedup_until="DEDUP_UNTIL_DONE")
    [first] = await queue.produce(asks(dedup_key="k"))
    replacing = Item(dedup_key="k", on_duplicate=items_pb2.ON_DUPLICATE_REPLACE)
    await queue.produce(replacing)
    assert (await queue.end(first.id)).outcome == pb.ITEM_OUTCOME_REMOVED


async def test_a_duplicate_shares_the_result_of_the_first_item(make: Make):
    queue = await make()
    [first] = await queue.produce(asks(dedup_key="k"))
    [second] = await queue.produce(asks(dedup_key="k"))
    assert (second.id, second.duplicate) == (first.id, True)
    await queue.answer([await queue.lease_one()], [b"shared"])
    assert (await queue.end(second.id)).data == b"shared"


async def test_an_item_that_has_not_asked_has_no_result(make: Make):
    queue = await make()
    [produced] = await queue.produce("plain")
    end = await queue.end(produced.id)
    assert (end.outcome, end.error) == (
        pb.ITEM_OUTCOME_NONE, "the item was produced without keep_result",
    )  # fmt: skip
    assert await queue.answer([await queue.lease_one()], [b"dropped"]) == [DONE]
    assert (await queue.end(produced.id)).outcome == pb.ITEM_OUTCOME_NONE


async def test_an_item_that_was_never_produced_has_no_result(make: Make):
    queue = await make()
    assert (await queue.end("0-99")).error == "the queue has no such item"
    assert "no partition 7" in (await queue.end("7-1")).error


async def test_the_counts_have_the_results(make: Make):
    queue, _ = await asked(make, "a", "b")
    await queue.answer([await queue.lease_one()], [b"done"])
    assert await queue.counts("results", "result_bytes") == {"results": 2, "result_bytes": 4}


async def test_keep_result_over_an_hour_is_refused(make: Make):
    queue = await make()
    said = await refusal(queue.produce(asks(keep_s=3601)))
    assert said.facts == (
        "LIMIT_EXCEEDED", "items[0].keep_result", "3600000 ms", "3601000 ms",
    )  # fmt: skip


async def test_keep_result_of_an_item_that_replaces_another_is_refused(make: Make):
    queue = await make(dedup_until="DEDUP_UNTIL_DONE")
    item = asks(dedup_key="k", on_duplicate=items_pb2.ON_DUPLICATE_REPLACE)
    said = await refusal(queue.produce(item))
    assert (said.code, said.field) == ("INVALID_ARGUMENT", "items[0].keep_result")


async def test_keep_result_of_a_follow_up_is_refused(make: Make):
    queue, _ = await asked(make)
    item = await queue.lease_one()
    said = await refusal(queue.complete(item, follow_ups=[pb.FollowUps(items=[asks()])]))
    assert (said.code, said.field) == ("INVALID_ARGUMENT", "follow_ups[0].items[0].keep_result")
    assert await queue.complete(item) == [DONE]


async def test_a_result_over_1_mib_is_refused(make: Make):
    queue, [item_id] = await asked(make)
    item = await queue.lease_one()
    said = await refusal(queue.answer([item], [FULL + b"x"]))
    assert said.facts == (
        "LIMIT_EXCEEDED", "results[0].data", "1048576 bytes", "1048577 bytes",
    )  # fmt: skip
    await queue.answer([item], [FULL])
    assert (await queue.end(item_id)).data == FULL


async def test_a_result_of_a_lease_that_is_not_named_is_refused(make: Make):
    queue, _ = await asked(make)
    item = await queue.lease_one()
    other = pb.ItemResult(lease_id="1.0.1", seq=item.seq, data=b"x")
    said = await refusal(queue.complete(item, results=[other]))
    assert (said.code, said.field) == ("INVALID_ARGUMENT", "results[0].lease_id")


async def test_a_wait_for_items_of_a_queue_that_does_not_exist_is_refused(make: Make):
    said = await refusal(make.queue().ends("0-1"))
    assert (said.code, said.field) == ("QUEUE_NOT_FOUND", "queue")


async def test_the_deletion_of_the_queue_ends_a_wait(make: Make):
    queue, [item_id] = await asked(make)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(refusal(queue.end(item_id)))
        await queue.delete()
    assert waiting.result().code in ("QUEUE_DELETING", "QUEUE_NOT_FOUND")


@pytest.mark.sizes(3)
async def test_a_result_that_was_returned_through_one_node_is_read_through_another(make: Make):
    queue, [item_id] = await asked(make)
    other: Door = make.open(1)
    elsewhere = queue.through(other, make.nodes[1])
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(elsewhere.end(item_id))
        await queue.answer([await queue.lease_one()], [b"done"])
    assert waiting.result().data == b"done"
