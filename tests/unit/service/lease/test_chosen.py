"""Leases of items by id, and by kind and attributes."""

import asyncio
from typing import Any

import pytest

from querator.model.calls import ChosenItems, LeaseReply
from querator.model.errors import ErrorCode
from querator.model.limits import MIB
from querator.model.queues import QueueKind
from querator.v1.items_pb2 import Item, LeasedBatch
from querator.v1.queue_service_pb2 import ProduceRequest
from querator.wire.produce import parse_produce
from tests.unit.service.service_node import ServiceNode, refusal, service_node


async def lease(
    node: ServiceNode, *item_ids: str, most: int = 100, call: dict[str, Any] | None = None,
    **chosen: Any,
) -> LeaseReply:  # fmt: skip
    return await node.lease(most, chosen=ChosenItems(item_ids, **chosen), **(call or {}))


async def produce(node: ServiceNode, *items: Item) -> None:
    request = ProduceRequest(queue="q", items=items)
    await node.queues.produce(parse_produce(request.SerializeToString(), now_ms=0))


def ids(reply: LeaseReply) -> list[str]:
    return [
        f"{run.partition}-{run.loaded.first_seq + ordinal}"
        for run in reply.batches
        for ordinal in run.loaded.ordinals or range(run.loaded.count)
    ]


async def with_items(node: ServiceNode, partitions: int = 2, items: int = 20) -> None:
    await node.create(partitions=partitions)
    keys = [b"key %d" % number for number in range(items)]
    await node.produce(*[b"x"] * items, keyed=keys)


def payloads(reply: LeaseReply) -> list[bytes]:
    return [
        item.payload
        for run in reply.batches
        for item in LeasedBatch.FromString(run.loaded.items).items
    ]


async def test_items_of_several_partitions_are_leased_by_id():
    async with service_node() as node:
        await with_items(node)
        found = await lease(node, "1-2", "0-3", "0-1", "1-2", "0-999")
        assert ids(found) == ["0-1", "0-3", "1-2"]
        assert {run.attempt for run in found.batches} == {1}
        assert ids(await lease(node, "1-2", "0-3")) == []
        assert (await node.total()).leased == 3


async def test_a_call_takes_no_more_items_and_bytes_than_it_has_space_for():
    async with service_node() as node:
        await with_items(node)
        assert ids(await lease(node, "0-1", "0-2", "1-1", most=2)) == ["0-1", "0-2"]
        some = await lease(node, "0-3", "1-1", call={"max_bytes": 5})
        assert ids(some) == ["0-3"]
        error = await refusal(lease(node, "1-1", call={"max_bytes": 1}))
        assert error.code is ErrorCode.ITEM_TOO_LARGE
        assert ids(await lease(node, "1-1")) == ["1-1"]


async def test_items_are_found_by_kind_and_attributes():
    async with service_node() as node:
        await node.create(partitions=3)
        for number in range(30):
            item = Item(payload=b"%d" % number, attributes={"size": "sl"[number % 2]})
            item.kind = "fax" if number % 3 else "mail"
            await produce(node, item)
        found = await lease(node, kinds=("mail",), attributes=(("size", "l"),))
        assert sorted(payloads(found), key=int) == [b"3", b"9", b"15", b"21", b"27"]
        assert ids(await lease(node, kinds=("mail",), attributes=(("size", "l"),))) == []
        assert len(ids(await lease(node, kinds=("fax",), most=4))) == 4
        assert (await node.total()).leased == 9


async def test_an_item_behind_the_look_ahead_is_not_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("querator.partition.look_ahead.LOOK_AHEAD_ITEMS_MAX", 3)
    async with service_node() as node:
        await node.create()
        await produce(node, *[Item(payload=b"x")] * 3, Item(payload=b"y", kind="mail"))
        assert ids(await lease(node, kinds=("mail",))) == []
        await lease(node, "0-1")
        assert ids(await lease(node, kinds=("mail",))) == ["0-4"]


async def test_items_that_another_call_leases_first_are_looked_for_again():
    async with service_node() as node:
        await node.create()
        await produce(node, *[Item(payload=b"x" * 10, kind="mail")] * 40)
        calls = [lease(node, kinds=("mail",), most=1) for _ in range(10)]
        found = [one for reply in await asyncio.gather(*calls) for one in ids(reply)]
        assert len(set(found)) == len(found) >= 3


async def test_a_repeat_with_its_partition_gets_the_same_lease():
    async with service_node() as node:
        await with_items(node)
        call = {"request_id": "once"}
        first = await lease(node, "1-2", call=call)
        for named in (("1-2",), ("0-1",)):
            again = await lease(node, *named, call=call | {"partition": 1})
            assert [run.lease_id for run in again.batches] == [
                run.lease_id for run in first.batches
            ]
            assert {run.repeated for run in again.batches} == {True}
        again = await lease(node, kinds=("none",), call=call | {"partition": 1})
        assert ids(again) == ["1-2"]
        assert ids(await lease(node, kinds=("none",), call=call | {"partition": 0})) == []


async def test_a_caller_that_leaves_gives_back_what_comes_later():
    async with service_node() as node:
        await node.create()
        await produce(node, Item(payload=b"x" * MIB))
        call = asyncio.get_running_loop().create_task(lease(node, "0-1"))
        # Steps of the loop in which the command is sent, and not answered.
        for _ in range(2):
            await asyncio.sleep(0)
        assert call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await node.until(lambda: node.counts().delivered == 1)
        await node.until(lambda: node.counts().leased == 0)
        [run] = (await node.lease(1, wait_ms=20_000)).batches
        assert run.attempt == 1


@pytest.mark.parametrize("kind", [QueueKind.FAIR, QueueKind.KEYED])
async def test_queues_with_an_order_of_their_own_refuse(kind: QueueKind):
    async with service_node() as node:
        await node.create(kind=kind)
        error = await refusal(lease(node, "0-1"))
        assert (error.code, error.field) == (ErrorCode.INVALID_ARGUMENT, "item_ids")
        error = await refusal(lease(node, kinds=("mail",)))
        assert (error.code, error.field) == (ErrorCode.INVALID_ARGUMENT, "filter")
        assert f"q is {kind.name.lower()}" in error.message


async def test_an_id_of_an_unknown_partition_is_refused():
    async with service_node() as node:
        await node.create()
        error = await refusal(lease(node, "7-1"))
        assert (error.code, error.field) == (ErrorCode.INVALID_ARGUMENT, "item_ids[0]")
