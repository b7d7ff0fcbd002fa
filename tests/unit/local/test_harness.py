"""Tests of durable functions by a harness: time that skips, fakes, signals, workers that die."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from querator.durable import (
    Codec,
    Durable,
    ExecutionTerminated,
    Final,
    RemoteError,
    Retry,
    call,
    current,
    durable,
    now,
    promise,
    publish,
    random,
    receive,
    receive_all,
    saga,
    sleep,
    spawn,
    step,
    sync,
)
from querator.durable.machine import living
from querator.errors import ExecutionClosed, ExecutionExists, ExecutionNotFound
from querator.local import Harness, Stalled
from querator.local.memory_queue import MemoryQueue
from querator.model.executions import JournalRecord


class Declined(Exception):
    """A card was declined."""


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    before = living()
    yield
    assert living() == before, "a machine stays in memory"


@step
async def charge(order: str) -> str:
    raise AssertionError("the real bank is asked")


@step(effects=False)
async def price(sku: str) -> int:
    return len(sku)


@step
def label(order: str) -> str:
    return f"label of {order}"


@step
async def mail(address: str, token: str) -> None:
    raise AssertionError("a real mail is sent")


@durable
async def pack(order: str) -> str:
    await sleep(60)
    return await call(label, order)


@durable
async def checkout(order: str, skus: list[str]) -> list[Any]:
    prices = await asyncio.gather(*(price(sku) for sku in skus))
    return [sum(prices), await charge(order), await pack(order)]


@durable
async def reports(keys: int) -> None:
    publish("state", "begun")
    await sleep(60)
    for key in range(keys):
        publish(str(key), key)
    publish("state", await receive("word", str))


async def fake_charge(order: str) -> str:
    return f"receipt of {order}"


def orders(**options: Any) -> Harness:
    return Harness([checkout], steps={charge: fake_charge}, **options)


# --- running ---------------------------------------------------------------------------------


async def test_a_function_runs_with_fakes() -> None:
    h = orders()
    result = await h.run(checkout, "order-17", ["book", "pen"])
    assert result == [7, "receipt of order-17", "label of order-17"]
    assert [(one.name, one.attempt, one.args) for one in h.begun] == [
        ("price", 1, ("book",)), ("price", 1, ("pen",)), ("charge", 1, ("order-17",)),
        ("label", 1, ("order-17",)),
    ]  # fmt: skip
    assert len({one.step_key for one in h.begun}) == 4
    assert h.now == datetime(2030, 1, 1, 0, 1, tzinfo=UTC)
    assert h.writes[0].startswith("checkout-1: step_done price, step_done price")


async def test_executions_are_started_once_per_id() -> None:
    h = orders()
    first = await h.run(checkout, "order-17", [], id="order-17")
    assert await h.run(checkout, "order-17", [], id="order-17") == first
    assert [one.name for one in h.begun] == ["charge", "label"]
    with pytest.raises(ExecutionExists):
        await h.start(checkout, "order-18", [], id="order-17")
    with pytest.raises(ExecutionExists):
        await h.start(checkout, "order-17", [], id="order-17", key_policy="fail")
    with pytest.raises(ExecutionNotFound):
        await h.executions.get("order-18")
    with pytest.raises(ExecutionClosed):
        await h.executions.signal("order-17", "go")


async def test_exceptions_are_those_of_a_worker() -> None:
    @durable
    async def declined() -> None:
        await charge("order-17")

    async def decline(order: str) -> str:
        raise Declined(order)

    known = Harness([declined], steps={charge: decline}, errors=[Declined])
    with pytest.raises(Declined, match="order-17"):
        await known.run(declined)
    unknown = Harness([declined], steps={charge.function: decline})
    with pytest.raises(RemoteError, match="Declined: order-17"):
        await unknown.run(declined)


async def test_large_values_are_kept() -> None:
    @durable
    async def large(text: str) -> str:
        return await call(double, text)

    def double(text: str) -> str:
        return text * 2

    text = "x" * 100_000
    assert await Harness([large]).run(large, text) == text * 2


async def test_many_executions_run_at_the_same_time() -> None:
    @durable
    async def slow(seconds: int) -> datetime:
        await sleep(seconds)
        return now()

    h = Harness([slow])
    results = await asyncio.gather(*(h.run(slow, seconds) for seconds in (30, 10, 20)))
    begin = datetime(2030, 1, 1, tzinfo=UTC)
    assert [each - begin for each in results] == [timedelta(seconds=n) for n in (30, 10, 20)]
    assert h.now == begin + timedelta(seconds=30)


async def test_sync_functions_run_in_threads() -> None:
    @durable
    def in_a_thread(order: str) -> list[str]:
        sync.sleep(3600)
        return [label(order), sync.receive("word", str)]

    h = Harness([in_a_thread])
    handle = await h.start(in_a_thread, "a")
    await handle.signal("word", "go")
    assert await handle.result() == ["label of a", "go"]


# --- time ------------------------------------------------------------------------------------


async def test_a_year_of_sleeps_is_not_waited_for() -> None:
    @durable
    async def year() -> int:
        days = 0
        while days < 365:
            await sleep(timedelta(days=1))
            days += 1
        return days

    h = Harness([year])
    assert await h.run(year) == 365
    assert h.now == datetime(2031, 1, 1, tzinfo=UTC)


async def test_long_journals_continue_from_memory_and_survive_crashes() -> None:
    @durable
    async def diary() -> list[str]:
        words: list[str] = []
        while len(words) < 40:
            words.append(await receive("word", str))
            await sleep(60)
            await charge(words[-1])
        return words

    async def test(h: Harness) -> Any:
        handle = await h.start(diary)
        for number in range(40):
            await handle.signal("word", f"word {number}")
        return await handle.result()

    expected = [f"word {number}" for number in range(40)]
    h = Harness([diary], steps={charge: fake_charge})
    assert await test(h) == expected
    assert len(h.writes) > 41
    for write, behind in ((25, True), (26, False), (41, True)):
        other = Harness([diary], steps={charge: fake_charge})
        other.crash_at(write, behind=behind)
        assert await test(other) == expected
        charges = [one.args for one in other.begun]
        assert list(dict.fromkeys(charges)) == [(word,) for word in expected]


async def test_skip_stops_where_it_is_told_to() -> None:
    ticks: list[datetime] = []

    @durable
    async def ticker() -> None:
        for _ in range(3):
            await sleep(timedelta(hours=1))
            await call(tick)

    def tick() -> None:
        ticks.append(h.now)

    h = Harness([ticker], start=datetime(2026, 3, 1, tzinfo=UTC))
    handle = await h.start(ticker)
    assert ticks == []
    await h.skip()
    assert ticks == [datetime(2026, 3, 1, 1, tzinfo=UTC)]
    await h.skip(timedelta(minutes=59))
    assert len(ticks) == 1
    await h.skip(timedelta(minutes=1))
    assert len(ticks) == 2
    await h.skip(timedelta(days=1))
    assert (await handle.get()).closed
    assert ticks[-1] == datetime(2026, 3, 1, 3, tzinfo=UTC)
    assert h.now == datetime(2026, 3, 2, 2, tzinfo=UTC)
    with pytest.raises(Stalled, match="nothing is due"):
        await h.skip()
    with pytest.raises(ValueError, match="time does not go back"):
        await h.skip(timedelta(seconds=-1))


async def test_delays_and_deadlines_are_of_the_clock() -> None:
    @durable
    async def when() -> datetime:
        return await call(clock)

    def clock() -> datetime:
        return h.now

    @durable
    async def waits() -> None:
        await receive("never")

    h = Harness([when, waits])
    handle = await h.executions.start(when, id="later", delay=timedelta(days=3))
    assert (await handle.get()).state == "runnable"
    assert await handle.result() == datetime(2030, 1, 4, tzinfo=UTC)
    late = await h.start(waits, deadline=h.now + timedelta(days=1))
    await h.skip(timedelta(days=1))
    assert (await late.get()).state == "cancelled"


async def test_retries_wait_on_the_clock() -> None:
    attempts: list[tuple[int, datetime]] = []

    @step(retry=Retry(attempts=4, first=timedelta(seconds=0.5), factor=60, jitter=0))
    async def flaky() -> str:
        attempts.append((current().attempt, h.now))
        if current().attempt < 4:
            raise ConnectionError("no answer")
        return "done"

    @durable
    async def tries() -> str:
        return await flaky()

    h = Harness([tries])
    assert await h.run(tries) == "done"
    begin = datetime(2030, 1, 1, tzinfo=UTC)
    assert [(attempt, (at - begin).total_seconds()) for attempt, at in attempts] == [
        (1, 0.0), (2, 0.5), (3, 30.5), (4, 90.5),
    ]  # fmt: skip


async def test_a_timeout_of_the_code_is_of_the_clock() -> None:
    @durable
    async def patient() -> str:
        try:
            async with asyncio.timeout(7 * 86_400):
                return await receive("word", str)
        except TimeoutError:
            return "no word"

    h = Harness([patient])
    assert await h.run(patient) == "no word"
    assert h.now == datetime(2030, 1, 8, tzinfo=UTC)


# --- what comes from outside -----------------------------------------------------------------


async def test_signals_and_promises_arrive() -> None:
    tokens: list[str] = []

    @durable
    async def approval(order: str) -> list[Any]:
        asked = promise(bool)
        await mail("boss", asked.token)
        words = [word async for word in receive_two()]
        return [await asked, *words]

    async def receive_two() -> Any:
        async for word in receive_all("word", str):
            yield word
            if word == "last":
                return

    def keep(address: str, token: str) -> None:
        tokens.append(token)

    h = Harness([approval], steps={mail: keep})
    handle = await h.start(approval, "order-17")
    assert (await handle.get()).state == "parked"
    await handle.signal("word", "first")
    assert await h.executions.resolve(tokens[0], True) is True
    assert await h.executions.reject(tokens[0], "too late") is False
    await handle.signal("word", "last")
    assert await handle.result() == [True, "first", "last"]


async def test_a_step_may_resolve_by_itself() -> None:
    @durable
    async def approval() -> bool:
        asked = promise(bool)
        await mail("boss", asked.token)
        return await asked

    async def approve(address: str, token: str) -> None:
        await h.executions.resolve(token, True)

    h = Harness([approval], steps={mail: approve})
    assert await h.run(approval) is True


async def test_cancelling_terminating_and_looking() -> None:
    undone: list[str] = []

    @durable
    async def booked() -> None:
        async with saga() as undo:
            undo.add(undone.append, "hotel")
            await receive("never")

    h = Harness([booked])
    handle = await h.start(booked, id="a")
    assert await handle.cancel("sold out") is True
    assert (await handle.get()).state == "cancelled"
    assert undone == ["hotel"]
    other = await h.start(booked, id="b")
    assert await other.terminate() is True
    assert [one.id async for one in h.executions.list(state="terminated")] == ["b"]
    assert [entry.kind async for entry in handle.journal()] == [
        "STARTED", "CANCEL", "STEP_DONE", "CANCELLED",
    ]  # fmt: skip
    assert undone == ["hotel"]


async def test_children_run_and_survive_every_crash() -> None:
    @durable
    async def child(order: str) -> str:
        await sleep(3600)
        return await charge(order)

    @durable
    async def parent() -> list[str]:
        children = [await spawn(child, f"order-{number}") for number in range(3)]
        return [await one for one in children]

    async def test(h: Harness) -> Any:
        result = await h.run(parent, id="family")
        infos = [one async for one in h.executions.list(function="child")]
        assert [one.parent for one in infos] == ["family"] * 3
        assert {one.state for one in infos} == {"completed"}
        return result

    h = Harness([parent, child], steps={charge: fake_charge})
    assert await h.every_crash(test) == [f"receipt of order-{number}" for number in range(3)]


async def test_a_step_may_end_its_own_execution() -> None:
    @durable
    async def doomed() -> str:
        return await charge("order-17")

    async def end(order: str) -> str:
        assert await h.executions.terminate(current().execution_id) is True
        with pytest.raises(RuntimeError, match="a step waits for an execution of its own harness"):
            await h.executions.handle(current().execution_id).result()
        return order

    h = Harness([doomed], steps={charge: end})
    with pytest.raises(ExecutionTerminated):
        await h.run(doomed)
    assert len(h.begun) == 1


# --- what cannot go on -----------------------------------------------------------------------


async def test_an_execution_that_waits_for_ever_is_named() -> None:
    @durable
    async def waits() -> None:
        await receive("never")

    h = Harness([waits])
    with pytest.raises(Stalled, match="nothing will happen any more: waits-1 is parked"):
        await h.run(waits)


async def test_an_execution_that_is_stuck_says_why() -> None:
    @durable
    async def undoes() -> None:
        async with saga() as undo:
            undo.add(fail)
            raise Declined("no")

    async def fail() -> None:
        raise Final(ValueError("cannot undo"))

    h = Harness([undoes])
    with pytest.raises(Stalled, match=r"undoes-1 is stuck \(fail, which undoes, has failed"):
        await h.run(undoes)


async def test_code_that_is_not_deterministic_is_found_at_the_next_park() -> None:
    times: list[int] = []

    @durable
    async def changes() -> None:
        times.append(1)
        if len(times) == 1:
            await price("book")
        else:
            await call(label, "order")
        await sleep(3600)

    h = Harness([changes])
    with pytest.raises(Stalled, match="the code does not do what the journal says"):
        await h.run(changes)


async def test_a_step_that_hangs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("querator.local.memory_worker.STEP_SECONDS_MAX", 0.01)

    async def hang(order: str) -> str:
        await asyncio.Event().wait()
        return order

    @durable
    async def hangs() -> None:
        await charge("order-17")

    h = Harness([hangs], steps={charge: hang})
    with pytest.raises(TimeoutError, match="charge of hangs-1: no step has ended"):
        await h.run(hangs)


async def test_bad_arguments_are_named() -> None:
    async def plain() -> None: ...

    with pytest.raises(TypeError, match=r"functions has .*plain"):
        Harness([plain])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="steps has"):
        Harness([checkout], steps={checkout: plain})
    with pytest.raises(TypeError, match="steps has 17"):
        Harness([checkout], steps={charge: 17})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="functions has two with the name checkout"):
        Harness([checkout, durable(name="checkout")(plain)])
    with pytest.raises(ValueError, match="functions is empty"):
        Harness([])
    with pytest.raises(ValueError, match="start needs a time zone"):
        Harness([checkout], start=datetime(2030, 1, 1))  # noqa: DTZ001 - that is refused
    h = orders()
    with pytest.raises(ValueError, match="functions does not have pack"):
        await h.start(pack, "order-17")
    with pytest.raises(ValueError, match="delay is -1 day"):
        await h.start(checkout, "order-17", [], delay=timedelta(days=-1))
    with pytest.raises(TypeError, match="it must be a function with @durable"):
        await h.start(plain)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="write is 0"):
        h.crash_at(0)


# --- crashes ---------------------------------------------------------------------------------


async def test_a_crash_behind_a_write_repeats_no_step() -> None:
    h = orders()
    h.crash_at(1)
    assert (await h.run(checkout, "order-17", ["book"]))[1] == "receipt of order-17"
    assert [(one.name, one.attempt) for one in h.begun] == [
        ("price", 1), ("charge", 1), ("label", 1),
    ]  # fmt: skip


async def test_a_crash_before_a_write_repeats_its_step_with_the_same_key() -> None:
    h = orders()
    h.crash_at(2, behind=False)
    await h.run(checkout, "order-17", ["book"])
    charges = [one for one in h.begun if one.name == "charge"]
    assert [one.attempt for one in charges] == [1, 1]
    assert charges[0].step_key == charges[1].step_key


async def test_every_crash_gives_the_same_result() -> None:
    runs: list[tuple[str, ...]] = []

    async def test(h: Harness) -> Any:
        result = await h.run(checkout, "order-17", ["book", "pen"])
        assert result[1] == "receipt of order-17"
        runs.append(h.writes)
        return result

    assert await orders().every_crash(test) == [7, "receipt of order-17", "label of order-17"]
    assert len(runs) == 1 + 2 * len(runs[0])


async def test_every_crash_finds_a_step_that_charges_twice() -> None:
    async def test(h: Harness) -> None:
        await h.run(checkout, "order-17", [])
        charges = [one for one in h.begun if one.name == "charge"]
        assert len(charges) == 1, "charged twice"

    with pytest.raises(AssertionError, match="charged twice") as caught:
        await orders().every_crash(test)
    [note] = caught.value.__notes__
    assert note.startswith("the worker was killed before write ")
    assert "step_done charge" in note


async def test_every_crash_finds_a_result_that_depends_on_it() -> None:
    count = 0

    async def counting(order: str) -> str:
        nonlocal count
        count += 1
        return f"{order}, call {count}"

    async def test(h: Harness) -> Any:
        nonlocal count
        count = 0
        return (await h.run(checkout, "order-17", []))[1]

    with pytest.raises(AssertionError, match="the result is 'order-17, call 2', not"):
        await Harness([checkout], steps={charge: counting}).every_crash(test)


async def test_every_crash_wants_a_test_that_writes() -> None:
    async def test(h: Harness) -> None: ...

    with pytest.raises(ValueError, match="the test writes nothing"):
        await orders().every_crash(test)


async def test_random_values_are_the_same_in_each_run() -> None:
    @durable
    async def dice() -> list[float]:
        first = random().random()
        await sleep(1)
        return [first, random().random()]

    async def test(h: Harness) -> Any:
        return await h.run(dice)

    assert await Harness([dice]).every_crash(test) == await Harness([dice]).run(dice)


async def test_a_hundred_harnesses_take_little_time() -> None:
    """The bound is wide: a harness takes a few milliseconds."""
    functions: list[Durable[..., Any]] = [checkout]
    for _ in range(100):
        await Harness(functions, steps={charge: fake_charge}, codec=Codec()).run(
            checkout, "order-17", ["book"]
        )


async def test_a_recorded_step_that_begins_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue that forgets the last record of a journal."""
    journal = MemoryQueue.journal

    def forgetful(queue: MemoryQueue, number: int, first: int = 0) -> tuple[JournalRecord, ...]:
        found = journal(queue, number, first)
        return found[:-1] if len(found) == 2 else found

    @durable
    async def two() -> None:
        await charge("first")
        await charge("second")

    monkeypatch.setattr(MemoryQueue, "journal", forgetful)
    h = Harness([two], steps={charge: fake_charge})
    h.crash_at(1)
    with pytest.raises(AssertionError, match="step charge of two-1 begins again behind its result"):
        await h.run(two)


