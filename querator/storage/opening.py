"""Opens and claims a node's storage: a directory, memory, or an environment of the caller."""

from collections.abc import Callable
from pathlib import Path

from querator.model.limits import MIB
from querator.storage.environment import Environment
from querator.storage.identity import Empty, Identity, check_directory, claim
from querator.storage.lmdb_environment import open_lmdb
from querator.storage.memory_environment import MEMORY_QUOTA_BYTES_DEFAULT, MemoryEnvironment

DATA_FILE_BYTES = 64 * MIB
"""First length of a node's data file; about the size of the log of one busy partition."""


def opened(
    given: Environment | None,
    data_dir: Path | None,
    *,
    quota_bytes: int,
    name: str,
    empty: Empty,
    make_id: Callable[[], str],
) -> tuple[Environment, Identity]:
    """Opens `given` if there is one, else `data_dir`, else memory. `quota_bytes` 0: the default
    quota. `name`, `empty` and `make_id` as for `identity.claim`.

    Blocks while it opens. Raises StorageError, also for a directory that does not fit the
    arguments; then the environment is closed, including a given one.
    """
    if given is not None:
        environment = given
    elif data_dir is not None:
        check_directory(data_dir, empty=empty)
        environment = open_lmdb(
            data_dir,
            quota_bytes=quota_bytes or None,
            room_bytes=DATA_FILE_BYTES,
            used_by="a running node",
        )
    else:
        environment = MemoryEnvironment(quota_bytes=quota_bytes or MEMORY_QUOTA_BYTES_DEFAULT)
    try:
        identity = claim(environment, name=name, empty=empty, make_id=make_id)
    except BaseException:
        environment.close()
        raise
    return environment, identity
