"""Executions with children on a real partition, under faults: children started once, results once.

Each seed is a program: a tree of executions in which the code of each one decides by its arguments
what it does with its children. It waits for them one after the other or together, gives up after a
time, leaves them behind, detaches them, asks for one twice, or for an id that is taken; some are
started in a called function, whose records are folded. Workers die and stand still (`Family`), and
a client cancels or terminates executions.

The checks are of histories: what the code was given (`Ledger`), the journals, the effects.

- An id has one execution, also when a worker has died over its start.
- The code is given one result of a child, in each replay the same, and it is the child's own end.
- An operation has one arrival that says how the start went, and at most one result.
- What is attached has ended when its parent has, or was cancelled; what is detached was not.
- A parked execution has the timers that its code waits for, and no other one.
- Each execution ends.
"""

import argparse
import asyncio
import contextlib
import random
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields

from querator.durable import (
    Child,
    ChildRefused,
    ExecutionCancelled,
    ExecutionTerminated,
    current,
    durable,
    mapping,
    sleep,
    spawn,
    step,
)
from querator.durable import map as map_items
from querator.model.execution_calls import ExecutionView
from querator.model.executions import (
    CHILD_RESULTS,
    ArriveKind,
    ExecutionState,
    RecordKind,
    child_result_path,
)
from tests.simulation.mutants import replaced
from tests.unit.durable.families import CODEC, Family

FAULTS = 0.03
_DEEP = 3
_ENDS = {
    ExecutionState.COMPLETED: RecordKind.CHILD_DONE,
    ExecutionState.FAILED: RecordKind.CHILD_FAILED,
    ExecutionState.CANCELLED: RecordKind.CHILD_CANCELLED,
    ExecutionState.TERMINATED: RecordKind.CHILD_TERMINATED,
}


class Violation(AssertionError):
    """A check of a history has failed."""


class Ledger:
    """What the code of all executions was given, live and in replays."""

    def __init__(self) -> None:
        self.results: dict[tuple[str, str], str] = {}
        self.ways: dict[str, str] = {}
        """How each child was started: `attached`, `shielded` or `detached`."""
        self.wrong: list[str] = []
        """What maps have given that is not of their items."""
        self.maps = 0

    def mapped(self, specs: list[str], given: list[str]) -> None:
        self.maps += 1
        expected = [(one, f"failed {one}", "ended") for one in specs]
        fits = [result in each for result, each in zip(given, expected, strict=False)]
        if len(given) != len(specs) or not all(fits):
            self.wrong.append(f"a map of {specs} has given {given}")

    def saw(self, child: str, result: str) -> None:
        key = current().execution_id, child
        if self.results.setdefault(key, result) != result:
            raise Violation(f"{key} was {self.results[key]}, and is {result}")


_LEDGER = Ledger()


@step
async def effect(text: str) -> str:
    return text


@durable
async def node(spec: str, deep: int) -> str:
    """What an execution does follows from `spec`."""
    chance = random.Random(spec)
    done = [await effect(spec)]
    if deep:
        for nth in range(chance.randint(1, 2)):
            way = chance.choice(list(_WAYS))
            done.append(await _WAYS[way](f"{spec}.{nth}", deep - 1))
    if chance.random() < 0.2:
        await sleep(chance.randint(1, 100_000))
    if chance.random() < 0.1:
        raise ValueError(spec)
    return f"({' '.join(done)})"


async def outcome(child: Child[str]) -> str:
    try:
        result = await child
    except ExecutionCancelled:
        result = "cancelled"
    except ExecutionTerminated:
        result = "terminated"
    except ValueError as error:
        result = f"failed {error}"
    _LEDGER.saw(child.id, result)
    return result


async def started(spec: str, deep: int, way: str = "attached", child_id: str = "") -> Child[str]:
    child_id = child_id or f"{current().execution_id}/{spec.rpartition('.')[2]}"
    _LEDGER.ways.setdefault(child_id, way)
    return await spawn(
        node, spec, deep, id=child_id, detached=way == "detached", cancel=way != "shielded"
    )


async def one(spec: str, deep: int) -> str:
    return await outcome(await started(spec, deep))


