"""How long to wait before trying again."""

import random
from dataclasses import dataclass

FIRST_SECONDS = 0.05
MOST_SECONDS = 2.0


@dataclass(slots=True)
class Backoff:
    """Doubles from `first` to `most` seconds, each less up to a half by chance, so that clients
    which lost the same node do not come back at the same moment.
    """

    first: float = FIRST_SECONDS
    most: float = MOST_SECONDS
    _failures: int = 0

    def next(self, *, at_least_ms: int | None = None) -> float:
        """Seconds to wait after one more failure; not less than what the server asked for."""
        span: float = min(self.most, self.first * 2 ** min(self._failures, 16))
        self._failures += 1
        # Not for secrets: chance only spreads the load.
        waiting = span * (1 - random.random() / 2)
        return max(waiting, (at_least_ms or 0) / 1000)

    def reset(self) -> None:
        self._failures = 0
