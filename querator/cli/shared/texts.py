"""Values as text for a terminal."""

from datetime import UTC, datetime, timedelta

from querator.cli.shared.parameters import format_duration


def cell_text(value: object) -> str:
    """A value in a table: numbers with separators of thousands, None as nothing."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.2f}" if abs(value) < 100 else f"{value:,.0f}"
    return "" if value is None else printable(str(value))


def instant_text(instant: datetime) -> str:
    """An instant to the second in UTC, as `--at` reads it: 2026-01-31T08:00:00Z."""
    return f"{instant.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def age_text(instant: datetime | None) -> str:
    """The time since an instant."""
    return "" if instant is None else whole_duration(datetime.now(UTC) - instant)


def whole_duration(duration: timedelta) -> str:
    """A duration to the second, and to the minute from an hour on: 2m5s, 3h5m."""
    seconds = max(0, round(duration.total_seconds()))
    if seconds >= 3600:
        seconds -= seconds % 60
    return format_duration(timedelta(seconds=seconds))


def size_text(size_bytes: int) -> str:
    """A size in the largest unit in which it is at least 1: 1.2 MiB."""
    if size_bytes < 1024:
        return f"{size_bytes} B"
    value = float(size_bytes)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        value /= 1024
        if value < 1024:
            return f"{value:.1f} {unit}"
    return f"{value / 1024:.1f} PiB"


def printable(text: str) -> str:
    """Escapes characters that could move the cursor or colour the terminal: data is untrusted."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escape(c) for c in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()
