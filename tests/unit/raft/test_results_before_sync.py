"""Results and effects that are reported before the sync of a turn."""

import pytest

from querator.raft.requests import Effects, Read, Remove
from querator.raft.turn.open_transaction import COMMIT_WITHIN_S
from querator.storage import generations
from tests.unit.raft import register
from tests.unit.raft.trio import G, Machine, World, future


class PowerLoss(BaseException):
    """The node stops here."""


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


# --- commits that may wait -----------------------------------------------------------------


def applied() -> tuple[World, Machine]:
    """A world and its leader, which has reported a result and has not committed the result's
    effects to its storage.
    """
    world = World("a", "b", "c")
    world.added(1)
    world.until(world.alike)
    world.added(7)
    leader = world.nodes[world.leader()]
    assert leader.status.applied_index < leader.status.commit_index
    return world, leader


def stored(node: Machine) -> int:
    with node.environment.snapshot() as snapshot:
        return register.read(generations.view(snapshot, G), G).value


def test_what_was_applied_is_committed_soon_though_nothing_else_is_to_be_written():
    world, leader = applied()
    before = leader.environment.commit_points
    assert leader.turns is not None
    wait_s = leader.turns.wait_s()
    assert wait_s is not None
    assert wait_s < COMMIT_WITHIN_S + 0.001
    assert stored(leader) == 1
    world.until(lambda: leader.status.applied_index == leader.status.commit_index)
    assert stored(leader) == 8
    assert leader.environment.commit_points > before


def log_of(node: Machine) -> tuple[int, int]:
    """Indexes of the last entry, and of the last one that is on disk."""
    assert node.turns is not None
    journal = node.turns._groups[G].journal
    return journal.last_index, journal.durable_index


def test_a_leader_whose_followers_are_prompt_leaves_the_sync_to_them():
    world, leader = applied()
    world.add(leader.name, 1)
    last, durable = log_of(leader)
    assert durable < last
    world.until(lambda: len(world.results) == 3)
    assert world.results[-1] == (9, last)
    world.until(world.alike)
    assert log_of(leader) == (last, last)


def test_a_sync_that_was_left_to_others_commits_when_it_comes_if_they_did_not():
    world, leader = applied()
    silent = next(name for name in world.nodes if name != leader.name)
    # Messages to this node are lost, and the leader does not know that yet.
    world.cut.add(frozenset((leader.name, silent)))
    world.add(leader.name, 1)
    last, durable = log_of(leader)
    assert durable < last
    world.until(lambda: len(world.results) == 3, within_s=0.1)


def test_one_whose_followers_are_silent_does_not():
    world, leader = applied()
    world.separate(leader.name)
    world.pass_s(0.1)
    world.add(leader.name, 1)
    last, durable = log_of(leader)
    assert durable == last
    assert len(world.results) == 2


def test_what_two_followers_have_is_there_when_the_leader_is_lost_before_its_sync():
    world, leader = applied()
    world.add(leader.name, 1)
    world.until(lambda: len(world.results) == 3)
    last, durable = log_of(leader)
    assert durable < last
    world.stop(leader.name)
    world.until(lambda: world.leaders)
    world.start(leader.name)
    world.until(lambda: stored(leader) == 9)
    assert world.added(0)[0] == 9


def test_who_reads_does_not_wait_for_it():
    world, leader = applied()
    asked = future()
    now_s = world.clock.monotonic_s()
    world.ask(leader.name, Read(G, asked))
    world.until(lambda: (asked, None) in world.done)
    assert world.clock.monotonic_s() - now_s < COMMIT_WITHIN_S
    assert stored(leader) == 8


def test_what_was_not_committed_is_applied_again():
    world, leader = applied()
    world.stop(leader.name)
    assert stored(leader) == 1
    world.start(leader.name)
    world.until(lambda: stored(leader) == 8)


def test_a_node_stops_only_when_it_is_committed():
    world, leader = applied()
    assert leader.turns is not None
    assert not leader.turns.all_answered
    world.until(world.alike)
    assert leader.turns.all_answered


def test_a_removed_group_takes_what_was_applied_with_it():
    world, leader = applied()
    world.ask(leader.name, Remove(G, future()))
    world.until(lambda: world.done)
    assert stored(leader) == 0


def test_a_leader_that_is_removed_while_its_entries_are_not_on_disk_stays_away():
    world, leader = applied()
    follower, other = (node for node in world.nodes.values() if node is not leader)
    world.cut.add(frozenset((leader.name, other.name)))
    world.add(leader.name, 1)
    world.turn(follower)
    world.turn(leader)
    last, durable = log_of(leader)
    assert durable < last, "its own copy is what the commit waits for"
    removed = [future() for _ in world.nodes]
    for node, request in zip((leader, follower, other), removed, strict=True):
        world.ask(node.name, Remove(G, request))
    world.until(lambda: {*removed} <= {one for one, _ in world.done})
    world.carried.clear()
    world.pass_s(1)
    assert [message for one, _, message in world.carried if one == leader.name] == []
    with leader.environment.snapshot() as snapshot:
        assert list(snapshot.scan(b"\0", b"\xff")) == []
