"""Clocks that are wrong by days do not move state time, and no group waits for ever."""

from functools import partial
from typing import Any

import pytest

from querator.model.commands import RepairTime
from querator.model.entries import Proposal
from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import PLACEMENT_GROUP, GroupId
from querator.model.limits import (
    DAY_MS,
    LONE_TIME_JUMP_MS_MAX,
    LONE_TIME_NOTED_MS,
    STATE_TIME_JUMP_MS_MAX,
)
from querator.model.nodes import node_key
from querator.raft.clock import SimulatedClock
from querator.raft.consensus.skew import TRUST_S, Skew
from querator.raft.messages import Append, TimeoutNow
from querator.raft.requests import Call
from tests.unit.raft.raft_cluster import G, RaftCluster

A, B, C, D, E = (node_key(name, "1") for name in "abcde")


def stamped_ms(cluster: RaftCluster) -> int:
    """State time of the last entry, by the replica that is furthest."""
    up = [node for node in cluster.nodes.values() if node.turns is not None]
    return max(node.status.now_ms for node in up)


def add(cluster: RaftCluster, amount: int) -> None:
    """Adds as a client does: it tries again when the leadership was moving to another node."""
    known = len(cluster.results)
    while len(cluster.results) == known:
        ended = len(cluster.results) + len(cluster.errors)
        cluster.add(cluster.leader(), amount)
        cluster.until(partial(has_ended_more, cluster, ended))


def has_ended_more(cluster: RaftCluster, ended: int) -> bool:
    return len(cluster.results) + len(cluster.errors) > ended


def restart(cluster: RaftCluster, *names: str) -> None:
    for name in names:
        if cluster.nodes[name].turns is not None:
            cluster.stop(name)
    for name in names:
        cluster.start(name)


def ahead_and_alone_with_the_log(days: int) -> tuple[RaftCluster, str, str]:
    """One of three nodes is down, and one lacks an entry. The third has the entry, so that it alone
    can be elected, and starts with a clock that is ahead. Returned with the names of the third and
    the second node.
    """
    cluster = RaftCluster("a", "b", "c")
    ahead = cluster.leader()
    right, gone = (name for name in "abc" if name != ahead)
    add(cluster, 1)
    cluster.until(cluster.alike)
    cluster.separate(right)
    add(cluster, 2)
    cluster.stop(gone)
    cluster.nodes[ahead].clock.step_wall(days * DAY_MS)
    restart(cluster, ahead, right)
    cluster.heal()
    return cluster, ahead, right


@pytest.mark.parametrize("days", [1, 30, 4_000])
def test_a_leader_whose_clock_is_ahead_goes_by_the_other_when_one_of_three_is_down(days: int):
    cluster, ahead, _ = ahead_and_alone_with_the_log(days)
    add(cluster, 3)
    add(cluster, 4)
    assert (
        ahead not in cluster.leaders
        or cluster.nodes[ahead].status.now_ms <= cluster.clock.wall_ms()
    )
    assert stamped_ms(cluster) <= cluster.clock.wall_ms()


def test_after_the_clock_is_mended_everything_goes_on_without_a_restart():
    cluster, ahead, _ = ahead_and_alone_with_the_log(30)
    add(cluster, 3)
    cluster.nodes[ahead].clock.step_wall(-30 * DAY_MS)
    for name in cluster.nodes:
        if cluster.nodes[name].turns is None:
            cluster.start(name)
    cluster.pass_s(20)
    add(cluster, 4)
    cluster.until(cluster.alike)
    assert abs(stamped_ms(cluster) - cluster.clock.wall_ms()) < 1_000


