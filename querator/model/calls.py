"""The calls of clients and their replies, independent of any transport.

`wire` decodes calls and encodes replies; `service` answers the calls; `partition.queries` returns
the views. Instants are ms since the epoch, durations ms; 0 means "not given" or "none". `wire`
checks the limits of single fields while it parses; `service` checks what needs the queue.

Longer than 500 lines: each call and reply is given once, with no rules between them.
"""

from collections.abc import Sequence

import msgspec

from querator.model.commands import Attributes, FlowNames, ItemSpecial, Ranges
from querator.model.errors import ErrorCode
from querator.model.queues import BreakerState, Queue
from querator.model.rates import ItemRates


class ProduceCall(msgspec.Struct, frozen=True):
    """A produce request. `items` are the items' wire bytes one after the other, each tagged and
    length-prefixed as field 15; `lengths` has one little-endian u32 per item: its length in
    `items`. `slots` is as in `commands.Produce`, empty when no item has a key. `timeout_ms` 0: no
    deadline. `groups` and `keys` name those of the items; None: no item has any. `takes_over`:
    items may replace others.
    """

    namespace: str
    queue: str
    items: bytes
    lengths: bytes
    producer_id: bytes = b""
    sequence: int = 0
    ordered: bool = False
    specials: tuple[ItemSpecial, ...] = ()
    timeout_ms: int = 0
    slots: bytes = b""
    groups: FlowNames | None = None
    keys: FlowNames | None = None
    takes_over: bool = False


class ProducedBatch(msgspec.Struct, frozen=True):
    """The items of a request that one partition stored. `indexes` empty: the whole request.
    `duplicates` and `replaced` are (position, partition, seq).
    """

    partition: int
    first_seq: int
    count: int
    indexes: tuple[int, ...] = ()
    repeated: bool = False
    duplicates: tuple[tuple[int, int, int], ...] = ()
    replaced: tuple[tuple[int, int, int], ...] = ()


class ProduceReply(msgspec.Struct, frozen=True):
    """`leader` is the client address of the node that stored the request, if it was another one;
    else empty.
    """

    batches: tuple[ProducedBatch, ...]
    durable: bool
    leader: str = ""


class FlowCounts(msgspec.Struct, frozen=True):
    """The counts of a group with those of the groups below it, or of a key, in one partition. An
    empty `name`: all items; the head is that of items without a group or key.

    `head_seq` is the first of its own items that wait, and `head_attempt` the number of its
    attempts; 0: none waits. `oldest_ready_at_ms` is when it was produced, if it is ready.
    `blocked_until_ms` is when it returns, if it is an item that is retried later and keeps back
    those of its key.
    """

    name: bytes
    weight: int
    leased_max: int
    items: int
    ready: int
    leased: int
    oldest_ready_at_ms: int = 0
    head_seq: int = 0
    head_attempt: int = 0
    blocked_until_ms: int = 0
    next_ms: int = 0
    """When the tokens come that its ready items wait for; 0: none waits."""


class ChosenItems(msgspec.Struct, frozen=True):
    """Items that a lease is for: those with these ids; or else those of one of the kinds (empty:
    of any), with all of the attributes.
    """

    item_ids: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    attributes: tuple[tuple[str, str], ...] = ()


class LeaseCall(msgspec.Struct, frozen=True):
    """A lease request. `wait_ms` 0: do not wait. `lease_timeout_ms` 0: the item's or the queue's.
    `partition` None: any. `chosen` None: the first ready items. `completes`: the items are
    completed before they are sent. `activations`: the items are those of executions; `versions` are
    those of the caller, each a function with its version. `given_up`: what the request was granted
    before is wanted, and nothing else.
    """

    namespace: str
    queue: str
    client_id: str
    request_id: str
    max_items: int
    max_bytes: int
    lease_timeout_ms: int = 0
    wait_ms: int = 0
    partition: int | None = None
    chosen: ChosenItems | None = None
    completes: bool = False
    activations: bool = False
    versions: tuple[tuple[str, str], ...] = ()
    given_up: bool = False


class DeadOrigin(msgspec.Struct, frozen=True):
    """The origin of an item in a dead queue. `reason` is a `DeadReason` of the protocol."""

    origin_queue: str
    origin_partition: int
    origin_seq: int
    attempts: int
    reason: int
    errors: tuple[str, ...]
    produced_at_ms: int
    died_at_ms: int


