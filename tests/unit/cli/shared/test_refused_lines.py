"""Refused lines of an input."""

import pytest

from querator.cli.shared.refused_lines import REASONS_SHOWN_MAX, RefusedLines


def test_each_reason_is_said_once_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    refusals = RefusedLines()
    for number in range(1, 21):
        refusals.add(f"line {number}", "payload is missing" if number != 3 else "is not UTF-8")
    refusals.close()
    assert refusals.total == 20
    assert capsys.readouterr().err.splitlines() == [
        "line 1: payload is missing",
        "line 3: is not UTF-8",
        "18 further lines: payload is missing",
    ]


def test_many_different_reasons_are_bounded(capsys: pytest.CaptureFixture[str]) -> None:
    refusals = RefusedLines()
    for number in range(1, REASONS_SHOWN_MAX + 4):
        refusals.add(f"line {number}", f"reason {number}")
    refusals.close()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == REASONS_SHOWN_MAX + 1
    assert lines[-1] == "Lines that are refused for further reasons are only counted."
    assert refusals.total == REASONS_SHOWN_MAX + 3
