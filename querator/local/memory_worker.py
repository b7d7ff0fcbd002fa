"""The worker of a harness: activations of a queue in memory, at work, and killed at a write.

It drives machines as `querator.durable.activation_run` does, without a network and without waiting:
`turns` lets all happen that needs no time, and the caller waits for steps and moves the clock.
"""

import asyncio
import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from querator.client.errors import (
    ExecutionClosed,
    ExecutionNotFound,
    LeaseLost,
    LimitExceeded,
    Unseen,
)
from querator.durable import Codec, Durable
from querator.durable.effects import StepOutcome, carry_out
from querator.durable.errors import NonDeterminism, TurnTooLong, Undecodable
from querator.durable.fitting import after_trial, versions_of, without_trial
from querator.durable.machine import ExecutionMachine
from querator.durable.operations import Effect
from querator.durable.outbox import Sending
from querator.durable.paths import Path
from querator.durable.promises import ExecutionIdentity
from querator.local.memory_queue import LEASE_MS, NAMESPACE, QUEUE, Activation, MemoryQueue
from querator.model.executions import GiveBack, RecordKind

STEP_SECONDS_MAX: Final = 60.0
"""How long steps may take, in real time, without one of them ending."""
_REPLAYED_RECORDS: Final = 50
"""Journals up to this length are replayed each time that their execution continues."""
_WARM_MOST: Final = 15
"""How often a longer one continues without a replay: n waits cost less than n²/2 records."""
_FOREVER_MS: Final = 1 << 60
_ENDS: Final = (RecordKind.STEP_DONE, RecordKind.STEP_FAILED)


@dataclass(frozen=True, kw_only=True)
class BegunStep:
    """An attempt of a step that the worker has begun."""

    name: str
    execution_id: str
    attempt: int
    step_key: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass
class _AtWork:
    """An activation in the memory of the worker."""

    activation: Activation
    machine: ExecutionMachine
    known: int
    """The last index of the journal that was read."""
    warm: int = 0
    """How often it has continued without a replay."""
    tasks: "dict[tuple[Path, int], asyncio.Task[StepOutcome]]" = field(default_factory=dict)
    keys: dict[Path, str] = field(default_factory=dict)
    """Of the steps that were begun here: their keys."""


