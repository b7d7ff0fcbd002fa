"""What a node reports about its cluster."""

from querator.model.ids import GroupId
from querator.model.placement_map import PlacedNode
from querator.raft.clock import SimulatedClock
from querator.service.cluster_service import ClusterService
from tests.unit.service.service_node import ServiceNode, service_node

HOUR_MS = 3_600_000


async def stay() -> None:
    """A hand-off that does nothing."""


def cluster_service(node: ServiceNode, *waiting: PlacedNode) -> ClusterService:
    return ClusterService(
        host=node.host,
        environment=node.environment,
        placement=node.placement,
        ask=None,
        connected=dict,
        on_hand_off=stay,
        waiting=lambda: waiting,
    )


async def test_time_of_an_idle_partition_is_not_ahead() -> None:
    clock = SimulatedClock()
    async with service_node(clock=clock) as node:
        queue = await node.create()
        service = cluster_service(node)

        async def ahead_ms(group: GroupId) -> int:
            status = await service.status()
            return next(one.time_ahead_ms for one in status.groups if one.group == group)

        clock.step_wall(HOUR_MS)
        assert await ahead_ms(queue.groups[0]) == 0
        clock.step_wall(-2 * HOUR_MS)
        assert await ahead_ms(queue.groups[0]) > 0


async def test_a_node_that_has_become_a_member_does_not_wait() -> None:
    async with service_node() as node:
        [member] = node.placement.map.nodes
        other = PlacedNode("other", "1", peer_address="peer:1", client_address="client:1")
        [waiting] = (await cluster_service(node, member, other).status()).waiting
        assert (waiting.name, waiting.peer_address) == ("other", "peer:1")
