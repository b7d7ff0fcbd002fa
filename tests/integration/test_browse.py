"""Scans over the network: any node returns what the leader has, by column."""

from datetime import timedelta
from pathlib import Path
from struct import unpack

import grpc.aio
import pytest

from querator import Client
from querator.client import Item
from querator.v1 import items_pb2, queue_service_pb2, queue_service_pb2_grpc
from tests.integration.process_cluster import process_cluster

pytestmark = pytest.mark.timeout(180)
ITEMS = 3_000


def seqs(columns: items_pb2.ItemColumns) -> list[int]:
    return list(unpack(f"<{columns.rows}q", columns.seq))


def payloads(columns: items_pb2.ItemColumns) -> list[bytes]:
    offsets = unpack(f"<{columns.rows + 1}i", columns.value.offsets)
    data = columns.value.data
    return [data[offsets[row] : offsets[row + 1]] for row in range(columns.rows)]


def items_from(number: int) -> list[Item]:
    """A third of the items."""
    return [Item(b"%04d" % each + bytes(1_000), kind="k") for each in range(number, number + 1_000)]


async def test_every_node_gives_the_same_scan(tmp_path: Path):
    async with process_cluster(tmp_path) as cluster:
        await cluster.start()
        async with Client(cluster["a"].address) as client:
            await client.create_queue("q", partitions=1, max_attempts=0, dead_queue="")
            # Through each node: each node knows then that the queue can be used.
            for place, member in enumerate(cluster.by_name.values()):
                async with Client(member.address) as near:
                    await near.produce("q", *items_from(place * ITEMS // 3))
            leased = await client.lease("q", max_items=100, wait=timedelta(seconds=5))
            await client.complete("q", *leased)
            [stats] = (await client.stats("q")).partitions
            assert (stats.first_seq, stats.head_seq) == (len(leased) + 1, ITEMS)
        for member in cluster.by_name.values():
            async with grpc.aio.insecure_channel(member.address) as channel:
                stub = queue_service_pb2_grpc.QueueServiceStub(channel)
                request = queue_service_pb2.BrowseRequest(queue="q", upto_seq=stats.head_seq)
                found: list[tuple[int, bytes]] = []
                responses = 0
                async for response in stub.Browse(request):
                    responses += 1
                    columns = response.columns
                    assert (columns.partition, response.upto_seq) == (0, ITEMS)
                    assert columns.kind.data == b"k" * columns.rows
                    found += zip(seqs(columns), payloads(columns), strict=True)
            assert responses > 1
            assert [seq for seq, _ in found] == list(range(stats.first_seq, ITEMS + 1))
            assert [payload[:4] for _, payload in found] == [
                b"%04d" % (seq - 1) for seq, _ in found
            ]
