"""Transactions: the first partition of a queue coordinates the transactions of producers.

    Begin ──► PREPARING ──Decide──► COMMITTED ──┐
                  │                             ├──Finish──► (nothing)
                  └──Decide, AbortTxn─► ABORTED ┘

The decision is one row of one log. It commits the batch, and records that in the row of its
producer, which outlives the transaction. The leader of the partition asks the participants to
prepare, decides by their answers, and repeats the decision to them until all have confirmed
(`service.transactions.calls`). Everything that it needs for that is in the tables. So it may stop
at any point, and two leaders may do the same work at once.

Batches of a producer are numbered upwards: a batch that is not above the last committed one is
committed. A producer has at most one transaction that is not decided, or whose abort is not carried
out. Two commits of one batch meet here, and the second one is answered with the outcome of the
first. An aborted batch may come again, under other attempts.

Producers are remembered for TXN_PRODUCER_RETENTION_MS after their last transaction, and up to
TXN_PRODUCERS_MAX of them. Beyond that, new producers are refused.
"""

from querator.model.commands import Refusal
from querator.model.errors import ErrorCode
from querator.model.limits import (
    TXN_CLAIMS_MAX,
    TXN_NUMBER_MAX,
    TXN_PRODUCER_CHARS_MAX,
    TXN_PRODUCERS_MAX,
    TXNS_OPEN_MAX,
)
from querator.model.transactions import AbortTxn, Begin, Decide, Finish, TransactionState, TxnResult
from querator.partition.apply_context import ApplyContext, unconfigured
from querator.partition.staging_rows import TxnProducerRow, TxnRow, decode_txn, encode
from querator.partition.txn_producers import load_producer, new_producer, put_producer
from querator.storage.environment import ReadTransaction
from querator.storage.tables import TXNS

NO_TXN = TxnResult(0, TransactionState.NONE)


def begin(context: ApplyContext, command: Begin) -> TxnResult | Refusal:
    """The transaction of the batch, opened or as it is. COMMITTED without a number: the batch has
    been committed. `mine` False: another transaction of the producer must first be decided and
    carried out.
    """
    if context.row is None:
        return unconfigured()
    refusal = _malformed(context, command)
    if refusal is not None:
        return refusal
    producer = load_producer(context.txn, context.group, command.producer)
    if producer is not None:
        if command.batch <= producer.committed:
            return TxnResult(0, TransactionState.COMMITTED)
        if producer.open:
            row = load_txn(context.txn, context.group, producer.open)
            assert row is not None, "an open transaction has a row"
            same = (row.batch, row.participants) == (command.batch, command.participants)
            mine = same and row.state == TransactionState.PREPARING
            return TxnResult(producer.open, TransactionState(row.state), mine)
    refusal = _no_room(context, known=producer is not None)
    if refusal is not None:
        return refusal
    state = context.state
    number = state.next_txn
    state.next_txn = number + 1
    state.txns += 1
    row = TxnRow(
        command.producer,
        command.batch,
        TransactionState.PREPARING,
        context.now_ms,
        command.participants,
    )
    TXNS.put(context.txn, context.group, number, value=encode(row))
    if producer is None:
        producer = new_producer(context, command.producer, context.now_ms)
    producer.last_ms, producer.open = context.now_ms, number
    put_producer(context, producer)
    return TxnResult(number, TransactionState.PREPARING)


def _malformed(context: ApplyContext, command: Begin) -> Refusal | None:
    """The refusal of a malformed command, which the service must not have accepted; else None."""
    claims = sum(len(one.claims) for one in command.participants)
    if context.queue.partition:
        wrong = "partition must be the first one of its queue to coordinate"
    elif not 0 < len(command.producer) <= TXN_PRODUCER_CHARS_MAX:
        wrong = f"producer must have 1 to {TXN_PRODUCER_CHARS_MAX} characters"
    elif not 0 <= command.batch <= TXN_NUMBER_MAX:
        wrong = f"batch must be 0 to {TXN_NUMBER_MAX}"
    elif claims > TXN_CLAIMS_MAX:
        wrong = f"stages are {claims}; the limit is {TXN_CLAIMS_MAX}"
    else:
        return None
    return Refusal(ErrorCode.INVALID_ARGUMENT, wrong, field=wrong.split(maxsplit=1)[0])


