"""The partitions as this node knows them, and the one way from a call to a partition's command.

**Taken on.** A command is taken on when it has been handed to the raft room. A deadline that passes
before that is DEADLINE_EXCEEDED (certainly not executed), after that OUTCOME_UNKNOWN. A call for a
partition without a leader waits for one, within its deadline, instead of failing. Cancelling a
call cancels the waiting, never the command.

`PartitionView` mirrors what the raft room has said last. Its values are absolute, so a lost update
heals with the next one, and they may be behind: whoever relies on them must bear being wrong.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from querator.model.commands import (
    Command,
    Done,
    ExtendResult,
    LeaseResult,
    PartitionEffects,
    ProduceResult,
    RedriveResult,
    Refusal,
    SettleResult,
)
from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import GroupId, QueueId
from querator.model.limits import LEADER_WAIT_MS_MAX, OVERLOADED_RETRY_MS
from querator.model.placement_map import PlacementMap
from querator.model.queues import Queue, QueueState
from querator.raft.host import Host
from querator.service.validate import usable

if TYPE_CHECKING:
    from querator.service.waiters import LeaseDesk

Accepted = ProduceResult | LeaseResult | SettleResult | ExtendResult | RedriveResult | Done
"""What a partition answers to a command that it did not refuse."""

_NOT_EXECUTED = (ErrorCode.NOT_LEADER, ErrorCode.UNAVAILABLE)

LEADER_RETRY_S = 0.02
"""Before a command goes again to a group that refused it and says that it leads."""


class PartitionView:
    """One partition as this node knows it."""

    __slots__ = (
        "desk",
        "group",
        "leader_waits",
        "leases_asked",
        "led",
        "outbox",
        "produce_bytes",
        "produces",
        "ready",
    )

    def __init__(self, group: GroupId, *, led: bool) -> None:
        self.group = group
        self.led = led
        self.ready = 0
        """Items that can be leased."""
        self.outbox = 0
        """Items on their way to other partitions."""
        self.produces = 0
        """Produce commands not answered yet, and their bytes."""
        self.produce_bytes = 0
        self.leases_asked = False
        """Whether a lease command is in flight; there is never more than one."""
        self.desk: LeaseDesk | None = None
        """Where leases of the queue wait; None before the first."""
        self.leader_waits: set[asyncio.Future[None]] = set()


class Router:
    """Partitions and commands of a node. All methods on the asyncio thread."""

    def __init__(self, host: Host, placed: Callable[[], PlacementMap]) -> None:
        self._host = host
        self._placed = placed
        self._views: dict[GroupId, PartitionView] = {}
        self._queue_views: dict[QueueId, tuple[PartitionView, ...]] = {}
        self._posted: set[asyncio.Future[Any]] = set()
        self._stopping = False

    # --- what is known ---------------------------------------------------------------------

    @property
    def map(self) -> PlacementMap:
        return self._placed()

    @property
    def stopping(self) -> bool:
        return self._stopping

    def queue(self, namespace: str, name: str) -> Queue:
        """The queue if it can be used; raises NAMESPACE_NOT_FOUND, QUEUE_NOT_FOUND, QUEUE_DELETING,
        UNAVAILABLE while it is being created or the node stops.
        """
        if self._stopping:
            raise stopping_error()
        return usable(self._placed(), namespace, name)

    def view(self, group: GroupId) -> PartitionView:
        view = self._views.get(group)
        if view is None:
            view = self._views[group] = PartitionView(group, led=self._host.leads(group))
        return view

    def views(self, queue: Queue) -> tuple[PartitionView, ...]:
        """By partition."""
        views = self._queue_views.get(queue.id)
        if views is None:
            views = self._queue_views[queue.id] = tuple(self.view(group) for group in queue.groups)
        return views

    def known(self) -> tuple[PartitionView, ...]:
        return tuple(self._views.values())

    # --- what the raft and placement rooms say ---------------------------------------------

    def on_effects(self, group: GroupId, effects: PartitionEffects) -> PartitionView:
        view = self._views.get(group) or self.view(group)
        view.ready = effects.ready
        view.outbox = effects.outbox
        return view

    def on_leadership(self, group: GroupId, leads: bool) -> PartitionView:
        view = self.view(group)
        view.led = leads
        if leads:
            _wake(view)
        return view

    def on_map(self, placed: PlacementMap) -> None:
        """Forgets partitions that have left the map; ends the waits of those being deleted."""
        for group in list(self._views):
            owner = placed.by_group(group)
            if owner is None or owner[0].state is QueueState.DELETING:
                _wake(self._views[group])
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
    ) -> Accepted:
        """Proposes and waits; `deadline` by the loop's clock. Raises QueratorError."""
        while True:
            if not view.led:
                await self._leader(view, deadline)
            elif self._stopping:
                raise stopping_error()
            elif deadline is not None and asyncio.get_running_loop().time() >= deadline:
                raise QueratorError(
                    ErrorCode.DEADLINE_EXCEEDED, "the deadline passed before it was taken on"
                )
            try:
                result = await self._answer(view, command, attachment, deadline)
            except QueratorError as error:
                if error.code is not ErrorCode.NOT_LEADER:
                    raise
                view.led = self._host.leads(view.group)
                if view.led:
                    await asyncio.sleep(LEADER_RETRY_S)
                continue
            if isinstance(result, Refusal):
                raise refused(result)
            return result

    async def _answer(
        self, view: PartitionView, command: Command, attachment: bytes, deadline: float | None
    ) -> Accepted | Refusal:
        future = self._host.propose(view.group, command, attachment)
        result: Accepted | Refusal
        try:
            if deadline is None:
                result = await future
            else:
                async with asyncio.timeout_at(deadline):
                    result = await future
        except TimeoutError:
            raise QueratorError(
                ErrorCode.OUTCOME_UNKNOWN,
                f"{self.name(view)} did not answer before the deadline; repeat the request with "
                "the same identity",
                field="partition",
                value=self._number(view),
            ) from None
        except QueratorError as error:
            located = self.located(view, error)
            if located is error:
                raise
            raise located from error
        return result

    async def _leader(self, view: PartitionView, deadline: float | None) -> None:
        """Waits until the partition has a leader here."""
        loop = asyncio.get_running_loop()
        latest = loop.time() + LEADER_WAIT_MS_MAX / 1000
        wait: asyncio.Future[None] = loop.create_future()
        view.leader_waits.add(wait)
        try:
            self._check_alive(view)
            async with asyncio.timeout_at(latest if deadline is None else min(deadline, latest)):
                await wait
            self._check_alive(view)
        except TimeoutError:
            if deadline is not None and loop.time() >= deadline:
                message = f"{self.name(view)} had no leader until the deadline; not executed"
                raise QueratorError(ErrorCode.DEADLINE_EXCEEDED, message) from None
            message = f"{self.name(view)} has no leader"
            raise QueratorError(
                ErrorCode.NOT_LEADER, message, retry_delay_ms=LEADER_WAIT_MS_MAX // 10
            ) from None
        finally:
            view.leader_waits.discard(wait)

    def _check_alive(self, view: PartitionView) -> None:
        if self._stopping:
            raise stopping_error()
        if not self._alive(view):
            raise _deleting()

    def _alive(self, view: PartitionView) -> bool:
        owner = self._placed().by_group(view.group)
        return owner is not None and owner[0].state is not QueueState.DELETING

    def post(
        self,
        view: PartitionView,
        command: Command,
        attachment: bytes = b"",
        *,
        then: Callable[[Accepted | QueratorError], None],
    ) -> None:
        """Proposes without waiting. `then` is called once, in a later step of the loop, with the
        result or why there is none. `drained` waits for what was posted.
        """
        future = self._host.propose(view.group, command, attachment)
        self._posted.add(future)

        def answered(future: "asyncio.Future[Any]") -> None:
            self._posted.discard(future)
            then(self._outcome(view, future))

        future.add_done_callback(answered)

    def _outcome(
        self, view: PartitionView, future: "asyncio.Future[Any]"
    ) -> Accepted | QueratorError:
        if future.cancelled():
            return stopping_error()
        error = future.exception()
        if error is None:
            result: Accepted | Refusal = future.result()
            return refused(result) if isinstance(result, Refusal) else result
        if not isinstance(error, QueratorError):
            raise error
        if error.code is ErrorCode.NOT_LEADER:
            view.led = self._host.leads(view.group)
        return self.located(view, error)

    # --- the end ---------------------------------------------------------------------------

    def stop(self) -> None:
        """Refuses calls from here on; `post` goes on working for what has begun."""
        self._stopping = True
        for view in self._views.values():
            _wake(view)

    async def drained(self, timeout_s: float) -> None:
        """Until everything posted is answered, what that posts included, or the time is over."""
        loop = asyncio.get_running_loop()
        latest = loop.time() + timeout_s
        while self._posted and (left := latest - loop.time()) > 0:
            await asyncio.wait(self._posted, timeout=left)
            # The callbacks of what has ended may post more.
            await asyncio.sleep(0)

    # --- errors ----------------------------------------------------------------------------

    def name(self, view: PartitionView) -> str:
        owner = self._placed().by_group(view.group)
        if owner is None:
            return "a partition of a deleted queue"
        queue, partition = owner
        return f"partition {partition} of queue {queue.name}"

    def _number(self, view: PartitionView) -> str:
        owner = self._placed().by_group(view.group)
        return "" if owner is None else str(owner[1])

    def located(self, view: PartitionView, error: QueratorError) -> QueratorError:
        """The error with what a client needs to act on it: which partition, how long to wait, and
        that the queue is going when that is the reason.
        """
        if error.code in _NOT_EXECUTED and not self._alive(view):
            return _deleting()
        if error.code is ErrorCode.OUTCOME_UNKNOWN and error.field != "partition":
            message = f"{self.name(view)}: {error.message}"
            return QueratorError(error.code, message, field="partition", value=self._number(view))
        if error.code is ErrorCode.OVERLOADED and error.retry_delay_ms is None:
            return QueratorError(error.code, error.message, retry_delay_ms=OVERLOADED_RETRY_MS)
        return error


def refused(refusal: Refusal) -> QueratorError:
    return QueratorError(
        refusal.code,
        refusal.message,
        field=refusal.field,
        limit=refusal.limit,
        value=refusal.value,
    )


def _deleting() -> QueratorError:
    return QueratorError(ErrorCode.QUEUE_DELETING, "the queue is being deleted; not executed")


def stopping_error() -> QueratorError:
    return QueratorError(ErrorCode.UNAVAILABLE, "the node is shutting down; not executed")


def _wake(view: PartitionView) -> None:
    for wait in view.leader_waits:
        if not wait.done():
            wait.set_result(None)
