"""Breakers that an operator opens or closes: each partition of the queue gets one command. And a
line in the log of the node for each change of a state.
"""

from querator import telemetry
from querator.model.calls import SetBreakerCall
from querator.model.commands import SetBreaker
from querator.model.errors import invalid
from querator.model.ids import GroupId
from querator.model.queues import BreakerState
from querator.service.item_changes import ItemChanges
from querator.service.reading.queries import all_results
from querator.service.routing.route import PartitionRoute
from querator.service.routing.router import Router, deadline_after

_log = telemetry.logger(__name__)


class Breakers:
    """The method raises QueratorError, and runs on the event loop."""

    def __init__(self, *, changes: ItemChanges) -> None:
        self._changes = changes

    async def set_breaker(self, call: SetBreakerCall) -> int:
        """The number of partitions that were in another state. After an error some partitions may
        have followed; call again.
        """
        deadline = deadline_after(call.timeout_ms)
        queue = await self._changes.whole_queue(call.namespace, call.queue, deadline)
        if queue.settings.breaker is None:
            raise invalid("queue", "has no breaker; set one first", value=call.queue)

        async def one(group: GroupId) -> int:
            proposed = self._changes.set_breaker(group, SetBreaker(call.open), deadline)
            return await self._changes.asked(queue, group, 0, proposed)

        return sum(await all_results([one(group) for group in queue.groups]))


class BreakerLog:
    """Logs each change of the breaker of a partition that this node leads. A node that begins to
    lead a partition logs a breaker that is not closed.
    """

    def __init__(self, router: Router) -> None:
        self._router = router
        self.not_closed: dict[GroupId, BreakerState] = {}
        """The last known states, apart from CLOSED."""

    def on_state(self, route: PartitionRoute, state: BreakerState) -> None:
        if not route.local or state is self.not_closed.get(route.group, BreakerState.CLOSED):
            return
        if state is BreakerState.CLOSED:
            del self.not_closed[route.group]
        else:
            self.not_closed[route.group] = state
        placed = self._router.map.by_group(route.group)
        if placed is None:
            return
        queue, partition = placed
        log = _log.warning if state is BreakerState.OPEN else _log.info
        log(
            _EVENTS[state],
            namespace=queue.namespace,
            queue=queue.name,
            partition=partition,
        )


_EVENTS = {
    BreakerState.CLOSED: "breaker.closed",
    BreakerState.OPEN: "breaker.opened",
    BreakerState.HALF_OPEN: "breaker.half_opened",
}
