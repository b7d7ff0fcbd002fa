"""One client process of a scenario: `python -m scripts.bench.worker ADDRESS ROLE`, scenario on
stdin.

It warms up, prints `measuring` and later `measured`, and ends with a `WorkerResult` as one line of
JSON. The parent reads the server's CPU at these two lines. Latencies of the open loop count from
when a request was due, not from when it could be sent, so that a stall is charged to every request
it held up.
"""

import asyncio
import os
import resource
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from datetime import timedelta
from functools import partial
from typing import Any

import msgspec

from querator import Client
from querator.client import Consumer, Item, Producer
from scripts.bench.pacing import instants
from scripts.bench.scenarios import Scenario

QUEUE = "bench"
IDLE_S = 3.0
"""A consumer that got nothing for this long has drained the queue."""


class WorkerResult(msgspec.Struct):
    """`produced` and `completed` count the whole run, the rest the measured window."""

    produced: int = 0
    completed: int = 0
    window_seconds: float = 0.0
    window_produced: int = 0
    window_completed: int = 0
    window_cpu_seconds: float = 0.0
    latencies_ms: list[float] = msgspec.field(default_factory=list)


class Worker:
    def __init__(self, scenario: Scenario, client: Client) -> None:
        self._scenario = scenario
        self._client = client
        self._result = WorkerResult()
        item = Item(payload=os.urandom(scenario.payload_bytes))
        self._batch = [item] * scenario.batch_items
        self._stopping = False
        self._latencies: list[float] = []
        self._window_start = self._cpu_start = 0.0
        self._before = (0, 0)

    async def run(self, role: str) -> WorkerResult:
        """A whole run. The consumer continues until the queue is drained."""
        drain = self._scenario.kind == "drain"
        async with asyncio.TaskGroup() as tasks:
            if role in ("produce", "both"):
                tasks.create_task(self._produce())
            if role in ("consume", "both"):
                tasks.create_task(self._consume(measured=drain))
            if not drain:
                await asyncio.sleep(self._scenario.warmup_seconds)
                self._open_window()
                await asyncio.sleep(self._scenario.seconds)
                self._close_window()
                self._stopping = True
        return self._result

    def _open_window(self) -> None:
        self._latencies.clear()
        self._before = (self._result.produced, self._result.completed)
        self._window_start, self._cpu_start = time.monotonic(), cpu_seconds()
        print("measuring", flush=True)

    def _close_window(self) -> None:
        print("measured", flush=True)
        result = self._result
        result.window_seconds = time.monotonic() - self._window_start
        result.window_cpu_seconds = cpu_seconds() - self._cpu_start
        result.window_produced = result.produced - self._before[0]
        result.window_completed = result.completed - self._before[1]
        result.latencies_ms = [latency * 1000 for latency in self._latencies]

    async def _produce(self) -> None:
        scenario = self._scenario
        single = scenario.batch_items == 1 and not scenario.gather
        async with self._client.producer(
            QUEUE,
            batch_items=1 if single else 256 if scenario.gather else scenario.batch_items,
            ordered=scenario.partitions == 1,
            max_in_flight=min(256, scenario.in_flight) if scenario.kind != "latency" else 256,
        ) as producer:
            send = self._send(producer)
            if scenario.kind == "latency":
                await self._open_loop(send)
                return
            async with asyncio.TaskGroup() as tasks:
                for _ in range(scenario.in_flight):
                    tasks.create_task(self._closed_loop(send))

    def _send(self, producer: Producer) -> Callable[[], Awaitable[object]]:
        item = self._batch[0]
        if self._scenario.unary:
            return lambda: self._client.produce(QUEUE, item)
        if self._scenario.gather:
            return lambda: producer.produce(item)
        return lambda: producer.produce_many(self._batch)

    async def _closed_loop(self, send: Callable[[], Awaitable[object]]) -> None:
        while not self._stopping:
            started = time.monotonic()
            await send()
            self._latencies.append(time.monotonic() - started)
            self._result.produced += self._scenario.batch_items

    async def _open_loop(self, send: Callable[[], Awaitable[object]]) -> None:
        async def one(due: float) -> None:
            await send()
            self._latencies.append(time.monotonic() - due)
            self._result.produced += self._scenario.batch_items

        async with asyncio.TaskGroup() as tasks, aclosing(instants(self._scenario.rate)) as dues:
            async for due in dues:
                if self._stopping:
                    break
                tasks.create_task(one(due))

    async def _consume(self, *, measured: bool) -> None:
        async with self._client.consumer(
            QUEUE,
            prefetch_items=2_000,
            batch_items=self._scenario.batch_items,
            idle_timeout=timedelta(seconds=IDLE_S),
        ) as consumer:
            if measured:
                self._open_window()
            await self._complete_all(consumer)
            if measured:
                # The wait that showed the end of the queue is not part of the work.
                self._window_start += IDLE_S
                self._close_window()

    async def _complete_all(self, consumer: Consumer) -> None:
        async for batch in consumer.batches():
            count = len(batch)
            batch.complete().add_done_callback(partial(self._completed, count))

    def _completed(self, count: int, done: "asyncio.Future[Any]") -> None:
        done.result()
        self._result.completed += count


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def main() -> None:
    scenario = msgspec.json.decode(sys.stdin.read(), type=Scenario)
    address, role = sys.argv[1:]
    async with Client(address) as client:
        result = await Worker(scenario, client).run(role)
    print(msgspec.json.encode(result).decode(), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
