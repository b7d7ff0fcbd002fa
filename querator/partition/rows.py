"""Layouts of the rows of the partition's tables, and the state row with its instants and counters.

Layouts are msgpack arrays. Masks are little-endian bytes (`masks`). All replicas write the same
bytes.

Longer than 500 lines: what a partition stores is one format, read and changed in one place.
"""

from bisect import bisect_left
from collections.abc import Iterable
from enum import IntEnum
from operator import sub
from struct import Struct, unpack

import msgspec

from querator.model.commands import (
    Attributes,
    KeyedPlace,
    MovedItem,
    PartitionEffects,
    PartitionSettings,
)
from querator.model.item_options import FollowUpFields
from querator.model.queues import BreakerState, RetryWaits
from querator.model.result_calls import ItemEnd
from querator.partition import masks
from querator.partition.breaker_rows import BreakerRow
from querator.partition.execution_rows import ExecutionCounts
from querator.partition.feed_rows import FeedRow
from querator.partition.limit_rows import LimitRow


class RowState(IntEnum):
    """The state of an item. The wire uses the same numbers."""

    READY = 1
    LEASED = 2
    SCHEDULED = 3
    MOVING = 4
    RESERVED = 5
    HELD = 6


class DeadCause(IntEnum):
    """Why an item became a dead letter. The wire uses the same numbers. NONE marks a redriven item.
    VOID marks a move under whose number nothing arrives, FOLLOW_UP a follow-up on its way, and HOME
    an item on its way to the partition of its key.
    """

    NONE = 0
    ATTEMPTS = 1
    EXPIRED = 2
    REJECTED = 3
    VOID = 4
    UNDELIVERED = 5
    FOLLOW_UP = 6
    HOME = 7


class SettleKind(IntEnum):
    """How a command settles leased items. A retry with `retry_at`, a retry with an uncounted
    attempt, and a retry with a priority are verbs of their own: a repeat of one verb is no repeat
    of another. So is each of them with attributes: `ATTRIBUTED` is added to its number. `FOLLOWED`
    is added to the number of every verb that comes with follow-ups.
    """

    COMPLETE = 1
    RETRY = 2
    RETRY_LATER = 3
    RELEASE = 4
    RELEASE_LATER = 5
    REJECT = 6
    RETRY_PRIORITIZED = 7
    RETRY_LATER_PRIORITIZED = 8
    RELEASE_PRIORITIZED = 9
    RELEASE_LATER_PRIORITIZED = 10
    REJECT_PRIORITIZED = 11


ATTRIBUTED = 16
"""Added to a `SettleKind`: the retry has changed the attributes of the items."""
FOLLOWED = 32
"""Added to a verb: it has produced follow-ups."""
CLEARED = 64
"""Added to a verb: it has cleared the checkpoints of the items."""
assert max(SettleKind) < ATTRIBUTED < ATTRIBUTED + max(SettleKind) < FOLLOWED < CLEARED


class Redating(msgspec.Struct, frozen=True, array_like=True):
    """Progress of the check of rows that may be dated after state time. The tables before `step`
    are done, and in the table of `step` the rows before `cursor`.
    """

    step: int = 0
    cursor: bytes = b""


