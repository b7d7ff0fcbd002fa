"""Rates of the partitions that a node leads, from samples of their counters."""

import pytest

from querator.raft.clock import SimulatedClock
from tests.unit.service.service_node import service_node, whole


async def test_rates_are_in_the_counts_of_a_queue_and_its_partitions():
    clock = SimulatedClock()
    async with service_node(clock=clock) as node:
        await node.create(partitions=2)
        rates = node.queues.rates
        await rates.sample()
        assert (await node.total()).rates == ()
        await node.produce(*[b"x"] * 40, keyed=[b"key %d" % number for number in range(40)])
        for batch in (await node.lease(10)).batches:
            await node.complete(whole(batch))
        clock.advance(10_000)
        await rates.sample()
        stats = await node.admin.queue_stats("default", "q")
        for found in stats.total.rates:
            assert (found.came, found.completed, found.left) == pytest.approx((4, 1, 1))
        parts = [part.rates[0].came for part in stats.partitions]
        assert sum(parts) == pytest.approx(4)
        clock.advance(10_000)
        await rates.sample()
        assert (await node.total()).rates[0].came < 4


async def test_a_partition_that_is_gone_is_forgotten():
    clock = SimulatedClock()
    async with service_node(clock=clock) as node:
        queue = await node.create()
        rates = node.queues.rates
        await rates.sample()
        clock.advance(10_000)
        await rates.sample()
        [group] = queue.groups
        assert rates.of(group)
        await node.admin.delete_queue("default", "q")
        await rates.sample()
        assert rates.of(group) == ()
