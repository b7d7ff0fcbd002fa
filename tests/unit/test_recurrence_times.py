"""Due times of cron expressions and intervals, also when clocks are changed."""

from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from querator.model.recurrences import MissedRuns, RecurrenceSpec
from querator.recurrence_times import (
    ALIASES,
    TimesError,
    check_schedule,
    due_times,
    known_zone,
    missed_times,
)

START_MS = 1_700_000_000_000
NEW_YORK, BERLIN, LORD_HOWE = "America/New_York", "Europe/Berlin", "Australia/Lord_Howe"
CAIRO, HAVANA = "Africa/Cairo", "America/Havana"
CHANGES = {
    "spring in New York": (NEW_YORK, "2026-03-08"),
    "autumn in New York": (NEW_YORK, "2026-11-01"),
    "spring in Berlin": (BERLIN, "2026-03-29"),
    "autumn in Berlin": (BERLIN, "2026-10-25"),
    "half an hour less on Lord Howe": (LORD_HOWE, "2026-04-05"),
    "half an hour more on Lord Howe": (LORD_HOWE, "2026-10-04"),
    "a day of Cairo that begins at one": (CAIRO, "2026-04-24"),
    "the same hour twice in Cairo": (CAIRO, "2026-10-30"),
    "a day of Havana that begins at one": (HAVANA, "2026-03-08"),
    "two midnights in Havana": (HAVANA, "2026-11-01"),
    "the day that Apia left out": ("Pacific/Apia", "2011-12-30"),
    "a month without summer time": ("Africa/Casablanca", "2026-02-15"),
    "no change": ("UTC", "2026-03-08"),
}


def ms(text: str, zone: str = "UTC", fold: int = 0) -> int:
    at = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold)
    return int(at.timestamp() * 1000)


def texts(times: list[int], zone: str) -> list[str]:
    """As the clock of the zone shows them, with its distance from UTC."""
    return [f"{datetime.fromtimestamp(at / 1000, ZoneInfo(zone)):%d %H:%M:%S%z}" for at in times]


def between(cron: str, zone: str, from_ms: int, until_ms: int) -> list[int]:
    found: list[int] = []
    spec = RecurrenceSpec(cron=cron, time_zone=zone)
    for due_ms in due_times(spec, anchor_ms=0, after_ms=from_ms - 1):
        if due_ms >= until_ms:
            return found
        found.append(due_ms)
    raise AssertionError("due times have no end")


def around(day: str) -> tuple[int, int]:
    middle = datetime.fromisoformat(day).replace(tzinfo=UTC)
    first, last = (middle + timedelta(days=days) for days in (-1, 2))
    return int(first.timestamp() * 1000), int(last.timestamp() * 1000)


def _set(field: str, least: int, most: int) -> set[int]:
    found: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        ends = (least, most) if span == "*" else tuple(map(int, span.split("-")))
        first, last = ends[0], ends[-1]
        found |= set(range(first, last + 1, int(step or 1)))
    return found


def shown_minutes(cron: str, zone: str, from_ms: int, until_ms: int) -> list[int]:
    """Each minute at whose begin the clock shows what the fields say. The definition."""
    minute, hour, day, month, weekday = cron.split()
    wanted = (
        _set(minute, 0, 59), _set(hour, 0, 23), _set(day, 1, 31), _set(month, 1, 12),
        _set(weekday, 0, 6),
    )  # fmt: skip
    found = []
    for at in range(from_ms, until_ms, 60_000):
        clock = datetime.fromtimestamp(at / 1000, ZoneInfo(zone))
        fields = (clock.minute, clock.hour, clock.day, clock.month, clock.isoweekday() % 7)
        if all(field in values for field, values in zip(fields, wanted, strict=True)):
            found.append(at)
    return found


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    "cron",
    [
        "*/15 * * * *",
        "*/30 1-3 * * *",
        "0 */2 * * *",
        "* 2 * * 0",
        "*/15 * * * 5",
        "*/20 0 * * *",
        "*/10 * 30,31 12 *",
    ],
)
def test_fields_are_compared_with_what_the_clock_shows(cron, change):
    """Also an hour that comes twice, and not one that is left out."""
    zone, day = CHANGES[change]
    span = around(day)
    assert between(cron, zone, *span) == shown_minutes(cron, zone, *span)


