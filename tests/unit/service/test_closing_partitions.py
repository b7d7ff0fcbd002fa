"""Closing partitions are deleted while others are away, and are not queried all the time."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from querator.model.calls import CancelCall, CancelReply, PeekedPage, PurgeCall, PurgeReply
from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import PLACEMENT_GROUP, GroupId
from querator.model.queues import Queue, QueueSettings
from querator.model.schedule_calls import (
    CountScheduledCall,
    DueFilter,
    ListScheduledCall,
    RescheduleCall,
    RescheduleReply,
    ScheduledCounts,
)
from querator.model.txn_calls import AbortCall, AbortReply, TxnList
from querator.placement.tasks import closing
from querator.placement.tasks.partition_calls import here
from querator.service.admin_service import AdminService
from querator.service.queue_service import QueueService
from tests.unit.service.service_cluster import service_cluster
from tests.unit.service.service_node import ServiceNode, service_node


class Asked:
    """Counts the queries of the leader of group 0 by partition. Those in `away` do not answer."""

    def __init__(self, node: ServiceNode) -> None:
        self.away: set[GroupId] = set()
        self.counts: Counter[GroupId] = Counter()
        self._ask = here(node.host, node.environment)
        node.placement._repartitioner.telling.ask = self.ask

    async def ask(self, group: GroupId, query: Any) -> Any:
        self.counts[group] += 1
        if group in self.away:
            raise QueratorError(ErrorCode.NOT_LEADER, f"group {group} has no leader")
        return await self._ask(group, query)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closing, "CLOSING_S", 0.001)


def placed(node: ServiceNode, queue: str = "q") -> Queue:
    found = node.placement.map.find("default", queue)
    assert found is not None
    return found


async def change(node: ServiceNode, partitions: int, queue: str = "q") -> None:
    settings = QueueSettings(partitions=partitions)
    await node.admin.update_queue("default", queue, settings, ("partitions",), 0)


async def partitions_counted(admin: AdminService) -> int:
    return len((await admin.queue_stats("default", "q")).partitions)


async def items_peeked(admin: AdminService) -> int:
    return len((await admin.peek_items("default", "q", 0, 10, "")).items)


async def letters_sent_home(admin: AdminService) -> int:
    return await admin.redrive_dead_letters("default", "source", ())


async def letters_dropped(admin: AdminService) -> int:
    return await admin.drop_dead_letters("default", "source", ())


async def letters_counted(admin: AdminService) -> int:
    return await admin.drop_dead_letters("default", "source", (), dry_run=True)


async def purged(admin: AdminService) -> PurgeReply:
    return await admin.purging.purge(PurgeCall("default", "q"))


async def cancelled_by_id(admin: AdminService) -> CancelReply:
    return await admin.changes.cancel(CancelCall("default", "q", ("0-7", "1-7")))


async def items_scheduled(admin: AdminService) -> PeekedPage:
    return await admin.schedules.list_items(ListScheduledCall("default", "q"))


async def scheduled_counts(admin: AdminService) -> ScheduledCounts:
    return await admin.schedules.count_items(CountScheduledCall("default", "q"))


async def rescheduled(admin: AdminService) -> RescheduleReply:
    return await admin.schedules.reschedule(RescheduleCall("default", "q", due=DueFilter()))


async def rescheduled_by_id(admin: AdminService) -> RescheduleReply:
    call = RescheduleCall("default", "q", item_ids=("0-7", "1-7"))
    return await admin.schedules.reschedule(call)


async def test_they_go_while_a_partition_of_another_queue_has_no_leader():
    async with service_node() as node:
        await node.create(partitions=3)
        other = await node.create("other", partitions=2)
        Asked(node).away = {other.groups[1]}
        await change(node, 1)
        await node.until(lambda: len(placed(node).groups) == 1)


async def test_they_wait_for_those_that_have_moved_something_to_them():
    async with service_node() as node:
        await node.create("dead", partitions=2)
        queue = await node.create(partitions=2, dead_queue="dead", max_attempts=1)
        for _ in range(4):
            await node.produce(b"x")
        for batch in (await node.lease(100)).batches:
            await node.retry(batch, dead=True)
        await node.until(lambda: node.counts("dead").ready == 4 and not node.counts("q").moving)
        assert await node.admin.redrive_dead_letters("default", "q", ()) == 4
        await node.until(lambda: node.counts("q").ready == 4 and not node.counts("dead").moving)
        asked = Asked(node)
        asked.away = set(queue.groups)
        await change(node, 1, "dead")
        # Dead letters go to the partition with the same number.
        source = queue.groups[1]
        while asked.counts[source] < 3:  # noqa: ASYNC110 - a query has no event
            await asyncio.sleep(0.001)
        assert len(placed(node, "dead").groups) == 2, "it may not know what has arrived"
        asked.away = set()
        await node.until(lambda: len(placed(node, "dead").groups) == 1)


async def test_nobody_is_asked_all_the_time_while_nothing_changes():
    async with service_node() as node:
        await node.create(partitions=4)
        other = await node.create("other", partitions=4)
        for _ in range(4):
            await node.produce(b"x")
        asked = Asked(node)
        await change(node, 2)
        asked.counts.clear()
        waiting = asyncio.get_running_loop().create_future()
        await asyncio.wait([waiting], timeout=0.5)
        assert not {*other.groups} & set(asked.counts), "nothing is empty that they may need"
        assert max(asked.counts.values()) <= 20
        waiting.cancel()


Asks = Callable[[AdminService], Awaitable[object]]


@pytest.mark.parametrize(
    ("ask", "answer"),
    [
        (lambda admin: admin.give_up_damaged("default", "q", dry_run=False), ((), 0)),
        (lambda admin: admin.repair_time("default", "q", dry_run=True), ()),
        (partitions_counted, 1),
        (items_peeked, 0),
        (letters_sent_home, 0),
        (items_scheduled, PeekedPage((), "")),
        (scheduled_counts, ScheduledCounts((), 0, 0, 0)),
        (rescheduled, RescheduleReply(0)),
        (rescheduled_by_id, RescheduleReply(0, ("0-7", "1-7"))),
        (purged, PurgeReply(0)),
        (cancelled_by_id, CancelReply(0, ("0-7", "1-7"))),
        (letters_dropped, 0),
        (letters_counted, 0),
    ],
    ids=[
        "give up",
        "repair time",
        "counts",
        "items",
        "redrive",
        "schedules",
        "counts by time",
        "reschedule",
        "reschedule by id",
        "purge",
        "cancel by id",
        "drop",
        "letters counted",
    ],
)
async def test_who_asks_all_partitions_is_not_refused_for_one_that_has_gone(
    ask: Asks, answer: object
):
    async with service_cluster("a", "b", partitions=2) as cluster:
        cluster.lead(PLACEMENT_GROUP, "b")
        cluster.lead(placed(cluster.base).groups[1], None)
        source = await cluster.base.create("source", dead_queue="q")
        cluster.lead(source.groups[0], "a")
        service = cluster.members["a"]
        admin = AdminService(
            placement=cast(Any, cluster.maps["a"]),
            router=service.router,
            directory=service.directory,
            reads=service.reads,
            durable=False,
            clock=cluster.base.clock,
        )
        asking = asyncio.get_running_loop().create_task(cast(Any, ask(admin)))
        await cluster.confirming.wait()
        await change(cluster.base, 1)
        await cluster.base.until(lambda: len(placed(cluster.base).groups) == 1)
        assert await asking == answer


@pytest.mark.parametrize(
    ("ask", "answer"),
    [
        (lambda service: service.abort(AbortCall("default", "q", "p", 7)), AbortReply(False, 0)),
        (lambda service: service.staged("default", "q"), TxnList((), False)),
    ],
    ids=["abort", "list what is staged"],
)
async def test_a_batch_needs_nothing_of_a_partition_that_has_gone(
    ask: Callable[[QueueService], Awaitable[object]], answer: object
):
    """Seed 122574 of whole nodes: the queue had lost a partition, and was reported as deleted."""
    async with service_cluster("a", "b", partitions=2) as cluster:
        cluster.lead(PLACEMENT_GROUP, "b")
        cluster.lead(placed(cluster.base).groups[1], None)
        asking = asyncio.get_running_loop().create_task(cast(Any, ask(cluster.members["a"])))
        await asyncio.sleep(0.01)
        await change(cluster.base, 1)
        await cluster.base.until(lambda: len(placed(cluster.base).groups) == 1)
        assert await asking == answer
