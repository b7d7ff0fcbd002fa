"""Calls by the generated stubs, and what the server says when it refuses one."""

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status  # type: ignore[import-untyped]

from querator.v1 import errors_pb2
from querator.v1.admin_service_pb2_grpc import AdminServiceStub
from querator.v1.execution_service_pb2_grpc import ExecutionServiceStub
from querator.v1.queue_service_pb2_grpc import QueueServiceStub
from tests.conformance.door import Refused

if TYPE_CHECKING:
    # Only types: at run time there is one stub for both.
    from querator.v1.admin_service_pb2_grpc import AdminServiceAsyncStub
    from querator.v1.queue_service_pb2_grpc import QueueServiceAsyncStub

_Answer = TypeVar("_Answer")


class Node:
    """A channel to one node, and its stubs."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.channel = grpc.aio.insecure_channel(address)
        self.queue: QueueServiceAsyncStub = QueueServiceStub(self.channel)
        self.admin: AdminServiceAsyncStub = AdminServiceStub(self.channel)
        self.executions: Any = ExecutionServiceStub(self.channel)
        self.extend: Any = self.queue.Extend


async def answer(call: Awaitable[_Answer]) -> _Answer:
    """The answer of a call. Raises `Refused` for a refusal of the server."""
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise refusal(error) from error


def refusal(error: grpc.aio.AioRpcError) -> Refused | grpc.aio.AioRpcError:
    """The refusal in the details of a status, or the error itself if the server has said none."""
    status = rpc_status.from_call(error)
    info = error_details_pb2.ErrorInfo()
    if status is None or not any(detail.Unpack(info) for detail in status.details):
        return error
    facts = info.metadata
    return Refused(
        info.reason,
        facts.get("field", ""),
        facts.get("limit", ""),
        facts.get("value", ""),
        status.message,
        facts["retriable"] == "true",
    )


def refusal_of_frame(error: errors_pb2.Error) -> Refused:
    """The refusal in a frame of a stream."""
    code = errors_pb2.ErrorCode.Name(error.code).removeprefix("ERROR_CODE_")
    return Refused(code, error.field, error.limit, error.value, error.message, error.retriable)
