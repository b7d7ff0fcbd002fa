"""Upper bounds of the disk space that a command needs, known before it is appended.

    tier     commands                                                 refused
    ------   ------------------------------------------------------   ---------------
    ADDS     Produce, Stage, Move, Follow, Fire, PutRecurrence: they   first
             add items, or what will add them; StartExecution, Arrive
    LEASES   commands that hand out items, or put them back           next
             without end: Lease, LeasePinned, Retry, Redrive, Reschedule,
             Prioritize, opening readers, reserving for them, Begin
             and Prepare; SaveCheckpoints, and Answer; Record, unless
             it closes, or produces items (it ADDS)
    FREES    all others: Complete, Reject, Cancel, Purge, Extend,     last
             DropLetters, Expire, the end of moves, batches and transactions, and
             settings

The bounds count the bytes of the rows that are put, as `storage.added_bytes` counts them. They do
not include what follows from the size of the command itself (its items, their keys and times, the
ranges that it names): raft counts that. For work that continues in further entries the bound is a
constant (APPLY_SEGMENTS_MAX). Otherwise it follows from the lease rows that the command names. The
rows may be older than the turn of the command: a lease only gets smaller.
"""

from typing import Final

from querator.model.commands import (
    Activate,
    Answer,
    Cancel,
    Command,
    Complete,
    Configure,
    DropLetters,
    Expire,
    Extend,
    Follow,
    ForgetGroups,
    GiveUp,
    Lease,
    LeaseItems,
    Move,
    MoveDone,
    MoveElsewhere,
    MoveReturn,
    Prioritize,
    Produce,
    Purge,
    Redrive,
    Reschedule,
    Retry,
    Route,
    SaveCheckpoints,
    Unhold,
)
from querator.model.entries import Need, Tier
from querator.model.execution_commands import (
    Arrive,
    FireTimers,
    LeasePinned,
    RecordProgress,
    RewindExecution,
    StartExecution,
)
from querator.model.executions import ArriveKind, Close, KeyPolicy, NewRun
from querator.model.limits import (
    APPLY_SEGMENTS_MAX,
    ATTRIBUTES_BYTES_MAX,
    CANCEL_ITEMS_MAX,
    ERROR_CHARS_MAX,
    ERRORS_KEPT_MAX,
    EXECUTION_CHILDREN_MAX,
    EXECUTION_FIRES_MAX,
    GROUP_DEPTH_MAX,
    GROUP_SETTINGS_MAX,
    KIB,
    PRIORITIZE_ITEMS_MAX,
    RECURRENCES_MAX,
    REQUEST_ITEMS_MAX,
    RESCHEDULE_ITEMS_MAX,
)
from querator.model.readers import AdvanceReader, OpenReader, ReleaseReader
from querator.model.recurrences import Fire, PutRecurrence, Remind
from querator.model.transactions import Begin, Discard, DropStages, Prepare, Publish, Stage
from querator.partition.rows import decode_lease
from querator.storage.environment import ReadTransaction
from querator.storage.tables import LEASES

ROW_BYTES: Final = 320
"""Bytes of a row with a mask or a few numbers: key, value and what the storage adds, twice."""
_SEGMENT_BYTES: Final = 8 * ROW_BYTES
"""Bytes of a segment that a command moves: two parts of it stay or die, one part moves."""
_SEGMENTS_BYTES: Final = APPLY_SEGMENTS_MAX * _SEGMENT_BYTES
_LEASE_BYTES: Final = 8 * KIB
"""Bytes of the row of a lease with the longest names and few items, and of its indexes."""
_LEASED_BYTES: Final = 2 * 120
"""Bytes of the items of one segment in a lease row."""
_ITEM_BYTES: Final = 80
"""Bytes of an item that is stored: its offset in its block, its place in the producer's outcome."""
_SPECIAL_BYTES: Final = 9 * ROW_BYTES
"""Bytes of an item with times or a key of its own: segment, indexes, key and its indexes; and
of the rows that change when it replaces another one.
"""
_FLOWS_FACTOR: Final = 1 + GROUP_DEPTH_MAX // 2
"""The rows of a flow and of those above it, compared with those of a segment."""
_FLOW_BYTES: Final = 5 * ROW_BYTES
_BLOCK_BYTES: Final = 8 * KIB
_EXPIRIES_BYTES: Final = 16 * KIB
"""Bytes of the row of a block whose items all have times of their own."""
_STAGE_BYTES: Final = 6 * ROW_BYTES
_LATER_BYTES: Final = (ERRORS_KEPT_MAX + 2) * 4 * KIB + 2 * ATTRIBUTES_BYTES_MAX
"""Bytes of the errors of one item, each of the maximum length, of its dead letter, and of its
attributes.
"""
_ERROR_BYTES: Final = 4 * ERROR_CHARS_MAX
_UNTANGLED_MAX: Final = 128
"""Number of pieces into which a segment may be cut when it returns to its place between others."""
_SMALL_BYTES: Final = 64 * KIB
_AGAIN_ROWS: Final = APPLY_SEGMENTS_MAX + 2 * EXECUTION_CHILDREN_MAX
"""Rows of an execution that begins again, of which each stands for four: of its journal, and of
children that are cancelled.
"""

