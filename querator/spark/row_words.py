"""A row in a few words, for errors. A user knows the row by its values: its number in a task of
Spark is found in no file.
"""

from collections.abc import Mapping
from typing import Any, Final

SHOWN: Final = ("value", "key", "reference", "dedupe_key")
"""Columns that identify a row."""
_CHARS_MAX: Final = 60


def described(values: Mapping[str, bytes | str]) -> str:
    """The beginnings of the values that are not empty, with their names."""
    words = [f"{name} {_begin(value)}" for name, value in values.items() if value]
    return ", ".join(words) or "its columns are empty"


def with_row(message: str, row: int, shown: str) -> str:
    """The message with the words `shown` behind the number of its row."""
    place = f"row {row} of this task"
    return message.replace(place, f"{place} ({shown})", 1)


def raw_text(scalar: Any) -> bytes:
    """The bytes of a value of Arrow, which need not be UTF-8; empty for null."""
    return scalar.as_buffer().to_pybytes() if scalar.is_valid else b""


def _begin(value: bytes | str) -> str:
    # A letter of UTF-8 has at most 4 bytes.
    text = value if isinstance(value, str) else value[: _CHARS_MAX * 4 + 4].decode(errors="replace")
    return repr(text) if len(text) <= _CHARS_MAX else f"{text[:_CHARS_MAX]!r}…"
