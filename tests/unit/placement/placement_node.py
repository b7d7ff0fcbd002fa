"""A running placement: the real host and real partitions on an environment that can crash."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from querator.model.ids import PLACEMENT_GROUP, GroupId
from querator.model.nodes import NodeKey
from querator.model.placement_map import PlacementMap
from querator.model.queues import QueueState
from querator.partition.machine import PartitionMachine
from querator.partition.rows import SettingsRow, decode_settings
from querator.placement.bootstrap import alone
from querator.placement.placement import Placement
from querator.placement.tasks.reconcile import partition_settings
from querator.raft.clock import RealClock
from querator.raft.host import Host
from querator.storage.keys import ALL
from querator.storage.memory_environment import MemoryEnvironment
from querator.storage.tables import SETTINGS


class PlacementNode:
    """Host and placement, joined as the node joins them."""

    def __init__(self, environment: MemoryEnvironment) -> None:
        self.environment = environment
        self.failed = asyncio.Event()
        self.failures: list[BaseException] = []
        self.host = Host(environment, clock=RealClock(), events=self)
        self.placement = Placement(
            self.host,
            PartitionMachine,
            environment=environment,
            bootstrap=alone(),
            on_failure=self.on_failure,
        )

    def on_effects(self, group: GroupId, effects: Any) -> None:
        if group == PLACEMENT_GROUP:
            self.placement.on_effects(effects)

    def on_leader(self, group: GroupId, node: NodeKey | None) -> None: ...

    def on_leadership(self, group: GroupId, leads: bool) -> None:
        pass

    def on_failure(self, error: BaseException) -> None:
        self.failures.append(error)
        self.failed.set()
        self.placement.end()

    def on_damage(self, group: GroupId, index: int, part: int) -> None: ...

    def on_quarantine(self, group: GroupId, error: BaseException) -> None:
        self.on_failure(error)

    def on_hang(self, hangs: bool) -> None:
        raise AssertionError("a node that is alone is not watched")

    async def start(self) -> None:
        await self.host.start()
        await self.placement.start()

    async def stop(self) -> None:
        await self.placement.stop()
        await self.host.stop()

    async def until_settled(self) -> PlacementMap:
        """Returns the map when no work for it is pending."""
        reached = asyncio.Event()

        def look(_: PlacementMap) -> None:
            if not self.placement.pending:
                reached.set()

        unwatch = self.placement.watch(look)
        look(self.placement.map)
        await reached.wait()
        unwatch()
        assert not self.failures
        return self.placement.map


@asynccontextmanager
async def placement_node(environment: MemoryEnvironment) -> AsyncIterator[PlacementNode]:
    one = PlacementNode(environment)
    await one.start()
    try:
        yield one
    finally:
        await one.stop()


def stored_settings(environment: MemoryEnvironment, group: GroupId) -> SettingsRow | None:
    with environment.snapshot() as snapshot:
        row = SETTINGS.get(snapshot, group)
    return None if row is None else decode_settings(row)


def stored_groups(environment: MemoryEnvironment, upto: int) -> set[int]:
    """Groups other than group 0 that have rows in any table."""
    with environment.snapshot() as snapshot:
        return {
            group
            for group in range(1, upto)
            for table in ALL.values()
            if next(iter(table.rows(snapshot, GroupId(group))), None) is not None
        }


def assert_groups_follow(environment: MemoryEnvironment, placed: PlacementMap) -> None:
    """Checks that exactly the groups of the map are stored, all with their settings."""
    for queue in placed:
        assert queue.state is QueueState.ACTIVE
        for partition, group in enumerate(queue.groups):
            row = stored_settings(environment, group)
            assert row is not None
            assert row.version == queue.settings_version
            assert row.settings == partition_settings(placed, queue, partition)
    groups = {group for queue in placed for group in queue.groups}
    assert stored_groups(environment, 50) == groups
