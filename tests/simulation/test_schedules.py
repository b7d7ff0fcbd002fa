"""What the simulator has found, each as the shortest schedule that shows it.

The meaning of seeds changes with the simulator; that of schedules does not.
"""

import random
from dataclasses import replace
from typing import Any

import pytest

from querator.model.commands import Lease, LeaseCaller, Produce, RepairTime
from querator.model.entries import Proposal
from querator.model.ids import GroupId
from querator.model.limits import DAY_MS
from querator.model.nodes import Replica
from querator.raft.configuration import AddLearner, Change, RemoveReplica
from querator.raft.requests import Call, Reconfigure, Remove, Transfer
from querator.storage.generations import stored_groups
from tests.simulation.network import Nature
from tests.simulation.node import SimulatedNode, Ticket
from tests.simulation.profile import draw
from tests.simulation.timeline import MS, SECOND
from tests.simulation.world import World

# Many clusters are run in one test, beside all other tests at the lowest priority.
pytestmark = pytest.mark.timeout(2700)

G = GroupId(1)
THREE = replace(
    draw(1, random.Random(1)),
    nodes=3, replicas=3, groups=1, faults=(), nature=Nature(), sync_us=300, offset_ms=0,
    drift_ppm=0, log_bytes_kept=2_000, transfers=False, members=False, loss=0.0, pipelines=0,
)  # fmt: skip


def begun(*, nodes: int = 3) -> tuple[World, SimulatedNode, list[SimulatedNode]]:
    """A cluster that serves, its leader and the other nodes."""
    world = World(1, profile=replace(THREE, nodes=nodes))
    world._begin()
    found = world.leader(G)
    assert found is not None
    return world, found[0], [node for node in world.all_nodes() if node is not found[0]]


def load(world: World, leader: SimulatedNode, items: int) -> None:
    for number in range(items):
        payload = b"item %d, which is not long\n" % number
        command = Produce(len(payload).to_bytes(4, "little"))
        ticket = Ticket("produce", lambda _, __: None)
        leader.request(Call(G, Proposal(command, payload), ticket.future, 256))
        world._run_for(5 * MS)


def load_by_leader(world: World) -> None:
    found = world.leader(G)
    assert found is not None
    load(world, found[0], 3)


def apart(world: World, one: SimulatedNode, other: SimulatedNode) -> None:
    world.network.cut(one.key, other.key)
    for sender, receiver in ((one, other), (other, one)):
        world.network.block(sender.key, receiver.key)


def test_a_leader_sends_the_state_to_the_follower_whose_vote_its_office_needs():
    world, leader, (second, behind) = begun()
    apart(world, leader, behind)
    apart(world, second, behind)
    load(world, leader, 100)
    second.crash()
    leader.crash()
    world.network.heal()
    leader.start()
    assert world._until(lambda: world.leader(G) is not None, within_us=20 * SECOND)
    assert world.checks.violations == []


def test_a_replica_with_a_wrong_clock_leads_when_nobody_else_can():
    world, leader, (second, behind) = begun()
    apart(world, leader, behind)
    apart(world, second, behind)
    load(world, leader, 3)
    for node in world.all_nodes():
        node.crash()
    leader.clock.step(1_500)
    second.clock.step(-1_500)
    world.network.heal()
    for node in world.all_nodes():
        node.start()
    assert world._until(lambda: world.leader(G) is not None, within_us=20 * SECOND)


def test_a_leader_that_hands_over_waits_without_turns():
    world, leader, (second, _) = begun()
    load(world, leader, 3)
    world._run_for(3 * SECOND)
    lease = Lease((LeaseCaller("client", "1", 3, 0, 1_000),))
    leader.request(Call(G, Proposal(lease), Ticket("lease", lambda _, __: None).future, 256))
    world._run_for(100 * MS)
    # The lease lapses while the leadership is being handed over.
    apart(world, leader, second)
    leader.request(Transfer(G, second.key, Ticket("transfer", lambda _, __: None).future))
    world._run_for(5 * SECOND)
    assert world.checks.violations == []


