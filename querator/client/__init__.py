"""The Python SDK: `Client` for asyncio, `SyncClient` for everybody else.

Importing it loads neither the storage nor the Raft engine. Names load on first use: who needs the
errors alone does not load gRPC. See docs/sdk.md.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
        DamagedBlock,
        DeadLetter,
        DeadReason,
        ExtendOutcome,
        GivenUp,
        Item,
        ItemId,
        ItemState,
        LeaseRef,
        PartitionStats,
        PartitionTime,
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
    "DamagedBlock",
    "DeadLetter",
    "DeadReason",
    "ExtendOutcome",
    "GivenUp",
    "Item",
    "ItemId",
    "ItemState",
    "LeaseRef",
    "LeasedBatch",
    "LeasedItem",
    "PartitionStats",
    "PartitionTime",
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

_HOMES = {
    "Client": "client.client",
    "Consumer": "client.consumer",
    "LeasedBatch": "client.leases",
    "LeasedItem": "client.leases",
    "Producer": "client.producer",
    "SyncClient": "client.sync",
    "SyncConsumer": "client.sync",
    "SyncLeasedBatch": "client.sync",
    "SyncLeasedItem": "client.sync",
    "SyncProducer": "client.sync",
    "Tls": "wire.tls",
    "TlsError": "wire.tls",
}
"""Where names are that are not in `client.values`."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = import_module(f"querator.{_HOMES.get(name, 'client.values')}")
    return getattr(home, name)


def __dir__() -> list[str]:
    return sorted(__all__)
