"""Commands that change a partition, and the values that answer them.

A command is a value; it says nothing about where it is stored. `partition.entry` packs many of them
into one log entry (the versioned file format of the log) and stamps the leader's time on it. Times
are ms since the epoch, durations ms, sizes bytes; 0 means "not given" where the docstring does not
say otherwise.

Item sequences travel as ranges `(first_seq, count)`.

Longer than 500 lines: the tags are the log's format, and each is given once.
"""

import msgspec

from querator.model.entries import TimeBack
from querator.model.errors import ErrorCode
from querator.model.readers import ReaderCommand, ReaderResult
from querator.model.specials import ItemSpecial as ItemSpecial
from querator.model.transactions import StageResult, TxnCommand, TxnResult

NO_SLOT = 0xFFFF
"""Of an item without a key."""

Ranges = tuple[tuple[int, int], ...]
"""Runs of sequences: (first_seq, count), ascending, not overlapping."""


class Produce(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=1):
    """Adds items. Their wire bytes travel beside the command, as the proposal's attachment.

    `lengths` holds one little-endian u32 per item: the length of its tagged, length-prefixed bytes
    in the attachment. `specials` is ascending by ordinal and holds only items that are not plain.
    `routing` is the version of the queue's routing by which the partition was chosen. `slots` has
    one little-endian u16 per item when keys have decided on it: NO_SLOT for an item without.
    """

    lengths: bytes
    producer_id: bytes = b""
    sequence: int = 0
    ordered: bool = False
    specials: tuple[ItemSpecial, ...] = ()
    routing: int = 0
    slots: bytes = b""


