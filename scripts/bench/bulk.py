"""`make bulk`: whether a large redrive and a large purge are exact although a leader dies.

Three nodes, three partitions.

1. 100,000 items are rejected. `querator dead redrive --all --rate` sends them back. Meanwhile the
   leader of a partition of the dead queue is killed (kill -9), and started again a second later.
   Each item must come to a consumer of its queue, once.
2. 1,000,000 items are produced; half of them are scheduled in random order. `purge` removes them
   while others are produced, and while the leader of a partition is killed. A purge that fails is
   called again. Each item that was produced after the last call began must come to a consumer,
   once, and none of the 1,000,000.

Writes bulk.json and bulk.md. The last line is a summary in JSON; the exit code is 1 if an item is
missing, comes twice or should be gone, or if the counts of a queue do not balance.
"""

import argparse
import asyncio
import itertools
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import msgspec

from querator import Client, Item
from querator.client.errors import DeadlineExceeded, OutcomeUnknown
from querator.client.values import PartitionStats
from scripts.bench.cluster import leader_of, until_well
from scripts.bench.report import keep, machine, named, versions
from scripts.bench.servers import Servers

NODES = 3
PARTITIONS = 3
LETTERS = "letters"
DEAD = "letters-dead"
LARGE = "large"
REDRIVEN = 100_000
RATE = 500.0
PURGED = 1_000_000
CALLS_MAX = 10
ARRIVES_SECONDS = 0.5
"""Items that are produced before the first request of a purge arrives belong to it."""
DOWN_SECONDS = 1.0
IDLE = timedelta(seconds=40)
"""Without an item for this long, the consumer has all: leases of 30 s have lapsed by then."""


class Results(msgspec.Struct, frozen=True):
    machine: str
    versions: dict[str, str]
    redriven: int
    rate: float
    """Letters per second that were asked for."""
    arrived_per_second: float
    purged: int
    purge_seconds: float
    purge_calls: int
    later: int
    """Items that were produced while the last call ran."""
    problems: list[str]


# --- what both parts need ----------------------------------------------------------------------


async def kill_leader(servers: Servers, queue: str, after_seconds: float) -> None:
    """Kills the leader of partition 0 after a while, and starts it again."""
    await asyncio.sleep(after_seconds)
    leader = servers[await leader_of(servers.address, queue, 0)]
    await leader.stop(kill=True)
    print(f"{leader.name}, which led partition 0 of {queue}, is killed", flush=True)
    await asyncio.sleep(DOWN_SECONDS)
    await leader.start()


async def take_all(client: Client, queue: str) -> Counter[bytes]:
    """Completes all items, and counts how often each payload was completed. An item whose lease is
    lost comes again.
    """
    taken: Counter[bytes] = Counter()

    def answered(payload: bytes, completed: "asyncio.Future[None]") -> None:
        taken[payload] += completed.exception() is None

    async with client.consumer(queue, idle_timeout=IDLE) as consumer:
        async for item in consumer:
            item.complete().add_done_callback(partial(answered, item.payload))
    return taken


def found_problems(
    queue: str,
    taken: Counter[bytes],
    *,
    expected: Iterable[bytes],
    permitted: Iterable[bytes] = (),
    counts: dict[str, int],
) -> list[str]:
    """A sentence for each thing that is wrong. `permitted`: items that may come. `counts`: what
    must be 0, by its name.
    """
    wanted = set(expected)
    checks = {
        "items are missing": len(wanted - taken.keys()),
        "items came twice": sum(times > 1 for times in taken.values()),
        "items came that should be gone": len(taken.keys() - wanted - set(permitted)),
        **counts,
    }
    return [f"{queue}: {number:,} {name}" for name, number in checks.items() if number]


def unbalanced(total: PartitionStats, *, completed: int) -> dict[str, int]:
    return {
        "more or fewer were completed than came": total.completed - completed,
        "are left": total.ready + total.leased + total.scheduled,
        "are not accounted for": total.produced - total.completed - total.cancelled,
    }


# --- the redrive -------------------------------------------------------------------------------


async def redrive(
    servers: Servers, client: Client, letters: int, rate: float
) -> tuple[float, list[str]]:
    await client.create_queue(DEAD, partitions=PARTITIONS)
    await client.create_queue(LETTERS, partitions=PARTITIONS, dead_queue=DEAD)
    names = [b"%d" % number for number in range(letters)]
    async with client.producer(LETTERS, ordered=False) as producer:
        for name in names:
            await producer.submit(name)
    async with client.consumer(LETTERS, idle_timeout=timedelta(seconds=5)) as consumer:
        async for item in consumer:
            item.reject("not today")
    await _until_dead(client, letters)
    print(f"{letters:,} items are dead", flush=True)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(kill_leader(servers, DEAD, 10))
        arriving = tasks.create_task(_arrivals_per_second(client, letters))
        process = await servers.checkout.run(
            "querator", "dead", "redrive", LETTERS, "--all", "--rate", str(rate),
            "--address", servers.address,
        )  # fmt: skip
        exit_code = await process.wait()
    taken = await take_all(client, LETTERS)
    total, dead = (await client.stats(LETTERS)).total, (await client.stats(DEAD)).total
    counts = {
        "is the exit code of the redrive": exit_code,
        "are left in the dead queue": dead.ready + dead.leased + dead.scheduled,
        "are left": total.ready + total.leased + total.scheduled,
        "more or fewer were completed than came": total.completed - taken.total(),
    }
    return arriving.result(), found_problems(LETTERS, taken, expected=names, counts=counts)


