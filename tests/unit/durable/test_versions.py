"""Versions of durable functions, and journals of other versions."""

import re
from types import SimpleNamespace
from typing import Any

import pytest

from querator.durable import Durable, NonDeterminism, durable, sleep, step
from querator.durable.codec import Codec
from querator.durable.machine import ExecutionMachine, living
from querator.model.executions import UNVERSIONED, GiveBack
from tests.unit.durable.memory_partition import (
    FOREVER_MS,
    IDENTITY,
    START_MS,
    MemoryPartition,
    run_straight,
)
from tests.unit.durable.test_worker import FakeCalls, run


@step
async def reserve() -> int:
    return 1


@step
async def charge() -> int:
    return 2


def made(source: str, **names: Any) -> Durable[..., Any]:
    """The durable function `f` of a source text."""
    names = {"durable": durable, "step": step, "reserve": reserve, "charge": charge} | names
    names.setdefault("__name__", "shop.checkout")
    exec(compile(source, "shop/checkout.py", "exec"), names)
    function = names["f"]
    assert isinstance(function, Durable)
    return function


PLAIN = """
@durable
async def f(number=1):
    await reserve()
    return number + 1
"""


NESTED = """
@durable
async def f(number=1):
    def inner():
        return number
    class Kept:
        kept = 17
    await reserve()
    return [one for one in (inner, Kept) if number in {1, 2}]
"""


def test_lines_of_nested_functions_and_classes_do_not_count():
    moved = NESTED.replace("        return", '        """A docstring."""\n\n        return')
    assert made(moved).version == made(NESTED).version
    for change in (("17", "18"), ("{1, 2}", "{1, 3}"), ("return number", "return -number")):
        assert made(NESTED.replace(*change)).version != made(NESTED).version


@pytest.mark.parametrize(
    "source",
    [
        "# A comment.\n\n" + PLAIN,
        PLAIN.replace("    return", "    # Another one.\n\n    return"),
        PLAIN.replace("    await", '    """A docstring."""\n    await', 1),
        PLAIN.replace("number=1", "number: int = 1"),
    ],
    ids=["lines", "comments", "docstrings", "annotations"],
)
def test_what_does_not_run_does_not_count(source):
    assert made(source).version == made(PLAIN).version
    assert re.fullmatch("[0-9a-f]{12}", made(source).version)


@pytest.mark.parametrize(
    "source",
    [
        PLAIN.replace("number + 1", "number + 2"),
        PLAIN.replace("number + 1", "number - 1"),
        PLAIN.replace("number=1", "number=2"),
        PLAIN.replace("await reserve", "await charge"),
        PLAIN.replace("number", "count"),
        PLAIN.replace("    return number", "    return (lambda: number)()"),
    ],
    ids=["constants", "operators", "defaults", "calls", "parameters", "nested"],
)
def test_what_runs_counts(source):
    assert made(source).version != made(PLAIN).version


def test_what_it_calls_counts_and_the_code_of_steps_does_not():
    @step(name="reserve")
    async def other_code() -> int:
        return 17

    @step(name="book")
    async def other_name() -> int:
        return 1

    assert made(PLAIN, reserve=other_code).version == made(PLAIN).version
    assert made(PLAIN, reserve=other_name).version != made(PLAIN).version
    called = [made(PLAIN.replace("+ 1", f"+ {number}")) for number in (1, 1, 2)]
    same, again, changed = (made(PLAIN, reserve=one).version for one in called)
    assert same == again != changed
    modules = [SimpleNamespace(), SimpleNamespace()]
    assert len({made(PLAIN, reserve=one).version for one in modules}) == 1


def test_plain_functions_of_the_same_package_count():
    def in_package(name: str, number: int) -> str:
        names: dict[str, Any] = {"__name__": name}
        exec(f"async def helper(): return {number}", names)
        return made(PLAIN.replace("reserve", "helper"), helper=names["helper"]).version

    assert in_package("shop.prices", 1) != in_package("shop.prices", 2)
    assert in_package("other.prices", 1) == in_package("other.prices", 2)


def test_functions_that_call_each_other_have_a_version():
    source = PLAIN + "\n@durable\nasync def g():\n    await f()\n"
    function = made(source.replace("reserve()", "g()"))
    assert function.version == made(source.replace("reserve()", "g()")).version


def test_a_version_may_be_given():
    assert durable(version="3")(reserve.function).version == "3"
    for version in ("", "x" * 65, "a\nb"):
        with pytest.raises(ValueError, match="the version of reserve"):
            durable(version=version)(reserve.function)


# --- journals of other versions ------------------------------------------------------------------


@durable(name="main", version="old")
async def original() -> int:
    await reserve()
    await sleep(60)
    return await charge()


