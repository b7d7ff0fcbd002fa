"""Items that executions produce: stored with their records, once each, in queues of items."""

import time
from typing import Any

import pytest

from querator.v1 import admin_service_pb2 as admin
from querator.v1 import execution_service_pb2 as v1
from querator.v1 import queue_service_pb2 as pb
from querator.v1.items_pb2 import Item
from tests.conformance.executions import begun, executions, kinds, step
from tests.conformance.make import Make
from tests.conformance.queues import Queue, instant, refusal, span, texts

pytestmark = pytest.mark.doors("unary", "streams-1")

ONE, TWO = b"\x01", b"\x02"


def items(queue: Queue | str, *payloads: str, **fields: Any) -> pb.FollowUps:
    name = queue if isinstance(queue, str) else queue.name
    return pb.FollowUps(
        queue=name, items=[Item(payload=one.encode(), **fields) for one in payloads]
    )


def produced(path: bytes = ONE, queue: str = "mail") -> v1.JournalRecord:
    """The record that says so."""
    return step(path, name=queue, kind=v1.RECORD_KIND_PRODUCED)


async def test_items_come_with_their_record(make: Make):
    shop, held = await begun(make)
    mail = await make()
    await shop.record(held, produced(), produced=[items(mail, "one", "two")])
    assert kinds(await shop.journal()) == ["STARTED", "PRODUCED"]
    assert sorted(texts(await mail.lease(2, wait_s=10))) == ["one", "two"]


async def test_items_go_to_many_queues_at_once(make: Make):
    shop, held = await begun(make)
    mail, audit = await make(), await make(partitions=3)
    await shop.record(
        held, produced(), produced(TWO), produced=[items(mail, "letter"), items(audit, "entry")]
    )
    assert texts([await mail.lease_one(), await audit.lease_one()]) == ["letter", "entry"]


async def test_a_repeat_of_the_record_produces_nothing(make: Make):
    shop, held = await begun(make)
    mail = await make()
    for is_repeat in (False, True):
        answered = await shop.record(held, produced(), number=1, produced=[items(mail, "one")])
        assert answered.repeated_answer is is_repeat
    await mail.until(ready=1)
    assert texts([await mail.lease_one()]) == ["one"]
    await mail.lease_nothing()


async def test_a_repeat_is_answered_when_the_queue_has_gone(make: Make):
    shop, held = await begun(make)
    mail = await make()
    sent = await shop.record(held, produced(), number=1, produced=[items(mail, "one")])
    await mail.delete()
    again = await shop.record(held, produced(), number=1, produced=[items(mail, "one")])
    assert (again.repeated_answer, again.first_index) == (True, sent.first_index)
    late = shop.record(held, produced(TWO), number=2, produced=[items(mail, "two")])
    error = await refusal(late)
    assert error.field == "produced[0].queue"
    assert kinds(await shop.journal()) == ["STARTED", "PRODUCED"]


async def test_a_worker_without_the_lease_produces_nothing(make: Make):
    shop = await executions(make)
    await shop.start()
    held = await shop.lease_one(timeout_s=1)
    mail = await make()
    await shop.lease_one()
    late = await refusal(shop.record(held, produced(), produced=[items(mail, "late")]))
    assert late.code == "LEASE_LOST"
    await mail.lease_nothing()


async def test_the_last_record_produces(make: Make):
    shop, held = await begun(make)
    mail = await make()
    end = v1.Close(outcome=v1.RECORD_KIND_COMPLETED, payload=b"done")
    await shop.record(held, produced(), produced=[items(mail, "bye")], close=end)
    assert texts([await mail.lease_one()]) == ["bye"]


async def test_items_that_are_parked_for_arrive_meanwhile(make: Make):
    """The execution waits for an answer to what it has asked for."""
    shop, held = await begun(make)
    mail = await make()
    park = v1.Park(names=["answer"])
    await shop.record(held, produced(), produced=[items(mail, "question")], park=park)
    asked = await mail.lease_one()
    await mail.complete(asked)
    await shop.signal(name="answer", payload=b"42")
    [again] = await shop.lease()
    assert again.id == held.id


