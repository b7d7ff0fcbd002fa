"""Fair queues on a node: waiting consumers, lists of groups, groups of moved items, settings."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from querator.model.calls import LeaseReply
from querator.model.errors import ErrorCode
from querator.model.flow_calls import GroupCounts, ListGroupsCall
from querator.model.queues import Fairness, GroupSettings, QueueKind, QueueSettings
from querator.partition.rows import RowState
from querator.raft.clock import SimulatedClock
from querator.service.groups import ROWS_MIN
from querator.storage.memory_environment import MemoryEnvironment
from querator.v1 import items_pb2, queue_service_pb2
from querator.wire.produce import parse_produce
from tests.unit.service.service_node import LONG_MS, ServiceNode, refusal, service_node, whole
from tests.unit.service.storage_damage import damaged


async def put(node: ServiceNode, *groups: str, queue: str = "q", key: str = "") -> None:
    """Produces an item for each of the groups, in one request."""
    request = queue_service_pb2.ProduceRequest(
        queue=queue,
        items=[items_pb2.Item(payload=one.encode(), group=one, key=key) for one in groups],
    )
    await node.queues.produce(parse_produce(request.SerializeToString(), now_ms=0))


def groups_of(reply: LeaseReply) -> Counter[str]:
    """How many items of each group were leased."""
    return Counter(
        item.group
        for batch in reply.batches
        for item in items_pb2.LeasedBatch.FromString(batch.loaded.items).items
    )


async def create(
    node: ServiceNode, *groups: GroupSettings, name: str = "q", **settings: Any
) -> None:
    await node.create(name, kind=QueueKind.FAIR, groups=groups, **settings)


async def listed(node: ServiceNode, page_size: int = 0) -> dict[str, GroupCounts]:
    found: dict[str, GroupCounts] = {}
    token = ""
    while True:
        call = ListGroupsCall("default", "q", page_size=page_size, page_token=token)
        page = await node.admin.groups.list_groups(call)
        assert not found.keys() & {one.path for one in page.groups}, "each group is listed once"
        found |= {one.path: one for one in page.groups}
        token = page.next_page_token
        if not token:
            return found


# --- what waits, and what wakes it -------------------------------------------------------------


async def waiting(node: ServiceNode, **more: Any) -> "asyncio.Task[LeaseReply]":
    """A lease that waits: nothing can be leased."""
    before = node.index()
    task = asyncio.get_running_loop().create_task(node.lease(10, wait_ms=LONG_MS, **more))
    for _ in range(200):
        await asyncio.sleep(0)
    assert not task.done()
    assert node.index() == before, "a consumer that waits causes no entries"
    return task


async def limited(node: ServiceNode, **settings: Any) -> LeaseReply:
    """A queue with a group at its limit, with more items than that."""
    await create(node, GroupSettings("a", leased_max=2), **settings)
    await put(node, "a", "a", "a.b", "a.c")
    reply = await node.lease(10)
    assert sum(groups_of(reply).values()) == 2
    return reply


@pytest.mark.parametrize("how", ["complete", "retry", "release", "dead", "later"])
async def test_a_consumer_that_waits_for_a_group_at_its_limit_is_woken(how: str):
    async with service_node() as node:
        held = await limited(node)
        waits = await waiting(node)
        lease = held.batches[0]
        if how == "complete":
            await node.complete(lease)
        else:
            options: dict[str, dict[str, Any]] = {
                "retry": {},
                "release": {"count_attempt": False},
                "dead": {"dead": True},
                "later": {"retry_at_ms": 4_000_000_000_000},
            }
            await node.retry(lease, **options[how])
        assert sum(groups_of(await waits).values()) >= 1


async def test_a_consumer_is_woken_when_the_lease_of_another_one_lapses():
    clock = SimulatedClock()
    async with service_node(clock=clock) as node:
        await limited(node, lease_timeout_ms=5_000)
        waits = await waiting(node)
        clock.advance(20_000)
        assert sum(groups_of(await waits).values()) >= 1


@pytest.mark.parametrize(
    "groups", [(GroupSettings("a", leased_max=3),), (), (GroupSettings("a", 5),)]
)
async def test_a_consumer_is_woken_by_a_higher_limit(groups: Sequence[GroupSettings]):
    async with service_node() as node:
        await limited(node)
        waits = await waiting(node)
        settings = QueueSettings(kind=QueueKind.FAIR, groups=tuple(groups))
        await node.admin.update_queue("default", "q", settings, ("groups",), 0)
        more = 1 if groups and groups[0].leased_max else 2
        assert sum(groups_of(await waits).values()) == more


async def test_a_consumer_is_woken_by_a_higher_limit_of_all_groups():
    async with service_node() as node:
        await create(node, group_leased_max=1)
        await put(node, "a", "a", "b", "b")
        assert groups_of(await node.lease(10)) == {"a": 1, "b": 1}
        waits = await waiting(node)
        settings = QueueSettings(kind=QueueKind.FAIR, group_leased_max=0)
        await node.admin.update_queue("default", "q", settings, ("group_leased_max",), 0)
        got = groups_of(await waits)
        while sum(got.values()) < 2:
            got += groups_of(await node.lease(10, wait_ms=LONG_MS))
        assert got == {"a": 1, "b": 1}


async def test_a_consumer_is_woken_by_items_of_another_group():
    async with service_node() as node:
        await limited(node)
        waits = await waiting(node)
        await put(node, "z")
        assert groups_of(await waits) == {"z": 1}


async def test_a_lease_that_does_not_wait_gets_nothing_of_a_group_at_its_limit():
    async with service_node() as node:
        await limited(node)
        before = node.index()
        assert (await node.lease(10)).batches == ()
        assert node.index() == before, "a lease that would find nothing is not proposed"
        assert node.counts().ready == 2


async def test_a_stream_gets_the_items_of_a_group_one_after_the_other():
    async with service_node() as node:
        await create(node, GroupSettings("a", leased_max=1))
        await put(node, *["a"] * 30)
        stream = await node.subscribe(10)
        stream.grant(100, 0)
        for _ in range(30):
            reply = await stream.next()
            assert sum(groups_of(reply).values()) == 1
            await node.complete(*reply.batches)
        await stream.close(polite=True)
        assert node.counts().completed == 30


async def test_consumers_of_all_partitions_are_woken():
    async with service_node() as node:
        await create(node, group_leased_max=3, partitions=3)
        for number in range(30):
            await put(node, "a", key=f"key {number}")

        async def consume() -> None:
            for _ in range(15):
                reply = await node.lease(1, wait_ms=LONG_MS)
                await asyncio.sleep(0)
                await node.complete(*reply.batches)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(2):
                tasks.create_task(consume())
        assert node.counts().completed == 30


async def test_damaged_items_of_a_group_do_not_hide_those_that_limits_permit():
    async with service_node() as node:
        await create(node, GroupSettings("a", leased_max=2))
        for _ in range(3):
            await put(node, "a")
        queue = node.placement.map.find("default", "q")
        assert queue is not None
        [group] = queue.groups
        assert isinstance(node.environment, MemoryEnvironment)
        with damaged(node.environment, group, 0, 1):
            reply = await node.lease(10, wait_ms=LONG_MS)
            assert groups_of(reply) == {"a": 1}
            waits = await waiting(node)
            await put(node, "a")
            assert groups_of(await waits) == {"a": 1}
        await node.complete(*reply.batches)
        assert groups_of(await node.lease(10, wait_ms=LONG_MS)) == {"a": 1}


# --- settings ----------------------------------------------------------------------------------


async def test_weights_can_be_changed_while_items_wait():
    async with service_node() as node:
        await create(node, fairness=Fairness.TURNS)
        for group in ("a", "b"):
            await put(node, *[group] * 100)
        first = await node.lease(20)
        assert groups_of(first) == {"a": 10, "b": 10}
        settings = QueueSettings(kind=QueueKind.FAIR, groups=(GroupSettings("a", 4),))
        await node.admin.update_queue("default", "q", settings, ("groups",), 0)
        got = groups_of(await node.lease(50))
        assert 39 <= got["a"] <= 41


async def test_the_kind_of_a_queue_cannot_be_changed():
    async with service_node() as node:
        await create(node)
        await put(node, "a")
        settings = QueueSettings(kind=QueueKind.KEYED)
        error = await refusal(node.admin.update_queue("default", "q", settings, ("kind",), 0))
        assert (error.code, error.field) == (ErrorCode.INVALID_ARGUMENT, "settings.kind")
        assert (error.limit, error.value) == ("fair", "keyed")
        assert groups_of(await node.lease(1)) == {"a": 1}


async def test_a_wrong_path_is_refused_and_nothing_is_stored():
    async with service_node() as node:
        await create(node)
        await node.create("plain")
        error = await refusal(put(node, "a", "b..c"))
        assert (error.code, error.field) == (ErrorCode.INVALID_ARGUMENT, "items[1].group")
        assert error.value == "b..c"
        error = await refusal(put(node, ".".join("a" * 200)))
        assert (error.field, error.limit, error.value) == (
            "items[0].group", "8 levels", "200 levels",
        )  # fmt: skip
        assert node.counts().produced == 0
        await put(node, "b..c", queue="plain")
        assert node.counts("plain").ready == 1


# --- lists -------------------------------------------------------------------------------------


async def test_the_list_adds_up_partitions_and_the_groups_below():
    async with service_node() as node:
        await create(node, GroupSettings("eu", 3, 8), partitions=3, group_leased_max=60)
        for number in range(12):
            await put(node, "eu.de", "eu", "us", key=f"key {number}")
        await put(node, "")
        leased = groups_of(await node.lease(9))
        found = await listed(node)
        assert set(found) == {"", "eu", "eu.de", "us"}
        in_eu = leased["eu"] + leased["eu.de"]
        assert [(one.items, one.ready, one.leased) for one in (found["eu"], found["eu.de"])] == [
            (24, 24 - in_eu, in_eu), (12, 12 - leased["eu.de"], leased["eu.de"]),
        ]  # fmt: skip
        assert (found[""].items, found[""].ready, found[""].leased) == (37, 28, 9)
        assert [(found[path].weight, found[path].leased_max) for path in ("eu", "us", "")] == [
            (3, 8), (1, 60), (1, 0),
        ]  # fmt: skip
        assert found["us"].oldest_ready_at_ms > 0


@pytest.mark.parametrize("page_size", [1, 7, 1_000])
async def test_pages_have_each_group_once(page_size: int):
    async with service_node() as node:
        await create(node, partitions=4)
        names = [f"g{number}" for number in range(5 * ROWS_MIN)]
        await put(node, *names)
        await put(node, *names, key="elsewhere")
        found = await listed(node, page_size)
        assert {path: one.items for path, one in found.items()} == {
            "": 2 * len(names), **dict.fromkeys(names, 2)
        }  # fmt: skip


async def test_groups_without_items_are_not_listed():
    async with service_node() as node:
        await create(node)
        await put(node, "a", "b")
        await node.complete(*(await node.lease(2)).batches)
        assert {path for path, one in (await listed(node)).items() if one.items} == set()


async def test_other_queues_have_no_groups_and_other_tokens_are_refused():
    async with service_node() as node:
        await create(node)
        await node.create("plain")
        list_groups = node.admin.groups.list_groups
        error = await refusal(list_groups(ListGroupsCall("default", "plain")))
        assert (error.code, error.field) == (ErrorCode.INVALID_ARGUMENT, "queue")
        assert "is a plain queue" in error.message
        error = await refusal(list_groups(ListGroupsCall("default", "q", page_token="nonsense")))
        assert error.field == "page_token"
        error = await refusal(list_groups(ListGroupsCall("default", "q", page_size=1_001)))
        assert error.field == "page_size"
        error = await refusal(list_groups(ListGroupsCall("default", "none")))
        assert error.code is ErrorCode.QUEUE_NOT_FOUND


# --- moves -------------------------------------------------------------------------------------


async def test_dead_letters_return_to_their_groups():
    async with service_node() as node:
        await create(node, name="dead")
        await create(node, dead_queue="dead")
        await put(node, "a", "b.c", "")
        await node.retry(*map(whole, (await node.lease(3)).batches), dead=True)
        await node.until(lambda: node.counts("dead").ready == 3)
        assert await node.admin.redrive_dead_letters("default", "q", ()) == 3
        await node.until(lambda: node.counts().ready == 3)
        found = await listed(node)
        assert {path: one.ready for path, one in found.items()} == {
            "": 3, "a": 1, "b": 1, "b.c": 1,
        }  # fmt: skip


async def test_a_dead_letter_with_a_text_that_is_no_path_has_no_group():
    async with service_node() as node:
        await create(node, name="dead")
        await node.create("plain", dead_queue="dead")
        await put(node, "no..path", "a", queue="plain")
        batches = (await node.lease(2, queue="plain")).batches
        await node.retry(*map(whole, batches), queue="plain", dead=True)
        await node.until(lambda: node.counts("dead").ready == 2)
        call = ListGroupsCall("default", "dead")
        page = await node.admin.groups.list_groups(call)
        assert {one.path: one.ready for one in page.groups} == {"": 2, "a": 1}
        peeked = await node.admin.peek_items("default", "dead", RowState.READY, 10, "")
        assert len(peeked.items) == 2
