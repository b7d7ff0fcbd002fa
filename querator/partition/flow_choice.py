"""Chooses ready items of the flows whose turn it is (`partition.flows`), without changing anything.

A flow takes as many items at once as keep it the first. So a flow that is alone costs what a plain
queue costs, and the work grows with the turns and not with the number of flows. Turns are taken in
memory: the stored ones are read as far as they are needed, and those of flows that have been chosen
from are put back behind the items that they get. In a lease or batch of more than LEASE_TURNS_MAX
items each turn takes more of them, so that the number of turns is bounded. The items of one flow
and rank are chosen together in the end, so that segments are not cut into single items.

A caller that took only the first of what is chosen would thus give all its bytes to the first
flows. So a caller that has too little space for it chooses again, with a `Space`, which ends the
choice at the turn whose item does not fit.

What is chosen may not be taken as a whole: `Flows.served` counts what is taken.
"""

from collections.abc import Callable, Iterator
from heapq import heappop, heappush

from querator.model.commands import FlowSettings
from querator.model.limits import APPLY_SEGMENTS_MAX, ASIDE_SEGMENTS_MAX, LEASE_TURNS_MAX
from querator.model.queues import Fairness, QueueKind
from querator.partition import masks
from querator.partition.apply_context import ApplyContext
from querator.partition.dead import worn
from querator.partition.flow_rows import FlowRow, decode_flow
from querator.partition.flows import ROOT, STEP, entering
from querator.partition.rows import Block, PartitionState, Segment, decode_settings
from querator.partition.segments import LANES_PASSED_MAX, block_of, load_segment
from querator.storage.environment import ReadTransaction
from querator.storage.tables import FLOW_READY, FLOW_TURNS, FLOWS, SETTINGS

_Key = tuple[int, int, int, int]
"""The place of a turn: rank, load, start, flow."""


class Chosen:
    """A ready segment: `dead` of its items have expired or used up their attempts, and `chosen`
    others are to be taken.
    """

    __slots__ = ("block", "chosen", "expired", "first_seq", "segment", "spent")

    def __init__(
        self, first_seq: int, block: Block | None, segment: Segment, expired: int, spent: int
    ) -> None:
        self.first_seq = first_seq
        self.block = block
        self.segment = segment
        self.expired = expired
        self.spent = spent
        self.chosen = 0


Look = Callable[[int, int], Chosen | None]
"""Reads the ready segment of a block at a slot. None: it is set aside."""

Prefix = Callable[[Chosen, int, int, bool], tuple[int, int]]
"""The longest prefix of a set of items whose bytes do not exceed a number, and its bytes. With True
it has one item at least.
"""


class Space:
    """The bytes that chosen items may have together."""

    __slots__ = ("_is_empty", "_left", "_prefix")

    def __init__(self, bytes_max: int, prefix: Prefix) -> None:
        self._left = bytes_max
        self._prefix = prefix
        self._is_empty = True

    def take(self, found: Chosen, mask: int) -> int:
        """The first of further items, as many as there is space for. The very first one is always
        among them: the caller decides about an item that is too large.
        """
        mask, size = self._prefix(found, mask, self._left, self._is_empty)
        self._left -= size
        self._is_empty = False
        return mask


def choose(
    context: ApplyContext,
    wanted: int,
    *,
    aside: frozenset[int] = frozenset(),
    segments_max: int = APPLY_SEGMENTS_MAX,
    upto_position: int = 0,
    whole_keys: bool = False,
    space: Space | None = None,
) -> list[Chosen]:
    """Ready segments with up to `wanted` items that are chosen, in the order of leasing. Those of
    the blocks `aside` are passed over, and the later ones of their keys. `upto_position` 0: any.
    `whole_keys`: any number of items of a key may be taken together. `space` None: there
    is enough.
    """
    flows, now_ms = context.flows, context.now_ms
    assert flows is not None
    flows.refresh()

    def look(first_seq: int, slot: int) -> Chosen | None:
        if first_seq in aside:
            return None
        block = block_of(context, first_seq)
        segment = load_segment(context.txn, context.group, first_seq, slot)
        expired = block.expired(segment.mask, now_ms)
        spent = worn(context, block, segment.mask & ~expired, segment.attempt)
        return Chosen(first_seq, block, segment, expired, spent)

    chooser = _Chooser(
        context.txn, context.group, flows.settings, flows.load, look,
        segments_max=segments_max, upto=upto_position, whole_keys=whole_keys, now_ms=now_ms,
        space=space,
    )  # fmt: skip
    return chooser.choose(wanted)


