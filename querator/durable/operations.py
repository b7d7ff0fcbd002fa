"""Operations: what the code of an execution waits for; effects: steps that are to be run."""

import asyncio
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path as FilePath
from types import CodeType, FrameType, MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from querator.durable.codec import Codec
from querator.durable.folds import CodeEvent
from querator.durable.paths import Path, TaskLine, shown
from querator.model.executions import RecordKind, encode_path
from querator.model.limits import EXECUTION_NAME_BYTES_MAX

if TYPE_CHECKING:
    from querator.durable.children import Child
    from querator.durable.functions import Step
    from querator.durable.promises import ExecutionIdentity

_HERE: Final = str(FilePath(__file__).parent)
_ASYNCIO: Final = str(FilePath(asyncio.__file__).parent)


class WaitKind(Enum):
    """What an operation waits for; the value is the word of messages."""

    STEP = "step"
    TIMER = "timer"
    CALL = "call"
    SIGNAL = "receive"
    PROMISE = "promise"
    SPAWN = "spawn"
    CHILD = "child"


WAITS_OF: Final = {
    RecordKind.STEP_DONE: WaitKind.STEP,
    RecordKind.STEP_FAILED: WaitKind.STEP,
    RecordKind.ATTEMPT_FAILED: WaitKind.STEP,
    RecordKind.STEP_BEGUN: WaitKind.STEP,
    RecordKind.TIMER_DONE: WaitKind.TIMER,
    RecordKind.TIMER_FIRED: WaitKind.TIMER,
    RecordKind.CALL_DONE: WaitKind.CALL,
    RecordKind.CALL_FAILED: WaitKind.CALL,
    RecordKind.CALL_DONE_LATER: WaitKind.CALL,
    RecordKind.CALL_FAILED_LATER: WaitKind.CALL,
    RecordKind.RESOLVED: WaitKind.PROMISE,
    RecordKind.REJECTED: WaitKind.PROMISE,
    RecordKind.CHILD_STARTED: WaitKind.SPAWN,
    RecordKind.CHILD_REFUSED: WaitKind.SPAWN,
    RecordKind.CHILD_DONE: WaitKind.CHILD,
    RecordKind.CHILD_FAILED: WaitKind.CHILD,
    RecordKind.CHILD_CANCELLED: WaitKind.CHILD,
    RecordKind.CHILD_TERMINATED: WaitKind.CHILD,
    RecordKind.CHILD_LOST: WaitKind.CHILD,
}
"""The operation that a record of a path belongs to."""


Site: TypeAlias = tuple[CodeType, int]
"""A place in the code, by code and instruction. Most are never shown; `place_of` makes a text."""


def site_of(frame: FrameType) -> Site:
    return frame.f_code, frame.f_lasti


def site_of_function(function: Callable[..., Any]) -> Site | None:
    code = getattr(function, "__code__", None)
    return None if code is None else (code, -1)


def site_of_task(task: "asyncio.Task[Any] | None") -> Site | None:
    """Where the code of a task waits: the innermost line that is neither asyncio's nor ours."""
    found = None
    waits_in: Any = None if task is None else task.get_coro()
    while waits_in is not None:
        frame = getattr(waits_in, "cr_frame", None)
        if frame is not None and not frame.f_code.co_filename.startswith((_HERE, _ASYNCIO)):
            found = site_of(frame)
        waits_in = getattr(waits_in, "cr_await", None)
    return found


def place_of(site: Site | None) -> str:
    """`shop/checkout.py:41`, or nothing."""
    return "" if site is None else _place(*site)


@functools.lru_cache(maxsize=4_096)
def _place(code: CodeType, instruction: int) -> str:
    """File and line, as short as a record takes them."""
    line: int | None = code.co_firstlineno
    for nth, (first, *_) in enumerate(code.co_positions()):
        if nth * 2 == instruction:
            line = first
            break
    path = FilePath(code.co_filename)
    short = "/".join(path.parts[-2:])
    shown = "".join(char if char.isprintable() else "?" for char in f"{short}:{line}")
    return shown.encode("utf-8", "replace")[-EXECUTION_NAME_BYTES_MAX:].decode("utf-8", "ignore")


class Operation:
    """Something that the code waits for, by its path."""

    step: "Step[..., Any] | None" = None
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = MappingProxyType({})
    encoded = b""
    begins_after = 0
    """The records of this worker that must be in the journal before it begins."""
    is_begun = False
    was_begun = False
    """Whether the journal that was loaded says that it has begun; for those at most once."""
    is_undo = False
    attempt = 1
    retry_at_ms = 0
    """When the next attempt may begin, or 0."""
    child: "Child[Any] | None" = None
    """Of an operation that starts a child."""
    retry_is_registered = False
    """Whether the partition has a timer for the next attempt."""

    def __init__(
        self,
        waits: WaitKind,
        path: Path,
        *,
        name: str,
        line: TaskLine,
        site: Site | None,
        future: "asyncio.Future[Any]",
        result_type: Any = None,
    ) -> None:
        self.waits = waits
        self.path = path
        self.name = name
        self.line = line
        self.site = site
        self.future = future
        self.result_type = result_type

    @property
    def needed_step(self) -> "Step[..., Any]":
        """The step, of an operation that is one."""
        assert self.step is not None
        return self.step

    def encode_arguments(self, codec: Codec) -> bytes:
        """The arguments, to see whether they are the same later. Raises CodecError."""
        arguments = (self.args, dict(self.kwargs)) if self.kwargs else self.args
        return codec.encode(arguments, f"{self.name}(…)")

    def saw(self, event: CodeEvent) -> None:
        """The event is one of the call to which the operation belongs."""
        scope = self.line.scope
        if scope is not None:
            scope.events.append(event)

    @property
    def retry_path(self) -> Path:
        """The path of the timer before the next attempt. Nothing else is below a step."""
        return self.path + encode_path((self.attempt,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """An attempt of a step, to be run by the worker, and reported to the machine."""

    path: Path
    attempt: int
    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    timeout_ms: int | None
    is_async: bool
    step_key: str
    """The same for all attempts, and of this step alone: an idempotency key for others. It has the
    step's name (the first one in `was`), because changed code may have another step at its path.
    """
    execution_id: str


def make_effect(operation: Operation, identity: "ExecutionIdentity") -> Effect:
    """The next attempt of a step."""
    step = operation.needed_step
    numbers = (identity.partition, identity.number, identity.run)
    name = step.was[0] if step.was else operation.name
    return Effect(
        path=operation.path,
        attempt=operation.attempt,
        name=operation.name,
        function=step.function,
        args=operation.args,
        kwargs=operation.kwargs,
        timeout_ms=step.timeout_ms,
        is_async=step.is_async,
        step_key="/".join(
            [identity.namespace, identity.queue, *map(str, numbers), shown(operation.path), name]
        ),
        execution_id=identity.id,
    )
