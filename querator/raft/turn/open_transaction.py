"""The write transaction of the turns, which may stay open for some of them.

A turn need not commit when it only applies committed entries, or appends entries that a majority of
others is writing. Its transaction stays open, and the next turn continues with it. It is committed
when something else must be written, when a caller waits for the state, after `COMMIT_WITHIN_S`, or
when it holds `OPEN_BYTES_MAX`. A crash before that loses only work that is then repeated.
"""

from collections.abc import Iterable
from typing import Final

from querator.model.ids import GroupId
from querator.model.limits import KIB
from querator.raft.clock import Clock
from querator.raft.group.group import Group
from querator.storage.environment import Environment, WriteTransaction

COMMIT_WITHIN_S: Final = 0.01
"""A transaction is on disk within this, if no caller waits for it."""
OPEN_BYTES_MAX: Final = 256 * KIB
"""Bytes of entries. Beyond that the disk gets its work while the next turn gathers."""


class OpenTransaction:
    """The transaction of a node's turns. Only the raft thread calls it."""

    def __init__(self, environment: Environment, clock: Clock) -> None:
        self._environment = environment
        self._clock = clock
        self._txn: WriteTransaction | None = None
        self._groups: dict[GroupId, Group] = {}
        """Groups that have written into it."""
        self._commit_by_s = 0.0
        self.bytes = 0
        """Bytes of the entries in it."""

    def __bool__(self) -> bool:
        """Whether writes wait to be committed."""
        return self._txn is not None

    @property
    def due_s(self) -> float | None:
        """When it must be committed, by the monotonic clock."""
        return None if self._txn is None else self._commit_by_s

    @property
    def must_commit(self) -> bool:
        """Whether the commit may not wait any longer."""
        if self._txn is None:
            return False
        if self._clock.monotonic_s() >= self._commit_by_s or self.bytes > OPEN_BYTES_MAX:
            return True
        return any(group.reads for group in self._groups.values())

    def begin(self) -> WriteTransaction:
        """The open transaction, or a new one. The caller must end it or `keep` it."""
        return self._txn or self._environment.begin()

    def written_by(self, groups: Iterable[Group]) -> None:
        self._groups.update({group.group: group for group in groups})

    def keep(self, txn: WriteTransaction) -> bool:
        """Leaves it open for the next turn, if the commit may wait; returns whether it may."""
        if self._txn is None:
            self._txn = txn
            self._commit_by_s = self._clock.monotonic_s() + COMMIT_WITHIN_S
        return not self.must_commit

    def abandon(self) -> None:
        """Ends a transaction that was kept, without its writes, after the last turn. LMDB lets only
        the thread that began a transaction end it: to close the environment would wait for ever.
        """
        txn, self._txn = self._txn, None
        if txn is not None:
            txn.abort()

    def commit(self, txn: WriteTransaction) -> dict[GroupId, Group]:
        """Commits and syncs it; returns the groups whose state it has stored. Raises
        StorageError.
        """
        self._txn = None
        txn.commit(sync=True)
        groups, self._groups, self.bytes = self._groups, {}, 0
        return groups
