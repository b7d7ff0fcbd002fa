"""Readers on three real nodes: a batch keeps its items when the node that handed it out is gone."""

from collections import Counter
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from struct import unpack

import grpc.aio
import pytest

from querator import Client
from querator.client.errors import BatchReleased, ReaderFenced
from querator.v1 import items_pb2, reader_service_pb2_grpc
from querator.v1 import reader_service_pb2 as pb
from tests.integration.process_cluster import ProcessCluster, process_cluster

pytestmark = pytest.mark.timeout(180)

PARTITIONS = 3
ITEMS = 600
WAIT = timedelta(seconds=2)
UNREACHED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


async def leader_of(cluster: ProcessCluster, partition: int) -> str:
    """Name of the node that leads a partition of `q`."""
    view = await cluster.until_well()
    return next(
        str(group["leader"])
        for group in view["partitions"]
        if (group["queue"], group["partition"]) == ("q", partition)
    )


async def read(cluster: ProcessCluster, partition: int, batch_seq: int) -> list[bytes]:
    """Payloads of an open batch, from any node that answers."""
    request = pb.ReadBatchRequest(
        queue="q", reader_id="lake", partition=partition, batch_seq=batch_seq
    )
    while True:
        for member in cluster.by_name.values():
            payloads: list[bytes] = []
            async with grpc.aio.insecure_channel(member.address) as channel:
                stub = reader_service_pb2_grpc.ReaderServiceStub(channel)
                try:
                    async for page in stub.ReadBatch(request, timeout=10):
                        payloads += split(page.columns.value)
                    return payloads
                except grpc.aio.AioRpcError as error:
                    if error.code() not in UNREACHED:
                        raise


def split(column: items_pb2.ByteColumn) -> list[bytes]:
    ends = unpack(f"<{len(column.offsets) // 4}i", column.offsets)
    return [column.data[begin:end] for begin, end in pairwise(ends)]


class Lake:
    """A reader with a sink: the items read of each batch, and the acknowledgements."""

    def __init__(self, cluster: ProcessCluster, client: Client) -> None:
        self.cluster = cluster
        self.client = client
        self.epoch = 0
        self.acks: dict[int, int] = {}
        self.read: dict[tuple[int, int], list[bytes]] = {}
        self.done: Counter[bytes] = Counter()

    async def open(self) -> None:
        self.epoch = (await self.client.readers.open("q", "lake")).epoch

    async def advance(self) -> list[tuple[int, int]]:
        """The open batches, all of which have been read."""
        named = []
        for one in await self.client.readers.advance(
            "q", "lake", self.epoch, self.acks, max_items=60, wait=WAIT
        ):
            if one.batch is not None:
                name = one.partition, one.batch.seq
                items = await read(self.cluster, *name)
                assert len(items) == one.batch.count
                # The same name has the same items, in the same order.
                assert self.read.setdefault(name, items) == items
                named.append(name)
        return named

    def acknowledge(self, named: list[tuple[int, int]]) -> None:
        for partition, seq in named:
            if self.acks.get(partition, 0) < seq:
                self.acks[partition] = seq
                self.done.update(self.read[partition, seq])


async def test_every_item_is_read_once_though_leaders_are_killed(tmp_path: Path):
    async with process_cluster(tmp_path) as cluster:
        await cluster.start()
        addresses = ",".join(member.address for member in cluster.by_name.values())
        async with Client(addresses) as client:
            await client.create_queue("q", partitions=PARTITIONS, max_attempts=0, dead_queue="")
            payloads = [b"%d" % number for number in range(ITEMS)]
            async with client.producer("q", ordered=False, batch_items=10) as producer:
                await producer.produce_many(payloads)
            zombie, lake = Lake(cluster, client), Lake(cluster, client)
            await zombie.open()
            await lake.open()
            with pytest.raises(ReaderFenced):
                await zombie.advance()
            kills = 0
            while (named := await lake.advance()) or lake.done.total() < ITEMS:
                if kills < 2 and named and lake.done.total() >= 120 * kills:
                    # Between the delivery of a batch and its acknowledgement; then the reader
                    # starts again.
                    kills += 1
                    name = await leader_of(cluster, named[0][0])
                    await cluster[name].kill()
                    await lake.open()
                    again = await lake.advance()
                    assert set(again) <= set(named)
                    await cluster[name].start()
                    await cluster.until_well(name)
                lake.acknowledge(named)
            assert kills == 2
            assert lake.done == Counter(payloads)
            total = (await client.stats("q")).total
            assert (total.acknowledged, total.reserved, total.ready) == (ITEMS, 0, 0)


async def test_an_operator_takes_a_batch_back(tmp_path: Path):
    async with process_cluster(tmp_path) as cluster:
        await cluster.start()
        async with Client(cluster["b"].address) as client:
            await client.create_queue("q", partitions=2, max_attempts=0, dead_queue="")
            for number in range(10):
                await client.produce("q", b"%d" % number)
            epoch = (await client.readers.open("q", "lake")).epoch
            progress = await client.readers.advance("q", "lake", epoch)
            assert sum(one.batch.count for one in progress if one.batch) == 10
            shown, _ = await cluster.querator("reader", "list", "q", "--partitions")
            assert "lake" in shown
            assert "partition 1" in shown
            line, _ = await cluster.querator("reader", "list", "q", "--output", "json")
            assert '"lake"' in line
            said, _ = await cluster.querator("reader", "release", "q", "lake", "--yes")
            assert said == "10 items of 2 open batches given back to q.\n"
            acks = {one.partition: one.batch.seq for one in progress if one.batch}
            with pytest.raises(BatchReleased):
                await client.readers.advance("q", "lake", epoch, acks)
            progress = await client.readers.advance("q", "lake", epoch, acks, skip_released=True)
            assert sum(one.batch.count for one in progress if one.batch) == 10
            first = progress[0].batch
            assert first is not None
            release = (
                "reader",
                "release",
                "q",
                "lake",
                "--yes",
                "--partition",
                "0",
                "--dead-letters",
            )
            said, _ = await cluster.querator(*release)
            assert said == f"{first.count} items of 1 open batch made dead letters.\n"
            acks = {one.partition: one.batch.seq for one in progress if one.batch}
            progress = await client.readers.advance("q", "lake", epoch, acks)
            assert all(one.batch is None for one in progress)
            total = (await client.stats("q")).total
            assert (total.dead, total.acknowledged) == (first.count, 10 - first.count)
            said, _ = await cluster.querator("reader", "release", "q", "lake", "--yes", "--remove")
            assert said.endswith("Reader lake is forgotten.\n")
            assert await client.readers.list("q") == ()
