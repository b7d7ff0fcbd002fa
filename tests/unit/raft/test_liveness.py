"""How long the raft thread has owed the end of what it began."""

import pytest

from querator.raft.clock import SimulatedClock
from querator.raft.liveness import Liveness


def test_nothing_is_owed_before_the_first_mark() -> None:
    clock = SimulatedClock()
    liveness = Liveness(clock)
    clock.advance(3_600_000)
    assert liveness.stalled_s() == 0


def test_a_turn_is_owed_from_its_beginning() -> None:
    clock = SimulatedClock()
    liveness = Liveness(clock)
    clock.advance(5_000)
    liveness.begin_turn()
    assert liveness.stalled_s() == 0
    clock.advance(2_500)
    assert liveness.stalled_s() == 2.5
    liveness.begin_turn()
    assert liveness.stalled_s() == 0


def test_a_wait_is_owed_when_it_should_be_over() -> None:
    clock = SimulatedClock()
    liveness = Liveness(clock)
    liveness.begin_turn()
    clock.advance(2_000)
    liveness.begin_wait(10.0)
    clock.advance(10_000)
    assert liveness.stalled_s() == 0
    clock.advance(750)
    assert liveness.stalled_s() == pytest.approx(0.75)


def test_a_wait_without_end_is_never_owed() -> None:
    clock = SimulatedClock()
    liveness = Liveness(clock)
    liveness.begin_turn()
    liveness.begin_wait(None)
    clock.advance(86_400_000)
    assert liveness.stalled_s() == 0
