"""The values of the SDK's API: what callers pass, and what they get back.

Durations are `timedelta`, instants are aware `datetime`s in UTC.

Longer than 500 lines: each value has few lines, and a docstring that says what its fields mean.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from enum import IntEnum
from itertools import islice
from typing import Final, NamedTuple, get_args, overload

import msgspec

from querator.client.breaker_values import Breaker, BreakerStats
from querator.client.fair_groups import FairGroup
from querator.client.limit_values import LimitStats, RateLimit
from querator.client.options import (
    DedupUntil,
    Fairness,
    IfExists,
    OnDuplicate,
    QueueKind,
    RetryBackoff,
)
from querator.client.typed import wrong_type
from querator.model import limits
from querator.model.addresses import EXAMPLE, split_host_port
from querator.model.errors import ErrorCode
from querator.model.ids import PartitionNumber, Seq, format_item_id, parse_item_id

ADDRESS_DEFAULT: Final = "127.0.0.1:4470"
ADDRESS_VARIABLE: Final = "QUERATOR_ADDRESS"
_SHOWN_ITEMS: Final = 10


def split_addresses(address: str | Iterable[str], *, argument: str = "address") -> tuple[str, ...]:
    """Splits `host:port`, several of them separated by commas, or an iterable. Raises ValueError
    with a sentence that names `argument`, for a text to which no client can connect.
    """
    parts = address.split(",") if isinstance(address, str) else list(address)
    addresses = tuple(dict.fromkeys(part.strip() for part in parts))
    if not any(addresses):
        raise ValueError(f"{argument} is empty; write HOST:PORT, for example {EXAMPLE}")
    for one in addresses:
        try:
            _, port = split_host_port(one)
        except ValueError as error:
            raise ValueError(f"{argument}: {error}") from None
        if not port:
            raise ValueError(f"{argument}: {one!r} has port 0; write for example {EXAMPLE}")
    return addresses


def addresses_of(address: str | Iterable[str] | None) -> tuple[str, ...]:
    """The addresses of a client: those that the program gives, else those of the environment, else
    that of a node with default settings on this machine. Raises ValueError for malformed ones.
    """
    if address is not None:
        return split_addresses(address)
    if given := os.environ.get(ADDRESS_VARIABLE):
        return split_addresses(given, argument=ADDRESS_VARIABLE)
    return (ADDRESS_DEFAULT,)


class ItemState(IntEnum):
    """State of an item. MOVING: on its way to another queue; RESERVED: in an open batch of a
    reader; HELD: waits for earlier items of its key in another partition.
    """

    READY = 1
    LEASED = 2
    SCHEDULED = 3
    MOVING = 4
    RESERVED = 5
    HELD = 6


class DeadReason(IntEnum):
    """Why an item became a dead letter: its attempts were used up, it was not leased in time, a
    consumer rejected it (or a reader's batch was given up), or it was a follow-up whose queue was
    deleted before it arrived.
    """

    ATTEMPTS = 1
    EXPIRED = 2
    REJECTED = 3
    UNDELIVERED = 5


BACKOFFS: tuple[RetryBackoff, ...] = get_args(RetryBackoff)
IF_EXISTS: tuple[IfExists, ...] = get_args(IfExists)
DEDUP_UNTIL: tuple[DedupUntil, ...] = get_args(DedupUntil)
KINDS: tuple[QueueKind, ...] = get_args(QueueKind)
FAIRNESSES: tuple[Fairness, ...] = get_args(Fairness)
ON_DUPLICATE: tuple[OnDuplicate, ...] = get_args(OnDuplicate)


class RetryPolicy(msgspec.Struct, frozen=True):
    """How long an item waits after a failed attempt, which is a retry that says no time, or a
    lapsed lease. `delay`: after the first one, 100 ms to 30 days, or 0. It grows with the attempts
    by `backoff`, up to `delay_max`. `jitter`: each wait is a random part of it. The server checks
    the limits.
    """

    delay: timedelta
    delay_max: timedelta = timedelta(milliseconds=limits.RETRY_DELAY_MAX_MS_DEFAULT)
    backoff: RetryBackoff = "exponential"
    jitter: bool = True


class Item(msgspec.Struct, frozen=True):
    """One unit of work. All fields are optional; a text payload is stored as UTF-8.

    The item is not leased before `enqueue_at` (aware), or before `delay` has passed since the item
    was given to the client. `expire_timeout`: the item dies when it is not leased within this time.
    `lease_timeout`: how long a lease of this item lasts; None: the queue's. `key`: items with the
    same key go to one partition, in the order in which they are produced; a keyed queue leases them
    one after the other. `group`: in a fair queue, the group that the item counts for, as "eu.de".
    `priority`: from -2^31 to 2^31 - 1; within a partition the lowest is leased first. `dedup_key`:
    a second item with this key (and the same `key`, if it has one) is not stored within the queue's
    dedup window, or until the first one is done. `max_attempts`: after this number of attempts the
    item dies, 0 to 65,535; 0: no limit; None: the queue's. `retry`: in place of the queue's retry
    policy. The server checks the limits.

    `on_duplicate`: what the item does if one with its `dedup_key` waits. It is not stored ("keep"),
    or it takes the place of that one ("replace"), or it does so and starts at its own time
    ("bump"), at most `debounce_max` after the first produce with the key (default 1 h). The last
    two need a queue with `dedup_until="done"`.

    `keep_result`: how long the result of the item is kept after its end, 1 s to 1 h; None: it has
    none. See `Client.produce_and_wait`.
    """

    payload: bytes | str = b""
    kind: str = ""
    encoding: str = ""
    reference: str = ""
    attributes: Mapping[str, str] = {}
    priority: int = 0
    group: str = ""
    key: str = ""
    enqueue_at: datetime | None = None
    delay: timedelta | None = None
    expire_timeout: timedelta | None = None
    lease_timeout: timedelta | None = None
    dedup_key: str = ""
    max_attempts: int | None = None
    retry: RetryPolicy | None = None
    on_duplicate: OnDuplicate = "keep"
    debounce_max: timedelta | None = None
    keep_result: timedelta | None = None


class ItemId(NamedTuple):
    """Id of an item: stable for its life in its queue. The text form is `partition-seq`."""

    partition: int
    seq: int

    def __str__(self) -> str:
        return format_item_id(PartitionNumber(self.partition), Seq(self.seq))

    @classmethod
    def parse(cls, text: str, *, field: str = "item_id") -> "ItemId":
        """Parses `partition-seq`. Raises `QueratorError` (INVALID_ARGUMENT) that names `field`, and
        TypeError for a value that is no text.
        """
        if not isinstance(text, str):
            raise wrong_type(field, text, "a text such as '0-17'")
        return cls(*parse_item_id(text, field=field))


class ProducedItem(msgspec.Struct, frozen=True, gc=False):
    """Place where an item was stored. `duplicate`: the item was not stored, because its `dedup_key`
    was known; the id is that of the first item. `repeated`: this repeats the answer to an earlier
    attempt, whose answer was lost. `replaced`: the waiting item that is gone for this one; None:
    none is.
    """

    partition: int
    seq: int
    duplicate: bool = False
    repeated: bool = False
    replaced: ItemId | None = None

    @property
    def id(self) -> ItemId:
        return ItemId(self.partition, self.seq)

    def __str__(self) -> str:
        return str(self.id)


class ProducedRun(msgspec.Struct, frozen=True, gc=False):
    """The part of a request that went to one partition. Item i of the part has the sequence
    `first_seq` + i. `indexes`: positions of the items in the request; empty when the part is the
    whole request. `duplicates`: (index, partition, sequence of the first item) of items that were
    not stored. `replaced`: likewise, the items that are gone for stored ones.
    """

    partition: int
    first_seq: int
    count: int
    indexes: tuple[int, ...] = ()
    repeated: bool = False
    duplicates: tuple[tuple[int, int, int], ...] = ()
    replaced: tuple[tuple[int, int, int], ...] = ()


class ProducedItems(Sequence[ProducedItem]):
    """Outcomes of the items of one call, in the order in which the items were given.

    The outcomes are kept as runs (a few numbers for each request). A `ProducedItem` is made when it
    is read.
    """

    __slots__ = ("_count", "_flat", "_requests", "durable")

    def __init__(self, requests: Sequence[tuple[int, Sequence[ProducedRun]]], durable: bool):
        self._requests = requests
        self._count = sum(count for count, _ in requests)
        self._flat: list[ProducedItem] | None = None
        self.durable = durable
        """False when the node stores in memory only: the items do not survive a restart."""

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> ProducedItem: ...
    @overload
    def __getitem__(self, index: slice) -> list[ProducedItem]: ...
    def __getitem__(self, index: int | slice) -> ProducedItem | list[ProducedItem]:
        if self._flat is None:
            self._flat = [item for count, runs in self._requests for item in _spread(count, runs)]
        return self._flat[index]

    def __iter__(self) -> Iterator[ProducedItem]:
        for count, runs in self._requests:
            yield from _spread(count, runs)

    def __repr__(self) -> str:
        shown = ", ".join(str(item) for item in islice(self, _SHOWN_ITEMS))
        more = self._count - _SHOWN_ITEMS
        return f"<ProducedItems: {shown or 'none'}{f' and {more:,} more' if more > 0 else ''}>"


def _spread(count: int, runs: Sequence[ProducedRun]) -> list[ProducedItem]:
    items: list[ProducedItem | None] = [None] * count
    for run in runs:
        for offset, index in enumerate(run.indexes or range(run.count)):
            items[index] = ProducedItem(run.partition, run.first_seq + offset, False, run.repeated)
        for index, partition, seq in run.duplicates:
            items[index] = ProducedItem(partition, seq, True, run.repeated)
        for index, partition, seq in run.replaced:
            item = items[index]
            assert item is not None, "an item that replaces another one is stored"
            gone = ItemId(partition, seq)
            items[index] = ProducedItem(item.partition, item.seq, False, run.repeated, gone)
    assert None not in items, "an acknowledged request names every item"
    return items  # type: ignore[return-value]


class DeadLetter(msgspec.Struct, frozen=True):
    """Origin of an item in a dead queue. `attempts`: how many times it had been leased; `errors`:
    the error texts of its last retries, newest last.
    """

    origin_queue: str
    origin_id: ItemId
    attempts: int
    reason: DeadReason
    errors: tuple[str, ...]
    produced_at: datetime
    died_at: datetime


class LeaseRef(msgspec.Struct, frozen=True):
    """Reference to items of one lease. `items` empty: all items that the lease still holds. An item
    is given as `ItemId`, as its text (`partition-seq`) or as its sequence alone.
    """

    lease_id: str
    items: tuple[ItemId | str | int, ...] = ()


class SettleOutcome(msgspec.Struct, frozen=True):
    """Outcome for the items of one lease, as sequences in its partition. `done`: settled by this
    call; `repeated`: settled in the same way before; `lost`: not held by the lease. `error`: None
    when no item was lost. LEASE_LOST when the lease does not hold all items, or is not known; then
    `lost` may be incomplete. Another code when the partition could not answer in time.
    """

    lease_id: str
    done: tuple[int, ...]
    repeated: tuple[int, ...]
    lost: tuple[int, ...]
    error: ErrorCode | None = None


class ExtendOutcome(msgspec.Struct, frozen=True):
    """Outcome for one lease. `deadline` is by the leader's clock; `remaining` counts from when the
    answer was made, and is zero for a lost lease. `lost_checkpoints`: sequences of items whose
    checkpoints were not saved, because the lease does not hold them.
    """

    lease_id: str
    deadline: datetime
    remaining: timedelta
    lost_checkpoints: tuple[int, ...] = ()


class QueueInfo(msgspec.Struct, frozen=True):
    """A queue with its settings, with the defaults filled in. `expire_timeout` None: items do not
    expire. `retry_delay` None: items whose attempt has failed return at once. `group_leased_max` 0:
    no limit. `fairness`, `group_leased_max` and `groups` count in a fair queue, `key_leased_max`
    and `key_retry_blocks` in a keyed one. `lease_paused`: consumers and readers get nothing.
    `produce_paused`: producers are refused. `breaker`: when partitions stop leases by themselves;
    None: never. `rate_limit`: how many items are leased in a time; None: any number. `lease_limit`:
    how many items are leased at a time; 0: any number. `group_rate_limit` and `key_rate_limit`: how
    many items of each group, or key, are leased in a time. `events_retention`: how long events are
    kept; None: none are recorded. `created`: whether the call that returned this value created the
    queue. `partitions_opening`: how many of the `partitions` do not take items yet.
    `partitions_closing`: number of further partitions, which take no items and are deleted when
    they are empty.
    """

    namespace: str
    name: str
    id: int
    state: str
    partitions: int
    lease_timeout: timedelta
    expire_timeout: timedelta | None
    max_attempts: int
    dead_queue: str
    dedup_window: timedelta
    partition_items_max: int
    description: str
    replicas: int
    retry_delay: timedelta | None
    retry_delay_max: timedelta
    retry_backoff: RetryBackoff
    retry_jitter: bool
    priority_aging: timedelta
    dedup_until: DedupUntil
    kind: QueueKind
    fairness: Fairness
    group_leased_max: int
    groups: tuple[FairGroup, ...]
    key_leased_max: int
    key_retry_blocks: bool
    lease_paused: bool
    produce_paused: bool
    breaker: Breaker | None
    rate_limit: RateLimit | None
    lease_limit: int
    group_rate_limit: RateLimit | None
    key_rate_limit: RateLimit | None
    events_retention: timedelta | None
    settings_version: int
    created_at: datetime
    created: bool = False
    partitions_opening: int = 0
    partitions_closing: int = 0


class PartitionTime(msgspec.Struct, frozen=True):
    """A partition whose time is `ahead` of the clock, or far behind it (`ahead` is negative). When
    it is `repaired`, `ahead` is the value before. `leases`: its live leases; `scheduled`: its
    scheduled items; `expired`: how many items have ever expired in it.
    """

    partition: int
    ahead: timedelta
    repaired: bool
    leases: int
    scheduled: int
    expired: int


class DamagedBlock(msgspec.Struct, frozen=True):
    """A stored block of items that `node`, which leads the partition, cannot read. `kept`: how many
    of the `items` are leased or in a reader's batch. `lost`: no replica has the block undamaged;
    `reason`: why it is not repaired.
    """

    partition: int
    first_seq: int
    items: int
    kept: int
    lost: bool
    node: str
    reason: str


class GivenUp(msgspec.Struct, frozen=True):
    """The damaged blocks as they were before the call, and how many items were given up."""

    blocks: tuple[DamagedBlock, ...]
    items: int


class Rates(msgspec.Struct, frozen=True):
    """Items per second: `came`, as produces, moves and recurrences bring them; `completed`, those
    acknowledged by readers included; `left`, in whatever way.
    """

    came: float
    completed: float
    left: float


class PartitionStats(msgspec.Struct, frozen=True):
    """Exact counts at one point of a partition's log (or their sums over all partitions).

    Current values: `ready`, `leased`, `scheduled`, `moving`, `reserved` and `held` items, `leases`,
    and `bytes` of all items. The other counts are totals over the life of the partition.

    `retried`: items given back at the cost of an attempt, or for a later time, rejected ones
    included. `released`: items given back at once without counting the attempt, also those that no
    handler began.

    `oldest_ready_at` None: no item is ready. `oldest_batch_at` None: no reader has an open batch.
    `oldest_lease_at`: when the oldest live lease was granted; None: there is none.
    `staged`: items that wait for the commit of a transaction, of `staged_bytes` bytes, in `stages`
    stages, the oldest begun at `oldest_stage_at`; no other count includes them. `waits_for`: the
    partitions with the earlier items of keys for which items are held here. `first_seq` (of one
    partition): sequence of the oldest stored item, 0 if there is none; `head_seq` (of one
    partition): the last assigned sequence. `damaged`: items that are not delivered, because their
    payload is damaged on the leader's node; the other counts include them. `dropped` includes the
    `given_up` items. `cancelled`: items that operators removed: cancelled,
    purged, or dropped as dead letters. `replaced`: waiting items that later items with their dedup
    key replaced. `checkpoint_bytes`: of the checkpoints of the items, beside `bytes`. `breaker` (of
    one partition): its state; None: the queue has none. `limits` (of one partition): what they
    permit; None: the queue has none.
    `results`: items whose results are kept, or will be; `result_bytes`: of those that are kept.
    `completed_on_delivery`: completed items that were completed when they were delivered.
    `rates_…`: moving averages over that time; None: not known, as in the first 10 s after the
    leader of a partition has changed. `drain_time`: in which time the ready items are gone if they
    become fewer as in the last 5 minutes; None: they do not.
    """

    partition: int
    applied_index: int
    ready: int
    leased: int
    scheduled: int
    moving: int
    leases: int
    bytes: int
    produced: int
    completed: int
    retried: int
    released: int
    lapsed: int
    dead: int
    dropped: int
    delivered: int
    duplicates: int
    moved_in: int
    moved_out: int
    expired: int
    reserved: int
    acknowledged: int
    oldest_ready_at: datetime | None
    oldest_batch_at: datetime | None
    staged: int = 0
    staged_bytes: int = 0
    stages: int = 0
    oldest_stage_at: datetime | None = None
    held: int = 0
    waits_for: tuple[int, ...] = ()
    first_seq: int = 0
    head_seq: int = 0
    damaged: int = 0
    given_up: int = 0
    cancelled: int = 0
    oldest_lease_at: datetime | None = None
    replaced: int = 0
    checkpoint_bytes: int = 0
    breaker: BreakerStats | None = None
    results: int = 0
    result_bytes: int = 0
    limits: LimitStats | None = None
    completed_on_delivery: int = 0
    rates_1m: Rates | None = None
    rates_5m: Rates | None = None
    rates_15m: Rates | None = None
    drain_time: timedelta | None = None


class QueueStats(msgspec.Struct, frozen=True):
    """Counts of a queue: in total and by partition. `durable` False: the node stores in memory
    only.
    """

    queue: QueueInfo
    total: PartitionStats
    partitions: tuple[PartitionStats, ...]
    durable: bool


class Prioritized(msgspec.Struct, frozen=True):
    """Result of a change of priority. `changed`: number of items that the call has changed.
    `not_waiting`: the ids that name no item that is ready, held or scheduled. If an answer was lost
    and the client has repeated the call, items that the first attempt changed do not count.
    """

    changed: int
    not_waiting: tuple[ItemId, ...] = ()


class Cancelled(msgspec.Struct, frozen=True):
    """Result of a cancel. `cancelled`: number of items that the call has removed. `not_waiting`:
    the ids that name no item that is ready, held or scheduled. If an answer was lost and the client
    has repeated the call, items that the first attempt removed do not count, and are `not_waiting`.
    """

    cancelled: int
    not_waiting: tuple[ItemId, ...] = ()


class Purged(msgspec.Struct, frozen=True):
    """Result of a purge. `removed`: number of items that the call has removed, or would remove. If
    an answer was lost and a step was repeated, items that the first attempt removed do not count.

    The other numbers are of items that stay: `leased` ones, those in batches of readers
    (`reserved`), those on their way to another queue (`moving`), and `scheduled` ones, which are
    counted only if they stay.
    """

    removed: int
    leased: int = 0
    reserved: int = 0
    moving: int = 0
    scheduled: int = 0


class PeekedItem(msgspec.Struct, frozen=True):
    """An item with its state in the queue. `due_at`: when a scheduled item becomes ready.
    `lease_id`: empty when the item is not leased. `errors`: the error texts of its last retries,
    newest last. `item`: the item as it was produced. `priority` and `attributes`: those now.
    `client_id`, `leased_at` and `deadline`: the owner of the lease, when the lease was granted, and
    when it ends unless it is extended; empty and None when the item is not leased.
    `checkpoint_bytes`: the size of its checkpoint; 0: it has none.
    """

    id: ItemId
    state: ItemState
    attempt: int
    produced_at: datetime
    due_at: datetime | None
    lease_id: str
    dead_letter: DeadLetter | None
    errors: tuple[str, ...]
    item: Item
    priority: int = 0
    client_id: str = ""
    deadline: datetime | None = None
    attributes: Mapping[str, str] = {}
    leased_at: datetime | None = None
    checkpoint_bytes: int = 0
