"""Scans: which node makes their pages, and how many scans there may be."""

from typing import Any

import pytest

from querator.model.calls import BrowseCall
from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import PLACEMENT_GROUP
from querator.model.limits import BATCH_READS_MAX, BROWSES_MAX, SCANS_CONNECTION_MAX
from querator.model.reader_calls import ReadBatchCall
from querator.v1 import items_pb2
from tests.unit.service.routing.test_router import group_of
from tests.unit.service.service_cluster import service_cluster


def call(partition: int = 0, **more) -> BrowseCall:
    return BrowseCall("default", "q", partition, 1, 0, **more)


async def test_pages_are_made_where_the_leader_is():
    async with service_cluster("a", "b") as cluster:
        await cluster.produce("a", b"x", b"y")
        for name in ("a", "b"):
            confirmed = cluster.confirmed
            browsing = await cluster.members[name].browse(call())
            page = await browsing.page(1)
            browsing.close()
            columns = items_pb2.ItemColumns.FromString(page.columns)
            assert (columns.rows, columns.value.data) == (2, b"xy")
            assert (page.next_seq, page.upto_seq) == (3, 2)
            assert cluster.confirmed == confirmed + 1


async def test_the_first_page_says_where_the_scan_ends():
    async with service_cluster("a") as cluster:
        await cluster.produce("a", b"x")
        browsing = await cluster.members["a"].browse(call())
        await browsing.page(1)
        await cluster.produce("a", b"y")
        page = await browsing.page(1)
        browsing.close()
        assert items_pb2.ItemColumns.FromString(page.columns).rows == 1


async def test_a_partition_that_is_not_there():
    async with service_cluster("a") as cluster:
        cluster.lead(PLACEMENT_GROUP, "a")
        with pytest.raises(QueratorError) as caught:
            await cluster.members["a"].browse(call(1))
        assert (caught.value.code, caught.value.field) == (ErrorCode.INVALID_ARGUMENT, "partition")


async def test_a_queue_that_is_not_there():
    async with service_cluster("a") as cluster:
        cluster.lead(PLACEMENT_GROUP, "a")
        with pytest.raises(QueratorError) as caught:
            await cluster.members["a"].browse(BrowseCall("default", "none", 0, 1, 0))
        assert caught.value.code is ErrorCode.QUEUE_NOT_FOUND


async def test_a_node_has_so_many_scans_and_no_more():
    async with service_cluster("a") as cluster:
        open_ones = [
            await cluster.members["a"].browse(call(), f"client {number // SCANS_CONNECTION_MAX}")
            for number in range(BROWSES_MAX)
        ]
        with pytest.raises(QueratorError) as caught:
            await cluster.members["a"].browse(call(), "another")
        assert caught.value.code is ErrorCode.OVERLOADED
        open_ones.pop().close()
        open_ones.append(await cluster.members["a"].browse(call()))
        for browsing in open_ones:
            browsing.close()


async def test_one_connection_leaves_scans_for_others():
    async with service_cluster("a") as cluster:
        service = cluster.members["a"]
        for _ in range(SCANS_CONNECTION_MAX):
            await service.browse(call(), "greedy")
        with pytest.raises(QueratorError) as caught:
            await service.browse(call(), "greedy")
        assert caught.value.code is ErrorCode.OVERLOADED
        assert caught.value.limit == f"{SCANS_CONNECTION_MAX} scans"
        browsing = await service.browse(call(), "modest")
        browsing.close()


async def test_readers_and_scans_do_not_take_each_others_room():
    async with service_cluster("a") as cluster:
        service = cluster.members["a"]
        for number in range(BROWSES_MAX):
            await service.browse(call(), f"client {number}")
        batch = ReadBatchCall("default", "q", "lake", 0, 1)
        for number in range(BATCH_READS_MAX):
            await service.readers.read(batch, f"client {number}")
        with pytest.raises(QueratorError) as caught:
            await service.readers.read(batch, "another")
        assert caught.value.code is ErrorCode.OVERLOADED
        assert caught.value.limit == f"{BATCH_READS_MAX} reads of batches"


@pytest.mark.parametrize("kind", ["scan", "batch"])
async def test_a_page_has_the_deadline_of_its_caller(kind):
    async with service_cluster("a") as cluster:
        service = cluster.members["a"]
        cluster.lead(group_of(cluster), None)
        pages: Any = (
            await service.browse(call(timeout_ms=20))
            if kind == "scan"
            else await service.readers.read(
                ReadBatchCall("default", "q", "lake", 0, 1, timeout_ms=20)
            )
        )
        with pytest.raises(QueratorError) as caught:
            await pages.page(1)
        assert caught.value.code is ErrorCode.DEADLINE_EXCEEDED
        assert "partition 0 of queue q has no leader" in caught.value.message
