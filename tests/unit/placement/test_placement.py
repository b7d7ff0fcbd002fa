import asyncio

import pytest

from querator.model.errors import ErrorCode, QueratorError
from querator.model.placement_map import PlacementMap
from querator.model.queues import Queue, QueueSettings, QueueState
from querator.placement.placement import Placement
from querator.storage.memory_environment import MemoryEnvironment
from tests.unit.placement.placement_node import (
    assert_groups_follow,
    placement_node,
    stored_settings,
)


@pytest.fixture
def environment() -> MemoryEnvironment:
    return MemoryEnvironment()


async def test_create_update_delete(environment: MemoryEnvironment):
    async with placement_node(environment) as node:
        placement = node.placement
        settings = QueueSettings(partitions=3, max_attempts=2)
        queue, created = await placement.create_queue("n", "q", settings)
        assert created
        assert (queue.state, queue.settings) == (QueueState.ACTIVE, settings)
        assert all(node.host.leads(group) for group in queue.groups)
        assert_groups_follow(environment, placement.map)

        assert await placement.create_queue("n", "q", settings) == (queue, False)

        updated = await placement.update_queue(
            "n", "q", QueueSettings(max_attempts=9), ("max_attempts",), 1
        )
        assert updated.settings == QueueSettings(partitions=3, max_attempts=9)
        assert_groups_follow(environment, placement.map)

        await placement.delete_queue("n", "q")
        await node.until_settled()
        assert placement.map.find("n", "q") is None
        assert_groups_follow(environment, placement.map)

        again, created = await placement.create_queue("n", "q", settings)
        assert created
        assert not set(again.groups) & set(queue.groups)


async def test_a_dead_queue_reaches_the_partitions(environment: MemoryEnvironment):
    async with placement_node(environment) as node:
        placement = node.placement
        dead, _ = await placement.create_queue("n", "dead", QueueSettings(partitions=2))
        queue, _ = await placement.create_queue("n", "q", QueueSettings(dead_queue="dead"))
        row = stored_settings(environment, queue.groups[0])
        assert row is not None
        assert [(one.queue, one.partition, one.group) for one in row.settings.dead_targets] == [
            ("dead", 0, dead.groups[0]),
            ("dead", 1, dead.groups[1]),
        ]
        with pytest.raises(QueratorError) as caught:
            await placement.delete_queue("n", "dead")
        assert caught.value.code is ErrorCode.QUEUE_IN_USE
        await placement.update_queue("n", "q", QueueSettings(), ("dead_queue",))
        row = stored_settings(environment, queue.groups[0])
        assert row is not None
        assert row.settings.dead_targets == ()
        await placement.delete_queue("n", "dead")


async def test_refusals_come_with_their_field(environment: MemoryEnvironment):
    async with placement_node(environment) as node:
        with pytest.raises(QueratorError) as caught:
            await node.placement.create_queue("n", "q", QueueSettings(partitions=2_000))
        error = caught.value
        assert (error.code, error.field, error.limit, error.value) == (
            ErrorCode.LIMIT_EXCEEDED,
            "settings.partitions",
            "1024",
            "2000",
        )


async def test_many_at_once(environment: MemoryEnvironment):
    async with placement_node(environment) as node:
        created = await asyncio.gather(
            *(node.placement.create_queue("n", f"q{i % 20}", QueueSettings()) for i in range(40))
        )
        assert sum(made for _, made in created) == 20
        assert_groups_follow(environment, node.placement.map)
        await asyncio.gather(*(node.placement.delete_queue("n", f"q{i}") for i in range(20)))
        await node.until_settled()
        assert_groups_follow(environment, node.placement.map)


async def test_watchers_see_every_state_of_a_queue(environment: MemoryEnvironment):
    async with placement_node(environment) as node:
        seen: list[QueueState | None] = []

        def look(placed: PlacementMap) -> None:
            queue = placed.find("n", "q")
            seen.append(None if queue is None else queue.state)

        unwatch = node.placement.watch(look)
        await node.placement.create_queue("n", "q", QueueSettings())
        await node.placement.delete_queue("n", "q")
        await node.until_settled()
        unwatch()
        await node.placement.create_queue("n", "other", QueueSettings())
    assert list(dict.fromkeys(seen)) == [
        QueueState.CREATING, QueueState.ACTIVE, QueueState.DELETING, None
    ]  # fmt: skip


