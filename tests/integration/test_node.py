"""A node inside this process: its whole life, with the generated stubs as the client."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from querator.config import TlsSettings
from querator.node import Node, NodeFailedError
from querator.storage.environment import StorageLocked
from querator.storage.identity import DirectoryRefused
from querator.storage.memory_environment import MemoryEnvironment
from querator.v1 import (
    admin_service_pb2 as admin,
)
from querator.v1 import (
    admin_service_pb2_grpc,
    items_pb2,
    queue_service_pb2_grpc,
)
from querator.v1 import (
    queue_service_pb2 as queue,
)
from querator.wire.tls import TlsError


class Stubs:
    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.queue = queue_service_pb2_grpc.QueueServiceStub(channel)
        self.admin = admin_service_pb2_grpc.AdminServiceStub(channel)


@asynccontextmanager
async def stubs(node: Node) -> AsyncIterator[Stubs]:
    async with grpc.aio.insecure_channel(node.address) as channel:
        yield Stubs(channel)


@pytest.fixture(params=["memory", "disk"])
async def node(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Node]:
    if request.param == "memory":
        made = Node(memory=True)
    else:
        made = Node(tmp_path / "data", new=True)
    async with made:
        yield made


async def ready(ends: Stubs, name: str) -> int:
    stats = await ends.admin.GetQueueStats(admin.GetQueueStatsRequest(queue=name))
    return stats.total.ready


async def test_produce_lease_complete(node: Node):
    async with stubs(node) as ends:
        created = await ends.admin.CreateQueue(
            admin.CreateQueueRequest(queue="q", settings=admin.QueueSettings(partitions=2))
        )
        assert created.created
        assert created.queue.state == admin.QUEUE_STATE_ACTIVE
        items = [items_pb2.Item(payload=bytes([i])) for i in range(10)]
        produced = await ends.queue.Produce(queue.ProduceRequest(queue="q", items=items))
        assert sum(batch.count for batch in produced.batches) == 10
        assert produced.durable is node.durable

        leased = await ends.queue.Lease(queue.LeaseRequest(queue="q", client_id="c", max_items=100))
        payloads = [item.payload for batch in leased.batches for item in batch.items]
        assert payloads == [item.payload for item in items]
        lease_ids = {batch.lease_id for batch in leased.batches}
        done = await ends.queue.Complete(
            queue.CompleteRequest(
                queue="q", leases=[queue.LeaseItems(lease_id=one) for one in lease_ids]
            )
        )
        assert [outcome.error for outcome in done.outcomes] == [0] * len(lease_ids)
        stats = await ends.admin.GetQueueStats(admin.GetQueueStatsRequest(queue="q"))
        assert (stats.total.produced, stats.total.completed, stats.total.ready) == (10, 10, 0)


async def test_a_waiting_lease_is_answered_by_a_produce(node: Node):
    async with stubs(node) as ends:
        await ends.admin.CreateQueue(admin.CreateQueueRequest(queue="q"))
        request = queue.LeaseRequest(
            queue="q", client_id="c", max_items=1, wait_timeout=Duration(seconds=60)
        )
        async with asyncio.TaskGroup() as tasks:
            leasing = tasks.create_task(_lease(ends, request))
            await ends.queue.Produce(
                queue.ProduceRequest(queue="q", items=[items_pb2.Item(payload=b"x")])
            )
        assert [item.payload for batch in leasing.result().batches for item in batch.items] == [
            b"x"
        ]


async def _lease(ends: Stubs, request: queue.LeaseRequest) -> queue.LeaseResponse:
    return await ends.queue.Lease(request)


async def test_everything_is_there_after_a_restart(tmp_path: Path):
    async with Node(tmp_path / "data", new=True) as node, stubs(node) as ends:
        first = node.identity
        await ends.admin.CreateQueue(admin.CreateQueueRequest(queue="dead"))
        settings = admin.QueueSettings(partitions=3, max_attempts=5, dead_queue="dead")
        made = await ends.admin.CreateQueue(admin.CreateQueueRequest(queue="q", settings=settings))
        for _ in range(6):
            items = [items_pb2.Item(payload=b"x")] * 5
            await ends.queue.Produce(queue.ProduceRequest(queue="q", items=items))
    async with Node(tmp_path / "data") as node, stubs(node) as ends:
        assert node.identity.cluster_id == first.cluster_id
        assert node.identity.boots == first.boots + 1
        got = await ends.admin.GetQueue(admin.GetQueueRequest(queue="q"))
        assert got.queue == made.queue
        assert await ready(ends, "q") == 30


async def test_the_end_answers_who_waits(node: Node):
    async with stubs(node) as ends:
        await ends.admin.CreateQueue(admin.CreateQueueRequest(queue="q"))
        request = queue.LeaseRequest(
            queue="q", client_id="c", max_items=1, wait_timeout=Duration(seconds=60)
        )
        async with asyncio.TaskGroup() as tasks:
            leasing = tasks.create_task(_batches_or_code(ends, request))
            # Answered after the node has read the lease: they share a connection.
            await ready(ends, "q")
            await node.stop()
        assert leasing.result() in (0, grpc.StatusCode.UNAVAILABLE)


async def _batches_or_code(ends: Stubs, request: queue.LeaseRequest) -> int | grpc.StatusCode:
    try:
        return len((await ends.queue.Lease(request)).batches)
    except grpc.aio.AioRpcError as error:
        return error.code()


async def test_a_directory_has_one_node(tmp_path: Path):
    async with Node(tmp_path / "data", new=True):
        with pytest.raises(StorageLocked):
            await Node(tmp_path / "data").start()
    async with Node(tmp_path / "data"):
        pass


async def test_a_mistyped_directory(tmp_path: Path):
    with pytest.raises(DirectoryRefused, match="--new"):
        await Node(tmp_path / "dta").start()
    assert not (tmp_path / "dta").exists()


async def test_a_start_that_fails_leaves_nothing_behind(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(OSError, match="cannot listen"):
            await Node(tmp_path / "data", new=True, listen=listen).start()
    assert not (tmp_path / "data").exists()
    async with Node(tmp_path / "data", new=True) as node:
        assert node.identity.boots == 1


async def test_a_certificate_that_is_missing_leaves_nothing_behind(tmp_path: Path):
    tls = TlsSettings(str(tmp_path / "cert.pem"), str(tmp_path / "key.pem"))
    with pytest.raises(TlsError, match=r"cert\.pem"):
        await Node(tmp_path / "data", new=True, tls=tls).start()
    assert not (tmp_path / "data").exists()


class DiskError(Exception):
    pass


def fail(point: str) -> None:
    raise DiskError(point)


async def _run_until_the_disk_fails(environment: MemoryEnvironment) -> None:
    async with Node(environment=environment, new=True) as node, stubs(node) as ends:
        await ends.admin.CreateQueue(admin.CreateQueueRequest(queue="q"))
        environment.faults = fail
        request = queue.ProduceRequest(queue="q", items=[items_pb2.Item(payload=b"x")])
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await ends.queue.Produce(request)
        assert refused.value.code() in (grpc.StatusCode.ABORTED, grpc.StatusCode.INTERNAL)
        await node.run_until_stopped()


async def test_a_node_whose_disk_fails_says_so_and_starts_again():
    environment = MemoryEnvironment()
    with pytest.raises(NodeFailedError) as caught:
        await _run_until_the_disk_fails(environment)
    assert isinstance(caught.value.__cause__, DiskError)
    node = Node(environment=environment.crash())
    async with node, stubs(node) as ends:
        assert await ready(ends, "q") == 0


async def test_request_stop_ends_the_run():
    async with Node(memory=True) as node:
        asyncio.get_running_loop().call_soon(node.request_stop)
        await node.run_until_stopped()


def test_a_node_is_told_where_its_data_is(tmp_path: Path):
    with pytest.raises(ValueError, match="data_dir"):
        Node()
    with pytest.raises(ValueError, match="data_dir"):
        Node(tmp_path, memory=True)
