"""What this node's partitions have ready, shared among the nodes on which somebody waits for it.

Other nodes say how many wait there for how many items of a queue (demand: soft state, forgotten
after DEMAND_S unless it is said again). Items of a partition that this node leads are *offered* to
one of them at a time: for CLAIM_S nobody else is told of them, then they are offered to the next. A
node that is offered something leases at once, or says that it wants nothing any more. So an item
that many could have costs one lease command, not one of each node.

Shares follow the number of those who wait. Whoever was given less for each waiter comes first
(stride scheduling; Waldspurger and Weihl 1995), this node's own desk among them: its share is what
stays unclaimed. What was given is what leases were granted, for they get whatever is there by then;
what is offered counts until then. Who did not want anything for IDLE_S has no claim to what others
got meanwhile. A node with nobody waiting elsewhere does nothing of this.

A backlog that is enough for all needs no shares; there the own desk keeps pace with the others
(`service.exchange.pace`).

A node asks those partitions in turn that it knows to have something, and goes on with the one that
it was offered for as long as that has. So with each lease it is told of another one, in turn too:
else what is in the others would wait until there is nothing left in the first.
"""

import asyncio
from collections.abc import Callable, Iterable
from math import ceil
from typing import TYPE_CHECKING

from querator.model.commands import LeaseResult, Refusal
from querator.model.ids import GroupId, QueueId
from querator.service.exchange.pace import Pace
from querator.service.routing.router import Router
from querator.service.routing.views import PartitionView

if TYPE_CHECKING:
    from querator.service.lease.dispatcher import LeaseDesk

DEMAND_S = 2.5
CLAIM_S = 0.1
IDLE_S = 1.0
LATELY_S = 1.0
"""The most who waited within this, and as long before, is how many there are."""
LOOKED_AT_MAX = 16
"""Partitions that are looked at for one with something, at each lease."""
ROUNDING = 1e-6
"""Less of an item is none."""

Push = Callable[[str, GroupId, int], None]
"""Tells a node that so many items of a group are kept for it."""


class _Demand:
    """What one node wants of one queue. `claimed`: items offered to it, of all partitions here."""

    __slots__ = (
        "claimed",
        "earlier",
        "idle_s",
        "items",
        "lately",
        "lately_s",
        "passed",
        "told",
        "until_s",
        "waiters",
        "weight",
    )

    def __init__(self) -> None:
        self.waiters = 0
        self.items = 0
        self.claimed = 0
        self.until_s = 0.0
        self.weight = 1
        """The most who waited lately: who is being served waits again."""
        self.lately = self.earlier = 0
        """The most since `lately_s`, and in the LATELY_S before."""
        self.lately_s = float("-inf")
        self.passed = 0.0
        """Items given so far, each divided by the weight at the time."""
        self.idle_s: float | None = float("-inf")
        """Since when it has wanted nothing; None while it wants something."""
        self.told = 0
        """Number of the partition that it was last told of with a lease."""

    def given(self, items: int) -> None:
        self.passed += items / self.weight

    @property
    def place(self) -> float:
        """Who has the lowest comes first."""
        return self.passed + self.claimed / self.weight

    def wants(self, waiters: int, items: int, others: Iterable["_Demand"], now_s: float) -> None:
        """So many wait for so many items, which is said again and again."""
        self.waiters, self.items = waiters, items
        if now_s - self.lately_s > LATELY_S:
            is_old = now_s - self.lately_s > 2 * LATELY_S
            self.earlier = 0 if is_old else self.lately
            self.lately, self.lately_s = 0, now_s
        self.lately = max(self.lately, waiters)
        self.weight = max(1, self.earlier, self.lately)
        if not waiters:
            self.idle_s = now_s if self.idle_s is None else self.idle_s
            return
        if self.idle_s is not None and now_s - self.idle_s > IDLE_S:
            all_of_them = list(others)
            active = [other.place for other in all_of_them if other.waiters]
            places = active or [max((other.place for other in all_of_them), default=self.passed)]
            self.passed = max(self.passed, min(places))
        self.idle_s = None


class _Queue:
    __slots__ = ("demands", "own", "pace")

    def __init__(self) -> None:
        self.pace = Pace()
        self.demands: dict[str, _Demand] = {}
        self.own = _Demand()
        """Of this node's own desk."""

    def others(self, one: _Demand) -> list[_Demand]:
        return [each for each in (self.own, *self.demands.values()) if each is not one]


class _Claim:
    __slots__ = ("demand", "items", "until_s")

    def __init__(self, demand: _Demand) -> None:
        self.demand = demand
        self.items = 0
        self.until_s = 0.0


