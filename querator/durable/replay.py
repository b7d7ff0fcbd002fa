"""What a journal says and what the code does, side by side, where the two differ."""

from datetime import UTC, datetime, timedelta
from typing import Final

from querator.durable.code import ExecutionCode
from querator.durable.errors import NonDeterminism
from querator.durable.operations import WAITS_OF, Operation, WaitKind, place_of
from querator.durable.paths import shown
from querator.model.executions import JournalRecord, RecordKind

_WAITS: Final = {int(kind): waits for kind, waits in WAITS_OF.items()}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def mismatch(
    title: str, record: JournalRecord, code: ExecutionCode, *, ended: str
) -> NonDeterminism:
    """`ended` says how the function has ended, if it has."""
    waiting = [*code.pending.values()]
    waiting += [each for path in code.loop.timers if (each := code.at(path)) is not None]
    found = code.at(record.note.path)
    other = waiting[0] if waiting else None
    note = record.note
    kind = RecordKind(note.kind)
    waits = WAITS_OF.get(kind)
    what = kind.name.lower() if waits is None else waits.value
    at = (_EPOCH + timedelta(milliseconds=note.at_ms)).strftime("%Y-%m-%d %H:%M:%S")
    return NonDeterminism(
        f"{title}: the code does not do what the journal says.\n"
        f"  record {record.index:<5} {what} {note.name or '-'}   {note.site or '-'}   "
        f"{at}   path {shown(note.path)}\n"
        f"  now          {_does(found, other, ended)}\n"
        f"Nothing was run."
    )


def _does(found: Operation | None, other: Operation | None, ended: str) -> str:
    if ended:
        return ended
    operation = found or other
    if operation is None:
        return "nothing that waits for an event"
    where = "" if operation is found else "; nothing waits at the path of the record"
    return f"{in_words(operation)}   path {shown(operation.path)}{where}"


def in_words(operation: Operation) -> str:
    """`step charge   shop/checkout.py:41`."""
    return f"{operation.waits.value} {operation.name or '-'}   {place_of(operation.site) or '-'}"


def fits(operation: Operation, record: JournalRecord) -> bool:
    """Whether the operation at the path of a record is the one that the record is of."""
    note = record.note
    waits = _WAITS[note.kind]
    return operation.waits is waits and (
        operation.name == note.name or waits in (WaitKind.TIMER, WaitKind.PROMISE)
    )
