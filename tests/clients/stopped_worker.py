"""A worker that a test stops by signals: `python -m tests.clients.stopped_worker KIND ADDRESS`.

KIND is `async` or `sync` (`Consumer.run`), or `loop` or `sync-loop` (a loop of the program, with
the recipes of docs/sdk.md). It says `began` when it has an item, and works on it until a line comes
on standard input.
"""

import asyncio
import signal
import sys
from datetime import timedelta

from querator import Client, SyncClient

GRACE = timedelta(minutes=5)


def _say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def _work(item: object) -> None:
    _say("began")
    sys.stdin.readline()


async def _handler(item: object) -> None:
    await asyncio.to_thread(_work, item)


async def _run(address: str) -> None:
    async with Client(address) as client, client.consumer("q", prefetch_items=10) as consumer:
        await consumer.run(_handler, concurrency=1, grace=GRACE)


async def _loop(address: str) -> None:
    async with Client(address) as client, client.consumer("q", prefetch_items=10) as consumer:
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, consumer.stop)
        async for item in consumer:
            await _handler(item)
            await item.complete()


def _sync(address: str) -> None:
    with SyncClient(address) as client, client.consumer("q", prefetch_items=10) as consumer:
        consumer.run(_work, concurrency=1, grace=GRACE)


def _sync_loop(address: str) -> None:
    with SyncClient(address) as client, client.consumer("q", prefetch_items=10) as consumer:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: consumer.stop())
        for item in consumer:
            _work(item)
            item.complete()


def main() -> None:
    kind, address = sys.argv[1:]
    if kind == "async":
        asyncio.run(_run(address))
    elif kind == "loop":
        asyncio.run(_loop(address))
    elif kind == "sync":
        _sync(address)
    else:
        _sync_loop(address)
    _say("ended")


if __name__ == "__main__":
    main()
