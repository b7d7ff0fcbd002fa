"""Time, chance, signals, promises, published values, cancellation."""

import asyncio
import logging
from datetime import UTC, datetime, timedelta

import pytest

from querator.durable import (
    CodecError,
    LiveOnly,
    RemoteError,
    ValueTooLarge,
    durable,
    now,
    outbox,
    promise,
    publish,
    random,
    receive,
    receive_all,
    sleep,
    sleep_until,
    step,
    uuid,
)
from querator.durable.codec import Codec
from querator.durable.promises import PromiseToken
from querator.model.executions import Note, RecordKind, promise_mac
from tests.unit.durable.memory_partition import (
    IDENTITY,
    START_MS,
    MemoryPartition,
    Worker,
    replay,
    run_straight,
)

START = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=START_MS)


@step
async def work(name: str) -> str:
    return name


def signal(name, payload):
    return lambda partition, at_ms: partition.signal(name, payload, at_ms)


def both_ways(function, **options):
    """The result of a run, which must be that of its replay."""
    run = run_straight(function, **options)
    end = replay(function, run.partition.journal)
    assert end == run.partition.close
    return run.result()


# --- time ----------------------------------------------------------------------------------------


def test_time_is_that_of_the_last_event():
    @durable
    async def main() -> list[datetime]:
        seen = [now()]
        await work("a")
        seen.append(now())
        await sleep(timedelta(days=365))
        seen.append(now())
        await sleep_until(datetime(2030, 1, 1, tzinfo=UTC))
        seen.append(now())
        await sleep_until(datetime(2020, 1, 1, tzinfo=UTC))
        return [*seen, now()]

    later = START + timedelta(milliseconds=1)
    year = later + timedelta(days=365)
    end = datetime(2030, 1, 1, tzinfo=UTC)
    expected = [START, later, year, end, end]
    assert both_ways(main) == [each.isoformat().replace("+00:00", "Z") for each in expected]


def test_a_worker_fires_the_timers_that_the_partition_does_not_have():
    @durable
    async def main() -> None:
        await sleep(5)

    run = run_straight(main, parks=False)
    assert run.kinds == ["STARTED", "TIMER_DONE"]
    run = run_straight(main)
    assert run.kinds == ["STARTED", "TIMER_FIRED"]


def test_a_timer_that_is_not_needed_any_more_is_withdrawn():
    @durable
    async def main() -> str:
        async with asyncio.timeout(3_600):
            await receive("go")
        await sleep(7_200)
        return "slept"

    partition = MemoryPartition().start(main)
    worker = Worker(partition, main)
    worker.send(park=True)
    [(path, due_ms)] = partition.timers.items()
    assert due_ms == START_MS + 3_600_000
    partition.signal("go", b"1", START_MS + 1)
    worker.lease_again()
    worker.hear()
    worker.send(park=True)
    assert list(partition.timers.values()) == [START_MS + 1 + 7_200_000]
    assert path not in partition.timers
    assert worker.machine.put_away()


def test_a_timer_that_a_replay_does_not_need_any_more_is_withdrawn():
    """The signal is in the journal from which the next worker begins, as it is in the leases of a
    server: 2,000 such waits would have filled the timers of the execution.
    """

    async def waits() -> None:
        async with asyncio.timeout(3_600):
            await receive("go")

    @durable
    async def called() -> None:
        await waits()

    @durable
    async def main() -> None:
        await waits()
        await called()
        await receive("end")

    partition = MemoryPartition().start(main)
    for number in range(3):
        worker = Worker(partition, main)
        worker.send(park=True)
        assert len(partition.timers) == (1 if number < 2 else 0)
        assert worker.machine.put_away()
        partition.signal("go", b"1", START_MS + number)


@pytest.mark.parametrize(
    ("duration", "error", "words"),
    [
        (-1, ValueError, "must not be negative"),
        (timedelta(seconds=-1), ValueError, "must not be negative"),
        (float("nan"), ValueError, "the duration is nan"),
        (float("inf"), ValueError, "at most 10 years"),
        (timedelta(days=3_651), ValueError, "at most 10 years"),
        (timedelta.max, ValueError, "at most 10 years"),
        ("1", TypeError, "must be a timedelta, or seconds"),
    ],
)
def test_wrong_durations(duration, error, words):
    @durable
    async def main() -> None:
        await sleep(duration)

    raised = run_straight(main).result()
    assert isinstance(raised, error)
    assert words in str(raised)


