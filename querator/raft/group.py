"""One Raft group on this node: its member, its log, its machine, and the calls in between.

Life: opened (log and applied index recovered, what was committed but not applied is applied) → in
office (the no-op of the own term is applied: from here on it takes calls, and the machine is
asked for its due time) → closed. An exception from the machine ends it early: the entry's child
transaction is aborted, the applied index stays where it was, and the group is *quarantined* until
an operator looks: nothing further is taken on or applied, while the other groups of the node go
on. Its log keeps what was acknowledged by nobody but may yet be applied, so those calls end with
OUTCOME_UNKNOWN.

All of this happens in the order of `raft.turn`; nothing here commits or answers.
"""

import random
import struct
from collections.abc import Sequence
from typing import Any

import msgspec

from querator.model.entries import Applied, Entry, Proposal
from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import GroupId
from querator.model.limits import APPLY_ENTRIES_TURN_MAX, LEASE_GRACE_MS
from querator.raft.clock import Clock, StateTime
from querator.raft.handover import Call, Effects, Leadership, Outcome, Quarantine
from querator.raft.journal import Journal, Record, Stamped
from querator.raft.machine import Machine
from querator.raft.member import Member
from querator.storage.environment import (
    ReadTransaction,
    StorageCorrupt,
    StorageFailed,
    StorageFull,
    WriteTransaction,
)
from querator.storage.sealed import seal, unseal
from querator.storage.tables import APPLIED

REPLICA = 1
"""Id of the only replica of a group; ids of further ones are never reused."""

DUE_REFUSED_MS = 1_000
"""A group's own call that was refused for space is proposed again after this."""

_APPLIED = struct.Struct(">QQQ")


class GroupStatus(msgspec.Struct, frozen=True):
    """A group as of its last synced turn. `leader` is a replica id, None when not known."""

    term: int
    leader: int | None
    leads: bool
    commit_index: int
    applied_index: int
    log_first: int
    log_last: int
    log_bytes: int
    now_ms: int
    due_ms: int | None
    quarantined: bool


class Packed(msgspec.Struct, frozen=True):
    """An entry that may be appended, and whose calls it carries, in order."""

    stamped: Stamped
    calls: list[Call]


