"""A limit that several share, so that one that is stuck leaves room for the others.

A key may have WEIGHT times what is free beside it (dynamic thresholds; Choudhury and Hahne, 1998).
Alone it gets two thirds of the limit, so it borrows what nobody else needs. Of n keys that take all
they can each gets 2/(2n + 1) of the limit, and 1/(2n + 1) stays free for the next one. Nothing is
taken back: a key that has more than its share gets nothing until it has less.
"""

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

WEIGHT = 2


class Shares(Generic[K]):
    """What each key has of one limit. Not safe for several threads."""

    __slots__ = ("_used", "limit", "total")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.total = 0
        """What all keys have together."""
        self._used: dict[K, int] = {}

    def used(self, key: K) -> int:
        return self._used.get(key, 0)

    def share(self, key: K) -> int:
        """What the key may have just now."""
        others = self.total - self.used(key)
        return max(0, -(-WEIGHT * (self.limit - others) // (WEIGHT + 1)))

    def has_room(self, key: K, size: int) -> bool:
        """Whether the key may have so much more. A size beyond its share fits when the key has
        nothing; one beyond the limit when nobody has anything.
        """
        if not self.total:
            return True
        if self.total + size > self.limit:
            return False
        mine = self.used(key)
        return not mine or mine + size <= self.share(key)

    def add(self, key: K, size: int) -> None:
        """Whether or not there is room."""
        if not size:
            return
        self._used[key] = self._used.get(key, 0) + size
        self.total += size

    def remove(self, key: K, size: int) -> None:
        if not size:
            return
        left = self._used[key] - size
        assert left >= 0
        self.total -= size
        if left:
            self._used[key] = left
        else:
            del self._used[key]
