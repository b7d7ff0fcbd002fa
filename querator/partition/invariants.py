"""The invariants of a partition's tables, checked by a full scan.

`check` returns each violation as a sentence. No violation means that the tables agree with one
another. It runs after every step of the tests, in the simulator, and as `querator verify`.

Longer than 500 lines: one invariant a function, and a reader looks for the one that is missing.
"""

from collections.abc import Iterator

from querator.model.lease_limits import LeaseLimits
from querator.model.limits import BLOCK_ITEMS_MAX, BREAKER_BUCKETS
from querator.model.queues import BreakerState
from querator.partition import masks
from querator.partition.departed import check_departed
from querator.partition.execution_invariants import check_executions
from querator.partition.feed_invariants import check_feed
from querator.partition.flow_invariants import check_flows
from querator.partition.held_keys import is_waiting
from querator.partition.lease import client_hash, request_hash
from querator.partition.readers import reader_hash
from querator.partition.recurrence_invariants import check_recurrences
from querator.partition.result_invariants import check_results
from querator.partition.rows import (
    Block,
    DeadCause,
    LeaseRow,
    PartitionState,
    RowState,
    Segment,
    decode_block,
    decode_dedup,
    decode_lease,
    decode_outbox,
    decode_overlay,
    decode_producer,
    decode_reader,
    decode_reserved,
    decode_segment,
    decode_settings,
    decode_state,
    decode_target,
    numbers_of,
)
from querator.partition.segments import IN_PLACE, lane_of
from querator.partition.staging_invariants import check_staging
from querator.storage import attachments
from querator.storage.environment import ReadTransaction, StorageCorrupt
from querator.storage.keys import Table
from querator.storage.tables import (
    BLOCKS,
    CLIENT_LEASES,
    DEADLINES,
    DEDUP_AWAY,
    DEDUP_ITEMS,
    DEDUP_KEYS,
    DEDUP_LASTING,
    DEDUP_ORDER,
    ENDED,
    ENDED_ORDER,
    EVENTS,
    EXECUTIONS,
    EXPIRIES,
    FLOWS,
    HELD,
    LEASE_REQUESTS,
    LEASES,
    LIVING,
    OUTBOX,
    OUTBOX_TARGETS,
    OVERLAYS,
    PRODUCER_CHECKS,
    PRODUCER_OUTCOMES,
    PRODUCERS,
    READERS,
    READY,
    RECURRENCES,
    RESERVED,
    RESULTS,
    SCHEDULED,
    SEGMENTS,
    SETTINGS,
    STAGES,
    STATE,
    TXNS,
)

Segments = dict[tuple[int, int], Segment]


def check(txn: ReadTransaction, group: int, *, checksums: bool = True) -> list[str]:
    """All violations, as sentences. Memory grows with the blocks and segments of the backlog.
    `checksums` False: leaves damaged payloads out, for callers that read all attachments.
    """
    raw = STATE.get(txn, group)
    if raw is None:
        rows = [table.name for table in _TABLES if any(True for _ in table.rows(txn, group))]
        return [f"there are {name} and no state" for name in rows]
    state = decode_state(raw)
    blocks = {key[0]: decode_block(row) for key, row in _rows(BLOCKS, txn, group)}
    segments: Segments = {
        (key[0], key[1]): decode_segment(row) for key, row in _rows(SEGMENTS, txn, group)
    }
    return [
        *_blocks(txn, group, state, blocks, segments),
        *_payloads(txn, group, blocks, checksums=checksums),
        *_indexes(txn, group, segments),
        *_leases(txn, group, state, segments),
        *_outbox(txn, group, state, segments),
        *_readers(txn, group, state, segments),
        *_counters(state, blocks, segments),
        *_held(txn, group, state, segments),
        *_overlays(txn, group, state, segments),
        *_checkpoints(txn, group, state, checksums=checksums),
        *check_results(txn, group, state, checksums=checksums),
        *check_feed(txn, group, state),
        *_dedup_keys(txn, group, state, segments),
        *_memories(txn, group, state),
        *_heads(txn, group, state),
        *_breaker(txn, group, state),
        *_limits(txn, group, state),
        *check_staging(txn, group, state),
        *check_departed(txn, group),
        *check_flows(txn, group, state, segments),
        *check_recurrences(txn, group, state),
        *check_executions(
            txn,
            group,
            state,
            {
                first + one
                for (first, _), segment in segments.items()
                if segment.state != RowState.MOVING
                for one in masks.ordinals(segment.mask)
            }
            if state.executions is not None
            else set(),
            checksums=checksums,
        ),
    ]


