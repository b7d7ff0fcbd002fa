"""Completes on delivery: items that are delivered at most once."""

from typing import Any

import pytest

from querator.v1 import queue_service_pb2 as pb
from tests.conformance.door import CALL_S
from tests.conformance.make import Make
from tests.conformance.queues import REPEATED, Leased, Queue, leased_items, span, texts
from tests.conformance.stubs import answer

pytestmark = pytest.mark.doors("unary")


async def take(make: Make, queue: Queue, most: int = 10, **fields: Any) -> list[Leased]:
    request = pb.LeaseRequest(
        client_id="c", max_items=most, complete_on_delivery=True, **queue.named, **fields
    )
    return leased_items((await answer(make.nodes[0].queue.Lease(request, timeout=CALL_S))).batches)


async def test_an_item_that_is_completed_on_delivery_does_not_come_again(make: Make):
    queue = await make(lease_timeout=span(1))
    await queue.produce("a", "b")
    assert texts(await take(make, queue, 1)) == ["a"]
    assert texts(await queue.lease(1)) == ["b"]
    assert await queue.counts("completed", "leased") == {"completed": 1, "leased": 1}


async def test_items_completed_on_delivery_are_counted_apart(make: Make):
    queue = await make(partitions=2)
    await queue.produce(*"abcd")
    await queue.complete(await queue.lease_one())
    assert len(await take(make, queue)) == 3
    stats = await queue.stats()
    assert (stats.completed, stats.completed_on_delivery) == (4, 3)


async def test_a_complete_of_an_item_that_was_completed_on_delivery_is_a_repeat(make: Make):
    queue = await make()
    await queue.produce("a")
    [item] = await take(make, queue)
    assert await queue.complete(item) == [REPEATED]


async def test_a_call_that_completes_on_delivery_may_wait(make: Make):
    queue = await make()
    assert await take(make, queue, wait_timeout=span(0.2)) == []
    await queue.produce("a")
    assert texts(await take(make, queue, wait_timeout=span(20))) == ["a"]
