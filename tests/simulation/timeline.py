"""Virtual time: planned events, and the trace of past events.

Nothing here waits. Time is the instant of the current event, in whole microseconds; it jumps from
one event to the next. Events of one instant happen in the order in which they were planned. The
trace is a hash of everything that was noted. Two runs of one seed are equal when their traces are.
"""

from collections.abc import Callable
from hashlib import blake2b
from heapq import heappop, heappush

MS = 1_000
SECOND = 1_000_000


class Timeline:
    """All times are microseconds since the start of the run."""

    def __init__(self, tell: Callable[[str], None] | None = None) -> None:
        """`tell` gets the readable transcript, line by line."""
        self.now_us = 0
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._planned = 0
        self._hash = blake2b(digest_size=16)
        self._tell = tell

    def at(self, at_us: int, action: Callable[[], None]) -> None:
        """An instant that has passed means now."""
        self._planned += 1
        now_us = self.now_us
        heappush(self._events, (at_us if at_us > now_us else now_us, self._planned, action))

    def after(self, delay_us: int, action: Callable[[], None]) -> None:
        self.at(self.now_us + delay_us, action)

    def run(self, until_us: int) -> None:
        """Runs all events that are planned up to and including the instant `until_us`."""
        events = self._events
        while events and events[0][0] <= until_us:
            self.now_us, _, action = heappop(events)
            action()
        self.now_us = max(self.now_us, until_us)

    # --- what has happened ---------------------------------------------------------

    @property
    def told(self) -> bool:
        """Whether the transcript has a reader: its lines cost time to make."""
        return self._tell is not None

    def note(self, *what: object) -> None:
        """Adds it to the trace: strings, numbers and bytes, and tuples of them."""
        self._hash.update(repr((self.now_us, what)).encode())

    def tell(self, who: str, text: str) -> None:
        """Adds a line to the transcript. The trace does not depend on it."""
        if self._tell is not None:
            self._tell(f"{self.now_us / SECOND:12.6f}  {who:8} {text}")

    def end_transcript(self) -> None:
        """Ends the transcript."""
        self._tell = None

    def trace(self) -> str:
        return self._hash.hexdigest()