class Offers:
    """Of all partitions of this node. On the event loop."""

    def __init__(self, router: Router, push: Push) -> None:
        self._router = router
        self._push = push
        self._loop = asyncio.get_running_loop()
        self._queues: dict[QueueId, _Queue] = {}
        self._claims: dict[PartitionView, dict[str, _Claim]] = {}
        self._timers: dict[PartitionView, asyncio.TimerHandle] = {}
        self._rests: dict[PartitionView, asyncio.TimerHandle] = {}

    # --- what other nodes say ----------------------------------------------------------------

    def demand(self, node: str, queue_id: QueueId, *, waiters: int, items: int) -> None:
        """So many wait there for so many items. None: what was offered is free again."""
        queue = self._router.map.get(queue_id)
        if queue is None:
            return
        there = self._queues.get(queue_id)
        if there is None:
            if not waiters:
                return
            there = self._queues[queue_id] = _Queue()
        demand = there.demands.get(node)
        if demand is None:
            demand = there.demands[node] = _Demand()
        now_s = self._loop.time()
        demand.wants(waiters, items, there.others(demand), now_s)
        demand.until_s = now_s + DEMAND_S
        views = [view for view in self._router.views(queue) if view.local]
        if not waiters:
            for view in views:
                self._drop_claim(view, node)
        for view in views:
            self._share_and_tell(view)

    def gone(self, node: str) -> None:
        """The node is out of reach: what it wanted is forgotten."""
        for queue_id, there in list(self._queues.items()):
            if node in there.demands:
                self.demand(node, queue_id, waiters=0, items=0)
                self._forget(queue_id, there, node)

    def leased(self, node: str, view: PartitionView, result: LeaseResult) -> int:
        """A lease of that node's has been answered; how much is left for it now."""
        granted = _granted(result)
        self._drop_claim(view, node)
        there = self._queue_of(view)
        demand = None if there is None else there.demands.get(node)
        if there is not None and demand is not None:
            demand.given(sum(granted))
            demand.items = max(0, demand.items - sum(granted))
            demand.waiters = max(0, demand.waiters - len(granted))
            now_s = self._loop.time()
            there.pace.other(node, sum(granted) / demand.weight, now_s)
            if view.rests and not there.pace.rest_s(now_s):
                self._end_rest(view)
        self._share_and_tell(view)
        return self.left_for(node, view)

    def elsewhere(self, node: str, view: PartitionView) -> tuple[GroupId, int] | None:
        """Another partition of the queue that has something here for anybody, for a node that has
        leased from this one; each time the next.
        """
        owner = self._router.map.by_group(view.group)
        demand = self._demand_of(view, node)
        if owner is None or demand is None:
            return None
        views = self._router.views(owner[0])
        for _ in range(min(len(views), LOOKED_AT_MAX)):
            demand.told = (demand.told + 1) % len(views)
            other = views[demand.told]
            if other is not view and other.local and other.ready:
                return other.group, other.ready
        return None

    def took(self, view: PartitionView, result: LeaseResult, took_s: float) -> None:
        """A lease of this node's own desk has been answered, after so long."""
        there = self._queue_of(view)
        if there is not None and view.desk is not None:
            waiters, items = view.desk.demand()
            asked, granted = waiters + len(result.grants), sum(_granted(result))
            there.own.wants(asked, items, there.demands.values(), self._loop.time())
            there.own.given(granted)
            there.pace.own(granted / there.own.weight, took_s)
            self._rest(view, view.desk, there.pace)

    def _rest(self, view: PartitionView, desk: "LeaseDesk", pace: Pace) -> None:
        """Lets the own desk rest, if it is ahead of others and has enough for all who wait here."""
        rest_s = pace.rest_s(self._loop.time())
        if not rest_s or not view.local:
            return
        claims = self._claims.get(view, {})
        free = view.stored - sum(claim.items for claim in claims.values())
        # Of partitions that several nodes lead each node is ahead in its own.
        if free > desk.demand()[1] and all(each.local or not each.led for each in desk.views):
            if view.rests:
                self._rests[view].cancel()
            view.rests = True
            self._rests[view] = self._loop.call_later(rest_s, self._end_rest, view)

    def _end_rest(self, view: PartitionView) -> None:
        view.rests = False
        self._rests.pop(view).cancel()
        if view.desk is not None:
            view.desk.look(view)

    def left_for(self, node: str, view: PartitionView) -> int:
        """What the node would find, if it asked just now."""
        claim = self._claims.get(view, {}).get(node)
        return view.ready + (0 if claim is None else claim.items)

    # --- what the partitions say -------------------------------------------------------------

    def share(self, view: PartitionView) -> None:
        """Offers what is free; leaves in `view.ready` what is not claimed by others."""
        if not self._queues or not view.local:
            return
        now_s = self._loop.time()
        claims = self._claims.get(view)
        if claims:
            self._expire(view, claims, now_s)
        free = (
            view.stored - sum(claim.items for claim in claims.values()) if claims else view.stored
        )
        if free > 0 and not view.leases_asked:
            owner = self._router.map.by_group(view.group)
            there = None if owner is None else self._queues.get(owner[0].id)
            if owner is not None and there is not None:
                self._forget_silent(owner[0].id, there, now_s)
                free -= self._hand_out(view, there, free, now_s)
        claims = self._claims.get(view)
        view.kept = bool(claims)
        view.ready = max(0, free)

    def _share_and_tell(self, view: PartitionView) -> None:
        self.share(view)
        if view.desk is not None:
            view.desk.look(view)

    def _hand_out(self, view: PartitionView, there: _Queue, free: int, now_s: float) -> int:
        """Claims for other nodes, at most `free` items together; how many."""
        waiters, items = (0, 0) if view.desk is None else view.desk.demand()
        there.own.wants(waiters, items, there.demands.values(), now_s)
        parties: list[tuple[float, int, int, str]] = [
            (demand.place, demand.weight, demand.items - demand.claimed, node)
            for node, demand in there.demands.items()
            if demand.waiters and demand.items > demand.claimed
        ]
        if not parties:
            return 0
        if waiters:
            parties.append((there.own.place, there.own.weight, items, ""))
        parties.sort()
        level = _level(free, [(place, weight) for place, weight, _, _ in parties])
        given = dict.fromkeys((party[3] for party in parties), 0)
        left = free
        for even in (True, False):
            for place, weight, unmet, node in parties:
                share = ceil((level - place) * weight - ROUNDING) if even else left
                share = max(0, min(share, unmet - given[node], left))
                given[node] += share
                left -= share
        claimed = 0
        for node, items in given.items():
            if node and items:
                claimed += items
                self._claim(view, node, there.demands[node], items, now_s)
        return claimed

    def _claim(
        self, view: PartitionView, node: str, demand: _Demand, items: int, now_s: float
    ) -> None:
        claims = self._claims.setdefault(view, {})
        claim = claims.get(node)
        if claim is None:
            claim = claims[node] = _Claim(demand)
        claim.items += items
        claim.until_s = now_s + CLAIM_S
        demand.claimed += items
        if view not in self._timers:
            self._timers[view] = self._loop.call_later(CLAIM_S, self._look_again, view)
        self._push(node, view.group, claim.items)

    def _look_again(self, view: PartitionView) -> None:
        """Claims may have run out."""
        del self._timers[view]
        self._share_and_tell(view)
        claims = self._claims.get(view)
        if claims and view not in self._timers:
            until_s = min(claim.until_s for claim in claims.values())
            self._timers[view] = self._loop.call_at(until_s, self._look_again, view)

    def _expire(self, view: PartitionView, claims: dict[str, _Claim], now_s: float) -> None:
        for node in [node for node, claim in claims.items() if claim.until_s <= now_s]:
            self._drop_claim(view, node)

    def _drop_claim(self, view: PartitionView, node: str) -> None:
        claims = self._claims.get(view)
        claim = None if claims is None else claims.pop(node, None)
        if claims is not None and not claims:
            del self._claims[view]
        if claim is not None:
            claim.demand.claimed -= claim.items

    def _demand_of(self, view: PartitionView, node: str) -> _Demand | None:
        there = self._queue_of(view)
        return None if there is None else there.demands.get(node)

    def _queue_of(self, view: PartitionView) -> _Queue | None:
        owner = self._router.map.by_group(view.group)
        return None if owner is None else self._queues.get(owner[0].id)

    def _forget_silent(self, queue_id: QueueId, there: _Queue, now_s: float) -> None:
        for node, demand in list(there.demands.items()):
            if demand.until_s <= now_s and not demand.claimed:
                self._forget(queue_id, there, node)

    def _forget(self, queue_id: QueueId, there: _Queue, node: str) -> None:
        there.demands.pop(node, None)
        there.pace.forget(node)
        if not there.demands:
            self._queues.pop(queue_id, None)

    def lost(self, view: PartitionView) -> None:
        """Another node leads it: nothing is claimed here any more."""
        view.kept = False
        if view.rests:
            self._end_rest(view)
        for node in list(self._claims.get(view, ())):
            self._drop_claim(view, node)

    def stop(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for view in list(self._rests):
            self._end_rest(view)


def _level(items: int, parties: list[tuple[float, int]]) -> float:
    """The place up to which so many items bring those who are behind; `parties` have a place and a
    weight, by place.
    """
    level, weight, left = parties[0][0], 0, float(items)
    for number, (_, own_weight) in enumerate(parties):
        weight += own_weight
        if number + 1 < len(parties):
            following = parties[number + 1][0]
            if (following - level) * weight < left:
                left -= (following - level) * weight
                level = following
                continue
        break
    return level + left / weight


def _granted(result: LeaseResult) -> list[int]:
    """Items of each caller who was granted any."""
    return [
        sum(segment.count for segment in grant.segments)
        for grant in result.grants
        if not isinstance(grant, Refusal) and grant.lease
    ]
