"""Callers who wait until the map of this node shows their change with nothing left to do."""

import asyncio

from querator.model.errors import QueratorError
from querator.model.ids import QueueId
from querator.model.queues import Queue
from querator.placement.machine import PlacementEffects


class Waiting:
    """Belongs to one event loop. The owner passes on all effects, and calls `end` at last."""

    def __init__(self) -> None:
        self._waiting: dict[QueueId, list[tuple[Queue, asyncio.Future[None]]]] = {}

    async def until_settled(self, asked: Queue, effects: PlacementEffects) -> None:
        """Returns when the queue is as `asked`, or gone. Raises what `end` is given."""
        if effects.has_settled(asked):
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(asked.id, []).append((asked, future))
        await future

    def look(self, effects: PlacementEffects) -> None:
        for queue_id, waiting in tuple(self._waiting.items()):
            left = []
            for asked, future in waiting:
                if not effects.has_settled(asked):
                    left.append((asked, future))
                elif not future.done():
                    future.set_result(None)
            if left:
                self._waiting[queue_id] = left
            else:
                del self._waiting[queue_id]

    def end(self, error: QueratorError) -> None:
        """Ends all who wait by the error."""
        for waiting in self._waiting.values():
            for _, future in waiting:
                if not future.done():
                    future.set_exception(error)
        self._waiting.clear()
