"""An event loop under virtual time: one for each process, and one for all clients.

A loop runs in steps at instants of the timeline. A step runs what is ready, and what becomes ready
by that, until nothing is. There is no selector and no thread: work for a thread runs in a later
step, by itself. The loop's clock is that of its machine. A paused or ended loop makes no step, so a
crash is the end of its loop, with everything in it.
"""

import asyncio
import heapq
import random
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, Protocol, TypeVar, TypeVarTuple, Unpack

from tests.simulation.timeline import MS, SECOND, Timeline

ROUNDS_MAX = 1_000
"""Rounds of one instant. More mean a loop that waits for nothing."""
THREAD_US = (20, 2 * MS)
"""Delay after which work for a thread is done."""
_SOON_S = 1e-6
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class LoopClock(Protocol):
    def monotonic_s(self) -> float: ...

    def virtual_us(self, duration_s: float) -> int: ...


class RightClock:
    """The clock of clients: it shows virtual time."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline

    def monotonic_s(self) -> float:
        return self._timeline.now_us / SECOND

    def virtual_us(self, duration_s: float) -> int:
        return int(duration_s * SECOND) + 1


class _Task(asyncio.Task[Any]):
    """Its hash is its number: sets of tasks have one order in every process."""

    def __init__(self, number: int, coro: Any, **more: Any) -> None:
        # Before asyncio puts the task into the set of all tasks.
        self.number = number
        super().__init__(coro, **more)

    def __hash__(self) -> int:
        return self.number


class _Future(asyncio.Future[Any]):
    number = 0

    def __hash__(self) -> int:
        return self.number


class VirtualLoop(asyncio.BaseEventLoop):
    """`failed` is called with each exception that was not caught."""

    _stepping = False

    def __init__(
        self,
        timeline: Timeline,
        clock: LoopClock,
        chance: random.Random,
        failed: Callable[[str, BaseException | None], None],
    ) -> None:
        super().__init__()
        self.ended = False
        self.paused = False
        self._timeline = timeline
        self._clock = clock
        self._chance = chance
        self._failed = failed
        self._made = 0
        self._tasks: list[asyncio.Task[Any]] = []
        self._due: deque[events.Handle] = deque()
        self._timers: list[tuple[float, int, events.TimerHandle]] = []
        self._planned_us = -1

    # --- what programs use -----------------------------------------------------------------

    def time(self) -> float:
        return self._clock.monotonic_s()

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._stepping

    def call_soon(
        self,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> events.Handle:
        handle = events.Handle(callback, args, self, context)
        self._due.append(handle)
        if not self._stepping:
            self._plan(self._timeline.now_us)
        return handle

    def call_soon_threadsafe(
        self,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> events.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> events.TimerHandle:
        timer = events.TimerHandle(when, callback, args, self, context)
        self._made += 1
        heapq.heappush(self._timers, (when, self._made, timer))
        if not self._stepping:
            self._plan_timer()
        return timer

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> events.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: events.TimerHandle) -> None:
        """Does nothing: a cancelled timer is passed over when its time comes."""

    def create_future(self) -> "asyncio.Future[Any]":
        future = _Future(loop=self)
        self._made += 1
        future.number = self._made
        return future

    def create_task(
        self, coro: Any, *, name: object = None, context: Context | None = None
    ) -> "asyncio.Task[Any]":
        text = None if name is None else str(name)
        self._made += 1
        if context is None:
            task = _Task(self._made, coro, loop=self, name=text)
        else:
            task = _Task(self._made, coro, loop=self, name=text, context=context)
        self._tasks.append(task)
        if len(self._tasks) > 500:
            self._tasks = [task for task in self._tasks if not task.done()]
        return task

    def run_in_executor(
        self, executor: Any, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> "asyncio.Future[T]":
        future: asyncio.Future[T] = self.create_future()

        def work() -> None:
            if future.cancelled():
                return
            try:
                result = func(*args)
            except Exception as error:  # noqa: BLE001 - handed to the thread's caller
                future.set_exception(error)
            else:
                future.set_result(result)

        self.call_later(self._chance.randrange(*THREAD_US) / SECOND, work)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.ended:
            self._failed(str(context.get("message")), context.get("exception"))

    # --- steps -----------------------------------------------------------------------------

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Starts a task from outside of the loop."""
        return self.create_task(coroutine)

    def within(self, work: Callable[..., T], *args: Any) -> T:
        """Calls `work` as a step would."""
        before = events._get_running_loop()
        events._set_running_loop(self)
        try:
            return work(*args)
        finally:
            events._set_running_loop(before)

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        self._plan(self._timeline.now_us)

    def end(self) -> None:
        """Stops the loop: no step follows."""
        self.ended = True
        self._due.clear()
        self._timers.clear()

    def _plan(self, at_us: int) -> None:
        if self.ended or (0 <= self._planned_us <= at_us):
            return
        self._planned_us = at_us
        self._timeline.at(at_us, lambda: self._step(at_us))

    def _plan_timer(self) -> None:
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
        if timers:
            wait_s = timers[0][0] - self.time()
            wait_us = self._clock.virtual_us(wait_s) if wait_s > 0 else 0
            self._plan(self._timeline.now_us + wait_us)

    def _step(self, at_us: int) -> None:
        if at_us != self._planned_us or self.ended:
            return
        self._planned_us = -1
        if self.paused:
            return
        self._stepping = True
        before = events._get_running_loop()
        events._set_running_loop(self)
        due, timers, rounds = self._due, self._timers, 0
        try:
            now_s = self.time() + _SOON_S
            while timers and timers[0][0] <= now_s:
                timer = heapq.heappop(timers)[2]
                if not timer._cancelled:
                    due.append(timer)
            while due:
                rounds += 1
                if rounds > ROUNDS_MAX:
                    self._failed("the event loop goes round without waiting", None)
                    break
                for _ in range(len(due)):
                    # A crash in the middle drops the remaining ones.
                    if not due:
                        break
                    handle = due.popleft()
                    if not handle._cancelled:
                        handle._run()
        finally:
            self._stepping = False
            events._set_running_loop(before)
        if due:
            self._plan(self._timeline.now_us + 50)
        else:
            self._plan_timer()

    def dispose(self) -> None:
        """Closes unfinished coroutines, so that they raise and log nothing later."""
        self.end()
        self.within(self._close_all)
        self._tasks.clear()
        self.close()

    def _close_all(self) -> None:
        for task in self._tasks:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                _close(task.get_coro())


def _close(coroutine: Any) -> None:
    for _ in range(20):
        try:
            coroutine.close()
        except RuntimeError:
            # It has begun to wait for its children.
            continue
        except BaseException:  # noqa: BLE001 - nothing reads it
            continue
        return
