"""Choice of the node for an ordered producer's stream: the leader of the producer's partition, so
that no other node has to forward its requests.
"""

import asyncio

from querator.client.transport.nodes import Nodes
from querator.model.routing import partition_of_producer

MOVE_SECONDS = 1.0
"""Least time between two moves of a producer to another leader, unless its node fails."""


class LeaderAffinity:
    """The node of one producer's stream. `moving`: the stream is to be opened again on another
    node.
    """

    def __init__(self, nodes: Nodes, namespace: str, queue: str) -> None:
        self._nodes = nodes
        self._namespace = namespace
        self._queue = queue
        self._loop = asyncio.get_running_loop()
        self._leader = ""
        """Address for the next stream; empty: the leader is looked up."""
        self.moving = False
        self._move_after = 0.0

    async def next_address(self, producer_id: bytes) -> str:
        """Returns the address for the next stream. Empty: any node, as for a producer without
        order.
        """
        address, self._leader = self._leader, ""
        if address or not producer_id:
            return address
        return await self._nodes.leader(
            self._namespace,
            self._queue,
            lambda count: partition_of_producer(producer_id, 0, ordered=True, partitions=count),
        )

    def follows(self, leader: str, *, now_at: str) -> bool:
        """Whether the stream moves to the address of this leader. False until it is connected."""
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
        """Makes the next stream go to any other node."""
        self._leader, self.moving = "", True

    def arrived(self) -> bool:
        """A stream is open, or broke for another reason. Returns whether it was moving."""
        moving, self.moving = self.moving, False
        return moving
