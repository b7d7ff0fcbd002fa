"""Which clock is wrong, by comparison with the other nodes' clocks."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from querator.model.limits import CLOCK_SKEW_MS_MAX
from querator.model.nodes import node_key, node_name
from querator.raft.clock import SimulatedClock
from querator.raft.consensus.skew import FRESH_S, Skew

A, B, C = (node_key(name, "1") for name in "abc")


def heard(*ahead_ms: int) -> Skew:
    """The skew of a node that has heard clocks which are ahead of its own by these amounts."""
    clock = SimulatedClock()
    skew = Skew(clock)
    for number, ms in enumerate(ahead_ms):
        skew.record_clock(node_key(f"n{number}", "1"), clock.wall_ms() + ms)
    return skew


@pytest.mark.parametrize(
    ("ahead_ms", "ms"),
    [
        ((), 0),
        ((60_000,), 0),  # One of the two is wrong.
        ((60_000, 60_000), 60_000),
        ((-2_000, -3_000), -2_000),
        ((-2_000, 3_000), 0),
        ((60_000, 0), 0),
        ((60_000, 60_000, 0), 0),  # Two against two.
        ((60_000, 60_000, 50_000), 50_000),
        ((60_000, 60_000, 0, 0), 0),
        ((501, 501), 501),
    ],
)
def test_a_clock_is_compared_with_the_median(ahead_ms, ms):
    skew = heard(*ahead_ms)
    assert skew.ms == ms
    assert skew.clock_is_wrong == (abs(ms) > CLOCK_SKEW_MS_MAX)


@pytest.mark.parametrize(
    ("ahead_ms", "differs"),
    [
        ((), None),
        ((CLOCK_SKEW_MS_MAX,), None),
        ((60_000,), ("n0", 60_000)),
        ((-60_000,), None),  # The other node sees that this one is ahead.
        ((60_000, 0), None),  # The own clock is wrong, and the node knows that.
        ((60_000, 60_000), None),  # The own clock is wrong, which is reported elsewhere.
        ((50_000, 60_000, 0), ("n0", 50_000)),  # Two against two; the third node knows which.
    ],
)
def test_clocks_of_which_nobody_knows_which_is_wrong(ahead_ms, differs):
    told = heard(*ahead_ms).differs
    assert differs == (told and (node_name(told[0]), told[1]))


@pytest.mark.parametrize("late_ms", [700, 30_000])
def test_clocks_of_nodes_whose_messages_are_late_do_not_differ(late_ms):
    """As where machines are short of processor time: two of three nodes are heard late."""
    assert heard(-late_ms, -late_ms, 0).differs is None


def test_the_clock_of_a_node_that_is_down_is_not_said_to_differ():
    clock = SimulatedClock()
    skew = Skew(clock)
    skew.record_clock(A, clock.wall_ms() + 60_000)
    assert skew.differs is not None
    clock.advance(int(FRESH_S * 1000) + 1)
    assert skew.differs is None
    skew.record_clock(A, clock.wall_ms() + 60_000)
    assert skew.differs is not None
    # The earlier samples count until others have taken their places.
    for _ in range(4):
        skew.record_clock(A, clock.wall_ms())
    assert skew.differs is None


@given(st.lists(st.integers(-10_000, 10_000), min_size=3, max_size=7))
def test_somebody_may_always_lead(clocks_ms):
    beyond = [
        heard(*(other - mine for j, other in enumerate(clocks_ms) if j != i)).clock_is_wrong
        for i, mine in enumerate(clocks_ms)
    ]
    assert not all(beyond)


@given(st.lists(st.integers(-200, 200), min_size=3, max_size=7), st.data())
def test_the_one_that_is_wrong_is_found_and_nobody_else(clocks_ms, data):
    wrong = data.draw(st.integers(0, len(clocks_ms) - 1))
    clocks_ms[wrong] += data.draw(st.sampled_from([-2_000, 2_000]))
    for i, mine in enumerate(clocks_ms):
        others = [other - mine for j, other in enumerate(clocks_ms) if j != i]
        assert heard(*others).clock_is_wrong == (i == wrong)


def test_a_message_that_was_long_on_its_way_does_not_count_beside_others():
    clock = SimulatedClock()
    skew = Skew(clock)
    for _, late_ms in itertools.product(range(3), (0, 1_000, 4_000)):
        skew.record_clock(B, clock.wall_ms() - late_ms)
        skew.record_clock(C, clock.wall_ms() - late_ms)
        assert not skew.clock_is_wrong


def test_a_clock_that_is_set_right_is_believed_after_some_messages():
    clock = SimulatedClock()
    skew = Skew(clock)
    clock.step_wall(-5_000)
    for node in (B, C):
        skew.record_clock(node, clock.wall_ms() + 5_000)
    assert skew.clock_is_wrong
    clock.step_wall(5_000)
    for _, node in itertools.product(range(4), (B, C)):
        skew.record_clock(node, clock.wall_ms())
    assert skew.ms == 0