class MemoryWorker:
    """Used on one event loop."""

    def __init__(
        self, queue: MemoryQueue, functions: Mapping[str, Durable[..., Any]], codec: Codec
    ) -> None:
        self.fakes: dict[Callable[..., Any], Callable[..., Any]] = {}
        self.begun: list[BegunStep] = []
        self.written: list[str] = []
        self.crashes: set[tuple[int, bool]] = set()
        """The writes at which it dies: behind them, or before."""
        self._queue = queue
        self._functions = functions
        self._versions = versions_of(functions.values())
        self._codec = codec
        self._live: list[_AtWork] = []
        self._parked: dict[int, _AtWork] = {}
        """Those that were parked and are still in memory, by the number of the execution."""
        self._strays: set[asyncio.Task[StepOutcome]] = set()
        self._recorded: set[str] = set()
        """Keys of the steps whose results are in a journal."""

    @property
    def is_at_work(self) -> bool:
        """Whether it has activations in its memory."""
        return bool(self._live)

    @property
    def tasks(self) -> "list[asyncio.Task[StepOutcome]]":
        """The steps under way."""
        return [task for one in self._live for task in one.tasks.values()]

    def next_due(self) -> int:
        """When an execution at work continues, while no step is under way. Short waits before
        attempts are made in the memory of a worker.
        """
        dues = [one.machine.next_due() for one in self._live]
        due = min((each for each in dues if each is not None), default=None)
        assert due is not None, "an execution is at work, and waits for nothing"
        return due

    def extend(self) -> None:
        """Its leases last from now on."""
        if self._live:
            self._queue.extend(tuple(one.activation.lease for one in self._live))

    async def until_one_ends(self) -> None:
        """Waits for one of the steps under way."""
        tasks = self.tasks
        done, _ = await asyncio.wait(
            tasks, timeout=STEP_SECONDS_MAX, return_when=asyncio.FIRST_COMPLETED
        )
        if not done:
            names = ", ".join(sorted({one.get_name() for one in tasks}))
            raise TimeoutError(f"{names}: no step has ended in {STEP_SECONDS_MAX:g} s")

    async def end_strays(self) -> None:
        """Waits for the steps that were cancelled."""
        if self._strays:
            await asyncio.wait(set(self._strays), timeout=STEP_SECONDS_MAX)

    def turns(self) -> None:
        """Lets all that needs no waiting happen."""
        is_moving = True
        while is_moving:
            is_moving = False
            while (activation := self._queue.lease(self._versions)) is not None:
                self._begin(activation)
                is_moving = True
            for one in tuple(self._live):
                # A crash empties the list.
                if one in self._live and self._advance(one):
                    is_moving = True

    def _begin(self, activation: Activation) -> None:
        view = activation.view
        warm = self._parked.pop(view.number, None)
        if warm is not None and warm.activation.view.run != view.run:
            # It was started again, or rewound: the journal is another one.
            self._put_away(warm)
            warm = None
        if warm is not None:
            warm.activation = activation
            warm.warm += 1
            warm.machine.leased(_FOREVER_MS)
            self._live.append(warm)
            return
        journal = self._queue.journal(view.number)
        unfit = without_trial(self._functions, view.function, view.version)
        if unfit is not None:
            self._leave(activation, unfit)
            return
        function = self._functions[view.function]
        identity = ExecutionIdentity(
            namespace=NAMESPACE, queue=QUEUE, partition=0, number=view.number, id=view.id,
            run=view.run, secret=view.secret, origin=view.origin,
        )  # fmt: skip
        machine = ExecutionMachine(function, identity, self._codec)
        machine.leased(_FOREVER_MS)
        try:
            machine.load(journal, version=view.version, timers=view.timer_paths, seen=view.seen)
        except (NonDeterminism, TurnTooLong, Undecodable) as error:
            self._leave(activation, after_trial(function, view.version, error))
            return
        self._live.append(_AtWork(activation, machine, journal[-1].index))

    def _leave(self, activation: Activation, then: GiveBack) -> None:
        self._queue.record(activation, Sending(1, 0, then=then))

    def _advance(self, one: _AtWork) -> bool:
        """Returns whether something has happened."""
        machine = one.machine
        now_ms = self._queue.now_ms
        ended = [(key, task) for key, task in one.tasks.items() if task.done()]
        for key, task in ended:
            del one.tasks[key]
            outcome = task.result()
            if outcome.error is None:
                machine.finished(*key, outcome.value, now_ms)
            else:
                machine.failed(*key, outcome.error, now_ms)
        machine.tick(now_ms)
        news = self._queue.journal(one.activation.view.number, one.known + 1)
        if news:
            one.known = news[-1].index
            machine.arrive(news)
        effects = machine.ready(now_ms)
        for effect in effects:
            self._carry_out(one, effect)
        for path in machine.code.abandoned:
            for key in [key for key in one.tasks if key[0] == path]:
                self._cancel(one.tasks.pop(key))
        machine.code.abandoned.clear()
        can_park = machine.can_park
        if can_park or machine.is_urgent or machine.is_publishing or not one.tasks:
            sending = machine.take(should_park=can_park)
            if sending is not None:
                self._record(one, sending)
                return True
        return bool(ended or news or effects)

    def _carry_out(self, one: _AtWork, effect: Effect) -> None:
        if effect.step_key in self._recorded:
            raise AssertionError(
                f"step {effect.name} of {effect.execution_id} begins again behind its result"
            )
        one.keys[effect.path] = effect.step_key
        self.begun.append(
            BegunStep(
                name=effect.name, execution_id=effect.execution_id, attempt=effect.attempt,
                step_key=effect.step_key, args=effect.args, kwargs=effect.kwargs,
            )
        )  # fmt: skip
        fake = self.fakes.get(effect.function)
        if fake is not None:
            is_async = inspect.iscoroutinefunction(fake)
            effect = dataclasses.replace(effect, function=fake, is_async=is_async)
        # Owned: its end is taken, or it is cancelled and awaited as a stray.
        one.tasks[effect.path, effect.attempt] = asyncio.get_running_loop().create_task(
            carry_out(effect), name=f"{effect.name} of {effect.execution_id}"
        )

    def _record(self, one: _AtWork, sending: Sending) -> None:
        number = len(self.written) + 1
        self.written.append(f"{one.activation.view.id}: {_words_of(sending)}")
        if (number, False) in self.crashes:
            self.crashes.discard((number, False))
            self.kill()
            return
        try:
            version = one.machine.function.version
            first = self._queue.record(one.activation, sending, version=version)
        except Unseen:
            one.machine.refused(sending.number)
            return
        except LimitExceeded as error:
            if not error.field.startswith("published"):
                raise
            one.machine.refused_published(sending.number, f"a Record was refused: {error}")
            return
        except (LeaseLost, ExecutionClosed, ExecutionNotFound):
            # A step, or another execution, has ended it.
            self._put_away(one)
            self._live.remove(one)
            return
        self._recorded.update(
            one.keys[note.path]
            for note in sending.notes
            if note.kind in _ENDS and note.path in one.keys
        )
        if (number, True) in self.crashes:
            self.crashes.discard((number, True))
            self.kill()
            return
        one.machine.applied(sending.number, first)
        if one.machine.is_closed or one.machine.is_parked:
            self._live.remove(one)
            is_long = one.known > _REPLAYED_RECORDS and one.warm < _WARM_MOST
            if one.machine.is_parked and is_long:
                self._parked[one.activation.view.number] = one
            else:
                self._put_away(one)

    def forget(self) -> None:
        """Puts away what is parked."""
        for one in self._parked.values():
            self._put_away(one)
        self._parked.clear()

    def kill(self) -> None:
        """The worker dies with all that it has in memory; its leases lapse."""
        self.forget()
        if not self._live:
            return
        for one in self._live:
            self._put_away(one)
        self._live.clear()
        self._queue.move(self._queue.now_ms + LEASE_MS)

    def _put_away(self, one: _AtWork) -> None:
        for task in one.tasks.values():
            self._cancel(task)
        one.tasks.clear()
        one.machine.put_away()

    def _cancel(self, task: "asyncio.Task[StepOutcome]") -> None:
        task.cancel()
        self._strays.add(task)
        task.add_done_callback(self._strays.discard)


def _words_of(sending: Sending) -> str:
    """What a write says, for people."""
    words = [f"{RecordKind(note.kind).name.lower()} {note.name}".rstrip() for note in sending.notes]
    words += [f"publish {key}" for key, _ in sending.published]
    then = type(sending.then).__name__
    if then != "GoOn":
        words.append({"GiveBack": "give back"}.get(then, then.lower()))
    return ", ".join(words) or "timers"
