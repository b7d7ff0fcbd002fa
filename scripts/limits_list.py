"""The list of all limits, from the constants and comments of querator/model/limits.py.

A sentence of one line after an empty line is a heading. Other comments belong to the constant that
they follow on its line, or to the next constant.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from querator.model import limits

_CONSTANT: Final = re.compile(r"(?P<name>[A-Z][A-Z0-9_]*) = [^#\n]*(?:# (?P<note>.*))?")
_BYTES: Final = ((limits.GIB, "GiB"), (limits.MIB, "MiB"), (limits.KIB, "KiB"), (1, "bytes"))
_TIMES: Final = (
    (limits.YEAR_MS, "years"),
    (limits.DAY_MS, "days"),
    (limits.HOUR_MS, "h"),
    (limits.MINUTE_MS, "min"),
    (limits.SECOND_MS, "s"),
    (1, "ms"),
)


class Limit(NamedTuple):
    section: str
    name: str
    value: int
    note: str


def all_limits() -> Iterator[Limit]:
    """Yields the limits in the order of the module."""
    section = ""
    comment: list[str] = []
    after_empty = False
    for line in Path(limits.__file__).read_text(encoding="utf-8").splitlines():
        constant = _CONSTANT.match(line)
        if line.startswith("# "):
            comment.append(line.removeprefix("# "))
            if after_empty and line.endswith("."):
                section = comment[0]
        elif constant is not None and section:
            note = constant["note"] or " ".join(text for text in comment if text != section)
            yield Limit(section, constant["name"], getattr(limits, constant["name"]), note)
            comment = []
        else:
            comment = []
        after_empty = not line


def amount(limit: Limit) -> str:
    """The value with its unit, which the name has."""
    words = limit.name.split("_")
    steps = _BYTES if "BYTES" in words else _TIMES if "MS" in words else ()
    for size, unit in steps:
        if limit.value % size == 0 and (unit != "days" or limit.value > size):
            per = " a second" if "PER" in words else ""
            return f"{limit.value // size:,} {unit}{per}"
    return f"{limit.value:,}"


def markdown() -> str:
    lines: list[str] = []
    section = ""
    for limit in all_limits():
        if limit.section != section:
            section = limit.section
            lines += ["", f"### {section.rstrip('.')}", ""]
        note = f" {limit.note}" if limit.note else ""
        lines.append(f"- `{limit.name}`: {amount(limit)}.{note}")
    return "\n".join(lines[1:]) + "\n"
