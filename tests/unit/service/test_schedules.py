"""Scheduled items over several partitions and nodes: lists, counts, and changes by id or filter."""

import asyncio
import struct
from collections.abc import Sequence
from typing import Any, cast

import pytest

from querator.model.calls import PeekedPage, ProduceCall
from querator.model.commands import ItemSpecial, Reschedule
from querator.model.errors import ErrorCode
from querator.model.ids import PLACEMENT_GROUP, GroupId
from querator.model.limits import KIB, SCHEDULE_AHEAD_MS_MAX
from querator.model.routing import slot_of_key
from querator.model.schedule_calls import (
    CountScheduledCall,
    DueFilter,
    ListScheduledCall,
    RescheduleCall,
    RescheduleReply,
    ScheduledCounts,
)
from querator.raft.clock import SimulatedClock
from querator.service import schedules
from querator.service.admin_service import AdminService
from querator.service.schedules import Schedules
from querator.v1 import items_pb2, queue_service_pb2
from querator.wire.schedules import encode_scheduled
from tests.unit.service.service_cluster import ServiceCluster, service_cluster
from tests.unit.service.service_node import payloads, refusal, service_node, whole

START_MS = 1_700_000_000_000
MINUTE_MS = 60_000
HUGE = 10**30


def produce_of(
    dues: Sequence[int], *, kinds: Sequence[str] = (), size: int = 0, key: bytes = b""
) -> ProduceCall:
    """Items that are due that number of ms after the start. The payload is the due time."""
    items = [
        queue_service_pb2.ProduceRequest(
            items=[
                items_pb2.Item(payload=b"%d" % due + b" " * size, kind=kinds[n] if kinds else "")
            ]
        ).SerializeToString()
        for n, due in enumerate(dues)
    ]
    slots = [slot_of_key(key)] * len(dues) if key else []
    return ProduceCall(
        namespace="default",
        queue="q",
        items=b"".join(items),
        lengths=struct.pack(f"<{len(items)}I", *map(len, items)),
        specials=tuple(ItemSpecial(n, START_MS + due) for n, due in enumerate(dues)),
        slots=struct.pack(f"<{len(slots)}H", *slots),
    )


async def spread(produce: Any, dues: Sequence[int], **more: Any) -> None:
    """Produces each item for another key, so that all partitions get some."""
    kinds = more.pop("kinds", ())
    for n, due in enumerate(dues):
        kind = kinds[n : n + 1]
        await produce(produce_of([due], kinds=kind, key=b"key %d" % n, **more))


def places(page: PeekedPage) -> list[tuple[int, int, int]]:
    return [(item.due_at_ms - START_MS, partition, item.seq) for _, partition, item in page.items]


async def list_all(
    scheduled: Schedules, page_size: int = 0, **due: Any
) -> tuple[list[tuple[int, int, int]], int]:
    """(due time, partition, sequence) of all items, and the number of pages."""
    found, pages, token = [], 0, ""
    while True:
        call = ListScheduledCall("default", "q", DueFilter(**due), page_size, token)
        page = await scheduled.list_items(call)
        assert len(page.items) <= (page_size or 100)
        found += places(page)
        pages += 1
        token = page.next_page_token
        if not token:
            return found, pages


def change(**fields: Any) -> RescheduleCall:
    return RescheduleCall("default", "q", **fields)


def ids(found: Sequence[tuple[int, int, int]]) -> tuple[str, ...]:
    return tuple(f"{partition}-{seq}" for _, partition, seq in found)


def admin_of(cluster: ServiceCluster, name: str) -> AdminService:
    service = cluster.members[name]
    return AdminService(
        placement=cast(Any, cluster.maps[name]),
        router=service.router,
        directory=service.directory,
        reads=service.reads,
        durable=False,
        clock=cluster.base.clock,
    )


DUES = [MINUTE_MS * (1 + n * 7 % 5) + n % 3 for n in range(40)]