async def test_keys_and_dedup_keys_count_as_for_produced_items(make: Make):
    shop, held = await begun(make)
    mail = await make(partitions=3)
    await mail.produce(Item(payload=b"first", dedup_key="once"))
    await shop.record(held, produced(), produced=[items(mail, "again", dedup_key="once")])
    await shop.record(held, produced(TWO), produced=[items(mail, "keyed", key="k")])
    await mail.until(ready=2)
    assert sorted(texts(await mail.lease(2, wait_s=10))) == ["first", "keyed"]


async def test_delayed_items_wait(make: Make):
    shop, held = await begun(make)
    mail = await make()
    later = items(mail, "later", enqueue_at=instant(time.time() + 3_600))
    await shop.record(held, produced(), produced=[later])
    await mail.until(scheduled=1)


async def test_priorities_and_attributes_arrive(make: Make):
    shop, held = await begun(make)
    mail = await make()
    urgent = items(mail, "urgent", priority=-3, attributes={"trace": "t"})
    await shop.record(held, produced(), produced=[urgent])
    leased = await mail.lease_one()
    assert (leased.priority, leased.attributes) == (-3, {"trace": "t"})


async def test_a_keyed_queue_takes_them_in_their_order(make: Make):
    shop, held = await begun(make)
    mail = await make(kind=admin.QUEUE_KIND_KEYED)
    await shop.record(held, produced(), produced=[items(mail, "one", "two", key="k")])
    for expected in ("one", "two"):
        leased = await mail.lease_one()
        assert leased.text == expected
        await mail.complete(leased)


async def test_a_fair_queue_takes_them_in_their_group(make: Make):
    shop, held = await begun(make)
    mail = await make(kind=admin.QUEUE_KIND_FAIR)
    await shop.record(held, produced(), produced=[items(mail, "one", group="eu.de")])
    assert (await mail.lease_one()).text == "one"


# --- what is refused ------------------------------------------------------------------------------


async def test_a_queue_that_is_not_there_refuses_the_record(make: Make):
    shop, held = await begun(make)
    error = await refusal(
        shop.record(held, produced(), number=1, produced=[items("missing", "one")])
    )
    assert (error.code, error.field) == ("QUEUE_NOT_FOUND", "produced[0].queue")
    assert "nothing was recorded" in error.message
    assert kinds(await shop.journal()) == ["STARTED"]
    await shop.record(held, step(ONE), number=1)


async def test_a_queue_of_executions_takes_no_items(make: Make):
    shop, held = await begun(make)
    error = await refusal(shop.record(held, produced(), produced=[items(shop.queue, "one")]))
    assert (error.code, error.field) == ("QUEUE_KIND", "produced[0].queue")


async def test_items_need_the_record_that_says_so(make: Make):
    shop, held = await begun(make)
    mail = await make()
    error = await refusal(shop.record(held, produced=[items(mail, "one")]))
    assert (error.code, error.field) == ("INVALID_ARGUMENT", "produced")


async def test_the_number_of_items_is_bounded(make: Make):
    shop, held = await begun(make)
    mail = await make()
    error = await refusal(
        shop.record(held, produced(), produced=[items(mail, *map(str, range(1_001)))])
    )
    assert (error.code, error.field) == ("LIMIT_EXCEEDED", "produced")
    assert (error.limit, error.value) == ("1000 items", "1001 items")


async def test_an_execution_does_not_wait_for_results_of_items(make: Make):
    shop, held = await begun(make)
    mail = await make()
    asks = items(mail, "one", keep_result=span(60))
    error = await refusal(shop.record(held, produced(), produced=[asks]))
    assert error.field == "produced[0].items[0].keep_result"


async def test_an_execution_does_not_replace_items(make: Make):
    shop, held = await begun(make)
    mail = await make(dedup_until=admin.DEDUP_UNTIL_DONE)
    replacing = items(mail, "one", dedup_key="k", on_duplicate="ON_DUPLICATE_REPLACE")
    error = await refusal(shop.record(held, produced(), produced=[replacing]))
    assert error.field == "produced[0].items[0].on_duplicate"
