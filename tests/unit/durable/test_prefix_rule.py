"""No effect begins before everything that its execution has seen is durable, in that order."""

import asyncio

import pytest

from querator.durable import durable, receive, step
from querator.durable.machine import living
from querator.model.executions import RecordKind
from tests.unit.durable.faulty_runs import MUTANTS, many
from tests.unit.durable.memory_partition import (
    START_MS,
    LeaseLost,
    MemoryPartition,
    Worker,
)


@step
async def effect(name: str) -> str:
    return name


@step(effects=False)
async def read(name: str) -> str:
    return name


@durable
async def two_effects() -> str:
    await effect("one")
    return await effect("two")


@durable
async def reads_then_effect() -> str:
    await read("one")
    await read("two")
    return await effect("three")


@pytest.fixture
def working():
    """Makes workers, and puts their machines away."""
    workers = []

    def make(function, **options):
        workers.append(Worker(MemoryPartition().start(function), function, **options))
        return workers[-1]

    yield make
    for worker in workers:
        assert worker.machine.put_away()


def names(effects):
    return [each.args[0] for each in effects]


def test_an_effect_waits_for_the_record_before_it(working):
    worker = working(two_effects)
    [one] = worker.begin()
    assert not worker.machine.is_urgent
    worker.finish(one)
    assert worker.begin() == []
    assert worker.machine.is_urgent
    worker.send()
    assert names(worker.begin()) == ["two"]


@durable
async def effect_behind_a_signal() -> str:
    return await effect(await receive("word", str))


def test_no_effect_begins_while_a_park_has_no_answer(working):
    """The partition may have applied it: then another worker has what has arrived since."""
    worker = working(effect_behind_a_signal)
    parking = worker.machine.take(should_park=True)
    worker.partition.signal("word", b'"go"')
    worker.hear()
    assert worker.begin() == []
    worker.machine.refused(parking.number)
    assert names(worker.begin()) == ["go"]


def test_reads_begin_at_once_and_share_a_record_with_what_follows(working):
    worker = working(reads_then_effect)
    for name in ("one", "two"):
        [effect] = worker.begin()
        assert effect.args == (name,)
        assert not worker.machine.is_urgent
        worker.finish(effect)
    assert worker.begin() == []
    assert worker.machine.is_urgent
    sending = worker.send()
    assert [note.payload for note in sending.notes] == [b'"one"', b'"two"']
    assert names(worker.begin()) == ["three"]


def test_the_last_result_and_the_end_are_one_record(working):
    worker = working(two_effects)
    [one] = worker.begin()
    worker.finish(one)
    worker.send()
    [two] = worker.begin()
    worker.finish(two)
    sending = worker.send()
    assert [note.payload for note in sending.notes] == [b'"two"']
    assert sending.then.outcome == RecordKind.COMPLETED
    assert worker.partition.state == "closed"
    assert worker.machine.is_closed
    assert worker.send() is None


def test_no_effect_begins_when_the_lease_is_over(working):
    worker = working(two_effects, until_ms=START_MS + 10)
    assert worker.begin(START_MS + 10) == []
    worker.machine.leased(START_MS + 20)
    assert names(worker.begin(START_MS + 19)) == ["one"]


def test_a_late_worker_is_refused(working):
    late = working(two_effects)
    [one] = late.begin()
    other = Worker(late.partition, two_effects)
    late.finish(one)
    with pytest.raises(LeaseLost):
        late.send()
    assert names(other.begin()) == ["one"]
    assert other.machine.put_away()


def test_what_arrives_while_the_worker_parks_is_seen(working):
    @durable
    async def one_signal() -> str:
        return await receive("name", str)

    worker = working(one_signal)
    worker.partition.signal("name", b'"here"')
    assert worker.send(park=True) is not None
    assert not worker.machine.is_parked
    worker.hear()
    worker.send(park=True)
    assert worker.partition.close.payload == b'"here"'


def test_one_record_is_in_flight_at_a_time(working):
    worker = working(two_effects)
    [one] = worker.begin()
    worker.finish(one)
    sending = worker.machine.take()
    assert worker.machine.take() is None
    worker.machine.applied(sending.number, 1)
    with pytest.raises(ValueError, match="Record 1 is not in flight"):
        worker.machine.applied(sending.number, 1)


def test_a_late_worker_that_ignores_its_clock_begins_an_effect_without_its_past(working):
    """Why the rule has the clock of the lease in it: the fence of records comes too late."""

    @durable
    async def main() -> None:
        async def on_signal() -> None:
            await effect(await receive("name", str))

        await asyncio.gather(on_signal(), effect("first"))

    late = working(main, until_ms=START_MS + 10)
    partition = late.partition
    other = Worker(partition, main)
    [first] = other.begin()
    other.finish(first)
    other.send()
    partition.signal("name", b'"on a signal"')
    late.hear()
    assert late.begin(START_MS + 10) == []
    late.machine.leased(START_MS + 20)
    # Its code has not been given the result of `first`, which is in the journal before the signal.
    assert "on a signal" in names(late.begin(START_MS + 10))
    assert other.machine.put_away()


def test_random_runs_with_faults_keep_the_rule():
    tally = many(range(200))
    assert tally.violations == 0
    assert tally.effects > 1_000
    assert tally.deaths > 300
    assert tally.refused > 100
    assert living() == 0


@pytest.mark.parametrize(
    ("mutant", "seeds"),
    [
        ("early", range(60)),
        ("without after", range(10)),
        ("unfenced", range(10)),
        ("fold at the end", range(60)),
    ],
)
def test_each_mutant_is_found(mutant, seeds):
    assert mutant in MUTANTS
    assert many(seeds, mutant).violations > 0
    assert living() == 0