class LeaseCaller(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One waiting caller. `request_id` empty: not repeatable. `lease_timeout_ms` 0: the item's or
    queue's.
    """

    client_id: str
    request_id: str
    max_items: int
    max_bytes: int
    lease_timeout_ms: int = 0


class Lease(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=2):
    """Leases ready items to the callers, shared fairly (23 items for 20, 6 and 1 give 16, 6 and
    1). Items of the blocks that begin at `aside` stay where they are: the leader cannot read them.
    """

    callers: tuple[LeaseCaller, ...]
    aside: tuple[int, ...] = ()


class LeaseItems(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Items under one lease; empty `ranges` means all that the lease still holds."""

    lease: int
    ranges: Ranges = ()


class Complete(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=3):
    leases: tuple[LeaseItems, ...]
    all_or_nothing: bool = False


class Retry(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=4):
    """Gives items back: at the tail now, at `retry_at_ms`, or as dead letters (`dead`).

    `count_attempt=False` without `retry_at_ms` is a polite release: back to their place, attempt
    given back.
    """

    leases: tuple[LeaseItems, ...]
    retry_at_ms: int = 0
    dead: bool = False
    error: str = ""
    count_attempt: bool = True
    all_or_nothing: bool = False


class Extend(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=5):
    """Sets deadlines to now + `lease_timeout_ms`, never shortening. 0: the own lease timeout of the
    items if they were leased for that, else the queue's.

    `leases` empty: all leases of `client_id`.
    """

    leases: tuple[int, ...]
    client_id: str = ""
    lease_timeout_ms: int = 0


class Expire(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=6):
    """Lapses leases whose deadline has come, unless `lapses` says no, and kills items that have
    expired, within the apply bound.
    """

    lapses: bool = True


class Activate(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=7):
    """Makes scheduled items ready whose time has come, within the apply bound."""


class DeadTarget(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One partition of the dead queue."""

    queue: str
    partition: int
    group: int


class PartitionSettings(msgspec.Struct, frozen=True, array_like=True):
    """What a partition needs to know of its queue. `dead_targets` empty: dead items are dropped.
    `first_seq` is where a partition begins that has none yet; 0: with 1.
    """

    namespace: str
    queue: str
    queue_id: int
    partition: int
    lease_timeout_ms: int
    expire_timeout_ms: int
    max_attempts: int
    dedup_window_ms: int
    items_max: int
    dead_targets: tuple[DeadTarget, ...] = ()
    first_seq: int = 0


class Configure(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """Settings reach a partition through its own log; applied only if `version` is newer."""

    version: int
    settings: PartitionSettings


class MovedItem(msgspec.Struct, frozen=True, array_like=True):
    """One item on its way between partitions; its wire bytes are in the proposal's attachment, in
    order.

    A dead letter carries its origin; a redriven item goes home with `reason` 0 and a fresh start.
    """

    origin_queue: str
    origin_partition: int
    origin_group: int
    origin_seq: int
    attempts: int
    reason: int
    """A `DeadReason` of the rows; VOID: nothing arrives under this number."""
    errors: tuple[str, ...]
    produced_at_ms: int
    died_at_ms: int
    expire_timeout_ms: int = 0
    lease_timeout_ms: int = 0


class Move(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """Adds moved items number `first_move`, `first_move`+1, … of `source_group`; known ones are
    skipped. Takes the first ones for which there is room.

    Refused as a whole when it would leave a gap, or when there is no room for any.
    """

    source_group: int
    first_move: int
    lengths: bytes
    items: tuple[MovedItem, ...]


class MoveDone(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=10):
    """The target has everything up to and with move `upto_move`: the outbox rows and their items
    go.
    """

    target_group: int
    upto_move: int


class MoveReturn(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=11):
    """The target group is gone for ever: its outbox rows become ready items again (bounded per
    command).
    """

    target_group: int


class Redrive(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """Sends dead letters of this (dead) partition home: those of `seqs`, or all of
    `origin_queue_id`.

    `homes` are the partitions of the origin queue; an item goes to the partition it came from where
    that exists. `after_seq` bounds the scan when `seqs` is empty: the result says where to go on.
    """

    origin_queue: str
    homes: tuple[DeadTarget, ...]
    seqs: tuple[int, ...] = ()
    after_seq: int = 0


class Route(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=13):
    """Requests with an identity or keys are shared out among `partitions`, as of `version`. Until
    `open` none are taken; a partition behind them takes nothing at all, and no moves ever again.
    `before`: among how many they were shared out as of the version before; 0: not given.
    """

    version: int
    partitions: int
    open: bool
    before: int = 0


class KeyedPlace(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where an item of a request is whose key has decided on its partition."""

    slot: int
    partition: int
    seq: int


class OutcomeFact(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What became of a request of a producer: it is in `partition` as a whole, or the items of some
    slots are in their `places`. `mode` is a `ProduceMode`.
    """

    sequence: int
    first_seq: int
    count: int
    at_ms: int
    duplicates: tuple[tuple[int, ...], ...]
    partition: int
    mode: int
    places: tuple[KeyedPlace, ...] = ()


class ProducerFact(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a partition knows of a producer, or some of it."""

    producer_id: bytes
    highest: int
    forgotten: int
    last_ms: int
    outcomes: tuple[OutcomeFact, ...]


class KeyFact(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The first item with a dedup key."""

    key: bytes
    seq: int
    at_ms: int
    partition: int
    slot: int


class TxnProducerFact(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Batches of a producer of transactions up to `committed` are committed, the last of them at
    `last_ms`.
    """

    producer: str
    committed: int
    last_ms: int


class Facts(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a partition remembers of produces: it stays true wherever it is known, and for ever.
    `displaced_ms` as in the partition's state.
    """

    producers: tuple[ProducerFact, ...] = ()
    keys: tuple[KeyFact, ...] = ()
    displaced_ms: int = 0
    txn_producers: tuple[TxnProducerFact, ...] = ()


class Adopt(msgspec.Struct, frozen=True, array_like=True, tag=14):
    """What another partition remembers, for repeats that come here from now on."""

    facts: Facts


class MoveElsewhere(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=15):
    """The target takes no moves any more and has those up to `upto_move`: they are done, and the
    others go to `to_group` (bounded per command).
    """

    target_group: int
    upto_move: int
    to_group: int


class Unhold(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=16):
    """The partitions in `passed` (a little-endian mask of their numbers) have nothing left of what
    was ready in them before Route `version`: what is held for that becomes ready (bounded per
    command).
    """

    version: int
    passed: bytes


class RepairTime(TimeBack, frozen=True, array_like=True, gc=False, tag=17):
    """Puts state time to the clock. Where it goes back, what is dated after that is dated anew
    (`partition.redate`), and Done tells by how many ms it went back.
    """


class GiveUp(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=18):
    """Drops the items of the blocks that begin at `blocks`, at most GIVE_UP_BLOCKS_MAX of them:
    their payload is on no replica whole, and an operator says so. Those that are leased or in a
    reader's batch stay.
    """

    blocks: tuple[int, ...]


class ForgetGroups(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=19):
    """The groups from first to last of each of `ranges`, ascending, have left the map for ever: no
    move of theirs counts any more, nor the number of the last move to them (bounded per command).
    """

    ranges: tuple[tuple[int, int], ...]


Command = (
    Produce
    | Lease
    | Complete
    | Retry
    | Extend
    | Expire
    | Activate
    | Configure
    | Move
    | MoveDone
    | MoveReturn
    | Redrive
    | Route
    | Adopt
    | MoveElsewhere
    | Unhold
    | RepairTime
    | GiveUp
    | ForgetGroups
    | ReaderCommand
    | TxnCommand
)


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """A command refused by its own apply: a value, never an exception. Texts as in
    `QueratorError`.
    """

    code: ErrorCode
    message: str
    field: str = ""
    limit: str = ""
    value: str = ""


class ProduceResult(msgspec.Struct, frozen=True, gc=False):
    """`duplicates` are (position in the request, sequence of the item that was there before), and a
    third number, its partition, when that is another one. `partition`: the one that has it all; -1:
    the one that answers.
    """

    first_seq: int
    count: int
    repeated: bool = False
    duplicates: tuple[tuple[int, ...], ...] = ()
    partition: int = -1


class LeasedSegment(msgspec.Struct, frozen=True, gc=False):
    """Items of one block leased together: bit i of `mask` is the item with sequence first_seq +
    i. `lease` and `deadline_ms` 0: those of the grant.
    """

    first_seq: int
    mask: int
    attempt: int
    count: int
    bytes: int
    lease: int = 0
    deadline_ms: int = 0


class LeaseGrant(msgspec.Struct, frozen=True, gc=False):
    """`lease` 0: nothing was ready for this caller. Items with different lease timeouts are under
    several leases: the segments name them, and `lease` is the lowest one.
    """

    lease: int
    deadline_ms: int
    segments: tuple[LeasedSegment, ...]
    repeated: bool = False


class LeaseResult(msgspec.Struct, frozen=True, gc=False):
    """One per caller of the command, in its order. `now_ms` is the state time of the apply: what a
    lease has left is counted from there, never from another clock.
    """

    grants: tuple[LeaseGrant | Refusal, ...]
    now_ms: int = 0


class SettleOutcome(msgspec.Struct, frozen=True, gc=False):
    """What became of the items named for one lease."""

    lease: int
    done: Ranges = ()
    repeated: Ranges = ()
    lost: Ranges = ()
    unknown: bool = False
    """The lease is not known (any more); `lost` then holds the ranges as they were named."""


class SettleResult(msgspec.Struct, frozen=True, gc=False):
    """The answer to complete and retry: one outcome per named lease, in the command's order."""

    outcomes: tuple[SettleOutcome, ...]


class ExtendResult(msgspec.Struct, frozen=True, gc=False):
    """(lease, deadline_ms) in the command's order, by lease for a client; deadline 0: the lease is
    lost. `now_ms` as in `LeaseResult`.
    """

    outcomes: tuple[tuple[int, int], ...]
    now_ms: int = 0


class RedriveResult(msgspec.Struct, frozen=True, gc=False):
    """`next_seq` 0: the scan is at its end."""

    redriven: int
    next_seq: int


class Moved(msgspec.Struct, frozen=True, gc=False):
    """The answer to Move: `changed` items were taken, and now all up to move `upto_move` are there.
    The others found no room.
    """

    changed: int
    upto_move: int


class Done(msgspec.Struct, frozen=True, gc=False):
    """The answer to commands without a result of their own; `changed` counts what they touched."""

    changed: int = 0


Result = (
    Refusal
    | ProduceResult
    | LeaseResult
    | SettleResult
    | ExtendResult
    | RedriveResult
    | ReaderResult
    | StageResult
    | TxnResult
    | Moved
    | Done
)


class PartitionEffects(msgspec.Struct, frozen=True, gc=False):
    """What the owner of a partition must know after an apply: absolute values, so none can be
    missed.
    """

    ready: int
    """Items that can be leased."""
    outbox: int
    """Moves not yet acknowledged by their targets."""
    txns: int = 0
    """Transactions that it coordinates and that are not finished."""
    pinned: int = 0
    """Staged items that are pinned for transactions."""
    occupied: int = 0
    """Items that count for the queue's limit."""
    stages: int = 0
    """Stages, of all kinds."""
    drained: int = 0
    """Changes of the number of partitions that are not over here, and that no item is ahead of."""
