"""Followers at scripted nodes: partitions come and go, and nodes do not answer."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from querator.client.errors import ErrorCode, EventsGone, RequestError, Unavailable, make_error
from querator.client.events import EventPosition, Events, QueueEvent
from querator.v1 import queue_service_pb2 as pb

Answer = pb.ReadEventsResponse | RequestError | asyncio.Event | Callable[[], RequestError]


def event(position: int, kind: pb.EventKind.ValueType = pb.EVENT_KIND_PRODUCED) -> pb.QueueEvent:
    return pb.QueueEvent(position=position, kind=kind)


def response(
    *positions: int, feed: int = 7, after: int, end: int = 0, partitions: int = 1
) -> pb.ReadEventsResponse:
    return pb.ReadEventsResponse(
        events=map(event, positions), feed=feed, next_position=after, first_position=1,
        end_position=end or after, partitions=partitions,
    )  # fmt: skip


def gone(field: str) -> EventsGone:
    error = make_error(ErrorCode.EVENTS_GONE, "gone", field=field, limit="5")
    assert isinstance(error, EventsGone)
    return error


class Scripted:
    """Nodes that answer from a script for each partition, and then not at all. An event in a script
    is waited for.
    """

    closed = False

    def __init__(self, **scripts: list[Answer]) -> None:
        """`p0`, `p1` and so on: the answers for a partition. The first one is to its beginning."""
        self.scripts = {int(name[1:]): deque(answers) for name, answers in scripts.items()}
        self.asked: list[tuple[int, int, int]] = []
        self.queues = self
        self.silent = asyncio.Event()

    async def call(self, send: Callable[[Any, float], Any], **_: Any) -> Any:
        return await send(self, 1.0)

    async def ReadEvents(self, request: Any, **_: float) -> pb.ReadEventsResponse:
        self.asked.append((request.partition, request.feed, request.position))
        script = self.scripts[request.partition]
        if not script:
            self.silent.set()
            await asyncio.Event().wait()
        answer = script.popleft()
        if isinstance(answer, asyncio.Event):
            await answer.wait()
            answer = script.popleft()
        if callable(answer):
            answer = answer()
        if isinstance(answer, RequestError):
            raise answer
        assert isinstance(answer, pb.ReadEventsResponse)
        return answer


def following(nodes: Scripted, **options: Any) -> Events:
    values: dict[str, Any] = {"positions": (), "start": "first", "kinds": None, "follow": True}
    return Events(nodes, "default", "q", **(values | options))  # type: ignore[arg-type]


async def taken(events: Events, number: int) -> list[tuple[int, int, int]]:
    """Partition, feed and position of the next events."""
    async with asyncio.timeout(10):
        found: list[QueueEvent] = [await anext(events) for _ in range(number)]
    return [(one.partition, one.feed, one.position) for one in found]


START = response(after=1)


async def test_events_come_in_order_and_positions_follow_them():
    nodes = Scripted(p0=[START, response(1, 2, after=4)])
    async with following(nodes) as events:
        assert await taken(events, 1) == [(0, 7, 1)]
        assert events.positions == (EventPosition(0, 7, 2),)
        assert await taken(events, 1) == [(0, 7, 2)]
        # The filter has left out the event at 3.
        assert events.positions == (EventPosition(0, 7, 4),)


async def test_a_follower_continues_at_the_positions_that_it_is_given():
    nodes = Scripted(p0=[response(5, after=6, end=9), response(5, 6, after=7)])
    async with following(nodes, positions=["0:7.5"]) as events:
        assert await taken(events, 2) == [(0, 7, 5), (0, 7, 6)]
    assert nodes.asked[:2] == [(0, 7, 5), (0, 7, 5)]


async def test_without_follow_it_ends_at_the_end_of_the_beginning():
    nodes = Scripted(p0=[response(after=1, end=3), response(1, 2, after=3, end=9)])
    async with following(nodes, follow=False) as events:
        assert [one.position async for one in events] == [1, 2]


async def test_a_further_partition_is_followed_from_its_first_event():
    nodes = Scripted(
        p0=[START, response(1, after=2, partitions=2)], p1=[response(1, feed=8, after=2)]
    )
    async with following(nodes) as events:
        assert sorted(await taken(events, 2)) == [(0, 7, 1), (1, 8, 1)]
    assert (1, 0, 0) in nodes.asked


async def test_a_partition_that_leaves_after_its_last_event_has_ended():
    two, left = response(after=1, partitions=2), asyncio.Event()

    def leave() -> EventsGone:
        left.set()
        return gone("partition")

    nodes = Scripted(
        p0=[two, response(1, after=2, partitions=2), left, response(2, after=3)],
        p1=[two, response(1, feed=8, after=2, partitions=2), leave],
    )
    async with following(nodes) as events:
        assert sorted(await taken(events, 3)) == [(0, 7, 1), (0, 7, 2), (1, 8, 1)]
        assert events.positions == (EventPosition(0, 7, 3),)


async def test_a_partition_that_leaves_before_its_last_event_was_read_is_an_error():
    two = response(after=1, partitions=2)
    nodes = Scripted(
        p0=[two], p1=[two, response(1, feed=8, after=2, end=5, partitions=2), gone("partition")]
    )
    async with following(nodes) as events:
        assert await taken(events, 1) == [(1, 8, 1)]
        with pytest.raises(EventsGone):
            await taken(events, 1)


async def test_a_partition_that_was_created_again_is_followed_from_1():
    nodes = Scripted(
        p0=[START, response(1, after=2), gone("feed"), response(1, 2, feed=9, after=3)]
    )
    async with following(nodes) as events:
        assert await taken(events, 3) == [(0, 7, 1), (0, 9, 1), (0, 9, 2)]
        assert events.positions == (EventPosition(0, 9, 3),)
    assert (0, 0, 0) in nodes.asked


async def test_a_position_that_is_not_kept_is_an_error():
    nodes = Scripted(p0=[START, response(1, after=2), gone("position")])
    async with following(nodes) as events:
        await taken(events, 1)
        with pytest.raises(EventsGone) as refused:
            await taken(events, 1)
        assert refused.value.limit == "5"


async def test_a_partition_that_another_node_names_too_early_is_no_error():
    nodes = Scripted(
        p0=[START, response(1, after=2, partitions=2), response(2, after=3, partitions=2)],
        p1=[gone("partition"), response(1, feed=8, after=2, partitions=2)],
    )
    async with following(nodes) as events:
        assert sorted(await taken(events, 3)) == [(0, 7, 1), (0, 7, 2), (1, 8, 1)]


async def test_a_follower_waits_while_no_leader_answers():
    unavailable = make_error(ErrorCode.UNAVAILABLE, "no leader")
    nodes = Scripted(p0=[START, unavailable, unavailable, response(1, after=2)])
    async with following(nodes) as events:
        assert await taken(events, 1) == [(0, 7, 1)]


async def test_a_client_that_is_closed_ends_the_follower():
    nodes = Scripted(p0=[START, make_error(ErrorCode.UNAVAILABLE, "the client is closed")])
    nodes.closed = True
    async with following(nodes) as events:
        with pytest.raises(Unavailable):
            await taken(events, 1)


async def test_close_ends_an_iteration_that_waits():
    nodes = Scripted(p0=[START])
    async with following(nodes) as events:

        async def read() -> list[int]:
            return [one.position async for one in events]

        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(read())
            await nodes.silent.wait()
            await events.close()
        assert reading.result() == []


async def test_a_kind_of_a_later_version_is_unknown():
    later = pb.ReadEventsResponse(events=[pb.QueueEvent(position=1, kind=99)], next_position=2)  # type: ignore[arg-type]
    nodes = Scripted(p0=[START, later])
    async with following(nodes) as events:
        async with asyncio.timeout(10):
            assert (await anext(events)).kind == "unknown"


@pytest.mark.parametrize("text", ["", "0", "0:1", "0:1.0", "00:1.1", "0:1.1 ", "x:1.1"])
def test_a_text_that_is_no_position(text):
    with pytest.raises(ValueError, match="is not a position"):
        EventPosition.parse(text)


def test_a_position_as_text():
    position = EventPosition(3, 17, 2**40)
    assert EventPosition.parse(str(position)) == position