class PartitionState(msgspec.Struct, array_like=True):
    """The one row that changes with every entry. Heads are lower bounds of due times; 0 means none.

    `displaced_ms` is the birth time of the youngest producer that was forgotten to make space for
    another one. Until `crowded_until_ms` the partition does not search for producers that it can
    forget. `staged` and `pinned` count items that are not among the partition's `items` yet.
    `pinned_keys` counts those of `pinned` with a dedup key: their keys are not among `dedup_keys`
    yet. `ahead` counts, for each of the share's `changes`, the items before its boundary that are
    READY, HELD, LEASED or RESERVED. `ended_epoch` is the highest epoch of all removed readers.
    State time went back from `back_from_ms` to `back_to_ms`, perhaps in several steps; 0 means that
    it did not. Items that were `given_up` are also counted in `dropped`. `urgent` counts
    READY items in lanes below 0. `age_steps` is the number of steps of ageing up to `age_since_ms`,
    when the interval of the steps was last changed (`apply_context.ApplyContext.age`). Of
    `dedup_keys`, `lasting_keys` last until an item here is done, and `away_keys` until one of
    another partition is. `recurring` counts the recurrences that wait for the leader
    (`partition.recurrences`). `runs_…` count their due times, also those of deleted ones, and sum
    up how long after their fire times the items came.

    `next_flow` 0: the queue is plain. `flows` counts the flows that have a row. `leasable` counts
    the READY items that the limits of their flows permit to lease. `blocking` counts the SCHEDULED
    items with a place. `review_flow` is the next flow whose limits are compared with the settings;
    0: none is. `lease_paused` is the setting.

    `checkpoints` counts the overlays that name one, and `checkpoint_bytes` the data of these.
    `results` counts the rows of results, with `result_bytes` of data. `asked` of them are of items
    that have not ended. `answered` counts the items with a result that have ended.

    `breaker` and `limits` None: the queue has none. `flow_due_ms`: when the tokens come that items
    of a flow wait for; 0: none wait. `executions` None: the queue has items of producers. `feed`
    None: no events were ever recorded.
    """

    index: int = 0
    term: int = 0
    now_ms: int = 0
    next_seq: int = 1
    next_position: int = 1
    next_lease: int = 1
    ready: int = 0
    leased: int = 0
    scheduled: int = 0
    moving: int = 0
    leases: int = 0
    bytes: int = 0
    produced: int = 0
    completed: int = 0
    retried: int = 0
    released: int = 0
    lapsed: int = 0
    dead: int = 0
    dropped: int = 0
    delivered: int = 0
    duplicates: int = 0
    moved_in: int = 0
    moved_out: int = 0
    expired: int = 0
    overlays: int = 0
    producers: int = 0
    ended: int = 0
    deadline_head_ms: int = 0
    schedule_head_ms: int = 0
    expiry_head_ms: int = 0
    cleanup_head_ms: int = 0
    displaced_ms: int = 0
    reserved: int = 0
    acknowledged: int = 0
    readers: int = 0
    next_reader: int = 1
    staged: int = 0
    staged_bytes: int = 0
    pinned: int = 0
    stages: int = 0
    next_stage: int = 1
    txns: int = 0
    next_txn: int = 1
    txn_producers: int = 0
    held: int = 0
    ahead: list[int] = []
    ended_epoch: int = 0
    crowded_until_ms: int = 0
    dedup_keys: int = 0
    redating: Redating | None = None
    back_from_ms: int = 0
    back_to_ms: int = 0
    given_up: int = 0
    pinned_keys: int = 0
    cancelled: int = 0
    urgent: int = 0
    age_steps: int = 0
    age_since_ms: int = 0
    lasting_keys: int = 0
    away_keys: int = 0
    next_flow: int = 0
    flows: int = 0
    leasable: int = 0
    blocking: int = 0
    review_flow: int = 0
    recurrences: int = 0
    next_recurrence: int = 1
    recurring: int = 0
    recurring_head_ms: int = 0
    replaced: int = 0
    checkpoints: int = 0
    checkpoint_bytes: int = 0
    runs_fired: int = 0
    runs_skipped: int = 0
    runs_missed: int = 0
    runs_late_ms: int = 0
    lease_paused: bool = False
    breaker: BreakerRow | None = None
    results: int = 0
    asked: int = 0
    answered: int = 0
    result_bytes: int = 0
    limits: LimitRow | None = None
    completed_on_delivery: int = 0
    flow_due_ms: int = 0
    executions: ExecutionCounts | None = None
    feed: FeedRow | None = None

    @property
    def items(self) -> int:
        return self.ready + self.leased + self.scheduled + self.moving + self.reserved + self.held

    @property
    def occupied(self) -> int:
        """Items that count for the queue's limit: all items, and those that are pinned and certain
        to come.
        """
        return self.items + self.pinned

    @property
    def staying(self) -> int:
        """Items that count for the limit when others move here: not those that move away."""
        return self.occupied - self.moving

    @property
    def effects(self) -> PartitionEffects:
        """The counts that the owner of the partition needs."""
        ready = self.leasable if self.next_flow else self.ready
        breaker = BreakerState.CLOSED
        if self.breaker is not None:
            ready, breaker = self.breaker.leasable(ready), self.breaker.state
        if self.limits is not None:
            ready = self.limits.leasable(ready, self.leased, self.now_ms)
        return PartitionEffects(
            ready=0 if self.lease_paused else ready,
            outbox=self.moving,
            txns=self.txns,
            pinned=self.pinned,
            occupied=self.occupied,
            stages=self.stages,
            drained=self.ahead.count(0),
            recurring=self.recurring,
            breaker=breaker,
            answered=self.answered,
            events=0 if self.feed is None else self.feed.next + self.feed.first,
            notices=0 if self.executions is None else self.executions.notices,
        )

    @property
    def refill_ms(self) -> int:
        """When the tokens come that ready items wait for; 0: none waits."""
        if self.limits is None or self.lease_paused:
            return 0
        ready = self.leasable if self.next_flow else self.ready
        if self.breaker is not None:
            ready = self.breaker.leasable(ready)
        return self.limits.due_ms(ready, self.leased, self.now_ms)