async def several(spec: str, deep: int) -> str:
    above = f"{current().execution_id}/{spec.rpartition('.')[2]}"
    starts = (started(f"{spec}.{nth}", deep, child_id=f"{above}-{nth}") for nth in range(3))
    children = await asyncio.gather(*starts)
    return " ".join(await asyncio.gather(*map(outcome, children)))


async def impatient(spec: str, deep: int) -> str:
    child = await started(spec, deep)
    try:
        async with asyncio.timeout(random.Random(spec).choice([0.001, 5, 50_000])):
            return await outcome(child)
    except TimeoutError:
        return f"late {await outcome(child)}"


async def hasty(spec: str, deep: int) -> str:
    """The start itself may be given up."""
    try:
        async with asyncio.timeout(0.001):
            return await outcome(await started(spec, deep))
    except TimeoutError:
        return "hasty"


async def left(spec: str, deep: int) -> str:
    await started(spec, deep)
    return "left"


async def shielded(spec: str, deep: int) -> str:
    await started(spec, deep, "shielded")
    return "shielded"


async def detached(spec: str, deep: int) -> str:
    """Some are awaited for a time, which does not cancel them."""
    child = await started(spec, deep, "detached")
    if random.Random(spec).random() < 0.5:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                await outcome(child)
    return "detached"


async def twice(spec: str, deep: int) -> str:
    first, second = await started(spec, deep), await started(spec, deep)
    results = await asyncio.gather(outcome(first), outcome(second))
    if results[0] != results[1]:
        raise Violation(f"one child, and {results}")
    return results[0]


async def taken(spec: str, deep: int) -> str:
    with contextlib.suppress(ChildRefused):
        await spawn(node, spec, deep, id="a")
        raise Violation("an execution is its own ancestor")
    return "taken"


@durable
async def called(spec: str, deep: int) -> str:
    first = await one(f"{spec}.a", deep)
    return f"[{first} {await effect(spec)}]"


@durable
async def leaving(spec: str, deep: int) -> str:
    await started(f"{spec}.l", deep)
    return await effect(spec)


@durable
async def leaf(spec: str) -> str:
    chance = random.Random(spec)
    if chance.random() < 0.5:
        await sleep(chance.randint(1, 10_000))
    if chance.random() < 0.15:
        raise ValueError(spec)
    return await effect(spec)


async def mapped(spec: str, deep: int) -> str:
    """Children in portions, a few at a time."""
    specs = [f"{spec}.m{nth}" for nth in range(8)]
    found = await map_items(leaf, specs, parallel=4, return_exceptions=True)
    given = [
        one if isinstance(one, str) else f"failed {one}" if isinstance(one, ValueError) else "ended"
        for one in found
    ]
    _LEDGER.mapped(specs, given)
    return " ".join(given)


async def mapped_until_one_fails(spec: str, deep: int) -> str:
    specs = [f"{spec}.m{nth}" for nth in range(6)]
    try:
        given = await map_items(leaf, specs, parallel=4)
    except ValueError as error:
        return f"failed {error}"
    except (ExecutionCancelled, ExecutionTerminated):
        return "ended"
    _LEDGER.mapped(specs, given)
    return " ".join(given)


async def folded(spec: str, deep: int) -> str:
    return f"{await called(spec, deep)} {await effect(f'behind {spec}')}"


async def leaves_behind(spec: str, deep: int) -> str:
    return f"{await leaving(spec, deep)} {await effect(f'behind {spec}')}"


_WAYS = {
    "one": one, "several": several, "impatient": impatient, "hasty": hasty, "left": left,
    "shielded": shielded, "detached": detached, "twice": twice, "taken": taken, "folded": folded,
    "leaves behind": leaves_behind, "mapped": mapped, "mapped until": mapped_until_one_fails,
}  # fmt: skip


@dataclass
class Tally:
    """What many runs have seen."""

    runs: int = 0
    executions: int = 0
    results: int = 0
    """Those of children that the code was given."""
    maps: int = 0
    cancelled: int = 0
    deaths: int = 0
    refused: int = 0
    repeats: int = 0


