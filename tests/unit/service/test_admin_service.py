"""Administration: queues, counts, peeking into queues, dead letters."""

import asyncio
import functools

import pytest

from querator.model.errors import ErrorCode
from querator.model.limits import DAY_MS
from querator.model.queues import (
    DEAD_QUEUE_DEFAULT,
    Fairness,
    GroupSettings,
    QueueKind,
    QueueSettings,
    QueueState,
)
from querator.raft.clock import SimulatedClock
from querator.service.admin_service import AdminService
from querator.wire.queues import encode_dead_letters, encode_peeked_items
from tests.unit.service.service_node import ServiceNode, code, refusal, service_node, whole


def text_of(item: bytes) -> bytes:
    return item[4:]


async def peek_all(
    node: ServiceNode, page_size: int, state: int = 0, name: str = "q"
) -> list[bytes]:
    found: list[bytes] = []
    token = ""
    while True:
        page = await node.admin.peek_items("default", name, state, page_size, token)
        assert len(page.items) <= page_size
        found += [text_of(item.item) for _, _, item in page.items]
        token = page.next_page_token
        if not token:
            return found


async def test_create_get_update_delete():
    async with service_node() as node:
        admin = node.admin
        queue, created = await admin.create_queue("default", "q", QueueSettings(partitions=2))
        assert created
        again, created = await admin.create_queue("default", "q", QueueSettings(partitions=2))
        assert (again, created) == (queue, False)
        assert await admin.get_queue("default", "q") == queue
        changed = await admin.update_queue(
            "default", "q", QueueSettings(max_attempts=3, partitions=9), ("max_attempts",), 1
        )
        assert (changed.settings.max_attempts, changed.settings.partitions) == (3, 2)
        stale = admin.update_queue("default", "q", QueueSettings(), ("max_attempts",), 1)
        assert await code(stale) is ErrorCode.VERSION_CONFLICT
        await admin.delete_queue("default", "q")
        assert await code(admin.delete_queue("default", "nobody")) is ErrorCode.QUEUE_NOT_FOUND


def fair(*groups: GroupSettings) -> QueueSettings:
    return QueueSettings(kind=QueueKind.FAIR, groups=groups)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        (QueueSettings(partitions=0), "settings.partitions"),
        (QueueSettings(partitions=1_025), "settings.partitions"),
        (QueueSettings(lease_timeout_ms=999), "settings.lease_timeout_ms"),
        (QueueSettings(lease_timeout_ms=24 * 3_600_000 + 1), "settings.lease_timeout_ms"),
        (QueueSettings(expire_timeout_ms=-1), "settings.expire_timeout_ms"),
        (QueueSettings(max_attempts=65_536), "settings.max_attempts"),
        (QueueSettings(dedup_window_ms=8 * 86_400_000), "settings.dedup_window_ms"),
        (QueueSettings(partition_items_max=-1), "settings.partition_items_max"),
        (QueueSettings(description="x" * 1_001), "settings.description"),
        (QueueSettings(replicas=2), "settings.replicas"),
        (QueueSettings(retry_delay_ms=99), "settings.retry_delay"),
        (QueueSettings(retry_delay_ms=-1), "settings.retry_delay"),
        (QueueSettings(priority_aging_ms=999), "settings.priority_aging"),
        (QueueSettings(priority_aging_ms=-1), "settings.priority_aging"),
        (QueueSettings(priority_aging_ms=31 * 86_400_000), "settings.priority_aging"),
        (QueueSettings(retry_delay_max_ms=99), "settings.retry_delay_max_ms"),
        (QueueSettings(retry_delay_max_ms=31 * 86_400_000), "settings.retry_delay_max_ms"),
        (QueueSettings(replicas=3), "settings.replicas"),
        (QueueSettings(dead_queue="a/b"), "settings.dead_queue"),
        (QueueSettings(dead_queue="q"), "settings.dead_queue"),
        (QueueSettings(dead_queue="nobody"), "settings.dead_queue"),
        (QueueSettings(fairness=Fairness.TURNS), "settings.fairness"),
        (QueueSettings(group_leased_max=5), "settings.group_leased_max"),
        (QueueSettings(kind=QueueKind.KEYED, groups=(GroupSettings("a"),)), "settings.groups"),
        (QueueSettings(kind=QueueKind.FAIR, key_leased_max=2), "settings.key_leased_max"),
        (QueueSettings(key_retry_blocks=False), "settings.key_retry_blocks"),
        (QueueSettings(kind=QueueKind.FAIR, group_leased_max=-1), "settings.group_leased_max"),
        (QueueSettings(kind=QueueKind.KEYED, key_leased_max=0), "settings.key_leased_max"),
        (fair(GroupSettings("a", 0)), "settings.groups[0].weight"),
        (fair(GroupSettings("a"), GroupSettings("b", 1, -1)), "settings.groups[1].leased_max"),
        (fair(GroupSettings("b"), GroupSettings("a")), "settings.groups[1].path"),
        (fair(GroupSettings("a.")), "settings.groups[0].path"),
        (fair(*[GroupSettings(f"g{n:04}") for n in range(1_001)]), "settings.groups"),
    ],
)
async def test_settings_are_refused_by_name(settings, field):
    async with service_node() as node:
        error = await refusal(node.admin.create_queue("default", "q", settings))
        assert error.field == field
        assert len(node.placement.map) == 0


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "a b", "ü", "a\n", "x" * 256])
async def test_names_are_refused(name):
    async with service_node() as node:
        for call in (
            node.admin.create_queue("default", name, QueueSettings()),
            node.admin.get_queue("default", name),
            node.admin.delete_queue("default", name),
        ):
            error = await refusal(call)
            assert error.field == "queue"
            assert error.code in (ErrorCode.INVALID_ARGUMENT, ErrorCode.LIMIT_EXCEEDED)


