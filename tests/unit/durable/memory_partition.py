"""One execution in memory: its journal by the rules of a partition, and workers that run its code.

`MemoryPartition` appends Records under a lease and applies folds, timers and parks. `Worker` holds
a machine and its effects under way. `run_straight` is a run without faults under virtual time.
"""

import heapq
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from querator.durable import Durable
from querator.durable import machine as machines
from querator.durable.arguments import encode_arguments
from querator.durable.codec import Codec
from querator.durable.context import STEP
from querator.durable.machine import ExecutionMachine
from querator.durable.operations import Effect
from querator.durable.outbox import Sending
from querator.durable.promises import ExecutionIdentity
from querator.model.executions import (
    ARRIVAL,
    Close,
    Fold,
    GiveBack,
    JournalRecord,
    Note,
    Park,
    RecordKind,
    check_fold,
    check_note,
    check_then,
    is_below,
)

_KEPT: list[ExecutionMachine] = []
START_MS = 1_700_000_000_000
FOREVER_MS = 1 << 60
IDENTITY = ExecutionIdentity("default", "shop", 3, 17, "order-17", 1, b"0123456789abcdef", 1)


class LeaseLost(Exception):
    """The lease of a Record is not the one of the activation."""


class Unseen(Exception):
    """Something has arrived that the worker had not seen when it parked."""


