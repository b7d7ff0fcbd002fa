"""Interface between a Raft group and the state machine that it replicates."""

from collections.abc import Sequence
from typing import Any, Protocol

from querator.model.entries import Applied, Entry, Need, Proposal
from querator.storage.environment import ReadTransaction, WriteTransaction

__all__ = ["Applied", "Entry", "Machine", "Need", "Proposal"]


class Machine(Protocol):
    """A deterministic state machine. Only the raft thread calls it."""

    def pack(self, proposals: Sequence[Proposal], now_ms: int) -> Entry:
        """Leader only. Packs many proposals into one entry, stamped with the leader's time.
        Pure.
        """
        ...

    def need(self, txn: ReadTransaction, command: Any) -> Need:
        """Leader only. The disk space that a proposal's command needs; `txn` shows a recent
        state.
        """
        ...

    def apply(
        self, txn: WriteTransaction, index: int, term: int, command: bytes, *, log_first: int
    ) -> Applied:
        """Applies a committed entry. Deterministic: no clock, no randomness, no I/O except `txn`.

        Its writes may be rolled back, and the entry applied again later.

        The entry's attachments are in `storage.attachments` under (group, index, part). `log_first`
        is the index of the oldest entry that the log keeps. An exception stops the group.
        """
        ...

    def tells_early(self, result: Any) -> bool:
        """For an entry whose `Applied` is `early`: whether this result may be reported before the
        state that it describes can be read.
        """
        ...

    def recover(self, txn: ReadTransaction) -> Applied:
        """What the owner must know at start or when a leadership begins: no results, current
        effects and due time.
        """
        ...

    def due_commands(self, now_ms: int, *, prompt: bool = False) -> Sequence[Any]:
        """Leader only. Commands to propose when `due_ms` has come; with `prompt`, when `prompt_ms`
        has.
        """
        ...

    def digest(self, txn: ReadTransaction) -> bytes:
        """Hash of the state, for comparing replicas at an equal applied index."""
        ...
