"""`make journal`: what a Record costs a partition, by the length of its journal and by how many
executions are parked.

Measured is the state machine of one partition on disk, as each replica executes it: packing,
applying and committing entries, without network, log and fsync. In each round, BATCH executions
append one record of 150 bytes each, in one entry. The works:

    records   executions whose journals have 10, 1,000 or 9,800 records, and nothing else
    parked    executions with 10 records, beside 0, 100,000 or 1,000,000 that are parked

Goal: the cost of a Record is within 20 % in each work. The partitions work in turn, and the medians
of their rounds are compared. Figures are CPU time in microseconds per Record. Writes journal.json
and journal.md. The last line is a summary in JSON; the exit code is 1 if a goal is missed.
"""

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from querator.model.commands import (
    Configure,
    Lease,
    LeaseCaller,
    LeaseGrant,
    PartitionSettings,
)
from querator.model.entries import Proposal
from querator.model.execution_commands import Recorded, RecordProgress, Started, StartExecution
from querator.model.executions import Note, Park, RecordKind, encode_path
from querator.model.queues import ExecutionSettings
from querator.partition import masks
from querator.partition.execution_queries import execution_at
from querator.partition.machine import PartitionMachine
from querator.storage import attachments
from querator.storage.lmdb_environment import LmdbEnvironment
from scripts.bench.report import keep, machine, named, versions

GROUP = 7
LOG_KEPT = 3
RECORDS = (10, 1_000, 9_800)
"""Records of a journal; near the limit of a run, with room for those that are measured."""
PARKED = (0, 100_000, 1_000_000)
BATCH = 50
FILL = 200
CYCLES = 15
ROUNDS = 5
GOAL = 1.2
STEP = Note(
    RecordKind.STEP_DONE, encode_path([1]), "shop.charge", "shop/checkout.py:41",
    payload=bytes(150),
)  # fmt: skip
PARKS = Park(names=("go",))


class Work(msgspec.Struct, frozen=True):
    records: int
    parked: int


class Row(msgspec.Struct, frozen=True):
    """Microseconds of CPU time per Record."""

    records: int
    parked: int
    cost: float


class Results(msgspec.Struct, frozen=True):
    machine: str
    versions: dict[str, str]
    rows: list[Row]
    records_ratio: float
    """The cost of a Record: longest journal to shortest."""
    parked_ratio: float
    """The same: most parked executions to none."""
    problems: list[str]


class Partition:
    """A partition with BATCH executions that are leased, and others that are parked."""

    def __init__(self, work: Work, path: Path) -> None:
        self.work = work
        self._environment = LmdbEnvironment(path)
        self._machine = PartitionMachine(GROUP)
        self._index = 0
        self._parts: dict[int, int] = {}
        self._numbers: dict[int, int] = {}
        settings = PartitionSettings(
            "default", "journal", 1, 0,
            lease_timeout_ms=86_400_000, expire_timeout_ms=0, max_attempts=0, dedup_window_ms=0,
            items_max=0, executions=ExecutionSettings(),
        )  # fmt: skip
        self._entry([Configure(1, settings)])
        for begin in range(0, work.parked, FILL):
            count = min(FILL, work.parked - begin)
            workers = self._start(f"parked-{begin}", count)
            self._record(workers, STEP, then=PARKS)
        self._workers = self._start("busy", BATCH)
        left = work.records - 1
        while left > 0:
            some = min(left, 250)
            self._record(self._workers, *[STEP] * some)
            left -= some

    def close(self) -> None:
        self._environment.close()

    def round(self, cycles: int) -> float:
        """Microseconds of CPU time per Record."""
        begun_s = time.thread_time()
        for _ in range(cycles):
            self._record(self._workers, STEP)
        return (time.thread_time() - begun_s) / (cycles * BATCH) * 1e6

    def _start(self, name: str, count: int) -> list[tuple[int, int, int]]:
        """Starts executions and leases them: (execution, item, lease)."""
        results = self._entry(
            [
                StartExecution(f"{name}-{nth}", "shop.checkout", "9f31c2", bytes(16), bytes(16))
                for nth in range(count)
            ]
        )
        assert all(isinstance(result, Started) for result in results)
        (leased,) = self._entry([Lease((LeaseCaller("worker", "", count, 0),))])
        (grant,) = leased.grants
        assert isinstance(grant, LeaseGrant)
        workers = []
        with self._environment.snapshot() as txn:
            for segment in grant.segments:
                for ordinal in masks.ordinals(segment.mask):
                    seq = segment.first_seq + ordinal
                    view = execution_at(txn, GROUP, seq)
                    assert view is not None
                    workers.append((view.number, seq, grant.lease))
        assert len(workers) == count
        return workers

    def _record(self, workers: Sequence[tuple[int, int, int]], *notes: Note, **more: Any) -> None:
        commands = []
        for worker in workers:
            number = self._numbers[worker[0]] = self._numbers.get(worker[0], 0) + 1
            commands.append(RecordProgress(*worker, number, records=notes, **more))
        results = self._entry(commands)
        if "then" in more:
            for worker in workers:
                del self._numbers[worker[0]]
        if not all(isinstance(result, Recorded) for result in results):
            raise RuntimeError(f"{self.work}: a Record was refused: {results[0]}")

    def _entry(self, commands: Sequence[Any]) -> tuple[Any, ...]:
        entry = self._machine.pack([Proposal(command) for command in commands], 1_700_000_000_000)
        self._index += 1
        self._parts[self._index] = len(entry.attachments)
        first = max(1, self._index - LOG_KEPT + 1)
        txn = self._environment.begin()
        with txn.child() as child:
            applied = self._machine.apply(child, self._index, 1, entry.command, log_first=first)
        for index in [index for index in self._parts if index < first]:
            attachments.release(txn, GROUP, index, self._parts.pop(index))
        txn.commit(sync=False)
        return applied.results


