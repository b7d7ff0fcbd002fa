"""Texts for durations, instants, numbers, item ids and attributes, as click parameter types."""

import math
import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import click
import msgspec
from click.core import ParameterSource

from querator.client import clock
from querator.client.values import ItemId
from querator.model import limits
from querator.model.errors import QueratorError

INSTANT_EXAMPLE = "for example 2026-01-31T08:00:00Z, or 2026-01-31 (UTC)"
_SHOWN_CHARS = 80
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", re.ASCII)
_UNIT = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}


def parse_duration(text: str) -> timedelta:
    """`30s`, `5m`, `1h30m`, `7d`, `250ms`, `1.5s`, or `0`. Raises ValueError with a sentence."""
    if text == "0":
        return timedelta(0)
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text!r} is not a duration; write for example 30s, 5m, 1h30m or 7d.")
    try:
        total = sum((float(number) * _UNIT[unit] for number, unit in parts), timedelta(0))
    except OverflowError:
        raise ValueError(f"{text!r} is too long a duration.") from None
    return timedelta(milliseconds=round(total / timedelta(milliseconds=1)))


def format_duration(duration: timedelta | None) -> str:
    """The shortest text that `parse_duration` reads back; None: `none`."""
    if duration is None:
        return "none"
    rest = round(duration / timedelta(milliseconds=1))
    sign, rest = ("-", -rest) if rest < 0 else ("", rest)
    parts = []
    for unit, size_ms in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)):
        count, rest = divmod(rest, size_ms)
        if count:
            parts.append(f"{count}{unit}")
    if rest:
        parts.append(f"{rest}ms")
    return sign + ("".join(parts) or "0")


def format_limit(duration: timedelta) -> str:
    """A limit of a duration, as the documentation writes it: `24h`, `7d`, `10 years`."""
    years, rest = divmod(duration, timedelta(milliseconds=limits.YEAR_MS))
    if years and not rest:
        return f"{years} year" if years == 1 else f"{years} years"
    return "24h" if duration == timedelta(days=1) else format_duration(duration)


def duration_field(name: str, text: str, most: timedelta) -> timedelta:
    """The duration in a field of a line. Raises ValueError with the name of the field."""
    try:
        duration = parse_duration(text)
    except ValueError:
        raise ValueError(
            f"{name} is {_quoted(text)}; it must be a duration, for example 30s, 5m, 1h30m or 7d"
        ) from None
    if duration > most:
        raise ValueError(f"{name} is {text}; at most {format_limit(most)}")
    return duration


def _quoted(text: str) -> str:
    """As in the line, cut."""
    quoted = msgspec.json.encode(text).decode()
    return quoted if len(quoted) <= _SHOWN_CHARS else f"{quoted[:_SHOWN_CHARS]}…"


def parse_instant(text: str) -> datetime:
    """An instant as in RFC 3339. Without an offset it is in UTC, as the instants that commands
    show, and a day alone is its beginning. Raises ValueError with a sentence.
    """
    try:
        instant = datetime.fromisoformat(text)
        if instant.tzinfo is None:
            instant = instant.replace(tzinfo=UTC)
        return instant.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is not an instant; write {INSTANT_EXAMPLE}.") from None


class DurationType(click.ParamType[timedelta]):
    """A duration from `least_ms` to `most_ms`; None: without a limit there."""

    name = "duration"

    def __init__(self, *, least_ms: int = 0, most_ms: int | None = None) -> None:
        self._least = timedelta(milliseconds=least_ms)
        self._most = None if most_ms is None else timedelta(milliseconds=most_ms)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> timedelta:
        if isinstance(value, timedelta):
            return value
        try:
            duration = parse_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        name = option_name(param) if param is not None else self.name
        if duration < self._least:
            raise click.UsageError(f"{name} is {value}; at least {format_limit(self._least)}.", ctx)
        if self._most is not None and duration > self._most:
            raise click.UsageError(f"{name} is {value}; at most {format_limit(self._most)}.", ctx)
        return duration


