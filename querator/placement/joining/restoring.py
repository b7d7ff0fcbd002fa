"""Converts a node's directory that is, or may be, an old copy to a new incarnation. That has no
vote and nothing acknowledged, and is rebuilt from the other nodes.

Nothing of the copy's content is used, because it cannot be known which of its log entries, terms
and votes other nodes count on. Its data file is kept beside the new one.

    1  the new data file is made in RESTORING_NAME
    2  the old one is renamed to KEPT_NAME
    3  the new one takes its place                         a crash before this: the next call
    4  RESTORING_NAME is removed                           begins again with the old one
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from querator.model.nodes import node_name
from querator.placement.joining.membership import stored_map
from querator.storage import identity as identities
from querator.storage.directory import lock_directory, sync
from querator.storage.environment import EnvironmentFailed
from querator.storage.identity import DirectoryRefused, Empty, Identity
from querator.storage.lmdb_environment import open_lmdb
from querator.storage.opening import DATA_FILE_BYTES

KEPT_NAME: Final = "data.copy"
RESTORING_NAME: Final = "restoring"
_DATA_NAME: Final = "data.mdb"
_USE: Final = "querator node restore-from-copy"


def restore(path: Path, *, make_id: Callable[[], str]) -> Identity:
    """Converts the directory to one that waits for its node's place; returns its identity. Blocks.

    Raises DirectoryRefused for a directory without data of a node of a cluster of several, of
    another format, or that waits already; StorageLocked while it is in use; StorageError.
    """
    try:
        return _restore(path, make_id)
    except OSError as error:
        raise EnvironmentFailed(f"{path}: {error.strerror}") from error


def _restore(path: Path, make_id: Callable[[], str]) -> Identity:
    data, kept, restoring = path / _DATA_NAME, path / KEPT_NAME, path / RESTORING_NAME
    if not data.exists() and kept.exists():
        kept.rename(data)
    if not data.is_file():
        raise DirectoryRefused(f"{path}: no data of Querator there")
    old = _read(path)
    lock_file, _ = lock_directory(path, used_by=_USE)
    try:
        if kept.exists():
            raise DirectoryRefused(
                f"{kept}: the data that was there before an earlier restore; remove it first"
            )
        if restoring.exists():
            shutil.rmtree(restoring)
        new = _make(restoring, old, make_id)
        data.rename(kept)
        os.replace(restoring / _DATA_NAME, data)
        sync(path)
        shutil.rmtree(restoring)
    finally:
        os.close(lock_file)
    return new


def _read(path: Path) -> Identity:
    """The identity of the data, if it may be restored."""
    environment = open_lmdb(path, used_by=_USE)
    try:
        with environment.snapshot() as snapshot:
            stored = identities.read(snapshot)
        placed = stored_map(environment)
    finally:
        environment.close()
    if stored is None:
        raise DirectoryRefused(
            f"{path}: a first start did not complete here; there is nothing to restore"
        )
    name = stored.name
    if not stored.is_member:
        raise DirectoryRefused(
            f"{path}: node {name} is no member of a cluster with this data: start it; if it waits "
            f"for the place of a lost node: querator node replace {name}"
        )
    others = {node_name(replica.node) for replica in stored.replicas}
    others |= {node.name for node in placed.nodes}
    if others == {name}:
        raise DirectoryRefused(
            f"{path}: the data is of node {name}, which is alone: no other node can rebuild it. "
            "Start it on the directory as it is; changes since the copy was made are then lost"
        )
    return stored


def _make(path: Path, old: Identity, make_id: Callable[[], str]) -> Identity:
    """Makes new data of the same node that knows only its cluster."""
    environment = open_lmdb(path, room_bytes=DATA_FILE_BYTES, used_by=_USE)
    try:
        new = identities.claim(
            environment, name=old.name, empty=Empty.TO_BE_FORMED, make_id=make_id
        )
        return identities.wait(environment, new, cluster_id=old.cluster_id)
    finally:
        environment.close()
