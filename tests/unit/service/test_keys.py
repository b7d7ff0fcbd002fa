"""The keys of a keyed queue for operators: lists, and items that are skipped."""

from typing import Any

from querator.model.errors import ErrorCode
from querator.model.flow_calls import KeyCounts, ListKeysCall, SkipKeyCall
from querator.model.queues import QueueKind
from querator.v1 import items_pb2, queue_service_pb2
from querator.wire.produce import parse_produce
from tests.unit.service.service_node import ServiceNode, refusal, service_node

LATER_MS = 2_000_000_000_000


async def put(node: ServiceNode, *keys: str) -> None:
    request = queue_service_pb2.ProduceRequest(
        queue="q", items=[items_pb2.Item(payload=b"x", key=key) for key in keys]
    )
    await node.queues.produce(parse_produce(request.SerializeToString(), now_ms=0))


async def listed(node: ServiceNode, **options: Any) -> dict[str, KeyCounts]:
    found: dict[str, KeyCounts] = {}
    token = ""
    while True:
        page = await node.admin.keys.list_keys(
            ListKeysCall("default", "q", page_token=token, **options)
        )
        assert not found.keys() & {one.key for one in page.keys}, "each key is listed once"
        found |= {one.key: one for one in page.keys}
        token = page.next_page_token
        if not token:
            return found


async def skip(node: ServiceNode, key: str, item_id: str, *, dead: bool = False) -> bool:
    return await node.admin.keys.skip(SkipKeyCall("default", "q", key, item_id, dead))


async def with_stuck_key(node: ServiceNode, **settings: Any) -> KeyCounts:
    """Key `a` waits for the retry of its first item, and `b` is leased."""
    await node.create(kind=QueueKind.KEYED, **settings)
    await put(node, "a", "a")
    await node.retry(*(await node.lease(10)).batches, retry_at_ms=LATER_MS)
    await put(node, "b", "b", "")
    assert len((await node.lease(10)).batches) >= 1
    return (await listed(node))["a"]


async def test_keys_are_listed_with_what_keeps_them_back():
    async with service_node() as node:
        stuck = await with_stuck_key(node)
        assert stuck == KeyCounts("a", 2, 0, "0-1", 1, 0, LATER_MS)
        found = await listed(node)
        assert set(found) == {"a", "b"}
        assert (found["b"].waiting, found["b"].leased) == (1, 1)
        assert set(await listed(node, blocked=True)) == {"a"}
        assert set(await listed(node, head_attempts_min=1)) == {"a"}
        assert await listed(node, head_attempts_min=2) == {}
        assert set(await listed(node, key="b")) == {"b"}
        assert await listed(node, key="c") == {}


async def test_each_key_of_all_partitions_is_on_one_page():
    async with service_node() as node:
        await node.create(kind=QueueKind.KEYED, partitions=3)
        keys = {f"key {number}" for number in range(70)}
        await put(node, *sorted(keys))
        found = await listed(node, page_size=7)
        assert set(found) == keys
        assert set(await listed(node, key="key 7")) == {"key 7"}
        for partition in range(3):
            assert any(one.head_item_id.startswith(f"{partition}-") for one in found.values())


async def test_a_skipped_item_frees_its_key_once():
    async with service_node() as node:
        stuck = await with_stuck_key(node)
        assert await skip(node, "a", stuck.head_item_id)
        assert not await skip(node, "a", stuck.head_item_id), "a repeat takes no other item"
        after = (await listed(node))["a"]
        assert (after.waiting, after.head_item_id, after.head_attempts) == (1, "0-2", 0)
        assert node.counts().cancelled == 1
        assert len((await node.lease(10)).batches) == 1


async def test_a_skipped_item_becomes_a_dead_letter():
    async with service_node() as node:
        await node.create("dead")
        stuck = await with_stuck_key(node, dead_queue="dead")
        assert await skip(node, "a", stuck.head_item_id, dead=True)
        await node.until(lambda: node.counts("dead").ready == 1)
        assert (node.counts().dead, node.counts().cancelled) == (1, 0)


async def test_only_the_next_item_of_the_key_is_skipped():
    async with service_node() as node:
        await with_stuck_key(node)
        assert not await skip(node, "a", "0-2")
        assert not await skip(node, "none", "0-1")
        assert not await skip(node, "b", "0-3"), "it is leased"


async def test_what_is_wrong_is_refused_by_name():
    async with service_node() as node:
        stuck = await with_stuck_key(node)
        error = await refusal(skip(node, "a", stuck.head_item_id, dead=True))
        assert (error.code, error.field) == (ErrorCode.INVALID_ARGUMENT, "dead")
        await node.create("plain")
        error = await refusal(node.admin.keys.list_keys(ListKeysCall("default", "plain")))
        assert (error.code, error.field) == (ErrorCode.INVALID_ARGUMENT, "queue")
        error = await refusal(node.admin.keys.skip(SkipKeyCall("default", "plain", "a", "0-1")))
        assert (error.code, error.field) == (ErrorCode.INVALID_ARGUMENT, "queue")
        error = await refusal(
            node.admin.keys.list_keys(ListKeysCall("default", "q", page_size=1_001))
        )
        assert error.code is ErrorCode.LIMIT_EXCEEDED
