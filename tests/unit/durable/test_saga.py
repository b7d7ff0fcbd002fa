"""Sagas undo what a failed block has done, whatever happens meanwhile."""

import asyncio
from datetime import timedelta

import pytest

from querator.durable import Final, NotInExecution, Retry, durable, saga, sleep, step
from querator.durable.machine import living
from tests.unit.durable.memory_partition import MemoryPartition, Worker, replay, run_straight


@step
async def book(name: str) -> str:
    return name


@step
async def release(name: str) -> None: ...


async def give_back(name: str) -> None: ...


def undone(run):
    return [effect.args[0] for effect in run.effects if effect.name in ("release", "give_back")]


def test_what_was_added_is_called_in_reverse_order():
    @durable
    async def main() -> None:
        async with saga() as undo:
            undo.add(release, "seat")
            await book("seat")
            undo.add(give_back, "bag")
            await book("bag")
            raise LookupError("full")

    run = run_straight(main)
    assert isinstance(run.result(), LookupError)
    assert undone(run) == ["bag", "seat"]
    assert replay(main, run.partition.journal) == run.partition.close


def test_a_block_that_succeeds_undoes_nothing():
    @durable
    async def main() -> str:
        async with saga() as undo:
            undo.add(release, "seat")
            return await book("seat")

    run = run_straight(main)
    assert run.result() == "seat"
    assert undone(run) == []


def test_undoing_is_retried_without_end():
    failures = iter(range(20))

    @step(retry=Retry(attempts=2, first=timedelta(seconds=5), most=timedelta(hours=1)))
    async def cancel(name: str) -> None:
        if next(failures, None) is not None:
            raise OSError(name)

    @durable
    async def main() -> None:
        async with saga() as undo:
            undo.add(cancel, "seat")
            raise LookupError("full")

    run = run_straight(main)
    assert isinstance(run.result(), LookupError)
    assert run.kinds.count("ATTEMPT_FAILED cancel") == 20
    assert run.kinds[-1] == "STEP_DONE cancel"


def test_a_cancellation_undoes_and_does_not_stop_undoing():
    @durable
    async def main() -> None:
        async with saga() as undo:
            undo.add(release, "seat")
            undo.add(release, "bag")
            await sleep(100)

    cancel = lambda partition, at_ms: partition.cancel(b"", at_ms)  # noqa: E731
    run = run_straight(main, takes_ms=lambda effect: 10, happens=[(5, cancel), (12, cancel)])
    assert run.result() == "cancelled"
    assert undone(run) == ["bag", "seat"]
    assert replay(main, run.partition.journal) == run.partition.close


@pytest.mark.parametrize("error", [Final(OSError("never")), ValueError("never")])
def test_what_cannot_be_undone_leaves_the_execution_stuck_until_it_can(error):
    works: list[bool] = []

    @step(retry=Retry(unless=(ValueError,)))
    async def cancel(name: str) -> None:
        if not works:
            raise error

    @durable
    async def main() -> None:
        async with saga() as undo:
            undo.add(cancel, "seat")
            raise LookupError("full")

    partition = MemoryPartition().start(main)
    worker = Worker(partition, main)
    [effect] = worker.begin()
    worker.finish(effect)
    worker.send()
    assert partition.state == "stuck"
    assert "cancel, which undoes, has failed" in partition.reason
    assert worker.machine.put_away()
    works.append(True)
    run = run_straight(main, partition=partition)
    assert isinstance(run.result(), LookupError)


def test_an_execution_that_is_put_away_undoes_nothing():
    @durable
    async def main() -> None:
        async with saga() as undo:
            undo.add(release, "seat")
            await asyncio.gather(book("seat"), sleep(100))

    worker = Worker(MemoryPartition().start(main), main)
    worker.begin()
    assert worker.machine.put_away()
    assert worker.begin() == []
    assert worker.send() is None
    assert living() == 0


def test_wrong_uses():
    with pytest.raises(NotInExecution, match="saga was called outside"):
        saga()

    @durable
    async def main() -> None:
        async with saga() as undo:
            undo.add(main)

    @durable
    async def undoes_at_most_once() -> None:
        async with saga() as undo:
            undo.add(step(book.function, once="at_most"), "seat")

    error = run_straight(undoes_at_most_once).result()
    assert isinstance(error, ValueError)
    assert "book runs at most once, but what undoes is retried until" in str(error)
    error = run_straight(main).result()
    assert isinstance(error, TypeError)
    assert "main is a durable function; a step is needed" in str(error)
