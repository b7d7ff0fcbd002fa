"""Silent nodes: the link reports them, and leaders change before elections are due."""

from querator.model.limits import PEER_PING_MS, PEER_QUIET_MS, PEER_SILENCE_MS_MAX
from querator.raft.clock import SimulatedClock
from querator.raft.engine.library import settings
from querator.raft.messages import Envelope, TimeoutNow
from querator.raft.peers import Connected, Quiet
from tests.unit.raft.trio import World
from tests.unit.raft.wiring import Station, drive, introduced, settle

ELECTION_S = settings().raftMinTimeout


def quiet(station: Station, other: Station) -> int:
    """How many times the station reported that the other one is silent."""
    return station.events.count(Quiet(other.key))


def passes(clock: SimulatedClock, ms: int, *stations: Station) -> None:
    for _ in range(ms // PEER_PING_MS):
        clock.advance(PEER_PING_MS)
        settle(*stations)
    clock.advance(ms % PEER_PING_MS)
    settle(*stations)


def test_a_node_that_says_nothing_is_quiet_once_and_stays_connected():
    clock = SimulatedClock()
    with introduced("a", "b", clock=clock) as (a, b):
        # b does not run; its connection stays open.
        passes(clock, PEER_QUIET_MS - 50, a)
        assert quiet(a, b) == 0
        passes(clock, 2 * PEER_PING_MS, a)
        assert quiet(a, b) == 1
        assert a.peers.quiet() == {b.key}
        assert a.sees(b)
        drive(a, b, until=lambda: not a.peers.quiet())
        passes(clock, 5 * PEER_QUIET_MS, a, b)
        assert quiet(a, b) == 1
        assert a.links(b) == [Connected]


def test_a_link_that_stutters_is_given_longer():
    clock = SimulatedClock()
    with introduced("a", "b", clock=clock) as (a, b):
        passes(clock, 300, a)
        passes(clock, PEER_PING_MS, a, b)
        passes(clock, PEER_QUIET_MS + PEER_PING_MS, a)
        assert quiet(a, b) == 0
        passes(clock, PEER_QUIET_MS, a)
        assert quiet(a, b) == 1
        assert 3 * 500 < PEER_SILENCE_MS_MAX


def test_followers_of_a_quiet_node_have_another_leader_before_an_election_is_due():
    world = World("a", "b", "c")
    hangs = world.leader()
    others = [name for name in world.nodes if name != hangs]
    world.pass_s(1)
    for other in others:
        world.mute(hangs, other)
        world.mute(other, hangs)
    began_s = world.clock.monotonic_s()
    world.until(lambda: set(world.leaders) & set(others), within_s=ELECTION_S / 2)
    assert world.clock.monotonic_s() - began_s < ELECTION_S / 2
    # The leader received the report that its followers are silent, and has stepped down as well.
    world.until(lambda: hangs not in world.leaders, within_s=ELECTION_S / 2)


def test_a_leader_that_hears_nobody_gives_way_to_one_that_does():
    world = World("a", "b", "c")
    deaf = world.leader()
    others = [name for name in world.nodes if name != deaf]
    world.pass_s(1)
    for other in others:
        world.mute(other, deaf)
    # The others hear it, and would not start an election before it falls silent.
    world.until(lambda: set(world.leaders) & set(others), within_s=ELECTION_S / 2)
    assert deaf not in world.leaders


def test_a_quiet_follower_costs_nobody_the_leadership():
    world = World("a", "b", "c")
    leader = world.leader()
    world.pass_s(1)
    term = world.nodes[leader].status.term
    follower = next(name for name in world.nodes if name != leader)
    for other in world.nodes:
        if other != follower:
            world.mute(follower, other)
    world.pass_s(5)
    assert world.leaders == [leader]
    assert world.nodes[leader].status.term == term
    assert world.added(1)[0] == 1


def test_a_follower_that_hears_its_leader_does_not_vote_for_one_that_does_not():
    world = World("a", "b", "c")
    leader = world.leader()
    world.pass_s(1)
    term = world.nodes[leader].status.term
    world.mute(leader, next(name for name in world.nodes if name != leader))
    world.pass_s(5)
    assert world.leaders == [leader]
    assert world.nodes[leader].status.term == term


def test_a_leader_that_is_told_when_its_alarm_goes_off_steps_down():
    world = World("a", "b", "c")
    leader = world.leader()
    world.pass_s(1)
    for other in world.nodes:
        if other != leader:
            world.mute(other, leader)
    node = world.nodes[leader]
    node.clock.advance(5_000)
    world.turn(node)
    assert not node.status.leads


def told_to_stand(world: World, leader: str) -> list[str]:
    """The nodes that a leader has asked to start an election, in order."""
    return [
        to
        for one, to, message in world.carried
        if one == leader
        and isinstance(message, Envelope)
        and isinstance(message.message, TimeoutNow)
    ]


def test_a_leader_without_a_majority_gives_way_to_one_that_it_hears():
    world = World("a", "b", "c", "d", "e")
    leader = world.leader()
    world.added(1)
    hangs, *deaf_to, heard = [name for name in world.nodes if name != leader]
    for other in world.nodes:
        if other != hangs:
            world.mute(hangs, other)
    for other in deaf_to:
        world.mute(other, leader)
    world.until(lambda: told_to_stand(world, leader), within_s=ELECTION_S)
    assert told_to_stand(world, leader) == [heard]
    world.until(lambda: world.leaders == [heard], within_s=ELECTION_S / 2)


def test_a_leader_with_a_wrong_clock_gives_way_to_one_with_a_right_clock():
    world = World("a", "b", "c", "d", "e")
    leader = world.leader()
    world.added(1)
    first, second, *_ = [name for name in world.nodes if name != leader]
    world.nodes[first].clock.step_wall(-2_000)
    world.pass_s(2)
    world.nodes[leader].clock.step_wall(2_000)
    world.until(lambda: told_to_stand(world, leader))
    assert told_to_stand(world, leader) == [second]
    world.until(lambda: world.leaders == [second])
