"""Batches that transactions have staged for a queue: calls of operators."""

from collections.abc import Sequence
from datetime import datetime
from enum import IntEnum

import msgspec

from querator.client.items import instant
from querator.client.transport.nodes import Nodes
from querator.client.typed import check_unsigned
from querator.v1 import transaction_service_pb2 as pb


class TxnState(IntEnum):
    """State of a batch; the numbers are those of the protocol. Only STAGED batches expire."""

    STAGED = 1
    PREPARING = 2
    COMMITTED = 3
    ABORTED = 4


class StagedBatch(msgspec.Struct, frozen=True):
    """Batch `batch` of `producer`: number of its stages, of its items, which are not visible, and
    of their bytes.
    """

    producer: str
    batch: int
    state: TxnState
    stages: int
    items: int
    bytes: int
    begun_at: datetime
    changed_at: datetime


class StagedBatches(msgspec.Struct, frozen=True):
    """Staged batches, the oldest first. `more`: there are further batches behind them."""

    batches: tuple[StagedBatch, ...]
    more: bool


class Aborted(msgspec.Struct, frozen=True):
    """Result of an abort. `committed`: the batch was committed, so nothing was dropped. `stages`:
    number of dropped stages.
    """

    committed: bool
    stages: int


class Transactions:
    """The calls of one client about transactions, in its namespace. `Client` documents them."""

    def __init__(self, nodes: Nodes, namespace: str) -> None:
        self._nodes = nodes
        self._namespace = namespace

    async def list(self, name: str) -> StagedBatches:
        request = pb.ListTxnsRequest(namespace=self._namespace, queue=name)
        response = await self._nodes.call(
            lambda node, left: node.transactions.ListTxns(request, timeout=left), changes=False
        )
        return StagedBatches(_batches(response.txns), response.more)

    async def abort(self, name: str, producer: str, batch: int) -> Aborted:
        check_unsigned("batch", batch, 64)
        request = pb.AbortTxnRequest(
            namespace=self._namespace, queue=name, producer=producer, batch=batch
        )
        response = await self._nodes.call(
            lambda node, left: node.transactions.AbortTxn(request, timeout=left)
        )
        return Aborted(response.already_committed, response.stages)


def _batches(txns: Sequence[pb.Txn]) -> tuple[StagedBatch, ...]:
    return tuple(
        StagedBatch(
            producer=one.producer,
            batch=one.batch,
            state=TxnState(one.state),
            stages=one.stages,
            items=one.items,
            bytes=one.bytes,
            begun_at=instant(one.begun_at),
            changed_at=instant(one.changed_at),
        )
        for one in txns
    )