def has_early(txn: ReadTransaction, group: int, state: PartitionState, upto_position: int) -> bool:
    """Whether `choose` would find anything up to a position."""
    raw = SETTINGS.get(txn, group)
    if not state.leasable or raw is None:
        return False
    settings = decode_settings(raw).settings.flows
    assert settings is not None

    def load(flow: int) -> FlowRow:
        row = FLOWS.get(txn, group, flow)
        assert row is not None
        return decode_flow(row)

    def look(first_seq: int, slot: int) -> Chosen:
        return Chosen(first_seq, None, load_segment(txn, group, first_seq, slot), 0, 0)

    chooser = _Chooser(
        txn,
        group,
        settings,
        load,
        look,
        segments_max=1,
        upto=upto_position,
        whole_keys=True,
        now_ms=state.now_ms,
    )
    return bool(chooser.choose(1))


class _Source:
    """A flow, or the own items of one that has others below it, while items are chosen."""

    __slots__ = (
        "ahead", "flow", "heap", "latest", "leased", "limit", "listed", "rest", "room", "rows",
        "sources", "start", "virtual", "weight",
    )  # fmt: skip

    def __init__(self, flow: int, *, weight: int, leased: int, room: int, virtual: int) -> None:
        self.flow = flow
        self.weight = weight
        self.leased = leased
        self.room = room
        """How many more items it may give; negative: any number."""
        self.start = 0
        # Of one with others below it:
        self.virtual = virtual
        self.listed: Iterator[tuple[bytes, bytes]] | None = None
        """Its stored turns. None: it gives its own items."""
        self.ahead: _Key | None = None
        """The next one of them."""
        self.heap: list[_Key] = []
        self.sources: dict[int, _Source] = {}
        """Those that were chosen from."""
        # Of one that gives its own items:
        self.rows: Iterator[tuple[bytes, bytes]] = iter(())
        self.latest: tuple[bytes, bytes] | None = None
        """The next row of its ready segments."""
        self.limit: Chosen | None = None
        """The segment from which it gives items, of which `rest` are left."""
        self.rest = 0