@pytest.mark.parametrize("mask", [(), ("nonsense",)])
async def test_update_masks(mask):
    async with service_node() as node:
        await node.create(partitions=2)
        call = node.admin.update_queue("default", "q", QueueSettings(), mask, 0)
        assert await code(call) is ErrorCode.INVALID_ARGUMENT


async def test_no_chains_of_dead_queues_and_none_deleted_in_use():
    async with service_node() as node:
        await node.create("q-dead")
        await node.create(dead_queue="q-dead")
        chain = node.admin.create_queue("default", "third", QueueSettings(dead_queue="q"))
        assert await code(chain) is ErrorCode.INVALID_ARGUMENT
        await node.create("other")
        other_way = node.admin.update_queue(
            "default", "q-dead", QueueSettings(dead_queue="other"), ("dead_queue",), 0
        )
        assert await code(other_way) is ErrorCode.INVALID_ARGUMENT
        error = await refusal(node.admin.delete_queue("default", "q-dead"))
        assert error.code is ErrorCode.QUEUE_IN_USE
        assert "q" in error.message


async def test_pages_fit_into_a_message_although_items_have_errors():
    async with service_node() as node:
        await node.create("gone", dead_queue="")
        await node.create(dead_queue="gone")
        await node.produce(*[b"x"] * 300)
        for last in (False,) * 4 + (True,):
            # A reply has as many items as fit into a message with their errors.
            batches = [one async for one in node.lease_all()]
            assert sum(batch.loaded.count for batch in batches) == 300
            for batch in batches:
                await node.retry(batch, error="\N{SNOWMAN}" * 1_000, dead=last)
            if not last:
                page = await node.admin.peek_items("default", "q", 0, 1_000, "")
                assert len(encode_peeked_items(page)) < 4_000_000
        await node.until(lambda: node.counts("gone").ready == 300)
        found, token = 0, ""
        while True:
            page = await node.admin.list_dead_letters("default", "q", 1_000, token)
            assert len(encode_dead_letters(page)) < 4_000_000
            found += len(page.items)
            token = page.next_page_token
            if not token:
                break
        assert found == 300


async def test_lowering_max_attempts_applies_to_items_already_there():
    async with service_node() as node:
        await node.create()
        await node.produce(b"x")
        for _ in range(2):
            [batch] = (await node.lease()).batches
            await node.retry(batch)
        await node.admin.update_queue(
            "default", "q", QueueSettings(max_attempts=2), ("max_attempts",), 0
        )
        assert (await node.lease()).batches == ()
        assert (await node.total()).dropped == 1


async def test_pages_of_queues():
    async with service_node() as node:
        for name in "dbace":
            await node.create(name)
        names: list[str] = []
        token = ""
        while True:
            page = await node.admin.list_queues("default", 2, token)
            names += [queue.name for queue in page.queues]
            if names == ["a", "b"]:
                # Queues that are created or deleted between two pages hide and repeat no others.
                await node.create("aa")
                await node.admin.delete_queue("default", "b")
            token = page.next_page_token
            if not token:
                break
        assert names == list("abcde")


async def test_an_empty_node_has_the_default_namespace():
    async with service_node() as node:
        assert (await node.admin.list_queues("default", 0, "")).queues == ()
        unknown = node.admin.list_queues("nowhere", 0, "")
        assert await code(unknown) is ErrorCode.NAMESPACE_NOT_FOUND