@dataclass
class MemoryPartition:
    """The journal of one execution, and what its partition decides. `fenced`, `fold_at_end` and
    `keeps_after` make mutants of it.
    """

    fenced: bool = True
    fold_at_end: bool = False
    keeps_after: bool = True
    folds: bool = True
    """Whether it takes folds; else journals keep all records."""
    journal: list[JournalRecord] = field(default_factory=list)
    timers: dict[bytes, int] = field(default_factory=dict)
    fired: set[bytes] = field(default_factory=set)
    published: dict[str, bytes] = field(default_factory=dict)
    was_published: list[tuple[str, bytes]] = field(default_factory=list)
    """All that readers may have seen."""
    produced: dict[str, list[str]] = field(default_factory=dict)
    """Payloads of the items by queue, as texts."""
    state: str = "runnable"
    reason: str = ""
    end: Close | None = None
    lease: int = 0
    folded: int = 0
    _next: int = 0
    _number: int = 0
    _seen: int = 0
    _after: int = 0
    _wake: Park = field(default_factory=Park)

    @property
    def close(self) -> Close:
        """How the execution has ended."""
        assert self.end is not None, (self.state, self.reason)
        return self.end

    def start(
        self, function: Durable[..., Any], *args: Any, codec: Codec | None = None, **kwargs: Any
    ) -> "MemoryPartition":
        payload = encode_arguments(function, codec or Codec(), args, kwargs)
        self._append(Note(kind=RecordKind.STARTED, at_ms=START_MS, payload=payload))
        return self

    def grant(self) -> int:
        """A lease of the activation; the one before it is over."""
        self.lease += 1
        self._number = 0
        self.state = "runnable"
        return self.lease

    def record(self, lease: int, sending: Sending) -> int:
        """The index of its first record. Raises LeaseLost and Unseen."""
        if self.fenced:
            if lease != self.lease:
                raise LeaseLost
            assert sending.number == self._number + 1, "Records are numbered under a lease"
            for note in sending.notes:
                self._check_once(note)
        check_then(sending.then)
        if isinstance(sending.then, Park) and self._has_unseen(sending.then, sending.seen):
            raise Unseen
        self._number = sending.number
        if self.fenced:
            self._check_order(sending)
        first = self._next
        for nth, note in enumerate(sending.notes):
            check_note(note, field=f"notes[{nth}]")
            self._append(note if self.keeps_after else changed(note, after=0))
        for nth, fold in enumerate(sending.folds):
            check_fold(fold, field=f"folds[{nth}]")
            if self.folds:
                self._fold(fold)
        self._set_timers(sending)
        self._keep_outgoing(sending)
        match sending.then:
            case Park() as park:
                self.state = "parked"
                self._wake = park
            case Close() as close:
                self.state = "closed"
                self.end = close
            case GiveBack() as back:
                self.state = "stuck" if back.stuck else "pinned" if back.pinned else "runnable"
                self.reason = back.reason
        return first

    def _keep_outgoing(self, sending: Sending) -> None:
        self.published |= dict(sending.published)
        self.was_published += sending.published
        for items in sending.produced:
            self.produced.setdefault(items.queue, []).extend(
                str(one.payload) for one in items.items
            )

    def _set_timers(self, sending: Sending) -> None:
        for timer in sending.timers:
            if not timer.due_ms:
                self.timers.pop(timer.path, None)
            elif timer.path not in self.fired:
                self.timers.setdefault(timer.path, timer.due_ms)

    def arrive(self, note: Note) -> JournalRecord:
        record = self._append(note)
        if self.state == "parked" and _is_for(self._wake, note):
            self.state = "runnable"
        return record

    def signal(self, name: str, payload: bytes, at_ms: int = START_MS) -> JournalRecord:
        return self.arrive(Note(kind=RecordKind.SIGNAL, name=name, payload=payload, at_ms=at_ms))

    def resolve(self, path: bytes, payload: bytes, at_ms: int = START_MS) -> JournalRecord:
        return self.arrive(Note(kind=RecordKind.RESOLVED, path=path, payload=payload, at_ms=at_ms))

    def cancel(self, reason: bytes = b"", at_ms: int = START_MS) -> JournalRecord:
        return self.arrive(Note(kind=RecordKind.CANCEL, name="cancel", payload=reason, at_ms=at_ms))

    def fire(self, now_ms: int) -> list[JournalRecord]:
        """Fires what is due, the earliest first."""
        due = sorted((due, path) for path, due in self.timers.items() if due <= now_ms)
        for _, path in due:
            del self.timers[path]
            self.fired.add(path)
        return [
            self.arrive(Note(kind=RecordKind.TIMER_FIRED, path=path, at_ms=max(at, now_ms)))
            for at, path in due
        ]

    def since(self, index: int) -> list[JournalRecord]:
        return [each for each in self.journal if each.index > index and each.note.kind >= ARRIVAL]

    def _append(self, note: Note) -> JournalRecord:
        record = JournalRecord(self._next, note)
        self._next += 1
        self.journal.append(record)
        return record

    def _check_order(self, sending: Sending) -> None:
        """Neither `seen` nor `after` ever falls. A worker that only gives back has seen nothing."""
        unseen = isinstance(sending.then, GiveBack) and not sending.notes
        assert (0 if unseen else self._seen) <= sending.seen < self._next
        self._seen = max(self._seen, sending.seen)
        for note in sending.notes:
            assert self._after <= note.after <= sending.seen
            self._after = note.after

    def _check_once(self, note: Note) -> None:
        """Nothing is recorded twice. The holder of the lease has seen all that is recorded."""
        same = [each for each in self.journal if each.note.path == note.path and note.path]
        if note.kind != RecordKind.ATTEMPT_FAILED:
            assert all(each.note.kind != note.kind for each in same), "recorded twice"

    def _has_unseen(self, park: Park, seen: int) -> bool:
        return any(_is_for(park, each.note) for each in self.since(seen))

    def _fold(self, fold: Fold) -> None:
        gone = {first + nth for first, count in fold.removed for nth in range(count)}
        [place] = [each for each in self.journal if each.index == fold.index]
        removed = [each for each in self.journal if each.index in gone]
        assert len(removed) == len(gone), "a fold removes records that are there"
        assert is_below(place.note.path, fold.note.path)
        for each in removed:
            is_signal = each.note.kind == RecordKind.SIGNAL
            assert is_signal or is_below(each.note.path, fold.note.path)
        self.folded += len(removed)
        kind = fold.note.kind + (ARRIVAL if place.note.kind >= ARRIVAL else 0)
        note = changed(fold.note, kind=kind, after=place.note.after, at_ms=place.note.at_ms)
        kept = [each for each in self.journal if each.index not in gone]
        if self.fold_at_end:
            kept = [each for each in kept if each.index != fold.index]
            kept.append(JournalRecord(self._next, note))
            self._next += 1
        else:
            kept = [
                JournalRecord(each.index, note) if each.index == fold.index else each
                for each in kept
            ]
        self.journal[:] = kept


