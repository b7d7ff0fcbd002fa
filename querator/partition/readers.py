"""Readers: take items in named batches, so that they can read the same items again.

A reader that writes to another system repeats, after a restart, the work that it cannot know to be
done. That is safe if the same name means the same items until the reader reports them done:

    advance(ack n)      if batch n is open: its items are gone, n is acknowledged
                        if no batch is open then: items from the head of the lane become batch m > n
                        the answer is the open batch, the same one for every repeat

Items of an open batch are RESERVED: they do not expire, and no other command touches them, until
the batch is acknowledged, released, or given up so that its items die. A name is never reused: the
batch after a released one has another name.

An epoch is a run of the reader. A new epoch ends the earlier ones: requests of earlier runs are
refused here. So a process that was thought dead cannot acknowledge or reserve anything, even if the
reader was removed and created again meanwhile.

Longer than 500 lines: a reader is opened, advanced and released by the same rules.
"""

from collections.abc import Iterator
from hashlib import blake2b

import msgspec

from querator.model.commands import Done, Refusal
from querator.model.errors import ErrorCode
from querator.model.event_calls import EventKind
from querator.model.limits import (
    BATCH_BYTES_MAX,
    BATCH_ITEMS_MAX,
    BATCH_SEGMENTS_MAX,
    READER_OPENS_KEPT,
    READERS_MAX,
)
from querator.model.readers import (
    AdvanceReader,
    NumberedBatch,
    OpenReader,
    ReaderResult,
    ReleaseReader,
)
from querator.partition import masks
from querator.partition.apply_context import ApplyContext
from querator.partition.dead import become_ready, bury, kill, worn
from querator.partition.flow_choice import Chosen, Space, choose
from querator.partition.results import NOTHING, completed
from querator.partition.rows import (
    Block,
    DeadCause,
    OpenBatch,
    PartitionState,
    ReaderRow,
    ReservedItems,
    RowState,
    Segment,
    SettingsRow,
    decode_reader,
    decode_reserved,
    encode,
)
from querator.partition.segments import (
    block_of,
    check,
    detach,
    flows_of,
    leave_block,
    load_segment,
    put_segment,
    ready_rows,
    ready_rows_upto,
    without,
)
from querator.partition.states import Event
from querator.storage.environment import ReadTransaction
from querator.storage.tables import READERS, RESERVED, SEGMENTS


def reader_hash(reader_id: str) -> bytes:
    return blake2b(reader_id.encode(), digest_size=16).digest()


def load_reader(txn: ReadTransaction, group: int, reader_id: str) -> ReaderRow | None:
    raw = READERS.get(txn, group, reader_hash(reader_id))
    return None if raw is None else decode_reader(raw)


def reader_rows(txn: ReadTransaction, group: int) -> Iterator[ReaderRow]:
    for _, raw in READERS.rows(txn, group):
        yield decode_reader(raw)


def oldest_batch_at(txn: ReadTransaction, group: int) -> int:
    """When the oldest open batch was given out (ms). 0 means that none is open."""
    rows = reader_rows(txn, group)
    return min((row.batch.opened_at_ms for row in rows if row.batch is not None), default=0)


def answer_of(row: ReaderRow, state: PartitionState, share: SettingsRow) -> ReaderResult:
    return ReaderResult(
        epoch=row.epoch,
        acked_seq=row.acked_seq,
        batch=batch_of(row),
        position=state.next_position - 1,
        now_ms=state.now_ms,
        dead_seq=row.dead_seq,
        routing=share.routing,
    )


def batch_of(row: ReaderRow) -> NumberedBatch | None:
    batch = row.batch
    if batch is None:
        return None
    return NumberedBatch(batch.seq, batch.count, batch.bytes, batch.opened_at_ms, batch.replays)


# --- the commands --------------------------------------------------------------------------


def open_reader(context: ApplyContext, command: OpenReader) -> ReaderResult | Refusal:
    state = context.state
    row = load_reader(context.txn, context.group, command.reader_id)
    if row is None:
        if state.readers >= READERS_MAX:
            return _too_many(command.reader_id)
        # The reader may have been removed while a run of it continues: its epoch is an earlier one.
        before = 0 if command.epoch else state.ended_epoch
        row = ReaderRow(command.reader_id, state.next_reader, before, 0)
        state.next_reader += 1
        state.readers += 1
    opened = dict(row.opens).get(command.request_id, 0) if command.request_id else 0
    epoch = command.epoch or opened or row.epoch + 1
    if epoch < row.epoch:
        return fenced(row, epoch)
    if epoch > row.epoch:
        if command.request_id:
            opens = (*row.opens, (command.request_id, epoch))[-READER_OPENS_KEPT:]
            row = msgspec.structs.replace(row, opens=opens)
        batch = row.batch
        if batch is not None:
            batch = msgspec.structs.replace(batch, replays=batch.replays + 1)
        row = msgspec.structs.replace(row, epoch=epoch, opened_at_ms=context.now_ms, batch=batch)
    return _answer(context, row)


