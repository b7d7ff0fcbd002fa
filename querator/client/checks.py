"""Range checks of options, made when the program passes them."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from querator.client import clock
from querator.model import limits

AHEAD_MOST: Final = timedelta(milliseconds=limits.SCHEDULE_AHEAD_MS_MAX)


def check(name: str, value: int, least: int, most: int) -> None:
    """Raises an error that names the option: TypeError unless `value` is a whole number, ValueError
    unless it is from `least` to `most`.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is {value!r}; it must be a whole number from {least} to {most}")
    if not least <= value <= most:
        raise ValueError(f"{name} is {value}; it must be from {least} to {most}")


def check_priority(name: str, value: int) -> None:
    """Raises an error that names the option, unless `value` is a signed number of 32 bits."""
    check(name, value, limits.PRIORITY_MIN, limits.PRIORITY_MAX)


def check_attributes(name: str, attributes: Mapping[str, str]) -> None:
    """Raises an error that names the option: TypeError unless it has texts by name, ValueError for
    more attributes or bytes than an item may have.
    """
    if not isinstance(attributes, Mapping):
        raise TypeError(f"{name} is {attributes!r}; it must be a dict of texts, for example {{}}")
    size = 0
    for key, value in attributes.items():
        for text in (key, value):
            if not isinstance(text, str):
                raise TypeError(f"{name} has {key!r}: {value!r}; names and values must be texts")
            try:
                size += len(text.encode())
            except UnicodeEncodeError:
                raise ValueError(f"{name} has text that is not UTF-8: {text!r}") from None
    most, bytes_most = limits.ATTRIBUTES_MAX, limits.ATTRIBUTES_BYTES_MAX
    if len(attributes) > most:
        raise ValueError(f"{name} has {len(attributes)} attributes; at most {most}")
    if size > bytes_most:
        raise ValueError(f"{name} has {size} bytes of names and values; at most {bytes_most}")


def check_checkpoint(name: str, data: bytes) -> None:
    """Raises ValueError for more bytes than a checkpoint may have, TypeError for another type."""
    if not isinstance(data, bytes):
        raise TypeError(f"{name} is of type {type(data).__name__}; it must be bytes")
    most = limits.CHECKPOINT_BYTES_MAX
    if len(data) > most:
        raise ValueError(f"{name} has {len(data)} bytes; a checkpoint has at most {most}")


def check_result(name: str, data: bytes) -> None:
    """As `check_checkpoint`, for a result of an item."""
    if not isinstance(data, bytes):
        raise TypeError(f"{name} is of type {type(data).__name__}; it must be bytes")
    most = limits.RESULT_BYTES_MAX
    if len(data) > most:
        raise ValueError(f"{name} has {len(data)} bytes; a result has at most {most}")


def check_delay(name: str, delay: timedelta) -> None:
    """Raises ValueError for a delay that is negative, or longer than a queue keeps items waiting.
    TypeError: it is no timedelta.
    """
    check_span(name, delay)
    if delay > AHEAD_MOST:
        raise ValueError(f"{name} is {delay}; at most {AHEAD_MOST}")


def check_span(name: str, span: timedelta) -> None:
    """Raises ValueError for a negative time, TypeError for another type."""
    if not isinstance(span, timedelta):
        raise TypeError(f"{name} is {span!r}; it must be a timedelta")
    if span < timedelta(0):
        raise ValueError(f"{name} is {span}; it must not be negative")


def check_zone(name: str, instant: datetime) -> None:
    """Raises ValueError for a naive datetime, whose instant would depend on the machine."""
    if instant.utcoffset() is None:
        raise ValueError(
            f"{name} is {instant!r}; it must have a time zone, for example "
            "datetime(2030, 1, 1, tzinfo=UTC)"
        )


def check_instant(name: str, instant: datetime) -> None:
    """Raises ValueError for a naive datetime, and for one that is further ahead than a queue keeps
    items waiting. TypeError: it is no datetime.
    """
    if not isinstance(instant, datetime):
        raise TypeError(f"{name} is {instant!r}; it must be a datetime with a time zone")
    check_zone(name, instant)
    ahead = instant - clock.now()
    if ahead > AHEAD_MOST:
        raise ValueError(f"{name} is {instant}, {ahead} ahead; at most {AHEAD_MOST}")
