"""Children: executions that the code starts, and whose results it may wait for.

`spawn` waits until the partition has said that the child is there, or why it is not. That is in the
journal, so a replay starts nothing. The start leaves the worker in the Record that has all that the
code was given before; so does a cancellation of a child.
"""

import asyncio
import sys
from collections.abc import Coroutine, Generator
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar, overload

import msgspec

from querator.durable import context
from querator.durable.errors import (
    ChildRefused,
    CodecError,
    Evicted,
    ExecutionCancelled,
    ExecutionTerminated,
    RunTooLong,
    TooDeep,
)
from querator.durable.functions import Durable, checked_function
from querator.durable.operations import Operation, WaitKind, place_of, site_of
from querator.durable.paths import shown
from querator.model.errors import ErrorCode, QueratorError
from querator.model.executions import (
    CHILD_RESULTS,
    ChildRefusal,
    ChildStart,
    Note,
    RecordKind,
    check_text,
    child_result_path,
)
from querator.model.limits import EXECUTION_ID_BYTES_MAX, EXECUTION_PATH_BYTES_MAX

if TYPE_CHECKING:
    from querator.durable.code import ExecutionCode
    from querator.durable.promises import ExecutionIdentity

T = TypeVar("T")

CHILD_KINDS: Final = CHILD_RESULTS | {RecordKind.CHILD_STARTED, RecordKind.CHILD_REFUSED}
"""Kinds of the arrivals that are of children."""


class SpawnOptions(NamedTuple):
    """See `spawn`."""

    id: str | None = None
    detached: bool = False
    cancel: bool = True

    @property
    def follows(self) -> bool:
        """Whether it is cancelled when an `await` of it is."""
        return self.cancel and not self.detached


class Child(Generic[T]):
    """An execution that this one has started. `await child` gives its result, or raises what it has
    raised, ExecutionCancelled or ExecutionTerminated. Several tasks may await it.
    """

    def __init__(
        self,
        code: "ExecutionCode",
        function: Durable[..., Any],
        child_id: str,
        *,
        start: Operation,
        result: Operation,
        options: SpawnOptions,
    ) -> None:
        self.id = child_id
        self._code = code
        self._function = function
        self._start = start
        self._result = result
        self._options = options

    @property
    def done(self) -> bool:
        """Whether the result has arrived."""
        return self._result.future.done()

    @property
    def is_detached(self) -> bool:
        """Whether it outlives this execution."""
        return self._options.detached

    def cancel(self) -> None:
        """Cancels the child, unless it has ended. Its code is given the cancellation; `await` still
        says how it has ended.
        """
        if self._code.is_away:
            raise Evicted
        if not self.done:
            self._code.outbox.cancel(self._start.path, self._code.made)

    def __await__(self) -> Generator[Any, None, T]:
        return self.wait().__await__()

    async def wait(self) -> T:
        """The same as `await child`, as a coroutine."""
        code, future, path = self._code, self._result.future, self._result.path
        if code.is_away:
            await code.refuse()
        code.awaited[path] += 1
        try:
            value: T = await asyncio.shield(future)
            return value
        except asyncio.CancelledError:
            if self._options.follows and not code.is_away:
                self.cancel()
            raise
        finally:
            code.awaited[path] -= 1

    # --- for the code of the execution -----------------------------------------------------------

    def started(self) -> None:
        """The partition has started it."""
        code, scope = self._code, self._start.line.scope
        code.promises[self._result.path] = self._result
        code.open_children += 1
        if scope is not None:
            scope.opened()
        if code.left.pop(self._start.path, None) is not None and self._options.follows:
            # The code was cancelled while it waited for the start.
            self.cancel()

    def ended(self) -> None:
        """Its result has arrived."""
        code, scope = self._code, self._start.line.scope
        code.open_children -= 1
        code.outbox.cancels.pop(self._start.path, None)
        if scope is not None:
            scope.ended()

    def command(self, arguments: bytes) -> ChildStart:
        """What the partition is to start."""
        return ChildStart(
            path=self._start.path,
            id=self.id,
            function=self._function.name,
            version=self._function.version,
            arguments=b"",
            payload=arguments,
            detached=self._options.detached,
            shielded=not self._options.cancel,
            site=place_of(self._start.site),
        )


@overload
def spawn(
    function: Durable[..., Coroutine[Any, Any, T]],
    /,
    *args: Any,
    id: str | None = None,
    detached: bool = False,
    cancel: bool = True,
    **kwargs: Any,
) -> Coroutine[Any, Any, Child[T]]: ...


@overload
def spawn(
    function: Durable[..., T],
    /,
    *args: Any,
    id: str | None = None,
    detached: bool = False,
    cancel: bool = True,
    **kwargs: Any,
) -> Coroutine[Any, Any, Child[T]]: ...


