"""Readers on three real nodes: a batch stays what it is when the node that gave it out is gone."""

from datetime import timedelta
from pathlib import Path

import pytest

from querator import Client
from querator.client.errors import BatchReleased, ReaderFenced
from querator.client.readers import NamedBatch
from tests.integration.members import Members, members

pytestmark = pytest.mark.timeout(180)

PARTITIONS = 3
ITEMS = 600
WAIT = timedelta(seconds=2)


async def leader_of(cluster: Members, partition: int) -> str:
    """Name of the node that leads a partition of `q`."""
    view = await cluster.until_well()
    return next(
        str(group["leader"])
        for group in view["partitions"]
        if (group["queue"], group["partition"]) == ("q", partition)
    )


async def test_every_item_is_acknowledged_once_though_leaders_are_killed(tmp_path: Path):
    async with members(tmp_path) as cluster:
        await cluster.start()
        addresses = ",".join(member.address for member in cluster.by_name.values())
        async with Client(addresses) as client:
            await client.create_queue("q", partitions=PARTITIONS)
            async with client.producer("q", ordered=False, batch_items=10) as producer:
                await producer.produce_many(b"%d" % number for number in range(ITEMS))
            readers = client.readers
            zombie = await readers.open("q", "lake")
            epoch = (await readers.open("q", "lake")).epoch
            with pytest.raises(ReaderFenced):
                await readers.advance("q", "lake", zombie.epoch)
            acks: dict[int, int] = {}
            open_batches: dict[int, NamedBatch] = {}
            acknowledged = kills = 0
            while acknowledged < ITEMS:
                for one in await readers.advance("q", "lake", epoch, acks, max_items=60, wait=WAIT):
                    if one.error is not None:
                        continue
                    before = open_batches.pop(one.partition, None)
                    if before is not None and before.seq <= one.acked_seq:
                        acknowledged += before.count
                    elif before is not None:
                        assert one.batch == before
                    if one.batch is not None:
                        open_batches[one.partition] = one.batch
                if kills < 2 and open_batches and acknowledged >= 120 * kills:
                    # Between what was given out and its acknowledgement.
                    kills += 1
                    name = await leader_of(cluster, next(iter(open_batches)))
                    await cluster[name].kill()
                    again = await readers.advance("q", "lake", epoch, acks, max_items=60)
                    for one in again:
                        if one.partition in open_batches and one.error is None:
                            assert one.batch == open_batches[one.partition]
                    await cluster[name].start()
                    await cluster.until_well(name)
                acks |= {partition: batch.seq for partition, batch in open_batches.items()}
            assert kills == 2
            total = (await client.stats("q")).total
            assert (total.acknowledged, total.reserved, total.ready) == (ITEMS, 0, 0)
            assert acknowledged == ITEMS


async def test_an_operator_takes_a_batch_back(tmp_path: Path):
    async with members(tmp_path) as cluster:
        await cluster.start()
        async with Client(cluster["b"].address) as client:
            await client.create_queue("q", partitions=2)
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
            said, _ = await cluster.querator("reader", "release", "q", "lake")
            assert said == "10 items of 2 open batches given back to q.\n"
            acks = {one.partition: one.batch.seq for one in progress if one.batch}
            with pytest.raises(BatchReleased):
                await client.readers.advance("q", "lake", epoch, acks)
            progress = await client.readers.advance("q", "lake", epoch, acks, skip_released=True)
            assert sum(one.batch.count for one in progress if one.batch) == 10
            said, _ = await cluster.querator("reader", "release", "q", "lake", "--remove")
            assert said.endswith("Reader lake is forgotten.\n")
            assert await client.readers.list("q") == ()
