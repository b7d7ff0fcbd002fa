"""The door: how a client moves items. Behaviours use this, and know nothing of the transport.

A door takes the messages of the protocol as values and returns such messages, whatever it sends
itself. It raises `Refused` for what a server has refused. One that speaks another protocol
implements `Door`, and is entered in `DOORS` of conftest.py.
"""

from dataclasses import dataclass
from typing import Protocol

from querator.v1 import queue_service_pb2 as pb
from querator.v1.items_pb2 import LeasedBatch

CALL_S = 30
"""Bound of a call that does not wait for items. Nothing in a test comes near to it."""


@dataclass(eq=False)
class Refused(Exception):
    """What a server says when it refuses a request."""

    code: str
    field: str = ""
    limit: str = ""
    value: str = ""
    message: str = ""
    retriable: bool = False

    @property
    def facts(self) -> tuple[str, str, str, str]:
        return self.code, self.field, self.limit, self.value


class Door(Protocol):
    """One connection of a client to one node."""

    async def produce(self, request: pb.ProduceRequest) -> pb.ProduceResponse: ...

    async def lease(self, request: pb.LeaseRequest) -> list[LeasedBatch]:
        """Returns when `max_items` are leased, or `wait_timeout` has passed: then fewer."""

    async def complete(self, request: pb.CompleteRequest) -> pb.CompleteResponse: ...

    async def retry(self, request: pb.RetryRequest) -> pb.RetryResponse: ...

    async def extend(self, request: pb.ExtendRequest) -> pb.ExtendResponse: ...

    async def close(self) -> None:
        """Ends the connection without a farewell: leases stay."""
