"""`current().full`: whether the journal is over half of a limit, the same in each replay."""

import asyncio
from typing import Any

import pytest

from querator.durable import (
    NotInExecution,
    continue_as_new,
    current,
    durable,
    patched,
    receive,
    step,
)
from querator.durable.codec import Codec
from querator.durable.machine import ExecutionMachine
from querator.durable.marks import FULL, full_path, patch_path, sorted_marks
from querator.local import Harness
from querator.model.executions import JournalRecord, Note, RecordKind
from querator.model.limits import JOURNAL_BYTES_MAX
from tests.unit.durable import random_programs
from tests.unit.durable.faulty_runs import many
from tests.unit.durable.memory_partition import (
    IDENTITY,
    START_MS,
    MemoryPartition,
    replay,
    run_straight,
)
from tests.unit.durable.random_programs import CODEC, Node, ProducingWalk, PublishingWalk


@step
async def work(number: int) -> int:
    return number


@durable
async def until_full() -> int:
    """How many steps it has done when it ends."""
    count = 0
    while not current().full:
        await work(count)
        count += 1
    return count


def fills_behind(monkeypatch: pytest.MonkeyPatch, records: int) -> None:
    """The journal is over half of its limit behind this number of records."""
    monkeypatch.setattr(
        ExecutionMachine,
        "_is_filling",
        lambda self: self._records + self._outbox.waiting > records,
    )


def marks(journal: list[JournalRecord]) -> list[Note]:
    return [one.note for one in journal if one.note.kind == RecordKind.PATCHED]


def continued(journal: list[JournalRecord], function: Any) -> Any:
    partition = MemoryPartition(journal=list(journal))
    partition._next = journal[-1].index + 1
    return run_straight(function, partition=partition)


def replays_to_its_end(function: Any, journal: list[JournalRecord]) -> bool:
    machine = ExecutionMachine(function, IDENTITY, Codec())
    machine.load(journal)
    is_over = machine.is_over
    assert machine.put_away()
    return is_over


def test_it_is_true_when_the_journal_has_over_half_of_its_records() -> None:
    run = run_straight(until_full, records_max=300)
    assert run.result() == 150
    [mark] = marks(run.partition.journal)
    assert mark.name == FULL
    assert "durable/test_full.py:" in mark.site
    assert replay(until_full, run.partition.journal) == run.partition.close


def test_every_beginning_of_a_journal_continues_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    fills_behind(monkeypatch, 12)
    whole = run_straight(until_full).partition
    for upto in range(1, len(whole.journal) + 1):
        journal = whole.journal[:upto]
        if not replays_to_its_end(until_full, journal):
            run = continued(journal, until_full)
            assert run.partition.close == whole.close
    fills_behind(monkeypatch, 1_000)
    assert replay(until_full, whole.journal) == whole.close, "what was told stays"


