"""A crash at every commit of a short life of two queues, and a second crash during the recovery."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from querator.model.errors import ErrorCode, QueratorError
from querator.model.queues import QueueSettings
from querator.placement.placement import Placement
from querator.storage.memory_environment import MemoryEnvironment
from tests.unit.placement.placement_node import PlacementNode, assert_groups_follow, placement_node

POINTS = ("commit", "synced")
"""Before a commit is durable, and after it is durable but before any caller knows."""

QUEUE = QueueSettings(partitions=3, dead_queue="dead")


class PowerLossError(Exception):
    pass


class PowerLoss:
    """A power loss at the n-th time that a commit reaches the point."""

    def __init__(self, point: str, number: int) -> None:
        self._point = point
        self._left = number

    def __call__(self, point: str) -> None:
        if point == self._point:
            self._left -= 1
            if self._left == 0:
                raise PowerLossError


Step = Callable[[Placement], Awaitable[object]]

LIFE: list[Step] = [
    lambda placement: placement.create_queue("n", "dead", QueueSettings()),
    lambda placement: placement.create_queue("n", "q", QUEUE),
    lambda placement: placement.update_queue(
        "n", "q", QueueSettings(max_attempts=4), ("max_attempts",)
    ),
    lambda placement: placement.delete_queue("n", "q"),
]


async def _live(node: PlacementNode, done: int) -> int:
    """Runs the steps of the life after step `done`, until its end or a power loss; the steps
    answered.
    """
    for step in LIFE[done:]:
        try:
            await step(node.placement)
        except QueratorError as error:
            if node.failed.is_set():
                return done
            # The deletion without an answer had been carried out completely.
            if (error.code, done) != (ErrorCode.QUEUE_NOT_FOUND, len(LIFE) - 1):
                raise
        done += 1
    return done


async def _until_loss(environment: MemoryEnvironment, done: int) -> tuple[int, bool]:
    """The steps answered, and whether the power was lost on the way."""
    node = PlacementNode(environment)
    try:
        await node.start()
    except QueratorError:
        await node.failed.wait()
        await node.stop()
        return done, True
    done = await _live(node, done)
    if not node.failed.is_set():
        async with asyncio.TaskGroup() as tasks:
            settled = tasks.create_task(node.until_settled())
            failed = tasks.create_task(node.failed.wait())
            await asyncio.wait((settled, failed), return_when=asyncio.FIRST_COMPLETED)
            settled.cancel()
            failed.cancel()
    lost = node.failed.is_set()
    await node.stop()
    return done, lost


async def _check_after(environment: MemoryEnvironment, done: int) -> None:
    """Checks that every answered step has happened, that the others can be asked again, and that
    nothing is left over.
    """
    async with placement_node(environment) as node:
        placed = await node.until_settled()
        assert_groups_follow(environment, placed)
        dead, queue = placed.find("n", "dead"), placed.find("n", "q")
        assert dead is not None or done == 0
        assert queue is not None or done in (0, 1, 3, 4)
        assert queue is None or done < len(LIFE)
        assert queue is None or done != 3 or queue.settings.max_attempts == 4
        assert await _live(node, done) == len(LIFE)
        placed = await node.until_settled()
        assert [queue.name for queue in placed] == ["dead"]
        assert_groups_follow(environment, placed)


async def _commits_of_a_whole_life() -> int:
    environment = MemoryEnvironment()
    assert await _until_loss(environment, 0) == (len(LIFE), False)
    return environment.commit_points


@pytest.mark.parametrize("point", POINTS)
async def test_a_crash_at_every_commit(point: str):
    commits = await _commits_of_a_whole_life()
    losses = 0
    for number in range(1, 3 * commits):
        environment = MemoryEnvironment(faults=PowerLoss(point, number))
        done, lost = await _until_loss(environment, 0)
        if not lost:
            break
        losses += 1
        await _check_after(environment.crash(), done)
    assert losses >= 15, "group commit joins some commits, but not that many"


@pytest.mark.parametrize("again", [1, 2, 3])
@pytest.mark.parametrize("point", POINTS)
async def test_a_second_crash_while_it_recovers(point: str, again: int):
    for number in range(again, 60, 3):
        environment = MemoryEnvironment(faults=PowerLoss(point, number))
        done, lost = await _until_loss(environment, 0)
        if not lost:
            break
        environment = environment.crash()
        environment.faults = PowerLoss(point, again)
        done, _ = await _until_loss(environment, done)
        await _check_after(environment.crash(), done)
    assert number > 15
