"""Reads of a partition for other threads, from a snapshot: payload, counts, items, moves to send.

The functions find the rows in the generation that is in use (`storage.generations`). Every function
reads one committed state and changes nothing. The work of a call is bounded; pages say where to
continue. Items may change their lanes between two calls, but never their sequences: pages by
sequence are stable.
"""

from itertools import islice

import msgspec

from querator.model.calls import (
    BreakerCounts,
    BrowsedItem,
    DeadOrigin,
    ExecutionTotals,
    ItemRun,
    LimitCounts,
    LoadedItems,
    PartitionCounts,
)
from querator.model.commands import Attributes, LetterFilter, PartitionEffects
from querator.model.ids import parse_stream_request_id
from querator.partition import masks, rows
from querator.partition.breaker import counts
from querator.partition.flow_queries import flow_heads
from querator.partition.held_keys import waited_for
from querator.partition.lease import client_hash
from querator.partition.outbox import (
    OutboxBatch,
    outbox_batch,
    outbox_targets,
    texts_bytes,
)
from querator.partition.overlays import load_overlay, origin_of, overlays_of
from querator.partition.payloads import ReadPart, find_block, read_payload
from querator.partition.readers import oldest_batch_at
from querator.partition.rows import (
    Block,
    PartitionState,
    RowState,
    Segment,
    decode_lease,
    decode_overlay,
    decode_segment,
    decode_settings,
    decode_state,
)
from querator.partition.segments import find_item, lane_heads, load_block
from querator.partition.txn_steps import oldest_stage_ms
from querator.storage import attachments, generations
from querator.storage.environment import ReadTransaction
from querator.storage.tables import (
    BLOCKS,
    CLIENT_LEASES,
    LEASES,
    OVERLAYS,
    SEGMENTS,
    SETTINGS,
    STATE,
)

__all__ = [
    "ItemPage", "LeasePage", "OutboxBatch", "applied_index", "dead_letters", "held", "load_segment",
    "outbox_batch", "outbox_targets", "peek", "settings_version", "stats", "stream_leases",
]  # fmt: skip

SCAN_ROWS_MAX = 4_000
"""Maximum number of rows that one page reads. A page may be short or empty and still name where to
continue.
"""
LANES_READ_MAX = 256
"""Maximum number of lanes whose heads are read for the oldest ready item."""


class ItemPage(msgspec.Struct, frozen=True):
    """A page of items. `after_seq` is where the next page starts; 0 means that there is none."""

    items: tuple[BrowsedItem, ...]
    after_seq: int


class LeasePage(msgspec.Struct, frozen=True):
    """A page of leases. `after_lease` is where the next page starts; 0 means that there is none."""

    leases: tuple[int, ...]
    after_lease: int


def load_segment(
    txn: ReadTransaction,
    group: int,
    first_seq: int,
    mask: int,
    *,
    read: ReadPart = attachments.read,
) -> LoadedItems | None:
    """The leased items as consumers get them. None if their block is gone.

    `txn` is a view of the generation in use, because this is called for many segments. `read` may
    cache: an attachment to which a block refers never changes. Raises BlockDamaged when the stored
    bytes are damaged.
    """
    block = find_block(txn, group, first_seq)
    if block is None:
        return None
    stored = read_payload(txn, group, first_seq, block, read=read)
    count = mask.bit_count()
    start = masks.low(mask)
    one_run = mask >> start == masks.full(count)
    return LoadedItems(
        first_seq=first_seq + start if one_run else first_seq,
        ordinals=() if one_run else tuple(masks.ordinals(mask)),
        count=count,
        produced_at_ms=block.produced_at_ms,
        overlays=overlays_of(txn, group, first_seq, mask, with_checkpoints=True),
        items=cut(block, stored, mask),
    )


