"""An activation at work: the driver of one machine.

The task of a run is the only one that calls its machine. What happens meanwhile (an effect has
ended, a Record is answered, the lease was extended) is kept, and wakes the task.
"""

import asyncio
import re
import time
from collections import defaultdict, deque
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from querator.client.errors import (
    ExecutionClosed,
    LeaseLost,
    NotFound,
    OutcomeUnknown,
    RequestError,
    SequenceGap,
    Unseen,
)
from querator.client.executions import (
    ActivationGrant,
    AtWork,
    ExecutionCalls,
    ProgressAnswer,
    ProgressReport,
)
from querator.client.transport.backoff import Backoff
from querator.durable.arrival_watch import ArrivalWatch
from querator.durable.codec import Codec
from querator.durable.effects import NOT_BEGUN, StepOutcome, carry_out
from querator.durable.errors import NonDeterminism, TurnTooLong, Undecodable
from querator.durable.fitting import after_trial, without_trial
from querator.durable.functions import Durable
from querator.durable.kept_leases import LeaseKeeper
from querator.durable.logs import WORKER as LOG
from querator.durable.machine import ExecutionMachine
from querator.durable.operations import Effect
from querator.durable.outbox import Sending
from querator.durable.partition_clock import PartitionClock
from querator.durable.paths import Path
from querator.durable.promises import ExecutionIdentity
from querator.model.executions import GiveBack, RecordKind
from querator.model.limits import ERROR_CHARS_MAX

LINGER_MS: Final = 250
"""A timer that is due within this time is waited for, without parking."""
FLUSH_SECONDS: Final = 1.0
"""How long records wait that nothing else waits for."""
_EFFECTS_END_SECONDS: Final = 5.0
"""How long cancelled steps may take to end before they are left alone."""
_LOST = (LeaseLost, SequenceGap, NotFound, ExecutionClosed)


@dataclass(frozen=True)
class RunParts:
    """What all runs of a worker share."""

    calls: ExecutionCalls
    queue: str
    functions: dict[str, Durable[..., Any]]
    codec: Codec
    leases: LeaseKeeper
    executor: Executor
    strays: "set[_Task]"
    """Steps that do not end although they were cancelled: kept, so that they can end."""
    times: defaultdict[int, PartitionClock]
    """By the number of the partition."""
    watch: ArrivalWatch


_Task = asyncio.Task[StepOutcome]


class _Attempt(NamedTuple):
    """An effect under way."""

    task: _Task
    effect: Effect