_LEASING: Final = (Redrive, OpenReader, Begin, Prepare)
_SWEEPING: Final = (
    Activate, MoveDone, MoveReturn, MoveElsewhere, Redrive, Unhold, ForgetGroups, GiveUp, Discard,
    DropStages, Purge, DropLetters, FireTimers,
)  # fmt: skip


def need(txn: ReadTransaction, group: int, command: Command) -> Need:
    """The need of a command. `txn` may show a slightly older state of the partition. Costs one read
    for each lease that the command names.
    """
    match command:
        case Produce() | Stage() | Move() | Fire():
            return Need(Tier.ADDS, _of_items(command))
        case PutRecurrence() | StartExecution() | RecordProgress() | Arrive() | RewindExecution():
            return _of_rows(command)
        case Lease() | LeasePinned():
            return Need(Tier.LEASES, _of_lease(command))
        case Retry():
            tier = Tier.FREES if command.dead else Tier.LEASES
            return Need(tier, _of_settle(txn, group, command.leases, retry=command))
        case Follow():
            return Need(Tier.ADDS, _of_follow(txn, group, command))
        case Complete():
            return Need(Tier.FREES, _of_settle(txn, group, command.leases))
        case Extend() | SaveCheckpoints() | Answer():
            return _of_saving(txn, group, command)
        case Reschedule():
            tier = Tier.FREES if command.cancel else Tier.LEASES
            return Need(tier, _of_reschedule(command))
        case Prioritize():
            return Need(Tier.LEASES, _of_prioritize(command))
        case Cancel():
            items = min(CANCEL_ITEMS_MAX, sum(count for _, count in command.ranges))
            rows = 2 * items if command.dead else items  # Dead ones have rows in the outbox, too.
            return Need(Tier.FREES, _SMALL_BYTES + rows * _SEGMENT_BYTES)
        case AdvanceReader():
            tier = Tier.LEASES if command.max_items else Tier.FREES
            return Need(tier, 2 * _SEGMENTS_BYTES)
        case _:
            tier = Tier.LEASES if isinstance(command, _LEASING) else Tier.FREES
            return Need(tier, _of_step(command))


def _of_rows(
    command: PutRecurrence | StartExecution | RecordProgress | Arrive | RewindExecution,
) -> Need:
    """Raft counts the payloads. Each part of a Record may change a few rows. A termination makes
    none that last.
    """
    if isinstance(command, PutRecurrence):
        return Need(Tier.ADDS, _SMALL_BYTES)
    rows = 16
    items = 0
    tier = Tier.ADDS
    if isinstance(command, RecordProgress):
        rows += 4 * (len(command.records) + len(command.folds) + len(command.timers))
        rows += len(command.published)
        tier = Tier.FREES if isinstance(command.then, Close | NewRun) else Tier.LEASES
        if isinstance(command.then, NewRun):
            rows += APPLY_SEGMENTS_MAX  # Of a journal that goes; its rows are next to each other.
        if (sent := command.sent) is not None:
            tier = Tier.ADDS
            items = _of_sent(command.items, len(sent.specials) + len(sent.targets))
    elif isinstance(command, StartExecution):
        if command.policy == KeyPolicy.RESTART_CLOSED:
            rows += _AGAIN_ROWS
    elif isinstance(command, RewindExecution):
        tier = Tier.FREES
        rows += _AGAIN_ROWS
    elif command.kind in (
        ArriveKind.CANCEL, ArriveKind.TERMINATE, ArriveKind.RETRY,
    ):  # fmt: skip
        tier = Tier.FREES
    bytes_ = _SMALL_BYTES + 2 * _LEASE_BYTES + _BLOCK_BYTES + rows * 4 * ROW_BYTES
    return Need(tier, bytes_ + items)


