"""Purges, cancelled items and dropped letters over several partitions and nodes."""

from typing import Any

import pytest

from querator.model.calls import CancelCall, CancelReply, LeasedRun, PurgeCall, PurgeReply
from querator.model.commands import LetterFilter, Purge
from querator.model.errors import ErrorCode
from querator.model.ids import PLACEMENT_GROUP
from querator.model.queues import QueueSettings
from querator.raft.clock import SimulatedClock
from tests.unit.service.service_cluster import service_cluster
from tests.unit.service.service_node import (
    ServiceNode,
    payloads,
    refusal,
    seqs,
    service_node,
    whole,
)
from tests.unit.service.test_moves import kill_all, settled
from tests.unit.service.test_schedules import admin_of, produce_of

MINUTE_MS = 60_000


def call(**fields: Any) -> PurgeCall:
    return PurgeCall("default", "q", **fields)


def cancel(*item_ids: str) -> CancelCall:
    return CancelCall("default", "q", item_ids)


async def fill(node: ServiceNode, items: int) -> None:
    for number in range(items):
        await node.produce(b"%d" % number)


async def test_a_purge_empties_all_partitions_and_says_what_stays():
    async with service_node(clock=SimulatedClock()) as node:
        await node.create(partitions=3)
        await fill(node, 12)
        leased = (await node.lease(2)).batches
        await node.queues.produce(produce_of([MINUTE_MS] * 4))
        assert await node.admin.purging.purge(call(dry_run=True)) == PurgeReply(14, leased=2)
        assert (await node.total()).ready == 10
        assert await node.admin.purging.purge(call()) == PurgeReply(14, leased=2)
        assert await node.admin.purging.purge(call()) == PurgeReply(0, leased=2)
        total = await node.total()
        assert (total.ready, total.scheduled, total.leased, total.cancelled) == (0, 0, 2, 14)
        for batch in leased:
            await node.complete(whole(batch))
        await node.produce(b"later")
        assert payloads(*(await node.lease()).batches) == [b"later"]


async def test_scheduled_items_stay_if_the_call_says_so():
    async with service_node(clock=SimulatedClock()) as node:
        await node.create()
        await fill(node, 3)
        await node.queues.produce(produce_of([MINUTE_MS] * 4))
        keep = call(keep_scheduled=True)
        dry = call(keep_scheduled=True, dry_run=True)
        assert await node.admin.purging.purge(dry) == PurgeReply(3, scheduled=4)
        assert await node.admin.purging.purge(keep) == PurgeReply(3, scheduled=4)
        assert (await node.total()).scheduled == 4


async def test_a_long_purge_continues_by_its_token():
    """Items that are produced between its calls stay, in all partitions."""
    async with service_node() as node:
        node.admin.purging.commands_max = 1
        await node.create(partitions=4)
        await fill(node, 40)
        removed, token, calls = 0, "", 0
        while calls == 0 or token:
            reply = await node.admin.purging.purge(call(page_token=token))
            removed += reply.removed
            token = reply.next_page_token
            calls += 1
            await fill(node, 4)
        assert (removed, calls) == (40, 4)
        assert (await node.total()).ready == 16


async def test_a_token_is_good_for_its_own_purge_only():
    async with service_node() as node:
        node.admin.purging.commands_max = 1
        await node.create(partitions=2)
        await node.create("r", partitions=2)
        await fill(node, 8)
        token = (await node.admin.purging.purge(call())).next_page_token
        for other in (
            call(page_token="garbage"),
            call(page_token=token, keep_scheduled=True),
            PurgeCall("default", "r", page_token=token),
        ):
            error = await refusal(node.admin.purging.purge(other))
            assert (error.code, error.field) == (ErrorCode.INVALID_ARGUMENT, "page_token")
        assert (await node.total()).ready == 4


