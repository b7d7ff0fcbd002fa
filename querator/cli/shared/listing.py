"""Lists of items that are written while their pages come."""

from collections.abc import AsyncIterator, Callable, Sequence

import click

from querator.cli.shared.connection import CommandTarget
from querator.cli.shared.output import note, width, write_json_lines, write_lines
from querator.cli.shared.parameters import WholeNumber
from querator.cli.shared.tables import Column, TableStream
from querator.cli.shared.views import peeked_view
from querator.client import Client
from querator.client.values import PeekedItem

_PIECE_ITEMS = 500
"""Items that are written at once."""

limit_option = click.option(
    "--limit",
    type=WholeNumber(min=1),
    default=20,
    show_default=True,
    metavar="N",
    help="Most items to show.",
)


class ItemListing:
    """Items as a table or as lines of JSON, written while they come."""

    def __init__(
        self,
        columns: Sequence[str | Column],
        row: Callable[[PeekedItem], tuple[object, ...]],
        *,
        as_json: bool,
    ) -> None:
        self._table = TableStream(columns, width())
        self._row = row
        self._as_json = as_json

    def show(
        self, target: CommandTarget, items: Callable[[Client], AsyncIterator[PeekedItem]]
    ) -> int:
        """Shows all items, and returns their number."""

        async def main(client: Client) -> int:
            shown = 0
            piece: list[PeekedItem] = []
            async for item in items(client):
                piece.append(item)
                if len(piece) == _PIECE_ITEMS:
                    self._write(piece)
                    piece = []
                shown += 1
            self._write(piece)
            return shown

        return target.run(main)

    def _write(self, items: list[PeekedItem]) -> None:
        if not items:
            return
        if self._as_json:
            write_json_lines(map(peeked_view, items))
        else:
            write_lines(self._table.lines(map(self._row, items)))


def note_more(shown: int, limit: int, *, as_json: bool) -> None:
    """Says that the list was ended by `limit`."""
    if shown == limit and not as_json:
        note(f"The first {limit:,}; there may be more: --limit.")
