"""Executions that are rewound, on a real partition, under faults.

Each seed is a tree of executions with steps, timers, called functions whose records are folded,
signals and children: awaited, detached, and with an id of their own or one that is made. Random
numbers decide what the code does, and must be the same behind a rewind. An operator rewinds one to
a record of its journal, at any time: while it runs, waits, or has ended; with its children kept or
not. Workers die and stand still (`Family`).

The checks:

- The result is that of a run without rewinds and faults.
- No step whose record has stayed begins again.
- A start has at most one child that was not cancelled, and each that was not and is attached ends.
- Signals are received once, in order, by what the journal says in the end.
- A rewind of what is not a place to continue from is refused, and changes nothing.
"""

import argparse
import asyncio
import random
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields

from querator import durable as sdk
from querator.durable import durable, receive, sleep, spawn, step
from querator.model.commands import Refusal
from querator.model.errors import ErrorCode
from querator.model.execution_calls import ExecutionView
from querator.model.execution_commands import RewindExecution, Rewound
from querator.model.executions import ArriveKind, ExecutionState, RecordKind
from querator.partition.execution_rows import decode_child, decode_execution
from querator.storage.tables import CHILDREN, EXECUTIONS
from tests.simulation.families import Violation
from tests.unit.durable.families import Family

FAULTS = 0.03
REWINDS = 6
SIGNALS = 3
_DEEP = 2


@step
async def effect(text: str) -> str:
    return text


@durable
async def node(spec: str, deep: int) -> str:
    chance = random.Random(spec)
    drawn = f"{spec} {sdk.random().random()}"
    if await effect(drawn) != drawn:
        raise ValueError("a rewind has changed the random numbers of what has stayed")
    done = [spec]
    for nth in range(chance.randint(1, 3)):
        inner = f"{spec}.{nth}"
        way = chance.choice(["step", "sleep", "called", "together", *["child"] * 3 * (deep > 0)])
        if way == "step":
            done.append(await effect(inner))
        elif way == "sleep":
            await sleep(chance.randint(1, 100_000))
        elif way == "called":
            done.append(await called(inner, deep))
        elif way == "together":
            done += await asyncio.gather(*(effect(f"{inner}.{which}") for which in "ab"))
        else:
            done.append(await child_of(inner, deep, chance))
    return f"({' '.join(done)})"


async def child_of(spec: str, deep: int, chance: random.Random) -> str:
    name = f"a/{spec}" if chance.random() < 0.5 else None
    roll = chance.random()
    child = await spawn(node, spec, deep - 1, id=name, detached=roll < 0.5)
    if roll < 0.25:
        return "detached"
    await effect(f"{spec} behind")
    return await child


@durable
async def called(spec: str, deep: int) -> str:
    done = [await effect(f"{spec}.first")]
    if deep and random.Random(spec).random() < 0.3:
        done.append(await child_of(f"{spec}.c", deep, random.Random(spec)))
    await sleep(random.Random(spec).randint(1, 2_000))
    return f"[{' '.join(done)} {await effect(f'{spec}.last')}]"


@durable
async def root(seed: int) -> str:
    done = [await node_of(f"{seed}.x")]
    heard = [str(await receive("go", int)) for _ in range(SIGNALS)]
    done.append(await node_of(f"{seed}.y"))
    return f"{' '.join(done)} {','.join(heard)}"


async def node_of(spec: str) -> str:
    return await node(spec, _DEEP)


@dataclass
class Tally:
    """What many runs have seen."""

    runs: int = 0
    rewinds: int = 0
    closed: int = 0
    """Rewinds of executions that had ended."""
    kept: int = 0
    """Those that have kept children."""
    cancelled: int = 0
    """Children that rewinds have cancelled."""
    folded: int = 0
    """Rewinds into a fold, refused."""
    executions: int = 0
    deaths: int = 0
    refused: int = 0


