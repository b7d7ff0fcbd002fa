"""After the answer to a deletion no node stores items in the queue or leases from it, not even a
node with an old map.
"""

from querator.model.errors import ErrorCode
from querator.model.ids import GroupId
from tests.unit.service.serving import code, lease_call, produce_call
from tests.unit.service.stage import Stage, staged

NODES = ("a", "b", "c")


def groups_of(stage: Stage) -> tuple[GroupId, ...]:
    queue = stage.base.placement.map.find("default", "q")
    assert queue is not None
    return queue.groups


async def test_nothing_is_stored_after_a_deletion_is_answered():
    async with staged(*NODES, partitions=3) as stage:
        for group, name in zip(groups_of(stage), NODES, strict=True):
            stage.lead(group, name)
        for name in NODES:
            await stage.produce(name, b"x")
            stage.maps[name].fall_behind()
        await stage.base.admin.delete_queue("default", "q")
        for name in NODES:
            member = stage.members[name]
            produced = await code(member.produce(produce_call(b"late", timeout_ms=100)))
            assert produced in (ErrorCode.NOT_LEADER, ErrorCode.DEADLINE_EXCEEDED)
            assert (await member.lease(lease_call(1))).batches == ()