class ProduceMode(IntEnum):
    """How the partition of a request was chosen (`model.routing`)."""

    UNKNOWN = 0
    ORDERED = 1
    UNORDERED = 2
    KEYED = 3


class KeyChange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A change of the number of partitions that is not over for the keys. At Route `version`, slots
    came to this partition from the partitions in `waits` (a mask of numbers). Items that were ready
    here had positions below `boundary` (0: no other partition needs to know).
    """

    version: int
    before: int
    partitions: int
    boundary: int
    waits: bytes

    def waits_for(self, partition: int) -> bool:
        return masks.from_bytes(self.waits) >> partition & 1 == 1


class SettingsRow(msgspec.Struct, frozen=True, array_like=True):
    """Settings, and the partition's share of its queue. `routing` and `routed` are those of the
    last Route (`routed` 0: no Route has come yet). `open` says whether requests with this routing
    are accepted. `moves_closed`: the partition is closing and takes no moves. `changes` ascend by
    version (`partition.held_keys`). `groups` are those of the partitions of a keyed queue, by
    number. `moves_since`: the version since which the partition takes moves again; 0: it was never
    closing.
    """

    version: int
    settings: PartitionSettings
    routing: int = 0
    routed: int = 0
    open: bool = True
    moves_closed: bool = False
    changes: tuple[KeyChange, ...] = ()
    groups: tuple[int, ...] = ()
    moves_since: int = 0

    @property
    def closing(self) -> bool:
        return 0 < self.routed <= self.settings.partition


class OwnTimes(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Times of one item that differ from its block's, and what it says about retries.
    `expire_at_ms` 0 means never. `max_attempts` and `retry` None: those of the queue.
    """

    ordinal: int
    expire_at_ms: int
    expire_timeout_ms: int
    lease_timeout_ms: int
    max_attempts: int | None = None
    retry: RetryWaits | None = None


def _ordinal(own: OwnTimes) -> int:
    return own.ordinal