class Operator:
    """Rewinds executions, and sends the signals."""

    def __init__(self, family: Family, seed: int) -> None:
        self._family = family
        self._chance = random.Random(f"operator {seed}")
        self._sent = 0
        self.ended = 0
        self.tally = Tally(runs=1)
        self.stayed: dict[int, tuple[int, set[bytes]]] = {}
        """Of each execution that was rewound: its run, and the steps whose records have stayed."""
        self.begun = 0
        self._steps: dict[int, dict[bytes, int]] = {}
        """Of each execution: where its steps were recorded, also if they are folded since."""
        self._known: dict[int, int] = {}
        self.parents: dict[int, int] = {}
        """By number."""
        self.gone: dict[int, int] = {}
        """When another one has taken the place of a child."""

    def look(self) -> None:
        """Notes the parents of executions, and those that are gone."""
        with self._family.log.environment.snapshot() as txn:
            rows = {
                int.from_bytes(key[-8:], "big"): decode_execution(raw)
                for key, raw in EXECUTIONS.rows(txn, self._family.log.group)
            }
        for number in self.parents.keys() - rows.keys():
            if number not in self.gone:
                self.gone[number] = self._family.log.now_ms
                self._family.lose(number)
        for number, row in rows.items():
            self.parents.setdefault(number, row.parent)
            if self._known.get(number) == row.next_index:
                continue
            self._known[number] = row.next_index
            steps = self._steps.setdefault(number, {})
            for each in self._family.queue.journal(row.id):
                if each.note.kind == RecordKind.STEP_DONE:
                    steps.setdefault(each.note.path, each.index)

    def move(self) -> None:
        self.look()
        if self._sent < SIGNALS and self._chance.random() < 0.05:
            sent = self._family.queue.signal("go", "a", payload=b"%d" % (self._sent + 1))
            self._sent += not isinstance(sent, Refusal)
        self.check_begun()
        if self._chance.random() < 0.05:
            self._terminate()
        if self.tally.rewinds < REWINDS and self._chance.random() < 0.02:
            self.rewind(self._chance.choice(self._family.views()))

    def rewind(self, view: ExecutionView) -> None:
        self.look()
        if view.cancelled or (view.state.closed and view.parent_id):
            # Its parent has its result, or has given it up.
            return
        journal = self._family.queue.journal(view.id)
        to = self._chance.randrange(view.next_index)
        starts = [each.index for each in journal if each.note.kind == RecordKind.CHILD_STARTED]
        if starts and self._chance.random() < 0.5:
            to = self._chance.choice(starts) - self._chance.choice([0, 1])
        keep = self._chance.random() < 0.4
        command = RewindExecution(
            view.id, to, request=b"%016d" % self._chance.getrandbits(32), keep_children=keep
        )
        result = self._family.log.one(command)
        self._family.check()
        if isinstance(result, Refusal):
            if result.code is not ErrorCode.INVALID_ARGUMENT:
                raise Violation(result.message)
            if self._family.queue.journal(view.id) != journal:
                raise Violation("a rewind was refused, and the journal is another one")
            self.tally.folded += "inside" in result.message
            return
        again = self._family.log.one(command)
        assert isinstance(again, Rewound)
        assert isinstance(result, Rewound)
        if not again.repeated or again.run != result.run:
            raise Violation("a rewind that is repeated is another one")
        if result.run != view.run + 1:
            raise Violation(f"run {view.run} is followed by run {result.run}")
        steps = self._steps[view.number]
        for path in [path for path, index in steps.items() if index > to]:
            del steps[path]
        self.stayed[view.number] = result.run, set(steps)
        self._family.lose(view.number)
        self.tally.rewinds += 1
        self.tally.closed += view.state.closed
        self.tally.kept += keep
        self.tally.cancelled += result.children

    def _terminate(self) -> None:
        """Ends the first execution if what it has started outlives it. It will be rewound."""
        view = self._family.queue.view("a")
        with self._family.log.environment.snapshot() as txn:
            children = [
                decode_child(raw).ends
                for _, raw in CHILDREN.rows(txn, self._family.log.group, view.number)
            ]
        if children and not any(children) and not view.state.closed and self.ended < 2:
            self.ended += 1
            self._family.end(ArriveKind.TERMINATE, "a")
            self._family.lose(view.number)

    def check_begun(self) -> None:
        """No effect begins whose record has stayed."""
        for each in self._family.begun[self.begun :]:
            number, its_run = map(int, each.step_key.split("/")[3:5])
            run, steps = self.stayed.get(number, (0, set()))
            if its_run >= run > 0 and each.path in steps:
                raise Violation(f"{each.name} of {each.execution_id} is recorded, and begins")
        self.begun = len(self._family.begun)


