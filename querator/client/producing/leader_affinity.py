"""Which node an ordered producer's stream goes to: the one that leads its partition, so that its
requests need not be passed on.
"""

import asyncio

from querator.client.transport.nodes import Nodes
from querator.model.routing import partition_of_producer

MOVE_SECONDS = 1.0
"""A producer does not change nodes more often, unless its own one fails."""


class Home:
    """Of one producer. `moving`: its stream is to be opened anew, elsewhere."""

    def __init__(self, nodes: Nodes, namespace: str, queue: str) -> None:
        self._nodes = nodes
        self._namespace = namespace
        self._queue = queue
        self._loop = asyncio.get_running_loop()
        self._leader = ""
        """Address to which the next stream goes; empty: it is asked for."""
        self.moving = False
        self._move_after = 0.0

    async def place(self, producer_id: bytes) -> str:
        """Address for the next stream; empty: any will do, as for a producer without order."""
        address, self._leader = self._leader, ""
        if address or not producer_id:
            return address
        return await self._nodes.leader(
            self._namespace,
            self._queue,
            lambda count: partition_of_producer(producer_id, 0, ordered=True, partitions=count),
        )

    def follows(self, leader: str, *, now_at: str) -> bool:
        """Whether to move to this address, which leads. Not before it is connected."""
        now = self._loop.time()
        if (
            self.moving
            or now < self._move_after
            or leader == now_at
            or not self._nodes.is_near(leader)
        ):
            return False
        self._move_after = now + MOVE_SECONDS
        self._leader, self.moving = leader, True
        return True

    def leave(self) -> None:
        """The node of the stream is left for any other one."""
        self._leader, self.moving = "", True

    def arrived(self) -> bool:
        """There is a stream, or another reason to open one; whether it was moving."""
        moving, self.moving = self.moving, False
        return moving
