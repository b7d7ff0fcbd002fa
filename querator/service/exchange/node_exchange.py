"""This node among the others: what its desks say to them, and what they ask of it.

What another node asks is answered from here alone: who does not lead says so, and who it thinks
does. Nothing goes on to a third node.
"""

import asyncio
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from querator.model.calls import LoadedItems
from querator.model.commands import Lease, LeaseItems, LeaseResult, Refusal, Retry
from querator.model.errors import QueratorError
from querator.model.ids import PLACEMENT_GROUP, GroupId, LeaseNumber, QueueId
from querator.model.queues import Queue
from querator.service.exchange.demands import Demands
from querator.service.exchange.offers import Offers, Push
from querator.service.lease.dispatcher import LeaseDispatcher
from querator.service.lease.replies import PayloadCache, load_segments
from querator.service.lease.supply import PartitionSupply, Supplies
from querator.service.repair.aside import AsideBlocks
from querator.service.repair.damage import Damage, Unread
from querator.service.routing.answers import QueryAnswers
from querator.service.routing.forwarder import (
    CarriedLease,
    Forwarder,
    PayloadQuery,
    Query,
    ReadyQuery,
)
from querator.service.routing.outcomes import Accepted
from querator.service.routing.route import PartitionRoute
from querator.service.routing.router import Router
from querator.storage import generations
from querator.storage.environment import Environment

if TYPE_CHECKING:
    from querator.raft.host import Host

LOOK_AROUND_S = 1.0
DESKS_S = 0.5
"""How often it is looked whether leases wait on a node that is of no use to them; the second time
in a row they are sent away. So often nodes that lead by a guess are asked whether they do."""