def test_an_instant_needs_a_time_zone():
    @durable
    async def main() -> None:
        await sleep_until(datetime(2030, 1, 1))  # noqa: DTZ001 - that is the point.

    assert "has no time zone" in str(run_straight(main).result())


# --- chance --------------------------------------------------------------------------------------


def test_random_numbers_and_ids_are_those_of_the_execution_and_the_task():
    @durable
    async def main() -> list[str]:
        async def draw() -> str:
            first = random().random()
            await work("x")
            return f"{first} {random().random()} {uuid()} {uuid()}"

        return list(await asyncio.gather(draw(), draw(), draw()))

    drawn = both_ways(main)
    assert len({part for text in drawn for part in text.split()}) == 12


# --- signals -------------------------------------------------------------------------------------


def test_signals_wait_in_a_mailbox_in_the_order_of_arrival():
    @durable
    async def main() -> list[int]:
        await sleep(10)
        found = [await receive("number", int), await receive("number", int)]
        async for number in receive_all("number", int):
            found.append(number)
            if number == 4:
                break
        return found

    happens = [(at, signal("number", b"%d" % at)) for at in (1, 2, 20_000, 3)]
    happens[2] = (20_000, signal("number", b"4"))
    assert both_ways(main, happens=happens) == [1, 2, 3, 4]


def test_a_receiver_that_is_cancelled_takes_no_signal():
    @durable
    async def main() -> list[object]:
        loop = asyncio.get_running_loop()
        first = loop.create_task(receive("number", int))
        second = loop.create_task(receive("number", int))
        await receive("go")
        first.cancel()
        return [await second, first.cancelled()]

    happens = [(1, signal("go", b"0")), (2, signal("number", b"7"))]
    assert both_ways(main, happens=happens) == [7, True]


def test_a_signal_that_does_not_come_in_time():
    @durable
    async def main() -> str:
        try:
            await receive("number", timeout=timedelta(seconds=2))
        except TimeoutError:
            return "late"
        return "came"

    assert both_ways(main) == "late"
    assert both_ways(main, happens=[(1_999, signal("number", b"7"))]) == "came"


def test_a_signal_of_another_type_is_an_exception_in_the_code():
    @durable
    async def main() -> str:
        try:
            return str(await receive("number", int))
        except CodecError as error:
            return str(error)

    text = both_ways(main, happens=[(1, signal("number", b'"text"'))])
    assert text.startswith("the signal number is not of the type int")


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 256])
def test_wrong_names_of_signals(name):
    @durable
    async def main() -> None:
        await receive(name)

    assert "the name of a signal" in str(run_straight(main).result())


# --- promises ------------------------------------------------------------------------------------


def resolve(kind, payload):
    """Resolves the promise at path 1."""
    note = Note(kind=kind, path=b"\x01", payload=payload)
    return lambda partition, at_ms: partition.arrive(note)


def test_a_promise_gives_its_value_to_all_that_wait():
    @durable
    async def main() -> list[int]:
        given = promise(int)
        return [*await asyncio.gather(given.wait(), given.wait()), await given]

    assert both_ways(main, happens=[(1, resolve(RecordKind.RESOLVED, b"7"))]) == [7, 7, 7]


def test_a_promise_that_is_rejected():
    @durable
    async def main() -> None:
        await promise(int)

    payload = Codec().encode_error(LookupError("no"))
    run = run_straight(main, happens=[(1, resolve(RecordKind.REJECTED, payload))])
    assert isinstance(run.result(), LookupError)


def test_a_promise_that_is_late():
    @durable
    async def main() -> str:
        given = promise(int, timeout=2)
        await sleep(1)
        try:
            await given
        except TimeoutError:
            return f"{(now() - START) / timedelta(seconds=1)}"
        return ""

    assert both_ways(main) == "2.0"


def test_the_token_says_where_the_promise_is_and_proves_it():
    @durable
    async def main() -> str:
        return promise(int).token

    token = PromiseToken.decode(both_ways(main))
    mac = promise_mac(IDENTITY.secret, 17, 1, b"\x01")
    assert token == PromiseToken("default", "shop", 3, 17, 1, b"\x01", mac)


