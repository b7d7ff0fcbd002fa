"""Commands that change a partition, and their results.

A command is a value, independent of its storage. `partition.entry` packs many commands into one log
entry (the versioned file format of the log) and adds the leader's time. Times are ms since the
epoch, durations ms, sizes bytes; 0 means "not given" where the docstring does not say otherwise.

Item sequences travel as ranges `(first_seq, count)`.

Longer than 500 lines: the tags are the log's format, and each is given once.
"""

import msgspec

from querator.model.entries import TimeBack
from querator.model.errors import ErrorCode, QueratorError
from querator.model.execution_commands import ExecutionCommand, ExecutionResult
from querator.model.item_options import NO_SLOT as NO_SLOT
from querator.model.item_options import FlowNames as FlowNames
from querator.model.item_options import FollowTarget as FollowTarget
from querator.model.item_options import FollowUpFields
from querator.model.item_options import ItemSpecial as ItemSpecial
from querator.model.lease_limits import LeaseLimits
from querator.model.queues import (
    BreakerSettings,
    BreakerState,
    DedupUntil,
    ExecutionSettings,
    Fairness,
    GroupSettings,
    QueueKind,
    RateSettings,
    RetryWaits,
)
from querator.model.readers import ReaderCommand, ReaderResult
from querator.model.recurrences import RecurrenceCommand, RecurrenceResult
from querator.model.transactions import StageResult, TxnCommand, TxnResult

Ranges = tuple[tuple[int, int], ...]
"""Runs of sequences: (first_seq, count), ascending, not overlapping."""

Attributes = tuple[tuple[str, str], ...]
"""The attributes of an item: names with their values, in ascending order of the names."""


class Produce(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=1):
    """Adds items. Their wire bytes travel beside the command, as the proposal's attachment.

    `lengths` holds one little-endian u32 per item: the length of its tagged, length-prefixed bytes
    in the attachment. `specials` is in ascending order of ordinal and holds only items that are not
    plain. `routing` is the version of the queue's routing by which the partition was chosen. If
    keys decided on the partition, `slots` has one little-endian u16 per item: NO_SLOT for an item
    without a key. `flows` names the groups or keys of the items in a queue of that kind.
    """

    lengths: bytes
    producer_id: bytes = b""
    sequence: int = 0
    ordered: bool = False
    specials: tuple[ItemSpecial, ...] = ()
    routing: int = 0
    slots: bytes = b""
    flows: FlowNames | None = None


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
    """Leases ready items to the callers, in fair shares (23 items for 20, 6 and 1 give 16, 6 and
    1). Items of the blocks that begin at `aside` are skipped: the leader cannot read them. `named`:
    only these items, if they are ready; empty: the first ones.
    """

    callers: tuple[LeaseCaller, ...]
    aside: tuple[int, ...] = ()
    named: Ranges = ()