class LaterAttributes(msgspec.Struct, frozen=True):
    """What the item at `index` of its batch got after it was produced. `attributes` replace those
    of the item; None: no retry has changed them. `checkpoint_bytes` is the size of its checkpoint;
    `checkpoint` is empty where only the size is read.
    """

    index: int
    dead_letter: DeadOrigin | None
    errors: tuple[str, ...]
    attributes: Attributes | None = None
    checkpoint_bytes: int = 0
    checkpoint: bytes = b""


class LoadedItems(msgspec.Struct, frozen=True):
    """Items of one block as stored. Item i has sequence `first_seq` + `ordinals[i]`, or `first_seq`
    + i if `ordinals` is empty.
    """

    first_seq: int
    ordinals: tuple[int, ...]
    count: int
    produced_at_ms: int
    overlays: tuple[LaterAttributes, ...]
    items: bytes


class LeasedRun(msgspec.Struct, frozen=True):
    """A run of leased items for one caller. `remaining_ms` is counted from the creation of the
    reply.
    """

    lease_id: str
    queue: str
    partition: int
    attempt: int
    deadline_ms: int
    remaining_ms: int
    repeated: bool
    loaded: LoadedItems
    priority: int = 0


class LeaseReply(msgspec.Struct, frozen=True):
    batches: tuple[LeasedRun, ...]
    durable: bool


class LeasedRanges(msgspec.Struct, frozen=True):
    """Items under one lease; empty `ranges`: all that the lease still holds."""

    lease_id: str
    ranges: Ranges = ()


class FollowUpItems(msgspec.Struct, frozen=True):
    """Items for `queue` that a settle produces in the same step. The other fields are those of
    `ProduceCall`.
    """

    queue: str
    items: bytes
    lengths: bytes
    specials: tuple[ItemSpecial, ...] = ()
    slots: bytes = b""


class ReturnedResult(msgspec.Struct, frozen=True):
    """What a consumer returns for an item that is under the lease."""

    lease_id: str
    seq: int
    data: bytes


class CompleteCall(msgspec.Struct, frozen=True):
    """With `follow_ups` there is one lease, and `all_or_nothing`, and no `results`. These are of
    items of `leases`. `on_delivery`: no consumer has the items.
    """

    namespace: str
    queue: str
    leases: tuple[LeasedRanges, ...]
    all_or_nothing: bool = False
    timeout_ms: int = 0
    follow_ups: tuple[FollowUpItems, ...] = ()
    results: tuple[ReturnedResult, ...] = ()
    on_delivery: bool = False


class RetryCall(msgspec.Struct, frozen=True):
    """`follow_ups` as in `CompleteCall`."""

    namespace: str
    queue: str
    leases: tuple[LeasedRanges, ...]
    retry_at_ms: int = 0
    dead: bool = False
    error: str = ""
    count_attempt: bool = True
    all_or_nothing: bool = False
    priority: int | None = None
    attributes: Attributes | None = None
    timeout_ms: int = 0
    follow_ups: tuple[FollowUpItems, ...] = ()
    clear_checkpoint: bool = False


class LeaseOutcome(msgspec.Struct, frozen=True):
    """`error` None: nothing was lost."""

    lease_id: str
    done: Ranges
    repeated: Ranges
    lost: Ranges
    error: ErrorCode | None


class SettleReply(msgspec.Struct, frozen=True):
    """One outcome for each lease of the call, in its order."""

    outcomes: tuple[LeaseOutcome, ...]


class Checkpoint(msgspec.Struct, frozen=True):
    """A checkpoint to save with an item that is under the lease. `revision` as in
    `commands.ItemCheckpoint`; `data` empty: the item has none from now on.
    """

    lease_id: str
    seq: int
    data: bytes
    revision: int = 0


class ExtendCall(msgspec.Struct, frozen=True):
    """With `checkpoints`, `lease_ids` has all their leases."""

    namespace: str
    queue: str
    lease_ids: tuple[str, ...]
    client_id: str = ""
    lease_timeout_ms: int = 0
    timeout_ms: int = 0
    checkpoints: tuple[Checkpoint, ...] = ()


class LeaseExtension(msgspec.Struct, frozen=True):
    """`deadline_ms` 0: the lease is lost. `lost_checkpoints` are the sequences of items whose
    checkpoints were refused, because the lease does not hold them.
    """

    lease_id: str
    deadline_ms: int
    remaining_ms: int
    lost_checkpoints: tuple[int, ...] = ()


class ExtendReply(msgspec.Struct, frozen=True):
    outcomes: tuple[LeaseExtension, ...]