def advance_reader(context: ApplyContext, command: AdvanceReader) -> ReaderResult | Refusal:
    row = load_reader(context.txn, context.group, command.reader_id)
    refusal = refuses(row, command, regrown=context.queue.first_seq > 0)
    if refusal is not None:
        return refusal
    assert row is not None
    batch = row.batch
    if batch is not None and command.ack_seq >= batch.seq:
        _acknowledge(context, row)
        batch = None
    row = msgspec.structs.replace(
        row,
        advanced_at_ms=context.now_ms,
        acked_seq=command.ack_seq,
        last_seq=max(row.last_seq, command.ack_seq),
        batch=batch,
    )
    if batch is None and command.max_items > 0 and not context.state.lease_paused:
        batch = _reserve(context, row, command)
        if batch is not None:
            row = msgspec.structs.replace(row, last_seq=batch.seq, batch=batch)
    return _answer(context, row)


def release_reader(context: ApplyContext, command: ReleaseReader) -> Done | Refusal:
    """Releases a batch or makes its items die. `changed` counts these items."""
    row = load_reader(context.txn, context.group, command.reader_id)
    if row is None:
        # A repeated removal finds no reader.
        return Done(0) if command.remove else unknown_reader(command.reader_id)
    released = 0
    if row.batch is not None and row.batch.seq == command.batch_seq:
        released = row.batch.count
        _release(context, row, dead=command.dead)
        dead_seq = command.batch_seq if command.dead else row.dead_seq
        row = _put(context, msgspec.structs.replace(row, batch=None, dead_seq=dead_seq))
    if command.remove:
        if row.batch is not None:
            return Refusal(
                ErrorCode.ACK_MISMATCH,
                f"reader {row.reader_id!r} has batch {row.batch.seq} open meanwhile, so it still "
                "reads. Stop the reader, and remove it again",
                field="reader_id",
                value=row.reader_id,
            )
        READERS.delete(context.txn, context.group, reader_hash(row.reader_id))
        context.state.readers -= 1
        context.state.ended_epoch = max(context.state.ended_epoch, row.epoch)
    return Done(released)


def _answer(context: ApplyContext, row: ReaderRow) -> ReaderResult:
    assert context.row is not None
    return answer_of(_put(context, row), context.state, context.row)


def _put(context: ApplyContext, row: ReaderRow) -> ReaderRow:
    READERS.put(context.txn, context.group, reader_hash(row.reader_id), value=encode(row))
    return row


# --- what is refused -----------------------------------------------------------------------


def refuses(row: ReaderRow | None, command: AdvanceReader, *, regrown: bool) -> Refusal | None:
    """The refusal if the reader cannot be advanced like this; else None. `regrown`: the partition
    replaces one with its number that was given up. Batches were acknowledged there that this
    partition does not know.
    """
    if row is None:
        return unknown_reader(command.reader_id)
    if command.epoch < row.epoch:
        return fenced(row, command.epoch)
    if command.epoch > row.epoch:
        return _unheard_of(row, command.epoch)
    ack = command.ack_seq
    if ack < row.acked_seq:
        return _mismatch(
            row,
            ack,
            f"batch {row.acked_seq} is acknowledged already: the caller's record of its progress "
            "is older than the queue's (was its checkpoint deleted?)",
        )
    if ack > row.last_seq and (row.last_seq or not regrown):
        return _mismatch(
            row,
            ack,
            f"the last batch given out is {row.last_seq}: the queue or the reader was created "
            "again since",
        )
    batch = row.batch
    done = ack <= row.acked_seq or ack == row.dead_seq or (batch is not None and ack == batch.seq)
    if done or ack > row.last_seq or command.skip_released:
        return None
    return released(row, ack)


def _mismatch(row: ReaderRow, ack: int, why: str) -> Refusal:
    return Refusal(
        ErrorCode.ACK_MISMATCH,
        f"reader {row.reader_id!r} acknowledges batch {ack}, but {why}. Continue after the "
        "acknowledged batches (adopt the acknowledgements that opening the reader returns), or "
        "read under another reader id",
        field="ack_seq",
        limit=f"{row.acked_seq} to {row.last_seq}",
        value=str(ack),
    )


def released(row: ReaderRow, seq: int) -> Refusal:
    what = (
        "was released: its items went back to the queue, and other consumers may have leased them"
    )
    if seq == row.dead_seq:
        what = "was given up: its items became dead letters"
    return Refusal(
        ErrorCode.BATCH_RELEASED,
        f"batch {seq} of reader {row.reader_id!r} {what}",
        field="ack_seq",
        value=str(seq),
    )


