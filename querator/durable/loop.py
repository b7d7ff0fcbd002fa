"""An event loop without a selector, a clock or threads, which its owner drives event by event.

The code of an execution is plain asyncio: `gather`, `TaskGroup`, `timeout`, `wait`, `sleep`, locks
and queues use nothing of a loop but callbacks, futures, tasks and timers. Each of these is decided
here by the order of the events that the owner delivers, so that the same events in the same order
give the same run:

- The owner gives one event (the result of an operation, a timer that is due), and calls `run`,
  which returns when no callback is ready.
- Time is that of the last event.
- A timer has a path like any operation. The owner says when it fires.
- Tasks and futures hash by a number, so that sets of them iterate in the order of their creation,
  for example those of `asyncio.wait`.

`run` may be called in a callback or a task of another running loop.
"""

import asyncio
import contextlib
import contextvars
import heapq
import math
import sys
from asyncio import events
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator
from typing import Any, Final, NoReturn, TypeVar, TypeVarTuple, Unpack

from querator.durable.errors import DurableError, Evicted, TurnTooLong
from querator.durable.paths import Path, TaskLine, line_of_others, shown
from querator.model.limits import (
    PUT_AWAY_CALLBACKS_MAX,
    PUT_AWAY_ROUNDS_MAX,
    SCHEDULE_AHEAD_MS_MAX,
    TURN_CALLBACKS_MAX,
)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_REFUSED: Final = {
    "run_in_executor": "run_in_executor (and asyncio.to_thread)",
    "call_soon_threadsafe": "call_soon_threadsafe",
    "create_connection": "a connection",
    "create_datagram_endpoint": "a socket",
    "create_server": "a server",
    "create_unix_connection": "a connection",
    "create_unix_server": "a server",
    "getaddrinfo": "a lookup of names",
    "getnameinfo": "a lookup of names",
    "sock_accept": "a socket",
    "sock_connect": "a socket",
    "sock_recv": "a socket",
    "sock_sendall": "a socket",
    "subprocess_exec": "a process",
    "subprocess_shell": "a process",
    "add_reader": "a file descriptor",
    "add_writer": "a file descriptor",
    "add_signal_handler": "a signal handler",
    "run_forever": "another run of the loop",
    "run_until_complete": "another run of the loop",
}
_PRUNE_MIN: Final = 64

_swap_current_task = getattr(asyncio.tasks, "_swap_current_task", None)
"""From Python 3.12 on. From 3.14 on the task that runs is kept for the thread, not for the loop."""


class CodeTask(asyncio.Task[T]):
    """A task that knows its line, and hashes by its number."""

    line: TaskLine

    def __init__(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        loop: "Loop",
        line: TaskLine,
        name: str | None,
        context: contextvars.Context | None,
    ) -> None:
        self.line = line
        self._number = loop.number()
        super().__init__(coro, loop=loop, name=name, context=context)

    def __hash__(self) -> int:
        return self._number

    __eq__ = object.__eq__


class Future(asyncio.Future[T]):
    """A future that hashes by its number, which it gets when it is first asked for."""

    _number = 0

    def __hash__(self) -> int:
        if not self._number:
            loop = self.get_loop()
            assert isinstance(loop, Loop)
            self._number = loop.number()
        return self._number

    __eq__ = object.__eq__


class CodeTimer(asyncio.TimerHandle):
    """A timer of the code; `path` names it in the journal."""

    def __init__(
        self,
        due_ms: int,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        *,
        loop: "Loop",
        context: contextvars.Context | None,
        line: TaskLine,
    ) -> None:
        super().__init__(due_ms / 1000, callback, args, loop, context)
        self.due_ms = due_ms
        self.path = line.next()
        self.line = line
        self.task = loop.current_task()
        self.is_local = True
        """Whether the worker fires it; else the partition does."""

    def fire(self) -> None:
        self._run()


class _Handle(asyncio.Handle):
    """A handle without what asyncio keeps for debugging."""

    __slots__ = ()

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: "Loop",
        context: contextvars.Context | None,
    ) -> None:
        # Names of asyncio, which reads them.
        self._context = contextvars.copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None