_TABLES = (
    BLOCKS, SEGMENTS, READY, FLOWS, HELD, SCHEDULED, LEASES, OUTBOX, OVERLAYS, READERS, STAGES,
    TXNS, RECURRENCES, RESULTS, EXECUTIONS, EVENTS,
)  # fmt: skip


def _rows(table: Table, txn: ReadTransaction, group: int) -> list[tuple[tuple[int, ...], bytes]]:
    """Rows of a table whose key has integers only."""
    return [
        (tuple(part for part in table.parts(key) if isinstance(part, int)), row)
        for key, row in table.rows(txn, group)
    ]


def _blocks(
    txn: ReadTransaction,
    group: int,
    state: PartitionState,
    blocks: dict[int, Block],
    segments: Segments,
) -> list[str]:
    wrong: list[str] = []
    covered: dict[int, int] = {}
    for (first_seq, slot), segment in segments.items():
        name = f"segment {first_seq}+{slot}"
        if not segment.mask or masks.low(segment.mask) != slot:
            wrong.append(f"{name} is not keyed by its lowest ordinal")
        if covered.get(first_seq, 0) & segment.mask:
            wrong.append(f"{name} shares items with another segment")
        covered[first_seq] = covered.get(first_seq, 0) | segment.mask
        block = blocks.get(first_seq)
        if block is None:
            wrong.append(f"{name} has no block")
        elif segment.mask >> block.count:
            wrong.append(f"{name} reaches beyond its block")
    living = {key[0]: masks.from_bytes(row) for key, row in _rows(LIVING, txn, group)}
    wrong += [
        f"block {seq} is gone, its living items are not" for seq in living if seq not in blocks
    ]
    end = 0
    for first_seq, block in blocks.items():
        every = masks.full(block.count)
        there = covered.get(first_seq, 0)
        if living.get(first_seq, every) != there or (first_seq in living) != (there != every):
            wrong.append(f"block {first_seq} does not know which of its items are there")
        if first_seq not in covered:
            wrong.append(f"block {first_seq} has no live item")
        if first_seq < end:
            wrong.append(f"block {first_seq} overlaps the one before")
        end = first_seq + block.count
        if not 0 < block.count <= BLOCK_ITEMS_MAX or len(block.offsets) != 4 * block.count + 4:
            wrong.append(f"block {first_seq} has a bad count or bad offsets")
    if end > state.next_seq:
        wrong.append(f"the next sequence {state.next_seq} is in use")
    expected = {
        (at_ms, first_seq) for first_seq, block in blocks.items() for at_ms in block.expiries()
    }
    found = {(key[0], key[1]) for key, _ in _rows(EXPIRIES, txn, group)}
    wrong += [
        f"expiry {at_ms} of block {seq} has no block" for at_ms, seq in sorted(found - expected)
    ]
    # A sweep deletes the row of an instant that has passed. Leased items are judged when they come
    # back.
    wrong += [
        f"block {seq} misses its expiry {at_ms}"
        for at_ms, seq in sorted(expected - found)
        if at_ms > state.now_ms and state.redating is None
    ]
    return wrong


def _payloads(
    txn: ReadTransaction, group: int, blocks: dict[int, Block], *, checksums: bool
) -> Iterator[str]:
    for first_seq, block in blocks.items():
        if not block.index:
            continue
        try:
            data = attachments.read(txn, group, block.index, block.part)
        except StorageCorrupt as error:
            if checksums:
                yield f"the payload of block {first_seq} is damaged: {error}"
            continue
        if data is None:
            yield f"block {first_seq} has no payload"
        elif block.offsets and len(data) != int.from_bytes(block.offsets[-4:], "little"):
            yield f"the payload of block {first_seq} has {len(data)} bytes, not as its offsets say"


