"""Items that are read by id, in any state, and lists that continue after an id."""

from querator.model.calls import FoundItems, GetItemsCall
from querator.model.errors import ErrorCode
from querator.model.limits import MIB
from tests.unit.service.service_node import ServiceNode, refusal, service_node


async def got(node: ServiceNode, *item_ids: str, stale: bool = False) -> FoundItems:
    return await node.admin.items.get(GetItemsCall("default", "q", item_ids, stale))


def ids(found: FoundItems) -> list[str]:
    return [f"{partition}-{item.seq}" for _, partition, item in found.items]


async def test_items_of_several_partitions_are_read_by_id():
    async with service_node() as node:
        await node.create(partitions=3)
        await node.produce(*[b"x"] * 60, keyed=[b"key %d" % number for number in range(60)])
        found = await got(node, "2-1", "0-2", "0-2", "1-99", "0-1", stale=True)
        assert (ids(found), found.missing, found.unread) == (["0-1", "0-2", "2-1"], ("1-99",), ())


async def test_a_full_reply_names_the_items_that_it_has_not_read():
    async with service_node() as node:
        await node.create(partitions=2)
        for _ in range(5):
            await node.produce(*[b"x" * (MIB - 100)], keyed=[b"one key"])
        first = (await node.lease(1)).batches[0]
        partition = int(first.lease_id.split(".")[1])
        wanted = [f"{partition}-{seq}" for seq in range(1, 6)]
        found = await got(node, *wanted)
        assert 0 < len(found.items) < 5
        assert found.unread == tuple(wanted[len(found.items) :])
        assert found.missing == ()
        rest = await got(node, *found.unread)
        assert ids(found) + ids(rest) == wanted
        assert rest.unread == ()


async def test_bad_ids_are_refused():
    async with service_node() as node:
        await node.create()
        error = await refusal(got(node))
        assert (error.code, error.field) == (ErrorCode.INVALID_ARGUMENT, "item_ids")
        error = await refusal(got(node, *["0-1"] * 1_001))
        assert (error.code, error.limit) == (ErrorCode.LIMIT_EXCEEDED, "1000 items")
        error = await refusal(got(node, "7-1"))
        assert (error.code, error.field) == (ErrorCode.INVALID_ARGUMENT, "item_ids[0]")


async def test_a_list_continues_after_an_id_also_when_that_item_is_gone():
    async with service_node() as node:
        await node.create(partitions=2)
        await node.produce(*[b"x"] * 40, keyed=[b"key %d" % number for number in range(40)])
        page = await node.admin.peek_items("default", "q", 0, 0, "")
        places = [(partition, item.seq) for _, partition, item in page.items]
        partition, seq = places[25]
        await node.lease(100)

        async def after(text: str, token: str = "") -> list[tuple[int, int]]:
            page = await node.admin.peek_items("default", "q", 0, 5, token, after_item_id=text)
            found = [(partition, item.seq) for _, partition, item in page.items]
            if page.next_page_token:
                found += await after(text, page.next_page_token)
            return found

        assert await after(f"{partition}-{seq}") == places[26:]
        assert await after("1-99999") == []
        assert await after("9-1") == []
