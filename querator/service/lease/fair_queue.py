"""The wait queue of a dispatcher: order and fairness of its waiters.

A waiter that has been answered and waits again joins at the end. But a lease brings whatever its
partition has ready, one item or a whole batch. So a consumer passes turns in proportion to the
items it has received (deficit round robin; Shreedhar and Varghese 1995): over time all consumers
get the same number of items, not of leases. When there is enough for all, all accounts are reset to
zero.
"""

from collections import OrderedDict
from typing import Final

from querator.service.lease.waiter import Deficit, Waiter

TURNS_USUAL: Final = 4.0
"""Cost in turns of a lease of average size; a lease of a quarter of that size is free."""
TURNS_MAX: Final = 32.0
"""Maximum number of turns that a consumer passes for its items."""
_WEIGHT: Final = 0.05
"""Weight of one lease in the moving average."""


class FairQueue:
    """Wait queue of the callers that accept items of any partition."""

    def __init__(self) -> None:
        self._waiters: OrderedDict[Waiter, None] = OrderedDict()
        self.wanted = 0
        """Sum of the items that the waiters want."""
        self._usual = 1.0
        """Moving average of the number of items per lease."""

    def __len__(self) -> int:
        return len(self._waiters)

    def add(self, waiter: Waiter, *, first: bool = False) -> None:
        self._waiters[waiter] = None
        self.wanted += waiter.items_max
        if first:
            self._waiters.move_to_end(waiter, last=False)

    def remove(self, waiter: Waiter) -> None:
        """Removes the waiter, if it is in the queue."""
        if waiter in self._waiters:
            del self._waiters[waiter]
            self.wanted -= waiter.items_max

    def got(self, account: Deficit, items: int) -> None:
        """Records that a lease has brought `items` items."""
        self._usual += _WEIGHT * (items - self._usual)
        owes = account.owes + TURNS_USUAL * items / self._usual - 1
        account.owes = max(0.0, min(owes, TURNS_MAX))

    def next(self, count: int) -> list[Waiter]:
        """Returns up to `count` waiters whose turn it is; they stay in the wait queue."""
        if count >= len(self._waiters):
            for waiter in self._waiters:
                waiter.account.owes = 0.0
            return list(self._waiters)
        chosen: list[Waiter] = []
        passing: list[Waiter] = []
        for waiter in self._waiters:
            if len(chosen) == count:
                break
            (passing if waiter.account.passes() else chosen).append(waiter)
        while len(chosen) < count:
            still = []
            for waiter in passing:
                if len(chosen) == count or waiter.account.passes():
                    still.append(waiter)
                else:
                    chosen.append(waiter)
            passing = still
        for waiter in passing:
            self._waiters.move_to_end(waiter)
        return chosen