def _no_room(context: ApplyContext, *, known: bool) -> Refusal | None:
    if context.state.txns >= TXNS_OPEN_MAX:
        return Refusal(
            ErrorCode.OVERLOADED,
            f"the queue has {context.state.txns} transactions that are not finished; the limit is "
            f"{TXNS_OPEN_MAX}",
            field="producer",
            limit=str(TXNS_OPEN_MAX),
            value=str(context.state.txns),
        )
    if not known and context.state.txn_producers >= TXN_PRODUCERS_MAX:
        return Refusal(
            ErrorCode.TOO_MANY_PRODUCERS,
            f"the queue remembers {TXN_PRODUCERS_MAX} producers of transactions; new producers "
            "are accepted when others have been idle for long: give pipelines permanent names",
            field="producer",
            limit=str(TXN_PRODUCERS_MAX),
        )
    return None


def decide(context: ApplyContext, command: Decide) -> TxnResult:
    """The decided transaction. NONE means that it is finished."""
    row = load_txn(context.txn, context.group, command.txn)
    if row is None:
        return NO_TXN
    if row.state == TransactionState.PREPARING:
        _decide(context, command, row)
    return _result(command.txn, row)


def _decide(context: ApplyContext, command: Decide, row: TxnRow) -> None:
    producer = load_producer(context.txn, context.group, row.producer)
    assert producer is not None, "the producer of a transaction is known"
    assert producer.open == command.txn
    row.code, row.message, row.keep = command.code, command.message, command.keep
    if command.code:
        row.state = TransactionState.ABORTED
        producer.aborted = command.txn
        producer.code, producer.message = command.code, command.message
    else:
        assert row.batch > producer.committed, "a batch is committed once"
        row.state = TransactionState.COMMITTED
        producer.committed, producer.open = row.batch, 0
        producer.batch_items = sum(claim.count for one in row.participants for claim in one.claims)
        producer.items += producer.batch_items
    producer.last_ms = context.now_ms
    put_producer(context, producer)
    TXNS.put(context.txn, context.group, command.txn, value=encode(row))


def abort_txn(context: ApplyContext, command: AbortTxn) -> TxnResult | Refusal:
    """Aborts the transaction of a batch. COMMITTED: the abort is too late. ABORTED: the open
    transaction is aborted. NONE: none was open.
    """
    if context.row is None:
        return unconfigured()
    producer = load_producer(context.txn, context.group, command.producer)
    if producer is None:
        return NO_TXN
    if command.batch <= producer.committed:
        return TxnResult(0, TransactionState.COMMITTED)
    row = load_txn(context.txn, context.group, producer.open) if producer.open else None
    if row is None or row.batch != command.batch:
        return NO_TXN
    code = int(ErrorCode.TRANSACTION_ABORTED)
    return decide(context, Decide(producer.open, code, "it was aborted by request"))


def finish(context: ApplyContext, command: Finish) -> TxnResult:
    """Removes a decided transaction, and returns NONE. A transaction that is not decided is
    returned as it is.
    """
    row = load_txn(context.txn, context.group, command.txn)
    if row is None:
        return NO_TXN
    if row.state == TransactionState.PREPARING:
        return _result(command.txn, row)
    TXNS.delete(context.txn, context.group, command.txn)
    context.state.txns -= 1
    producer = load_producer(context.txn, context.group, row.producer)
    if producer is not None and producer.open == command.txn:
        producer.open = 0
        put_producer(context, producer)
    return NO_TXN


# --- rows ----------------------------------------------------------------------------------------


def load_txn(txn: ReadTransaction, group: int, number: int) -> TxnRow | None:
    raw = TXNS.get(txn, group, number)
    return None if raw is None else decode_txn(raw)


def _result(number: int, row: TxnRow) -> TxnResult:
    code = ErrorCode(row.code) if row.code else None
    return TxnResult(number, TransactionState(row.state), code=code, message=row.message)


def result_of(row: TxnProducerRow | None, number: int, batch: int) -> TxnResult:
    """The outcome of a finished transaction, from the row of its producer."""
    if row is None:
        return NO_TXN
    if batch <= row.committed:
        return TxnResult(0, TransactionState.COMMITTED)
    if row.aborted == number:
        return TxnResult(0, TransactionState.ABORTED, code=ErrorCode(row.code), message=row.message)
    return NO_TXN


def txn_result(
    txn: ReadTransaction, group: int, number: int, producer: str, batch: int
) -> TxnResult:
    """The current state of a transaction, or its outcome."""
    row = load_txn(txn, group, number)
    if row is not None:
        return _result(number, row)
    return result_of(load_producer(txn, group, producer), number, batch)
