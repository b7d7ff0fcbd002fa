"""`make locks`: whether locks and semaphores hold while their holders and their nodes fail.

Three nodes and six workers, each a process. A worker takes a lock again and again, and writes under
it to a store that compares fencing tokens. At the same time it takes one of three permits of a
semaphore again and again. Meanwhile, for 90 s:

    every 3 s    the holder of the lock is stopped (SIGSTOP) for longer than its lease, and then
                 continues
    every 7 s    a worker is killed (kill -9) and replaced
    every 11 s   the leader of the lock's partition is killed, and starts again a second later
    every 13 s   the leader of the semaphore's partition is stopped for 4 s: it is cut off from all
                 others, and continues with what it knew

A worker notes when it was sure to hold what it holds: the clock was read before `held` was asked.
All processes read the same clock. Then:

1. no two workers were sure to hold the lock at the same time;
2. no more workers than permits were sure to hold a permit at the same time;
3. the store has accepted no write after one with a higher token;
4. no token was given twice.

Writes locks.json and locks.md. The last line is a summary in JSON; the exit code is 1 if one of
these is not so, or if a worker has got nothing.
"""

import argparse
import asyncio
import contextlib
import itertools
import random
import signal
import sqlite3
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal, TextIO, get_args

import msgspec

from querator import Client, Holding
from querator.client.errors import LockLost, RequestError
from scripts.bench.cluster import admin_of, until_well
from scripts.bench.report import keep, machine, named, versions
from scripts.bench.servers import Server, Servers

NODES = 3
WORKERS = 6
PERMITS = 3
SECONDS = 90.0
LEASE = timedelta(seconds=3)
PAUSE_SECONDS, PAUSED_SECONDS = 3.0, 4.5
KILL_SECONDS = 7.0
LEADER_SECONDS, DOWN_SECONDS = 11.0, 1.0
CUT_SECONDS, CUT_OFF_SECONDS = 13.0, 4.0
LOCK_SECONDS, PERMIT_SECONDS = 0.03, 0.3
SAMPLE_SECONDS = 0.01

Kind = Literal["lock", "permit"]
KINDS: tuple[Kind, ...] = get_args(Kind)


class Sure(msgspec.Struct, frozen=True):
    """At the instant `at`, by the clock of the machine, a worker was sure to hold this."""

    kind: Kind
    token: int
    worker: str
    at: float


class Results(msgspec.Struct, frozen=True):
    machine: str
    versions: dict[str, str]
    seconds: float
    lock_holders: int
    permit_holders: int
    lock_at_once: int
    """The most workers that were sure to hold the lock at the same time."""
    permits_at_once: int
    accepted: int
    """Writes that the store has accepted."""
    refused: int
    """Writes that the store has refused: their token was too low."""
    lost: int
    """How often a worker has learnt that it had lost what it held."""
    pauses: int
    worker_kills: int
    leader_kills: int
    cuts: int
    problems: list[str]


# --- the store -------------------------------------------------------------------------------


