"""Durable functions of the tests, and a worker of them as a process of its own.

    python -m tests.integration.durable_shop ADDRESS QUEUE LEDGER

The ledger is a file with a line for each effect: the step, its key, the process. A line is on disk
before the effect continues.
"""

import asyncio
import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from querator import Client
from querator.durable import (
    ChildRefused,
    Durable,
    Retry,
    Worker,
    call,
    current,
    durable,
    produce,
    promise,
    publish,
    receive,
    saga,
    sleep,
    spawn,
    step,
)
from querator.durable.promises import PromiseToken

LEDGER: list[Path] = []


class Declined(Exception):
    """A card was declined."""


@dataclass
class Order:
    id: str
    skus: list[str]


def write(line: bytes) -> None:
    """Returns when it is on disk."""
    for ledger in LEDGER:
        with ledger.open("ab") as file:
            file.write(line + b"\n")
            file.flush()
            os.fsync(file.fileno())


def effect(name: str) -> bytes:
    """A line of the ledger."""
    return msgspec.json.encode([name, current().step_key, os.getpid()])


async def note(name: str) -> None:
    """Writes an effect to the ledger."""
    await asyncio.to_thread(write, effect(name))


def forged(token: str) -> str:
    """The token with another proof."""
    named = PromiseToken.decode(token)
    return msgspec.structs.replace(named, mac=bytes(len(named.mac))).encode()


@step(effects=False)
async def price(sku: str) -> int:
    return len(sku)


@step(retry=Retry(attempts=3, first=timedelta(milliseconds=10)))
async def reserve(order: Order, total: int) -> str:
    await note("reserve")
    if current().attempt < 2:
        raise ConnectionError("the warehouse does not answer")
    return f"{order.id}: {total}"


@step
async def release(order_id: str) -> None:
    await note("release")


@step
async def charge(order: Order) -> int:
    await note("charge")
    if order.id.startswith("declined"):
        raise Declined(order.id)
    return len(order.skus)


@step
def label(order_id: str) -> str:
    write(effect("label"))
    return f"label of {order_id}"


@durable
async def pack(order: Order) -> str:
    await call(label, order.id)
    return await call(label, f"{order.id} again")


@step
async def show_token(token: str, path: str) -> None:
    await note("show_token")
    await asyncio.to_thread(Path(path).write_text, token)


@durable
async def checkout(order: Order, tokens: str) -> list[str | int]:
    prices = await asyncio.gather(*(price(sku) for sku in order.skus))
    async with saga() as undo:
        undo.add(release, order.id)
        reserved = await reserve(order, sum(prices))
        receipt = await charge(order)
    approval = promise(str)
    await show_token(approval.token, tokens)
    async with asyncio.timeout(3600):
        approved = await approval
    await sleep(1)
    word = await receive("word", str)
    return [reserved, receipt, approved, word, await pack(order)]


@step
async def work(number: int, seconds: float) -> int:
    await note(f"work {number}")
    await asyncio.sleep(seconds)
    return number


@durable
async def chain(length: int, seconds: float) -> int:
    return sum([await work(number, seconds) for number in range(length)])


@durable
async def publisher(keys: int) -> None:
    """Publishes its keys, and then the first one again, with what a signal says."""
    await work(1, 0)
    for key in range(keys):
        publish(str(key), key)
    publish("0", await receive("word", str))


@durable
async def dozen(seconds: float) -> list[int]:
    """Children of chains; one that is never awaited, and one whose id is taken."""
    children = await asyncio.gather(*(spawn(chain, length, seconds) for length in range(12)))
    await spawn(chain, 1_000, seconds, id=f"{current().execution_id}/endless")
    with suppress(ChildRefused):
        await spawn(chain, 1, seconds, id=f"{current().execution_id}/endless")
    return list(await asyncio.gather(*children))


@durable
async def producer(queue: str) -> int:
    """Produces after an effect."""
    number = await work(1, 0)
    produce(queue, f"after {number}")
    return number


@durable
async def worded_work() -> str:
    """Works until a signal comes."""
    working = asyncio.get_running_loop().create_task(work(1, 3600.0))
    word = await receive("word", str)
    working.cancel()
    return word


FUNCTIONS: list[Durable[..., Any]] = [
    checkout, pack, chain, publisher, dozen, producer, worded_work,
]  # fmt: skip


async def main() -> None:
    address, queue, ledger = sys.argv[1:]
    LEDGER.append(Path(ledger))
    async with Client(address) as client:
        await Worker(client, queue, FUNCTIONS, errors=[Declined]).run()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(main())
