"""The write transaction of the turns, which may stay open for some of them.

A turn that does nothing but apply committed entries, or append entries that a majority of others
writes just now, need not commit. Its transaction stays open, and the next turn goes on with it,
until something else is to be written, somebody waits for the state, or it has waited for
`COMMIT_WITHIN_S` or holds `OPEN_BYTES_MAX`. A crash before that costs the work, which is done
again.
"""

from collections.abc import Iterable
from typing import Final

from querator.model.ids import GroupId
from querator.model.limits import KIB
from querator.raft.clock import Clock
from querator.raft.group.group import Group
from querator.storage.environment import Environment, WriteTransaction

COMMIT_WITHIN_S: Final = 0.01
"""Until then what a transaction holds is on disk, if nobody waits for it."""
OPEN_BYTES_MAX: Final = 256 * KIB
"""Of entries. Beyond that the disk is given its work while the next turn gathers."""


class OpenTransaction:
    """Of a node's turns. Only the raft thread calls it."""

    def __init__(self, environment: Environment, clock: Clock) -> None:
        self._environment = environment
        self._clock = clock
        self._txn: WriteTransaction | None = None
        self._groups: dict[GroupId, Group] = {}
        """That have written into it."""
        self._commit_by_s = 0.0
        self.bytes = 0
        """Of the entries in it."""

    def __bool__(self) -> bool:
        """Whether something waits to be committed."""
        return self._txn is not None

    @property
    def due_s(self) -> float | None:
        """When it is to be committed, by the monotonic clock."""
        return None if self._txn is None else self._commit_by_s

    @property
    def must_commit(self) -> bool:
        """Whether what waits may not wait any longer."""
        if self._txn is None:
            return False
        if self._clock.monotonic_s() >= self._commit_by_s or self.bytes > OPEN_BYTES_MAX:
            return True
        return any(group.reads for group in self._groups.values())

    def begin(self) -> WriteTransaction:
        """The one that is open, or a new one, which is the caller's to end or to `keep`."""
        return self._txn or self._environment.begin()

    def written_by(self, groups: Iterable[Group]) -> None:
        self._groups.update({group.group: group for group in groups})

    def keep(self, txn: WriteTransaction) -> bool:
        """Leaves it open for the next turn, if it may wait."""
        if self._txn is None:
            self._txn = txn
            self._commit_by_s = self._clock.monotonic_s() + COMMIT_WITHIN_S
        return not self.must_commit

    def commit(self, txn: WriteTransaction) -> dict[GroupId, Group]:
        """Commits and syncs it; the groups whose state it has stored. Raises StorageError."""
        self._txn = None
        txn.commit(sync=True)
        groups, self._groups, self.bytes = self._groups, {}, 0
        return groups
