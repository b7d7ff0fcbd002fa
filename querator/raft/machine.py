"""The seam between a Raft group and what it replicates."""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from querator.storage.environment import ReadTransaction, WriteTransaction


class Proposal(msgspec.Struct, frozen=True, gc=False):
    """One client command for a group; `attachment` is stored once, by reference, and never re-encoded."""

    command: Any
    attachment: bytes = b""


class Entry(msgspec.Struct, frozen=True, gc=False):
    """What one log entry carries: a small command, and attachments that the journal stores in their own table."""

    command: bytes
    attachments: tuple[bytes, ...] = ()


class Applied(msgspec.Struct, frozen=True, gc=False):
    """What came of an entry: one result per proposal packed into it, in order; what the owner must know
    (`effects`, opaque to raft); the earliest instant at which the leader should propose `due_commands`
    (ms of state time; None: never)."""

    results: tuple[Any, ...]
    effects: Any
    due_ms: int | None


class Machine(Protocol):
    """A deterministic state machine. Only the raft thread calls it."""

    def pack(self, proposals: Sequence[Proposal], now_ms: int) -> Entry:
        """Leader only: many proposals into one entry, stamped with the leader's time. Pure."""
        ...

    def apply(self, txn: WriteTransaction, index: int, term: int, command: bytes, *, log_first: int) -> Applied:
        """Applies a committed entry. Deterministic; no clock, no chance, no I/O but `txn`.

        The entry's attachments are in `storage.attachments` under (group, index, part). `log_first` is the
        index of the oldest entry that the log keeps. An exception stops the group.
        """
        ...

    def recover(self, txn: ReadTransaction) -> Applied:
        """What the owner must know at start or on taking office: no results, current effects and due."""
        ...

    def due_commands(self, now_ms: int) -> Sequence[Any]:
        """Leader only: commands to propose when `due_ms` has come."""
        ...

    def digest(self, txn: ReadTransaction) -> bytes:
        """Hash of the state, to compare replicas at equal applied index."""
        ...
