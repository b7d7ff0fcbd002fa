"""Lease calls whose items are completed before they are sent."""

from typing import Any

import pytest
from msgspec.structs import replace

from querator.model.calls import ChosenItems, CompleteCall, LeaseReply, SettleReply
from querator.model.errors import ErrorCode
from querator.model.queues import QueueKind
from querator.service.settle import SettleService
from tests.unit.service.service_node import ServiceNode, code, refusal, service_node, whole


async def take(node: ServiceNode, most: int = 100, **more: Any) -> LeaseReply:
    return await node.lease(most, completes=True, **more)


def count(reply: LeaseReply) -> int:
    return sum(run.loaded.count for run in reply.batches)


async def test_items_are_gone_when_they_are_delivered():
    async with service_node() as node:
        await node.create(partitions=3)
        await node.produce(*[b"x"] * 40, keyed=[b"key %d" % number for number in range(40)])
        reply = await take(node, 15)
        assert count(reply) == 15
        total = await node.total()
        assert (total.completed, total.completed_on_delivery) == (15, 15)
        assert (total.ready, total.leased, total.leases) == (25, 0, 0)
        [outcome] = (await node.complete(whole(reply.batches[0]))).outcomes
        assert bool(outcome.repeated)


async def test_a_call_that_waits_gets_the_next_item_completed():
    async with service_node() as node:
        await node.create()
        assert count(await take(node, 1)) == 0
        await node.produce(b"a")
        assert count(await take(node, 1, wait_ms=20_000)) == 1
        assert (await node.total()).completed_on_delivery == 1


async def test_a_repeat_of_a_delivered_request_is_refused():
    async with service_node() as node:
        await node.create()
        await node.produce(b"a", b"b")
        assert count(await take(node, 1, request_id="once")) == 1
        repeat = take(node, 1, request_id="once", partition=0)
        assert await code(repeat) is ErrorCode.LEASE_ENDED
        assert (await node.total()).ready == 1


async def test_a_repeat_completes_what_an_attempt_has_leased():
    async with service_node() as node:
        await node.create()
        await node.produce(b"a", b"b")
        [leased] = (await node.lease(1, request_id="once")).batches
        reply = await take(node, 1, request_id="once", partition=0)
        assert [run.lease_id for run in reply.batches] == [leased.lease_id]
        assert (await node.total()).completed_on_delivery == 1


async def test_in_keyed_queues_the_next_item_of_the_key_follows_at_once():
    async with service_node() as node:
        await node.create(kind=QueueKind.KEYED)
        await node.produce(b"a", b"b")
        assert [count(await take(node, 1)) for _ in range(3)] == [1, 1, 0]


async def test_chosen_items_may_be_completed_too():
    async with service_node() as node:
        await node.create()
        await node.produce(b"a", b"b")
        assert count(await take(node, chosen=ChosenItems(("0-2",)))) == 1
        total = await node.total()
        assert (total.completed_on_delivery, total.ready) == (1, 1)


async def test_what_was_completed_is_delivered_although_other_items_may_not_be(
    monkeypatch: pytest.MonkeyPatch,
):
    async with service_node() as node:
        await node.create(partitions=2)
        await node.produce(b"a", b"b", b"c", b"d", keyed=[b"key 1", b"key 2", b"key 3", b"key 4"])
        settle = SettleService.settle

        async def unsure(self: SettleService, call: CompleteCall) -> SettleReply:
            reply = await settle(self, call)
            first, *others = reply.outcomes
            assert len(others) == 1
            lost = replace(first, done=(), error=ErrorCode.OUTCOME_UNKNOWN)
            return replace(reply, outcomes=(lost, *others))

        monkeypatch.setattr(SettleService, "settle", unsure)
        reply = await take(node)
        assert len(reply.batches) == 1


async def test_a_call_whose_items_may_all_be_lost_says_so(monkeypatch: pytest.MonkeyPatch):
    async with service_node() as node:
        await node.create()
        await node.produce(b"a")
        settle = SettleService.settle

        async def unsure(self: SettleService, call: CompleteCall) -> SettleReply:
            reply = await settle(self, call)
            [only] = reply.outcomes
            return replace(reply, outcomes=(replace(only, error=ErrorCode.OUTCOME_UNKNOWN),))

        monkeypatch.setattr(SettleService, "settle", unsure)
        error = await refusal(take(node, 1))
        assert (error.code, error.field) == (ErrorCode.OUTCOME_UNKNOWN, "complete_on_delivery")
