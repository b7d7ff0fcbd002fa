"""Calls about scheduled items: what is sent for the arguments, and what comes back."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from google.protobuf.message import Message

from querator import Client, SyncClient
from querator.client import ItemId, Rescheduled, ScheduledBucket, ScheduleDensity
from querator.client.errors import InvalidArgument
from querator.model.errors import ErrorCode, QueratorError
from querator.v1 import admin_service_pb2 as pb
from querator.v1 import items_pb2
from tests.unit.cli.scripted_cluster import ScriptedCluster, scripted_cluster

NOON = datetime(2030, 1, 31, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
NAIVE = datetime(2030, 1, 31, 12)  # noqa: DTZ001 - it is refused


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with scripted_cluster() as cluster:
        yield cluster


class Recorded:
    """Answers calls in their order, and keeps the requests."""

    def __init__(self, kind: type[Message], *answers: Message | QueratorError) -> None:
        self.requests: list[Any] = []
        self._kind = kind
        self._answers = iter(answers)

    def __call__(self, request: bytes) -> Message | QueratorError:
        message = self._kind()
        message.ParseFromString(request)
        self.requests.append(message)
        return next(self._answers)


def scheduled(seq: int, due_at: datetime) -> pb.PeekedItem:
    item = pb.PeekedItem(partition=1, seq=seq, state=items_pb2.ITEM_STATE_SCHEDULED)
    item.due_at.FromDatetime(due_at)
    return item


async def test_a_list_follows_its_pages_also_empty_ones(cluster: ScriptedCluster):
    pages = Recorded(
        pb.ListScheduledItemsRequest,
        pb.ListScheduledItemsResponse(items=[scheduled(7, NOON)], next_page_token="a"),
        pb.ListScheduledItemsResponse(next_page_token="b"),
        pb.ListScheduledItemsResponse(items=[scheduled(5, NOON + HOUR)]),
    )
    cluster.answers["ListScheduledItems"] = pages
    async with Client(cluster.address, namespace="shop") as client:
        listed = client.schedules.list(
            "mail", due_from=NOON, due_until=NOON + 2 * HOUR, kind="bill", stale=True
        )
        found = [(item.id, item.due_at) async for item in listed]
    assert found == [(ItemId(1, 7), NOON), (ItemId(1, 5), NOON + HOUR)]
    assert [request.page_token for request in pages.requests] == ["", "a", "b"]
    for request in pages.requests:
        assert (request.namespace, request.queue, request.kind) == ("shop", "mail", "bill")
        assert request.due_from.ToDatetime(UTC) == NOON
        assert request.due_until.ToDatetime(UTC) == NOON + 2 * HOUR
        assert request.stale


async def test_a_list_ends_at_its_limit(cluster: ScriptedCluster):
    pages = Recorded(
        pb.ListScheduledItemsRequest,
        pb.ListScheduledItemsResponse(items=[scheduled(7, NOON)], next_page_token="a"),
        pb.ListScheduledItemsResponse(items=[scheduled(8, NOON)] * 2, next_page_token="b"),
    )
    cluster.answers["ListScheduledItems"] = pages
    async with Client(cluster.address) as client:
        assert len([item async for item in client.schedules.list("mail", limit=3)]) == 3
    assert [request.page_size for request in pages.requests] == [3, 2]
    assert not pages.requests[0].HasField("due_from")
    assert not pages.requests[0].HasField("due_until")


async def test_counts_by_due_time(cluster: ScriptedCluster):
    answer = pb.CountScheduledItemsResponse(total=5, before=2, after=1)
    for hours, items in ((0, 3), (4, 2)):
        answer.buckets.add(items=items).starts_at.FromDatetime(NOON + hours * HOUR)
    calls = Recorded(pb.CountScheduledItemsRequest, answer, pb.CountScheduledItemsResponse())
    cluster.answers["CountScheduledItems"] = calls
    async with Client(cluster.address) as client:
        counts = await client.schedules.count("mail", due_from=NOON, interval=HOUR, kind="bill")
        nothing = await client.schedules.count("mail", due_until=NOON)
    buckets = (ScheduledBucket(NOON, 3), ScheduledBucket(NOON + 4 * HOUR, 2))
    assert counts == ScheduleDensity(HOUR, buckets, total=5, before=2, after=1)
    assert nothing == ScheduleDensity(timedelta(minutes=1), (), total=0, before=0, after=0)
    first, second = calls.requests
    assert (first.interval.ToTimedelta(), first.kind) == (HOUR, "bill")
    assert first.due_from.ToDatetime(UTC) == NOON
    assert (first.HasField("due_until"), second.HasField("due_from")) == (False, False)
    assert second.due_until.ToDatetime(UTC) == NOON


async def test_items_are_chosen_by_id(cluster: ScriptedCluster):
    calls = Recorded(
        pb.RescheduleItemsRequest,
        pb.RescheduleItemsResponse(changed=1, not_scheduled=["0-17"]),
        pb.RescheduleItemsResponse(changed=1),
        pb.RescheduleItemsResponse(changed=1),
    )
    cluster.answers["RescheduleItems"] = calls
    async with Client(cluster.address) as client:
        moved = await client.schedules.move("mail", ["0-17", ItemId(2, 9)], to=NOON)
        await client.schedules.run_now("mail", ["0-17"])
        await client.schedules.cancel("mail", (ItemId(0, 17),))
    assert moved == Rescheduled(1, (ItemId(0, 17),))
    ids = [list(request.item_ids) for request in calls.requests]
    assert ids == [["0-17", "2-9"], ["0-17"], ["0-17"]]
    actions = [request.WhichOneof("action") for request in calls.requests]
    assert actions == ["due_at", "run_now", "cancel"]
    assert calls.requests[0].due_at.ToDatetime(UTC) == NOON
    assert not any(request.HasField("filter") for request in calls.requests)


async def test_items_are_chosen_by_a_filter(cluster: ScriptedCluster):
    calls = Recorded(pb.RescheduleItemsRequest, *[pb.RescheduleItemsResponse(changed=4)] * 3)
    cluster.answers["RescheduleItems"] = calls
    async with Client(cluster.address) as client:
        schedules = client.schedules
        assert await schedules.move("mail", kind="bill", to=NOON) == Rescheduled(4)
        await schedules.run_now("mail", due_from=NOON, due_until=NOON + HOUR, dry_run=True)
        await schedules.cancel("mail", all_items=True)
    by_kind, by_time, everything = calls.requests
    assert by_kind.filter == pb.ScheduledFilter(kind="bill")
    assert by_time.filter.due_from.ToDatetime(UTC) == NOON
    assert by_time.filter.due_until.ToDatetime(UTC) == NOON + HOUR
    assert (everything.HasField("filter"), everything.filter) == (True, pb.ScheduledFilter())
    assert [request.dry_run for request in calls.requests] == [False, True, False]
    assert not any(request.item_ids for request in calls.requests)


@pytest.mark.parametrize(
    "choice",
    [
        {},
        {"kind": ""},
        {"item_ids": ["0-17"], "kind": "bill"},
        {"item_ids": ["0-17"], "all_items": True},
        {"due_from": NOON, "all_items": True},
    ],
)
async def test_one_way_to_choose_items_is_needed(choice: dict[str, Any]):
    async with Client("127.0.0.1:1") as client:
        for change in (client.schedules.run_now, client.schedules.cancel):
            with pytest.raises(ValueError, match=r"choose the items by one of: item_ids; .*all_"):
                await change("mail", **choice)
        with pytest.raises(ValueError, match="choose the items by one of"):
            await client.schedules.move("mail", **choice, to=NOON)


async def test_no_ids_are_no_call():
    async with Client("127.0.0.1:1") as client:
        assert await client.schedules.cancel("mail", []) == Rescheduled(0)
        assert await client.schedules.move("mail", iter(()), to=NOON) == Rescheduled(0)


@pytest.mark.parametrize("one", ["0-17", ItemId(0, 17)])
async def test_one_id_is_no_list_of_ids(one: Any):
    async with Client("127.0.0.1:1") as client:
        with pytest.raises(
            TypeError,
            match=r"item_ids is .*17.*; it must be a list or another iterable of item ids",
        ):
            await client.schedules.cancel("mail", one)


async def test_instants_need_a_time_zone():
    async with Client("127.0.0.1:1") as client:
        schedules = client.schedules
        with pytest.raises(ValueError, match=r"^to is datetime.*; it must have a time zone"):
            await schedules.move("mail", ["0-17"], to=NAIVE)
        with pytest.raises(ValueError, match=r"^due_from is .*; it must have a time zone"):
            schedules.list("mail", due_from=NAIVE)
        with pytest.raises(ValueError, match=r"^due_until is .*; it must have a time zone"):
            await schedules.cancel("mail", due_until=NAIVE)
        with pytest.raises(TypeError, match="to is 5; it must be a datetime"):
            await schedules.move("mail", ["0-17"], to=5)  # type: ignore[arg-type]


async def test_a_call_whose_answer_was_lost_is_repeated_as_it_was(cluster: ScriptedCluster):
    calls = Recorded(
        pb.RescheduleItemsRequest,
        QueratorError(ErrorCode.UNAVAILABLE, "no leader"),
        pb.RescheduleItemsResponse(changed=1),
    )
    cluster.answers["RescheduleItems"] = calls
    async with Client(cluster.address) as client:
        assert (await client.schedules.move("mail", ["0-17"], to=NOON)).changed == 1
    first, second = calls.requests
    assert first == second


async def test_a_refusal_names_the_field(cluster: ScriptedCluster):
    cluster.answers["RescheduleItems"] = QueratorError(
        ErrorCode.INVALID_ARGUMENT, "item_ids[0] is x", field="item_ids[0]", value="x"
    )
    async with Client(cluster.address) as client:
        with pytest.raises(InvalidArgument) as refused:
            await client.schedules.cancel("mail", ["x"])
    assert (refused.value.field, refused.value.value) == ("item_ids[0]", "x")


async def test_the_same_without_an_event_loop(cluster: ScriptedCluster):
    cluster.answers = {
        "ListScheduledItems": pb.ListScheduledItemsResponse(items=[scheduled(7, NOON)]),
        "CountScheduledItems": pb.CountScheduledItemsResponse(total=5),
        "RescheduleItems": pb.RescheduleItemsResponse(changed=3),
    }

    def program() -> None:
        with SyncClient(cluster.address) as client:
            schedules = client.schedules
            assert [item.id for item in schedules.list("mail", due_from=NOON)] == [ItemId(1, 7)]
            assert schedules.count("mail", interval=HOUR).total == 5
            assert schedules.move("mail", ["0-17"], to=NOON).changed == 3
            assert schedules.run_now("mail", kind="bill", dry_run=True).changed == 3
            assert schedules.cancel("mail", all_items=True).changed == 3
            with pytest.raises(ValueError, match="choose the items"):
                schedules.cancel("mail")

    await asyncio.to_thread(program)
