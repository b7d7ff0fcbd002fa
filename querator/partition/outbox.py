"""Batches of the outbox, for the component that carries moves to other partitions.

The carrier takes a batch, proposes a Move to the target and, when the Move is applied there, a
MoveDone here. It may stop at any point: the batch is read again, and the target skips the moves
that it knows.
"""

from struct import pack

import msgspec

from querator.model.commands import Attributes, MovedItem, PartitionSettings
from querator.model.limits import MOVE_BATCH_BYTES_MAX, MOVE_BATCH_ITEMS_MAX
from querator.partition import masks
from querator.partition.overlays import load_overlay
from querator.partition.payloads import BlockDamaged, read_checkpoint, read_payload
from querator.partition.rows import (
    Block,
    DeadCause,
    FollowUps,
    OutboxRow,
    Overlay,
    OwnTimes,
    decode_outbox,
    decode_settings,
    decode_target,
)
from querator.partition.segments import load_block
from querator.storage import generations
from querator.storage.environment import ReadTransaction
from querator.storage.tables import OUTBOX, OUTBOX_TARGETS, SETTINGS


class OutboxBatch(msgspec.Struct, frozen=True):
    """The fields of a Move command to `target_group`, and its attachment: the items, and after them
    the data of `checkpoints`.
    """

    target_group: int
    first_move: int
    items: tuple[MovedItem, ...]
    lengths: bytes
    attachment: bytes
    checkpoints: tuple[tuple[int, int], ...] = ()
    since: int = 0


def outbox_targets(txn: ReadTransaction, group: int) -> tuple[int, ...]:
    """The groups for which there are moves to send, in ascending order. Costs one seek for each."""
    txn = generations.view(txn, group)
    targets = []
    start, stop = OUTBOX.bounds(group)
    while (key := next((key for key, _ in txn.scan(start, stop)), None)) is not None:
        target = OUTBOX.parts(key)[0]
        assert isinstance(target, int)
        targets.append(target)
        _, start = OUTBOX.bounds(group, target)
    return tuple(targets)


def outbox_batch(
    txn: ReadTransaction,
    group: int,
    target_group: int | None = None,
    *,
    items_max: int = MOVE_BATCH_ITEMS_MAX,
) -> OutboxBatch | None:
    """The next moves to a target (None: to the first target that has some). Returns None if there
    are none.

    A batch has at most `items_max` items and MOVE_BATCH_BYTES_MAX bytes, but at least one item. It
    ends before a block that is damaged. Raises BlockDamaged when that is the first block.
    """
    txn = generations.view(txn, group)
    raw = SETTINGS.get(txn, group)
    if raw is None:
        return None
    settings = decode_settings(raw).settings
    if target_group is None:
        targets = outbox_targets(txn, group)
        if not targets:
            return None
        target_group = targets[0]
    gathered = _Gathered()
    first_move = 0
    for key, value in OUTBOX.rows(txn, group, target_group):
        row = decode_outbox(value)
        first_move = first_move or int.from_bytes(key[-8:], "big")
        wanted = items_max - len(gathered.items)
        if not _gather(txn, group, settings, row, gathered=gathered, wanted=wanted):
            break
        if len(gathered.items) >= items_max:
            break
    if not gathered.items:
        return None
    known = OUTBOX_TARGETS.get(txn, group, target_group)
    assert known is not None, "moves are numbered by their target"
    return gathered.batch(target_group, first_move, decode_target(known).since)


class _Gathered:
    """The content of a batch while it grows."""

    __slots__ = ("_data", "_named", "_pieces", "_size", "items")

    def __init__(self) -> None:
        self.items: list[MovedItem] = []
        self._pieces: list[bytes] = []
        self._data: list[bytes] = []
        self._named: list[tuple[int, int]] = []
        self._size = 0

    def has_room(self, more: int) -> bool:
        return not self.items or self._size + more <= MOVE_BATCH_BYTES_MAX

    def add(self, item: MovedItem, piece: bytes, checkpoint: bytes) -> None:
        if checkpoint:
            self._named.append((len(self.items), len(checkpoint)))
            self._data.append(checkpoint)
        self.items.append(item)
        self._pieces.append(piece)
        self._size += len(piece) + len(checkpoint) + texts_bytes(item.errors, item.attributes)

    def batch(self, target_group: int, first_move: int, since: int) -> OutboxBatch:
        return OutboxBatch(
            target_group=target_group,
            first_move=first_move,
            items=tuple(self.items),
            lengths=pack(f"<{len(self._pieces)}I", *map(len, self._pieces)),
            attachment=b"".join(self._pieces + self._data),
            checkpoints=tuple(self._named),
            since=since,
        )


