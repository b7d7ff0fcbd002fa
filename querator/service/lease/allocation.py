"""Division of ready items among callers: pure arithmetic, no state.

Callers share by max-min fairness (`model.fair_shares`), as the partition does among the callers of
one lease command.

Partitions are drawn upon in the given order, each until it is empty: a caller gets its items from
as few partitions as possible, which keeps blocks whole and commands few. Fairness between
partitions is the task of the caller of `allocate`, which passes them in rotation.
"""

from collections.abc import Sequence

from querator.model.fair_shares import fair_shares

Draw = list[tuple[int, int]]
"""Items that one partition gives: (position of the caller, items), ascending by caller."""


def allocate(ready: Sequence[int], wanted: Sequence[int]) -> list[Draw]:
    """Draws on each partition: which callers get how many items.

    No caller gets more than wanted, no partition gives more than is ready, and either all callers
    are satisfied or no ready item is left.
    """
    draws: list[Draw] = [[] for _ in ready]
    given = fair_shares(wanted, sum(ready))
    partition = 0
    left = ready[0] if ready else 0
    for caller, missing in enumerate(given):
        while missing:
            while not left:
                partition += 1
                left = ready[partition]
            items = min(missing, left)
            draws[partition].append((caller, items))
            missing -= items
            left -= items
    return draws
