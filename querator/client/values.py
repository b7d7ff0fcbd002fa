"""The values at the SDK's door: what callers give, and what they get back.

Durations are `timedelta`, instants are aware `datetime`s in UTC.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from enum import IntEnum
from typing import NamedTuple, overload

import msgspec

from querator.model.errors import ErrorCode
from querator.model.ids import PartitionNumber, Seq, format_item_id, parse_item_id


def split_addresses(address: str | Iterable[str]) -> tuple[str, ...]:
    """`host:port`, several of them separated by commas, or an iterable. Raises ValueError."""
    parts = address.split(",") if isinstance(address, str) else list(address)
    addresses = tuple(dict.fromkeys(part.strip() for part in parts))
    if not addresses or not all(addresses):
        raise ValueError(f"address is {address!r}; give host:port, or several of them")
    return addresses


class Priority(IntEnum):
    """A wish for earlier leasing; plain queues only carry it."""

    LOWEST = 1
    LOW = 2
    NORMAL = 3
    HIGH = 4
    HIGHEST = 5


class ItemState(IntEnum):
    """Where an item is in its life."""

    READY = 1
    LEASED = 2
    SCHEDULED = 3
    MOVING = 4
    RESERVED = 5
    HELD = 6


class DeadReason(IntEnum):
    """Why an item became a dead letter."""

    ATTEMPTS = 1
    EXPIRED = 2
    REJECTED = 3


class Item(msgspec.Struct, frozen=True):
    """One unit of work. Only the payload is needed; a text payload is stored as UTF-8.

    `enqueue_at` (aware) or `delay`, counted from when the item is given to the client: not leased
    before. `expire_timeout`: dead when not leased within it. `key`: items with the same one go to
    one partition, in the order in which they are produced. `dedup_key`: a second item with this key
    (and the same `key`, if it has one) within the queue's dedup window is not stored. Limits are
    checked by the server.
    """

    payload: bytes | str = b""
    kind: str = ""
    encoding: str = ""
    reference: str = ""
    attributes: Mapping[str, str] = {}
    priority: Priority | None = None
    group: str = ""
    key: str = ""
    enqueue_at: datetime | None = None
    delay: timedelta | None = None
    expire_timeout: timedelta | None = None
    lease_timeout: timedelta | None = None
    dedup_key: str = ""


class ItemId(NamedTuple):
    """Where an item is: stable for its life in its queue. Its text form is `partition-seq`."""

    partition: int
    seq: int

    def __str__(self) -> str:
        return format_item_id(PartitionNumber(self.partition), Seq(self.seq))

    @classmethod
    def parse(cls, text: str, *, field: str = "item_id") -> "ItemId":
        """Raises `QueratorError` (INVALID_ARGUMENT) naming `field`."""
        return cls(*parse_item_id(text, field=field))


class ProducedItem(msgspec.Struct, frozen=True, gc=False):
    """Where an item was stored, durably. `duplicate`: it was not stored, for its `dedup_key` was
    known; the id is that of the first item. `repeated`: this repeats the answer to an attempt whose
    first answer was lost.
    """

    partition: int
    seq: int
    duplicate: bool = False
    repeated: bool = False

    @property
    def id(self) -> ItemId:
        return ItemId(self.partition, self.seq)

    def __str__(self) -> str:
        return str(self.id)


class ProducedRun(msgspec.Struct, frozen=True, gc=False):
    """A part of a request that went to one partition: item i of the part has sequence `first_seq` +
    i. `indexes`: its positions in the request, empty when it is the whole request.
    """

    partition: int
    first_seq: int
    count: int
    indexes: tuple[int, ...] = ()
    repeated: bool = False
    duplicates: tuple[tuple[int, int, int], ...] = ()


class ProducedItems(Sequence[ProducedItem]):
    """What became of the items of one call, in the order in which they were given.

    Kept as runs (a few numbers for each request); single values are made when they are asked for.
    """

    __slots__ = ("_count", "_flat", "_requests", "durable")

    def __init__(self, requests: Sequence[tuple[int, Sequence[ProducedRun]]], durable: bool):
        self._requests = requests
        self._count = sum(count for count, _ in requests)
        self._flat: list[ProducedItem] | None = None
        self.durable = durable
        """False when the node runs on memory only: the items do not survive a restart."""

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
        return f"<ProducedItems: {self._count}>"


def _spread(count: int, runs: Sequence[ProducedRun]) -> list[ProducedItem]:
    items: list[ProducedItem | None] = [None] * count
    for run in runs:
        for offset, index in enumerate(run.indexes or range(run.count)):
            items[index] = ProducedItem(run.partition, run.first_seq + offset, False, run.repeated)
        for index, partition, seq in run.duplicates:
            items[index] = ProducedItem(partition, seq, True, run.repeated)
    assert None not in items, "an acknowledged request names every item"
    return items  # type: ignore[return-value]


class DeadLetter(msgspec.Struct, frozen=True):
    """Where an item in a dead queue came from. `errors`: the consumers' words, newest last."""

    origin_queue: str
    origin_id: ItemId
    attempts: int
    reason: DeadReason
    errors: tuple[str, ...]
    produced_at: datetime
    died_at: datetime


