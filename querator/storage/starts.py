"""Stored starts of this node and of the other nodes that it has met: one row per name
(`model.starts`).
"""

import hashlib

import msgspec

from querator.model.ids import PLACEMENT_GROUP
from querator.model.nodes import node_name
from querator.model.starts import Met
from querator.storage.environment import ReadTransaction, StorageCorrupt, WriteTransaction
from querator.storage.tables import STARTS

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Met).decode


def put(txn: WriteTransaction, met: Met) -> None:
    STARTS.put(txn, PLACEMENT_GROUP, _hash(node_name(met.node)), value=_encode(met))


def delete(txn: WriteTransaction, name: str) -> None:
    STARTS.delete(txn, PLACEMENT_GROUP, _hash(name))


def read(txn: ReadTransaction) -> dict[str, Met]:
    """All stored starts, by the node's name. Raises StorageCorrupt."""
    try:
        kept = [_decode(row) for _, row in STARTS.rows(txn, PLACEMENT_GROUP)]
    except msgspec.DecodeError as error:
        raise StorageCorrupt(f"a row of nodes' starts cannot be read: {error}") from error
    return {node_name(met.node): met for met in kept}


def _hash(name: str) -> bytes:
    return hashlib.blake2b(name.encode(), digest_size=16).digest()