async def test_an_old_token_removes_nothing_of_partitions_that_were_made_again():
    async with service_node() as node:
        node.admin.purging.commands_max = 1
        await node.create(partitions=3)
        await fill(node, 12)
        token = (await node.admin.purging.purge(call())).next_page_token
        while (await node.admin.purging.purge(call())).removed:
            pass
        await _change(node, 1)
        await node.until(lambda: len(_groups(node)) == 1)
        reply = await node.admin.purging.purge(call(page_token=token))
        assert (reply.removed, reply.next_page_token) == (0, "")
        await _change(node, 3)
        await fill(node, 12)
        while token:
            reply = await node.admin.purging.purge(call(page_token=token))
            assert reply.removed == 0
            token = reply.next_page_token
        assert (await node.total()).ready == 12


async def _change(node: ServiceNode, partitions: int) -> None:
    settings = QueueSettings(partitions=partitions)
    await node.admin.update_queue("default", "q", settings, ("partitions",), 0)


def _groups(node: ServiceNode) -> tuple[int, ...]:
    found = node.placement.map.find("default", "q")
    assert found is not None
    return tuple(found.groups)


async def test_partitions_that_are_closing_are_emptied():
    """They go then, without a consumer."""
    async with service_node() as node:
        await node.create(partitions=4)
        await fill(node, 40)
        await _change(node, 1)
        assert (await node.admin.purging.purge(call())).removed == 40
        await node.until(lambda: len(_groups(node)) == 1)


async def test_every_node_purges_all_partitions():
    async with service_cluster("a", "b", "c", clock=SimulatedClock(), partitions=3) as cluster:
        cluster.lead(PLACEMENT_GROUP, "b")
        for name in ("a", "b", "c"):
            for _ in range(6):
                await cluster.members["a"].produce(produce_of([MINUTE_MS]))
            before = (await admin_of(cluster, "a").queue_stats("default", "q")).total.scheduled
            assert before == 6
            assert await admin_of(cluster, name).purging.purge(call()) == PurgeReply(6)
        after = (await admin_of(cluster, "c").queue_stats("default", "q")).total
        assert (after.scheduled, after.cancelled) == (0, 18)


async def test_a_purge_whose_answer_is_lost_is_repeated_and_done_once():
    async with service_cluster("a", "b", clock=SimulatedClock()) as cluster:
        cluster.lead(PLACEMENT_GROUP, "b")
        await cluster.members["a"].produce(produce_of([MINUTE_MS] * 3))
        cluster.loses_answers = 1
        # The first attempt, whose answer was lost, has removed them.
        removed = [
            (await admin_of(cluster, name).purging.purge(call())).removed for name in ("b", "a")
        ]
        assert sum(removed) in (0, 3)
        assert (cluster.base.counts().scheduled, cluster.base.counts().cancelled) == (0, 3)
        assert any(isinstance(command, Purge) for _, _, command in cluster.proposed)


async def test_a_queue_that_is_not_there_is_named():
    async with service_node() as node:
        error = await refusal(node.admin.purging.purge(call()))
        assert error.code is ErrorCode.QUEUE_NOT_FOUND
        error = await refusal(node.admin.changes.cancel(cancel("0-1")))
        assert error.code is ErrorCode.QUEUE_NOT_FOUND


# --- cancel -----------------------------------------------------------------------------------


async def test_items_are_cancelled_by_their_ids_in_all_partitions():
    async with service_node(clock=SimulatedClock()) as node:
        await node.create(partitions=2)
        await fill(node, 6)
        await node.queues.produce(produce_of([MINUTE_MS]))
        page = await node.admin.peek_items("default", "q", 0, 100, "")
        ids = [f"{partition}-{item.seq}" for _, partition, item in page.items]
        [batch] = (await node.lease(1)).batches
        leased = f"{batch.partition}-{seqs(batch)[0]}"
        done = await node.admin.changes.cancel(cancel(*ids, "1-999"))
        assert done == CancelReply(6, (leased, "1-999"))
        total = await node.total()
        assert (total.ready, total.scheduled, total.leased, total.cancelled) == (0, 0, 1, 6)


