"""Lets partitions that this node leads forget groups that have left the map.

A partition remembers the last move that it has accepted from each source, and sent to each target
(`partition.departed`). This is useless once a queue has been deleted, or partitions have closed.
Forgetting is not urgent, so changes are collected for LOOK_S.

"Left" is decided by the map, after it has caught up with the leader's: a remembered group was in a
map once, ids are never reused, and groups with lower ids were in maps before. So a remembered group
that is missing in such a map has left it for ever.
"""

import asyncio
from typing import Final

from querator import telemetry
from querator.model.commands import Done, ForgetGroups
from querator.model.queues import QueueState
from querator.partition.departed import departed
from querator.service.routing.directory import QueueDirectory
from querator.service.routing.outcomes import as_answer
from querator.service.routing.route import PartitionRoute
from querator.service.routing.router import Router
from querator.storage.environment import Environment

LOOK_S: Final = 10.0
"""Delay after a change of the map or of leaders, or after a failure."""
LOOKED_AT_ONCE: Final = 100
"""Number of partitions that are checked before other tasks of the loop get their turn."""

_log = telemetry.logger(__name__)


class Departed:
    """Removes departed groups from partitions led here. Used on the event loop."""

    def __init__(self, router: Router, directory: QueueDirectory, environment: Environment) -> None:
        self._router = router
        self._environment = environment
        self._directory = directory
        self._routes: dict[PartitionRoute, None] = {}
        """Partitions to check."""
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    def on_leader_change(self, route: PartitionRoute) -> None:
        """This node has begun or ceased to lead the partition."""
        if route.local and not self._stopped:
            self._routes[route] = None
            if self._task is None:
                # Owned: it ends when no partition is left to check, or `stop` cancels it.
                self._task = asyncio.get_running_loop().create_task(self._run())

    def on_map(self) -> None:
        for route in self._router.known():
            self.on_leader_change(route)

    async def stop(self) -> None:
        self._stopped = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            while self._routes:
                await asyncio.sleep(LOOK_S)
                routes, self._routes = self._routes, {}
                try:
                    await self._forget(routes)
                except Exception as defect:  # noqa: BLE001 - the top of the task: it is tried again
                    error = as_answer(defect, "forgetting groups that have left the map")
                    _log.info("departed.forget_failed", error=str(error))
                self._routes |= routes
        finally:
            self._task = None

    async def _forget(self, routes: dict[PartitionRoute, None]) -> None:
        """Removes finished partitions from `routes`. Raises QueratorError."""
        found = []
        living = self._living()
        for number, route in enumerate(list(routes)):
            if self._named(route, living):
                found.append(route)
            else:
                del routes[route]
            if number % LOOKED_AT_ONCE == LOOKED_AT_ONCE - 1:
                await asyncio.sleep(0)
        if not found or not await self._directory.catch_up():
            return
        living = self._living()
        for route in found:
            while ranges := self._named(route, living):
                done = await self._router.call(route, ForgetGroups(ranges))
                assert isinstance(done, Done)
                if not done.changed:
                    # They were forgotten through another node, and this replica is behind.
                    break
                _log.debug("departed.forgotten", group=route.group, rows=done.changed)
            else:
                del routes[route]

    def _living(self) -> set[int]:
        return {group for queue in self._router.map for group in queue.groups}

    def _named(self, route: PartitionRoute, living: set[int]) -> tuple[tuple[int, int], ...]:
        """Ranges that the partition may forget, if all groups except the `living` are gone."""
        owner = self._router.map.by_group(route.group)
        if not route.local or owner is None or owner[0].state is QueueState.DELETING:
            return ()
        with self._environment.snapshot() as txn:
            return departed(txn, route.group, living)
