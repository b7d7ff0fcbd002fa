"""Whose turn it is among those who wait at a desk.

They stand in line, and who has been answered and waits again stands at its end. But a lease brings
whatever its partition has by then, one item or a whole batch. So whoever has got items lets turns
pass for them, as many as they are (deficit round robin; Shreedhar and Varghese 1995): over a while
all get the same number of items, not of leases. When there is enough for all, nobody owes anything.
"""

from collections import OrderedDict
from typing import Final

from querator.service.lease.waiter import Account, Waiter

TURNS_USUAL: Final = 4.0
"""What a lease of the usual size costs; one of a quarter of that is free."""
TURNS_MAX: Final = 32.0
"""Nobody lets more turns pass for what it has got."""
_WEIGHT: Final = 0.05
"""Of one lease in the average."""


class Line:
    """Who waits for items of any partition."""

    def __init__(self) -> None:
        self._waiters: OrderedDict[Waiter, None] = OrderedDict()
        self.wanted = 0
        """Items that they want together."""
        self._usual = 1.0
        """Items that a lease has brought lately, on average."""

    def __len__(self) -> int:
        return len(self._waiters)

    def add(self, waiter: Waiter, *, first: bool = False) -> None:
        self._waiters[waiter] = None
        self.wanted += waiter.items_max
        if first:
            self._waiters.move_to_end(waiter, last=False)

    def remove(self, waiter: Waiter) -> None:
        """It may not be there."""
        if waiter in self._waiters:
            del self._waiters[waiter]
            self.wanted -= waiter.items_max

    def got(self, account: Account, items: int) -> None:
        """A lease has brought so many."""
        self._usual += _WEIGHT * (items - self._usual)
        owes = account.owes + TURNS_USUAL * items / self._usual - 1
        account.owes = max(0.0, min(owes, TURNS_MAX))

    def next(self, count: int) -> list[Waiter]:
        """Those whose turn it is, as many as that if there are; they stay in line."""
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
