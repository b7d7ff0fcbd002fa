"""Makes the groups of this node match the map, one queue at a time.

The work follows from the queue alone, so after a crash it continues where it stopped. Every step
may be repeated, and run by several nodes at once:

    queue in the map         each node that holds replicas     the leader of group 0
    CREATING, or settings    open each group (which makes it   Configure in each · QueueConfigured
    not yet in all           when it is not there)
    partitions
    DELETING                 close each group · ReplicasClosed;
                             delete it with its data
                             · ReplicasGone
    ACTIVE, all configured   open each group
    ACTIVE, with another     open each group                `placement.tasks.repartitioning`
    number of partitions
    than before

The stored data of a group that has settled without this node, or with another replica on it, is
deleted (`surplus`): the replica moved elsewhere, and no majority counts on it. The remains of an
interrupted deletion are deleted too. While the group moves, a replica found at the start is opened
as before: it may still vote, and it may have data that no other replica has.

A group is made only after the entry that names it is committed. Its queue leaves the map only after
the group's data is deleted everywhere. So no data is ever without a name. A node may have made the
group by a map that it received from another node, and after a restart its own map may not name the
group yet. A group that no map up to this one has named is therefore kept.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from enum import Enum
from typing import Any

from querator.model.commands import (
    Configure,
    DeadTarget,
    FlowSettings,
    PartitionSettings,
    Refusal,
)
from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import PLACEMENT_GROUP, GroupId, QueueId
from querator.model.lease_limits import limits_of, part_of, rate_part
from querator.model.nodes import NodeKey, Replicas
from querator.model.placement_map import PlacedGroup, PlacementMap
from querator.model.queues import ExecutionSettings, GroupSettings, Queue, QueueKind, RateSettings
from querator.placement.bootstrap import Propose, learning
from querator.placement.map.commands import QueueConfigured, ReplicasClosed, ReplicasGone
from querator.raft.host import Host
from querator.raft.machine import Machine

MachineFactory = Callable[[GroupId], Machine]

CONFIGURING_MAX = 64
"""Partitions of one queue that are configured at once."""


def partition_settings(placed: PlacementMap, queue: Queue, partition: int) -> PartitionSettings:
    """The part of the queue's settings that the partition needs.

    A dead queue outlives the settings that name it. When its partitions change, the settings of its
    users get another version, so one version always has the same groups.
    """
    settings = queue.settings
    targets: tuple[DeadTarget, ...] = ()
    if settings.dead_queue:
        dead = placed.find(queue.namespace, settings.dead_queue)
        assert dead is not None, "a dead queue is not deleted while it is in use"
        targets = tuple(
            DeadTarget(dead.name, number, group)
            for number, group in enumerate(dead.groups[: dead.settings.partitions])
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
        first_seq=queue.first_seq(partition),
        retry=settings.retry_policy,
        priority_aging_ms=settings.priority_aging_ms,
        dedup_until=settings.dedup_until,
        flows=_flow_settings(queue, partition),
        lease_paused=settings.lease_paused,
        produce_paused=settings.produce_paused,
        breaker=settings.breaker,
        limits=limits_of(settings, partition, len(queue.groups)),
        events_retention_ms=settings.events_retention_ms,
        executions=ExecutionSettings(settings.execution_retention_ms)
        if settings.kind is QueueKind.EXECUTIONS
        else None,
    )


def _flow_settings(queue: Queue, partition: int) -> FlowSettings | None:
    """The settings of a fair or keyed queue, with this partition's part of the limits of groups;
    all parts together are the limit, or 1 each.
    """
    settings = queue.settings
    if settings.kind in (QueueKind.PLAIN, QueueKind.EXECUTIONS):
        return None

    def part(limit: int) -> int:
        return part_of(limit, partition, len(queue.groups)) if limit else 0

    def part_of_rate(rate: RateSettings | None) -> RateSettings | None:
        return None if rate is None else rate_part(rate, partition, len(queue.groups))

    of_keys = settings.key_rate_limit and rate_part(settings.key_rate_limit, 0, 1)
    return FlowSettings(
        kind=settings.kind,
        fairness=settings.fairness,
        group_leased_max=part(settings.group_leased_max),
        groups=tuple(
            GroupSettings(
                group.path,
                group.weight,
                part(group.leased_max),
                group.paused,
                part_of_rate(group.rate_limit),
            )
            for group in settings.groups
        ),
        key_leased_max=settings.key_leased_max,
        key_retry_blocks=settings.key_retry_blocks,
        # All items of a key are in one partition.
        rate_limit=part_of_rate(settings.group_rate_limit) or of_keys,
    )


def first_configuration(placed: PlacedGroup, node: NodeKey) -> Replicas:
    """The configuration with which a node begins that has no data of the group. A founding replica
    always begins like the other founding replicas, however late. A replica that was added later, or
    rebuilt, begins as a learner; it votes once the others, which have a majority without it,
    promote it. Empty for a node that the map does not name any more: it has data.
    """
    own = placed.replica_on(node)
    if own is None:
        return ()
    if any((replica.id, replica.node) == (own.id, node) for replica in placed.founding):
        return placed.founding
    return learning(placed.target, node)


class ReconcileStep(Enum):
    """A step for one queue on one node, as in the table above."""

    OPEN = "open"
    CONFIGURE = "configure"
    DELETE = "delete"


class Reconciler:
    """The steps on one host. The caller must not run two steps for one queue concurrently."""

    def __init__(
        self, host: Host, machine_for: MachineFactory, *, node: NodeKey, propose: Propose
    ) -> None:
        self._host = host
        self._machine_for = machine_for
        self._node = node
        self._propose = propose
        self.opened = 0
        """Number of groups that this node has opened; each may change what is surplus."""
        self.unconfigured: dict[QueueId, tuple[int, ...]] = {}
        """By queue, the numbers of the partitions that did not accept its settings."""
        self._open: set[GroupId] = set()
        self._stored: set[GroupId] = set()
        """Groups that may have a replica here that is not being deleted."""
        self._half_deleted: set[GroupId] = set()
        self._found: set[GroupId] = set()
        """Groups of `_stored` that were on disk at the start and can be opened; a group that was
        only about to be made is not one of them.
        """

    def begin(self, stored: Mapping[GroupId, bool]) -> None:
        """`stored` has the groups with a replica here at the start, and whether its deletion was
        interrupted. Such a replica cannot be opened.
        """
        self._stored.update(stored)
        self._half_deleted.update(group for group, half_deleted in stored.items() if half_deleted)
        self._found.update(stored.keys() - self._half_deleted)

    def surplus(self, placed: PlacementMap) -> list[GroupId]:
        """The groups with a replica here that has moved away."""
        return [group for group in self._stored if self.is_surplus(placed, group)]

    def is_surplus(self, placed: PlacementMap, group: GroupId) -> bool:
        known = placed.placed(group)
        if group == PLACEMENT_GROUP or known is None:
            # Groups of a queue in the map are deleted together with their queue (`delete`).
            return PLACEMENT_GROUP < group < placed.next_group
        own, status = known.replica_on(self._node), self._host.status(group)
        if own is None:
            return not known.moving
        if group in self._half_deleted:
            return True
        return status is not None and status.replica != own.id

    async def clear(self, group: GroupId) -> None:
        """Deletes this node's data of the group. Raises QueratorError; the caller then retries."""
        # Removed before the deletion: meanwhile another replica of the group may be opened.
        self._open.discard(group)
        self._stored.discard(group)
        self._found.discard(group)
        try:
            await self._host.delete_group(group)
        except BaseException:
            self._stored.add(group)
            raise
        self._half_deleted.discard(group)

    def missing(self, placed: PlacementMap, queue: Queue) -> list[GroupId]:
        """The queue's groups of which this node should have a replica open and does not."""
        return [
            group
            for group in queue.groups
            if group not in self._open and self._should_hold(placed, group)
        ]

    def _should_hold(self, placed: PlacementMap, group: GroupId) -> bool:
        known = placed.placed(group)
        if known is None:
            return False
        moves_away = known.moving and group in self._found
        return moves_away or known.replica_on(self._node) is not None

    async def open(self, placed: PlacementMap, queue: Queue) -> None:
        """Opens the queue's groups that are missing here. Raises the host's first error, after the
        other groups are open.
        """
        await _all(self._open_group(placed, group) for group in self.missing(placed, queue))

    async def _open_group(self, placed: PlacementMap, group: GroupId) -> None:
        known = placed.placed(group)
        assert known is not None
        replicas = first_configuration(known, self._node)
        self._stored.add(group)
        await self._host.create_group(group, self._machine_for(group), replicas)
        if group in self._stored:
            # The group has not been cleared meanwhile.
            self._open.add(group)
        self.opened += 1

    async def configure(self, placed: PlacementMap, queue: Queue) -> None:
        """Sends the settings to all partitions. Raises QueratorError; the caller then retries.
        `unconfigured` has the partitions that did not accept them.
        """
        version = queue.settings_version
        slots = asyncio.Semaphore(CONFIGURING_MAX)

        async def one(group: GroupId, settings: PartitionSettings) -> None:
            async with slots:
                await self._accepted(group, Configure(version, settings))

        outcomes = await asyncio.gather(
            *(
                one(group, partition_settings(placed, queue, partition))
                for partition, group in enumerate(queue.groups)
            ),
            return_exceptions=True,
        )
        failed = {number: one for number, one in enumerate(outcomes) if one is not None}
        self.unconfigured.pop(queue.id, None)
        if failed:
            self.unconfigured[queue.id] = tuple(failed)
            raise next(iter(failed.values()))
        await self._accepted(PLACEMENT_GROUP, QueueConfigured(queue.id, version))

    async def delete(self, queue: Queue) -> None:
        """Closes and deletes this node's data of a queue. Raises QueratorError; the caller then
        retries.
        """
        self.unconfigured.pop(queue.id, None)
        await _all(self._host.close_group(group) for group in queue.groups)
        closed = self._accepted(PLACEMENT_GROUP, ReplicasClosed(queue.id, self._node))
        await _all((closed, *(self.clear(group) for group in queue.groups)))
        await self._accepted(PLACEMENT_GROUP, ReplicasGone(queue.id, self._node))

    async def _accepted(self, group: GroupId, command: Any) -> None:
        result = await self._propose(group, command)
        if isinstance(result, Refusal):
            raise QueratorError(
                ErrorCode.INTERNAL, f"group {group} refused {command}: {result.message}"
            )


async def _all(steps: Iterable[Awaitable[None]]) -> None:
    """Waits for every step, then raises the first error."""
    for outcome in await asyncio.gather(*steps, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
