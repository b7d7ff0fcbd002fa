"""All tables of a node's environment, and the rows of a block in them.

Values are bytes. Their layouts belong to the package that owns the table. Below each table: the
parts of its key → the content of its value.
"""

from collections.abc import Iterable

from querator.storage.environment import WriteTransaction
from querator.storage.keys import Table

ATTACHMENTS = Table("attachments", b"P", "QI")
"""index, part → bytes, sealed (`storage.attachments`)."""
ATTACHMENTS_DEAD = Table("attachments_dead", b"d", "QI")
"""index, part → nothing: the state machine has dropped the part, the log has not."""

# Tables of a Raft group (querator/raft); `raft.log.journal` documents their values.
LOG = Table("log", b"L", "Q")
"""index → term, time, sizes, command; attachments have a table of their own."""
MEMBERS = Table("members", b"M", "")
"""→ term, vote, beginning of the log, runs of terms in the log."""
APPLIED = Table("applied", b"A", "")
"""→ index, term and time of the last applied entry."""

# Tables of a partition (querator/partition); `partition.rows` documents their values.
STATE = Table("state", b"s", "")
"""→ applied index, term and time, counters, next numbers, earliest due times."""
SETTINGS = Table("settings", b"c", "")
"""→ version, settings."""
BLOCKS = Table("blocks", b"B", "Q")
"""first_seq → attachment, offsets of items, times. Only expiries of items change."""
LIVING = Table("living", b"g", "Q")
"""first_seq → mask of the items that still exist; no row while all items of the block exist."""
SEGMENTS = Table("segments", b"T", "QB")
"""first_seq, lowest ordinal → state, attempt, mask. The authoritative state of an item."""
READY = Table("ready", b"R", "QQB")
"""lane, position, lowest ordinal → first_seq."""
FLOWS = Table("flows", b"F", "Q")
"""flow → parent, counts, turns. A flow is a group of a fair queue, or a key of a keyed one."""
FLOW_NAMES = Table("flow_names", b"V", "16sQ")
"""hash of the name, flow → name."""
FLOW_READY = Table("flow_ready", b"G", "QQQB")
"""flow, rank (1 is the lowest), position, lowest ordinal → first_seq. In place of `ready`. At rank
0: scheduled items that keep back those of their key."""
FLOW_TURNS = Table("flow_turns", b"O", "QQQQQ")
"""parent, rank, load, start, flow → nothing: the flows that have items to lease, in order."""
FLOW_DUE = Table("flow_due", b"9", "QQQ")
"""0: its items wait for tokens; 1: it has no items and its bucket is not full; then due_ms, flow →
nothing."""
HELD = Table("held", b"H", "QQB")
"""lane, position, lowest ordinal → first_seq."""
SCHEDULED = Table("scheduled", b"S", "QQB")
"""due_ms, first_seq, lowest ordinal → nothing."""
EXPIRIES = Table("expiries", b"X", "QQ")
"""expire_at_ms, first_seq → nothing."""
OVERLAYS = Table("overlays", b"I", "Q")
"""seq → facts about one item that became true after it was produced."""
LEASES = Table("leases", b"E", "Q")
"""lease → holder, deadline, items with their outcomes."""
DEADLINES = Table("deadlines", b"D", "QQ")
"""deadline_ms, lease → nothing."""
CLIENT_LEASES = Table("client_leases", b"C", "16sQ")
"""hash of client_id, lease → nothing."""
LEASE_REQUESTS = Table("lease_requests", b"q", "16s")
"""hash of client_id and request_id → lease."""
ENDED = Table("ended_leases", b"e", "Q")
"""lease → holder, end, items with their outcomes."""
ENDED_ORDER = Table("ended_order", b"f", "QQ")
"""ended_at_ms, lease → nothing."""
PRODUCERS = Table("producers", b"i", "16s")
"""producer_id → highest sequence, the sequences still remembered."""
PRODUCER_OUTCOMES = Table("producer_outcomes", b"u", "16sQ")
"""producer_id, sequence → first result."""
PRODUCER_CHECKS = Table("producer_checks", b"v", "Q16s")
"""check_at_ms, producer_id → nothing."""
DEDUP_KEYS = Table("dedup_keys", b"k", "16s")
"""hash of dedup_key → key, seq, time."""
DEDUP_ORDER = Table("dedup_order", b"l", "Q16s")
"""produced_at_ms, hash of dedup_key → nothing."""
DEDUP_LASTING = Table("dedup_lasting", b"K", "Q16s")
"""produced_at_ms, hash of dedup_key → nothing: the keys that last until their item is done."""
DEDUP_ITEMS = Table("dedup_items", b"U", "Q")
"""seq of an item here whose key lasts until it is done → hash of dedup_key."""
DEDUP_AWAY = Table("dedup_away", b"Y", "QQ")
"""partition and seq of an item elsewhere whose key lasts until it is done → hash of dedup_key."""
OUTBOX = Table("outbox", b"o", "QQ")
"""target group, number of the first move → items that are moving."""
OUTBOX_TARGETS = Table("outbox_targets", b"h", "Q")
"""target group → next move number, moves acknowledged."""
MOVED_UPTO = Table("moved_upto", b"m", "Q")
"""source group → the last move received from it; or the last of a range of deleted groups → the
first one."""
READERS = Table("readers", b"z", "16s")
"""hash of reader_id → number, epoch, acknowledged batch, open batch."""
RESERVED = Table("reserved", b"Z", "QQ")
"""number of the reader, index of the first item in its open batch → first_seq, mask."""
STAGES = Table("stages", b"n", "Q")
"""number → producer, task, number of items, transaction that pins it; oldest first."""
STAGE_NAMES = Table("stage_names", b"N", "16sQI16s")
"""hash of producer, batch, task, attempt → number of the stage."""
STAGED = Table("staged", b"w", "QQH")
"""stage, sequence of the request, piece → attachment, lengths, special attributes of items."""
STAGE_CHECKS = Table("stage_checks", b"W", "QQ")
"""check_at_ms, stage → nothing."""
PINNED = Table("pinned", b"p", "QIQ")
"""transaction, task, stage → nothing."""
TXNS = Table("txns", b"a", "Q")
"""transaction → its content and the decision; only in the coordinator."""
TXN_PRODUCERS = Table("txn_producers", b"b", "16s")
"""hash of producer → its last committed batch; only in the coordinator."""
TXN_PRODUCER_CHECKS = Table("txn_producer_checks", b"j", "Q16s")
"""check_at_ms, hash of producer → nothing."""
RECURRENCES = Table("recurrences", b"r", "Q")
"""number → name, specification, revision; only in the first partition of a queue."""
RECURRENCE_NAMES = Table("recurrence_names", b"Q", "16s")
"""hash of name → number of the recurrence."""
RECURRENCE_RUNS = Table("recurrence_runs", b"J", "Q")
"""number of the recurrence → due times that are decided, the next one, its last item."""
RECURRENCE_TIMES = Table("recurrence_times", b"6", "QQ")
"""when the next run can be decided (0: now), number of the recurrence → nothing."""