def stats(txn: ReadTransaction, group: int) -> PartitionCounts:
    txn = generations.view(txn, group)
    raw = STATE.get(txn, group)
    state = PartitionState() if raw is None else decode_state(raw)
    oldest_ms = _oldest_ready_ms(txn, group, state)
    settings = SETTINGS.get(txn, group)
    return PartitionCounts(
        partition=0 if settings is None else decode_settings(settings).settings.partition,
        applied_index=state.index,
        ready=state.ready,
        leased=state.leased,
        scheduled=state.scheduled,
        moving=state.moving,
        leases=state.leases,
        bytes=state.bytes,
        produced=state.produced,
        completed=state.completed,
        retried=state.retried,
        released=state.released,
        lapsed=state.lapsed,
        dead=state.dead,
        dropped=state.dropped,
        delivered=state.delivered,
        duplicates=state.duplicates,
        moved_in=state.moved_in,
        moved_out=state.moved_out,
        expired=state.expired,
        reserved=state.reserved,
        acknowledged=state.acknowledged,
        oldest_ready_at_ms=oldest_ms,
        oldest_batch_at_ms=oldest_batch_at(txn, group) if state.reserved else 0,
        staged=state.staged,
        staged_bytes=state.staged_bytes,
        stages=state.stages,
        oldest_stage_at_ms=oldest_stage_ms(txn, group),
        oldest_lease_at_ms=_oldest_lease_ms(txn, group) if state.leases else 0,
        held=state.held,
        waits_for=_waits_for(txn, group),
        first_seq=_first_seq(txn, group),
        head_seq=state.next_seq - 1,
        state_ms=state.now_ms,
        given_up=state.given_up,
        cancelled=state.cancelled,
        replaced=state.replaced,
        checkpoint_bytes=state.checkpoint_bytes,
        results=state.results,
        result_bytes=state.result_bytes,
        completed_on_delivery=state.completed_on_delivery,
        breaker=_breaker(state, settings),
        limits=_limits(state),
        executions=_executions(state),
    )


def _executions(state: PartitionState) -> ExecutionTotals | None:
    counts = state.executions
    if counts is None:
        return None
    waiting = counts.parked + counts.stuck + counts.pinned + counts.closed
    return ExecutionTotals(
        runnable=counts.executions - waiting,
        parked=counts.parked,
        stuck=counts.stuck,
        pinned=counts.pinned,
        closed=counts.closed,
    )


def _breaker(state: PartitionState, raw: bytes | None) -> BreakerCounts | None:
    """`raw`: the row of the settings."""
    row = state.breaker
    if row is None or raw is None:
        return None
    settings = decode_settings(raw).settings.breaker
    assert settings is not None, "a partition with a breaker has settings of it"
    outcomes, failures = counts(row, settings, state.now_ms)
    return BreakerCounts(
        state=row.state,
        since_ms=row.since_ms,
        until_ms=row.until_ms,
        outcomes=outcomes,
        failures=failures,
        probes_passed=row.passed,
        probing=row.probe > 0,
    )


def _limits(state: PartitionState) -> LimitCounts | None:
    row = state.limits
    if row is None:
        return None
    tokens = row.tokens(state.now_ms) if row.items else 0
    return LimitCounts(tokens, row.burst, state.refill_ms, row.leased_max)


def _oldest_ready_ms(txn: ReadTransaction, group: int, state: PartitionState) -> int:
    """When the oldest of the items at the heads of the lanes was produced; 0: none is ready. Of
    many priorities, the first LANES_READ_MAX in the order of leasing are considered; of many groups
    or keys the first ones that were made.
    """
    heads = flow_heads(txn, group) if state.next_flow else lane_heads(txn, group, state)
    blocks = {int.from_bytes(one, "big") for one in islice(heads, LANES_READ_MAX)}
    return min((load_block(txn, group, block).produced_at_ms for block in blocks), default=0)


def _oldest_lease_ms(txn: ReadTransaction, group: int) -> int:
    """When the oldest live lease was granted. Leases are numbered in the order of their grants."""
    row = next(iter(LEASES.rows(txn, group)))[1]
    return decode_lease(row).leased_ms


def held(txn: ReadTransaction, group: int) -> tuple[int, tuple[int, ...]]:
    """The number of held items, and the partitions for which they are held."""
    txn = generations.view(txn, group)
    raw = STATE.get(txn, group)
    return 0 if raw is None else decode_state(raw).held, _waits_for(txn, group)


def _waits_for(txn: ReadTransaction, group: int) -> tuple[int, ...]:
    """The partitions for which items are held, in a view of the generation in use."""
    settings = SETTINGS.get(txn, group)
    return () if settings is None else waited_for(decode_settings(settings))


def _first_seq(txn: ReadTransaction, group: int) -> int:
    for key in txn.keys(*SEGMENTS.bounds(group)):
        return int.from_bytes(key[-9:-1], "big") + key[-1]
    return 0


def effects(txn: ReadTransaction, group: int) -> PartitionEffects:
    """The effects that the partition would report now, in a view of the generation in use."""
    raw = STATE.get(txn, group)
    return (PartitionState() if raw is None else decode_state(raw)).effects


def leasable_beside(txn: ReadTransaction, group: int, aside: int) -> int:
    """How many items can be leased while this number of ready items is set aside, in a view of the
    generation in use. In a fair or keyed queue, other items may take the places of these: at least
    one can perhaps be leased if any ready item is not set aside.
    """
    raw = STATE.get(txn, group)
    state = PartitionState() if raw is None else decode_state(raw)
    if state.lease_paused:
        return 0
    ready = max(0, state.ready - aside)
    if state.next_flow:
        ready = max(state.leasable - aside, min(1, state.leasable, ready))
    if state.breaker is not None:
        ready = state.breaker.leasable(ready)
    if state.limits is not None:
        ready = state.limits.leasable(ready, state.leased, state.now_ms)
    return ready