@pytest.mark.parametrize("token", ["", "garbage", "AAAA", "ü"])
def test_a_damaged_token(token):
    with pytest.raises(CodecError, match="the token of a promise is damaged"):
        PromiseToken.decode(token)


# --- published values ----------------------------------------------------------------------------


def test_the_newest_value_is_published_with_the_next_record():
    @durable
    async def main() -> None:
        publish("state", "begun")
        publish("state", "working")
        await work("a")
        publish("state", "done")

    partition = MemoryPartition().start(main)
    worker = Worker(partition, main)
    worker.send()
    assert partition.published == {"state": b'"working"'}
    [effect] = worker.begin()
    worker.finish(effect)
    worker.send()
    assert partition.published == {"state": b'"done"'}
    assert worker.machine.put_away()


def test_a_replay_publishes_again_only_what_may_not_be_durable():
    @durable
    async def main() -> None:
        publish("a", 1)
        await work("a")
        publish("b", 2)
        await work("b")

    partition = MemoryPartition().start(main)
    worker = Worker(partition, main)
    [effect] = worker.begin()
    worker.finish(effect)
    worker.send()
    assert worker.machine.put_away()
    partition.published.clear()
    other = Worker(partition, main)
    sending = other.machine.take()
    assert sending is not None
    assert sending.published == (("b", b"2"),)
    assert other.machine.put_away()


def test_a_published_value_that_is_too_large_is_an_exception():
    @durable
    async def main() -> None:
        publish("key", "x" * 65_536)

    error = run_straight(main).result()
    assert isinstance(error, ValueTooLarge)
    assert str(error) == (
        "the published value 'key' has 65541 bytes with its key, and at most 65536"
    )


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            [(str(number), 0) for number in range(65)],
            "'64' would be published key 65 of at most 64",
        ),
        (
            [("a", "x" * 40_000), ("b", "x" * 40_000)],
            "with 'b', what is published has 80006 bytes, and at most 65536",
        ),
    ],
)
def test_too_much_published_is_stuck_and_keeps_its_records(values, words):
    """An exception could be another one in a replay, where folded calls do not publish."""

    @durable
    async def main() -> None:
        await work("a")
        for key, value in values:
            publish(key, value)
        await work("b")

    partition = MemoryPartition().start(main)
    worker = Worker(partition, main)
    [effect] = worker.begin()
    worker.finish(effect)
    assert worker.begin() == []
    worker.send()
    assert (partition.state, partition.reason) == ("stuck", words)
    assert len(partition.journal) == 2
    assert set(partition.published) == {key for key, _ in values[:-1]}
    assert worker.machine.put_away()


def test_a_value_waits_for_the_records_before_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(outbox, "RECORD_NOTES_MAX", 1)

    @durable
    async def part(name: str) -> None:
        await work(name)
        publish("last", name)

    @durable
    async def main() -> None:
        await asyncio.gather(work("a"), work("b"), part("c"))

    partition = MemoryPartition().start(main)
    worker = Worker(partition, main)
    for effect in worker.begin():
        worker.finish(effect)
    for expected in ({}, {}, {"last": b'"c"'}):
        assert worker.send(park=False) is not None
        assert partition.published == expected
    assert worker.machine.put_away()


def test_the_values_of_a_refused_record_are_in_the_next_one():
    @durable
    async def main() -> None:
        publish("a", 1)
        publish("b", 1)
        await receive("go")
        publish("b", 2)
        await receive("go")

    partition = MemoryPartition().start(main)
    worker = Worker(partition, main)
    machine = worker.machine
    sending = machine.take(should_park=True)
    assert sending is not None
    assert sending.published == (("a", b"1"), ("b", b"1"))
    machine.arrive([partition.signal("go", b"null")])
    machine.refused(sending.number)
    again = machine.take(should_park=True)
    assert again is not None
    assert again.published == (("a", b"1"), ("b", b"2"))
    assert machine.put_away()


def test_values_that_the_partition_refuses_make_the_execution_stuck():
    @durable
    async def main() -> None:
        await work("a")
        publish("a", 1)
        await work("b")

    partition = MemoryPartition().start(main)
    worker = Worker(partition, main)
    [effect] = worker.begin()
    worker.finish(effect)
    sending = worker.machine.take()
    assert sending is not None
    worker.machine.refused_published(sending.number, "there is no room")
    worker.send()
    assert (partition.state, partition.reason) == ("stuck", "there is no room")
    assert (len(partition.journal), partition.published) == (2, {})
    assert worker.machine.put_away()


