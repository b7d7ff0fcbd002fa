"""Live leases for operators: lists by client and age, and leases that are ended by hand."""

from typing import Any

from querator.v1.admin_service_pb2 import (
    LeaseInfo,
    ListLeasesRequest,
    ReleaseLeasesRequest,
    ReleaseLeasesResponse,
)
from tests.conformance.door import CALL_S
from tests.conformance.make import Make
from tests.conformance.queues import DONE, LOST, Queue, refusal, span, texts
from tests.conformance.stubs import answer


async def listed(make: Make, queue: Queue, **fields: Any) -> list[LeaseInfo]:
    found: list[LeaseInfo] = []
    request = ListLeasesRequest(**queue.named, **fields)
    while True:
        reply = await answer(make.nodes[0].admin.ListLeases(request, timeout=CALL_S))
        found += reply.leases
        if not reply.next_page_token:
            return found
        request.page_token = reply.next_page_token


async def end(make: Make, queue: Queue, *ids: str, **fields: Any) -> ReleaseLeasesResponse:
    request = ReleaseLeasesRequest(lease_ids=ids, **queue.named, **fields)
    return await answer(make.nodes[0].admin.ReleaseLeases(request, timeout=CALL_S))


async def test_live_leases_are_listed_with_their_clients_and_items(make: Make):
    queue = await make()
    await queue.produce("a", "b", "c")
    first = await queue.lease(2, client="ann")
    await queue.lease(1, client="ben")
    found = await listed(make, queue)
    assert [(one.client_id, one.items) for one in found] == [("ann", 2), ("ben", 1)]
    assert found[0].lease_id == first[0].lease_id
    assert found[0].granted_at.ToMilliseconds() <= found[1].granted_at.ToMilliseconds()
    assert abs(found[0].deadline.ToMilliseconds() / 1000 - first[0].deadline_s) < 0.01


async def test_only_leases_of_a_client_are_listed(make: Make):
    queue = await make(partitions=3)
    await queue.produce("a", "b")
    await queue.lease_one(client="ann")
    await queue.lease_one(client="ben")
    assert [one.client_id for one in await listed(make, queue, client_id="ben")] == ["ben"]
    assert await listed(make, queue, client_id="eve") == []


async def test_only_old_leases_are_listed(make: Make):
    queue = await make()
    await queue.produce("a")
    await queue.lease_one()
    assert await listed(make, queue, older_than=span(3600)) == []


async def test_settled_items_and_ended_leases_are_not_listed(make: Make):
    queue = await make()
    await queue.produce("a", "b", "c")
    first, second = await queue.lease(2)
    third = await queue.lease_one()
    await queue.complete(first)
    await queue.release(third)
    [found] = await listed(make, queue)
    assert (found.lease_id, found.items) == (second.lease_id, 1)


async def test_leases_are_listed_in_pages(make: Make):
    queue = await make(partitions=2)
    await queue.produce(*"abcdef")
    for _ in range(6):
        await queue.lease_one()
    found = await listed(make, queue, page_size=1)
    assert len({one.lease_id for one in found}) == len(found) == 6


async def test_items_of_an_ended_lease_return_to_their_places(make: Make):
    queue = await make()
    await queue.produce("a", "b", "c")
    first = await queue.lease(2)
    reply = await end(make, queue, first[0].lease_id)
    assert (reply.released, list(reply.ended_lease_ids)) == (2, [])
    again = await queue.lease(3)
    assert texts(again) == ["a", "b", "c"]
    assert {item.attempt for item in again} == {1}


async def test_the_consumer_of_an_ended_lease_has_lost_it(make: Make):
    queue = await make()
    await queue.produce("a")
    item = await queue.lease_one()
    await end(make, queue, item.lease_id)
    assert await queue.complete(item) == [LOST]
    assert await queue.complete(await queue.lease_one()) == [DONE]


async def test_the_attempts_of_ended_leases_count_if_the_operator_says_so(make: Make):
    queue = await make(max_attempts=1)
    await queue.produce("a")
    item = await queue.lease_one()
    assert (await end(make, queue, item.lease_id, count_attempt=True)).released == 1
    await queue.dead_letters(1)


async def test_to_end_leases_again_changes_nothing(make: Make):
    queue = await make()
    await queue.produce("a")
    item = await queue.lease_one()
    await end(make, queue, item.lease_id)
    again = await queue.lease_one()
    reply = await end(make, queue, item.lease_id)
    assert (reply.released, list(reply.ended_lease_ids)) == (0, [item.lease_id])
    assert await queue.complete(again) == [DONE]


async def test_leases_must_be_named_to_be_ended(make: Make):
    queue = await make()
    refused = await refusal(end(make, queue))
    assert (refused.code, refused.field) == ("LIMIT_EXCEEDED", "lease_ids")
    refused = await refusal(end(make, queue, "mail"))
    assert (refused.code, refused.field) == ("INVALID_ARGUMENT", "lease_ids[0]")
