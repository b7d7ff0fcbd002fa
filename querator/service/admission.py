"""How much unanswered work a node takes on. Beyond it a call is refused before anything is stored.

Kinds of work are bounded apart, so that a flood of one leaves room for the others: completes get
in while produces are refused.
"""

from querator.model.errors import ErrorCode, QueratorError
from querator.model.limits import OVERLOADED_RETRY_MS


class Admission:
    """Counts calls of one kind, and their bytes, between `enter` and `leave`."""

    __slots__ = ("_bytes", "_bytes_max", "_calls", "_calls_max", "_kind")

    def __init__(self, kind: str, *, calls_max: int, bytes_max: int = 0) -> None:
        """`kind` in the plural, for people; `bytes_max` 0: not bounded by bytes."""
        self._kind = kind
        self._calls_max = calls_max
        self._bytes_max = bytes_max
        self._calls = 0
        self._bytes = 0

    @property
    def calls(self) -> int:
        return self._calls

    @property
    def bytes(self) -> int:
        return self._bytes

    def enter(self, size: int = 0) -> None:
        """Raises OVERLOADED. A call larger than the bound gets in when it is alone."""
        if self._calls >= self._calls_max:
            raise self._overloaded(self._calls, self._calls_max, "calls")
        if self._bytes_max and self._calls and self._bytes + size > self._bytes_max:
            raise self._overloaded(self._bytes + size, self._bytes_max, "bytes")
        self._calls += 1
        self._bytes += size

    def leave(self, size: int = 0) -> None:
        self._calls -= 1
        self._bytes -= size
        assert self._calls >= 0
        assert self._bytes >= 0

    def _overloaded(self, value: int, limit: int, unit: str) -> QueratorError:
        return QueratorError(
            ErrorCode.OVERLOADED,
            f"unanswered {self._kind} of this node would be {value} {unit}; the limit is {limit} "
            f"{unit}; wait and repeat",
            limit=f"{limit} {unit}",
            value=f"{value} {unit}",
            retry_delay_ms=OVERLOADED_RETRY_MS,
        )
