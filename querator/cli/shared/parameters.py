"""Texts for durations, instants, item ids and attributes, as click parameter types."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from querator.client.values import ItemId
from querator.model.errors import QueratorError

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


def parse_instant(text: str) -> datetime:
    """An RFC 3339 instant with its offset. Raises ValueError with a sentence."""
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        instant = None
    if instant is None or instant.tzinfo is None:
        raise ValueError(f"{text!r} is not an instant; write for example 2026-01-31T08:00:00Z.")
    return instant.astimezone(UTC)


class DurationType(click.ParamType[timedelta]):
    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> timedelta:
        if isinstance(value, timedelta):
            return value
        try:
            return parse_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


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


DURATION = DurationType()
INSTANT = InstantType()
ITEM_ID = ItemIdType()
ATTRIBUTE = AttributeType()
