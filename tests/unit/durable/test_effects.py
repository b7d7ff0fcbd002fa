"""Effects on a loop of asyncio: time-outs, threads, cancellations."""

import asyncio
import threading
from datetime import timedelta

import pytest

from querator.durable import current, durable, step
from querator.durable.effects import carry_out
from querator.durable.operations import Effect
from tests.unit.durable.memory_partition import MemoryPartition, Worker


def effect_of(work) -> Effect:
    @durable
    async def main() -> None:
        from querator.durable import call

        await call(work)

    worker = Worker(MemoryPartition().start(main), main)
    [effect] = worker.begin()
    assert worker.machine.put_away()
    return effect


async def test_a_step_that_is_over_its_time():
    @step(timeout=timedelta(milliseconds=1))
    async def waits() -> None:
        await asyncio.Event().wait()

    outcome = await carry_out(effect_of(waits))
    assert isinstance(outcome.error, TimeoutError)


async def test_a_sync_step_runs_in_a_thread_and_knows_where_it_is():
    @step
    def works() -> tuple[int, str]:
        return threading.get_ident(), current().step_key

    outcome = await carry_out(effect_of(works))
    thread, key = outcome.value
    assert thread != threading.get_ident()
    assert key == "default/shop/3/17/1/1/works"


async def test_an_exception_is_the_outcome():
    @step
    async def fails() -> None:
        raise LookupError("no")

    assert isinstance((await carry_out(effect_of(fails))).error, LookupError)


async def test_a_cancellation_of_the_caller_is_raised_and_one_of_the_step_is_the_outcome():
    began = asyncio.Event()

    @step
    async def waits() -> None:
        began.set()
        await asyncio.Event().wait()

    @step
    async def cancels() -> None:
        raise asyncio.CancelledError

    async with asyncio.TaskGroup() as group:
        task = group.create_task(carry_out(effect_of(waits)))
        await began.wait()
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        task.result()
    assert isinstance((await carry_out(effect_of(cancels))).error, asyncio.CancelledError)
