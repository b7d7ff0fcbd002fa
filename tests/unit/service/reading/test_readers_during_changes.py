"""Readers of a queue whose number of partitions changes, through nodes with an old map."""

from random import Random

import pytest

from querator.model.errors import ErrorCode
from querator.model.ids import PLACEMENT_GROUP
from querator.model.queues import QueueSettings
from querator.model.reader_calls import AdvanceOutcome, OpenReaderCall
from querator.service.routing import directory
from tests.unit.service.reading.test_readers import Driver, fill, items
from tests.unit.service.routing.test_router import rounds, start
from tests.unit.service.service_cluster import ServiceCluster, service_cluster
from tests.unit.service.service_node import LONG_MS, refusal

UNKNOWN = AdvanceOutcome(1, 0, error=ErrorCode.UNAVAILABLE)


async def grown(cluster: ServiceCluster, *, ready: int = 0) -> Driver:
    """A reader that was opened before the queue got its second partition. The map of `a` lacks that
    partition, which has one item. The first partition has `ready` items.
    """
    lake = Driver()
    await lake.open(cluster.members["a"])
    await cluster.grow(2, behind="a", leader="b")
    await fill(cluster.base, 2)
    if not ready:
        leased = await cluster.base.lease(1, partition=0)
        await cluster.base.complete(*leased.batches)
    return lake


async def resize(cluster: ServiceCluster, partitions: int, leader: str = "b") -> None:
    settings = QueueSettings(partitions=partitions)
    await cluster.base.admin.update_queue("default", "q", settings, ("partitions",), 0)
    queue = cluster.base.placement.map.find("default", "q")
    assert queue is not None
    for group in queue.groups:
        if group not in cluster.leaders:
            cluster.lead(group, leader)


async def test_an_advance_that_finds_nothing_has_asked_all_partitions():
    async with service_cluster("a", "b") as cluster:
        lake = await grown(cluster)
        assert lake.take(await lake.advance(cluster.members["a"])) == 1
        assert items(await lake.advance(cluster.members["a"])) == 0
        total = await cluster.base.total()
        assert (total.acknowledged, total.ready, total.reserved) == (1, 0, 0)


async def test_an_advance_does_not_ask_the_placement_group_while_its_map_is_new():
    async with service_cluster("a", "b", partitions=2) as cluster:
        cluster.lead(PLACEMENT_GROUP, "b")
        lake = Driver()
        await lake.open(cluster.members["a"])
        await lake.advance(cluster.members["a"], wait_ms=20)
        assert not cluster.map_confirming.is_set()


async def test_a_waiting_advance_meets_partitions_that_come():
    async with service_cluster("a", "b") as cluster:
        lake = Driver()
        await lake.open(cluster.members["a"])
        waiting = start(lake.advance(cluster.members["a"], wait_ms=LONG_MS))
        await rounds()
        await resize(cluster, 2)
        await fill(cluster.base, 1)
        progress = await waiting
        assert items(progress) == 1
        assert [one.partition for one in progress] == [0, 1]


async def test_what_is_ready_is_given_out_while_the_map_cannot_catch_up(monkeypatch):
    monkeypatch.setattr(directory, "CATCH_UP_S", LONG_MS / 1000)
    async with service_cluster("a", "b") as cluster:
        lake = await grown(cluster, ready=1)
        cluster.lead(PLACEMENT_GROUP, None)
        progress = await lake.advance(cluster.members["a"], wait_ms=LONG_MS)
        assert lake.take(progress) == 1
        cluster.lead(PLACEMENT_GROUP, "b")
        assert lake.take(await lake.advance(cluster.members["a"])) == 1


async def test_partitions_that_could_not_be_asked_are_named(monkeypatch):
    monkeypatch.setattr(directory, "CATCH_UP_S", 0.05)
    async with service_cluster("a", "b") as cluster:
        lake = await grown(cluster)
        cluster.lead(PLACEMENT_GROUP, None)
        progress = await lake.advance(cluster.members["a"])
        assert progress == (AdvanceOutcome(0, 0), UNKNOWN)


