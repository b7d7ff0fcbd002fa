"""What a partition remembers about producers of transactions: one row for each producer.

In the coordinator the rows are the authority: they say which batch of a producer was committed
last, and which transaction is open. Any other partition has a row for each producer whose
transactions it has carried out. The row says which steps come too late:

    committed   Stage of a batch up to this one stages nothing, and says so
    finished    Prepare for a transaction up to this one pins nothing

Numbers of batches and of transactions only grow. The next transaction of a producer begins when the
one before is decided. So one row is enough for any number of steps on their way: no Prepare for a
transaction below `finished` is useful any more.

Rows are remembered for TXN_PRODUCER_RETENTION_MS after their last change. The coordinator refuses
new producers beyond TXN_PRODUCERS_MAX. A participant cannot refuse what is decided, so it forgets
the producer that has been silent for longest.
"""

from querator.model.commands import TxnProducerFact
from querator.model.limits import MINUTE_MS, TXN_PRODUCER_RETENTION_MS, TXN_PRODUCERS_MAX
from querator.partition.apply_context import ApplyContext, earlier
from querator.partition.staging_rows import (
    TxnProducerRow,
    decode_txn_producer,
    encode,
    producer_hash,
)
from querator.storage.environment import ReadTransaction
from querator.storage.tables import TXN_PRODUCER_CHECKS, TXN_PRODUCERS


def load_producer(txn: ReadTransaction, group: int, producer: str) -> TxnProducerRow | None:
    """The row of a producer; None if it has none. Asserts that no two producers share a hash."""
    raw = TXN_PRODUCERS.get(txn, group, producer_hash(producer))
    row = None if raw is None else decode_txn_producer(raw)
    assert row is None or row.producer == producer, "two producers share a hash of 128 bits"
    return row


def put_producer(context: ApplyContext, row: TxnProducerRow) -> None:
    TXN_PRODUCERS.put(context.txn, context.group, producer_hash(row.producer), value=encode(row))


def new_producer(context: ApplyContext, producer: str, last_ms: int) -> TxnProducerRow:
    """A row for a producer that has none. The caller writes it."""
    row = TxnProducerRow(producer, last_ms, 0)
    context.state.txn_producers += 1
    _check_later(context, row)
    return row


def remember(context: ApplyContext, producer: str, *, txn: int = 0, committed: int = -1) -> None:
    """Records that transactions of the producer up to `txn` are over here, and that its batches up
    to `committed` are committed.
    """
    learn(context, TxnProducerFact(producer, committed, context.now_ms), txn)


def learn(context: ApplyContext, fact: TxnProducerFact, txn: int = 0) -> None:
    """As `remember`, at the time of the fact."""
    row = load_producer(context.txn, context.group, fact.producer)
    if row is None:
        _make_room(context)
        row = new_producer(context, fact.producer, fact.last_ms)
    elif fact.committed <= row.committed and txn <= row.finished:
        return
    row.committed = max(row.committed, fact.committed)
    row.finished = max(row.finished, txn)
    row.last_ms = max(row.last_ms, fact.last_ms)
    TXN_PRODUCER_CHECKS.delete(
        context.txn, context.group, row.check_at_ms, producer_hash(row.producer)
    )
    _check_later(context, row)
    put_producer(context, row)


def _make_room(context: ApplyContext) -> None:
    """Forgets one producer if the partition is full. Not in the coordinator: it has its own limit,
    and needs its rows.
    """
    if not context.queue.partition or context.state.txn_producers < TXN_PRODUCERS_MAX:
        return
    key, _ = next(TXN_PRODUCER_CHECKS.rows(context.txn, context.group))
    context.txn.delete(key)
    TXN_PRODUCERS.delete(context.txn, context.group, key[17:])
    context.state.txn_producers -= 1


def forget_txn_producers(context: ApplyContext, rows_max: int) -> int:
    """Forgets producers that have been silent for long. Returns the number of rows checked."""
    txn, group = context.txn, context.group
    due: list[tuple[bytes, bytes]] = []
    for key, _ in TXN_PRODUCER_CHECKS.rows(txn, group):
        if len(due) == rows_max or int.from_bytes(key[9:17], "big") > context.now_ms:
            break
        due.append((key, key[17:]))
    for key, hashed in due:
        raw = TXN_PRODUCERS.get(txn, group, hashed)
        assert raw is not None, "a check names a producer"
        producer = decode_txn_producer(raw)
        txn.delete(key)
        if not producer.open and producer.last_ms + TXN_PRODUCER_RETENTION_MS <= context.now_ms:
            TXN_PRODUCERS.delete(txn, group, hashed)
            context.state.txn_producers -= 1
            continue
        _check_later(context, producer)
        put_producer(context, producer)
    return len(due)


def _check_later(context: ApplyContext, row: TxnProducerRow) -> None:
    """Schedules the next check. Checks are grouped by the minute, and are due at the next minute at
    the earliest.
    """
    at_ms = max(row.last_ms + TXN_PRODUCER_RETENTION_MS, context.now_ms)
    row.check_at_ms = (at_ms // MINUTE_MS + 1) * MINUTE_MS
    TXN_PRODUCER_CHECKS.put(
        context.txn, context.group, row.check_at_ms, producer_hash(row.producer), value=b""
    )
    context.state.cleanup_head_ms = earlier(context.state.cleanup_head_ms, row.check_at_ms)
