"""Results go to standard output, as tables or as JSON; everything else goes to standard error.

JSON is one document, or one line for each value of a stream. Fields are the names of the structs in
`cli.shared.views`, with units; they do not change.

Rich is loaded when something is drawn: most commands draw nothing.
"""

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click
import msgspec

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

_PIPE_COLUMNS = 1_000
"""The width for pipes, at which nothing is folded or cut."""


def console(*, stderr: bool = False) -> "Console":
    """A console for a stream. It uses colours only on a terminal, and never reads markup in
    data.
    """
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _PIPE_COLUMNS
    return Console(file=stream, width=width, highlight=False, markup=False, emoji=False)


def write_json(value: object) -> None:
    """Writes one line and flushes it: a reader at the other end of a pipe waits for it."""
    click.echo(msgspec.json.encode(value))


def write_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Writes a table. Columns whose cells are numbers are aligned to the right."""
    write_picture(make_table(columns, rows))


def write_picture(picture: "RenderableType") -> None:
    """Writes an object of Rich, in a pipe without the padding at the ends of lines."""
    target = console()
    if target.is_terminal:
        target.print(picture)
        return
    with target.capture() as captured:
        target.print(picture)
    for line in captured.get().splitlines():
        click.echo(line.rstrip())


def make_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> "Table":
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", show_edge=False)
    cells = [list(row) for row in rows]
    for position, name in enumerate(columns):
        numbers = bool(cells) and all(isinstance(row[position], int | float) for row in cells)
        table.add_column(
            name, justify="right" if numbers else "left", overflow="fold", no_wrap=numbers
        )
    for row in cells:
        table.add_row(*(Text(_cell(value)) for value in row))
    return table


def write_details(pairs: Iterable[tuple[str, object]]) -> None:
    """Writes one record: a name and a value on each line."""
    lines = [(name, _cell(value)) for name, value in pairs]
    width = max(len(name) for name, _ in lines)
    for name, text in lines:
        click.echo(f"{click.style(name, bold=True)}{' ' * (width - len(name))}  {text}".rstrip())


def note(text: str) -> None:
    """Writes a message for the user to standard error."""
    click.echo(text, err=True)


def count(number: int, noun: str) -> str:
    """`1 item`, `1,200 items`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.2f}" if abs(value) < 100 else f"{value:,.0f}"
    return "" if value is None else printable(str(value))


def printable(text: str) -> str:
    """Escapes characters that could move the cursor or colour the terminal: data is untrusted."""
    return "".join(c if c.isprintable() else _escape(c) for c in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()
