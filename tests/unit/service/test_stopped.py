"""A queue with a stopped partition is not changed. The error names the partition and the reason."""

from typing import Any

import pytest

from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import GroupId
from querator.model.queues import QueueSettings
from querator.model.readers import OpenReader
from querator.partition.dedup_export import ClosureQuery
from querator.partition.machine import PartitionMachine
from querator.raft.group.group import Group
from querator.raft.turn import turn
from querator.service import stopped
from querator.service.reading.queries import NOT_OPEN
from querator.storage.environment import StorageCorrupt
from querator.storage.memory_environment import MemoryEnvironment
from tests.unit.service.routing.test_router import group_of
from tests.unit.service.service_cluster import service_cluster
from tests.unit.service.service_node import ServiceNode, code, refusal, service_node

LONGER = QueueSettings(lease_timeout_ms=77_000)


class Broken:
    """Makes the partition machines of `groups` fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.groups: set[GroupId] = set()
        apply = PartitionMachine.apply

        def fails(machine: PartitionMachine, *args: Any, **more: Any) -> Any:
            if machine.group in self.groups:
                raise StorageCorrupt("a row is damaged")
            return apply(machine, *args, **more)

        monkeypatch.setattr(PartitionMachine, "apply", fails)
        monkeypatch.setattr(stopped, "LOOK_S", 0.05)


def damage(monkeypatch: pytest.MonkeyPatch, broken: GroupId) -> None:
    """Makes the stored data of the group unreadable."""

    def opened(group: GroupId, *args: Any, **more: Any) -> Group:
        if group == broken:
            raise StorageCorrupt("a row is damaged")
        return Group(group, *args, **more)

    monkeypatch.setattr(turn, "Group", opened)


async def update(node: ServiceNode, settings: QueueSettings, *mask: str) -> Any:
    return await node.admin.update_queue("default", "q", settings, mask, 0)


@pytest.mark.parametrize(
    ("settings", "mask"),
    [(LONGER, "lease_timeout_ms"), (QueueSettings(partitions=5), "partitions")],
)
async def test_a_change_is_refused_while_a_partition_is_stopped(monkeypatch, settings, mask):
    broken = Broken(monkeypatch)
    async with service_node(may_fail=True) as node:
        before = await node.create(partitions=3)
        broken.groups = {before.groups[1]}
        broken_by = node.host.propose(before.groups[1], OpenReader("lake"))
        assert await code(broken_by) is ErrorCode.OUTCOME_UNKNOWN
        error = await refusal(update(node, settings, mask))
        assert (error.code, error.field, error.value) == (
            ErrorCode.STORAGE_FAILED,
            "partition",
            "1",
        )
        for part in ("queue q", "partition 1 (node node: ", "a row is damaged", "node replace"):
            assert part in error.message
        assert node.placement.map.find("default", "q") == before
        assert not node.placement.pending


async def test_a_partition_that_cannot_be_opened_is_named(monkeypatch):
    environment = MemoryEnvironment()
    async with service_node(environment) as node:
        before = await node.create(partitions=3)
    damage(monkeypatch, before.groups[2])
    async with service_node(environment, may_fail=True) as node:
        error = await refusal(update(node, LONGER, "lease_timeout_ms"))
        assert (error.code, error.value) == (ErrorCode.STORAGE_FAILED, "2")
        assert "could not be read" in error.message
        assert "a row is damaged" in error.message


async def test_a_partition_without_a_leader_is_waited_for_unless_a_replica_says_why(monkeypatch):
    Broken(monkeypatch)
    async with service_cluster("a", "b", partitions=2) as cluster:
        cluster.lead(group_of(cluster, 1), None)
        queue = cluster.base.placement.map.find("default", "q")
        assert queue is not None
        await stopped.check_running(cluster.members["a"].router, queue, deadline=None)

        async def fails(_: object) -> None:
            raise QueratorError(ErrorCode.INTERNAL, "it is stopped")

        monkeypatch.setattr(cluster.members["b"].router._answers, "answer", fails)
        error = await refusal(
            stopped.check_running(cluster.members["a"].router, queue, deadline=None)
        )
        assert (error.value, "partition 1 (node b: it is stopped)" in error.message) == ("1", True)


async def test_a_node_whose_replica_is_not_open_says_that_it_does_not_lead(monkeypatch):
    async with service_cluster("a", "b") as cluster:
        group = group_of(cluster)
        host = cluster.base.host
        monkeypatch.setattr(host, "status", lambda _: None)
        error = await refusal(cluster.members["b"].reads.answer(ClosureQuery(group)))
        # The caller continues with another node. A new replica opens soon: it does not count as
        # stopped.
        assert (error.code, error.field) == (ErrorCode.NOT_LEADER, "")
        assert "not open yet" in error.message
        broken = QueratorError(ErrorCode.INTERNAL, "a row is damaged")
        monkeypatch.setattr(host, "unreadable", lambda: {group: broken})
        error = await refusal(cluster.members["b"].reads.answer(ClosureQuery(group)))
        assert (error.code, error.field) == (ErrorCode.NOT_LEADER, NOT_OPEN)
        assert "a row is damaged" in error.message
