"""The queues of this node's map, and how this node learns that its map is old.

A lookup in the map does not wait. Another node may have created a queue, or changed its partitions,
an instant ago. So an error that an old map would explain is raised only after the map has caught up
with the leader of the placement group. When that leader does not answer in time, the error says so,
and is UNAVAILABLE.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import TypeVar

from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import PLACEMENT_GROUP, GroupId
from querator.model.limits import OVERLOADED_RETRY_MS
from querator.model.placement_map import PlacementMap
from querator.model.queues import Queue, QueueState
from querator.service.routing.forwarder import EpochQuery
from querator.service.routing.outcomes import stopping_error
from querator.service.routing.router import Router
from querator.service.validate import usable

CATCH_UP_S = 2.0
"""Maximum time in which this node's map becomes as new as the leader's."""

_OF_THE_MAP = (
    ErrorCode.QUEUE_NOT_FOUND,
    ErrorCode.NAMESPACE_NOT_FOUND,
    ErrorCode.QUEUE_DELETING,
)

T = TypeVar("T")


class QueueDirectory:
    """Queue directory of one node. Used on the event loop."""

    def __init__(self, placed: Callable[[], PlacementMap], router: Router) -> None:
        """`placed` returns the newest map of this node."""
        self._placed = placed
        self._router = router
        self._catching_up: asyncio.Task[bool] | None = None
        self._newer = asyncio.Event()

    @property
    def map(self) -> PlacementMap:
        return self._placed()

    def known(self, namespace: str, name: str) -> Queue:
        """The queue, if it is usable by this node's map. Raises NAMESPACE_NOT_FOUND,
        QUEUE_NOT_FOUND, QUEUE_DELETING, or UNAVAILABLE while it is being created or the node stops.
        """
        if self._router.stopping:
            raise stopping_error()
        return usable(self._placed(), namespace, name)

    async def find(self, namespace: str, name: str, partition: int = 0) -> Queue:
        """As `known`, including the partition if the queue has it. If this node's map may be too
        old to know the queue or the partition, it catches up first. Raises QueratorError.
        """
        try:
            queue = self.known(namespace, name)
        except QueratorError as error:
            if not self._may_be_old(error):
                raise
            queue = await self.newly(lambda: self.known(namespace, name))
        if partition < len(queue.groups):
            return queue
        return await self.certain_of(queue, partition)

    def has_left(self, queue: Queue, group: GroupId, error: QueratorError) -> bool:
        """Whether the error only means that a partition, which was closing and empty, has left the
        queue since.
        """
        known = self._placed().get(queue.id)
        return (
            error.code is ErrorCode.QUEUE_DELETING
            and known is not None
            and known.state is QueueState.ACTIVE
            and group not in known.groups
        )

    def _may_be_old(self, error: QueratorError) -> bool:
        """Whether a newer map may give another answer. Among UNAVAILABLE refusals, only that of a
        queue that is being created names a field.
        """
        if self._router.forwarder is None:
            return False
        unfinished = error.code is ErrorCode.UNAVAILABLE and error.field == "queue"
        return unfinished or error.code in _OF_THE_MAP

    def on_map(self) -> None:
        newer, self._newer = self._newer, asyncio.Event()
        newer.set()

    # --- when the map may be old -----------------------------------------------------------------

    async def catch_up(self) -> bool:
        """Waits until this node's map is at least as new as every change acknowledged on any node.
        False: the placement group did not answer in time, and the map is unchanged.
        """
        if self._router.forwarder is None:
            return True
        if self._catching_up is not None:
            # It may have asked before the change known to this caller was acknowledged.
            await asyncio.shield(self._catching_up)
        if self._catching_up is None:
            # Owned: all callers that waited for the previous one share it and await it.
            self._catching_up = asyncio.get_running_loop().create_task(self._catch_up())
            self._catching_up.add_done_callback(self._caught_up)
        return await asyncio.shield(self._catching_up)

    def _caught_up(self, _: "asyncio.Task[bool]") -> None:
        self._catching_up = None

    async def _catch_up(self) -> bool:
        deadline = asyncio.get_running_loop().time() + CATCH_UP_S
        try:
            async with asyncio.timeout_at(deadline):
                epoch = await self._router.read(PLACEMENT_GROUP, EpochQuery(), deadline=deadline)
                while self._placed().epoch < epoch:
                    await self._newer.wait()
        except (QueratorError, TimeoutError):
            return False
        return True

    async def find_or_wait(self, look: Callable[[], T], *, deadline: float | None = None) -> T:
        """Returns the result of `look`. When `look` does not find its object, or finds it
        unfinished or being deleted, it runs again as in `newly`: another node may have created the
        object just before.
        """
        try:
            return look()
        except QueratorError as error:
            if not self._may_be_old(error):
                raise
        return await self.newly(look, deadline=deadline)

    async def newly(self, look: Callable[[], T], *, deadline: float | None = None) -> T:
        """Returns the result of `look` after the map has caught up, as far as that succeeds in time
        (see `whole`). If it did not succeed, a queue that is missing or being deleted is reported
        as UNAVAILABLE: the queue, or another one of that name, may have been created since.
        """
        known = await self._catch_up_by(deadline)
        try:
            return look()
        except QueratorError as error:
            if known or error.code not in _OF_THE_MAP:
                raise
            raise QueratorError(
                ErrorCode.UNAVAILABLE,
                f"{error.message}, by the map of this node, which may be old; not executed",
                field=error.field,
                value=error.value,
                retry_delay_ms=OVERLOADED_RETRY_MS,
            ) from error

    async def reaching(
        self, queue: Queue, partition: int, *, deadline: float | None = None
    ) -> tuple[Queue, bool]:
        """Returns the queue, and whether its partitions are certain. If the queue has no such
        partition, the map catches up first, as far as that succeeds in time (see `whole`).
        """
        if partition < len(queue.groups):
            return queue, True
        known = await self._catch_up_by(deadline)
        return self.newest(queue), known

    async def certain_of(
        self, queue: Queue, partition: int, *, deadline: float | None = None
    ) -> Queue:
        """As `reaching`. Raises QueratorError: UNAVAILABLE when it is not certain that the queue
        has no such partition.
        """
        queue, known = await self.reaching(queue, partition, deadline=deadline)
        if known or partition < len(queue.groups):
            return queue
        raise QueratorError(
            ErrorCode.UNAVAILABLE,
            f"partition is {partition}; by the map of this node, which may be old, queue "
            f"{queue.name} has partitions 0 to {len(queue.groups) - 1}; not executed",
            field="partition",
            value=str(partition),
            retry_delay_ms=OVERLOADED_RETRY_MS,
        )

    async def since(
        self, queue: Queue, routing: int, *, deadline: float | None = None
    ) -> tuple[Queue, bool]:
        """As `reaching`, for callers that know that partitions have received this version of their
        number: partitions receive it before the map does.
        """
        if routing <= queue.routing:
            return queue, True
        known = await self._catch_up_by(deadline)
        return self.newest(queue), known

    async def whole(self, queue: Queue, *, deadline: float | None = None) -> Queue:
        """The queue with all its partitions, as far as the map catches up in half of the time until
        the deadline; the other half is left for the next steps.
        """
        await self._catch_up_by(deadline)
        return self.newest(queue)

    async def _catch_up_by(self, deadline: float | None) -> bool:
        now_s = asyncio.get_running_loop().time()
        latest = now_s + CATCH_UP_S if deadline is None else (now_s + deadline) / 2
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(latest):
                return await self.catch_up()
        return False

    async def other_partitions(self, queue: Queue, until: float) -> bool:
        """Waits until this node's map has other partitions of the queue; False: not
        before `until`.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                while self.newest(queue).groups == queue.groups:
                    await self._newer.wait()
                return True
        return False

    def newest(self, queue: Queue) -> Queue:
        """The queue as in this node's map."""
        return self._placed().get(queue.id) or queue