class Block(msgspec.Struct, frozen=True, array_like=True):
    """Items produced together: where their bytes are, and their attributes. Only expiries change,
    when operators reschedule items (`partition.reschedule`).

    `offsets` holds `count` + 1 little-endian u32: the start of each item in the attachment, then
    the end. `own` is in the order of the items. `expire_at_ms` holds for items without `own` times.
    `expiry_head_ms` is the earliest expiry of all items. 0 means never.
    """

    index: int
    part: int
    count: int
    produced_at_ms: int
    expire_at_ms: int
    expiry_head_ms: int
    offsets: bytes
    own: tuple[OwnTimes, ...] = ()

    def offset(self, ordinal: int) -> int:
        return int.from_bytes(self.offsets[ordinal * 4 : ordinal * 4 + 4], "little")

    def lengths(self, runs: Iterable[tuple[int, int]]) -> list[int]:
        """Bytes of each item of a set. The set is given by its runs."""
        offsets = unpack(f"<{self.count + 1}I", self.offsets)
        found: list[int] = []
        for start, count in runs:
            chosen = offsets[start : start + count + 1]
            found += map(sub, chosen[1:], chosen)
        return found

    def size(self, mask: int) -> int:
        """Total bytes of the items of a set. The set must not be empty."""
        start = masks.low(mask)
        count = mask.bit_count()
        if mask >> start == (1 << count) - 1:
            return self.offset(start + count) - self.offset(start)
        return sum(self.offset(first + n) - self.offset(first) for first, n in masks.runs(mask))

    def fitting(self, mask: int, bytes_max: int) -> int:
        """The longest prefix of the set whose items have at most `bytes_max` bytes together."""
        chosen = 0
        for start, count in masks.runs(mask):
            base = self.offset(start)
            low, high = 0, count
            while low < high:
                middle = (low + high + 1) // 2
                if self.offset(start + middle) - base <= bytes_max:
                    low = middle
                else:
                    high = middle - 1
            chosen |= masks.full(low) << start
            if low < count:
                break
            bytes_max -= self.offset(start + count) - base
        return chosen

    def expired(self, mask: int, now_ms: int) -> int:
        """The items of a set that have expired."""
        if not self.expiry_head_ms or self.expiry_head_ms > now_ms:
            return 0
        chosen = mask if self.expire_at_ms and self.expire_at_ms <= now_ms else 0
        for own in self.own:
            bit = 1 << own.ordinal
            if own.expire_at_ms and own.expire_at_ms <= now_ms:
                chosen |= bit & mask
            else:
                chosen &= ~bit
        return chosen

    def expiries(self) -> list[int]:
        """All instants at which items of the block expire, in ascending order."""
        instants = {own.expire_at_ms for own in self.own}
        instants.add(self.expire_at_ms)
        return sorted(instants - {0})

    def by_lease_timeout(self, mask: int) -> list[tuple[int, int]]:
        """A set cut into (timeout, items) wherever the items' own lease timeout changes, in the
        order of the items. Timeout 0 means that the items have none of their own.
        """
        timeouts = {
            own.ordinal: own.lease_timeout_ms
            for own in self.own
            if own.lease_timeout_ms and mask >> own.ordinal & 1
        }
        if not timeouts:
            return [(0, mask)]
        found: list[tuple[int, int]] = []
        for ordinal in masks.ordinals(mask):
            timeout_ms = timeouts.get(ordinal, 0)
            if found and found[-1][0] == timeout_ms:
                found[-1] = (timeout_ms, found[-1][1] | 1 << ordinal)
            else:
                found.append((timeout_ms, 1 << ordinal))
        return found

    def by_retry(
        self, mask: int, max_attempts: int, retry: RetryWaits
    ) -> list[tuple[int, RetryWaits, int]]:
        """A set cut into (most attempts, retry policy, items), by lowest ordinal. The arguments are
        those of items that say nothing of their own.
        """
        found: dict[tuple[int, RetryWaits], int] = {}
        start = bisect_left(self.own, masks.low(mask), key=_ordinal) if mask else len(self.own)
        for place in range(start, len(self.own)):
            own = self.own[place]
            if not mask >> own.ordinal:
                break
            bit = mask & 1 << own.ordinal
            if bit and (own.max_attempts is not None or own.retry is not None):
                most = max_attempts if own.max_attempts is None else own.max_attempts
                name = most, own.retry or retry
                found[name] = found.get(name, 0) | bit
                mask &= ~bit
        if mask:
            found[max_attempts, retry] = found.get((max_attempts, retry), 0) | mask
        pieces = [(most, policy, items) for (most, policy), items in found.items()]
        return sorted(pieces, key=lambda piece: masks.low(piece[2]))

    def own_times(self, ordinal: int) -> OwnTimes:
        for own in self.own:
            if own.ordinal == ordinal:
                return own
        return OwnTimes(ordinal, self.expire_at_ms, 0, 0)


class Segment(msgspec.Struct, frozen=True, gc=False):
    """Items of one block in the same state.

    `position` is the place in the lane that the items have or last had. For SCHEDULED items it is
    the lane for which they are meant. `locator` is the lease (LEASED), the due time in ms
    (SCHEDULED), the target group (MOVING), the number of the reader (RESERVED) or the lane (HELD,
    READY). `priority` is the items' priority now. `age` is that of the partition when they became
    ready or were held; 0 for SCHEDULED and MOVING items. `flow` is the items' flow in a fair or
    keyed queue, else 0. `place` is the position to which SCHEDULED items of a key return, which
    keep back the later ones of the key; 0: they do not.
    """

    state: int
    attempt: int
    releases: int
    position: int
    locator: int
    mask: int
    priority: int = 0
    age: int = 0
    flow: int = 0
    place: int = 0

    @property
    def rank(self) -> int:
        """Items of a lower rank are leased first."""
        return self.priority + self.age


_SEGMENT = Struct(">BIBQQ")
_SEGMENT_SIZE = _SEGMENT.size
_RANKED = Struct(">iQ")
_RANKED_END = _SEGMENT_SIZE + _RANKED.size
_IS_RANKED = 0x80
"""Bit of the first byte: priority and age, not both 0, stand before the mask."""
_FLOW = Struct(">QQ")
_HAS_FLOW = 0x40
"""Bit of the first byte: flow and place stand before the mask, after priority and age."""


def encode_segment(segment: Segment) -> bytes:
    state, priority, age = segment.state, segment.priority, segment.age
    ranked = priority or age
    head = _SEGMENT.pack(
        state | _IS_RANKED if ranked else state,
        segment.attempt,
        segment.releases,
        segment.position,
        segment.locator,
    )
    if ranked:
        head += _RANKED.pack(priority, age)
    if segment.flow:
        head = bytes((head[0] | _HAS_FLOW,)) + head[1:] + _FLOW.pack(segment.flow, segment.place)
    return head + masks.to_bytes(segment.mask)


