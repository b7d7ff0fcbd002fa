"""Calls whose entries are in the log and not applied yet, until each has ended.

what comes of the entry                               the call ends with
----------------------------------------------------  ------------------------------------------
it is applied here, leading or not                    its result
an entry of another term is applied in its place      NOT_LEADER: certainly not executed
the group ends on this node, or the log jumps over    OUTCOME_UNKNOWN
it by a snapshot, or the deadline of the call passes
"""

from collections.abc import Iterator

from querator.raft.handover import Call


class Pending:
    def __init__(self) -> None:
        self._entries: dict[int, tuple[int, list[Call]]] = {}
        """index → (term, calls in the order of their packing); indexes in rising order."""

    def add(self, index: int, term: int, calls: list[Call]) -> None:
        self._entries[index] = (term, calls)

    def of(self, index: int, term: int) -> list[Call] | None:
        """The calls of this very entry; None when it carries none of this node."""
        found = self._entries.get(index)
        return None if found is None or found[0] != term else found[1]

    def take(self, index: int, term: int) -> tuple[list[Call], list[Call]]:
        """Of an entry that is applied: its calls, and those that can never be applied for it."""
        mine = self._entries.pop(index, None)
        if mine is not None and mine[0] == term:
            return mine[1], []
        dead = [] if mine is None else list(mine[1])
        for at, (earlier, calls) in list(self._entries.items()):
            if at > index and earlier < term:
                dead += calls
                del self._entries[at]
        return [], dead

    def take_upto(self, index: int) -> list[Call]:
        gone = [at for at in self._entries if at <= index]
        return [call for at in gone for call in self._entries.pop(at)[1]]

    def expired(self, now_s: float) -> list[Call]:
        """Ends the calls whose deadlines have passed. They keep their places, which tell which
        result belongs to whom.
        """
        gone = []
        for call in self._living():
            if call.deadline_s > now_s:
                # Calls have one timeout: the later ones have later deadlines.
                break
            call.ended = True
            gone.append(call)
        return gone

    @property
    def deadline_s(self) -> float | None:
        """Of the first call that has not ended."""
        first = next(self._living(), None)
        return None if first is None else first.deadline_s

    def _living(self) -> Iterator[Call]:
        return (
            call
            for _, calls in self._entries.values()
            for call in calls
            if not call.ended and call.future is not None
        )

    def take_all(self) -> list[Call]:
        calls = [call for _, some in self._entries.values() for call in some]
        self._entries.clear()
        return calls