def changed(note: Note, **changes: Any) -> Note:
    fields = {name: getattr(note, name) for name in Note.__struct_fields__}
    return Note(**(fields | changes))


def _is_for(park: Park, note: Note) -> bool:
    if note.kind == RecordKind.SIGNAL:
        return note.name in park.names
    return note.kind == RecordKind.CANCEL or note.path in park.paths


class Worker:
    """A machine under a lease, and the effects that it has begun."""

    def __init__(
        self,
        partition: MemoryPartition,
        function: Durable[..., Any],
        *,
        codec: Codec | None = None,
        until_ms: int = FOREVER_MS,
        **options: Any,
    ) -> None:
        self.partition = partition
        self.machine = ExecutionMachine(function, IDENTITY, codec or Codec(), **options)
        self.lease = partition.grant()
        self.known = partition.journal[-1].index
        self.running: dict[tuple[bytes, int], Effect] = {}
        self.machine.leased(until_ms)
        self.machine.load(partition.journal, timers=tuple(partition.timers))

    def begin(self, now_ms: int = START_MS) -> list[Effect]:
        begun = self.machine.ready(now_ms)
        for effect in begun:
            self.running[effect.path, effect.attempt] = effect
        self.drop_abandoned()
        return begun

    def drop_abandoned(self) -> None:
        for path in self.machine.code.abandoned:
            for key in [key for key in self.running if key[0] == path]:
                del self.running[key]
        self.machine.code.abandoned.clear()

    def finish(self, effect: Effect, now_ms: int = START_MS) -> None:
        """Runs the function of an effect, which must not wait, and reports what it gave."""
        self.running.pop((effect.path, effect.attempt), None)
        try:
            value = outcome_of(effect)
        except Exception as error:  # noqa: BLE001 - it is the outcome of the step.
            self.machine.failed(effect.path, effect.attempt, error, now_ms)
        else:
            self.machine.finished(effect.path, effect.attempt, value, now_ms)
        self.drop_abandoned()

    def hear(self) -> None:
        """What has arrived is given to the code."""
        news = self.partition.since(self.known)
        self.known = max([self.known, *(each.index for each in news)])
        self.machine.arrive(news)
        self.drop_abandoned()

    def send(self, *, park: bool = False) -> Sending | None:
        """Sends the next Record, and takes the answer."""
        sending = self.machine.take(should_park=park)
        if sending is None:
            return None
        try:
            first = self.partition.record(self.lease, sending)
        except Unseen:
            self.machine.refused(sending.number)
        else:
            self.machine.applied(sending.number, first)
            if isinstance(sending.then, Park):
                self.check_timers()
        return sending

    def check_timers(self) -> None:
        """A parked execution has the timers for which its code waits, and no other one."""
        waits = awaited_timers(self.machine)
        assert self.partition.timers.keys() == waits, "timers of the partition and of the code"

    def lease_again(self, until_ms: int = FOREVER_MS) -> None:
        """The execution was parked, and something has arrived."""
        self.lease = self.partition.grant()
        self.machine.leased(until_ms)


def awaited_timers(machine: ExecutionMachine) -> set[bytes]:
    """The paths of the timers for which the code of a machine waits."""
    retries = {path for path, _ in machine._attempts.recorded()}
    return machine.code.loop.timers.keys() | retries


def outcome_of(effect: Effect) -> Any:
    """The value of a step that does not wait for anything."""
    token = STEP.set(effect)
    try:
        value = effect.function(*effect.args, **effect.kwargs)
        if not inspect.iscoroutine(value):
            return value
        value.send(None)
    except StopIteration as end:
        return end.value
    finally:
        STEP.reset(token)
    value.close()
    raise AssertionError("the steps of these tests do not wait")


