"""Stages: items that wait invisibly until all items of their batch become visible together.

    (nothing) ──Stage──► open ──Prepare──► pinned ──Publish──► ready or scheduled items
                          │ ▲                │
                          │ └─Discard, keep──┤
                          ▼                  ▼ Discard
                        doomed ◄─────────────┘
                          └─Expire──► (nothing)

A stage holds what one attempt at one task of a batch has put into this partition. Its items are
attachments like those of any produce, but no block refers to them. They have no sequences, and only
their count and size are visible. An open stage is deleted when no request has come for
STAGE_TIMEOUT_MS. A pinned stage stays until the coordinator reports the decision
(`partition.transactions`).

The client that has filled a stage says at Prepare what must be in it. So Prepare detects a request
that was lost, or that was staged under another number of partitions, before anything is visible.
The work of a command is bounded: Publish continues in further entries, and a doomed stage is
deleted in steps.

Steps may come late, and again. A partition remembers which transactions it has published or
discarded (`partition.txn_producers`), so that a late Stage stores nothing and a late Prepare pins
nothing.

Longer than 500 lines: a stage's life from its first request to its end is read in one place,
because each step relies on the checks of the steps before it.
"""

from collections.abc import Iterator, Sequence
from struct import unpack

import msgspec

from querator.model.commands import Done, Produce, Refusal
from querator.model.errors import ErrorCode
from querator.model.event_calls import EventKind
from querator.model.limits import (
    APPLY_SEGMENTS_MAX,
    STAGE_TIMEOUT_MS,
    STAGED_BYTES_MAX,
    STAGES_MAX,
)
from querator.model.transactions import (
    Discard,
    DropStages,
    Prepare,
    Publish,
    Stage,
    StageClaim,
    StageResult,
)
from querator.partition import held_keys, masks
from querator.partition.apply_context import ApplyContext, earlier, producers_paused, unconfigured
from querator.partition.dedup import NEVER, keys_of, known_keys, no_room_for_keys, remember_keys
from querator.partition.duplicates import Fresh, carry_out, judge, takes_over
from querator.partition.flows import cut_names, wrong_names
from querator.partition.produce import place_block
from querator.partition.staging_refusals import closed, full, malformed, name_of
from querator.partition.staging_rows import (
    StagedPiece,
    StageRow,
    decode_piece,
    decode_stage,
    encode,
    producer_hash,
)
from querator.partition.txn_producers import load_producer, remember
from querator.storage import attachments
from querator.storage.tables import (
    PINNED,
    STAGE_CHECKS,
    STAGE_NAMES,
    STAGED,
    STAGES,
)

CHECKSUM_MODULUS = 1 << 32
"""Modulus of the sum of a stage's checksums."""

# --- staging -------------------------------------------------------------------------------------


def stage(
    context: ApplyContext, command: Stage, parts: Sequence[tuple[int, int]]
) -> StageResult | Refusal:
    """Stores staged items. `parts` are (attachment, number of items)."""
    found = _judge(context, command)
    if isinstance(found, StageResult | Refusal):
        for part, _ in parts:
            attachments.drop(
                context.txn, context.group, context.index, part, log_first=context.log_first
            )
        return found
    number, row = found
    start = 0
    for piece, (part, count) in enumerate(parts):
        stop = start + count
        staged = StagedPiece(
            index=context.index,
            part=part,
            lengths=command.lengths[start * 4 : stop * 4],
            size=sum(unpack(f"<{count}I", command.lengths[start * 4 : stop * 4])),
            specials=tuple(
                msgspec.structs.replace(special, ordinal=special.ordinal - start)
                for special in command.specials
                if start <= special.ordinal < stop
            ),
            slots=command.slots[start * 2 : stop * 2],
            flows=cut_names(command.flows, start, stop),
        )
        STAGED.put(
            context.txn, context.group, number, command.sequence, piece, value=encode(staged)
        )
        row.count += count
        row.size += staged.size
        context.state.staged += count
        context.state.staged_bytes += staged.size
        start = stop
    row.keys += keys_of(command.specials)
    row.checksum = (row.checksum + command.checksum) % CHECKSUM_MODULUS
    row.since_ms = context.now_ms
    _put(context, number, row)
    return StageResult()


