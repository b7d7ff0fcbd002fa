"""Folds: the result of a called durable function takes the place of what the call had.

A fold is judged by what it reads: the record that it overwrites and those that it removes. So its
work grows with the records that leave the journal, each of which leaves it once.
"""

from collections.abc import Sequence

import msgspec

from querator.model.commands import Refusal
from querator.model.errors import ErrorCode
from querator.model.execution_commands import RecordProgress
from querator.model.executions import (
    ARRIVAL,
    CHILD_RESULTS,
    Fold,
    Note,
    RecordKind,
    child_result_path,
    is_below,
)
from querator.partition.apply_context import ApplyContext
from querator.partition.execution_rows import (
    ExecutionRow,
    RecordRow,
    decode_record,
    decode_wait,
    path_mark,
)
from querator.partition.executions import Part, count, drop_record, stored
from querator.partition.rows import encode
from querator.storage.tables import RECORDS, WAITS


class Folding(msgspec.Struct, frozen=True):
    """A fold that was judged. `target` is the record that it overwrites; None: none. `removed` are
    records with their indexes.
    """

    fold: Fold
    target: RecordRow | None
    removed: list[tuple[int, RecordRow]]


def malformed(field: str, why: str, value: object) -> Refusal:
    return Refusal(ErrorCode.INVALID_ARGUMENT, f"{field}: {why}", field=field, value=str(value))


def judge_folds(
    context: ApplyContext, command: RecordProgress, row: ExecutionRow, judged: list[Folding]
) -> Refusal | None:
    """Reads what the folds overwrite and remove into `judged`. Returns the refusal of a fold that
    reaches beyond its call, takes what the code has not been given, or overlaps another one.
    """
    used: set[int] = set()
    for nth, fold in enumerate(command.folds):
        field, path = f"folds[{nth}]", fold.note.path
        target = None
        if fold.index:
            raw = RECORDS.get(context.txn, context.group, command.execution, fold.index)
            target = None if raw is None else decode_record(raw)
            if target is None or not is_below(target.path, path):
                return malformed(
                    f"{field}.index", f"is no record below the path {path.hex()}", fold.index
                )
            if not _may_fold(fold.index, target, command.seen, used):
                return malformed(f"{field}.index", "is unread, or of another fold, too", fold.index)
            if _waits_for_child(context, command, target):
                return malformed(f"{field}.index", "started a child that has not ended", fold.index)
            used.add(fold.index)
        removed: list[tuple[int, RecordRow]] = []
        for first, length in fold.removed:
            for index, one in _records(context, command.execution, first, first + length):
                if one.kind != RecordKind.SIGNAL and not is_below(one.path, path):
                    return malformed(
                        f"{field}.removed", f"record {index} is not below {path.hex()}", index
                    )
                if not _may_fold(index, one, command.seen, used):
                    return malformed(
                        f"{field}.removed",
                        f"record {index} is unread, or of another fold, too",
                        index,
                    )
                if _waits_for_child(context, command, one):
                    return malformed(
                        f"{field}.removed", f"the child of record {index} has not ended", index
                    )
                used.add(index)
                removed.append((index, one))
            if first + length > row.next_index:
                return malformed(f"{field}.removed", "reaches beyond the journal", first)
        judged.append(Folding(fold, target, removed))
    return None


def _may_fold(index: int, one: RecordRow, seen: int, used: set[int]) -> bool:
    return index not in used and (one.kind < ARRIVAL or index <= seen)


def _waits_for_child(context: ApplyContext, command: RecordProgress, one: RecordRow) -> bool:
    """Whether a record is the start of a child whose result the code has not been given."""
    if one.kind != RecordKind.CHILD_STARTED:
        return False
    mark = path_mark(child_result_path(one.path))
    raw = WAITS.get(context.txn, context.group, command.execution, mark)
    return raw is not None and not 0 < decode_wait(raw).index <= command.seen


def _records(
    context: ApplyContext, number: int, first: int, stop: int
) -> list[tuple[int, RecordRow]]:
    """The records of a journal from `first` up to before `stop`."""
    group = context.group
    return [
        (int.from_bytes(key[-8:], "big"), decode_record(raw))
        for key, raw in context.txn.scan(
            RECORDS.key(group, number, first), RECORDS.key(group, number, stop)
        )
    ]


def as_row(context: ApplyContext, note: Note, parts: Sequence[Part]) -> RecordRow:
    return RecordRow(
        note.kind, note.path, note.name, note.site, note.after, note.at_ms,
        *stored(context, note.place, parts, note.payload),
    )  # fmt: skip


def note_bytes(note: Note) -> int:
    return len(note.path) + len(note.name) + len(note.site) + len(note.payload) + 40


def carry_out_fold(
    context: ApplyContext,
    number: int,
    row: ExecutionRow,
    folding: Folding,
    parts: Sequence[Part],
    *,
    sent: dict[bytes, int],
) -> None:
    """The result of a call takes the place of its last event, with its order and its time. What the
    call had goes. `sent` are the records of the same command that end calls, by their paths.
    """
    removed, target = folding.removed, folding.target
    if target is not None:
        removed = [*removed, (folding.fold.index, target)]
    since = min((one.since or index for index, one in removed), default=0)
    for index, one in removed:
        drop_record(context, number, index, one)
        count(context, row, -1, -one.weight)
        if one.kind == RecordKind.TIMER_FIRED or one.kind in CHILD_RESULTS:
            WAITS.delete(context.txn, context.group, number, path_mark(one.path))
    if target is not None:
        note = msgspec.structs.replace(
            folding.fold.note,
            kind=folding.fold.note.kind + (ARRIVAL if target.kind >= ARRIVAL else 0),
            after=target.after,
            at_ms=target.at_ms,
        )
        result = msgspec.structs.replace(as_row(context, note, parts), since=since)
        RECORDS.put(context.txn, context.group, number, folding.fold.index, value=encode(result))
        count(context, row, 1, result.weight)
        return
    index = sent[folding.fold.note.path]
    raw = RECORDS.get(context.txn, context.group, number, index)
    assert raw is not None, "it was appended by this command"
    result = msgspec.structs.replace(decode_record(raw), since=since)
    RECORDS.put(context.txn, context.group, number, index, value=encode(result))
