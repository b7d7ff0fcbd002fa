"""What becomes of an item when its handler raises."""

import random
from collections.abc import Iterable
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, Literal, NamedTuple

from querator.client import Reject, Retry, UndecodablePayload

RETRY_FIRST: Final = timedelta(seconds=1)
RETRY_MOST: Final = timedelta(minutes=5)

OnUndecodable = Literal["retry", "reject"]


class ItemOutcome(StrEnum):
    """What became of an item. `died`: the attempts that its queue allows are used up. `settled`:
    the handler settled it itself. `released`: given back, because the worker stopped. `lost`: its
    lease had ended. `unknown`: the settle got no answer.
    """

    COMPLETED = "completed"
    RETRIED = "retried"
    REJECTED = "rejected"
    DIED = "died"
    SETTLED = "settled"
    RELEASED = "released"
    LOST = "lost"
    UNKNOWN = "unknown"


class Disposition(NamedTuple):
    """`rejects`: the item becomes a dead letter. Else it is retried after `delay`, or at `at`.
    `deliberate`: the handler asked for it by `Retry` or `Reject`.
    """

    rejects: bool
    reason: str
    delay: timedelta | None = None
    at: datetime | None = None
    count_attempt: bool = True
    deliberate: bool = False


class FailurePolicy:
    """Decides by the type of the exception. Of the classes that match, the nearest one counts, as
    the most special one of several `except` clauses would.

    `reject_on`: these exceptions reject the item. `retry_on`: only these exceptions retry it, and
    all others reject it; empty: all exceptions that `reject_on` does not name retry it.
    `on_undecodable` "reject": UndecodablePayload rejects the item. The delay of a retry begins with
    `retry_first`, and doubles with each attempt up to `retry_most`, minus a random part of up to
    half.
    """

    def __init__(
        self,
        *,
        retry_on: Iterable[type[Exception]] = (),
        reject_on: Iterable[type[Exception]] = (),
        on_undecodable: OnUndecodable = "retry",
        retry_first: timedelta = RETRY_FIRST,
        retry_most: timedelta = RETRY_MOST,
    ) -> None:
        """Raises TypeError for a class that is not an exception; ValueError for a class in both
        lists, for delays that are negative or in the wrong order, and for another
        `on_undecodable`.
        """
        retried, rejected = _classes("retry_on", retry_on), _classes("reject_on", reject_on)
        for kind in retried & rejected:
            raise ValueError(f"{kind.__name__} is in retry_on and in reject_on: give one of them")
        if on_undecodable not in ("retry", "reject"):
            raise ValueError(f"on_undecodable is {on_undecodable!r}: give 'retry' or 'reject'")
        if retry_first < timedelta(0):
            raise ValueError(f"retry_first is {retry_first}; it must not be negative")
        if retry_most < retry_first:
            raise ValueError(f"retry_most is {retry_most}, less than retry_first {retry_first}")
        self._rejects: dict[type, bool] = dict.fromkeys(retried, False)
        self._rejects.update(dict.fromkeys(rejected, True))
        self._rejects.setdefault(UndecodablePayload, on_undecodable == "reject")
        self._rejects_others = bool(retried)
        self._first, self._most = retry_first, retry_most

    @property
    def may_reject(self) -> bool:
        """Whether an exception other than `Reject` can reject an item."""
        return self._rejects_others or any(self._rejects.values())

    def decide(self, error: BaseException, attempt: int) -> Disposition:
        """`attempt`: how many times the item has been leased."""
        if isinstance(error, Reject):
            return Disposition(True, error.reason, deliberate=True)
        if isinstance(error, Retry):
            delay = error.delay
            if delay is None and error.at is None:
                delay = self.delay(attempt)
            return Disposition(
                rejects=False,
                reason=error.reason,
                delay=delay,
                at=error.at,
                count_attempt=error.count_attempt,
                deliberate=True,
            )
        reason = f"{type(error).__name__}: {error}"
        if self._is_rejected(type(error)):
            return Disposition(True, reason)
        return Disposition(False, reason, self.delay(attempt))

    def _is_rejected(self, kind: type[BaseException]) -> bool:
        for base in kind.__mro__:
            if base in self._rejects:
                return self._rejects[base]
        return self._rejects_others

    def delay(self, attempt: int) -> timedelta:
        """The delay after this attempt."""
        doubled: timedelta = self._first * 2 ** min(max(attempt - 1, 0), 30)
        return min(self._most, doubled) * (1 - random.random() / 2)


def _classes(field: str, kinds: Iterable[Any]) -> set[type[Exception]]:
    found = set(kinds)
    for kind in found:
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            raise TypeError(f"{field} has {kind!r}; give classes of exceptions")
    return found
