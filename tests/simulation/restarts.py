"""Executions that begin again after their ends, on a real partition, under faults.

Each seed is an id with some lives. A client starts it with `restart_closed`, each time with another
argument, at any time: it may be open, or have ended a moment before, when a worker of its former
run still stands still. Starts are repeated at once, and much later. Signals, cancellations and
terminations come, too. The code has steps, waits for a signal, and leaves children behind.

The checks: a request begins one run, and a repeat of it none; each run has the arguments of its own
request, and no effect of another one; a signal is received by the run in which it was accepted;
what a former run has started and is attached was cancelled or has ended.
"""

import argparse
import random
import sys
from collections.abc import Iterable
from dataclasses import dataclass, fields

from querator.durable import durable, receive, sleep, spawn, step
from querator.durable.arguments import encode_arguments
from querator.model.commands import Refusal
from querator.model.errors import ErrorCode
from querator.model.execution_commands import Started
from querator.model.executions import ArriveKind, ExecutionState, KeyPolicy
from tests.simulation.families import Violation
from tests.unit.durable.families import CODEC, Family

FAULTS = 0.03
LIVES = 8


@step
async def effect(text: str) -> str:
    return text


@durable
async def helper(spec: str) -> str:
    await sleep(random.Random(spec).randint(1, 100_000))
    return await effect(spec)


@durable
async def life(seed: int, request: int) -> int:
    chance = random.Random(f"life {seed} {request}")
    await effect(f"{request}")
    for nth in range(chance.randint(0, 3)):
        way = chance.choice(["step", "signal", "sleep", "child", "left", "detached"])
        if way == "step":
            await effect(f"{request}")
        elif way == "signal":
            try:
                heard = await receive("go", int, timeout=chance.choice([1, 5_000]))
            except TimeoutError:
                continue
            await effect(f"{request} heard {heard}")
        elif way == "sleep":
            await sleep(chance.randint(1, 100_000))
        else:
            name = f"a/{way}-{request}-{nth}"
            child = await spawn(helper, name, id=name, detached=way == "detached")
            if way == "child":
                await child
    return request


@dataclass
class Tally:
    """What many runs have seen."""

    ids: int = 0
    runs: int = 0
    repeats: int = 0
    """Starts that were sent again."""
    open: int = 0
    """Starts that have found an open execution."""
    heard: int = 0
    deaths: int = 0
    refused: int = 0


class Client:
    """`begun`: the run that each request has begun, and `begun_ms` when."""

    def __init__(self, family: Family, seed: int) -> None:
        self._family = family
        self._seed = seed
        self._chance = random.Random(f"client {seed}")
        self._sent: dict[int, int] = {}
        """The run in which each signal was accepted."""
        self.begun: dict[int, int] = {}
        self.begun_ms: dict[int, int] = {}
        self.repeats = self.open = 0

    @property
    def runs(self) -> int:
        return len(self.begun)

    def start(self, request: int) -> None:
        view = self._family.queue.find("a")
        run, is_open = (view.run, not view.state.closed) if view else (0, False)
        if view is not None and view.state is ExecutionState.FAILED:
            raise Violation(f"run {run} has failed: {self._family.result('a')}")
        result = self._family.queue.start(
            "a", function=life.name, policy=KeyPolicy.RESTART_CLOSED,
            payload=encode_arguments(life, CODEC, (self._seed, request), {}),
            arguments=b"%016d" % request, request=b"%016d" % request,
        )  # fmt: skip
        if request in self.begun:
            self.repeats += 1
            if not isinstance(result, Started) or (result.run, result.attached) != (run, False):
                raise Violation(
                    f"request {request} has begun run {self.begun[request]} and {result}"
                )
        elif is_open:
            self.open += 1
            if not isinstance(result, Refusal) or result.code is not ErrorCode.EXECUTION_EXISTS:
                raise Violation(f"an open execution was asked for with others, and {result}")
        else:
            if not isinstance(result, Started) or (result.run, result.attached) != (run + 1, False):
                raise Violation(f"request {request} begins {result} behind run {run}")
            self.begun[request] = result.run
            self.begun_ms[request] = self._family.log.now_ms

    def begin(self) -> None:
        """The next life, of an execution that has ended."""
        self.start(max(self.begun, default=0) + 1)

    def move(self) -> None:
        view = self._family.queue.view("a")
        if view.state.closed and self.runs < LIVES and self._chance.random() < 0.5:
            self.begin()
        roll = self._chance.random()
        if roll < 0.03:
            self.start(self._chance.choice(list(self.begun)))
        elif roll < 0.04:
            self.start(max(self.begun) + 1 if not view.state.closed else max(self.begun))
        elif roll < 0.05:
            self._family.end(
                self._chance.choice([ArriveKind.CANCEL, ArriveKind.CANCEL, ArriveKind.TERMINATE]),
                "a",
            )
        elif roll < 0.15:
            self._signal()

    def _signal(self) -> None:
        run = self._family.queue.view("a").run
        number = len(self._sent) + 1
        result = self._family.queue.signal("go", "a", payload=b"%d" % number)
        if not isinstance(result, Refusal):
            self._sent[number] = run

    def check_heard(self, run: int, number: int) -> None:
        if self._sent[number] != run:
            raise Violation(f"run {run} has received a signal of run {self._sent[number]}")


def run(seed: int) -> Tally:
    """One run. Raises Violation, or what a machine raises."""
    family = Family([life, helper], seed, faults=FAULTS if seed % 4 else 0.0)
    client = Client(family, seed)
    client.begin()
    family.after_move = client.move
    try:
        while True:
            family.run()
            if client.runs >= LIVES:
                break
            client.begin()
    except (Violation, AssertionError):
        raise
    except Exception as error:
        raise Violation(f"{type(error).__name__}: {error}") from error
    heard = _check(family, client)
    return Tally(
        ids=1, runs=client.runs, repeats=client.repeats, open=client.open, heard=heard,
        deaths=family.deaths, refused=family.refused,
    )  # fmt: skip


def _check(family: Family, client: Client) -> int:
    """Returns how many signals were received."""
    view = family.queue.view("a")
    if view.run != client.runs or sorted(client.begun.values()) != [*range(1, view.run + 1)]:
        raise Violation(f"requests have begun {client.begun}, and the run is {view.run}")
    if view.state is ExecutionState.COMPLETED and family.result("a") != client.runs:
        raise Violation(f"the last run returns {family.result('a')}")
    heard: set[tuple[int, int]] = set()
    for each in family.begun:
        if each.execution_id != "a":
            continue
        run, words = int(each.step_key.split("/")[4]), str(each.args[0]).split()
        if client.begun.get(int(words[0])) != run:
            raise Violation(f"an effect of request {words[0]} was in run {run}")
        if words[1:]:
            heard.add((run, int(words[2])))
    for run, number in heard:
        client.check_heard(run, number)
    for child in family.views():
        if child.id == "a" or child.cancelled or child.id.startswith("a/detached"):
            continue
        next_ms = client.begun_ms.get(int(child.id.split("-")[1]) + 1, child.closed_ms)
        if child.closed_ms > next_ms:
            raise Violation(f"{child.id} was left behind, and was not cancelled")
    return len(heard)


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
