"""The rate limit of a pipeline: items per second, on average since its start."""

import threading
import time


class ItemPace:
    """`rate` 0 means no limit."""

    def __init__(self, rate: float, stop: threading.Event) -> None:
        self._rate = rate
        self._stop = stop
        self._began = time.monotonic()
        self._items = 0

    def wait(self, items: int) -> None:
        """Waits after `items` more items; ends early when the run is to stop."""
        if not self._rate:
            return
        self._items += items
        due = self._began + self._items / self._rate
        self._stop.wait(max(0.0, due - time.monotonic()))
