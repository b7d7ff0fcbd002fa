"""Durable functions on a real partition: the worker's machine and the partition's rules together.

`RealPartition` takes the place of the model that the tests of the machine have (`MemoryPartition`):
its journal is that of a partition's tables. So the programs and faults of those tests run on what a
cluster runs, without a network: workers die between any two moves, or stand still past their leases
and continue; signals come late. In addition, each Record may be sent twice, as after a lost answer,
and each signal may be repeated.
"""

import argparse
import random
import sys
from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import partial
from struct import pack
from typing import Any

from querator.client.items import encode_items
from querator.durable import Durable
from querator.durable.arguments import encode_arguments
from querator.durable.codec import Codec
from querator.durable.outbox import Sending
from querator.model.commands import Expire, MoveDone, Refusal
from querator.model.errors import ErrorCode
from querator.model.execution_commands import (
    Arrived,
    FireTimers,
    Recorded,
    RecordProgress,
    SentItems,
    Started,
    check_record,
)
from querator.model.executions import (
    ArriveKind,
    Close,
    ExecutionState,
    JournalRecord,
    Note,
    Published,
    RecordKind,
)
from querator.model.item_options import FollowTarget
from querator.model.limits import JOURNAL_INLINE_BYTES_MAX
from querator.partition import invariants
from querator.partition.outbox import outbox_batch
from querator.v1.queue_service_pb2 import FollowUps
from tests.unit.durable.faulty_runs import FaultyRun, Violation
from tests.unit.durable.memory_partition import START_MS, LeaseLost, MemoryPartition, Unseen
from tests.unit.partition.execution_queue import ExecutionQueue, Worker
from tests.unit.partition.partition_log import PartitionLog

NAME = "order-17"
QUEUES = {"seen": 901, "parts": 902}
"""The groups of the queues into which the programs produce."""
LEASE_MS = 10_000
_STATES = {
    ExecutionState.RUNNABLE: "runnable",
    ExecutionState.PARKED: "parked",
    ExecutionState.STUCK: "stuck",
}


def _sent(sending: Sending) -> SentItems | None:
    """The items of a Record, as a node sends them to the only partitions of their queues."""
    if not sending.produced:
        return None
    sizes = [encode_items([item]).size for one in sending.produced for item in one.items]
    return SentItems(
        pack(f"<{len(sizes)}I", *sizes),
        tuple(
            FollowTarget(one.queue, 0, QUEUES[one.queue], len(one.items))
            for one in sending.produced
        ),
    )


