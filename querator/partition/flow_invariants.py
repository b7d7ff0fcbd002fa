"""The invariants of flows, checked by a full scan. A part of `partition.invariants`."""

from collections.abc import Iterator

from querator.model.commands import FlowSettings
from querator.model.queues import Fairness, QueueKind, RateSettings
from querator.partition.flow_rows import FlowRow, Turn, decode_flow
from querator.partition.flows import RANK_0, ROOT, levels, name_hash, rate_of, weight_of
from querator.partition.rows import PartitionState, RowState, Segment, decode_settings
from querator.storage.environment import ReadTransaction
from querator.storage.tables import FLOW_DUE, FLOW_NAMES, FLOW_READY, FLOW_TURNS, FLOWS, SETTINGS

Segments = dict[tuple[int, int], Segment]
_Places = dict[int, list[tuple[int, int]]]
"""The (rank, position) of the rows of FLOW_READY, by flow, in their order."""


def check_flows(
    txn: ReadTransaction, group: int, state: PartitionState, segments: Segments
) -> list[str]:
    raw = SETTINGS.get(txn, group)
    settings = None if raw is None else decode_settings(raw).settings.flows
    rows = {
        int.from_bytes(key[-8:], "big"): decode_flow(row) for key, row in FLOWS.rows(txn, group)
    }
    if settings is None:
        wrong = [f"segment {place} of a plain queue has a flow" for place, one in segments.items()
                 if one.flow]  # fmt: skip
        return wrong + [f"flow {flow} is in a plain queue" for flow in rows]
    places, wrong = _ready(txn, group, segments)
    names = _names(txn, group, rows, wrong)
    wrong += _counts(state, rows, segments)
    wrong += _tree(rows, names, settings, state)
    wrong += _turns(txn, group, rows)
    wrong += _buckets(txn, group, rows, names=names, settings=settings, state=state)
    if not state.review_flow:
        wrong += _leasable(state, rows, places, settings)
    return wrong


def _ready(txn: ReadTransaction, group: int, segments: Segments) -> tuple[_Places, list[str]]:
    wrong: list[str] = []
    places: _Places = {}
    found: set[tuple[int, int]] = set()
    before: tuple[int, int, int, int, int] | None = None
    for key, value in FLOW_READY.rows(txn, group):
        flow, rank, position, slot = FLOW_READY.parts(key)
        assert isinstance(flow, int)
        assert isinstance(rank, int)
        assert isinstance(position, int)
        assert isinstance(slot, int)
        place = int.from_bytes(value, "big"), slot
        segment = segments.get(place)
        if segment is not None and (segment.flow, 0, segment.place) == (flow, rank, position):
            # It keeps back the others of its key.
            found.add(place)
            continue
        if segment is None or (segment.state, segment.flow, segment.rank, segment.position) != (
            RowState.READY, flow, rank - RANK_0, position,
        ):  # fmt: skip
            wrong.append(f"ready position {position} of flow {flow} names no ready segment")
            continue
        found.add(place)
        places.setdefault(flow, []).append((rank, position))
        if before is not None and before[:3] == (flow, rank, position):
            if before[3] != place[0] or before[4] > slot:
                wrong.append(f"segments of flow {flow} interleave at ready position {position}")
        before = flow, rank, position, place[0], segment.mask.bit_length()
    for place, segment in segments.items():
        if not segment.flow:
            wrong.append(f"segment {place[0]}+{place[1]} has no flow")
        elif (segment.state == RowState.READY or segment.place) and place not in found:
            wrong.append(f"ready segment {place[0]}+{place[1]} is not among those of its flow")
        if segment.place and segment.state != RowState.SCHEDULED:
            wrong.append(f"segment {place[0]}+{place[1]} has a place and is not scheduled")
    return places, wrong


def _names(
    txn: ReadTransaction, group: int, rows: dict[int, FlowRow], wrong: list[str]
) -> dict[int, bytes]:
    names: dict[int, bytes] = {}
    for key, name in FLOW_NAMES.rows(txn, group):
        hashed, flow = FLOW_NAMES.parts(key)
        assert isinstance(flow, int)
        if flow not in rows or rows[flow].hashed != hashed or name_hash(name) != hashed:
            wrong.append(f"the name {name!r} is not that of flow {flow}")
        elif name in names.values():
            wrong.append(f"the name {name!r} has two flows")
        names[flow] = name
    wrong += [f"flow {flow} has no name" for flow in rows if flow not in names]
    return names


def _counts(state: PartitionState, rows: dict[int, FlowRow], segments: Segments) -> Iterator[str]:
    counts = {flow: [0, 0, 0, 0] for flow in rows}
    for (first_seq, slot), segment in segments.items():
        if segment.flow not in counts:
            yield f"segment {first_seq}+{slot} names flow {segment.flow}, which has no row"
            continue
        items, count = counts[segment.flow], segment.mask.bit_count()
        items[0] += count
        items[1] += count if segment.state == RowState.READY else 0
        items[2] += count if segment.state in (RowState.LEASED, RowState.RESERVED) else 0
        items[3] += count if segment.place else 0
    for flow, row in rows.items():
        found = [row.items, row.ready, row.leased, row.blocking]
        if found != counts[flow]:
            yield f"flow {flow} counts {found}; a scan finds {counts[flow]}"
        if not (row.items or row.children or flow == ROOT or row.bucket):
            yield f"flow {flow} has a row and no items"
    if state.flows != len(rows) - 1 or state.next_flow <= max(rows, default=0):
        yield f"flows counts {state.flows}, up to {state.next_flow}; there are {len(rows) - 1}"
    blocking = sum(row.blocking for row in rows.values())
    if state.blocking != blocking:
        yield f"blocking counts {state.blocking}; a scan finds {blocking}"


