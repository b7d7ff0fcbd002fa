"""The storage of a node, opened and claimed: a directory, memory, or what its owner opened."""

from collections.abc import Callable
from pathlib import Path

from querator.model.limits import MIB
from querator.storage.environment import Environment
from querator.storage.identity import Empty, Identity, check_directory, claim
from querator.storage.lmdb_environment import open_lmdb
from querator.storage.memory_environment import MEMORY_QUOTA_BYTES_DEFAULT, MemoryEnvironment

DATA_FILE_BYTES = 64 * MIB
"""Of a node's data file from the beginning; about what the log of one busy partition takes."""


def opened(
    given: Environment | None,
    data_dir: Path | None,
    *,
    quota_bytes: int,
    name: str,
    empty: Empty,
    make_id: Callable[[], str],
) -> tuple[Environment, Identity]:
    """`given` if there is one, else what is in `data_dir`, else memory; `quota_bytes` 0: the usual
    quota. `name`, `empty` and `make_id` as of `identity.claim`.

    Blocks, for as long as opening takes. Raises StorageError, also for a directory that is not what
    was asked for; the environment is closed then, the given one too.
    """
    if given is not None:
        environment = given
    elif data_dir is not None:
        check_directory(data_dir, empty=empty)
        environment = open_lmdb(
            data_dir, quota_bytes=quota_bytes or None, room_bytes=DATA_FILE_BYTES
        )
    else:
        environment = MemoryEnvironment(quota_bytes=quota_bytes or MEMORY_QUOTA_BYTES_DEFAULT)
    try:
        identity = claim(environment, name=name, empty=empty, make_id=make_id)
    except BaseException:
        environment.close()
        raise
    return environment, identity
