"""Changed code is named by both lines: that of the journal, and that of the code as it is."""

import asyncio

import pytest

from querator.durable import (
    NonDeterminism,
    durable,
    promise,
    receive,
    sleep,
    step,
)
from querator.durable.machine import living
from querator.model.executions import JournalRecord, Note, RecordKind
from tests.unit.durable.memory_partition import (
    START_MS,
    MemoryPartition,
    replay,
    run_straight,
)


@step
async def reserve(order: int = 0) -> int:
    return order


@step
async def charge(order: int = 0) -> int:
    return order


@step
async def ship(order: int = 0) -> int:
    return order


@durable
async def packed() -> int:
    return await charge() + await ship()


@durable(name="checkout")
async def original() -> None:
    await reserve()
    await charge()
    await sleep(60)
    await ship()


@durable(name="checkout")
async def step_added_before() -> None:
    await charge()
    await reserve()


@durable(name="checkout")
async def step_removed() -> None:
    await reserve()
    await sleep(60)
    await ship()


@durable(name="checkout")
async def step_renamed() -> None:
    await reserve()
    await step(charge.function, name="bill")()
    await sleep(60)
    await ship()


@durable(name="checkout")
async def step_became_sleep() -> None:
    await reserve()
    await sleep(1)
    await ship()


@durable(name="checkout")
async def step_became_signal() -> None:
    await reserve()
    await receive("charged")


@durable(name="checkout")
async def step_became_promise() -> None:
    await reserve()
    await promise()


@durable(name="checkout")
async def step_became_call() -> None:
    await reserve()
    await packed()


@durable(name="checkout")
async def step_moved_into_a_task() -> None:
    await reserve()
    await asyncio.gather(charge(), ship())


@durable(name="checkout")
async def sleep_became_step() -> None:
    await reserve()
    await charge()
    await ship()


@durable(name="checkout")
async def returns_early() -> None:
    await reserve()
    await charge()


@durable(name="checkout")
async def raises_early() -> None:
    await reserve()
    raise ValueError("changed")


@durable(name="checkout")
async def waits_for_nothing() -> None:
    await reserve()
    await asyncio.Event().wait()


CHANGES = {
    step_added_before: ("record 1", "step reserve", "step charge", "path 1"),
    step_removed: ("record 2", "step charge", "timer", "path 2"),
    step_renamed: ("record 2", "step charge", "step bill", "path 2"),
    step_became_sleep: ("record 2", "step charge", "timer", "path 2"),
    step_became_signal: ("record 2", "step charge", "receive charged", "path 2"),
    step_became_promise: ("record 2", "step charge", "promise", "path 2"),
    step_became_call: ("record 2", "step charge", "step charge", "path 2.1; nothing waits at"),
    step_moved_into_a_task: ("record 2", "step charge", "step charge", "path 2.1; nothing waits"),
    sleep_became_step: ("record 3", "timer", "step ship", "path 3"),
    returns_early: ("record 3", "timer", "checkout has ended", ""),
    raises_early: ("record 2", "step charge", "checkout has ended", ""),
    waits_for_nothing: ("record 2", "step charge", "nothing that waits for an event", ""),
}


@pytest.mark.parametrize("function", CHANGES, ids=lambda function: function.function.__name__)
def test_both_lines_are_named(function):
    journal = run_straight(original, parks=False).partition.journal
    record, was, now, more = CHANGES[function]
    with pytest.raises(NonDeterminism) as raised:
        replay(function, journal)
    title, journal_line, now_line, last = str(raised.value).splitlines()
    assert title == 'checkout "order-17", run 1: the code does not do what the journal says.'
    assert last == "Nothing was run."
    assert journal_line.split()[:2] == record.split()
    assert was in journal_line
    assert "durable/test_non_determinism.py:" in journal_line
    assert now in now_line
    assert more in now_line
    if "step" in now:
        assert "durable/test_non_determinism.py:" in now_line
    assert living() == 0


def test_a_call_that_became_a_step():
    @durable(name="checkout")
    async def two_calls() -> int:
        return await packed() + await packed() + await ship()

    @durable(name="checkout")
    async def changed() -> int:
        return await ship() + await packed()

    journal = run_straight(two_calls).partition.journal
    with pytest.raises(NonDeterminism, match=r"call packed .*\n.* step ship .* path 1"):
        replay(changed, journal)


def test_a_signal_that_is_not_received_any_more_is_no_difference():
    @durable(name="checkout")
    async def receives() -> int:
        number = await receive("number", int)
        return await charge(number)

    @durable(name="checkout")
    async def does_not() -> int:
        await asyncio.sleep(0)
        return await charge()

    happens = [(1, lambda partition, now: partition.signal("number", b"1", now))]
    journal = run_straight(receives, happens=happens).partition.journal
    with pytest.raises(NonDeterminism, match=r"step charge .* path 2\n.* step charge .* path 1; n"):
        replay(does_not, journal)


def test_an_end_before_an_arrival_that_the_code_was_given_is_a_difference():
    """The partition says how far the code had been given its arrivals. Nothing else shows it."""

    @durable(name="checkout")
    async def waits() -> None:
        await receive("number", int)
        await receive("other", int)

    @durable(name="checkout")
    async def ends() -> None:
        pass

    signal = Note(kind=RecordKind.SIGNAL, name="number", payload=b"1", at_ms=START_MS)
    journal = [*MemoryPartition().start(waits).journal, JournalRecord(1, signal)]
    assert replay(ends, journal).outcome == RecordKind.COMPLETED
    with pytest.raises(NonDeterminism, match=r"record 1 .* number .*\n.* checkout has ended"):
        replay(ends, journal, seen=1)
    assert replay(ends, journal[:1], seen=1).outcome == RecordKind.COMPLETED


def test_a_fired_timer_that_is_not_waited_for_is_a_difference():
    @durable(name="checkout")
    async def slept() -> None:
        await charge()
        await sleep(60)

    @durable(name="checkout")
    async def does_not_sleep() -> None:
        await charge()
        await asyncio.Event().wait()

    journal = run_straight(slept).partition.journal
    with pytest.raises(NonDeterminism, match="timer"):
        replay(does_not_sleep, journal)


def test_code_that_does_the_same_and_more_is_no_difference():
    @durable(name="checkout")
    async def longer() -> int:
        await reserve()
        await charge()
        await sleep(60)
        await ship()
        return 17

    journal = run_straight(original).partition.journal
    assert replay(longer, journal).payload == b"17"