def _indexes(txn: ReadTransaction, group: int, segments: Segments) -> list[str]:
    """Each segment is in exactly the index that its state demands."""
    wrong: list[str] = []
    ready: set[tuple[int, int]] = set()
    before: tuple[int, int, int, int] | None = None
    for (lane, position, slot), row in _rows(READY, txn, group):
        place = (int.from_bytes(row, "big"), slot)
        segment = segments.get(place)
        if segment is None or (segment.state, segment.position, segment.locator) != (
            RowState.READY, position, lane,
        ):  # fmt: skip
            wrong.append(f"ready position {position} of lane {lane} names no ready segment")
            continue
        ready.add(place)
        if lane != lane_of(segment.rank):
            wrong.append(f"lane {lane} has items of rank {segment.rank}")
        if (
            before is not None
            and before[:2] == (lane, position)
            and (before[2] != place[0] or before[3] > slot)
        ):
            wrong.append(f"segments interleave at ready position {position}")
        before = (lane, position, place[0], segment.mask.bit_length())
    scheduled: set[tuple[int, int]] = set()
    for (due_ms, first_seq, slot), _ in _rows(SCHEDULED, txn, group):
        segment = segments.get((first_seq, slot))
        if segment is None or (segment.state, segment.locator) != (RowState.SCHEDULED, due_ms):
            wrong.append(f"schedule {due_ms} names no scheduled segment")
            continue
        scheduled.add((first_seq, slot))
    for place, segment in segments.items():
        if segment.state == RowState.READY and not segment.flow and place not in ready:
            wrong.append(f"ready segment {place[0]}+{place[1]} is in no lane")
        if segment.state == RowState.SCHEDULED and place not in scheduled:
            wrong.append(f"scheduled segment {place[0]}+{place[1]} has no schedule")
    return wrong


def _leases(
    txn: ReadTransaction, group: int, state: PartitionState, segments: Segments
) -> list[str]:
    leases = {key[0]: decode_lease(row) for key, row in _rows(LEASES, txn, group)}
    ended = {key[0]: decode_lease(row) for key, row in _rows(ENDED, txn, group)}
    wrong = _lease_indexes(txn, group, leases, ended)
    held: set[tuple[int, int]] = set()
    for lease, row in leases.items():
        if lease >= state.next_lease:
            wrong.append(f"lease {lease} has a number that was not assigned yet")
        if row.leased_ms > row.since_ms:
            wrong.append(f"lease {lease} was extended before it was granted")
        if not any(items.held for items in row.items):
            wrong.append(f"lease {lease} holds nothing and has not ended")
        for items in row.items:
            mask = masks.from_bytes(items.held)
            settled = items.settled_in_all()
            lapsed = masks.from_bytes(items.granted) & ~(mask | settled)
            counted = sum(masks.from_bytes(one).bit_count() for _, one in items.settled)
            if mask & settled or lapsed or counted != settled.bit_count():
                wrong.append(f"the outcomes of lease {lease} do not add up")
            if mask:
                place = (items.first_seq, masks.low(mask))
                held.add(place)
                segment = segments.get(place)
                if segment is None or (segment.state, segment.locator, segment.mask) != (
                    RowState.LEASED, lease, mask,
                ):  # fmt: skip
                    wrong.append(
                        f"lease {lease} holds items of block {place[0]} that are not leased"
                    )
    wrong += [
        f"leased segment {place[0]}+{place[1]} is held by no lease"
        for place, segment in segments.items()
        if segment.state == RowState.LEASED and place not in held
    ]
    if state.leases != len(leases):
        wrong.append(f"leases counts {state.leases}; there are {len(leases)}")
    if state.ended != len(ended):
        wrong.append(f"ended counts {state.ended}; there are {len(ended)}")
    return wrong


def _lease_indexes(
    txn: ReadTransaction, group: int, leases: dict[int, LeaseRow], ended: dict[int, LeaseRow]
) -> list[str]:
    """Deadlines, clients, requests and the order of ended leases follow from the leases."""
    deadlines = {DEADLINES.parts(key) for key, _ in DEADLINES.rows(txn, group)}
    clients = {CLIENT_LEASES.parts(key) for key, _ in CLIENT_LEASES.rows(txn, group)}
    requests = {
        (LEASE_REQUESTS.parts(key)[0], lease)
        for key, row in LEASE_REQUESTS.rows(txn, group)
        for lease in numbers_of(row)
    }
    order = {ENDED_ORDER.parts(key) for key, _ in ENDED_ORDER.rows(txn, group)}
    remembered = [*leases.items(), *ended.items()]
    wrong: list[str] = []
    if deadlines != {(row.deadline_ms, lease) for lease, row in leases.items()}:
        wrong.append("leases and their deadlines disagree")
    if clients != {(client_hash(row.client_id), lease) for lease, row in leases.items()}:
        wrong.append("leases and their clients disagree")
    if requests != {
        (request_hash(row.client_id, row.request_id), lease)
        for lease, row in remembered
        if row.request_id
    }:
        wrong.append("leases and their requests disagree")
    if order != {(row.deadline_ms, lease) for lease, row in ended.items()}:
        wrong.append("ended leases and their order disagree")
    return wrong


