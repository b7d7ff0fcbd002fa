"""A log in the form that PySyncObj reads: positions, the first of which is the sentinel before the
entries.

Methods that would change a log outside of the turn do nothing, or are an AssertionError.
"""

from abc import abstractmethod
from typing import Any, overload

from querator.raft.engine.library import LibraryJournal


class LogOfLibrary(LibraryJournal):  # type: ignore[misc]
    """Base class of a journal, which defines the entries."""

    last_index: int
    last_term: int

    @property
    @abstractmethod
    def first_index(self) -> int: ...

    @abstractmethod
    def term_at(self, index: int) -> int: ...

    def __len__(self) -> int:
        return self.last_index - self.first_index + 2

    @overload
    def __getitem__(self, item: int) -> tuple[bytes, int, int]: ...

    @overload
    def __getitem__(self, item: slice) -> list[tuple[bytes, int, int]]: ...

    def __getitem__(self, item: int | slice) -> Any:
        """(empty bytes, index, term) of the positions; the sentinel is position 0. Commands are not
        read this way.
        """
        if isinstance(item, slice):
            positions = range(*item.indices(len(self)))
            return [self[position] for position in positions]
        if item == -1:
            return b"", self.last_index, self.last_term
        if not 0 <= item < len(self):
            raise IndexError(item)
        index = self.first_index - 1 + item
        return b"", index, self.term_at(index)

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:
        """Does not store the index (`raft.log.journal` gives the reason)."""

    def deleteEntriesFrom(self, entryFrom: int) -> None:
        raise AssertionError("entries are taken back by index")

    def deleteEntriesTo(self, entryTo: int) -> None:
        raise AssertionError("stock compaction never runs")

    def clear(self) -> None:
        raise AssertionError("stock snapshots are never loaded")

    def onOneSecondTimer(self) -> None:
        """Does nothing: no writes happen outside of the turn."""

    def _destroy(self) -> None:
        """Does nothing: the environment belongs to the node."""
