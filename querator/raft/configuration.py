"""The replicas of a group, and changes to them: by one replica at a time.

A configuration is an entry of the log. It takes effect when it is appended, at the leader as at the
followers, and is revoked when the entry is removed (Ongaro, sections 4.1 and 4.2). Consecutive
configurations differ in at most one voter, so that their majorities overlap. The next change waits
until the last one is committed. The first change of a leader waits until an entry of its own term
is committed.

    change          effect on the replicas                      refused when
    AddLearner      one more, which receives everything and     the id was ever used, or the node
                    counts for no majority                      has a replica already
    Promote         the learner becomes a voter                 it is not a learner, or not caught
                                                                up (`raft.group.leadership` knows)
    RemoveReplica   one less                                    it leads, or is the last voter

The component that asks for the change (the placement map) counts the ids. An id is never used again
in a group, because votes name it.
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
    """Returns the next configuration. A change that is already made returns the replicas unchanged.
    Raises INVALID_ARGUMENT for a change that is impossible here.
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
