"""Calls whose entries are in the log and not applied yet, until each has ended.

event                                                 the call ends with
----------------------------------------------------  ------------------------------------------
the entry is applied here, leading or not             its result
an entry of another term is applied in its place      NOT_LEADER: certainly not executed
the group ends on this node, a snapshot replaces the  OUTCOME_UNKNOWN
log, or the deadline of the call passes
"""

from collections import deque
from collections.abc import Iterable

from querator.model.ids import GroupId
from querator.model.shares import Shares
from querator.raft.requests import Call

Backlog = Shares[GroupId]
"""Bytes of the calls of all groups of a node, until their entries are gone."""


class _Entry:
    """An entry of the log, with its calls in the order of their packing."""

    __slots__ = ("bytes", "calls", "first", "taken", "term")

    def __init__(self, term: int, calls: list[Call]) -> None:
        self.term = term
        self.calls = calls
        self.bytes = sum([call.bytes for call in calls])
        self.first = 0
        """No caller waits for the calls before this one any more."""
        self.taken = False


class Pending:
    def __init__(self, backlog: Backlog, group: GroupId) -> None:
        self._backlog = backlog
        self._group = group
        self._entries: dict[int, _Entry] = {}
        """By index, ascending."""
        self._waiting: deque[_Entry] = deque()
        """In order of arrival. Entries that were taken, or whose calls have all ended, are dropped
        when they come first.
        """

    def add(self, index: int, term: int, calls: list[Call]) -> None:
        assert index not in self._entries
        entry = self._entries[index] = _Entry(term, calls)
        self._waiting.append(entry)
        self._backlog.add(self._group, entry.bytes)

    def calls_of(self, index: int, term: int) -> list[Call] | None:
        """The calls of exactly this entry; None when it carries none of this node."""
        found = self._entries.get(index)
        return None if found is None or found.term != term else found.calls

    def pop_applied(self, index: int, term: int) -> tuple[list[Call], list[Call]]:
        """For an applied entry: its calls, and the calls that can never be applied because of
        it.
        """
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
        """Ends the calls whose deadlines have passed. They keep their places, which assign results
        to calls.
        """
        gone = []
        while (call := self._first()) is not None and call.deadline_s <= now_s:
            # All calls have the same timeout: later ones have later deadlines.
            call.ended = True
            gone.append(call)
        return gone

    @property
    def deadline_s(self) -> float | None:
        """Deadline of the first call that has not ended."""
        first = self._first()
        return None if first is None else first.deadline_s

    def _first(self) -> Call | None:
        """The first call with a waiting caller. Each call is skipped at most once."""
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
