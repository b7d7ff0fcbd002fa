"""Gives back the leases of requests whose outcome is unknown.

A node that hangs, or is cut off, ends its lease requests without an outcome. The partition may have
granted them, or may do so yet. A waiter whose request id is the client's own may ask again. A
request id of this node is known to no client: nothing would complete or release such a lease, and
its items would wait until it lapses.

So the request is repeated, for no items, as soon as the partition can be reached. The partition
answers with what it has granted to the first attempt, or with nothing. The leases are released
without counting an attempt. A command that the raft thread still has goes before the repeat.
"""

from collections.abc import Iterable
from functools import partial

from querator.model.commands import Lease, LeaseCaller, LeaseGrant, LeaseItems, LeaseResult, Retry
from querator.model.errors import ErrorCode, QueratorError
from querator.model.limits import LOST_LEASE_REQUESTS_MAX
from querator.service.lease.requests import LeaseRequest
from querator.service.routing.outcomes import Accepted
from querator.service.routing.route import PartitionRoute
from querator.service.routing.router import Router

_Callers = tuple[LeaseCaller, ...]
_PASSING = frozenset(
    {
        ErrorCode.NOT_LEADER,
        ErrorCode.UNAVAILABLE,
        ErrorCode.OUTCOME_UNKNOWN,
        ErrorCode.OVERLOADED,
        ErrorCode.STORAGE_FULL,
    }
)
"""After these the partition is asked once more."""


class LostRequests:
    """The lost requests of one dispatcher. Used on the event loop."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._lost: dict[PartitionRoute, dict[LeaseCaller, None]] = {}

    def add(self, route: PartitionRoute, asks: Iterable[LeaseRequest]) -> None:
        """The outcome of these requests is unknown. Those under a client's own name, or without a
        name, are left alone.
        """
        self._remember(
            route,
            (
                LeaseCaller(ask.waiter.client_id, ask.waiter.request_id, 0, 0)
                for ask in asks
                if ask.waiter.request_id and not ask.waiter.named
            ),
        )
        self.look(route)

    def _remember(self, route: PartitionRoute, callers: Iterable[LeaseCaller]) -> None:
        for caller in callers:
            there = self._lost.setdefault(route, {})
            there[caller] = None
            if len(there) > LOST_LEASE_REQUESTS_MAX:
                # Its lease lapses.
                del there[next(iter(there))]

    def look(self, route: PartitionRoute) -> None:
        """Repeats the requests to the partition, if it can be reached."""
        if route not in self._lost or not route.is_reachable:
            return
        callers = tuple(self._lost.pop(route))
        self._router.post(
            route, Lease(callers), then=partial(self._on_answer, route, callers), patient=True
        )

    def _on_answer(
        self, route: PartitionRoute, callers: _Callers, outcome: Accepted | QueratorError
    ) -> None:
        if isinstance(outcome, QueratorError):
            if outcome.code in _PASSING and not self._router.stopping:
                # The next report of the partition, or of its leader, leads to the next attempt.
                self._remember(route, callers)
            return
        assert isinstance(outcome, LeaseResult)
        leases = {
            segment.lease or grant.lease
            for grant in outcome.grants
            if isinstance(grant, LeaseGrant)
            for segment in grant.segments
        }
        if leases:
            command = Retry(tuple(map(LeaseItems, sorted(leases))), count_attempt=False)
            self._router.post(route, command, then=_released, patient=True)


def _released(_outcome: Accepted | QueratorError) -> None:
    """Ignores the outcome: the lease of a failed release lapses."""