class RealPartition(MemoryPartition):
    """One execution in the tables of a partition. Leases end when another worker takes over."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._chance = random.Random(f"partition {seed}")
        self.log = PartitionLog(checked=False)
        self.log.now_ms = START_MS
        self._queue = ExecutionQueue(log=self.log, lease_timeout_ms=LEASE_MS)
        self._workers: dict[int, Worker] = {}
        self._messages = self.repeats = 0

    def start(
        self, function: Durable[..., Any], *args: Any, codec: Codec | None = None, **kwargs: Any
    ) -> "RealPartition":
        payload = encode_arguments(function, codec or Codec(), args, kwargs)
        for attached in (False, True):
            started = self._queue.start(NAME, function=function.name, payload=payload)
            assert isinstance(started, Started)
            assert started.attached is attached
        self._look()
        return self

    def grant(self) -> int:
        """Another worker gets the activation. The lease before it lapses first."""
        if self.lease:
            self.log.now_ms += LEASE_MS + 1
            self.log.one(Expire())
        [worker] = self._queue.lease()
        self.lease = worker.lease
        self._workers[worker.lease] = worker
        self._look()
        return worker.lease

    def record(self, lease: int, sending: Sending) -> int:
        assert all(len(note.payload) <= JOURNAL_INLINE_BYTES_MAX for note in sending.notes)
        command = RecordProgress(
            *self._workers[lease], sending.number, sending.seen, sending.notes, sending.folds,
            sending.timers, sending.then,
            published=tuple(Published(key, value) for key, value in sending.published),
            sent=_sent(sending),
        )  # fmt: skip
        check_record(command)
        items = b"".join(one.encoded for one in sending.produced)
        result = self.log.one(command, items)
        if isinstance(result, Refusal):
            self._look()
            if result.code is ErrorCode.LEASE_LOST:
                raise LeaseLost
            assert result.code is ErrorCode.UNSEEN, result
            raise Unseen
        assert isinstance(result, Recorded)
        if self._chance.random() < 0.2:
            self.repeats += 1
            again = self.log.one(command, items)
            assert isinstance(again, Recorded), again
            assert (again.repeated, again.first_index) == (True, result.first_index)
        self._set_timers(sending)
        self.folded += sum(count for fold in sending.folds for _, count in fold.removed)
        for queue, group in QUEUES.items():
            self._carry(queue, group)
        self._look()
        return result.first_index

    def _carry(self, queue: str, group: int) -> None:
        """Brings items from the outbox to their queue."""
        while True:
            with self.log.environment.snapshot() as txn:
                batch = outbox_batch(txn, self.log.group, group)
            if batch is None:
                return
            items = FollowUps.FromString(batch.attachment).items
            self.produced.setdefault(queue, []).extend(one.payload.decode() for one in items)
            self.log.one(MoveDone(group, batch.first_move + len(items) - 1))

    def arrive(self, note: Note) -> JournalRecord:
        """Signals, resolutions and cancellations, as clients send them."""
        if note.kind == RecordKind.SIGNAL:
            self._messages += 1
            message_id = f"message {self._messages}"
            signal = partial(self._queue.signal, note.name, NAME, message_id=message_id)
            result = signal(payload=note.payload)
            if self._chance.random() < 0.3:
                again = signal(payload=b"?")
                assert isinstance(again, Arrived)
                assert (again.repeated, again.index) == (True, result.index)
        elif note.kind == RecordKind.RESOLVED:
            number = self._queue.view(NAME).number
            result = self._queue.resolve(number, note.path, note.payload)
        else:
            assert note.kind == RecordKind.CANCEL
            result = self._queue.arrive(ArriveKind.CANCEL, NAME, payload=note.payload)
        assert isinstance(result, Arrived), result
        self._look()
        return next(each for each in self.journal if each.index == result.index)

    def fire(self, now_ms: int) -> list[JournalRecord]:
        known = {each.index for each in self.journal}
        self.log.now_ms = max(self.log.now_ms, now_ms)
        self.log.one(FireTimers())
        for path in [path for path, due_ms in self.timers.items() if due_ms <= self.log.now_ms]:
            del self.timers[path]
            self.fired.add(path)
        self._look()
        return [each for each in self.journal if each.index not in known]

    def _look(self) -> None:
        """Reads what the partition has."""
        view = self._queue.view(NAME)
        self.journal[:] = self._queue.journal(NAME)
        self.state, self.reason = _STATES.get(view.state, "closed"), view.reason
        self.published = self._queue.published(NAME)
        self.was_published += self.published.items()
        if view.state.closed:
            end = self._queue.end(NAME).note
            self.end = Close(end.kind, end.payload)

    def check(self) -> None:
        with self.log.environment.snapshot() as txn:
            assert invariants.check(txn, self.log.group) == []


@dataclass
class Tally:
    """What many runs have seen."""

    runs: int = 0
    effects: int = 0
    deaths: int = 0
    refused: int = 0
    """Records of workers whose leases were over."""
    folded: int = 0
    repeats: int = 0


def many(seeds: Iterable[int]) -> Tally:
    """Runs with faults, one for each seed. The checks are those of `FaultyRun`, and the invariants
    of the partition at the end. Raises Violation.
    """
    tally = Tally()
    for seed in seeds:
        partition = RealPartition(seed)
        one = FaultyRun(seed, partition=partition)
        one.run()
        partition.check()
        tally.runs += 1
        tally.effects += one.effects
        tally.deaths += one.deaths
        tally.refused += one.refused
        tally.folded += partition.folded
        tally.repeats += partition.repeats
    return tally


def main() -> int:
    """Runs a number of seeds, and says what they have seen."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seeds", type=int, default=1_000)
    parser.add_argument("--start", type=int, default=1)
    options = parser.parse_args()
    failed = 0
    total = Tally()
    for seed in range(options.start, options.start + options.seeds):
        try:
            tally = many([seed])
        except Violation as violation:
            failed += 1
            sys.stdout.write(f"seed {seed}: {violation}\n")
        else:
            for field in fields(Tally):
                setattr(total, field.name, getattr(total, field.name) + getattr(tally, field.name))
    sys.stdout.write(f"{total}, {failed} seeds with violations\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