def test_time_that_was_put_back_stays_back_through_a_restart_of_all():
    world, _, _ = begun()
    for node in world.all_nodes():
        # All clocks are wrong together, so that they are believed.
        node.clock.jump(30 * DAY_MS)
        node.clock.latest_ms = 30.0 * DAY_MS
        node.crash()
        node.start()
    assert world._until(lambda: world.leader(G) is not None, within_us=20 * SECOND)
    load_by_leader(world)
    for node in world.all_nodes():
        node.clock.jump(0)
    answers: list[Any] = []
    assert world._propose(G, lambda: (RepairTime(), b""), answers.append)
    assert answers[0].changed > 29 * DAY_MS
    load_by_leader(world)
    world._run_for(SECOND)
    for node in world.all_nodes():
        node.crash()
        node.start()
    assert world._until(lambda: world.leader(G) is not None, within_us=20 * SECOND)
    load_by_leader(world)
    world._run_for(3 * SECOND)
    for node in world.all_nodes():
        assert abs(stamped(node) - node.clock.wall_ms()) < 10_000
    assert world.checks.violations == []


def test_time_that_is_behind_jumps_to_the_clock_and_stays_there_through_a_restart_of_all():
    world, leader, _ = begun()
    load(world, leader, 3)
    for node in world.all_nodes():
        # All clocks are set forward together, so that they are believed.
        node.clock.jump(DAY_MS)
        node.clock.latest_ms = 1.0 * DAY_MS
    world._run_for(3 * SECOND)
    load_by_leader(world)
    assert stamped(leader) < leader.clock.wall_ms() - DAY_MS // 2, "it is only steered"
    assert world._propose(G, lambda: (RepairTime(), b""), lambda _: None)
    load_by_leader(world)
    world._run_for(SECOND)
    for node in world.all_nodes():
        assert abs(stamped(node) - node.clock.wall_ms()) < 10_000
        node.crash()
        node.start()
    assert world._until(lambda: world.leader(G) is not None, within_us=20 * SECOND)
    load_by_leader(world)
    world._run_for(3 * SECOND)
    for node in world.all_nodes():
        assert abs(stamped(node) - node.clock.wall_ms()) < 10_000
    assert world.checks.violations == []


def stamped(node: SimulatedNode) -> int:
    """State time of the last entry that the node has applied."""
    assert node.turns is not None
    status = node.turns.status(G)
    assert status is not None
    return status.now_ms


def changed(world: World, change: Change) -> None:
    done: list[bool] = []

    def attempt() -> bool:
        found = world.leader(G)
        if found is not None and not any(done):
            ticket = Ticket("change", lambda _, error: done.append(error is None))
            found[0].request(Reconfigure(G, change, ticket.future))
        return any(done)

    assert world._until(attempt, within_us=5 * SECOND)


def begun_without_a_replica(*, leaves: bool) -> tuple[World, SimulatedNode]:
    """Replica 4 is deleted on its node, which loses power at once and is up again. No other node
    has heard that the deletion is over. `leaves`: the group has removed the replica before.
    """
    world, _, others = begun(nodes=4)
    node = next(one for one in others if G not in one.first_replicas)
    node.hold(G, (Replica(4, node.key, voter=False),))
    changed(world, AddLearner(4, node.key))
    world._run_for(SECOND)
    if leaves:
        changed(world, RemoveReplica(4))
    world._run_for(SECOND)
    del node.first_replicas[G]
    node.disk.armed = "synced"
    node.request(Remove(G, Ticket("remove", lambda _, __: None).future))
    assert world._until(lambda: not node.up, within_us=SECOND)
    with node.disk.snapshots() as snapshot:
        assert stored_groups(snapshot) == set()
    assert world._until(lambda: node.up, within_us=10 * SECOND)
    return world, node


def test_a_replica_whose_deletion_nobody_has_heard_of_may_be_followed_by_another():
    world, node = begun_without_a_replica(leaves=True)
    node.hold(G, (Replica(5, node.key, voter=False),))
    changed(world, AddLearner(5, node.key))
    world._run_for(3 * SECOND)
    assert world.checks.violations == []
    assert node.turns is not None
    status = node.turns.status(G)
    assert status is not None
    assert (status.replica, status.term > 0) == (5, True)


def test_a_replica_that_the_group_counts_on_must_not_be_followed_by_another():
    world, node = begun_without_a_replica(leaves=False)
    node.hold(G, (Replica(5, node.key, voter=False),))
    world._run_for(3 * SECOND)
    assert any("replica 5 is in the place of 4" in text for text in world.checks.violations)


def test_a_replica_that_was_deleted_must_not_come_back():
    world, node = begun_without_a_replica(leaves=True)
    node.hold(G, (Replica(4, node.key, voter=False),))
    world._run_for(3 * SECOND)
    assert any("went back from term" in text for text in world.checks.violations)