class LeaseItems(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Items under one lease; empty `ranges` means all that the lease still holds."""

    lease: int
    ranges: Ranges = ()


class Complete(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=3):
    """`on_delivery`: the items are completed before a consumer gets them."""

    leases: tuple[LeaseItems, ...]
    all_or_nothing: bool = False
    on_delivery: bool = False


class Retry(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=4):
    """Gives items back: at the tail at once, at `retry_at_ms`, or as dead letters (`dead`).

    `count_attempt=False` without `retry_at_ms` is a release: the items return to their place, and
    their attempt is given back. `priority` None: each item keeps its own. `attributes` replace
    those of each item; None: the items keep them. `clear_checkpoint`: the items lose their
    checkpoints.
    """

    leases: tuple[LeaseItems, ...]
    retry_at_ms: int = 0
    dead: bool = False
    error: str = ""
    count_attempt: bool = True
    all_or_nothing: bool = False
    priority: int | None = None
    attributes: Attributes | None = None
    clear_checkpoint: bool = False


class Extend(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=5):
    """Sets deadlines to now + `lease_timeout_ms`, and never shortens them. 0: the items' own lease
    timeout if they were leased with it, else the queue's.

    `leases` empty: all leases of `client_id`.
    """

    leases: tuple[int, ...]
    client_id: str = ""
    lease_timeout_ms: int = 0


class Expire(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=6):
    """Lapses leases whose deadline has come, unless `lapses` is False, and kills expired items,
    within the apply bound.
    """

    lapses: bool = True


class Activate(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=7):
    """Makes scheduled items ready when their time has come, within the apply bound."""


class DeadTarget(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One partition of the dead queue."""

    queue: str
    partition: int
    group: int


class FlowSettings(msgspec.Struct, frozen=True, array_like=True):
    """How a partition of a fair or keyed queue chooses among its flows: the fields are those of
    `QueueSettings`. The limits of leased items are those of this partition: the part of the limits
    of the queue that it may lease.
    """

    kind: QueueKind
    fairness: Fairness = Fairness.IN_FLIGHT
    group_leased_max: int = 0
    groups: tuple[GroupSettings, ...] = ()
    key_leased_max: int = 1
    key_retry_blocks: bool = True
    rate_limit: RateSettings | None = None


class PartitionSettings(msgspec.Struct, frozen=True, array_like=True):
    """The part of a queue's settings that a partition needs. `dead_targets` empty: dead items are
    dropped. `first_seq` is the first sequence of a partition that has none yet; 0: 1. `retry` says
    when items return whose attempt has failed. In `priority_aging_ms` a waiting item gains one step
    of priority; 0: it gains none. `flows` None: the queue is plain. `limits` are this partition's
    parts of those of the queue (`model.lease_limits`). The three before, and `events_retention_ms`,
    are those of `QueueSettings`. `executions` None: the queue has items of producers.
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
    retry: RetryWaits = RetryWaits()
    priority_aging_ms: int = 0
    dedup_until: DedupUntil = DedupUntil.WINDOW
    flows: FlowSettings | None = None
    lease_paused: bool = False
    produce_paused: bool = False
    breaker: BreakerSettings | None = None
    limits: LeaseLimits | None = None
    executions: ExecutionSettings | None = None
    events_retention_ms: int = 0


class Configure(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """Sets the settings, which reach a partition through its own log; applied only if `version` is
    newer.
    """

    version: int
    settings: PartitionSettings


class MovedItem(msgspec.Struct, frozen=True, array_like=True):
    """One item that moves between partitions. The items' wire bytes are in the proposal's
    attachment, in order.

    A dead letter carries its origin. A redriven item returns with `reason` 0 and a fresh start.
    `attributes` are those that a retry has given to the item; None: none has. `max_attempts` and
    `retry` are as in `ItemSpecial`, for the queue to which a dead letter may return. `follow_up`:
    the fields of a follow-up that has some. `expire_at_ms` is when an item expires that goes to the
    partition of its key; 0: never.
    """

    origin_queue: str
    origin_partition: int
    origin_group: int
    origin_seq: int
    attempts: int
    reason: int
    """A `DeadCause` of the rows; VOID: no item arrives under this number; FOLLOW_UP: a follow-up
    arrives; HOME: an item goes to the partition of its key.
    """
    errors: tuple[str, ...]
    produced_at_ms: int
    died_at_ms: int
    expire_timeout_ms: int = 0
    lease_timeout_ms: int = 0
    priority: int = 0
    attributes: Attributes | None = None
    max_attempts: int | None = None
    retry: RetryWaits | None = None
    follow_up: FollowUpFields | None = None
    expire_at_ms: int = 0


class Move(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """Adds moved items number `first_move`, `first_move`+1, … of `source_group`; known ones are
    skipped. Accepts the first ones for which there is space.

    Refused as a whole when it would leave a gap, or when there is no space for any. `flows` is as
    in Produce, for the queue that receives the items. `homes` are the groups over which that queue
    distributes keys, by partition, as of `routing`; empty when no item has a slot. `holders` are
    (ordinal, partition, sequence): as in `ItemSpecial`. `checkpoints` are (ordinal, bytes) of the
    items that have one. Their data follows that of the items in the attachment. `since` is what the
    source knows of the target's `SettingsRow.moves_since`.
    """

    source_group: int
    first_move: int
    lengths: bytes
    items: tuple[MovedItem, ...]
    flows: FlowNames | None = None
    routing: int = 0
    homes: tuple[int, ...] = ()
    holders: tuple[tuple[int, int, int], ...] = ()
    checkpoints: tuple[tuple[int, int], ...] = ()
    since: int = 0


class MoveDone(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=10):
    """The target has everything up to and with move `upto_move`: the outbox rows and their items
    are deleted.
    """

    target_group: int
    upto_move: int


class MoveReturn(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=11):
    """The target group is gone for ever: its outbox rows become ready items again (bounded per
    command).
    """

    target_group: int


class LetterFilter(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Chooses dead letters: those with one of `reasons` (DeadCause; empty: any) that died from
    `died_from_ms` up to before `died_until_ms` (0: no end).
    """

    reasons: tuple[int, ...] = ()
    died_from_ms: int = 0
    died_until_ms: int = 0

    def chooses(self, letter: MovedItem) -> bool:
        if self.reasons and letter.reason not in self.reasons:
            return False
        if letter.died_at_ms < self.died_from_ms:
            return False
        return not self.died_until_ms or letter.died_at_ms < self.died_until_ms


ALL_LETTERS = LetterFilter()


class Redrive(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """Sends dead letters of this (dead) partition back to their queue: those of `seqs`, or all of
    `origin_queue` that `chosen` chooses.

    `homes` are the partitions of the origin queue; an item goes to its original partition if that
    exists. `after_seq` bounds the scan when `seqs` is empty; the result says where to continue.
    """

    origin_queue: str
    homes: tuple[DeadTarget, ...]
    seqs: tuple[int, ...] = ()
    after_seq: int = 0
    chosen: LetterFilter = ALL_LETTERS


class Route(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=13):
    """Distributes requests with an identity or keys over `partitions`, as of `version`. Until
    `open`, none are accepted. A partition beyond the number accepts nothing at all, and no moves.
    `before` is the number of partitions of the version before; 0: not given. `groups` are those of
    the partitions, by number, in a keyed queue; empty in others.
    """

    version: int
    partitions: int
    open: bool
    before: int = 0
    groups: tuple[int, ...] = ()


class KeyedPlace(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The place of a request's item whose key decided on its partition."""

    slot: int
    partition: int
    seq: int


class OutcomeFact(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The outcome of a producer's request: it is in `partition` as a whole, or the items of some
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
    """A partition's knowledge of a producer, or a part of it."""

    producer_id: bytes
    highest: int
    forgotten: int
    last_ms: int
    outcomes: tuple[OutcomeFact, ...]


class KeyFact(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The item with a dedup key. `lasting`: the key counts until that item is done."""

    key: bytes
    seq: int
    at_ms: int
    partition: int
    slot: int
    lasting: bool = False


class TxnProducerFact(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A producer of transactions has committed batches up to `committed`, the last one at
    `last_ms`.
    """

    producer: str
    committed: int
    last_ms: int


class Facts(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A partition's memory of produces. It stays true for ever, in any partition. `displaced_ms` is
    as in the partition's state.
    """

    producers: tuple[ProducerFact, ...] = ()
    keys: tuple[KeyFact, ...] = ()
    displaced_ms: int = 0
    txn_producers: tuple[TxnProducerFact, ...] = ()


class Adopt(msgspec.Struct, frozen=True, array_like=True, tag=14):
    """Adopts another partition's memory, for repeats that come here from now on."""

    facts: Facts


class MoveElsewhere(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=15):
    """The target accepts no moves any more and has those up to `upto_move`: they are done, and the
    others go to `to_group` (bounded per command). `since` is that of the moves that it has refused.
    """

    target_group: int
    upto_move: int
    to_group: int
    since: int = 0


class ResumeMoves(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=70):
    """The target accepts moves again, since its routing version `since`."""

    target_group: int
    since: int


class Unhold(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=16):
    """The partitions in `passed` (a little-endian mask of their numbers) have nothing left that was
    ready in them before Route `version`. Items that are held for that become ready (bounded per
    command).
    """

    version: int
    passed: bytes


class RepairTime(TimeBack, frozen=True, array_like=True, gc=False, tag=17):
    """Sets state time to the clock. If it goes back, later dates are adjusted (`partition.redate`),
    and Done has the ms by which it went back.
    """


class GiveUp(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=18):
    """Drops the items of the blocks that begin at `blocks`, at most GIVE_UP_BLOCKS_MAX of them, on
    an operator's command: no replica has their payload intact. Items that are leased or in a
    reader's batch stay.
    """

    blocks: tuple[int, ...]


class ForgetGroups(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=19):
    """The groups from first to last of each of `ranges`, ascending, have left the map for ever.
    Their moves do not count any more, nor does the number of the last move to them (bounded per
    command).
    """

    ranges: tuple[tuple[int, int], ...]


class Reschedule(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=23):
    """Changes items of `ranges`, at most RESCHEDULE_ITEMS_MAX, that are scheduled for an instant
    from `due_from_ms` up to before `due_until_ms` (0: no end). `cancel` drops and counts them.
    Otherwise they are due at `due_ms`; less than SCHEDULE_NOW_MS ahead, or past, means that they
    are ready at once.
    """

    ranges: Ranges
    due_ms: int = 0
    cancel: bool = False
    due_from_ms: int = 0
    due_until_ms: int = 0


class Prioritize(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=24):
    """Gives another priority to items of `ranges`, at most PRIORITIZE_ITEMS_MAX, that are ready,
    held or scheduled.
    """

    ranges: Ranges
    priority: int


class Purge(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=25):
    """Removes the items of the blocks that begin from `from_seq` on which are ready or held, or
    `scheduled` if that is given, up to the item `upto_seq` (bounded per command).
    """

    from_seq: int
    upto_seq: int
    scheduled: bool


class Cancel(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=26):
    """Removes items of `ranges`, at most CANCEL_ITEMS_MAX, that are ready, held or scheduled. With
    `dead` they die (REJECTED).
    """

    ranges: Ranges
    dead: bool = False


class DropLetters(msgspec.Struct, frozen=True, array_like=True, tag=27):
    """Removes dead letters of this (dead) partition. The fields are those of `Redrive`."""

    origin_queue: str
    seqs: tuple[int, ...] = ()
    after_seq: int = 0
    chosen: LetterFilter = ALL_LETTERS


class FreeKeys(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=45):
    """Frees dedup keys that another partition has handed over: their items, given as (partition,
    sequence), at most KEYS_FREED_MAX, are done.
    """

    items: tuple[tuple[int, int], ...]


class Follow(msgspec.Struct, frozen=True, array_like=True, tag=50):
    """Carries out `settle` and adds its follow-ups, both or neither. Their wire bytes travel beside
    the command, as the proposal's attachment.

    `settle` names one lease, with `all_or_nothing`. `lengths`, `specials`, `routing` and `slots`
    are as in `Produce`; the items of all targets may have slots. `targets` name all items in their
    order.
    """

    settle: Complete | Retry
    lengths: bytes
    targets: tuple[FollowTarget, ...]
    specials: tuple[ItemSpecial, ...] = ()
    routing: int = 0
    slots: bytes = b""


class ItemCheckpoint(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Names the item of a checkpoint, which is under `lease`. Of two checkpoints of one lease and
    item the one with the higher `revision` counts, in whatever order they arrive; 0: the later one.
    """

    lease: int
    seq: int
    revision: int = 0


class SaveCheckpoints(msgspec.Struct, frozen=True, array_like=True, tag=51):
    """Carries out `extend`, which names leases, and keeps a checkpoint with each of `items`. The
    data travels beside the command, as the proposal's attachment.

    `lengths` holds one little-endian u32 per checkpoint; 0: the item has none from now on.
    """

    extend: Extend
    lengths: bytes
    items: tuple[ItemCheckpoint, ...]


class HalfOpen(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=53):
    """The breaker of the partition tries single items, if its open time is over."""


class SetBreaker(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=54):
    """Opens the breaker for its open time, or closes it, on an operator's command. Done has 1 if it
    was in another state.
    """

    open: bool


class AnsweredItem(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Names the item of a result, which is under `lease`."""

    lease: int
    seq: int


class Answer(msgspec.Struct, frozen=True, array_like=True, tag=52):
    """Carries out `complete`, and keeps a result for each of `items` that it completes and that was
    produced for one. The data travels beside the command, as the proposal's attachment.

    `lengths` holds one little-endian u32 per result.
    """

    complete: Complete
    lengths: bytes
    items: tuple[AnsweredItem, ...]


class Refill(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=57):
    """Tokens have come for ready items, which consumers may lease."""


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
    | Reschedule
    | Prioritize
    | Purge
    | Cancel
    | DropLetters
    | FreeKeys
    | Follow
    | SaveCheckpoints
    | HalfOpen
    | SetBreaker
    | Refill
    | ResumeMoves
    | Answer
    | RecurrenceCommand
    | ReaderCommand
    | TxnCommand
    | ExecutionCommand
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

    def as_error(self) -> QueratorError:
        """The error that the caller gets."""
        return QueratorError(
            self.code, self.message, field=self.field, limit=self.limit, value=self.value
        )


class ProduceResult(msgspec.Struct, frozen=True, gc=False):
    """`duplicates` are (position in the request, sequence of the existing item), and as a third
    number its partition, when that is another one. `partition`: the one that has all items; -1: the
    one that answers. `replaced` are (position in the request, sequence of the item that is gone for
    it).
    """

    first_seq: int
    count: int
    repeated: bool = False
    duplicates: tuple[tuple[int, ...], ...] = ()
    partition: int = -1
    replaced: Ranges = ()


class LeasedSegment(msgspec.Struct, frozen=True, gc=False):
    """Items of one block and one priority leased together: bit i of `mask` is the item with
    sequence first_seq + i. `lease` and `deadline_ms` 0: those of the grant.
    """

    first_seq: int
    mask: int
    attempt: int
    count: int
    bytes: int
    lease: int = 0
    deadline_ms: int = 0
    priority: int = 0


class LeaseGrant(msgspec.Struct, frozen=True, gc=False):
    """The items leased to one caller. `lease` 0: nothing was ready. Items with different lease
    timeouts are under several leases: the segments name them, and `lease` is the lowest one.
    """

    lease: int
    deadline_ms: int
    segments: tuple[LeasedSegment, ...]
    repeated: bool = False


class LeaseResult(msgspec.Struct, frozen=True, gc=False):
    """One grant per caller of the command, in its order. `now_ms` is the state time of the apply. A
    lease's remaining time is counted from it, never from another clock.
    """

    grants: tuple[LeaseGrant | Refusal, ...]
    now_ms: int = 0


class SettledLease(msgspec.Struct, frozen=True, gc=False):
    """The outcome for the items named for one lease."""

    lease: int
    done: Ranges = ()
    repeated: Ranges = ()
    lost: Ranges = ()
    unknown: bool = False
    """The lease is unknown, possibly because it has ended; `lost` then holds the ranges as named.
    """


class SettleResult(msgspec.Struct, frozen=True, gc=False):
    """The result of complete and retry: one outcome per named lease, in the command's order."""

    outcomes: tuple[SettledLease, ...]


class ExtendResult(msgspec.Struct, frozen=True, gc=False):
    """`outcomes` are (lease, deadline_ms) in the command's order, by lease for a client; deadline
    0: the lease is lost. `now_ms` is as in `LeaseResult`. `lost` are the checkpoints that were
    refused, as (lease, sequence): the lease does not hold the item.
    """

    outcomes: tuple[tuple[int, int], ...]
    now_ms: int = 0
    lost: tuple[tuple[int, int], ...] = ()


class RedriveResult(msgspec.Struct, frozen=True, gc=False):
    """The result of Redrive. `next_seq` 0: the scan is at its end."""

    redriven: int
    next_seq: int


class ItemsRemoved(msgspec.Struct, frozen=True, gc=False):
    """The result of Purge and DropLetters. `next_seq`: where the next command continues; 0: at no
    place, all is done.
    """

    removed: int
    next_seq: int


class ItemsChanged(msgspec.Struct, frozen=True, gc=False):
    """The result of Reschedule, Prioritize and Cancel: the number of items that it has changed, and
    the named items that are in no state in which it changes them. Items that already were as the
    command wants them are neither.
    """

    changed: int
    missing: Ranges = ()


class Moved(msgspec.Struct, frozen=True, gc=False):
    """The result of Move: `changed` items were accepted, and all up to move `upto_move` are there.
    There was no space for the others.
    """

    changed: int
    upto_move: int


class Done(msgspec.Struct, frozen=True, gc=False):
    """The result of commands without a result of their own; `changed` counts what they changed."""

    changed: int = 0


Result = (
    Refusal
    | ProduceResult
    | LeaseResult
    | SettleResult
    | ExtendResult
    | RedriveResult
    | ItemsRemoved
    | ItemsChanged
    | RecurrenceResult
    | ReaderResult
    | StageResult
    | TxnResult
    | ExecutionResult
    | Moved
    | Done
)


class PartitionEffects(msgspec.Struct, frozen=True, gc=False):
    """What the owner of a partition must know after an apply. All values are absolute, so a missed
    one does no harm.
    """

    ready: int
    """Items that can be leased."""
    outbox: int
    """Moves not yet acknowledged by their targets."""
    txns: int = 0
    """Unfinished transactions that the partition coordinates."""
    pinned: int = 0
    """Staged items that are pinned for transactions."""
    occupied: int = 0
    """Items that count for the queue's limit."""
    stages: int = 0
    """Stages, of all kinds."""
    drained: int = 0
    """Unfinished changes of the number of partitions for which no earlier item is left here."""
    recurring: int = 0
    """Recurrences whose next run is to be decided, or whose next due time is to be found."""
    breaker: BreakerState = BreakerState.CLOSED
    """State of the breaker; CLOSED also without one."""
    answered: int = 0
    """Items with a result that have ended since the partition was made."""
    answered_seqs: tuple[int, ...] = ()
    """The last of these: those that ended in the entry."""
    events: int = 0
    """Grows with each event, and when events stop being kept; 0: none was ever recorded."""
    notices: int = 0
    """Ends of executions, Records that changed published values, executions that were pinned, and
    arrivals for those at work, since the partition was made.
    """
    ended_ids: tuple[str, ...] = ()
    """The last of these ends: those of the entry."""
    published_ids: tuple[str, ...] = ()
    """The executions of the last of these Records: one for each Record of the entry."""
    pinned_functions: tuple[str, ...] = ()
    """The functions of the last of these pinned executions: those of the entry."""
    arrived_numbers: tuple[int, ...] = ()
    """The executions of the last of these arrivals."""

    @property
    def staying(self) -> int:
        """Items that count for the queue's limit when others move here: those that do not move."""
        return self.occupied - self.outbox
