"""Checks writes against the free space before they are accepted: a turn's transaction must not
fail.

Space is checked once in a turn, with `Environment.usage`. Accepted writes are subtracted from it,
for all groups and all sources.

    writes                               leave free
    ----------------------------------   -------------------------------------------------------
    calls that add items                 the environment's reserve
    calls that lease, or give back       half of it
    other calls                          a quarter of it, so that completes and deletes continue
    entries of a leader                  the same: if the node is full, they are not acknowledged
    repairs of a damaged block           the same
    an incoming snapshot                 an eighth of it
    committed entries that are applied   a sixteenth of it, by what they actually write

A full node may have to delete items that were completed elsewhere, and may learn of them only from
a snapshot: so some space is reserved for snapshots.

While much is free (`roomy`), calls count by their size alone. Otherwise the machine returns the
most that each call may need (`Machine.need`), and a call that lacks space only in this turn waits
for the next one. An appended entry may be applied much later, and other groups, followers and
snapshots write too. So entries are then applied one by one, each in a child transaction: an entry
that would write more than the free space is rolled back, and waits (`ApplyBudget`). So no
transaction is larger than the free space.

When at most twice the reserve is free, the space is short, and the logs shrink: whatever their
window, they keep only their last entry. Otherwise entries of completed items would continue to fill
the disk.
"""

from collections.abc import Sequence
from typing import Final

from querator.model.entries import Entry, Need, Tier
from querator.model.errors import ErrorCode, QueratorError
from querator.model.limits import MIB, TURN_BYTES_MAX
from querator.model.nodes import NodeKey, node_name
from querator.raft.messages import Append
from querator.storage.environment import Environment, WriteTransaction

_KEPT_PARTS: Final = {Tier.ADDS: 1, Tier.LEASES: 2, Tier.FREES: 4}
"""Calls are accepted while this part of the reserve is free."""
_STAGING_PART: Final = 8
"""A snapshot is received while this part of the reserve is free."""
_APPLYING_PART: Final = 16
"""Committed entries are applied while this part is free: the rest of a turn writes little."""
_NEED_PART: Final = 8
"""An entry whose calls need more than this part of the reserve counts as if they needed this part.
Otherwise it would be refused for ever where the reserve is small, because the bounds are far above
the usual need. Its actual writes are checked when it is applied.
"""
_ROOMY_RESERVES: Final = 16
"""While more than this number of reserves is free, the need of calls is not determined."""
_CALL_BYTES: Final = 4_096
"""Disk space that a call may need in addition to its bytes: its rows and their pages."""
_COMMAND_FACTOR: Final = 16
"""Disk space that a byte of a command may need. 20 bytes ask for a time or a key of one item, which
takes one or two rows in the partition's tables, in addition to the log.
"""
_SHORT_RESERVES: Final = 2


class BudgetExceeded(Exception):
    """An entry would write more than the free space; it has written nothing."""


class ApplyBudget:
    """The space for the entries that a turn applies."""

    def __init__(self, free_bytes: int) -> None:
        self.free_bytes = free_bytes
        self.refused = False
        """Whether an entry had to wait."""

    def spend(self, txn: WriteTransaction) -> None:
        """Subtracts what the child transaction `txn` has written. Raises BudgetExceeded."""
        need_bytes = txn.added_bytes()
        if need_bytes and need_bytes > self.free_bytes:
            self.refused = True
            raise BudgetExceeded
        self.free_bytes -= need_bytes


