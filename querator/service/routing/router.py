"""The one way from a call to a partition's command, wherever the partition is led.

    this node leads           the raft room
    another node leads        the `Forwarder`, one hop: who does not lead says so, and who does
    another node may lead     the same, but a command with an attachment goes after that node has
                              said that it leads
    nobody is known to lead   the call waits in line

**Taken on.** A command is taken on when it has been handed to the raft room, or to another node. A
deadline that passes before that is DEADLINE_EXCEEDED (certainly not executed), after that
OUTCOME_UNKNOWN. Cancelling a call cancels the waiting, never the command.

**Leaders change.** A command that was not executed (NOT_LEADER, a node that stops or cannot be
reached) goes again within its deadline, without one for LEADER_WAIT_MS_MAX. One whose outcome is
not known goes again only when a repeat is safe (`repeatable`): the partition remembers what it has
done. So callers see neither, unless time runs out. Calls for one partition keep their order.

Longer than 500 lines: all ways of a command out of this node stand here, since each has to keep the
order of calls and the rules of repeats above.
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
from querator.partition.facts import ClosureQuery
from querator.raft.host import Host
from querator.service.admission import Sending, Ticket
from querator.service.routing.answers import QueryAnswers
from querator.service.routing.call_errors import Reasons
from querator.service.routing.forwarder import Forwarder, Query
from querator.service.routing.outcomes import (
    NOT_EXECUTED,
    Accepted,
    defect_error,
    deleting_error,
    is_forgotten,
    refused,
    repeatable,
    stopping_error,
)
from querator.service.routing.refusals import FULL, Refusals
from querator.service.routing.views import PartitionView

_ELSEWHERE = frozenset(NOT_EXECUTED)
"""What another node says when a third one may do better; not executed."""

LEADER_RETRY_S = 0.02
LEADER_RETRY_S_MAX = 0.2
"""Before a command goes again to whoever has refused it; doubled each time."""
HOPS_MAX = 2
"""So many times a command follows a hint at once. Then hints go round in a circle, and it waits."""
CUT_OFF_S = 0.25
"""How long a call waits on a node that is cut off from the others, before its caller hears of it:
on the other side there may be a leader. That others are not heard is known only after a while."""
STALE_FORWARD_S = 0.25
"""How long after a change of leaders the former one may still answer what can be repeated."""


_Send = Callable[[PartitionView, str, Any, bytes], "asyncio.Future[Any]"]
"""(view, node or empty for this one, command, attachment)."""


class Router:
    """Partitions and commands of a node. All methods on the asyncio thread."""

    def __init__(
        self,
        host: Host,
        placed: Callable[[], PlacementMap],
        forwarder: Forwarder | None = None,
        *,
        answers: QueryAnswers,
        amend: Callable[[GroupId, Any], Any],
        out_of_reach: Callable[[], Collection[str]] = frozenset,
        born: str = "",
    ) -> None:
        """`forwarder` None: a node that is alone. `answers` answers queries about groups that this
        node leads; `amend` returns a command as it is proposed for such a group. `out_of_reach`
        names the nodes that this node's raft room cannot reach, or does not hear. `born` is in the
        names that it gives to leases, and unlike that of any other start of any node; empty: one is
        made.
        """
        self._host = host
        self._placed = placed
        self._forwarder = forwarder
        self._reasons = Reasons(placed, out_of_reach, others=forwarder is not None)
        self._views: dict[GroupId, PartitionView] = {}
        self._queue_views: dict[QueueId, tuple[Queue, tuple[PartitionView, ...]]] = {}
        self._posted: set[asyncio.Future[Any]] = set()
        self._stopping = False
        self.refusals = Refusals()
        """Of calls for partitions."""
        self._answers = answers
        self._amend = amend
        self._born = born or uuid_utils.uuid7().hex
        self._numbers = itertools.count(1)

    # --- what is known ---------------------------------------------------------------------

    @property
    def map(self) -> PlacementMap:
        return self._placed()

    @property
    def forwarder(self) -> Forwarder | None:
        return self._forwarder

    @property
    def name(self) -> str:
        """Of this node."""
        return node_name(self._host.node)

    @property
    def stopping(self) -> bool:
        return self._stopping

    def view(self, group: GroupId) -> PartitionView:
        view = self._views.get(group)
        if view is None:
            view = self._views[group] = PartitionView(group, led=self._host.leads(group))
            if not view.local:
                self.on_leader(group, self._host.leader(group))
        return view

    def views(self, queue: Queue) -> tuple[PartitionView, ...]:
        """By partition."""
        known = self._queue_views.get(queue.id)
        if known is None or known[0].groups != queue.groups:
            known = queue, tuple(self.view(group) for group in queue.groups)
            self._queue_views[queue.id] = known
        return known[1]

    def cut_off(self, view: PartitionView) -> QueratorError | None:
        """Why this node can do nothing for the partition, if it is cut off from the others."""
        return None if view.led else self._unable(view, None)

    def _unable(self, view: PartitionView, unknown: QueratorError | None) -> QueratorError | None:
        """Why this node can do nothing for a partition without a leader that it knows of, while
        other nodes may; `unknown`: what an earlier attempt has come to.
        """
        if view.local and self._host.hangs:
            return unknown or self._reasons.hangs(view)
        return self._reasons.cut_off(view, unknown) if self._reasons.is_cut_off(view) else None

    def known(self) -> tuple[PartitionView, ...]:
        return tuple(self._views.values())

    def lease_name(self) -> str:
        """A request id for a lease whose caller names none, so that the command may go again when
        its leader is lost; empty on a node that is alone, where nothing can go again.
        """
        return "" if self._forwarder is None else self._name()

    def stream_lease_name(self, consumer_id: str, stream_number: int) -> str:
        """As `lease_name`, for a stream whose consumer has a name: by it, what was granted is found
        when the stream has broken, also when a node that is alone was started again.
        """
        return stream_request_id(consumer_id, stream_number, self._name())

    def _name(self) -> str:
        return f"{self._born}-{next(self._numbers):x}"

    # --- what the raft and placement rooms say ---------------------------------------------

    def on_effects(self, group: GroupId, effects: PartitionEffects) -> PartitionView:
        view = self._views.get(group) or self.view(group)
        view.stored = effects.ready
        view.outbox = effects.outbox
        view.occupied = effects.occupied
        view.txns, view.pinned, view.stages = effects.txns, effects.pinned, effects.stages
        if view.local:
            view.ready = effects.ready
            view.look()
        return view

    def on_leadership(self, group: GroupId, leads: bool) -> PartitionView:
        view = self.view(group)
        view.local = leads
        view.ready = view.stored if leads else 0
        view.look()
        self._look(view)
        return view

    def on_leader(self, group: GroupId, node: NodeKey | None) -> PartitionView:
        """The raft room knows of another leader, or of none."""
        view = self.view(group)
        self._follow(view, self._guess(group) if node is None else node_name(node))
        view.proved = node is not None
        return view

    def on_reach(self, node: str) -> list[PartitionView]:
        """Another node can be reached, or no longer; the partitions it leads."""
        views = [view for view in self._views.values() if view.leader == node and not view.local]
        for view in views:
            self._look(view)
            if not view.led:
                self.doubt(view, node)
        return views

    def on_hang(self, hangs: bool) -> list[PartitionView]:
        """The raft thread hangs, or goes on; the partitions that this node leads."""
        if hangs:
            self._host.give_up(repeatable)
        views = [view for view in self._views.values() if view.local]
        for view in views:
            self._look(view)
        return views

    def _guess(self, group: GroupId, after: str = "") -> str:
        """Whom to ask about a group of which no replica runs here, so that the raft room knows
        nothing: the node that should lead it, then each other one. Empty for a group of which one
        does.
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
        """The other nodes with replicas of a group of which none runs here; else nobody. One that
        runs counts as long as the map names it, or the group moves away from this node.
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

    def guesses(self, view: PartitionView) -> bool:
        """Whether the raft room knows nothing of who leads it: no replica of it runs here. There is
        none, or it has not been opened yet, or it is stopped.
        """
        return self._host.leader(view.group) is None and bool(self._may_lead(view.group))

    def doubt(self, view: PartitionView, node: str) -> None:
        """The node does not lead it, or cannot be reached: where that was a guess, the next one
        that can be reached is tried.
        """
        if view.local or view.leader != node or self._forwarder is None or not self.guesses(view):
            return
        nodes = self._may_lead(view.group)
        first = nodes.index(node) + 1 if node in nodes else 0
        for other in nodes[first:] + nodes[:first]:
            if other != node and self._forwarder.reaches(other):
                self._follow(view, other)
                return

    def learn(self, view: PartitionView, node: str) -> None:
        """Another node says of itself that it leads."""
        if view.local:
            return
        if view.leader != node:
            self._follow(view, node)
        view.proved = view.leader == node

    def _follow(self, view: PartitionView, node: str) -> None:
        former = view.leader
        view.leader = "" if self._forwarder is None or node == self._forwarder.name else node
        if view.leader != former:
            view.proved = False
            if not view.local:
                view.ready = 0
            if former and view.forwards:
                asyncio.get_running_loop().call_later(STALE_FORWARD_S, view.give_up, former)
        self._look(view)

    def _look(self, view: PartitionView) -> None:
        """Decides anew whether commands can be sent."""
        led = view.local and not self._host.hangs
        if not view.local and view.leader and self._forwarder is not None:
            led = self._forwarder.reaches(view.leader)
        view.led = led
        if led:
            view.wake()

    def on_map(self, placed: PlacementMap) -> None:
        """Forgets partitions that have left the map; ends the waits of those being deleted."""
        for group in list(self._views):
            if group == PLACEMENT_GROUP:
                continue
            view = self._views[group]
            gone = bool(view.leader) and placed.node(view.leader) is None and self.guesses(view)
            if not view.local and (gone or not view.leader):
                self._follow(view, self._guess(group))
            owner = placed.by_group(group)
            if owner is None or owner[0].state is QueueState.DELETING:
                view.wake()
            if owner is None:
                del self._views[group]
        for queue_id in list(self._queue_views):
            if placed.get(queue_id) is None:
                del self._queue_views[queue_id]

    # --- commands --------------------------------------------------------------------------

    async def call(
        self,
        view: PartitionView,
        command: Command,
        attachment: bytes = b"",
        *,
        deadline: float | None = None,
        budget: Sending | None = None,
    ) -> Accepted:
        """Proposes and waits; `deadline` by the loop's clock, `budget` for what is on its way to
        partitions (None: not counted). Raises QueratorError.
        """
        ticket = None
        try:
            if budget is not None:
                waits = not view.led or bool(view.line)
                named = partial(self._reasons.name, view)
                ticket = budget.enter(view.group, len(attachment), waits=waits, named=named)
            result: Accepted | Refusal = await self._carry_out(
                view, command, attachment, deadline, ticket=ticket
            )
        except QueratorError as error:
            self._count(view, error)
            raise
        finally:
            if ticket is not None:
                ticket.leave()
        if isinstance(result, Refusal):
            refusal = refused(result)
            self._count(view, refusal)
            raise refusal
        return result

    def _count(self, view: PartitionView, error: QueratorError) -> None:
        if error.code in FULL:
            self.refusals.add(view.group, error, asyncio.get_running_loop().time())

    async def propose(self, group: GroupId, command: Any, *, deadline: float | None = None) -> Any:
        """As `call`, for any group, the placement group as well; a refusal is a result."""
        return await self._carry_out(self.view(group), command, b"", deadline)

    async def read(self, group: GroupId, query: Query, *, deadline: float | None = None) -> Any:
        """Has a query answered on the node that leads the group."""
        return await self._carry_out(self.view(group), query, b"", deadline, send=self._ask)

    async def query(self, node: str, query: Query) -> Any:
        """Has a query answered on this node or another one, by its name. Raises QueratorError."""
        if node == self.name or self._forwarder is None:
            return await self._answers.answer(query)
        return await self._forwarder.query(node, query)

    def _ask(self, view: PartitionView, node: str, query: Query, _: bytes) -> "asyncio.Future[Any]":
        if node and self._forwarder is not None:
            return self._forwarder.query(node, query)
        # Owned by the caller, who awaits it.
        return asyncio.get_running_loop().create_task(self._answers.answer(query))

    async def _carry_out(
        self,
        view: PartitionView,
        command: Any,
        attachment: bytes,
        deadline: float | None,
        unknown: QueratorError | None = None,
        send: _Send | None = None,
        ticket: Ticket | None = None,
    ) -> Any:
        """`unknown`: what an earlier attempt has come to."""
        loop = asyncio.get_running_loop()
        latest = loop.time() + LEADER_WAIT_MS_MAX / 1000 if deadline is None else deadline
        pause_s = LEADER_RETRY_S
        hops = 0
        while True:
            if ticket is not None and (not view.led or view.line):
                ticket.wait()
            await self._turn(view, latest, deadline, unknown)
            node = "" if view.local else view.leader
            try:
                if node and attachment and not view.proved:
                    await self._prove(view, node, deadline, ticket)
                if ticket is not None:
                    ticket.go()
                future = (send or self._send)(view, node, command, attachment)
                result = await self._answer(view, future, deadline)
            except QueratorError as error:
                again = error.code is ErrorCode.NOT_LEADER or (node and error.code in _ELSEWHERE)
                if error.code is ErrorCode.OUTCOME_UNKNOWN and repeatable(command):
                    unknown, again = error, True
                again = again or (unknown is not None and error.retriable)
                if not again or loop.time() >= latest:
                    raise (unknown or error) from None
                if self._hinted(view, node, error) and hops < HOPS_MAX:
                    hops += 1
                    continue
            else:
                if unknown is not None and is_forgotten(result):
                    raise unknown
                return result
            if view.led:
                await view.pause(min(loop.time() + pause_s, latest))
                pause_s = min(pause_s * 2, LEADER_RETRY_S_MAX)
                hops = 0

    def _hinted(self, view: PartitionView, node: str, error: QueratorError) -> bool:
        """Takes in what a refusal says about the leader; whether it names another one."""
        if error.code is not ErrorCode.NOT_LEADER:
            return False
        if not node:
            view.local = self._host.leads(view.group)
            self._look(view)
        elif node == view.leader:
            view.proved = False
        leader = error.value or (self._guess(view.group, after=node) if node else "")
        if not leader or leader == node or view.local:
            return False
        self._follow(view, leader)
        return view.led

    async def _turn(
        self,
        view: PartitionView,
        latest: float,
        deadline: float | None,
        unknown: QueratorError | None,
    ) -> None:
        """Returns when the command can be sent, and those that came before it have been."""
        loop = asyncio.get_running_loop()
        while not view.led or view.line:
            try:
                self._check_alive(view)
                if view.local and (unable := self._unable(view, unknown)) is not None:
                    raise unable
                await view.stand_in_line(min(latest, loop.time() + CUT_OFF_S))
                self._check_alive(view)
            except QueratorError as error:
                raise unknown or error from None
            except TimeoutError:
                if loop.time() >= latest:
                    raise self._reasons.leaderless(view, deadline, unknown) from None
                if (unable := self._unable(view, unknown)) is not None:
                    raise unable from None
                self.doubt(view, view.leader)
                continue
            if view.led:
                break
        if self._stopping:
            raise unknown or stopping_error()
        if deadline is not None and loop.time() >= deadline:
            raise unknown or QueratorError(
                ErrorCode.DEADLINE_EXCEEDED, "the deadline passed before it was taken on"
            )

    async def _answer(
        self, view: PartitionView, future: "asyncio.Future[Any]", deadline: float | None
    ) -> Any:
        try:
            if deadline is None:
                return await future
            async with asyncio.timeout_at(deadline):
                return await future
        except TimeoutError:
            raise self._reasons.unanswered(view) from None
        except QueratorError as error:
            located = self._reasons.located(view, error)
            if located is error:
                raise
            raise located from error

    async def _prove(
        self, view: PartitionView, node: str, deadline: float | None, ticket: Ticket | None
    ) -> None:
        """Returns when the node has said that it leads. Otherwise raises a QueratorError, and
        nothing has been executed.

        An attachment of megabytes that goes from one guess to the next, for each call that waits,
        takes all that the links can carry. So all calls ask together, and with few bytes.
        """
        assert self._forwarder is not None
        if ticket is not None:
            ticket.wait()
        question = view.questions.get(node)
        if question is None:
            question = view.questions[node] = self._forwarder.query(node, ClosureQuery(view.group))
            view.forwards[question] = (node, True)
            question.add_done_callback(partial(_asked, view, node))
        try:
            async with asyncio.timeout_at(deadline):
                await asyncio.shield(question)
        except TimeoutError:
            raise self._reasons.unproved(view, node) from None
        except QueratorError as error:
            if error.code is ErrorCode.OUTCOME_UNKNOWN:
                raise QueratorError(ErrorCode.UNAVAILABLE, error.message) from error
            raise self._reasons.located(view, error) from error
        if view.leader == node:
            view.proved = True

    def _send(
        self, view: PartitionView, node: str, command: Any, attachment: bytes
    ) -> "asyncio.Future[Any]":
        """To the raft room, or to another node."""
        if not node:
            return self._host.propose(view.group, self._amend(view.group, command), attachment)
        assert self._forwarder is not None
        future = self._forwarder.propose(node, view.group, command, attachment)
        view.forwards[future] = (node, repeatable(command))
        future.add_done_callback(view.forwards.pop)
        return future

    def _check_alive(self, view: PartitionView) -> None:
        if self._stopping:
            raise stopping_error()
        if not self._reasons.is_alive(view):
            raise deleting_error()

    def post(
        self,
        view: PartitionView,
        command: Command,
        attachment: bytes = b"",
        *,
        then: Callable[[Accepted | QueratorError], None],
        patient: bool = False,
    ) -> None:
        """Proposes without waiting. `then` is called once, in a later step of the loop, with the
        result or why there is none. `drained` waits for what was posted.

        `patient`: goes again when there is no leader, or another one, as a `call` does; otherwise
        only a repeatable command does, and only when its outcome is not known.
        """
        if patient and not view.led:
            self._persist(view, command, attachment, then)
            return
        node = "" if view.local else view.leader
        try:
            future = self._send(view, node, command, attachment)
        except Exception as error:  # noqa: BLE001 - `then` is called whatever happens
            failed = defect_error(error, f"sending a {type(command).__name__}")
            asyncio.get_running_loop().call_soon(then, failed)
            return
        self._posted.add(future)

        def answered(future: "asyncio.Future[Any]") -> None:
            self._posted.discard(future)
            outcome = self._outcome(view, node, future)
            if isinstance(outcome, QueratorError) and not self._stopping:
                unknown = outcome.code is ErrorCode.OUTCOME_UNKNOWN and repeatable(command)
                if unknown or (patient and outcome.code in _ELSEWHERE):
                    self._persist(view, command, attachment, then, outcome if unknown else None)
                    return
            then(outcome)

        future.add_done_callback(answered)

    def _persist(
        self,
        view: PartitionView,
        command: Command,
        attachment: bytes,
        then: Callable[[Accepted | QueratorError], None],
        unknown: QueratorError | None = None,
    ) -> None:
        # Owned: `_posted` keeps it, and `drained` waits for it.
        task = asyncio.get_running_loop().create_task(
            self._carry_out(view, command, attachment, None, unknown)
        )
        self._posted.add(task)

        def answered(task: "asyncio.Future[Any]") -> None:
            self._posted.discard(task)
            then(self._outcome(view, "", task))

        task.add_done_callback(answered)

    def _outcome(
        self, view: PartitionView, node: str, future: "asyncio.Future[Any]"
    ) -> Accepted | QueratorError:
        if future.cancelled():
            return stopping_error()
        error = future.exception()
        if error is None:
            result: Accepted | Refusal = future.result()
            return refused(result) if isinstance(result, Refusal) else result
        if not isinstance(error, QueratorError):
            if not isinstance(error, Exception):
                raise error
            return defect_error(error, "carrying out a command")
        self._hinted(view, node, error)
        return self._reasons.located(view, error)

    # --- the end ---------------------------------------------------------------------------

    def stop(self) -> None:
        """Refuses calls from here on; `post` goes on working for what has begun."""
        self._stopping = True
        for view in self._views.values():
            view.wake()

    async def drained(self, timeout_s: float) -> None:
        """Until everything posted is answered, what that posts included, or the time is over."""
        loop = asyncio.get_running_loop()
        latest = loop.time() + timeout_s
        while self._posted and (left := latest - loop.time()) > 0:
            await asyncio.wait(self._posted, timeout=left)
            # The callbacks of what has ended may post more.
            await asyncio.sleep(0)


def deadline_after(timeout_ms: int) -> float | None:
    """By the loop's clock; 0: there is none."""
    return asyncio.get_running_loop().time() + timeout_ms / 1000 if timeout_ms else None


def _asked(view: PartitionView, node: str, question: "asyncio.Future[Any]") -> None:
    del view.questions[node], view.forwards[question]
    if not question.cancelled():
        # Those that asked may have been cancelled.
        question.exception()
