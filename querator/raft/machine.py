"""The seam between a Raft group and what it replicates."""

from collections.abc import Sequence
from typing import Any, Protocol

from querator.model.entries import Applied, Entry, Need, Proposal
from querator.storage.environment import ReadTransaction, WriteTransaction

__all__ = ["Applied", "Entry", "Machine", "Need", "Proposal"]


class Machine(Protocol):
    """A deterministic state machine. Only the raft thread calls it."""

    def pack(self, proposals: Sequence[Proposal], now_ms: int) -> Entry:
        """Leader only: many proposals into one entry, stamped with the leader's time. Pure."""
        ...

    def need(self, txn: ReadTransaction, command: Any) -> Need:
        """Leader only: what a proposal's command needs of the disk; `txn` shows the state as of a
        moment ago.
        """
        ...

    def apply(
        self, txn: WriteTransaction, index: int, term: int, command: bytes, *, log_first: int
    ) -> Applied:
        """Applies a committed entry. Deterministic; no clock, no chance, no I/O but `txn`.

        What it has written may be undone, and the entry applied again later.

        The entry's attachments are in `storage.attachments` under (group, index, part).
        `log_first` is the index of the oldest entry that the log keeps. An exception stops the
        group.
        """
        ...

    def tells_early(self, result: Any) -> bool:
        """Of an entry whose `Applied` is `early`: whether this result may be known before the state
        can be read of which it tells.
        """
        ...

    def recover(self, txn: ReadTransaction) -> Applied:
        """What the owner must know at start or on taking office: no results, current effects and
        due."""
        ...

    def due_commands(self, now_ms: int, *, prompt: bool = False) -> Sequence[Any]:
        """Leader only: commands to propose when `due_ms` has come; with `prompt`, `prompt_ms`."""
        ...

    def digest(self, txn: ReadTransaction) -> bytes:
        """Hash of the state, to compare replicas at equal applied index."""
        ...
