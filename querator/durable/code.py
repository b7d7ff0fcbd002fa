"""The code of an execution: what it calls, and what it waits for.

Durable calls find the code by the running loop. Each one takes the next path of its line, and waits
for a future. `give` gives the code one event; `turn` runs the code until it waits again.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from querator.durable.arguments import encode_arguments
from querator.durable.children import (
    CHILD_KINDS,
    Child,
    SpawnOptions,
    heard,
    leave_spawn,
    make_child,
)
from querator.durable.codec import Codec
from querator.durable.errors import CodecError, DurableError, Evicted, NextRun, TooDeep
from querator.durable.folds import CodeEvent, PendingFold, Scope, runs_of
from querator.durable.loop import CodeTask, CodeTimer, Loop
from querator.durable.mailboxes import Mailbox
from querator.durable.marks import FULL, full_path, patch_path
from querator.durable.operations import Operation, Site, WaitKind, place_of, site_of_task
from querator.durable.outbox import RecordOutbox
from querator.durable.paths import Path, TaskLine, main_line
from querator.durable.producing import Production
from querator.durable.promises import ExecutionIdentity, Promise, make_token
from querator.durable.publishing import Publishing
from querator.durable.seeds import seed
from querator.durable.threads import Bridge, bridge_here
from querator.model.executions import Close, NewRun, Note, RecordKind, chance_key
from querator.model.limits import EXECUTION_CALLS_DEEP_MAX, PUT_AWAY_CALLS_MAX, PUT_AWAY_CALLS_TOLD

if TYPE_CHECKING:
    from querator.durable.functions import Durable, Step
    from querator.durable.outgoing_items import OutgoingItems

_FAILURES = frozenset(
    (
        RecordKind.STEP_FAILED, RecordKind.CALL_FAILED, RecordKind.CALL_FAILED_LATER,
        RecordKind.REJECTED,
    )
)  # fmt: skip


class ExecutionCode:
    """See the module."""

    def __init__(self, identity: ExecutionIdentity, codec: Codec) -> None:
        self.identity = identity
        self._chance = identity.chance or chance_key(identity.secret)
        self.codec = codec
        self.loop = Loop(self)  # type: ignore[abstract] # No base class of it is.
        self.main: CodeTask[Any] | None = None
        self.function: Durable[..., Any] | None = None
        """That of the main task."""
        self.is_replaying = False
        self.is_cancelled = False
        self.cancel_reason = b""
        self.stuck = ""
        """Why the execution cannot continue without a person, if it cannot."""
        self.published = Publishing()
        self.outbox = RecordOutbox(self.published)
        self.made = 0
        """Records of this worker that the code has been given."""
        self.pending: dict[Path, Operation] = {}
        self.promises: dict[Path, Operation] = {}
        self.awaited: Counter[Path] = Counter()
        """How many tasks wait for each promise."""
        self.mailboxes: dict[str, Mailbox] = {}
        self.left: dict[Path, Operation] = {}
        """Starts of children that the code does not wait for any more; they may have been sent."""
        self.open_children = 0
        self.fresh: list[Operation] = []
        """Steps that were called in this turn."""
        self.abandoned: list[Path] = []
        """Steps under way whose result the code does not wait for any more."""
        self.folded: set[Path] = set()
        """Calls whose result is in the journal that was loaded."""
        self.patches: set[str] = set()
        """Those that the journal has, or that were made here."""
        self.is_at_end = False
        """Whether all of the journal has been given."""
        self.productions: dict[Path, Production] = {}
        """Those of a replay whose record has not been given."""
        self.record_production: Callable[[Production], None] = lambda production: None
        self.full_marks: set[Path] = set()
        """Those that the journal has."""
        self.record_mark: Callable[[Path, str, Site | None], None] = lambda path, name, site: None
        self.is_filling: Callable[[], bool] = lambda: False
        """Whether the journal is over half of a limit."""
        self._unpatched: set[str] = set()
        self._turn_event: CodeEvent | None = None
        self.turns = 0
        self._calls_while_away = 0
        self.catches_all_at = ""
        """Where the code calls again and again, while it should end."""

    @property
    def is_away(self) -> bool:
        return self.loop.is_away

    @property
    def is_quiet(self) -> bool:
        """Whether what the code logs has been logged before, or is of its end in memory."""
        return self.is_replaying or self.loop.is_away

    # --- events ----------------------------------------------------------------------------------

    def begin(self, function: "Durable[..., Any]", args: Any, kwargs: Any) -> None:
        self.function = function
        body = _body(function, args, kwargs, self)
        self.main = self.loop.begin_task(body, main_line(), name="main")
        self.turn(None)

    @property
    def is_done(self) -> bool:
        return self.main is not None and self.main.done()

    def closing(self, function: "Durable[..., Any]") -> Close | NewRun:
        """How the function has ended."""
        main = self.main
        assert main is not None
        if main.cancelled():
            return Close(RecordKind.CANCELLED, self.cancel_reason)
        error = main.exception()
        if isinstance(error, NextRun):
            unread = sorted(index for box in self.mailboxes.values() for index in box.indexes)
            return NewRun(error.arguments, unread=runs_of(unread))
        if error is None:
            try:
                data = self.codec.encode(main.result(), f"the result of {function.name}")
                return Close(RecordKind.COMPLETED, data)
            except CodecError as broken:
                error = broken
        return Close(RecordKind.FAILED, self.codec.encode_error(error))

    def turn(self, event: CodeEvent | None) -> None:
        """Runs the code until it waits. `event` is what it was given. Raises TurnTooLong."""
        self._turn_event = event
        self.turns += 1
        self.loop.run()
        self._turn_event = None

    def at(self, path: Path) -> Operation | None:
        """What the code waits for at a path."""
        found = self.pending.get(path) or self.promises.get(path) or self.left.get(path)
        if found is None and (timer := self.loop.timers.get(path)) is not None:
            found = Operation(
                WaitKind.TIMER, path, name="", line=timer.line, site=site_of_task(timer.task),
                future=self.loop.create_future(),
            )  # fmt: skip
        return found

    def had_timer(self, path: Path) -> bool:
        """Whether a timer of this path was withdrawn, or was of a call whose records are gone."""
        return path in self.loop.withdrawn or any(path.startswith(call) for call in self.folded)

    def give(self, operation: Operation, note: Note, event: CodeEvent) -> None:
        """Ends an operation by what a record says. Raises CodecError for bytes that do not fit, and
        TurnTooLong.
        """
        future = operation.future
        value: Any = None
        error: Exception | None = None
        if note.kind in CHILD_KINDS:
            value, error = heard(self, operation, note)
        elif note.kind in _FAILURES:
            error = self.codec.decode_error(note.payload)
        else:
            value = self.codec.decode(
                note.payload, operation.result_type, "the result of ", operation.name or "a promise"
            )
        self._close(operation)
        if operation.waits is WaitKind.PROMISE and operation.line.scope is not None:
            operation.line.scope.ended()
        operation.saw(event)
        if not future.done():
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)
        self.turn(event)

    def fire(self, timer: CodeTimer, event: CodeEvent) -> None:
        scope = timer.line.scope
        if scope is not None:
            scope.events.append(event)
        self.loop.fire(timer)
        self.turn(event)

    def signal(self, name: str, payload: bytes, event: CodeEvent) -> None:
        self.mailboxes.setdefault(name, Mailbox()).put(payload, event)
        self.turn(event)

    # --- the code's calls ------------------------------------------------------------------------

    async def perform(
        self,
        step: "Step[..., Any]",
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        site: Site | None,
        is_undo: bool = False,
    ) -> Any:
        """A step."""
        if self.loop.is_away:
            await self.refuse(site)
        operation = self._operation(WaitKind.STEP, step.name, site, step.result_type)
        operation.step = step
        operation.args = args
        operation.kwargs = kwargs
        operation.is_undo = is_undo
        operation.begins_after = self.made
        self.fresh.append(operation)
        try:
            return await operation.future
        finally:
            if operation.path in self.pending:
                self._withdraw(operation)

    async def call(
        self,
        function: "Durable[..., Any]",
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        site: Site | None,
    ) -> Any:
        """A durable function. See `folds`."""
        if self.loop.is_away:
            await self.refuse(site)
        task = self.loop.current_task()
        assert task is not None, "a coroutine runs in a task"
        line = task.line
        path = line.next()
        if path in self.folded:
            return await self._folded_call(function, path, line, site)
        scope = Scope(path, line.scope)
        if scope.deep > EXECUTION_CALLS_DEEP_MAX:
            raise TooDeep(f"the call of {function.name} is {scope.deep} deep, and at most "
                          f"{EXECUTION_CALLS_DEEP_MAX} are allowed")  # fmt: skip
        name = f"the result of {function.name}"
        task.line = TaskLine(path, scope, is_full=line.is_full)
        value: Any = None
        error: Exception | None = None
        try:
            result = await _body(function, args, kwargs, self)
            payload = self.codec.encode(result, name)
            value = self.codec.decode(payload, function.result_type, name)
        except Exception as raised:  # noqa: BLE001 - whatever the function raises is its outcome.
            payload = self.codec.encode_error(raised)
            error = self.codec.decode_error(payload)
        except BaseException:
            scope.returned(None)
            raise
        finally:
            task.line = line
        if scope.returned(self._turn_event):
            kind = RecordKind.CALL_DONE if error is None else RecordKind.CALL_FAILED
            fold = PendingFold(
                path=path,
                name=function.name,
                site=place_of(site),
                kind=kind,
                payload=payload,
                events=scope.events,
            )
            self.outbox.add_fold(fold)
        if error is not None:
            raise error
        return value

    async def receive(self, name: str, kind: Any, site: Site | None) -> Any:
        """The next signal of this name."""
        if self.loop.is_away:
            await self.refuse(site)
        operation = self._operation(WaitKind.SIGNAL, name, site, kind)
        try:
            payload, event = await self.mailboxes.setdefault(name, Mailbox()).take(self.loop)
        finally:
            self._close(operation)
        operation.saw(event)
        return self.codec.decode(payload, kind, f"the signal {name}")

    async def spawn(
        self,
        function: "Durable[..., Any]",
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: SpawnOptions,
        site: Site | None,
    ) -> Child[Any]:
        """A child, when its partition says that it is there."""
        if self.loop.is_away:
            await self.refuse(site)
        operation = self._operation(WaitKind.SPAWN, function.name, site, None)
        try:
            child = make_child(self, operation, function, options)
            payload = encode_arguments(function, self.codec, args, kwargs)
            self.outbox.start(child.command(payload), self.made)
            await operation.future
        except asyncio.CancelledError:
            if not self.loop.is_away:
                leave_spawn(self, operation)
            raise
        finally:
            self._close(operation)
        return child

    def promise(self, kind: Any, timeout_ms: int | None, site: Site | None) -> Promise[Any]:
        if self.loop.is_away:
            raise Evicted
        operation = self._operation(WaitKind.PROMISE, "", site, kind)
        # It is open for its call until it is resolved, whether or not something awaits it.
        del self.pending[operation.path]
        self.promises[operation.path] = operation
        # It may be that nothing awaits it: then its exception is of no interest.
        operation.future.add_done_callback(_seen)
        timeout_at = None if timeout_ms is None else (self.loop.now_ms + timeout_ms) / 1000
        return Promise(self, operation, make_token(self.identity, operation.path), timeout_at)

    def publish(self, key: str, value: object) -> None:
        if self.loop.is_away:
            raise Evicted
        data = self.codec.encode(value, f"the value of {key}")
        self.stuck = self.stuck or self.published.add(key, data, self.made)

    def produce(self, produced: "OutgoingItems", site: Site) -> None:
        """See `producing`."""
        if self.loop.is_away:
            raise Evicted
        line = self.line()
        event = CodeEvent(0)
        event.cause, event.produced = self._turn_event, produced
        production = Production(line.next(), produced, site, event, self.turns)
        if line.scope is not None:
            line.scope.events.append(event)
        if self.is_replaying:
            self.productions[production.path] = production
        else:
            self.record_production(production)

    def patch(self, name: str, site: Site | None) -> bool:
        """See `patches.patched`."""
        if self.loop.is_away:
            raise Evicted
        if name in self.patches:
            return True
        if name in self._unpatched or not self.is_at_end:
            self._unpatched.add(name)
            return False
        self.patches.add(name)
        self.record_mark(patch_path(name), name, site)
        return True

    def is_full(self, site: Site | None) -> bool:
        """See `Current.full`."""
        if self.loop.is_away:
            raise Evicted
        line = self.line()
        if line.is_full:
            return True
        line.full_reads += 1
        path = full_path(line.path, line.full_reads)
        line.is_full = path in self.full_marks
        if not line.is_full and self.is_at_end and self.is_filling():
            self.record_mark(path, FULL, site)
            line.is_full = True
        return line.is_full

    def line(self) -> TaskLine:
        """The line of the task that makes a call, also from its thread."""
        bridge = bridge_here()
        return self.loop.line() if bridge is None else bridge.line

    def seed(self, *parts: bytes) -> bytes:
        """Bytes that follow from the journal's run and the parts, and that cannot be guessed."""
        return seed(self._chance, self.identity.origin.to_bytes(8, "big"), *parts)

    async def refuse(self, site: Site | None = None) -> NoReturn:
        """What a durable call does while the execution leaves the memory."""
        self._calls_while_away += 1
        if self._calls_while_away == PUT_AWAY_CALLS_TOLD:
            self.catches_all_at = place_of(site)
        if self._calls_while_away > PUT_AWAY_CALLS_MAX:
            # The code catches everything and calls again: its task is left here.
            await self.loop.create_future()
        raise Evicted

    async def stick(self, reason: str) -> NoReturn:
        """The execution cannot continue without a person."""
        self.stuck = self.stuck or reason
        await self.loop.create_future()
        raise DurableError(reason)

    # --- operations ------------------------------------------------------------------------------

    def _operation(
        self, waits: WaitKind, name: str, site: Site | None, result_type: Any
    ) -> Operation:
        line = self.loop.line()
        return self._wait_at(line.next(), waits, name, line, site=site, result_type=result_type)

    def _wait_at(
        self,
        path: Path,
        waits: WaitKind,
        name: str,
        line: TaskLine,
        *,
        site: Site | None,
        result_type: Any,
    ) -> Operation:
        operation = Operation(
            waits, path, name=name, line=line, site=site, future=self.loop.create_future(),
            result_type=result_type,
        )  # fmt: skip
        self.pending[path] = operation
        if line.scope is not None:
            line.scope.opened()
        return operation

    def _close(self, operation: Operation) -> None:
        if self.pending.pop(operation.path, None) is not None:
            if operation.line.scope is not None:
                operation.line.scope.ended()

    def _withdraw(self, operation: Operation) -> None:
        """The code does not wait for the step any more."""
        self._close(operation)
        if operation.is_begun:
            self.abandoned.append(operation.path)

    async def _folded_call(
        self, function: "Durable[..., Any]", path: Path, line: TaskLine, site: Site | None
    ) -> Any:
        operation = self._wait_at(
            path, WaitKind.CALL, function.name, line, site=site, result_type=function.result_type
        )
        try:
            return await operation.future
        finally:
            self._close(operation)


async def _body(function: "Durable[..., Any]", args: Any, kwargs: Any, code: ExecutionCode) -> Any:
    """Runs a durable function: on the loop, or in a thread."""
    if function.is_async:
        return await function.function(*args, **kwargs)
    work: Callable[..., Any] = function.function
    return await Bridge(code, work, args, kwargs).run()


def _seen(future: "asyncio.Future[Any]") -> None:
    if not future.cancelled():
        future.exception()
