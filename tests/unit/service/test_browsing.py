"""Scans: where their pages are made, and how many there may be."""

import pytest

from querator.model.calls import BrowseCall
from querator.model.errors import ErrorCode, QueratorError
from querator.model.limits import BROWSES_MAX
from querator.v1 import items_pb2
from tests.unit.service.stage import staged


def call(partition: int = 0, **more) -> BrowseCall:
    return BrowseCall("default", "q", partition, 1, 0, **more)


async def test_pages_are_made_where_the_leader_is():
    async with staged("a", "b") as stage:
        await stage.produce("a", b"x", b"y")
        for name in ("a", "b"):
            confirmed = stage.confirmed
            browsing = await stage.members[name].browse(call())
            page = await browsing.page(1)
            browsing.close()
            columns = items_pb2.ItemColumns.FromString(page.columns)
            assert (columns.rows, columns.value.data) == (2, b"xy")
            assert (page.next_seq, page.upto_seq) == (3, 2)
            assert stage.confirmed == confirmed + 1


async def test_the_first_page_says_where_the_scan_ends():
    async with staged("a") as stage:
        await stage.produce("a", b"x")
        browsing = await stage.members["a"].browse(call())
        await browsing.page(1)
        await stage.produce("a", b"y")
        page = await browsing.page(1)
        browsing.close()
        assert items_pb2.ItemColumns.FromString(page.columns).rows == 1


async def test_a_partition_that_is_not_there():
    async with staged("a") as stage:
        with pytest.raises(QueratorError) as caught:
            await stage.members["a"].browse(call(1))
        assert (caught.value.code, caught.value.field) == (ErrorCode.INVALID_ARGUMENT, "partition")


async def test_a_queue_that_is_not_there():
    async with staged("a") as stage:
        with pytest.raises(QueratorError) as caught:
            await stage.members["a"].browse(BrowseCall("default", "none", 0, 1, 0))
        assert caught.value.code is ErrorCode.QUEUE_NOT_FOUND


async def test_a_node_has_so_many_scans_and_no_more():
    async with staged("a") as stage:
        open_ones = [await stage.members["a"].browse(call()) for _ in range(BROWSES_MAX)]
        with pytest.raises(QueratorError) as caught:
            await stage.members["a"].browse(call())
        assert caught.value.code is ErrorCode.OVERLOADED
        open_ones.pop().close()
        open_ones.append(await stage.members["a"].browse(call()))
        for browsing in open_ones:
            browsing.close()
