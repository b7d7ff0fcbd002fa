"""The Python SDK: `Client` for asyncio, `SyncClient` for programs without an event loop.

Importing the package loads neither the storage nor the Raft engine. Names load on first use: a
program that needs only the errors does not load gRPC. Parsing of requests on the server side does
not belong here (`querator.wire`). See docs/sdk.md.

    client        Client: the entry point of the SDK for asyncio
    sync          SyncClient and its producer, consumer and leased items
    producing     the producer: batches, its stream, unanswered requests
    consuming     the consumer: lease streams, leases, settling
    readers       readers: named batches that can be read again
    groups        groups of fair queues: settings as messages, counts
    fair_groups   the settings of a group
    breakers      breakers of queues: settings and states as messages, set by hand
    breaker_values  the settings and the states of breakers
    limits        limits of leases: settings and what they permit, as messages
    limit_values  the settings of limits of leases, and what they permit
    keys          keys of keyed queues: counts, and skipped items
    live_leases   live leases for operators: lists, and leases that are ended by hand
    events        events of a queue, followed over all partitions
    executions    calls about executions of durable functions, in bytes
    locks         locks, semaphores and elections over leases
    recurrences   items that a queue produces by itself
    schedules     scheduled items: list, count, move, run and cancel them
    transactions  staged batches: list and abort
    admin         calls about queues: create, list, update, delete, peek
    cluster       ClusterAdmin: state of the cluster, calls about nodes
    values        values that callers pass and get back
    errors        the exceptions, one class for each ErrorCode
    faults        why no connection to an address is made
    items         encoding and decoding of items
    options       keyword options as types
    pages         lists of items that come page by page
    outcomes      what a handler may raise: Retry, Reject
    replies       results of items, and waits for them
    results       conversion of protocol answers to the SDK's values
    checks        range checks of options
    clock         the wall clock of clients, which tests replace
    logs          the SDK's loggers
    names         the name of a client as an owner of leases
    typed         checks of the types of arguments
    transport     connections, repeated calls, streams, gRPC errors
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from querator.client.breaker_values import Breaker, BreakerStats
    from querator.client.client import Client
    from querator.client.consuming.consumer import Consumer
    from querator.client.consuming.leases import LeasedBatch, LeasedItem
    from querator.client.events import EventPosition, Events, QueueEvent
    from querator.client.fair_groups import FairGroup
    from querator.client.groups import GroupStats
    from querator.client.keys import KeyStats
    from querator.client.limit_values import LimitStats, RateLimit
    from querator.client.live_leases import LeaseInfo
    from querator.client.locks.election import Election
    from querator.client.locks.holding import Holding
    from querator.client.locks.lock import Lock, Semaphore
    from querator.client.locks.rw_lock import RwLock
    from querator.client.locks.tokens import LockHolder
    from querator.client.outcomes import HandlerTimeout, Reject, Retry, UndecodablePayload
    from querator.client.producing.producer import Producer
    from querator.client.recurrences import Recurrence, Recurrences, RecurrenceTime
    from querator.client.replies import ItemResult
    from querator.client.schedules import (
        Rescheduled,
        ScheduledBucket,
        ScheduleDensity,
        ScheduledItems,
    )
    from querator.client.sync.client import (
        SyncClient,
        SyncConsumer,
        SyncLeasedBatch,
        SyncLeasedItem,
        SyncProducer,
    )
    from querator.client.sync.events import SyncEvents
    from querator.client.sync.locks import (
        SyncElection,
        SyncHolding,
        SyncLock,
        SyncRwLock,
        SyncSemaphore,
    )
    from querator.client.sync.recurrences import SyncRecurrences
    from querator.client.sync.schedules import SyncScheduledItems
    from querator.client.values import (
        Cancelled,
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
        Prioritized,
        ProducedItem,
        ProducedItems,
        Purged,
        QueueInfo,
        QueueStats,
        Rates,
        RetryPolicy,
        SettleOutcome,
    )
    from querator.wire.tls import Tls, TlsError

__all__ = [
    "Breaker",
    "BreakerStats",
    "Cancelled",
    "Client",
    "Consumer",
    "DamagedBlock",
    "DeadLetter",
    "DeadReason",
    "Election",
    "EventPosition",
    "Events",
    "ExtendOutcome",
    "FairGroup",
    "GivenUp",
    "GroupStats",
    "HandlerTimeout",
    "Holding",
    "Item",
    "ItemId",
    "ItemResult",
    "ItemState",
    "KeyStats",
    "LeaseInfo",
    "LeaseRef",
    "LeasedBatch",
    "LeasedItem",
    "LimitStats",
    "Lock",
    "LockHolder",
    "PartitionStats",
    "PartitionTime",
    "PeekedItem",
    "Prioritized",
    "ProducedItem",
    "ProducedItems",
    "Producer",
    "Purged",
    "QueueEvent",
    "QueueInfo",
    "QueueStats",
    "RateLimit",
    "Rates",
    "Recurrence",
    "RecurrenceTime",
    "Recurrences",
    "Reject",
    "Rescheduled",
    "Retry",
    "RetryPolicy",
    "RwLock",
    "ScheduleDensity",
    "ScheduledBucket",
    "ScheduledItems",
    "Semaphore",
    "SettleOutcome",
    "SyncClient",
    "SyncConsumer",
    "SyncElection",
    "SyncEvents",
    "SyncHolding",
    "SyncLeasedBatch",
    "SyncLeasedItem",
    "SyncLock",
    "SyncProducer",
    "SyncRecurrences",
    "SyncRwLock",
    "SyncScheduledItems",
    "SyncSemaphore",
    "Tls",
    "TlsError",
    "UndecodablePayload",
]

_HOMES = {
    "Breaker": "client.breaker_values",
    "LimitStats": "client.limit_values",
    "RateLimit": "client.limit_values",
    "BreakerStats": "client.breaker_values",
    "Client": "client.client",
    "Consumer": "client.consuming.consumer",
    "FairGroup": "client.fair_groups",
    "GroupStats": "client.groups",
    "KeyStats": "client.keys",
    "LeaseInfo": "client.live_leases",
    "HandlerTimeout": "client.outcomes",
    "ItemResult": "client.replies",
    "QueueEvent": "client.events",
    "EventPosition": "client.events",
    "Events": "client.events",
    "SyncEvents": "client.sync.events",
    "Election": "client.locks.election",
    "RwLock": "client.locks.rw_lock",
    "SyncElection": "client.sync.locks",
    "SyncRwLock": "client.sync.locks",
    "Holding": "client.locks.holding",
    "Lock": "client.locks.lock",
    "LockHolder": "client.locks.tokens",
    "Semaphore": "client.locks.lock",
    "SyncHolding": "client.sync.locks",
    "SyncLock": "client.sync.locks",
    "SyncSemaphore": "client.sync.locks",
    "LeasedBatch": "client.consuming.leases",
    "LeasedItem": "client.consuming.leases",
    "Producer": "client.producing.producer",
    "Recurrence": "client.recurrences",
    "RecurrenceTime": "client.recurrences",
    "Recurrences": "client.recurrences",
    "Reject": "client.outcomes",
    "Rescheduled": "client.schedules",
    "Retry": "client.outcomes",
    "ScheduledBucket": "client.schedules",
    "ScheduleDensity": "client.schedules",
    "ScheduledItems": "client.schedules",
    "SyncClient": "client.sync.client",
    "SyncConsumer": "client.sync.client",
    "SyncLeasedBatch": "client.sync.client",
    "SyncLeasedItem": "client.sync.client",
    "SyncProducer": "client.sync.client",
    "SyncRecurrences": "client.sync.recurrences",
    "SyncScheduledItems": "client.sync.schedules",
    "Tls": "wire.tls",
    "TlsError": "wire.tls",
    "UndecodablePayload": "client.outcomes",
}
"""Modules of the names that are not in `client.values`."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = import_module(f"querator.{_HOMES.get(name, 'client.values')}")
    return getattr(home, name)


def __dir__() -> list[str]:
    return sorted(__all__)
