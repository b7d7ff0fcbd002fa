"""Entries are bounded, turns are bounded, and no group starves."""

from collections.abc import Sequence

from querator.model.entries import Proposal
from querator.model.ids import GroupId
from querator.model.limits import ENTRY_BYTES_MAX, ENTRY_COMMANDS_MAX, TURN_BYTES_MAX
from querator.raft.requests import Call
from querator.raft.turn.batcher import Batcher


def call(group: int, size: int = 1, name: str = "") -> Call:
    return Call(GroupId(group), Proposal(name), None, size)


def take(batcher: Batcher) -> list[tuple[int, int]]:
    """(group, number of calls) of each entry of a turn."""
    return [(group, len(calls)) for group, calls in batcher.next_entries()]


def names(calls: Sequence[Call]) -> list[str]:
    return [each.proposal.command for each in calls]


def test_calls_of_a_group_become_one_entry_in_their_order():
    batcher = Batcher()
    for name in "abc":
        batcher.add(call(1, name=name))
    batcher.add(call(2))
    batcher.add_first([call(1, name="x"), call(1, name="y")])
    ((group, calls), (other, _)) = batcher.next_entries()
    assert (group, other) == (1, 2)
    assert names(calls) == ["x", "y", "a", "b", "c"]
    assert not batcher
    assert take(batcher) == []


def test_an_entry_is_bounded_by_commands():
    batcher = Batcher()
    for _ in range(ENTRY_COMMANDS_MAX + 1):
        batcher.add(call(1))
    assert take(batcher) == [(1, ENTRY_COMMANDS_MAX)]
    assert take(batcher) == [(1, 1)]


def test_an_entry_is_bounded_by_bytes():
    batcher = Batcher()
    for _ in range(5):
        batcher.add(call(1, ENTRY_BYTES_MAX // 2))
    assert [take(batcher) for _ in range(3)] == [[(1, 2)], [(1, 2)], [(1, 1)]]


def test_a_call_larger_than_an_entry_goes_alone():
    batcher = Batcher()
    for size in (1, ENTRY_BYTES_MAX + 1, 1):
        batcher.add(call(1, size))
    assert [take(batcher) for _ in range(3)] == [[(1, 1)]] * 3


def test_a_large_call_behind_others_is_first_in_the_next_turn():
    batcher = Batcher()
    batcher.add(call(1))
    batcher.add(call(2, TURN_BYTES_MAX + 1))
    batcher.add(call(3))
    assert take(batcher) == [(1, 1)]
    assert take(batcher) == [(2, 1)]
    assert take(batcher) == [(3, 1)]


def test_a_busy_group_does_not_starve_the_others():
    batcher = Batcher()
    for _ in range(100):
        batcher.add(call(1, ENTRY_BYTES_MAX))
    for group in range(2, 10):
        batcher.add(call(group, ENTRY_BYTES_MAX))
    turns = [take(batcher) for _ in range(3)]
    assert [len(turn) for turn in turns] == [4, 4, 2]
    served = [group for turn in turns for group, _ in turn]
    assert served == [*range(1, 10), 1]


def test_a_group_that_leaves_takes_its_calls_with_it():
    batcher = Batcher()
    for group in (1, 2, 1):
        batcher.add(call(group))
    assert len(batcher.remove(GroupId(1))) == 2
    assert batcher.remove(GroupId(1)) == []
    assert take(batcher) == [(2, 1)]