def not_open(row: ReaderRow, seq: int) -> Refusal:
    """The refusal to read a batch that is not open."""
    if row.acked_seq < seq <= row.last_seq:
        return released(row, seq)
    what = "is acknowledged: its items are gone" if seq <= row.acked_seq else "was never given out"
    return Refusal(
        ErrorCode.BATCH_NOT_FOUND,
        f"batch {seq} of reader {row.reader_id!r} {what}",
        field="batch_seq",
        limit=f"{row.acked_seq} to {row.last_seq}",
        value=str(seq),
    )


def fenced(row: ReaderRow, epoch: int) -> Refusal:
    return Refusal(
        ErrorCode.READER_FENCED,
        f"epoch {epoch} of reader {row.reader_id!r} has ended: epoch {row.epoch} was opened after "
        "it. Only one program may read under a reader id at a time",
        field="epoch",
        limit=str(row.epoch),
        value=str(epoch),
    )


def unknown_reader(reader_id: str) -> Refusal:
    return Refusal(
        ErrorCode.READER_NOT_FOUND,
        f"there is no reader {reader_id!r}; open it first",
        field="reader_id",
        value=reader_id,
    )


def _unheard_of(row: ReaderRow, epoch: int) -> Refusal:
    return Refusal(
        ErrorCode.READER_NOT_FOUND,
        f"epoch {epoch} of reader {row.reader_id!r} was never opened; the last one is {row.epoch}",
        field="epoch",
        limit=str(row.epoch),
        value=str(epoch),
    )


def _too_many(reader_id: str) -> Refusal:
    return Refusal(
        ErrorCode.TOO_MANY_READERS,
        f"the queue has {READERS_MAX} readers, which is the limit; remove one that is no longer "
        "used",
        field="reader_id",
        limit=f"{READERS_MAX} readers",
        value=reader_id,
    )


# --- what happens to items -----------------------------------------------------------------


def _reserve(context: ApplyContext, row: ReaderRow, command: AdvanceReader) -> OpenBatch | None:
    """Reserves items from the head of the lane as the reader's next batch. Dead items among them
    die.
    """
    txn, group, state = context.txn, context.group, context.state
    items_left = min(command.max_items, BATCH_ITEMS_MAX)
    bytes_left = bytes_max = _bytes_max(command)
    count = segments = 0
    check(RowState.READY, Event.RESERVE, RowState.RESERVED)
    for first_seq, segment, part in _heads(context, command):
        block = block_of(context, first_seq)
        alive = _judge(context, first_seq, block, segment)
        part &= alive
        if not part:
            continue
        segment = without(segment, segment.mask & ~alive)
        mask = masks.first(part, items_left)
        size = block.size(mask)
        if size > bytes_left:
            # The first item is taken, however large it is. Otherwise no reader could advance.
            mask = block.fitting(mask, bytes_left) or (0 if count else masks.first(mask, 1))
            if not mask:
                break
            size = block.size(mask)
        detach(context, first_seq, segment, mask)
        put_segment(
            context,
            first_seq,
            Segment(
                state=RowState.RESERVED,
                attempt=segment.attempt,
                releases=segment.releases,
                position=segment.position,
                locator=row.number,
                mask=mask,
                priority=segment.priority,
                age=segment.age,
                flow=segment.flow,
            ),
        )
        items = ReservedItems(first_seq, masks.to_bytes(mask))
        RESERVED.put(txn, group, row.number, count, value=encode(items))
        taken = mask.bit_count()
        if context.feed is not None:
            context.feed.items(
                EventKind.RESERVED, first_seq, mask, attempt=segment.attempt + 1,
                produced_at_ms=block.produced_at_ms, flow=segment.flow,
            )  # fmt: skip
        if segment.flow:
            flows_of(context).served(segment.flow, taken)
            flows_of(context).came(segment.flow, RowState.RESERVED, taken)
        context.count_ahead(segment.position, taken)
        state.reserved += taken
        count, segments = count + taken, segments + 1
        items_left, bytes_left = items_left - taken, bytes_left - size
        if items_left <= 0 or bytes_left <= 0 or mask != part:
            break
    if not count:
        return None
    return OpenBatch(row.last_seq + 1, segments, count, bytes_max - bytes_left, context.now_ms)


