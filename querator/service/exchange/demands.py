"""What this node's desks want of partitions that other nodes lead.

Told to those nodes when somebody has to wait, and each second as long as somebody does; they offer
what they have (`service.exchange.offers`). What was told holds until a lease is asked of the node,
or has been answered, for that lowers it there.

While everybody is served at once by other partitions it is told all the same, once in SERVED_S at
the most: what a node has that nobody here knows of must not wait until there is nothing else left.
"""

import asyncio

import msgspec

from querator.model.ids import QueueId
from querator.service.lease.supply import Dispatcher
from querator.service.routing.forwarder import Forwarder

AGAIN_S = 1.0
SERVED_S = 0.05
"""Told so often at the most while nobody has to wait."""
GROWN = 2
"""It is told at once that so many times as many wait."""


class _Told(msgspec.Struct, frozen=True):
    waiters: int
    at_s: float


class Demands:
    """Of all desks of this node. On the event loop."""

    def __init__(self, forwarder: Forwarder) -> None:
        self._forwarder = forwarder
        self._loop = asyncio.get_running_loop()
        self._told: dict[tuple[Dispatcher, str], _Told] = {}
        self._served_s: dict[Dispatcher, float] = {}
        """When it was last told of a desk that everybody is served there."""
        self._timer: asyncio.TimerHandle | None = None

    def look(self, desk: Dispatcher) -> None:
        """The desk has shared out what it knows of, or partitions of its queue are led anew."""
        now_s = self._loop.time()
        waiters, items = desk.demand()
        if not waiters:
            if now_s < self._served_s.get(desk, 0.0) + SERVED_S:
                return
            waiters, items = desk.served()
            if not waiters:
                return
            self._served_s[desk] = now_s
        for node in _leaders(desk):
            told = self._told.get((desk, node))
            if (
                told is None
                or now_s - told.at_s >= AGAIN_S
                or waiters >= max(1, told.waiters) * GROWN
            ):
                self._told[desk, node] = _Told(waiters, now_s)
                self._forwarder.demand(node, desk.queue_id, waiters=waiters, items=items)
        self._set_timer()

    def lowered(self, desk: Dispatcher, node: str) -> None:
        """A lease is asked of the node, or has been answered by it."""
        self._told.pop((desk, node), None)

    def declined(self, node: str, queue_id: QueueId, desk: Dispatcher | None) -> None:
        """Something was offered that nobody waits for."""
        if desk is not None:
            self._told.pop((desk, node), None)
        self._forwarder.demand(node, queue_id, waiters=0, items=0)

    def on_reach(self, node: str) -> None:
        """What the node was told may be lost."""
        for key in [key for key in self._told if key[1] == node]:
            del self._told[key]

    def forget(self, desk: Dispatcher) -> None:
        """The queue is gone."""
        for key in [key for key in self._told if key[0] is desk]:
            del self._told[key]
        self._served_s.pop(desk, None)

    def _say_again(self) -> None:
        self._timer = None
        desks = {desk: None for desk, _ in self._told}
        stale_s = self._loop.time() - 2 * AGAIN_S
        for key in [key for key, told in self._told.items() if told.at_s < stale_s]:
            # Nobody waits any more, or somebody else leads.
            del self._told[key]
        try:
            for desk in desks:
                self.look(desk)
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


def _leaders(desk: Dispatcher) -> list[str]:
    leaders = (
        supply.route.leader
        for supply in desk.supplies
        if supply.route.is_reachable and not supply.route.local
    )
    return list(dict.fromkeys(leaders))