def make_store(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as store:
        store.execute("CREATE TABLE fence (token INTEGER NOT NULL)")
        store.execute("INSERT INTO fence VALUES (0)")
        store.execute("CREATE TABLE writes (token INTEGER NOT NULL, accepted INTEGER NOT NULL)")
        store.execute("CREATE TABLE losses (worker TEXT NOT NULL)")


def write(path: Path, token: int) -> None:
    """Writes, unless the store has seen a higher token."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=60)) as store:
        store.execute("BEGIN IMMEDIATE")
        fenced = store.execute("UPDATE fence SET token = ? WHERE token <= ?", (token, token))
        store.execute("INSERT INTO writes VALUES (?, ?)", (token, fenced.rowcount))
        store.execute("COMMIT")


def note_loss(path: Path, worker: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None, timeout=60)) as store:
        store.execute("INSERT INTO losses VALUES (?)", (worker,))


# --- the workers -----------------------------------------------------------------------------


async def work(address: str, directory: Path, name: str) -> None:
    """A worker, until it is killed."""
    with (directory / f"{name}.jsonl").open("a") as notes:
        async with (
            Client(address, client_id=name, request_timeout=timedelta(minutes=2)) as client,
            asyncio.TaskGroup() as tasks,
        ):
            for kind in KINDS:
                tasks.create_task(_hold_again_and_again(client, kind, directory, notes, name))


async def _hold_again_and_again(
    client: Client, kind: Kind, directory: Path, notes: TextIO, name: str
) -> None:
    while True:
        try:
            await _hold(client, kind, directory / "store", notes, name)
        except LockLost:
            await asyncio.to_thread(note_loss, directory / "store", name)
        except RequestError as error:
            # No node has answered for long: the next round tries again.
            print(f"{name}: {error}", file=sys.stderr, flush=True)


async def _hold(client: Client, kind: Kind, store: Path, notes: TextIO, name: str) -> None:
    if kind == "lock":
        async with client.lock("store", lease_timeout=LEASE) as holding:
            for _ in range(3):
                await _sample(holding, kind, notes, name, LOCK_SECONDS)
                # Not checked: the process may have been stopped since.
                await asyncio.to_thread(write, store, holding.token)
    else:
        async with client.semaphore("permits", PERMITS, lease_timeout=LEASE) as holding:
            await _sample(holding, kind, notes, name, PERMIT_SECONDS)


async def _sample(holding: Holding, kind: Kind, notes: TextIO, name: str, seconds: float) -> None:
    """Notes for a while that the worker is sure to hold this, as long as it is."""
    until = time.monotonic() + seconds
    while (at := time.monotonic()) < until and holding.held:
        note = Sure(kind, holding.token, name, at)
        notes.write(msgspec.json.encode(note).decode() + "\n")
        notes.flush()
        await asyncio.sleep(SAMPLE_SECONDS)


# --- the faults ------------------------------------------------------------------------------


class Workers:
    """The processes of the workers. Each has its own name, also those that replace others."""

    def __init__(self, servers: Servers, directory: Path) -> None:
        self._servers, self._directory = servers, directory
        self._numbers = itertools.count(1)
        self.running: dict[str, asyncio.subprocess.Process] = {}

    async def begin(self) -> None:
        name = f"worker-{next(self._numbers)}"
        self.running[name] = await self._servers.checkout.run(
            "scripts.bench.locks", "--work", self._servers.address,
            "--directory", str(self._directory), "--name", name,
        )  # fmt: skip

    async def pause(self, client: Client) -> None:
        """Stops the worker that holds the lock, or has just held it."""
        try:
            holder = await client.lock("store").holder()
        except RequestError:
            holder = None
        name = "" if holder is None else holder.holder
        process = self.running.get(name) or random.choice(list(self.running.values()))
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(PAUSED_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)

    async def replace(self) -> None:
        await _killed(self.running.pop(next(iter(self.running))))
        await self.begin()

    async def end(self) -> None:
        for process in self.running.values():
            await _killed(process)


async def _killed(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()


class Faults:
    """Repeats each kind of fault until `stop`. Then everything runs again."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._stop = asyncio.Event()
        self._nodes = asyncio.Lock()
        """One node fails at a time: the cluster has a majority."""

    def stop(self) -> None:
        self._stop.set()

    async def every(self, seconds: float, fault: Callable[[], Coroutine[Any, Any, object]]) -> int:
        """Returns how often the fault was made."""
        made = 0
        while not await self._stops_within(seconds):
            await fault()
            made += 1
        return made

    async def kill_leader(self) -> None:
        async with self._nodes:
            if (leader := await self._leader("lock.store")) is not None:
                await leader.stop(kill=True)
                await asyncio.sleep(DOWN_SECONDS)
                await leader.start()

    async def cut_off(self) -> None:
        async with self._nodes:
            if (leader := await self._leader("semaphore.permits")) is not None:
                leader.signal(signal.SIGSTOP)
                await asyncio.sleep(CUT_OFF_SECONDS)
                leader.signal(signal.SIGCONT)

    async def _stops_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stop.wait()
        return self._stop.is_set()

    async def _leader(self, queue: str) -> Server | None:
        try:
            async with admin_of(self._servers.address) as admin:
                picture = await admin.picture()
        except RequestError:
            return None
        name = next((group.leader for group in picture.groups if group.queue == queue), "")
        return self._servers[name] if name else None


# --- the judgement ---------------------------------------------------------------------------


def at_once(notes: Iterable[Sure]) -> int:
    """The most holders that were sure at the same time. A holder was sure from its first to its
    last note.
    """
    times: dict[int, list[float]] = defaultdict(list)
    for note in notes:
        times[note.token].append(note.at)
    steps = [(min(each), 0) for each in times.values()]
    steps += [(max(each), 1) for each in times.values()]
    most = now = 0
    for _, ends in sorted(steps):
        now += -1 if ends else 1
        most = max(most, now)
    return most


def out_of_order(tokens: list[int]) -> int:
    """How many of the accepted writes came after one with a higher token."""
    highest = itertools.accumulate(tokens, max)
    return sum(token < most for token, most in zip(tokens, highest, strict=True))


def given_twice(notes: Iterable[Sure]) -> int:
    """How many tokens of one kind more than one worker has had."""
    workers: dict[tuple[Kind, int], set[str]] = defaultdict(set)
    for note in notes:
        workers[note.kind, note.token].add(note.worker)
    return sum(len(names) > 1 for names in workers.values())


def found_problems(notes: list[Sure], accepted: list[int], names: int) -> list[str]:
    """A sentence for each promise that was broken. `names`: number of workers at the least."""
    lock = at_once(note for note in notes if note.kind == "lock")
    permits = at_once(note for note in notes if note.kind == "permit")
    late, twice = out_of_order(accepted), given_twice(notes)
    busy = len({note.worker for note in notes})
    checks = (
        (lock <= 1, f"{lock} workers held the lock at the same time"),
        (permits <= PERMITS, f"{permits} workers held one of {PERMITS} permits at the same time"),
        (not late, f"{late} writes were accepted after one with a higher token"),
        (not twice, f"{twice} fencing tokens were given to more than one worker"),
        (busy >= names, f"only {busy} workers have ever held anything"),
    )
    return [sentence for holds, sentence in checks if not holds]


# --- the run ---------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def cluster(directory: Path) -> AsyncIterator[tuple[Servers, Client]]:
    servers = Servers(directory, nodes=NODES, memory=False)
    try:
        await servers.start()
        async with Client(servers.address) as client:
            await (await client.lock("store").acquire()).release()
            await (await client.semaphore("permits", PERMITS).acquire()).release()
            await until_well(servers.address)
            yield servers, client
    finally:
        await servers.stop()


def read(directory: Path) -> tuple[list[Sure], list[int], int, int]:
    """The notes of all workers; the tokens of accepted writes in their order; the number of refused
    ones, and of losses.
    """
    notes = [
        msgspec.json.decode(line, type=Sure)
        for path in sorted(directory.glob("*.jsonl"))
        for line in path.read_text().splitlines()
        # The last line of a killed worker may be cut.
        if line.endswith("}")
    ]
    with closing(sqlite3.connect(directory / "store")) as store:
        written = store.execute("SELECT token, accepted FROM writes ORDER BY rowid").fetchall()
        [(lost,)] = store.execute("SELECT count(*) FROM losses").fetchall()
    accepted = [token for token, is_accepted in written if is_accepted]
    return notes, accepted, len(written) - len(accepted), lost


async def measure(seconds: float) -> Results:
    with tempfile.TemporaryDirectory(prefix="querator-locks-") as name:
        directory = Path(name)
        make_store(directory / "store")
        async with cluster(directory) as (servers, client):
            workers, faults = Workers(servers, directory), Faults(servers)
            try:
                for _ in range(WORKERS):
                    await workers.begin()
                async with asyncio.TaskGroup() as tasks:
                    counts = [
                        tasks.create_task(faults.every(every, fault))
                        for every, fault in (
                            (PAUSE_SECONDS, partial(workers.pause, client)),
                            (KILL_SECONDS, workers.replace),
                            (LEADER_SECONDS, faults.kill_leader),
                            (CUT_SECONDS, faults.cut_off),
                        )
                    ]
                    await asyncio.sleep(seconds)
                    faults.stop()
                await until_well(servers.address)
                await asyncio.sleep(LEASE.total_seconds())
            finally:
                await workers.end()
        notes, accepted, refused, lost = read(directory)
    tokens = {kind: {n.token for n in notes if n.kind == kind} for kind in KINDS}
    return Results(
        machine=machine(),
        versions=versions(),
        seconds=seconds,
        lock_holders=len(tokens["lock"]),
        permit_holders=len(tokens["permit"]),
        lock_at_once=at_once(note for note in notes if note.kind == "lock"),
        permits_at_once=at_once(note for note in notes if note.kind == "permit"),
        accepted=len(accepted),
        refused=refused,
        lost=lost,
        pauses=counts[0].result(),
        worker_kills=counts[1].result(),
        leader_kills=counts[2].result(),
        cuts=counts[3].result(),
        problems=found_problems(notes, accepted, WORKERS),
    )


def as_markdown(results: Results) -> str:
    text = (
        f"{results.machine}; {named()}.\n\n"
        f"{NODES} nodes, {WORKERS} workers, {results.seconds:g} s; {results.pauses} "
        f"holders stopped for {PAUSED_SECONDS:g} s with a lease of {LEASE.total_seconds():g} s, "
        f"{results.worker_kills} workers killed, {results.leader_kills} leaders killed, "
        f"{results.cuts} leaders cut off for {CUT_OFF_SECONDS:g} s.\n\n"
        "| held | times | at once | writes accepted | refused | losses |\n"
        "|---|---|---|---|---|---|\n"
        f"| the lock | {results.lock_holders:,} | {results.lock_at_once} | {results.accepted:,} "
        f"| {results.refused:,} | {results.lost:,} |\n"
        f"| one of {PERMITS} permits | {results.permit_holders:,} | {results.permits_at_once} "
        "| | | |\n"
    )
    return text + "".join(f"\nWRONG: {problem}.\n" for problem in results.problems)


async def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench.locks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=SECONDS, help="with faults (90)")
    parser.add_argument("--output", type=Path, default=Path("build/bench"))
    parser.add_argument("--work", metavar="ADDRESS", help="be a worker (used by this program)")
    parser.add_argument("--directory", type=Path, help="of a worker")
    parser.add_argument("--name", default="", help="of a worker")
    arguments = parser.parse_args()
    if arguments.work:
        await work(arguments.work, arguments.directory, arguments.name)
        return
    arguments.output.mkdir(parents=True, exist_ok=True)
    results = await measure(arguments.seconds)
    keep(results, as_markdown(results), arguments.output, "locks")
    if results.problems:
        sys.exit(1)


if __name__ == "__main__":
    asyncio.run(main())
