"""The calls of ClusterService."""

from collections.abc import Mapping

from querator.server.calls.grpc_calls import Context, Unary
from querator.service.cluster_service import ClusterService
from querator.wire import cluster


class ClusterCalls:
    """Handlers; each reads its request, asks the service and writes the answer."""

    def __init__(self, service: ClusterService) -> None:
        self._service = service

    def by_method(self) -> Mapping[str, Unary]:
        return {
            "GetClusterStatus": self.get_cluster_status,
            "GetClusterPlan": self.get_cluster_plan,
            "HandOffNode": self.hand_off_node,
            "ReplaceNode": self.replace_node,
            "DrainNode": self.drain_node,
            "RemoveNode": self.remove_node,
            "ReadmitNode": self.readmit_node,
        }

    async def get_cluster_status(self, data: bytes, _: Context) -> bytes:
        cluster.parse_cluster_status(data)
        return cluster.encode_cluster_status(await self._service.status())

    async def get_cluster_plan(self, data: bytes, _: Context) -> bytes:
        cluster.parse_cluster_plan(data)
        return cluster.encode_cluster_plan(await self._service.plan())

    async def hand_off_node(self, data: bytes, _: Context) -> bytes:
        handed = await self._service.hand_off(cluster.parse_hand_off(data))
        return cluster.encode_handed_off(handed)

    async def replace_node(self, data: bytes, _: Context) -> bytes:
        replaced = await self._service.replace(cluster.parse_replace(data))
        return cluster.encode_replaced(replaced)

    async def drain_node(self, data: bytes, _: Context) -> bytes:
        name, undo = cluster.parse_drain(data)
        return cluster.encode_drained(await self._service.drain(name, undo=undo))

    async def remove_node(self, data: bytes, _: Context) -> bytes:
        return cluster.encode_removed(await self._service.remove(cluster.parse_remove(data)))

    async def readmit_node(self, data: bytes, _: Context) -> bytes:
        await self._service.readmit(cluster.parse_readmit(data))
        return cluster.encode_readmitted()