REFUSED = {
    "none": ((), "item_ids", "must not be empty"),
    "nonsense": (("0-1", "x"), "item_ids[1]", "x"),
    "a partition that is not there": (("0-1", "7-1"), "item_ids[1]", "no partition 7"),
    "too many": (("0-1",) * 1_001, "item_ids", "1001"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_ids_that_are_refused(name: str):
    ids, field, words = REFUSED[name]
    async with service_node() as node:
        await node.create()
        error = await refusal(node.admin.changes.cancel(cancel(*ids)))
        assert error.field == field
        assert words in error.message


# --- dead letters -----------------------------------------------------------------------------


async def letters(node: ServiceNode) -> list[str]:
    page = await node.admin.list_dead_letters("default", "q", 100, "")
    return [f"{partition}-{item.seq}" for _, partition, item in page.items]


async def test_letters_are_dropped_by_name_and_by_filter():
    clock = SimulatedClock()
    async with service_node(clock=clock) as node:
        await node.create("dead", partitions=2)
        await node.create(partitions=2, dead_queue="dead")
        await fill(node, 10)
        await kill_all(node, 10)
        await settled(node, "dead", ready=10)
        drop = node.admin.drop_dead_letters
        found = await letters(node)
        assert len(found) == 10
        assert await drop("default", "q", found[:2]) == 2
        assert await drop("default", "q", found[:3]) == 1
        attempts = LetterFilter((1,))
        rejected = LetterFilter((3,))
        assert await drop("default", "q", (), attempts, dry_run=True) == 0
        assert await drop("default", "q", (), rejected, dry_run=True) == 7
        redrive = node.admin.redrive_dead_letters
        assert await redrive("default", "q", (), rejected, dry_run=True) == 7
        assert await letters(node) == found[3:]
        old = LetterFilter(died_until_ms=clock.wall_ms() - MINUTE_MS)
        assert await drop("default", "q", (), old) == 0
        assert await redrive("default", "q", (), old) == 0
        assert await drop("default", "q", (), rejected) == 7
        assert await letters(node) == []
        total = await node.total("dead")
        assert (total.ready, total.cancelled, total.dropped) == (0, 10, 0)


async def test_letters_are_redriven_by_a_filter():
    async with service_node() as node:
        await node.create("dead", partitions=2)
        await node.create(partitions=2, dead_queue="dead")
        await fill(node, 6)
        await kill_all(node, 6)
        await settled(node, "dead", ready=6)
        redrive = node.admin.redrive_dead_letters
        assert await redrive("default", "q", (), LetterFilter((2,))) == 0
        assert await redrive("default", "q", (), LetterFilter((2, 3))) == 6
        await settled(node, "q", ready=6)


async def test_letters_of_a_queue_that_has_none_are_refused():
    async with service_node() as node:
        await node.create("q", dead_queue="")
        error = await refusal(node.admin.drop_dead_letters("default", "q", ()))
        assert (error.code, error.field, error.value) == (
            ErrorCode.INVALID_ARGUMENT, "queue", "q",
        )  # fmt: skip


async def test_a_purge_leaves_what_moves_and_what_a_reader_has():
    async with service_node() as node:
        await node.create("dead", partition_items_max=1)
        await node.create(dead_queue="dead")
        await fill(node, 4)
        batches: list[LeasedRun] = list((await node.lease(3)).batches)
        for batch in batches:
            await node.retry(whole(batch), dead=True)
        await settled(node, "q", moving=2)
        assert await node.admin.purging.purge(call()) == PurgeReply(1, moving=2)
        dead = PurgeCall("default", "dead")
        assert (await node.admin.purging.purge(dead)).removed == 1
        await settled(node, "q", moving=1)