def test_two_of_three_that_disagree_elect_the_one_that_need_not_jump():
    cluster = RaftCluster("a", "b", "c")
    add(cluster, 1)
    leader = cluster.leader()
    ahead, gone = (name for name in "abc" if name != leader)
    cluster.until(cluster.alike)
    cluster.stop(gone)
    cluster.nodes[ahead].clock.step_wall(30 * DAY_MS)
    restart(cluster, leader, ahead)
    add(cluster, 2)
    cluster.pass_s(20)
    assert stamped_ms(cluster) <= cluster.clock.wall_ms()


def test_a_clock_that_is_stepped_in_its_term_does_not_steer_state_time():
    cluster = RaftCluster("a", "b", "c")
    leader = cluster.leader()
    _, gone = (name for name in "abc" if name != leader)
    cluster.stop(gone)
    add(cluster, 1)
    cluster.nodes[leader].clock.step_wall(30 * DAY_MS)
    for amount in range(2, 12):
        cluster.pass_s(60)
        add(cluster, amount)
    assert stamped_ms(cluster) <= cluster.clock.wall_ms() + 100


def test_a_cluster_that_was_off_for_a_weekend_comes_up_by_itself():
    cluster = RaftCluster("a", "b", "c")
    add(cluster, 1)
    cluster.until(cluster.alike)
    for name in "abc":
        cluster.stop(name)
        cluster.nodes[name].clock.advance(3 * DAY_MS)
    cluster.clock.advance(3 * DAY_MS)
    for name in "abc":
        cluster.start(name)
    cluster.until(lambda: cluster.leaders, within_s=5)
    add(cluster, 2)
    assert abs(stamped_ms(cluster) - cluster.clock.wall_ms()) < 1_000


def test_a_restarted_node_takes_a_leadership_before_it_has_heard_the_other_clocks(caplog):
    """In an idle partition it refused, blamed its clock, and was offered the leadership again only
    after 10 s.
    """
    cluster = RaftCluster("a", "b", "c")
    add(cluster, 1)
    cluster.until(cluster.alike)
    old = cluster.leader()
    target = next(name for name in "abc" if name != old)
    cluster.pass_s(60)
    restart(cluster, target)
    status = cluster.nodes[old].status
    term, last = status.term, status.log_last
    empty = Append(
        term=term, sequence=1_000, read_round=0, prev_index=last, prev_term=term, commit_index=last
    )
    cluster.hear(target, old, empty, TimeoutNow(term))
    assert not cluster.nodes[target].status.waits_for_clock
    cluster.until(lambda: cluster.leaders == [target], within_s=1)
    assert "clock.rejected" not in caplog.text
    add(cluster, 2)


def test_a_restarted_node_with_a_wrong_clock_takes_no_leadership(caplog):
    cluster = RaftCluster("a", "b", "c")
    add(cluster, 1)
    cluster.until(cluster.alike)
    old = cluster.leader()
    target = next(name for name in "abc" if name != old)
    cluster.nodes[target].clock.step_wall(DAY_MS)
    restart(cluster, target)
    status = cluster.nodes[old].status
    term, last = status.term, status.log_last
    empty = Append(
        term=term, sequence=1_000, read_round=0, prev_index=last, prev_term=term, commit_index=last
    )
    cluster.hear(target, old, empty, TimeoutNow(term))
    cluster.pass_s(2)
    assert "clock.rejected" in caplog.text
    assert cluster.leaders == [old]
    assert cluster.nodes[old].status.term == term


def test_two_of_three_that_agree_come_up_after_a_weekend():
    cluster = RaftCluster("a", "b", "c")
    add(cluster, 1)
    cluster.until(cluster.alike)
    for name in "abc":
        cluster.stop(name)
        cluster.nodes[name].clock.advance(3 * DAY_MS)
    cluster.clock.advance(3 * DAY_MS)
    for name in "ab":
        cluster.start(name)
    cluster.until(lambda: cluster.leaders, within_s=5)
    add(cluster, 2)
    assert abs(stamped_ms(cluster) - cluster.clock.wall_ms()) < 1_000


