"""Tests of durable functions: their code on the rules of a real queue, under a clock that skips.

A harness has a queue in memory, a worker of its own and a clock. Nothing runs but in its calls, no
port is opened, and no time is waited: when nothing is under way, the clock jumps to the next
instant at which something is due. Steps are run for real, or replaced.

The worker is what `querator.durable.Worker` is without the network: machines, one for each
activation, that replay the journal each time that an execution continues, or once in 16 times if it
is long. It may be killed before or behind each of its writes.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, ParamSpec, TypeVar, overload

from querator.client import Client
from querator.client.executions import ExecutionCalls, KeyPolicyName
from querator.client.values import Item
from querator.durable import Codec, Durable, ExecutionHandle, Executions, Step
from querator.durable.context import STEP
from querator.durable.functions import checked_function
from querator.durable.worker import as_functions, functions_by_name, make_codec
from querator.local.memory_queue import QUEUE, MemoryCalls, MemoryQueue, instant
from querator.local.memory_worker import BegunStep, MemoryWorker
from querator.model.executions import ExecutionState

P = ParamSpec("P")
T = TypeVar("T")

START: Final = datetime(2030, 1, 1, tzinfo=UTC)
WRITES_MAX: Final = 1_000
"""Writes of a test that `every_crash` repeats twice for each of them."""


class Stalled(AssertionError):
    """An execution has not ended, and nothing will happen any more: it is stuck or pinned, or waits
    for a signal or a promise.
    """


class _MemoryClient(Client):
    """A client without a server: what `Executions` asks of one."""

    def __init__(self, calls: ExecutionCalls) -> None:
        super().__init__("127.0.0.1:1")
        self._calls = calls

    @property
    def executions(self) -> ExecutionCalls:
        return self._calls


class Harness:
    """Runs durable functions in a test.

        h = Harness([checkout], steps={charge: fake_charge})
        assert await h.run(checkout, order) == "receipt of order-17"

    `steps` replaces steps, and functions that are called as steps, by others, async or not.
    `errors` and `codec` are as for `Worker`. The clock begins at `start`. A harness is used on one
    event loop, and needs no end.
    """

    def __init__(
        self,
        functions: Iterable[Durable[..., Any]],
        *,
        steps: Mapping[Callable[..., Any], Callable[..., Any]] | None = None,
        codec: Codec | None = None,
        errors: Iterable[type[Exception]] = (),
        start: datetime = START,
    ) -> None:
        """Raises TypeError for what is no durable function or step. Raises ValueError for no
        functions, two of one name, or a naive `start`.
        """
        if start.tzinfo is None:
            raise ValueError("start needs a time zone: datetime(..., tzinfo=UTC)")
        self._options: dict[str, Any] = {
            "functions": as_functions(functions), "steps": dict(steps or {}),
            "codec": make_codec(codec, errors), "start": start,
        }  # fmt: skip
        self._functions = functions_by_name(self._options["functions"])
        self._codec: Codec = self._options["codec"]
        self._queue = MemoryQueue(round(start.timestamp() * 1000))
        self._worker = MemoryWorker(self._queue, self._functions, self._codec)
        for step, fake in self._options["steps"].items():
            self.replace(step, fake)
        calls = MemoryCalls(
            self._queue, settle=self._settle, ended=self._until_ended, passing=self._until
        )
        self.executions = Executions(_MemoryClient(calls), QUEUE, codec=self._codec)
        self._lock = asyncio.Lock()
        self._started = 0

    # --- executions --------------------------------------------------------------------------

    @overload
    async def start(
        self, function: Durable[P, Coroutine[Any, Any, T]], /, *args: Any, **options: Any
    ) -> ExecutionHandle[T]: ...

    @overload
    async def start(
        self, function: Durable[P, T], /, *args: Any, **options: Any
    ) -> ExecutionHandle[T]: ...

    async def start(
        self,
        function: Durable[..., Any],
        /,
        *args: Any,
        id: str | None = None,
        delay: timedelta | None = None,
        deadline: datetime | None = None,
        priority: int = 0,
        key_policy: KeyPolicyName = "attach",
        **kwargs: Any,
    ) -> ExecutionHandle[Any]:
        """Starts an execution, and runs it until it has ended or waits. As `Executions.start`, but
        times are those of the clock, and ids are the name of the function and a number.
        """
        name = self._name_of(function)
        self._started += 1
        return await self.executions.start(
            function, *args, id=f"{name}-{self._started}" if id is None else id, delay=delay,
            deadline=deadline, priority=priority, key_policy=key_policy, **kwargs,
        )  # fmt: skip

    @overload
    async def run(
        self, function: Durable[P, Coroutine[Any, Any, T]], /, *args: Any, **options: Any
    ) -> T: ...

    @overload
    async def run(self, function: Durable[P, T], /, *args: Any, **options: Any) -> T: ...

    async def run(self, function: Durable[..., Any], /, *args: Any, **options: Any) -> Any:
        """Starts an execution, lets time pass until it has ended, and returns its result or raises
        what the function has raised. `options` are those of `start`. Raises Stalled.
        """
        handle = await self.start(function, *args, **options)
        return await handle.result()

    def _name_of(self, function: Any) -> str:
        name = checked_function(function).name
        if self._functions.get(name) is not function:
            raise ValueError(f"functions does not have {name}; it has {', '.join(self._functions)}")
        return name

    def replace(self, step: Callable[..., Any], fake: Callable[..., Any]) -> None:
        """Replaces a step from here on, as `steps` does: for fakes that belong to one run of a test
        that `every_crash` repeats.
        """
        self._worker.fakes[_plain(step, "steps")] = _plain(fake, "steps")

    # --- time --------------------------------------------------------------------------------

    @property
    def now(self) -> datetime:
        """What the clock shows."""
        return instant(self._queue.now_ms)

    async def skip(self, duration: timedelta | None = None) -> None:
        """Lets time pass, with all that becomes due in it; None: until the next execution
        continues. Raises Stalled if none ever does.
        """
        if duration is None:
            written = len(self.writes)
            while len(self.writes) == written:
                due = self._queue.next_due()
                if due is None:
                    raise Stalled("nothing is due at any time")
                await self._pump(until_ms=due)
        elif duration < timedelta(0):
            raise ValueError(f"duration is {duration}; time does not go back")
        else:
            await self._pump(until_ms=self._queue.now_ms - -duration // timedelta(milliseconds=1))

    def produced(self, queue: str) -> list[Item]:
        """The items that executions have produced into a queue, in their order. Whether the queue
        takes them is not checked.
        """
        return list(self._queue.produced.get(queue, ()))

    # --- crashes -----------------------------------------------------------------------------

    @property
    def begun(self) -> tuple[BegunStep, ...]:
        """The attempts of steps, in the order in which they began."""
        return tuple(self._worker.begun)

    @property
    def writes(self) -> tuple[str, ...]:
        """What the worker has written, in words: `order-17: step_done charge`."""
        return tuple(self._worker.written)

    def crash_at(self, write: int, *, behind: bool = True) -> None:
        """Kills the worker at its write of this number, from 1: behind it, when the write is
        durable and the worker does not know it; or before it, when what it has done is not
        recorded. Another worker continues when the leases of the dead one are over.
        """
        if write < 1:
            raise ValueError(f"write is {write}; it must be at least 1")
        self._worker.crashes.add((write, behind))

    async def every_crash(self, test: "Callable[[Harness], Awaitable[T]]") -> T:
        """Runs `test` with harnesses like this one: once as it is, and then with the worker killed
        before and behind each write. Returns the result of the first run.

        Raises AssertionError if a result is another one, or if a recorded step begins again; and
        what the test raises, with a note that says where the worker was killed.
        """
        if not inspect.iscoroutinefunction(test):
            raise TypeError(f"test is {test!r}; it must be an async function of one harness")
        plain = self._another()
        expected = await test(plain)
        writes = plain.writes
        if not writes:
            raise ValueError("the test writes nothing: it runs no durable function of its harness")
        if len(writes) > WRITES_MAX:
            raise ValueError(f"the test has {len(writes)} writes; at most {WRITES_MAX}")
        for number, words in enumerate(writes, 1):
            for behind in (False, True):
                other = self._another()
                other.crash_at(number, behind=behind)
                side = "behind" if behind else "before"
                place = f"the worker was killed {side} write {number} of {len(writes)} ({words})"
                try:
                    result = await test(other)
                except Exception as error:
                    error.add_note(place)
                    raise
                if other._worker.crashes:
                    raise AssertionError(f"{place}: the run has only {len(other.writes)} writes")
                if result != expected:
                    raise AssertionError(f"{place}: the result is {result!r}, not {expected!r}")
        return expected

    def _another(self) -> "Harness":
        return Harness(**self._options)

    # --- the loop of the worker --------------------------------------------------------------

    async def _settle(self) -> None:
        await self._pump(until_ms=self._queue.now_ms)

    async def _until_ended(self, ids: Sequence[str]) -> None:
        if STEP.get(None) is not None:
            raise RuntimeError("a step waits for an execution of its own harness")
        await self._pump(until=lambda: self._have_ended(ids) or self._is_stuck(ids))
        if not self._have_ended(ids):
            # A child may be what does not continue.
            others = [one for one in self._queue.views() if one.reason and not one.closed_ms]
            words = "; ".join(map(self._words, dict.fromkeys([*ids, *(one.id for one in others)])))
            raise Stalled(f"nothing will happen any more: {words}")

    async def _until(self, until: Callable[[], bool], milliseconds: int) -> None:
        """Lets time pass until something is so, or for this time."""
        await self._pump(until_ms=self._queue.now_ms + milliseconds, until=until)

    def _have_ended(self, ids: Sequence[str]) -> bool:
        views = [self._queue.view(one) for one in ids]
        return any(view is None or view.closed_ms for view in views)

    def _is_stuck(self, ids: Sequence[str]) -> bool:
        views = [self._queue.view(one) for one in ids]
        # The worker has one version of each function: what is pinned is pinned for ever.
        ends = (ExecutionState.STUCK, ExecutionState.PINNED)
        return all(view is not None and view.state in ends for view in views)

    def _words(self, execution_id: str) -> str:
        view = self._queue.view(execution_id)
        assert view is not None
        why = f" ({view.reason})" if view.reason else ""
        return f"{execution_id} is {ExecutionState(view.state).name.lower()}{why}"

    async def _pump(
        self, *, until_ms: int | None = None, until: Callable[[], bool] | None = None
    ) -> None:
        """Runs what can run. Time passes until an instant, or until something is so. In a step it
        does nothing: the call in which the step runs continues.
        """
        if STEP.get(None) is not None:
            return
        async with self._lock:
            try:
                while await self._goes_on(until_ms, until):
                    pass
            except BaseException:
                self._worker.kill()
                raise
            finally:
                self._worker.forget()
                await self._worker.end_strays()

    async def _goes_on(self, until_ms: int | None, until: Callable[[], bool] | None) -> bool:
        worker = self._worker
        worker.turns()
        if worker.tasks:
            await worker.until_one_ends()
            return True
        if worker.is_at_work:
            self._move(worker.next_due())
            return True
        if until is not None and until():
            return False
        due = self._queue.next_due()
        if due is None or (until_ms is not None and due > until_ms):
            # Cancellations of children are due as well, and have no time.
            return self._move(self._queue.now_ms if until_ms is None else until_ms)
        self._move(due)
        return True

    def _move(self, to_ms: int) -> bool:
        self._worker.extend()
        return self._queue.move(to_ms)


def _plain(step: Any, name: str) -> Callable[..., Any]:
    """The function of a step."""
    if isinstance(step, Durable) or not callable(step):
        raise TypeError(f"{name} has {step!r}; it must have steps, or functions called as steps")
    function: Callable[..., Any] = step.function if isinstance(step, Step) else step
    return function