def _gather(
    txn: ReadTransaction,
    group: int,
    settings: PartitionSettings,
    row: OutboxRow,
    gathered: _Gathered,
    wanted: int,
) -> bool:
    """Adds the first items of a row. Returns whether there is space for the items of the next row.
    Raises BlockDamaged if the first item of the batch is damaged.
    """
    first_seq = row.first_seq
    block = load_block(txn, group, first_seq)
    mask = masks.first(masks.from_bytes(row.mask), wanted)
    void = row.reason == DeadCause.VOID
    try:
        stored = b"" if void else read_payload(txn, group, first_seq, block)
        for ordinal in masks.ordinals(mask):
            data = b"" if void else stored[block.offset(ordinal) : block.offset(ordinal + 1)]
            overlay = load_overlay(txn, group, first_seq + ordinal)
            saved = None if void else overlay.checkpoint
            if not gathered.has_room(len(data) + (0 if saved is None else saved.size)):
                return False
            checkpoint = b""
            if saved is not None:
                checkpoint = read_checkpoint(txn, group, first_seq, saved)
            moved = _moved_item(
                row, block, ordinal, overlay,
                queue=settings.queue, partition=settings.partition, group=group,
            )  # fmt: skip
            gathered.add(moved, data, checkpoint)
    except BlockDamaged:
        if not gathered.items:
            raise
        return False
    return True


def _moved_item(
    row: OutboxRow,
    block: Block,
    ordinal: int,
    overlay: Overlay,
    *,
    queue: str,
    partition: int,
    group: int,
) -> MovedItem:
    if row.reason == DeadCause.NONE:
        letter = overlay.letter
        assert letter is not None, "only dead letters are redriven"
        return MovedItem(
            origin_queue=letter.origin_queue,
            origin_partition=letter.origin_partition,
            origin_group=letter.origin_group,
            origin_seq=letter.origin_seq,
            attempts=0,
            reason=DeadCause.NONE,
            errors=(),
            produced_at_ms=letter.produced_at_ms,
            died_at_ms=letter.died_at_ms,
            expire_timeout_ms=letter.expire_timeout_ms,
            lease_timeout_ms=letter.lease_timeout_ms,
            priority=row.priority,
            attributes=overlay.attributes,
            max_attempts=letter.max_attempts,
            retry=letter.retry,
        )
    own = block.own_times(ordinal)
    follow_ups = row.follow_ups
    if follow_ups is not None:
        return _moved_follow_up(
            row, block, ordinal, own, follow_ups,
            attributes=overlay.attributes, queue=queue, partition=partition, group=group,
        )  # fmt: skip
    return MovedItem(
        origin_queue=queue,
        origin_partition=partition,
        origin_group=group,
        origin_seq=row.first_seq + ordinal,
        attempts=row.attempt,
        reason=row.reason,
        errors=overlay.errors,
        produced_at_ms=block.produced_at_ms,
        died_at_ms=row.died_at_ms,
        expire_timeout_ms=own.expire_timeout_ms,
        lease_timeout_ms=own.lease_timeout_ms,
        priority=row.priority,
        attributes=overlay.attributes,
        max_attempts=own.max_attempts,
        retry=own.retry,
        expire_at_ms=own.expire_at_ms if row.reason == DeadCause.HOME else 0,
    )


def _moved_follow_up(
    row: OutboxRow,
    block: Block,
    ordinal: int,
    own: OwnTimes,
    follow_ups: FollowUps,
    *,
    attributes: Attributes | None,
    queue: str,
    partition: int,
    group: int,
) -> MovedItem:
    """A follow-up on its way, or one that goes to the dead queue because its queue is gone: its
    origin is then where it should have gone.
    """
    lost = row.reason == DeadCause.UNDELIVERED
    errors: tuple[str, ...] = ()
    if lost:
        errors = (f"queue {follow_ups.queue} was deleted before this follow-up of {queue} arrived",)
    fields = next((one for one in follow_ups.fields if one.ordinal == ordinal), None)
    return MovedItem(
        origin_queue=follow_ups.queue if lost else queue,
        origin_partition=follow_ups.partition if lost else partition,
        origin_group=group,
        origin_seq=row.first_seq + ordinal,
        attempts=0,
        reason=row.reason,
        errors=errors,
        produced_at_ms=block.produced_at_ms,
        died_at_ms=row.died_at_ms if lost else 0,
        expire_timeout_ms=own.expire_timeout_ms,
        lease_timeout_ms=own.lease_timeout_ms,
        priority=row.priority,
        attributes=attributes,
        max_attempts=own.max_attempts,
        retry=own.retry,
        follow_up=None if lost else fields,
    )


def texts_bytes(errors: tuple[str, ...], attributes: Attributes | None) -> int:
    """Bytes of the texts that an item got after it was produced."""
    size = sum(len(text.encode()) for text in errors)
    return size + sum(len(name.encode()) + len(value.encode()) for name, value in attributes or ())
