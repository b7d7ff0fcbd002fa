"""The next steps of transactions, read from the tables for the component that carries them out.

The carrier at the coordinator takes an open transaction, proposes its steps to the participants,
and records the result: a verdict, or that all have confirmed. It may stop at any point, and another
carrier begins again: every step may be repeated any number of times.

    PREPARING    Prepare at each participant; then Decide, by their answers
    COMMITTED    Publish at each participant, until no work remains; then Finish
    ABORTED      Discard at each participant, likewise; then Finish

A partition with pinned stages regularly asks the coordinator whether it still has the transaction.
If it does not, the transaction is over, and its stages are discarded. For stages that are not
pinned, the partition asks which batches are committed. Those are stages of attempts that do not
count, in a partition that no commit has named.
"""

from collections.abc import Sequence

import msgspec

from querator.model.commands import Refusal, Result
from querator.model.errors import ErrorCode
from querator.model.transactions import (
    Decide,
    Discard,
    Prepare,
    ProducerTotals,
    Publish,
    StagedTotals,
    TransactionState,
    TxnResult,
)
from querator.partition.staging_rows import TxnRow, decode_stage, decode_txn
from querator.partition.transactions import txn_result
from querator.partition.txn_producers import load_producer
from querator.storage import generations
from querator.storage.environment import ReadTransaction
from querator.storage.tables import PINNED, STAGE_NAMES, STAGES, TXNS


class OpenTxn(msgspec.Struct, frozen=True):
    """A transaction that is not finished. `steps` has the group and the command for each
    participant.
    """

    number: int
    state: TransactionState
    steps: tuple[tuple[int, Prepare | Publish | Discard], ...]


class PinnedTxn(msgspec.Struct, frozen=True, array_like=True):
    """A transaction for which stages are pinned in a participant."""

    txn: int
    producer: str
    batch: int


class TxnQuery(msgspec.Struct, frozen=True, array_like=True, tag="x"):
    """Asks for a `TxnResult`: the transaction as the coordinator has it, after waiting up to
    `wait_ms` for the decision. `finished`: it also waits until an abort has been carried out.
    """

    group: int
    txn: int
    producer: str
    batch: int
    wait_ms: int = 0
    finished: bool = False

    def waits(self, result: TxnResult) -> bool:
        """Whether the query must still wait after this result."""
        if result.state is TransactionState.PREPARING:
            return True
        return self.finished and result.state is TransactionState.ABORTED and result.txn == self.txn


class OpenBatchName(msgspec.Struct, frozen=True, array_like=True):
    """A batch with staged items."""

    producer: str
    batch: int


class CommittedQuery(msgspec.Struct, frozen=True, array_like=True, tag="k"):
    """Asks for the last committed batch of each producer. -1 means that none is known."""

    group: int
    producers: tuple[str, ...]


class ProducerQuery(msgspec.Struct, frozen=True, array_like=True, tag="u"):
    """Asks for the `ProducerTotals` of a producer."""

    group: int
    producer: str


class StagedQuery(msgspec.Struct, frozen=True, array_like=True, tag="g"):
    """Asks for a `StagedPage`."""

    group: int
    limit: int


class StagedPage(msgspec.Struct, frozen=True):
    """The staged items of a partition by batch, the oldest first. `more`: some batches are left
    out.
    """

    batches: tuple[StagedTotals, ...]
    more: bool


TransactionQuery = TxnQuery | CommittedQuery | ProducerQuery | StagedQuery


def open_numbers(txn: ReadTransaction, group: int) -> tuple[int, ...]:
    """Numbers of the transactions that are not finished."""
    rows = TXNS.rows(generations.view(txn, group), group)
    return tuple(int.from_bytes(key[-8:], "big") for key, _ in rows)


def open_txns(txn: ReadTransaction, group: int) -> tuple[OpenTxn, ...]:
    """All transactions that this partition coordinates, by number."""
    txn = generations.view(txn, group)
    return tuple(
        _open(int.from_bytes(key[-8:], "big"), decode_txn(row))
        for key, row in TXNS.rows(txn, group)
    )


def open_txn(txn: ReadTransaction, group: int, number: int) -> OpenTxn | None:
    """One transaction. None means that it is finished."""
    row = TXNS.get(generations.view(txn, group), group, number)
    return None if row is None else _open(number, decode_txn(row))


def _open(number: int, row: TxnRow) -> OpenTxn:
    steps: list[tuple[int, Prepare | Publish | Discard]] = []
    for one in row.participants:
        if row.state == TransactionState.PREPARING:
            step: Prepare | Publish | Discard = Prepare(number, row.producer, row.batch, one.claims)
        elif row.state == TransactionState.COMMITTED:
            step = Publish(number, row.producer, row.batch)
        else:
            step = Discard(number, row.keep, row.producer, row.batch)
        steps.append((one.group, step))
    return OpenTxn(number, TransactionState(row.state), tuple(steps))


