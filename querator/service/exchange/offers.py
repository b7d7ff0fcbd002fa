"""Ready items of this node's partitions, shared among the nodes that have waiters for them.

Other nodes report for each queue their number of waiters and of wanted items (demand: soft state,
forgotten after DEMAND_S unless it is repeated). Items of a partition that this node leads are
*offered* to one node at a time: for CLAIM_S no other node hears of them, then they are offered to
the next. A node that receives an offer leases at once, or reports that it wants nothing. So an item
that many nodes could take costs one lease command, not one per node.

Shares follow the number of waiters. The node that has received the least per waiter comes first
(stride scheduling; Waldspurger and Weihl 1995). This node's own dispatcher takes part: its share is
the unclaimed rest. Received items are those of granted leases, because a lease gets the items that
are ready when it is executed; until then offered items count. A node that wanted nothing for IDLE_S
has no claim to compensation for that time. While no other node has waiters, none of this happens.

A backlog that is enough for all needs no shares; there the own dispatcher keeps pace with the other
nodes (`service.exchange.pace`).

A node asks the partitions that it knows to have items in turn, and continues with the one that it
was offered while that has items. So each lease also names another partition with items, again in
turn. Otherwise items of other partitions would wait until the first one is empty.
"""

import asyncio
from collections.abc import Callable, Iterable
from math import ceil

from querator.model.commands import LeaseResult, Refusal
from querator.model.ids import GroupId, QueueId
from querator.service.exchange.pace import QueuePace
from querator.service.lease.supply import Dispatcher, PartitionSupply, Supplies
from querator.service.routing.router import Router

DEMAND_S = 2.5
CLAIM_S = 0.1
IDLE_S = 1.0
LATELY_S = 1.0
"""The number of waiters is the maximum in the current and the previous period of this length."""
LOOKED_AT_MAX = 16
"""Limit of partitions that one lease checks for another one with ready items."""
ROUNDING = 1e-6
"""A smaller fraction of an item counts as none."""

Push = Callable[[str, GroupId, int], None]
"""Reports to a node that this number of items of a group is reserved for it."""


class _Demand:
    """Demand of one node for one queue. `claimed`: items offered to it, of all
    partitions led here.
    """

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
        """Maximum of the recent numbers of waiters: consumers that are being served wait again."""
        self.lately = self.earlier = 0
        """Maximum since `lately_s`, and in the LATELY_S before."""
        self.lately_s = float("-inf")
        self.passed = 0.0
        """Items received so far, each divided by the weight at that time."""
        self.idle_s: float | None = float("-inf")
        """Time since which it wants nothing; None while it wants something."""
        self.told = 0
        """Number of the partition that the last lease named to it."""

    def given(self, items: int) -> None:
        self.passed += items / self.weight

    @property
    def place(self) -> float:
        """Position in the order of service: the lowest comes first."""
        return self.passed + self.claimed / self.weight

    def wants(self, waiters: int, items: int, others: Iterable["_Demand"], now_s: float) -> None:
        """Records a report of waiters and wanted items, which is repeated regularly."""
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
        self.pace = QueuePace()
        self.demands: dict[str, _Demand] = {}
        self.own = _Demand()
        """Demand of this node's own dispatcher."""

    def others(self, one: _Demand) -> list[_Demand]:
        return [each for each in (self.own, *self.demands.values()) if each is not one]


class _Claim:
    __slots__ = ("demand", "items", "until_s")

    def __init__(self, demand: _Demand) -> None:
        self.demand = demand
        self.items = 0
        self.until_s = 0.0


class Offers:
    """Offers of all partitions of this node. Used on the event loop."""

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
        """Records the demand of a node. No waiters: items offered to it are free again."""
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
        """The node is out of reach: its demand is forgotten."""
        for queue_id, there in list(self._queues.items()):
            if node in there.demands:
                self.demand(node, queue_id, waiters=0, items=0)
                self._forget(queue_id, there, node)

    def leased(self, node: str, supply: PartitionSupply, result: LeaseResult) -> int:
        """Records a lease granted to `node`; returns the number of items that remain for it."""
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

    def other_partition(self, node: str, supply: PartitionSupply) -> tuple[GroupId, int] | None:
        """Another local partition of the queue with unreserved items, for a node that has leased
        from this one; the next one each time.
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
        """A lease of this node's own dispatcher has been answered after `took_s`."""
        there = self._queue_of(supply)
        if there is not None and supply.dispatcher is not None:
            waiters, items = supply.dispatcher.demand()
            asked, granted = waiters + len(result.grants), sum(_granted(result))
            there.own.wants(asked, items, there.demands.values(), self._loop.time())
            there.own.given(granted)
            there.pace.own(granted / there.own.weight, took_s)
            self._rest(supply, supply.dispatcher, there.pace)

    def _rest(self, supply: PartitionSupply, dispatcher: Dispatcher, pace: QueuePace) -> None:
        """Lets the own dispatcher rest, if it is ahead of other nodes and has enough for all its
        waiters.
        """
        rest_s = pace.rest_s(self._loop.time())
        if not rest_s or not supply.route.local:
            return
        claims = self._claims.get(supply, {})
        free = supply.route.effects.ready - sum(claim.items for claim in claims.values())
        # When several nodes lead partitions, each node is ahead in its own.
        if free > dispatcher.demand()[1] and all(
            each.route.local or not each.route.is_reachable for each in dispatcher.supplies
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
        """Number of items that the node would find if it asked at this moment."""
        claim = self._claims.get(supply, {}).get(node)
        return supply.ready + (0 if claim is None else claim.items)

    # --- supply of the partitions ------------------------------------------------------------

    def share(self, supply: PartitionSupply) -> None:
        """Offers free items; sets `supply.ready` to those that other nodes have not claimed."""
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
        """Makes claims for other nodes, of at most `free` items in total; returns the total."""
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
        """Handles claims that may have expired."""
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
        """Another node leads the partition: drops all claims here."""
        supply.unreserve()
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


def _is_served_elsewhere(dispatcher: Dispatcher) -> bool:
    """Whether another node leads a partition of the queue, and can be reached."""
    return any(not one.route.local and one.route.is_reachable for one in dispatcher.supplies)


def _level(items: int, parties: list[tuple[float, int]]) -> float:
    """The place up to which `items` items bring the nodes that are behind; `parties` are pairs of
    place and weight, ordered by place.
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
    """Number of items of each caller with a grant."""
    return [
        sum(segment.count for segment in grant.segments)
        for grant in result.grants
        if not isinstance(grant, Refusal) and grant.lease
    ]
