"""Durations, instants and pairs as people type them."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from querator.cli.shared.parameters import format_duration, parse_duration, parse_instant


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("0", timedelta(0)),
        ("30s", timedelta(seconds=30)),
        ("5m", timedelta(minutes=5)),
        ("1h30m", timedelta(minutes=90)),
        ("7d", timedelta(days=7)),
        ("250ms", timedelta(milliseconds=250)),
        ("1.5s", timedelta(milliseconds=1500)),
        ("1m30s", timedelta(seconds=90)),
    ],
)
def test_reads_durations(text: str, duration: timedelta) -> None:
    assert parse_duration(text) == duration


@pytest.mark.parametrize(
    "text", ["", "30", "5 m", "-5s", "s", "1x", "5m!", "1e3s", "٣s", "99999999999999d"]
)
def test_refuses_what_is_not_a_duration(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)


@given(st.integers(min_value=0, max_value=10**12))
def test_reads_back_what_it_writes(milliseconds: int) -> None:
    duration = timedelta(milliseconds=milliseconds)
    assert parse_duration(format_duration(duration)) == duration


def test_no_duration_is_none() -> None:
    assert format_duration(None) == "none"


def test_an_instant_needs_its_offset() -> None:
    assert parse_instant("2026-01-31T08:00:00+02:00") == datetime(2026, 1, 31, 6, tzinfo=UTC)
    for text in ("2026-01-31T08:00:00", "tomorrow", ""):
        with pytest.raises(ValueError, match="instant"):
            parse_instant(text)