class NodeExchange:
    """On the event loop. The `Elsewhere` of the dispatchers, with the forwarder's events."""

    def __init__(
        self,
        forwarder: Forwarder,
        *,
        host: "Host",
        router: Router,
        supplies: Supplies,
        environment: Environment,
        cache: PayloadCache,
        damage: Damage,
        aside: AsideBlocks,
        answers: QueryAnswers,
        desks: Mapping[QueueId, LeaseDispatcher],
    ) -> None:
        self._forwarder = forwarder
        self._host = host
        self._router = router
        self._supplies = supplies
        self._environment = environment
        self._cache = cache
        self._damage = damage
        self._aside = aside
        self._answers = answers
        self._desks = desks
        self._cut_off: set[LeaseDispatcher] = set()
        """Desks for which there was nobody when it was looked last."""
        self._checks: dict[tuple[QueueId, str], asyncio.Future[Any]] = {}
        """Questions whether a node leads, on their way."""
        self._pushes: dict[str, list[Push]] = {}
        """Of the links that each node has to this one: one, but for moments, and for a second
        process that runs on its data until it is refused.
        """
        self._offers = Offers(router, supplies, self._push)
        self._demands = Demands(forwarder)
        forwarder.watch(self)
        self._timer = asyncio.get_running_loop().call_later(DESKS_S, self._look_at_desks)

    # --- events of dispatchers ---------------------------------------------------------------

    def wanting(self, desk: LeaseDispatcher) -> None:
        self._demands.look(desk)

    def asked(self, desk: LeaseDispatcher, supply: PartitionSupply) -> None:
        self._demands.lowered(desk, supply.route.leader)

    def answered(
        self,
        desk: LeaseDispatcher,
        supply: PartitionSupply,
        asked: str,
        outcome: Accepted | QueratorError,
        took_s: float,
    ) -> None:
        if not asked and isinstance(outcome, LeaseResult):
            self._offers.took(supply, outcome, took_s)
        leader = supply.route.leader
        if isinstance(outcome, CarriedLease) and outcome.elsewhere and leader:
            self._note(leader, *outcome.elsewhere)
        self._offers.share(supply)
        # The command may have followed its leader.
        for node in filter(None, dict.fromkeys((asked, supply.route.leader))):
            self._demands.lowered(desk, node)

    # --- events of partitions ----------------------------------------------------------------

    def on_effects(self, supply: PartitionSupply) -> None:
        self._offers.share(supply)

    def on_leadership(self, route: PartitionRoute) -> None:
        """The partition has another leader, here or elsewhere, or its leader can be reached now."""
        supply = self._supplies.of(route)
        if route.local:
            self._offers.share(supply)
        else:
            self._offers.lost(supply)
            if supply.dispatcher is not None and route.is_reachable:
                self._demands.look(supply.dispatcher)

    def forget(self, desk: LeaseDispatcher) -> None:
        self._demands.forget(desk)

    def _look_at_desks(self) -> None:
        """Turns away those who wait on a node that is cut off from the others."""
        self._timer = asyncio.get_running_loop().call_later(DESKS_S, self._look_at_desks)
        before, self._cut_off = self._cut_off, set()
        for desk in self._desks.values():
            if desk.demand()[0] or desk.served()[0]:
                self._check_guesses(desk)
            errors = [self._router.cut_off(supply.route) for supply in desk.supplies]
            error = errors[0]
            if error is None or None in errors:
                continue
            self._cut_off.add(desk)
            if desk in before:
                desk.turn_away(error)

    def _check_guesses(self, desk: LeaseDispatcher) -> None:
        """Asks the nodes that are taken to lead partitions of which no replica runs here. A node
        that does not lead offers nothing, which looks as if it had nothing. For a partition whose
        replica here has just stopped no node is taken to lead it: one of the others is from now on.
        """
        routes = [supply.route for supply in desk.supplies]
        for route in routes:
            if not route.leader and not route.local:
                self._router.doubt(route, "")
                if route.leader:
                    self.on_leadership(route)
        for node in sorted({route.leader for route in routes if self._router.guesses(route)}):
            key = desk.queue_id, node
            if self._forwarder.reaches(node) and key not in self._checks:
                self._checks[key] = future = self._forwarder.query(node, ReadyQuery(desk.queue_id))
                loop = asyncio.get_running_loop()
                late = loop.call_later(LOOK_AROUND_S, future.cancel)
                future.add_done_callback(partial(self._checked, *key, late))

    def _checked(
        self,
        queue_id: QueueId,
        node: str,
        late: asyncio.TimerHandle,
        answer: "asyncio.Future[Any]",
    ) -> None:
        late.cancel()
        self._checks.pop((queue_id, node), None)
        queue = self._router.map.get(queue_id)
        error = None if answer.cancelled() else answer.exception()
        if error is not None and not isinstance(error, QueratorError):
            raise error
        if error is None and queue is not None and not self._router.stopping:
            # Who does not answer leads nothing.
            self._note_all(node, queue, () if answer.cancelled() else answer.result())

    def stop(self) -> None:
        for check in list(self._checks.values()):
            check.cancel()
        self._timer.cancel()
        self._offers.stop()
        self._demands.stop()

    # --- offers of other nodes ---------------------------------------------------------------

    def on_reach(self, node: str) -> None:
        self._demands.on_reach(node)
        for route in self._router.on_reach(node):
            self.on_leadership(route)
            self._supplies.of(route).notify()

    def on_offer(self, node: str, group: GroupId, items: int) -> None:
        owner = self._router.map.by_group(group)
        if owner is None:
            return
        desk = self._desks.get(owner[0].id)
        if items and (desk is None or not desk.demand()[0]):
            self._demands.declined(node, owner[0].id, desk)
            if desk is None or not desk.served()[0]:
                return
        # Who is being served asks there next, for what others have not taken until then.
        self._note(node, group, items)

    async def look_around(self, queue: Queue) -> None:
        """Asks what is ready elsewhere, for callers who do not wait. Nodes that do not answer
        within LOOK_AROUND_S have nothing.
        """
        loop = asyncio.get_running_loop()
        until_s, known = loop.time() + LOOK_AROUND_S, set[str]()
        # Who was taken to lead and does not may not be the only one to ask.
        while nodes := self._leaders(queue) - known:
            known |= nodes
            asked = {
                self._forwarder.query(node, ReadyQuery(queue.id)): node for node in sorted(nodes)
            }
            done, late = await asyncio.wait(asked, timeout=max(0.0, until_s - loop.time()))
            for future in late:
                future.cancel()
            for future in done:
                error = future.exception()
                if error is None:
                    self._note_all(asked[future], queue, future.result())
                elif not isinstance(error, QueratorError):
                    raise error

    def _leaders(self, queue: Queue) -> set[str]:
        """Other nodes that lead partitions of the queue, as far as is known here."""
        routes = self._router.routes(queue)
        return {route.leader for route in routes if route.is_reachable and not route.local}

    def _note_all(self, node: str, queue: Queue, ready: Iterable[tuple[int, int]]) -> None:
        """What the node has ready of the queue: (group, items) of all partitions that it leads. The
        answer may be late: where the raft room knows who leads, that counts.
        """
        items = {GroupId(group): count for group, count in ready}
        for route in self._router.routes(queue):
            if route.group in items:
                if route.leader == node or self._router.guesses(route):
                    self._note(node, route.group, items[route.group])
            elif route.leader == node:
                self._router.doubt(route, node)
                if route.leader != node:
                    self.on_leadership(route)

    def _note(self, node: str, group: GroupId, items: int) -> None:
        """The node leads the group, and has so many items for this one."""
        route = self._router.route(group)
        if route.local or self._router.map.by_group(group) is None:
            return
        self._router.learn(route, node)
        self._supplies.of(route).offered(items)

    # --- requests of other nodes -------------------------------------------------------------

    def linked(self, node: str, push: Push) -> None:
        """The node has a link to this one, over which it can be offered something."""
        self._pushes.setdefault(node, []).append(push)

    def unlinked(self, node: str, push: Push) -> None:
        """That link is gone."""
        links = self._pushes[node]
        links.remove(push)
        if not links:
            del self._pushes[node]
            self._offers.gone(node)

    def _push(self, node: str, group: GroupId, items: int) -> None:
        """Over the newest link."""
        links = self._pushes.get(node)
        if links:
            links[-1](node, group, items)

    def propose(
        self, node: str, group: GroupId, command: Any, attachment: bytes
    ) -> "asyncio.Future[Any]":
        """The future of the result, or of a QueratorError; give the result to `carried`."""
        return self._host.propose(group, self._aside.amend(group, command), attachment)

    def carried(self, node: str, group: GroupId, command: Any, result: Any) -> Any:
        """The result as the node gets it: a lease with what is leased."""
        if not isinstance(result, LeaseResult) or group == PLACEMENT_GROUP:
            return result
        assert isinstance(command, Lease)
        try:
            return self._carried(node, group, result)
        except Exception:
            self._give_back(group, result)
            raise

    def _give_back(self, group: GroupId, result: LeaseResult) -> None:
        """What was granted and does not reach who has asked."""
        numbers = {
            segment.lease or grant.lease
            for grant in result.grants
            if not isinstance(grant, Refusal) and not grant.repeated
            for segment in grant.segments
        }
        leases = tuple(LeaseItems(LeaseNumber(number)) for number in sorted(numbers))
        if leases:
            command = Retry(leases, count_attempt=False)
            self._router.post(self._router.route(group), command, then=_released, patient=True)

    def _carried(self, node: str, group: GroupId, result: LeaseResult) -> CarriedLease:
        leased = self._router.route(group)
        loaded: list[tuple[LoadedItems | None, ...]] = []
        unread: list[Unread] = []
        with self._environment.snapshot() as txn:
            view = generations.view(txn, group)
            for grant in result.grants:
                if isinstance(grant, Refusal):
                    loaded.append(())
                else:
                    read, left = load_segments(view, leased, grant, cache=self._cache)
                    loaded.append(read)
                    unread += left
        self._damage.give_back(unread)
        supply = self._supplies.of(leased)
        ready = self._offers.leased(node, supply, result)
        elsewhere = self._offers.elsewhere(node, supply)
        return CarriedLease(result.grants, result.now_ms, tuple(loaded), ready, elsewhere)

    def demand(self, node: str, queue: QueueId, *, waiters: int, items: int) -> None:
        self._offers.demand(node, queue, waiters=waiters, items=items)

    async def answer(self, node: str, query: Query) -> Any:
        """Raises QueratorError."""
        if isinstance(query, ReadyQuery):
            return self.ready(node, query.queue)
        if isinstance(query, PayloadQuery):
            return self._damage.payload(query)
        return await self._answers.answer(query)

    def ready(self, node: str, queue_id: QueueId) -> tuple[tuple[GroupId, int], ...]:
        """What the node could have of the queue just now, by the groups that are led here."""
        queue = self._router.map.get(queue_id)
        if queue is None:
            return ()
        return tuple(
            (route.group, self._offers.left_for(node, self._supplies.of(route)))
            for route in self._router.routes(queue)
            if route.local
        )


def _released(_outcome: Accepted | QueratorError) -> None:
    """A release that failed leaves the leases to lapse; nobody waits for it."""