def works(scale: float) -> list[Work]:
    found = [Work(one, 0) for one in RECORDS]
    return [*found, *(Work(RECORDS[0], round(one * scale)) for one in PARKED)]


def measure(scale: float, rounds: int, directory: Path) -> list[Row]:
    with contextlib.ExitStack() as open_ones:
        partitions = []
        for number, work in enumerate(works(scale)):
            begun_s = time.monotonic()
            partition = Partition(work, directory / str(number))
            open_ones.callback(partition.close)
            partitions.append(partition)
            took_s = time.monotonic() - begun_s
            print(f"{work.records:,} records, {work.parked:,} parked: made in {took_s:.0f} s",
                  flush=True)  # fmt: skip
        figures: list[list[float]] = [[] for _ in partitions]
        for number in range(rounds + 1):
            for partition, found in zip(partitions, figures, strict=True):
                figure = partition.round(CYCLES)
                if number:  # The first round only warms up.
                    found.append(figure)
            print(f"round {number} of {rounds}", flush=True)
    return [
        Row(partition.work.records, partition.work.parked, round(median(found), 2))
        for partition, found in zip(partitions, figures, strict=True)
    ]


def results_of(rows: list[Row]) -> Results:
    half = len(RECORDS)
    ratios = {
        "records": round(rows[half - 1].cost / rows[0].cost, 2),
        "parked": round(rows[-1].cost / rows[half].cost, 2),
    }
    problems = [
        f"{work}: {one} times the cost, and the goal is {GOAL}"
        for work, one in ratios.items()
        if one > GOAL
    ]
    return Results(
        machine=machine(),
        versions=versions(),
        rows=rows,
        records_ratio=ratios["records"],
        parked_ratio=ratios["parked"],
        problems=problems,
    )


def as_markdown(results: Results) -> str:
    text = (
        f"One partition on {results.machine}; {named()}; CPU µs per Record.\n\n"
        "| records in the journal | parked executions | Record |\n|---|---|---|\n"
    )
    for row in results.rows:
        text += f"| {row.records:,} | {row.parked:,} | {row.cost:.1f} |\n"
    text += (
        f"\nLongest journal to shortest: {results.records_ratio:.2f}. Most parked executions to "
        f"none: {results.parked_ratio:.2f}. Goal for each: at most {GOAL}.\n"
    )
    return text + "".join(f"\nMISSED: {problem}.\n" for problem in results.problems)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench.journal",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--scale", type=float, default=1.0, help="of parked executions (1)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"measured rounds ({ROUNDS})")
    parser.add_argument("--output", type=Path, default=Path("build/bench"))
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        rows = measure(arguments.scale, arguments.rounds, Path(directory))
    results = results_of(rows)
    keep(results, as_markdown(results), arguments.output, "journal")
    sys.exit(bool(results.problems))


if __name__ == "__main__":
    main()
