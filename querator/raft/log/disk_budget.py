"""What may still be written, judged before it is taken on: a turn's transaction must not fail.

Space is looked at once in a turn, with `Environment.usage`; what is taken on is taken off it, for
all groups and whoever it came from.

    what                                 leaves free
    ----------------------------------   -------------------------------------------------------
    calls that add items                 the environment's reserve
    calls that lease, or give back       half of it
    other calls                          a quarter of it, so that completes and deletes go on
    entries of a leader                  the same: of a full node, they are acknowledged without
    what mends a damaged block           the same
    a snapshot that comes in             an eighth of it
    committed entries that are applied   a sixteenth of it, by what they really write

A node that is full may have to forget what has been completed elsewhere, of which only a snapshot
tells: so there is always some space that this alone may take.

While much is free (`roomy`), calls count by their size alone. Otherwise the machine says what each
may need at most (`Machine.need`), and a call that only this turn has no space for waits for the
next one. What was appended may be applied much later, and other groups, followers and snapshots
write too. So entries are applied one by one then, each in a child transaction: one that would write
more than there is is undone, and waits (`Room`). So no transaction is larger than what is free.

When no more than twice the reserve is free the space is short, and the logs give way: whatever
their window, they keep their last entry alone, or what has been completed would go on to fill the
disk.
"""

from collections.abc import Sequence
from typing import Final

from querator.model.entries import Entry, Need, Tier
from querator.model.errors import ErrorCode, QueratorError
from querator.model.limits import TURN_BYTES_MAX
from querator.raft.messages import Append
from querator.storage.environment import Environment, WriteTransaction

_KEPT_PARTS: Final = {Tier.ADDS: 1, Tier.LEASES: 2, Tier.FREES: 4}
"""Calls go on while this part of the reserve is free."""
_STAGING_PART: Final = 8
"""A snapshot comes in while this part of the reserve is free."""
_APPLYING_PART: Final = 16
"""What is committed is applied while this part is: the rest of a turn writes little."""
_NEED_PART: Final = 8
"""An entry whose calls need more than this part of the reserve counts as if they needed that, or it
would be refused for ever where the reserve is small: bounds are far above what is usual. What it
really writes is judged when it is applied."""
_ROOMY_RESERVES: Final = 16
"""With so many reserves free, what calls need is not asked."""
_CALL_BYTES: Final = 4_096
"""What a call may need on disk besides what its bytes tell: its rows and their pages."""
_COMMAND_FACTOR: Final = 16
"""What a byte of a command may need: 20 of them ask for a time or a key of one item, which takes a
row or two of their own in the partition's tables, besides the log."""
_SHORT_RESERVES: Final = 2


class NoRoom(Exception):
    """An entry would write more than there is; it has written nothing."""


class Room:
    """What the entries that a turn applies may still write."""

    def __init__(self, free_bytes: int) -> None:
        self.free_bytes = free_bytes
        self.refused = False
        """Whether an entry had to wait."""

    def take(self, txn: WriteTransaction) -> None:
        """What the child transaction `txn` has written. Raises NoRoom."""
        need_bytes = txn.added_bytes()
        if need_bytes and need_bytes > self.free_bytes:
            self.refused = True
            raise NoRoom
        self.free_bytes -= need_bytes


class Space:
    """Of one node. Only the raft thread calls it."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._free_bytes = 0
        self._found_bytes = 0
        """Free when the turn began."""
        self._reserve_bytes = 0
        self._known = False
        self._short = False
        self._room: Room | None = None

    def begin_turn(self) -> None:
        """What was taken off is written, or was not taken on."""
        self._known = False
        self._room = None

    def _look(self) -> None:
        if self._known:
            return
        usage = self._environment.usage()
        self._free_bytes, self._reserve_bytes = usage.free_bytes, usage.reserve_bytes
        self._found_bytes = usage.free_bytes
        self._known = True
        self._short = self._short or self._spare_bytes <= 0

    @property
    def _spare_bytes(self) -> int:
        return self._free_bytes - _SHORT_RESERVES * self._reserve_bytes

    def was_short(self) -> bool:
        """Whether it was found short since this was asked last."""
        if self._room is not None and self._room.refused:
            self._short = True
        short, self._short = self._short, False
        return short

    @property
    def ample(self) -> bool:
        """Whether there is more than the work of some turns may take."""
        self._look()
        return self._spare_bytes > TURN_BYTES_MAX

    @property
    def roomy(self) -> bool:
        """Whether there is so much that what calls need does not matter."""
        self._look()
        return self._free_bytes > _ROOMY_RESERVES * self._reserve_bytes

    def takes_entries(self, message: Append) -> bool:
        """Whether the entries of a leader may be written."""
        need = sum(_need(entry.command, entry.attachments) for entry in message.entries)
        return self._takes(need, Tier.FREES)

    def takes_calls(self, entry: Entry, calls: int, need: Need) -> bool:
        """Whether an entry of so many calls, with what they need together, may be taken on."""
        return self._takes(self._of_calls(entry, calls, need), need.tier)

    def may_take_later(self, entry: Entry, calls: int, need: Need) -> bool:
        """Whether they could have been taken on when the turn began."""
        need_bytes = self._of_calls(entry, calls, need)
        return self._found_bytes - need_bytes >= self._kept_bytes(need.tier)

    def _of_calls(self, entry: Entry, calls: int, need: Need) -> int:
        self._look()
        return size_bytes(entry, calls) + min(need.bytes, self._reserve_bytes // _NEED_PART)

    def takes_mending(self, size: int) -> bool:
        """Whether bytes that are damaged on the disk may be written again."""
        return self._takes(2 * size + _CALL_BYTES, Tier.FREES)

    def _takes(self, need_bytes: int, tier: Tier) -> bool:
        self._look()
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
        """Of a call that is not taken on."""
        kept = self._kept_bytes(tier)
        message = f"{max(0, self._free_bytes)} bytes are free and {kept} are kept in reserve"
        return QueratorError(ErrorCode.STORAGE_FULL, message)

    def room(self, txn: WriteTransaction) -> Room | None:
        """What entries may write that are applied in `txn`, besides what it has written; None: they
        need not be judged.
        """
        if self.roomy:
            return None
        written_bytes = txn.added_bytes()
        kept_bytes = self._reserve_bytes // _APPLYING_PART
        self._room = Room(self._found_bytes - written_bytes - kept_bytes)
        return self._room

    def take_staging(self) -> int:
        """Bytes that a snapshot may take in this turn."""
        self._look()
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
    """What an entry of so many calls needs by its size alone."""
    return _need(entry.command, entry.attachments) + _CALL_BYTES * calls


def _need(command: bytes, attachments: Sequence[bytes]) -> int:
    return 2 * sum(map(len, attachments)) + _COMMAND_FACTOR * len(command)