# --- cancellation, and executions that wait for nothing ------------------------------------------


def test_a_cancelled_execution_may_run_steps_to_clean_up():
    @durable
    async def main() -> None:
        try:
            await sleep(100)
        finally:
            await work("clean-up")

    run = run_straight(main, happens=[(5, lambda partition, at_ms: partition.cancel(b"why"))])
    assert run.result() == "cancelled"
    assert run.kinds == ["STARTED", "CANCEL cancel", "STEP_DONE work"]
    assert replay(main, run.partition.journal) == run.partition.close


def test_a_result_that_the_code_has_reached_wins_over_a_cancellation():
    @durable
    async def main() -> str:
        return await work("a")

    partition = MemoryPartition().start(main)
    worker = Worker(partition, main)
    [effect] = worker.begin()
    worker.finish(effect)
    partition.cancel()
    worker.hear()
    worker.send()
    assert partition.close.outcome == RecordKind.COMPLETED
    assert worker.machine.put_away()


def test_an_execution_that_waits_for_nothing_is_stuck():
    @durable
    async def main() -> None:
        await asyncio.Event().wait()

    partition = MemoryPartition().start(main)
    worker = Worker(partition, main)
    worker.send(park=True)
    assert partition.state == "stuck"
    assert "waits for nothing that can arrive, at durable/test_waits.py:" in partition.reason
    assert worker.machine.put_away()


def test_code_that_never_waits_is_stuck(monkeypatch):
    monkeypatch.setattr("querator.durable.loop.TURN_CALLBACKS_MAX", 20_000)

    @durable
    async def main() -> None:
        await work("a")
        while True:  # noqa: ASYNC110 - that is the point.
            await asyncio.sleep(0)

    partition = MemoryPartition().start(main)
    worker = Worker(partition, main)
    [effect] = worker.begin()
    worker.finish(effect)
    worker.send()
    assert partition.state == "stuck"
    assert partition.reason.startswith("TurnTooLong: the code ran 20000 callbacks")
    assert worker.machine.put_away()


def test_an_exception_of_the_code_is_the_outcome():
    @durable
    async def main() -> None:
        raise LookupError("nothing")

    error = run_straight(main).result()
    assert isinstance(error, LookupError)
    assert "test_waits.py" in str(error.__cause__)


def test_a_result_without_json_fails_the_execution():
    @durable
    async def main() -> object:
        return object()

    error = run_straight(main).result()
    assert isinstance(error, CodecError)
    assert "the result of main is a object" in str(error)


def test_exceptions_of_unknown_types():
    class Own(Exception):
        pass

    @durable
    async def main() -> None:
        raise Own("x")

    error = run_straight(main).result()
    assert isinstance(error, RemoteError)
    assert run_straight(main).result(Codec([Own])).args == ("x",)


def test_tasks_that_are_left_behind_have_no_effect():
    @durable
    async def main() -> str:
        async def later() -> None:
            try:
                await sleep(100)
            finally:
                await work("never")

        task = asyncio.get_running_loop().create_task(later())
        await work("a")
        return task.get_name()

    run = run_straight(main)
    assert run.result() == "task 1"
    assert [effect.args for effect in run.effects] == [("a",)]


# --- logs ----------------------------------------------------------------------------------------


def test_what_a_replay_logs_can_be_dropped(caplog):
    log = logging.getLogger("shop")  # noqa: TID251 - the log of the program.

    @durable
    async def main() -> None:
        log.warning("begun")
        try:
            await work("a")
            log.warning("worked")
            await sleep(100)
        finally:
            log.warning("over")

    caplog.handler.addFilter(quiet := LiveOnly())
    try:
        partition = MemoryPartition().start(main)
        worker = Worker(partition, main)
        [effect] = worker.begin()
        worker.finish(effect)
        worker.send()
        assert worker.machine.put_away()
        # The start and the result are of a replay there, and what follows is of its end in memory.
        assert [each.message for each in caplog.records] == ["worked"]
        assert Worker(partition, main).machine.put_away()
        assert [each.message for each in caplog.records] == ["worked"]
    finally:
        caplog.handler.removeFilter(quiet)