class ActivationRun:
    """Runs one activation until it is parked, closed, given back, or its lease is lost."""

    def __init__(self, parts: RunParts, grant: ActivationGrant, since: float) -> None:
        """`since`: when the activation was asked for, by the monotonic clock."""
        self._parts = parts
        self._grant = grant
        self._title = f'{grant.function} "{grant.id}", run {grant.run}'
        self._time = parts.times[grant.partition]
        self._wake = asyncio.Event()
        self._lease = parts.leases.hold(grant.lease_id, since, grant.remaining, self._was_extended)
        self._known = 0
        """The last index of the journal that was read."""
        self._seen = 0
        """The last arrival of the journal when the run began."""
        self._effects: dict[tuple[Path, int], _Attempt] = {}
        self._withheld: list[Effect] = []
        """Those whose lease was over when their turn came."""
        self._outcomes: deque[tuple[Path, int, StepOutcome]] = deque()
        self._sending: tuple[Sending, asyncio.Task[ProgressAnswer]] | None = None
        self._flush_at: float | None = None
        self._hears = False
        self._unseen = Backoff()
        self._is_lost = False
        self._grace_ends: float | None = None
        """When the steps under way are cancelled, because the worker stops."""
        self._new_version = ""
        """Of the function, if the execution has run on another one."""
        self._has_thread = False
        """Whether a sync step was left alone: its thread cannot be ended."""
        self.asked_from = 0.0
        """As the watch of arrivals wants it."""

    def stop(self, grace_seconds: float) -> None:
        """Begins nothing more, lets what is under way end for a time, and gives back."""
        self._grace_ends = time.monotonic() + grace_seconds
        self._wake.set()

    async def run(self) -> None:
        """Raises nothing but CancelledError: a defect is logged, and the lease lapses."""
        try:
            await self._run()
        except RequestError as error:
            LOG.warning("%s is left until its lease lapses: %s", self._title, error)
        except Exception:  # noqa: BLE001 - a task's top: a defect must not end the worker.
            LOG.exception("%s is left until its lease lapses, for a defect", self._title)
        finally:
            self._parts.leases.release(self._lease, self._was_extended)

    async def _run(self) -> None:
        grant, parts = self._grant, self._parts
        journal = list(grant.records)
        if grant.next_index:
            rest = parts.calls.journal(parts.queue, grant.id, grant.next_index)
            journal += [record async for record in rest]
        self._known = journal[-1].index
        unfit = without_trial(parts.functions, grant.function, grant.version)
        if unfit is not None:
            await self._leave(unfit)
            return
        function = parts.functions[grant.function]
        if self._grace_ends is not None:
            await self._leave(GiveBack())
            return
        identity = ExecutionIdentity(
            namespace=parts.calls.namespace, queue=parts.queue, partition=grant.partition,
            number=grant.execution, id=grant.id, run=grant.run, secret=grant.secret,
            origin=grant.origin_run,
        )  # fmt: skip
        machine = ExecutionMachine(function, identity, parts.codec)
        machine.leased(self._until_ms())
        try:
            machine.load(journal, version=grant.version, timers=grant.timers, seen=grant.seen)
        except (NonDeterminism, TurnTooLong, Undecodable) as error:
            await self._leave(after_trial(function, grant.version, error))
            return
        if function.version != grant.version:
            self._new_version = function.version
        parts.watch.add(self)
        try:
            await self._drive(machine)
        finally:
            parts.watch.remove(self)
            await self._end(machine)

    # --- the loop of a run -----------------------------------------------------------------------

    async def _drive(self, machine: ExecutionMachine) -> None:
        while not (machine.is_parked or machine.is_closed):
            # The answer of a Record that is in flight says whether it has ended the lease itself.
            if self._is_lost or (self._lease.is_lost and self._sending is None):
                LOG.warning("%s: the lease is lost; another worker has it", self._title)
                return
            now_ms = self._now_ms()
            machine.leased(self._until_ms())
            machine.tick(now_ms)
            if self._grace_ends is None:
                for effect in [*self._released(), *machine.ready(now_ms)]:
                    self._begin(effect)
            elif time.monotonic() >= self._grace_ends:
                self._cancel_effects()
            self._drop_abandoned(machine)
            if self._flush_at is None and machine.is_publishing:
                self._flush_at = time.monotonic() + FLUSH_SECONDS
            if self._sending is None:
                sending = self._take(machine, now_ms)
                if sending is not None:
                    self._send(sending)
                elif self._grace_ends is not None and not self._effects and not self._outcomes:
                    return
            await self._wait(machine, now_ms)
            for path, attempt, outcome in self._ended():
                self._report(machine, path, attempt, outcome)
            await self._answered(machine)
            if self._hears:
                await self._hear(machine)

    def _take(self, machine: ExecutionMachine, now_ms: int) -> Sending | None:
        """The Record that is to be sent at this moment, if any."""
        sending = None
        stops = self._grace_ends is not None
        if machine.can_park:
            due_ms = machine.next_due()
            if stops or due_ms is None or due_ms - now_ms > LINGER_MS:
                sending = machine.take(should_park=True)
        elif stops and not machine.is_over:
            # The thread of a step cannot be ended: the lease keeps others away while it lasts.
            sending = machine.take(give_back=not self._effects and not self._has_thread)
        elif machine.is_urgent or self._is_to_flush:
            sending = machine.take()
        if sending is not None or self._is_to_flush:
            self._flush_at = None
        return sending

    @property
    def _is_to_flush(self) -> bool:
        return self._flush_at is not None and time.monotonic() >= self._flush_at

    async def _wait(self, machine: ExecutionMachine, now_ms: int) -> None:
        """Until something has happened, or is due."""
        if self._outcomes or self._hears:
            return
        now = time.monotonic()
        dues = [self._flush_at] if self._sending is None else []
        if self._grace_ends is not None:
            dues.append(self._grace_ends if self._effects else None)
        elif not self._lease.is_over:
            due_ms = machine.next_due()
            dues.append(None if due_ms is None else now + (due_ms - now_ms) / 1000)
        due = min((each for each in dues if each is not None), default=None)
        timer = None
        if due is not None:
            timer = asyncio.get_running_loop().call_later(max(0.001, due - now), self._wake.set)
        try:
            await self._wake.wait()
        finally:
            if timer is not None:
                timer.cancel()
        self._wake.clear()

    def _was_extended(self) -> None:
        """The lease lasts longer, or is lost. What has arrived is looked for as often."""
        self._hears = True
        self._wake.set()

    @property
    def at_work(self) -> AtWork:
        grant = self._grant
        return AtWork(grant.lease_id, grant.item, grant.execution, self._known)

    def heard_of(self, *, is_lost: bool) -> None:
        """Something has arrived, or the lease does not hold the activation any more."""
        if not is_lost:
            self._hears = True
        elif self._sending is None:
            # A Record that is in flight may have ended the lease itself; its answer says so.
            self._is_lost = True
        self._wake.set()

    # --- effects ---------------------------------------------------------------------------------

    def _begin(self, effect: Effect) -> None:
        # Owned: `_end` cancels it, and waits for it.
        task = asyncio.get_running_loop().create_task(
            carry_out(effect, executor=self._parts.executor, may_begin=self._may_begin)
        )
        key = effect.path, effect.attempt
        self._effects[key] = _Attempt(task, effect)
        task.add_done_callback(partial(self._effect_ended, key))

    def _may_begin(self) -> bool:
        return not self._lease.is_over and self._grace_ends is None

    def _effect_ended(self, key: tuple[Path, int], task: _Task) -> None:
        attempt = self._effects.get(key)
        if attempt is not None and attempt.task is task:
            del self._effects[key]
            # Those that the run cancels are not there: this one has cancelled itself.
            ended_itself = StepOutcome(error=asyncio.CancelledError())
            outcome = ended_itself if task.cancelled() else task.result()
            if outcome is NOT_BEGUN:
                self._withheld.append(attempt.effect)
            else:
                self._outcomes.append((*key, outcome))
        self._wake.set()

    def _released(self) -> list[Effect]:
        """Withheld effects that may begin, because the lease was extended."""
        if self._lease.is_over:
            return []
        released, self._withheld = self._withheld, []
        return released

    def _ended(self) -> list[tuple[Path, int, StepOutcome]]:
        ended = list(self._outcomes)
        self._outcomes.clear()
        return ended

    def _report(
        self, machine: ExecutionMachine, path: Path, attempt: int, outcome: StepOutcome
    ) -> None:
        now_ms = self._now_ms()
        if outcome.error is None:
            machine.finished(path, attempt, outcome.value, now_ms)
        else:
            machine.failed(path, attempt, outcome.error, now_ms)
        if self._flush_at is None:
            self._flush_at = time.monotonic() + FLUSH_SECONDS

    def _drop_abandoned(self, machine: ExecutionMachine) -> None:
        for path in machine.code.abandoned:
            for key in [key for key in self._effects if key[0] == path]:
                self._stray(self._effects.pop(key))
            self._withheld = [each for each in self._withheld if each.path != path]
        machine.code.abandoned.clear()

    def _cancel_effects(self) -> None:
        while self._effects:
            self._stray(self._effects.popitem()[1])

    def _stray(self, attempt: _Attempt) -> None:
        self._has_thread = self._has_thread or not attempt.effect.is_async
        attempt.task.cancel()
        self._parts.strays.add(attempt.task)
        attempt.task.add_done_callback(self._parts.strays.discard)

    # --- Records ---------------------------------------------------------------------------------

    def _send(self, sending: Sending) -> None:
        report = ProgressReport(
            lease_id=self._grant.lease_id, item=self._grant.item, execution=self._grant.execution,
            number=sending.number, seen=sending.seen, records=sending.notes, folds=sending.folds,
            timers=sending.timers, children=sending.children, cancels=sending.cancels,
            published=sending.published, version=self._new_version, then=sending.then,
            produced=tuple((each.queue, each.encoded) for each in sending.produced),
        )  # fmt: skip
        # Owned: its answer is taken, or `_end` cancels it.
        task = asyncio.get_running_loop().create_task(self._record(report))
        self._sending = sending, task
        task.add_done_callback(lambda _: self._wake.set())

    async def _record(self, report: ProgressReport) -> ProgressAnswer:
        """Tries until there is an answer, or the lease is over: then another worker decides."""
        backoff = Backoff()
        while True:
            try:
                answer = await self._parts.calls.record(self._parts.queue, report)
            except RequestError as error:
                is_passing = error.retriable or isinstance(error, OutcomeUnknown)
                if not is_passing or self._lease.is_over:
                    raise
                LOG.warning("%s: a Record is sent again: %s", self._title, error)
            else:
                self._time.heard(answer.now_ms)
                return answer
            await asyncio.sleep(backoff.next())

    async def _answered(self, machine: ExecutionMachine) -> None:
        if self._sending is None or not self._sending[1].done():
            return
        sending, task = self._sending
        self._sending = None
        try:
            machine.applied(sending.number, task.result().first_index)
        except Unseen:
            machine.refused(sending.number)
            known = self._known
            await self._hear(machine)
            if self._known == known:
                await asyncio.sleep(self._unseen.next())
        except RequestError as error:
            queue = _refusing_queue(error, sending)
            if queue is not None:
                LOG.error("%s is stuck: %s", self._title, error)
                machine.refused_items(sending.number, queue, f"its items were refused: {error}")
                return
            if isinstance(error, _LOST):
                LOG.info("%s: a Record was refused: %s", self._title, error)
                self._is_lost = True
                return
            if error.retriable or isinstance(error, OutcomeUnknown):
                raise
            if error.field.startswith("published"):
                LOG.error("%s is stuck: %s", self._title, error)
                machine.refused_published(sending.number, f"a Record was refused: {error}")
                return
            self._is_lost = True
            reason = f"a Record was refused: {error}"[:ERROR_CHARS_MAX]
            stuck = GiveBack(stuck=True, reason=reason)
            await self._leave(stuck, sending.number, sending.seen)
        else:
            self._unseen.reset()
            # The partition has said in the journal whether they were started.
            self._hears = self._hears or bool(sending.children)

    async def _leave(self, then: GiveBack, number: int = 1, seen: int = 0) -> None:
        """`seen` 0: no code was given anything."""
        # The reasons that come from the code begin with the title, too.
        reason = then.reason.removeprefix(f"{self._title}: ")
        if then.stuck:
            LOG.error("%s is stuck: %s", self._title, reason)
        elif then.pinned:
            LOG.warning("%s is pinned: %s", self._title, reason)
        report = ProgressReport(
            lease_id=self._grant.lease_id, item=self._grant.item, execution=self._grant.execution,
            number=number, seen=seen,
            then=then,
        )  # fmt: skip
        await self._record(report)

    async def _hear(self, machine: ExecutionMachine) -> None:
        """Gives the code what has arrived behind what was read."""
        self._hears = False
        if machine.is_parked or machine.is_closed:
            return
        rest = self._parts.calls.journal(self._parts.queue, self._grant.id, self._known + 1)
        try:
            fresh = [record async for record in rest]
        except _LOST:
            self._is_lost = True
            return
        except RequestError as error:
            LOG.warning("%s: the journal cannot be read: %s", self._title, error)
            return
        if not fresh:
            return
        self._known = fresh[-1].index
        if any(record.note.kind == RecordKind.TERMINATED for record in fresh):
            self._is_lost = True
            return
        machine.arrive([record for record in fresh if record.is_arrival])

    # --- the end ---------------------------------------------------------------------------------

    async def _end(self, machine: ExecutionMachine) -> None:
        if not machine.put_away():
            LOG.error("%s: the code does not end, and stays in memory", self._title)
        if self._sending is not None:
            self._sending[1].cancel()
        effects = {attempt.task for attempt in self._effects.values()}
        self._cancel_effects()
        if effects:
            await asyncio.wait(effects, timeout=_EFFECTS_END_SECONDS)

    # --- time ------------------------------------------------------------------------------------

    def _now_ms(self) -> int:
        return self._time.now_ms()

    def _until_ms(self) -> int:
        return 0 if self._lease.is_lost else self._time.at_ms(self._lease.ends)


def _refusing_queue(error: RequestError, sending: Sending) -> str | None:
    """The queue that does not take items of a Record, if the Record was refused for that."""
    named = re.match(r"produced\[(\d+)\]", error.field)
    if error.retriable or named is None or int(named[1]) >= len(sending.produced):
        return None
    return sending.produced[int(named[1])].queue
