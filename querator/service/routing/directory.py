"""The queues as this node's map has them, and how this node learns that its map is old.

A look-up in the map does not wait. Another node may have created a queue, or changed its
partitions, an instant ago. So an error that an old map would explain is given only after the map
has caught up with the leader of the placement group. When that leader does not answer in time, the
error says so, and is UNAVAILABLE.
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
"""How long the map of this node may take to become as new as the leader's."""

_OF_THE_MAP = (
    ErrorCode.QUEUE_NOT_FOUND,
    ErrorCode.NAMESPACE_NOT_FOUND,
    ErrorCode.QUEUE_DELETING,
)

T = TypeVar("T")


class QueueDirectory:
    """Of one node. On the event loop."""

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
        """The queue if it can be used, by this node's map. Raises NAMESPACE_NOT_FOUND,
        QUEUE_NOT_FOUND, QUEUE_DELETING, or UNAVAILABLE while it is being created or the node stops.
        """
        if self._router.stopping:
            raise stopping_error()
        return usable(self._placed(), namespace, name)

    async def find(self, namespace: str, name: str, partition: int = 0) -> Queue:
        """As `known`, with the partition if the queue has it. Where the map of this node may be too
        old to know either, it catches up first. Raises QueratorError.
        """
        try:
            queue = self.known(namespace, name)
        except QueratorError as error:
            if self._router.forwarder is None or not _is_perhaps_old(error):
                raise
            queue = await self.newly(lambda: self.known(namespace, name))
        if partition < len(queue.groups):
            return queue
        return await self.certain_of(queue, partition)

    def has_left(self, queue: Queue, group: GroupId, error: QueratorError) -> bool:
        """Whether the error says no more than that a partition, which was closing and empty, has
        left the queue since.
        """
        known = self._placed().get(queue.id)
        return (
            error.code is ErrorCode.QUEUE_DELETING
            and known is not None
            and known.state is QueueState.ACTIVE
            and group not in known.groups
        )

    def on_map(self) -> None:
        newer, self._newer = self._newer, asyncio.Event()
        newer.set()

    # --- when the map may be old -----------------------------------------------------------------

    async def catch_up(self) -> bool:
        """Waits until this node's map is at least as new as what has been acknowledged anywhere.
        False: the placement group did not answer in time, and the map is what it is.
        """
        if self._router.forwarder is None:
            return True
        if self._catching_up is not None:
            # It may have asked before what this caller knows of was acknowledged.
            await asyncio.shield(self._catching_up)
        if self._catching_up is None:
            # Owned: whoever has waited for the one before shares it, and awaits it.
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

    async def existing(self, look: Callable[[], T], *, deadline: float | None = None) -> T:
        """What `look` returns. When it does not find what it looks for, or finds it unfinished or
        being deleted, it looks once more as `newly` does: another node may have made it just now.
        """
        try:
            return look()
        except QueratorError as error:
            if self._router.forwarder is None or not _is_perhaps_old(error):
                raise
        return await self.newly(look, deadline=deadline)

    async def newly(self, look: Callable[[], T], *, deadline: float | None = None) -> T:
        """What `look` returns after the map has caught up, as far as that comes in time (see
        `whole`). When the map has not, and has no such queue or one that is being deleted, it is
        UNAVAILABLE: the queue, or another one of that name, may have been made since.
        """
        known = await self._catch_up_by(deadline)
        try:
            return look()
        except QueratorError as error:
            if known or error.code not in _OF_THE_MAP:
                raise
            raise QueratorError(
                ErrorCode.UNAVAILABLE,
                f"{error.message}, as far as this node knows, whose map may be old; not executed",
                field=error.field,
                value=error.value,
                retry_delay_ms=OVERLOADED_RETRY_MS,
            ) from error

    async def reaching(
        self, queue: Queue, partition: int, *, deadline: float | None = None
    ) -> tuple[Queue, bool]:
        """The queue and whether it is certain which partitions it has: when this one has no such
        partition, as the map has it that has caught up, if that comes in time (see `whole`).
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
            f"partition is {partition}; as far as this node knows, whose map may be old, queue "
            f"{queue.name} has partitions 0 to {len(queue.groups) - 1}; not executed",
            field="partition",
            value=str(partition),
            retry_delay_ms=OVERLOADED_RETRY_MS,
        )

    async def since(
        self, queue: Queue, routing: int, *, deadline: float | None = None
    ) -> tuple[Queue, bool]:
        """As `reaching`, for who knows that its partitions were told this version of their number:
        they are before the map is.
        """
        if routing <= queue.routing:
            return queue, True
        known = await self._catch_up_by(deadline)
        return self.newest(queue), known

    async def whole(self, queue: Queue, *, deadline: float | None = None) -> Queue:
        """The queue with all partitions that it has, as far as that is known in time: in half of
        what is left until the deadline, for the other half is for what follows.
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
        """Waits until this node's map has other partitions of the queue; False: not until then."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                while self.newest(queue).groups == queue.groups:
                    await self._newer.wait()
                return True
        return False

    def newest(self, queue: Queue) -> Queue:
        """As this node's map has it."""
        return self._placed().get(queue.id) or queue


def _is_perhaps_old(error: QueratorError) -> bool:
    """Whether a newer map may answer otherwise. Of the refusals as UNAVAILABLE, that of a queue
    that is being created names a field.
    """
    unfinished = error.code is ErrorCode.UNAVAILABLE and error.field == "queue"
    return unfinished or error.code in _OF_THE_MAP
