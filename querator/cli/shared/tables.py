"""Tables that fit the width of the terminal.

A table that is too wide leaves out the columns that are empty or 0 in all rows. If that is not
enough, long texts are cut, then the columns go below each other in two parts, and at last each row
becomes a list of names and values. No cell of another column is cut or lost.

`TableStream` writes rows as they come.
"""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from querator.cli.shared import cells
from querator.cli.shared.texts import cell_text

_GAP = "  "
_CUT_MIN = 16
"""Cells: texts of columns that may be cut keep at least this."""
_VALUE_MIN = 12
"""Cells: the least width of values in a list."""


class Column(msgspec.Struct, frozen=True):
    """A column. `cut`: its texts may be cut to fit. `keep`: it is shown even if it is empty or 0 in
    all rows.
    """

    name: str
    cut: bool = False
    keep: bool = False


class Line(NamedTuple):
    """A line of a table. `head`: it has names, not values."""

    text: str
    head: bool = False


class _Part(NamedTuple):
    """Columns by position, with their widths in cells."""

    columns: tuple[int, ...]
    widths: tuple[int, ...]

    @property
    def width(self) -> int:
        return sum(self.widths) + len(_GAP) * (len(self.widths) - 1)


class _Layout(NamedTuple):
    """`parts` is empty for a list."""

    shown: tuple[int, ...]
    parts: tuple[_Part, ...]


def as_columns(columns: Iterable[str | Column]) -> tuple[Column, ...]:
    return tuple(Column(one) if isinstance(one, str) else one for one in columns)


