"""How the leader's own desk keeps pace with other nodes at a backlog.

While there is enough for all, each node leases as often as it can. The own desk can more often than
the others, which ask over a link: a consumer that holds few items at a time would get more of them
at the leader's node than elsewhere, the more so the slower the machines are. So the own desk rests
after a lease while another node is *owed* something: while it was given less for each who waits, by
more than OWED_FREE items. The rest ends when it is owed no more, and lasts as long as the lease of
the own desk took at most: so that gets at least half of what it would without.

Only nodes *in the running* are waited for: those that have leased within the last RUNNING leases of
the own desk. The consumers of one that comes less often are at work, or far away.
"""

from typing import Final

import msgspec

OWED_FREE: Final = 1.0
"""Items for each who waits."""
OWED_MAX: Final = 4.0
"""More is not remembered, in either direction."""
RUNNING: Final = 4
REST_S_MAX: Final = 0.2


class _Other(msgspec.Struct):
    """`owed`: what the own desk was given more, for each who waits."""

    owed: float
    leased_s: float


class Pace:
    """Of one queue, all of whose partitions are led here. Instants are of one clock."""

    __slots__ = ("_lease_s", "_others")

    def __init__(self) -> None:
        self._lease_s = 0.0
        """How long the last lease of the own desk took."""
        self._others: dict[str, _Other] = {}

    def own(self, each: float, took_s: float) -> None:
        """The own desk was given so many items for each who waits, by a lease that took so long."""
        self._lease_s = took_s
        for other in self._others.values():
            other.owed = min(other.owed + each, OWED_MAX)

    def other(self, node: str, each: float, now_s: float) -> None:
        """Another node was."""
        other = self._others.setdefault(node, _Other(0.0, now_s))
        other.owed = max(other.owed - each, -OWED_MAX)
        other.leased_s = now_s

    def forget(self, node: str) -> None:
        self._others.pop(node, None)

    def rest_s(self, now_s: float) -> float:
        """How long the own desk should rest at most; 0: not at all."""
        since_s = now_s - RUNNING * self._lease_s
        for other in self._others.values():
            if other.owed > OWED_FREE and other.leased_s >= since_s:
                return min(self._lease_s, REST_S_MAX)
        return 0.0
