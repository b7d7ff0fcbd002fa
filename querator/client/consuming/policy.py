"""What becomes of an item when its handler raises: one policy for `Consumer.run` and workers."""

import asyncio
import random
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, Literal, NamedTuple

from querator.client.checks import check_delay
from querator.client.consuming.leases import LeasedItem
from querator.client.outcomes import HandlerTimeout, Reject, Retry, UndecodablePayload
from querator.client.typed import wrong_type

RETRY_FIRST: Final = timedelta(seconds=1)
RETRY_MOST: Final = timedelta(minutes=5)

OnUndecodable = Literal["retry", "reject"]


class RetryDelays(NamedTuple):
    """Delays of retries: `first`, doubled with each attempt up to `most`, minus a random part of up
    to half.
    """

    first: timedelta
    most: timedelta

    def of(self, attempt: int) -> timedelta:
        """The delay after this attempt."""
        doublings = 2 ** min(max(attempt - 1, 0), 62)
        if not self.first:
            return self.first
        # A product of days may be longer than a timedelta.
        full = self.most if self.most / self.first <= doublings else self.first * doublings
        return full * (1 - random.random() / 2)


class Disposition(NamedTuple):
    """`rejects`: the item becomes a dead letter. Else it is retried after `delay`, or at `at`;
    without both, when the queue's retry policy says. `deliberate`: the handler asked for it by
    `Retry` or `Reject`.
    """

    rejects: bool
    reason: str
    delay: timedelta | None = None
    at: datetime | None = None
    count_attempt: bool = True
    priority: int | None = None
    attributes: Mapping[str, str] | None = None
    deliberate: bool = False
    clear_checkpoint: bool = False

    def settle(self, item: LeasedItem) -> "asyncio.Future[None]":
        """Raises ValueError for a time that a queue does not keep."""
        if self.rejects:
            return item.reject(self.reason)
        return item.retry(
            delay=self.delay,
            retry_at=self.at,
            error=self.reason,
            count_attempt=self.count_attempt,
            priority=self.priority,
            attributes=self.attributes,
            clear_checkpoint=self.clear_checkpoint,
        )

    def dies(self, attempt: int, max_attempts: int) -> bool:
        """Whether this retry makes a dead letter: `attempt` is the last one of a queue that allows
        `max_attempts` (0: no limit).
        """
        return not self.rejects and self.count_attempt and 0 < max_attempts <= attempt

    def effect(self, attempt: int, max_attempts: int) -> str:
        """What becomes of the item, for a log. `max_attempts` 0: no limit, or it is not known."""
        if self.rejects:
            return "is rejected"
        if self.dies(attempt, max_attempts):
            if max_attempts == 1:
                return "dies: its only attempt is used up"
            return f"dies: its {max_attempts} attempts are used up"
        return f"is retried {self.when}"

    @property
    def when(self) -> str:
        if self.delay is not None:
            return f"in {self.delay.total_seconds():.1f} s"
        return "when its queue says" if self.at is None else f"at {self.at}"


class FailurePolicy:
    """Decides by the type of the exception. Of the classes that match, the nearest one counts, as
    the most special one of several `except` clauses would.

    `reject_on`: these exceptions reject the item. `retry_on`: only these exceptions retry it, and
    all others reject it; empty: all exceptions that `reject_on` does not name retry it.
    `on_undecodable` "reject": UndecodablePayload rejects the item. A HandlerTimeout retries it
    unless it is named itself. The delay of a retry begins with `retry_first`, and doubles with each
    attempt up to `retry_most`, minus a random part of up to half. `retry_first` None: the queue's
    retry policy decides when the item returns.
    """

    def __init__(
        self,
        *,
        retry_on: Iterable[type[Exception]] = (),
        reject_on: Iterable[type[Exception]] = (),
        on_undecodable: OnUndecodable = "retry",
        retry_first: timedelta | None = RETRY_FIRST,
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
        check_delay("retry_most", retry_most)
        if retry_first is not None:
            check_delay("retry_first", retry_first)
            if retry_most < retry_first:
                raise ValueError(f"retry_most is {retry_most}, less than retry_first {retry_first}")
        self._rejects: dict[type, bool] = dict.fromkeys(retried, False)
        self._rejects.update(dict.fromkeys(rejected, True))
        self._rejects.setdefault(UndecodablePayload, on_undecodable == "reject")
        self._rejects.setdefault(HandlerTimeout, False)
        self._rejects_others = bool(retried)
        self._delays = None if retry_first is None else RetryDelays(retry_first, retry_most)

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
                delay = self._delay(attempt)
            return Disposition(
                rejects=False,
                reason=error.reason,
                delay=delay,
                at=error.at,
                count_attempt=error.count_attempt,
                priority=error.priority,
                attributes=error.attributes,
                deliberate=True,
                clear_checkpoint=error.clear_checkpoint,
            )
        reason = reason_of(error)
        if self._is_rejected(type(error)):
            return Disposition(True, reason)
        return Disposition(False, reason, self._delay(attempt))

    def _delay(self, attempt: int) -> timedelta | None:
        """The delay after this attempt; None: the queue decides."""
        return None if self._delays is None else self._delays.of(attempt)

    def settle(
        self, item: LeasedItem, error: BaseException
    ) -> "tuple[Disposition, BaseException, asyncio.Future[None]]":
        """Settles an item whose handler has raised. Returns what was chosen, the exception that
        counts, and the future of the settle.
        """
        chosen = self.decide(error, item.attempt)
        try:
            return chosen, error, chosen.settle(item)
        except (TypeError, ValueError) as wrong:
            # The time of a `Retry` that was changed after it was made: that is the item's failure.
            wrong.__cause__ = error
            chosen = self.decide(wrong, item.attempt)
            return chosen, wrong, chosen.settle(item)

    def _is_rejected(self, kind: type[BaseException]) -> bool:
        for base in kind.__mro__:
            if base in self._rejects:
                return self._rejects[base]
        return self._rejects_others


def reason_of(error: BaseException) -> str:
    """The text that stays with an item whose handler has raised."""
    name = type(error).__name__
    try:
        words = str(error)
    except Exception:  # noqa: BLE001  the class is the program's
        words = ""
    if isinstance(error, HandlerTimeout):
        return words
    return f"{name}: {words}" if words else name


def _classes(field: str, kinds: Any) -> set[type[Exception]]:
    if isinstance(kinds, type | str) or not isinstance(kinds, Iterable):
        raise wrong_type(field, kinds, "a list of classes of exceptions")
    found = set(kinds)
    for kind in found:
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            raise TypeError(f"{field} has {kind!r}; give classes of exceptions")
    return found
