"""The Python SDK: `Client` for asyncio, `SyncClient` for everybody else.

Importing it loads neither the storage nor the Raft engine. See docs/sdk.md.
"""

from querator.client.client import Client
from querator.client.consumer import Consumer
from querator.client.leases import LeasedBatch, LeasedItem
from querator.client.producer import Producer
from querator.client.sync import (
    SyncClient,
    SyncConsumer,
    SyncLeasedBatch,
    SyncLeasedItem,
    SyncProducer,
)
from querator.client.values import (
    DeadLetter,
    DeadReason,
    ExtendOutcome,
    Item,
    ItemId,
    ItemState,
    LeaseRef,
    PartitionStats,
    PeekedItem,
    Priority,
    ProducedItem,
    ProducedItems,
    QueueInfo,
    QueueStats,
    SettleOutcome,
)
from querator.wire.tls import Tls, TlsError

__all__ = [
    "Client",
    "Consumer",
    "DeadLetter",
    "DeadReason",
    "ExtendOutcome",
    "Item",
    "ItemId",
    "ItemState",
    "LeaseRef",
    "LeasedBatch",
    "LeasedItem",
    "PartitionStats",
    "PeekedItem",
    "Priority",
    "ProducedItem",
    "ProducedItems",
    "Producer",
    "QueueInfo",
    "QueueStats",
    "SettleOutcome",
    "SyncClient",
    "SyncConsumer",
    "SyncLeasedBatch",
    "SyncLeasedItem",
    "SyncProducer",
    "Tls",
    "TlsError",
]
