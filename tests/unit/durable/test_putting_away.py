"""Executions leave the memory without effects, and without lost tasks.

`python -m tests.unit.durable.test_putting_away 100000` puts more of them away than the test.
"""

import asyncio
import gc
import random
import sys
import time

import pytest

from querator.durable import (
    Evicted,
    durable,
    promise,
    publish,
    receive,
    saga,
    sleep,
    step,
    sync,
)
from querator.durable.machine import living
from tests.unit.durable.memory_partition import (
    START_MS,
    MemoryPartition,
    Worker,
    keep_what_does_not_end,
)
from tests.unit.durable.random_programs import CODEC, Durably, Programs


@step
async def work(name: str) -> str:
    return name


@step
def sync_work(name: str) -> str:
    return name


@durable
def in_a_thread() -> str:
    with sync.saga() as undo:
        undo.add(work, "undo")
        return sync_work("a") + str(sync.receive("never"))


def put_away_many(count: int, *, first: int = 0) -> int:
    """Puts executions away at random places; returns the number of steps that had begun."""
    begun = 0
    for number in range(first, first + count):
        chance = random.Random(number)
        if number % 50 == 49:
            worker = Worker(MemoryPartition().start(in_a_thread), in_a_thread)
        else:
            durably = Durably(Programs(number % 500))
            worker = Worker(MemoryPartition().start(durably.main), durably.main, codec=CODEC)
        for _ in range(chance.randint(0, 4)):
            effects = worker.begin()
            begun += len(effects)
            for effect in effects:
                if chance.random() < 0.7:
                    worker.finish(effect, START_MS)
            worker.send()
        made = len(worker.partition.journal)
        assert worker.machine.put_away()
        assert worker.begin() == []
        assert worker.machine.take() is None
        assert len(worker.partition.journal) == made
    return begun


@pytest.mark.filterwarnings("error")
def test_many_executions_are_put_away_in_the_middle():
    assert put_away_many(1_000) > 1_000
    gc.collect()
    assert living() == 0


def test_nothing_of_the_code_has_an_effect_meanwhile():
    seen = []

    @durable
    async def main() -> None:
        given = promise(int)

        async def waits() -> None:
            try:
                async with saga() as undo:
                    undo.add(work, "undo")
                    await asyncio.gather(work("a"), receive("never"), given.wait(), sleep(9))
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise
            finally:
                seen.append("over")
                await work("clean-up")

        async with asyncio.timeout(50):
            await asyncio.gather(waits(), work("b"))

    worker = Worker(MemoryPartition().start(main), main)
    assert len(worker.begin()) == 2
    assert worker.machine.put_away()
    assert seen == ["over"]
    assert worker.begin() == []
    assert living() == 0


def test_a_durable_call_in_a_finalizer_has_no_effect_meanwhile():
    raised = []

    class Held:
        def __del__(self) -> None:
            try:
                publish("state", "deleted")
            except Evicted as error:
                raised.append(error)

    @durable
    async def main() -> None:
        held = [Held()]
        try:
            await sleep(1)
        finally:
            held.clear()

    worker = Worker(MemoryPartition().start(main), main)
    assert worker.machine.put_away()
    assert len(raised) == 1
    assert worker.machine.take() is None


def test_what_is_not_put_away_is_counted():
    @durable
    async def main() -> None:
        await sleep(1)

    worker = Worker(MemoryPartition().start(main), main)
    assert living() == 1
    assert worker.machine.put_away()
    assert worker.machine.put_away()
    assert living() == 0


def test_code_that_catches_everything_and_calls_again_ends_or_is_kept(caplog):
    attempts = []

    @durable
    async def gives_up() -> None:
        for number in range(100):
            try:
                await work("a")
            except BaseException:  # noqa: BLE001 - that is the point.
                attempts.append(number)

    @durable
    async def never_ends() -> None:
        while True:
            try:
                await work("a")
            except BaseException:  # noqa: BLE001 - that is the point.
                continue

    for _ in range(2):
        assert Worker(MemoryPartition().start(gives_up), gives_up).machine.put_away()
    assert len(attempts) == 200
    [told] = [each.getMessage() for each in caplog.records]
    assert "gives_up catches BaseException around the durable call at durable/test_putting" in told
    assert not Worker(MemoryPartition().start(never_ends), never_ends).machine.put_away()
    assert keep_what_does_not_end() == 1


if __name__ == "__main__":
    wanted = int(sys.argv[1])
    began = time.perf_counter()
    steps = put_away_many(wanted)
    gc.collect()
    assert not living()
    print(  # noqa: T201
        f"Python {sys.version.split()[0]}: {wanted} executions put away, {steps} steps had begun, "
        f"{time.perf_counter() - began:.1f} s"
    )
