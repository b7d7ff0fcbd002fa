"""Replicas of idle groups do next to nothing."""

from typing import Any

from tests.unit.raft.trio import G, World

IDLE_S = 10.0


def led() -> World:
    world = World("a", "b", "c")
    world.added(1)
    world.until(world.alike)
    world.pass_s(1.0)
    return world


def test_replicas_that_hear_of_each_other_are_not_looked_at():
    world = led()
    looked_at = []
    for node in world.nodes.values():
        assert node.turns is not None
        group: Any = node.turns._groups[G]
        group.tick = lambda name=node.name: looked_at.append(name)
    world.pass_s(IDLE_S)
    assert not looked_at


def test_a_leader_that_no_majority_hears_steps_down_within_an_election_timeout():
    world = led()
    leader = world.leader()
    world.separate(leader)
    world.until(lambda: leader not in world.leaders, within_s=2.6)