def run(seed: int) -> Tally:
    """One run. Raises Violation, or what a machine raises."""
    global _LEDGER
    ledger = _LEDGER = Ledger()
    family = Family([node, leaf], seed, faults=FAULTS if seed % 4 else 0.0)
    family.start("a", node, f"seed {seed}", _DEEP)
    if seed % 3 == 0:
        family.after_move = lambda: _end_one(family)
    try:
        with replaced(mapping, "PORTION_ITEMS", 3):
            family.run()
    except (Violation, AssertionError):
        raise
    except Exception as error:
        raise Violation(f"{type(error).__name__}: {error}") from error
    views = family.views()
    _check(family, ledger, views)
    return Tally(
        runs=1, executions=len(views), results=len(ledger.results), maps=ledger.maps,
        cancelled=sum(view.cancelled for view in views), deaths=family.deaths,
        refused=family.refused, repeats=family.repeats,
    )  # fmt: skip


def _end_one(family: Family) -> None:
    """Now and then, a client cancels or terminates an execution."""
    if family.chance.random() < 0.004:
        view = family.chance.choice(family.views())
        kind = family.chance.choice([ArriveKind.CANCEL, ArriveKind.CANCEL, ArriveKind.TERMINATE])
        family.end(kind, view.id)


def _check(family: Family, ledger: Ledger, views: list[ExecutionView]) -> None:
    by_id = {view.id: view for view in views}
    if len(by_id) != len(views):
        raise Violation("an id has two executions")
    if ledger.wrong:
        raise Violation(ledger.wrong[0])
    keys: dict[str, set[str]] = {}
    for each in family.begun:
        keys.setdefault(each.execution_id, set()).add(each.step_key.split("/")[3])
    for name, numbers in keys.items():
        if len(numbers) != 1:
            raise Violation(f"{name} has run as the executions {numbers}")
    for (parent, child), result in ledger.results.items():
        if (end := _end_of(family, by_id[child])) != result:
            raise Violation(f"{parent} was given {result} of {child}, which has ended as {end}")
    for view in views:
        _check_journal(family, view, by_id)
        if (above := by_id.get(view.parent_id)) is not None:
            _check_end(view, above, ledger.ways.get(view.id, "attached"), family)


def _end_of(family: Family, view: ExecutionView) -> str:
    end = family.queue.end(view.id).note
    if view.state is ExecutionState.COMPLETED:
        return str(CODEC.decode(end.payload, str))
    if view.state is ExecutionState.FAILED:
        return f"failed {CODEC.decode_error(end.payload)}"
    return view.state.name.lower()


def _check_journal(family: Family, view: ExecutionView, by_id: dict[str, ExecutionView]) -> None:
    journal = family.queue.journal(view.id)
    starts = Counter(
        each.note.path for each in journal
        if each.note.kind in (RecordKind.CHILD_STARTED, RecordKind.CHILD_REFUSED)
    )  # fmt: skip
    results = Counter(each.note.path for each in journal if each.note.kind in CHILD_RESULTS)
    if any(count > 1 for count in [*starts.values(), *results.values()]):
        raise Violation(f"{view.id} has two arrivals for one operation")
    if stray := set(results) - {child_result_path(path) for path in starts}:
        raise Violation(f"{view.id} has results of children that it has not started: {stray}")


def _check_end(view: ExecutionView, parent: ExecutionView, way: str, family: Family) -> None:
    note = next(
        (each.note for each in family.queue.journal(view.id)
         if each.note.kind == RecordKind.CANCEL), None,
    )  # fmt: skip
    if way == "detached" and note is not None and note.name == "parent":
        raise Violation(f"{view.id} is detached, and was cancelled with its parent")
    if way != "detached" and view.closed_ms > parent.closed_ms and not view.cancelled:
        if view.state is not ExecutionState.TERMINATED:
            raise Violation(f"{view.id} has outlived its parent {parent.id}")


def many(seeds: Iterable[int]) -> Tally:
    total = Tally()
    for seed in seeds:
        tally = run(seed)
        for each in fields(Tally):
            setattr(total, each.name, getattr(total, each.name) + getattr(tally, each.name))
    return total


def main() -> int:
    """Runs a number of seeds, and says what they have seen."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--start", type=int, default=1)
    options = parser.parse_args()
    failed = 0
    total = Tally()
    for seed in range(options.start, options.start + options.seeds):
        try:
            tally = run(seed)
        except AssertionError as error:
            failed += 1
            sys.stdout.write(f"seed {seed}: {error}\n")
            continue
        for each in fields(Tally):
            setattr(total, each.name, getattr(total, each.name) + getattr(tally, each.name))
    sys.stdout.write(f"{total}, {failed} seeds with violations\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
