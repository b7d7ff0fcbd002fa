"""Executions with children on a real partition: workers that run all of them, with faults or not.

`Family` is a partition with its queue, and holders: machines under the leases of activations. A
run is a series of moves, chosen by chance: an activation is leased, an effect begins or ends, a
worker hears what has arrived, a Record is taken, sent, and sent again as after a lost answer. With
faults, workers die between any two moves, or stand still past their leases and continue, and a
client cancels or terminates executions.
"""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from querator.client.executions import ProgressReport, progress_request
from querator.durable import Durable
from querator.durable.arguments import encode_arguments
from querator.durable.codec import Codec
from querator.durable.machine import ExecutionMachine
from querator.durable.operations import Effect
from querator.durable.outbox import Sending
from querator.durable.promises import ExecutionIdentity
from querator.model.commands import Expire, Extend, Refusal
from querator.model.errors import ErrorCode
from querator.model.execution_calls import ExecutionView
from querator.model.execution_commands import (
    FireTimers,
    Recorded,
    RecordProgress,
    Started,
)
from querator.model.executions import ArriveKind, ExecutionState, JournalRecord
from querator.model.limits import EXECUTION_RETENTION_MS_MAX
from querator.partition import invariants
from querator.partition.execution_queries import list_executions
from querator.wire.executions import parse_progress
from tests.unit.durable.memory_partition import START_MS, awaited_timers, outcome_of
from tests.unit.partition.execution_queue import ExecutionQueue, Worker
from tests.unit.partition.partition_log import PartitionLog

LEASE_MS = 10_000
CODEC = Codec()
_MOVES_MAX = 20_000


@dataclass
class Holder:
    """A machine that runs an execution under a lease."""

    worker: Worker
    machine: ExecutionMachine
    known: int
    running: dict[tuple[bytes, int], Effect] = field(default_factory=dict)
    sending: Sending | None = None
    is_late: bool = False
    """It stands still: its lease is over."""