@durable(name="main", version="new")
async def longer() -> int:
    await reserve()
    await sleep(60)
    return await charge() + await charge()


@durable(name="main", version="new")
async def without_the_sleep() -> int:
    await reserve()
    await charge()
    return await charge()


@durable(name="main", version="new")
async def ends_early() -> int:
    return await reserve()


def parked() -> MemoryPartition:
    """The partition of `original`, parked in its sleep."""
    partition = MemoryPartition().start(original)
    with pytest.raises(_Parked):
        run_straight(original, partition=partition, after_event=_until_parked)
    assert partition.timers
    return partition


class _Parked(Exception):
    pass


def _until_parked(worker: Any) -> None:
    if worker.machine.is_parked:
        raise _Parked


def loaded(
    function: Durable[..., Any], partition: MemoryPartition, version: str = "old"
) -> ExecutionMachine:
    machine = ExecutionMachine(function, IDENTITY, Codec())
    machine.load(partition.journal, version=version, timers=tuple(partition.timers))
    return machine


@durable(name="main", version="new")
async def charges_first() -> int:
    return await charge()


@step(was=("reserve",))
async def hold() -> int:
    return 1


@durable(name="main", version="new")
async def renamed() -> int:
    return await hold()


def test_the_key_of_a_step_is_of_no_other_step_of_changed_code():
    """A step of the older code has begun, and is in no record: another one is at its place now."""
    partition = MemoryPartition().start(original)
    keys = []
    for function in (original, charges_first, renamed):
        machine = loaded(function, partition)
        machine.leased(FOREVER_MS)
        keys += [effect.step_key for effect in machine.ready(START_MS)]
        assert machine.put_away()
    assert keys == [
        "default/shop/3/17/1/1/reserve", "default/shop/3/17/1/1/charge",
        "default/shop/3/17/1/1/reserve",
    ]  # fmt: skip


def test_a_journal_that_fits_changed_code_is_continued():
    partition = parked()
    machine = loaded(longer, partition)
    assert machine.is_changed
    assert machine.next_due() is None
    assert not machine.ready(START_MS + 1)
    assert machine.put_away()


@pytest.mark.parametrize(
    ("function", "now"), [(without_the_sleep, "step charge"), (ends_early, "main has ended")]
)
def test_changed_code_must_wait_for_the_timers_that_are_set(function, now):
    with pytest.raises(NonDeterminism) as raised:
        loaded(function, parked())
    title, was, other, last = str(raised.value).splitlines()
    assert title == 'main "order-17", run 1: the code does not do what the journal says.'
    assert was.split() == "waits for a timer version old path 2".split()
    assert now in other
    assert "version new" in other
    assert last == "Nothing was run."
    assert living() == 0


def test_both_lines_name_their_version():
    journal = run_straight(original).partition
    journal.timers.clear()
    with pytest.raises(NonDeterminism, match=r"record 2 .*version old .*\n.*charge.*version new"):
        loaded(without_the_sleep, journal)


@pytest.mark.parametrize("version", ["old", UNVERSIONED, ""])
def test_timers_are_no_matter_of_unchanged_code(version):
    machine = ExecutionMachine(original, IDENTITY, Codec())
    machine.load(parked().journal, version=version, timers=(b"\x07",))
    assert not machine.is_changed
    assert machine.put_away()


@pytest.mark.parametrize("was", ["old", "new", UNVERSIONED])
async def test_a_worker_says_with_which_version_an_execution_continues(was):
    @durable(name="main", version="new")
    async def main() -> int:
        return await reserve()

    calls = FakeCalls(MemoryPartition().start(main))
    await run(calls, main, version=was)
    said = {report.version for report in calls.reports}
    assert said == {"" if was == "new" else "new"}
    assert not any(isinstance(report.then, GiveBack) for report in calls.reports)


@pytest.mark.parametrize("was", ["old", "new", UNVERSIONED])
async def test_a_function_that_takes_no_other_version_tries_none(was):
    @durable(name="main", version="new", upgrade="never")
    async def main() -> int:
        return await reserve()

    calls = FakeCalls(MemoryPartition().start(main))
    await run(calls, main, version=was)
    if was == "old":
        [report] = calls.reports
        assert report.then == GiveBack(reason=calls.partition.reason, pinned=True, refused="new")
        assert "waits for version old, and the worker has version new" in calls.partition.reason
    else:
        assert calls.partition.close is not None


def test_an_unknown_way_to_upgrade_is_refused():
    with pytest.raises(ValueError, match="upgrade is 'always'; it must be 'try' or 'never'"):
        durable(upgrade="always")(reserve.function)  # type: ignore[call-overload]
