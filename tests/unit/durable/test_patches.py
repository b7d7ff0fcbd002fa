"""`patched`: changed code beside executions that began before the change. Renamed steps."""

import pytest

from querator.durable import (
    NonDeterminism,
    NotInExecution,
    durable,
    patched,
    receive,
    sleep,
    step,
    sync,
)
from querator.durable.codec import Codec
from querator.durable.machine import ExecutionMachine
from querator.model.executions import JournalRecord, RecordKind
from tests.unit.durable.memory_partition import (
    IDENTITY,
    START_MS,
    MemoryPartition,
    replay,
    run_straight,
)


@step
async def reserve() -> str:
    return "reserved"


@step
async def check() -> str:
    return "checked"


@step
async def charge() -> str:
    return "charged"


@durable(name="checkout", version="old")
async def original() -> str:
    return " ".join([await reserve(), await charge()])


@durable(name="checkout", version="new")
async def guarded() -> str:
    said = [await reserve()]
    if patched("check-first"):
        said.append(await check())
    said.append(await charge())
    return " ".join(said)


@durable(name="checkout", version="newest")
async def only_the_newer_way() -> str:
    return " ".join([await reserve(), await check(), await charge()])


def continued(journal: list[JournalRecord], function=guarded, **options):
    """A run of the function that begins with the records of an earlier one."""
    partition = MemoryPartition(journal=list(journal))
    partition._next = journal[-1].index + 1
    return run_straight(function, partition=partition, **options)


def names(run) -> list[str]:
    return [effect.name for effect in run.effects]


def patches(partition: MemoryPartition) -> list[str]:
    return [one.note.name for one in partition.journal if one.note.kind == RecordKind.PATCHED]


def test_a_new_execution_takes_the_newer_way_and_the_journal_says_so():
    run = run_straight(guarded)
    assert run.result() == "reserved checked charged"
    assert patches(run.partition) == ["check-first"]
    [record] = [one.note for one in run.partition.journal if one.note.kind == RecordKind.PATCHED]
    assert "durable/test_patches.py:" in record.site
    assert replay(guarded, run.partition.journal) == run.partition.close


def test_an_execution_that_has_passed_the_place_keeps_the_older_way():
    journal = run_straight(original).partition.journal
    assert [one.note.name for one in journal[1:]] == ["reserve", "charge"]
    assert replay(guarded, journal) == replay(original, journal)


def test_an_execution_that_has_come_to_the_place_takes_the_newer_way():
    for upto in (1, 2):
        journal = run_straight(original).partition.journal[:upto]
        run = continued(journal)
        assert names(run) == ["reserve", "check", "charge"][upto - 1 :]
        assert patches(run.partition) == ["check-first"]


def test_every_beginning_of_a_journal_continues_alike():
    whole = run_straight(guarded).partition
    for upto in range(1, len(whole.journal) + 1):
        journal = whole.journal[:upto]
        if replays_to_its_end(journal):
            continue
        run = continued(journal)
        assert run.partition.close == whole.close
        assert replay(guarded, run.partition.journal) == whole.close


def replays_to_its_end(journal: list[JournalRecord]) -> bool:
    machine = ExecutionMachine(guarded, IDENTITY, Codec())
    machine.load(journal)
    is_over = machine.is_over
    assert machine.put_away()
    return is_over


def test_a_patch_that_all_have_may_be_removed():
    run = run_straight(guarded)
    assert replay(only_the_newer_way, run.partition.journal) == run.partition.close


def test_without_the_guard_the_same_change_is_a_difference():
    with pytest.raises(NonDeterminism, match=r"step charge .*\n.*step check"):
        replay(only_the_newer_way, run_straight(original).partition.journal)


def test_the_first_answer_holds_for_the_whole_run():
    @durable(name="checkout")
    async def asks_again() -> str:
        answers = [patched("p")]
        for each in (reserve, charge, check):
            await each()
            answers.append(patched("p"))
        return str(answers)

    journal = run_straight(original).partition.journal
    run = continued(journal[:2], asks_again)
    assert run.result() == str([False] * 4)
    assert patches(run.partition) == []
    assert run_straight(asks_again).result() == str([True] * 4)


