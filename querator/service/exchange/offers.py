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

from querator.model.commands import LeaseResult, Refusal
from querator.model.ids import GroupId, QueueId
from querator.service.exchange.pace import Pace
from querator.service.lease.supply import Dispatcher, PartitionSupply, Supplies
from querator.service.routing.router import Router

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

    def __init__(self, router: Router, supplies: Supplies, push: Push) -> None:
        self._router = router
        self._supplies = supplies
        self._push = push
        self._loop = asyncio.get_running_loop()
        self._queues: dict[QueueId, _Queue] = {}
        self._claims: dict[PartitionSupply, dict[str, _Claim]] = {}
        self._timers: dict[PartitionSupply, asyncio.TimerHandle] = {}
        self._rests: dict[PartitionSupply, asyncio.TimerHandle] = {}

    # --- demand of other nodes ---------------------------------------------------------------

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
        supplies = [self._supplies.of(route) for route in self._router.routes(queue) if route.local]
        if not waiters:
            for supply in supplies:
                self._drop_claim(supply, node)
        for supply in supplies:
            self._share_and_tell(supply)

    def gone(self, node: str) -> None:
        """The node is out of reach: what it wanted is forgotten."""
        for queue_id, there in list(self._queues.items()):
            if node in there.demands:
                self.demand(node, queue_id, waiters=0, items=0)
                self._forget(queue_id, there, node)

    def leased(self, node: str, supply: PartitionSupply, result: LeaseResult) -> int:
        """A lease of that node's has been answered; how much is left for it now."""
        granted = _granted(result)
        self._drop_claim(supply, node)
        there = self._queue_of(supply)
        demand = None if there is None else there.demands.get(node)
        if there is not None and demand is not None:
            demand.given(sum(granted))
            demand.items = max(0, demand.items - sum(granted))
            demand.waiters = max(0, demand.waiters - len(granted))
            now_s = self._loop.time()
            there.pace.other(node, sum(granted) / demand.weight, now_s)
            if supply.is_resting and not there.pace.rest_s(now_s):
                self._end_rest(supply)
        self._share_and_tell(supply)
        return self.left_for(node, supply)

    def elsewhere(self, node: str, supply: PartitionSupply) -> tuple[GroupId, int] | None:
        """Another partition of the queue that has something here for anybody, for a node that has
        leased from this one; each time the next.
        """
        owner = self._router.map.by_group(supply.group)
        demand = self._demand_of(supply, node)
        if owner is None or demand is None:
            return None
        routes = self._router.routes(owner[0])
        for _ in range(min(len(routes), LOOKED_AT_MAX)):
            demand.told = (demand.told + 1) % len(routes)
            other = self._supplies.of(routes[demand.told])
            if other is not supply and other.route.local and other.ready:
                return other.group, other.ready
        return None

    def took(self, supply: PartitionSupply, result: LeaseResult, took_s: float) -> None:
        """A lease of this node's own desk has been answered, after so long."""
        there = self._queue_of(supply)
        if there is not None and supply.dispatcher is not None:
            waiters, items = supply.dispatcher.demand()
            asked, granted = waiters + len(result.grants), sum(_granted(result))
            there.own.wants(asked, items, there.demands.values(), self._loop.time())
            there.own.given(granted)
            there.pace.own(granted / there.own.weight, took_s)
            self._rest(supply, supply.dispatcher, there.pace)

    def _rest(self, supply: PartitionSupply, desk: Dispatcher, pace: Pace) -> None:
        """Lets the own desk rest, if it is ahead of others and has enough for all who wait here."""
        rest_s = pace.rest_s(self._loop.time())
        if not rest_s or not supply.route.local:
            return
        claims = self._claims.get(supply, {})
        free = supply.route.effects.ready - sum(claim.items for claim in claims.values())
        # Of partitions that several nodes lead each node is ahead in its own.
        if free > desk.demand()[1] and all(
            each.route.local or not each.route.is_reachable for each in desk.supplies
        ):
            if supply.is_resting:
                self._rests[supply].cancel()
            supply.is_resting = True
            self._rests[supply] = self._loop.call_later(rest_s, self._end_rest, supply)

    def _end_rest(self, supply: PartitionSupply) -> None:
        supply.is_resting = False
        self._rests.pop(supply).cancel()
        supply.notify()

    def left_for(self, node: str, supply: PartitionSupply) -> int:
        """What the node would find, if it asked just now."""
        claim = self._claims.get(supply, {}).get(node)
        return supply.ready + (0 if claim is None else claim.items)

    # --- supply of the partitions ------------------------------------------------------------

    def share(self, supply: PartitionSupply) -> None:
        """Offers what is free; leaves in `supply.ready` what is not claimed by others."""
        if not self._queues or not supply.route.local:
            return
        now_s = self._loop.time()
        claims = self._claims.get(supply)
        if claims:
            self._expire(supply, claims, now_s)
        free = (
            supply.route.effects.ready - sum(claim.items for claim in claims.values())
            if claims
            else supply.route.effects.ready
        )
        if free > 0 and not supply.in_flight:
            owner = self._router.map.by_group(supply.group)
            there = None if owner is None else self._queues.get(owner[0].id)
            if owner is not None and there is not None:
                self._forget_silent(owner[0].id, there, now_s)
                free -= self._hand_out(supply, there, free, now_s)
        claims = self._claims.get(supply)
        supply.reserve(free=free, reserved=bool(claims))

    def _share_and_tell(self, supply: PartitionSupply) -> None:
        self.share(supply)
        supply.notify()

    def _hand_out(self, supply: PartitionSupply, there: _Queue, free: int, now_s: float) -> int:
        """Claims for other nodes, at most `free` items together; how many."""
        waiters, items = (0, 0) if supply.dispatcher is None else supply.dispatcher.demand()
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
                self._claim(supply, node, there.demands[node], items, now_s)
        return claimed

    def _claim(
        self, supply: PartitionSupply, node: str, demand: _Demand, items: int, now_s: float
    ) -> None:
        claims = self._claims.setdefault(supply, {})
        claim = claims.get(node)
        if claim is None:
            claim = claims[node] = _Claim(demand)
        claim.items += items
        claim.until_s = now_s + CLAIM_S
        demand.claimed += items
        if supply not in self._timers:
            self._timers[supply] = self._loop.call_later(CLAIM_S, self._look_again, supply)
        self._push(node, supply.group, claim.items)

    def _look_again(self, supply: PartitionSupply) -> None:
        """Claims may have run out."""
        del self._timers[supply]
        self._share_and_tell(supply)
        claims = self._claims.get(supply)
        if claims and supply not in self._timers:
            until_s = min(claim.until_s for claim in claims.values())
            self._timers[supply] = self._loop.call_at(until_s, self._look_again, supply)

    def _expire(self, supply: PartitionSupply, claims: dict[str, _Claim], now_s: float) -> None:
        for node in [node for node, claim in claims.items() if claim.until_s <= now_s]:
            self._drop_claim(supply, node)

    def _drop_claim(self, supply: PartitionSupply, node: str) -> None:
        claims = self._claims.get(supply)
        claim = None if claims is None else claims.pop(node, None)
        if claims is not None and not claims:
            del self._claims[supply]
        if claim is not None:
            claim.demand.claimed -= claim.items

    def _demand_of(self, supply: PartitionSupply, node: str) -> _Demand | None:
        there = self._queue_of(supply)
        return None if there is None else there.demands.get(node)

    def _queue_of(self, supply: PartitionSupply) -> _Queue | None:
        owner = self._router.map.by_group(supply.group)
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

    def lost(self, supply: PartitionSupply) -> None:
        """Another node leads it: nothing is claimed here any more."""
        supply.reserved = False
        if supply.is_resting:
            self._end_rest(supply)
        for node in list(self._claims.get(supply, ())):
            self._drop_claim(supply, node)

    def stop(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for supply in list(self._rests):
            self._end_rest(supply)


def _is_served_elsewhere(desk: Dispatcher) -> bool:
    """Whether another node leads a partition of the queue, and can be reached."""
    return any(not one.route.local and one.route.is_reachable for one in desk.supplies)


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