RESULTS = Table("results", b"7", "Q")
"""seq of an item that was produced for a result → how long it is kept, and how the item ended."""
RESULT_TIMES = Table("result_times", b"8", "QQ")
"""kept_until_ms, seq of an item that has ended → nothing."""

EXECUTIONS = Table("executions", b"@", "Q")
"""number → id, function, state, activation, counts, what it waits for."""
EXECUTION_NAMES = Table("execution_names", b"#", "16s")
"""hash of id → number of the execution."""
ACTIVATIONS = Table("activations", b"%", "Q")
"""seq of an activation → number of its execution."""
RECORDS = Table("records", b"=", "QQ")
"""execution, index → record; a large payload is in an attachment."""
ARRIVALS = Table("arrivals", b"<", "QQ")
"""execution, index of an arrival that its code has not been given → hash of its path or name."""
WAITS = Table("waits", b"&", "Q16s")
"""execution, hash of path → a timer of the partition, or a resolved promise; its arrival."""
EXECUTION_TIMES = Table("execution_times", b"~", "QQ16s")
"""due_ms, execution, hash of the path of a timer (zeros: the deadline; 1: orphans) → nothing."""
SIGNALS_SEEN = Table("signals_seen", b"$", "Q16s")
"""execution, hash of message id → index of the signal."""
SIGNAL_ORDER = Table("signal_order", b"^", "QQ")
"""execution, index of a signal with a message id → hash of message id."""
CHILDREN = Table("children", b",", "QQ")
"""execution, number of a child that has not ended → what waits for it, when it is cancelled."""
PUBLISHED = Table("published", b"!", "Q16s")
"""execution, hash of key → key, value and version of a published value."""
RETAINED = Table("retained", b"_", "QQ")
"""kept_until_ms, number of an execution that has ended → nothing."""
PINS = Table("pins", b"+", "16s16s")
"""hash of a function, hash of what does not fit → function, version, refused versions, count."""
PINNED_EXECUTIONS = Table("pinned_executions", b">", "16s16sQ")
"""the same hashes, position → number of an execution that waits for a version that fits."""

