"""Charts for a page: SVG, drawn by Matplotlib. Text stays text, so any language can be shown.

Labels come from data: nothing in them is treated as markup, and unprintable characters are removed.
"""

import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

COLOURS: Final = ("#2f6db5", "#e08e2b", "#4b9b6e", "#8a63b3", "#c4546a", "#7f8790", "#3aa5a8")
WIDE: Final = 9.2
"""The width in inches."""
_LABEL_CHARS: Final = 28
_LABELS_MOST: Final = 32
"""The largest number of labels that fit side by side."""
_STYLE: Final = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#9aa3ad",
    "axes.grid": True,
    "axes.labelcolor": "#3d4650",
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10,
    "grid.color": "#e4e8ec",
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "querator",
    "text.color": "#1d242b",
    "text.parse_math": False,
    "xtick.color": "#3d4650",
    "ytick.color": "#3d4650",
}


def columns(
    labels: Sequence[str],
    series: Mapping[str, Sequence[float]],
    *,
    x: str,
    y: str,
    order: Sequence[str] = (),
) -> bytes:
    """A chart of columns, one for each label in its order, with the series stacked. The colour of a
    series depends on its index in `order`, so it is the same in all charts.
    """
    with _figure(height=3.4) as figure:
        axes = figure.subplots()
        floor = [0.0] * len(labels)
        places = range(len(labels))
        for name, values in series.items():
            colour = _colour(list(order or series).index(name))
            axes.bar(places, values, bottom=floor, label=_label(name), color=colour)
            floor = [low + value for low, value in zip(floor, values, strict=True)]
        each = -(-len(labels) // _LABELS_MOST)
        # A label of a range takes two lines.
        shown = [_label(label).replace(" – ", " –\n") for label in labels[::each]]
        axes.set_xticks(places[::each], shown)
        axes.grid(axis="x", visible=False)
        axes.set_xlabel(_printable(x))
        axes.set_ylabel(_printable(y))
        _count_up(axes.yaxis)
        if len(series) > 1:
            figure.legend(loc="outside upper left", ncols=len(series))
        return _svg(figure)


def bars(
    labels: Sequence[str], panels: Mapping[str, Sequence[float]], *, decimals: int = 0
) -> bytes:
    """A chart of horizontal bars, the first one on top, each with its value at its end. Panels are
    side by side, each with its name below.
    """
    with _figure(height=0.8 + 0.27 * len(labels)) as figure:
        places = range(len(labels))
        all_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for number, (axes, (name, values)) in enumerate(zip(all_axes, panels.items(), strict=True)):
            drawn = axes.barh(places, values, color=_colour(number), height=0.7)
            whole = all(value == round(value) for value in values)
            shown = [f"{value:,.{0 if whole else decimals}f}" for value in values]
            axes.bar_label(drawn, shown, padding=4)
            axes.grid(axis="y", visible=False)
            axes.margins(x=0.18, y=0.02)
            axes.set_xlabel(_printable(name))
            _count_up(axes.xaxis)
        all_axes[0].set_yticks(places, [_label(label) for label in labels])
        all_axes[0].invert_yaxis()
        return _svg(figure)


def heat(
    rows: Sequence[str], across: Sequence[str], values: Sequence[Sequence[float | None]], *, x: str
) -> bytes:
    """A heat map: a field for each row and each label across, with its value as text and colour.
    None leaves a field empty. The few largest values have the same colour, so that the others
    differ.
    """
    known = sorted(abs(value) for row in values for value in row if value is not None)
    most = known[int(0.95 * len(known))] or 1.0
    with _figure(height=1.0 + 0.32 * len(rows)) as figure:
        axes = figure.subplots()
        cells = [[float("nan") if value is None else value for value in row] for row in values]
        axes.imshow(cells, aspect="auto", cmap="RdBu_r", vmin=-most, vmax=most)
        for down, row in enumerate(values):
            for right, value in enumerate(row):
                if value is not None:
                    shade = "white" if abs(value) > 0.6 * most else "#1d242b"
                    axes.text(
                        right,
                        down,
                        str(round(value)),
                        ha="center",
                        va="center",
                        color=shade,
                        size=8,
                    )
        axes.set_xticks(range(len(across)), [_label(label) for label in across])
        axes.set_yticks(range(len(rows)), [_label(label) for label in rows])
        axes.grid(visible=False)
        axes.set_xlabel(_printable(x))
        return _svg(figure)


@contextmanager
def _figure(*, height: float) -> Iterator[Any]:
    """A figure with settings that hold only within the block."""
    with mpl.rc_context(_STYLE):
        yield Figure(figsize=(WIDE, height), layout="constrained")


def _svg(figure: Any) -> bytes:
    written = io.BytesIO()
    with warnings.catch_warnings():
        # A character without a glyph on this machine may be visible where the page is read.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        FigureCanvasSVG(figure).print_svg(written, metadata={"Date": None, "Creator": None})
    return written.getvalue()


def _count_up(axis: Any) -> None:
    axis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _label(text: str) -> str:
    """A label, shortened to fit beside an axis."""
    text = _printable(text)
    return text if len(text) <= _LABEL_CHARS else text[: _LABEL_CHARS - 1] + "…"


def _printable(text: str) -> str:
    return "".join(letter for letter in text if letter.isprintable())
