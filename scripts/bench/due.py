"""`make due`: whether scheduled items come in order and on time, also when a leader dies.

Three nodes. 100,000 items are produced in random order of their times, which lie within one minute.
During this minute another queue takes single items at a steady rate, and in its middle the leader
of one partition is killed (kill -9), and started again a second later. One consumer takes the
scheduled items. For each first delivery, the lateness is its instant by the machine's clock minus
the item's time. In one partition, items must come in the order of their times. Items that were
leased when the leader died may come a second time; these deliveries are counted apart. Writes
due.json and due.md; the exit code is 1 if the counts do not balance or an item comes out of order.
"""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from querator import Client, Item
from querator.client.values import PartitionStats
from scripts.bench.cluster import leader_of, until_well
from scripts.bench.pulse import pulse
from scripts.bench.report import keep, machine, named, versions
from scripts.bench.servers import Servers

NODES = 3
QUEUE = "due"
LOAD = "load"
WINDOW_MS = 60_000
IDLE = timedelta(seconds=45)
"""Without an item for this long, the consumer has all: leases of 30 s have lapsed by then."""
DOWN_SECONDS = 1.0
GOAL_MS = 50.0


class Deliveries:
    """What the consumer got. Items are numbers, and times are ms since the epoch."""

    def __init__(self, due_ms: list[int]) -> None:
        self.lateness_ms: list[float] = []
        self.out_of_order = 0
        self.again = 0
        self._due_ms = due_ms
        self._latest_ms: dict[int, int] = {}
        self._times: Counter[int] = Counter()

    def deliver(self, number: int, partition: int, now_ms: float) -> None:
        self._times[number] += 1
        if self._times[number] > 1:
            self.again += 1
            return
        due_ms = self._due_ms[number]
        self.lateness_ms.append(now_ms - due_ms)
        latest_ms = self._latest_ms.get(partition, due_ms)
        if due_ms < latest_ms:
            self.out_of_order += 1
        self._latest_ms[partition] = max(latest_ms, due_ms)

    @property
    def missing(self) -> int:
        return len(self._due_ms) - len(self._times)

    @property
    def early(self) -> int:
        return sum(late < 0 for late in self.lateness_ms)


class Results(msgspec.Struct, frozen=True):
    machine: str
    versions: dict[str, str]
    items: int
    rate: float
    killed: bool
    p50_ms: float
    p99_ms: float
    max_ms: float
    late: int
    """Deliveries that were later than the goal."""
    again: int
    problems: list[str]


def percentile(values: list[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


def problems(deliveries: Deliveries, total: PartitionStats, load: list[str]) -> list[str]:
    """A sentence for each count that is wrong."""
    checks = (
        (not deliveries.missing, f"{deliveries.missing} items were never delivered"),
        (not deliveries.out_of_order, f"{deliveries.out_of_order} items came out of order"),
        (not deliveries.early, f"{deliveries.early} items came before their time"),
        (total.completed == total.produced, f"{total.completed} of {total.produced} completed"),
        (not total.dead, f"{total.dead} items died"),
    )
    return [sentence for holds, sentence in checks if not holds] + load


async def measure(arguments: argparse.Namespace) -> Results:
    with tempfile.TemporaryDirectory(prefix="querator-due-") as name:
        servers = Servers(Path(name), nodes=NODES, memory=False)
        try:
            await servers.start()
            async with Client(servers.address) as client:
                for queue in (QUEUE, LOAD):
                    await client.create_queue(queue, partitions=NODES)
                await until_well(servers.address)
                return await _run(arguments, servers, client)
        finally:
            await servers.stop()


async def _run(arguments: argparse.Namespace, servers: Servers, client: Client) -> Results:
    count: int = arguments.items
    begin_ms = int(time.time() * 1000) + arguments.ahead * 1000
    due_ms = [begin_ms + WINDOW_MS * number // count for number in range(count)]
    order = list(range(count))
    random.Random(arguments.seed).shuffle(order)
    async with client.producer(QUEUE, ordered=False) as producer:
        for number in order:
            await producer.submit(Item(payload=str(number), enqueue_at=_instant(due_ms[number])))
        await producer.flush()
    left_s = begin_ms / 1000 - time.time()
    print(f"{count:,} items are scheduled, {left_s:.0f} s before the first one", flush=True)
    if left_s <= 0:
        raise RuntimeError("the first item was due before all were produced: raise --ahead")
    deliveries = Deliveries(due_ms)
    async with pulse(servers.address, LOAD, partitions=NODES, rate=arguments.rate) as books:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_consume(client, deliveries))
            if not arguments.no_kill:
                tasks.create_task(_kill(servers, (begin_ms + WINDOW_MS / 2) / 1000))
    total = (await client.stats(QUEUE)).total
    load = books.problems((await client.stats(LOAD)).total)
    late = deliveries.lateness_ms
    return Results(
        machine=machine(),
        versions=versions(),
        items=count,
        rate=arguments.rate,
        killed=not arguments.no_kill,
        p50_ms=round(percentile(late, 0.5), 1),
        p99_ms=round(percentile(late, 0.99), 1),
        max_ms=round(max(late), 1),
        late=sum(one > GOAL_MS for one in late),
        again=deliveries.again,
        problems=problems(deliveries, total, [f"of the load: {one}" for one in load]),
    )


def _instant(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


async def _consume(client: Client, deliveries: Deliveries) -> None:
    async with client.consumer(QUEUE, idle_timeout=IDLE) as consumer:
        async for item in consumer:
            deliveries.deliver(int(item.payload), item.id.partition, time.time() * 1000)
            item.complete()


async def _kill(servers: Servers, at_s: float) -> None:
    """Kills the leader of partition 0 at this instant, and starts it again."""
    await asyncio.sleep(max(0.0, at_s - time.time()))
    node = await leader_of(servers.address, QUEUE, 0)
    await servers[node].stop(kill=True)
    print(f"{node}, which led partition 0, is killed", flush=True)
    await asyncio.sleep(DOWN_SECONDS)
    await servers[node].start()


def as_markdown(results: Results) -> str:
    met = results.p99_ms <= GOAL_MS and not results.problems
    text = (
        f"{NODES} nodes on {results.machine}; {named()}; {results.items:,} scheduled items in "
        f"{WINDOW_MS // 1000} s, beside {results.rate:g} single items/s on another queue; "
        f"{'one leader killed' if results.killed else 'no leader killed'}.\n\n"
        "| lateness, ms: p50, p99, max | later than the goal | delivered again | goal |\n"
        "|---|---|---|---|\n"
        f"| {results.p50_ms:,}, {results.p99_ms:,}, {results.max_ms:,} | {results.late:,} "
        f"| {results.again:,} | p99 at most {GOAL_MS:g}: {'met' if met else '**missed**'} |\n"
    )
    return text + "".join(f"\nWRONG: {problem}.\n" for problem in results.problems)


async def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench.due",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--items", type=int, default=100_000, help="scheduled items (100,000)")
    parser.add_argument("--rate", type=float, default=200, help="load, items per second (200)")
    parser.add_argument("--ahead", type=int, default=60, help="seconds until the first one (60)")
    parser.add_argument("--seed", type=int, default=1, help="of the order of produce (1)")
    parser.add_argument("--no-kill", action="store_true", help="kill no leader")
    parser.add_argument("--output", type=Path, default=Path("build/bench"))
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    results = await measure(arguments)
    keep(results, as_markdown(results), arguments.output, "due")
    if results.problems:
        sys.exit(1)


if __name__ == "__main__":
    asyncio.run(main())