def _outbox(
    txn: ReadTransaction, group: int, state: PartitionState, segments: Segments
) -> list[str]:
    wrong: list[str] = []
    listed: set[tuple[int, int]] = set()
    targets = {key[0]: decode_target(row) for key, row in _rows(OUTBOX_TARGETS, txn, group)}
    expected = {group_id: target.done + 1 for group_id, target in targets.items()}
    for (target_group, first_move), raw in _rows(OUTBOX, txn, group):
        row = decode_outbox(raw)
        mask = masks.from_bytes(row.mask)
        if expected.get(target_group) != first_move:
            wrong.append(f"moves to group {target_group} have a gap before {first_move}")
        expected[target_group] = first_move + mask.bit_count()
        place = (row.first_seq, masks.low(mask))
        listed.add(place)
        segment = segments.get(place)
        if segment is None or (segment.state, segment.locator, segment.mask) != (
            RowState.MOVING, target_group, mask,
        ):  # fmt: skip
            wrong.append(f"move {first_move} to group {target_group} names no moving items")
        if row.reason == DeadCause.FOLLOW_UP and row.follow_ups is None:
            wrong.append(f"move {first_move} to group {target_group} has lost its target")
    for target_group, target in targets.items():
        if expected[target_group] != target.next_move:
            wrong.append(f"moves to group {target_group} are missing before {target.next_move}")
    for place, segment in segments.items():
        if segment.state == RowState.MOVING and place not in listed:
            wrong.append(f"moving segment {place[0]}+{place[1]} is not in the outbox")
    return wrong


def _readers(
    txn: ReadTransaction, group: int, state: PartitionState, segments: Segments
) -> list[str]:
    """Each reserved segment is in one open batch, and each batch is what its reader says it is."""
    wrong: list[str] = []
    listed: set[tuple[int, int]] = set()
    batches: dict[int, list[int]] = {}
    for (number, index), raw in _rows(RESERVED, txn, group):
        row = decode_reserved(raw)
        mask = masks.from_bytes(row.mask)
        place = (row.first_seq, masks.low(mask))
        listed.add(place)
        batch = batches.setdefault(number, [0, 0])
        if batch[1] != index:
            wrong.append(f"the open batch of reader {number} has a gap before item {index}")
        batch[0] += 1
        batch[1] += mask.bit_count()
        segment = segments.get(place)
        if segment is None or (segment.state, segment.locator, segment.mask) != (
            RowState.RESERVED, number, mask,
        ):  # fmt: skip
            wrong.append(f"the open batch of reader {number} names items that are not reserved")
    wrong += [
        f"reserved segment {place[0]}+{place[1]} is in no batch"
        for place, segment in segments.items()
        if segment.state == RowState.RESERVED and place not in listed
    ]
    return wrong + _reader_rows(txn, group, state, batches)


def _reader_rows(
    txn: ReadTransaction, group: int, state: PartitionState, batches: dict[int, list[int]]
) -> list[str]:
    """`batches` are [segments, items] by the number of the reader."""
    wrong: list[str] = []
    readers = 0
    for key, raw in READERS.rows(txn, group):
        row = decode_reader(raw)
        readers += 1
        if READERS.parts(key)[0] != reader_hash(row.reader_id):
            wrong.append(f"reader {row.number} is not keyed by its id")
        if not 0 < row.number < state.next_reader:
            wrong.append(f"reader {row.number} has a number that was not assigned yet")
        counts = [0, 0] if row.batch is None else [row.batch.segments, row.batch.count]
        if batches.pop(row.number, [0, 0]) != counts:
            wrong.append(f"the open batch of reader {row.number} does not match its counts")
        open_seq = row.last_seq if row.batch is None else row.batch.seq
        if open_seq != row.last_seq or row.acked_seq > open_seq - (row.batch is not None):
            wrong.append(
                f"reader {row.number} has acknowledged a batch that is open or was not given out"
            )
        if row.dead_seq > row.last_seq or (row.batch is not None and row.dead_seq >= open_seq):
            wrong.append(
                f"reader {row.number} has given up a batch that is open or was not given out"
            )
    if batches:
        wrong.append("there are batches of unknown readers")
    if state.readers != readers:
        wrong.append(f"readers counts {state.readers}; there are {readers}")
    return wrong


