"""Layout of the limits in the state row of a partition. The conventions are those of
`partition.rows`.
"""

import msgspec

from querator.model.limits import RATE_WAKE_MS


class LimitRow(msgspec.Struct, array_like=True):
    """The limits of the settings, and a token bucket. A token is `interval_ms` units, and `items`
    units come in each ms: whole numbers, so that no part of a token is lost. The bucket had `level`
    units at `at_ms`. `items` 0: there is no bucket. `leased_max` 0: any number may be leased.
    """

    items: int
    interval_ms: int
    burst: int
    leased_max: int
    level: int
    at_ms: int

    def level_at(self, now_ms: int) -> int:
        level = self.level + max(0, now_ms - self.at_ms) * self.items
        return min(level, self.burst * self.interval_ms)

    def tokens(self, now_ms: int) -> int:
        return self.level_at(now_ms) // self.interval_ms

    def full_ms(self, now_ms: int) -> int:
        """When it will be full; now, if it is."""
        lacking = self.burst * self.interval_ms - self.level_at(now_ms)
        return now_ms + -(-lacking // self.items)

    def leasable(self, ready: int, leased: int, now_ms: int) -> int:
        """How many of `ready` items may be leased while `leased` ones are."""
        if self.leased_max:
            ready = min(ready, max(0, self.leased_max - leased))
        return min(ready, self.tokens(now_ms)) if self.items else ready

    def due_ms(self, ready: int, leased: int, now_ms: int) -> int:
        """When tokens come that `ready` items wait for: enough for the items of RATE_WAKE_MS, so
        that a high rate does not cost an entry for each item. 0: nothing waits for tokens.
        """
        if not ready or not self.items or (self.leased_max and leased >= self.leased_max):
            return 0
        level = self.level_at(now_ms)
        if level >= self.interval_ms:
            return 0
        wanted = max(1, min(ready, self.items * RATE_WAKE_MS // self.interval_ms))
        return now_ms - (level - wanted * self.interval_ms) // self.items
