"""Exchange of this node with the other nodes: requests of its dispatchers, and requests of other
nodes.

A request of another node is answered by this node alone. A node that does not lead the partition
says so, and names the leader that it knows. No request is forwarded to a third node.
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
from querator.service.repair.damage import DamagedBlocks, Unread
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
DISPATCHERS_S = 0.5
"""Interval of the check whether leases wait on a node that cannot serve them; they are sent away at
the second finding in a row. At the same interval, nodes that are only guessed to lead are asked
whether they do.
"""


class NodeExchange:
    """Implements `OtherNodes` for the dispatchers, and the forwarder's events. Used on the event
    loop.
    """

    def __init__(
        self,
        forwarder: Forwarder,
        *,
        host: "Host",
        router: Router,
        supplies: Supplies,
        environment: Environment,
        cache: PayloadCache,
        damage: DamagedBlocks,
        aside: AsideBlocks,
        answers: QueryAnswers,
        dispatchers: Mapping[QueueId, LeaseDispatcher],
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
        self._dispatchers = dispatchers
        self._cut_off: set[LeaseDispatcher] = set()
        """Dispatchers for which the last check found no usable node."""
        self._checks: dict[tuple[QueueId, str], asyncio.Future[Any]] = {}
        """Unanswered questions whether a node leads."""
        self._pushes: dict[str, list[Push]] = {}
        """Links of each node to this one. Usually one; more for moments, or while a second process
        that runs on the node's data has not been refused yet.
        """
        self._offers = Offers(router, supplies, self._push)
        self._demands = Demands(forwarder)
        forwarder.watch(self)
        self._timer = asyncio.get_running_loop().call_later(DISPATCHERS_S, self._check_dispatchers)

    # --- events of dispatchers ---------------------------------------------------------------

    def wanting(self, dispatcher: LeaseDispatcher) -> None:
        self._demands.report(dispatcher)

    def on_lease_asked(self, dispatcher: LeaseDispatcher, supply: PartitionSupply) -> None:
        self._demands.lowered(dispatcher, supply.route.leader)

    def on_lease_answered(
        self,
        dispatcher: LeaseDispatcher,
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
        # The command may have followed its leader to another node.
        for node in filter(None, dict.fromkeys((asked, supply.route.leader))):
            self._demands.lowered(dispatcher, node)

    # --- events of partitions ----------------------------------------------------------------

    def on_effects(self, supply: PartitionSupply) -> None:
        self._offers.share(supply)

    def on_leadership(self, route: PartitionRoute) -> None:
        """The partition has another leader, here or elsewhere, or its leader has become
        reachable.
        """
        supply = self._supplies.of(route)
        if route.local:
            self._offers.share(supply)
        else:
            self._offers.lost(supply)
            if supply.dispatcher is not None and route.is_reachable:
                self._demands.report(supply.dispatcher)

    def forget(self, dispatcher: LeaseDispatcher) -> None:
        self._demands.forget(dispatcher)

    def _check_dispatchers(self) -> None:
        """Turns waiters away if this node is cut off from the others."""
        self._timer = asyncio.get_running_loop().call_later(DISPATCHERS_S, self._check_dispatchers)
        before, self._cut_off = self._cut_off, set()
        for dispatcher in self._dispatchers.values():
            if dispatcher.demand()[0] or dispatcher.served()[0]:
                self._check_guesses(dispatcher)
            errors = [self._router.cut_off(supply.route) for supply in dispatcher.supplies]
            error = errors[0]
            if error is None or None in errors:
                continue
            self._cut_off.add(dispatcher)
            if dispatcher in before:
                dispatcher.turn_away(error)

    def _check_guesses(self, dispatcher: LeaseDispatcher) -> None:
        """Asks the nodes that are guessed to lead partitions without a replica here. A node that
        does not lead offers nothing, which looks as if it had no items. A partition whose replica
        here has just stopped has no assumed leader; it gets one of the other nodes.
        """
        routes = [supply.route for supply in dispatcher.supplies]
        for route in routes:
            if not route.leader and not route.local:
                self._router.doubt(route, "")
                if route.leader:
                    self.on_leadership(route)
        for node in sorted({route.leader for route in routes if self._router.guesses(route)}):
            key = dispatcher.queue_id, node
            if self._forwarder.reaches(node) and key not in self._checks:
                self._checks[key] = future = self._forwarder.query(
                    node, ReadyQuery(dispatcher.queue_id)
                )
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
            # A node that does not answer is treated as leading nothing.
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
        dispatcher = self._dispatchers.get(owner[0].id)
        if items and (dispatcher is None or not dispatcher.demand()[0]):
            self._demands.declined(node, owner[0].id, dispatcher)
            if dispatcher is None or not dispatcher.served()[0]:
                return
        # Callers that are being served try this partition next, for the items left by then.
        self._note(node, group, items)

    async def look_around(self, queue: Queue) -> None:
        """Asks other nodes for ready items, for callers that do not wait. Nodes that do not answer
        within LOOK_AROUND_S count as having none.
        """
        loop = asyncio.get_running_loop()
        until_s, known = loop.time() + LOOK_AROUND_S, set[str]()
        # An assumed leader may turn out not to lead; then the next candidate is asked.
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
        """Other nodes that lead partitions of the queue, as far as this node knows."""
        routes = self._router.routes(queue)
        return {route.leader for route in routes if route.is_reachable and not route.local}

    def _note_all(self, node: str, queue: Queue, ready: Iterable[tuple[int, int]]) -> None:
        """Records the ready items of the node: (group, items) of all partitions of the queue that
        it leads. The answer may be late: where the raft package knows the leader, its knowledge
        counts.
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
        """The node leads the group, and has `items` items for this node."""
        route = self._router.route(group)
        if route.local or self._router.map.by_group(group) is None:
            return
        self._router.learn(route, node)
        supply = self._supplies.of(route)
        supply.renew(items)
        supply.notify()

    # --- requests of other nodes -------------------------------------------------------------

    def linked(self, node: str, push: Push) -> None:
        """The node has a link to this one, over which it can receive offers."""
        self._pushes.setdefault(node, []).append(push)

    def unlinked(self, node: str, push: Push) -> None:
        """The link is gone."""
        links = self._pushes[node]
        links.remove(push)
        if not links:
            del self._pushes[node]
            self._offers.gone(node)

    def _push(self, node: str, group: GroupId, items: int) -> None:
        """Sends the offer over the newest link."""
        links = self._pushes.get(node)
        if links:
            links[-1](node, group, items)

    def propose(
        self, node: str, group: GroupId, command: Any, attachment: bytes
    ) -> "asyncio.Future[Any]":
        """Returns a future of the result, or of a QueratorError; the caller passes the result to
        `carried`.
        """
        return self._host.propose(group, self._aside.amend(group, command), attachment)

    def carried(self, node: str, group: GroupId, command: Any, result: Any) -> Any:
        """The result as sent to the node: a lease carries its items."""
        if not isinstance(result, LeaseResult) or group == PLACEMENT_GROUP:
            return result
        assert isinstance(command, Lease)
        try:
            return self._carried(node, group, result)
        except Exception:
            self._give_back(group, result)
            raise

    def _give_back(self, group: GroupId, result: LeaseResult) -> None:
        """Releases leases that do not reach the asking node."""
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
        elsewhere = self._offers.other_partition(node, supply)
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
        """Items of the queue that the node could lease now, by groups that are led here."""
        queue = self._router.map.get(queue_id)
        if queue is None:
            return ()
        return tuple(
            (route.group, self._offers.left_for(node, self._supplies.of(route)))
            for route in self._router.routes(queue)
            if route.local
        )


def _released(_outcome: Accepted | QueratorError) -> None:
    """Ignores the outcome: the leases of a failed release lapse."""
