"""The only way from a call to a partition's command, wherever the partition is led.

    this node leads           the raft package
    another node leads        the `Forwarder`, one hop: a node that does not lead says so, and names
                              the leader
    another node may lead     the same, but a command with an attachment is sent after that node has
                              said that it leads
    no leader is known        the call waits in the wait queue of the route

**Accepted commands.** A command is accepted when it has been handed to the raft package, or to
another node. A deadline that passes before that is DEADLINE_EXCEEDED (certainly not executed),
after that OUTCOME_UNKNOWN. Cancelling a call cancels the waiting, never the command.

**Leader changes.** A command that was not executed (NOT_LEADER, a node that stops or cannot be
reached) is repeated within its deadline; without a deadline, for LEADER_WAIT_MS_MAX. A command with
an unknown outcome is repeated only when that is safe (`repeatable`): the partition remembers what
it has executed. So callers see neither case, unless time runs out. Calls for one partition keep
their order.

The file is longer than 500 lines: all ways of a command out of this node are here, because each has
to keep the order of calls and the rules of repeats above.
"""

import asyncio
import itertools
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import uuid_utils

from querator.model.commands import Command, PartitionEffects, Refusal
from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import PLACEMENT_GROUP, GroupId, QueueId, stream_request_id
from querator.model.limits import LEADER_WAIT_MS_MAX
from querator.model.nodes import NodeKey, node_name
from querator.model.placement_map import PlacementMap
from querator.model.queues import Queue, QueueState
from querator.partition.dedup_export import ClosureQuery
from querator.raft.host import Host
from querator.service.admission import PartitionBudget, Ticket
from querator.service.routing.answers import QueryAnswers
from querator.service.routing.call_errors import CallErrors
from querator.service.routing.forwarder import Forwarder, Query
from querator.service.routing.outcomes import (
    NOT_EXECUTED,
    Accepted,
    defect_error,
    deleting_error,
    is_forgotten,
    repeatable,
    stopping_error,
)
from querator.service.routing.refusals import FULL, Refusals
from querator.service.routing.route import PartitionRoute

_ELSEWHERE = frozenset(NOT_EXECUTED)
"""Errors of another node after which a third node may succeed; not executed."""

LEADER_RETRY_S = 0.02
LEADER_RETRY_S_MAX = 0.2
"""Delays before a command returns to a node that has refused it; doubled each time up to the
maximum.
"""
HOPS_MAX = 2
"""Limit of hints that a command follows without a pause. More hints mean a circle, and it waits."""
CUT_OFF_S = 0.25
"""Time that a call waits on a node that is cut off from the others, before it fails: there may be a
leader on the other side. Silence of the other nodes is noticed only after a while.
"""
STALE_FORWARD_S = 0.25
"""Time after a change of leaders in which the former leader may still answer repeatable
requests.
"""


_Send = Callable[[PartitionRoute, str, Any, bytes], "asyncio.Future[Any]"]
"""(route, node or empty for this one, command, attachment)."""


