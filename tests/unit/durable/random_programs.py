"""Random programs, as durable functions and as their twins in plain asyncio.

A program is a tree that follows from a seed. `Durably` and `Plainly` are two ways to run it: steps
that are recorded, and coroutines that sleep as long as the steps take, on asyncio's own loop under
virtual time. Both write into one list what they see, in the order in which they see it.

`python -m tests.unit.durable.random_programs --seeds 10000` compares many (the tests take few).
"""

import argparse
import ast
import asyncio
import heapq
import random
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Protocol
from zlib import crc32

from querator.durable import Retry, Step, call, durable, produce, publish, receive, saga, step
from querator.durable.codec import Codec
from querator.durable.machine import living
from querator.durable.operations import Effect
from querator.model.executions import JournalRecord, delivery_order
from tests.unit.durable.memory_partition import (
    MemoryPartition,
    Run,
    Worker,
    replay,
    result_of,
    run_straight,
)

SIGNALS = ("a", "b")
TAKES_MS_MAX = 1_000_000_000
"""So long that no two events of a program are at the same time, for all practical purposes."""


class Failed(Exception):
    """What steps of programs raise."""


CODEC = Codec([Failed])


@dataclass(frozen=True)
class Node:
    """A part of a program: what it is, its number, its time, and its parts."""

    kind: str
    number: int
    ms: int
    parts: tuple["Node", ...] = ()
    fails: int = 0
    """How often a step fails before it succeeds."""


LEAVES = ("step", "step", "step", "read", "fails", "retried", "sleep", "receive")
TREES = ("seq", "seq", "gather", "group", "race", "timeout", "call", "call", "shield", "saga")


class Programs:
    """Makes the program of a seed."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._count = 0
        self.steps: dict[int, Node] = {}
        self.signals: list[tuple[int, str]] = [
            (self._chance.randint(1, TAKES_MS_MAX), self._chance.choice(SIGNALS)) for _ in range(12)
        ]
        self.root = Node("seq", 0, 0, tuple(self._node(3) for _ in range(3)))

    def _node(self, deep: int) -> Node:
        chance = self._chance
        self._count += 1
        number, ms = self._count, chance.randint(1, TAKES_MS_MAX)
        if deep == 0 or chance.random() < 0.4:
            kind = chance.choice(LEAVES)
            node = Node(kind, number, ms, (), chance.randint(1, 3) if kind == "retried" else 0)
            self.steps[number] = node
            return node
        kind = chance.choice(TREES)
        parts = 1 if kind in ("timeout", "shield") else chance.randint(1, 3)
        return Node(kind, number, ms, tuple(self._node(deep - 1) for _ in range(parts)))


class World(Protocol):
    """What a program calls."""

    async def step(self, node: Node) -> int: ...
    async def receive(self, name: str) -> int: ...
    async def call(self, node: Node) -> list[str]: ...
    async def undo(self, node: Node, work: Callable[[], Coroutine[Any, Any, None]]) -> None: ...


class Walk:
    """Runs a tree in a world; `seen` is what it has seen, in order."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.seen: list[str] = []

    def see(self, node: Node, what: object) -> None:
        self.seen.append(f"{node.kind}{node.number}:{what}")

    async def run(self, node: Node) -> None:
        await getattr(self, f"_{node.kind}")(node)

    async def _step(self, node: Node) -> None:
        self.see(node, await self.world.step(node))

    _read = _retried = _step

    async def _fails(self, node: Node) -> None:
        try:
            await self.world.step(node)
        except Failed as error:
            self.see(node, error)

    async def _sleep(self, node: Node) -> None:
        await asyncio.sleep(node.ms / 1000)
        self.see(node, "slept")

    async def _receive(self, node: Node) -> None:
        try:
            async with asyncio.timeout(node.ms / 1000):
                self.see(node, await self.world.receive(SIGNALS[node.number % 2]))
        except TimeoutError:
            self.see(node, "no signal")

    async def _seq(self, node: Node) -> None:
        for part in node.parts:
            await self.run(part)

    async def _gather(self, node: Node) -> None:
        await asyncio.gather(*(self.run(part) for part in node.parts))

    async def _group(self, node: Node) -> None:
        async with asyncio.TaskGroup() as group:
            for part in node.parts:
                group.create_task(self.run(part))

    async def _race(self, node: Node) -> None:
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(self.run(part)) for part in node.parts]
        done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        self.see(node, [nth for nth, task in enumerate(tasks) if task in done])
        for task in tasks:
            # Plain asyncio has sets of tasks in any order.
            if task in rest:
                task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    async def _timeout(self, node: Node) -> None:
        try:
            async with asyncio.timeout(node.ms / 1000):
                await self.run(node.parts[0])
        except TimeoutError:
            self.see(node, "late")

    async def _call(self, node: Node) -> None:
        self.see(node, await self.world.call(Node("seq", node.number, 0, node.parts)))

    async def _shield(self, node: Node) -> None:
        task = asyncio.get_running_loop().create_task(self.run(node.parts[0]))
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            self.see(node, "cancelled")
            await task
            raise

    async def _saga(self, node: Node) -> None:
        async def work() -> None:
            for part in node.parts:
                await self.run(part)
            if node.number % 2:
                raise Failed(str(node.number))

        try:
            await self.world.undo(node, work)
        except Failed:
            self.see(node, "undone")


