"""Lets the recurrences of the partitions that this node leads run.

The state machine says how many recurrences wait for the leader (`partition.recurrences`). While
there are some, a task reads them from the leader's tables, plans them by the state time that it
reads with them, and proposes the decisions together. The machine refuses a decision that is not
the next one. So the driver may stop at any point, and the next leader continues.

A queue that is full, or a disk, refuses items. The recurrences keep waiting then, and are tried
again after a pause. What their due times are worth by then is decided by the policy for missed
runs.
"""

import asyncio
from functools import partial

from querator import telemetry
from querator.model.commands import Done
from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import GroupId
from querator.model.limits import FIRE_BYTES_MAX, FIRE_ITEMS_MAX
from querator.model.queues import QueueState
from querator.model.recurrences import Fire
from querator.partition import recurrence_queries
from querator.partition.recurrence_queries import RecurrencePage
from querator.service.recurring.planning import placed, plan
from querator.service.routing.outcomes import as_answer, each
from querator.service.routing.route import PartitionRoute
from querator.service.routing.router import Router
from querator.storage.environment import Environment

PAUSE_S_MIN = 0.02
PAUSE_S_MAX = 5.0
"""Pause after a refusal, doubled each time."""

_log = telemetry.logger(__name__)


class RecurrenceDriver:
    """Used on the event loop."""

    def __init__(self, router: Router, environment: Environment) -> None:
        self._router = router
        self._environment = environment
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[PartitionRoute, asyncio.Task[None]] = {}
        self._stopped = False

    def wake(self, route: PartitionRoute) -> None:
        """Recurrences of the partition wait for the leader, or this node has begun to lead it."""
        if self._stopped or not route.local or not route.effects.recurring or route in self._tasks:
            return
        # Owned: it ends when none wait, or with the leadership, or `stop` cancels it.
        task = self._loop.create_task(self._run(route))
        self._tasks[route] = task
        task.add_done_callback(partial(self._ended, route))

    def _ended(self, route: PartitionRoute, task: "asyncio.Task[None]") -> None:
        del self._tasks[route]
        if not task.cancelled():
            task.result()
            self.wake(route)

    async def stop(self) -> None:
        """Stops the driver; what waits is left to the next leader."""
        self._stopped = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, route: PartitionRoute) -> None:
        pause_s, items_max = PAUSE_S_MIN, FIRE_ITEMS_MAX
        while route.local and route.effects.recurring and not self._gone(route.group):
            try:
                error = await self._round(route, items_max)
            except Exception as defect:  # noqa: BLE001 - the top of the task: it is tried again
                error = as_answer(defect, "deciding runs of recurrences")
            if error is None:
                pause_s, items_max = PAUSE_S_MIN, min(2 * items_max, FIRE_ITEMS_MAX)
                continue
            # A queue with little space takes the items one by one.
            items_max = 1
            if pause_s == PAUSE_S_MAX:
                _log.warning("recurrences.stuck", group=route.group, error=str(error))
            await route.pause(self._loop.time() + pause_s)
            pause_s = min(pause_s * 2, PAUSE_S_MAX)

    async def _round(self, route: PartitionRoute, items_max: int) -> QueratorError | None:
        """Decides about each recurrence that waits. Returns the first refusal if nothing has been
        decided.
        """
        after, decided = 0, 0
        refused: QueratorError | None = None
        while True:
            with self._environment.snapshot() as txn:
                page = recurrence_queries.waiting(
                    txn, route.group, after=after, limit=FIRE_ITEMS_MAX, bytes_max=FIRE_BYTES_MAX
                )
            # Reads time zones from the disk, and takes long for some expressions.
            plans = await asyncio.to_thread(_plans, route.group, page, items_max)
            owner = self._router.map.by_group(route.group)
            if owner is None:
                return _BEHIND
            plans = [
                (placed(owner[0], one, fire), items)
                for one, (fire, items) in zip(page.recurrences, plans, strict=True)
            ]
            proposed = [self._router.call(route, fire, items) for fire, items in plans]
            for outcome in await each(proposed) if proposed else ():
                if isinstance(outcome, QueratorError):
                    refused = refused or outcome
                else:
                    assert isinstance(outcome, Done)
                    decided += outcome.changed
            if not page.after:
                return None if decided else refused or _BEHIND
            after = page.after

    def _gone(self, group: GroupId) -> bool:
        """Whether the group's queue has been deleted, or is being deleted."""
        owner = self._router.map.by_group(group)
        return owner is None or owner[0].state is QueueState.DELETING


def _plans(group: GroupId, page: RecurrencePage, items_max: int) -> list[tuple[Fire, bytes]]:
    return [plan(group, one, page.now_ms, items_max) for one in page.recurrences]


_BEHIND = QueratorError(ErrorCode.UNAVAILABLE, "the tables are behind the effects of the partition")