class SubscribeCall(msgspec.Struct, frozen=True):
    namespace: str
    queue: str
    client_id: str
    max_items: int
    max_bytes: int
    lease_timeout_ms: int = 0
    auto_extend: bool = False
    release_on_disconnect: bool = False
    consumer_id: str = ""
    stream_number: int = 0
    held_lease_ids: tuple[str, ...] = ()


class BreakerCounts(msgspec.Struct, frozen=True):
    """The breaker of a partition. `until_ms`: OPEN until then; 0: not open. `outcomes` and
    `failures`: those of its window, or those for which it opened; 0: a probe or an operator opened
    it. HALF_OPEN: `probes_passed` items were completed, and one is leased if `probing`.
    """

    state: BreakerState
    since_ms: int
    until_ms: int
    outcomes: int
    failures: int
    probes_passed: int
    probing: bool


class LimitCounts(msgspec.Struct, frozen=True):
    """What the limits of its queue let a partition lease: `tokens` are there, and `burst` gather;
    0: there is no rate limit. `next_ms`: when the tokens come that ready items wait for; 0: none
    waits. `lease_limit`: how many items may be leased at a time; 0: any number.
    """

    tokens: int
    burst: int
    next_ms: int
    lease_limit: int


class ExecutionTotals(msgspec.Struct, frozen=True):
    """Executions of a partition by their state; `closed` are those that have ended and are kept."""

    runnable: int
    parked: int
    stuck: int
    pinned: int
    closed: int


