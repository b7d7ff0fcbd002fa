"""Group timers: when a group is due for a check."""

import random

from querator.model.ids import GroupId
from querator.raft.turn.timers import GroupTimers

A, B = GroupId(1), GroupId(2)


def test_the_earliest_alarm_of_a_group_is_the_one_that_rings():
    alarms = GroupTimers()
    assert alarms.first_s is None
    alarms.set(A, 5.0)
    alarms.set(A, 7.0)
    alarms.set(A, 3.0)
    alarms.set(B, 4.0)
    assert alarms.first_s == 3.0
    assert alarms.due(2.9) == []
    assert alarms.due(4.0) == [A, B]
    assert alarms.due(10.0) == []
    assert alarms.first_s is None


def test_one_that_is_set_for_the_past_rings_the_next_time():
    alarms = GroupTimers()
    for _ in range(3):
        alarms.set(A, float("-inf"))
        assert alarms.due(1.0) == [A]


def test_no_alarm_is_lost():
    chance = random.Random(1)
    alarms, wanted = GroupTimers(), dict[GroupId, float]()
    for now_s in range(1_000):
        for _ in range(chance.randrange(3)):
            group, at_s = GroupId(chance.randrange(20)), float(now_s + chance.randrange(50))
            alarms.set(group, at_s)
            wanted[group] = min(at_s, wanted.get(group, at_s))
        rung = alarms.due(now_s)
        assert set(rung) == {group for group, at_s in wanted.items() if at_s <= now_s}
        for group in rung:
            del wanted[group]
        first_s = alarms.first_s
        assert all(first_s is not None and first_s <= at_s for at_s in wanted.values())
