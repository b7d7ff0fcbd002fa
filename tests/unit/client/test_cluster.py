"""An operator's client: it leaves a node that stops or does not answer for another one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import grpc
import grpc.aio
import pytest

from querator.client.cluster import ClusterAdmin, ClusterPicture
from querator.client.errors import ConnectionFailed, RequestError
from querator.model.errors import ErrorCode, QueratorError
from querator.v1 import cluster_service_pb2 as pb
from querator.wire.errors import error_status

SHORT = 0.2
"""Seconds of patience with a node that is known not to answer."""
FOREVER = 10_000.0
"""Seconds of a request timeout that would be longer than the test may take."""


class StatusNode:
    """A node of a cluster that answers, refuses or hangs."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.address = ""
        self.members: list[StatusNode] = []
        self.handed_off: set[str] = set()
        """Names of the nodes that have handed off, as this one says."""
        self.refusal: QueratorError | None = None
        self.hangs = False
        self.asked = 0
        self._server = grpc.aio.server()

    async def start(self) -> None:
        status: Any = grpc.unary_unary_rpc_method_handler(
            self._status, response_serializer=pb.GetClusterStatusResponse.SerializeToString
        )
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(
                    "querator.v1.ClusterService", {"GetClusterStatus": status}
                ),
            )
        )
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(None)

    async def _status(self, _: bytes, context: Any) -> pb.GetClusterStatusResponse:
        self.asked += 1
        if self.hangs:
            await asyncio.Event().wait()
        if self.refusal is not None:
            status = error_status(self.refusal, request_id="r-1")
            details = ("grpc-status-details-bin", status.SerializeToString())
            code = next(code for code in grpc.StatusCode if code.value[0] == status.code)
            await context.abort(code, status.message, (details,))
        return pb.GetClusterStatusResponse(
            cluster_id="c",
            node=self.name,
            nodes=[
                pb.ClusterNode(
                    name=one.name,
                    client_address=one.address,
                    connected=True,
                    handed_off=one.name in self.handed_off,
                )
                for one in self.members
            ],
        )


@pytest.fixture
async def pair() -> AsyncIterator[tuple[StatusNode, StatusNode]]:
    async with AsyncExitStack() as stack:
        nodes = StatusNode("a"), StatusNode("b")
        for node in nodes:
            await node.start()
            stack.push_async_callback(node.stop)
            node.members = list(nodes)
        yield nodes


def admin_of(*nodes: StatusNode) -> ClusterAdmin:
    addresses = ",".join(node.address for node in nodes)
    return ClusterAdmin(addresses, request_timeout=FOREVER, connect_timeout=FOREVER)


def silent(picture: ClusterPicture) -> list[str]:
    return [seen.node.name for seen in picture.nodes if seen.silent]


async def test_a_dead_node_is_left_for_one_that_it_had_named(
    pair: tuple[StatusNode, StatusNode],
) -> None:
    a, _ = pair
    async with admin_of(a) as admin:
        assert silent(await admin.picture()) == []
        await a.stop()
        assert silent(await admin.picture()) == ["a"]


@pytest.mark.parametrize("asked", [0, 1])
async def test_a_node_has_handed_off_if_it_says_so_itself(
    pair: tuple[StatusNode, StatusNode], asked: int
) -> None:
    """Without a majority the map does not know it, and the status said nothing."""
    pair[1].handed_off = {"b"}
    async with admin_of(pair[asked]) as admin:
        picture = await admin.picture()
    assert {one.node.name: one.node.handed_off for one in picture.nodes} == {"a": False, "b": True}


async def test_a_stopping_node_is_left_for_another_one(
    pair: tuple[StatusNode, StatusNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = pair
    async with admin_of(a) as admin:
        await admin.picture()
        monkeypatch.setattr("querator.client.cluster.NODE_SECONDS", SHORT)
        a.refusal = QueratorError(ErrorCode.UNAVAILABLE, "the node is stopping")
        assert silent(await admin.picture()) == ["a"]
        # The node that answered last is asked first.
        asked = a.asked
        a.refusal, b.refusal = None, a.refusal
        assert silent(await admin.picture()) == ["b"]
        assert a.asked > asked


async def test_a_node_that_hangs_is_left_for_another_one(
    pair: tuple[StatusNode, StatusNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, _ = pair
    async with admin_of(a) as admin:
        await admin.picture()
        monkeypatch.setattr("querator.client.cluster.NODE_SECONDS", SHORT)
        a.hangs = True
        assert silent(await admin.picture()) == ["a"]


async def test_a_given_node_that_stops_is_left_at_the_first_call(
    pair: tuple[StatusNode, StatusNode],
) -> None:
    a, b = pair
    a.refusal = QueratorError(ErrorCode.UNAVAILABLE, "the node is stopping")
    async with admin_of(a, b) as admin:
        assert silent(await admin.picture()) == ["a"]


async def test_a_refusal_of_the_request_is_the_answer(
    pair: tuple[StatusNode, StatusNode],
) -> None:
    a, b = pair
    async with admin_of(a, b) as admin:
        await admin.picture()
        a.refusal = QueratorError(ErrorCode.INVALID_ARGUMENT, "no")
        with pytest.raises(RequestError, match="no"):
            await admin.picture()
        assert b.asked == 1


async def test_all_nodes_are_away(pair: tuple[StatusNode, StatusNode]) -> None:
    a, b = pair
    addresses = f"{a.address},{b.address}"
    async with ClusterAdmin(addresses, request_timeout=3, connect_timeout=3) as admin:
        await admin.picture()
        await a.stop()
        await b.stop()
        with pytest.raises(ConnectionFailed, match=b.address):
            await admin.picture()
