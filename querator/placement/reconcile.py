"""Makes the groups of this node equal to the map, one queue at a time.

What is to be done follows from the queue alone, so that it goes on after a crash wherever it
stopped; every step may be done again:

    queue in the map         steps, in order
    CREATING, or settings    open each group (which makes it when it is not there) · Configure in
    not yet in all           each · QueueConfigured
    partitions
    DELETING                 delete each group with its data · QueueGone
    ACTIVE, all configured   open each group

A group is made only after the entry that names it is applied, and its queue leaves the map only
after the group's data is gone: no data is ever without a name.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from querator.model.commands import Configure, DeadTarget, PartitionSettings, Refusal
from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import PLACEMENT_GROUP, GroupId
from querator.model.placement_map import PlacementMap
from querator.model.queues import Queue, QueueState
from querator.placement.commands import QueueConfigured, QueueGone
from querator.raft.host import Host
from querator.raft.machine import Machine

MachineFactory = Callable[[GroupId], Machine]


def partition_settings(placed: PlacementMap, queue: Queue, partition: int) -> PartitionSettings:
    """What the partition needs to know of its queue.

    A dead queue outlives the settings that name it and never changes its partitions, so its groups
    are the same whenever the same version of the settings is looked at.
    """
    settings = queue.settings
    targets: tuple[DeadTarget, ...] = ()
    if settings.dead_queue:
        dead = placed.find(queue.namespace, settings.dead_queue)
        assert dead is not None, "a dead queue is not deleted while it is in use"
        targets = tuple(
            DeadTarget(dead.name, number, group) for number, group in enumerate(dead.groups)
        )
    return PartitionSettings(
        namespace=queue.namespace,
        queue=queue.name,
        queue_id=queue.id,
        partition=partition,
        lease_timeout_ms=settings.lease_timeout_ms,
        expire_timeout_ms=settings.expire_timeout_ms,
        max_attempts=settings.max_attempts,
        dedup_window_ms=settings.dedup_window_ms,
        items_max=settings.partition_items_max,
        dead_targets=targets,
    )


class Reconciler:
    """The steps on one host. Not concurrent for one queue; the caller sees to that."""

    def __init__(self, host: Host, machine_for: MachineFactory) -> None:
        self._host = host
        self._machine_for = machine_for
        self._open: set[GroupId] = set()

    async def open(self, queue: Queue) -> None:
        """Opens the queue's groups that are not open. Raises what the host raises for the first one
        that fails; the others are open all the same.
        """
        missing = [group for group in queue.groups if group not in self._open]
        await _all(self._open_group(group) for group in missing)

    async def _open_group(self, group: GroupId) -> None:
        await self._host.create_group(group, self._machine_for(group))
        self._open.add(group)

    async def settle(self, placed: PlacementMap, queue: Queue) -> None:
        """All steps for a queue with something left to do. Raises QueratorError; then again."""
        if queue.state is QueueState.DELETING:
            await _all(self._delete_group(group) for group in queue.groups)
            await self._accepted(PLACEMENT_GROUP, QueueGone(queue.id))
            return
        await self.open(queue)
        version = queue.settings_version
        await _all(
            self._accepted(group, Configure(version, partition_settings(placed, queue, partition)))
            for partition, group in enumerate(queue.groups)
        )
        await self._accepted(PLACEMENT_GROUP, QueueConfigured(queue.id, version))

    async def _delete_group(self, group: GroupId) -> None:
        await self._host.delete_group(group)
        self._open.discard(group)

    async def _accepted(self, group: GroupId, command: Any) -> None:
        result = await self._host.propose(group, command)
        if isinstance(result, Refusal):
            raise QueratorError(
                ErrorCode.INTERNAL, f"group {group} refused {command}: {result.message}"
            )


async def _all(steps: Iterable[Awaitable[None]]) -> None:
    """Waits for every step, then raises the first error."""
    for outcome in await asyncio.gather(*steps, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
