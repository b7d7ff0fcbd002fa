"""The warning before a lease ends."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest

from querator.client.consuming.leases import LeasedBatch, LeasedItem, LeaseState
from querator.client.consuming.verbs import Verb
from querator.client.values import ExtendOutcome
from querator.v1 import items_pb2, queue_service_pb2

SOON = timedelta(seconds=10)


class Holder:
    """Only tells the time."""

    def settle(
        self, verb: Verb, batch: LeasedBatch, mask: int, results: Mapping[int, bytes] = {}
    ) -> "asyncio.Future[None]":
        raise AssertionError("these tests settle nothing")

    def settled_elsewhere(self, batch: LeasedBatch, mask: int) -> None: ...

    def not_settled(self, batch: LeasedBatch, mask: int) -> None: ...

    async def extend(
        self,
        lease: LeaseState,
        lease_timeout: timedelta | None,
        checkpoint: queue_service_pb2.ItemCheckpoint | None = None,
    ) -> None: ...

    def now(self) -> float:
        return asyncio.get_running_loop().time()


def leased(lasts: timedelta, *, kept: bool = False) -> LeasedItem:
    message = items_pb2.LeasedBatch(lease_id="1.0.1", items=[items_pb2.Item()])
    message.lease_remaining.FromTimedelta(lasts)
    holder = Holder()
    [item] = LeasedBatch(
        message, holder, LeaseState(message, now=holder.now(), kept=kept, stream=1)
    )
    return item


async def is_waiting(item: LeasedItem, before: timedelta) -> bool:
    """Whether the warning has not come after some steps of the loop."""
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(item.until_ending(before))
        for _ in range(5):
            await asyncio.sleep(0)
        waits = not task.done()
        task.cancel()
    return waits


async def test_it_comes_before_the_end():
    assert await is_waiting(leased(timedelta(seconds=60)), SOON)
    await leased(timedelta(seconds=9)).until_ending(SOON)
    await leased(timedelta(milliseconds=1_020)).until_ending(timedelta(seconds=1))


async def test_an_extension_puts_it_off():
    item = leased(timedelta(seconds=9))
    outcome = ExtendOutcome("1.0.1", datetime.now(UTC), timedelta(seconds=60))
    item.batch.lease.extended(outcome, now=asyncio.get_running_loop().time())
    assert await is_waiting(item, SOON)


async def test_it_comes_when_the_lease_is_lost():
    item = leased(timedelta(seconds=60))
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(item.until_ending(SOON))
        await asyncio.sleep(0)
        assert not task.done()
        item.batch.lease.lose()
    await item.until_ending(SOON)


async def test_a_lease_that_the_node_extends_has_none_until_its_connection_is_lost():
    item = leased(timedelta(milliseconds=60), kept=True)
    assert await is_waiting(item, SOON)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(item.until_ending(SOON))
        await asyncio.sleep(0)
        item.batch.lease.left_alone(asyncio.get_running_loop().time())


async def test_a_negative_time_is_refused():
    with pytest.raises(ValueError, match="before"):
        await leased(SOON).until_ending(timedelta(seconds=-1))
