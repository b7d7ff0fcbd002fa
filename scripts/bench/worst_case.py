"""`make worst`: what the worst mix of work costs a partition, by its backlog and by its groups.

Measured is the state machine of one partition on disk, as each replica executes it: packing,
applying and committing entries, without network, log and fsync. Each partition begins with a
backlog. In each cycle, one entry produces 100 items, one leases 100, and one or two settle 100, so
that the backlog stays. The kinds of work:

    plain    a plain queue; each lease is completed as a whole
    worst    a fair queue of 1,000 groups, with 11 priorities in random order; 5,000 items are
             leased; of these, random ones are completed, and 5 % retried
    groups   a fair queue by turns; each lease is completed as a whole

Goals: the cost of an item is within 20 % for backlogs from 10,000 to 1,000,000, and an item of a
lease costs no more with 100,000 groups than with 1,000, within 20 %. The partitions work in turn,
and the medians of their rounds are compared. Figures are CPU time in microseconds per item. Writes
worst.json and worst.md. The last line is a summary in JSON; the exit code is 1 if a goal is missed.
"""

import argparse
import contextlib
import random
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from struct import pack
from typing import Any

import msgspec

from querator.model.commands import (
    Complete,
    Configure,
    FlowNames,
    FlowSettings,
    ItemSpecial,
    Lease,
    LeaseCaller,
    LeaseGrant,
    LeaseItems,
    PartitionSettings,
    Produce,
    Retry,
    SettleResult,
)
from querator.model.entries import Proposal
from querator.model.queues import Fairness, QueueKind
from querator.partition import masks
from querator.partition.machine import PartitionMachine
from querator.partition.queries import stats
from querator.storage import attachments
from querator.storage.lmdb_environment import LmdbEnvironment
from scripts.bench.report import keep, machine, named, versions

GROUP = 7
LOG_KEPT = 3
"""Entries that the log keeps."""
BACKLOGS = (10_000, 100_000, 1_000_000)
GROUPS = 1_000
MANY_GROUPS = 100_000
PRIORITIES = range(-5, 6)
BATCH = 100
FILL = 1_000
OUTSTANDING = 50
"""Leases that consumers of the worst kind hold."""
RETRIED = 0.05
PAYLOAD = bytes(100)
CYCLES = 100
ROUNDS = 5
GOAL = 1.2


class Work(msgspec.Struct, frozen=True):
    kind: str
    backlog: int
    groups: int

    @property
    def is_worst(self) -> bool:
        return self.kind == "worst"


class Row(msgspec.Struct, frozen=True):
    """Microseconds of CPU time per item."""

    kind: str
    backlog: int
    groups: int
    produce: float
    lease: float
    settle: float
    whole: float


class Results(msgspec.Struct, frozen=True):
    machine: str
    versions: dict[str, str]
    rows: list[Row]
    worst_ratio: float
    """The cost of an item of the worst kind: largest backlog to smallest."""
    plain_ratio: float
    groups_ratio: float
    """The cost of leasing an item: 100,000 groups to 1,000."""
    problems: list[str]


