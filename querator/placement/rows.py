"""The rows of the placement group, and the view of them that rules decide on.

    table         key            value (msgpack)
    placement     (none)         [epoch, next queue id, next group, now_ms]
    namespaces    hash of name   name
    queues        queue id       [queue, version of the settings that all its partitions have]

The namespace `default` is always there and needs no row.
"""

import hashlib

import msgspec

from querator.model.ids import DEFAULT_NAMESPACE, PLACEMENT_GROUP, GroupId, QueueId
from querator.model.placement_map import PlacementMap
from querator.model.queues import Queue
from querator.placement.rules import Change, View
from querator.storage.environment import ReadTransaction, WriteTransaction
from querator.storage.tables import NAMESPACES, PLACEMENT, QUEUES


class _Head(msgspec.Struct, frozen=True, array_like=True):
    epoch: int
    next_queue_id: QueueId
    next_group: GroupId
    now_ms: int


class _QueueRow(msgspec.Struct, frozen=True, array_like=True):
    queue: Queue
    configured: int


_FIRST = _Head(epoch=0, next_queue_id=QueueId(1), next_group=GroupId(PLACEMENT_GROUP + 1), now_ms=0)
_encode = msgspec.msgpack.Encoder().encode
_decode_head = msgspec.msgpack.Decoder(_Head).decode
_decode_queue = msgspec.msgpack.Decoder(_QueueRow).decode


def epoch(txn: ReadTransaction) -> int:
    """Epoch of the stored map."""
    return _read_head(txn).epoch


def _read_head(txn: ReadTransaction) -> _Head:
    row = PLACEMENT.get(txn, PLACEMENT_GROUP)
    return _FIRST if row is None else _decode_head(row)


def load(txn: ReadTransaction) -> View:
    """Everything, by a full scan: about 3 ms for 1,000 queues."""
    head = _read_head(txn)
    rows = [_decode_queue(value) for _, value in QUEUES.rows(txn, PLACEMENT_GROUP)]
    namespaces = {value.decode() for _, value in NAMESPACES.rows(txn, PLACEMENT_GROUP)}
    return View(
        map=PlacementMap(head.epoch, namespaces | {DEFAULT_NAMESPACE}, [row.queue for row in rows]),
        configured={row.queue.id: row.configured for row in rows},
        next_queue_id=head.next_queue_id,
        next_group=head.next_group,
        now_ms=head.now_ms,
    )


def store(txn: WriteTransaction, view: View, change: Change) -> View:
    """Writes the change; returns the view after it. A change of nothing costs nothing."""
    put, gone = change.put, change.gone
    if put is None and gone is None:
        return view
    placed = view.map.evolve(view.map.epoch + 1, put=put, gone=gone)
    configured = view.configured.copy()
    next_queue_id, next_group = view.next_queue_id, view.next_group
    if gone is not None:
        del configured[gone]
        QUEUES.delete(txn, PLACEMENT_GROUP, gone)
    if put is not None:
        configured[put.id] = change.configured
        QUEUES.put(txn, PLACEMENT_GROUP, put.id, value=_encode(_QueueRow(put, change.configured)))
        if not view.map.has_namespace(put.namespace):
            _put_namespace(txn, put.namespace)
        next_queue_id = QueueId(max(next_queue_id, put.id + 1))
        next_group = GroupId(max(next_group, put.groups[-1] + 1))
    head = _Head(placed.epoch, next_queue_id, next_group, view.now_ms)
    PLACEMENT.put(txn, PLACEMENT_GROUP, value=_encode(head))
    return View(placed, configured, next_queue_id, next_group, view.now_ms)


def _put_namespace(txn: WriteTransaction, namespace: str) -> None:
    name = namespace.encode()
    digest = hashlib.blake2b(name, digest_size=16).digest()
    stored = NAMESPACES.get(txn, PLACEMENT_GROUP, digest)
    assert stored is None or stored == name, "two namespaces with one BLAKE2b-128"
    NAMESPACES.put(txn, PLACEMENT_GROUP, digest, value=name)


def digest(txn: ReadTransaction) -> bytes:
    """Hash of all rows."""
    state = hashlib.blake2b(digest_size=16)
    for table in (PLACEMENT, NAMESPACES, QUEUES):
        for key, value in table.rows(txn, PLACEMENT_GROUP):
            state.update(len(key).to_bytes(4, "big") + key)
            state.update(len(value).to_bytes(4, "big") + value)
    return state.digest()