async def test_stats_are_sums_over_partitions():
    async with service_node() as node:
        await node.create(partitions=3)
        for _ in range(5):
            await node.produce(b"x", b"y")
        [*batches] = (await node.lease(3)).batches
        await node.complete(*map(whole, batches))
        stats = await node.admin.queue_stats("default", "q")
        assert [each.partition for each in stats.partitions] == [0, 1, 2]
        assert (stats.total.produced, stats.total.completed, stats.total.ready) == (10, 3, 7)
        for field in ("produced", "ready", "bytes", "delivered"):
            assert getattr(stats.total, field) == sum(
                getattr(each, field) for each in stats.partitions
            )
        assert stats.total.oldest_ready_at_ms == min(
            each.oldest_ready_at_ms for each in stats.partitions if each.oldest_ready_at_ms
        )


async def test_peeking_pages_through_all_partitions_and_leases_nothing():
    async with service_node() as node:
        await node.create(partitions=3)
        sent = [b"%02d" % number for number in range(20)]
        for text in sent:
            await node.produce(text)
        for page_size in (1, 3, 7, 20, 1_000):
            assert sorted(await peek_all(node, page_size)) == sent
        assert (await node.total()).leased == 0


async def test_peeking_is_stable_while_items_come_and_go():
    async with service_node() as node:
        await node.create()
        for number in range(10):
            await node.produce(b"%02d" % number)
        page = await node.admin.peek_items("default", "q", 0, 4, "")
        reply = await node.lease(2)
        await node.complete(*map(whole, reply.batches))
        await node.produce(b"10")
        rest = []
        token = page.next_page_token
        while token:
            more = await node.admin.peek_items("default", "q", 0, 4, token)
            rest += [text_of(item.item) for _, _, item in more.items]
            token = more.next_page_token
        assert rest == [b"%02d" % number for number in range(4, 11)]


async def test_peeking_by_state():
    async with service_node() as node:
        await node.create()
        await node.produce(b"a", b"b", b"c")
        [batch] = (await node.lease(1)).batches
        assert await peek_all(node, 10, state=1) == [b"b", b"c"]
        page = await node.admin.peek_items("default", "q", 2, 10, "")
        [(group, partition, item)] = page.items
        assert text_of(item.item) == b"a"
        assert f"{group:x}.{partition:x}.{item.lease:x}" == batch.lease_id
        bad = await refusal(node.admin.peek_items("default", "q", 77, 10, ""))
        assert bad.field == "state"


@pytest.mark.parametrize("size", [-1, 1_001])
async def test_page_sizes(size):
    async with service_node() as node:
        await node.create()
        for call in (
            node.admin.peek_items("default", "q", 0, size, ""),
            node.admin.list_queues("default", size, ""),
            node.admin.list_dead_letters("default", "q", size, ""),
        ):
            assert (await refusal(call)).field == "page_size"


async def test_tokens_of_other_lists_are_refused():
    async with service_node() as node:
        await node.create()
        await node.create("r")
        await node.produce(b"a", b"b")
        token = (await node.admin.peek_items("default", "q", 0, 1, "")).next_page_token
        assert token
        for call in (
            node.admin.peek_items("default", "r", 0, 1, token),
            node.admin.peek_items("default", "q", 1, 1, token),
            node.admin.list_dead_letters("default", "q", 1, token),
            node.admin.list_queues("default", 1, token),
            node.admin.peek_items("default", "q", 0, 1, token[:-1]),
            node.admin.peek_items("default", "q", 0, 1, "garbage!"),
            node.admin.peek_items("default", "q", 0, 1, "ü"),
        ):
            error = await refusal(call)
            assert (error.code, error.field) == (ErrorCode.INVALID_ARGUMENT, "page_token")


async def dead_letters(admin: AdminService, name: str) -> list[tuple[int, int]]:
    page = await admin.list_dead_letters("default", name, 100, "")
    return [(partition, item.seq) for _, partition, item in page.items]


async def test_the_default_dead_queue_is_created_with_the_first_queue_that_needs_it():
    default = QueueSettings(dead_queue=DEAD_QUEUE_DEFAULT)
    async with service_node() as node:
        refused = node.admin.create_queue(
            "default", "a", QueueSettings(dead_queue=DEAD_QUEUE_DEFAULT, replicas=5)
        )
        assert await code(refused) is ErrorCode.INVALID_ARGUMENT
        assert (await node.admin.list_queues("default", 0, "")).queues == ()
        made = await asyncio.gather(
            *(node.admin.create_queue("default", name, default, ()) for name in "abc")
        )
        assert [(queue.settings, created) for queue, created in made] == [(default, True)] * 3
        [*others, dead] = (await node.admin.list_queues("default", 0, "")).queues
        assert [queue.name for queue in others] == ["a", "b", "c"]
        assert (dead.name, dead.state) == (DEAD_QUEUE_DEFAULT, QueueState.ACTIVE)
        assert (dead.settings.max_attempts, dead.settings.dead_queue) == (0, "")