def _judge(context: ApplyContext, command: Stage) -> StageResult | Refusal | tuple[int, StageRow]:
    """The stage that takes the items, or the answer if none does."""
    if context.row is None:
        return unconfigured()
    refusal = malformed(command)
    if refusal is None and context.flows is not None:
        count = len(command.lengths) >> 2
        refusal = wrong_names(command.flows, count, context.flows.settings.kind)
    if refusal is not None:
        return refusal
    hashed = producer_hash(command.producer)
    known = load_producer(context.txn, context.group, command.producer)
    if known is not None and command.batch <= known.committed:
        return StageResult(committed=True)
    share = context.share
    if share.closing or not share.open or command.routing != share.routing:
        return Refusal(
            ErrorCode.ROUTING_CHANGED,
            f"routing version {command.routing} of the queue is out of date; not executed",
            value=str(share.routing),
        )
    found = _named(context, command.producer, command.batch, command.task, command.attempt)
    if found is not None:
        number, row = found
        # Items that were cut for other partitions are no repeat, and cannot be committed.
        same = row.txn or row.routing == share.routing
        if same and STAGED.get(context.txn, context.group, number, command.sequence, 0) is not None:
            return StageResult(repeated=True)
        refusal = closed(row, share.routing)
    elif context.state.stages >= STAGES_MAX:
        refusal = full("stages", context.state.stages + 1, STAGES_MAX)
    if refusal is None and context.queue.produce_paused:
        refusal = producers_paused(context.queue)
    if refusal is not None:
        return refusal
    size = sum(unpack(f"<{len(command.lengths) >> 2}I", command.lengths))
    if context.state.staged_bytes + size > STAGED_BYTES_MAX:
        return full("staged bytes", context.state.staged_bytes + size, STAGED_BYTES_MAX)
    return found or _begun(context, command, hashed)


def _begun(context: ApplyContext, command: Stage, hashed: bytes) -> tuple[int, StageRow]:
    state, now_ms = context.state, context.now_ms
    number = state.next_stage
    state.next_stage = number + 1
    state.stages += 1
    row = StageRow(
        producer=command.producer,
        batch=command.batch,
        task=command.task,
        attempt=command.attempt,
        routing=command.routing,
        begun_ms=now_ms,
        since_ms=now_ms,
        check_at_ms=0,
    )
    STAGE_NAMES.put(
        context.txn, context.group, hashed, command.batch, command.task, command.attempt,
        value=number.to_bytes(8, "big"),
    )  # fmt: skip
    _check_at(context, number, row, now_ms + STAGE_TIMEOUT_MS)
    return number, row


# --- two phases ----------------------------------------------------------------------------------


def prepare(context: ApplyContext, command: Prepare) -> Done | Refusal:
    """Pins all claimed stages, or none. `changed` counts those that were not pinned before."""
    if context.row is None:
        return unconfigured()
    known = load_producer(context.txn, context.group, command.producer)
    if known is not None and (command.txn <= known.finished or command.batch <= known.committed):
        return Refusal(
            ErrorCode.TRANSACTION_ABORTED,
            f"transaction {command.txn} of producer {command.producer} has ended in partition "
            f"{context.queue.partition}",
            field="stages",
        )
    fresh: dict[int, StageRow] = {}
    for claim in command.claims:
        found = _named(context, command.producer, command.batch, claim.task, claim.attempt)
        row = None if found is None else found[1]
        wrong = _unlike(context, claim, row, command.txn)
        if wrong:
            message = f"{wrong}, in partition {context.queue.partition}"
            return Refusal(ErrorCode.TRANSACTION_ABORTED, message, field="stages")
        assert found is not None
        if not found[1].txn:
            fresh[found[0]] = found[1]
    count = sum(row.count for row in fresh.values())
    if fresh and context.queue.produce_paused:
        return producers_paused(context.queue)
    held, items_max = context.state.occupied, context.queue.items_max
    if fresh and 0 < items_max < held + count:
        return Refusal(
            ErrorCode.QUEUE_FULL,
            f"partition {context.queue.partition} holds {held} items; {count} more would exceed "
            f"its limit of {items_max}",
            field="items",
            limit=str(items_max),
            value=str(held + count),
        )
    refusal = no_room_for_keys(context, sum(row.keys for row in fresh.values()))
    if refusal is not None:
        return refusal
    for number, row in fresh.items():
        _check_at(context, number, row, 0)
        row.txn, row.since_ms = command.txn, context.now_ms
        PINNED.put(context.txn, context.group, command.txn, row.task, number, value=b"")
        context.state.pinned += row.count
        context.state.pinned_keys += row.keys
        _put(context, number, row)
    return Done(len(fresh))