class DiskBudget:
    """Disk space of one node. Only the raft thread calls it."""

    def __init__(self, environment: Environment, node: NodeKey) -> None:
        """`node` is the node that refusals name."""
        self._environment = environment
        self._node = node
        self._free_bytes = 0
        self._found_bytes = 0
        """Free when the turn began."""
        self._reserve_bytes = 0
        self._by_quota = False
        self._idle = 0, 0
        """Bytes that are free inside the data file, and count when the disk has as many free."""
        self._known = False
        self._short = False
        self._room: ApplyBudget | None = None

    def begin_turn(self) -> None:
        """Forgets the last check: accepted writes are now written, or were refused."""
        self._known = False
        self._room = None

    def _measure(self) -> None:
        if self._known:
            return
        usage = self._environment.usage()
        self._free_bytes, self._reserve_bytes = usage.free_bytes, usage.reserve_bytes
        self._found_bytes = usage.free_bytes
        self._by_quota = usage.by_quota
        self._idle = usage.idle_bytes, usage.idle_until_bytes
        self._known = True
        self._short = self._short or self._spare_bytes <= 0

    @property
    def _spare_bytes(self) -> int:
        return self._free_bytes - _SHORT_RESERVES * self._reserve_bytes

    def was_short(self) -> bool:
        """Whether space was found short since the last call."""
        if self._room is not None and self._room.refused:
            self._short = True
        short, self._short = self._short, False
        return short

    @property
    def ample(self) -> bool:
        """Whether more is free than the work of some turns may take."""
        self._measure()
        return self._spare_bytes > TURN_BYTES_MAX

    @property
    def roomy(self) -> bool:
        """Whether so much is free that the need of calls does not matter."""
        self._measure()
        return self._free_bytes > _ROOMY_RESERVES * self._reserve_bytes

    def takes_entries(self, message: Append) -> bool:
        """Whether the entries of a leader may be written."""
        need = sum(_need(entry.command, entry.attachments) for entry in message.entries)
        return self._takes(need, Tier.FREES)

    def takes_calls(self, entry: Entry, calls: int, need: Need) -> bool:
        """Whether an entry of `calls` calls, with their common need, may be accepted."""
        return self._takes(self._of_calls(entry, calls, need), need.tier)

    def may_take_later(self, entry: Entry, calls: int, need: Need) -> bool:
        """Whether the entry could have been accepted when the turn began."""
        need_bytes = self._of_calls(entry, calls, need)
        return self._found_bytes - need_bytes >= self._kept_bytes(need.tier)

    def _of_calls(self, entry: Entry, calls: int, need: Need) -> int:
        self._measure()
        return size_bytes(entry, calls) + min(need.bytes, self._reserve_bytes // _NEED_PART)

    def takes_mending(self, size: int) -> bool:
        """Whether damaged bytes on the disk may be written again."""
        return self._takes(2 * size + _CALL_BYTES, Tier.FREES)

    def _takes(self, need_bytes: int, tier: Tier) -> bool:
        self._measure()
        room = self._room
        missing = room is not None and need_bytes > room.free_bytes
        if missing or self._free_bytes - need_bytes < self._kept_bytes(tier):
            self._short = True
            return False
        self._free_bytes -= need_bytes
        if room is not None:
            room.free_bytes -= need_bytes
        return True

    def _kept_bytes(self, tier: Tier) -> int:
        return self._reserve_bytes // _KEPT_PARTS[tier]

    def refusal(self, tier: Tier) -> QueratorError:
        """The error of a call that is not accepted."""
        free_bytes, kept_bytes = max(0, self._free_bytes), self._kept_bytes(tier)
        what, remedy = "disk", "free space on it"
        if self._by_quota:
            what, remedy = "storage quota", "raise storage_quota_bytes"
        if free_bytes > self._kept_bytes(Tier.LEASES):
            remedy = f"consume items, or {remedy}"
        idle_bytes, until_bytes = self._idle
        if idle_bytes:
            remedy += (
                f"; {idle_bytes / MIB:,.1f} MiB inside the data file can be used again when the "
                f"disk has {until_bytes / MIB:,.1f} MiB free"
            )
        return QueratorError(
            ErrorCode.STORAGE_FULL,
            f"the {what} of node {node_name(self._node)} is full, with {free_bytes / MIB:,.1f} MiB "
            f"free and {kept_bytes / MIB:,.1f} MiB kept in reserve: {remedy}",
        )

    def room(self, txn: WriteTransaction) -> ApplyBudget | None:
        """The space for entries that are applied in `txn`, after what `txn` has written; None: no
        check is needed.
        """
        if self.roomy:
            return None
        written_bytes = txn.added_bytes()
        kept_bytes = self._reserve_bytes // _APPLYING_PART
        self._room = ApplyBudget(self._found_bytes - written_bytes - kept_bytes)
        return self._room

    def take_staging(self) -> int:
        """Reserves and returns the bytes that a snapshot may take in this turn."""
        self._measure()
        free_bytes = self._free_bytes
        if self._room is not None:
            free_bytes = min(free_bytes, self._room.free_bytes)
        spare = free_bytes - self._reserve_bytes // _STAGING_PART
        taken = min(max(0, spare), TURN_BYTES_MAX)
        self._free_bytes -= taken
        if self._room is not None:
            self._room.free_bytes -= taken
        return taken


def size_bytes(entry: Entry, calls: int) -> int:
    """What an entry of `calls` calls needs by its size alone."""
    return _need(entry.command, entry.attachments) + _CALL_BYTES * calls


def _need(command: bytes, attachments: Sequence[bytes]) -> int:
    return 2 * sum(map(len, attachments)) + _COMMAND_FACTOR * len(command)