def run(seed: int) -> Tally:
    """One run. Raises Violation, or what a machine raises."""
    family = Family([root, node], seed, faults=FAULTS if seed % 4 else 0.0)
    family.start("a", root, seed)
    operator = Operator(family, seed)
    family.after_move = operator.move
    try:
        for _ in range(3):
            family.run()
            operator.rewind(family.queue.view("a"))
        family.run()
        while family.queue.view("a").state is ExecutionState.TERMINATED:
            operator.rewind(family.queue.view("a"))
            family.run()
    except (Violation, AssertionError):
        raise
    except Exception as error:
        raise Violation(f"{type(error).__name__}: {error}") from error
    _check(family, operator, seed)
    tally = operator.tally
    tally.executions = len(family.views())
    tally.deaths, tally.refused = family.deaths, family.refused
    return tally


def _check(family: Family, operator: Operator, seed: int) -> None:
    view = family.queue.view("a")
    if view.state is not ExecutionState.COMPLETED or family.result("a") != _expected(seed):
        raise Violation(f"the result is {family.result('a')}, not {_expected(seed)}")
    views = family.views()
    living: Counter[tuple[int, bytes]] = Counter()
    for each in views:
        if each.cancelled or each.state is ExecutionState.TERMINATED:
            continue
        parent = operator.parents[each.number]
        # No two starts have the same arguments.
        living[parent, family.queue.journal(each.id)[0].note.payload] += 1
        if each.closed_ms > operator.gone.get(parent, each.closed_ms):
            raise Violation(f"{each.id} has outlived its parent, whose place another one has")
    if doubled := [key for key, count in living.items() if count > 1]:
        raise Violation(f"children were doubled: {doubled}")


def _expected(seed: int) -> str:
    """The result, by the same functions, called as plain ones."""

    def of_node(spec: str, deep: int) -> str:
        chance = random.Random(spec)
        done = [spec]
        for nth in range(chance.randint(1, 3)):
            inner = f"{spec}.{nth}"
            way = chance.choice(
                ["step", "sleep", "called", "together", *["child"] * 3 * (deep > 0)]
            )
            if way == "step":
                done.append(inner)
            elif way == "sleep":
                chance.randint(1, 100_000)
            elif way == "called":
                done.append(of_called(inner, deep))
            elif way == "together":
                done += [f"{inner}.{which}" for which in "ab"]
            else:
                done.append(of_child(inner, deep, chance))
        return f"({' '.join(done)})"

    def of_child(spec: str, deep: int, chance: random.Random) -> str:
        chance.random()
        return "detached" if chance.random() < 0.25 else of_node(spec, deep - 1)

    def of_called(spec: str, deep: int) -> str:
        done = [f"{spec}.first"]
        if deep and random.Random(spec).random() < 0.3:
            done.append(of_child(f"{spec}.c", deep, random.Random(spec)))
        return f"[{' '.join(done)} {spec}.last]"

    nodes = [of_node(f"{seed}.{which}", _DEEP) for which in "xy"]
    return f"{' '.join(nodes)} {','.join(str(nth + 1) for nth in range(SIGNALS))}"


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