class ProducingWalk(Walk):
    """Produces an item for each thing that it has seen, into the queue `parts`."""

    queue = "parts"

    def see(self, node: Node, what: object) -> None:
        super().see(node, what)
        produce(self.queue, self.seen[-1])


class PublishingWalk(ProducingWalk):
    """Also publishes what it has seen, each time that it has seen something more."""

    queue = "seen"

    def see(self, node: Node, what: object) -> None:
        super().see(node, what)
        publish("seen", published_of(self.seen))


def published_of(seen: list[str]) -> list[int]:
    return [len(seen), crc32("\n".join(seen).encode())]


# --- durably -------------------------------------------------------------------------------------


class Durably:
    """Steps by number; `failures` counts what each retried step has raised."""

    def __init__(self, programs: Programs) -> None:
        self._programs = programs
        self.failures: dict[int, int] = {}
        self._steps: dict[str, Step[[int], Any]] = {}
        retry = Retry(attempts=5, first=timedelta(milliseconds=400), jitter=0, unless=(Failed,))

        async def work(number: int) -> int:
            node = programs.steps[number]
            if node.kind == "fails":
                raise Failed(f"{number} failed")
            failed = self.failures.get(number, 0)
            if failed < node.fails:
                self.failures[number] = failed + 1
                raise OSError(number)
            return number * 10

        async def undo(number: int) -> int:
            return number

        for kind in ("step", "fails", "retried"):
            self._steps[kind] = step(work, name=kind, retry=retry)
        self._steps["read"] = step(work, name="read", effects=False)
        self._undo = step(undo, name="undo")

        @durable
        async def part(number: int) -> list[str]:
            walk = ProducingWalk(self)
            await walk.run(self._parts[number])
            return walk.seen

        @durable
        async def main() -> list[str]:
            walk = PublishingWalk(self)
            await walk.run(programs.root)
            return walk.seen

        self._parts: dict[int, Node] = {}
        self._part = part
        self.main = main

    async def step(self, node: Node) -> int:
        result: int = await self._steps[node.kind](node.number)
        return result

    async def receive(self, name: str) -> int:
        return await receive(name, int)

    async def call(self, node: Node) -> list[str]:
        self._parts[node.number] = node
        return await call(self._part, node.number)

    async def undo(self, node: Node, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async with saga() as undo:
            undo.add(self._undo, node.number)
            undo.add(self._undo, node.number + 1)
            await work()

    def takes_ms(self, effect: Effect) -> int:
        if effect.name == "undo":
            return 7
        return self._programs.steps[effect.args[0]].ms


# --- plainly -------------------------------------------------------------------------------------


class Plainly:
    """The twin: nothing is recorded."""

    def __init__(self, programs: Programs) -> None:
        self._programs = programs
        self._boxes: dict[str, deque[int]] = {name: deque() for name in SIGNALS}
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {n: deque() for n in SIGNALS}

    async def main(self) -> list[str]:
        loop = asyncio.get_running_loop()
        for nth, (at_ms, name) in enumerate(self._programs.signals):
            loop.call_at(at_ms / 1000, self._put, name, nth)
        walk = Walk(self)
        await walk.run(self._programs.root)
        return walk.seen

    async def step(self, node: Node) -> int:
        for failed in range(node.fails):
            await asyncio.sleep(node.ms / 1000)
            await asyncio.sleep(0.4 * 2**failed)
        await asyncio.sleep(node.ms / 1000)
        if node.kind == "fails":
            raise Failed(f"{node.number} failed")
        return node.number * 10

    async def receive(self, name: str) -> int:
        while not self._boxes[name]:
            waiter = asyncio.get_running_loop().create_future()
            self._waiting[name].append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter in self._waiting[name]:
                    self._waiting[name].remove(waiter)
                elif self._boxes[name]:
                    self._wake(name)
                raise
        return self._boxes[name].popleft()

    def _put(self, name: str, value: int) -> None:
        self._boxes[name].append(value)
        self._wake(name)

    def _wake(self, name: str) -> None:
        while self._waiting[name]:
            waiter = self._waiting[name].popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    async def call(self, node: Node) -> list[str]:
        walk = Walk(self)
        await walk.run(node)
        return walk.seen

    async def undo(self, node: Node, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await work()
        except (Failed, asyncio.CancelledError):
            await self._to_its_end(asyncio.get_running_loop().create_task(self._undo()))
            raise

    async def _undo(self) -> None:
        await asyncio.sleep(0.007)
        await asyncio.sleep(0.007)

    async def _to_its_end(self, task: "asyncio.Task[None]") -> None:
        cancelled = False
        while not task.done():
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError:
                cancelled = True
        if cancelled:
            raise asyncio.CancelledError


class VirtualLoop(asyncio.SelectorEventLoop):
    """asyncio's own loop, but time jumps to the next timer."""

    def __init__(self) -> None:
        super().__init__()
        self._at = 0.0
        self._clock_resolution = 1e-6

    def time(self) -> float:
        return self._at

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            while self._scheduled and self._scheduled[0]._cancelled:  # type: ignore[attr-defined]
                heapq.heappop(self._scheduled)._scheduled = False  # type: ignore[attr-defined]
                self._timer_cancelled_count -= 1  # type: ignore[attr-defined]
            if self._scheduled:  # type: ignore[attr-defined]
                self._at = max(self._at, self._scheduled[0]._when)  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


def plain_result(programs: Programs) -> list[str]:
    loop = VirtualLoop()
    try:
        seen = list(loop.run_until_complete(Plainly(programs).main()))
        # What nothing waits for is put away in the durable one.
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks))
        return seen
    finally:
        loop.close()


