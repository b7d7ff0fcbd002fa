"""Callers that wait until the map of this node shows their change without pending work."""

import asyncio
from collections.abc import Callable, Sequence

from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import QueueId
from querator.model.nodes import node_name
from querator.model.placement_map import PlacementMap
from querator.model.queues import Queue
from querator.placement.map.machine import PlacementEffects
from querator.placement.map.majorities import open_groups

Shown = Callable[[PlacementEffects], bool]


class MapWaiters:
    """Belongs to one event loop. The owner passes on all effects, and finally calls `end`."""

    def __init__(self) -> None:
        self._waiting: dict[QueueId, list[tuple[Shown, asyncio.Future[None]]]] = {}
        self._ended: QueratorError | None = None

    async def until_settled(self, asked: Queue, effects: PlacementEffects, *, routed: bool) -> None:
        """Returns when the queue has the version `asked`, or is gone; `routed`: when it also has
        its number of partitions. Raises the error given to `end`.
        """
        await self._until(asked.id, lambda shown: shown.has_settled(asked, routed=routed), effects)

    async def until_closed(self, queue_id: QueueId, effects: PlacementEffects) -> None:
        """Returns when no node can lead a partition of the queue, which is being deleted. Raises
        the error given to `end`.
        """
        await self._until(queue_id, lambda shown: shown.has_closed(queue_id), effects)

    async def _until(self, queue_id: QueueId, shown: Shown, effects: PlacementEffects) -> None:
        if shown(effects):
            return
        if self._ended is not None:
            raise self._ended
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(queue_id, [])
        waiting.append((shown, future))
        try:
            await future
        finally:
            if (shown, future) in waiting:
                waiting.remove((shown, future))

    def check(self, effects: PlacementEffects) -> None:
        for queue_id, waiting in tuple(self._waiting.items()):
            left = []
            for shown, future in waiting:
                if future.done():
                    continue
                if not shown(effects):
                    left.append((shown, future))
                else:
                    future.set_result(None)
            if left:
                self._waiting[queue_id] = left
            else:
                del self._waiting[queue_id]

    def end(self, error: QueratorError) -> None:
        """Fails all current and later waiters with the error."""
        self._ended = error
        for waiting in self._waiting.values():
            for _, future in waiting:
                if not future.done():
                    future.set_exception(error)
        self._waiting.clear()


def not_decided() -> QueratorError:
    """The error when the placement group has not answered before the deadline."""
    return QueratorError(
        ErrorCode.OUTCOME_UNKNOWN,
        "the placement group did not answer before the deadline: it is unknown whether it has "
        "accepted the change; repeat the request",
    )


def not_followed(asked: Queue, placed: PlacementMap, missing: Sequence[int]) -> QueratorError:
    """The error when partitions have not followed before the deadline. `missing`: the partitions
    that are waited for, as far as is known.
    """
    numbers = ", ".join(map(str, missing))
    waits = f"; it waits for partitions {numbers}" if numbers else ""
    known = placed.get(asked.id)
    going_on = ""
    if known is not None and known.routed_partitions != asked.settings.partitions:
        going_on = f"; until then requests use {known.routed_partitions} partitions"
    return QueratorError(
        ErrorCode.OUTCOME_UNKNOWN,
        f"the settings of queue {asked.name} are stored, and are being sent to its "
        f"partitions{waits}{going_on}: see querator cluster status",
        field="partition" if numbers else "",
        value=numbers,
    )


def not_closed(asked: Queue, effects: PlacementEffects) -> QueratorError:
    """The error when the queue, which is being deleted, is not closed before the deadline."""
    closed = effects.deleted_on.get(asked.id, ()) + effects.closed_on.get(asked.id, ())
    known = effects.map.get(asked.id)
    left = {} if known is None else open_groups(effects.map, known, closed)
    names = ", ".join(sorted({node_name(node) for nodes in left.values() for node in nodes}))
    return QueratorError(
        ErrorCode.OUTCOME_UNKNOWN,
        f"queue {asked.name} is being deleted, which cannot be undone; {len(left)} of its "
        f"{len(asked.groups)} partitions may have a leader that does not know of the deletion, on "
        f"a node that has not answered: {names or 'unknown'}; items that such a leader accepts "
        "are deleted with the queue; repeat the request to wait for the deletion",
        field="queue",
        value=asked.name,
    )
