"""The cost of a turn does not grow with the amount of waiting work. Operations are counted, not
timed.
"""

from typing import Any

import pytest

from querator.model.entries import Entry, Proposal
from querator.model.ids import GroupId
from querator.raft.group.pending import Backlog, Pending
from querator.raft.log.journal import Journal, Stamped
from querator.raft.requests import Call

G = GroupId(1)
MANY = 1_000
TURNS = 100


class Looks:
    def __init__(self) -> None:
        self.count = 0


class Watched(Call):
    """A call that counts how often it is checked for its end."""

    __slots__ = ("_ended", "_looks")

    def __init__(self, looks: Looks, deadline_s: float, future: Any) -> None:
        self._looks = looks
        super().__init__(G, Proposal(b"c"), future, 10)
        self.deadline_s = deadline_s

    @property
    def ended(self) -> bool:
        self._looks.count += 1
        return self._ended

    @ended.setter
    def ended(self, value: bool) -> None:
        self._ended = value


def waiting(looks: Looks, *deadlines_s: float) -> tuple[Pending, list[Call]]:
    """Pending calls with one entry each."""
    pending = Pending(Backlog(bytes_max=1_000_000), GroupId(1))
    calls: list[Call] = [Watched(looks, one, object()) for one in deadlines_s]
    for index, call in enumerate(calls, 1):
        pending.add(index, 1, [call])
    return pending, calls


def test_calls_that_have_ended_cost_nothing_while_their_entries_are_not_committed():
    looks = Looks()
    pending, calls = waiting(looks, *([1.0] * MANY), 9.0)
    assert pending.expired(1.0) == calls[:-1]
    looks.count = 0
    for _ in range(TURNS):
        assert pending.deadline_s == 9.0
        assert pending.expired(2.0) == []
    assert looks.count <= 2 * TURNS


def test_each_call_is_passed_over_once_when_entries_are_applied():
    looks = Looks()
    pending, calls = waiting(looks, *[float(number) for number in range(MANY)])
    for index, call in enumerate(calls, 1):
        assert pending.deadline_s == call.deadline_s
        assert pending.pop_applied(index, 1) == ([call], [])
    assert pending.deadline_s is None
    assert looks.count <= 3 * MANY


def test_a_call_in_the_place_of_one_that_was_replaced_has_its_own_deadline():
    pending, [old] = waiting(Looks(), 1.0)
    assert pending.pop_applied(1, 2) == ([], [old])
    assert pending.deadline_s is None
    new = Watched(Looks(), 5.0, object())
    nobody = Watched(Looks(), 3.0, None)
    pending.add(1, 3, [nobody, new])
    assert pending.deadline_s == 5.0
    assert pending.expired(9.0) == [new]
    assert pending.take_all() == [nobody, new]
    assert pending.deadline_s is None


class Counted(dict[int, Any]):
    """A cache that counts how often an entry is looked up."""

    looks = 0

    def get(self, key: int, default: Any = None) -> Any:
        self.looks += 1
        return super().get(key, default)

    def __getitem__(self, key: int) -> Any:
        self.looks += 1
        return super().__getitem__(key)


def journal_of(entries: int) -> tuple[Journal, Counted]:
    journal = Journal(G)
    journal.setCurrentTerm(1, None)
    for index in range(1, entries + 1):
        journal.add(Stamped(Entry(b"c", (b"x" * index,)), 0), index, 1)
    counted = Counted(journal._cache)
    journal._cache = counted
    return journal, counted


def test_what_is_behind_an_entry_is_not_added_up_each_time():
    journal, counted = journal_of(MANY)
    for _ in range(TURNS):
        assert journal.bytes_after(0) == journal.bytes_kept
    assert counted.looks <= 2 * TURNS


@pytest.mark.parametrize("forgotten", [0, 4, 10])
def test_what_is_behind_an_entry_is_what_memory_has(forgotten: int):
    """The oldest entries may exist on disk only."""
    journal, counted = journal_of(10)
    for index in range(1, forgotten + 1):
        del counted[index]
    for index in range(11):
        there = sum(record.bytes for at, record in counted.items() if at > index)
        assert journal.bytes_after(index) == there
