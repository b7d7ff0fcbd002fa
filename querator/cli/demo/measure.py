"""Latencies, and the progress of a long operation."""

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

import msgspec
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from querator.cli.shared.output import console, note

LINE_SECONDS = 5.0
PICTURE_SECONDS = 0.2


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
        self._progress = Progress(
            TextColumn("{task.description:<10}"),
            BarColumn(bar_width=40, complete_style="cyan", finished_style="green"),
            TextColumn("{task.completed:>9,.0f}"),
            TextColumn("{task.fields[rate]:>8,.0f}/s"),
            TimeElapsedColumn(),
            console=console(stderr=True),
            auto_refresh=False,
            disable=not self._terminal,
        )
        self._tasks: dict[str, TaskID] = {}
        self._showing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._progress.start()
        for name in self._counters:
            self._tasks[name] = self._progress.add_task(name, total=self._total, rate=0.0)
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
        self._progress.stop()

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
        for name, count in counts.items():
            self._progress.update(self._tasks[name], completed=count, rate=count / seconds)
        self._progress.refresh()
