"""Lease calls: what a unary lease answers, and how it is repeated."""

import asyncio
import time

import pytest

from querator.v1 import queue_service_pb2 as pb
from querator.v1.items_pb2 import Item
from tests.conformance.door import CALL_S
from tests.conformance.make import Make
from tests.conformance.queues import DONE, Leased, Queue, leased_items, refusal, span, texts
from tests.conformance.stubs import answer

pytestmark = pytest.mark.doors("unary")


async def call(make: Make, queue: Queue, most: int = 10, **fields: object) -> list[Leased]:
    """One lease call, whatever it gets."""
    request = pb.LeaseRequest(
        queue=queue.name,
        max_items=most,
        **{"client_id": "c", **fields},  # type: ignore[arg-type]
    )
    reply = await answer(make.nodes[0].queue.Lease(request, timeout=CALL_S))
    assert reply.durable
    return leased_items(reply.batches)


async def test_a_call_that_does_not_wait_gets_what_is_ready(make: Make):
    queue = await make()
    await queue.produce("a", "b")
    assert texts(await call(make, queue, 10)) == ["a", "b"]


async def test_a_call_that_does_not_wait_gets_nothing_from_an_empty_queue(make: Make):
    queue = await make()
    assert await call(make, queue) == []


async def test_a_call_gets_nothing_while_all_items_are_leased(make: Make):
    queue = await make()
    await queue.produce("a")
    await queue.lease(1)
    assert await call(make, queue, client_id="other") == []


async def test_a_call_that_waits_returns_empty_when_its_wait_is_over(make: Make):
    queue = await make()
    began_s = time.monotonic()
    assert await call(make, queue, wait_timeout=span(0.3)) == []
    assert time.monotonic() - began_s >= 0.3


async def test_a_call_that_waits_returns_with_the_first_item(make: Make):
    queue = await make()
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(call(make, queue, 10, wait_timeout=span(20)))
        await queue.produce("a")
    assert texts(waiting.result()) == ["a"]


async def test_a_call_may_take_more_items_than_are_there(make: Make):
    queue = await make(partitions=3)
    await queue.produce(*(Item(payload=b"x", key=f"k{n}") for n in range(30)))
    taken = await call(make, queue, 1_000)
    while len(taken) < 30:
        more = await call(make, queue, 1_000)
        assert more
        taken += more
    assert len({item.id for item in taken}) == 30


async def test_a_call_of_no_items_is_refused(make: Make):
    queue = await make()
    said = await refusal(call(make, queue, 0))
    assert said.facts == ("LIMIT_EXCEEDED", "max_items", "1 items", "0 items")


async def test_a_wait_of_more_than_15_minutes_is_refused(make: Make):
    queue = await make()
    said = await refusal(call(make, queue, wait_timeout=span(901)))
    assert said.facts == ("LIMIT_EXCEEDED", "wait_timeout", "900000 ms", "901000 ms")


async def test_a_reply_has_no_more_bytes_than_were_asked_for(make: Make):
    queue = await make()
    await queue.produce(*[Item(payload=bytes(1_000))] * 10)
    taken = await call(make, queue, 10, max_bytes=3_500)
    assert len(taken) == 3
    assert await queue.counts() == {"ready": 7, "leased": 3}


async def test_a_reply_has_at_most_3_mib_unless_more_is_asked_for(make: Make):
    queue = await make()
    for _ in range(5):
        await queue.produce(Item(payload=bytes(1_000_000)))
    assert len(await call(make, queue, 10)) == 3
    assert len(await call(make, queue, 10)) == 2


async def test_a_repeated_request_gets_the_same_lease(make: Make):
    queue = await make()
    await queue.produce(*"abc")
    first = await call(make, queue, 2, request_id="r1")
    again = await call(make, queue, 2, request_id="r1", partition=0)
    assert [(one.id, one.lease_id) for one in again] == [(one.id, one.lease_id) for one in first]
    assert not any(one.repeated for one in first)
    assert all(one.repeated for one in again)
    assert await queue.counts() == {"ready": 1, "leased": 2}


async def test_a_request_of_another_name_gets_other_items(make: Make):
    queue = await make()
    await queue.produce("a", "b")
    first = await call(make, queue, 1, request_id="r1")
    second = await call(make, queue, 1, request_id="r2")
    assert texts(first + second) == ["a", "b"]


async def test_the_same_request_name_of_another_client_gets_other_items(make: Make):
    queue = await make()
    await queue.produce("a", "b")
    first = await call(make, queue, 1, request_id="r", client_id="one")
    second = await call(make, queue, 1, request_id="r", client_id="other")
    assert texts(first + second) == ["a", "b"]


async def test_a_repeat_after_the_lease_has_ended_is_refused(make: Make):
    queue = await make()
    await queue.produce("a", "b")
    [item] = await call(make, queue, 1, request_id="r1")
    assert await queue.complete(item) == [DONE]
    said = await refusal(call(make, queue, 1, request_id="r1", partition=0))
    assert said.code == "LEASE_ENDED"
    assert await queue.counts() == {"ready": 1}


async def test_a_repeat_gets_what_the_lease_still_holds(make: Make):
    queue = await make()
    await queue.produce(*"abc")
    taken = await call(make, queue, 3, request_id="r1")
    await queue.complete(taken[1])
    again = await call(make, queue, 3, request_id="r1", partition=0)
    assert texts(again) == ["a", "c"]


async def test_a_repeat_that_names_the_partition_gets_the_lease_there(make: Make):
    queue = await make(partitions=4)
    await queue.produce(*(Item(payload=b"x", key=f"k{n}") for n in range(20)))
    first = await call(make, queue, 1, request_id="r1")
    partition = int(first[0].id.partition("-")[0])
    again = await call(make, queue, 1, request_id="r1", partition=partition)
    assert [one.id for one in again] == [one.id for one in first]


async def test_a_request_name_of_129_characters_is_refused(make: Make):
    queue = await make()
    said = await refusal(call(make, queue, request_id="r" * 129))
    assert said.facts == ("LIMIT_EXCEEDED", "request_id", "128 characters", "129 characters")


async def test_a_caller_that_goes_away_while_it_waits_takes_nothing(make: Make):
    queue = await make()
    request = pb.LeaseRequest(
        queue=queue.name, client_id="gone", max_items=5, wait_timeout=span(20)
    )
    going = make.nodes[0].queue.Lease(request, timeout=CALL_S)
    await queue.stats()  # On the same connection, behind the call that waits.
    going.cancel()
    await queue.produce("a")
    assert (await queue.lease_one(client="other")).text == "a"


async def test_a_request_timeout_of_more_than_15_minutes_is_refused(make: Make):
    queue = await make()
    said = await refusal(queue.produce("a", request_timeout=span(1_000)))
    assert said.facts == ("LIMIT_EXCEEDED", "request_timeout", "900000 ms", "1000000 ms")
    assert await queue.counts() == {}