class PartitionCounts(msgspec.Struct, frozen=True):
    """Exact counts of one partition at one applied index; the fields are those of the protocol.
    `waits_for` has the numbers of the partitions for which items of keys are held. `state_ms` is
    state time, and not in the protocol. Items that were `given_up` are included in `dropped`.
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
    oldest_ready_at_ms: int
    oldest_batch_at_ms: int
    staged: int = 0
    staged_bytes: int = 0
    stages: int = 0
    oldest_stage_at_ms: int = 0
    held: int = 0
    waits_for: tuple[int, ...] = ()
    first_seq: int = 0
    head_seq: int = 0
    damaged: int = 0
    """Items that the reporting node cannot read; the other counts include them."""
    state_ms: int = 0
    behind_ms: int = 0
    """How far state time is behind the clock of the leader's node, if that clock was set forward.
    """
    given_up: int = 0
    cancelled: int = 0
    oldest_lease_at_ms: int = 0
    replaced: int = 0
    checkpoint_bytes: int = 0
    breaker: BreakerCounts | None = None
    """None: the queue has none, or these are sums."""
    results: int = 0
    result_bytes: int = 0
    limits: LimitCounts | None = None
    """As `breaker`."""
    completed_on_delivery: int = 0
    """Of the completed items."""
    rates: tuple[ItemRates, ...] = ()
    """Empty: the node that answers does not know them."""
    executions: ExecutionTotals | None = None
    """None: the queue has items, or these are sums. Not in the protocol."""


class QueueCounts(msgspec.Struct, frozen=True):
    queue: Queue
    total: PartitionCounts
    partitions: tuple[PartitionCounts, ...]
    durable: bool


class PartitionTimeError(msgspec.Struct, frozen=True):
    """A partition whose state time is ahead of the clock, or far behind it (less than 0).
    `repaired`: it was, and has been corrected.
    """

    partition: int
    ahead_ms: int
    repaired: bool
    leases: int
    scheduled: int
    expired: int


class BlockDamage(msgspec.Struct, frozen=True):
    """A block that `node`, the leader of the partition, cannot read. `kept` of its items are leased
    or in a reader's batch. `lost`: every replica has reported that it has no intact copy; else
    `reason` says why the block is not repaired.
    """

    partition: int
    first_seq: int
    items: int
    kept: int
    lost: bool
    node: str
    reason: str


class BrowsedItem(msgspec.Struct, frozen=True):
    """An item with its partition's data about it. `state` is an `ItemState` of the protocol; `item`
    its tagged, length-prefixed wire bytes; `lease` 0: not leased. `client_id`,
    `leased_at_ms` and `deadline_ms` are the owner, the grant and the end of the lease. `attributes`
    as in `LaterAttributes`.
    """

    seq: int
    state: int
    attempt: int
    produced_at_ms: int
    due_at_ms: int
    lease: int
    dead_letter: DeadOrigin | None
    errors: tuple[str, ...]
    item: bytes
    priority: int = 0
    client_id: str = ""
    deadline_ms: int = 0
    attributes: Attributes | None = None
    leased_at_ms: int = 0
    checkpoint_bytes: int = 0


class PrioritizeCall(msgspec.Struct, frozen=True):
    """Gives another priority to the items of `item_ids` that are ready, held or scheduled."""

    namespace: str
    queue: str
    item_ids: tuple[str, ...]
    priority: int
    timeout_ms: int = 0


class PrioritizeReply(msgspec.Struct, frozen=True):
    """The number of changed items, and the ids that name no waiting item."""

    changed: int
    not_waiting: tuple[str, ...] = ()


class CancelCall(msgspec.Struct, frozen=True):
    """Removes the items of `item_ids` that are ready, held or scheduled."""

    namespace: str
    queue: str
    item_ids: tuple[str, ...]
    timeout_ms: int = 0


class CancelReply(msgspec.Struct, frozen=True):
    """The number of removed items, and the ids that name no waiting item."""

    cancelled: int
    not_waiting: tuple[str, ...] = ()


class GetItemsCall(msgspec.Struct, frozen=True):
    """The items of `item_ids`, in any state."""

    namespace: str
    queue: str
    item_ids: tuple[str, ...]
    stale: bool = False
    timeout_ms: int = 0


class FoundItems(msgspec.Struct, frozen=True):
    """Items as (group, partition, item), by partition and sequence; the ids of those that are gone,
    and the ids that were not looked up, because the reply is full.
    """

    items: tuple[tuple[int, int, BrowsedItem], ...]
    missing: tuple[str, ...]
    unread: tuple[str, ...]


class SetBreakerCall(msgspec.Struct, frozen=True):
    """Opens or closes the breakers of all partitions of a queue."""

    namespace: str
    queue: str
    open: bool
    timeout_ms: int = 0


class PurgeCall(msgspec.Struct, frozen=True):
    """Removes the waiting items of a queue, or only counts them. `page_token` is that of the reply
    which this call continues.
    """

    namespace: str
    queue: str
    keep_scheduled: bool = False
    dry_run: bool = False
    page_token: str = ""
    timeout_ms: int = 0


class PurgeReply(msgspec.Struct, frozen=True):
    """The number of removed items, where to continue (empty: all is done), and the numbers of items
    that stay, as they were when the call began. `scheduled` is 0 unless these stay.
    """

    removed: int
    next_page_token: str = ""
    leased: int = 0
    reserved: int = 0
    moving: int = 0
    scheduled: int = 0


class ItemRun(msgspec.Struct, frozen=True):
    """Items of one block, in ascending order of sequence, with their partition's data about each.

    `states` has an `ItemState` of the protocol as one byte per item. `due_at_ms` is empty when none
    is scheduled, and `priorities` when all are 0. `overlays` name items by their position in the
    run. `items` are the items' wire bytes, tagged and length-prefixed; `lengths` has the number of
    bytes of each.
    """

    seqs: Sequence[int]
    states: bytes
    attempts: Sequence[int]
    due_at_ms: Sequence[int]
    produced_at_ms: int
    overlays: tuple[LaterAttributes, ...]
    items: bytes
    lengths: Sequence[int]
    priorities: Sequence[int] = ()


class BrowseCall(msgspec.Struct, frozen=True):
    """A scan of one partition's items from `from_seq` to `upto_seq` (0: its head). It selects
    states (a set of bits by number), kinds, and a span of produce times; 0 and empty: any.
    """

    namespace: str
    queue: str
    partition: int
    from_seq: int
    upto_seq: int
    states: int = 0
    kinds: tuple[str, ...] = ()
    produced_from_ms: int = 0
    produced_before_ms: int = 0
    with_value: bool = True
    timeout_ms: int = 0


class BrowsedPage(msgspec.Struct, frozen=True, array_like=True):
    """`columns` is an `ItemColumns`. The next page begins at `next_seq`, which is above `upto_seq`
    when there is none.
    """

    columns: bytes
    next_seq: int
    upto_seq: int


class PeekedPage(msgspec.Struct, frozen=True):
    """`items` are (group, partition, item) in order of partition and sequence. `next_page_token`
    empty: no more.
    """

    items: tuple[tuple[int, int, BrowsedItem], ...]
    next_page_token: str


class Routing(msgspec.Struct, frozen=True):
    """A node's knowledge of where calls go, which may be outdated. `nodes` are (name, client
    address), `leaders` names of nodes by partition, empty where none is known.
    """

    epoch: int
    node: str
    nodes: tuple[tuple[str, str], ...]
    leaders: tuple[str, ...] = ()


class QueuePage(msgspec.Struct, frozen=True):
    queues: tuple[Queue, ...]
    next_page_token: str