EVENTS = Table("events", b"*", "Q")
"""position of the first event of the row → time of their entry, events."""

# Content of a partition's replica, without attachments and log: its digest hashes these tables.
PARTITION_TABLES = tuple(
    sorted(
        (
            STATE, SETTINGS, BLOCKS, LIVING, SEGMENTS, READY,
            FLOWS, FLOW_NAMES, FLOW_READY, FLOW_TURNS, FLOW_DUE,
            HELD, SCHEDULED, EXPIRIES, OVERLAYS,
            LEASES, DEADLINES, CLIENT_LEASES, LEASE_REQUESTS, ENDED, ENDED_ORDER,
            PRODUCERS, PRODUCER_OUTCOMES, PRODUCER_CHECKS, DEDUP_KEYS, DEDUP_ORDER,
            DEDUP_LASTING, DEDUP_ITEMS, DEDUP_AWAY,
            OUTBOX, OUTBOX_TARGETS, MOVED_UPTO, READERS, RESERVED,
            STAGES, STAGE_NAMES, STAGED, STAGE_CHECKS, PINNED,
            TXNS, TXN_PRODUCERS, TXN_PRODUCER_CHECKS,
            RECURRENCES, RECURRENCE_NAMES, RECURRENCE_RUNS, RECURRENCE_TIMES,
            RESULTS, RESULT_TIMES,
            EXECUTIONS, EXECUTION_NAMES, ACTIVATIONS, RECORDS, ARRIVALS, WAITS,
            EXECUTION_TIMES, SIGNALS_SEEN, SIGNAL_ORDER, CHILDREN, PUBLISHED, RETAINED,
            PINS, PINNED_EXECUTIONS, EVENTS,
        ),
        key=lambda table: table.letter,
    )
)  # fmt: skip

# The placement group (`placement.map.rows`).
PLACEMENT = Table("placement", b"0", "")
"""(one row) → epoch of the map, counters of ids, time."""
NAMESPACES = Table("namespaces", b"1", "16s")
"""hash of name → name."""
QUEUES = Table("queues", b"2", "Q")
"""queue id → queue, version of the settings that all its partitions have, nodes that deleted it."""
NODES = Table("nodes", b"4", "16s")
"""hash of name → node."""
GROUPS = Table("groups", b"5", "Q")
"""group → its founding and target replicas."""

NODE = Table("node", b"3", "", in_generations=False)
"""(one row, group 0) → identity of the directory (`storage.identity`)."""
STARTS = Table("starts", b"t", "16s", in_generations=False)
"""hash of a node's name (group 0) → its newest known starts (`storage.starts`)."""
GENERATIONS = Table("generations", b"x", "", in_generations=False)
"""→ the generation of the group's rows in use, and the other generations."""
INCOMING = Table("incoming", b"y", "", in_generations=False)
"""→ progress of a snapshot from another replica (`raft.snapshot.receiver`)."""

# The Raft state of a group. All other tables of a generation are the state of its machine.
RAFT_TABLES = (ATTACHMENTS, ATTACHMENTS_DEAD, LOG, MEMBERS, APPLIED)

SEALED_LETTERS = frozenset(table.letter[0] for table in (ATTACHMENTS, LOG, MEMBERS, APPLIED, NODE))
"""Tables whose packages seal each value (`storage.sealed`), so that a durable back end need not."""


def put_block(
    txn: WriteTransaction, group: int, first_seq: int, row: bytes, expiries: Iterable[int]
) -> None:
    """Puts the row of a block, and one row in the index of expiries for each instant (ms)."""
    BLOCKS.put(txn, group, first_seq, value=row)
    for expire_at_ms in expiries:
        EXPIRIES.put(txn, group, expire_at_ms, first_seq, value=b"")


def delete_block(
    txn: WriteTransaction, group: int, first_seq: int, expiries: Iterable[int]
) -> None:
    """Deletes what `put_block` put."""
    BLOCKS.delete(txn, group, first_seq)
    for expire_at_ms in expiries:
        EXPIRIES.delete(txn, group, expire_at_ms, first_seq)