def decode_segment(row: bytes) -> Segment:
    state, attempt, releases, position, locator = _SEGMENT.unpack_from(row)
    begin, priority, age, flow, place = _SEGMENT_SIZE, 0, 0, 0, 0
    if state & _IS_RANKED:
        state &= ~_IS_RANKED
        begin = _RANKED_END
        priority, age = _RANKED.unpack_from(row, _SEGMENT_SIZE)
    if state & _HAS_FLOW:
        state &= ~_HAS_FLOW
        flow, place = _FLOW.unpack_from(row, begin)
        begin += _FLOW.size
    return Segment(
        state=state,
        attempt=attempt,
        releases=releases,
        position=position,
        locator=locator,
        mask=int.from_bytes(row[begin:], "little"),
        priority=priority,
        age=age,
        flow=flow,
        place=place,
    )


class LeasedItems(msgspec.Struct, array_like=True, gc=False):
    """Items of one segment under one lease. `settled` has (Verb, mask); no item is in two of them.
    Items that are only in `granted` have lapsed.
    """

    first_seq: int
    attempt: int
    granted: bytes
    held: bytes
    settled: tuple[tuple[int, bytes], ...] = ()

    def settled_by(self, verb: int) -> int:
        """The items that the verb has settled, as a mask."""
        for settled, mask in self.settled:
            if settled == verb:
                return masks.from_bytes(mask)
        return 0

    def settled_in_all(self) -> int:
        """The items that any verb has settled, as a mask."""
        everything = 0
        for _, mask in self.settled:
            everything |= masks.from_bytes(mask)
        return everything

    def settle(self, verb: int, done: int) -> None:
        """Records that the verb has settled held items."""
        self.held = masks.to_bytes(masks.from_bytes(self.held) & ~done)
        others = tuple(one for one in self.settled if one[0] != verb)
        self.settled = (*others, (int(verb), masks.to_bytes(self.settled_by(verb) | done)))


class LeaseRow(msgspec.Struct, array_like=True):
    """A lease. When it has ended, `deadline_ms` is the time of the end, and `ended_by` is the Verb
    that settled its last items (0: the lease lapsed). `timeout_ms` is the items' own lease timeout
    if they were leased for that timeout, else 0. `since_ms` is when the deadline was set, and
    `leased_ms` when the lease was granted (0: by a version that did not record it).
    """

    client_id: str
    request_id: str
    deadline_ms: int
    items: list[LeasedItems]
    ended_by: int = 0
    timeout_ms: int = 0
    since_ms: int = 0
    leased_ms: int = 0


def numbers_of(row: bytes | None) -> list[int]:
    """The leases of one request. The list is empty when there is no row."""
    data = row or b""
    return [int.from_bytes(data[at : at + 8], "big") for at in range(0, len(data), 8)]


def numbers_to_bytes(leases: Iterable[int]) -> bytes:
    return b"".join([lease.to_bytes(8, "big") for lease in leases])


