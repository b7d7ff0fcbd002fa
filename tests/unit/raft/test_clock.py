"""State time: it advances, never goes back, and is steered towards the wall clock."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from querator.raft.clock import RealClock, SimulatedClock, StateTime


def begun(clock: SimulatedClock, *, last_ms: int) -> StateTime:
    """A state time under a wall clock that is always believed."""
    return StateTime(clock, last_ms=last_ms, believed_ms=lambda wall_ms, _: wall_ms)


def test_an_office_begins_at_the_later_of_log_and_wall():
    clock = SimulatedClock(wall_ms=1_000)
    assert begun(clock, last_ms=0).now_ms() == 1_000
    assert begun(clock, last_ms=5_000).now_ms() == 5_000


def test_a_wall_that_steps_back_slows_state_time_by_a_tenth():
    clock = SimulatedClock(wall_ms=1_000_000)
    time = begun(clock, last_ms=0)
    clock.step_wall(-10_000)
    assert time.now_ms() == 1_000_000
    clock.advance(10_000)
    assert time.now_ms() == 1_009_000
    for _ in range(100):
        clock.advance(1_000)
        time.now_ms()
    assert time.now_ms() == clock.wall_ms()


def test_a_wall_that_steps_forward_hastens_state_time_by_a_tenth():
    clock = SimulatedClock(wall_ms=1_000_000)
    time = begun(clock, last_ms=0)
    clock.step_wall(10_000)
    assert time.now_ms() == 1_000_000
    clock.advance(10_000)
    assert time.now_ms() == 1_011_000


@given(
    st.lists(st.tuples(st.integers(0, 100_000), st.integers(-1_000_000, 1_000_000)), max_size=50)
)
def test_state_time_never_goes_back_and_keeps_its_pace(moves):
    clock = SimulatedClock()
    time = begun(clock, last_ms=0)
    before = time.now_ms()
    for passed_ms, step_ms in moves:
        clock.step_wall(step_ms)
        clock.advance(passed_ms)
        now = time.now_ms()
        assert 0.9 * passed_ms - 1 <= now - before <= 1.1 * passed_ms + 1
        before = now


@given(st.integers(-100_000, 100_000), st.integers(1, 10_000_000))
def test_who_waits_as_told_is_never_late_by_more_than_a_moment(step_ms, ahead_ms):
    clock = SimulatedClock()
    time = begun(clock, last_ms=0)
    clock.step_wall(step_ms)
    due_ms = time.now_ms() + ahead_ms
    while (wait_s := time.wait_s(due_ms)) > 0:
        clock.advance(int(wait_s * 1000) + 1)
        time.now_ms()
    assert due_ms <= time.now_ms() <= due_ms + 3


def test_a_machine_that_was_suspended_has_not_stood_still(monkeypatch: pytest.MonkeyPatch):
    # These two clocks of the kernel count the time in which the machine is suspended.
    suspended_s, real_ns, boot_s = 0, time.time_ns, time.clock_gettime
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + suspended_s * 10**9)
    monkeypatch.setattr(
        time,
        "clock_gettime",
        lambda which: boot_s(which) + (suspended_s if which == time.CLOCK_BOOTTIME else 0),
    )
    clock = RealClock()
    state_time = StateTime(clock, last_ms=0, believed_ms=lambda wall_ms, _: wall_ms)
    began_ms = state_time.now_ms()
    suspended_s = 8 * 3600
    assert state_time.now_ms() >= began_ms + 8 * 3600 * 1000