def applied_index(txn: ReadTransaction, group: int) -> int:
    """Index of the last entry that the partition's tables include. 0 means none."""
    raw = STATE.get(generations.view(txn, group), group)
    return 0 if raw is None else decode_state(raw).index


def state_time(txn: ReadTransaction, group: int) -> int:
    """The state time: that of the last entry applied, in milliseconds since the Unix epoch. `txn`
    views the generation in use.
    """
    raw = STATE.get(txn, group)
    return 0 if raw is None else decode_state(raw).now_ms


def settings_version(txn: ReadTransaction, group: int) -> int:
    """Version of the settings in force. 0 means that the partition is not configured."""
    raw = SETTINGS.get(generations.view(txn, group), group)
    return 0 if raw is None else decode_settings(raw).version


def peek(
    txn: ReadTransaction,
    group: int,
    state: RowState | None,
    *,
    after_seq: int,
    limit: int,
    bytes_max: int,
) -> ItemPage:
    """Items by sequence, of one state or of all. A page has at most `limit` items and stops at
    `bytes_max`, but has at least one item.
    """
    txn = generations.view(txn, group)
    found: list[tuple[int, int, Segment]] = []
    scanned = last = 0
    block_seq = block_at(txn, group, after_seq)
    _, stop = SEGMENTS.bounds(group)
    resume = 0
    for key, row in txn.scan(SEGMENTS.key(group, block_seq, 0), stop):
        first_seq = int.from_bytes(key[-9:-1], "big")
        if first_seq != last and (scanned >= SCAN_ROWS_MAX or len(found) >= limit):
            resume = first_seq - 1
            break
        last = first_seq
        scanned += 1
        segment = decode_segment(row)
        if state is None or segment.state == state:
            found += [
                (first_seq + ordinal, first_seq, segment)
                for ordinal in masks.ordinals(segment.mask)
                if first_seq + ordinal > after_seq
            ]
    found.sort(key=lambda item: item[0])
    page = collect(txn, group, found, limit=limit, bytes_max=bytes_max)
    if len(page) < len(found):
        return ItemPage(page, page[-1].seq if page else after_seq)
    return ItemPage(page, resume)


def dead_letters(
    txn: ReadTransaction,
    group: int,
    origin_queue: str | None,
    *,
    after_seq: int,
    limit: int,
    bytes_max: int,
) -> ItemPage:
    """Dead letters by sequence, of one origin queue or of all."""
    txn = generations.view(txn, group)
    found: list[tuple[int, int, Segment]] = []
    scanned = 0
    at = after_seq
    more = False
    _, stop = OVERLAYS.bounds(group)
    for key, row in txn.scan(OVERLAYS.key(group, after_seq + 1), stop):
        if scanned >= SCAN_ROWS_MAX or len(found) >= limit:
            more = True
            break
        scanned += 1
        at = int.from_bytes(key[-8:], "big")
        letter = decode_overlay(row).letter
        if letter is None or origin_queue not in (None, letter.origin_queue):
            continue
        place = find_item(txn, group, at)
        if place is not None and place[1].state != RowState.MOVING:
            found.append((at, *place))
    page = collect(txn, group, found, limit=limit, bytes_max=bytes_max)
    if len(page) < len(found):
        return ItemPage(page, page[-1].seq)
    return ItemPage(page, at if more else 0)


def count_letters(
    txn: ReadTransaction, group: int, origin_queue: str, chosen: LetterFilter, *, after_seq: int
) -> tuple[int, int]:
    """The number of letters that a redrive of all chosen ones would redrive, and the sequence after
    which to continue; 0: at the end.
    """
    txn = generations.view(txn, group)
    found = scanned = 0
    at = after_seq
    _, stop = OVERLAYS.bounds(group)
    for key, row in txn.scan(OVERLAYS.key(group, after_seq + 1), stop):
        if scanned >= SCAN_ROWS_MAX:
            return found, at
        scanned += 1
        at = int.from_bytes(key[-8:], "big")
        letter = decode_overlay(row).letter
        if letter is None or letter.origin_queue != origin_queue or not chosen.chooses(letter):
            continue
        place = find_item(txn, group, at)
        found += place is not None and place[1].state == RowState.READY
    return found, 0