class StoredCheckpoint(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A checkpoint of an item: its attachment, and the lease and revision that saved it (0: those
    of another partition). `size` 0: the lease has cleared it, and there is no attachment.
    """

    index: int
    part: int
    size: int
    lease: int = 0
    revision: int = 0


class Overlay(msgspec.Struct, frozen=True, array_like=True):
    """History of one item: the error messages of consumers (newest last), its origin if it is a
    dead letter, the attributes that a retry has given to it (None: none has), and its checkpoint.
    `letter` has no attributes: those of the item are here.
    """

    errors: tuple[str, ...] = ()
    letter: MovedItem | None = None
    attributes: Attributes | None = None
    checkpoint: StoredCheckpoint | None = None


class ResultRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The result of an item, which is kept for `keep_ms` after its end at `ended_ms`. `index` and
    `part` name the attachment with its `size` bytes; 0: there is none. `reason` is a `DeadCause`,
    and `error` the last error of a dead item.
    """

    keep_ms: int
    end: int = ItemEnd.WAITS
    ended_ms: int = 0
    index: int = 0
    part: int = 0
    size: int = 0
    reason: int = 0
    error: str = ""
    attempts: int = 0


class ProducerRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A producer. The partition remembers `kept` outcomes; the oldest one is of `oldest_ms`.
    Outcomes of sequences up to `forgotten` are forgotten.

    `check_at_ms` is when to check for outcomes that can be forgotten.
    """

    highest: int
    forgotten: int
    last_ms: int
    oldest_ms: int
    kept: int
    check_at_ms: int


class ProducerOutcome(msgspec.Struct, frozen=True, array_like=True):
    """Outcome of a request: its items, from `first_seq` on, in `partition` (-1: this one).

    Of a request that keys have routed (`mode`) this partition has only some items. `slots` are as
    in the command. `elsewhere` holds the items of further slots: they were stored while those slots
    were in another partition.
    """

    first_seq: int
    count: int
    at_ms: int
    duplicates: tuple[tuple[int, ...], ...] = ()
    partition: int = -1
    mode: int = ProduceMode.UNKNOWN
    slots: bytes = b""
    elsewhere: tuple[KeyedPlace, ...] = ()
    replaced: tuple[tuple[int, int], ...] = ()


class DedupRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A dedup key. `partition` -1: the item is in this partition. `slot` -1: the slot that follows
    from the key. `lasting`: it counts until its item is done. `since_ms` is when the first of the
    items was produced that have replaced each other; 0: the item has replaced none. `position` is
    the place in the lane that the item has for itself; 0: it has none.
    """

    key: bytes
    seq: int
    at_ms: int
    partition: int = -1
    slot: int = -1
    lasting: bool = False
    since_ms: int = 0
    position: int = 0


class FollowUps(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Follow-ups on their way to `partition` of `queue`. `fields` are those of items that have
    some, in ascending order.
    """

    queue: str
    partition: int
    fields: tuple[FollowUpFields, ...] = ()


class OutboxRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Items of one segment on their way to a target, in the order of their sequences. Each has one
    move number. `follow_ups` are given when the items are follow-ups, also when they could not be
    delivered and go to the dead queue (UNDELIVERED).
    """

    first_seq: int
    mask: bytes
    attempt: int
    reason: int
    died_at_ms: int
    priority: int = 0
    follow_ups: FollowUps | None = None


class OutboxTarget(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A target of moves. `next_move` is the number of the next move to it. All moves up to `done`
    have arrived, or went elsewhere. `since` is the last known `SettingsRow.moves_since` of the
    target.
    """

    next_move: int
    done: int
    since: int = 0


class OpenBatch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A batch that is not acknowledged. `segments` is the number of its rows in `reserved`.
    `replays` is the number of epochs opened since the batch was given out.
    """

    seq: int
    segments: int
    count: int
    bytes: int
    opened_at_ms: int
    replays: int = 0


class ReaderRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A reader. `number` identifies it in this partition and is never reused. `last_seq` is the
    last batch that was given out. Batches after `acked_seq` that are not open were released. The
    exception is `dead_seq`, the last batch whose items were made dead letters.

    `opened_at_ms` is when the epoch was opened, `advanced_at_ms` when the reader was last advanced.
    `opens` holds the last openings that had a request id, with the epoch of each.
    """

    reader_id: str
    number: int
    epoch: int
    opened_at_ms: int
    advanced_at_ms: int = 0
    acked_seq: int = 0
    last_seq: int = 0
    batch: OpenBatch | None = None
    dead_seq: int = 0
    opens: tuple[tuple[str, int], ...] = ()


class ReservedItems(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Items of one segment in a batch."""

    first_seq: int
    mask: bytes


_encoder = msgspec.msgpack.Encoder()
encode = _encoder.encode
decode_state = msgspec.msgpack.Decoder(PartitionState).decode
decode_settings = msgspec.msgpack.Decoder(SettingsRow).decode
decode_block = msgspec.msgpack.Decoder(Block).decode
decode_lease = msgspec.msgpack.Decoder(LeaseRow).decode
decode_overlay = msgspec.msgpack.Decoder(Overlay).decode
decode_result = msgspec.msgpack.Decoder(ResultRow).decode
decode_producer = msgspec.msgpack.Decoder(ProducerRow).decode
decode_outcome = msgspec.msgpack.Decoder(ProducerOutcome).decode
decode_dedup = msgspec.msgpack.Decoder(DedupRow).decode
decode_outbox = msgspec.msgpack.Decoder(OutboxRow).decode
decode_target = msgspec.msgpack.Decoder(OutboxTarget).decode
decode_reader = msgspec.msgpack.Decoder(ReaderRow).decode
decode_reserved = msgspec.msgpack.Decoder(ReservedItems).decode