def test_it_is_true_when_the_journal_has_over_half_of_its_bytes() -> None:
    @step
    async def large() -> str:
        return "x" * (JOURNAL_BYTES_MAX // 20)

    @durable
    async def fills() -> int:
        count = 0
        while not current().full:
            await large()
            count += 1
        return count

    run = run_straight(fills)
    assert run.result() == 10
    assert replay(fills, run.partition.journal) == run.partition.close


def test_what_folds_have_removed_does_not_count() -> None:
    @step
    async def large() -> str:
        return "x" * (JOURNAL_BYTES_MAX // 20)

    @durable
    async def portion() -> int:
        return len(await large() + await large())

    @durable
    async def calls() -> list[bool]:
        answers = []
        for _ in range(20):
            await portion()
            answers.append(current().full)
        return answers

    run = run_straight(calls)
    assert run.result() == [False] * 20
    assert marks(run.partition.journal) == []


def test_a_line_records_it_once_and_what_it_begins_knows_it() -> None:
    @durable
    async def inner() -> bool:
        await work(0)
        return current().full

    @durable
    async def outer() -> list[bool]:
        while not current().full:
            await work(0)
        answers = [current().full, await inner()]

        async def beside() -> bool:
            return current().full

        return [*answers, *await asyncio.gather(beside(), beside())]

    run = run_straight(outer, records_max=300)
    assert run.result() == [True] * 4
    assert len(marks(run.partition.journal)) == 1
    assert replay(outer, run.partition.journal) == run.partition.close


def test_a_call_that_has_read_it_leaves_its_caller_to_read() -> None:
    """A replay does not run the folded call: what only the call has read must not count there."""

    @durable
    async def inner() -> bool:
        while not current().full:
            await work(0)
        return True

    @durable
    async def outer() -> list[bool]:
        told = [await inner(), current().full]
        await work(1)
        return told

    run = run_straight(outer, records_max=300)
    assert run.result() == [True, True]
    assert any(one.note.kind == RecordKind.CALL_DONE for one in run.partition.journal)
    assert len(marks(run.partition.journal)) == 2
    assert replay(outer, run.partition.journal) == run.partition.close


def test_no_effect_begins_before_the_answer_is_durable() -> None:
    @durable
    async def acts() -> bool:
        if current().full:
            await work(1)
        return True

    machine = ExecutionMachine(acts, IDENTITY, Codec(), records_max=280)
    journal = MemoryPartition().start(acts).journal
    for index in range(1, 150):
        signal = Note(RecordKind.SIGNAL, name="s", at_ms=START_MS, payload=b"1")
        journal.append(JournalRecord(index, signal))
    # The place is passed: arrivals are behind it.
    machine.load(journal)
    assert machine.end is not None
    assert machine.put_away()

    @durable(name="acts")
    async def waits() -> bool:
        while not current().full:
            await receive("s", int)
        await work(1)
        return True

    machine = ExecutionMachine(waits, IDENTITY, Codec(), records_max=280)
    machine.load(journal)
    machine.leased(START_MS + 60_000)
    assert machine.ready(START_MS) == []
    sending = machine.take()
    assert sending is not None
    assert [note.name for note in sending.notes] == [FULL]
    machine.applied(sending.number, 150)
    assert [effect.name for effect in machine.ready(START_MS)] == ["work"]
    assert machine.put_away()


def test_sync_functions_read_it() -> None:
    @step
    def count(number: int) -> int:
        return number + 1

    @durable
    def until_full_sync() -> int:
        number = 0
        while not current().full:
            number = count(number)
        return number

    run = run_straight(until_full_sync, records_max=260)
    assert run.result() == 130
    assert replay(until_full_sync, run.partition.journal) == run.partition.close


def test_a_patch_of_the_same_name_is_another_thing() -> None:
    @durable
    async def both() -> list[bool]:
        answers = [patched(FULL), current().full]
        while not current().full:
            await work(0)
        return answers

    run = run_straight(both, records_max=300)
    assert run.result() == [True, False]
    assert replay(both, run.partition.journal) == run.partition.close
    notes = marks(run.partition.journal)
    assert sorted_marks(notes) == ({FULL}, {notes[1].path})
    assert notes[0].path == patch_path(FULL)


def test_paths_of_lines_and_reads_differ() -> None:
    lines = (b"", b"\x01", b"\x02", b"\x01\x01")
    paths = {full_path(line, nth) for line in lines for nth in (1, 2, 300)}
    assert len(paths) == 12


def test_outside_of_a_durable_function() -> None:
    with pytest.raises(NotInExecution):
        _ = current().full


async def test_a_step_does_not_read_it() -> None:
    @step
    async def asks() -> bool:
        return current().full

    @durable
    async def main() -> bool:
        return await asks()

    with pytest.raises(NotInExecution, match=r"current\(\)\.full was called in a step"):
        await Harness([main]).run(main)


async def test_a_loop_continues_as_new_whatever_crashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run ends at the same place, and no signal is lost on the way."""
    fills_behind(monkeypatch, 4)

    @durable
    async def account(balance: int = 0, runs: int = 1) -> list[int]:
        while amount := await receive("paid", int):
            balance = await work(balance + amount)
            if current().full:
                continue_as_new(balance, runs + 1)
        return [balance, runs]

    async def test(h: Harness) -> list[int]:
        handle = await h.start(account, id="a")
        for amount in (1, 2, 3, 4, 5, 0):
            await handle.signal("paid", amount)
        return await handle.result()

    balance, runs = await Harness([account]).every_crash(test)
    assert (balance, runs > 2) == (15, True)


class ReadingPart(ProducingWalk):
    """Reads it before each thing that it sees."""

    def see(self, node: Node, what: object) -> None:
        super().see(Node("full", node.number, 0), current().full)
        super().see(node, what)


class ReadingWalk(ReadingPart, PublishingWalk):
    """As ReadingPart, and publishes."""


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random programs read it, and journals fill early."""
    fills_behind(monkeypatch, 12)
    monkeypatch.setattr(random_programs, "ProducingWalk", ReadingPart)
    monkeypatch.setattr(random_programs, "PublishingWalk", ReadingWalk)


@pytest.mark.usefixtures("reading")
def test_random_programs_read_the_same_in_each_replay() -> None:
    read = 0
    for seed in range(60):
        run, durably, _, _ = random_programs.run_durably(seed)
        read += any(one.endswith("True") for one in run.result())
        assert replay(durably.main, run.partition.journal, codec=CODEC) == run.partition.close
    assert read > 15


@pytest.mark.usefixtures("reading")
def test_random_programs_read_the_same_when_workers_die() -> None:
    tally = many(range(60))
    assert tally.deaths > 150
