"""Demand of this node's dispatchers for items of partitions that other nodes lead.

It is reported to those nodes when a caller has to wait, and repeated each second while one does.
The nodes offer their ready items (`service.exchange.offers`). A report holds until a lease is sent
to the node or answered by it, because a lease lowers the demand there.

While other partitions serve all callers at once, the demand is reported as well, at most once in
SERVED_S: items of a node that is not known to have any must not wait until all other items are
gone.
"""

import asyncio

import msgspec

from querator.model.ids import QueueId
from querator.service.lease.supply import Dispatcher
from querator.service.routing.forwarder import Forwarder

AGAIN_S = 1.0
SERVED_S = 0.05
"""Minimum interval of reports while no caller has to wait."""
GROWN = 2
"""Factor of growth in the number of waiters that is reported at once."""


class _Told(msgspec.Struct, frozen=True):
    waiters: int
    at_s: float


class Demands:
    """Demand of all dispatchers of this node. Used on the event loop."""

    def __init__(self, forwarder: Forwarder) -> None:
        self._forwarder = forwarder
        self._loop = asyncio.get_running_loop()
        self._told: dict[tuple[Dispatcher, str], _Told] = {}
        self._served_s: dict[Dispatcher, float] = {}
        """Time of the last report by a dispatcher whose callers are all served."""
        self._timer: asyncio.TimerHandle | None = None

    def report(self, dispatcher: Dispatcher) -> None:
        """Reports demand: the dispatcher has shared out its items, or leaders have changed."""
        now_s = self._loop.time()
        waiters, items = dispatcher.demand()
        if not waiters:
            if now_s < self._served_s.get(dispatcher, 0.0) + SERVED_S:
                return
            waiters, items = dispatcher.served()
            if not waiters:
                return
            self._served_s[dispatcher] = now_s
        for node in _leaders(dispatcher):
            told = self._told.get((dispatcher, node))
            if (
                told is None
                or now_s - told.at_s >= AGAIN_S
                or waiters >= max(1, told.waiters) * GROWN
            ):
                self._told[dispatcher, node] = _Told(waiters, now_s)
                self._forwarder.demand(node, dispatcher.queue_id, waiters=waiters, items=items)
        self._set_timer()

    def lowered(self, dispatcher: Dispatcher, node: str) -> None:
        """A lease is sent to the node, or answered by it."""
        self._told.pop((dispatcher, node), None)

    def declined(self, node: str, queue_id: QueueId, dispatcher: Dispatcher | None) -> None:
        """The node has offered items that no caller here waits for."""
        if dispatcher is not None:
            self._told.pop((dispatcher, node), None)
        self._forwarder.demand(node, queue_id, waiters=0, items=0)

    def on_reach(self, node: str) -> None:
        """Reports to the node may be lost."""
        for key in [key for key in self._told if key[1] == node]:
            del self._told[key]

    def forget(self, dispatcher: Dispatcher) -> None:
        """The queue is gone."""
        for key in [key for key in self._told if key[0] is dispatcher]:
            del self._told[key]
        self._served_s.pop(dispatcher, None)

    def _say_again(self) -> None:
        self._timer = None
        dispatchers = {dispatcher: None for dispatcher, _ in self._told}
        stale_s = self._loop.time() - 2 * AGAIN_S
        for key in [key for key, told in self._told.items() if told.at_s < stale_s]:
            # No caller waits any more, or another node leads.
            del self._told[key]
        try:
            for dispatcher in dispatchers:
                self.report(dispatcher)
        finally:
            self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is None and self._told:
            self._timer = self._loop.call_later(AGAIN_S, self._say_again)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._told.clear()


def _leaders(dispatcher: Dispatcher) -> list[str]:
    leaders = (
        supply.route.leader
        for supply in dispatcher.supplies
        if supply.route.is_reachable and not supply.route.local
    )
    return list(dict.fromkeys(leaders))
