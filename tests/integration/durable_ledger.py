"""A durable function whose every effect is in a ledger, and a worker of it as a process of its own.

    python -m tests.integration.durable_ledger ADDRESS QUEUE LEDGER

Each effect has a number of its own, which is the result of its step. So the ledger says which of
several attempts of a step is the one that was recorded.
"""

import asyncio
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import msgspec
import uuid_utils

from querator import Client
from querator.durable import Worker, current, durable, produce, receive, sleep, step

LEDGER: list[Path] = []
MAIL = "mail"
"""The queue of the items."""


class Effect(msgspec.Struct, frozen=True):
    """One attempt of a step."""

    key: str
    """The `step_key`."""
    result: str
    begun: float
    """By the monotonic clock of the machine, in seconds."""


@step
async def effect(_name: str) -> str:
    """The number of this effect."""
    begun = time.monotonic()
    one = Effect(current().step_key, uuid_utils.uuid7().hex, begun)
    line = msgspec.json.encode(one) + b"\n"
    file = os.open(LEDGER[0], os.O_WRONLY | os.O_APPEND)
    try:
        assert os.write(file, line) == len(line)
    finally:
        os.close(file)
    await asyncio.sleep(0.01)
    return one.result


async def reported(name: str) -> str:
    """An effect, and an item that has its number."""
    result = await effect(name)
    produce(MAIL, result)
    return result


@durable
async def pair(name: str) -> list[str]:
    return [await reported(f"{name}, first"), await reported(f"{name}, second")]


@durable
async def audited() -> list[str]:
    """All that a durable function may wait for: steps after and beside each other, a call, a timer
    for which it parks, a signal.
    """
    results = [await reported("begin")]
    results += await asyncio.gather(*(reported(f"beside {number}") for number in range(3)))
    results += await pair("called")
    await sleep(timedelta(seconds=0.5))
    results.append(await reported("after the timer"))
    results.append(await receive("word", str))
    results.append(await reported("end"))
    return results


def effects(ledger: Path) -> list[Effect]:
    return [msgspec.json.decode(line, type=Effect) for line in ledger.read_bytes().splitlines()]


async def main() -> None:
    address, queue, ledger = sys.argv[1:]
    LEDGER.append(Path(ledger))
    async with Client(address) as client:
        await Worker(client, queue, [audited, pair]).run()


if __name__ == "__main__":
    asyncio.run(main())
