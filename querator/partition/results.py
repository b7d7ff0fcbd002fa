"""Results of items: what a producer that waits gets when its item has ended.

A produced item may ask for its result to be kept (`ItemSpecial.keep_result_ms`). Its row is made
with the item, so that the limit of rows refuses a produce, and never a complete:

    produce ──► asked ──first end of the item──► kept ──keep_ms later──► (nothing)

    end of the item                                      row
    --------------------------------------------------   -----------------------------------------
    completed, or acknowledged by a reader               COMPLETED, with the data of the complete
    becomes a dead letter, or is dropped as a dead one   DEAD, with the reason and the last error
    cancelled, purged, replaced, given up                REMOVED

The first end is final. A dead letter that returns, or is redriven, has answered. The data of a
result is an attachment of the entry with the complete, as the data of a checkpoint is. A result of
an item without a row is dropped: its producer has not asked for it.

An item that has asked never leaves its partition before its end. Only dead letters and follow-ups
move, and a follow-up cannot ask.
"""

from collections.abc import Callable, Mapping, Sequence
from struct import unpack
from types import MappingProxyType
from typing import Final

from msgspec.structs import replace

from querator.model.commands import Answer, ItemSpecial, Refusal, SettleResult
from querator.model.errors import ErrorCode
from querator.model.limits import KEEP_RESULT_MS_MAX, RESULTS_MAX
from querator.model.result_calls import ItemEnd
from querator.partition import masks
from querator.partition.apply_context import ApplyContext, earlier
from querator.partition.overlays import drop_data, load_overlay
from querator.partition.rows import DeadCause, ResultRow, decode_result, encode
from querator.storage.tables import RESULT_TIMES, RESULTS

Returned = Mapping[int, tuple[int, int]]
"""Data that is returned for items: by sequence, the part of the entry and its bytes."""
NOTHING: Final[Returned] = MappingProxyType({})


def ask(
    context: ApplyContext,
    specials: Sequence[ItemSpecial],
    first_seq: int,
    duplicates: Sequence[tuple[int, ...]],
) -> Refusal | None:
    """Makes the rows of those items of a produce that ask for a result; it is accepted otherwise.
    Items that repeat a dedup key ask for nothing. Returns the refusal if there is no room.
    """
    fresh = [special for special in specials if special.keep_result_ms > 0]
    if not fresh:
        return None
    state = context.state
    repeated = {duplicate[0] for duplicate in duplicates}
    fresh = [special for special in fresh if special.ordinal not in repeated]
    if fresh and state.results + len(fresh) > RESULTS_MAX:
        return _too_many(state.results, len(fresh))
    for special in fresh:
        row = ResultRow(min(special.keep_result_ms, KEEP_RESULT_MS_MAX))
        RESULTS.put(context.txn, context.group, first_seq + special.ordinal, value=encode(row))
    state.results += len(fresh)
    state.asked += len(fresh)
    return None


def _too_many(held: int, fresh: int) -> Refusal:
    return Refusal(
        ErrorCode.TOO_MANY_RESULTS,
        f"the partition keeps results of {held} items, or will; {fresh} more would exceed the "
        f"limit of {RESULTS_MAX}: use a shorter keep_result, or more partitions",
        field="keep_result",
        limit=str(RESULTS_MAX),
        value=str(held + fresh),
    )


def completed(context: ApplyContext, first_seq: int, mask: int, returned: Returned) -> None:
    """Completed items of a block have ended. Called while items have asked."""
    for seq, row in _asking(context, first_seq, mask):
        part, size = returned.get(seq, (0, 0))
        ended = replace(row, end=ItemEnd.COMPLETED)
        if size:
            ended = replace(ended, index=context.index, part=part, size=size)
            context.state.result_bytes += size
        _end(context, seq, ended)


def died(
    context: ApplyContext, first_seq: int, mask: int, reason: DeadCause, attempts: int
) -> None:
    """Items of a block have died. Called while items have asked."""
    for seq, row in _asking(context, first_seq, mask):
        errors = load_overlay(context.txn, context.group, seq).errors
        error = errors[-1] if errors else ""
        _end(
            context, seq,
            replace(row, end=ItemEnd.DEAD, reason=int(reason), error=error, attempts=attempts),
        )  # fmt: skip


def removed(context: ApplyContext, first_seq: int, mask: int) -> None:
    """Items of a block are gone. Called while items have asked: those that have not ended before
    were removed.
    """
    for seq, row in _asking(context, first_seq, mask):
        _end(context, seq, replace(row, end=ItemEnd.REMOVED))


def waited_for(context: ApplyContext, first_seq: int, mask: int) -> int:
    """Those of the items of a block that have asked and not ended."""
    return sum(1 << (seq - first_seq) for seq, _ in _asking(context, first_seq, mask))


