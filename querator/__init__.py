"""Querator: a clustered lease queue with Almost Exactly Once Delivery.

The public names load on first use, so a program that only talks to a server never loads the storage
or the Raft engine:

* `Client`, `SyncClient`, `Tls`: the SDK;
* `Node`, `SyncNode`: a node inside the caller's process.

Code belongs into a package; only modules that assemble a node or serve all packages are here.
`.importlinter` holds the order of the imports.

    __main__     `python -m querator`: the same as the command `querator`
    cli          the command `querator`
    client       the Python SDK
    config       the settings of a node: sources, checks, addresses
    model        the values that travel between packages
    node         a node: starts, stops and connects all its parts
    node_core    assembles Raft, placement and services for a node
    partition    the state machine of a queue's partition
    placement    queues, nodes, and the places of partitions
    raft         Raft groups: replication of entries into a machine
    server       the gRPC server, links between nodes, the admin port
    service      calls between the API and the partitions
    spark        queues as a data source of Spark
    storage      the disk: environments, tables, the node's identity
    sync_node    a node for programs without an event loop
    telemetry    logs: events with keys, as text or JSON
    testing      fixtures, a clock and assertions for tests of programs
    v1           generated stubs of the protocol `proto/querator/v1`
    wire         requests and answers as bytes, to and from model values
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from querator.client import Client, SyncClient, Tls
    from querator.node import Node
    from querator.sync_node import SyncNode

__all__ = ["Client", "Node", "SyncClient", "SyncNode", "Tls"]

_HOMES = {
    "Client": "querator.client",
    "Node": "querator.node",
    "SyncClient": "querator.client",
    "SyncNode": "querator.sync_node",
    "Tls": "querator.client",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