class FittedTable:
    """Rows under the names of their columns. Columns of numbers are aligned to the right."""

    def __init__(
        self,
        columns: Iterable[str | Column],
        rows: Iterable[Sequence[object]],
        *,
        parts_max: int = 2,
    ) -> None:
        """`parts_max`: 1 for long tables, whose parts would be far apart."""
        self._columns = as_columns(columns)
        values = [list(row) for row in rows]
        self._rows = [[cell_text(value) for value in row] for row in values]
        self._numbers = [
            _are_numbers([row[position] for row in values])
            for position in range(len(self._columns))
        ]
        self._natural = [
            max(cells.width(one.name), *(cells.width(row[position]) for row in self._rows), 0)
            for position, one in enumerate(self._columns)
        ]
        self._parts_max = parts_max

    def lines(self, width: int | None) -> Iterator[Line]:
        """The lines for a terminal of `width` cells; None: as wide as the table is."""
        layout = self.layout(width)
        yield from self.lines_in(layout, width)
        left_out = [
            self._columns[position].name
            for position in range(len(self._columns))
            if position not in layout.shown and self._numbers[position]
        ]
        if left_out:
            text = f"0 in all rows: {', '.join(left_out)}"
            yield from (Line(line) for line in textwrap.wrap(text, width or len(text)))

    def lines_in(self, layout: _Layout, width: int | None, *, head: bool = True) -> Iterator[Line]:
        """The lines in a layout, which may be that of other rows if `fits` says so."""
        if not layout.parts:
            assert width is not None
            yield from self._list(layout.shown, width, first=head)
        for number, part in enumerate(layout.parts):
            if number:
                yield Line("")
            yield from self._part(part, width, head=head)

    def fits(self, layout: _Layout, width: int | None) -> bool:
        """Whether the rows can be drawn in the layout of other rows."""
        hidden = set(range(len(self._columns))) - set(layout.shown)
        if any(not self._is_empty(position) for position in hidden):
            return False
        if width is None or not layout.parts:
            return True
        return all(
            sum(map(self._needed, part.columns, part.widths)) + len(_GAP) * (len(part.widths) - 1)
            <= width
            for part in layout.parts
        )

    def layout(self, width: int | None) -> _Layout:
        everything = tuple(range(len(self._columns)))
        whole = self._as_part(everything)
        if width is None or whole.width <= width:
            return _Layout(everything, (whole,))
        shown = tuple(one for one in everything if one == 0 or not self._is_empty(one))
        part = self._cut(self._as_part(shown), width)
        if part is not None:
            return _Layout(shown, (part,))
        if self._parts_max > 1:
            for split in range(len(shown) - 1, 1, -1):
                first = self._cut(self._as_part(shown[:split]), width)
                second = self._cut(self._as_part((0, *shown[split:])), width)
                if first is not None and second is not None:
                    return _Layout(shown, (first, second))
        return _Layout(shown, ())

    def _is_empty(self, position: int) -> bool:
        if self._columns[position].keep:
            return False
        nothing = ("0", "") if self._numbers[position] else ("",)
        return all(row[position] in nothing for row in self._rows)

    def _as_part(self, columns: tuple[int, ...]) -> _Part:
        return _Part(columns, tuple(self._natural[one] for one in columns))

    def _needed(self, position: int, width: int) -> int:
        """Cells for a column that has `width` cells in a layout."""
        return width if self._columns[position].cut else max(width, self._natural[position])

    def _cut(self, part: _Part, width: int) -> _Part | None:
        """The part with columns cut to fit `width`; None if it cannot fit."""
        widths = list(part.widths)
        excess = part.width - width
        while excess > 0:
            longest = max(
                (
                    place
                    for place, position in enumerate(part.columns)
                    if self._columns[position].cut and widths[place] > _CUT_MIN
                ),
                key=lambda place: widths[place],
                default=None,
            )
            if longest is None:
                return None
            widths[longest] -= 1
            excess -= 1
        return _Part(part.columns, tuple(widths))

    def _part(self, part: _Part, width: int | None, *, head: bool) -> Iterator[Line]:
        if head:
            names = [self._columns[position].name for position in part.columns]
            yield Line(self._aligned(names, part, width), head=True)
            yield Line("─" * part.width)
        for row in self._rows:
            texts = [row[position] for position in part.columns]
            yield Line(self._aligned(texts, part, width))

    def _aligned(self, texts: Sequence[str], part: _Part, whole_width: int | None) -> str:
        line = ""
        for text, position, width in zip(texts, part.columns, part.widths, strict=True):
            if whole_width is not None and self._columns[position].cut:
                is_last = position == part.columns[-1]
                text = cells.cut(text, whole_width - cells.width(line) if is_last else width)
            space = " " * (width - cells.width(text))
            line += (space + text if self._numbers[position] else text + space) + _GAP
        return line.rstrip()

    def _list(self, shown: tuple[int, ...], width: int, *, first: bool) -> Iterator[Line]:
        names = max(
            (cells.width(self._columns[position].name) for position in shown[1:]), default=0
        )
        for row in self._rows:
            if not first:
                yield Line("")
            first = False
            yield Line(f"{self._columns[0].name} {row[0].strip()}", head=True)
            for position in shown[1:]:
                if not row[position]:
                    continue
                name = self._columns[position].name
                label = f"{_GAP}{name}{' ' * (names - cells.width(name))}{_GAP}"
                for text in cells.wrapped(row[position], max(_VALUE_MIN, width - len(label))):
                    yield Line(label + text)
                    label = " " * len(label)


class TableStream:
    """A table whose rows come in pieces. The columns stay as they were for the first piece while
    later pieces fit; otherwise the names are written again.
    """

    def __init__(self, columns: Iterable[str | Column], width: int | None) -> None:
        self._columns = as_columns(columns)
        self._width = width
        self._layout: _Layout | None = None

    def lines(self, rows: Iterable[Sequence[object]]) -> Iterator[Line]:
        table = FittedTable(self._columns, rows, parts_max=1)
        if self._layout is not None and table.fits(self._layout, self._width):
            yield from table.lines_in(self._layout, self._width, head=False)
            return
        if self._layout is not None:
            yield Line("")
        self._layout = table.layout(self._width)
        yield from table.lines_in(self._layout, self._width)


def _are_numbers(values: list[object]) -> bool:
    """Whether all are numbers, except for those that are missing."""
    there = [value for value in values if value not in (None, "")]
    return bool(there) and all(isinstance(value, int | float) for value in there)