def test_who_led_without_a_clock_to_believe_catches_up_when_there_is_one():
    """The second clock is years behind: no node can determine which of the two is right."""
    cluster, ahead, behind = ahead_and_alone_with_the_log(0)
    for node in cluster.nodes.values():
        node.clock.step_wall(3 * DAY_MS)
    cluster.clock.step_wall(3 * DAY_MS)
    cluster.stop(behind)
    cluster.nodes[behind].clock.step_wall(-4_000 * DAY_MS)
    restart(cluster, ahead)
    cluster.start(behind)
    add(cluster, 3)
    assert stamped_ms(cluster) < cluster.clock.wall_ms() - 2 * DAY_MS
    cluster.nodes[behind].clock.step_wall(4_000 * DAY_MS)
    cluster.pass_s(20)
    add(cluster, 4)
    assert abs(stamped_ms(cluster) - cluster.clock.wall_ms()) < 1_000


# --- a node that is alone ---------------------------------------------------------------


def lone(off_ms: int) -> RaftCluster:
    """A node that was off for this time, by its clock."""
    cluster = RaftCluster("a")
    add(cluster, 1)
    cluster.stop("a")
    cluster.nodes["a"].clock.step_wall(off_ms)
    cluster.start("a")
    return cluster


def test_a_lone_node_that_slept_for_a_week_leads():
    cluster = lone(8 * DAY_MS)
    cluster.until(lambda: cluster.leaders, within_s=1)
    add(cluster, 2)
    assert stamped_ms(cluster) == cluster.nodes["a"].clock.wall_ms()


def test_a_lone_node_with_a_clock_that_is_far_ahead_waits_until_it_is_mended():
    cluster = lone(30 * DAY_MS)
    cluster.pass_s(100)
    assert cluster.leaders == []
    assert cluster.nodes["a"].status.waits_for_clock
    turns = cluster.turns
    cluster.pass_s(100)
    assert cluster.turns - turns < 250, "it looks again now and then"
    cluster.nodes["a"].clock.step_wall(-30 * DAY_MS)
    cluster.until(lambda: cluster.leaders, within_s=3)
    assert not cluster.nodes["a"].status.waits_for_clock
    add(cluster, 2)
    assert abs(stamped_ms(cluster) - cluster.clock.wall_ms()) < 1_000


def test_a_lone_node_leads_when_an_operator_says_that_its_clock_is_right():
    cluster = lone(300 * DAY_MS)
    cluster.pass_s(10)
    turns = cluster.nodes["a"].turns
    assert turns is not None
    turns.skew.trust()
    cluster.until(lambda: cluster.leaders, within_s=3)
    add(cluster, 2)
    assert stamped_ms(cluster) == cluster.nodes["a"].clock.wall_ms()


def test_a_lone_node_in_which_nothing_happened_for_a_year_starts_again():
    cluster = RaftCluster("a")
    add(cluster, 1)
    for _ in range(365):
        cluster.nodes["a"].clock.advance(DAY_MS)
        cluster.step()
    # The state time of its first entry alone would be too far behind the clock.
    assert stamped_ms(cluster) > cluster.nodes["a"].clock.wall_ms() - 2 * LONE_TIME_NOTED_MS
    restart(cluster, "a")
    cluster.until(lambda: cluster.leaders, within_s=1)


def test_a_clock_that_jumps_by_a_month_does_not_steer_a_lone_leader():
    cluster = RaftCluster("a")
    add(cluster, 1)
    cluster.nodes["a"].clock.step_wall(30 * DAY_MS)
    for amount in range(2, 12):
        cluster.pass_s(60)
        add(cluster, amount)
    assert stamped_ms(cluster) <= cluster.clock.wall_ms() + 100