def stream_leases(
    txn: ReadTransaction,
    group: int,
    client_id: str,
    consumer_id: str,
    *,
    before: int,
    after_lease: int,
    limit: int,
) -> LeasePage:
    """Live leases that were granted to streams of a consumer with numbers less than `before`, by
    their request ids (`model.ids.stream_request_id`). A page has at most `limit` leases.
    """
    txn = generations.view(txn, group)
    found: list[int] = []
    scanned = last = 0
    client = client_hash(client_id)
    _, stop = CLIENT_LEASES.bounds(group, client)
    for key, _ in txn.scan(CLIENT_LEASES.key(group, client, after_lease + 1), stop):
        if scanned >= SCAN_ROWS_MAX or len(found) >= limit:
            return LeasePage(tuple(found), last)
        scanned += 1
        last = int.from_bytes(key[-8:], "big")
        row = LEASES.get(txn, group, last)
        assert row is not None, "a lease of a client lives"
        lease = decode_lease(row)
        stream = parse_stream_request_id(lease.request_id)
        if lease.client_id == client_id and stream is not None:
            consumer, number = stream
            if consumer == consumer_id and number < before:
                found.append(last)
    return LeasePage(tuple(found), 0)


def block_at(txn: ReadTransaction, group: int, seq: int) -> int:
    """The block that may contain a sequence: the last one that begins at or before it."""
    start, _ = BLOCKS.bounds(group)
    for key, _ in txn.scan(start, BLOCKS.key(group, seq) + b"\0", reverse=True):
        return int.from_bytes(key[-8:], "big")
    return 0


def collect(
    txn: ReadTransaction,
    group: int,
    found: list[tuple[int, int, Segment]],
    *,
    limit: int,
    bytes_max: int,
) -> tuple[BrowsedItem, ...]:
    """Items given as (sequence, block, segment), in this order, up to both bounds but at least one.
    Raises BlockDamaged.
    """
    page: list[BrowsedItem] = []
    block: Block | None = None
    stored = b""
    held = -1
    size = 0
    leases: dict[int, rows.LeaseRow] = {}
    for seq, first_seq, segment in found:
        if len(page) == limit:
            break
        if block is None or held != first_seq:
            block = load_block(txn, group, first_seq)
            stored, held = read_payload(txn, group, first_seq, block), first_seq
        ordinal = seq - first_seq
        state = RowState(segment.state)
        leased = state is RowState.LEASED
        if leased and segment.locator not in leases:
            leases[segment.locator] = _lease_row(txn, group, segment.locator)
        overlay = load_overlay(txn, group, seq)
        listed = BrowsedItem(
            seq=seq,
            state=state,
            attempt=segment.attempt,
            produced_at_ms=block.produced_at_ms,
            due_at_ms=segment.locator if state is RowState.SCHEDULED else 0,
            lease=segment.locator if leased else 0,
            dead_letter=origin_of(overlay),
            errors=overlay.errors,
            item=stored[block.offset(ordinal) : block.offset(ordinal + 1)],
            priority=segment.priority,
            client_id=leases[segment.locator].client_id if leased else "",
            deadline_ms=leases[segment.locator].deadline_ms if leased else 0,
            leased_at_ms=leases[segment.locator].leased_ms if leased else 0,
            attributes=overlay.attributes,
            checkpoint_bytes=0 if overlay.checkpoint is None else overlay.checkpoint.size,
        )
        size += reply_bytes(listed)
        if page and size > bytes_max:
            break
        page.append(listed)
    return tuple(page)


def _lease_row(txn: ReadTransaction, group: int, lease: int) -> rows.LeaseRow:
    row = LEASES.get(txn, group, lease)
    assert row is not None
    return decode_lease(row)


def reply_bytes(item: BrowsedItem) -> int:
    """Bytes of an item, and of its errors and attributes, which are most of it in a reply."""
    return len(item.item) + later_bytes(item.errors, item.dead_letter, item.attributes)


def later_bytes(
    errors: tuple[str, ...], letter: DeadOrigin | None, attributes: Attributes | None
) -> int:
    """Bytes of the texts that an item got after it was produced."""
    if letter is not None:
        errors = (*errors, *letter.errors)
    return texts_bytes(errors, attributes)


def run_bytes(run: ItemRun) -> int:
    """Bytes of items, and of the texts that they got after they were produced."""
    return len(run.items) + sum(
        later_bytes(later.errors, later.dead_letter, later.attributes) for later in run.overlays
    )


def cut(block: Block, stored: bytes, mask: int) -> bytes:
    runs = list(masks.runs(mask))
    if len(runs) == 1:
        start, count = runs[0]
        begin, end = block.offset(start), block.offset(start + count)
        return stored if end - begin == len(stored) else stored[begin:end]
    return b"".join(
        [stored[block.offset(start) : block.offset(start + count)] for start, count in runs]
    )
