"""Events: what is recorded, at which position, and how followers read it."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from querator.v1 import items_pb2
from querator.v1 import queue_service_pb2 as pb
from querator.v1.items_pb2 import Item
from tests.conformance.make import Make
from tests.conformance.queues import DONE, PATIENCE_S, Queue, refusal, soon, span

HOUR = span(3_600)
ITEM_KINDS_END = 30


async def recording(make: Make, **settings: Any) -> Queue:
    return await make(events_retention=HOUR, **settings)


def told(events: Sequence[pb.QueueEvent]) -> list[tuple[str, list[int]]]:
    """Kinds and sequences of the events of items."""
    return [
        (pb.EventKind.Name(one.kind).removeprefix("EVENT_KIND_").lower(), seqs(one))
        for one in events
        if one.kind < ITEM_KINDS_END
    ]


def seqs(event: pb.QueueEvent) -> list[int]:
    return [run.first_seq + offset for run in event.items for offset in range(run.count)]


async def test_events_tell_the_life_of_an_item(make: Make):
    queue = await recording(make)
    await queue.produce("a")
    item = await queue.lease_one()
    assert await queue.complete(item) == [DONE]
    assert told(await queue.events()) == [("produced", [1]), ("leased", [1]), ("completed", [1])]


async def test_positions_count_from_1_without_gaps(make: Make):
    queue = await recording(make)
    await queue.produce("a")
    await queue.complete(await queue.lease_one())
    page = await queue.events_page()
    assert [one.position for one in page.events] == [1, 2, 3, 4]
    assert (page.first_position, page.next_position, page.end_position) == (1, 5, 5)
    assert page.events[0].kind == pb.EVENT_KIND_STARTED


async def test_an_event_of_a_lease_names_lease_client_and_attempt(make: Make):
    queue = await recording(make)
    await queue.produce("a")
    item = await queue.lease_one(client="worker-7")
    [leased] = await queue.events(3)
    assert (leased.lease_id, leased.client_id, leased.attempt) == (item.lease_id, "worker-7", 1)
    assert leased.produced_at.ToMilliseconds() <= leased.at.ToMilliseconds()


async def test_items_of_one_request_are_one_event(make: Make):
    queue = await recording(make)
    await queue.produce(*map(str, range(100)))
    assert told(await queue.events()) == [("produced", list(range(1, 101)))]


async def test_a_retry_has_its_due_time(make: Make):
    queue = await recording(make)
    await queue.produce("a")
    at = soon(60)
    await queue.retry(await queue.lease_one(), at=at)
    [retried] = await queue.events(4)
    assert (retried.kind, retried.attempt) == (pb.EVENT_KIND_RETRIED, 1)
    assert retried.due_at.ToMilliseconds() == at.ToMilliseconds()


async def test_a_release_is_no_retry(make: Make):
    queue = await recording(make)
    await queue.produce("a")
    await queue.release(await queue.lease_one())
    assert told(await queue.events(4)) == [("released", [1])]


async def test_a_lapse_is_recorded(make: Make):
    queue = await recording(make)
    await queue.produce("a")
    await queue.lease_one(timeout_s=1)
    page = await queue.events_page(4, wait_s=PATIENCE_S)
    assert told(page.events) == [("lapsed", [1])]


async def test_a_rejected_item_is_dead_and_moves(make: Make):
    dead = await make()
    queue = await recording(make, dead_queue=dead.name)
    await queue.produce("a")
    await queue.reject(await queue.lease_one())
    await queue.dead_letters(1)
    page = await queue.events_page(4, wait_s=PATIENCE_S)
    [event] = page.events[:1]
    assert (event.kind, event.reason) == (pb.EVENT_KIND_DEAD, items_pb2.DEAD_REASON_REJECTED)
    assert not event.dropped
    moved = (await queue.events_page(5, wait_s=PATIENCE_S)).events
    assert told(moved) == [("moved", [1])]


async def test_a_dead_item_without_a_dead_queue_is_dropped(make: Make):
    queue = await recording(make, dead_queue="")
    await queue.produce("a")
    await queue.reject(await queue.lease_one())
    [event] = await queue.events(4)
    assert event.dropped


async def test_a_dead_letter_arrives_and_is_redriven(make: Make):
    dead = await recording(make)
    queue = await make(dead_queue=dead.name)
    await queue.produce("a")
    await queue.reject(await queue.lease_one())
    await queue.dead_letters(1)
    assert told(await dead.events()) == [("arrived", [1])]
    assert await queue.redrive() == 1
    assert told(await dead.events(3))[:1] == [("redriven", [1])]


async def test_a_scheduled_item_comes_due(make: Make):
    queue = await recording(make)
    await queue.produce(Item(payload=b"a", enqueue_at=soon(0.3)))
    await queue.lease_one()
    assert told(await queue.events()) == [("produced", [1]), ("due", [1]), ("leased", [1])]


async def test_changes_by_operators_are_recorded(make: Make):
    queue = await recording(make)
    ids = [one.id for one in await queue.produce("a", "b", "c")]
    await queue.prioritize(ids[0], priority=-5)
    await queue.cancel(ids[1])
    await queue.purge()
    found = await queue.events(3)
    assert told(found) == [("prioritized", [1]), ("removed", [2]), ("removed", [1, 3])]
    assert found[0].priority == -5


async def test_a_replaced_item_is_recorded(make: Make):
    queue = await recording(make, dedup_until="DEDUP_UNTIL_DONE")
    for _ in range(2):
        item = Item(payload=b"a", dedup_key="k", on_duplicate=items_pb2.ON_DUPLICATE_REPLACE)
        await queue.produce(item)
    assert told(await queue.events(3)) == [("replaced", [1]), ("produced", [2])]


async def test_a_pause_and_its_end_are_recorded(make: Make):
    queue = await recording(make)
    await queue.update(produce_paused=True)
    await queue.update(produce_paused=False)
    found = [one for one in await queue.events() if one.part]
    assert [(one.kind, one.part) for one in found] == [
        (pb.EVENT_KIND_PAUSED, pb.PAUSED_PART_PRODUCERS),
        (pb.EVENT_KIND_RESUMED, pb.PAUSED_PART_PRODUCERS),
    ]


async def test_further_partitions_begin_at_1_and_all_record_the_number(make: Make):
    queue = await recording(make)
    assert (await queue.events_page()).partitions == 1
    await queue.update(partitions=3)
    for partition in range(3):
        sizes: list[int] = []
        position = 0
        while 3 not in sizes:
            page = await queue.events_page(position, partition=partition, wait_s=PATIENCE_S)
            assert page.events, "the number of partitions is told in time"
            assert position or page.events[0].position == 1
            sizes += [one.partitions for one in page.events]
            position = page.next_position


async def test_a_filter_leaves_out_other_kinds(make: Make):
    queue = await recording(make)
    await queue.produce("a", "b")
    await queue.complete(await queue.lease_one())
    page = await queue.events_page(kinds=[pb.EVENT_KIND_COMPLETED])
    assert told(page.events) == [("completed", [1])]
    assert page.next_position == page.end_position


async def test_a_page_has_the_most_events_and_says_where_to_continue(make: Make):
    queue = await recording(make)
    for text in "abcde":
        await queue.produce(text)
    page = await queue.events_page(max_events=2)
    assert [one.position for one in page.events] == [1, 2]
    assert page.next_position == 3
    assert len(await queue.events(max_events=2)) == 6


async def test_the_same_position_has_the_same_events(make: Make):
    queue = await recording(make)
    await queue.produce("a")
    assert await queue.events_page() == await queue.events_page()


async def test_a_follower_is_woken_by_an_event(make: Make):
    queue = await recording(make)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(queue.events_page(2, wait_s=PATIENCE_S))
        await queue.produce("a")
    assert told(waiting.result().events) == [("produced", [1])]


async def test_a_wait_without_an_event_is_empty(make: Make):
    queue = await recording(make)
    page = await queue.events_page(2, wait_s=0.2)
    assert (list(page.events), page.next_position) == ([], 2)


async def test_a_follower_from_the_end_gets_what_comes_after(make: Make):
    queue = await recording(make)
    await queue.produce("before")
    page = await queue.events_page(start=pb.EVENT_START_END)
    assert (list(page.events), page.next_position) == ([], 3)
    await queue.produce("after")
    assert told(await queue.events(page.next_position)) == [("produced", [2])]


async def test_a_queue_without_the_setting_records_nothing(make: Make):
    queue = await make()
    refused = await refusal(queue.events_page())
    assert refused.code == "EVENTS_OFF"


async def test_positions_continue_when_events_are_turned_off_and_on(make: Make):
    queue = await recording(make)
    await queue.produce("a")
    await queue.update(events_retention=span(0))
    assert (await refusal(queue.events_page(3))).code == "EVENTS_OFF"
    await queue.update(events_retention=HOUR)
    refused = await refusal(queue.events_page(1))
    assert (refused.code, refused.field) == ("EVENTS_GONE", "position")
    assert [one.position for one in await queue.events(3)] == [3]


async def test_a_position_of_another_feed_is_refused(make: Make):
    queue = await recording(make)
    page = await queue.events_page()
    assert (await queue.events_page(1, feed=page.feed)).events == page.events
    refused = await refusal(queue.events_page(1, feed=page.feed + 1_000_000))
    assert (refused.code, refused.field) == ("EVENTS_GONE", "feed")


async def test_a_position_that_does_not_exist_is_refused(make: Make):
    queue = await recording(make)
    refused = await refusal(queue.events_page(99))
    assert (refused.code, refused.field) == ("INVALID_ARGUMENT", "position")


@pytest.mark.parametrize(
    ("fields", "code", "field"),
    [
        ({"partition": 7}, "EVENTS_GONE", "partition"),
        ({"kinds": [99]}, "INVALID_ARGUMENT", "kinds[0]"),
        ({"max_events": 2_001}, "LIMIT_EXCEEDED", "max_events"),
    ],
    ids=["a partition that is not there", "an unknown kind", "too many events"],
)
async def test_events_with_a_wrong_field_are_refused(make: Make, fields, code, field):
    queue = await recording(make)
    refused = await refusal(queue.events_page(**fields))
    assert (refused.code, refused.field) == (code, field)


async def test_a_retention_of_less_than_a_minute_is_refused(make: Make):
    refused = await refusal(make(events_retention=span(59)))
    assert (refused.code, refused.field) == ("LIMIT_EXCEEDED", "settings.events_retention")


async def test_the_deletion_of_the_queue_ends_the_feed(make: Make):
    queue = await recording(make)

    async def wait() -> str:
        return (await refusal(queue.events_page(2, wait_s=PATIENCE_S))).code

    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(wait())
        await queue.delete()
    assert waiting.result() in ("QUEUE_DELETING", "QUEUE_NOT_FOUND")


async def test_events_of_a_queue_that_does_not_exist_are_refused(make: Make):
    assert (await refusal(make.queue().events_page())).code == "QUEUE_NOT_FOUND"


@pytest.mark.sizes(3)
async def test_events_are_the_same_through_all_nodes(make: Make):
    queue = await recording(make)
    await queue.produce("a")
    await queue.complete(await queue.lease_one())
    first = await queue.events_page()
    for number, node in enumerate(make.nodes):
        assert await queue.through(make.open(number), node).events_page() == first
