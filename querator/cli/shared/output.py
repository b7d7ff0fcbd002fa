"""Results go to standard output, as tables or as JSON; everything else goes to standard error.

JSON is one document, or one line for each value of a stream. Fields are the names of the structs in
`cli.shared.views`, with units; they do not change.

Rich is loaded when something is drawn: most commands draw nothing.
"""

import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click
import msgspec

from querator.cli.shared.tables import Column, FittedTable, Line
from querator.cli.shared.texts import cell_text

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_PIPE_COLUMNS = 1_000
"""The width for pipes, at which nothing is folded or cut."""


def console(*, stderr: bool = False) -> "Console":
    """A console for a stream. It uses colours and bold only on a terminal and without NO_COLOR,
    and never reads markup in data.
    """
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(
        file=stream,
        width=None if stream.isatty() else _PIPE_COLUMNS,
        # Rich's own NO_COLOR keeps bold.
        color_system=None if os.environ.get("NO_COLOR") else "auto",
        highlight=False,
        markup=False,
        emoji=False,
    )


def width() -> int | None:
    """Cells of a line on standard output; None: it is no terminal, and lines have no limit."""
    return console().width if sys.stdout.isatty() else None


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
    text = "\n".join(_bold(line.text) if line.head else line.text for line in lines)
    click.echo(text)


def write_picture(picture: "RenderableType") -> None:
    """Writes an object of Rich without the padding at the ends of lines."""
    target = console()
    with target.capture() as captured:
        target.print(picture)
    for line in captured.get().splitlines():
        click.echo(line.rstrip())


def write_details(pairs: Iterable[tuple[str, object]]) -> None:
    """Writes one record: a name and a value on each line."""
    lines = [(name, cell_text(value)) for name, value in pairs]
    width = max(len(name) for name, _ in lines)
    for name, text in lines:
        click.echo(f"{_bold(name)}{' ' * (width - len(name))}  {text}".rstrip())


def _bold(text: str) -> str:
    return text if os.environ.get("NO_COLOR") else click.style(text, bold=True)


def note(text: str) -> None:
    """Writes a message for the user to standard error."""
    click.echo(text, err=True)


def count(number: int, noun: str) -> str:
    """`1 item`, `1,200 items`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
