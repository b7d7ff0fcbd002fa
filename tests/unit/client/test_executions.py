"""Leases of activations whose outcome is not known."""

from collections import deque
from datetime import timedelta
from typing import Any

import grpc
import pytest

from querator import Client
from querator.client.errors import LeaseEnded
from querator.model.errors import ErrorCode, QueratorError
from querator.v1 import execution_service_pb2 as v1
from querator.wire.errors import error_status


class ScriptedNode:
    """Refuses the next lease calls, and then has nothing."""

    def __init__(self, *refusals: QueratorError) -> None:
        self.refusals = deque(refusals)
        self.requests: list[v1.LeaseActivationsRequest] = []

    async def answer(self, request: Any, context: Any) -> Any:
        self.requests.append(request)
        if self.refusals:
            status = error_status(self.refusals.popleft(), request_id="r-1")
            code = next(one for one in grpc.StatusCode if one.value[0] == status.code)
            details = ("grpc-status-details-bin", status.SerializeToString())
            await context.abort(code, status.message, (details,))
        return v1.LeaseActivationsResponse()


async def lease(node: ScriptedNode) -> None:
    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(
        node.answer,
        request_deserializer=v1.LeaseActivationsRequest.FromString,
        response_serializer=v1.LeaseActivationsResponse.SerializeToString,
    )
    calls = {"LeaseActivations": handler}
    service = grpc.method_handlers_generic_handler("querator.v1.ExecutionService", calls)
    server.add_generic_rpc_handlers((service,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with Client(f"127.0.0.1:{port}") as client:
            granted = await client.executions.lease(
                "shop", client_id="worker", most=1, wait=timedelta(seconds=1),
                lease_timeout=None, request_id="request", versions={},
            )  # fmt: skip
            assert granted == []
    finally:
        await server.stop(None)


def unknown(**more: Any) -> QueratorError:
    return QueratorError(ErrorCode.OUTCOME_UNKNOWN, "the leader was lost", **more)


async def test_a_repeat_names_the_partition_of_the_unknown_outcome():
    node = ScriptedNode(unknown(field="partition", value="3"))
    await lease(node)
    first, again = node.requests
    assert not first.HasField("partition")
    assert (again.partition, again.request_id) == (3, first.request_id)


async def test_a_repeat_without_a_known_partition_asks_all():
    node = ScriptedNode(unknown(), unknown())
    await lease(node)
    assert [one.HasField("partition") for one in node.requests] == [False, False, False]


async def test_a_lease_that_has_ended_meanwhile_is_reported():
    node = ScriptedNode(
        unknown(field="partition", value="0"),
        QueratorError(ErrorCode.LEASE_ENDED, "the lease has ended"),
    )
    with pytest.raises(LeaseEnded):
        await lease(node)