class Family:
    """See the module. `faults`: how often a move is a fault, from 0 to 1."""

    def __init__(
        self, functions: Iterable[Durable[..., Any]], seed: int = 0, *, faults: float = 0.0
    ) -> None:
        self.chance = random.Random(f"family {seed}")
        self.log = PartitionLog(checked=False)
        self.log.now_ms = START_MS
        self.queue = ExecutionQueue(
            log=self.log, retention_ms=EXECUTION_RETENTION_MS_MAX, lease_timeout_ms=LEASE_MS
        )
        self.holders: list[Holder] = []
        self.begun: list[Effect] = []
        self.deaths = self.refused = self.repeats = self.records = 0
        self.crash_at = 0
        """The worker dies when the Record of this number is applied, before its answer."""
        self.after_move: Callable[[], None] = lambda: None
        self._idle = 0
        self._functions = {each.name: each for each in functions}
        self._faults = faults

    # --- what clients do -------------------------------------------------------------------------

    def start(self, name: str, function: Durable[..., Any], *args: Any) -> None:
        payload = encode_arguments(function, CODEC, args, {})
        started = self.queue.start(name, function=function.name, payload=payload)
        assert isinstance(started, Started)

    def end(self, kind: ArriveKind, name: str) -> None:
        """A client cancels or terminates an execution, which may have ended."""
        result = self.queue.arrive(kind, name)
        if isinstance(result, Refusal):
            assert result.code is ErrorCode.EXECUTION_CLOSED, result
        self.check()

    def lose(self, execution: int) -> None:
        """Its worker hears that its lease is over, or stands still and does not."""
        for holder in [each for each in self.holders if each.worker.execution == execution]:
            if self.chance.random() < 0.5:
                holder.is_late = True
            else:
                self._drop(holder)

    def views(self) -> list[ExecutionView]:
        """All executions, in the order of their starts."""
        with self.log.environment.snapshot() as txn:
            page = list_executions(
                txn, self.log.group, after=0, function="", state=None, count_max=100_000,
                rows_max=100_000,
            )  # fmt: skip
        return list(page.executions)

    def result(self, name: str) -> Any:
        """The result as plain JSON, the exception, or the name of another end."""
        view, note = self.queue.view(name), self.queue.end(name).note
        if view.state is ExecutionState.COMPLETED:
            return CODEC.decode(note.payload, Any)
        if view.state is ExecutionState.FAILED:
            return CODEC.decode_error(note.payload)
        return view.state.name

    # --- the run ---------------------------------------------------------------------------------

    def run(self) -> None:
        """Until all executions have ended, and no worker is left."""
        try:
            for _ in range(_MOVES_MAX):
                if self._is_over():
                    break
                self.move()
                self.after_move()
            else:
                states = {view.id: (view.state.name, view.reason) for view in self.views()}
                raise AssertionError(f"the run does not end: {states}")
        finally:
            for holder in self.holders:
                assert holder.machine.put_away()
            self.holders.clear()
        self.check()

    def check(self) -> None:
        """The invariants of the partition."""
        with self.log.environment.snapshot() as txn:
            assert invariants.check(txn, self.log.group) == []

    def until_parked(self, name: str) -> None:
        """Until an execution is there, and waits."""
        for _ in range(_MOVES_MAX):
            view = self.queue.find(name)
            if view is not None and view.state is ExecutionState.PARKED:
                return
            self.move()
        raise AssertionError(f"{name} does not park")

    def _is_over(self) -> bool:
        return all(each.is_late for each in self.holders) and all(
            view.state.closed for view in self.views()
        )

    def move(self) -> None:
        if self.chance.random() < self._faults:
            self._fault()
            return
        living = [each for each in self.holders if not each.is_late]
        if not living or self.chance.random() < 0.2:
            if not self._lease() and not living:
                self._pass_time()
            return
        self._act(self.chance.choice(living))

    def _act(self, holder: Holder) -> None:
        machine = holder.machine
        roll = self.chance.random()
        if roll < 0.2:
            self._hear(holder)
        elif roll < 0.4 and holder.running:
            self._finish(holder)
        elif roll < 0.5:
            machine.tick(self.log.now_ms)
        elif roll < 0.6:
            for effect in machine.ready(self.log.now_ms):
                holder.running[effect.path, effect.attempt] = effect
                self.begun.append(effect)
        else:
            self._send(holder)

    def _pass_time(self) -> None:
        """Nothing can be done: a timer is waited for, or the end of a lease."""
        self._idle += 1
        self.log.now_ms += 1_000 << min(self._idle, 20)
        self.log.one(Expire())
        self.log.one(FireTimers())

    def _lease(self) -> bool:
        self.log.one(FireTimers())
        workers = self.queue.lease()
        for worker in workers:
            self._idle = 0
            self._begin(worker)
        return bool(workers)

    def _begin(self, worker: Worker) -> None:
        view = self.queue.at(worker.item)
        identity = ExecutionIdentity(
            "default", "shop", 3, view.number, view.id, view.run, view.secret,
            view.origin,
        )  # fmt: skip
        machine = ExecutionMachine(self._functions[view.function], identity, CODEC)
        machine.leased(1 << 60)
        journal = self.queue.journal(view.id)
        machine.load(journal, timers=view.timer_paths)
        self.holders.append(Holder(worker, machine, journal[-1].index))

    def _hear(self, holder: Holder) -> None:
        news = self._since(holder)
        if news and not holder.machine.is_parked:
            holder.known = news[-1].index
            holder.machine.arrive(news)
            self._drop_abandoned(holder)

    def _since(self, holder: Holder) -> list[JournalRecord]:
        name = holder.machine.code.identity.id
        return [each for each in self.queue.journal(name) if each.index > holder.known]

    def _finish(self, holder: Holder) -> None:
        effect = self.chance.choice(list(holder.running.values()))
        del holder.running[effect.path, effect.attempt]
        now_ms = self.log.now_ms
        try:
            value = outcome_of(effect)
        except Exception as error:  # noqa: BLE001 - it is the outcome of the step.
            holder.machine.failed(effect.path, effect.attempt, error, now_ms)
        else:
            holder.machine.finished(effect.path, effect.attempt, value, now_ms)
        self._drop_abandoned(holder)

    @staticmethod
    def _drop_abandoned(holder: Holder) -> None:
        gone = set(holder.machine.code.abandoned)
        holder.machine.code.abandoned.clear()
        for key in [key for key in holder.running if key[0] in gone]:
            del holder.running[key]

    def _send(self, holder: Holder) -> None:
        """Takes a Record, or sends the one that was taken."""
        if holder.sending is None:
            holder.sending = holder.machine.take(should_park=holder.machine.can_park)
            return
        sending, holder.sending = holder.sending, None
        command, data = self._call(holder.worker, sending)
        result = self.log.one(command, data)
        if self.chance.random() < 0.2:
            self.repeats += 1
            again = self.log.one(command, data)
            assert type(again) is type(result), (result, again)
            if isinstance(again, Recorded) and isinstance(result, Recorded):
                assert (again.repeated, again.first_index) == (True, result.first_index)
        self.records += isinstance(result, Recorded)
        if self.records == self.crash_at and isinstance(result, Recorded):
            self._lapse(holder)
            self._drop(holder)
        elif isinstance(result, Recorded):
            holder.machine.applied(sending.number, result.first_index)
            assert not holder.is_late, "the lease is the fence of every Record"
            if holder.machine.is_parked:
                timers = self.queue.view(holder.machine.code.identity.id).timers
                assert timers == len(awaited_timers(holder.machine)), "timers of the partition"
            if holder.machine.is_parked or holder.machine.is_closed:
                self._drop(holder)
        elif isinstance(result, Refusal) and result.code is ErrorCode.UNSEEN:
            holder.machine.refused(sending.number)
            self._hear(holder)
        else:
            assert isinstance(result, Refusal)
            assert result.code in (ErrorCode.LEASE_LOST, ErrorCode.EXECUTION_NOT_FOUND), result
            self.refused += 1
            self._drop(holder)

    @staticmethod
    def _call(worker: Worker, sending: Sending) -> tuple[RecordProgress, bytes]:
        """The command, as a node makes it of the message of a worker."""
        report = ProgressReport(
            lease_id=f"1.0.{worker.lease:x}", item=worker.item,
            execution=worker.execution, number=sending.number, seen=sending.seen,
            records=sending.notes, folds=sending.folds, timers=sending.timers,
            children=sending.children, cancels=sending.cancels, then=sending.then,
        )  # fmt: skip
        call = parse_progress(
            progress_request("default", "shop", report).SerializeToString(), now_ms=0
        )
        return call.command, call.attachment

    def _drop(self, holder: Holder) -> None:
        self.holders.remove(holder)
        assert holder.machine.put_away()

    # --- faults ----------------------------------------------------------------------------------

    def _fault(self) -> None:
        late = [each for each in self.holders if each.is_late]
        if late and self.chance.random() < 0.6:
            holder = self.chance.choice(late)
            if holder.sending is None and holder.machine.is_over:
                self._drop(holder)
            else:
                self._send(holder)
        elif living := [each for each in self.holders if not each.is_late]:
            self._die(self.chance.choice(living))

    def _die(self, holder: Holder) -> None:
        self.deaths += 1
        self._lapse(holder)
        if self.chance.random() < 0.5:
            holder.is_late = True
        else:
            self._drop(holder)

    def _lapse(self, holder: Holder) -> None:
        """The lease lapses. Those of others are extended."""
        self.log.now_ms += LEASE_MS - 1
        for other in self.holders:
            if other is not holder and not other.is_late:
                self.log.one(Extend((other.worker.lease,), lease_timeout_ms=LEASE_MS))
        self.log.now_ms += 2
        self.log.one(Expire())
