"""Whose directory this is: format, cluster, node, and how often it was started.

A directory that holds nothing becomes a new cluster only when that was asked for: a mistyped path
must not start an empty cluster silently. A directory that holds something else is left alone.

    DirectoryRefused     the directory is not what was asked for; the message says what to do
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from querator.model.ids import PLACEMENT_GROUP
from querator.storage.environment import Environment, ReadTransaction, StorageCorrupt, StorageError
from querator.storage.sealed import seal, unseal
from querator.storage.tables import NODE

FORMAT: Final = 1
"""Of the tables and log entries. A release reads its own and older ones."""

_DATA_NAME: Final = "data.mdb"
_NOT_DATA: Final = frozenset(("lock.mdb", "querator.lock", "lost+found"))
"""What may be in a directory before it has data."""


class DirectoryRefused(StorageError):
    pass


class Identity(msgspec.Struct, frozen=True, array_like=True):
    """`incarnation` names this copy of the node's data; `boots` counts its starts, from 1."""

    format: int
    cluster_id: str
    incarnation: str
    boots: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Identity).decode


def check_directory(path: Path, *, new: bool) -> None:
    """To be asked before the environment is opened. Raises DirectoryRefused.

    `new` allows a directory that is empty or missing; one with data is allowed either way.
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
    if not new:
        raise DirectoryRefused(
            f"{path}: no data there; if this is to be a new cluster add --new, else correct the "
            "path"
        )


def read(txn: ReadTransaction) -> Identity | None:
    """None in an empty environment. Raises DirectoryRefused for a format of a later release, and
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
    if format_ != FORMAT:
        raise DirectoryRefused(
            f"the data is of format {format_}, and this release knows {FORMAT}: use the release "
            "that wrote it, or a later one"
        )
    return _decode(body)


def claim(environment: Environment, *, new: bool, make_id: Callable[[], str]) -> Identity:
    """Counts a start, or makes a new cluster of an empty environment; durable when it returns.

    Raises StorageError; DirectoryRefused for a format of a later release, and for an empty
    environment without `new`. Nothing else may write meanwhile.
    """
    with environment.snapshot() as snapshot:
        stored = read(snapshot)
    if stored is not None:
        identity = msgspec.structs.replace(stored, boots=stored.boots + 1)
    elif new:
        identity = Identity(FORMAT, cluster_id=make_id(), incarnation=make_id(), boots=1)
    else:
        raise DirectoryRefused("a first start did not get far here; add --new to repeat it")
    txn = environment.begin()
    try:
        key = NODE.key(PLACEMENT_GROUP)
        txn.put(key, seal(key, _encode(identity)))
        txn.commit(sync=True)
    except BaseException:
        txn.abort()
        raise
    return identity
