"""The due times of recurrences: cron expressions in time zones, and intervals.

Only the leader's service evaluates them, and the command line for a user. Replicas never do.

A cron expression has five fields (minute, hour, day of month, month, day of week), or six with
seconds before them. A time of the clock that occurs twice or not at all, when clocks are changed,
is treated as Debian's cron does:

    fixed times       neither the minute nor the hour begins with `*`: each time of the clock runs
                      once. One that is left out runs at the end of the gap, together with others
                      of the gap; one that occurs twice runs the first time.
    all other         the fields are compared with what the clock shows. What is left out does not
                      run, and what occurs twice runs twice.

CronSim finds the times that the clock of an expression shows, and this module the instants: CronSim
does that for zones, too, but not for changes by half an hour (Australia/Lord_Howe).

Source: cron(8) of Debian, "Daylight Saving Time and other time changes".
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from querator.model import limits
from querator.model.recurrences import MissedRuns, RecurrenceSpec

ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_SECOND = timedelta(seconds=1)
_MINUTE = timedelta(minutes=1)
_PERIOD_MIN = timedelta(days=7)
_SEARCHED = timedelta(days=400)
"""How far ahead the next change of a clock is looked for."""
_ANY = datetime(2000, 1, 1, tzinfo=UTC)
_LAST_MS = int(datetime(9998, 1, 1, tzinfo=UTC).timestamp()) * 1000
_SEARCHED_YEARS = 50


class TimesError(ValueError):
    """No due time can be found. `field` is the field at fault of a specification."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def due_times(spec: RecurrenceSpec, *, anchor_ms: int, after_ms: int) -> Iterator[int]:
    """The due times after an instant, in ascending order, without end. `anchor_ms` is one of an
    interval without a phase. Raises TimesError, also from the iterator.
    """
    if spec.cron:
        return _cron_times(spec.cron, spec.time_zone, after_ms)
    return _interval_times(spec, anchor_ms, after_ms)


def check_schedule(spec: RecurrenceSpec, *, now_ms: int) -> None:
    """Raises TimesError for an expression or a time zone that is not known, and for an expression
    that never fires.
    """
    next(due_times(spec, anchor_ms=now_ms, after_ms=now_ms))


def missed_times(
    spec: RecurrenceSpec, *, anchor_ms: int, after_ms: int, before_ms: int
) -> tuple[list[int], int]:
    """Of the due times after `after_ms` and before `before_ms`, those that run although they were
    missed, and how many others there are (at most MISSED_COUNTED_MAX are counted). The last ones
    run: they say most about the present.
    """

    def some(from_ms: int, most: int) -> list[int]:
        times = due_times(spec, anchor_ms=anchor_ms, after_ms=from_ms)
        found: list[int] = []
        for due_ms in islice(times, most):
            if due_ms >= before_ms:
                break
            found.append(due_ms)
        return found

    most = _kept(spec)
    if not most:
        return [], len(some(after_ms, limits.MISSED_COUNTED_MAX))
    kept = some(after_ms, most + 1)
    if len(kept) <= most:
        return kept, 0
    # The first instant after which there are no more of them than are kept.
    low_ms, high_ms = after_ms, before_ms
    while high_ms - low_ms > 1:
        middle_ms = (low_ms + high_ms) // 2
        if len(some(middle_ms, most + 1)) > most:
            low_ms = middle_ms
        else:
            high_ms = middle_ms
    skipped = 0
    for due_ms in some(after_ms, limits.MISSED_COUNTED_MAX):
        skipped += due_ms <= high_ms
    return some(high_ms, most), skipped


def _kept(spec: RecurrenceSpec) -> int:
    """How many missed runs of one gap run."""
    if spec.missed is MissedRuns.SKIP:
        return 0
    return 1 if spec.missed is MissedRuns.ONE else spec.missed_max


def _interval_times(spec: RecurrenceSpec, anchor_ms: int, after_ms: int) -> Iterator[int]:
    interval_ms = spec.interval_ms
    phase_ms = spec.phase_ms if spec.phase_ms >= 0 else anchor_ms
    due_ms = after_ms + interval_ms - (after_ms - phase_ms) % interval_ms
    while True:
        yield due_ms
        due_ms += interval_ms


# --- cron --------------------------------------------------------------------------------------