def with_flows(need: Need, command: Command) -> Need:
    """The need of a command in a fair or keyed queue: the rows of the flows of the items come to
    those of the segments, and the names of the flows.
    """
    bytes_ = need.bytes * _FLOWS_FACTOR + _SMALL_BYTES
    if isinstance(command, Configure):
        bytes_ += 2 * GROUP_SETTINGS_MAX * GROUP_DEPTH_MAX * ROW_BYTES
    elif isinstance(command, Produce | Stage | Move | Fire):
        items = len(command.lengths) >> 2
        names = () if command.flows is None else command.flows.names
        bytes_ += items * _SEGMENT_BYTES
        for name in names:
            depth = min(name.count(b".") + 1, GROUP_DEPTH_MAX)
            bytes_ += depth * (_FLOW_BYTES + 2 * len(name))
        if isinstance(command, Stage):
            # Each block of the stage has the names of its items.
            bytes_ += 2 * items * max((len(name) for name in names), default=0)
    return Need(need.tier, bytes_)


def with_events(need: Need) -> Need:
    """The need of a command in a partition that records events: their bytes for a set of items are
    fewer than those of the rows that change with it.
    """
    return Need(need.tier, 2 * need.bytes + _SMALL_BYTES)


def with_results(
    txn: ReadTransaction, group: int, need: Need, command: Command, asked: int
) -> Need:
    """The need of a command in a partition with items that have `asked` for their results: two rows
    change for each such item that ends.
    """
    match command:
        case Complete() | Retry():
            leases = command.leases
        case Answer():
            leases = command.complete.leases
        case Follow():
            leases = command.settle.leases
        case Extend() | SaveCheckpoints() | Produce():
            return need
        case _:
            items = min(asked, APPLY_SEGMENTS_MAX + REQUEST_ITEMS_MAX)
            return Need(need.tier, need.bytes + items * (2 * ROW_BYTES + _ERROR_BYTES))
    bits = 0
    for lease in {items.lease for items in leases if items.lease > 0}:
        raw = LEASES.get(txn, group, lease)
        for held in () if raw is None else decode_lease(raw).items:
            bits += int.from_bytes(held.held, "little").bit_count()
    each = 2 * ROW_BYTES + (0 if isinstance(command, Complete | Answer) else _ERROR_BYTES)
    return Need(need.tier, need.bytes + min(asked, bits) * each)


def _of_items(command: Produce | Stage | Move | Fire) -> int:
    items = len(command.lengths) >> 2
    special = len(command.items if isinstance(command, Move) else command.specials)
    if isinstance(command, Fire) and command.target_group:
        # Each item may be in a row of the outbox of its own.
        special += items
    return _BLOCK_BYTES + items * _ITEM_BYTES + special * _SPECIAL_BYTES


def _of_lease(command: Lease | LeasePinned) -> int:
    """Segments that die during a lease count like those that are leased. Items that are leased for
    timeouts of their own are in one lease for each timeout. Pinned executions get activations.
    """
    if isinstance(command, LeasePinned):
        most = min(command.most, EXECUTION_FIRES_MAX)
        return 2 * _LEASE_BYTES + _BLOCK_BYTES + most * _SPECIAL_BYTES
    own = sum(max(0, one.max_items) for one in command.callers if not one.lease_timeout_ms)
    return (
        APPLY_SEGMENTS_MAX * (_SEGMENT_BYTES + _LEASED_BYTES)
        + min(own, APPLY_SEGMENTS_MAX) * _LEASE_BYTES
        + len(command.callers) * _LEASE_BYTES
    )