@pytest.mark.parametrize(
    ("cron", "zone", "day", "wanted"),
    [
        ("30 2 * * *", NEW_YORK, "2026-03-08", ["07 02:30:00-0500", "08 03:00:00-0400"]),
        ("30 2 * * *", BERLIN, "2026-03-29", ["28 02:30:00+0100", "29 03:00:00+0200"]),
        ("30 1 * * *", NEW_YORK, "2026-11-01", ["31 01:30:00-0400", "01 01:30:00-0400"]),
        ("30 2 * * *", BERLIN, "2026-10-25", ["24 02:30:00+0200", "25 02:30:00+0200"]),
        ("30 30 2 * * *", BERLIN, "2026-03-29", ["28 02:30:30+0100", "29 03:00:00+0200"]),
        ("30 30 2 * * *", BERLIN, "2026-10-25", ["24 02:30:30+0200", "25 02:30:30+0200"]),
        ("15 2 * * *", LORD_HOWE, "2026-10-04", ["04 02:30:00+1100", "05 02:15:00+1100"]),
        ("45 1 * * *", LORD_HOWE, "2026-04-05", ["05 01:45:00+1100", "06 01:45:00+1030"]),
        ("0 0 * * *", CAIRO, "2026-04-24", ["24 01:00:00+0300", "25 00:00:00+0300"]),
        ("0 0 * * *", HAVANA, "2026-11-01", ["31 00:00:00-0400", "01 00:00:00-0400"]),
    ],
)
def test_a_fixed_time_runs_once_a_day(cron, zone, day, wanted):
    times = between(cron, zone, *around(day))
    days = texts(times, zone)
    assert [one for one in days if one in wanted] == wanted
    assert len({one[:2] for one in days}) == len(days)


@pytest.mark.parametrize(("zone", "day"), [(NEW_YORK, "2026-03-08"), (BERLIN, "2026-03-29")])
def test_times_of_one_gap_are_one_due_time(zone, day):
    times = between("0,15,30 2 * * *", zone, *around(day))
    assert len([one for one in texts(times, zone) if " 03:00:00" in one]) == 1
    assert len(times) == 7


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("cron", ["30 0,1,2,3 * * *", "*/7 * * * *", "15 30 1-3 * * *"])
def test_due_times_ascend_from_each_instant_on(cron, change):
    """What comes after an instant does not depend on where the search began."""
    zone, day = CHANGES[change]
    first_ms, last_ms = around(day)
    times = between(cron, zone, first_ms, last_ms)
    assert times == sorted(set(times))
    for start_ms in range(first_ms, last_ms - 3_600_000, 1_234_567):
        expected = [at for at in times if at > start_ms][:3]
        spec = RecurrenceSpec(cron=cron, time_zone=zone)
        assert list(islice(due_times(spec, anchor_ms=0, after_ms=start_ms), 3))[
            : len(expected)
        ] == (expected)


@pytest.mark.parametrize("zone", [NEW_YORK, BERLIN, LORD_HOWE])
def test_a_year_has_as_many_daily_runs_as_days(zone):
    times = between("30 2 * * *", zone, ms("2026-01-01", zone), ms("2027-01-01", zone))
    assert len(times) == 365
    days = {datetime.fromtimestamp(at / 1000, ZoneInfo(zone)).date() for at in times}
    assert len(days) == 365


@pytest.mark.parametrize(
    ("cron", "wanted"),
    [
        ("0 9 L * *", ["2026-01-31T09:00", "2026-02-28T09:00", "2026-03-31T09:00"]),
        ("0 9 LW * *", ["2026-01-30T09:00", "2026-02-27T09:00", "2026-03-31T09:00"]),
        ("0 9 * * 5L", ["2026-01-30T09:00", "2026-02-27T09:00", "2026-03-27T09:00"]),
        ("0 9 * * FRI#2", ["2026-01-09T09:00", "2026-02-13T09:00", "2026-03-13T09:00"]),
        ("0 9 * * 1#1", ["2026-01-05T09:00", "2026-02-02T09:00", "2026-03-02T09:00"]),
        ("30 0 12 1 JAN,MAR *", ["2026-01-01T12:00:30", "2026-03-01T12:00:30"]),
        ("@daily", ["2026-01-02T00:00", "2026-01-03T00:00"]),
        ("@Yearly", ["2027-01-01T00:00"]),
        ("  @hourly ", ["2026-01-01T01:00", "2026-01-01T02:00"]),
        ("0 0 13 * 5", ["2026-01-02T00:00", "2026-01-09T00:00", "2026-01-13T00:00"]),
        ("0 0 29 2 *", ["2028-02-29T00:00", "2032-02-29T00:00"]),
        ("0 0 29 2 */7", ["2032-02-29T00:00"]),
    ],
)  # fmt: skip
def test_extensions(cron, wanted):
    spec = RecurrenceSpec(cron=cron)
    after_ms = ms("2026-01-01")
    found = list(islice(due_times(spec, anchor_ms=0, after_ms=after_ms), len(wanted)))
    assert found == [ms(text) for text in wanted]