class WholeNumber(click.IntRange):
    """A whole number from `min` to `max`; None: without a limit there."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            number = int(value)
        except ValueError:
            number = None
        low = self.min is not None and number is not None and number < self.min
        high = self.max is not None and number is not None and number > self.max
        if number is None or low or high:
            wanted = "a whole number" if self.max is not None else "a whole number,"
            self.fail(f"'{value}' is not {wanted} {self.range_words}.", param, ctx)
        return number

    @property
    def range_words(self) -> str:
        if self.max is None:
            return f"{self.min} or more"
        return f"from {self.min} to {self.max}"

    def _describe_range(self) -> str:
        # click puts it into the help.
        return self.range_words


PRIORITY: Final = WholeNumber(limits.PRIORITY_MIN, limits.PRIORITY_MAX)


class Number(click.types.FloatParamType):
    name = "number"


class NumberAboveZero(click.FloatRange):
    """A number above 0, which may have a fraction."""

    def __init__(self) -> None:
        super().__init__(min=0, min_open=True)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            number = float(value)
        except ValueError:
            number = 0.0
        if not 0 < number < math.inf:
            self.fail(f"'{value}' is not a number above 0.", param, ctx)
        return number

    def _describe_range(self) -> str:
        return "above 0"


class InstantType(click.ParamType[datetime]):
    name = "instant"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            return parse_instant(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class MomentType(click.ParamType[datetime]):
    """An instant, or a duration from now with a plus sign: `+1h30m`."""

    name = "when"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            if value.startswith("+"):
                return clock.now() + parse_duration(value[1:])
            return parse_instant(value)
        except OverflowError:
            self.fail(f"{value!r} is too far ahead.", param, ctx)
        except ValueError:
            self.fail(
                f"{value!r} is no instant and no duration from now; write for example "
                "2026-01-31T08:00:00Z, or +1h30m.",
                param,
                ctx,
            )


class ItemIdType(click.ParamType[ItemId]):
    name = "item"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> ItemId:
        if isinstance(value, ItemId):
            return value
        try:
            return ItemId.parse(value, field="ITEM")
        except QueratorError:
            self.fail(
                f"{value!r} is not an item id; write partition-sequence, as in 0-17.", param, ctx
            )


class AttributeType(click.ParamType[tuple[str, str]]):
    name = "name=value"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, separator, text = value.partition("=")
        if not separator or not name:
            self.fail(f"{value!r} is not an attribute; write name=value.", param, ctx)
        return name, text


def option_name(parameter: click.Parameter) -> str:
    """The name of an option or an argument, as the user types it: `--lease-timeout`, `QUEUE`."""
    if isinstance(parameter, click.Option):
        return max(parameter.opts, key=len)
    return parameter.human_readable_name


def is_given(context: click.Context, name: str) -> bool:
    """Whether the parameter `name` is on the command line or in the environment."""
    source = context.get_parameter_source(name)
    return source in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)


NUMBER = Number()
ABOVE_ZERO = NumberAboveZero()
DURATION = DurationType()
HANDLER_TIMEOUT = DurationType(least_ms=1)
LEASE_TIMEOUT = DurationType(
    least_ms=limits.LEASE_TIMEOUT_MS_MIN, most_ms=limits.LEASE_TIMEOUT_MS_MAX
)
EXPIRE_TIMEOUT = DurationType(most_ms=limits.EXPIRE_TIMEOUT_MS_MAX)
WAIT = DurationType(most_ms=limits.REQUEST_TIMEOUT_MS_MAX)
DELAY = DurationType(most_ms=limits.SCHEDULE_AHEAD_MS_MAX)
INSTANT = InstantType()
MOMENT = MomentType()
ITEM_ID = ItemIdType()
ATTRIBUTE = AttributeType()
