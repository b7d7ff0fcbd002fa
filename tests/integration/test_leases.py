"""Leases that have ended, on real nodes."""

import asyncio
import os
import signal
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from querator import Client
from querator.client.errors import LeaseLost
from querator.v1 import queue_service_pb2, queue_service_pb2_grpc
from tests.integration.process_cluster import process_cluster
from tests.integration.processes import server

pytestmark = pytest.mark.timeout(180)

ITEMS: Final = 12
ITEM_BYTES: Final = 512 * 1024
LEASE_S: Final = 2
SLOW: Final = (("grpc.http2.bdp_probe", 0),)
"""gRPC takes 64 KiB of data that the client does not read."""
WRITTEN_MAX: Final = 2
"""Deliveries that the node had given to gRPC before its pause."""


async def test_what_was_only_released_is_neither_rejected_nor_completed(tmp_path: Path):
    async with process_cluster(tmp_path) as cluster:
        await cluster.start()
        await cluster.querator("queue", "create", "q", "--dead-queue", "")
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


async def until_leased(client: Client, *, at_least: int) -> None:
    async with asyncio.timeout(30):
        while (await client.stats("q")).total.leased < at_least:  # noqa: ASYNC110 - only asking tells
            await asyncio.sleep(0.05)


async def test_a_node_that_was_paused_delivers_no_lease_that_has_ended(tmp_path: Path):
    """Deliveries wait in the node behind a client that reads slowly; then the node is paused for
    longer than their leases last.
    """
    async with server(tmp_path / "data") as node, Client(node.address) as client:
        await client.create_queue("q", max_attempts=0, dead_queue="")
        for _ in range(ITEMS):
            await client.produce("q", bytes(ITEM_BYTES))
        async with grpc.aio.insecure_channel(node.address, SLOW) as channel:
            stream: Any = queue_service_pb2_grpc.QueueServiceStub(channel).LeaseStream()
            subscribe = queue_service_pb2.Subscribe(
                queue="q", client_id="c", max_items=1, lease_timeout=Duration(seconds=LEASE_S)
            )
            await stream.write(queue_service_pb2.LeaseStreamRequest(subscribe=subscribe))
            credit = queue_service_pb2.Credit(items=ITEMS)
            await stream.write(queue_service_pb2.LeaseStreamRequest(credit=credit))
            await stream.read()
            await until_leased(client, at_least=3)
            os.kill(node.pid, signal.SIGSTOP)
            await asyncio.sleep(LEASE_S + 1.0)
            os.kill(node.pid, signal.SIGCONT)
            lost = done = 0
            while done < ITEMS:
                async with asyncio.timeout(30):
                    frame = await stream.read()
                for batch in frame.leased.batches:
                    assert batch.lease_remaining.ToTimedelta() > timedelta()
                    (outcome,) = await client.complete("q", batch.lease_id, check=False)
                    done += len(outcome.done)
                    if not outcome.done:
                        lost += 1
                        await stream.write(queue_service_pb2.LeaseStreamRequest(credit=credit))
            stream.cancel()
        # gRPC had the first ones before the pause.
        assert lost <= WRITTEN_MAX
        assert (await client.stats("q")).total.completed == ITEMS
