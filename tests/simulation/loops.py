"""Executions that continue as new runs while signals come, on a real partition, under faults.

Each seed is a loop over two mailboxes. The code of each run decides by the seed and the number of
the run how many signals it receives, whether it waits for them with a timeout or in two tasks, and
whether it has steps, a child, or one that is detached. Then it continues as a new run with what it
has heard. Workers die and stand still (`Family`). A client sends the signals at any time, and some
of them twice.

The checks: each signal is received once, in the order of its mailbox, over all runs; steps of two
runs have no key in common; the journal is that of the last run.
"""

import argparse
import asyncio
import random
import sys
from collections.abc import Iterable
from dataclasses import dataclass, fields

from querator.durable import continue_as_new, durable, receive, sleep, spawn, step
from querator.model.commands import Refusal
from querator.model.execution_commands import Arrived
from querator.model.executions import ExecutionState, RecordKind
from tests.simulation.families import Violation
from tests.unit.durable.families import Family

FAULTS = 0.03
NAMES = ("go", "other")
SIGNALS = 12
"""Of each mailbox."""

Heard = dict[str, list[int]]


@step
async def effect(text: str) -> str:
    return text


@durable
async def helper(spec: str) -> str:
    await sleep(random.Random(spec).randint(1, 2_000))
    return await effect(spec)


async def hear(name: str, heard: Heard, within: float | None = None) -> None:
    try:
        heard[name].append(await receive(name, int, timeout=within))
    except TimeoutError:
        return


@durable
async def loop(seed: int, nth: int, heard: Heard) -> Heard:
    """One run. What it does follows from the seed and its number."""
    chance = random.Random(f"loop {seed} {nth}")
    for _ in range(chance.randint(0, 3)):
        left = [name for name in NAMES if len(heard[name]) < SIGNALS]
        if not left:
            return heard
        way = chance.choice(["one", "late", "both", "step", "child", "detached"])
        if way == "step":
            await effect(f"{seed} {nth}")
        elif way == "child":
            await (await spawn(helper, f"{seed} {nth}"))
        elif way == "detached":
            await spawn(helper, f"{seed} {nth}", detached=True)
        elif way == "both" and len(left) == 2:
            await asyncio.gather(*(hear(name, heard) for name in left))
        else:
            within = chance.choice([0.001, 5, 50_000]) if way == "late" else None
            await hear(chance.choice(left), heard, within)
    if nth and chance.random() < 0.2:
        await sleep(chance.randint(1, 1_000))
    continue_as_new(seed, nth + 1, heard)


@dataclass
class Tally:
    """What many runs have seen."""

    runs: int = 0
    """Of the loops."""
    loops: int = 0
    deaths: int = 0
    refused: int = 0
    repeats: int = 0
    unread: int = 0
    """Signals that were in the journal of a run when it began."""


class Client:
    """Sends the signals of each mailbox in order, now and then one, and repeats some of them."""

    def __init__(self, family: Family, seed: int) -> None:
        self._family = family
        self._chance = random.Random(f"client {seed}")
        self._sent = dict.fromkeys(NAMES, 0)
        self._often = self._chance.choice([0.02, 0.1, 0.5])

    def move(self) -> None:
        if self._chance.random() >= self._often:
            return
        name = self._chance.choice(NAMES)
        nth = self._sent[name]
        is_repeat = nth > 0 and self._chance.random() < 0.2
        if is_repeat:
            nth = self._chance.randrange(nth)
        elif nth == SIGNALS:
            return
        result = self._family.queue.signal(
            name, "a", payload=b"%d" % nth, message_id=f"{name} {nth}"
        )
        if isinstance(result, Refusal):
            # It has ended, so it has heard all.
            if not is_repeat:
                raise Violation(f"signal {name} {nth} was refused: {result.message}")
            return
        assert isinstance(result, Arrived)
        if result.repeated != is_repeat:
            raise Violation(f"signal {name} {nth} was sent again, and is another one")
        self._sent[name] += not is_repeat


def run(seed: int) -> Tally:
    """One run. Raises Violation, or what a machine raises."""
    family = Family([loop, helper], seed, faults=FAULTS if seed % 4 else 0.0)
    family.start("a", loop, seed, 1, {name: [] for name in NAMES})
    client = Client(family, seed)
    seen: set[int] = set()
    unread = 0

    def move() -> None:
        nonlocal unread
        client.move()
        view = family.queue.view("a")
        if view.run not in seen:
            seen.add(view.run)
            unread += view.unread

    family.after_move = move
    try:
        family.run()
    except (Violation, AssertionError):
        raise
    except Exception as error:
        raise Violation(f"{type(error).__name__}: {error}") from error
    _check(family)
    return Tally(
        runs=family.queue.view("a").run, loops=1, deaths=family.deaths, refused=family.refused,
        repeats=family.repeats, unread=unread,
    )  # fmt: skip


def _check(family: Family) -> None:
    view = family.queue.view("a")
    if view.state is not ExecutionState.COMPLETED:
        raise Violation(f"the loop has ended as {view.state.name}: {view.reason}")
    heard: Heard = family.result("a")
    for name in NAMES:
        if heard[name] != list(range(SIGNALS)):
            raise Violation(f"of mailbox {name} it has received {heard[name]}")
    ends: dict[str, str] = {}
    for each in family.begun:
        if ends.setdefault(each.step_key, str(each.args)) != str(each.args):
            raise Violation(f"two steps have the key {each.step_key}")
    if family.queue.kinds("a").count(RecordKind.STARTED.name) != 1:
        raise Violation("the journal has two beginnings")
    if any(each.execution_id == "a" and _run_of(each.step_key) > view.run
           for each in family.begun):  # fmt: skip
        raise Violation("a step of a run that has not begun")


def _run_of(step_key: str) -> int:
    """The number of the run in the key of a step."""
    return int(step_key.split("/")[4])


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
