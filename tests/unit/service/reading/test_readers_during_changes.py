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
from tests.unit.service.serving import LONG_MS, refusal
from tests.unit.service.stage import Stage, staged

UNKNOWN = AdvanceOutcome(1, 0, error=ErrorCode.UNAVAILABLE)


async def grown(stage: Stage, *, ready: int = 0) -> Driver:
    """A reader that was opened before the queue got its second partition. The map of `a` lacks that
    partition, which has one item. The first partition has `ready` items.
    """
    lake = Driver()
    await lake.open(stage.members["a"])
    await stage.grow(2, behind="a", leader="b")
    await fill(stage.base, 2)
    if not ready:
        leased = await stage.base.lease(1, partition=0)
        await stage.base.complete(*leased.batches)
    return lake


async def resize(stage: Stage, partitions: int, leader: str = "b") -> None:
    settings = QueueSettings(partitions=partitions)
    await stage.base.admin.update_queue("default", "q", settings, ("partitions",), 0)
    queue = stage.base.placement.map.find("default", "q")
    assert queue is not None
    for group in queue.groups:
        if group not in stage.leaders:
            stage.lead(group, leader)


async def test_an_advance_that_finds_nothing_has_asked_all_partitions():
    async with staged("a", "b") as stage:
        lake = await grown(stage)
        assert lake.take(await lake.advance(stage.members["a"])) == 1
        assert items(await lake.advance(stage.members["a"])) == 0
        total = await stage.base.total()
        assert (total.acknowledged, total.ready, total.reserved) == (1, 0, 0)


async def test_an_advance_does_not_ask_the_placement_group_while_its_map_is_new():
    async with staged("a", "b", partitions=2) as stage:
        stage.lead(PLACEMENT_GROUP, "b")
        lake = Driver()
        await lake.open(stage.members["a"])
        await lake.advance(stage.members["a"], wait_ms=20)
        assert not stage.map_confirming.is_set()


async def test_a_waiting_advance_meets_partitions_that_come():
    async with staged("a", "b") as stage:
        lake = Driver()
        await lake.open(stage.members["a"])
        waiting = start(lake.advance(stage.members["a"], wait_ms=LONG_MS))
        await rounds()
        await resize(stage, 2)
        await fill(stage.base, 1)
        progress = await waiting
        assert items(progress) == 1
        assert [one.partition for one in progress] == [0, 1]


async def test_what_is_ready_is_given_out_while_the_map_cannot_catch_up(monkeypatch):
    monkeypatch.setattr(directory, "CATCH_UP_S", LONG_MS / 1000)
    async with staged("a", "b") as stage:
        lake = await grown(stage, ready=1)
        stage.lead(PLACEMENT_GROUP, None)
        progress = await lake.advance(stage.members["a"], wait_ms=LONG_MS)
        assert lake.take(progress) == 1
        stage.lead(PLACEMENT_GROUP, "b")
        assert lake.take(await lake.advance(stage.members["a"])) == 1


async def test_partitions_that_could_not_be_asked_are_named(monkeypatch):
    monkeypatch.setattr(directory, "CATCH_UP_S", 0.05)
    async with staged("a", "b") as stage:
        lake = await grown(stage)
        stage.lead(PLACEMENT_GROUP, None)
        progress = await lake.advance(stage.members["a"])
        assert progress == (AdvanceOutcome(0, 0), UNKNOWN)


async def test_an_advance_waits_until_the_map_has_caught_up(monkeypatch):
    monkeypatch.setattr(directory, "CATCH_UP_S", 0.05)
    async with staged("a", "b") as stage:
        lake = await grown(stage)
        stage.lead(PLACEMENT_GROUP, None)
        waiting = start(lake.advance(stage.members["a"], wait_ms=LONG_MS))
        await rounds()
        stage.hear("a")
        assert items(await waiting) == 1


async def test_a_reader_is_opened_in_partitions_that_its_node_has_not_heard_of():
    async with staged("a", "b") as stage:
        zombie = await grown(stage, ready=1)
        await zombie.advance(stage.members["b"])
        lake = Driver()
        opened = await stage.members["a"].readers.open(OpenReaderCall("default", "q", "lake"))
        lake.epoch = opened.epoch
        assert [one.batch.count for one in opened.partitions if one.batch] == [1, 1]
        [reader] = await stage.members["a"].readers.list("default", "q", stale=False)
        assert [state.epoch for _, state in reader.partitions] == [2, 2]


async def test_a_reader_is_not_opened_while_its_partitions_are_not_known(monkeypatch):
    monkeypatch.setattr(directory, "CATCH_UP_S", 0.05)
    async with staged("a", "b") as stage:
        await grown(stage)
        stage.lead(PLACEMENT_GROUP, None)
        call = OpenReaderCall("default", "q", "lake", request_id="one")
        error = await refusal(stage.members["a"].readers.open(call))
        assert error.code is ErrorCode.UNAVAILABLE
        assert "routing version 0 of queue q" in error.message
        stage.lead(PLACEMENT_GROUP, "b")
        opened = await stage.members["a"].readers.open(call)
        assert (opened.epoch, len(opened.partitions)) == (2, 2)


@pytest.mark.parametrize("through", ["a", "b"])
async def test_readers_are_listed_with_all_partitions(through):
    async with staged("a", "b") as stage:
        lake = await grown(stage)
        await lake.advance(stage.members["b"])
        [reader] = await stage.members[through].readers.list("default", "q", stale=False)
        assert [partition for partition, _ in reader.partitions] == [0, 1]


async def hear_when_asked(stage: Stage) -> None:
    while True:
        await stage.map_confirming.wait()
        stage.map_confirming.clear()
        for name in stage.members:
            stage.hear(name)


@pytest.mark.parametrize("seed", range(25))
async def test_a_run_that_ends_with_an_empty_advance_has_read_everything_once(seed, monkeypatch):
    """Fuzz test: calls go to any node, some maps are old, and the number of partitions changes."""
    monkeypatch.setattr(directory, "CATCH_UP_S", 0.02)
    chance = Random(seed)
    async with staged("a", "b", "c") as stage:
        stage.lead(PLACEMENT_GROUP, "a")
        hearing = start(hear_when_asked(stage))
        lake = Driver()
        await lake.open(stage.members[chance.choice("abc")])
        produced = read = 0
        for _ in range(chance.randrange(2, 5)):
            behind = chance.choice("bc")
            stage.maps[behind].fall_behind()
            await resize(stage, chance.randrange(1, 9), chance.choice("abc"))
            if chance.random() < 0.3:
                stage.lead(PLACEMENT_GROUP, None)
            count = chance.randrange(1, 9)
            produced += count
            await fill(stage.base, count)
            for _ in range(chance.randrange(3)):
                read += lake.take(await lake.advance(stage.members[chance.choice("abc")], 3))
            stage.lead(PLACEMENT_GROUP, "a")
        node = stage.members[chance.choice("abc")]
        while True:
            progress = await lake.advance(node, chance.choice((1, 5, 50)))
            if not items(progress) and not any(one.error for one in progress):
                break
            read += lake.take(progress)
        assert read == produced
        total = await stage.base.total()
        assert (total.ready, total.reserved) == (0, 0)
        hearing.cancel()
