"""Division of ready items among callers: pure arithmetic, no state.

Callers share by max-min fairness, the rule that the partition itself uses among the callers of one
lease command. No caller gets more than it wants, and a caller gets less than another one only if it
wants no more (23 items for callers that want 20, 6 and 1 give 16, 6 and 1). Indivisible items go to
the earliest callers.

Partitions are drawn upon in the given order, each until it is empty: a caller gets its items from
as few partitions as possible, which keeps blocks whole and commands few. Fairness between
partitions is the task of the caller of `allocate`, which passes them in rotation.
"""

from collections.abc import Sequence

Draw = list[tuple[int, int]]
"""Items that one partition gives: (position of the caller, items), ascending by caller."""


def shares(available: int, wanted: Sequence[int]) -> list[int]:
    """Number of the `available` items for each caller.

    Their sum is min(available, sum(wanted)). Costs O(n log n) when there is not enough for all.
    """
    if sum(wanted) <= available:
        return list(wanted)
    given = [0] * len(wanted)
    left = available
    unsatisfied = sorted(range(len(wanted)), key=wanted.__getitem__)
    level = 0
    for done, caller in enumerate(unsatisfied):
        sharing = len(unsatisfied) - done
        if wanted[caller] * sharing > left:
            level, extra = divmod(left, sharing)
            for position, other in enumerate(sorted(unsatisfied[done:])):
                given[other] = level + (position < extra)
            break
        given[caller] = wanted[caller]
        left -= wanted[caller]
    return given


def allocate(ready: Sequence[int], wanted: Sequence[int]) -> list[Draw]:
    """Draws on each partition: which callers get how many items.

    No caller gets more than wanted, no partition gives more than is ready, and either all callers
    are satisfied or no ready item is left.
    """
    draws: list[Draw] = [[] for _ in ready]
    given = shares(sum(ready), wanted)
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