class Router:
    """Partitions and commands of a node. All methods run on the asyncio thread."""

    def __init__(
        self,
        host: Host,
        placed: Callable[[], PlacementMap],
        forwarder: Forwarder | None = None,
        *,
        answers: QueryAnswers,
        amend: Callable[[GroupId, Any], Any],
        on_leader_change: Callable[[PartitionRoute], None],
        out_of_reach: Callable[[], Collection[str]] = frozenset,
        born: str = "",
    ) -> None:
        """`forwarder` is None on a single node. `answers` answers queries about groups that this
        node leads; `amend` returns a command in the form proposed for such a group;
        `on_leader_change` is called when another node leads a partition than before, or none.
        `out_of_reach` returns the nodes that this node's raft package cannot reach, or does not
        hear. `born` is part of the request ids for leases, and unique among all starts of all
        nodes; empty: one is generated.
        """
        self._host = host
        self._placed = placed
        self._forwarder = forwarder
        self._reasons = CallErrors(placed, out_of_reach, others=forwarder is not None)
        self._routes: dict[GroupId, PartitionRoute] = {}
        self._queue_routes: dict[QueueId, tuple[Queue, tuple[PartitionRoute, ...]]] = {}
        self._posted: set[asyncio.Future[Any]] = set()
        self._stopping = False
        self.refusals = Refusals()
        """Refused calls, by partition."""
        self._answers = answers
        self._amend = amend
        self._on_leader_change = on_leader_change
        self._born = born or uuid_utils.uuid7().hex
        self._numbers = itertools.count(1)

    # --- known routes ----------------------------------------------------------------------

    @property
    def map(self) -> PlacementMap:
        return self._placed()

    @property
    def forwarder(self) -> Forwarder | None:
        return self._forwarder

    @property
    def name(self) -> str:
        """Name of this node."""
        return node_name(self._host.node)

    @property
    def stopping(self) -> bool:
        return self._stopping

    def route(self, group: GroupId) -> PartitionRoute:
        route = self._routes.get(group)
        if route is None:
            route = self._routes[group] = PartitionRoute(group, local=self._host.leads(group))
            if not route.local:
                self.on_leader(group, self._host.leader(group))
        return route

    def routes(self, queue: Queue) -> tuple[PartitionRoute, ...]:
        """Routes of the queue, ordered by partition."""
        known = self._queue_routes.get(queue.id)
        if known is None or known[0].groups != queue.groups:
            known = queue, tuple(self.route(group) for group in queue.groups)
            self._queue_routes[queue.id] = known
        return known[1]

    def cut_off(self, route: PartitionRoute) -> QueratorError | None:
        """Error that explains why this node cannot serve the partition, if it is cut off."""
        return None if route.is_reachable else self._unable(route, None)

    def _unable(self, route: PartitionRoute, unknown: QueratorError | None) -> QueratorError | None:
        """Error that explains why this node cannot serve a partition without a known leader, while
        other nodes may. `unknown`: outcome of an earlier attempt.
        """
        if route.local and self._host.hangs:
            return unknown or self._reasons.hangs(route)
        return self._reasons.cut_off(route, unknown) if self._reasons.is_cut_off(route) else None

    def known(self) -> tuple[PartitionRoute, ...]:
        return tuple(self._routes.values())

    def lease_name(self) -> str:
        """A request id for a lease whose caller gives none, so that the command may be repeated
        when its leader is lost. Empty on a single node, where nothing can be repeated.
        """
        return "" if self._forwarder is None else self._name()

    def stream_lease_name(self, consumer_id: str, stream_number: int) -> str:
        """As `lease_name`, for a stream whose consumer has a name. By this name the stream's leases
        are found when the stream has broken, also after a restart of a single node.
        """
        return stream_request_id(consumer_id, stream_number, self._name())

    def _name(self) -> str:
        return f"{self._born}-{next(self._numbers):x}"

    # --- events of raft and placement ------------------------------------------------------

    def on_effects(self, group: GroupId, effects: PartitionEffects) -> PartitionRoute:
        route = self._routes.get(group) or self.route(group)
        route.effects = effects
        if route.local:
            route.wake_readers()
        return route

    def on_leadership(self, group: GroupId, leads: bool) -> PartitionRoute:
        route = self.route(group)
        route.local = leads
        route.wake_readers()
        self._check_route(route)
        return route

    def on_leader(self, group: GroupId, node: NodeKey | None) -> PartitionRoute:
        """The raft package reports another leader, or none."""
        route = self.route(group)
        self._follow(route, self._guess(group) if node is None else node_name(node))
        if node is None:
            route.proved = False
        else:
            self._confirm(route, node_name(node))
        return route

    def on_reach(self, node: str) -> list[PartitionRoute]:
        """The reachability of a node has changed; returns the partitions that it leads."""
        routes = [
            route for route in self._routes.values() if route.leader == node and not route.local
        ]
        for route in routes:
            self._check_route(route)
            if not route.is_reachable:
                self.doubt(route, node)
        return routes

    def on_hang(self, hangs: bool) -> list[PartitionRoute]:
        """The raft thread hangs, or continues; returns the partitions that this node leads."""
        if hangs:
            self._host.end_calls(repeatable)
        routes = [route for route in self._routes.values() if route.local]
        for route in routes:
            self._check_route(route)
        return routes

    def _guess(self, group: GroupId, after: str = "") -> str:
        """The node to ask about a group without a replica here, of which the raft package knows
        nothing: the preferred leader first, then each other node. Empty for a group with a replica
        here.
        """
        nodes = self._may_lead(group)
        if not nodes:
            return ""
        if after in nodes:
            return nodes[(nodes.index(after) + 1) % len(nodes)]
        preferred = self._placed().preferred(group)
        name = "" if preferred is None else node_name(preferred)
        return name if name in nodes else nodes[0]

    def _may_lead(self, group: GroupId) -> list[str]:
        """The other nodes with replicas of a group without a running replica here; otherwise empty.
        A running replica counts while the map names it, or while the group is moving.
        """
        if self._forwarder is None:
            return []
        own = self._forwarder.name
        placed, status = self._placed().placed(group), self._host.status(group)
        if placed is None:
            return []
        nodes = [node_name(replica.node) for replica in placed.target]
        runs = status is not None and not status.quarantined
        if runs and (own in nodes or placed.moving):
            return []
        return [name for name in nodes if name != own]

    def guesses(self, route: PartitionRoute) -> bool:
        """Whether the raft package cannot know the leader, because no replica runs here: there is
        none, it has not been opened yet, or it is stopped.
        """
        return self._host.leader(route.group) is None and bool(self._may_lead(route.group))

    def doubt(self, route: PartitionRoute, node: str) -> None:
        """The node does not lead the partition, or cannot be reached. If it was a guess, the next
        reachable node is tried.
        """
        if (
            route.local
            or route.leader != node
            or self._forwarder is None
            or not self.guesses(route)
        ):
            return
        nodes = self._may_lead(route.group)
        first = nodes.index(node) + 1 if node in nodes else 0
        for other in nodes[first:] + nodes[:first]:
            if other != node and self._forwarder.reaches(other):
                self._follow(route, other)
                return

    def learn(self, route: PartitionRoute, node: str) -> None:
        """Another node reports that it leads."""
        if route.local:
            return
        if route.leader != node:
            self._follow(route, node)
        self._confirm(route, node)

    def _confirm(self, route: PartitionRoute, node: str) -> None:
        """The node is known to lead; calls that pause after wrong guesses try again."""
        if route.leader == node and not route.proved:
            route.proved = True
            self._check_route(route)

    def _follow(self, route: PartitionRoute, node: str) -> None:
        former = route.leader
        route.leader = "" if self._forwarder is None or node == self._forwarder.name else node
        if route.leader != former:
            route.proved = False
            if not route.local:
                self._on_leader_change(route)
            if former and route.forwards:
                asyncio.get_running_loop().call_later(STALE_FORWARD_S, route.give_up, former)
        self._check_route(route)

    def _check_route(self, route: PartitionRoute) -> None:
        """Decides whether commands can be sent. A guess at the leader wakes no call that pauses
        after a refusal: that call would be refused again, guess again, and wake the others.
        """
        led = route.local and not self._host.hangs
        if not route.local and route.leader and self._forwarder is not None:
            led = self._forwarder.reaches(route.leader)
        route.is_reachable = led
        if led:
            route.wake(paused=route.local or route.proved)

    def on_map(self, placed: PlacementMap) -> list[GroupId]:
        """Forgets partitions that have left the map, and returns them; ends the waits at partitions
        being deleted.
        """
        forgotten: list[GroupId] = []
        for group in list(self._routes):
            if group == PLACEMENT_GROUP:
                continue
            route = self._routes[group]
            gone = bool(route.leader) and placed.node(route.leader) is None and self.guesses(route)
            if not route.local and (gone or not route.leader):
                self._follow(route, self._guess(group))
            owner = placed.by_group(group)
            if owner is None or owner[0].state is QueueState.DELETING:
                route.wake()
            if owner is None:
                del self._routes[group]
                forgotten.append(group)
        for queue_id in list(self._queue_routes):
            if placed.get(queue_id) is None:
                del self._queue_routes[queue_id]
        return forgotten

    # --- commands --------------------------------------------------------------------------

    async def call(
        self,
        route: PartitionRoute,
        command: Command,
        attachment: bytes = b"",
        *,
        deadline: float | None = None,
        budget: PartitionBudget | None = None,
    ) -> Accepted:
        """Proposes a command and waits for its result. `deadline` is by the loop's clock; `budget`
        limits the bytes on their way to partitions (None: not counted). Raises QueratorError.
        """
        ticket = None
        try:
            if budget is not None:
                waits = not route.is_reachable or bool(route.wait_queue)
                named = partial(self._reasons.name, route)
                ticket = budget.enter(route.group, len(attachment), waits=waits, named=named)
            result: Accepted | Refusal = await self._carry_out(
                route, command, attachment, deadline, ticket=ticket
            )
        except QueratorError as error:
            self._count(route, error)
            raise
        finally:
            if ticket is not None:
                ticket.leave()
        if isinstance(result, Refusal):
            refusal = result.as_error()
            self._count(route, refusal)
            raise refusal
        return result

    def _count(self, route: PartitionRoute, error: QueratorError) -> None:
        if error.code in FULL:
            self.refusals.add(route.group, error, asyncio.get_running_loop().time())

    async def propose(self, group: GroupId, command: Any, *, deadline: float | None = None) -> Any:
        """As `call`, for any group including the placement group; a refusal is returned as a
        result.
        """
        return await self._carry_out(self.route(group), command, b"", deadline)

    async def read(self, group: GroupId, query: Query, *, deadline: float | None = None) -> Any:
        """Has a query answered on the node that leads the group."""
        return await self._carry_out(self.route(group), query, b"", deadline, send=self._ask)

    async def query(self, node: str, query: Query) -> Any:
        """Has a query answered on this node or another one, by its name. Raises QueratorError."""
        if node == self.name or self._forwarder is None:
            return await self._answers.answer(query)
        return await self._forwarder.query(node, query)

    def _ask(
        self, route: PartitionRoute, node: str, query: Query, _: bytes
    ) -> "asyncio.Future[Any]":
        if node and self._forwarder is not None:
            return self._forwarder.query(node, query)
        # Owned by the caller, which awaits it.
        return asyncio.get_running_loop().create_task(self._answers.answer(query))

    async def _carry_out(
        self,
        route: PartitionRoute,
        command: Any,
        attachment: bytes,
        deadline: float | None,
        unknown: QueratorError | None = None,
        send: _Send | None = None,
        ticket: Ticket | None = None,
    ) -> Any:
        """`unknown`: outcome of an earlier attempt."""
        loop = asyncio.get_running_loop()
        latest = loop.time() + LEADER_WAIT_MS_MAX / 1000 if deadline is None else deadline
        pause_s = LEADER_RETRY_S
        hops = 0
        while True:
            if ticket is not None and (not route.is_reachable or route.wait_queue):
                ticket.wait()
            await self._wait_until_sendable(route, latest, deadline, unknown)
            node = "" if route.local else route.leader
            try:
                if node and attachment and not route.proved:
                    await self._prove(route, node, deadline, ticket)
                if ticket is not None:
                    ticket.go()
                future = (send or self._send)(route, node, command, attachment)
                result = await self._answer(route, future, deadline)
            except QueratorError as error:
                again = error.code is ErrorCode.NOT_LEADER or (node and error.code in _ELSEWHERE)
                if error.code is ErrorCode.OUTCOME_UNKNOWN and repeatable(command):
                    unknown, again = error, True
                again = again or (unknown is not None and error.retriable)
                if not again or loop.time() >= latest:
                    raise (unknown or error) from None
                if self._hinted(route, node, error) and hops < HOPS_MAX:
                    hops += 1
                    continue
            else:
                if unknown is not None and is_forgotten(result):
                    raise unknown
                return result
            if route.is_reachable:
                await route.pause(min(loop.time() + pause_s, latest))
                pause_s = min(pause_s * 2, LEADER_RETRY_S_MAX)
                hops = 0

    def _hinted(self, route: PartitionRoute, node: str, error: QueratorError) -> bool:
        """Applies the leader named by a refusal; returns whether it names another node."""
        if error.code is not ErrorCode.NOT_LEADER:
            return False
        if not node:
            route.local = self._host.leads(route.group)
            self._check_route(route)
        elif node == route.leader:
            route.proved = False
        leader = error.value or (self._guess(route.group, after=node) if node else "")
        if not leader or leader == node or route.local:
            return False
        self._follow(route, leader)
        return route.is_reachable

    async def _wait_until_sendable(
        self,
        route: PartitionRoute,
        latest: float,
        deadline: float | None,
        unknown: QueratorError | None,
    ) -> None:
        """Returns when the command can be sent, after all commands that came before it."""
        loop = asyncio.get_running_loop()
        while not route.is_reachable or route.wait_queue:
            try:
                self._check_alive(route)
                if route.local and (unable := self._unable(route, unknown)) is not None:
                    raise unable
                await route.wait_for_turn(min(latest, loop.time() + CUT_OFF_S))
                self._check_alive(route)
            except QueratorError as error:
                raise unknown or error from None
            except TimeoutError:
                if loop.time() >= latest:
                    raise self._reasons.leaderless(route, deadline, unknown) from None
                if (unable := self._unable(route, unknown)) is not None:
                    raise unable from None
                self.doubt(route, route.leader)
                continue
            if route.is_reachable:
                break
        if self._stopping:
            raise unknown or stopping_error()
        if deadline is not None and loop.time() >= deadline:
            raise unknown or QueratorError(
                ErrorCode.DEADLINE_EXCEEDED, "the deadline passed before the request was accepted"
            )

    async def _answer(
        self, route: PartitionRoute, future: "asyncio.Future[Any]", deadline: float | None
    ) -> Any:
        try:
            if deadline is None:
                return await future
            async with asyncio.timeout_at(deadline):
                return await future
        except TimeoutError:
            raise self._reasons.unanswered(route) from None
        except QueratorError as error:
            located = self._reasons.located(route, error)
            if located is error:
                raise
            raise located from error

    async def _prove(
        self, route: PartitionRoute, node: str, deadline: float | None, ticket: Ticket | None
    ) -> None:
        """Returns when the node has confirmed that it leads. Otherwise raises a QueratorError, and
        nothing has been executed.

        Sending attachments of megabytes from one guess to the next, for each waiting call, would
        use the whole capacity of the links. So all calls share one question of few bytes.
        """
        assert self._forwarder is not None
        if ticket is not None:
            ticket.wait()
        question = route.questions.get(node)
        if question is None:
            question = route.questions[node] = self._forwarder.query(
                node, ClosureQuery(route.group)
            )
            route.forwards[question] = (node, True)
            question.add_done_callback(partial(_asked, route, node))
        try:
            async with asyncio.timeout_at(deadline):
                await asyncio.shield(question)
        except TimeoutError:
            raise self._reasons.unproved(route, node) from None
        except QueratorError as error:
            if error.code is ErrorCode.OUTCOME_UNKNOWN:
                raise QueratorError(ErrorCode.UNAVAILABLE, error.message) from error
            raise self._reasons.located(route, error) from error
        self._confirm(route, node)

    def _send(
        self, route: PartitionRoute, node: str, command: Any, attachment: bytes
    ) -> "asyncio.Future[Any]":
        """Hands the command to the raft package, or to another node."""
        if not node:
            return self._host.propose(route.group, self._amend(route.group, command), attachment)
        assert self._forwarder is not None
        future = self._forwarder.propose(node, route.group, command, attachment)
        route.forwards[future] = (node, repeatable(command))
        future.add_done_callback(route.forwards.pop)
        return future

    def _check_alive(self, route: PartitionRoute) -> None:
        if self._stopping:
            raise stopping_error()
        if not self._reasons.is_alive(route):
            raise deleting_error()

    def post(
        self,
        route: PartitionRoute,
        command: Command,
        attachment: bytes = b"",
        *,
        then: Callable[[Accepted | QueratorError], None],
        patient: bool = False,
        on_repeat: Callable[[], None] | None = None,
    ) -> None:
        """Proposes without waiting. `then` is called once, in a later step of the loop, with the
        result or an error. `drained` waits for posted commands.

        `patient`: the command is repeated when there is no leader, or another one, as in `call`.
        Otherwise only a repeatable command is repeated, and only when its outcome is unknown.
        `on_repeat` is called before each attempt but an immediate first one.
        """
        if patient and not route.is_reachable:
            self._persist(route, command, attachment, then=then, on_repeat=on_repeat)
            return
        node = "" if route.local else route.leader
        try:
            future = self._send(route, node, command, attachment)
        except Exception as error:  # noqa: BLE001 - `then` is called whatever happens
            failed = defect_error(error, f"sending a {type(command).__name__}")
            asyncio.get_running_loop().call_soon(then, failed)
            return
        self._posted.add(future)

        def answered(future: "asyncio.Future[Any]") -> None:
            self._posted.discard(future)
            outcome = self._outcome(route, node, future)
            if isinstance(outcome, QueratorError) and not self._stopping:
                unknown = outcome.code is ErrorCode.OUTCOME_UNKNOWN and repeatable(command)
                if unknown or (patient and outcome.code in _ELSEWHERE):
                    self._persist(
                        route,
                        command,
                        attachment,
                        then=then,
                        on_repeat=on_repeat,
                        unknown=outcome if unknown else None,
                    )
                    return
            then(outcome)

        future.add_done_callback(answered)

    def _persist(
        self,
        route: PartitionRoute,
        command: Command,
        attachment: bytes,
        *,
        then: Callable[[Accepted | QueratorError], None],
        on_repeat: Callable[[], None] | None,
        unknown: QueratorError | None = None,
    ) -> None:
        def send(
            route: PartitionRoute, node: str, command: Any, attachment: bytes
        ) -> "asyncio.Future[Any]":
            if on_repeat is not None:
                on_repeat()
            return self._send(route, node, command, attachment)

        # Owned: `_posted` keeps it, and `drained` waits for it.
        task = asyncio.get_running_loop().create_task(
            self._carry_out(route, command, attachment, None, unknown, send=send)
        )
        self._posted.add(task)

        def answered(task: "asyncio.Future[Any]") -> None:
            self._posted.discard(task)
            then(self._outcome(route, "", task))

        task.add_done_callback(answered)

    def _outcome(
        self, route: PartitionRoute, node: str, future: "asyncio.Future[Any]"
    ) -> Accepted | QueratorError:
        if future.cancelled():
            return stopping_error()
        error = future.exception()
        if error is None:
            result: Accepted | Refusal = future.result()
            return result.as_error() if isinstance(result, Refusal) else result
        if not isinstance(error, QueratorError):
            if not isinstance(error, Exception):
                raise error
            return defect_error(error, "carrying out a command")
        self._hinted(route, node, error)
        return self._reasons.located(route, error)

    # --- the end ---------------------------------------------------------------------------

    def stop(self) -> None:
        """Refuses calls from this point on; `post` continues to work for commands in progress."""
        self._stopping = True
        for route in self._routes.values():
            route.wake()

    async def drained(self, timeout_s: float) -> None:
        """Waits until all posted commands are answered, including those that they post, or until
        the timeout.
        """
        loop = asyncio.get_running_loop()
        latest = loop.time() + timeout_s
        while self._posted and (left := latest - loop.time()) > 0:
            await asyncio.wait(self._posted, timeout=left)
            # Callbacks of finished commands may post more.
            await asyncio.sleep(0)


def deadline_after(timeout_ms: int) -> float | None:
    """Time by the loop's clock; None for a timeout of 0."""
    return asyncio.get_running_loop().time() + timeout_ms / 1000 if timeout_ms else None


def _asked(route: PartitionRoute, node: str, question: "asyncio.Future[Any]") -> None:
    del route.questions[node], route.forwards[question]
    if not question.cancelled():
        # The calls that asked may have been cancelled.
        question.exception()
