"""`make replies`: whether each request has one answer while workers and leaders are killed.

1. One node, one worker, one request at a time: how long a round trip takes, from the produce to the
   result.
2. Three nodes, three partitions, three workers. 10,000 requests, 64 at a time; workers refuse one
   of a hundred. Meanwhile a worker is killed (kill -9) every 3 s and replaced, and every 10 s the
   leader of a partition, which starts again a second later. In the end all results are read once
   more.

Each request must have the right answer, or fail with the refusal of its worker, and the second
reading must find the same. A produce without a known outcome is counted apart: its producer knows
no item to wait for. Writes replies.json and replies.md. The last line is a summary in JSON; the
exit code is 1 if a request has a wrong answer, or another one at the second reading, or if the
counts of the queue do not balance.
"""

import argparse
import asyncio
import contextlib
import itertools
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Literal

import msgspec

from querator import Client, Item, Reject
from querator.client import ItemId, LeasedItem
from querator.client.errors import ItemDied, OutcomeUnknown, ResultTimeout
from querator.client.replies import ItemResult
from querator.client.values import PartitionStats
from scripts.bench.cluster import leader_of, until_well
from scripts.bench.due import percentile
from scripts.bench.report import keep, machine, named, versions
from scripts.bench.servers import Servers

QUEUE = "requests"
REQUESTS = 10_000
ALONE = 1_000
NODES = 3
PARTITIONS = 3
WORKERS = 3
AT_A_TIME = 64
READ_AT_ONCE = 1_000
REFUSED_EVERY = 100
WORKER_SECONDS = 3.0
LEADER_SECONDS = 10.0
DOWN_SECONDS = 1.0
LEASE = timedelta(seconds=2)
KEEP = timedelta(hours=1)
WAIT = timedelta(seconds=60)
REFUSAL = "not this number"

Outcome = Literal["answered", "refused", "wrong", "unknown"]


class Reply(msgspec.Struct, frozen=True):
    number: int
    outcome: Outcome
    seconds: float
    id: ItemId | None = None


class Results(msgspec.Struct, frozen=True):
    machine: str
    versions: dict[str, str]
    alone_p50_ms: float
    alone_p99_ms: float
    requests: int
    seconds: float
    answered: int
    refused: int
    unknown: int
    """Produces without a known outcome."""
    p50_ms: float
    p99_ms: float
    max_ms: float
    worker_kills: int
    leader_kills: int
    problems: list[str]


def answer_of(number: int) -> bytes:
    return b"%d" % (number * number)


def is_refused(number: int) -> bool:
    return number % REFUSED_EVERY == 7


def is_right(number: int, result: ItemResult) -> bool:
    """Whether the result is the answer of a worker, or its refusal."""
    if is_refused(number):
        return result.outcome == "dead" and result.error == REFUSAL
    return result.outcome == "completed" and result.data == answer_of(number)


# --- the workers -----------------------------------------------------------------------------


async def work(address: str) -> None:
    """A worker, until it is killed."""

    async def handle(item: LeasedItem) -> None:
        number = int(item.text())
        if is_refused(number):
            raise Reject(REFUSAL)
        await item.complete(result=answer_of(number))

    async with Client(address) as client, client.consumer(QUEUE) as consumer:
        await consumer.run(handle, concurrency=16)


@contextlib.asynccontextmanager
async def working(
    servers: Servers, workers: int
) -> AsyncIterator[list[asyncio.subprocess.Process]]:
    """Worker processes; the block may replace them in the list."""
    running = [await _worker(servers) for _ in range(workers)]
    try:
        yield running
    finally:
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _worker(servers: Servers) -> asyncio.subprocess.Process:
    return await servers.checkout.run("scripts.bench.replies", "--work", servers.address)


# --- the requests ----------------------------------------------------------------------------


async def ask(client: Client, number: int) -> Reply:
    began_s = time.perf_counter()
    try:
        [stored] = await client.produce(QUEUE, Item(str(number), keep_result=KEEP))
    except OutcomeUnknown:
        return Reply(number, "unknown", time.perf_counter() - began_s)
    while True:
        try:
            right = await client.result(QUEUE, stored.id, timeout=WAIT) == answer_of(number)
            outcome: Outcome = "answered" if right and not is_refused(number) else "wrong"
        except ItemDied as died:
            refused = is_refused(number) and died.error == REFUSAL
            outcome = "refused" if refused else "wrong"
        except ResultTimeout:
            continue
        return Reply(number, outcome, time.perf_counter() - began_s, stored.id)


async def ask_all(client: Client, requests: int, at_a_time: int) -> list[Reply]:
    replies: list[Reply] = []
    numbers: Iterator[int] = iter(range(requests))

    async def asking() -> None:
        replies.extend([await ask(client, number) for number in numbers])

    async with asyncio.TaskGroup() as tasks:
        for _ in range(at_a_time):
            tasks.create_task(asking())
    return replies


async def changed(client: Client, replies: list[Reply]) -> int:
    """How many results are not right when they are read once more."""
    known = [(one.number, one.id) for one in replies if one.id is not None]
    found = 0
    for start in range(0, len(known), READ_AT_ONCE):
        part = known[start : start + READ_AT_ONCE]
        results = await client.results(QUEUE, [item for _, item in part], timeout=timedelta(0))
        for (number, _), result in zip(part, results, strict=True):
            found += not is_right(number, result)
    return found


# --- the faults ------------------------------------------------------------------------------