def test_the_place_is_passed_while_a_timer_is_set():
    @durable(name="checkout")
    async def waits() -> str:
        await sleep(60 if patched("shorter") else 3600)
        return await charge()

    machine = ExecutionMachine(waits, IDENTITY, Codec())
    journal = MemoryPartition().start(waits).journal
    machine.load(journal, version="old", timers=(b"\x01",))
    assert machine.code.loop.timers[b"\x01"].due_ms == START_MS + 3_600_000
    assert machine.put_away()
    assert patches(run_straight(waits).partition) == ["shorter"]


def test_an_arrival_behind_the_place_has_passed_it():
    @durable(name="checkout")
    async def waits() -> str:
        word = await receive("word", str)
        return f"{word} {await charge()}"

    @durable(name="checkout")
    async def changed() -> str:
        if patched("check-first"):
            await check()
        return await waits.function()

    partition = MemoryPartition().start(waits)
    partition.signal("word", b'"go"', START_MS)
    assert names(continued(partition.journal, changed)) == ["charge"]


def test_no_effect_begins_before_the_patch_is_durable():
    machine = ExecutionMachine(guarded, IDENTITY, Codec())
    machine.load(run_straight(original).partition.journal[:2])
    machine.leased(START_MS + 60_000)
    assert machine.ready(START_MS) == []
    assert machine.is_urgent
    sending = machine.take()
    assert sending is not None
    assert [note.name for note in sending.notes] == ["check-first"]
    machine.applied(sending.number, 2)
    assert [effect.name for effect in machine.ready(START_MS)] == ["check"]
    assert machine.put_away()


def test_a_patch_in_a_called_function_outlives_the_records_of_the_call():
    @durable
    async def inner() -> str:
        return "new" if patched("p") and await check() else "old"

    @durable(name="checkout")
    async def outer() -> str:
        return f"{await inner()} {patched('p')} {await charge()}"

    run = run_straight(outer)
    assert run.result() == "new True charged"
    assert patches(run.partition) == ["p"]
    assert replay(outer, run.partition.journal) == run.partition.close


def test_sync_functions_have_patches():
    @step
    def bill() -> str:
        return "billed"

    @durable(name="checkout")
    def waits() -> str:
        if patched("p"):
            sync.sleep(1)
        return bill()

    run = run_straight(waits)
    assert (run.result(), patches(run.partition)) == ("billed", ["p"])
    assert replay(waits, run.partition.journal) == run.partition.close


@pytest.mark.parametrize("name", ["", "x" * 256, "a\nb"])
def test_names_that_no_patch_may_have(name):
    @durable(name="checkout")
    async def asks() -> bool:
        return patched(name)

    close = run_straight(asks).partition.close
    assert close.outcome == RecordKind.FAILED
    assert b"the name of the patch" in close.payload


def test_a_patch_outside_of_an_execution():
    with pytest.raises(NotInExecution, match="patched"):
        patched("p")


# --- renamed steps -------------------------------------------------------------------------------


def test_a_renamed_step_takes_the_records_of_its_former_names():
    @durable(name="checkout")
    async def renamed() -> str:
        bill = step(charge.function, name="bill", was=("debit", "charge"))
        return " ".join([await reserve(), await bill()])

    journal = run_straight(original).partition.journal
    assert replay(renamed, journal) == replay(original, journal)
    failed = [*journal]
    note = failed[2].note
    kind = type(note)(RecordKind.ATTEMPT_FAILED, note.path, note.name, payload=b"[1,5,null]")
    failed[2] = JournalRecord(failed[2].index, kind)
    machine = ExecutionMachine(renamed, IDENTITY, Codec())
    machine.load(failed)
    assert machine.put_away()


def test_former_names_that_no_step_may_have():
    with pytest.raises(ValueError, match="a former name of reserve"):
        step(reserve.function, was=("",))
    with pytest.raises(TypeError, match="must be a tuple of names"):
        step(reserve.function, was="charge")  # type: ignore[call-overload]