def _tree(
    rows: dict[int, FlowRow],
    names: dict[int, bytes],
    settings: FlowSettings,
    state: PartitionState,
) -> Iterator[str]:
    """Each flow is below the one of its name, and has what the settings say."""
    for flow, row in rows.items():
        if flow == ROOT:
            continue
        name = names.get(flow, b"")
        path = levels(name, settings.kind)
        above = path[-2] if len(path) > 1 else b""
        if names.get(row.parent) != above or row.depth != len(path):
            yield f"flow {flow} ({name!r}) is not below {above!r}"
        if not state.review_flow and weight_of(settings, name) != (row.weight, row.leased_max):
            yield f"flow {flow} has not the weight or limit of the settings"
    for flow, row in rows.items():
        below = [one for other, one in rows.items() if one.parent == flow and other != ROOT]
        found = [
            row.children, row.items_below, row.ready_below, row.leased_below, row.leasable_below,
        ]  # fmt: skip
        sums = [len(below), *(sum(one.passes[nth] for one in below) for nth in range(4))]
        if found != sums:
            yield f"flow {flow} counts {found} below it; a scan finds {sums}"
        if row.passes[:3] != (row.items + row.items_below, row.ready_in_all, row.leased_in_all):
            yield f"flow {flow} passes on what it does not have"


def _turns(txn: ReadTransaction, group: int, rows: dict[int, FlowRow]) -> Iterator[str]:
    listed = {FLOW_TURNS.parts(key) for key, _ in FLOW_TURNS.rows(txn, group)}
    expected: set[tuple[int | bytes, ...]] = set()
    for flow, row in rows.items():
        for parent, turn in ((row.parent, row.turn), (flow, row.own)):
            if turn.listed:
                expected.add((parent, turn.rank, turn.load, turn.at, flow))
    if listed != expected:
        yield f"turns and their order disagree: {sorted(listed ^ expected)}"


def _buckets(
    txn: ReadTransaction,
    group: int,
    rows: dict[int, FlowRow],
    *,
    names: dict[int, bytes],
    settings: FlowSettings,
    state: PartitionState,
) -> Iterator[str]:
    """Each flow with a rate has a bucket, and is due when something of it waits for tokens, or when
    only its bucket keeps its row.
    """
    expected = set()
    for flow, row in rows.items():
        bucket = row.bucket
        rate = None if flow == ROOT else rate_of(settings, names.get(flow, b""))
        there = bucket and RateSettings(bucket.items, bucket.interval_ms, bucket.burst)
        if not state.review_flow and there != rate:
            yield f"flow {flow} has not the rate of the settings"
        if bucket is None:
            continue
        if not 0 <= bucket.level <= bucket.burst * bucket.interval_ms:
            yield f"flow {flow} has {bucket.level} of {bucket.burst} x {bucket.interval_ms}"
        if not (row.items or row.children or (bucket.due_at_ms and not bucket.waits)):
            yield f"flow {flow} has no items, and stays"
        if bucket.due_at_ms:
            expected.add((int(not bucket.waits), bucket.due_at_ms, flow))
    due = {FLOW_DUE.parts(key) for key, _ in FLOW_DUE.rows(txn, group)}
    if due != expected:
        yield f"flows are due otherwise than they say: {sorted(due ^ expected)}"
    head_ms = min((one[1] for one in expected if not one[0]), default=0)
    if state.flow_due_ms != head_ms:
        yield f"flow_due_ms is {state.flow_due_ms}; the first flow is due at {head_ms}"


def _leasable(
    state: PartitionState, rows: dict[int, FlowRow], places: _Places, settings: FlowSettings
) -> Iterator[str]:
    """A flow has a turn exactly if something of it may be leased, at the rank of its first item."""
    keyed = settings.kind is QueueKind.KEYED
    for flow, row in rows.items():
        own = row.ready
        if keyed and flow != ROOT:
            own = 0 if row.leased or row.blocking else min(own, settings.key_leased_max)
        leasable = own + row.leasable_below
        if row.leased_max:
            leasable = min(leasable, max(0, row.leased_max - row.leased - row.leased_below))
        if row.bucket is not None:
            leasable = min(leasable, row.bucket.reckoned)
        if row.passes[3] != leasable:
            yield f"flow {flow} says that {row.passes[3]} items may be leased, not {leasable}"
        parent = row.children > 0 or flow == ROOT
        head = places[flow][0] if own else None
        if row.own.listed != (parent and own > 0) or row.turn.listed != (
            flow != ROOT and leasable > 0
        ):
            yield f"flow {flow} is not listed as it should be"
        if row.own.listed:
            yield from _turn(flow, row.own, head, settings, leased=row.leased, weight=1)
        if row.turn.listed:
            if parent:
                turns = [one.turn for one in rows.values() if one.parent == flow] + [row.own]
                head = min(rank for turn in turns if turn.listed for rank in [turn.rank]), 0
            yield from _turn(
                flow, row.turn, head, settings, leased=row.leased_in_all, weight=row.weight
            )
    if state.leasable != rows[ROOT].passes[3]:
        yield f"leasable counts {state.leasable}; the root says {rows[ROOT].passes[3]}"


def _turn(
    flow: int,
    turn: Turn,
    head: tuple[int, int] | None,
    settings: FlowSettings,
    *,
    leased: int,
    weight: int,
) -> Iterator[str]:
    assert head is not None
    rank, position = head
    load, at = 0, turn.start
    if settings.kind is QueueKind.KEYED:
        at = position
    elif settings.fairness is Fairness.IN_FLIGHT:
        load = leased // weight
    if (turn.rank, turn.load, turn.at) != (rank, load, at):
        yield f"flow {flow} has not the turn that its items give it"
