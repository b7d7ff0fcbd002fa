"""The report of the demo: delays by carrier, by hour and by month."""

from collections.abc import Mapping, Sequence

from querator.spark.flights.delays import LATE_MINUTES, Delays, Flights
from querator.spark.report.charts import bars, columns, heat
from querator.spark.report.page import Cell, Page, PageTable, Picture, Section

_COLUMNS = ("flights", "cancelled", "arrived", "minutes behind, mean", "late, %")


def flights_page(
    flights: Flights, carriers: Mapping[str, str], problems: Sequence[str], run: Section
) -> Page:
    """`carriers` are names by code; `run` describes the run that brought the flights into the
    archive.
    """
    total = flights.total
    return Page(
        title=f"{flights.rows:,} flights that were to leave New York in 2013",
        words="Counted by Spark over the archive, and compared with the CSV that they come from, "
        "for each month, carrier and hour.",
        problems=tuple(problems),
        sections=(
            run,
            Section(
                "All flights",
                f"Delays are those at arrival; late means {LATE_MINUTES} minutes or more.",
                tuple(zip(_COLUMNS, _row(total), strict=True)),
            ),
            _by_carrier(flights, carriers),
            _by_hour(flights),
            _by_month(flights),
        ),
    )


def _by_carrier(flights: Flights, names: Mapping[str, str]) -> Section:
    found = sorted(
        ((str(code), each) for code, each in flights.by(lambda cell: cell.carrier).items()),
        key=lambda pair: -(pair[1].mean or 0.0),
    )
    panels = {
        "mean minutes behind schedule": [each.mean or 0.0 for _, each in found],
        "flights": [float(each.flights) for _, each in found],
    }
    labels = [names.get(code, code) for code, _ in found]
    rows = [
        (f"{code} {name}" if name != code else code, *_row(each))
        for (code, each), name in zip(found, labels, strict=True)
    ]
    return Section(
        "By carrier",
        parts=(
            Picture(
                "Delay by carrier",
                bars(labels, panels, decimals=1),
                "Bars: mean delay and number of flights of each carrier, as in the table.",
            ),
            PageTable("Carriers", ("carrier", *_COLUMNS), tuple(rows)),
        ),
    )


def _by_hour(flights: Flights) -> Section:
    hours = flights.by(lambda cell: cell.hour)
    both = flights.by(lambda cell: (cell.carrier, cell.hour))
    carriers = sorted({cell.carrier for cell in flights.cells})
    means = [[_mean(both.get((carrier, hour))) for hour in hours] for carrier in carriers]
    labels = [str(hour) for hour in hours]
    return Section(
        "By hour of the day",
        "Hours are those of the schedule, in New York.",
        parts=(
            _picture("Delay by hour", hours, x="scheduled hour of departure"),
            Picture(
                "Delay by carrier and hour, minutes",
                heat(carriers, labels, means, x="scheduled hour of departure"),
                "A field for each carrier and hour: mean delay in minutes.",
            ),
            _table("Hours", "hour", hours),
        ),
    )


def _by_month(flights: Flights) -> Section:
    months = flights.by(lambda cell: cell.month)
    picture = _picture("Delay by month", months, x="month")
    return Section("By month", parts=(picture, _table("Months", "month", months)))


def _picture(title: str, found: Mapping[object, Delays], *, x: str) -> Picture:
    means = [each.mean or 0.0 for each in found.values()]
    return Picture(
        title,
        columns([str(key) for key in found], {"mean": means}, x=x, y="mean minutes behind"),
        "Columns: mean delay at arrival, as in the table below.",
    )


def _table(title: str, what: str, found: Mapping[object, Delays]) -> PageTable:
    rows = tuple((str(key), *_row(each)) for key, each in found.items())
    return PageTable(title, (what, *_COLUMNS), rows)


def _row(delays: Delays) -> tuple[Cell, ...]:
    return (delays.flights, delays.cancelled, delays.arrived, delays.mean, delays.late_share)


def _mean(delays: Delays | None) -> float | None:
    return None if delays is None else delays.mean