class Group:
    """Only the raft thread calls it; `status` may be read from anywhere."""

    def __init__(
        self,
        group: GroupId,
        machine: Machine,
        txn: ReadTransaction,
        *,
        clock: Clock,
        chance: random.Random,
        log_bytes_kept: int,
    ) -> None:
        """Opens what is stored, or a new group. Raises GroupDeleted, StorageCorrupt."""
        self.group = group
        self._machine = machine
        self._clock = clock
        self.journal = Journal.open(txn, group, bytes_kept=log_bytes_kept)
        self._applied_key = APPLIED.key(group)
        self.applied_index, self._applied_ms = self._restore_applied(txn)
        self.member = Member(
            group, self.journal, replica=REPLICA, applied_index=self.applied_index, chance=chance
        )
        self._calls: dict[int, tuple[int, list[Call]]] = {}
        """Calls of appended entries: index → (term, calls in the order of their packing)."""
        self._time: StateTime | None = None
        self._office_s = 0.0
        self._due_ms: int | None = None
        self.quarantined: BaseException | None = None
        # What was committed before and is not applied comes before the office: the machine learns
        # its state first.
        self._recovered = False
        self.status = self._make_status()

    def _restore_applied(self, txn: ReadTransaction) -> tuple[int, int]:
        """Index and time (ms) of the last applied entry."""
        index = now_ms = 0
        stored = txn.get(self._applied_key)
        if stored is not None:
            what = f"applied index of group {self.group}"
            index, _, now_ms = _APPLIED.unpack(unseal(self._applied_key, stored, what))
        first, last = self.journal.first_index, self.journal.last_index
        if not first - 1 <= index <= last:
            raise StorageCorrupt(
                f"group {self.group}: entry {index} is the last applied one, "
                f"and the log has {first} to {last}"
            )
        return index, now_ms

    @property
    def in_office(self) -> bool:
        return self._time is not None

    @property
    def unapplied(self) -> bool:
        """Whether there is something to apply in the open transaction, or an office to take."""
        return self.quarantined is None and self.applied_index < self.member.commit_index

    @property
    def changed(self) -> bool:
        return self.journal.changed or self.unapplied

    # --- proposing ---------------------------------------------------------------

    def pack(self, calls: list[Call], outcome: Outcome) -> "Packed | None":
        """One entry of all calls that pack, for `append`; None when there is none.

        A call that does not pack ends with INTERNAL, and is taken out of the entry.
        """
        assert self._time is not None
        assert self.quarantined is None
        now_ms = self._time.now_ms()
        try:
            entry = self._pack(calls, now_ms)
        except Exception:  # noqa: BLE001 - found and reported call by call
            calls = [call for call in calls if self._packs(call, now_ms, outcome)]
            if not calls or self.quarantined is not None:
                return None
            entry = self._pack(calls, now_ms)
        return Packed(Stamped(entry, now_ms), calls)

    def append(self, packed: "Packed") -> None:
        """Puts the entry into the log; its calls are answered when it is applied."""
        index = self.member.append(packed.stamped)
        for call in packed.calls:
            call.appended = True
        self._calls[index] = (self.member.term, packed.calls)

    def _pack(self, calls: list[Call], now_ms: int) -> Entry:
        return self._machine.pack([call.proposal for call in calls], now_ms)

    def _packs(self, call: Call, now_ms: int, outcome: Outcome) -> bool:
        try:
            self._pack([call], now_ms)
        except Exception as error:  # noqa: BLE001 - must not stop the others
            message = f"group {self.group}: the command does not pack: {error!r}"
            refusal = QueratorError(ErrorCode.INTERNAL, message)
            refusal.__cause__ = error
            outcome.errors.append((call, refusal))
            if call.future is None:
                # The group cannot do its own work: it would try for ever.
                self.quarantine(error, outcome)
            return False
        return True

    def own_calls(self, outcome: Outcome) -> list[Call]:
        """What the machine wants proposed because its time has come; the group waits for its
        result."""
        assert self._time is not None
        now_ms = self._time.now_ms()
        if self._due_ms is None or self._due_ms > now_ms or self.due_in_s() != 0:
            return []
        self._due_ms = None
        try:
            commands: Sequence[Any] = self._machine.due_commands(now_ms)
        except Exception as error:  # noqa: BLE001 - must not stop the others
            self.quarantine(error, outcome)
            return []
        return [Call(self.group, Proposal(command), None, 0) for command in commands]

    def own_call_refused(self) -> None:
        """An own call was not taken on; it is due again after a while."""
        assert self._time is not None
        due_ms = self._time.now_ms() + DUE_REFUSED_MS
        self._due_ms = due_ms if self._due_ms is None else min(self._due_ms, due_ms)

    def due_in_s(self) -> float | None:
        """Seconds until it is worth asking for `own_calls`; None while nothing is due.

        Not in the first `LEASE_GRACE_MS` of an office: nobody could extend while there was no
        leader.
        """
        if self._time is None or self._due_ms is None or self.quarantined is not None:
            return None
        grace_s = self._office_s + LEASE_GRACE_MS / 1000 - self._clock.monotonic_s()
        return max(grace_s, self._time.wait_s(self._due_ms), 0.0)

    # --- applying ----------------------------------------------------------------

    def apply(self, txn: WriteTransaction, outcome: Outcome) -> None:
        """Applies what is committed, up to `APPLY_ENTRIES_TURN_MAX` entries, in a child of `txn`.

        Raises StorageFull and StorageFailed: then the whole transaction is lost. Whatever else is
        raised, also for damage in what the group stores, quarantines the group.
        """
        last = min(self.member.commit_index, self.applied_index + APPLY_ENTRIES_TURN_MAX)
        done: list[tuple[Record, Applied | None]] = []
        try:
            with txn.child() as child:
                for index in range(self.applied_index + 1, last + 1):
                    record = self.journal.record(child, index)
                    done.append((record, self._apply_one(child, record)))
                newest = done[-1][0]
                row = _APPLIED.pack(newest.index, newest.term, newest.now_ms)
                child.put(self._applied_key, seal(self._applied_key, row))
        except (StorageFull, StorageFailed):
            raise
        except Exception as error:  # noqa: BLE001 - must not stop the others
            self.quarantine(error, outcome)
            return
        self.member.applied(last)
        self.applied_index, self._applied_ms = last, newest.now_ms
        for record, applied in done:
            self._hand_out(record, applied, outcome)
        if not self.in_office and self.member.leads and last >= self.member.office_index():
            self._take_office(txn, outcome)

    def _apply_one(self, txn: WriteTransaction, record: Record) -> Applied | None:
        if not record.is_command:
            return None
        if not self._recovered:
            self._machine.recover(txn)
            self._recovered = True
        applied = self._machine.apply(
            txn,
            record.index,
            record.term,
            record.entry.command,
            log_first=self.journal.first_index,
        )
        waiting = self._calls.get(record.index)
        if waiting is not None and waiting[0] == record.term:
            assert len(applied.results) == len(waiting[1]), "one result for each proposal"
        return applied

    def _hand_out(self, record: Record, applied: Applied | None, outcome: Outcome) -> None:
        term, calls = self._calls.pop(record.index, (record.term, []))
        assert term == record.term, "a lone member's entries are never replaced"
        if applied is None:
            return
        if self.in_office:
            self._due_ms = applied.due_ms
            if applied.effects is not None:
                outcome.events.append(Effects(self.group, applied.effects))
        outcome.results.extend(
            (call, result) for call, result in zip(calls, applied.results, strict=False)
        )

    def _take_office(self, txn: ReadTransaction, outcome: Outcome) -> None:
        try:
            current = self._machine.recover(txn)
        except (StorageFull, StorageFailed):
            raise
        except Exception as error:  # noqa: BLE001 - must not stop the others
            self.quarantine(error, outcome)
            return
        self._recovered = True
        self._time = StateTime(self._clock, last_ms=max(self.journal.last_ms, self._applied_ms))
        self._office_s = self._clock.monotonic_s()
        self._due_ms = current.due_ms
        outcome.events.append(Leadership(self.group, True))
        if current.effects is not None:
            outcome.events.append(Effects(self.group, current.effects))

    # --- the turn's end --------------------------------------------------------------

    @property
    def log_spare(self) -> int:
        """Entries that the log keeps and nobody here needs: a lone member has no one to send them
        to.
        """
        return 0 if self.quarantined else max(0, self.applied_index - self.journal.first_index)

    def truncate(self, txn: WriteTransaction, outcome: Outcome, *, whole: bool = False) -> None:
        """Bounds the log behind the applied entries; with `whole` it keeps the last one alone."""
        try:
            self.journal.truncate_head(txn, self.applied_index, whole=whole)
        except StorageCorrupt as error:
            self.quarantine(error, outcome)

    def synced(self) -> None:
        """The transaction of this turn is durable."""
        self.journal.synced(self.applied_index)
        self.status = self._make_status()

    def quarantine(self, error: BaseException, outcome: Outcome) -> None:
        """Ends the group's life on this node after a defect."""
        if self.quarantined is not None:
            return
        self.quarantined = error
        self.status = msgspec.structs.replace(self.status, quarantined=True, leads=False)
        outcome.errors.extend((call, self._unknown(error)) for call in self._take_calls())
        if self.in_office:
            self._time = None
            outcome.events.append(Leadership(self.group, False))
        outcome.events.append(Quarantine(self.group, error))

    def close(self, outcome: Outcome) -> None:
        """The group is taken from this node; it is never asked again."""
        outcome.errors.extend((call, self._unknown(None)) for call in self._take_calls())
        if self.in_office:
            self._time = None
            outcome.events.append(Leadership(self.group, False))

    def _take_calls(self) -> list[Call]:
        calls = [call for _, some in self._calls.values() for call in some]
        self._calls.clear()
        return calls

    def _unknown(self, error: BaseException | None) -> QueratorError:
        message = f"group {self.group} stopped; the command may be applied later"
        unknown = QueratorError(ErrorCode.OUTCOME_UNKNOWN, message)
        unknown.__cause__ = error
        return unknown

    def _make_status(self) -> GroupStatus:
        return GroupStatus(
            term=self.member.term,
            leader=self.member.leader,
            leads=self.in_office,
            commit_index=self.member.commit_index,
            applied_index=self.applied_index,
            log_first=self.journal.first_index,
            log_last=self.journal.last_index,
            log_bytes=self.journal.bytes_kept,
            now_ms=self._applied_ms,
            due_ms=self._due_ms,
            quarantined=self.quarantined is not None,
        )
