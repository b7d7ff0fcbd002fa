"""Called durable functions leave one record, in the place of their last event."""

import asyncio
from functools import partial

from querator.durable import durable, promise, receive, sleep, step
from querator.model.executions import RecordKind
from tests.unit.durable.memory_partition import MemoryPartition, Worker, replay, run_straight


@step
async def add(left: int, right: int) -> int:
    return left + right


@durable
async def summed(numbers: list[int]) -> int:
    total = 0
    for number in numbers:
        total = await add(total, number)
    return total


@durable
async def two_sums() -> int:
    return await summed([1, 2, 3]) + await summed([4, 5, 6])


@durable
async def make_promise() -> int:
    """Leaves a promise behind, whose token it has given away."""
    promise(int)
    await add(1, 2)
    return await add(3, 4)


@durable
async def leaves_a_promise() -> int:
    made = await make_promise()
    await add(5, 6)
    await sleep(60)
    return made + await add(7, 8)


@step(effects=False)
async def read(number: int) -> int:
    return number


@durable
async def read_many(count: int) -> int:
    return sum([await read(number) for number in range(count)])


@durable
async def reads() -> int:
    return await read_many(10) + await add(1, 1)


def test_reads_in_a_call_are_sent_as_its_result_alone():
    worker = Worker(MemoryPartition().start(reads), reads)
    for _ in range(10):
        [effect] = worker.begin()
        worker.finish(effect)
    assert worker.begin() == []
    sending = worker.send()
    assert sending is not None
    [note] = sending.notes
    assert (note.kind, note.name, note.payload) == (RecordKind.CALL_DONE, "read_many", b"45")
    [effect] = worker.begin()
    assert effect.name == "add"
    worker.finish(effect)
    worker.send()
    assert replay(reads, worker.partition.journal) == worker.partition.close
    assert worker.machine.put_away()


def test_calls_within_calls_leave_one_record():
    @durable
    async def outer(count: int) -> int:
        return await summed([1, 2, 3]) + await summed([4, 5]) + await add(0, count)

    @durable
    async def main() -> int:
        return await outer(1) + await add(1, 1)

    run = run_straight(main)
    assert run.result() == 18
    assert run.kinds == ["STARTED", "CALL_DONE outer", "STEP_DONE add"]
    assert replay(main, run.partition.journal) == run.partition.close


def test_an_exception_of_a_call_is_kept_as_its_result():
    @durable
    async def fails() -> int:
        await add(1, 1)
        await add(1, 2)
        raise LookupError("no")

    @durable
    async def main() -> str:
        try:
            await fails()
        except LookupError as error:
            await add(0, 0)
            return f"raised {error}"
        return ""

    run = run_straight(main)
    assert run.result() == "raised no"
    assert run.kinds == ["STARTED", "CALL_FAILED fails", "STEP_DONE add"]
    assert replay(main, run.partition.journal) == run.partition.close


def test_a_call_that_leaves_a_task_behind_keeps_its_records():
    left = []

    @durable
    async def leaves() -> int:
        left.append(asyncio.get_running_loop().create_task(add(5, 5)))
        return await add(1, 1) + await add(1, 2)

    @durable
    async def main() -> int:
        return await leaves() + await add(1, 1) + await left[-1]

    slow = {5: 50}
    run = run_straight(main, takes_ms=lambda effect: slow.get(effect.args[0], 1))
    assert run.result() == 17
    assert run.kinds == ["STARTED", *["STEP_DONE add"] * 4]
    assert replay(main, run.partition.journal) == run.partition.close


def test_signals_that_a_call_has_consumed_go_with_it():
    @durable
    async def totals() -> int:
        return await add(await receive("number", int), await receive("number", int))

    @durable
    async def main() -> int:
        return await totals() + await add(0, await receive("number", int))

    happens = [(at, partial(number_of, at)) for at in (1, 2, 3)]
    run = run_straight(main, happens=happens)
    assert run.result() == 6
    assert run.kinds == ["STARTED", "SIGNAL number", "CALL_DONE totals", "STEP_DONE add"]
    assert replay(main, run.partition.journal) == run.partition.close


def test_a_call_that_a_signal_ends_keeps_its_records():
    @durable
    async def totals() -> int:
        return await add(1, 1) + await receive("number", int)

    @durable
    async def main() -> int:
        return await totals() + await add(0, 0)

    run = run_straight(main, happens=[(5, partial(number_of, 5))])
    assert run.result() == 7
    assert run.kinds == ["STARTED", "STEP_DONE add", "SIGNAL number", "STEP_DONE add"]


def test_a_call_whose_last_event_is_a_timer_of_the_partition():
    @durable
    async def waits() -> int:
        await add(1, 1)
        await sleep(5)
        return 2

    @durable
    async def main() -> int:
        return await waits() + await add(0, 0) + await add(0, 1)

    run = run_straight(main)
    assert run.result() == 3
    assert run.kinds == ["STARTED", "CALL_DONE_LATER waits", *["STEP_DONE add"] * 2]
    assert replay(main, run.partition.journal) == run.partition.close


def number_of(number, partition, at_ms):
    partition.signal("number", b"%d" % number, at_ms)


def test_the_records_of_a_call_become_one():
    run = run_straight(two_sums)
    assert run.result() == 21
    # The second one needs no fold: the Record with its last result ends the execution.
    assert run.kinds == ["STARTED", "CALL_DONE summed", *["STEP_DONE add"] * 3]
    end = replay(two_sums, run.partition.journal)
    assert end.payload == b"21"


def test_a_promise_that_is_resolved_later_keeps_the_records_of_its_call():
    def resolve(partition: MemoryPartition, now_ms: int) -> None:
        partition.resolve(b"\x01\x01", b"17", now_ms)

    run = run_straight(leaves_a_promise, happens=[(5_000, resolve)])
    assert run.result() == 22
    assert "CALL_DONE make_promise" not in run.kinds
    assert "RESOLVED" in run.kinds
    assert replay(leaves_a_promise, run.partition.journal) == run.partition.close
