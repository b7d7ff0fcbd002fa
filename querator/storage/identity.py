"""Identity of a directory: format, cluster, node, incarnation, and number of starts.

An empty directory becomes a new cluster only on request: a mistyped path must not start an empty
cluster silently. A directory with other content is not changed, and neither is the data of a node
of another name. Such a directory raises DirectoryRefused; its message says what to do.

    cluster id   replicas    the directory
    (none)       (none)      has been claimed for a cluster that is not formed yet
    set          (none)      waits to take the place of a node that has lost its data
    set          set         is a member of the cluster
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
"""Format of the tables and log entries. Format 1 was never released; it had no clusters of several
nodes."""

NAME_DEFAULT: Final = "node-1"
"""Name of a single node."""

_NONCE_BITS: Final = 63
_DATA_NAME: Final = "data.mdb"
_NOT_DATA: Final = frozenset(("data.new", "lock.mdb", "querator.lock", "lost+found"))
"""Files that a directory without data may have."""


class DirectoryRefused(StorageError):
    pass


class NodeRemoved(DirectoryRefused):
    """The data is of a node that its cluster has removed."""


class Empty(Enum):
    """Treatment of an empty directory."""

    REFUSED = "refused"
    NEW_CLUSTER = "new cluster"
    """The directory becomes a cluster of this node alone."""
    TO_BE_FORMED = "to be formed"
    """The node will form or find its cluster with other nodes."""

    @classmethod
    def of(cls, *, new: bool, founds: bool) -> "Empty":
        """`new`: the node may make a cluster alone; `founds`: it may make one with other nodes."""
        if new:
            return cls.NEW_CLUSTER
        return cls.TO_BE_FORMED if founds else cls.REFUSED


class Identity(msgspec.Struct, frozen=True, array_like=True):
    """Identity of one copy of a node's data: `incarnation` names the copy, `boots` counts its
    starts, from 1.

    `replicas` is the first configuration of the placement group on this node. `founders` are the
    founding nodes of the cluster, including this one; empty for a node that joined later.
    """

    format: int
    cluster_id: str
    incarnation: str
    boots: int
    name: str
    replicas: Replicas = ()
    founders: tuple[PlacedNode, ...] = ()
    old_copy: str = ""
    """Why the other nodes have refused this copy of the data for good; empty: they have not."""

    @property
    def key(self) -> NodeKey:
        return node_key(self.name, self.incarnation)

    @property
    def is_member(self) -> bool:
        return bool(self.replicas)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Identity).decode


def check_directory(path: Path, *, empty: Empty) -> None:
    """Checks the directory before its environment is opened. Raises DirectoryRefused.

    `empty` says whether an empty or missing directory is allowed. A directory with data is always
    allowed.
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
    """Returns None for an empty environment. Raises DirectoryRefused for a format of another
    release, and StorageCorrupt.
    """
    row = NODE.get(txn, PLACEMENT_GROUP)
    if row is None:
        if next(iter(txn.scan(b"\x00", b"\xff")), None) is not None:
            raise StorageCorrupt("there is data, but no row that names its node")
        return None
    # Every format has the same seal, and the format number as its first field.
    body = unseal(NODE.key(PLACEMENT_GROUP), row, "the row that names the node of the data")
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
    """Counts a start and gives it a nonce (`model.starts`). Gives an empty environment an identity
    as `empty` says. Durable when it returns. Nothing else may write meanwhile.

    `name` empty: the stored name, or `NAME_DEFAULT` for new data. Raises StorageError. Raises
    DirectoryRefused for a format of another release, for data of a node of another name, for an old
    copy that the other nodes have refused, and for an empty environment if `empty` is REFUSED.
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
            "a first start did not complete here; add --new, or give --peers, to repeat it"
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
    """Makes the node a member and returns its identity, durably. Raises StorageError.

    Nothing else may write meanwhile.
    """
    assert not identity.is_member, "a member never joins again"
    assert identity.cluster_id in ("", cluster_id), "a directory is of one cluster for ever"
    joined = _joined(identity, cluster_id, replicas, founders)
    _store(environment, joined)
    return joined


def wait(environment: Environment, identity: Identity, *, cluster_id: str) -> Identity:
    """Returns the identity of a node that waits to replace a lost one, durably. From then on the
    directory belongs to this cluster and forms no other.
    """
    assert not identity.is_member, "a member waits for nothing"
    assert identity.cluster_id in ("", cluster_id), "a directory is of one cluster for ever"
    waiting = msgspec.structs.replace(identity, cluster_id=cluster_id)
    _store(environment, waiting)
    return waiting


def give_up(environment: Environment, identity: Identity, reason: str) -> None:
    """Notes that the other nodes have refused this copy of the data, so that it is never started
    again. Durable when it returns. Raises StorageError. Nothing else may write meanwhile.
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
    """Raises DirectoryRefused if the data belongs to a cluster of several nodes, according to the
    node's first replicas or its stored map.
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