async def test_a_restart_brings_everything_back(environment: MemoryEnvironment):
    async with placement_node(environment) as node:
        await node.placement.create_queue("n", "dead", QueueSettings(partitions=2))
        queue, _ = await node.placement.create_queue("n", "q", QueueSettings(dead_queue="dead"))
        before = node.placement.map
    async with placement_node(environment) as node:
        after = node.placement.map
        assert after.epoch == before.epoch
        assert after.queues("n") == before.queues("n")
        assert all(node.host.leads(group) for queue in after for group in queue.groups)
        assert await node.placement.create_queue("n", "q", queue.settings) == (queue, False)


async def test_a_deletion_is_answered_when_nobody_can_lead_a_group_of_it(
    environment: MemoryEnvironment,
):
    async with placement_node(environment) as node:
        queue, _ = await node.placement.create_queue("n", "q", QueueSettings(partitions=3))
        await node.placement.delete_queue("n", "q")
        assert [node.host.status(group) for group in queue.groups] == [None, None, None]
        after = environment.crash()
    async with placement_node(after) as node:
        await node.until_settled()
        assert_groups_follow(after, node.placement.map)
        assert node.placement.map.find("n", "q") is None


async def test_a_deletion_that_overtakes_a_creation_ends_it(environment: MemoryEnvironment):
    async with placement_node(environment) as node:
        placement = node.placement
        async with asyncio.TaskGroup() as tasks:
            creating = tasks.create_task(_code_of_create(node.placement, partitions=5))
            placed = asyncio.Event()
            placement.watch(lambda _: placed.set())
            await placed.wait()
            await placement.delete_queue("n", "q")
        assert creating.result() in (None, ErrorCode.QUEUE_DELETING)
        await node.until_settled()
        assert_groups_follow(environment, placement.map)
        assert placement.map.find("n", "q") is None


async def _code_of_create(placement: Placement, *, partitions: int) -> ErrorCode | None:
    try:
        await placement.create_queue("n", "q", QueueSettings(partitions=partitions))
    except QueratorError as error:
        return error.code
    return None


async def test_stop_ends_those_who_wait(environment: MemoryEnvironment):
    async with placement_node(environment) as node:
        async with asyncio.TaskGroup() as tasks:
            creating = tasks.create_task(_code_of_create(node.placement, partitions=50))
            placed = asyncio.Event()
            node.placement.watch(lambda _: placed.set())
            await placed.wait()
            await node.placement.stop()
        assert creating.result() is ErrorCode.OUTCOME_UNKNOWN
    async with placement_node(environment) as node:
        placed_map = await node.until_settled()
        assert placed_map.partitions == 50


async def test_what_comes_here_is_opened_while_a_change_waits_for_others(
    environment: MemoryEnvironment, monkeypatch: pytest.MonkeyPatch
):
    """Seed 40077 of whole nodes: a replica that came back was not opened during the change."""
    async with placement_node(environment) as node, asyncio.timeout(20):
        placement = node.placement
        queue, _ = await placement.create_queue("n", "q", QueueSettings(partitions=2))
        (group, _other), reconciler = queue.groups, placement._reconciler
        configure, waits, goes_on = reconciler.configure, asyncio.Event(), asyncio.Event()

        async def slow(placed: PlacementMap, changed: Queue) -> None:
            waits.set()
            await goes_on.wait()
            await configure(placed, changed)

        monkeypatch.setattr(reconciler, "configure", slow)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(
                placement.update_queue(
                    "n", "q", QueueSettings(max_attempts=9), ("max_attempts",), 1
                )
            )
            await waits.wait()
            await reconciler.clear(group)
            assert not node.host.leads(group)
            placement._wake()
            while not node.host.leads(group):  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.01)
            goes_on.set()
        assert_groups_follow(environment, placement.map)