def _asking(context: ApplyContext, first_seq: int, mask: int) -> list[tuple[int, ResultRow]]:
    """Those of the items that have asked and not ended."""
    start = RESULTS.key(context.group, first_seq + masks.low(mask))
    stop = RESULTS.key(context.group, first_seq + mask.bit_length())
    found: list[tuple[int, ResultRow]] = []
    for key, raw in context.txn.scan(start, stop):
        seq = int.from_bytes(key[-8:], "big")
        if mask >> (seq - first_seq) & 1:
            row = decode_result(raw)
            if row.end == ItemEnd.WAITS:
                found.append((seq, row))
    return found


def _end(context: ApplyContext, seq: int, row: ResultRow) -> None:
    txn, group, state = context.txn, context.group, context.state
    until_ms = context.now_ms + row.keep_ms
    RESULTS.put(txn, group, seq, value=encode(replace(row, ended_ms=context.now_ms)))
    RESULT_TIMES.put(txn, group, until_ms, seq, value=b"")
    state.asked -= 1
    state.answered += 1
    state.cleanup_head_ms = earlier(state.cleanup_head_ms, until_ms)
    context.answered.append(seq)


def answer(
    context: ApplyContext,
    command: Answer,
    parts: Sequence[tuple[int, int]],
    complete: Callable[[Mapping[int, Returned]], SettleResult | Refusal],
) -> SettleResult | Refusal:
    """Carries out a complete with results. `parts` are (attachment, 1), one for each result.
    `complete` carries out the complete itself. It is given what each lease returns.

    Only a lease that holds an item returns its result: data for an item that the command does not
    complete is dropped.
    """
    sizes = unpack(f"<{len(command.lengths) >> 2}I", command.lengths)
    result: SettleResult | Refusal
    if not len(parts) == len(command.items) == len(sizes):
        result = Refusal(
            ErrorCode.INVALID_ARGUMENT,
            f"{len(command.items)} results have {len(sizes)} lengths",
            field="results",
        )
    else:
        returned: dict[int, dict[int, tuple[int, int]]] = {}
        for item, (part, _), size in zip(command.items, parts, sizes, strict=True):
            returned.setdefault(item.lease, {})[item.seq] = (part, size)
        result = complete(returned)
    for (part, _), kept in zip(parts, _kept(context, command, parts, sizes, result), strict=True):
        if not kept:
            drop_data(context, context.index, part)
    return result


def _kept(
    context: ApplyContext,
    command: Answer,
    parts: Sequence[tuple[int, int]],
    sizes: Sequence[int],
    result: SettleResult | Refusal,
) -> list[bool]:
    """Which of the parts the rows of results refer to."""
    if isinstance(result, Refusal):
        return [False] * len(parts)
    kept = []
    for item, (part, _), size in zip(command.items, parts, sizes, strict=True):
        raw = RESULTS.get(context.txn, context.group, item.seq) if size else None
        row = None if raw is None else decode_result(raw)
        here = (context.index, part)
        kept.append(row is not None and row.size > 0 and (row.index, row.part) == here)
    return kept


def forget_results(context: ApplyContext, rows_max: int) -> int:
    """Forgets results that were kept long enough, up to `rows_max`. Returns their number."""
    txn, group, state = context.txn, context.group, context.state
    due: list[tuple[bytes, int]] = []
    for key, _ in RESULT_TIMES.rows(txn, group):
        until_ms, seq = RESULT_TIMES.parts(key)
        assert isinstance(until_ms, int)
        assert isinstance(seq, int)
        if until_ms > context.now_ms or len(due) == rows_max:
            break
        due.append((key, seq))
    for key, seq in due:
        raw = RESULTS.get(txn, group, seq)
        assert raw is not None, "a time names a result"
        row = decode_result(raw)
        if row.size:
            drop_data(context, row.index, row.part)
            state.result_bytes -= row.size
        txn.delete(key)
        RESULTS.delete(txn, group, seq)
    state.results -= len(due)
    return len(due)


def redate_result(context: ApplyContext, key: bytes, value: bytes) -> int:
    """A result that seems to be of a later time is kept from now on. Returns the rows of work."""
    row = decode_result(value)
    if row.end != ItemEnd.WAITS and row.ended_ms > context.now_ms:
        txn, group, seq = context.txn, context.group, int.from_bytes(key[-8:], "big")
        RESULT_TIMES.delete(txn, group, row.ended_ms + row.keep_ms, seq)
        RESULT_TIMES.put(txn, group, context.now_ms + row.keep_ms, seq, value=b"")
        RESULTS.put(txn, group, seq, value=encode(replace(row, ended_ms=context.now_ms)))
    return 1