@dataclass
class Run:
    """What a run without faults has given."""

    partition: MemoryPartition
    effects: list[Effect]

    @property
    def kinds(self) -> list[str]:
        """The journal in words: `STEP_DONE add`."""
        notes = (each.note for each in self.partition.journal)
        return [f"{RecordKind(note.kind).name} {note.name}".rstrip() for note in notes]

    def result(self, codec: Codec | None = None) -> Any:
        """The result as plain JSON, or the exception."""
        return result_of(self.partition.close, codec)


def result_of(close: Close, codec: Codec | None = None) -> Any:
    codec = codec or Codec()
    if close.outcome == RecordKind.COMPLETED:
        return codec.decode(close.payload, Any)
    if close.outcome == RecordKind.CANCELLED:
        return "cancelled"
    return codec.decode_error(close.payload)


Happening: TypeAlias = Callable[[MemoryPartition, int], Any]


def run_straight(
    function: Durable[..., Any],
    *args: Any,
    takes_ms: Callable[[Effect], int] = lambda effect: 1,
    happens: Sequence[tuple[int, Happening]] = (),
    after_event: Callable[[Worker], None] = lambda worker: None,
    parks: bool = True,
    codec: Codec | None = None,
    partition: MemoryPartition | None = None,
    **options: Any,
) -> Run:
    """Runs a function to its end. Time jumps to the next event: the end of an effect, a timer, or
    one of `happens` (ms after the start, and what it does to the partition).
    """
    if partition is None:
        partition = MemoryPartition().start(function, *args, codec=codec)
    queue: list[tuple[int, int, Effect | Happening]] = []
    for nth, (at_ms, happening) in enumerate(happens):
        heapq.heappush(queue, (START_MS + at_ms, nth - 1_000_000, happening))
    worker = Worker(partition, function, codec=codec, **options)
    machine = worker.machine
    effects: list[Effect] = []
    now = max(START_MS, machine.code.loop.now_ms)
    try:
        after_event(worker)
        for _ in range(100_000):
            for effect in worker.begin(now):
                effects.append(effect)
                heapq.heappush(queue, (now + takes_ms(effect), len(effects), effect))
            after_event(worker)
            if worker.send(park=parks and machine.can_park) is not None:
                if machine.is_closed:
                    return Run(partition, effects)
                continue
            dues = [machine.next_due(), min(partition.timers.values(), default=None)]
            dues += [queue[0][0]] if queue else []
            assert any(due is not None for due in dues), "nothing will happen any more"
            now = max(now, min(due for due in dues if due is not None))
            _next_event(worker, queue, now, after_event)
        raise AssertionError("the run does not end")
    finally:
        assert machine.put_away()


def _next_event(
    worker: Worker,
    queue: list[tuple[int, int, Effect | Happening]],
    now: int,
    after_event: Callable[[Worker], None],
) -> None:
    machine, partition = worker.machine, worker.partition
    partition.fire(now)
    if queue and queue[0][0] <= now:
        event = heapq.heappop(queue)[2]
        if not isinstance(event, Effect):
            event(partition, now)
        elif (event.path, event.attempt) in worker.running:
            worker.finish(event, now)
    else:
        machine.tick(now)
    worker.drop_abandoned()
    after_event(worker)
    if machine.is_parked and partition.state == "runnable":
        worker.lease_again()
    if not machine.is_parked:
        worker.hear()
        after_event(worker)


def keep_what_does_not_end() -> int:
    """Takes the machines whose code has not ended out of the count; they stay in memory."""
    kept = list(machines._LIVING.values())
    _KEPT.extend(kept)
    machines._LIVING.clear()
    return len(kept)


def replay(
    function: Durable[..., Any],
    journal: list[JournalRecord],
    *,
    codec: Codec | None = None,
    seen: int = 0,
) -> Close:
    """How the code ends by this journal alone."""
    machine = ExecutionMachine(function, IDENTITY, codec or Codec())
    machine.load(journal, seen=seen)
    assert machine.put_away()
    assert isinstance(machine.end, Close)
    return machine.end
