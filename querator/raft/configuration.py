"""Which replicas a group has, and how that changes: by one replica at a time.

A configuration is an entry of the log and takes effect when it is appended, at the leader as at the
followers, and is taken back when the entry is (Ongaro, sections 4.1 and 4.2). Consecutive
configurations differ in one voter at most, so that their majorities overlap. The next change waits
until the last one is committed, and the first of a leader until an entry of its own term is.

    change          what becomes of the replicas                refused when
    AddLearner      one more, which gets everything and         the id was ever used, or the node
                    counts for nothing                          has a replica already
    Promote         the learner votes                           it is not a learner, or not caught
                                                                up (`raft.group.group` knows)
    RemoveReplica   one less                                    it leads, or is the last voter

Ids are counted by whoever asks for the change (the placement map) and are never used again in a
group: votes name them.
"""

import msgspec

from querator.model.errors import ErrorCode, QueratorError
from querator.model.nodes import NodeKey, Replica, Replicas


class AddLearner(msgspec.Struct, frozen=True):
    id: int
    node: NodeKey


class Promote(msgspec.Struct, frozen=True):
    id: int


class RemoveReplica(msgspec.Struct, frozen=True):
    id: int


Change = AddLearner | Promote | RemoveReplica

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Replicas).decode


def encode(replicas: Replicas) -> bytes:
    return _encode(replicas)


def decode(command: bytes) -> Replicas:
    return _decode(command)


def find(replicas: Replicas, id_: int) -> Replica | None:
    return next((replica for replica in replicas if replica.id == id_), None)


def of_node(replicas: Replicas, node: NodeKey) -> Replica | None:
    return next((replica for replica in replicas if replica.node == node), None)


def voters(replicas: Replicas) -> frozenset[int]:
    return frozenset(replica.id for replica in replicas if replica.voter)


def changed(replicas: Replicas, change: Change) -> Replicas:
    """The next configuration. Raises INVALID_ARGUMENT for what makes no sense here; a change that
    is made already gives the replicas as they are.
    """
    there = find(replicas, change.id)
    match change:
        case AddLearner(id_, node):
            if there is not None and there.node == node:
                return replicas
            newest = max((replica.id for replica in replicas), default=0)
            if id_ <= newest:
                raise _refused(change, f"ids up to {newest} are taken")
            if of_node(replicas, node) is not None:
                raise _refused(change, f"{node} has a replica")
            return (*replicas, Replica(id_, node, voter=False))
        case Promote(id_):
            if there is None:
                raise _refused(change, "there is no such replica")
            return tuple(
                msgspec.structs.replace(replica, voter=True) if replica.id == id_ else replica
                for replica in replicas
            )
        case RemoveReplica(id_):
            left = tuple(replica for replica in replicas if replica.id != id_)
            if not voters(left):
                raise _refused(change, "it is the last voter")
            return left


def _refused(change: Change, why: str) -> QueratorError:
    return QueratorError(
        ErrorCode.INVALID_ARGUMENT,
        f"{type(change).__name__} of replica {change.id}: {why}",
        field="replica",
        value=str(change.id),
    )
