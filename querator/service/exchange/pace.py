"""Pace of the leader's own dispatcher, compared with other nodes, at a backlog.

While there is enough for all, each node leases as often as it can. The own dispatcher can lease
more often than the others, which ask over a link. A consumer that holds few items at a time would
get more of them at the leader's node than elsewhere, and the difference grows on slow machines. So
the own dispatcher rests after a lease while another node is *owed* something: while that node has
received less per waiter, by more than OWED_FREE items. The rest ends when no such node is left. It
lasts at most as long as the last lease of the own dispatcher took, and at most REST_S_MAX. So the
own dispatcher gets at least half of what it would get without rests.

It waits only for nodes *in the running*: those that have leased within the last RUNNING leases of
the own dispatcher. The consumers of a node that leases less often are busy or far away.
"""

from typing import Final

import msgspec

OWED_FREE: Final = 1.0
"""Items per waiter."""
OWED_MAX: Final = 4.0
"""Limit of the remembered difference, in either direction."""
RUNNING: Final = 4
REST_S_MAX: Final = 0.2


class _Other(msgspec.Struct):
    """`owed`: surplus of the own dispatcher, in items per waiter."""

    owed: float
    leased_s: float


class QueuePace:
    """Pace of one queue, all of whose partitions are led here. All times are of one clock."""

    __slots__ = ("_lease_s", "_others")

    def __init__(self) -> None:
        self._lease_s = 0.0
        """Duration of the last lease of the own dispatcher."""
        self._others: dict[str, _Other] = {}

    def own(self, each: float, took_s: float) -> None:
        """Records a lease of the own dispatcher: `each` items per waiter, in `took_s`."""
        self._lease_s = took_s
        for other in self._others.values():
            other.owed = min(other.owed + each, OWED_MAX)

    def other(self, node: str, each: float, now_s: float) -> None:
        """Records a lease of another node."""
        other = self._others.setdefault(node, _Other(0.0, now_s))
        other.owed = max(other.owed - each, -OWED_MAX)
        other.leased_s = now_s

    def forget(self, node: str) -> None:
        self._others.pop(node, None)

    def rest_s(self, now_s: float) -> float:
        """Maximum rest of the own dispatcher; 0: none."""
        since_s = now_s - RUNNING * self._lease_s
        for other in self._others.values():
            if other.owed > OWED_FREE and other.leased_s >= since_s:
                return min(self._lease_s, REST_S_MAX)
        return 0.0
