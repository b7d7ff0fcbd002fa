"""Callers who wait until the map of this node shows their change with nothing left to do."""

import asyncio
from collections.abc import Sequence

from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import QueueId
from querator.model.placement_map import PlacementMap
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
        waiting = self._waiting.setdefault(asked.id, [])
        waiting.append((asked, future))
        try:
            await future
        finally:
            if (asked, future) in waiting:
                waiting.remove((asked, future))

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


def not_followed(asked: Queue, placed: PlacementMap, missing: Sequence[int]) -> QueratorError:
    """For a caller who has waited long enough. `missing`: the partitions that are waited for, as
    far as is known.
    """
    numbers = ", ".join(map(str, missing))
    waits = f"; it waits for partitions {numbers}" if numbers else ""
    known = placed.get(asked.id)
    going_on = ""
    if known is not None and known.shares != asked.settings.partitions:
        going_on = f"; requests go on with {known.shares} partitions until then"
    return QueratorError(
        ErrorCode.OUTCOME_UNKNOWN,
        f"the settings of queue {asked.name} are stored, and its partitions are being told of "
        f"them{waits}{going_on}: see querator cluster status",
        field="partition" if numbers else "",
        value=numbers,
    )
