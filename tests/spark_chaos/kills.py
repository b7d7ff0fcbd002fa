"""Kills of drivers, Python workers of Spark, and nodes, all by SIGKILL.

The seed decides which kill comes when. The state in which it finds the processes varies. Killed
processes are started again, except for workers, which Spark replaces.
"""

import asyncio
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tests.integration.process_cluster import ProcessCluster
from tests.spark_chaos.books import broken_promise
from tests.spark_chaos.driver import QUERIES, SAYS, Said, Settings, checkpoint

START_S = 180
DRAIN_S = 600
DOWN_S = 2.0
"""Longest time until a killed process is started again."""
TOGETHER = 0.15
"""Probability that two are killed at once."""
WEIGHTS = {"worker": 8, "leader": 4, "driver": 3, "two nodes": 1}
FIRST = ("worker", "leader", "driver")
LOOK_S = 0.02
WORKER = b"-m\0pyspark."


class Process(msgspec.Struct, frozen=True):
    pid: int
    command: bytes


class Driver:
    """A process of `tests.spark_chaos.driver`, and the events of it and of its predecessors."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.home = Path(settings.home)
        self.failed: Counter[str] = Counter()
        """Number of failures of each query."""
        self.broken: list[str] = []
        """Errors of queries that no kill explains."""
        self._process: asyncio.subprocess.Process | None = None
        self._listening: asyncio.Task[None] | None = None
        self._events: dict[str, asyncio.Event] = {}

    async def start(self) -> None:
        """Returns when its queries run."""
        self._events = {"started": asyncio.Event(), "drained": asyncio.Event()}
        with (self.home / "driver.log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.spark_chaos.driver"),
                msgspec.json.encode(self.settings).decode(),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        # Owned: `kill` and `drain` await it.
        self._listening = asyncio.get_running_loop().create_task(self._listen())
        await self._until("started", START_S)

    async def _listen(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            _, found, said = line.decode(errors="replace").partition(SAYS)
            if found:
                self._hear(msgspec.json.decode(said, type=Said))

    def _hear(self, said: Said) -> None:
        if said.event in self._events:
            self._events[said.event].set()
            return
        self.failed[said.query] += 1
        if broken_promise(said.words):
            self.broken.append(f"{said.query}: {said.words}")

    async def _until(self, event: str, seconds: float) -> None:
        """Raises AssertionError when the process ends before."""
        assert self._process is not None
        loop = asyncio.get_running_loop()
        ended = loop.create_task(self._process.wait())
        heard = loop.create_task(self._events[event].wait())
        done, left = await asyncio.wait(
            (ended, heard), timeout=seconds, return_when=asyncio.FIRST_COMPLETED
        )
        for task in left:
            task.cancel()
        if heard not in done:
            said = (self.home / "driver.log").read_text(errors="replace")[-4000:]
            raise AssertionError(f"the driver was never {event}:\n{said}")

    async def until_committed(self) -> None:
        """Waits until each query has committed a micro-batch since now."""
        before = {query: self._last(query, "commits") for query in QUERIES}
        async with asyncio.timeout(START_S):
            while True:
                if all(self._last(query, "commits") > before[query] for query in QUERIES):
                    return
                await asyncio.sleep(LOOK_S)

    def inside(self) -> int:
        """Number of its queries with a micro-batch that is planned and not committed."""
        return sum(self._last(query, "offsets") > self._last(query, "commits") for query in QUERIES)

    def _last(self, query: str, log: str) -> int:
        return last(checkpoint(self.home, query) / log)

    def workers(self) -> list[Process]:
        """Spark's Python processes: those that fork, those that work, and those of sources."""
        assert self._process is not None
        return [each for each in in_session(self._process.pid) if WORKER in each.command]

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def kill(self) -> None:
        """Kills Python and Java. Workers live until they notice, as they would elsewhere."""
        assert self._process is not None
        assert self._listening is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        await self._listening

    async def drain(self) -> None:
        """Waits until it has ended well."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._listening is not None
        self._process.stdin.close()
        await self._until("drained", DRAIN_S)
        async with asyncio.timeout(START_S):
            assert await self._process.wait() == 0
            await self._listening


class Kills:
    """`run`: one kill after the other, and sometimes two at once."""

    def __init__(
        self,
        driver: Driver,
        cluster: ProcessCluster,
        chance: random.Random,
        *,
        pauses_s: tuple[float, float],
        say: Callable[[str], None],
    ) -> None:
        """`pauses_s`: shortest and longest time from the restart of everything to the next kill."""
        self.done: Counter[str] = Counter()
        self.inside = 0
        """Micro-batches that were planned and not committed when their driver was killed."""
        self._driver = driver
        self._cluster = cluster
        self._chance = chance
        self._pauses_s = pauses_s
        self._say = say
        self._sorts: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "worker": self._kill_worker,
            "leader": self._kill_leader,
            "driver": self._kill_driver,
            "two nodes": self._kill_two_nodes,
        }

    async def run(self, until_s: float) -> None:
        """Makes each kill of `FIRST` once, and lets all queries commit before each. Then makes
        random kills, whatever the queries do, until the loop's clock is `until_s`.
        """
        loop = asyncio.get_running_loop()
        first = list(FIRST)
        self._chance.shuffle(first)
        while first or loop.time() < until_s:
            if first:
                await self._driver.until_committed()
            await asyncio.sleep(self._chance.uniform(*self._pauses_s))
            chosen = [first.pop()] if first else self._choice()
            self._say(f"kill: {' and '.join(chosen)}")
            async with asyncio.TaskGroup() as tasks:
                for kind in chosen:
                    self.done[kind] += 1
                    tasks.create_task(self._sorts[kind]())

    def _choice(self) -> Sequence[str]:
        if self._chance.random() < TOGETHER:
            return "driver", self._chance.choice(("leader", "two nodes"))
        return self._chance.choices(list(WEIGHTS), list(WEIGHTS.values()))

    async def _kill_worker(self) -> None:
        """Kills any worker, as soon as there is one."""
        while True:
            workers = self._driver.workers()
            if workers:
                break
            await asyncio.sleep(LOOK_S)
        worker = self._chance.choice(workers)
        self._say(f"worker {worker.command.split(WORKER)[1].decode().replace(chr(0), ' ')}")
        try:
            os.kill(worker.pid, signal.SIGKILL)
        except ProcessLookupError:
            self._say("it had ended")

    async def _kill_driver(self) -> None:
        self.inside += self._driver.inside()
        await self._driver.kill()
        await asyncio.sleep(self._chance.uniform(0, DOWN_S))
        await self._driver.start()

    async def _kill_leader(self) -> None:
        view = await self._cluster.status()
        leaders = sorted({one["leader"] for one in view["partitions"] if one["leader"]})
        await self._kill_nodes([self._chance.choice(leaders)])

    async def _kill_two_nodes(self) -> None:
        """Without a majority nothing is acknowledged until they are back."""
        await self._kill_nodes(self._chance.sample(sorted(self._cluster.by_name), 2))

    async def _kill_nodes(self, names: Sequence[str]) -> None:
        for name in names:
            await self._cluster[name].kill()
        await asyncio.sleep(self._chance.uniform(0, DOWN_S))
        await self._cluster.start("".join(names))


def last(log: Path) -> int:
    """Number of the last file of a log of the checkpoint; -1: there is none."""
    names = os.listdir(log) if log.exists() else []
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def in_session(leader: int) -> list[Process]:
    """All processes of a session, also those whose parents were killed."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, tail = stat.read_text().rpartition(")")
            command = stat.with_name("cmdline").read_bytes()
        except OSError:
            continue  # It has ended since.
        # The fields after the name: state, parent, process group, session.
        if int(tail.split()[3]) == leader:
            found.append(Process(int(head.split()[0]), command))
    return sorted(found, key=lambda process: process.pid)