def _unlike(context: ApplyContext, claim: StageClaim, row: StageRow | None, txn: int) -> str:
    """How a stage differs from its claim. Empty if it does not."""
    name = name_of(claim.task, claim.attempt)
    if row is None:
        return f"{name} does not exist, or no longer exists"
    if row.txn == txn:
        return ""
    if row.txn:
        return f"{name} is being committed by another transaction"
    if row.routing != context.share.routing:
        return f"{name} was staged before the number of partitions changed"
    if (row.count, row.checksum) != (claim.count, claim.checksum):
        return (
            f"{name} has {row.count} items with checksum {row.checksum}; "
            f"the commit says {claim.count} with {claim.checksum}"
        )
    return ""


def publish(context: ApplyContext, command: Publish) -> Done:
    """`changed` is 0 when all items are visible, and 1 while work remains."""
    numbers = _pinned(context, command.txn, APPLY_SEGMENTS_MAX)
    producer, batch = _whose(context, command, numbers)
    if producer:
        remember(context, producer, txn=command.txn, committed=batch)
    left = APPLY_SEGMENTS_MAX
    for number in numbers:
        if left <= 0:
            break
        left = _publish_stage(context, number, _load(context, number), left)
    if _pinned(context, command.txn, 1):
        return Done(1)
    if producer:
        _drop_open(context, producer, batch, APPLY_SEGMENTS_MAX)
    return Done(0)


def _whose(
    context: ApplyContext, command: Publish | Discard, numbers: list[int]
) -> tuple[str, int]:
    """Producer and batch of a transaction for which `numbers` are pinned. The producer is empty if
    it is not known.
    """
    if command.producer or not numbers:
        return command.producer, command.batch
    row = _load(context, numbers[0])
    return row.producer, row.batch


def _publish_stage(context: ApplyContext, number: int, row: StageRow, left: int) -> int:
    """Publishes pieces while `left`, the rest of the bound, is positive. Returns the rest of the
    bound.
    """
    txn, group, state = context.txn, context.group, context.state
    for key, raw in list(_bounded(STAGED.rows(txn, group, number), left)):
        if left <= 0:
            break
        piece = decode_piece(raw)
        count = len(piece.lengths) >> 2
        txn.delete(key)
        left -= _show(context, piece, count)
        keys = _take_off(context, row, piece, count)
        state.pinned -= count
        state.pinned_keys -= keys
    if row.count:
        _put(context, number, row)
        return 0
    _unname(context, number, row)
    STAGES.delete(txn, group, number)
    state.stages -= 1
    return left - 1