async def test_an_update_to_the_default_dead_queue_creates_it():
    async with service_node() as node:
        await node.admin.create_queue("default", "a", QueueSettings())
        wanted = QueueSettings(dead_queue=DEAD_QUEUE_DEFAULT)
        changed = await node.admin.update_queue("default", "a", wanted, ("dead_queue",), 0)
        assert changed.settings == wanted
        dead = await node.admin.get_queue("default", DEAD_QUEUE_DEFAULT)
        assert dead.state is QueueState.ACTIVE


def has_one(node: ServiceNode, queue: str) -> bool:
    return node.counts(queue).ready == 1


async def test_dead_letters_in_a_dead_queue_that_has_a_dead_queue_itself():
    async with service_node() as node:
        await node.create("dead")
        await node.create("mail.dead", dead_queue="dead")
        await node.create("mail", dead_queue="mail.dead")
        await node.produce(b"x", queue="mail")
        for queue, dead_queue in (("mail", "mail.dead"), ("mail.dead", "dead")):
            [batch] = (await node.lease(1, queue=queue)).batches
            await node.retry(batch, queue=queue, dead=True)
            await node.until(functools.partial(has_one, node, dead_queue))
            assert await dead_letters(node.admin, dead_queue) == [(0, 1)]
        assert await dead_letters(node.admin, "mail.dead") == []


async def test_dead_letters_by_origin_and_redrive_by_id():
    async with service_node() as node:
        await node.create("dead", partitions=2)
        await node.create("q", dead_queue="dead")
        await node.create("r", dead_queue="dead")
        for queue in ("q", "r"):
            for _ in range(3):
                await node.produce(b"x", queue=queue)
            for _ in range(3):
                [batch] = (await node.lease(1, queue=queue)).batches
                await node.retry(batch, queue=queue, dead=True)
        await node.until(lambda: node.counts("dead").ready == 6)
        of_q = await dead_letters(node.admin, "q")
        of_r = await dead_letters(node.admin, "r")
        assert len(of_q) == len(of_r) == 3
        assert sorted(await dead_letters(node.admin, "dead")) == sorted(of_q + of_r)
        ids = [f"{partition}-{seq}" for partition, seq in (of_q[0], of_q[1], of_r[0])]
        assert await node.admin.redrive_dead_letters("default", "q", ids) == 2
        assert await dead_letters(node.admin, "q") == [of_q[2]]
        bad = await refusal(node.admin.redrive_dead_letters("default", "q", ["0-1", "x"]))
        assert bad.field == "item_ids[1]"
        none = await refusal(node.admin.redrive_dead_letters("default", "dead", ()))
        assert none.field == "queue"


async def test_time_that_is_ahead_is_told_and_put_back():
    clock = SimulatedClock()
    async with service_node(clock=clock) as node:
        await node.admin.create_queue("default", "q", QueueSettings(partitions=2))
        assert await node.admin.repair_time("default", "q", dry_run=False) == ()
        clock.advance(DAY_MS)
        for _ in range(8):
            await node.produce(b"x")
        clock.step_wall(-DAY_MS)
        told = await node.admin.repair_time("default", "q", dry_run=True)
        assert [(one.partition, one.repaired) for one in told] == [(0, False), (1, False)]
        assert all(one.ahead_ms > DAY_MS - 10_000 for one in told)
        done = await node.admin.repair_time("default", "q", dry_run=False)
        assert [(one.partition, one.repaired) for one in done] == [(0, True), (1, True)]
        assert await node.admin.repair_time("default", "q", dry_run=True) == ()
        stats = await node.admin.queue_stats("default", "q")
        assert {one.state_ms - clock.wall_ms() for one in stats.partitions} == {0}
        nobody = node.admin.repair_time("default", "nobody", dry_run=True)
        assert await code(nobody) is ErrorCode.QUEUE_NOT_FOUND
        assert await code(node.admin.repair_time("default", "", dry_run=True)) is (
            ErrorCode.INVALID_ARGUMENT
        )


async def test_ids_name_no_dead_letters_of_a_dead_queue():
    """A list of its dead letters has ids of the items in it; those of its own dead queue may be the
    same.
    """
    async with service_node() as node:
        await node.admin.create_queue("default", "dead", QueueSettings())
        await node.admin.create_queue("default", "q-dead", QueueSettings(dead_queue="dead"))
        await node.admin.create_queue("default", "q", QueueSettings(dead_queue="q-dead"))
        error = await refusal(node.admin.redrive_dead_letters("default", "q-dead", ("0-1",)))
        assert (error.field, error.value) == ("queue", "q-dead")
        assert "name the queue in which the items died" in error.message
        assert await node.admin.redrive_dead_letters("default", "q-dead", ()) == 0
