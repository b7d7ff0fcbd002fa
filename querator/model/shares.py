"""A limit that several keys share, so that a stuck key leaves space for the others.

A key may have WEIGHT times the free part of the limit (dynamic thresholds; Choudhury and Hahne,
1998). Alone it gets two thirds of the limit, so it borrows what no other key needs. Each of n keys
that take all they can gets 2/(2n + 1) of the limit, and 1/(2n + 1) stays free for the next one.
Nothing is taken back: a key that has more than its share gets nothing until it has less.
"""

from collections.abc import Hashable
from typing import Final, Generic, Literal, TypeAlias, TypeVar

import msgspec

K = TypeVar("K", bound=Hashable)
Unit: TypeAlias = Literal["calls", "bytes"]

WEIGHT: Final = 2
_UNBOUNDED: Final = 1 << 62


class Excess(msgspec.Struct, frozen=True):
    """Why a call does not fit: with it there would be `value` of the unit, above `limit`.

    `whole`: the value and the limit are those of all keys together.
    """

    unit: Unit
    value: int
    limit: int
    whole: bool


def share(limit: int, others: int) -> int:
    """The share of a key in the limit, while the other keys use `others`."""
    return max(0, -(-WEIGHT * (limit - others) // (WEIGHT + 1)))


class Shares(Generic[K]):
    """The number of calls and of bytes of each key. Not thread-safe."""

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
        """Creates the counts. 0: not bounded."""
        self._calls_max = calls_max or _UNBOUNDED
        self._bytes_max = bytes_max or _UNBOUNDED
        self._ample_calls = _ample(self._calls_max)
        self._ample_bytes = _ample(self._bytes_max)
        self._used: dict[K, list[int]] = {}
        """[calls, bytes]"""
        self.calls = 0
        """Calls of all keys together; `bytes` likewise."""
        self.bytes = 0

    def used(self, key: K) -> tuple[int, int]:
        """The calls and bytes of a key."""
        calls, size = self._used.get(key, (0, 0))
        return calls, size

    def excess(self, key: K, size: int) -> Excess | None:
        """Why the key may not have one more call of `size` bytes; None: it may. A call beyond the
        key's share is allowed when the key has nothing, a call beyond the limit when no key has
        anything.
        """
        if self.calls < self._ample_calls and self.bytes + size <= self._ample_bytes:
            return None
        calls, bytes_ = self.used(key)
        return _excess("calls", self.calls, calls, 1, self._calls_max) or _excess(
            "bytes", self.bytes, bytes_, size, self._bytes_max
        )

    def try_add(self, key: K, size: int) -> Excess | None:
        """Adds one call if it fits; else returns why it does not."""
        # The short cut of `excess`, inlined: this runs several times per item.
        if self.calls >= self._ample_calls or self.bytes + size > self._ample_bytes:
            excess = self.excess(key, size)
            if excess is not None:
                return excess
        # `add`, inlined.
        self.calls += 1
        self.bytes += size
        mine = self._used.get(key)
        if mine is None:
            self._used[key] = [1, size]
        else:
            mine[0] += 1
            mine[1] += size
        return None

    def add(self, key: K, size: int) -> None:
        """Adds one call, even if it does not fit."""
        self.calls += 1
        self.bytes += size
        mine = self._used.get(key)
        if mine is None:
            self._used[key] = [1, size]
        else:
            mine[0] += 1
            mine[1] += size

    def remove(self, key: K, size: int) -> None:
        """Removes a call of `size` bytes that was added."""
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
    """The total up to which no key can exceed its share: each share is at least as large."""
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
