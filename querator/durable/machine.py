"""An execution at work: events in; effects that may begin, and Records for its partition, out.

The machine does no I/O and has no clock. Its driver (a worker, or a test) does the following, all
in one thread, and never from within the code of the execution:

    load(journal, …)           runs the code again from its journal; then the code is live
    leased(until_ms)           until when the activation is leased, by the clock of all `now_ms`
    ready(now_ms)              the effects that may begin; each is run, and reported by
    finished(…), failed(…)     what an effect gave
    arrive(records)            arrivals from the partition
    tick(now_ms), next_due()   timers that the worker fires
    take(…)                    the next Record, or None
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

from querator.durable.arguments import decode_arguments
from querator.durable.attempts import Attempts, decode_attempt, encode_attempt, is_long
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
from querator.durable.functions import Durable
from querator.durable.logs import tell_once
from querator.durable.marks import sorted_marks
from querator.durable.operations import (
    WAITS_OF,
    Effect,
    Operation,
    Site,
    WaitKind,
    make_effect,
    place_of,
    site_of_task,
)
from querator.durable.outbox import Sending
from querator.durable.parking import give_timers, is_idle, park
from querator.durable.paths import Path
from querator.durable.producing import Production
from querator.durable.promises import ExecutionIdentity
from querator.durable.replay import Sides, fits, is_named, mismatch, timer_missing
from querator.model.executions import (
    ARRIVAL,
    OUTCOMES,
    UNVERSIONED,
    Close,
    GiveBack,
    JournalRecord,
    NewRun,
    Note,
    Park,
    RecordKind,
    Then,
    delivery_order,
)
from querator.model.limits import (
    ERROR_CHARS_MAX,
    JOURNAL_BYTES_MAX,
    JOURNAL_RECORDS_KEPT,
    JOURNAL_RECORDS_MAX,
    RECORD_TIMERS_MAX,
)

_STEP_DONE = int(RecordKind.STEP_DONE)
_PATCHED = int(RecordKind.PATCHED)
_CALLS = frozenset(kind for kind, waits in WAITS_OF.items() if waits is WaitKind.CALL)
_RECORD_BYTES = 100
"""What a record counts for the limit of bytes beside its payload, about."""
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
        self.code.record_mark = self._marked
        self.code.is_filling = self._is_filling
        self.code.record_production = self._produced
        self.is_parked = False
        self.is_closed = False
        """Whether the partition has the end, or has the activation back."""
        self._identity = identity
        self._codec = codec
        self._loop = self.code.loop
        self._outbox = self.code.outbox
        self._records_max = records_max
        self._records = 0
        self._size = 0
        """Bytes of the payloads of the journal."""
        self._seen = 0
        self._until_ms = 0
        self._attempts = Attempts(self.code)
        self._backlog: deque[tuple[Operation, Exception]] = deque()
        self._end: Close | NewRun | None = None
        self._is_put_away = False
        self._ran_on = ""
        self._open_timers: set[Path] = set()
        self._early: dict[Path, JournalRecord] = {}
        """Values of promises that the code of a rewound execution has not made again yet."""
        _LIVING[id(self)] = self

    @property
    def title(self) -> str:
        return f'{self.function.name} "{self._identity.id}", run {self._identity.run}'

    @property
    def end(self) -> Close | NewRun | None:
        """How the code has ended, if it has. NewRun: by `continue_as_new`."""
        return self._end

    @property
    def stuck(self) -> str:
        """Why the execution cannot continue without a person."""
        return self.code.stuck

    @property
    def is_over(self) -> bool:
        return self._end is not None or bool(self.code.stuck) or self._loop.is_away

    # --- events ----------------------------------------------------------------------------------

    @property
    def is_changed(self) -> bool:
        """Whether the journal is one of another version of the function."""
        return self._ran_on not in ("", UNVERSIONED, self.function.version)

    def load(
        self,
        journal: Sequence[JournalRecord],
        *,
        version: str = "",
        timers: Sequence[Path] = (),
        seen: int = 0,
    ) -> None:
        """Runs the code from its journal. Raises NonDeterminism, Undecodable or TurnTooLong if that
        cannot be: nothing was run then, and the machine is put away.

        `version`: on which version of the function the journal was made. If it was another one, the
        code must wait for all `timers` that the partition has. `seen`: the last arrival that an
        earlier worker has given to the code; it must not end before that.
        """
        self._ran_on = version
        self._records = len(journal)
        self._size = sum(len(each.note.payload) for each in journal)
        records = delivery_order(journal)
        if not records or records[0].note.kind != RecordKind.STARTED:
            raise ValueError("a journal begins with the record of its start")
        code = self.code
        code.folded = {each.note.path for each in records if each.note.kind in _CALLS}
        # A signal that a folded call has consumed is gone, but was seen by what follows.
        self._seen = max(each.note.after for each in records)
        marks = [each.note for each in records if each.note.kind == _PATCHED]
        if marks:
            code.patches, code.full_marks = sorted_marks(marks)
            # They are no events: the code asks for them.
            records = [each for each in records if each.note.kind != _PATCHED]
        # With a timer that is set, an earlier worker has decided already what comes next.
        last = None if timers else records[-1]
        code.is_at_end = records[0] is last
        code.is_replaying = True
        try:
            start = records[0].note
            args, kwargs = decode_arguments(self.function, self._codec, start.payload)
            self._loop.now_ms = start.at_ms
            code.begin(self.function, args, kwargs)
            self._end_if_done()
            with self._loop.entered():
                for record in records[1:]:
                    code.is_at_end = record is last
                    self._deliver(record)
                    self._give_early()
                    if code.is_done:
                        self._end_if_done()
            self._check_seen(records, seen)
            if self.is_changed:
                self._check_timers(timers)
        except CodecError as error:
            self.put_away()
            raise Undecodable(f"{self.title}: {error}") from error
        except BaseException:
            self.put_away()
            raise
        code.is_replaying = False
        code.is_at_end = True
        self._produce_now()
        if len(journal) > 1 or len(self._loop.timers) > RECORD_TIMERS_MAX:
            # It may be that an earlier worker has given them to the partition.
            give_timers(code, self._attempts)
        self._withdraw(timers)
        self._settle()

    def leased(self, until_ms: int) -> None:
        """The activation is leased until then: for the first time, again, or longer."""
        if self.is_parked:
            self._outbox.leased()
            self.is_parked = False
        self._until_ms = until_ms

    def arrive(self, records: Iterable[JournalRecord]) -> None:
        """Records of the journal, by index. What is no arrival, or was given before, is skipped."""
        for record in records:
            if record.is_arrival and record.index > self._seen and not self.is_over:
                self._records += 1
                self._size += len(record.note.payload)
                self._guarded(self._deliver, record)

    def tick(self, now_ms: int) -> None:
        """Fires the timers that are due and that the partition does not have."""
        while not self.is_over:
            timer = self._loop.next_local()
            if timer is None or timer.due_ms > now_ms:
                break
            if self._records + self._outbox.waiting >= self._records_max:
                self.code.stuck = f"the journal has {self._records_max} records, and is full"
                break
            site = site_of_task(timer.task)
            _, event = self._record(RecordKind.TIMER_DONE, timer.path, now_ms, site=site)
            self._guarded(self.code.fire, timer, event)

    def next_due(self) -> int | None:
        """When `tick` or `ready` has something to do, if nothing else happens."""
        timer = self._loop.next_local()
        due = self._attempts.next_due()
        if timer is None or due is None:
            return due if timer is None else timer.due_ms
        return min(due, timer.due_ms)

    def ready(self, now_ms: int) -> list[Effect]:
        """The effects that may begin; each is returned once, and is then under way."""
        if now_ms >= self._until_ms or self.is_over or self._outbox.is_leaving:
            return []
        found = []
        for operation in self._attempts.take_ready(now_ms, self._outbox.acknowledged):
            if operation.encode_arguments(self._codec) == operation.encoded:
                operation.is_begun = True
                found.append(make_effect(operation, self._identity))
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
        name = f"the result of {operation.name} ({place_of(operation.site)})"
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
        if not is_final and operation.needed_step.retry.allows(attempt, error):
            self._retry(operation, error, now_ms)
        elif operation.is_undo:
            self.code.stuck = f"{operation.name}, which undoes, has failed: {error!r}"
        else:
            self._give(operation, RecordKind.STEP_FAILED, self._codec.encode_error(error), now_ms)

    # --- Records ---------------------------------------------------------------------------------

    @property
    def is_urgent(self) -> bool:
        """Whether something waits for a Record: an effect, or those that hear of the end."""
        outbox = self._outbox
        return (
            self.is_over
            or bool(outbox.starts or outbox.cancels or outbox.has_items)
            or self._attempts.wait_for_records(outbox.acknowledged)
        )

    def take(self, *, should_park: bool = False, give_back: bool = False) -> Sending | None:
        """The next Record, or None. With `should_park` it parks the execution, if that can be. An
        execution that waits for nothing at all is given back as stuck. A parked one has no lease.
        With `give_back` it is given back to other workers when all has been sent; what is under way
        here begins again there.
        """
        if self.is_closed or self.is_parked or self._is_put_away:
            return None
        then: Then | None = self._end
        if self._outbox.in_flight is None:
            if then is None and should_park and self.can_park:
                then = park(self.code, self._attempts)
                if then is None:
                    place = place_of(site_of_task(self.code.main))
                    self.code.stuck = f"the code waits for nothing that can arrive, at {place}"
            if then is None and give_back:
                then = GiveBack()
            if self.code.stuck:
                then = GiveBack(stuck=True, reason=self.code.stuck[:ERROR_CHARS_MAX])
        if self.is_over:
            # What other tasks were about to start has no effect any more.
            self._outbox.starts.clear()
        for path in self._loop.to_withdraw:
            self._outbox.timers[path] = 0
        self._loop.to_withdraw.clear()
        return self._outbox.take(self._seen, then)

    @property
    def is_publishing(self) -> bool:
        """Whether published values wait for a Record."""
        return self.code.published.is_pending

    @property
    def can_park(self) -> bool:
        """Whether nothing is under way: only arrivals can continue the code."""
        return not self.is_over and not self.is_parked and is_idle(self.code, self._attempts)

    def applied(self, number: int, first_index: int) -> None:
        """The Record of this number is in the journal, its notes from `first_index` on."""
        sending, gone, freed = self._outbox.applied(number, first_index)
        self._records += len(sending.notes) - gone
        self._size += sum(len(note.payload) for note in sending.notes) - freed
        self.is_parked = isinstance(sending.then, Park)
        self.is_closed = isinstance(sending.then, Close | NewRun | GiveBack)

    def refused(self, number: int) -> None:
        """The Record was not applied: something has arrived that the code has not been given."""
        self._outbox.refused(number)

    def refused_published(self, number: int, reason: str) -> None:
        """The Record was not applied, because the partition has no room for its published values:
        the execution is stuck. Its records go with the next Record.
        """
        self._outbox.refused(number)
        self.code.published.clear()
        self.code.stuck = self.code.stuck or reason

    def refused_items(self, number: int, queue: str, reason: str) -> None:
        """The Record was not applied, because this queue does not take its items: the execution is
        stuck. The other records go with the next Record. When the execution is retried, the code
        produces the items again.
        """
        self._outbox.refused(number)
        self._outbox.drop_items(queue)
        self.code.stuck = self.code.stuck or reason

    # --- the end ---------------------------------------------------------------------------------

    def put_away(self) -> bool:
        """Ends the code, whose durable calls raise Evicted; none of them has an effect. Returns
        whether it has ended. If not, it stays in memory, and `living` counts it.
        """
        self._is_put_away = True
        left = self._loop.put_away()
        if self.code.catches_all_at:
            tell_once(self.function.name, self.code.catches_all_at)
        if not left:
            _LIVING.pop(id(self), None)
        return not left

    # --- rules -----------------------------------------------------------------------------------

    def _deliver(self, record: JournalRecord) -> None:
        """Gives the code a record of the journal."""
        note = record.note
        at_ms = note.at_ms
        if at_ms > self._loop.now_ms:
            self._loop.now_ms = at_ms
        kind = note.kind
        code = self.code
        if kind == _STEP_DONE and self._end is None:
            # The shortest way for by far the most records.
            operation = code.pending.get(note.path)
            if operation is None or operation.step is None or not is_named(operation, note.name):
                raise self._mismatch(record)
            code.published.clear()
            code.give(operation, note, CodeEvent(record.index, 0, len(note.payload)))
            return
        if kind == RecordKind.PRODUCED:
            # It was made within a turn: what that has published since may be nowhere else.
            self._was_produced(record)
            return
        if kind >= ARRIVAL:
            if self._end is None:
                # What comes behind the end is not given to the code: the next run has it.
                self._seen = max(self._seen, record.index)
        else:
            code.published.clear()
        if self._end is not None:
            self._deliver_behind_end(record)
        elif kind == RecordKind.SIGNAL:
            code.signal(
                note.name,
                note.payload,
                CodeEvent(record.index, 0, len(note.payload), is_signal=True),
            )
        elif kind == RecordKind.CANCEL:
            self._cancel(note)
        elif kind in OUTCOMES:
            raise self._mismatch(record)
        elif kind != RecordKind.TERMINATED:
            self._deliver_at_path(record)

    def _deliver_behind_end(self, record: JournalRecord) -> None:
        """Arrivals come at any time; a worker records nothing more."""
        kind = record.note.kind
        if kind not in OUTCOMES and (kind < ARRIVAL or kind in _CALLS):
            raise self._mismatch(record)

    def _deliver_at_path(self, record: JournalRecord) -> None:
        note = record.note
        operation = self.code.at(note.path)
        event = CodeEvent(record.index, 0, len(note.payload))
        if note.kind == RecordKind.TIMER_FIRED:
            self._outbox.timers.pop(note.path, None)
        if note.kind == RecordKind.TIMER_FIRED and operation is None:
            if not self._attempts.fired(note.path) and not self.code.had_timer(note.path):
                raise self._mismatch(record)
            return
        if operation is None and self._is_early(note):
            self._early[note.path] = record
            return
        if operation is None or not fits(operation, record):
            raise self._mismatch(record)
        if operation.waits is WaitKind.TIMER:
            self.code.fire(self._loop.timers[note.path], event)
        elif note.kind == RecordKind.STEP_BEGUN:
            operation.was_begun = True
            operation.saw(event)
        elif note.kind == RecordKind.ATTEMPT_FAILED:
            operation.attempt, due_ms = decode_attempt(note.payload)
            self._attempts.wait(operation, due_ms, is_recorded=True)
            operation.saw(event)
        else:
            self.code.give(operation, note, event)

    def _produce_now(self) -> None:
        """What the code has produced behind the end of the journal. The steps that it waits for may
        have been called behind that: they begin when it is durable.
        """
        if not self.code.productions:
            return
        for production in self.code.productions.values():
            self._produced(production)
        self.code.productions.clear()
        for operation in self.code.pending.values():
            operation.begins_after = self.code.made

    def _was_produced(self, record: JournalRecord) -> None:
        """The code has produced these items before."""
        production = self.code.productions.get(record.note.path)
        if production is None or production.produced.queue != record.note.name:
            raise self._mismatch(record)
        del self.code.productions[record.note.path]
        production.event.index = record.index
        production.event.produced = None
        production.event.is_apart = self.code.turns != production.turn

    def _is_early(self, note: Note) -> bool:
        """Whether it is the value of a promise whose token was given away before a rewind: the code
        has not made the promise again.
        """
        is_rewound = self._identity.run != self._identity.origin
        return is_rewound and note.kind in (RecordKind.RESOLVED, RecordKind.REJECTED)

    def _give_early(self) -> None:
        """Gives the code the values that came before it made their promises again."""
        while self._early:
            path = next((each for each in self._early if each in self.code.promises), None)
            if path is None:
                break
            record = self._early.pop(path)
            event = CodeEvent(record.index, 0, len(record.note.payload))
            self.code.give(self.code.promises[path], record.note, event)

    def _check_seen(self, records: Iterable[JournalRecord], seen: int) -> None:
        """Raises NonDeterminism if the code has ended before an arrival that it had been given. An
        arrival that is not there was one of a call whose records are gone.
        """
        for record in records:
            if record.is_arrival and self._seen < record.index <= seen:
                raise self._mismatch(record)
        self._seen = max(self._seen, seen)

    def _check_timers(self, timers: Sequence[Path]) -> None:
        """Raises NonDeterminism if the code does not wait for a timer of the partition."""
        retries = {path for path, _ in self._attempts.recorded()}
        waits = retries | self._open_timers | self._loop.timers.keys()
        for path in timers:
            if path not in waits and not self.code.had_timer(path):
                raise timer_missing(self._sides(), path, self.code)

    def _withdraw(self, timers: Sequence[Path]) -> None:
        """Of the timers that the partition has, those that the code needed before the end of the
        journal. An activation begins with what has arrived, so each time limit ends in a replay.
        """
        waits = self._loop.timers.keys() | {path for path, _ in self._attempts.recorded()}
        for path in timers:
            if path not in waits and self.code.had_timer(path):
                self._loop.to_withdraw.append(path)

    def _cancel(self, note: Note) -> None:
        self.code.is_cancelled = True
        self.code.cancel_reason = note.payload
        assert self.code.main is not None
        self.code.main.cancel(note.payload.decode("utf-8", "replace") or None)
        self.code.turn(None)

    def _mismatch(self, record: JournalRecord) -> NonDeterminism:
        return mismatch(self._sides(), record, self.code)

    def _sides(self) -> Sides:
        ended = f"{self.function.name} has ended" if self.code.is_done else ""
        return Sides(self.title, self._ran_on, self.function.version, ended)

    def _guarded(self, give: Callable[..., None], *args: Any) -> None:
        """Gives live code an event. If the code never waits, or bytes do not decode, the execution
        is stuck: that is for a person.
        """
        try:
            give(*args)
            self._give_early()
        except (CodecError, NonDeterminism, TurnTooLong) as error:
            self.code.stuck = self.code.stuck or f"{type(error).__name__}: {error}"
        self._settle()

    def _settle(self) -> None:
        """After turns of the live code: what it has called, and whether it has ended."""
        starts = len(self._outbox.starts)
        if starts and self._records + self._outbox.waiting + starts > self._records_max:
            self.code.stuck = f"the journal has {self._records_max} records, and is full"
        while not self.is_over:
            self._begin_fresh()
            if not self._backlog:
                break
            operation, error = self._backlog.popleft()
            if operation.path in self.code.pending:
                self._attempts.forget(operation)
                payload, now_ms = self._codec.encode_error(error), self._loop.now_ms
                event = self._record_of(operation, RecordKind.STEP_FAILED, payload, now_ms)
                try:
                    self.code.give(operation, *event)
                    self._give_early()
                except (CodecError, TurnTooLong) as stuck:
                    self.code.stuck = f"{type(stuck).__name__}: {stuck}"
        self._end_if_done()

    def _end_if_done(self) -> None:
        """The result is that of this turn. What other tasks still do has no effect any more."""
        if self.code.is_done and self._end is None and not self._loop.is_away:
            self._end = self.code.closing(self.function)
            self._open_timers = set(self._loop.timers)
            self._loop.put_away()

    def _begin_fresh(self) -> None:
        fresh = [each for each in self.code.fresh if each.path in self.code.pending]
        self.code.fresh.clear()
        for operation in fresh:
            try:
                operation.encoded = operation.encode_arguments(self._codec)
                self._check_space(operation)
            except (CodecError, RunTooLong) as error:
                self._backlog.append((operation, error))
                continue
            if operation.was_begun:
                text = f"{operation.name} has begun, and its end is not known"
                self._backlog.append((operation, StepInterrupted(text)))
                continue
            if operation.needed_step.at_most_once:
                _, event = self._record_of(operation, RecordKind.STEP_BEGUN, b"", self._loop.now_ms)
                operation.saw(event)
                operation.begins_after = self.code.made
            self._attempts.add(operation)

    def _check_space(self, operation: Operation) -> None:
        """Raises RunTooLong. Some records are kept for the end: undoing, and cancellations."""
        kept = 0 if operation.is_undo or self.code.is_cancelled else JOURNAL_RECORDS_KEPT
        # What the code waits for may be a record each.
        waits = len(self.code.pending) + self.code.open_children
        records = self._records + self._outbox.waiting + waits
        if records > self._records_max - kept:
            raise RunTooLong(
                f"the journal would have {records} records, of at most {self._records_max} ({kept} "
                f"are kept for the end): {operation.name} is not begun"
            )

    def _under_way(self, path: Path, attempt: int) -> Operation | None:
        operation = self.code.pending.get(path)
        if self.is_over or operation is None or operation.attempt != attempt:
            return None
        return operation if operation.is_begun else None

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
            kind=kind, path=path, name=name, site=place_of(site), after=self._seen,
            at_ms=self._loop.now_ms, payload=payload,
        )  # fmt: skip
        self.code.made += 1
        return note, self._outbox.add(note, self.code.made)

    def _marked(self, path: Path, name: str, site: Site | None) -> None:
        self._record(RecordKind.PATCHED, path, self._loop.now_ms, name=name, site=site)

    def _is_filling(self) -> bool:
        """Whether the journal is over half of a limit, with what is on its way there."""
        records = self._records + self._outbox.waiting
        size = self._size + self._outbox.waiting_size + records * _RECORD_BYTES
        return records > self._records_max // 2 or size > JOURNAL_BYTES_MAX // 2

    def _produced(self, production: Production) -> None:
        """The code has produced items: they go with this record."""
        if self._records + self._outbox.waiting >= self._records_max:
            self.code.stuck = f"the journal has {self._records_max} records, and is full"
            return
        note = Note(
            kind=RecordKind.PRODUCED, path=production.path, name=production.produced.queue,
            site=place_of(production.site), after=self._seen, at_ms=self._loop.now_ms,
        )  # fmt: skip
        self.code.made += 1
        production.event.number = self.code.made
        production.event.is_apart = self.code.turns != production.turn
        self._outbox.add_production(note, production.event)

    def _retry(self, operation: Operation, error: BaseException, now_ms: int) -> None:
        delay_ms = self._attempts.delay_ms(operation)
        due_ms = max(self._loop.now_ms, now_ms) + delay_ms
        if is_long(delay_ms):
            payload = encode_attempt(self._codec, error, operation.attempt, due_ms)
            _, event = self._record_of(operation, RecordKind.ATTEMPT_FAILED, payload, now_ms)
            operation.saw(event)
        self._attempts.wait(operation, due_ms, is_recorded=is_long(delay_ms))
        self._settle()
