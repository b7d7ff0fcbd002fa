"""Users of a cluster as a program of its own, where the nodes' names are known.

    python -m tests.integration.pod_users ADDRESS CA CERT KEY

Prints `served` when the first items are completed, and continues until its standard input ends. The
last line is what it saw (`Seen`) as JSON. Any error that the SDK raises ends it with a traceback.
"""

import asyncio
import sys
import time
from collections import Counter
from datetime import timedelta

import msgspec

from querator import Client, Tls
from querator.client.errors import LeaseLost
from querator.client.values import PartitionStats

QUEUE = "mail"
PARTITIONS = 6
BATCH = 10
PAUSE_S = 0.05
REQUEST_TIMEOUT = timedelta(seconds=20)
"""A user that must wait longer sees an error. gRPC by itself would keep a node's old address for 30
s.
"""
FIRST_ITEMS = 200
LEASE = timedelta(seconds=10)
END_S = 60
"""How long the completion of the produced items may take in the end."""


class Seen(msgspec.Struct):
    produced: int
    """Acknowledged items; the queue has the same number."""
    completed: int
    """The queue's count."""
    twice: int
    """Items whose completion was acknowledged more than once."""
    late: int
    """Batches that could not be completed under their lease."""
    stall_ms: int
    """The longest duration of a produce call."""


class Users:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._made = 0
        self._stopping = asyncio.Event()
        self._completed: Counter[bytes] = Counter()
        self._late = 0
        self._stall_s = 0.0
        self._served = False

    def _next(self, number: int) -> list[bytes]:
        first, self._made = self._made, self._made + number
        return [b"%d" % n for n in range(first, first + number)]

    async def _stream(self, *, ordered: bool) -> None:
        async with self._client.producer(QUEUE, ordered=ordered) as producer:
            while not self._stopping.is_set():
                began = time.monotonic()
                await producer.produce_many(self._next(BATCH))
                self._stall_s = max(self._stall_s, time.monotonic() - began)
                await asyncio.sleep(PAUSE_S)

    async def _calls(self) -> None:
        while not self._stopping.is_set():
            began = time.monotonic()
            [payload] = self._next(1)
            await self._client.produce(QUEUE, payload)
            self._stall_s = max(self._stall_s, time.monotonic() - began)
            await asyncio.sleep(PAUSE_S)

    async def _consume(self) -> None:
        async with (
            self._client.consumer(QUEUE, lease_timeout=LEASE) as consumer,
            asyncio.TaskGroup() as settling,
        ):
            async for batch in consumer.batches():
                settling.create_task(self._settle(batch.complete(), batch.payloads()))

    async def _settle(self, settled: "asyncio.Future[None]", payloads: list[bytes]) -> None:
        try:
            await settled
        except LeaseLost:
            self._late += 1
        else:
            self._completed.update(payloads)
            if len(self._completed) >= FIRST_ITEMS and not self._served:
                self._served = True
                say("served")

    async def run(self) -> Seen:
        await self._client.create_queue(QUEUE, partitions=PARTITIONS, max_attempts=0, dead_queue="")
        async with asyncio.TaskGroup() as users:
            consuming = [users.create_task(self._consume()) for _ in range(2)]
            async with asyncio.TaskGroup() as producing:
                producing.create_task(self._stream(ordered=True))
                producing.create_task(self._stream(ordered=False))
                producing.create_task(self._calls())
                await asyncio.to_thread(sys.stdin.read)
                self._stopping.set()
            async with asyncio.timeout(END_S):
                while (await self._total()).completed < self._made:  # noqa: ASYNC110
                    await asyncio.sleep(PAUSE_S)
            for task in consuming:
                task.cancel()
        total = await self._total()
        assert total.produced == self._made, "each call was stored once"
        return Seen(
            produced=self._made,
            completed=total.completed,
            twice=sum(number > 1 for number in self._completed.values()),
            late=self._late,
            stall_ms=round(1000 * self._stall_s),
        )

    async def _total(self) -> PartitionStats:
        return (await self._client.stats(QUEUE)).total


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def run(address: str, tls: Tls) -> None:
    async with Client(address, tls=tls, request_timeout=REQUEST_TIMEOUT) as client:
        say(msgspec.json.encode(await Users(client).run()).decode())


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], Tls.from_files(ca=sys.argv[2], cert=sys.argv[3], key=sys.argv[4])))
