"""The clocks of the simulator's machines."""

import pytest

from tests.simulation.clock import NodeClock
from tests.simulation.timeline import SECOND, Timeline


@pytest.mark.parametrize("drifts", [(20_000,), (-20_000,), (20_000, -20_000, 10_000)])
def test_a_clock_never_goes_back_when_its_pace_changes(drifts: tuple[int, ...]):
    """Seed 1003529 of whole nodes: a turn on a hung disk had read the clock, 1 s ahead of the
    others.
    """
    timeline = Timeline()
    clock = NodeClock(timeline, offset_ms=0, drift_ppm=0)
    timeline.now_us = 10 * SECOND
    clock.within_us = SECOND
    clock.monotonic_s()
    clock.within_us = 0
    read = [clock.monotonic_s()]
    for drift in drifts:
        clock.set_drift(drift)
        timeline.now_us += SECOND // 1_000
        read.append(clock.monotonic_s())
    timeline.now_us += SECOND
    read.append(clock.monotonic_s())
    timeline.now_us += SECOND
    read.append(clock.monotonic_s())
    assert read == sorted(read)
    assert read[-1] - read[-2] == pytest.approx(1 + drifts[-1] / 1_000_000)
