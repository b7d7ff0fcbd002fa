"""An execution at work: events in; effects that may begin, and Records for its partition, out.

The machine does no I/O and has no clock. Its driver (a worker, or a test) does the following, all
in one thread, and never from within the code of the execution:

    load(journal)              runs the code again from its journal; then the code is live
    leased(until_ms)           until when the activation is leased, by the clock of all `now_ms`
    ready(now_ms)              the effects that may begin; each is run, and reported by
    finished(…), failed(…)     what an effect gave
    arrive(records)            arrivals from the partition
    tick(now_ms), next_due()   timers that the worker fires
    take(park=…)               the next Record, or None
    applied(…), refused(…)     what the partition made of it
    put_away()                 ends the code, and frees the memory. Always the last call

**Turns.** Each event (a result, a timer, an arrival) is given to the code by itself; then the code
runs until it waits. Live and in replays, the code is given the same events in the same order
(`querator.model.executions` has the order), so it does the same.

**The prefix rule.** No effect begins before everything that its execution has seen is durable, in
that order. The results themselves go to the code at once: what leaves the process waits. So an
effect that is called when `m` records of this worker have been given to the code begins when those
`m` are in the journal, and while the lease lives. A step without effects begins at once.

**Live as in a replay.** A result is recorded, and what the record says is decoded for the code.
What the machine decides by itself (arguments that have no JSON, a full journal) is a record, too,
and an event of its own.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from querator.durable.arguments import decode_arguments
from querator.durable.code import ExecutionCode
from querator.durable.codec import Codec
from querator.durable.errors import (
    ArgumentsChanged,
    CodecError,
    Final,
    NonDeterminism,
    RunTooLong,
    StepInterrupted,
    TurnTooLong,
    Undecodable,
)
from querator.durable.folds import CodeEvent
from querator.durable.functions import Durable, Step
from querator.durable.loop import CodeTask
from querator.durable.operations import Effect, Operation, Site, WaitKind, site_of_task
from querator.durable.outbox import Sending
from querator.durable.paths import Path, shown
from querator.durable.promises import ExecutionIdentity
from querator.durable.replay import fits, mismatch
from querator.durable.seeds import share
from querator.model.executions import (
    ARRIVAL,
    OUTCOMES,
    Close,
    GiveBack,
    JournalRecord,
    Note,
    Park,
    RecordKind,
    Then,
    delivery_order,
)
from querator.model.limits import (
    ERROR_CHARS_MAX,
    EXECUTION_WAKES_MAX,
    JOURNAL_RECORDS_KEPT,
    JOURNAL_RECORDS_MAX,
    STEP_RETRY_HERE_MS_MAX,
)

_CALLS = (
    RecordKind.CALL_DONE, RecordKind.CALL_FAILED, RecordKind.CALL_DONE_LATER,
    RecordKind.CALL_FAILED_LATER,
)  # fmt: skip
_TIMERS_WAKE_MAX = EXECUTION_WAKES_MAX // 2
"""Timers that a parked execution waits for, the earliest ones: the later ones come later."""
_LIVING: dict[int, "ExecutionMachine"] = {}
"""Machines that are not put away. Tasks that wait must not be left to the collector of garbage:
that may end the interpreter.
"""


def living() -> int:
    """How many machines are in memory: those at work, and those whose code does not end."""
    return len(_LIVING)


class ExecutionMachine:
    """See the module. `records_max` is the limit of the journal."""

    def __init__(
        self,
        function: Durable[..., Any],
        identity: ExecutionIdentity,
        codec: Codec,
        *,
        records_max: int = JOURNAL_RECORDS_MAX,
    ) -> None:
        self.function = function
        self.code = ExecutionCode(identity, codec)
        self.is_parked = False
        self.is_closed = False
        """Whether the partition has the end, or has the activation back."""
        self._identity = identity
        self._codec = codec
        self._loop = self.code.loop
        self._outbox = self.code.outbox
        self._records_max = records_max
        self._records = 0
        self._seen = 0
        self._until_ms = 0
        self._main: CodeTask[Any] | None = None
        self._steps: dict[Path, Operation] = {}
        """Steps whose next attempt has not begun."""
        self._retries: dict[Path, Operation] = {}
        """Steps whose last attempt is in the journal, by the path of the timer before the next."""
        self._backlog: deque[tuple[Operation, Exception]] = deque()
        self._is_cancelled = False
        self._end: Close | None = None
        self._is_put_away = False
        _LIVING[id(self)] = self

    @property
    def title(self) -> str:
        return f'{self.function.name} "{self._identity.id}", run {self._identity.run}'

    @property
    def end(self) -> Close | None:
        """How the code has ended, if it has."""
        return self._end

    @property
    def stuck(self) -> str:
        """Why the execution cannot continue without a person, if it cannot."""
        return self.code.stuck

    @property
    def is_over(self) -> bool:
        return self._end is not None or bool(self.code.stuck) or self._loop.is_away

    # --- events ----------------------------------------------------------------------------------

    def load(self, journal: Sequence[JournalRecord]) -> None:
        """Runs the code from its journal. Raises NonDeterminism, Undecodable or TurnTooLong if that
        cannot be: nothing was run then, and the machine is put away.
        """
        records = delivery_order(journal)
        if not records or records[0].note.kind != RecordKind.STARTED:
            raise ValueError("a journal begins with the record of its start")
        code = self.code
        code.folded = {each.note.path for each in records if each.note.kind in _CALLS}
        self._records = len(records)
        code.is_replaying = True
        try:
            start = records[0].note
            args, kwargs = decode_arguments(self.function, self._codec, start.payload)
            self._loop.now_ms = start.at_ms
            self._main = code.begin(self.function, args, kwargs)
            self._end_if_done()
            for record in records[1:]:
                self._deliver(record)
                self._end_if_done()
        except CodecError as error:
            self.put_away()
            raise Undecodable(f"{self.title}: {error}") from error
        except BaseException:
            self.put_away()
            raise
        code.is_replaying = False
        if len(records) > 1:
            for timer in self._loop.timers.values():
                # It may be that an earlier worker has given it to the partition.
                self._outbox.timers[timer.path] = timer.due_ms
            self._loop.leave_timers()
        self._settle()

    def leased(self, until_ms: int) -> None:
        """The activation is leased until then: for the first time, again, or longer."""
        if self.is_parked:
            self._outbox.leased()
            self.is_parked = False
        self._until_ms = until_ms

    def arrive(self, records: Iterable[JournalRecord]) -> None:
        """Arrivals, by index; those that the code has had are skipped."""
        for record in records:
            if record.index > self._seen and not self.is_over:
                self._records += 1
                self._guarded(self._deliver, record)

    def tick(self, now_ms: int) -> None:
        """Fires the timers that are due and that the partition does not have."""
        while not self.is_over:
            timer = self._loop.next_local()
            if timer is None or timer.due_ms > now_ms:
                break
            site = site_of_task(timer.task)
            _, event = self._record(RecordKind.TIMER_DONE, timer.path, now_ms, site=site)
            self._guarded(self.code.fire, timer, event)

    def next_due(self) -> int | None:
        """When `tick` or `ready` has something to do, if nothing else happens."""
        dues = [each.retry_at_ms for each in self._steps.values() if each.retry_at_ms]
        if (timer := self._loop.next_local()) is not None:
            dues.append(timer.due_ms)
        return min(dues, default=None)

    def ready(self, now_ms: int) -> list[Effect]:
        """The effects that may begin; each is returned once, and is then under way."""
        if now_ms >= self._until_ms or self.is_over:
            return []
        found = []
        durable = self._outbox.acknowledged
        for path, operation in list(self._steps.items()):
            step = _step(operation)
            if path not in self.code.pending:
                self._forget(operation)
            elif operation.retry_at_ms <= now_ms and (
                operation.begins_after <= durable or not step.effects
            ):
                self._forget(operation)
                if self._encoded(operation) == operation.encoded:
                    operation.is_begun = True
                    operation.retry_at_ms = 0
                    found.append(self._effect(operation, step))
                else:
                    text = f"an argument of {operation.name} was changed after the call"
                    self._backlog.append((operation, ArgumentsChanged(text)))
        if self._backlog:
            self._settle()
        return found

    def finished(self, path: Path, attempt: int, value: object, now_ms: int) -> None:
        """The attempt has returned a value."""
        operation = self._under_way(path, attempt)
        if operation is None:
            return
        name = f"the result of {operation.name}"
        try:
            payload = self._codec.encode(value, name)
            self._codec.decode(payload, operation.result_type, name)
        except CodecError as error:
            self._give(operation, RecordKind.STEP_FAILED, self._codec.encode_error(error), now_ms)
        else:
            self._give(operation, RecordKind.STEP_DONE, payload, now_ms)

    def failed(self, path: Path, attempt: int, error: BaseException, now_ms: int) -> None:
        """The attempt has raised an exception."""
        operation = self._under_way(path, attempt)
        if operation is None:
            return
        is_final = isinstance(error, Final)
        if isinstance(error, Final):
            error = error.error
        if not is_final and _step(operation).retry.allows(attempt, error):
            self._retry(operation, error, now_ms)
        elif operation.is_undo:
            self.code.stuck = f"{operation.name}, which undoes, has failed: {error!r}"
        else:
            self._give(operation, RecordKind.STEP_FAILED, self._codec.encode_error(error), now_ms)

    # --- Records ---------------------------------------------------------------------------------

    @property
    def is_urgent(self) -> bool:
        """Whether something waits for a Record: an effect, or those that hear of the end."""
        durable = self._outbox.acknowledged
        return self.is_over or any(
            each.begins_after > durable and each.path in self.code.pending
            for each in self._steps.values()
        )

    def take(self, *, park: bool = False) -> Sending | None:
        """The next Record, or None. With `park` it says that the execution is parked, if that can
        be. An execution that waits for nothing at all is given back as stuck. A parked one has no
        lease: what is left is sent under the next one.
        """
        if self.is_closed or self.is_parked or self._is_put_away:
            return None
        then: Then | None = self._end
        if self._outbox.in_flight is None:
            if then is None and not self.code.stuck and park and self.can_park:
                then = self._park()
            if self.code.stuck:
                then = GiveBack(stuck=True, reason=self.code.stuck[:ERROR_CHARS_MAX])
        for path in self._loop.to_withdraw:
            self._outbox.timers[path] = 0
        self._loop.to_withdraw.clear()
        return self._outbox.take(self._seen, then)

    @property
    def can_park(self) -> bool:
        """Whether nothing is under way: only arrivals can continue the code. A short wait for the
        next attempt is under way in this worker, and is in no journal.
        """
        return (
            not self.is_over
            and not self.is_parked
            and all(
                each.waits is not WaitKind.STEP or each.retry_path in self._retries
                for each in self.code.pending.values()
            )
        )

    def applied(self, number: int, first_index: int) -> None:
        """The Record of this number is in the journal, its notes from `first_index` on."""
        sending, gone = self._outbox.applied(number, first_index)
        self._records += len(sending.notes) - gone
        self.is_parked = isinstance(sending.then, Park)
        self.is_closed = isinstance(sending.then, Close | GiveBack)

    def refused(self, number: int) -> None:
        """The Record was not applied: something has arrived that the code has not been given."""
        self._outbox.refused(number)

    # --- the end ---------------------------------------------------------------------------------

    def put_away(self) -> bool:
        """Ends the code, whose durable calls raise Evicted; none of them has an effect. Returns
        whether it has ended. If not, it stays in memory, and `living` counts it.
        """
        self._is_put_away = True
        left = self._loop.put_away()
        if not left:
            _LIVING.pop(id(self), None)
        return not left

    # --- rules -----------------------------------------------------------------------------------

    def _deliver(self, record: JournalRecord) -> None:
        """Gives the code a record of the journal."""
        note = record.note
        self._loop.now_ms = max(self._loop.now_ms, note.at_ms)
        kind = note.kind
        if kind >= ARRIVAL:
            self._seen = max(self._seen, record.index)
        else:
            # Arrivals that a call had consumed may be gone with its records.
            self._seen = max(self._seen, note.after)
            self.code.published.were_sent()
        if self._end is not None:
            self._deliver_behind_the_end(record)
        elif kind == RecordKind.SIGNAL:
            event = CodeEvent(index=record.index, is_signal=True)
            self.code.signal(note.name, note.payload, event)
        elif kind == RecordKind.CANCEL:
            self._cancel(note)
        elif kind in OUTCOMES:
            raise self._mismatch(record)
        elif kind != RecordKind.TERMINATED:
            self._deliver_at_path(record)

    def _deliver_behind_the_end(self, record: JournalRecord) -> None:
        """Arrivals come at any time; a worker records nothing more."""
        kind = record.note.kind
        if kind not in OUTCOMES and (kind < ARRIVAL or kind in _CALLS):
            raise self._mismatch(record)

    def _deliver_at_path(self, record: JournalRecord) -> None:
        note = record.note
        operation = self.code.at(note.path)
        event = CodeEvent(index=record.index)
        if note.kind == RecordKind.TIMER_FIRED:
            self._outbox.timers.pop(note.path, None)
        if note.kind == RecordKind.TIMER_FIRED and operation is None:
            retried = self._retries.pop(note.path, None)
            if retried is not None:
                retried.retry_at_ms = 0
                retried.retry_is_registered = False
            elif not self._had_timer(note.path):
                raise self._mismatch(record)
            return
        if operation is None or not fits(operation, record):
            raise self._mismatch(record)
        if operation.waits is WaitKind.TIMER:
            self.code.fire(self._loop.timers[note.path], event)
        elif note.kind == RecordKind.STEP_BEGUN:
            operation.was_begun = True
            self._event_of(operation, event)
        elif note.kind == RecordKind.ATTEMPT_FAILED:
            attempt, due_ms = _attempt_and_due(note.payload)
            self._wait_for_attempt(operation, attempt, due_ms, is_recorded=True)
            self._event_of(operation, event)
        else:
            self.code.give(operation, note, event)

    def _had_timer(self, path: Path) -> bool:
        """Whether a timer of this path was withdrawn, or was of a call whose records are gone."""
        return path in self._loop.withdrawn or any(
            path.startswith(call) for call in self.code.folded
        )

    def _cancel(self, note: Note) -> None:
        self._is_cancelled = True
        assert self._main is not None
        self._main.cancel(note.payload.decode("utf-8", "replace") or None)
        self.code.turn(None)

    def _mismatch(self, record: JournalRecord) -> NonDeterminism:
        ended = ""
        if self._is_done:
            ended = f"{self.function.name} has ended"
        others = list(self.code.pending.values())
        others += [each for path in self._loop.timers if (each := self.code.at(path)) is not None]
        return mismatch(
            self.title,
            record,
            found=self.code.at(record.note.path),
            other=others[0] if others else None,
            ended=ended,
        )

    @property
    def _is_done(self) -> bool:
        return self._main is not None and self._main.done()

    def _guarded(self, give: Callable[..., None], *args: Any) -> None:
        """Gives live code an event. If the code never waits, or bytes do not decode, the execution
        is stuck: that is for a person.
        """
        try:
            give(*args)
        except (CodecError, NonDeterminism, TurnTooLong) as error:
            self.code.stuck = self.code.stuck or f"{type(error).__name__}: {error}"
        self._settle()

    def _settle(self) -> None:
        """After turns of the live code: what it has called, and whether it has ended."""
        while not self.is_over:
            self._begin_fresh()
            if not self._backlog:
                break
            operation, error = self._backlog.popleft()
            if operation.path in self.code.pending:
                payload = self._codec.encode_error(error)
                self._steps.pop(operation.path, None)
                now_ms = self._loop.now_ms
                event = self._record_of(operation, RecordKind.STEP_FAILED, payload, now_ms)
                try:
                    self.code.give(operation, *event)
                except TurnTooLong as stuck:
                    self.code.stuck = f"{type(stuck).__name__}: {stuck}"
        self._end_if_done()

    def _end_if_done(self) -> None:
        """The result is that of this turn. What other tasks still do has no effect any more."""
        if self._is_done and self._end is None and not self._loop.is_away:
            self._end = self._closing()
            self._loop.put_away()

    def _begin_fresh(self) -> None:
        fresh = [each for each in self.code.fresh if each.path in self.code.pending]
        self.code.fresh.clear()
        for operation in fresh:
            step = _step(operation)
            try:
                operation.encoded = self._encoded(operation)
                self._check_space(operation)
            except (CodecError, RunTooLong) as error:
                self._backlog.append((operation, error))
                continue
            if operation.was_begun:
                text = f"{operation.name} has begun, and its end is not known"
                self._backlog.append((operation, StepInterrupted(text)))
                continue
            if step.at_most_once:
                _, event = self._record_of(operation, RecordKind.STEP_BEGUN, b"", self._loop.now_ms)
                self._event_of(operation, event)
                operation.begins_after = self.code.made
            self._steps[operation.path] = operation

    def _check_space(self, operation: Operation) -> None:
        """Raises RunTooLong. Some records are kept for the end: undoing, and cancellations."""
        kept = 0 if operation.is_undo or self._is_cancelled else JOURNAL_RECORDS_KEPT
        records = self._records + self._outbox.waiting
        if records >= self._records_max - kept:
            raise RunTooLong(
                f"the journal has {records} records, of at most {self._records_max} ({kept} are "
                f"kept for the end): {operation.name} is not begun"
            )

    def _encoded(self, operation: Operation) -> bytes:
        """The arguments, to see whether they are the same later. Raises CodecError."""
        args = (operation.args, operation.kwargs) if operation.kwargs else operation.args
        return self._codec.encode(args, f"{operation.name}(…)")

    def _effect(self, operation: Operation, step: Step[..., Any]) -> Effect:
        identity = self._identity
        key = (identity.namespace, identity.queue, str(identity.partition), str(identity.number),
               str(identity.run), shown(operation.path))  # fmt: skip
        return Effect(
            path=operation.path,
            attempt=operation.attempt,
            name=operation.name,
            function=step.function,
            args=operation.args,
            kwargs=operation.kwargs,
            timeout_ms=step.timeout_ms,
            is_async=step.is_async,
            step_key="/".join(key),
            execution_id=identity.id,
        )

    def _under_way(self, path: Path, attempt: int) -> Operation | None:
        operation = self.code.pending.get(path)
        if operation is None or not operation.is_begun or operation.attempt != attempt:
            return None
        return None if self.is_over else operation

    def _give(self, operation: Operation, kind: RecordKind, payload: bytes, now_ms: int) -> None:
        note, event = self._record_of(operation, kind, payload, now_ms)
        self._guarded(self.code.give, operation, note, event)

    def _record_of(
        self, operation: Operation, kind: RecordKind, payload: bytes, now_ms: int
    ) -> tuple[Note, CodeEvent]:
        return self._record(
            kind, operation.path, now_ms, name=operation.name, site=operation.site, payload=payload
        )

    def _record(
        self,
        kind: RecordKind,
        path: Path,
        now_ms: int,
        *,
        name: str = "",
        site: Site | None,
        payload: bytes = b"",
    ) -> tuple[Note, CodeEvent]:
        """A record of this worker, that the code is about to be given."""
        self._loop.now_ms = max(self._loop.now_ms, now_ms)
        note = Note(
            kind=kind, path=path, name=name, site=str(site or ""), after=self._seen,
            at_ms=self._loop.now_ms, payload=payload,
        )  # fmt: skip
        self.code.made += 1
        return note, self._outbox.add(note, self.code.made)

    def _event_of(self, operation: Operation, event: CodeEvent) -> None:
        """A record that the code does not see, of an operation that goes with its call."""
        if operation.line.scope is not None:
            operation.line.scope.events.append(event)

    # --- attempts --------------------------------------------------------------------------------

    def _retry(self, operation: Operation, error: BaseException, now_ms: int) -> None:
        attempt = operation.attempt
        jitter = share(self.code.seed(operation.path, attempt.to_bytes(4, "big")))
        delay_ms = _step(operation).retry.delay_ms(attempt, jitter)
        due_ms = max(self._loop.now_ms, now_ms) + delay_ms
        is_long = delay_ms > STEP_RETRY_HERE_MS_MAX
        if is_long:
            payload = b"[%d,%d,%s]" % (attempt, due_ms, self._codec.encode_error(error))
            _, event = self._record_of(operation, RecordKind.ATTEMPT_FAILED, payload, now_ms)
            self._event_of(operation, event)
        self._wait_for_attempt(operation, attempt, due_ms, is_recorded=is_long)
        self._settle()

    def _wait_for_attempt(
        self, operation: Operation, attempt: int, due_ms: int, *, is_recorded: bool
    ) -> None:
        operation.attempt = attempt + 1
        operation.retry_at_ms = due_ms
        operation.is_begun = False
        if is_recorded:
            self._retries[operation.retry_path] = operation
            # The partition may fire it when the worker has waited already.
            self._loop.withdrawn.add(operation.retry_path)
        if not self.code.is_replaying:
            self._steps[operation.path] = operation

    def _forget(self, operation: Operation) -> None:
        """The next attempt begins, or is not needed any more."""
        self._steps.pop(operation.path, None)
        self._retries.pop(operation.retry_path, None)
        if operation.retry_is_registered:
            operation.retry_is_registered = False
            self._loop.to_withdraw.append(operation.retry_path)

    # --- parking ---------------------------------------------------------------------------------

    def _waits(self) -> tuple[list[tuple[int, Path]], list[Path | str]]:
        """What can continue the code: timers by due time; promises, and names of signals."""
        timers = [(timer.due_ms, path) for path, timer in self._loop.timers.items()]
        timers += [
            (each.retry_at_ms, path)
            for path, each in self._retries.items()
            if each.path in self.code.pending
        ]
        others: list[Path | str] = [
            path
            for path, count in self.code.awaited.items()
            if count and not self.code.promises[path].future.done()
        ]
        signals = (each for each in self.code.pending.values() if each.waits is WaitKind.SIGNAL)
        others += dict.fromkeys(each.name for each in signals)
        return sorted(timers), others

    def _park(self) -> Park | None:
        timers, others = self._waits()
        if not timers and not others:
            place = site_of_task(self._main)
            self.code.stuck = f"the code waits for nothing that can arrive, at {place}"
            return None
        for path, timer in self._loop.timers.items():
            if timer.is_local:
                self._outbox.timers[path] = timer.due_ms
        self._loop.leave_timers()
        for path, operation in self._retries.items():
            if not operation.retry_is_registered:
                operation.retry_is_registered = True
                self._outbox.timers[path] = operation.retry_at_ms
        if len(others) > EXECUTION_WAKES_MAX - _TIMERS_WAKE_MAX:
            return Park(anything=True)
        paths = [path for _, path in timers[:_TIMERS_WAKE_MAX]]
        paths += [each for each in others if isinstance(each, bytes)]
        return Park(tuple(paths), tuple(each for each in others if isinstance(each, str)))

    def _closing(self) -> Close:
        main = self._main
        assert main is not None
        if main.cancelled():
            return Close(RecordKind.CANCELLED)
        error = main.exception()
        if error is None:
            try:
                name = f"the result of {self.function.name}"
                return Close(RecordKind.COMPLETED, self._codec.encode(main.result(), name))
            except CodecError as broken:
                error = broken
        return Close(RecordKind.FAILED, self._codec.encode_error(error))


def _step(operation: Operation) -> Step[..., Any]:
    assert operation.step is not None
    return operation.step


def _attempt_and_due(payload: bytes) -> tuple[int, int]:
    """Raises CodecError for bytes that are not of a failed attempt."""
    try:
        attempt, due_ms, _ = msgspec.json.decode(payload, type=tuple[int, int, msgspec.Raw])
    except msgspec.MsgspecError as error:
        raise CodecError(f"a failed attempt cannot be read from the journal: {error}") from error
    return attempt, due_ms
