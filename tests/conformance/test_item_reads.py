"""Items by id, in any state, and lists that begin after an id."""

from collections.abc import Sequence
from typing import Any

from querator.v1.admin_service_pb2 import GetItemsRequest, GetItemsResponse
from querator.v1.items_pb2 import ITEM_STATE_LEASED, ITEM_STATE_READY, ITEM_STATE_SCHEDULED, Item
from tests.conformance.door import CALL_S
from tests.conformance.make import Make
from tests.conformance.queues import Queue, refusal, soon
from tests.conformance.stubs import answer


async def get(make: Make, queue: Queue, item_ids: Sequence[str], **fields: Any) -> GetItemsResponse:
    request = GetItemsRequest(item_ids=item_ids, **queue.named, **fields)
    return await answer(make.nodes[0].admin.GetItems(request, timeout=CALL_S))


async def test_an_item_is_read_by_its_id_in_any_state(make: Make):
    queue = await make()
    made = await queue.produce("a", "b", Item(payload=b"c", enqueue_at=soon(3600)))
    leased = await queue.lease_one()
    found = await get(make, queue, [one.id for one in made])
    assert [(one.item.payload, one.state) for one in found.items] == [
        (b"a", ITEM_STATE_LEASED), (b"b", ITEM_STATE_READY), (b"c", ITEM_STATE_SCHEDULED),
    ]  # fmt: skip
    assert (found.items[0].lease_id, found.items[0].attempt) == (leased.lease_id, 1)
    assert (list(found.missing), list(found.unread)) == ([], [])


async def test_items_that_are_gone_are_named(make: Make):
    queue = await make()
    made = await queue.produce("a", "b")
    await queue.complete(await queue.lease_one())
    found = await get(make, queue, [made[0].id, made[1].id, "0-999"])
    assert [one.seq for one in found.items] == [int(made[1].id.partition("-")[2])]
    assert list(found.missing) == [made[0].id, "0-999"]


async def test_items_of_many_partitions_are_read_in_one_call(make: Make):
    queue = await make(partitions=3)
    made = await queue.produce(*(Item(key=f"k{number}") for number in range(30)))
    found = await get(make, queue, [one.id for one in made])
    places = [(one.partition, one.seq) for one in found.items]
    assert (len(places), places) == (30, sorted(places))


async def test_an_item_is_read_through_any_node(make: Make):
    queue = await make(partitions=3)
    [made] = await queue.produce("a")
    request = GetItemsRequest(item_ids=[made.id], **queue.named)
    for node in make.nodes:
        [found] = (await answer(node.admin.GetItems(request, timeout=CALL_S))).items
        assert found.item.payload == b"a"


async def test_an_id_of_a_partition_that_the_queue_does_not_have_is_refused(make: Make):
    queue = await make()
    said = await refusal(get(make, queue, ["7-1"]))
    assert (said.field, said.value) == ("item_ids[0]", "7-1")


async def test_a_read_without_ids_is_refused(make: Make):
    queue = await make()
    said = await refusal(get(make, queue, []))
    assert (said.code, said.field) == ("INVALID_ARGUMENT", "item_ids")


async def test_a_list_continues_after_an_item_that_is_gone(make: Make):
    queue = await make()
    made = await queue.produce(*"abcd")
    await queue.complete(*(await queue.lease(2)))
    shown = await queue.peek(after_item_id=made[1].id)
    assert [one.item.payload for one in shown] == [b"c", b"d"]
    assert await queue.peek(after_item_id=made[3].id) == []
