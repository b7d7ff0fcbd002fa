"""How much unanswered work a node takes on. Beyond it a call is refused before anything is stored.

Kinds of work are bounded apart, so that a flood of one leaves room for the others: completes get
in while produces are refused.
"""

from collections.abc import Callable
from functools import partial

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


class Slots:
    """Counts what is open of one kind, for each caller and together. A caller has a part of the
    whole, so that one that opens many leaves room for the others.
    """

    __slots__ = ("_callers", "_kind", "_most", "_most_of_one", "_open")

    def __init__(self, kind: str, *, most: int, most_of_one: int) -> None:
        """`kind` in the plural, for people."""
        self._kind = kind
        self._most = most
        self._most_of_one = most_of_one
        self._open = 0
        self._callers: dict[str, int] = {}

    def enter(self, caller: str) -> Callable[[], None]:
        """What gives the slot back, called once. Raises OVERLOADED."""
        mine = self._callers.get(caller, 0)
        if mine >= self._most_of_one:
            raise self._overloaded("this connection", mine, self._most_of_one)
        if self._open >= self._most:
            raise self._overloaded("this node", self._open, self._most)
        self._open += 1
        self._callers[caller] = mine + 1
        return partial(self._leave, caller)

    def _leave(self, caller: str) -> None:
        self._open -= 1
        self._callers[caller] -= 1
        if not self._callers[caller]:
            del self._callers[caller]

    def _overloaded(self, whose: str, value: int, limit: int) -> QueratorError:
        return QueratorError(
            ErrorCode.OVERLOADED,
            f"open {self._kind} of {whose} are {value}; the limit is {limit}; read those that are "
            "open to their end or cancel them, and repeat",
            limit=f"{limit} {self._kind}",
            value=f"{value} {self._kind}",
            retry_delay_ms=OVERLOADED_RETRY_MS,
        )