async def test_a_test_that_is_given_up_leaves_nothing() -> None:
    ended: list[str] = []

    async def slow(order: str) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(order)
        return order

    h = Harness([checkout], steps={charge: slow})
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await h.run(checkout, "order-17", [], id="order-17")
    assert ended == ["order-17"]
    h.replace(charge, fake_charge)
    handle = h.executions.handle("order-17")
    assert (await handle.result())[1] == "receipt of order-17"


async def test_published_values_are_read_while_time_passes():
    h = Harness([reports])
    began = h.now
    handle = await h.start(reports, 2)
    begun = await handle.published("state", str)
    assert begun is not None
    assert (begun.value, begun.version) == ("begun", 1)
    assert await handle.published("1", wait=timedelta(seconds=59)) is None
    found = await handle.published("1", int, wait=timedelta(minutes=1))
    assert found is not None
    assert (found.value, found.version) == (1, 3)
    assert h.now - began == timedelta(seconds=60)
    await handle.signal("word", "over")
    await handle.result()
    last = await handle.published("state", str, after=begun.version)
    assert last is not None
    assert (last.value, last.version) == ("over", 4)
    assert await handle.published("state", after=4, wait=timedelta(days=1)) is None
    newest = {key: (one.value, one.version) for key, one in (await handle.all_published()).items()}
    assert newest == {"0": (0, 2), "1": (1, 3), "state": ("over", 4)}
    with pytest.raises(ExecutionNotFound):
        await h.executions.published("nothing", "state")


async def test_too_many_published_keys_stick():
    h = Harness([reports])
    handle = await h.start(reports, 64)
    with pytest.raises(Stalled, match="'63' would be published key 65 of at most 64"):
        await handle.result()


async def test_published_values_at_every_crash():
    async def test(h: Harness) -> tuple[str, int]:
        handle = await h.start(reports, 3, id="reports")
        await h.skip(timedelta(minutes=2))
        await handle.signal("word", "over")
        await handle.result()
        found = await handle.published("state", str)
        assert found is not None
        return found.value, found.version

    assert await Harness([reports]).every_crash(test) == ("over", 5)


async def test_what_is_pinned_in_a_harness_stalls_with_the_reason() -> None:
    @durable(name="patient", version="1")
    async def older() -> str:
        return "done"

    @durable(version="2", upgrade="never")
    async def patient() -> str:
        return "done"

    h = Harness([patient])
    handle = await h.executions.start(older, id="it")
    with pytest.raises(Stalled, match=r"it is pinned \(patient has upgrade='never'"):
        await handle.result()
    info = await handle.get()
    assert (info.state, info.refused_versions) == ("pinned", ("2",))
    assert await Harness([older]).run(older) == "done"
