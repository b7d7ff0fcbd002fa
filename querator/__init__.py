"""Querator: a clustered lease queue with Almost Exactly Once Delivery.

The names below are the public surface. They load on first use, so that a program which only talks
to a server never loads the storage or the Raft engine:

* `Client`, `SyncClient`, `Tls`: the SDK;
* `Node`: a node inside the caller's process.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from querator.client import Client, SyncClient, Tls
    from querator.node import Node

__all__ = ["Client", "Node", "SyncClient", "Tls"]

_HOMES = {
    "Client": "querator.client",
    "Node": "querator.node",
    "SyncClient": "querator.client",
    "Tls": "querator.client",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
