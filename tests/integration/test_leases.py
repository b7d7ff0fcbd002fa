"""Leases that have ended, on real nodes: none is delivered, and none is settled."""

import asyncio
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from querator import Client
from querator.client.errors import LeaseLost
from querator.v1 import queue_service_pb2, queue_service_pb2_grpc
from tests.integration.members import members

pytestmark = pytest.mark.timeout(180)

Frame = queue_service_pb2.LeaseStreamRequest
LEASE_S = 3
ITEMS = 60


async def test_what_was_only_released_is_neither_rejected_nor_completed(tmp_path: Path):
    async with members(tmp_path) as cluster:
        await cluster.start()
        await cluster.querator("queue", "create", "q")
        async with Client(cluster["b"].address) as client:
            later = partial(client.retry, delay=timedelta(hours=1))
            for settle in (partial(client.retry, dead=True), later, client.complete):
                await client.produce("q", b"x")
                items = await client.lease("q", wait=timedelta(seconds=10))
                await client.retry("q", *items, count_attempt=False)
                with pytest.raises(LeaseLost):
                    await settle("q", *items)
            total = (await client.stats("q")).total
            assert (total.ready, total.dead, total.scheduled, total.completed) == (3, 0, 0, 0)


async def test_a_node_that_was_paused_delivers_no_lease_that_has_ended(tmp_path: Path):
    async with members(tmp_path) as cluster:
        await cluster.start()
        await cluster.querator("queue", "create", "q", "--partitions", "3")
        await cluster.until_well("c")
        async with (
            grpc.aio.insecure_channel(cluster["c"].address) as channel,
            Client(cluster["a"].address) as client,
        ):
            stub = queue_service_pb2_grpc.QueueServiceStub(channel)
            stream: Any = stub.LeaseStream()
            subscribe = queue_service_pb2.Subscribe(
                queue="q", client_id="c", lease_timeout=Duration(seconds=LEASE_S)
            )
            await stream.write(Frame(request_number=1, subscribe=subscribe))
            assert (await stream.read()).HasField("subscribed")
            await stream.write(Frame(credit=queue_service_pb2.Credit(items=2 * ITEMS)))
            await client.produce("q", b"first")
            assert (await stream.read()).leased.batches
            cluster["c"].freeze()
            await client.produce("q", *[b"x"] * ITEMS)
            # Nothing tells the end of the leases of a node that does not answer.
            await asyncio.sleep(LEASE_S + 1)
            cluster["c"].thaw()
            completed = 0
            async with asyncio.timeout(60):
                while completed < ITEMS:
                    for batch in (await stream.read()).leased.batches:
                        named = queue_service_pb2.LeaseItems(lease_id=batch.lease_id)
                        request = queue_service_pb2.CompleteRequest(queue="q", leases=[named])
                        [outcome] = (await stub.Complete(request)).outcomes
                        assert not outcome.lost, "it was delivered after its end"
                        completed += sum(each.count for each in outcome.done)
            stream.cancel()