def _counters(state: PartitionState, blocks: dict[int, Block], segments: Segments) -> list[str]:
    counts = dict.fromkeys(RowState, 0)
    size = urgent = 0
    for (first_seq, _), segment in segments.items():
        counts[RowState(segment.state)] += segment.mask.bit_count()
        if segment.state == RowState.READY and segment.rank < 0:
            urgent += segment.mask.bit_count()
        block = blocks.get(first_seq)
        if block is not None and segment.mask and not segment.mask >> block.count:
            size += block.size(segment.mask)
    wrong = [
        f"{name} counts {count}; a scan finds {found}"
        for name, count, found in (
            ("ready", state.ready, counts[RowState.READY]),
            ("leased", state.leased, counts[RowState.LEASED]),
            ("scheduled", state.scheduled, counts[RowState.SCHEDULED]),
            ("moving", state.moving, counts[RowState.MOVING]),
            ("reserved", state.reserved, counts[RowState.RESERVED]),
            ("held", state.held, counts[RowState.HELD]),
            ("urgent", state.urgent, urgent),
            ("bytes", state.bytes, size),
        )
        if count != found
    ]
    if state.produced + state.moved_in != (
        state.items
        + state.completed
        + state.acknowledged
        + state.dropped
        + state.moved_out
        + state.cancelled
        + state.replaced
    ):
        wrong.append("items came in that neither left nor are there")
    if state.delivered != (
        state.completed + state.retried + state.released + state.lapsed + state.leased
    ):
        wrong.append("items were leased, but their leases neither ended nor live")
    if state.completed_on_delivery > state.completed:
        wrong.append("more items were completed on delivery than were completed")
    return wrong


def _held(txn: ReadTransaction, group: int, state: PartitionState, segments: Segments) -> list[str]:
    """Every held item waits for a partition, and `ahead` counts all items that others wait for."""
    wrong: list[str] = []
    listed: set[tuple[int, int]] = set()
    raw = SETTINGS.get(txn, group)
    share = None if raw is None else decode_settings(raw)
    for (lane, position, slot), row in _rows(HELD, txn, group):
        place = (int.from_bytes(row, "big"), slot)
        segment = segments.get(place)
        if segment is None or (segment.state, segment.position, segment.locator) != (
            RowState.HELD, position, lane,
        ):  # fmt: skip
            wrong.append(f"held position {position} of lane {lane} names no held segment")
            continue
        listed.add(place)
        if share is None or not is_waiting(share, lane):
            wrong.append(f"lane {lane} holds items and waits for no partition")
    wrong += [
        f"held segment {place[0]}+{place[1]} is in no lane"
        for place, segment in segments.items()
        if segment.state == RowState.HELD and place not in listed
    ]
    changes = () if share is None else share.changes
    ahead = [
        sum(
            segment.mask.bit_count()
            for segment in segments.values()
            if (segment.state in IN_PLACE and segment.position < change.boundary)
            or 0 < segment.place < change.boundary
        )
        for change in changes
    ]
    if state.ahead != ahead:
        wrong.append(f"ahead of changes counts {state.ahead}; a scan finds {ahead}")
    return wrong


def _overlays(
    txn: ReadTransaction, group: int, state: PartitionState, segments: Segments
) -> list[str]:
    living: dict[int, int] = {}
    for (first_seq, _), segment in segments.items():
        living[first_seq] = living.get(first_seq, 0) | segment.mask
    seqs = {first + ordinal for first, mask in living.items() for ordinal in masks.ordinals(mask)}
    rows = _rows(OVERLAYS, txn, group)
    wrong = [f"overlay of item {key[0]}, which is gone" for key, _ in rows if key[0] not in seqs]
    if state.overlays != len(rows):
        wrong.append(f"overlays counts {state.overlays}; there are {len(rows)}")
    return wrong