class _Chooser:
    def __init__(
        self,
        txn: ReadTransaction,
        group: int,
        settings: FlowSettings,
        load: Callable[[int], FlowRow],
        look: Look,
        *,
        segments_max: int,
        upto: int,
        whole_keys: bool,
        now_ms: int,
        space: Space | None = None,
    ) -> None:
        self._txn = txn
        self._now_ms = now_ms
        self._group = group
        self._keyed = settings.kind is QueueKind.KEYED
        self._by_load = not self._keyed and settings.fairness is Fairness.IN_FLIGHT
        self._key_max = -1 if whole_keys else settings.key_leased_max
        self._load = load
        self._look = look
        self._upto = upto
        self._segments_left = segments_max
        self._aside_left = ASIDE_SEGMENTS_MAX
        self._passes_left = LANES_PASSED_MAX
        self._least = 1
        """How many items a turn takes at least."""
        self._space = space
        self._has_space = True
        self._turns = 0
        self._found: dict[tuple[int, int], list[Chosen]] = {}

    def choose(self, wanted: int) -> list[Chosen]:
        if self._space is None:
            self._least = -(-wanted // LEASE_TURNS_MAX)
        root = self._parent(ROOT, self._load(ROOT))
        taken = 0
        while taken < wanted and not self._is_full:
            if self._next_key(root) is None:
                break
            taken += self._from_children(root, wanted - taken)
        return [found for together in self._found.values() for found in together]

    @property
    def _is_full(self) -> bool:
        return (
            self._segments_left <= 0
            or self._aside_left <= 0
            or self._passes_left <= 0
            or not self._has_space
        )

    # --- the turns below a parent ------------------------------------------------------------

    def _parent(self, flow: int, row: FlowRow) -> _Source:
        source = _Source(
            flow,
            weight=row.weight,
            leased=row.leased_in_all,
            room=row.room_at(self._now_ms),
            virtual=row.virtual,
        )
        source.listed = FLOW_TURNS.rows(self._txn, self._group, flow)
        self._read_ahead(source)
        return source

    def _read_ahead(self, parent: _Source) -> None:
        assert parent.listed is not None
        parent.ahead = None
        for key, _ in parent.listed:
            _, rank, load, start, flow = FLOW_TURNS.parts(key)
            assert isinstance(rank, int)
            assert isinstance(load, int)
            assert isinstance(start, int)
            assert isinstance(flow, int)
            parent.ahead = rank, load, start, flow
            return

    def _next_key(self, parent: _Source) -> _Key | None:
        """The first turn below a parent."""
        if parent.heap and (parent.ahead is None or parent.heap[0] < parent.ahead):
            return parent.heap[0]
        return parent.ahead

    def _pop(self, parent: _Source, key: _Key) -> _Source:
        if parent.heap and parent.heap[0] == key:
            heappop(parent.heap)
            return parent.sources[key[3]]
        self._read_ahead(parent)
        source = self._child(parent, key[3])
        source.start = key[2]
        parent.sources[key[3]] = source
        return source

    def _child(self, parent: _Source, flow: int) -> _Source:
        row = self._load(flow)
        if flow == parent.flow:
            source = _Source(flow, weight=1, leased=row.leased, room=-1, virtual=0)
        elif row.children:
            return self._parent(flow, row)
        else:
            room = row.room_at(self._now_ms)
            if self._keyed and self._key_max >= 0:
                room = self._key_max if room < 0 else min(room, self._key_max)
            source = _Source(flow, weight=row.weight, leased=row.leased, room=room, virtual=0)
        source.rows = self._ready(flow)
        source.latest = next(source.rows, None)
        if source.latest is None:
            self._passes_left -= 1
        return source

    def _from_children(self, parent: _Source, most: int) -> int:
        """Chooses up to `most` items of the first rank below a parent. Returns their number."""
        taken = 0
        first_rank = -1
        while taken < most and not self._is_full:
            key = self._next_key(parent)
            if key is None or first_rank not in (-1, key[0]):
                break
            source = self._pop(parent, key)
            if self._rank(source) == key[0]:
                first_rank = key[0]
                count = self._ahead_of(source, key, self._next_key(parent), most - taken)
                got = self._take(source, count)
                taken += got
                self._serve(parent, source, got)
            self._put_back(parent, source, key[0])
        return taken

    def _ahead_of(self, source: _Source, key: _Key, after: _Key | None, most: int) -> int:
        """How many items keep a turn before the next one, and not less than any turn takes; up to
        `most`.
        """
        if source.room >= 0:
            most = min(most, source.room)
        if self._keyed or after is None or after[0] != key[0]:
            return most
        if after[1] > key[1]:
            count = after[1] * source.weight - source.leased
        else:
            count = max(1, (after[2] - key[2]) * source.weight // STEP)
            if self._by_load:
                count = min(count, (key[1] + 1) * source.weight - source.leased)
        return min(most, max(count, self._least) if count > 0 else 0)

    def _serve(self, parent: _Source, source: _Source, got: int) -> None:
        if got:
            source.leased += got
            if source.room >= 0:
                source.room -= got
            parent.virtual = max(parent.virtual, source.start + (got - 1) * STEP // source.weight)
            source.start += got * STEP // source.weight

    def _put_back(self, parent: _Source, source: _Source, before: int) -> None:
        """Gives a source its next turn, if it has one."""
        rank = self._rank(source)
        if rank < 0 or source.room == 0:
            return
        after = self._next_key(parent)
        if self._keyed:
            source.start = self._position(source)
        elif rank != before:
            first = None if after is None or after[0] != rank else after[2]
            source.start = entering(parent.virtual, first, source.start, source.weight)
        load = source.leased // source.weight if self._by_load else 0
        heappush(parent.heap, (rank, load, source.start, source.flow))

    def _rank(self, source: _Source) -> int:
        """The rank of the next item; -1: there is none."""
        if source.listed is not None:
            key = self._next_key(source)
            return -1 if key is None else key[0]
        if source.rest:
            assert source.limit is not None
            return source.limit.segment.rank + (1 << 63)
        return -1 if source.latest is None else int.from_bytes(source.latest[0][17:25], "big")

    # --- own items ---------------------------------------------------------------------------

    def _take(self, source: _Source, count: int) -> int:
        """Chooses items of the first rank of a source. Returns their number."""
        if source.listed is not None:
            return self._from_children(source, count)
        rank, got = self._rank(source), 0
        while got < count and (source.rest or self._next_segment(source, rank)):
            if source.rest:
                assert source.limit is not None
                part = masks.first(source.rest, count - got)
                if self._space is not None:
                    part = self._fitting(source.limit, part)
                source.limit.chosen |= part
                source.rest &= ~part
                got += part.bit_count()
                if not self._has_space or (self._keyed and source.flow == ROOT):
                    # Items without a key are in the order of all positions.
                    break
        return got

    def _fitting(self, found: Chosen, part: int) -> int:
        """The items of a turn for which there is space. The number of turns depends on the sizes
        of items. So each takes more of them after every LEASE_TURNS_MAX turns.
        """
        assert self._space is not None
        self._turns += 1
        if self._turns % LEASE_TURNS_MAX == 0:
            self._least *= 2
        fitting = self._space.take(found, part)
        self._has_space = fitting == part
        return fitting

    def _next_segment(self, source: _Source, rank: int) -> bool:
        """Begins the next segment of the rank. False: there is none."""
        if source.latest is None or self._is_full or self._rank(source) != rank:
            return False
        key, value = source.latest
        source.latest = next(source.rows, None)
        found = self._look(int.from_bytes(value, "big"), key[-1])
        if found is None:
            self._aside_left -= 1
            if self._keyed and source.flow != ROOT:
                source.latest = None  # The later items of the key wait for it.
            return True
        self._segments_left -= 1
        self._found.setdefault((rank, source.flow), []).append(found)
        source.limit = found
        source.rest = found.segment.mask & ~(found.expired | found.spent)
        return True

    def _position(self, source: _Source) -> int:
        if source.rest:
            assert source.limit is not None
            return source.limit.segment.position
        assert source.latest is not None
        return int.from_bytes(source.latest[0][25:33], "big")

    def _ready(self, flow: int) -> Iterator[tuple[bytes, bytes]]:
        """The rows of the ready segments of a flow, in order. Up to a position, a rank that has
        later rows costs a seek.
        """
        start, stop = FLOW_READY.bounds(self._group, flow)
        if not self._upto:
            yield from self._txn.scan(start, stop)
            return
        at: bytes | None = start
        while at is not None and self._passes_left > 0:
            begin, at = at, None
            for key, value in self._txn.scan(begin, stop):
                if int.from_bytes(key[25:33], "big") > self._upto:
                    self._passes_left -= 1
                    at = FLOW_READY.bounds(self._group, flow, int.from_bytes(key[17:25], "big"))[1]
                    break
                yield key, value
