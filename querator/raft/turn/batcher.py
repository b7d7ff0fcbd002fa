"""Joins waiting calls of a group into one log entry, fairly among the groups.

Groups with waiting calls are in a wait queue. A turn takes one entry from each in order until its
bytes are used up. A group with more calls goes to the end of the wait queue; a group that was not
reached keeps its place. So a turn is bounded, an entry is bounded, and no group waits for more than
one entry of each other group.
"""

from collections import deque
from collections.abc import Iterator

from querator.model.ids import GroupId
from querator.model.limits import ENTRY_BYTES_MAX, ENTRY_COMMANDS_MAX, TURN_BYTES_MAX
from querator.raft.requests import Call


class Batcher:
    """Calls that wait to be appended, by group."""

    def __init__(self) -> None:
        self._waiting: dict[GroupId, deque[Call]] = {}
        self._line: deque[GroupId] = deque()

    def __bool__(self) -> bool:
        return bool(self._line)

    def add(self, call: Call) -> None:
        self._queue(call.group).append(call)

    def add_first(self, calls: list[Call]) -> None:
        """Puts a group's own calls before those of clients, so that load cannot delay them."""
        for call in reversed(calls):
            self._queue(call.group).appendleft(call)

    def _queue(self, group: GroupId) -> deque[Call]:
        queue = self._waiting.get(group)
        if queue is None:
            queue = self._waiting[group] = deque()
            self._line.append(group)
        return queue

    def remove(self, group: GroupId) -> list[Call]:
        """Takes all waiting calls of a group out."""
        queue = self._waiting.pop(group, None)
        if queue is None:
            return []
        self._line.remove(group)
        return list(queue)

    def next_entries(self) -> Iterator[tuple[GroupId, list[Call]]]:
        """The entries of one turn: at most one per group, `TURN_BYTES_MAX` together.

        A call that exceeds the size of an entry gets its own entry, when its group is first in the
        queue.
        """
        left = TURN_BYTES_MAX
        for _ in range(len(self._line)):
            group = self._line[0]
            queue = self._waiting[group]
            calls, size = self._entry(
                queue, min(left, ENTRY_BYTES_MAX), first=left == TURN_BYTES_MAX
            )
            if not calls:
                return
            left -= size
            self._line.popleft()
            if queue:
                self._line.append(group)
            else:
                del self._waiting[group]
            yield group, calls

    def _entry(self, queue: deque[Call], bytes_max: int, *, first: bool) -> tuple[list[Call], int]:
        calls: list[Call] = []
        size = 0
        while queue and len(calls) < ENTRY_COMMANDS_MAX:
            more = queue[0].bytes
            if size + more > bytes_max and (calls or not first):
                break
            calls.append(queue.popleft())
            size += more
        return calls, size
