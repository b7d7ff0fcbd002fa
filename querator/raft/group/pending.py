"""Calls whose entries are in the log and not applied yet, until each has ended.

what comes of the entry                               the call ends with
----------------------------------------------------  ------------------------------------------
it is applied here, leading or not                    its result
an entry of another term is applied in its place      NOT_LEADER: certainly not executed
the group ends on this node, or the log jumps over    OUTCOME_UNKNOWN
it by a snapshot, or the deadline of the call passes
"""

from collections import deque
from collections.abc import Iterable

from querator.model.ids import GroupId
from querator.model.shares import Shares
from querator.raft.requests import Call

Backlog = Shares[GroupId]
"""What the calls of all groups of a node weigh, in bytes, until their entries are gone."""


class _Entry:
    """Of the log, with its calls in the order of their packing."""

    __slots__ = ("bytes", "calls", "first", "taken", "term")

    def __init__(self, term: int, calls: list[Call]) -> None:
        self.term = term
        self.calls = calls
        self.bytes = sum([call.bytes for call in calls])
        self.first = 0
        """Nobody waits for the calls before this one any more."""
        self.taken = False


class Pending:
    def __init__(self, backlog: Backlog, group: GroupId) -> None:
        self._backlog = backlog
        self._group = group
        self._entries: dict[int, _Entry] = {}
        """By index, which rises."""
        self._waiting: deque[_Entry] = deque()
        """As they came. Those that have been taken, or in which all calls have ended, are dropped
        when they are the first.
        """

    def add(self, index: int, term: int, calls: list[Call]) -> None:
        assert index not in self._entries
        entry = self._entries[index] = _Entry(term, calls)
        self._waiting.append(entry)
        self._backlog.add(self._group, entry.bytes)

    def of(self, index: int, term: int) -> list[Call] | None:
        """The calls of this very entry; None when it carries none of this node."""
        found = self._entries.get(index)
        return None if found is None or found.term != term else found.calls

    def take(self, index: int, term: int) -> tuple[list[Call], list[Call]]:
        """Of an entry that is applied: its calls, and those that can never be applied for it."""
        mine = self._entries.get(index)
        if mine is not None and mine.term == term:
            return self._take([index]), []
        dead = [] if mine is None else [index]
        dead += [at for at, entry in self._entries.items() if at > index and entry.term < term]
        return [], self._take(dead)

    def _take(self, indexes: Iterable[int]) -> list[Call]:
        calls: list[Call] = []
        for index in indexes:
            entry = self._entries.pop(index)
            entry.taken = True
            self._backlog.remove(self._group, entry.bytes)
            calls += entry.calls
        return calls

    def expired(self, now_s: float) -> list[Call]:
        """Ends the calls whose deadlines have passed. They keep their places, which tell which
        result belongs to whom.
        """
        gone = []
        while (call := self._first()) is not None and call.deadline_s <= now_s:
            # Calls have one timeout: the later ones have later deadlines.
            call.ended = True
            gone.append(call)
        return gone

    @property
    def deadline_s(self) -> float | None:
        """Of the first call that has not ended."""
        first = self._first()
        return None if first is None else first.deadline_s

    def _first(self) -> Call | None:
        """The first call for which somebody waits. Each call is passed over once."""
        while self._waiting:
            entry = self._waiting[0]
            while not entry.taken and entry.first < len(entry.calls):
                call = entry.calls[entry.first]
                if call.future is not None and not call.ended:
                    return call
                entry.first += 1
            self._waiting.popleft()
        return None

    def take_all(self) -> list[Call]:
        self._waiting.clear()
        return self._take(list(self._entries))