class Partition:
    """A partition with its backlog, and consumers that hold leases."""

    def __init__(self, work: Work, path: Path) -> None:
        self.work = work
        self._chance = random.Random(f"{work}")
        self._environment = LmdbEnvironment(path)
        self._machine = PartitionMachine(GROUP)
        self._index = 0
        self._parts: dict[int, int] = {}
        self._now_ms = 1_700_000_000_000
        self._held: list[tuple[int, int]] = []
        """(lease, sequence) of each leased item."""
        flows = None
        if work.groups:
            flows = FlowSettings(QueueKind.FAIR, Fairness.TURNS)
        settings = PartitionSettings(
            "default", "worst", 1, 0,
            lease_timeout_ms=30_000, expire_timeout_ms=0, max_attempts=0, dedup_window_ms=0,
            items_max=0, dead_targets=(), flows=flows,
        )  # fmt: skip
        self._entry(Configure(1, settings))
        for _ in range(work.backlog // FILL):
            self.produce(FILL)
        for _ in range(OUTSTANDING if work.is_worst else 0):
            self.lease()

    def close(self) -> None:
        self._environment.close()

    def produce(self, count: int) -> None:
        specials: tuple[ItemSpecial, ...] = ()
        if self.work.is_worst:
            drawn = self._chance.choices(PRIORITIES, k=count)
            specials = tuple(
                ItemSpecial(ordinal, priority=one) for ordinal, one in enumerate(drawn) if one
            )
        flows = None
        if self.work.groups:
            groups = self._chance.choices(range(self.work.groups), k=count)
            names = sorted(set(groups))
            places = {group: place for place, group in enumerate(names)}
            items = pack(f"<{count}H", *(places[group] for group in groups))
            flows = FlowNames(tuple(b"g%d" % name for name in names), items)
        lengths = pack(f"<{count}I", *[len(PAYLOAD)] * count)
        self._entry(Produce(lengths, specials=specials, flows=flows), PAYLOAD * count)

    def lease(self) -> int:
        """Leases BATCH items. Returns the lease."""
        result = self._entry(Lease((LeaseCaller("c", "", BATCH, 0),)))
        (grant,) = result.grants
        assert isinstance(grant, LeaseGrant)
        leased = sum(segment.count for segment in grant.segments)
        if leased != BATCH:
            raise RuntimeError(f"{self.work}: a lease got {leased} of {BATCH} items")
        if self.work.is_worst:
            self._held += [
                (grant.lease, segment.first_seq + ordinal)
                for segment in grant.segments
                for ordinal in masks.ordinals(segment.mask)
            ]
        return grant.lease

    def settle(self, lease: int) -> None:
        """Settles BATCH items: those of the lease, or random ones of the worst kind."""
        if not self.work.is_worst:
            self._settled(Complete((LeaseItems(lease),)))
            return
        chosen: dict[bool, dict[int, list[int]]] = {
            False: defaultdict(list), True: defaultdict(list),
        }  # fmt: skip
        for _ in range(BATCH):
            place = self._chance.randrange(len(self._held))
            self._held[place], self._held[-1] = self._held[-1], self._held[place]
            of, seq = self._held.pop()
            chosen[self._chance.random() < RETRIED][of].append(seq)
        for retried, leases in chosen.items():
            if leases:
                named = tuple(
                    LeaseItems(of, tuple((seq, 1) for seq in sorted(leases[of])))
                    for of in sorted(leases)
                )
                self._settled(Retry(named) if retried else Complete(named))

    def _settled(self, command: Complete | Retry) -> None:
        result = self._entry(command)
        assert isinstance(result, SettleResult)
        if any(one.lost for one in result.outcomes):
            raise RuntimeError(f"{self.work}: items were lost by their leases")

    def waiting(self) -> int:
        """The number of ready items."""
        with self._environment.snapshot() as txn:
            return stats(txn, GROUP).ready

    def round(self, cycles: int) -> tuple[float, float, float]:
        """Microseconds of CPU time per item: produce, lease, settle."""
        produce_s = lease_s = settle_s = 0.0
        for _ in range(cycles):
            self._now_ms += 1
            begun_s = time.thread_time()
            self.produce(BATCH)
            produced_s = time.thread_time()
            lease = self.lease()
            leased_s = time.thread_time()
            self.settle(lease)
            produce_s += produced_s - begun_s
            lease_s += leased_s - produced_s
            settle_s += time.thread_time() - leased_s
        items = cycles * BATCH
        return produce_s / items * 1e6, lease_s / items * 1e6, settle_s / items * 1e6

    def _entry(self, command: Any, attachment: bytes = b"") -> Any:
        entry = self._machine.pack([Proposal(command, attachment)], self._now_ms)
        self._index += 1
        self._parts[self._index] = len(entry.attachments)
        first = max(1, self._index - LOG_KEPT + 1)
        txn = self._environment.begin()
        for part, data in enumerate(entry.attachments):
            attachments.write(txn, GROUP, self._index, part, data)
        with txn.child() as child:
            applied = self._machine.apply(child, self._index, 1, entry.command, log_first=first)
        for index in [index for index in self._parts if index < first]:
            attachments.release(txn, GROUP, index, self._parts.pop(index))
        txn.commit(sync=False)
        (result,) = applied.results
        return result


def works(scale: float) -> list[Work]:
    backlogs = [max(FILL * 10, round(one * scale)) for one in BACKLOGS]
    found = [Work("plain", one, 0) for one in backlogs]
    found += [Work("worst", one, GROUPS) for one in backlogs]
    many = max(GROUPS * 10, round(MANY_GROUPS * scale))
    return [*found, *(Work("groups", backlogs[-1], groups) for groups in (1, GROUPS, many))]


def measure(scale: float, rounds: int, directory: Path) -> list[Row]:
    with contextlib.ExitStack() as open_ones:
        partitions = []
        for number, work in enumerate(works(scale)):
            begun_s = time.monotonic()
            partition = Partition(work, directory / str(number))
            open_ones.callback(partition.close)
            partitions.append(partition)
            took_s = time.monotonic() - begun_s
            print(f"{work.kind}, {work.backlog:,} items: made in {took_s:.0f} s", flush=True)
        figures: list[list[tuple[float, float, float]]] = [[] for _ in partitions]
        for number in range(rounds + 1):
            for partition, found in zip(partitions, figures, strict=True):
                figure = partition.round(CYCLES)
                if number:  # The first round only warms up.
                    found.append(figure)
            print(f"round {number} of {rounds}", flush=True)
    return [
        _row(partition.work, found) for partition, found in zip(partitions, figures, strict=True)
    ]


def _row(work: Work, figures: list[tuple[float, float, float]]) -> Row:
    produce, lease, settle = (
        round(median(figure[place] for figure in figures), 2) for place in range(3)
    )
    whole = round(median(sum(figure) for figure in figures), 2)
    return Row(work.kind, work.backlog, work.groups, produce, lease, settle, whole)


def results_of(rows: list[Row]) -> Results:
    def ratio(kind: str) -> float:
        costs = [row.whole for row in rows if row.kind == kind]
        return round(costs[-1] / costs[0], 2)

    leases = {row.groups: row.lease for row in rows if row.kind == "groups"}
    found = {
        "worst": ratio("worst"),
        "plain": ratio("plain"),
        "groups": round(leases[max(leases)] / leases[GROUPS], 2),
    }
    problems = [
        f"{kind}: {one} times the cost, and the goal is {GOAL}"
        for kind, one in found.items()
        if one > GOAL
    ]
    return Results(
        machine=machine(),
        versions=versions(),
        rows=rows,
        worst_ratio=found["worst"],
        plain_ratio=found["plain"],
        groups_ratio=found["groups"],
        problems=problems,
    )


def as_markdown(results: Results) -> str:
    text = (
        f"One partition on {results.machine}; {named()}; CPU µs per item.\n\n"
        "| work | backlog | groups | produce | lease | settle | all |\n"
        "|---|---|---|---|---|---|---|\n"
    )
    for row in results.rows:
        text += (
            f"| {row.kind} | {row.backlog:,} | {row.groups:,} | {row.produce:.1f} "
            f"| {row.lease:.1f} | {row.settle:.1f} | {row.whole:.1f} |\n"
        )
    text += (
        f"\nLargest backlog to smallest: worst {results.worst_ratio:.2f}, plain "
        f"{results.plain_ratio:.2f}. Lease with the most groups to {GROUPS:,}: "
        f"{results.groups_ratio:.2f}. Goal for each: at most {GOAL}.\n"
    )
    return text + "".join(f"\nMISSED: {problem}.\n" for problem in results.problems)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench.worst_case",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--scale", type=float, default=1.0, help="of backlogs and groups (1)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"measured rounds ({ROUNDS})")
    parser.add_argument("--output", type=Path, default=Path("build/bench"))
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="querator-worst-") as name:
        rows = measure(arguments.scale, arguments.rounds, Path(name))
    results = results_of(rows)
    keep(results, as_markdown(results), arguments.output, "worst")
    if results.problems:
        sys.exit(1)


if __name__ == "__main__":
    main()
