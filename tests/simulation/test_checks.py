"""Texts of violations are readable."""

from tests.simulation.checks import Checks
from tests.simulation.timeline import Timeline


def test_a_violation_is_told_as_it_is():
    checks = Checks(Timeline())
    checks.found("w.p0.3: two completes were accepted")
    assert checks.violations == ["0.000000 s: w.p0.3: two completes were accepted"]


def test_a_payload_in_a_violation_is_left_out_and_what_is_said_of_it_is_not():
    told: list[str] = []
    checks = Checks(Timeline(told.append))
    checks.found(f"w.p0.3{'.' * (1 << 20)}: two completes were accepted")
    [violation], [line] = checks.violations, told
    for text in (violation, line):
        assert "w.p0.3" in text
        assert text.endswith(": two completes were accepted")
        assert len(text) < 700
