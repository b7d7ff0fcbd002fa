"""What is told before the sync of a turn."""

import pytest

from querator.raft.handover import Effects
from tests.unit.raft.trio import World


class PowerLoss(BaseException):
    """The machine stops here."""


def lose_power(point: str) -> None:
    if point == "sync":
        raise PowerLoss


def effects(world: World) -> list[int]:
    return [event.effects for _, event in world.events if isinstance(event, Effects)]


def test_the_result_of_a_replicated_entry_is_told_before_its_state_is_on_disk():
    world = World("a", "b", "c")
    value, index = world.added(7)
    assert value == 7
    [(early, stored)] = world.early
    assert early == (value, index)
    assert stored.applied_index < index
    assert world.results == [early], "once"
    assert effects(world)[-1] == 7


def test_what_was_told_is_there_after_a_power_loss_of_all_in_the_same_turn():
    world = World("a", "b", "c")
    leader = world.leader()
    world.add(leader, 7)
    world.nodes[leader].environment.faults = lambda point: (
        lose_power(point) if world.results else None
    )
    with pytest.raises(PowerLoss):
        world.until(lambda: False)
    [((value, index), stored)] = world.early
    assert value == 7
    assert stored.applied_index < index
    for name in world.nodes:
        world.stop(name)
    for name in world.nodes:
        world.start(name)
    assert world.added(0)[0] == 7


def test_a_lone_voter_tells_nothing_before_it_is_on_disk():
    world = World("a")
    assert world.added(7)[0] == 7
    assert world.early == []


def test_what_the_machine_holds_back_comes_after_the_sync():
    world = World("a", "b", "c")
    assert world.added(-7)[0] == -7
    assert world.early == []
    assert effects(world)[-1] == -7


def test_effects_keep_their_order_when_some_may_not_be_told_early():
    world = World("a", "b", "c")
    leader = world.leader()
    world.pass_s(1)
    world.separate(leader)
    for command in (1, "late", 2):
        world.add(leader, command)
    assert world.results == []
    world.heal()
    world.until(lambda: len(world.results) == 3)
    assert [value for value, _ in world.results] == [1, 1, 3]
    assert [result[0] for result, _ in world.early] == [1]
    assert effects(world)[-3:] == [1, 1, 3]