def _show(context: ApplyContext, piece: StagedPiece, count: int) -> int:
    """Gives sequences to the items of a piece and places them like those of a produce. Returns the
    work: about the number of rows.
    """
    state = context.state
    first_seq = state.next_seq
    state.next_seq = first_seq + count
    alive = masks.full(count)
    specials = piece.specials
    fresh = Fresh(first_seq, [], [], {})
    if specials:
        command = Produce(piece.lengths, specials=specials, slots=piece.slots)
        duplicates, since = known_keys(context, specials, first_seq), NEVER
        if duplicates and takes_over(context, specials):
            verdict = judge(context, specials, first_seq, (), fresh)
            carry_out(context, verdict, first_seq, fresh)
            specials, duplicates, since = verdict.specials, verdict.duplicates, verdict.since
        remember_keys(context, command, first_seq, duplicates, since)
        for duplicate in duplicates:
            alive &= ~(1 << duplicate[0])
        state.duplicates += len(duplicates)
        state.produced += len(fresh.gone)
        for seq in fresh.gone:
            alive &= ~(1 << (seq - first_seq))
            if context.feed is not None:
                context.feed.items(EventKind.PRODUCED, seq, 1)
                context.feed.items(EventKind.REPLACED, seq, 1)
    if not alive:
        attachments.drop(
            context.txn, context.group, piece.index, piece.part, log_first=context.log_first
        )
        return 1 + len(piece.specials)
    state.produced += alive.bit_count()
    living = [special for special in specials if alive >> special.ordinal & 1]
    held = held_keys.lanes(context, piece.slots, alive)
    flow_of = [] if context.flows is None else context.flows.numbers(piece.flows, count)
    place_block(
        context=context,
        attachment=(piece.index, piece.part),
        first_seq=first_seq,
        lengths=piece.lengths,
        alive=alive,
        specials=living,
        held=held,
        flow_of=flow_of,
        places=fresh.places,
    )
    return 1 + len(piece.specials) + len(held) + len({*flow_of})


def discard(context: ApplyContext, command: Discard) -> Done:
    """`changed` is 0 when nothing is pinned for the transaction, and 1 while work remains."""
    numbers = _pinned(context, command.txn, APPLY_SEGMENTS_MAX)
    producer, _ = _whose(context, command, numbers)
    if producer:
        remember(context, producer, txn=command.txn)
    for number in numbers:
        row = _load(context, number)
        if not command.keep:
            _doom(context, number, row)
            continue
        PINNED.delete(context.txn, context.group, row.txn, row.task, number)
        context.state.pinned -= row.count
        context.state.pinned_keys -= row.keys
        row.txn, row.since_ms = 0, context.now_ms
        _check_at(context, number, row, context.now_ms + STAGE_TIMEOUT_MS)
        _put(context, number, row)
    return Done(int(len(numbers) == APPLY_SEGMENTS_MAX))


def drop_stages(context: ApplyContext, command: DropStages) -> Done:
    """`changed` counts stages. 0 means that all remaining stages are pinned."""
    if command.committed >= 0:
        remember(context, command.producer, committed=command.committed)
    return Done(_drop_open(context, command.producer, command.batch, APPLY_SEGMENTS_MAX))


def forget_stages(context: ApplyContext, rows_max: int) -> int:
    """Deletes doomed stages, and dooms stages that have been open for too long. Returns the number
    of rows.
    """
    txn, group, now_ms = context.txn, context.group, context.now_ms
    due: list[int] = []
    for key, _ in STAGE_CHECKS.rows(txn, group):
        if len(due) == rows_max or int.from_bytes(key[9:17], "big") > now_ms:
            break
        due.append(int.from_bytes(key[17:25], "big"))
    work = 0
    for number in due:
        if work >= rows_max:
            break
        row = _load(context, number)
        work += 1
        until_ms = row.since_ms + STAGE_TIMEOUT_MS
        if not row.doomed and until_ms > now_ms:
            _check_at(context, number, row, until_ms)
            _put(context, number, row)
            continue
        if not row.doomed:
            _doom(context, number, row)
        work += _delete(context, number, row, rows_max - work)
    return work


# --- rows ----------------------------------------------------------------------------------------


def _load(context: ApplyContext, number: int) -> StageRow:
    raw = STAGES.get(context.txn, context.group, number)
    assert raw is not None, f"stage {number} is indexed and not there"
    return decode_stage(raw)


def _put(context: ApplyContext, number: int, row: StageRow) -> None:
    STAGES.put(context.txn, context.group, number, value=encode(row))


