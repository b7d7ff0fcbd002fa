"""What a journal says and what the code does, side by side, where the two differ."""

from datetime import UTC, datetime, timedelta
from typing import Final

from querator.durable.errors import NonDeterminism
from querator.durable.operations import WAITS_OF, Operation, WaitKind
from querator.durable.paths import shown
from querator.model.executions import JournalRecord, RecordKind

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def mismatch(
    title: str,
    record: JournalRecord,
    *,
    found: Operation | None,
    other: Operation | None,
    ended: str,
) -> NonDeterminism:
    """`found` is the operation at the path of the record, `other` one that waits elsewhere. `ended`
    says how the function has ended, if it has.
    """
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
    return f"{operation.waits.value} {operation.name or '-'}   {operation.site or '-'}"


def fits(operation: Operation | None, record: JournalRecord) -> bool:
    """Whether the operation at the path of a record is the one that the record is of."""
    if operation is None:
        return False
    waits = WAITS_OF[RecordKind(record.note.kind)]
    if operation.waits is not waits:
        return False
    return waits in (WaitKind.TIMER, WaitKind.PROMISE) or operation.name == record.note.name