class Kills:
    """Kills until `stop`. Then everything runs again."""

    def __init__(self) -> None:
        self.workers = self.leaders = 0
        self._stop = asyncio.Event()

    def stop(self) -> None:
        self._stop.set()

    async def kill_workers(
        self, servers: Servers, running: list[asyncio.subprocess.Process]
    ) -> None:
        for place in itertools.cycle(range(len(running))):
            if await self._stops_within(WORKER_SECONDS):
                return
            running[place].kill()
            await running[place].wait()
            running[place] = await _worker(servers)
            self.workers += 1

    async def kill_leaders(self, servers: Servers) -> None:
        for partition in itertools.cycle(range(PARTITIONS)):
            if await self._stops_within(LEADER_SECONDS):
                return
            if name := await leader_of(servers.address, QUEUE, partition):
                leader = servers[name]
                await leader.stop(kill=True)
                self.leaders += 1
                await asyncio.sleep(DOWN_SECONDS)
                await leader.start()

    async def _stops_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stop.wait()
        return self._stop.is_set()


# --- the measurement -------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def cluster(nodes: int, partitions: int) -> AsyncIterator[tuple[Servers, Client]]:
    with tempfile.TemporaryDirectory(prefix="querator-replies-") as name:
        servers = Servers(Path(name), nodes=nodes, memory=False)
        try:
            await servers.start()
            async with Client(servers.address) as client:
                await client.create_queue(
                    QUEUE, partitions=partitions, lease_timeout=LEASE, max_attempts=0
                )
                await until_well(servers.address)
                yield servers, client
        finally:
            await servers.stop()


async def measure(requests: int, alone: int) -> Results:
    async with cluster(1, 1) as (servers, client), working(servers, 1):
        await ask(client, 0)  # The worker has started.
        single_ms = [one.seconds * 1000 for one in await ask_all(client, alone, 1)]
    print(f"one node: {alone:,} round trips, p50 {percentile(single_ms, 0.5):.1f} ms", flush=True)
    kills = Kills()
    async with (
        cluster(NODES, PARTITIONS) as (servers, client),
        working(servers, WORKERS) as running,
    ):
        began_s = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(kills.kill_workers(servers, running))
            tasks.create_task(kills.kill_leaders(servers))
            replies = await ask_all(client, requests, AT_A_TIME)
            took_s = time.monotonic() - began_s
            kills.stop()
        await until_well(servers.address)
        others = await changed(client, replies)
        problems = found_problems(replies, others, (await client.stats(QUEUE)).total)
    waits_ms = [one.seconds * 1000 for one in replies]
    return Results(
        machine=machine(),
        versions=versions(),
        alone_p50_ms=round(percentile(single_ms, 0.5), 1),
        alone_p99_ms=round(percentile(single_ms, 0.99), 1),
        requests=requests,
        seconds=round(took_s, 1),
        answered=_count(replies, "answered"),
        refused=_count(replies, "refused"),
        unknown=_count(replies, "unknown"),
        p50_ms=round(percentile(waits_ms, 0.5), 1),
        p99_ms=round(percentile(waits_ms, 0.99), 1),
        max_ms=round(max(waits_ms), 1),
        worker_kills=kills.workers,
        leader_kills=kills.leaders,
        problems=problems,
    )


def found_problems(replies: list[Reply], others: int, total: PartitionStats) -> list[str]:
    """A sentence for each count that is wrong. `others`: results that were not right at the second
    reading.
    """
    wrong, unknown = _count(replies, "wrong"), _count(replies, "unknown")
    answered, refused = _count(replies, "answered"), _count(replies, "refused")
    beyond = total.completed - answered, total.dead - refused
    left = total.ready + total.leased + total.scheduled
    checks = (
        (not wrong, f"{wrong} requests have a wrong answer"),
        (not others, f"{others} results were other ones at the second reading"),
        (
            min(beyond) >= 0 and sum(beyond) + left <= unknown,
            f"{total.completed} items were completed and {total.dead} died; {answered} requests "
            f"were answered, {refused} refused, {unknown} are unknown",
        ),
    )
    return [sentence for holds, sentence in checks if not holds]


def _count(replies: list[Reply], outcome: Outcome) -> int:
    return sum(one.outcome == outcome for one in replies)


def as_markdown(results: Results) -> str:
    text = (
        f"{results.machine}; {named()}.\n\n"
        f"One node, one request at a time: p50 {results.alone_p50_ms:g} ms, p99 "
        f"{results.alone_p99_ms:g} ms.\n\n"
        f"{NODES} nodes, {PARTITIONS} partitions, {WORKERS} workers, {AT_A_TIME} requests at a "
        f"time; {results.worker_kills} workers and {results.leader_kills} leaders killed in "
        f"{results.seconds:g} s.\n\n"
        "| requests | answered | refused | unknown | round trip, ms: p50, p99, max |\n"
        "|---|---|---|---|---|\n"
        f"| {results.requests:,} | {results.answered:,} | {results.refused:,} "
        f"| {results.unknown:,} | {results.p50_ms:,}, {results.p99_ms:,}, {results.max_ms:,} |\n"
    )
    return text + "".join(f"\nWRONG: {problem}.\n" for problem in results.problems)


async def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench.replies",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--requests", type=int, default=REQUESTS, help="with faults (10,000)")
    parser.add_argument("--alone", type=int, default=ALONE, help="one at a time (1,000)")
    parser.add_argument("--output", type=Path, default=Path("build/bench"))
    parser.add_argument("--work", metavar="ADDRESS", help="be a worker (used by this program)")
    arguments = parser.parse_args()
    if arguments.work:
        await work(arguments.work)
        return
    arguments.output.mkdir(parents=True, exist_ok=True)
    results = await measure(arguments.requests, arguments.alone)
    keep(results, as_markdown(results), arguments.output, "replies")
    if results.problems:
        sys.exit(1)


if __name__ == "__main__":
    asyncio.run(main())
