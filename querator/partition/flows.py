"""Flows: the groups of a fair queue, or the keys of a keyed one, and whose turn it is.

Every segment names its flow. All changes of segments report here (`came`, `left`), which changes
counts in memory. `refresh` then writes the rows of the flows that were touched, once for an entry,
and before items are chosen. Plain queues have no flows.

Flows form a tree: a group is below the group of its path without the last part, and the root is
above all. The root's own items are those without a group or key. FLOW_TURNS lists, for each flow
that has children, those with items that may be leased, in the order of leasing. Its own items take
part there as if they were a child. A flow without items to lease has no row, and neither has one
that has as many items leased as its limit permits; `leasable` is the number of items that the
limits of the flow and of those below it permit to lease.

Groups are in the order (rank of the first item, load, start). Priorities are strict: an item of a
lower rank comes first, whatever its group. The load is how many times its weight the group has
leased; 0 if the queue is fair by turns. The start tag is that of start-time fair queueing (Goyal,
Vin and Cheng 1996): n items of a group with weight w move it by n * STEP / w. The virtual time of a
parent is the highest tag of the items that were served below it. It never goes back, although a
lease takes the items flow by flow and not in the order of their tags. So no tag is more than one
item after it. A flow that has had no items to lease enters at its own tag, but not before the
virtual time, and at most one item behind it: it gets nothing for the time when it had nothing, and
loses at most one turn. A flow whose row is gone is one item behind, so that a flow with one item at
a time gets no more than one with a backlog. Items that are released give their flow its turns back,
up to a round before the virtual time.

Keys are in the order of their first items. Nothing of a key is leased while some of it is leased or
reserved, or while an item that is retried later keeps the others back. When the number of
partitions changes, items that keep their place keep back their key in its next partition, too
(`partition.held_keys`). Items that are scheduled and keep none back come due where they are.

A flow with a rate has a token bucket in its row (`partition.limits`). What is leased of it, or of a
flow below it, takes tokens, and without them it has no turn. While its items wait for tokens it has
a row in FLOW_DUE, at which Refill gives it its turn back. A flow without items keeps its row until
its bucket is full again: it would begin with a full one. Readers take no tokens.

The weight and limit of a group are in its row. When the settings change, the groups that they name
are changed at once. A change of what holds for all flows reviews them in steps of bounded work,
each in an Expire.

Longer than 500 lines: the counts, limits and turns of a flow change together, in one object.
"""

from bisect import bisect_left
from collections.abc import Sequence
from hashlib import blake2b
from operator import attrgetter
from struct import pack, unpack

from querator.model.commands import FlowSettings, Refusal
from querator.model.errors import ErrorCode
from querator.model.item_options import NO_FLOW, FlowNames
from querator.model.limits import FLOWS_MAX, GROUP_DEPTH_MAX, MINUTE_MS
from querator.model.queues import Fairness, QueueKind, RateSettings
from querator.partition import masks
from querator.partition.flow_rows import PAUSED, FlowBucket, FlowRow, Turn, decode_flow, encode_flow
from querator.partition.rows import PartitionState, RowState, Segment
from querator.storage.environment import ReadTransaction, WriteTransaction
from querator.storage.tables import FLOW_DUE, FLOW_NAMES, FLOW_READY, FLOW_TURNS, FLOWS

ROOT = 1
STEP = 1 << 20
"""By what one item moves the start tag of a flow of weight 1."""
RANK_0 = 1 << 63
"""Rank 0 in keys, which hold no numbers below 0."""
_path = attrgetter("path")


def name_hash(name: bytes) -> bytes:
    return blake2b(name, digest_size=16).digest()


def levels(name: bytes, kind: QueueKind) -> list[bytes]:
    """The names of a flow and of those above it, the highest first. None: it is not a name of this
    kind of queue.
    """
    if kind is not QueueKind.FAIR:
        return [name]
    parts = name.split(b".")
    if len(parts) > GROUP_DEPTH_MAX or not all(parts):
        return []
    return [b".".join(parts[: depth + 1]) for depth in range(len(parts))]


def weight_of(settings: FlowSettings, name: bytes) -> tuple[int, int]:
    """The weight and the limit of leased items of a flow, as its row has them."""
    if settings.kind is not QueueKind.FAIR or not name:
        return 1, 0
    path = name.decode(errors="replace")
    at = bisect_left(settings.groups, path, key=_path)
    if at < len(settings.groups) and settings.groups[at].path == path:
        one = settings.groups[at]
        limit = PAUSED if one.paused else one.leased_max or settings.group_leased_max
        return max(1, one.weight), limit
    return 1, settings.group_leased_max


