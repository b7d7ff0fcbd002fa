"""Counts of ended calls by outcome: one addition per call, whatever its number of items.

Streams and their requests are counted separately: `LeaseStream` counts ended streams, and
`LeaseStream/Complete` counts requests on such streams.
"""

import time
from collections.abc import Mapping
from typing import Final

from querator.model.errors import QueratorError
from querator.raft.stats import Distribution, Gatherer

OK: Final = "OK"
CANCELLED: Final = "CANCELLED"
"""The caller disconnected before the answer."""

_UNTIMED: Final = frozenset(
    (
        "Lease", "LeaseStream", "ProduceStream", "LeaseActivations", "WaitExecutions",
        "ReadPublished", "ExecutionStream", "ExecutionStream/LeaseActivations",
        "ExecutionStream/WaitExecutions", "WaitArrivals", "ExecutionStream/WaitArrivals",
    )
)  # fmt: skip
"""Methods without durations: they last as long as their callers want."""


class CallCounts:
    """Counts of one server. All methods run on the event loop."""

    def __init__(self) -> None:
        self._ended: dict[tuple[str, str], int] = {}
        self._lasted_us: dict[str, Gatherer] = {}
        self._streams: dict[str, int] = {}

    def ended(self, method: str, code: str, began_s: float) -> None:
        """A call ended with `OK`, `CANCELLED` or the name of an ErrorCode. `began_s` is a reading
        of `time.perf_counter`.
        """
        key = method, code
        self._ended[key] = self._ended.get(key, 0) + 1
        if method in _UNTIMED:
            return
        gatherer = self._lasted_us.get(method)
        if gatherer is None:
            gatherer = self._lasted_us[method] = Gatherer()
        gatherer.add(round((time.perf_counter() - began_s) * 1_000_000))

    def refused(self, method: str, error: QueratorError, began_s: float) -> None:
        self.ended(method, error.code.name, began_s)

    def stream_began(self, method: str) -> None:
        self._streams[method] = self._streams.get(method, 0) + 1

    def stream_ended(self, method: str) -> None:
        self._streams[method] -= 1

    # --- what was counted ----------------------------------------------------------------

    def calls(self) -> Mapping[tuple[str, str], int]:
        """A copy: (method, code) → calls."""
        return self._ended.copy()

    def lasted_us(self) -> Mapping[str, Distribution]:
        """Microseconds from the request to its answer, by method; without calls that wait for work,
        and without whole streams.
        """
        return {method: gatherer.distribution() for method, gatherer in self._lasted_us.items()}

    def open_streams(self) -> Mapping[str, int]:
        """A copy: method → open streams."""
        return self._streams.copy()
