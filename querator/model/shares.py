"""A limit that several share, so that one that is stuck leaves room for the others.

A key may have WEIGHT times what is free beside it (dynamic thresholds; Choudhury and Hahne, 1998).
Alone it gets two thirds of the limit, so it borrows what nobody else needs. Of n keys that take all
they can each gets 2/(2n + 1) of the limit, and 1/(2n + 1) stays free for the next one. Nothing is
taken back: a key that has more than its share gets nothing until it has less.
"""

from collections.abc import Hashable
from typing import Final, Generic, Literal, TypeAlias, TypeVar

import msgspec

K = TypeVar("K", bound=Hashable)
Unit: TypeAlias = Literal["calls", "bytes"]

WEIGHT: Final = 2
_UNBOUNDED: Final = 1 << 62


class Excess(msgspec.Struct, frozen=True):
    """Why there is no room: with one more call there would be `value` of the unit.

    `whole`: all keys together would have them, and the limit is theirs.
    """

    unit: Unit
    value: int
    limit: int
    whole: bool


def share(limit: int, others: int) -> int:
    """What a key may have of the limit while the others have so much."""
    return max(0, -(-WEIGHT * (limit - others) // (WEIGHT + 1)))


class Shares(Generic[K]):
    """How many calls each key has, and of how many bytes. Not safe for several threads."""

    __slots__ = (
        "_ample_bytes",
        "_ample_calls",
        "_bytes_max",
        "_calls_max",
        "_used",
        "bytes",
        "calls",
    )

    def __init__(self, *, calls_max: int = 0, bytes_max: int = 0) -> None:
        """0: not bounded."""
        self._calls_max = calls_max or _UNBOUNDED
        self._bytes_max = bytes_max or _UNBOUNDED
        self._ample_calls = _ample(self._calls_max)
        self._ample_bytes = _ample(self._bytes_max)
        self._used: dict[K, list[int]] = {}
        """[calls, bytes]"""
        self.calls = 0
        """Of all keys together; `bytes` as well."""
        self.bytes = 0

    def used(self, key: K) -> tuple[int, int]:
        """Calls and bytes."""
        calls, size = self._used.get(key, (0, 0))
        return calls, size

    def excess(self, key: K, size: int) -> Excess | None:
        """Why the key may not have one more call of so many bytes; None: it may. What is beyond its
        share fits when the key has nothing, what is beyond the limit when no key has anything.
        """
        if self.calls < self._ample_calls and self.bytes + size <= self._ample_bytes:
            return None
        calls, bytes_ = self.used(key)
        return _excess("calls", self.calls, calls, 1, self._calls_max) or _excess(
            "bytes", self.bytes, bytes_, size, self._bytes_max
        )

    def take(self, key: K, size: int) -> Excess | None:
        """Adds one call if there is room; else why there is none."""
        # The short cut of `excess`, without a call: each item comes by here several times.
        if self.calls >= self._ample_calls or self.bytes + size > self._ample_bytes:
            excess = self.excess(key, size)
            if excess is not None:
                return excess
        self.add(key, size)
        return None

    def add(self, key: K, size: int) -> None:
        """One call, whether or not there is room."""
        self.calls += 1
        self.bytes += size
        mine = self._used.get(key)
        if mine is None:
            self._used[key] = [1, size]
        else:
            mine[0] += 1
            mine[1] += size

    def remove(self, key: K, size: int) -> None:
        """A call of so many bytes that was added."""
        mine = self._used[key]
        self.calls -= 1
        self.bytes -= size
        if mine[0] == 1:
            assert mine[1] == size
            del self._used[key]
        else:
            mine[0] -= 1
            mine[1] -= size


def _ample(limit: int) -> int:
    """Up to this total no key can have more than its share: each has at least as much."""
    return WEIGHT * limit // (2 * WEIGHT + 1)


def _excess(unit: Unit, total: int, mine: int, more: int, limit: int) -> Excess | None:
    if not total:
        return None
    if total + more > limit:
        return Excess(unit, total + more, limit, whole=True)
    its_share = share(limit, total - mine)
    if mine and mine + more > its_share:
        return Excess(unit, mine + more, its_share, whole=False)
    return None