def test_a_follower_knows_the_time_for_groups_that_are_made_on_its_node_alone():
    """After quiet weeks the state time that the follower has applied itself is too old."""
    cluster = RaftCluster("a", "b", "c")
    cluster.added(1)
    for clock in (cluster.clock, *(node.clock for node in cluster.nodes.values())):
        clock.advance(LONE_TIME_JUMP_MS_MAX + DAY_MS)
    cluster.pass_s(5)
    cluster.added(1)
    cluster.until(cluster.alike)
    for node in cluster.nodes.values():
        assert node.turns is not None
        assert node.turns.skew.believes((), 0)


# --- put back ----------------------------------------------------------------------------


def test_time_is_put_back_only_to_a_clock_that_a_majority_confirms():
    cluster = RaftCluster("a", "b", "c")
    add(cluster, 1)
    leader = cluster.leader()
    for name in "abc":
        if name != leader:
            cluster.nodes[name].clock.step_wall(-60_000 if name == "a" else 60_000)
    cluster.pass_s(2)
    future: Any = object()
    cluster.ask(cluster.leader(), Call(G, Proposal(RepairTime()), future, 100))
    assert isinstance(cluster.errors[-1], QueratorError)
    assert cluster.errors[-1].code is ErrorCode.UNAVAILABLE
    assert "clocks of a majority do not agree" in cluster.errors[-1].message


# --- set forward -------------------------------------------------------------------------


def put_to_the_clock(cluster: RaftCluster) -> None:
    future: Any = object()
    known = len(cluster.results) + len(cluster.errors)
    cluster.ask(cluster.leader(), Call(G, Proposal(RepairTime()), future, 100))
    cluster.until(partial(has_ended_more, cluster, known))


def set_forward(cluster: RaftCluster, step_ms: int) -> None:
    add(cluster, 1)
    for node in cluster.nodes.values():
        node.clock.step_wall(step_ms)
    cluster.pass_s(3)


@pytest.mark.parametrize("names", ["a", "abc"])
@pytest.mark.parametrize("step_ms", [60_000, 3_600_000, 30 * DAY_MS])
def test_time_that_is_behind_clocks_that_were_set_forward_is_put_to_them(names: str, step_ms: int):
    cluster = RaftCluster(*names)
    set_forward(cluster, step_ms)
    leader = cluster.nodes[cluster.leader()]
    add(cluster, 2)
    assert stamped_ms(cluster) < cluster.clock.wall_ms() + 1_000, "it is only steered"
    assert leader.status.behind_ms > step_ms - 10_000
    put_to_the_clock(cluster)
    assert cluster.errors == []
    add(cluster, 3)
    assert abs(stamped_ms(cluster) - leader.clock.wall_ms()) < 1_000
    cluster.until(cluster.alike)
    assert leader.status.behind_ms == 0


def test_time_is_not_put_to_a_clock_that_no_majority_confirms():
    cluster = RaftCluster("a", "b", "c")
    add(cluster, 1)
    leader = cluster.leader()
    cluster.nodes[leader].clock.step_wall(3_600_000)
    put_to_the_clock(cluster)
    assert isinstance(cluster.errors[-1], QueratorError)
    assert "clocks of a majority do not agree" in cluster.errors[-1].message
    assert cluster.nodes[leader].status.behind_ms == 0
    add(cluster, 2)
    assert stamped_ms(cluster) < cluster.clock.wall_ms() + 10_000


def test_a_lone_node_in_which_nothing_happens_notes_that_its_clock_was_set_and_set_back():
    cluster = RaftCluster("a")
    node = cluster.nodes["a"]
    cluster.add("a", f"at {cluster.clock.wall_ms() + 3_600_000}")
    for _ in range(3):
        node.clock.step_wall(1_800_000)
        cluster.pass_s(61)
        assert node.status.behind_ms > 1_700_000
        node.clock.step_wall(-1_800_000)
        cluster.pass_s(61)
        assert node.status.behind_ms == 0


# --- the rule ---------------------------------------------------------------------------


