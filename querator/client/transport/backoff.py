"""Exponential backoff with jitter between attempts."""

import random
from dataclasses import dataclass

FIRST_SECONDS = 0.05
MOST_SECONDS = 2.0


@dataclass(slots=True)
class Backoff:
    """Delays that double from `first` to `most` seconds, each minus a random part of up to a half.
    So clients that lost the same node do not come back at the same moment.
    """

    first: float = FIRST_SECONDS
    most: float = MOST_SECONDS
    _failures: int = 0

    def next(self, *, at_least_ms: int | None = None) -> float:
        """Returns the seconds to wait after one more failure; at least `at_least_ms`."""
        span: float = min(self.most, self.first * 2 ** min(self._failures, 16))
        self._failures += 1
        # Not for secrets: the random part only spreads the load.
        waiting = span * (1 - random.random() / 2)
        return max(waiting, (at_least_ms or 0) / 1000)

    def reset(self) -> None:
        self._failures = 0
