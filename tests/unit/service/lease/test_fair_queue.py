"""The order in which the wait queue serves waiters."""

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from querator.service.lease.fair_queue import TURNS_MAX, FairQueue
from querator.service.lease.waiter import Deficit, Waiter


def waiter(account: Deficit | None = None, items_max: int = 10) -> Waiter:
    return Waiter(
        client_id="c", items_max=items_max, bytes_max=1, answer=lambda _: None, account=account
    )


def test_who_waits_longest_comes_first_and_nobody_twice():
    line = FairQueue()
    waiters = [waiter() for _ in range(5)]
    for one in waiters:
        line.add(one)
    assert line.next(2) == waiters[:2]
    assert line.next(2) == waiters[:2], "they are still there"
    line.remove(waiters[0])
    line.add(waiters[4], first=True)
    assert line.next(3) == [waiters[4], waiters[1], waiters[2]]


def test_what_is_wanted_together():
    line = FairQueue()
    one, other = waiter(items_max=3), waiter(items_max=4)
    line.add(one)
    line.add(other)
    assert (len(line), line.wanted) == (2, 7)
    line.remove(one)
    line.remove(one)
    assert (len(line), line.wanted) == (1, 4)


@given(st.integers(2, 20), st.integers(0, 2**32))
def test_consumers_get_as_many_items_though_leases_bring_more_and_less(number: int, seed: int):
    chance = random.Random(seed)
    line, got = FairQueue(), Counter[Deficit]()
    waiting = [waiter(Deficit()) for _ in range(number)]
    for one in waiting:
        line.add(one)
    while got.total() < 200 * number:
        for one in line.next(1):
            items = chance.choice([1, 1, 1, 10])
            got[one.account] += items
            line.got(one.account, items)
            line.remove(one)
            line.add(waiter(one.account))
    assert max(got.values()) < 1.5 * min(got[one.account] for one in waiting), got.values()


def test_a_waiter_that_owes_gets_what_nobody_else_wants():
    line, account = FairQueue(), Deficit()
    line.got(account, 1_000)
    assert account.owes == TURNS_MAX
    one, other = waiter(account), waiter()
    line.add(one)
    line.add(other)
    assert line.next(1) == [other]
    assert line.next(2) == [other, one]
    assert account.owes == 0