# --- what is compared ----------------------------------------------------------------------------


def view(worker: Worker) -> tuple[str, ...]:
    """What the code waits for, and how it has ended."""
    code = worker.machine.code
    waits = [f"{each.waits.value} {each.name} {path.hex()}" for path, each in code.pending.items()]
    return (*sorted(waits), *sorted(path.hex() for path in code.loop.timers),
            str(worker.machine.end))  # fmt: skip


def _signal(name: str, number: int, partition: MemoryPartition, now: int) -> None:
    partition.signal(name, b"%d" % number, now)


def run_durably(
    seed: int, *, folds: bool = True, partition: MemoryPartition | None = None
) -> tuple[Run, Durably, list[tuple[str, ...]], list[list[JournalRecord]]]:
    """A run without faults; with what the code waited for after each event, and the journal as it
    was after each Record.
    """
    programs = Programs(seed)
    durably = Durably(programs)
    views: list[tuple[str, ...]] = []
    journals: list[list[JournalRecord]] = []

    def note_view(worker: Worker) -> None:
        if not journals or journals[-1] != worker.partition.journal:
            journals.append(list(worker.partition.journal))
        if not views or views[-1] != view(worker):
            views.append(view(worker))

    happens = [
        (at_ms, partial(_signal, name, nth)) for nth, (at_ms, name) in enumerate(programs.signals)
    ]
    partition = partition or MemoryPartition(folds=folds)
    partition.start(durably.main)
    run = run_straight(
        durably.main,
        partition=partition,
        takes_ms=durably.takes_ms,
        happens=happens,
        after_event=note_view,
        codec=CODEC,
    )
    return run, durably, views, journals


def compare(seed: int, *, partition: MemoryPartition | None = None) -> tuple[int, int]:
    """A program and its twin, and a replay; returns how many records there were, and are folded."""
    run, durably, _, _ = run_durably(seed, partition=partition)
    expected = plain_result(Programs(seed))
    result = run.result(CODEC)
    assert result == expected, (seed, result, expected)
    check_produced(run.partition.produced, expected)
    end = replay(durably.main, run.partition.journal, codec=CODEC)
    assert result_of(end, CODEC) == result, seed
    return len(run.partition.journal), run.partition.folded


def check_produced(produced: dict[str, list[str]], seen: list[str]) -> None:
    """Everything that the program has seen was produced once; and what its calls have seen, whose
    results it has seen.
    """
    assert produced.get("seen", []) == seen
    parts = produced.get("parts", [])
    assert len(parts) == len(set(parts)), "an item was produced twice"
    for one in seen:
        if one.startswith("call"):
            assert set(ast.literal_eval(one.partition(":")[2])) <= set(parts)


def replay_prefixes(seed: int) -> int:
    """From each prefix of the journal, and from the journal with its folds after each Record, the
    code comes to wait for what it waited for in the live run. Returns how many there were.
    """
    run, durably, views, _ = run_durably(seed, folds=False)
    journal = delivery_order(run.partition.journal)
    for length in range(1, len(journal) + 1):
        replay_to(durably, journal[:length], views)
    run, durably, views, journals = run_durably(seed)
    for each in journals:
        replay_to(durably, each, views)
    return len(journal) + len(journals)


def replay_to(durably: Durably, journal: list[JournalRecord], views: list[tuple[str, ...]]) -> None:
    partition = MemoryPartition(journal=sorted(journal, key=lambda each: each.index))
    worker = Worker(partition, durably.main, codec=CODEC)
    try:
        assert view(worker) in views, (len(journal), view(worker))
    finally:
        assert worker.machine.put_away()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--prefixes", type=int, default=30, help="replay each prefix of so many")
    options = parser.parse_args()
    began = time.perf_counter()
    records = folded = prefixes = 0
    for seed in range(options.first, options.first + options.seeds):
        left, gone = compare(seed)
        records, folded = records + left + gone, folded + gone
        if seed - options.first < options.prefixes:
            prefixes += replay_prefixes(seed)
    assert not living()
    print(  # noqa: T201
        f"Python {sys.version.split()[0]}: {options.seeds} programs as their twins, {records} "
        f"records, {folded} of them folded away, {prefixes} prefixes replayed, "
        f"{time.perf_counter() - began:.1f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