def _cron_times(cron: str, time_zone: str, after_ms: int) -> Iterator[int]:
    zone = known_zone(time_zone)
    expression = _expression(cron)
    last_ms = after_ms
    start = datetime.fromtimestamp(after_ms // 1000, zone)
    try:
        times = _fixed if _is_fixed(expression) else _shown
        for due in times(expression, start, zone):
            due_ms = int(due.timestamp()) * 1000
            if due_ms > _LAST_MS:
                break
            if due_ms > last_ms:
                last_ms = due_ms
                yield due_ms
    except CronSimError as error:
        raise TimesError("cron", f"{_reason(expression, error)}: {cron!r}") from None
    except (OverflowError, ValueError):
        # The end of the calendar.
        pass
    raise TimesError(
        "cron", f"never fires: no time of {_SEARCHED_YEARS} years fits, or none is left: {cron!r}"
    )


def _expression(cron: str) -> str:
    text = cron.strip()
    if not text.startswith("@"):
        return text
    known = ALIASES.get(text.lower())
    if known is None:
        raise TimesError("cron", f"is none of {', '.join(ALIASES)}: {cron!r}")
    return known


def _reason(expression: str, error: CronSimError) -> str:
    fields = expression.split()
    if len(fields) not in (5, 6):
        return f"has {len(fields)} fields; an expression has 5, or 6 with seconds first"
    try:
        CronSim(" ".join([*fields[:-2], "*", fields[-1]]), _ANY)
    except CronSimError:
        return f"is not a cron expression ({str(error).lower()})"
    # CronSim refuses days that no month of the expression has.
    return f"never fires ({str(error).lower()}: its months have no such day)"


def _is_fixed(expression: str) -> bool:
    fields = expression.split()[-5:]
    return not any(field.startswith("*") for field in fields[:2])


def _fixed(expression: str, start: datetime, zone: ZoneInfo) -> Iterator[datetime]:
    """Each time of the clock once."""
    for shown in CronSim(expression, start.replace(tzinfo=None)):
        due = shown.replace(tzinfo=zone, fold=0)
        if not _exists(due):
            # It is left out: the first minute that is not.
            due = due.replace(second=0)
            while not _exists(due):
                due += _MINUTE
        yield due


def _shown(expression: str, start: datetime, zone: ZoneInfo) -> Iterator[datetime]:
    """Each instant at which the clock shows what the fields say.

    From one change of the clock to the next, the clock is a fixed time ahead of UTC.
    """
    at = start.astimezone(UTC) + _SECOND
    while True:
        ahead = _ahead(at, zone)
        change = _next_change(at, zone)
        for shown in CronSim(expression, (at + ahead - _SECOND).replace(tzinfo=None)):
            due = shown.replace(tzinfo=UTC) - ahead
            if due >= change:
                break
            yield due
        else:
            return
        at = change


def _ahead(at: datetime, zone: ZoneInfo) -> timedelta:
    ahead = at.astimezone(zone).utcoffset()
    assert ahead is not None
    return ahead


def _next_change(at: datetime, zone: ZoneInfo) -> datetime:
    """The first second after `at` with another distance from UTC, or else the end of the search.
    Shorter periods between two changes than _PERIOD_MIN are overlooked; zones have none.
    """
    ahead = _ahead(at, zone)
    before, after, end = at, at + _PERIOD_MIN, at + _SEARCHED
    while _ahead(after, zone) == ahead:
        if after >= end:
            return after
        before, after = after, after + _PERIOD_MIN
    while after - before > _SECOND:
        middle = before + (after - before) // _SECOND // 2 * _SECOND
        if _ahead(middle, zone) == ahead:
            before = middle
        else:
            after = middle
    return after


def _exists(due: datetime) -> bool:
    """Whether the clock ever shows this."""
    return due.astimezone(UTC).astimezone(due.tzinfo).replace(tzinfo=None) == due.replace(
        tzinfo=None
    )


@lru_cache(maxsize=64)
def known_zone(name: str) -> ZoneInfo:
    """A zone of the IANA's database; UTC for an empty name. Raises TimesError."""
    try:
        if name in ("localtime", "posixrules", "Factory"):
            raise ValueError(name)
        return ZoneInfo(name or "UTC")
    except (ValueError, OSError, KeyError) as error:
        raise TimesError(
            "time_zone", f"is not a time zone of the IANA, as Europe/Berlin or UTC is: {name!r}"
        ) from error
