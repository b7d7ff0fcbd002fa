"""Virtual time: what happens when, and the trace of what has happened.

Nothing here waits. Time is the instant of the event at hand, in whole microseconds; it jumps from
one event to the next. Events of one instant happen in the order in which they were planned. The
trace is a hash over everything that was noted: two runs of one seed are equal when it is.
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
        """Lets everything happen that is planned up to and with the instant `until_us`."""
        events = self._events
        while events and events[0][0] <= until_us:
            self.now_us, _, action = heappop(events)
            action()
        self.now_us = max(self.now_us, until_us)

    # --- what has happened ---------------------------------------------------------

    @property
    def told(self) -> bool:
        """Whether anybody reads the transcript: its lines cost time to make."""
        return self._tell is not None

    def note(self, *what: object) -> None:
        """Makes it part of the trace: strings, numbers and bytes, and tuples of them."""
        self._hash.update(repr((self.now_us, what)).encode())

    def tell(self, who: str, text: str) -> None:
        """A line of the transcript. Costs the trace nothing: it is the same without a reader."""
        if self._tell is not None:
            self._tell(f"{self.now_us / SECOND:12.6f}  {who:8} {text}")

    def end_transcript(self) -> None:
        """Nothing is told from here on."""
        self._tell = None

    def trace(self) -> str:
        return self._hash.hexdigest()
