"""Followers of events at nodes and leaders: how they wait, what wakes them, and what ends them."""

import asyncio
from typing import Any

import msgspec

from querator.model.errors import ErrorCode
from querator.model.event_calls import EventKind, EventsReply, EventStart, ReadEventsCall
from querator.model.ids import GroupId
from querator.model.limits import HOUR_MS
from querator.partition.feed_queries import EventsPage
from querator.service.feed import waits
from querator.service.queue_service import QueueService
from querator.service.routing.forwarder import EventsQuery
from tests.unit.service.routing.test_router import group_of
from tests.unit.service.service_cluster import service_cluster
from tests.unit.service.service_node import LONG_MS, ServiceNode, code, refusal, service_node

KIND = EventKind


def call_of(position: int = 0, wait_ms: int = LONG_MS, **changes: Any) -> ReadEventsCall:
    values: dict[str, Any] = {
        "namespace": "default", "queue": "q", "partition": 0, "feed": GroupId(0),
        "start": EventStart.FIRST, "kinds": frozenset(), "events_max": 100,
    }  # fmt: skip
    return ReadEventsCall(position=position, wait_ms=wait_ms, **(values | changes))


def kinds(reply: EventsReply) -> list[EventKind]:
    return [EventKind(one.kind) for one in reply.events]


class Following:
    """A call that waits. `parked` returns when its question has found nothing, at `at`."""

    def __init__(
        self, service: QueueService, at: QueueService | None = None, *, call: ReadEventsCall
    ) -> None:
        self._waits = (at or service).events._followers
        self._look = self._waits._look
        self._waits._look = self._looking  # type: ignore[method-assign]
        self._looked = asyncio.Semaphore(0)
        self.looks = 0
        self.task = asyncio.get_running_loop().create_task(service.read_events(call))

    async def _looking(self, query: EventsQuery, position: int) -> EventsPage:
        self.looks += 1
        page = await self._look(query, position)
        if not page.events:
            self._looked.release()
        return page

    async def parked(self) -> None:
        await self._looked.acquire()


async def create(node: ServiceNode, retention_ms: int = HOUR_MS, **settings: Any) -> Any:
    return await node.create(events_retention_ms=retention_ms, **settings)


async def test_events_that_are_there_are_answered_at_once():
    async with service_node() as node:
        queue = await create(node)
        await node.produce(b"a", b"b")
        reply = await node.queues.read_events(call_of())
        assert kinds(reply) == [KIND.STARTED, KIND.PRODUCED]
        assert reply.feed == queue.groups[0]
        assert (reply.first_position, reply.next_position, reply.end_position) == (1, 3, 3)
        assert (reply.partition, reply.partitions) == (0, 1)
        again = await node.queues.read_events(call_of())
        assert again == reply


async def test_a_follower_is_woken_by_the_next_event():
    async with service_node() as node:
        await create(node)
        call = Following(node.queues, call=call_of(2))
        await call.parked()
        await node.produce(b"a")
        assert kinds(await call.task) == [KIND.PRODUCED]
        assert call.looks == 2
        assert node.queues.events._followers.questions == 0


async def test_a_follower_of_some_kinds_is_not_answered_by_others():
    async with service_node() as node:
        await create(node)
        await node.produce(b"a", b"b")
        some = frozenset({KIND.COMPLETED})
        call = Following(node.queues, call=call_of(kinds=some))
        await call.parked()
        batches = (await node.lease(1)).batches
        await call.parked()
        await node.complete(*batches)
        reply = await call.task
        assert (kinds(reply), reply.next_position) == ([KIND.COMPLETED], 5)


async def test_a_call_that_does_not_wait_is_answered_with_nothing():
    async with service_node() as node:
        await create(node)
        reply = await node.queues.read_events(call_of(2, wait_ms=0))
        assert (reply.events, reply.next_position) == ((), 2)
        reply = await node.queues.read_events(call_of(0, wait_ms=0, start=EventStart.END))
        assert (reply.events, reply.next_position) == ((), 2)


async def test_a_wait_ends_with_nothing(monkeypatch):
    monkeypatch.setattr("querator.service.feed.calls.EVENT_LOOK_MS_MAX", 5)
    async with service_node() as node:
        await create(node)
        # Longer than one question waits.
        reply = await node.queues.read_events(call_of(2, wait_ms=20))
        assert (reply.events, reply.next_position) == ((), 2)


async def test_a_queue_that_records_no_events_is_refused():
    async with service_node() as node:
        await node.create()
        error = await refusal(node.queues.read_events(call_of()))
        assert (error.code, error.field, error.value) == (ErrorCode.EVENTS_OFF, "queue", "q")
        assert "events_retention" in error.message