def _of_settle(
    txn: ReadTransaction, group: int, named: tuple[LeaseItems, ...], retry: Retry | None = None
) -> int:
    bytes_ = 0
    for lease in {items.lease for items in named if items.lease > 0}:
        raw = LEASES.get(txn, group, lease)
        if raw is None:
            continue
        held = [items.held for items in decode_lease(raw).items if items.held]
        bytes_ += _LEASE_BYTES + 2 * len(raw) + len(held) * (_SEGMENT_BYTES + _LEASED_BYTES)
        if retry is not None:
            bits = sum(int.from_bytes(mask, "little").bit_count() for mask in held)
            bytes_ += min(bits, len(held) * _UNTANGLED_MAX) * 4 * ROW_BYTES
            noted = retry.error or retry.attributes is not None
            bytes_ += bits * _LATER_BYTES if noted else 0
    return bytes_


def _of_follow(txn: ReadTransaction, group: int, command: Follow) -> int:
    settle = command.settle
    retry = settle if isinstance(settle, Retry) else None
    special = len(command.specials) + len(command.targets)
    bytes_ = _of_settle(txn, group, settle.leases, retry=retry)
    return bytes_ + _of_sent(len(command.lengths) >> 2, special)


def _of_sent(items: int, special: int) -> int:
    """Each item may be in a segment and a row of the outbox of its own, with what it needs at its
    target. `special` counts those with attributes, and the targets.
    """
    return _BLOCK_BYTES + items * _ITEM_BYTES + special * 2 * _SPECIAL_BYTES


def _of_saving(
    txn: ReadTransaction, group: int, command: Extend | SaveCheckpoints | Answer
) -> Need:
    if isinstance(command, Answer):
        return Need(Tier.LEASES, _of_settle(txn, group, command.complete.leases))
    return _of_extend(txn, group, command)


def _of_extend(txn: ReadTransaction, group: int, command: Extend | SaveCheckpoints) -> Need:
    """Each checkpoint needs a row of its item. Raft counts the data."""
    if isinstance(command, SaveCheckpoints):
        need = _of_extend(txn, group, command.extend)
        return Need(Tier.LEASES, need.bytes + len(command.items) * _LATER_BYTES)
    if not command.leases:
        return Need(Tier.FREES, APPLY_SEGMENTS_MAX * _LEASE_BYTES)
    rows = (LEASES.get(txn, group, lease) for lease in set(command.leases) if lease > 0)
    bytes_ = sum(_LEASE_BYTES + 2 * len(raw) for raw in rows if raw is not None)
    return Need(Tier.FREES, bytes_)


def _of_reschedule(command: Reschedule) -> int:
    """Each item may be a segment of its own. If it stays, it may be in a block of its own, whose
    expiries change.
    """
    items = min(RESCHEDULE_ITEMS_MAX, sum(count for _, count in command.ranges))
    each = _SEGMENT_BYTES if command.cancel else _SEGMENT_BYTES + _EXPIRIES_BYTES
    return _SMALL_BYTES + items * each


def _of_prioritize(command: Prioritize) -> int:
    """Each item may be a segment of its own."""
    items = min(PRIORITIZE_ITEMS_MAX, sum(count for _, count in command.ranges))
    return _SMALL_BYTES + items * _SEGMENT_BYTES


def _of_step(command: Command) -> int:
    match command:
        case Expire():
            return 2 * _SEGMENTS_BYTES + APPLY_SEGMENTS_MAX * _LEASE_BYTES
        case Publish():
            return APPLY_SEGMENTS_MAX * (_BLOCK_BYTES + _SPECIAL_BYTES)
        case Prepare():
            return _SMALL_BYTES + len(command.claims) * _STAGE_BYTES
        case Configure() | Route():
            return 4 * _SMALL_BYTES
        case Remind():
            return RECURRENCES_MAX * 4 * ROW_BYTES
        case ReleaseReader():
            return _SEGMENTS_BYTES + APPLY_SEGMENTS_MAX * _UNTANGLED_MAX * 2 * ROW_BYTES
        case _:
            return _SEGMENTS_BYTES if isinstance(command, _SWEEPING) else 16 * _SMALL_BYTES
