"""Layout of the breaker in the state row of a partition. The conventions are those of
`partition.rows`.
"""

import msgspec

from querator.model.queues import BreakerState


class BreakerRow(msgspec.Struct, array_like=True):
    """The breaker of a partition, which is in `state` since `since_ms`.

    CLOSED: `buckets` count the outcomes of the last window, as [number of the bucket, outcomes,
    failures], ascending; a bucket is a tenth of the window. Leases below `first_lease` were granted
    before it closed, and do not count. OPEN: until `until_ms`. HALF_OPEN: `probe` is the lease of
    the item that is tried (0: none is), and `passed` counts the successful ones.

    `outcomes` and `failures` are those for which it opened; 0: an operator or a probe opened it.
    """

    state: BreakerState = BreakerState.CLOSED
    since_ms: int = 0
    first_lease: int = 0
    buckets: list[list[int]] = []
    until_ms: int = 0
    probe: int = 0
    passed: int = 0
    outcomes: int = 0
    failures: int = 0

    def leasable(self, ready: int) -> int:
        """How many of `ready` items can be leased."""
        if self.state is BreakerState.CLOSED:
            return ready
        if self.state is BreakerState.OPEN or self.probe:
            return 0
        return min(1, ready)
