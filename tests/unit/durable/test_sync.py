"""Sync durable functions: in threads that take turns with the loop."""

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from querator.durable import (
    Cancelled,
    Evicted,
    NotInExecution,
    current,
    durable,
    now,
    promise,
    publish,
    random,
    receive,
    sleep,
    step,
    sync,
    uuid,
)
from querator.durable.machine import living
from querator.model.executions import Note, RecordKind
from tests.unit.durable.memory_partition import (
    MemoryPartition,
    Worker,
    keep_what_does_not_end,
    replay,
    run_straight,
)


@step
def double(number: int) -> int:
    return 2 * number


@step
async def triple(number: int) -> int:
    return 3 * number


@step
def release(name: str) -> None: ...


@durable
def doubled_twice(number: int) -> int:
    return double(double(number))


@durable
async def tripled_twice(number: int) -> int:
    return await triple(await triple(number))


def both_ways(function, **options):
    before = set(threading.enumerate())
    run = run_straight(function, **options)
    assert replay(function, run.partition.journal) == run.partition.close
    assert set(threading.enumerate()) == before
    return run


def test_steps_and_durable_functions_are_just_called():
    @durable
    def main() -> list[int]:
        return [double(1), doubled_twice(1), sync.call(triple, 1), sync.call(tripled_twice, 1)]

    run = both_ways(main)
    assert run.result() == [2, 4, 3, 9]
    assert "CALL_DONE doubled_twice" in run.kinds


def test_outside_of_an_execution_they_are_the_functions():
    assert doubled_twice(1) == 4


def test_an_async_function_calls_a_sync_one():
    @durable
    async def main() -> int:
        from querator.durable import call

        return await call(doubled_twice, 1)

    assert both_ways(main).result() == 4


def test_time_signals_promises_and_chance():
    @durable
    def main() -> list[object]:
        began = now()
        sync.sleep(timedelta(seconds=5))
        sync.sleep_until(datetime(2030, 1, 1, tzinfo=UTC))
        publish("state", "slept")
        given = promise(int)
        return [
            sync.receive("number", int),
            sync.wait(given),
            now() - began > timedelta(days=300),
            random().random() != random().random(),
            str(uuid()) != str(uuid()),
            current().execution_id,
        ]

    def happen(partition, at_ms):
        partition.signal("number", b"7", at_ms)
        partition.arrive(Note(kind=RecordKind.RESOLVED, path=b"\x03", payload=b"8", at_ms=at_ms))

    run = both_ways(main, happens=[(300_000_000_000, happen)])
    assert run.result() == [7, 8, True, True, True, "order-17"]
    assert run.partition.published == {"state": b'"slept"'}


def test_a_signal_that_does_not_come_in_time():
    @durable
    def main() -> str:
        try:
            return str(sync.receive("number", timeout=2))
        except TimeoutError:
            return "late"

    assert both_ways(main).result() == "late"


def test_gather_runs_functions_at_the_same_time():
    def chain(number: int) -> int:
        return double(double(number))

    @durable
    def main() -> list[int]:
        return sync.gather([partial(chain, number) for number in range(3)])

    run = both_ways(main, takes_ms=lambda effect: 100 - effect.args[0])
    assert run.result() == [0, 4, 8]
    assert [effect.args[0] for effect in run.effects[:3]] == [0, 1, 2]
    assert sorted({len(effect.path) for effect in run.effects}) == [2]


def test_gather_of_nothing_and_of_what_fails():
    def fails() -> int:
        raise LookupError("no")

    @durable
    def main() -> list[object]:
        empty: list[int] = sync.gather([])
        try:
            calls: list[Callable[[], int]] = [partial(double, 1), fails]
            sync.gather(calls)
        except LookupError as error:
            return [empty, str(error)]
        return []

    assert both_ways(main).result() == [[], "no"]


def test_exceptions_of_steps_are_raised():
    @step
    def fails() -> None:
        raise LookupError("no")

    @durable
    def main() -> str:
        try:
            fails()
        except LookupError as error:
            return str(error)
        return ""

    assert both_ways(main).result() == "no"


def test_a_cancellation_is_an_exception_that_is_no_exception():
    raised = []

    @durable
    def main() -> None:
        try:
            sync.sleep(100)
        except Cancelled:
            raised.append("cancelled")
            double(1)
            raise

    run = both_ways(main, happens=[(5, lambda partition, at_ms: partition.cancel())])
    assert run.result() == "cancelled"
    assert run.kinds[-1] == "STEP_DONE double"
    assert set(raised) == {"cancelled"}


def test_a_saga_undoes():
    @durable
    def main() -> None:
        with sync.saga() as undo:
            undo.add(release, "seat")
            undo.add(release, "bag")
            raise LookupError("full")

    run = both_ways(main)
    assert isinstance(run.result(), LookupError)
    assert [effect.args for effect in run.effects] == [("bag",), ("seat",)]


def test_a_thread_that_is_put_away_unwinds_without_effects():
    unwound = []

    @durable
    def main() -> None:
        try:
            with sync.saga() as undo:
                undo.add(release, "seat")
                sync.sleep(100)
        except Exception:
            unwound.append("an exception")
            raise
        finally:
            try:
                double(1)
            except Evicted:
                unwound.append("evicted")
                raise

    worker = Worker(MemoryPartition().start(main), main)
    assert worker.machine.put_away()
    assert unwound == ["evicted"]
    assert living() == 0


def test_code_that_catches_everything_is_kept():
    @durable
    def main() -> None:
        while True:
            try:
                sync.sleep(1)
            except BaseException:  # noqa: BLE001 - that is the point.
                continue

    worker = Worker(MemoryPartition().start(main), main)
    assert not worker.machine.put_away()
    assert keep_what_does_not_end() == 1


def test_calls_of_the_other_kind():
    @durable
    def in_sync() -> str:
        words = []
        for use in (lambda: sleep(1), lambda: receive("x")):
            try:
                use()
            except NotInExecution as error:
                words.append(str(error))
        return "; ".join(words)

    @durable
    async def in_async() -> str:
        try:
            sync.sleep(1)
        except NotInExecution as error:
            return str(error)
        return ""

    assert run_straight(in_sync).result() == (
        "sleep was called in a sync function (use querator.durable.sync); it works only in a "
        "durable function; receive was called in a sync function (use querator.durable.sync); it "
        "works only in a durable function"
    )
    assert "sync.sleep was called in an async function" in run_straight(in_async).result()
    with pytest.raises(NotInExecution, match=r"sync\.sleep was called outside of an execution"):
        sync.sleep(1)


def test_a_durable_call_of_another_thread():
    raised = []

    def other():
        try:
            now()
        except NotInExecution as error:
            raised.append(str(error))

    @durable
    def main() -> None:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()

    run_straight(main)
    [text] = raised
    assert "or in another thread" in text