async def test_the_end_of_recording_ends_the_wait():
    async with service_node() as node:
        queue = await create(node)
        call = Following(node.queues, call=call_of(2))
        await call.parked()
        settings = msgspec.structs.replace(queue.settings, events_retention_ms=0)
        await node.admin.update_queue("default", "q", settings, ("events_retention_ms",), 0)
        assert await code(call.task) is ErrorCode.EVENTS_OFF


async def test_a_position_that_is_not_kept_is_refused_with_the_first_one(monkeypatch):
    monkeypatch.setattr("querator.partition.feed.EVENT_ROWS_MAX", 2)
    async with service_node() as node:
        await create(node)
        for _ in range(5):
            await node.produce(b"a")
        error = await refusal(node.queues.read_events(call_of(3)))
        assert (error.code, error.field) == (ErrorCode.EVENTS_GONE, "position")
        assert (error.limit, error.value) == ("5", "3")
        assert (await node.queues.read_events(call_of())).first_position == 5


async def test_a_position_that_does_not_exist_is_refused():
    async with service_node() as node:
        await create(node)
        error = await refusal(node.queues.read_events(call_of(7)))
        assert (error.code, error.field) == (ErrorCode.INVALID_ARGUMENT, "position")
        assert (error.limit, error.value) == ("2", "7")


async def test_a_partition_that_is_not_there_is_refused():
    async with service_node() as node:
        await create(node)
        error = await refusal(node.queues.read_events(call_of(partition=3)))
        assert (error.code, error.field, error.value) == (ErrorCode.EVENTS_GONE, "partition", "3")
        error = await refusal(node.queues.read_events(call_of(1, feed=GroupId(99))))
        assert (error.code, error.field) == (ErrorCode.EVENTS_GONE, "feed")


async def test_another_feed_is_refused_only_by_a_map_that_is_current(monkeypatch):
    async with service_node() as node:
        await create(node)

        async def does_not_answer() -> bool:
            return False

        monkeypatch.setattr(node.queues.directory, "catch_up", does_not_answer)
        error = await refusal(node.queues.read_events(call_of(1, feed=GroupId(99))))
        assert (error.code, error.field) == (ErrorCode.UNAVAILABLE, "feed")
        [group] = (await node.queues.directory.find("default", "q")).groups
        assert kinds(await node.queues.read_events(call_of(1, feed=group))) == [KIND.STARTED]


async def test_the_deletion_of_the_queue_ends_the_wait():
    async with service_node() as node:
        await create(node)
        call = Following(node.queues, call=call_of(2))
        await call.parked()
        await node.admin.delete_queue("default", "q")
        assert await code(call.task) in (ErrorCode.QUEUE_DELETING, ErrorCode.QUEUE_NOT_FOUND)


async def test_a_node_that_stops_ends_the_wait():
    async with service_node() as node:
        await create(node)
        call = Following(node.queues, call=call_of(2))
        await call.parked()
        await node.queues.stop()
        assert await code(call.task) is ErrorCode.UNAVAILABLE


async def test_waiting_calls_are_bounded(monkeypatch):
    monkeypatch.setattr(waits, "EVENT_QUESTIONS_MAX", 1)
    async with service_node() as node:
        await create(node)
        call = Following(node.queues, call=call_of(2))
        await call.parked()
        error = await refusal(node.queues.read_events(call_of()))
        assert (error.code, error.field) == (ErrorCode.OVERLOADED, "node")
        assert (error.limit, error.value) == ("1 questions", "2 questions")
        await node.produce(b"a")
        assert kinds(await call.task) == [KIND.PRODUCED]


async def test_a_caller_that_leaves_leaves_no_question():
    async with service_node() as node:
        await create(node)
        call = Following(node.queues, call=call_of(2))
        await call.parked()
        call.task.cancel()
        await asyncio.gather(call.task, return_exceptions=True)
        assert node.queues.events._followers.questions == 0


async def test_a_node_that_does_not_lead_waits_at_the_leader():
    async with service_cluster("a", "b", events_retention_ms=HOUR_MS) as cluster:
        a, b = cluster.members["a"], cluster.members["b"]
        call = Following(b, a, call=call_of(2))
        await call.parked()
        await cluster.produce("b", b"x")
        assert kinds(await call.task) == [KIND.PRODUCED]


async def test_a_wait_continues_at_the_next_leader():
    async with service_cluster("a", "b", "c", events_retention_ms=HOUR_MS) as cluster:
        call = Following(cluster.members["c"], cluster.members["a"], call=call_of(2))
        await call.parked()
        cluster.lead(group_of(cluster), "b")
        moved = Following(cluster.members["c"], cluster.members["b"], call=call_of(2))
        await moved.parked()
        await cluster.produce("b", b"x")
        for each in (call, moved):
            assert kinds(await each.task) == [KIND.PRODUCED]
