"""Results go to standard output, as tables or as JSON; everything else goes to standard error.

JSON is one document, or one line for each value of a stream. Fields are the names of the structs in
`cli.shared.views`, with units; they do not change.
"""

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import ClassVar, TextIO

import click
import msgspec

from querator.cli.shared import cells
from querator.cli.shared.parameters import format_duration
from querator.cli.shared.tables import Column, FittedTable, Line
from querator.cli.shared.texts import cell_text, instant_text

Picture = Sequence[FittedTable | str]
"""Tables and paragraphs, one below the other."""
BULLET = "  - "
"""A paragraph that begins with it is indented in its further lines."""


def watch_picture(picture: Picture, interval: timedelta) -> Picture:
    """A picture that is repeated, below the present instant and the time between two pictures."""
    now = instant_text(datetime.now(UTC))
    return [f"{now}, every {format_duration(interval)}; Ctrl-C ends it.", *picture]


def width(stream: TextIO | None = None) -> int | None:
    """Cells of a line on the stream (None: standard output); None: it is no terminal, and lines
    have no limit.
    """
    return shutil.get_terminal_size().columns if (stream or sys.stdout).isatty() else None


def write_json(value: object) -> None:
    """Writes one line and flushes it: a reader at the other end of a pipe waits for it."""
    click.echo(msgspec.json.encode(value))


def write_json_lines(values: Iterable[object]) -> None:
    """Writes a line for each value, and flushes once."""
    click.echo(b"\n".join(map(msgspec.json.encode, values)))


def write_table(columns: Sequence[str | Column], rows: Iterable[Sequence[object]]) -> None:
    """Writes a table that fits the terminal."""
    write_lines(FittedTable(columns, rows).lines(width()))


def write_lines(lines: Iterable[Line]) -> None:
    """Writes lines of a table at once."""
    click.echo("\n".join(map(_styled, lines)))


def write_picture(picture: Picture) -> None:
    write_lines(picture_lines(picture, width()))


def picture_lines(picture: Picture, cells_max: int | None) -> Iterator[Line]:
    """The lines of a picture for a terminal of this width; None: no line is broken or cut."""
    for part in picture:
        if isinstance(part, FittedTable):
            yield from part.lines(cells_max)
        elif cells_max is None:
            yield Line(part)
        else:
            indent = " " * len(BULLET) if part.startswith(BULLET) else ""
            yield from map(Line, cells.wrapped(part, cells_max, indent=indent))


class Screen:
    """A picture on a terminal that is drawn again in its place. It is cut at the height of the
    terminal. What `note` writes until `close` stands above the picture.
    """

    shown: ClassVar["Screen | None"] = None

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._height = 0

    def show(self, picture: Picture) -> None:
        size = shutil.get_terminal_size()
        lines = list(picture_lines(picture, size.columns))[: max(size.lines - 1, 1)]
        up = f"\x1b[{self._height}F" if self._height else ""
        # Each line is cleared to its end, and after the last all below.
        text = "".join(f"{_styled(line)}\x1b[K\n" for line in lines)
        click.echo(f"{up}{text}\x1b[J", nl=False, file=self._stream)
        self._height = len(lines)
        Screen.shown = self

    def erase(self) -> None:
        """The next `show` draws at the cursor."""
        if self._height:
            click.echo(f"\x1b[{self._height}F\x1b[J", nl=False, file=self._stream)
            self._height = 0

    def close(self) -> None:
        """The picture stays."""
        Screen.shown = None


def write_details(pairs: Iterable[tuple[str, object]]) -> None:
    """Writes one record: a name and a value on each line."""
    lines = [(name, cell_text(value)) for name, value in pairs]
    width = max(len(name) for name, _ in lines)
    for name, text in lines:
        click.echo(f"{_bold(name)}{' ' * (width - len(name))}  {text}".rstrip())


def _styled(line: Line) -> str:
    return _bold(line.text) if line.head else line.text


def _bold(text: str) -> str:
    return text if os.environ.get("NO_COLOR") else click.style(text, bold=True)


def note(text: str) -> None:
    """Writes a message for the user to standard error."""
    if Screen.shown is not None:
        Screen.shown.erase()
    click.echo(text, err=True)


def count(number: int, noun: str) -> str:
    """`1 item`, `1,200 items`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
