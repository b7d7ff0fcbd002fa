"""How much of their logs the groups of a node keep behind the applied index.

The bound is the node's, and its groups share it:

    all logs together    a group keeps
    -----------------    ------------------------------------------------------------------------
    within the bound     up to LOG_PART_BYTES_MAX
    beyond it            an equal share, together with all others that want more, of the part that
                         small logs leave of the bound; but at least LOG_PART_BYTES_MIN

A group shrinks its log when it writes. Large logs of groups that do not write shrink as well, a few
in a turn. Entries that followers need are kept up to `PINNED_WINDOWS` windows (`raft.log.journal`).
So the logs may exceed the node's bound by the same factor, and by LOG_PART_BYTES_MIN for each
group. A follower that needs a dropped entry gets a snapshot.

While the logs exceed the bound, the parts are recomputed once in SHARE_S, or when the logs have
grown by a part of the bound.
"""

from typing import Final

from querator.model.ids import GroupId
from querator.model.limits import LOG_PART_BYTES_MAX, LOG_PART_BYTES_MIN

SHARE_S: Final = 1.0
_GROWN_PART: Final = 16
"""The parts are recomputed when the logs have grown by this part of the bound."""
_LEAST_PART: Final = 8
"""With a small bound a group keeps at least this part of it, instead of LOG_PART_BYTES_MIN."""
GIVING_GROUPS_MAX: Final = 4
"""Most logs of groups that do not write which shrink in one turn."""


class LogWindow:
    """Log sizes of one node. Only the raft thread calls it."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._most = min(bytes_max, LOG_PART_BYTES_MAX)
        self._least = min(bytes_max // _LEAST_PART, LOG_PART_BYTES_MIN)
        self._sizes: dict[GroupId, int] = {}
        self._bytes = 0
        self._level = self._most
        self._shared_bytes = 0
        self._shared_s: float | None = None
        self._large: list[GroupId] = []
        """Groups beyond their parts when these were computed; the largest last."""
        self.part_bytes = self._most
        """Bytes that each group keeps of its log, as of the last `divide`."""

    def record_size(self, group: GroupId, size: int) -> None:
        """Records the size of a group's log."""
        self._bytes += size - self._sizes.get(group, 0)
        self._sizes[group] = size

    def forget(self, group: GroupId) -> None:
        self._bytes -= self._sizes.pop(group, 0)

    def divide(self, now_s: float) -> None:
        """Determines the bytes that a group keeps from here on."""
        if self._bytes <= self._bytes_max:
            self.part_bytes = self._most
            return
        grown = self._bytes - self._shared_bytes > self._bytes_max // _GROWN_PART
        if grown or self._shared_s is None or now_s - self._shared_s >= SHARE_S:
            self._share(now_s)
        self.part_bytes = self._level

    def _share(self, now_s: float) -> None:
        self._shared_bytes, self._shared_s = self._bytes, now_s
        sizes = sorted(self._sizes.values())
        left, level = self._bytes_max, self._most
        for number, size in enumerate(sizes):
            even = left // (len(sizes) - number)
            if size > even:
                level = even
                break
            left -= size
        self._level = max(self._least, min(level, self._most))
        large = [(size, group) for group, size in self._sizes.items() if size > self._level]
        self._large = [group for _, group in sorted(large)]

    def groups_to_trim(self) -> list[GroupId]:
        """The groups with the largest logs, if these exceed their parts."""
        found: list[GroupId] = []
        if self._bytes > self._bytes_max:
            for place in range(len(self._large) - 1, -1, -1):
                group = self._large[place]
                if self._sizes.get(group, 0) <= self._level:
                    del self._large[place]
                elif len(found) == GIVING_GROUPS_MAX:
                    break
                else:
                    found.append(group)
        return found