def _heads(context: ApplyContext, command: AdvanceReader) -> list[tuple[int, Segment, int]]:
    """Ready segments from the head of the lane, or of the flows whose turn it is, up to the number
    that one batch may have and needs; each with the items that the batch may have.
    """
    txn, group = context.txn, context.group
    if context.flows is not None:
        chosen = _chosen(context, command, None)
        bytes_max = _bytes_max(command)
        if sum(map(_size, chosen)) > bytes_max:
            chosen = _chosen(context, command, Space(bytes_max, _prefix))
        return [(one.first_seq, one.segment, one.chosen) for one in chosen]
    found: list[tuple[int, Segment, int]] = []
    count = 0
    if command.upto_position > 0:
        rows = ready_rows_upto(txn, group, context.state, command.upto_position)
    else:
        rows = ready_rows(txn, group, context.state)
    for key, value in rows:
        if count >= command.max_items or len(found) >= BATCH_SEGMENTS_MAX:
            break
        first_seq = int.from_bytes(value, "big")
        segment = load_segment(txn, group, first_seq, key[-1])
        found.append((first_seq, segment, segment.mask))
        count += segment.mask.bit_count()
    return found


def _chosen(context: ApplyContext, command: AdvanceReader, space: Space | None) -> list[Chosen]:
    return choose(
        context, command.max_items, segments_max=BATCH_SEGMENTS_MAX,
        upto_position=max(0, command.upto_position), whole_keys=True, space=space,
    )  # fmt: skip


def _size(found: Chosen) -> int:
    assert found.block is not None
    return found.block.size(found.chosen) if found.chosen else 0


def _prefix(found: Chosen, mask: int, bytes_max: int, at_least_one: bool) -> tuple[int, int]:
    block = found.block
    assert block is not None
    if block.size(mask) > bytes_max:
        mask = block.fitting(mask, bytes_max) or (masks.first(mask, 1) if at_least_one else 0)
    return mask, block.size(mask) if mask else 0


def _bytes_max(command: AdvanceReader) -> int:
    return min(max(command.max_bytes, 0), BATCH_BYTES_MAX)


def _judge(context: ApplyContext, first_seq: int, block: Block, segment: Segment) -> int:
    """Kills the dead items of a ready segment. Returns the remaining items."""
    expired = block.expired(segment.mask, context.now_ms)
    spent = worn(context, block, segment.mask & ~expired, segment.attempt)
    return bury(context, first_seq, block, segment, expired=expired, spent=spent).mask


def _acknowledge(context: ApplyContext, row: ReaderRow) -> None:
    """Removes the items of the open batch."""
    check(RowState.RESERVED, Event.ACKNOWLEDGE, None)
    for first_seq, mask in _take(context, row):
        segment = load_segment(context.txn, context.group, first_seq, masks.low(mask))
        detach(context, first_seq, segment, mask)
        SEGMENTS.delete(context.txn, context.group, first_seq, masks.low(mask))
        count = mask.bit_count()
        context.state.acknowledged += count
        if context.feed is not None:
            context.feed.items(
                EventKind.ACKNOWLEDGED, first_seq, mask, attempt=segment.attempt + 1,
                produced_at_ms=block_of(context, first_seq).produced_at_ms, flow=segment.flow,
            )  # fmt: skip
        if context.state.asked:
            completed(context, first_seq, mask, NOTHING)
        leave_block(context, first_seq, block_of(context, first_seq), mask)


def _release(context: ApplyContext, row: ReaderRow, *, dead: bool) -> None:
    """Makes the items of the open batch ready again at their places. With `dead` all of them die,
    else those whose attempts are used up.
    """
    for first_seq, mask in _take(context, row):
        block = block_of(context, first_seq)
        segment = load_segment(context.txn, context.group, first_seq, masks.low(mask))
        assert (segment.state, segment.locator) == (RowState.RESERVED, row.number)
        detach(context, first_seq, segment, mask)
        attempt = segment.attempt + 1
        dying = mask if dead else worn(context, block, mask, attempt)
        if mask & ~dying:
            if context.feed is not None:
                context.feed.items(EventKind.RELEASED, first_seq, mask & ~dying, attempt=attempt)
            become_ready(
                context, first_seq, block, mask & ~dying, Event.UNRESERVE,
                came_from=RowState.RESERVED, attempt=attempt, releases=segment.releases,
                priority=segment.priority, age=segment.age, position=segment.position,
                flow=segment.flow,
            )  # fmt: skip
        if dying:
            kill(
                context, first_seq, block, dying,
                DeadCause.REJECTED if dead else DeadCause.ATTEMPTS,
                came_from=RowState.RESERVED, attempt=attempt, priority=segment.priority,
                flow=segment.flow,
            )  # fmt: skip


def _take(context: ApplyContext, row: ReaderRow) -> list[tuple[int, int]]:
    """Deletes the rows of the open batch. Returns them as (first_seq, mask) in order."""
    taken: list[tuple[int, int]] = []
    doomed: list[bytes] = []
    for key, value in RESERVED.rows(context.txn, context.group, row.number):
        items = decode_reserved(value)
        taken.append((items.first_seq, masks.from_bytes(items.mask)))
        doomed.append(key)
    assert row.batch is not None
    assert len(taken) == row.batch.segments
    for key in doomed:
        context.txn.delete(key)
    return taken
