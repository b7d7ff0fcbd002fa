"""Querator: a clustered lease queue with Almost Exactly Once Delivery.

The public names load on first use, so a program that only talks to a server never loads the storage
or the Raft engine:

* `Client`, `SyncClient`, `Tls`: the SDK;
* `Item`, `LeasedItem`, `PeekedItem` and others: the values and types of its calls;
* `errors`: the exceptions;
* `Worker`, and the exceptions `Retry`, `Reject`, `UndecodablePayload` and `HandlerTimeout` of its
  handlers;
* `Node`, `SyncNode`, `NodeFailedError`: a node in the caller's process, with the extra `server`.

Code belongs into a package; only modules that assemble a node or serve all packages are here.
`.importlinter` holds the order of the imports.

    __main__     `python -m querator`: the same as the command `querator`
    cli          the command `querator`
    client       the Python SDK
    config       the settings of a node: sources, checks, addresses
    durable      durable functions: continue after crashes, from a journal
    errors       the exceptions that programs catch
    extras       the extras of the package, and the commands that install them
    local        durable functions in one process, and their tests
    model        the values that travel between packages
    node         a node: starts, stops and connects all its parts
    node_core    assembles Raft, placement and services for a node
    partition    the state machine of a queue's partition
    placement    queues, nodes, and the places of partitions
    raft         Raft groups: replication of entries into a machine
    recurrence_times  due times of cron expressions and intervals
    server       the gRPC server, links between nodes, the admin port
    service      calls between the API and the partitions
    spark        queues as a data source of Spark
    storage      the disk: environments, tables, the node's identity
    sync_node    a node for programs without an event loop
    telemetry    logs: events with keys, as text or JSON
    testing      fixtures, a clock and assertions for tests of programs
    v1           generated stubs of the protocol `proto/querator/v1`
    wire         requests and answers as bytes, to and from model values
    worker       the engine of `querator worker`: a handler for the items of a queue
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from querator import errors
    from querator.client import (
        Breaker,
        Client,
        Consumer,
        DeadLetter,
        DeadReason,
        Election,
        EventPosition,
        Events,
        FairGroup,
        HandlerTimeout,
        Holding,
        Item,
        ItemId,
        ItemResult,
        LeasedBatch,
        LeasedItem,
        Lock,
        LockHolder,
        PeekedItem,
        ProducedItem,
        Producer,
        QueueEvent,
        QueueInfo,
        QueueStats,
        RateLimit,
        Reject,
        Retry,
        RetryPolicy,
        RwLock,
        Semaphore,
        SyncClient,
        SyncConsumer,
        SyncElection,
        SyncEvents,
        SyncHolding,
        SyncLeasedBatch,
        SyncLeasedItem,
        SyncLock,
        SyncProducer,
        SyncRwLock,
        SyncSemaphore,
        Tls,
        UndecodablePayload,
    )
    from querator.node import Node, NodeFailedError
    from querator.sync_node import SyncNode
    from querator.worker import Worker

    __version__: str

# gRPC reads it when it is loaded. "0" is its documented default, but not that of its core, whose
# hooks may crash a forked child while `grpc.aio` is in use. The SDK does without them
# (`querator.client.transport.forking`).
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

__all__ = [
    "Breaker",
    "Client",
    "Consumer",
    "DeadLetter",
    "DeadReason",
    "Election",
    "EventPosition",
    "Events",
    "FairGroup",
    "HandlerTimeout",
    "Holding",
    "Item",
    "ItemId",
    "ItemResult",
    "LeasedBatch",
    "LeasedItem",
    "Lock",
    "LockHolder",
    "Node",
    "NodeFailedError",
    "PeekedItem",
    "ProducedItem",
    "Producer",
    "QueueEvent",
    "QueueInfo",
    "QueueStats",
    "RateLimit",
    "Reject",
    "Retry",
    "RetryPolicy",
    "RwLock",
    "Semaphore",
    "SyncClient",
    "SyncConsumer",
    "SyncElection",
    "SyncEvents",
    "SyncHolding",
    "SyncLeasedBatch",
    "SyncLeasedItem",
    "SyncLock",
    "SyncNode",
    "SyncProducer",
    "SyncRwLock",
    "SyncSemaphore",
    "Tls",
    "UndecodablePayload",
    "Worker",
    "__version__",
    "errors",
]

_OF_A_NODE: Final = {"Node": "node", "NodeFailedError": "node", "SyncNode": "sync_node"}


def __getattr__(name: str) -> Any:
    """Raises MissingExtra for a name that needs an extra which is not installed."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "__version__":
        return import_module("importlib.metadata").version("querator")
    if name == "errors":
        return import_module("querator.errors")
    if name == "Worker":
        return import_module("querator.worker").Worker
    if name not in _OF_A_NODE:
        return getattr(import_module("querator.client"), name)
    from querator.extras import needed

    with needed("server", f"querator.{name}"):
        return getattr(import_module(f"querator.{_OF_A_NODE[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
