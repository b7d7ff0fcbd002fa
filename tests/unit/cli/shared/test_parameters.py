"""Durations, instants and pairs as people type them."""

from datetime import UTC, datetime, timedelta

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from querator.cli.shared.parameters import (
    ABOVE_ZERO,
    DELAY,
    LEASE_TIMEOUT,
    WholeNumber,
    format_duration,
    format_limit,
    parse_duration,
    parse_instant,
)


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


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (timedelta(days=1), "24h"),
        (timedelta(days=7), "7d"),
        (timedelta(days=365), "1 year"),
        (timedelta(days=3650), "10 years"),
        (timedelta(minutes=15), "15m"),
    ],
)
def test_limits_are_written_as_in_the_documentation(duration: timedelta, text: str) -> None:
    assert format_limit(duration) == text


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        (LEASE_TIMEOUT, "100d", "--x is 100d; at most 24h."),
        (LEASE_TIMEOUT, "2400h", "--x is 2400h; at most 24h."),
        (LEASE_TIMEOUT, "10ms", "--x is 10ms; at least 1s."),
        (DELAY, "4000d", "--x is 4000d; at most 10 years."),
        (WholeNumber(1, 1024), "abc", "'abc' is not a whole number from 1 to 1024."),
        (WholeNumber(1, 1024), "1025", "'1025' is not a whole number from 1 to 1024."),
        (WholeNumber(1, 1024), "1.5", "'1.5' is not a whole number from 1 to 1024."),
        (WholeNumber(min=1), "0", "'0' is not a whole number, 1 or more."),
        (ABOVE_ZERO, "0", "'0' is not a number above 0."),
        (ABOVE_ZERO, "nan", "'nan' is not a number above 0."),
        (ABOVE_ZERO, "inf", "'inf' is not a number above 0."),
        (ABOVE_ZERO, "fast", "'fast' is not a number above 0."),
    ],
)
def test_an_option_says_what_it_takes(kind: click.ParamType[object], text: str, words: str) -> None:
    with pytest.raises(click.UsageError) as caught:
        kind.convert(text, click.Option(["--x"]), None)
    assert caught.value.message == words


def test_no_duration_is_none() -> None:
    assert format_duration(None) == "none"


def test_an_instant_without_an_offset_is_in_utc() -> None:
    assert parse_instant("2026-01-31T08:00:00+02:00") == datetime(2026, 1, 31, 6, tzinfo=UTC)
    assert parse_instant("2026-01-31T08:00:00") == datetime(2026, 1, 31, 8, tzinfo=UTC)
    assert parse_instant("2026-01-31 08:00") == datetime(2026, 1, 31, 8, tzinfo=UTC)
    assert parse_instant("2026-01-31") == datetime(2026, 1, 31, tzinfo=UTC)
    for text in ("2026-02-30", "tomorrow", "", "08:00", "0001-01-01T00:00:00+05:00"):
        with pytest.raises(ValueError, match="instant"):
            parse_instant(text)
