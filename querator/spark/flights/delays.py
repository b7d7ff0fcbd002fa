"""Counts of flights: exact numbers, on which two independent counts must agree."""

from collections.abc import Callable, Iterable

import msgspec

LATE_MINUTES = 15
"""Minutes from which a flight counts as late, as the Bureau of Transportation Statistics defines
it.
"""


class Delays(msgspec.Struct, frozen=True):
    """Counts of a set of flights: all of them, the cancelled ones, those that arrived, their
    minutes behind schedule in sum, and the number of late ones.
    """

    flights: int = 0
    cancelled: int = 0
    arrived: int = 0
    minutes: int = 0
    late: int = 0

    def __add__(self, other: "Delays") -> "Delays":
        return Delays(
            self.flights + other.flights,
            self.cancelled + other.cancelled,
            self.arrived + other.arrived,
            self.minutes + other.minutes,
            self.late + other.late,
        )

    @property
    def mean(self) -> float | None:
        """Mean minutes behind schedule; None if no flight has arrived."""
        return self.minutes / self.arrived if self.arrived else None

    @property
    def late_share(self) -> float | None:
        """Share of late flights, in percent."""
        return 100 * self.late / self.arrived if self.arrived else None


class Cell(msgspec.Struct, frozen=True, order=True):
    """Flights of one carrier that were scheduled to leave in one hour of the day, in one month."""

    month: int
    carrier: str
    hour: int
    delays: Delays


class Flights(msgspec.Struct, frozen=True):
    """Number of rows, number of distinct row numbers, and the cells in their order."""

    rows: int
    distinct: int
    cells: tuple[Cell, ...]

    @property
    def total(self) -> Delays:
        return sum((cell.delays for cell in self.cells), Delays())

    def by(self, key: Callable[[Cell], "str | int | tuple[str, int]"]) -> dict[object, Delays]:
        """Sums over the cells that have the same key, in the order of keys."""
        sums: dict[object, Delays] = {}
        for cell in sorted(self.cells, key=key):
            sums[key(cell)] = sums.get(key(cell), Delays()) + cell.delays
        return sums


class Counter:
    """Counts flights one by one, from the texts of the CSV."""

    def __init__(self) -> None:
        self._rows: set[str] = set()
        self._count = 0
        self._cells: dict[tuple[int, str, int], list[int]] = {}

    def add(self, row: str, *, month: str, carrier: str, hour: str, left: str, delay: str) -> None:
        """`left`: time of departure; `delay`: minutes at arrival. "NA" means that it did not take
        place.
        """
        self._rows.add(row)
        self._count += 1
        cell = self._cells.setdefault((int(month), carrier, int(hour)), [0] * 5)
        minutes = None if delay == "NA" else int(delay)
        cell[0] += 1
        cell[1] += left == "NA"
        if minutes is not None:
            cell[2] += 1
            cell[3] += minutes
            cell[4] += minutes >= LATE_MINUTES

    def flights(self) -> Flights:
        return Flights(self._count, len(self._rows), cells(self._cells.items()))


def cells(found: Iterable[tuple[tuple[int, str, int], Iterable[int]]]) -> tuple[Cell, ...]:
    """The cells in their order."""
    return tuple(sorted(Cell(*key, Delays(*numbers)) for key, numbers in found))