def _checkpoints(
    txn: ReadTransaction, group: int, state: PartitionState, *, checksums: bool
) -> Iterator[str]:
    """Each checkpoint with data has an attachment of its size, which no other one has."""
    count = size = 0
    places: set[tuple[int, int]] = set()
    for key, row in _rows(OVERLAYS, txn, group):
        stored = decode_overlay(row).checkpoint
        if stored is None:
            continue
        count += 1
        size += stored.size
        if not stored.size:
            continue
        place = stored.index, stored.part
        if place in places:
            yield f"the checkpoint of item {key[0]} is that of another item, too"
        places.add(place)
        try:
            data = attachments.read(txn, group, *place)
        except StorageCorrupt as error:
            if checksums:
                yield f"the checkpoint of item {key[0]} is damaged: {error}"
            continue
        if data is None or len(data) != stored.size:
            yield f"item {key[0]} has lost its checkpoint of {stored.size} bytes"
    if (state.checkpoints, state.checkpoint_bytes) != (count, size):
        yield (
            f"checkpoints counts {state.checkpoints} of {state.checkpoint_bytes} bytes; a scan "
            f"finds {count} of {size}"
        )


def _dedup_keys(
    txn: ReadTransaction, group: int, state: PartitionState, segments: Segments
) -> list[str]:
    """Dedup keys agree with their indexes. A key that lasts has an item that is not done."""
    rows = [
        (DEDUP_KEYS.parts(key)[0], decode_dedup(row)) for key, row in DEDUP_KEYS.rows(txn, group)
    ]
    here = {(row.seq, hashed) for hashed, row in rows if row.lasting and row.partition < 0}
    away = {
        (row.partition, row.seq, hashed)
        for hashed, row in rows
        if row.lasting and row.partition >= 0
    }
    window = {(row.at_ms, hashed) for hashed, row in rows if not row.lasting}
    lasting = {(row.at_ms, hashed) for hashed, row in rows if row.lasting}
    found_here = {
        (*DEDUP_ITEMS.parts(key), bytes(row)) for key, row in DEDUP_ITEMS.rows(txn, group)
    }
    found_away = {(*DEDUP_AWAY.parts(key), bytes(row)) for key, row in DEDUP_AWAY.rows(txn, group)}
    wrong = [
        f"dedup keys and {name} disagree"
        for name, expected, found in (
            (
                "their order",
                window,
                {DEDUP_ORDER.parts(k) for k, _ in DEDUP_ORDER.rows(txn, group)},
            ),
            (
                "the order of those that last",
                lasting,
                {DEDUP_LASTING.parts(k) for k, _ in DEDUP_LASTING.rows(txn, group)},
            ),
            ("their items", here, found_here),
            ("their items elsewhere", away, found_away),
        )
        if expected != found
    ]
    wrong += [
        f"{name} counts {count}; there are {found}"
        for name, count, found in (
            ("dedup_keys", state.dedup_keys, len(rows)),
            ("lasting_keys", state.lasting_keys, len(here)),
            ("away_keys", state.away_keys, len(away)),
        )
        if count != found
    ]
    living: dict[int, int] = {}
    for (first_seq, _), segment in segments.items():
        if segment.state != RowState.MOVING:
            living[first_seq] = living.get(first_seq, 0) | segment.mask
    there = (
        {
            first_seq + ordinal
            for first_seq, mask in living.items()
            for ordinal in masks.ordinals(mask)
        }
        if here
        else set()
    )
    wrong += [
        f"item {seq} is done and has a dedup key" for seq, _ in sorted(here) if seq not in there
    ]
    return wrong


