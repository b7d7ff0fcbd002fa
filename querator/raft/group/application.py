"""The applied state of a group: its state machine, and the index of the last applied entry.

A follower gathers small committed entries (`gathers`) and applies them together. That costs less,
and the rows that they write do not delay those that it acknowledges. A leader never gathers,
because callers wait for the results.
"""

from typing import Final

from querator.model.entries import Applied
from querator.model.ids import GroupId
from querator.model.limits import KIB
from querator.raft.clock import Clock
from querator.raft.consensus.member import Member
from querator.raft.log.disk_budget import ApplyBudget, BudgetExceeded
from querator.raft.log.journal import Journal
from querator.raft.log.rows import Record, put_applied, read_applied
from querator.raft.machine import Machine
from querator.raft.snapshot.protocol import Position
from querator.storage.environment import ReadTransaction, StorageCorrupt, WriteTransaction

APPLY_WITHIN_S: Final = 0.02
"""Committed entries gather for at most this long."""
GATHERED_ENTRIES_MAX: Final = 8
GATHERED_BYTES_MAX: Final = 64 * KIB


class Application:
    """The applied state of one group. Only the raft thread calls it."""

    def __init__(
        self, group: GroupId, machine: Machine, journal: Journal, txn: ReadTransaction, clock: Clock
    ) -> None:
        """Reads the stored state. Raises StorageCorrupt."""
        self._group = group
        self._machine = machine
        self._journal = journal
        self._clock = clock
        self.index, _, self.now_ms = read_applied(txn, group) or (0, 0, 0)
        """Index and time of the last applied entry."""
        first, last = journal.first_index, journal.last_index
        if not first - 1 <= self.index <= last:
            raise StorageCorrupt(
                f"group {group}: entry {self.index} is the last applied one, "
                f"and the log has {first} to {last}"
            )
        self.stored_index = self.index
        """The last applied entry whose state snapshots show."""
        self.by_s: float | None = None
        """When the gathered entries are applied, by the monotonic clock."""
        # Entries that were committed before and are not applied are applied before a leadership
        # begins. The machine must learn its state before that.
        self._recovered = False

    def gathers(self, member: Member) -> bool:
        """Whether committed entries are left to a later turn."""
        if member.leads or member.commit_index - self.index > GATHERED_ENTRIES_MAX:
            return False
        if self.by_s is None:
            self.by_s = self._clock.monotonic_s() + APPLY_WITHIN_S
        elif self.by_s <= self._clock.monotonic_s():
            return False
        return self._journal.bytes_after(self.index) <= GATHERED_BYTES_MAX

    def apply(
        self, txn: WriteTransaction, last: int, room: ApplyBudget | None
    ) -> list[tuple[Record, Applied | None]]:
        """Applies the entries up to `last`, or as many as there is space for, and stores the
        applied index in the same transaction. Returns what each entry resulted in. This object
        changes only in `applied`, because the transaction may yet be lost.

        Raises the machine's exceptions, StorageCorrupt and EnvironmentFull.
        """
        done: list[tuple[Record, Applied | None]] = []
        for index in range(self.index + 1, last + 1):
            record = self._journal.record(txn, index)
            if room is None:
                done.append((record, self._apply_one(txn, record)))
                continue
            try:
                with txn.child() as child:
                    applied = self._apply_one(child, record)
                    room.spend(child)
            except BudgetExceeded:
                break
            done.append((record, applied))
        if done:
            newest = done[-1][0]
            put_applied(txn, self._group, (newest.index, newest.term, newest.now_ms))
        return done

    def _apply_one(self, txn: WriteTransaction, record: Record) -> Applied | None:
        if not record.is_command:
            return None
        if not self._recovered:
            self.recover(txn)
        return self._machine.apply(
            txn,
            record.index,
            record.term,
            record.entry.command,
            log_first=self._journal.first_index,
        )

    def recover(self, txn: ReadTransaction) -> Applied:
        """Lets the machine learn its state."""
        current = self._machine.recover(txn)
        self._recovered = True
        return current

    def applied(self, newest: Record) -> None:
        """The child transaction of `apply` is part of the open transaction."""
        self.index, self.now_ms = newest.index, newest.now_ms
        self.by_s = None

    def installed(self, position: Position) -> None:
        """Takes over the state of a snapshot."""
        self.index, self.now_ms = position.index, position.now_ms
        self.by_s = None
        self._recovered = False

    def stored(self) -> None:
        """The open transaction is committed."""
        self.stored_index = self.index
