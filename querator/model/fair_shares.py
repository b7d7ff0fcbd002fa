"""Max-min fair shares: how callers divide what is not enough for all of them.

No caller gets more than it wishes, and a caller gets less than another one only if it wishes no
more. A partition divides ready items so among the callers of one lease command. A node divides
ready items so among its waiting callers, and the items of a reader's batch among partitions.
"""

from collections.abc import Sequence


def fair_shares(wishes: Sequence[int], available: int) -> list[int]:
    """The share of each wish, in their order. For example, 23 items for wishes of 20, 6 and 1
    become 16, 6 and 1.

    The sum is min(available, sum(wishes)). The earliest wishes get the remainder of a division.
    """
    if sum(wishes) <= available:
        return list(wishes)
    shares = [0] * len(wishes)
    open_places = sorted(range(len(wishes)), key=lambda place: wishes[place])
    for done, place in enumerate(open_places):
        level = available // (len(wishes) - done)
        if wishes[place] > level:
            rest = sorted(open_places[done:])
            extra = available - level * len(rest)
            for nth, other in enumerate(rest):
                shares[other] = level + (1 if nth < extra else 0)
            break
        shares[place] = wishes[place]
        available -= wishes[place]
    return shares
