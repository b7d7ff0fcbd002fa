"""A shop of seats: the durable function, its steps, and a worker of it as a process of its own.

    python -m scripts.durable_demo.shop ADDRESS QUEUE LEDGER

The ledger is a file with a line for each effect. Each effect has a receipt of its own, which is the
result of its step. So the ledger and the executions say together which of several attempts of a
step is the one that was recorded.
"""

import asyncio
import contextlib
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import msgspec
import uuid_utils

from querator import Client
from querator.durable import Durable, Worker, current, durable, saga, sleep, step
from scripts.durable_demo.flights import UNKNOWN, Flight

LEDGER: Final[list[Path]] = []
CONCURRENCY: Final = 200


class Effect(msgspec.Struct, frozen=True):
    """A line of the ledger: an attempt of a step."""

    step: str
    row: int
    key: str
    """The `step_key`."""
    receipt: str
    cents: int
    """What the bank charges or pays back."""
    begun: float
    """By the monotonic clock of the machine, in seconds."""


class FlightCancelled(Exception):
    """A flight has not departed. Its text is the receipt of the step that found it."""


class Journey(msgspec.Struct, frozen=True):
    """The result of an execution."""

    outcome: str
    """`landed`, `diverted` or `cancelled`."""
    receipts: list[str]
    """Those of its steps, in their order. Those of the undoing are in the journal."""


def write(name: str, flight: Flight, cents: int = 0) -> str:
    """Writes an effect to the ledger, in one piece. Returns its receipt."""
    begun = time.monotonic()
    receipt = uuid_utils.uuid7().hex
    one = Effect(name, flight.row, current().step_key, receipt, cents, begun)
    line = msgspec.json.encode(one) + b"\n"
    file = os.open(LEDGER[0], os.O_WRONLY | os.O_APPEND)
    try:
        if os.write(file, line) != len(line):
            raise OSError(f"{LEDGER[0]} took a part of a line")
    finally:
        os.close(file)
    return receipt


@step
async def book(flight: Flight) -> str:
    return write("book", flight)


@step
async def release(flight: Flight) -> str:
    return write("release", flight)


@step
async def charge(flight: Flight) -> str:
    return write("charge", flight, flight.cents)


@step
async def refund(flight: Flight) -> str:
    return write("refund", flight, flight.cents)


@step
async def depart(flight: Flight) -> str:
    receipt = write("depart", flight)
    if not flight.has_departed:
        raise FlightCancelled(receipt)
    return receipt


@step
async def land(flight: Flight) -> str:
    return write("land", flight)


@durable
async def journey(flight: Flight, day_ms: int) -> Journey:
    """A flight, from its seat to its landing; the saga gives back what a cancelled one has paid."""
    receipts = []
    try:
        async with saga() as undo:
            undo.add(release, flight)
            receipts.append(await book(flight))
            undo.add(refund, flight)
            receipts.append(await charge(flight))
            await sleep(timedelta(milliseconds=flight.days_ahead * day_ms))
            receipts.append(await depart(flight))
    except FlightCancelled as found:
        return Journey("cancelled", [*receipts, str(found)])
    receipts.append(await land(flight))
    return Journey("diverted" if flight.arrival == UNKNOWN else "landed", receipts)


FUNCTIONS: Final[list[Durable[..., Any]]] = [journey]


async def main() -> None:
    address, queue, ledger = sys.argv[1:]
    LEDGER.append(Path(ledger))
    async with Client(address) as client:
        await Worker(
            client, queue, FUNCTIONS, concurrency=CONCURRENCY, errors=[FlightCancelled]
        ).run()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