async def test_an_advance_waits_until_the_map_has_caught_up(monkeypatch):
    monkeypatch.setattr(directory, "CATCH_UP_S", 0.05)
    async with service_cluster("a", "b") as cluster:
        lake = await grown(cluster)
        cluster.lead(PLACEMENT_GROUP, None)
        waiting = start(lake.advance(cluster.members["a"], wait_ms=LONG_MS))
        await rounds()
        cluster.hear("a")
        assert items(await waiting) == 1


async def test_a_reader_is_opened_in_partitions_that_its_node_has_not_heard_of():
    async with service_cluster("a", "b") as cluster:
        zombie = await grown(cluster, ready=1)
        await zombie.advance(cluster.members["b"])
        lake = Driver()
        opened = await cluster.members["a"].readers.open(OpenReaderCall("default", "q", "lake"))
        lake.epoch = opened.epoch
        assert [one.batch.count for one in opened.partitions if one.batch] == [1, 1]
        [reader] = await cluster.members["a"].readers.list("default", "q", stale=False)
        assert [state.epoch for _, state in reader.partitions] == [2, 2]


async def test_a_reader_is_not_opened_while_its_partitions_are_not_known(monkeypatch):
    monkeypatch.setattr(directory, "CATCH_UP_S", 0.05)
    async with service_cluster("a", "b") as cluster:
        await grown(cluster)
        cluster.lead(PLACEMENT_GROUP, None)
        call = OpenReaderCall("default", "q", "lake", request_id="one")
        error = await refusal(cluster.members["a"].readers.open(call))
        assert error.code is ErrorCode.UNAVAILABLE
        assert "routing version 0 of queue q" in error.message
        cluster.lead(PLACEMENT_GROUP, "b")
        opened = await cluster.members["a"].readers.open(call)
        assert (opened.epoch, len(opened.partitions)) == (2, 2)


@pytest.mark.parametrize("through", ["a", "b"])
async def test_readers_are_listed_with_all_partitions(through):
    async with service_cluster("a", "b") as cluster:
        lake = await grown(cluster)
        await lake.advance(cluster.members["b"])
        [reader] = await cluster.members[through].readers.list("default", "q", stale=False)
        assert [partition for partition, _ in reader.partitions] == [0, 1]


async def hear_when_asked(cluster: ServiceCluster) -> None:
    while True:
        await cluster.map_confirming.wait()
        cluster.map_confirming.clear()
        for name in cluster.members:
            cluster.hear(name)


@pytest.mark.parametrize("seed", range(25))
async def test_a_run_that_ends_with_an_empty_advance_has_read_everything_once(seed, monkeypatch):
    """Fuzz test: calls go to any node, some maps are old, and the number of partitions changes."""
    monkeypatch.setattr(directory, "CATCH_UP_S", 0.02)
    chance = Random(seed)
    async with service_cluster("a", "b", "c") as cluster:
        cluster.lead(PLACEMENT_GROUP, "a")
        hearing = start(hear_when_asked(cluster))
        lake = Driver()
        await lake.open(cluster.members[chance.choice("abc")])
        produced = read = 0
        for _ in range(chance.randrange(2, 5)):
            behind = chance.choice("bc")
            cluster.maps[behind].fall_behind()
            await resize(cluster, chance.randrange(1, 9), chance.choice("abc"))
            if chance.random() < 0.3:
                cluster.lead(PLACEMENT_GROUP, None)
            count = chance.randrange(1, 9)
            produced += count
            await fill(cluster.base, count)
            for _ in range(chance.randrange(3)):
                read += lake.take(await lake.advance(cluster.members[chance.choice("abc")], 3))
            cluster.lead(PLACEMENT_GROUP, "a")
        node = cluster.members[chance.choice("abc")]
        while True:
            progress = await lake.advance(node, chance.choice((1, 5, 50)))
            if not items(progress) and not any(one.error for one in progress):
                break
            read += lake.take(progress)
        assert read == produced
        total = await cluster.base.total()
        assert (total.ready, total.reserved) == (0, 0)
        hearing.cancel()