@pytest.mark.parametrize("page_size", [1, 3, 17, 100])
async def test_items_come_in_the_order_of_due_times_over_all_partitions(page_size):
    async with service_node(clock=SimulatedClock()) as node:
        await node.create(partitions=5)
        await spread(node.queues.produce, DUES)
        found, pages = await list_all(node.admin.schedules, page_size)
        assert found == sorted(found)
        assert sorted(due for due, _, _ in found) == sorted(DUES)
        assert len({partition for _, partition, _ in found}) == 5
        assert pages == -(-40 // page_size)


async def test_items_that_are_due_together_come_by_partition_and_sequence():
    async with service_node(clock=SimulatedClock()) as node:
        await node.create(partitions=3)
        await spread(node.queues.produce, [MINUTE_MS] * 20)
        found, _ = await list_all(node.admin.schedules, 1)
        assert (len(found), found) == (20, sorted(found))


async def test_a_list_of_a_span_and_a_kind():
    async with service_node(clock=SimulatedClock()) as node:
        await node.create(partitions=3)
        kinds = ["mail" if n % 4 == 0 else "sms" for n in range(40)]
        await spread(node.queues.produce, DUES, kinds=kinds)
        span = {"from_ms": START_MS + 2 * MINUTE_MS, "until_ms": START_MS + 4 * MINUTE_MS}
        expected = sorted(due for due in DUES if 2 * MINUTE_MS <= due < 4 * MINUTE_MS)
        found, _ = await list_all(node.admin.schedules, 7, **span)
        assert [due for due, _, _ in found] == expected
        found, _ = await list_all(node.admin.schedules, 2, **span, kind="mail")
        assert [due for due, _, _ in found] == sorted(
            due
            for due, kind in zip(DUES, kinds, strict=True)
            if kind == "mail" and 2 * MINUTE_MS <= due < 4 * MINUTE_MS
        )
        assert await list_all(node.admin.schedules, kind="fax") == ([], 1)


async def test_a_page_has_bounded_work_and_may_be_empty(monkeypatch):
    """The next pages continue, and nothing is missing."""
    monkeypatch.setattr("querator.partition.schedule_queries.SCAN_ROWS_MAX", 5)
    monkeypatch.setattr(schedules, "ROUNDS_MAX", 2)
    async with service_node(clock=SimulatedClock()) as node:
        await node.create(partitions=3)
        kinds = ["rare" if n in (20, 119) else "usual" for n in range(120)]
        await spread(node.queues.produce, [MINUTE_MS + n for n in range(120)], kinds=kinds)
        found, pages = await list_all(node.admin.schedules, 50, kind="rare")
        assert [due for due, _, _ in found] == [MINUTE_MS + 20, MINUTE_MS + 119]
        assert 2 < pages <= 13
        found, _ = await list_all(node.admin.schedules, 50)
        assert [due for due, _, _ in found] == [MINUTE_MS + n for n in range(120)]


async def test_a_page_fits_into_a_message():
    """Payloads and the errors of consumers count."""
    clock = SimulatedClock()
    async with service_node(clock=clock) as node:
        await node.create(partitions=2, max_attempts=0)
        await spread(node.queues.produce, [MINUTE_MS + n for n in range(8)], size=800 * KIB)
        await node.queues.produce(produce_of([0] * 400, key=b"key 1"))
        for _ in range(5):
            async for batch in node.lease_all():
                await node.retry(batch, error="\N{SNOWMAN}" * 1_000, retry_at_ms=START_MS + 9_000)
            found, _ = await list_all(node.admin.schedules, 1_000, until_ms=START_MS + MINUTE_MS)
            assert (await node.admin.schedules.reschedule(change(item_ids=ids(found)))).changed
        async for batch in node.lease_all():
            await node.retry(batch, retry_at_ms=START_MS + 9_000)
        token, items, sizes = "", 0, []
        while True:
            call = ListScheduledCall("default", "q", page_size=1_000, page_token=token)
            page = await node.admin.schedules.list_items(call)
            items += len(page.items)
            sizes.append(len(encode_scheduled(page)))
            token = page.next_page_token
            if not token:
                break
        assert items == 408
        assert len(sizes) >= 4
        assert max(sizes) < 4_000_000


async def test_a_token_is_of_one_list():
    async with service_node(clock=SimulatedClock()) as node:
        await node.create(partitions=2)
        await spread(node.queues.produce, DUES)
        first = ListScheduledCall("default", "q", page_size=1)
        token = (await node.admin.schedules.list_items(first)).next_page_token
        long = DueFilter(START_MS, START_MS + 10 * MINUTE_MS, "k" * 100)
        for due in (DueFilter(kind="a"), DueFilter(1), DueFilter(until_ms=START_MS), long):
            other = ListScheduledCall("default", "q", due, 1, token)
            error = await refusal(node.admin.schedules.list_items(other))
            assert (error.code, error.field) == (ErrorCode.INVALID_ARGUMENT, "page_token")


async def test_a_token_is_of_one_kind_however_long():
    async with service_node(clock=SimulatedClock()) as node:
        await node.create()
        kinds = ["k" * 200 + "a", "k" * 200 + "b"]
        await spread(node.queues.produce, [MINUTE_MS] * 4, kinds=[*kinds, *kinds])
        first = ListScheduledCall("default", "q", DueFilter(kind=kinds[0]), 1)
        token = (await node.admin.schedules.list_items(first)).next_page_token
        other = ListScheduledCall("default", "q", DueFilter(kind=kinds[1]), 1, token)
        assert (await refusal(node.admin.schedules.list_items(other))).field == "page_token"


async def test_an_item_that_moves_between_the_steps_of_a_page_is_not_shown(monkeypatch):
    async with service_node(clock=SimulatedClock()) as node:
        await node.create()
        await node.queues.produce(produce_of([MINUTE_MS, 2 * MINUTE_MS]))
        load = Schedules._items

        async def moved(self: Schedules, *args: Any, **more: Any) -> Any:
            monkeypatch.setattr(Schedules, "_items", load)
            at_ms = START_MS + 3 * MINUTE_MS
            await self.reschedule(change(item_ids=("0-1",), due_at_ms=at_ms))
            return await load(self, *args, **more)

        monkeypatch.setattr(Schedules, "_items", moved)
        page = await node.admin.schedules.list_items(ListScheduledCall("default", "q", page_size=2))
        assert places(page) == [(2 * MINUTE_MS, 0, 2)]
        call = ListScheduledCall("default", "q", page_size=2, page_token=page.next_page_token)
        assert places(await node.admin.schedules.list_items(call)) == [(3 * MINUTE_MS, 0, 1)]


async def test_counts_by_time():
    async with service_node(clock=SimulatedClock()) as node:
        await node.create(partitions=3)
        scheduled = node.admin.schedules
        empty = await scheduled.count_items(CountScheduledCall("default", "q"))
        assert empty == ScheduledCounts((), 0, 0, 0)
        kinds = ["mail" if n % 2 else "sms" for n in range(40)]
        await spread(node.queues.produce, DUES, kinds=kinds)
        minutes = [START_MS + MINUTE_MS * n for n in range(8)]
        counts = await scheduled.count_items(
            CountScheduledCall("default", "q", minutes[2], minutes[4], interval_ms=MINUTE_MS)
        )
        assert counts == ScheduledCounts(((minutes[2], 8), (minutes[3], 8)), 16, 8, 16)
        # START_MS is 20 s after a minute: the intervals are aligned to whole minutes.
        first = (START_MS + MINUTE_MS) // MINUTE_MS * MINUTE_MS
        counts = await scheduled.count_items(CountScheduledCall("default", "q"))
        assert counts.buckets == tuple((first + n * MINUTE_MS, 8) for n in range(5))
        assert (counts.total, counts.before, counts.after) == (40, 0, 0)
        counts = await scheduled.count_items(
            CountScheduledCall("default", "q", minutes[2], interval_ms=5 * MINUTE_MS, kind="mail")
        )
        assert counts.buckets == ((minutes[2], 16),)
        assert (counts.total, counts.before, counts.after) == (16, 4, 0)
        late = CountScheduledCall("default", "q", until_ms=START_MS)
        assert await scheduled.count_items(late) == ScheduledCounts((), 0, 0, 40)


async def test_a_count_without_an_end_has_a_thousand_intervals():
    async with service_node(clock=SimulatedClock()) as node:
        await node.create()
        await node.queues.produce(produce_of([1_000, 999_999, 1_000_000, 9_000_000]))
        call = CountScheduledCall("default", "q", START_MS, interval_ms=1_000)
        counts = await node.admin.schedules.count_items(call)
        assert [(at_ms - START_MS, items) for at_ms, items in counts.buckets] == [
            (1_000, 1), (999_000, 1),
        ]  # fmt: skip
        assert (counts.total, counts.before, counts.after) == (2, 0, 2)


@pytest.mark.parametrize(
    ("fields", "field", "value"),
    [
        ({"from_ms": 0, "until_ms": 1_000_001, "interval_ms": 1_000}, "interval", "1001 intervals"),
        ({"until_ms": START_MS + 10**9, "interval_ms": 1_000}, "interval", "999999 intervals"),
        ({"interval_ms": 999}, "interval", "999 ms"),
        ({"interval_ms": HUGE}, "interval", f"{HUGE} ms"),
        ({"from_ms": HUGE}, "due_from", f"{HUGE} ms"),
        ({"from_ms": -1}, "due_from", "-1 ms"),
        ({"until_ms": HUGE}, "due_until", f"{HUGE} ms"),
        ({"from_ms": 5, "until_ms": 5}, "due_until", "5"),
        ({"kind": "k" * 256}, "kind", "256 characters"),
    ],
)
async def test_counts_that_are_refused(fields, field, value):
    async with service_node(clock=SimulatedClock()) as node:
        await node.create()
        await node.queues.produce(produce_of([1_000]))
        call = CountScheduledCall("default", "q", **fields)
        error = await refusal(node.admin.schedules.count_items(call))
        assert (error.field, error.value) == (field, value)
        assert field in error.message


async def test_items_are_moved_run_and_cancelled_by_id():
    clock = SimulatedClock()
    async with service_node(clock=clock) as node:
        await node.create(partitions=3)
        await spread(node.queues.produce, [MINUTE_MS + n for n in range(12)])
        scheduled = node.admin.schedules
        listed, _ = await list_all(scheduled)
        moved, run, cancelled = ids(listed[:4]), ids(listed[4:6]), ids(listed[6:9])
        at_ms = START_MS + 5 * MINUTE_MS
        reply = await scheduled.reschedule(change(item_ids=moved, due_at_ms=at_ms))
        assert reply == RescheduleReply(4)
        assert await scheduled.reschedule(change(item_ids=run)) == RescheduleReply(2)
        assert await scheduled.reschedule(
            change(item_ids=(*cancelled, *run, "0-999", cancelled[0]), cancel=True)
        ) == RescheduleReply(3, (*run, "0-999"))
        batches = (await node.lease()).batches
        assert sorted(payloads(*batches)) == [b"60004", b"60005"]
        await node.complete(*batches)
        clock.advance(MINUTE_MS + 1_000)
        ready = [b"%d" % (MINUTE_MS + n) for n in (10, 11, 9)]
        await node.until(lambda: node.counts().ready == 3)
        assert sorted(payloads(*(await node.lease()).batches)) == sorted(ready)
        left, _ = await list_all(scheduled)
        assert {due for due, _, _ in left} == {5 * MINUTE_MS}
        total = await node.total()
        assert (total.scheduled, total.cancelled, total.leased) == (4, 3, 3)


@pytest.mark.parametrize(
    ("fields", "field", "said"),
    [
        ({}, "item_ids", "item_ids or filter is required"),
        ({"item_ids": ("0-1",), "due": DueFilter()}, "item_ids", "not both"),
        ({"item_ids": ("0-1",), "dry_run": True}, "dry_run", "needs a filter"),
        ({"item_ids": ("x",)}, "item_ids[0]", "is not an item id"),
        ({"item_ids": ("0-1", "7-1")}, "item_ids[1]", "is 7-1, and queue q has no partition 7"),
        ({"item_ids": tuple(f"0-{n}" for n in range(1, 1_002))}, "item_ids", "limit is 1000 items"),
        ({"due": DueFilter(from_ms=HUGE)}, "filter.due_from", "the limit is"),
        ({"due": DueFilter(until_ms=-5)}, "filter.due_until", "the least is 0 ms"),
        ({"due": DueFilter(from_ms=9, until_ms=8)}, "filter.due_until", "must be after"),
        ({"due": DueFilter(kind="k" * 256)}, "filter.kind", "the limit is 255 characters"),
        ({"due": DueFilter(), "due_at_ms": HUGE}, "due_at", "the limit is"),
        ({"due": DueFilter(), "due_at_ms": -1}, "due_at", "the least is 0 ms"),
        (
            {"due": DueFilter(), "due_at_ms": START_MS + SCHEDULE_AHEAD_MS_MAX + 1},
            "due_at",
            f"due_at is {SCHEDULE_AHEAD_MS_MAX + 1} ms ahead; the limit is",
        ),
    ],
)
async def test_changes_that_are_refused(fields, field, said):
    async with service_node(clock=SimulatedClock()) as node:
        await node.create()
        await node.queues.produce(produce_of([1_000]))
        error = await refusal(node.admin.schedules.reschedule(change(**fields)))
        assert error.field == field
        assert said in error.message
        assert node.counts().scheduled == 1


async def test_the_furthest_instant_and_the_past():
    async with service_node(clock=SimulatedClock()) as node:
        await node.create()
        await node.queues.produce(produce_of([1_000, 2_000]))
        most_ms = START_MS + SCHEDULE_AHEAD_MS_MAX
        scheduled = node.admin.schedules
        far = change(item_ids=("0-1",), due_at_ms=most_ms)
        assert (await scheduled.reschedule(far)).changed == 1
        assert (await scheduled.reschedule(far)).changed == 0
        past = change(item_ids=("0-2",), due_at_ms=1)
        assert (await scheduled.reschedule(past)).changed == 1
        assert await list_all(scheduled) == ([(SCHEDULE_AHEAD_MS_MAX, 0, 1)], 1)
        assert node.counts().ready == 1


async def test_many_items_are_changed_by_a_filter():
    """More than one command may name, in one partition; and the new time is within the span."""
    async with service_node(clock=SimulatedClock()) as node:
        await node.create(partitions=2)
        for n in range(5):
            dues = [MINUTE_MS + 1_000 * n + m for m in range(500)]
            await node.queues.produce(produce_of(dues, key=b"key"))
        await spread(node.queues.produce, [MINUTE_MS] * 10)
        scheduled = node.admin.schedules
        span = DueFilter(START_MS + MINUTE_MS + 250, START_MS + 2 * MINUTE_MS)
        reply = await scheduled.reschedule(change(due=span, cancel=True, dry_run=True))
        assert reply == RescheduleReply(2_250)
        at_ms = START_MS + MINUTE_MS + 2_000
        assert await scheduled.reschedule(change(due=span, due_at_ms=at_ms)) == RescheduleReply(
            2_249
        )
        assert (await scheduled.reschedule(change(due=span, due_at_ms=at_ms))).changed == 0
        found, _ = await list_all(scheduled, 1_000, from_ms=span.from_ms)
        assert [due for due, _, _ in found] == [MINUTE_MS + 2_000] * 2_250
        everything = DueFilter()
        assert (await scheduled.reschedule(change(due=everything, dry_run=True))).changed == 2_510
        assert (await scheduled.reschedule(change(due=span, cancel=True))).changed == 2_250
        assert (await scheduled.reschedule(change(due=everything))).changed == 260
        total = await node.total()
        assert (total.scheduled, total.ready, total.cancelled) == (0, 260, 2_250)


async def test_a_filter_with_a_kind_changes_that_kind():
    async with service_node(clock=SimulatedClock()) as node:
        await node.create(partitions=3)
        kinds = ["mail" if n % 4 == 0 else "" for n in range(40)]
        await spread(node.queues.produce, DUES, kinds=kinds)
        scheduled = node.admin.schedules
        mail = DueFilter(kind="mail")
        assert (await scheduled.reschedule(change(due=mail, dry_run=True))).changed == 10
        assert (await scheduled.reschedule(change(due=mail, cancel=True))).changed == 10
        assert (await scheduled.reschedule(change(due=mail, cancel=True))).changed == 0
        assert node.counts().scheduled == 30


async def test_retried_items_are_scheduled_as_well():
    async with service_node(clock=SimulatedClock()) as node:
        await node.create()
        await node.produce(b"x", b"y")
        [batch] = (await node.lease()).batches
        await node.retry(whole(batch), retry_at_ms=START_MS + MINUTE_MS, error="slow")
        page = await node.admin.schedules.list_items(ListScheduledCall("default", "q"))
        assert [(item.attempt, item.errors) for _, _, item in page.items] == [(1, ("slow",))] * 2
        reply = await node.admin.schedules.reschedule(change(item_ids=("0-2",)))
        assert reply.changed == 1
        assert payloads(*(await node.lease()).batches) == [b"y"]


async def test_a_waiting_lease_gets_what_runs_now():
    async with service_node(clock=SimulatedClock()) as node:
        await node.create()
        await node.queues.produce(produce_of([MINUTE_MS]))
        waiting = asyncio.get_running_loop().create_task(node.lease(wait_ms=60_000))
        await asyncio.sleep(0)
        await node.admin.schedules.reschedule(change(item_ids=("0-1",)))
        assert payloads(*(await waiting).batches) == [b"60000"]


async def test_every_node_lists_counts_and_changes_all_partitions():
    async with service_cluster("a", "b", "c", clock=SimulatedClock(), partitions=3) as cluster:
        cluster.lead(PLACEMENT_GROUP, "b")
        await spread(cluster.members["a"].produce, DUES)
        lists = [await list_all(admin_of(cluster, name).schedules, 7) for name in ("a", "b", "c")]
        assert lists[0] == lists[1] == lists[2]
        assert [due for due, _, _ in lists[0][0]] == sorted(DUES)
        call = CountScheduledCall("default", "q")
        counts = [
            await admin_of(cluster, name).schedules.count_items(call) for name in ("a", "b", "c")
        ]
        assert counts[0] == counts[1] == counts[2]
        some = ids(lists[0][0][:20])
        reply = await admin_of(cluster, "b").schedules.reschedule(
            change(item_ids=some, cancel=True)
        )
        assert reply == RescheduleReply(20)
        assert cluster.forwarded["Reschedule"] == 2
        reply = await admin_of(cluster, "c").schedules.reschedule(change(due=DueFilter()))
        assert reply == RescheduleReply(20)
        assert cluster.base.counts().ready == 20


async def test_a_stale_list_needs_no_leader():
    async with service_cluster("a", "b", clock=SimulatedClock()) as cluster:
        await spread(cluster.members["a"].produce, [MINUTE_MS])
        cluster.lead(group_of(cluster), None)
        call = ListScheduledCall("default", "q", stale=True)
        scheduled = admin_of(cluster, "b").schedules
        assert places(await scheduled.list_items(call)) == [(MINUTE_MS, 0, 1)]
        count = CountScheduledCall("default", "q", stale=True)
        assert (await scheduled.count_items(count)).total == 1
        late = ListScheduledCall("default", "q", timeout_ms=50)
        error = await refusal(scheduled.list_items(late))
        assert error.code is ErrorCode.DEADLINE_EXCEEDED


def group_of(cluster: ServiceCluster) -> GroupId:
    queue = cluster.base.placement.map.find("default", "q")
    assert queue is not None
    return queue.groups[0]


@pytest.mark.parametrize(
    ("fields", "left"),
    [
        ({"due_at_ms": START_MS + 5 * MINUTE_MS}, (2, 0, 0)),
        ({"cancel": True}, (0, 2, 0)),
        ({}, (0, 0, 2)),
    ],
    ids=["move", "cancel", "run"],
)
async def test_a_change_whose_answer_is_lost_is_repeated_and_done_once(fields, left):
    async with service_cluster("a", "b", clock=SimulatedClock()) as cluster:
        cluster.lead(PLACEMENT_GROUP, "b")
        await cluster.members["a"].produce(produce_of([MINUTE_MS, MINUTE_MS]))
        cluster.loses_answers = 1
        for name in ("b", "a"):
            reply = await admin_of(cluster, name).schedules.reschedule(
                change(item_ids=("0-1", "0-2"), **fields)
            )
            # The first attempt, whose answer was lost, has done it, and the repeat finds it done.
            moved = "due_at_ms" in fields
            assert reply == RescheduleReply(0, () if moved else ("0-1", "0-2"))
        named = [command for _, _, command in cluster.proposed if isinstance(command, Reschedule)]
        assert len(named) >= 3
        counts = cluster.base.counts()
        assert (counts.scheduled, counts.cancelled, counts.ready) == left
