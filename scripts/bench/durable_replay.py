"""How many records per second of processor time are replayed: `make durable-replay`.

One process, without I/O: a journal is made in memory, and loaded again and again. Three programs:
one task with step after step, 50 tasks of `gather`, and a sync function in its thread. The last
line is JSON: records per second of each, the median of the rounds.
Seconds are those of the processor, so that other processes do not matter.
"""

import argparse
import asyncio
import statistics
import sys
import time
from typing import Any

import msgspec

from querator.durable import Durable, durable, step
from querator.durable.codec import Codec
from querator.durable.machine import ExecutionMachine
from querator.durable.promises import ExecutionIdentity
from querator.model.executions import JournalRecord, Note, RecordKind

IDENTITY = ExecutionIdentity("default", "shop", 0, 1, "bench", 1, b"0123456789abcdef", 1)
TASKS = 50


@step
async def work(number: int) -> int:
    return number


@step
def sync_work(number: int) -> int:
    return number


@durable
async def chain(steps: int) -> int:
    total = 0
    for number in range(steps):
        total += await work(number)
    return total


@durable
async def tasks(steps: int) -> int:
    async def some(first: int) -> int:
        total = 0
        for number in range(first, steps, TASKS):
            total += await work(number)
        return total

    return sum(await asyncio.gather(*(some(first) for first in range(TASKS))))


@durable
def thread(steps: int) -> int:
    total = 0
    for number in range(steps):
        total += sync_work(number)
    return total


def journal_of(function: Durable[..., Any], steps: int) -> list[JournalRecord]:
    """The journal of a run without faults."""
    start = JournalRecord(0, Note(kind=RecordKind.STARTED, payload=b"[[%d],{}]" % steps))
    journal = [start]
    machine = ExecutionMachine(function, IDENTITY, Codec(), records_max=steps + 1_000)
    machine.leased(1 << 60)
    machine.load(journal)
    while not machine.is_closed:
        for effect in machine.ready(0):
            machine.finished(effect.path, effect.attempt, effect.args[0], 0)
        sending = machine.take()
        assert sending is not None
        first = journal[-1].index + 1
        journal += [JournalRecord(first + nth, note) for nth, note in enumerate(sending.notes)]
        machine.applied(sending.number, first)
    assert machine.put_away()
    return journal


def rate_of(function: Durable[..., Any], journal: list[JournalRecord]) -> float:
    machine = ExecutionMachine(function, IDENTITY, Codec())
    began = time.process_time()
    machine.load(journal)
    took = time.process_time() - began
    assert machine.end is not None
    assert machine.put_away()
    return (len(journal) - 1) / took


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=11)
    options = parser.parse_args(argv)
    rates: dict[str, int] = {}
    programs: list[tuple[str, Durable[..., Any]]] = [
        ("one_task", chain), ("tasks", tasks), ("thread", thread),
    ]  # fmt: skip
    for name, function in programs:
        journal = journal_of(function, options.records)
        measured = [rate_of(function, journal) for _ in range(options.rounds)]
        rates[name] = round(statistics.median(measured))
        print(f"{name:9} {rates[name]:>9,} records/s")
    print(msgspec.json.encode({"records": options.records, "records_per_s": rates}).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