def _memories(txn: ReadTransaction, group: int, state: PartitionState) -> list[str]:
    """Producers agree with their indexes."""
    wrong: list[str] = []
    kept: dict[bytes, int] = {}
    for key, _ in PRODUCER_OUTCOMES.rows(txn, group):
        producer_id = PRODUCER_OUTCOMES.parts(key)[0]
        assert isinstance(producer_id, bytes)
        kept[producer_id] = kept.get(producer_id, 0) + 1
    checks = set()
    producers = 0
    for key, raw in PRODUCERS.rows(txn, group):
        producer_id = PRODUCERS.parts(key)[0]
        assert isinstance(producer_id, bytes)
        row = decode_producer(raw)
        producers += 1
        checks.add((row.check_at_ms, producer_id))
        if kept.pop(producer_id, 0) != row.kept:
            wrong.append(f"producer {producer_id.hex()} does not keep the outcomes it counts")
    if kept:
        wrong.append("there are outcomes of unknown producers")
    if checks != {PRODUCER_CHECKS.parts(key) for key, _ in PRODUCER_CHECKS.rows(txn, group)}:
        wrong.append("producers and their checks disagree")
    if state.producers != producers:
        wrong.append(f"producers counts {state.producers}; there are {producers}")
    return wrong


def _heads(txn: ReadTransaction, group: int, state: PartitionState) -> list[str]:
    """No head is later than its first row, so that no due row is overlooked."""
    wrong: list[str] = []
    for table, head_ms in (
        (DEADLINES, state.deadline_head_ms),
        (SCHEDULED, state.schedule_head_ms),
        (EXPIRIES, state.expiry_head_ms),
    ):
        for key, _ in table.rows(txn, group):
            first_ms = int.from_bytes(key[9:17], "big")
            if not 0 < head_ms <= first_ms:
                wrong.append(f"{table.name} begin at {first_ms}; the head says {head_ms}")
            break
    wrong += [
        f"{table.name} would never be cleaned up"
        for table in (ENDED_ORDER, DEDUP_ORDER, PRODUCER_CHECKS)
        if not state.cleanup_head_ms and any(True for _ in table.rows(txn, group))
    ]
    return wrong


def _breaker(txn: ReadTransaction, group: int, state: PartitionState) -> list[str]:
    """There is a breaker if the settings have one, and a probe is one leased item."""
    raw, row = SETTINGS.get(txn, group), state.breaker
    settings = None if raw is None else decode_settings(raw).settings.breaker
    if row is None or settings is None:
        same = (row is None) == (settings is None)
        return [] if same else ["the breaker is not as the settings say"]
    wrong: list[str] = []
    closed, tries = row.state is BreakerState.CLOSED, row.state is BreakerState.HALF_OPEN
    if (row.state is BreakerState.OPEN) != (row.until_ms > 0) or row.since_ms > state.now_ms:
        wrong.append(f"the breaker is {row.state.name} from {row.since_ms} until {row.until_ms}")
    if (row.probe or row.passed) and not tries:
        wrong.append(f"the breaker is {row.state.name} and tries items")
    if tries and row.passed >= settings.probes:
        wrong.append(f"{row.passed} probes have succeeded, and the breaker has not closed")
    if row.probe:
        lease = LEASES.get(txn, group, row.probe)
        held = (
            []
            if lease is None
            else [masks.from_bytes(one.held) for one in decode_lease(lease).items]
        )
        if sum(mask.bit_count() for mask in held) != 1:
            wrong.append(f"the probe's lease {row.probe} does not hold one item")
    numbers = [bucket[0] for bucket in row.buckets]
    if (
        numbers != sorted(set(numbers))
        or len(numbers) > BREAKER_BUCKETS
        or (numbers and not closed)
    ):
        wrong.append(f"the breaker counts in the buckets {numbers}")
    if any(not 0 <= failures <= outcomes for _, outcomes, failures in row.buckets):
        wrong.append("the breaker counts more failures than outcomes")
    if closed and row.first_lease > state.next_lease:
        wrong.append("the breaker counts no lease")
    return wrong


def _limits(txn: ReadTransaction, group: int, state: PartitionState) -> list[str]:
    """The limits are those of the settings, and a bucket has no more tokens than it holds."""
    raw, row = SETTINGS.get(txn, group), state.limits
    settings = None if raw is None else decode_settings(raw).settings.limits
    if row is None or settings is None:
        same = (row is None) == (settings is None)
        return [] if same else ["the limits are not as the settings say"]
    wrong: list[str] = []
    there = LeaseLimits(row.items, row.interval_ms, row.burst, row.leased_max)
    if there != settings:
        wrong.append(f"the limits are {there}, and the settings say {settings}")
    if not 0 <= row.level <= row.burst * row.interval_ms or row.at_ms > state.now_ms:
        wrong.append(f"the bucket has {row.level} of {row.burst} x {row.interval_ms}")
    return wrong