def skew_of(*ahead_ms: int) -> tuple[Skew, SimulatedClock]:
    clock = SimulatedClock()
    skew = Skew(clock)
    for node, ms in zip((B, C, D, E), ahead_ms, strict=False):
        skew.record_clock(node, clock.wall_ms() + ms)
    return skew, clock


LONG_AGO = 1_000_000


@pytest.mark.parametrize(
    ("others", "ahead_ms", "believed_ahead_ms"),
    [
        ((B, C), (0,), 0),
        ((B, C), (-9_000,), 0),
        ((B, C), (-60_000,), -60_000),
        ((B, C), (60_000,), 0),
        ((B, C), (-60_000, 0), 0),
        ((B, C), (-60_000, -50_000), -50_000),
        ((B, C, D, E), (0, -60_000), -60_000),
        ((B, C, D, E), (0, 0), 0),
        ((B, C, D, E), (-60_000, -60_000, -60_000, 0), -60_000),
        ((B,), (-60_000,), -60_000),
    ],
)
def test_a_clock_is_believed_up_to_those_of_a_majority(others, ahead_ms, believed_ahead_ms):
    skew, clock = skew_of(*ahead_ms)
    assert (
        skew.believed_ms(clock.wall_ms(), others, LONG_AGO) - clock.wall_ms() == believed_ahead_ms
    )
    assert skew.believes(others, LONG_AGO) == (believed_ahead_ms == 0)


def test_without_the_clocks_of_a_majority_the_log_is_what_is_known():
    skew, clock = skew_of()
    last_ms = clock.wall_ms() - STATE_TIME_JUMP_MS_MAX
    assert skew.believes((B, C), last_ms)
    assert skew.believed_ms(clock.wall_ms(), (B, C), last_ms - 1) == last_ms - 1
    assert skew.believed_ms(clock.wall_ms(), (B, C, D, E), LONG_AGO) == LONG_AGO


def test_a_step_of_the_own_clock_is_seen_before_anybody_is_heard_again():
    skew, clock = skew_of(0, 0)
    right_ms = clock.wall_ms()
    clock.step_wall(DAY_MS)
    assert skew.believed_ms(clock.wall_ms(), (B, C), LONG_AGO) == right_ms


def test_a_clock_that_was_wrong_once_does_not_confirm_a_later_step():
    skew, clock = skew_of(DAY_MS, 0)
    right_ms = clock.wall_ms()
    clock.step_wall(DAY_MS)
    assert skew.believed_ms(clock.wall_ms(), (B, C), LONG_AGO) == right_ms
    assert not skew.agrees((B, C)), "B may have been put right"
    skew.record_clock(C, right_ms)
    assert skew.believed_ms(clock.wall_ms(), (B, C), LONG_AGO) == right_ms
    skew.record_clock(B, clock.wall_ms())
    assert skew.believed_ms(clock.wall_ms(), (B, C), LONG_AGO) == clock.wall_ms()
    assert skew.agrees((B, C))


def test_after_several_steps_a_clock_counts_as_far_as_before_each_of_them():
    skew, clock = skew_of(60_000, 60_000)
    right_ms = clock.wall_ms()
    for _ in range(3):
        clock.step_wall(30_000)
        assert skew.believed_ms(clock.wall_ms(), (B, C), LONG_AGO) == right_ms
    skew.record_clock(C, right_ms + 60_000)
    assert skew.believed_ms(clock.wall_ms(), (B, C), LONG_AGO) == right_ms + 60_000


def test_a_step_that_puts_the_own_clock_right_is_believed_when_the_others_are_heard_again():
    skew, clock = skew_of(60_000, 60_000)
    wrong_ms = clock.wall_ms()
    clock.step_wall(60_000)
    assert skew.believed_ms(clock.wall_ms(), (B, C), LONG_AGO) == wrong_ms
    skew.record_clock(B, clock.wall_ms())
    assert skew.believed_ms(clock.wall_ms(), (B, C), LONG_AGO) == clock.wall_ms()


