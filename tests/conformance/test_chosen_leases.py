"""Leases of chosen items: by id, and by kind and attributes."""

from typing import Any

import pytest

from querator.v1 import queue_service_pb2 as pb
from querator.v1.admin_service_pb2 import QUEUE_KIND_FAIR, QUEUE_KIND_KEYED
from querator.v1.items_pb2 import Item
from querator.v1.queue_service_pb2 import LeaseFilter
from tests.conformance.door import CALL_S
from tests.conformance.make import Make
from tests.conformance.queues import DONE, Leased, Queue, leased_items, refusal, span, texts
from tests.conformance.stubs import answer

pytestmark = pytest.mark.doors("unary")


async def choose(
    make: Make, queue: Queue, *item_ids: str, most: int = 10, node: int = 0, **fields: Any
) -> list[Leased]:
    request = pb.LeaseRequest(
        client_id="c", max_items=most, item_ids=item_ids, **queue.named, **fields
    )
    reply = await answer(make.nodes[node].queue.Lease(request, timeout=CALL_S))
    return leased_items(reply.batches)


async def test_an_item_is_leased_by_its_id_and_the_others_keep_their_places(make: Make):
    queue = await make()
    made = await queue.produce(*"abc")
    [item] = await choose(make, queue, made[1].id)
    assert (item.text, item.attempt) == ("b", 1)
    assert texts(await queue.lease(2)) == ["a", "c"]
    assert await queue.complete(item) == [DONE]


async def test_items_of_many_partitions_are_leased_in_one_call(make: Make):
    queue = await make(partitions=3)
    made = await queue.produce(*(Item(key=f"k{number}") for number in range(30)))
    found = await choose(make, queue, *(one.id for one in made[:20]), most=100)
    assert {one.id for one in found} == {one.id for one in made[:20]}


async def test_an_item_is_leased_by_its_id_through_any_node(make: Make):
    queue = await make(partitions=2)
    made = await queue.produce(*(Item(key=f"k{number}") for number in range(9)))
    for number in range(make.size):
        wanted = [made[number].id, made[number + 3].id]
        found = await choose(make, queue, *wanted, node=number)
        assert sorted(one.id for one in found) == sorted(wanted)


async def test_an_item_that_is_not_ready_is_not_leased_by_its_id(make: Make):
    queue = await make()
    made = await queue.produce("a", "b")
    await queue.lease_one()
    assert texts(await choose(make, queue, made[0].id, made[1].id, "0-999")) == ["b"]


async def test_items_of_a_kind_are_leased(make: Make):
    queue = await make(partitions=2)
    kinds = ["mail", "fax", "", "mail", "sms"]
    await queue.produce(*(Item(payload=kind.encode(), kind=kind) for kind in kinds))
    found = await choose(make, queue, filter=LeaseFilter(kinds=["mail", ""]))
    assert sorted(texts(found)) == ["", "mail", "mail"]
    assert await choose(make, queue, filter=LeaseFilter(kinds=["mail"])) == []


async def test_items_are_leased_by_their_attributes(make: Make):
    queue = await make()
    await queue.produce(
        Item(payload=b"a", attributes={"to": "ann", "size": "l"}),
        Item(payload=b"b", attributes={"to": "ann"}),
        Item(payload=b"c", attributes={"to": "ben", "size": "l"}),
    )
    found = await choose(make, queue, filter=LeaseFilter(attributes={"to": "ann", "size": "l"}))
    assert texts(found) == ["a"]
    assert texts(await choose(make, queue, filter=LeaseFilter(attributes={"size": "l"}))) == ["c"]


async def test_attributes_that_a_retry_has_changed_choose(make: Make):
    queue = await make()
    await queue.produce(Item(payload=b"a", attributes={"page": "1"}))
    await queue.retry(await queue.lease_one(), attributes={"page": "2"})
    assert await choose(make, queue, filter=LeaseFilter(attributes={"page": "1"})) == []
    [item] = await choose(make, queue, filter=LeaseFilter(attributes={"page": "2"}))
    assert item.attempt == 2


async def test_chosen_items_that_are_released_return_to_their_places(make: Make):
    queue = await make()
    await queue.produce("a", Item(payload=b"b", kind="k"), "c")
    await queue.release(*await choose(make, queue, filter=LeaseFilter(kinds=["k"])))
    assert texts(await queue.lease(3)) == ["a", "b", "c"]


async def test_a_repeated_choice_gets_the_same_lease(make: Make):
    queue = await make()
    made = await queue.produce("a", "b")
    first = await choose(make, queue, made[1].id, request_id="once")
    again = await choose(make, queue, made[1].id, request_id="once")
    assert (again[0].lease_id, again[0].repeated) == (first[0].lease_id, True)


async def test_a_choice_has_a_lease_timeout_and_a_number_of_items(make: Make):
    queue = await make()
    await queue.produce(*(Item(kind="k") for _ in range(5)))
    found = await choose(
        make, queue, most=2, filter=LeaseFilter(kinds=["k"]), lease_timeout=span(600)
    )
    assert len(found) == 2
    assert 590 < found[0].remaining_s <= 600


async def test_paused_leases_give_no_chosen_items(make: Make):
    queue = await make(lease_paused=True)
    [made] = await queue.produce(Item(kind="k"))
    assert await choose(make, queue, made.id) == []
    assert await choose(make, queue, filter=LeaseFilter(kinds=["k"])) == []


async def test_fair_and_keyed_queues_refuse_a_choice(make: Make):
    for kind in (QUEUE_KIND_FAIR, QUEUE_KIND_KEYED):
        queue = await make(kind=kind)
        said = await refusal(choose(make, queue, "0-1"))
        assert (said.code, said.field) == ("INVALID_ARGUMENT", "item_ids")
        said = await refusal(choose(make, queue, filter=LeaseFilter(kinds=["k"])))
        assert (said.code, said.field) == ("INVALID_ARGUMENT", "filter")


async def test_a_choice_that_waits_is_refused(make: Make):
    queue = await make()
    said = await refusal(choose(make, queue, "0-1", wait_timeout=span(1)))
    assert (said.code, said.field) == ("INVALID_ARGUMENT", "wait_timeout")


async def test_an_empty_filter_is_refused(make: Make):
    queue = await make()
    said = await refusal(choose(make, queue, filter=LeaseFilter()))
    assert (said.code, said.field) == ("INVALID_ARGUMENT", "filter")