def verdict(number: int, answers: Sequence[Result]) -> Decide:
    """The decision when all participants have answered Prepare. If the stages are not the cause of
    a refusal, they are kept for a later commit.
    """
    refusals = [answer for answer in answers if isinstance(answer, Refusal)]
    if not refusals:
        return Decide(number)
    refusals.sort(key=lambda refusal: refusal.code is not ErrorCode.TRANSACTION_ABORTED)
    worst = refusals[0]
    keep = worst.code is not ErrorCode.TRANSACTION_ABORTED
    return Decide(number, int(worst.code), worst.message, keep)


def pinned_txns(txn: ReadTransaction, group: int) -> tuple[PinnedTxn, ...]:
    """Transactions for which stages are pinned here."""
    txn = generations.view(txn, group)
    found: dict[int, PinnedTxn] = {}
    for key, _ in PINNED.rows(txn, group):
        number, _, stage = PINNED.parts(key)
        assert isinstance(number, int)
        if number in found:
            continue
        raw = STAGES.get(txn, group, stage)
        assert raw is not None, "a pinned stage exists"
        row = decode_stage(raw)
        found[number] = PinnedTxn(number, row.producer, row.batch)
    return tuple(found.values())


def open_batches(txn: ReadTransaction, group: int, most: int) -> tuple[OpenBatchName, ...]:
    """Up to `most` batches with staged items. Costs one step for each batch."""
    txn = generations.view(txn, group)
    found: list[OpenBatchName] = []
    start, stop = STAGE_NAMES.bounds(group)
    while len(found) < most:
        first = next(iter(txn.scan(start, stop)), None)
        if first is None:
            break
        key, stage = first
        raw = STAGES.get(txn, group, int.from_bytes(stage, "big"))
        assert raw is not None, "a named stage exists"
        row = decode_stage(raw)
        found.append(OpenBatchName(row.producer, row.batch))
        hashed, batch, _, _ = STAGE_NAMES.parts(key)
        _, start = STAGE_NAMES.bounds(group, hashed, batch)
    return tuple(found)


def oldest_stage_ms(txn: ReadTransaction, group: int) -> int:
    """When the oldest stage was begun. 0 means that there is none. `txn` is a view."""
    for _, raw in STAGES.rows(txn, group):
        return decode_stage(raw).begun_ms
    return 0


def answer(
    txn: ReadTransaction, query: TransactionQuery
) -> TxnResult | tuple[int, ...] | ProducerTotals | StagedPage:
    """The answer from the current tables."""
    view = generations.view(txn, query.group)
    match query:
        case TxnQuery():
            return txn_result(view, query.group, query.txn, query.producer, query.batch)
        case CommittedQuery():
            return tuple(_committed(view, query.group, producer) for producer in query.producers)
        case ProducerQuery():
            row = load_producer(view, query.group, query.producer)
            if row is None:
                return ProducerTotals()
            return ProducerTotals(row.committed, row.batch_items, row.items)
        case StagedQuery():
            return _staged(view, query)


def _committed(view: ReadTransaction, group: int, producer: str) -> int:
    row = load_producer(view, group, producer)
    return -1 if row is None else row.committed


def _staged(view: ReadTransaction, query: StagedQuery) -> StagedPage:
    batches: dict[tuple[str, int], StagedTotals] = {}
    more = False
    for _, raw in STAGES.rows(view, query.group):
        row = decode_stage(raw)
        if row.doomed:
            continue
        key = (row.producer, row.batch)
        before = batches.get(key)
        if before is None and len(batches) == query.limit:
            more = True
            continue
        one = StagedTotals(
            producer=row.producer,
            batch=row.batch,
            stages=1,
            items=row.count,
            bytes=row.size,
            begun_ms=row.begun_ms,
            since_ms=row.since_ms,
            state=TransactionState.PREPARING if row.txn else TransactionState.NONE,
        )
        batches[key] = one if before is None else before.joined(one)
    for _, raw in TXNS.rows(view, query.group):
        txn = decode_txn(raw)
        key = (txn.producer, txn.batch)
        before = batches.get(key)
        if before is None and len(batches) == query.limit:
            more = True
            continue
        one = StagedTotals(
            producer=txn.producer,
            batch=txn.batch,
            stages=0,
            items=0,
            bytes=0,
            begun_ms=txn.begun_ms,
            since_ms=txn.begun_ms,
            state=TransactionState(txn.state),
        )
        batches[key] = one if before is None else before.joined(one)
    return StagedPage(tuple(batches.values()), more)
