"""Whose directory this is: format, cluster, node, incarnation, and how often it was started.

A directory that holds nothing becomes a new cluster only when that was asked for: a mistyped path
must not start an empty cluster silently. A directory that holds something else is left alone, and
so is the data of a node of another name.

    cluster id   replicas    the directory
    (none)       (none)      has been claimed for a cluster that is not formed yet
    set          (none)      waits to take the place of a node that has lost its data
    set          set         is a member of the cluster

    DirectoryRefused     the directory is not what was asked for; the message says what to do
"""

import secrets
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Final

import msgspec

from querator.model.ids import PLACEMENT_GROUP
from querator.model.nodes import NodeKey, Replica, Replicas, node_key, node_name
from querator.model.placement_map import PlacedNode, PlacementMap
from querator.model.starts import Met, next_starts
from querator.storage import starts
from querator.storage.environment import Environment, ReadTransaction, StorageCorrupt, StorageError
from querator.storage.sealed import seal, unseal
from querator.storage.tables import NODE

FORMAT: Final = 2
"""Of the tables and log entries. 1: before there were clusters of several nodes; never released."""

NAME_DEFAULT: Final = "node-1"
"""Of a node that is alone."""

_NONCE_BITS: Final = 63
_DATA_NAME: Final = "data.mdb"
_NOT_DATA: Final = frozenset(("data.new", "lock.mdb", "querator.lock", "lost+found"))
"""What may be in a directory before it has data."""


class DirectoryRefused(StorageError):
    pass


class Empty(Enum):
    """What becomes of a directory that holds nothing."""

    REFUSED = "refused"
    NEW_CLUSTER = "new cluster"
    """A cluster of this node alone."""
    TO_BE_FORMED = "to be formed"
    """A node whose cluster is to be formed, or found, with others."""

    @classmethod
    def of(cls, *, new: bool, founds: bool) -> "Empty":
        """`new`: whether the node may make a cluster alone; `founds`: with others."""
        if new:
            return cls.NEW_CLUSTER
        return cls.TO_BE_FORMED if founds else cls.REFUSED


class Identity(msgspec.Struct, frozen=True, array_like=True):
    """`incarnation` names this copy of the node's data; `boots` counts its starts, from 1.

    `replicas` is the first configuration of the placement group on this node. `founders` are the
    nodes with which the cluster began, this one among them; empty when it came later.
    """

    format: int
    cluster_id: str
    incarnation: str
    boots: int
    name: str
    replicas: Replicas = ()
    founders: tuple[PlacedNode, ...] = ()
    old_copy: str = ""
    """Why the others have refused this copy of the data, for good; empty: they have not."""

    @property
    def key(self) -> NodeKey:
        return node_key(self.name, self.incarnation)

    @property
    def is_member(self) -> bool:
        return bool(self.replicas)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Identity).decode


def check_directory(path: Path, *, empty: Empty) -> None:
    """To be asked before the environment is opened. Raises DirectoryRefused.

    `empty` says whether a directory that is empty or missing is allowed; one with data is either
    way.
    """
    try:
        names = {entry.name for entry in path.iterdir()} if path.exists() else set()
    except OSError as error:
        raise DirectoryRefused(f"{path}: {error.strerror}") from error
    if _DATA_NAME in names:
        return
    if others := sorted(names - _NOT_DATA):
        raise DirectoryRefused(
            f"{path}: holds {others[0]!r} and no data of Querator; name an empty directory"
        )
    if empty is Empty.REFUSED:
        raise DirectoryRefused(
            f"{path}: no data there; if this is to be a new cluster of one node add --new, if it "
            "is to be one of several nodes give --peers, else correct the path"
        )


def read(txn: ReadTransaction) -> Identity | None:
    """None in an empty environment. Raises DirectoryRefused for a format of another release, and
    StorageCorrupt.
    """
    row = NODE.get(txn, PLACEMENT_GROUP)
    if row is None:
        if next(iter(txn.scan(b"\x00", b"\xff")), None) is not None:
            raise StorageCorrupt("there is data, but nothing says whose it is")
        return None
    # The seal, and the format in the first place, are the same in every format.
    body = unseal(NODE.key(PLACEMENT_GROUP), row, "the row that tells whose data this is")
    format_ = msgspec.msgpack.decode(body, type=list)[0]
    if format_ < FORMAT:
        raise DirectoryRefused(
            f"the data is of format {format_}, of a version before the first release; this release "
            f"knows {FORMAT}: start with an empty directory"
        )
    if format_ > FORMAT:
        raise DirectoryRefused(
            f"the data is of format {format_}, and this release knows {FORMAT}: use the release "
            "that wrote it, or a later one"
        )
    return _decode(body)


