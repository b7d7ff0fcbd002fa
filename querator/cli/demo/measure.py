"""Latencies, and the progress of a long operation."""

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

import msgspec

from querator.cli.shared.output import Screen, note, width

LINE_SECONDS = 5.0
PICTURE_SECONDS = 0.2
_BAR_CELLS_MAX = 40
_COLUMNS_MIN = 40
"""The columns of a line without its bar."""


class Latency(msgspec.Struct, frozen=True):
    """Percentiles in ms; all 0 when nothing was measured."""

    count: int
    p50_ms: float
    p99_ms: float
    max_ms: float


def latency(seconds: Sequence[float]) -> Latency:
    """Percentiles by rank: each is a measured value."""
    if not seconds:
        return Latency(0, 0.0, 0.0, 0.0)
    ordered = sorted(seconds)

    def at(share: float) -> float:
        return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1000, 3)

    return Latency(len(ordered), at(0.5), at(0.99), round(ordered[-1] * 1000, 3))


class Bars:
    """One bar for each counter on a terminal, else a line every few seconds; on standard error.

    `counters` are polled, by name, so the work itself only counts. Used in an `async with` block.
    """

    def __init__(self, total: int, counters: dict[str, Callable[[], int]]) -> None:
        self._total = total
        self._counters = counters
        self._terminal = sys.stderr.isatty()
        self._began = time.monotonic()
        self._screen = Screen(sys.stderr)
        self._showing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        # Only this object has the task: `__aexit__` ends and awaits it.
        self._showing = asyncio.get_running_loop().create_task(self._show_on())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._showing is not None
        self._showing.cancel()
        await asyncio.wait({self._showing})
        if kind is None:
            self._show()
        self._screen.close()

    async def _show_on(self) -> None:
        while True:
            await asyncio.sleep(PICTURE_SECONDS if self._terminal else LINE_SECONDS)
            self._show()

    def _show(self) -> None:
        seconds = max(time.monotonic() - self._began, 0.001)
        counts = {name: counter() for name, counter in self._counters.items()}
        if not self._terminal:
            words = ", ".join(f"{name} {count:,}" for name, count in counts.items())
            note(f"{seconds:6.1f} s  {words} of {self._total:,}")
            return
        columns = width(sys.stderr) or _COLUMNS_MIN
        cells = max(0, min(_BAR_CELLS_MAX, columns - _COLUMNS_MIN))
        self._screen.show(
            [
                f"{name:<10}{_bar(count / self._total, cells)}{count:>9,}{count / seconds:>9,.0f}/s"
                f"{seconds:>6.0f} s"
                for name, count in counts.items()
            ]
        )


def _bar(share: float, cells: int) -> str:
    full = min(cells, int(share * cells))
    return "█" * full + "░" * (cells - full)