def rate_of(settings: FlowSettings, name: bytes) -> RateSettings | None:
    """The rate of a flow; None: it has none. The root has none."""
    if not name:
        return None
    if settings.kind is QueueKind.FAIR:
        path = name.decode(errors="replace")
        at = bisect_left(settings.groups, path, key=_path)
        if at < len(settings.groups) and settings.groups[at].path == path:
            return settings.groups[at].rate_limit or settings.rate_limit
    return settings.rate_limit


def bucket_of(rate: RateSettings, now_ms: int, before: FlowBucket | None) -> FlowBucket:
    """A bucket with the tokens of the one before, up to its burst. None before: it is full."""
    level = most = rate.burst * rate.interval_ms
    due_ms, waits = 0, False
    if before is not None:
        level = min(before.level_at(now_ms) * rate.interval_ms // before.interval_ms, most)
        due_ms, waits = before.due_at_ms, before.waits
    return FlowBucket(
        items=rate.items,
        interval_ms=rate.interval_ms,
        burst=rate.burst,
        leased_max=0,
        level=level,
        at_ms=now_ms,
        due_at_ms=due_ms,
        waits=waits,
    )


def by_flow(mask: int, flow_of: Sequence[int]) -> list[tuple[int, int]]:
    """A set of a block's items cut into (flow, items). `flow_of` has the flow of each item of the
    block; empty: the queue is plain.
    """
    if not flow_of:
        return [(0, mask)]
    found: dict[int, int] = {}
    for ordinal in masks.ordinals(mask):
        flow = flow_of[ordinal]
        found[flow] = found.get(flow, 0) | 1 << ordinal
    return sorted(found.items())


def positions_of(names: FlowNames) -> tuple[int, ...]:
    """The position of the name of each item."""
    return unpack(f"<{len(names.items) >> 1}H", names.items)


def cut_names(names: FlowNames | None, start: int, stop: int) -> FlowNames | None:
    """The names of a command's items from `start` up to before `stop`, without those of others."""
    if names is None:
        return None
    positions = positions_of(names)[start:stop]
    used = sorted({*positions} - {NO_FLOW})
    if not used:
        return None
    places = {position: place for place, position in enumerate(used)}
    places[NO_FLOW] = NO_FLOW
    items = pack(f"<{len(positions)}H", *(places[position] for position in positions))
    return FlowNames(tuple(names.names[position] for position in used), items)


def wrong_names(names: FlowNames | None, count: int, kind: QueueKind) -> Refusal | None:
    """The refusal of the names of a command's items, if there is something wrong with them."""
    if names is None:
        return None
    field = "items.group" if kind is QueueKind.FAIR else "items.key"
    if len(names.items) != 2 * count or any(
        position >= len(names.names) and position != NO_FLOW for position in positions_of(names)
    ):
        return Refusal(ErrorCode.INVALID_ARGUMENT, "each item has one name or none", field=field)
    for name in names.names:
        if not levels(name, kind):
            text = name.decode(errors="replace")
            return Refusal(
                ErrorCode.INVALID_ARGUMENT,
                f"the group {text!r} is not a path of 1 to {GROUP_DEPTH_MAX} names with dots "
                "between them",
                field=field,
                limit=f"{GROUP_DEPTH_MAX} levels",
                value=text,
            )
    return None


def find_flow(txn: ReadTransaction, group: int, name: bytes) -> int:
    """The flow of a name. 0: it has none."""
    for key, value in FLOW_NAMES.rows(txn, group, name_hash(name)):
        if value == name:
            return int.from_bytes(key[-8:], "big")
    return 0


class Flows:
    """The flows of a partition while an entry is applied."""

    __slots__ = (
        "_by_load", "_due_changed", "_group", "_names", "_rows", "_state", "_touched", "_txn",
        "keyed", "rated", "settings",
    )  # fmt: skip

    def __init__(
        self, txn: WriteTransaction, group: int, state: PartitionState, settings: FlowSettings
    ) -> None:
        self._txn = txn
        self._group = group
        self._state = state
        self.settings = settings
        self.keyed = settings.kind is QueueKind.KEYED
        self._by_load = not self.keyed and settings.fairness is Fairness.IN_FLIGHT
        self.rated = _has_rates(settings)
        """Whether leases take tokens."""
        self._due_changed = False
        self._rows: dict[int, FlowRow] = {}
        self._names: dict[bytes, int] = {}
        self._touched: list[dict[int, None]] = [{} for _ in range(GROUP_DEPTH_MAX + 1)]

    def begin(self) -> None:
        """Creates the root when the partition gets its first settings."""
        assert not self._state.next_flow
        self._state.next_flow = ROOT + 1
        self._rows[ROOT] = FlowRow(name_hash(b""), 0, 0)
        FLOW_NAMES.put(self._txn, self._group, name_hash(b""), ROOT, value=b"")
        self.touch(ROOT)

    def load(self, flow: int) -> FlowRow:
        row = self._rows.get(flow)
        if row is None:
            raw = FLOWS.get(self._txn, self._group, flow)
            assert raw is not None, f"flow {flow} has items and no row"
            row = self._rows[flow] = decode_flow(raw)
        return row

    def touch(self, flow: int) -> FlowRow:
        row = self.load(flow)
        self._touched[row.depth][flow] = None
        return row

    # --- names -------------------------------------------------------------------------------

    def lacking(self, names: tuple[bytes, ...]) -> int:
        """How many flows are to be created for these names."""
        above = {level for name in names for level in levels(name, self.settings.kind)}
        return sum(not self._find(level) for level in above)

    def has_space(self, flows: int) -> bool:
        return self._state.flows + flows <= FLOWS_MAX

    def of(self, name: bytes) -> int:
        """The flow of a name, which is created if need be. The root, if there is no space for it,
        or if it is no name of this kind of queue.
        """
        found = self._find(name)
        if found:
            return found
        path = levels(name, self.settings.kind)
        if not path or not self.has_space(self.lacking((name,))):
            return ROOT
        parent = ROOT
        for depth, level in enumerate(path, 1):
            flow = self._find(level) or self._create(level, parent, depth)
            parent = flow
        return parent

    def numbers(self, names: FlowNames | None, count: int) -> list[int]:
        """The flow of each item of a command."""
        if names is None:
            return [ROOT] * count
        flows = [self.of(name) for name in names.names]
        return [
            ROOT if position == NO_FLOW else flows[position] for position in positions_of(names)
        ]

    def too_many(self, names: FlowNames | None) -> Refusal | None:
        """The refusal of items for whose flows there is no space."""
        if names is None:
            return None
        fresh = self.lacking(names.names)
        if not fresh or self.has_space(fresh):
            return None
        what, field = ("keys", "items.key") if self.keyed else ("groups", "items.group")
        return Refusal(
            ErrorCode.LIMIT_EXCEEDED,
            f"the partition has items of {self._state.flows} {what}; {fresh} more would exceed its "
            f"limit of {FLOWS_MAX}",
            field=field,
            limit=str(FLOWS_MAX),
            value=str(self._state.flows + fresh),
        )

    def name_of(self, flow: int) -> bytes:
        name = FLOW_NAMES.get(self._txn, self._group, self.load(flow).hashed, flow)
        assert name is not None, "a flow has a name"
        return bytes(name)

    def _find(self, name: bytes) -> int:
        flow = self._names.get(name, 0)
        if not flow:
            flow = find_flow(self._txn, self._group, name)
            if flow:
                self._names[name] = flow
        return flow

    def _create(self, name: bytes, parent: int, depth: int) -> int:
        state = self._state
        flow = state.next_flow
        state.next_flow = flow + 1
        state.flows += 1
        weight, leased_max = weight_of(self.settings, name)
        hashed = name_hash(name)
        row = self._rows[flow] = FlowRow(hashed, parent, depth, weight, leased_max)
        rate = rate_of(self.settings, name)
        if rate is not None:
            row.bucket = bucket_of(rate, state.now_ms, None)
        self._names[name] = flow
        FLOW_NAMES.put(self._txn, self._group, hashed, flow, value=name)
        self.touch(parent).children += 1
        self.touch(flow)
        return flow

    # --- what happens to items ---------------------------------------------------------------

    def left(self, segment: Segment, count: int) -> None:
        """Items leave the state in which the segment has them."""
        self._count(segment.flow, segment.state, -count, blocking=segment.place > 0)

    def came(self, flow: int, state: int, count: int, *, blocking: bool = False) -> None:
        """Items are in a state. One of a key that are scheduled keep it back if they are
        `blocking`.
        """
        self._count(flow, state, count, blocking=blocking)

    def _count(self, flow: int, state: int, count: int, *, blocking: bool) -> None:
        row = self.touch(flow)
        row.items += count
        if state == RowState.READY:
            row.ready += count
        elif state in (RowState.LEASED, RowState.RESERVED):
            row.leased += count
        elif blocking:
            row.blocking += count
            self._state.blocking += count

    def served(self, flow: int, count: int) -> None:
        """Items of the flow were leased or reserved, in its turn."""
        if self.keyed:
            return
        row = self.touch(flow)
        if row.children or flow == ROOT:
            assert row.own.start >= 0
            row.virtual = max(row.virtual, row.own.start + (count - 1) * STEP)
            row.own.start += count * STEP
        while flow != ROOT:
            parent = self.touch(row.parent)
            assert row.turn.start >= 0
            parent.virtual = max(parent.virtual, row.turn.start + (count - 1) * STEP // row.weight)
            row.turn.start += count * STEP // row.weight
            flow, row = row.parent, parent

    def took(self, flow: int, count: int) -> None:
        """Items of the flow were leased: it and those above it spend tokens."""
        now_ms = self._state.now_ms
        while flow != ROOT:
            row = self.touch(flow)
            bucket = row.bucket
            if bucket is not None:
                bucket.level = bucket.level_at(now_ms) - count * bucket.interval_ms
                bucket.at_ms = now_ms
            flow = row.parent

    def released(self, flow: int, count: int) -> None:
        """Leased items of the flow return to their places: it gets back their turns."""
        if self.keyed:
            return
        row = self.touch(flow)
        if row.children or flow == ROOT:
            row.own.start = given_back(row.virtual, row.own.start, count * STEP)
        while flow != ROOT:
            parent = self.touch(row.parent)
            moved = count * STEP // row.weight
            row.turn.start = given_back(parent.virtual, row.turn.start, moved)
            flow, row = row.parent, parent

    # --- settings ----------------------------------------------------------------------------

    def configure(self, settings: FlowSettings) -> bool:
        """Sets other settings of the same kind. Returns whether all flows are to be reviewed."""
        before, self.settings = self.settings, settings
        self.rated = _has_rates(settings)
        self._by_load = not self.keyed and settings.fairness is Fairness.IN_FLIGHT
        for one in sorted({*before.groups} ^ {*settings.groups}, key=_path):
            name = one.path.encode()
            flow = self._find(name)
            if flow:
                self._weigh(flow, name)
        same = _of_all(before) == _of_all(settings)
        if not same:
            self._state.review_flow = ROOT
        return not same

    def review(self, rows_max: int) -> int:
        """Continues the review of all flows, for up to `rows_max` of them. Returns their number."""
        start, stop = FLOWS.bounds(self._group)
        found: list[tuple[int, bytes]] = []
        begin = FLOWS.key(self._group, self._state.review_flow)
        self._state.review_flow = 0
        for key, raw in self._txn.scan(max(start, begin), stop):
            flow = int.from_bytes(key[-8:], "big")
            if len(found) == rows_max:
                self._state.review_flow = flow
                break
            found.append((flow, decode_flow(raw).hashed))
        for flow, hashed in found:
            name = FLOW_NAMES.get(self._txn, self._group, hashed, flow)
            if name is not None:
                self._weigh(flow, name)
        return len(found)

    def _weigh(self, flow: int, name: bytes) -> None:
        row = self.touch(flow)
        row.weight, row.leased_max = weight_of(self.settings, name)
        rate, before = rate_of(self.settings, name), row.bucket
        if rate is not None:
            row.bucket = bucket_of(rate, self._state.now_ms, before)
        elif before is not None:
            self._come(flow, before, 0, waits=False)
            row.bucket = None

    def refill(self, rows_max: int, *, waits: bool) -> int:
        """Gives flows their turns back whose tokens have come (`waits`), or removes those without
        items whose buckets are full. Returns their number.
        """
        found = 0
        for key, _ in FLOW_DUE.rows(self._txn, self._group, int(not waits)):
            due_ms, flow = int.from_bytes(key[17:25], "big"), int.from_bytes(key[25:33], "big")
            if due_ms > self._state.now_ms or found >= rows_max:
                break
            self.touch(flow)
            found += 1
        self.refresh()
        return found

    # --- the rows ----------------------------------------------------------------------------

    def refresh(self) -> None:
        """Writes the rows of all touched flows, those below others first."""
        for depth in range(GROUP_DEPTH_MAX, -1, -1):
            touched = self._touched[depth]
            if touched:
                self._touched[depth] = {}
                for flow in sorted(touched):
                    row = self._rows[flow]
                    if row.items or row.children or flow == ROOT or self._is_lacking(row):
                        self._write(flow, row)
                    else:
                        self._remove(flow, row)
        if self._due_changed:
            self._due_changed = False
            self._state.flow_due_ms = self.due_ms(waits=True)

    def due_ms(self, *, waits: bool) -> int:
        """When the first flow with items that wait for tokens is due, or the first one without
        items. 0: none is.
        """
        for key, _ in FLOW_DUE.rows(self._txn, self._group, int(not waits)):
            return int.from_bytes(key[17:25], "big")
        return 0

    def _write(self, flow: int, row: FlowRow) -> None:
        own = self.own_leasable(flow, row)
        head = self._head(flow) if own else None
        if row.children or flow == ROOT:
            self._list(flow, flow, row.own, weight=1, leased=row.leased, head=head)
            head = self._first(flow)
        elif row.own.listed:
            self._unlist(flow, flow, row.own)
        leasable = own + row.leasable_below
        room = row.room
        if room >= 0:
            leasable = min(leasable, room)
        if row.bucket is not None:
            leasable = self._reckon(flow, row, row.bucket, leasable)
        items = row.items + row.items_below
        passes = items, row.ready_in_all, row.leased_in_all, leasable
        if flow == ROOT:
            self._state.leasable = leasable
        else:
            moved = self._list(
                row.parent, flow, row.turn,
                weight=row.weight, leased=row.leased_in_all, head=head if leasable else None,
            )  # fmt: skip
            if moved or passes != row.passes:
                self._pass_on(row, passes)
        row.passes = passes
        FLOWS.put(self._txn, self._group, flow, value=encode_flow(row))

    def _is_lacking(self, row: FlowRow) -> bool:
        """Whether a flow has a bucket that is not full."""
        bucket = row.bucket
        return bucket is not None and bucket.full_ms(self._state.now_ms) > self._state.now_ms

    def _reckon(self, flow: int, row: FlowRow, bucket: FlowBucket, leasable: int) -> int:
        """How many of `leasable` items there are tokens for. Notes when the flow is due."""
        now_ms = self._state.now_ms
        bucket.reckoned = bucket.tokens(now_ms)
        if row.items or row.children:
            self._come(flow, bucket, bucket.due_ms(leasable, 0, now_ms), waits=True)
        else:
            self._come(flow, bucket, bucket.full_ms(now_ms), waits=False)
        return min(leasable, bucket.reckoned)

    def _come(self, flow: int, bucket: FlowBucket, due_ms: int, *, waits: bool) -> None:
        """The flow is due at an instant; 0: it is not."""
        before = bucket.due_at_ms, bucket.waits
        waits = waits and due_ms > 0
        if before == (due_ms, waits):
            return
        bucket.due_at_ms, bucket.waits = due_ms, waits
        txn, group = self._txn, self._group
        if before[0]:
            FLOW_DUE.delete(txn, group, int(not before[1]), before[0], flow)
        if due_ms:
            FLOW_DUE.put(txn, group, int(not waits), due_ms, flow, value=b"")
        if before[1] or waits:
            self._due_changed = True
        elif due_ms:
            state = self._state
            later_ms = max(due_ms, state.now_ms + MINUTE_MS)
            state.cleanup_head_ms = min(state.cleanup_head_ms or later_ms, later_ms)

    def _pass_on(self, row: FlowRow, passes: tuple[int, int, int, int]) -> None:
        parent = self.touch(row.parent)
        parent.items_below += passes[0] - row.passes[0]
        parent.ready_below += passes[1] - row.passes[1]
        parent.leased_below += passes[2] - row.passes[2]
        parent.leasable_below += passes[3] - row.passes[3]

    def _remove(self, flow: int, row: FlowRow) -> None:
        if row.own.listed:
            self._unlist(flow, flow, row.own)
        if row.turn.listed:
            self._unlist(row.parent, flow, row.turn)
        self._pass_on(row, (0, 0, 0, 0))
        self.touch(row.parent).children -= 1
        if row.bucket is not None:
            self._come(flow, row.bucket, 0, waits=False)
        name = FLOW_NAMES.get(self._txn, self._group, row.hashed, flow)
        assert name is not None
        FLOW_NAMES.delete(self._txn, self._group, row.hashed, flow)
        FLOWS.delete(self._txn, self._group, flow)
        self._names.pop(name, None)
        del self._rows[flow]
        self._state.flows -= 1

    def own_leasable(self, flow: int, row: FlowRow) -> int:
        """How many of a flow's own items may be leased, but for the limits of groups and tokens."""
        if not self.keyed or flow == ROOT:
            return row.ready
        if row.leased or row.blocking:
            return 0
        return min(row.ready, self.settings.key_leased_max)

    def _head(self, flow: int) -> tuple[int, int]:
        """The rank and position of the first ready item of a flow."""
        for key, _ in FLOW_READY.rows(self._txn, self._group, flow):
            return int.from_bytes(key[17:25], "big"), int.from_bytes(key[25:33], "big")
        raise AssertionError(f"flow {flow} counts ready items and has none")

    def _first(self, parent: int, *rank: int) -> tuple[int, int] | None:
        """The rank and start tag of the first turn below a parent; of those with a rank, if one is
        given.
        """
        for key, _ in FLOW_TURNS.rows(self._txn, self._group, parent, *rank):
            return int.from_bytes(key[17:25], "big"), int.from_bytes(key[33:41], "big")
        return None

    def _list(
        self,
        parent: int,
        flow: int,
        turn: Turn,
        *,
        weight: int,
        leased: int,
        head: tuple[int, int] | None,
    ) -> bool:
        """Lists a turn below a parent, or takes it off the list if it has no head. Returns
        whether it was or is now listed, and not at the same rank as before.
        """
        before = (turn.rank, turn.load, turn.at) if turn.listed else None
        if head is None:
            if before is not None:
                self._unlist(parent, flow, turn)
            return before is not None
        rank, position = head
        load = leased // weight if self._by_load else 0
        if before is not None:
            after = rank, load, position if self.keyed else turn.start
            if after == before:
                return False
            FLOW_TURNS.delete(self._txn, self._group, parent, *before, flow)
        if self.keyed:
            turn.start = position
        elif before is None or before[0] != rank:
            turn.start = self._entering(parent, turn.start, rank, weight)
        turn.listed = True
        turn.rank, turn.load, turn.at = rank, load, turn.start
        FLOW_TURNS.put(self._txn, self._group, parent, rank, load, turn.at, flow, value=b"")
        return before is None or before[0] != rank

    def _unlist(self, parent: int, flow: int, turn: Turn) -> None:
        FLOW_TURNS.delete(self._txn, self._group, parent, turn.rank, turn.load, turn.at, flow)
        turn.listed = False

    def _entering(self, parent: int, start: int, rank: int, weight: int) -> int:
        """The start tag of a flow that enters among those of a rank."""
        first = self._first(parent, rank)
        virtual = self.load(parent).virtual
        return entering(virtual, None if first is None else first[1], start, weight)


def _has_rates(settings: FlowSettings) -> bool:
    return settings.rate_limit is not None or any(one.rate_limit for one in settings.groups)


def _of_all(settings: FlowSettings) -> tuple[object, ...]:
    """What holds for all flows."""
    return (
        settings.fairness,
        settings.group_leased_max,
        settings.key_leased_max,
        settings.rate_limit,
    )


def entering(virtual: int, first: int | None, start: int, weight: int) -> int:
    """The start tag with which a flow enters. `start` is its own (-1: it has none), `first` that of
    the flow whose turn it is among those of its rank. It may be far before the virtual time, which
    may be that of another rank. A flow without a tag is before those whose turn is one item later.
    """
    base = virtual if first is None else min(virtual, first)
    most = base + STEP // weight - 1
    return most if start < 0 else min(max(start, base), most)


def given_back(virtual: int, start: int, moved: int) -> int:
    """The start tag of a flow of which released items had moved it. It is not a round before the
    virtual time because of them: others would wait for longer than a round.
    """
    return max(start - moved, min(start, max(0, virtual - STEP)))