def test_a_thread_that_stands_still_between_two_clocks_sees_no_step():
    class Halting(SimulatedClock):
        halt_ms = 0

        def wall_ms(self) -> int:
            wall_ms = super().wall_ms()
            halt_ms, self.halt_ms = self.halt_ms, 0
            self.advance(halt_ms)
            return wall_ms

    clock = Halting()
    skew = Skew(clock)
    for node in (B, C):
        skew.record_clock(node, clock.wall_ms())
    wall_ms = clock.wall_ms()
    clock.halt_ms = 2_000
    skew.believed_ms(wall_ms, (B, C), LONG_AGO)
    assert skew.agrees((B, C)), "the clocks are as they were"


@pytest.mark.parametrize("ahead_ms", [-DAY_MS, DAY_MS])
def test_of_two_clocks_that_differ_a_new_group_follows_the_one_that_fits_its_nodes_partitions(
    ahead_ms,
):
    """Otherwise such a group may begin a day ahead or behind. When a group began a day in the past
    and the third clock was heard, its time advanced by that day, and produces of the last minutes
    could not be repeated.
    """
    skew, clock = skew_of(ahead_ms)
    right_ms = clock.wall_ms() + min(0, ahead_ms)
    assert skew.believed_ms(clock.wall_ms(), (B, C), 0) == right_ms, "nothing else is known"
    skew.reached(PLACEMENT_GROUP, clock.wall_ms())
    assert skew.believed_ms(clock.wall_ms(), (B, C), 0) == right_ms, "its time cannot be put back"
    skew.reached(GroupId(7), clock.wall_ms() - 1)
    assert skew.believes((B, C), 0), "the own clock is right"
    reached_ms = clock.wall_ms() + DAY_MS
    skew.reached(GroupId(7), reached_ms)
    assert skew.believed_ms(clock.wall_ms(), (B, C), 0) == reached_ms, "the own clock is wrong"
    skew.record_clock(C, clock.wall_ms())
    assert skew.believes((B, C), 0), "two of three agree"


def test_the_bound_of_a_lone_voter():
    skew, clock = skew_of()
    assert skew.believes((), clock.wall_ms() - LONE_TIME_JUMP_MS_MAX)
    assert not skew.believes((), clock.wall_ms() - LONE_TIME_JUMP_MS_MAX - 1)
    assert skew.believes((), 0), "its log is empty"
    skew.reached(GroupId(1), clock.wall_ms() - LONE_TIME_JUMP_MS_MAX)
    assert skew.believes((), 0)
    clock.step_wall(1)
    assert not skew.believes((), 0), "other groups of the node know better"
    reached_ms = clock.wall_ms() - LONE_TIME_JUMP_MS_MAX - 1
    assert skew.believed_ms(clock.wall_ms(), (), 0) == reached_ms


def test_an_operators_word_holds_for_a_while():
    skew, clock = skew_of(-60_000)
    skew.trust()
    assert skew.believes((B, C), LONG_AGO)
    clock.advance(int(TRUST_S * 1000))
    assert not skew.believes((B, C), LONG_AGO)


def test_a_node_that_has_left_every_group_is_forgotten():
    skew, clock = skew_of()
    skew.of_group(GroupId(1), (B, C))
    skew.of_group(GroupId(2), (B, C))
    for node in (B, C):
        skew.record_clock(node, clock.wall_ms() + 60_000)
    assert skew.clock_is_wrong
    skew.of_group(GroupId(1), (B, D))
    assert skew.clock_is_wrong
    skew.of_group(GroupId(2), (B,))
    assert not skew.clock_is_wrong, "one other is left to compare with"
    skew.record_clock(C, clock.wall_ms() + 60_000)
    assert not skew.clock_is_wrong, "what it said before comes late"
    skew.record_clock(D, clock.wall_ms())
    assert skew.ms == 0