class LeaseRef(msgspec.Struct, frozen=True):
    """Items under one lease, by name; no `items`: all that the lease still holds. An item is given
    as `ItemId`, as its text (`partition-seq`) or as its bare sequence.
    """

    lease_id: str
    items: tuple[ItemId | str | int, ...] = ()


class SettleOutcome(msgspec.Struct, frozen=True):
    """What became of the items named for one lease, as sequences of its partition. `repeated`: the
    same had been done before. `error`: LEASE_LOST when the lease is not known any more (then it may
    not be known which items are `lost`) or does not hold all of them; another code when the
    partition could not answer in time; None: all is well.
    """

    lease_id: str
    done: tuple[int, ...]
    repeated: tuple[int, ...]
    lost: tuple[int, ...]
    error: ErrorCode | None = None


class ExtendOutcome(msgspec.Struct, frozen=True):
    """`deadline` is the leader's instant; `remaining` counts from when the answer was made."""

    lease_id: str
    deadline: datetime
    remaining: timedelta


class QueueInfo(msgspec.Struct, frozen=True):
    """A queue with its settings, defaults filled in; None: none. `created`: whether the call that
    returned this made it. `partitions_opening` of the `partitions` do not take items yet;
    `partitions_closing` are there besides them, and go when they are empty.
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
    settings_version: int
    created_at: datetime
    created: bool = False
    partitions_opening: int = 0
    partitions_closing: int = 0


class PartitionTime(msgspec.Struct, frozen=True):
    """A partition whose time is `ahead` of the clock, or far behind it (less than 0), or was, when
    it is `repaired`; with its live leases, its scheduled items, and how many have ever expired.
    """

    partition: int
    ahead: timedelta
    repaired: bool
    leases: int
    scheduled: int
    expired: int


class DamagedBlock(msgspec.Struct, frozen=True):
    """Items with one payload that `node`, which leads the partition, cannot read; `kept` of them
    are leased or in a reader's batch. `lost`: no replica has it whole; `reason`: why it is not
    mended.
    """

    partition: int
    first_seq: int
    items: int
    kept: int
    lost: bool
    node: str
    reason: str


class GivenUp(msgspec.Struct, frozen=True):
    """The damaged blocks as they were before, and how many items were given up."""

    blocks: tuple[DamagedBlock, ...]
    items: int


class PartitionStats(msgspec.Struct, frozen=True):
    """Exact counts at one point of a partition's log (or their sums over all partitions).

    Now: `ready`, `leased`, `scheduled`, `moving`, `reserved`, `held` items, `leases`, `bytes` of
    all items. Ever: the rest. `oldest_ready_at` None: nothing is ready; `oldest_batch_at` None: no
    reader has an open batch. `staged` items of `staged_bytes` bytes wait in `stages` for
    transactions, the oldest begun at `oldest_stage_at`; they are in no other count. `waits_for` are
    the numbers of the partitions in which earlier items of keys are, for which others are held. Of
    one partition: `first_seq`, the sequence of the oldest item that is there (0: none is), and
    `head_seq`, the last one that was given. `damaged` items are not delivered, for their payload is
    damaged on the leader's node; they are in the other counts as well. Items that were `given_up`
    are among the `dropped`.
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


class QueueStats(msgspec.Struct, frozen=True):
    """`durable` False: the node runs on memory only."""

    queue: QueueInfo
    total: PartitionStats
    partitions: tuple[PartitionStats, ...]
    durable: bool


class PeekedItem(msgspec.Struct, frozen=True):
    """An item with what its queue knows about it. `due_at`: when a scheduled item becomes ready.
    `lease_id`: empty when it is not leased. `item` is as it was produced.
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