@pytest.mark.parametrize(
    ("cron", "words"),
    [
        ("", "has 0 fields"),
        ("* * * *", "has 4 fields; an expression has 5, or 6 with seconds first"),
        ("* * * * * * *", "has 7 fields"),
        ("60 * * * *", "bad minute"),
        ("* 24 * * *", "bad hour"),
        ("* * 32 * *", "bad day-of-month"),
        ("* * * 13 *", "bad month"),
        ("* * * * 8", "bad day-of-week"),
        ("* * * * MON#6", "bad day-of-week"),
        ("*/0 * * * *", "bad minute"),
        ("60 * * * * *", "bad second"),
        ("5-1 * * * *", "bad minute"),
        ("a b c d e", "bad"),
        ("@reboot", "is none of @yearly"),
        ("0 0 31 2 *", "never fires"),
        ("0 0 31 4,6,9,11 *", "never fires"),
        ("* * */20 * 1L", "never fires"),
    ],
)
def test_what_is_no_expression_is_refused(cron, words):
    with pytest.raises(TimesError, match=words) as caught:
        next(due_times(RecurrenceSpec(cron=cron or " "), anchor_ms=0, after_ms=START_MS))
    assert caught.value.field == "cron"
    assert repr(cron) in str(caught.value) or not cron


@given(st.text(alphabet="0123456789*/-,#LWlw?@ MONJA²", max_size=30))
def test_any_text_is_an_expression_or_refused(text):
    spec = RecurrenceSpec(cron=text or " ")
    fields: list[str] = []
    first_ms = START_MS + 1
    try:
        first_ms = next(due_times(spec, anchor_ms=0, after_ms=START_MS))
    except TimesError as error:
        fields.append(error.field)
    assert first_ms > START_MS
    assert fields in ([], ["cron"])


@pytest.mark.parametrize(
    "name", ["Mars/Phobos", "europe/berlin?", "../UTC", "/etc/localtime", "America", "localtime",
             "x" * 300, "a\0b", "Factory"],
)  # fmt: skip
def test_zones_are_those_of_the_iana(name):
    with pytest.raises(TimesError, match="is not a time zone of the IANA") as caught:
        known_zone(name)
    assert caught.value.field == "time_zone"


def test_no_zone_is_utc():
    assert known_zone("") == ZoneInfo("UTC")


def test_every_alias_fires():
    for alias in ALIASES:
        check_schedule(RecurrenceSpec(cron=alias), now_ms=START_MS)


@given(
    interval_ms=st.integers(1_000, 10**9),
    phase_ms=st.integers(-1, 10**9),
    anchor_ms=st.integers(0, 2**41),
    after_ms=st.integers(0, 2**41),
)
def test_intervals_have_a_phase(interval_ms, phase_ms, anchor_ms, after_ms):
    phase_ms = min(phase_ms, interval_ms - 1)
    spec = RecurrenceSpec(interval_ms=interval_ms, phase_ms=phase_ms)
    first, second = islice(due_times(spec, anchor_ms=anchor_ms, after_ms=after_ms), 2)
    base_ms = anchor_ms if phase_ms < 0 else phase_ms
    assert (first - base_ms) % interval_ms == 0
    assert 0 < first - after_ms <= interval_ms
    assert second == first + interval_ms


@given(
    cron=st.sampled_from(["* * * * *", "*/7 3 * * *", "0 9 * * 1-5", "* * * * * *", "0 0 1 1 *"]),
    hours=st.integers(1, 60),
    policy=st.sampled_from(MissedRuns),
    most=st.integers(1, 20),
)
def test_of_missed_due_times_the_last_ones_are_kept(cron, hours, policy, most):
    spec = RecurrenceSpec(cron=cron, time_zone=BERLIN, missed=policy, missed_max=most)
    before_ms = START_MS + hours * 3_600_000
    everything = []
    for due_ms in islice(due_times(spec, anchor_ms=0, after_ms=START_MS), 3_000):
        if due_ms >= before_ms:
            break
        everything.append(due_ms)
    if len(everything) == 3_000:
        return
    kept, skipped = missed_times(spec, anchor_ms=0, after_ms=START_MS, before_ms=before_ms)
    count = {MissedRuns.SKIP: 0, MissedRuns.ONE: 1, MissedRuns.ALL: most}[policy]
    assert kept == (everything[-count:] if count else [])
    assert skipped == min(1_000, len(everything) - len(kept))


def test_missed_due_times_of_years_are_not_all_visited():
    spec = RecurrenceSpec(cron="* * * * * *", missed=MissedRuns.ALL, missed_max=2)
    before_ms = START_MS + 10**11
    kept, skipped = missed_times(spec, anchor_ms=0, after_ms=START_MS, before_ms=before_ms)
    assert (kept, skipped) == ([before_ms - 2_000, before_ms - 1_000], 1_000)