class Loop(asyncio.AbstractEventLoop):
    """See the module. `owner` is what durable calls find by the running loop."""

    def __init__(self, owner: Any = None) -> None:
        self.owner = owner
        self.now_ms = 0
        self.timers: dict[Path, CodeTimer] = {}
        self.withdrawn: set[Path] = set()
        """Timers that the code has cancelled; they may fire once more, for nothing."""
        self.to_withdraw: list[Path] = []
        """Those of them that the partition has, and has not heard of."""
        self.failures: list[dict[str, Any]] = []
        """What asyncio reported: exceptions of callbacks, and those that nothing has retrieved."""
        self.is_away = False
        self._ready: deque[Any] = deque()
        self._heap: list[tuple[int, int, CodeTimer]] = []
        self._numbers = 0
        self._tasks: list[CodeTask[Any]] = []
        self._prune_at = _PRUNE_MIN
        self._others = line_of_others()
        self._debug = False
        self._is_entered = False

    # --- what asyncio asks -----------------------------------------------------------------------

    def time(self) -> float:
        return self.now_ms / 1000

    def call_soon(
        self,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Raises ValueError for a time that is no number, or too far ahead for a partition."""
        # A float of seconds since 1970 is exact to a fraction of a microsecond.
        furthest_ms = self.now_ms + SCHEDULE_AHEAD_MS_MAX
        due_ms = math.ceil(when * 1000 - 0.01) if math.isfinite(when) else furthest_ms + 1
        if due_ms > furthest_ms:
            raise ValueError(f"the timer is due at {when} s; it must be due within 10 years")
        if self.is_away:
            raise Evicted
        line = self.line()
        timer = CodeTimer(due_ms, callback, args, loop=self, context=context, line=line)
        timer._scheduled = True  # type: ignore[attr-defined] # Its cancel reports here then.
        self.timers[timer.path] = timer
        if line.scope is not None:
            line.scope.opened()
        heapq.heappush(self._heap, (due_ms, self.number(), timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        assert isinstance(handle, CodeTimer)
        if self.timers.pop(handle.path, None) is not None:
            self.withdrawn.add(handle.path)
            if not handle.is_local:
                self.to_withdraw.append(handle.path)
            if handle.line.scope is not None:
                handle.line.scope.ended()
            if len(self._heap) > 2 * len(self.timers) + _PRUNE_MIN:
                self._heap = [entry for entry in self._heap if entry[2].path in self.timers]
                heapq.heapify(self._heap)

    def create_future(self) -> asyncio.Future[Any]:
        return Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: contextvars.Context | None = None,
        **_: Any,
    ) -> asyncio.Task[T]:
        """`eager_start` of later Pythons is ignored: a task begins when its turn comes."""
        above = self.line()
        try:
            line = TaskLine(above.next(), above.scope, is_full=above.is_full)
        except DurableError:
            coro.close()
            raise
        return self.begin_task(coro, line, name=name, context=context)

    def begin_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        line: TaskLine,
        *,
        name: object = None,
        context: contextvars.Context | None = None,
    ) -> CodeTask[T]:
        given = None if name is None else str(name)
        task: CodeTask[T] = CodeTask(
            coro, loop=self, line=line, name=given or f"task {shown(line.path)}", context=context
        )
        tasks = self._tasks
        tasks.append(task)
        if line.scope is not None:
            line.scope.tasks.append(task)
        if len(tasks) > self._prune_at:
            self._tasks = [each for each in tasks if not each.done()]
            self._prune_at = max(_PRUNE_MIN, 2 * len(self._tasks))
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.is_away:
            self.failures.append(context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def get_debug(self) -> bool:
        return self._debug

    def set_debug(self, enabled: bool) -> None:
        self._debug = enabled

    def get_task_factory(self) -> None:
        return None

    def get_exception_handler(self) -> None:
        return None

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def stop(self) -> NoReturn:
        raise DurableError("the loop of an execution cannot be stopped: return, or raise")

    close = stop

    # --- what the owner asks ---------------------------------------------------------------------

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    def current_task(self) -> CodeTask[Any] | None:
        task = asyncio.current_task(self)
        assert task is None or isinstance(task, CodeTask)
        return task

    def line(self) -> TaskLine:
        """The line of what runs; one of its own for what no task runs."""
        task = asyncio.current_task(self)
        return self._others if task is None else task.line  # type: ignore[attr-defined]

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """This loop is the running one of the thread; `run` may be called more than once."""
        if self._is_entered:
            yield
            return
        outer = events._get_running_loop()
        running = None
        if outer is not None and _swap_current_task is not None:
            running = _swap_current_task(outer, None)
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(firstiter=None, finalizer=self._finish_generator)
        events._set_running_loop(None)
        events._set_running_loop(self)
        self._is_entered = True
        try:
            yield
        finally:
            self._is_entered = False
            events._set_running_loop(None)
            events._set_running_loop(outer)
            sys.set_asyncgen_hooks(*hooks)
            if running is not None and _swap_current_task is not None:
                _swap_current_task(outer, running)

    def run(self) -> None:
        """Runs until nothing is ready. Raises TurnTooLong if that does not come."""
        if self._is_entered:
            self._run_ready()
        elif self._ready:
            with self.entered():
                self._run_ready()

    def _run_ready(self) -> None:
        ready = self._ready
        most = left = PUT_AWAY_CALLBACKS_MAX if self.is_away else TURN_CALLBACKS_MAX
        while ready:
            handle = ready.popleft()
            if not handle._cancelled:
                try:
                    handle._context.run(handle._callback, *handle._args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:  # noqa: BLE001 - as in asyncio's own loop.
                    text = f"Exception in callback {handle._callback!r}"
                    self.call_exception_handler({"message": text, "exception": error})
                left -= 1
                if not left:
                    raise TurnTooLong(
                        f"the code ran {most} callbacks without waiting for an event; is there a "
                        "loop around asyncio.sleep(0)?"
                    )

    def next_local(self) -> CodeTimer | None:
        """The earliest timer that the worker fires."""
        heap = self._heap
        while heap:
            timer = heap[0][2]
            if timer.is_local and timer.path in self.timers:
                return timer
            heapq.heappop(heap)
        return None

    def leave_timers(self) -> None:
        """From here on, the partition fires the timers that there are."""
        for timer in self.timers.values():
            timer.is_local = False
        self._heap.clear()

    def fire(self, timer: CodeTimer) -> None:
        del self.timers[timer.path]
        if timer.line.scope is not None:
            timer.line.scope.ended()
        timer.fire()

    def living(self) -> list[CodeTask[Any]]:
        return [task for task in self._tasks if not task.done()]

    def put_away(self) -> list[CodeTask[Any]]:
        """Ends all tasks. Returns those that do not end; the caller keeps them, because a task that
        is collected while it waits may end the interpreter.
        """
        self.is_away = True
        for task in self.living():
            # Its code sees that the execution leaves, and takes that for no cancellation.
            waits_for = task._fut_waiter  # type: ignore[attr-defined]
            if waits_for is None:
                task.cancel()
            elif isinstance(waits_for, Future) and not waits_for.done():
                waits_for.set_exception(Evicted())
        self._run_to_end()
        for _ in range(PUT_AWAY_ROUNDS_MAX):
            living = self.living()
            if not living:
                break
            for task in living:
                task.cancel()
            self._run_to_end()
        for timer in self.timers.values():
            # Without the report to this loop, which would withdraw it from what is iterated.
            timer._scheduled = False  # type: ignore[attr-defined]
            timer.cancel()
        self.timers.clear()
        self._heap.clear()
        left = self.living()
        self._tasks = left
        return left

    def _run_to_end(self) -> None:
        """One round of putting away; what does not wait continues in the next one."""
        with contextlib.suppress(TurnTooLong):
            self.run()

    def _finish_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        """An asynchronous generator was dropped before its end: its `finally` runs in a task."""
        if not self.is_away:
            line = TaskLine(self._others.next(), None)
            self.begin_task(_close(generator), line)


async def _close(generator: AsyncGenerator[Any, Any]) -> None:
    await generator.aclose()


def _refuse(name: str, words: str) -> Callable[..., NoReturn]:
    def refused(self: Loop, *args: Any, **kwargs: Any) -> NoReturn:
        raise DurableError(f"{words} is not for a durable function: use it in a step")

    refused.__name__ = name
    return refused


for _name, _words in _REFUSED.items():
    setattr(Loop, _name, _refuse(_name, _words))
