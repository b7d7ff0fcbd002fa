"""Help texts that fit a narrow terminal."""

import shutil
from collections.abc import Iterable
from typing import Final

import click

_NARROW: Final = 60
"""Columns: below this, an explanation is under its option instead of beside it."""
_NAMES_MAX: Final = 12
"""Columns: shorter names have their explanation beside them in any case."""
_INDENT: Final = 4


class FittingHelp(click.HelpFormatter):
    """A help text as click writes it, and in a readable form below 60 columns."""

    def __init__(self, width: int | None = None, max_width: int | None = None) -> None:
        columns = shutil.get_terminal_size().columns
        if width is None and columns < _NARROW:
            width = columns - 2
        super().__init__(width=width, max_width=max_width)

    def write_dl(
        self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2
    ) -> None:
        rows = list(rows)
        if self.width < _NARROW and max(len(name) for name, _ in rows) > _NAMES_MAX:
            col_max = _INDENT
        super().write_dl(rows, col_max, col_spacing)


class FittingContext(click.Context):
    """A context whose help fits the terminal."""

    formatter_class = FittingHelp


def fit_help(command: click.Command) -> None:
    """Makes the help of a command, and of all commands in it, fit the terminal."""
    command.context_class = FittingContext
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            fit_help(inner)
