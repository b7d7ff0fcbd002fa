"""What a test has: doors to the nodes of one cluster, and queues that go with the test."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import uuid_utils

from querator.v1.admin_service_pb2 import ListQueuesRequest
from tests.conformance import nodes
from tests.conformance.door import CALL_S, Door, Refused
from tests.conformance.execution_stream import StreamedExecutions
from tests.conformance.queues import Queue
from tests.conformance.stream_door import StreamDoor
from tests.conformance.stubs import Node, answer


class Make:
    """Makes queues for one test, and knows the doors."""

    def __init__(self, door: Callable[[Node], Door], size: int, first: int) -> None:
        served = [Node(address) for address in nodes.addresses(size)]
        self.size = size
        self.nodes = served[first % size :] + served[: first % size]
        """The nodes, beginning with the one that the test uses."""
        self._door = door
        self._doors: list[Door] = []
        self._streams: list[StreamedExecutions] = []
        if door is StreamDoor:
            for node in self.nodes:
                node.executions = stream = StreamedExecutions(node)
                node.extend = stream.Extend
                self._streams.append(stream)
        self._created: list[Queue] = []
        self.door = self.open(0)

    def open(self, node: int) -> Door:
        """Another connection, to the node of this number."""
        door = self._door(self.nodes[node])
        self._doors.append(door)
        return door

    def name(self) -> str:
        """A name that no other test has."""
        return f"q-{uuid_utils.uuid7().hex[8:]}"

    def queue(self, name: str = "", namespace: str = "") -> Queue:
        """A queue that may not exist. Its name is unique unless one is given."""
        queue = Queue(name or self.name(), self.door, self.nodes[0], namespace)
        self._created.append(queue)
        return queue

    async def __call__(self, namespace: str = "", **settings: Any) -> Queue:
        """A queue that exists."""
        queue = self.queue(namespace=namespace)
        await queue.create(**settings)
        return queue

    @staticmethod
    def producer() -> bytes:
        """The identity of a producer that no other test has."""
        return uuid_utils.uuid7().bytes

    async def names(self, namespace: str, page_size: int = 0) -> list[str]:
        """All queues of a namespace, page by page."""
        names: list[str] = []
        token = ""
        while True:
            request = ListQueuesRequest(namespace=namespace, page_size=page_size, page_token=token)
            page = await answer(self.nodes[0].admin.ListQueues(request, timeout=CALL_S))
            names += [queue.name for queue in page.queues]
            if not (token := page.next_page_token):
                return names

    async def close(self) -> None:
        for connection in (*self._doors, *self._streams):
            await connection.close()
        for queue in reversed(self._created):
            with contextlib.suppress(Refused):
                # It may not exist.
                await queue.delete()
        await asyncio.gather(*(node.channel.close() for node in self.nodes))