def spawn(
    function: Any,
    /,
    *args: Any,
    id: str | None = None,
    detached: bool = False,
    cancel: bool = True,
    **kwargs: Any,
) -> Coroutine[Any, Any, Child[Any]]:
    """`child = await spawn(ship, order)` starts another execution, once; `await child` gives its
    result. Raises ChildRefused if it cannot be started: its `id` is taken, there are too many.

    `id` has the part up to the first `/` in common with the id of this execution; None: one is
    made. A child of this run with the same id, function and arguments is the one that was asked
    for. The child is cancelled when this execution is cancelled or ends, and when an `await` of it
    is cancelled. `cancel=False`: only when this execution ends. `detached`: it outlives this
    execution, and only `child.cancel()` cancels it. A parameter of the function that has one of
    these names must be given by place.
    """
    code = context.code_or_raise("spawn")
    site = site_of(sys._getframe(1))
    options = SpawnOptions(id, detached=detached, cancel=cancel)
    return code.spawn(checked_function(function), args, kwargs, options, site)


def make_child(
    code: "ExecutionCode", start: Operation, function: Durable[..., Any], options: SpawnOptions
) -> Child[Any]:
    """The child of an operation. Raises ValueError for an id that it cannot have."""
    path = child_result_path(start.path)
    if len(path) > EXECUTION_PATH_BYTES_MAX:
        raise TooDeep(f"{function.name} is started too deep: the path of its result has "
                      f"{len(path)} bytes, of {EXECUTION_PATH_BYTES_MAX}")  # fmt: skip
    identity = code.identity
    child_id = _made_id(identity, start.path) if options.id is None else options.id
    _check_id(child_id, identity)
    result = Operation(
        WaitKind.CHILD, path, name=function.name, line=start.line, site=start.site,
        future=code.loop.create_future(), result_type=function.result_type,
    )  # fmt: skip
    # It may be that nothing awaits it: then its exception is of no interest.
    result.future.add_done_callback(_seen)
    child: Child[Any] = Child(code, function, child_id, start=start, result=result, options=options)
    start.child = result.child = child
    return child


def _made_id(identity: "ExecutionIdentity", path: bytes) -> str:
    """The number is that of the parent alone: one that is started again has other children."""
    run = "" if identity.origin == 1 else f"{identity.origin}-"
    child_id = f"{identity.id}/{identity.number}-{run}{shown(path)}"
    if len(child_id.encode()) > EXECUTION_ID_BYTES_MAX:
        root = identity.id.partition("/")[0]
        child_id = f"{root}/{blake2b(child_id.encode(), digest_size=16).hexdigest()}"
    return child_id


def _check_id(child_id: str, identity: "ExecutionIdentity") -> None:
    if not isinstance(child_id, str):
        raise TypeError(f"id is {child_id!r}; it must be a text")
    try:
        check_text(child_id, field="id", bytes_max=EXECUTION_ID_BYTES_MAX)
    except QueratorError as error:
        raise ValueError(str(error)) from None
    root = identity.id.partition("/")[0]
    if child_id.partition("/")[0] != root:
        raise ValueError(
            f"id is {child_id!r}; its part up to the first `/` must be that of this execution, "
            f"{root!r}: children are in the partition of their parent"
        )


def heard(
    code: "ExecutionCode", operation: Operation, note: Note
) -> tuple[Any, Exception | None]:  # fmt: skip
    """What an arrival of a child gives the code: a value, or an exception to raise. Raises
    CodecError.
    """
    child = operation.child
    assert child is not None, "the operation is one of a child"
    kind = RecordKind(note.kind)
    if kind not in CHILD_RESULTS:
        code.outbox.starts.pop(operation.path, None)
        if kind is RecordKind.CHILD_STARTED:
            child.started()
            return None, None
        code.left.pop(operation.path, None)
        return None, _refusal(child.id, note.payload)
    value: Any = None
    error: Exception | None = None
    match kind:
        case RecordKind.CHILD_DONE:
            value = code.codec.decode(
                note.payload, operation.result_type, "the result of ", operation.name
            )
        case RecordKind.CHILD_FAILED:
            error = code.codec.decode_error(note.payload)
        case RecordKind.CHILD_CANCELLED:
            reason = note.payload.decode("utf-8", "replace")
            why = f": {reason}" if reason else ""
            error = ExecutionCancelled(f"child {child.id} was cancelled{why}")
        case RecordKind.CHILD_TERMINATED:
            reason = note.payload.decode("utf-8", "replace")
            error = ExecutionTerminated(f"child {child.id} was ended from outside: {reason}")
        case _:
            error = RunTooLong(f"the result of child {child.id} has no room in the journal")
    child.ended()
    return value, error


def _refusal(child_id: str, payload: bytes) -> Exception:
    try:
        refusal = msgspec.json.decode(payload, type=ChildRefusal)
    except msgspec.MsgspecError as error:
        raise CodecError(f"why child {child_id} was not started cannot be read: {error}") from error
    text = f"child {child_id} was not started: {refusal.message}"
    if refusal.code == ErrorCode.JOURNAL_FULL.name:
        return RunTooLong(text)
    return ChildRefused(refusal.code, text)


def leave_spawn(code: "ExecutionCode", operation: Operation) -> None:
    """The code does not wait for the start any more. One that is not sent is not made; one that may
    be is cancelled when the partition has made it.
    """
    code.outbox.starts.pop(operation.path, None)
    if operation.child is not None:
        code.left[operation.path] = operation
        if operation.line.scope is not None:
            # Its arrivals may come when the call has returned.
            operation.line.scope.is_clean = False


def _seen(future: "asyncio.Future[Any]") -> None:
    if not future.cancelled():
        future.exception()