def _named(
    context: ApplyContext, producer: str, batch: int, task: int, attempt: bytes
) -> tuple[int, StageRow] | None:
    value = STAGE_NAMES.get(
        context.txn, context.group, producer_hash(producer), batch, task, attempt
    )
    if value is None:
        return None
    number = int.from_bytes(value, "big")
    row = _load(context, number)
    # If two producers share a hash, the second one finds no stage of its own.
    return (number, row) if row.producer == producer else None


def _bounded(rows: Iterator[tuple[bytes, bytes]], most: int) -> Iterator[tuple[bytes, bytes]]:
    for _, row in zip(range(most), rows, strict=False):
        yield row


def _pinned(context: ApplyContext, txn: int, most: int) -> list[int]:
    """Stages that are pinned for a transaction, in the order of their tasks."""
    rows = _bounded(PINNED.rows(context.txn, context.group, txn), most)
    return [int.from_bytes(key[-8:], "big") for key, _ in rows]


def _drop_open(context: ApplyContext, producer: str, batch: int, most: int) -> int:
    rows = _bounded(
        STAGE_NAMES.rows(context.txn, context.group, producer_hash(producer), batch), most
    )
    doomed = 0
    for number in [int.from_bytes(value, "big") for _, value in rows]:
        row = _load(context, number)
        if not row.txn and row.producer == producer:
            _doom(context, number, row)
            doomed += 1
    return doomed


def _doom(context: ApplyContext, number: int, row: StageRow) -> None:
    """Makes a stage unreachable. Its rows are deleted by Expire."""
    if row.txn:
        context.state.pinned -= row.count
        context.state.pinned_keys -= row.keys
    _unname(context, number, row)
    row.txn, row.doomed = 0, True
    _check_at(context, number, row, context.now_ms)
    _put(context, number, row)


def _unname(context: ApplyContext, number: int, row: StageRow) -> None:
    hashed = producer_hash(row.producer)
    STAGE_NAMES.delete(context.txn, context.group, hashed, row.batch, row.task, row.attempt)
    if row.txn:
        PINNED.delete(context.txn, context.group, row.txn, row.task, number)


def _check_at(context: ApplyContext, number: int, row: StageRow, at_ms: int) -> None:
    """Schedules the check of a stage. 0 means no check. The caller writes the row of the stage."""
    if row.check_at_ms:
        STAGE_CHECKS.delete(context.txn, context.group, row.check_at_ms, number)
    row.check_at_ms = at_ms
    if at_ms:
        STAGE_CHECKS.put(context.txn, context.group, at_ms, number, value=b"")
        context.state.cleanup_head_ms = earlier(context.state.cleanup_head_ms, at_ms)


def _take_off(context: ApplyContext, row: StageRow, piece: StagedPiece, count: int) -> int:
    """Subtracts a piece of `count` items from the staged counts. Returns how many keys the row
    counted for it.
    """
    keys = min(row.keys, keys_of(piece.specials))
    row.count -= count
    row.size -= piece.size
    row.keys -= keys
    context.state.staged -= count
    context.state.staged_bytes -= piece.size
    return keys


def _delete(context: ApplyContext, number: int, row: StageRow, pieces_max: int) -> int:
    """Deletes up to `pieces_max` pieces of a doomed stage, but at least one, and the stage with its
    last piece. Returns their number.
    """
    txn, group, state = context.txn, context.group, context.state
    rows = list(_bounded(STAGED.rows(txn, group, number), max(pieces_max, 1)))
    for key, raw in rows:
        piece = decode_piece(raw)
        txn.delete(key)
        attachments.drop(txn, group, piece.index, piece.part, log_first=context.log_first)
        _take_off(context, row, piece, len(piece.lengths) >> 2)
    if row.count:
        _put(context, number, row)
        return len(rows)
    _check_at(context, number, row, 0)
    STAGES.delete(txn, group, number)
    state.stages -= 1
    return len(rows)
