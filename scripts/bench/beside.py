"""The rate that a healthy queue keeps beside queues that are stuck.

    python -m scripts.bench.beside [--pairs 5]

There are three nodes. The healthy queue has a replica on each. The stuck queues have one replica,
on a node that is stopped by SIGSTOP. The healthy queue is measured alone, and beside clients that
produce to the stuck queues, lease from them and are not answered, in turn. Shows produces and
completions per second of each pair, the median of the ratios, and the errors that the clients of
the stuck queues received. The exit code is 1 when a client of the healthy queue saw an error or
counts do not balance.
"""

import argparse
import asyncio
import collections
import os
import signal
import statistics
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

import msgspec

from querator import Client
from querator.client import Item
from querator.client.errors import RequestError
from scripts.bench.__main__ import balance, run_clients
from scripts.bench.cluster import admin_of, until_well
from scripts.bench.scenarios import Scenario
from scripts.bench.servers import Servers
from scripts.bench.worker import QUEUE, WorkerResult

STUCK_NODE = "node-3"
STUCK_QUEUES = 4
CANDIDATES = 24
"""Number of queues of one replica that are created, so that some are on the stopped node."""
CONNECTIONS = 8
WAITING = 16
"""Produces of a connection that wait for an answer at any time, of PAYLOAD_BYTES each."""
PAYLOAD_BYTES = 262_144
REQUEST_TIMEOUT = timedelta(seconds=10)
PAUSE_S = 0.5
GOAL = 0.8
HEALTHY = Scenario("healthy", "both", ("both",), seconds=8.0)


async def stuck_load(address: str, queues: list[str]) -> None:
    """Runs until it is cancelled. Counts the errors that the clients received, by name."""
    told: collections.Counter[str] = collections.Counter()

    async def produce(client: Client, queue: str) -> None:
        item = Item(payload=os.urandom(PAYLOAD_BYTES))
        while True:
            try:
                await client.produce(queue, item)
                told["produced"] += 1
            except RequestError as error:
                told[type(error).__name__] += 1
                await asyncio.sleep(PAUSE_S)

    async def lease(client: Client, queue: str) -> None:
        while True:
            try:
                told["leased"] += len(
                    await client.lease(queue, max_items=100, wait=timedelta(seconds=5))
                )
            except RequestError as error:
                told[type(error).__name__] += 1
                await asyncio.sleep(PAUSE_S)

    async def connection() -> None:
        async with Client(address, request_timeout=REQUEST_TIMEOUT) as client:
            async with asyncio.TaskGroup() as tasks:
                for number in range(WAITING):
                    tasks.create_task(produce(client, queues[number % len(queues)]))
                for queue in queues:
                    tasks.create_task(lease(client, queue))

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(connection()) for _ in range(CONNECTIONS)]
        print("loading", flush=True)
        await stop.wait()
        for task in running:
            task.cancel()
    print(msgspec.json.encode(told).decode(), flush=True)


class StuckClients:
    """The process that loads the stuck queues."""

    def __init__(self, address: str, queues: list[str]) -> None:
        self._arguments = [address, ",".join(queues)]
        self.told: collections.Counter[str] = collections.Counter()

    async def __aenter__(self) -> "StuckClients":
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "scripts.bench.beside", "--stuck", *self._arguments,
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert self._process.stdout is not None
        assert await self._process.stdout.readline() == b"loading\n"
        # Calls that wait for an answer fill their share.
        await asyncio.sleep(3)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._process.terminate()
        out, _none = await self._process.communicate()
        self.told.update(msgspec.json.decode(out, type=dict[str, int]))


async def stuck_queues(address: str) -> list[str]:
    """Creates queues of one replica, and returns those that STUCK_NODE has."""
    names = [f"stuck-{number}" for number in range(CANDIDATES)]
    async with Client(address) as client:
        for name in names:
            await client.create_queue(name, replicas=1)
    async with admin_of(address) as admin:
        groups = (await admin.picture()).groups
    there = {
        group.queue
        for group in groups
        if group.queue in names and [each.node for each in group.replicas] == [STUCK_NODE]
    }
    if len(there) < STUCK_QUEUES:
        raise RuntimeError(f"{STUCK_NODE} has {len(there)} of {CANDIDATES} queues of one replica")
    return sorted(there)[:STUCK_QUEUES]


async def rates(server: Servers, so_far: list[WorkerResult]) -> tuple[float, float]:
    """Produces and completions of the healthy queue, per second."""
    results, _ = await run_clients(HEALTHY, server, server.address)
    so_far += results
    (result,) = results
    return (
        result.window_produced / result.window_seconds,
        result.window_completed / result.window_seconds,
    )


async def measured(pairs: int) -> None:
    with tempfile.TemporaryDirectory(prefix="querator-beside-") as name:
        server = Servers(Path(name), nodes=3, memory=False)
        await server.start()
        try:
            async with Client(server.address) as client:
                await client.create_queue(QUEUE)
            await until_well(server.address)
            queues = await stuck_queues(server.address)
            stuck = server[STUCK_NODE]
            stuck.signal(signal.SIGSTOP)
            healthy = ",".join(each.address for each in server if each is not stuck)
            try:
                await compare(server, StuckClients(healthy, queues), pairs)
            finally:
                stuck.signal(signal.SIGCONT)
        finally:
            await server.stop()


async def compare(server: Servers, stuck: StuckClients, pairs: int) -> None:
    so_far: list[WorkerResult] = []
    # The first run waits until the leaderships have left the stopped node.
    await rates(server, so_far)
    ratios = []
    print("produces/s and completions/s alone, beside stuck queues, ratios", flush=True)
    for number in range(pairs):
        found = {}
        for kind in ("alone", "beside") if number % 2 == 0 else ("beside", "alone"):
            if kind == "alone":
                found[kind] = await rates(server, so_far)
            else:
                async with stuck:
                    found[kind] = await rates(server, so_far)
        (alone, alone_done), (beside, beside_done) = found["alone"], found["beside"]
        ratios.append((beside / alone, beside_done / alone_done))
        print(
            f"{alone:9,.0f} {alone_done:9,.0f}   {beside:9,.0f} {beside_done:9,.0f}   "
            f"{ratios[-1][0]:.2f} {ratios[-1][1]:.2f}",
            flush=True,
        )
    await balance(HEALTHY, server.address, so_far)
    produced, completed = (statistics.median(each) for each in zip(*ratios, strict=True))
    print(f"answers to clients of the stuck queues: {dict(stuck.told)}")
    print(
        f"median of the ratios: produces {produced:.2f}, completions {completed:.2f}, goal {GOAL}"
    )


def main() -> None:
    if sys.argv[1:2] == ["--stuck"]:
        address, queues = sys.argv[2:]
        asyncio.run(stuck_load(address, queues.split(",")))
        return
    parser = argparse.ArgumentParser(prog="python -m scripts.bench.beside", description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    asyncio.run(measured(parser.parse_args().pairs))


if __name__ == "__main__":
    main()
