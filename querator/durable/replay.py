"""What a journal says and what the code does, side by side, where the two differ."""

from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from querator.durable.code import ExecutionCode
from querator.durable.errors import NonDeterminism
from querator.durable.operations import WAITS_OF, Operation, WaitKind, place_of
from querator.durable.paths import Path, shown
from querator.model.executions import JournalRecord, RecordKind

_WAITS: Final = {int(kind): waits for kind, waits in WAITS_OF.items()}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Sides(NamedTuple):
    """What is compared: the execution, and the versions of its journal and of the code. `ended`
    says how the function has ended, if it has.
    """

    title: str
    was: str
    now: str
    ended: str


def mismatch(sides: Sides, record: JournalRecord, code: ExecutionCode) -> NonDeterminism:
    """The code does not take a record."""
    note = record.note
    kind = RecordKind(note.kind)
    waits = WAITS_OF.get(kind)
    what = kind.name.lower() if waits is None else waits.value
    at = (_EPOCH + timedelta(milliseconds=note.at_ms)).strftime("%Y-%m-%d %H:%M:%S")
    was = (
        f"record {record.index:<5} {what} {note.name or '-'}   {note.site or '-'}   "
        f"{_version(sides.was)}{at}   path {shown(note.path)}"
    )
    return _differ(sides, was, note.path, code)


def timer_missing(sides: Sides, path: Path, code: ExecutionCode) -> NonDeterminism:
    """The code does not wait for a timer that is set."""
    was = f"waits        for a timer   {_version(sides.was)}path {shown(path)}"
    return _differ(sides, was, path, code)


def _differ(sides: Sides, was: str, path: Path, code: ExecutionCode) -> NonDeterminism:
    now = f"now          {_does(sides, path, code)}"
    return NonDeterminism(
        f"{sides.title}: the code does not do what the journal says.\n"
        f"  {was}\n"
        f"  {now}\n"
        f"Nothing was run.",
        journal=was,
        code=now,
    )


def _does(sides: Sides, path: Path, code: ExecutionCode) -> str:
    version = _version(sides.now)
    if sides.ended:
        return f"{sides.ended}   {version}".rstrip()
    waiting = [*code.pending.values()]
    waiting += [each for path in code.loop.timers if (each := code.at(path)) is not None]
    found = code.at(path)
    operation = found or (waiting[0] if waiting else None)
    if found is None and path in code.productions:
        return f"{code.productions[path].in_words()}   {version}path {shown(path)}"
    if operation is None:
        return f"nothing that waits for an event   {version}".rstrip()
    where = "" if operation is found else "; nothing waits at the path of the record"
    return f"{in_words(operation)}   {version}path {shown(operation.path)}{where}"


def _version(version: str) -> str:
    return f"version {version}   " if version else ""


def in_words(operation: Operation) -> str:
    """`step charge   shop/checkout.py:41`."""
    return f"{operation.waits.value} {operation.name or '-'}   {place_of(operation.site) or '-'}"


def is_named(operation: Operation, name: str) -> bool:
    """Whether an operation has a name, or a step had it."""
    step = operation.step
    return operation.name == name or (step is not None and name in step.was)


def fits(operation: Operation, record: JournalRecord) -> bool:
    """Whether the operation at the path of a record is the one that the record is of."""
    note = record.note
    waits = _WAITS[note.kind]
    return operation.waits is waits and (
        is_named(operation, note.name) or waits in (WaitKind.TIMER, WaitKind.PROMISE)
    )