async def _arrivals_per_second(client: Client, letters: int) -> float:
    """Letters per second between the first ones that are back in their queue and the last one."""
    first: tuple[float, int] | None = None
    while True:
        await asyncio.sleep(1)
        arrived = (await client.stats(LETTERS)).total.ready
        if first is None and arrived:
            first = time.monotonic(), arrived
        if first is not None and arrived == letters:
            return (arrived - first[1]) / max(time.monotonic() - first[0], 1)


async def _until_dead(client: Client, letters: int) -> None:
    async with asyncio.timeout(120):
        while True:
            if (await client.stats(DEAD)).total.ready >= letters:
                return
            await asyncio.sleep(0.5)


# --- the purge ---------------------------------------------------------------------------------


async def purge(servers: Servers, client: Client, items: int) -> tuple[float, int, int, list[str]]:
    """Seconds, calls, items that were produced meanwhile, and what is wrong."""
    chance, now = random.Random(1), datetime.now(UTC)
    await client.create_queue(LARGE, partitions=PARTITIONS)
    async with client.producer(LARGE, ordered=False) as producer:
        for number in range(items):
            due = now + timedelta(seconds=chance.randrange(3_600, 36_000)) if number % 2 else None
            await producer.submit(Item(b"early %d" % number, enqueue_at=due))
    print(f"{items:,} items wait", flush=True)
    later = Later()
    began_s = time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(kill_leader(servers, LARGE, 1))
        producing = tasks.create_task(later.produce(client))
        calls = await _purge_all(client, later)
        took_s = time.monotonic() - began_s
        producing.cancel()
    taken = await take_all(client, LARGE)
    total = (await client.stats(LARGE)).total
    counts = unbalanced(total, completed=taken.total())
    problems = found_problems(
        LARGE, taken, expected=later.kept, permitted=later.unsure, counts=counts
    )
    return took_s, calls, len(later.kept), problems


async def _purge_all(client: Client, later: "Later") -> int:
    """Returns the number of calls."""
    for calls in range(1, CALLS_MAX):
        later.begin()
        try:
            await client.purge(LARGE)
        except (OutcomeUnknown, DeadlineExceeded) as error:
            print(f"the purge is called again: {error}", flush=True)
        else:
            return calls
    raise RuntimeError(f"the purge has failed {CALLS_MAX} times")


class Later:
    """Items that are produced while the purge runs."""

    def __init__(self) -> None:
        self.kept: list[bytes] = []
        """Stored, and their produce began after the last purge."""
        self.unsure: list[bytes] = []
        """Those whose produce began before it, and those that may not be stored."""
        self._begun_s = 0.0

    def begin(self) -> None:
        """A purge begins; its first request arrives soon."""
        self._begun_s = time.monotonic() + ARRIVES_SECONDS
        self.unsure += self.kept
        self.kept = []

    async def produce(self, client: Client) -> None:
        for number in itertools.count():
            name, begun_s = b"later %d" % number, time.monotonic()
            try:
                await client.produce(LARGE, name)
            except (OutcomeUnknown, DeadlineExceeded):
                self.unsure.append(name)
            except asyncio.CancelledError:
                self.unsure.append(name)
                raise
            else:
                (self.kept if begun_s >= self._begun_s else self.unsure).append(name)


# --- the measurement ---------------------------------------------------------------------------


async def measure(arguments: argparse.Namespace) -> Results:
    with tempfile.TemporaryDirectory(prefix="querator-bulk-") as name:
        servers = Servers(Path(name), nodes=NODES, memory=False)
        try:
            await servers.start()
            async with Client(servers.address) as client:
                arrived, problems = await redrive(
                    servers, client, arguments.letters, arguments.rate
                )
                await until_well(servers.address)
                purge_s, calls, later, others = await purge(servers, client, arguments.items)
        finally:
            await servers.stop()
    return Results(
        machine=machine(),
        versions=versions(),
        redriven=arguments.letters,
        rate=arguments.rate,
        arrived_per_second=round(arrived, 1),
        purged=arguments.items,
        purge_seconds=round(purge_s, 1),
        purge_calls=calls,
        later=later,
        problems=problems + others,
    )


def as_markdown(results: Results) -> str:
    text = (
        f"{NODES} nodes on {results.machine}; {named()}; one leader killed in each.\n\n"
        f"{results.redriven:,} letters were sent back at {results.rate:,g}/s; "
        f"{results.arrived_per_second:,g}/s arrived. A purge removed {results.purged:,} items in "
        f"{results.purge_seconds:g} s in {results.purge_calls} calls, while {results.later:,} "
        "others were produced.\n"
    )
    return text + "".join(f"\nWRONG: {problem}.\n" for problem in results.problems)


async def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench.bulk",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--letters", type=int, default=REDRIVEN, help="dead letters (100,000)")
    parser.add_argument("--rate", type=float, default=RATE, help="letters per second (500)")
    parser.add_argument("--items", type=int, default=PURGED, help="items to purge (1,000,000)")
    parser.add_argument("--output", type=Path, default=Path("build/bench"))
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    results = await measure(arguments)
    keep(results, as_markdown(results), arguments.output, "bulk")
    if results.problems:
        sys.exit(1)


if __name__ == "__main__":
    asyncio.run(main())
