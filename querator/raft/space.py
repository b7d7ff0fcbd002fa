"""What may still be written, judged before it is taken on: a turn's transaction must not fail.

Space is looked at once in a turn, with `Environment.usage`; what is taken on is taken off it, for
all groups and whoever it came from.

    what                          leaves free
    ---------------------------   --------------------------------------------------------------
    calls with an attachment      the environment's reserve
    other calls                   a quarter of it, so that completes and deletes go on
    entries of a leader           the same: of a full node, they are acknowledged without
    what mends a damaged block    the same
    a snapshot that comes in      an eighth of it

A node that is full may have to forget what has been completed elsewhere, of which only a snapshot
tells: so there is always some space that this alone may take.

When no more than twice the reserve is free the space is short, and the logs give way: whatever
their window, they keep their last entry alone, or what has been completed would go on to fill the
disk.
"""

from collections.abc import Sequence
from typing import Final

from querator.model.entries import Entry
from querator.model.errors import ErrorCode, QueratorError
from querator.model.limits import TURN_BYTES_MAX
from querator.raft.messages import Append
from querator.storage.environment import Environment

_FLOOR_PART: Final = 4
"""Calls without attachments go on while this part of the reserve is free."""
_STAGING_PART: Final = 8
"""A snapshot comes in while this part of the reserve is free."""
_CALL_BYTES: Final = 4_096
"""What a call may need on disk besides what its bytes tell: its rows and their pages."""
_COMMAND_FACTOR: Final = 16
"""What a byte of a command may need: 20 of them ask for a time or a key of one item, which takes a
row or two of their own in the partition's tables, besides the log."""
_SHORT_RESERVES: Final = 2


class Space:
    """Of one node. Only the raft thread calls it."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._free_bytes = 0
        self._reserve_bytes = 0
        self._known = False
        self._short = False

    def begin_turn(self) -> None:
        """What was taken off is written, or was not taken on."""
        self._known = False

    def _look(self) -> None:
        if self._known:
            return
        usage = self._environment.usage()
        self._free_bytes, self._reserve_bytes = usage.free_bytes, usage.reserve_bytes
        self._known = True
        self._short = self._short or self._spare_bytes <= 0

    @property
    def _spare_bytes(self) -> int:
        return self._free_bytes - _SHORT_RESERVES * self._reserve_bytes

    def was_short(self) -> bool:
        """Whether it was found short since this was asked last."""
        short, self._short = self._short, False
        return short

    @property
    def ample(self) -> bool:
        """Whether there is more than the work of some turns may take."""
        self._look()
        return self._spare_bytes > TURN_BYTES_MAX

    def takes_entries(self, message: Append) -> bool:
        """Whether the entries of a leader may be written."""
        need = sum(_need(entry.command, entry.attachments) for entry in message.entries)
        return self._takes(need, attached=False)

    def takes_calls(self, entry: Entry, calls: int) -> bool:
        """Whether an entry of so many calls may be taken on."""
        need = _need(entry.command, entry.attachments) + _CALL_BYTES * calls
        return self._takes(need, attached=bool(entry.attachments))

    def takes_mending(self, size: int) -> bool:
        """Whether bytes that are damaged on the disk may be written again."""
        return self._takes(2 * size + _CALL_BYTES, attached=False)

    def _takes(self, need_bytes: int, *, attached: bool) -> bool:
        self._look()
        if self._free_bytes - need_bytes < self._kept_bytes(attached=attached):
            self._short = True
            return False
        self._free_bytes -= need_bytes
        return True

    def _kept_bytes(self, *, attached: bool) -> int:
        return self._reserve_bytes if attached else self._reserve_bytes // _FLOOR_PART

    def refusal(self, *, attached: bool) -> QueratorError:
        """Of a call that is not taken on."""
        kept = self._kept_bytes(attached=attached)
        message = f"{max(0, self._free_bytes)} bytes are free and {kept} are kept in reserve"
        return QueratorError(ErrorCode.STORAGE_FULL, message)

    def take_staging(self) -> int:
        """Bytes that a snapshot may take in this turn."""
        self._look()
        spare = self._free_bytes - self._reserve_bytes // _STAGING_PART
        taken = min(max(0, spare), TURN_BYTES_MAX)
        self._free_bytes -= taken
        return taken


def _need(command: bytes, attachments: Sequence[bytes]) -> int:
    return 2 * sum(map(len, attachments)) + _COMMAND_FACTOR * len(command)