def make_nonce() -> int:
    return secrets.randbits(_NONCE_BITS)


def claim(
    environment: Environment,
    *,
    name: str,
    empty: Empty,
    make_id: Callable[[], str],
    make_nonce: Callable[[], int] = make_nonce,
) -> Identity:
    """Counts a start and gives it a nonce (`model.starts`), or makes of an empty environment what
    `empty` says; durable when it returns.

    `name` empty: the stored one, of new data `NAME_DEFAULT`. Raises StorageError; DirectoryRefused
    for a format of another release, for data of a node of another name, for an old copy that the
    others have refused, and for an empty environment that is to be refused.
    Nothing else may write meanwhile.
    """
    with environment.snapshot() as snapshot:
        stored = read(snapshot)
        kept = starts.read(snapshot)
    if stored is not None:
        if name not in ("", stored.name):
            raise DirectoryRefused(
                f"the data is of node {stored.name}, not of {name}: name the directory of {name}, "
                f"or start it with --name {stored.name}"
            )
        if stored.old_copy:
            raise DirectoryRefused(f"this directory was refused before: {stored.old_copy}")
        identity = msgspec.structs.replace(stored, boots=stored.boots + 1)
    elif empty is Empty.REFUSED:
        raise DirectoryRefused(
            "a first start did not get far here; add --new, or give --peers, to repeat it"
        )
    else:
        name = name or NAME_DEFAULT
        identity = Identity(FORMAT, cluster_id="", incarnation=make_id(), boots=1, name=name)
        if empty is Empty.NEW_CLUSTER:
            alone = PlacedNode(name, identity.incarnation, peer_address="", client_address="")
            identity = _joined(identity, make_id(), (Replica(1, identity.key),), (alone,))
    before = kept.get(identity.name)
    chain = () if before is None or before.node != identity.key else before.starts
    chain = next_starts(chain, boots=identity.boots, nonce=make_nonce())
    _store(environment, identity, Met(identity.key, chain))
    return identity


def join(
    environment: Environment,
    identity: Identity,
    *,
    cluster_id: str,
    replicas: Replicas,
    founders: tuple[PlacedNode, ...] = (),
) -> Identity:
    """The identity of a member; durable when it returns. Raises StorageError.

    Nothing else may write meanwhile.
    """
    assert not identity.is_member, "a member never joins again"
    assert identity.cluster_id in ("", cluster_id), "a directory is of one cluster for ever"
    joined = _joined(identity, cluster_id, replicas, founders)
    _store(environment, joined)
    return joined


def wait(environment: Environment, identity: Identity, *, cluster_id: str) -> Identity:
    """The identity of one that waits to take a lost node's place; durable when it returns. From
    then on the directory is of this cluster and forms no other.
    """
    assert not identity.is_member, "a member waits for nothing"
    assert identity.cluster_id in ("", cluster_id), "a directory is of one cluster for ever"
    waiting = msgspec.structs.replace(identity, cluster_id=cluster_id)
    _store(environment, waiting)
    return waiting


def give_up(environment: Environment, identity: Identity, reason: str) -> None:
    """The others have refused this copy of the data: it is not started again. Durable when it
    returns. Raises StorageError. Nothing else may write meanwhile.
    """
    _store(environment, msgspec.structs.replace(identity, old_copy=reason))


def _joined(
    identity: Identity, cluster_id: str, replicas: Replicas, founders: tuple[PlacedNode, ...]
) -> Identity:
    assert any(replica.node == identity.key for replica in replicas), "a member has a replica"
    return msgspec.structs.replace(
        identity, cluster_id=cluster_id, replicas=replicas, founders=founders
    )


def _store(environment: Environment, identity: Identity, own: Met | None = None) -> None:
    txn = environment.begin()
    try:
        if own is not None:
            starts.put(txn, own)
        key = NODE.key(PLACEMENT_GROUP)
        txn.put(key, seal(key, _encode(identity)))
        txn.commit(sync=True)
    except BaseException:
        txn.abort()
        raise


def check_alone(identity: Identity, placed: PlacementMap) -> None:
    """Raises DirectoryRefused for the data of a node of several: by what it began with, or by the
    map that it has kept.
    """
    others = {node_name(replica.node) for replica in identity.replicas}
    others |= {node.name for node in placed.nodes}
    others.discard(identity.name)
    if others or not identity.is_member:
        names = f" with {', '.join(sorted(others))}" if others else ""
        raise DirectoryRefused(
            f"the data is of node {identity.name} of a cluster of several nodes{names}: start it "
            f"with --name {identity.name}, --cluster-token-file and --peers (or --listen-peers)"
        )
