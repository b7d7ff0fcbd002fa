"""After the answer to a deletion no node stores items in the queue or leases from it, not even a
node with an old map.
"""

from querator.model.errors import ErrorCode
from querator.model.ids import GroupId
from tests.unit.service.service_cluster import ServiceCluster, service_cluster
from tests.unit.service.service_node import code, lease_call, produce_call

NODES = ("a", "b", "c")


def groups_of(cluster: ServiceCluster) -> tuple[GroupId, ...]:
    queue = cluster.base.placement.map.find("default", "q")
    assert queue is not None
    return queue.groups


async def test_nothing_is_stored_after_a_deletion_is_answered():
    async with service_cluster(*NODES, partitions=3) as cluster:
        for group, name in zip(groups_of(cluster), NODES, strict=True):
            cluster.lead(group, name)
        for name in NODES:
            await cluster.produce(name, b"x")
            cluster.maps[name].fall_behind()
        await cluster.base.admin.delete_queue("default", "q")
        for name in NODES:
            member = cluster.members[name]
            produced = await code(member.produce(produce_call(b"late", timeout_ms=100)))
            assert produced in (ErrorCode.NOT_LEADER, ErrorCode.DEADLINE_EXCEEDED)
            assert (await member.lease(lease_call(1))).batches == ()
