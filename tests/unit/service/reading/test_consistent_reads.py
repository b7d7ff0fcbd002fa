"""Reads that show everything acknowledged, stale reads, and maps that catch up."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import msgspec
import pytest

from querator.model.calls import BrowseCall, ChosenItems
from querator.model.commands import MoveReturn
from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import PLACEMENT_GROUP, GroupId, QueueId
from querator.model.limits import OVERLOADED_RETRY_MS
from querator.model.placement_map import PlacementMap
from querator.model.queues import Queue, QueueSettings, QueueState
from querator.model.reader_calls import ReadBatchCall, ReleaseReaderCall
from querator.raft.clock import Clock, SimulatedClock
from querator.service.admin_service import AdminService
from querator.service.reading.readers import list_readers
from querator.service.routing import directory
from querator.service.routing.forwarder import LettersQuery, PeekQuery
from tests.unit.service.service_cluster import ServiceCluster, service_cluster
from tests.unit.service.service_node import LONG_MS, code, lease_call, refusal
from tests.unit.service.transactions.test_transactions import commit_call, fill, stage_call


def group_of(cluster: ServiceCluster, partition: int = 0) -> GroupId:
    queue = cluster.base.placement.map.find("default", "q")
    assert queue is not None
    return queue.groups[partition]


def admin_of(cluster: ServiceCluster, name: str, clock: Clock | None = None) -> AdminService:
    """The admin service of a node."""
    service = cluster.members[name]
    return AdminService(
        placement=cast(Any, cluster.maps[name]),
        router=service.router,
        directory=service.directory,
        reads=service.reads,
        durable=False,
        clock=clock or cluster.base.clock,
    )


async def test_reads_go_to_the_leader_and_are_confirmed():
    async with service_cluster("a", "b", partitions=2) as cluster:
        await cluster.produce("a", b"x", b"y")
        groups = [group_of(cluster, 0), group_of(cluster, 1)]
        for node in ("a", "b"):
            confirmed = cluster.confirmed
            counts = await cluster.members[node].reads.stats(groups, stale=False)
            assert [each.ready for each in counts] == [2, 0]
            assert cluster.confirmed == confirmed + 2


async def test_pages_of_items_come_from_the_leader():
    async with service_cluster("a", "b") as cluster:
        await cluster.produce("a", b"x", b"y", b"z")
        query = PeekQuery(group_of(cluster), 0, 0, 2, 1_000)
        page = await cluster.members["b"].reads.page(query)
        assert [item.seq for item in page.items] == [1, 2]
        letters = LettersQuery(group_of(cluster), None, 0, 10, 1_000)
        assert (await cluster.members["b"].reads.page(letters)).items == ()


async def test_a_stale_read_needs_no_leader():
    async with service_cluster("a", "b") as cluster:
        await cluster.produce("a", b"x")
        cluster.lead(group_of(cluster), None)
        [counts] = await cluster.members["b"].reads.stats([group_of(cluster)], stale=True)
        assert (counts.ready, cluster.confirmed) == (1, 0)


async def test_a_read_waits_for_a_leader():
    async with service_cluster("a", "b") as cluster:
        cluster.lead(group_of(cluster), None)
        reading = asyncio.get_running_loop().create_task(
            cluster.members["b"].reads.stats([group_of(cluster)], stale=False)
        )
        await asyncio.sleep(0)
        assert not reading.done()
        cluster.lead(group_of(cluster), "a")
        [counts] = await reading
        assert counts.ready == 0


async def test_a_read_says_before_its_deadline_that_nobody_leads():
    async with service_cluster("a", "b", "c", partitions=2) as cluster:
        cluster.lead(group_of(cluster, 1), None)
        queue = cluster.base.placement.map.find("default", "q")
        assert queue is not None
        reads_of_b = cluster.members["b"].reads
        peek = PeekQuery(group_of(cluster, 1), 0, 0, 2, 1_000)
        for reading in (
            lambda by: reads_of_b.stats(queue.groups, stale=False, deadline=by),
            lambda by: reads_of_b.page(peek, deadline=by),
            lambda by: list_readers(reads_of_b, queue, stale=False, deadline=by),
        ):
            error = await refusal(reading(asyncio.get_running_loop().time() + 0.05))
            assert error.code is ErrorCode.DEADLINE_EXCEEDED
            assert "partition 1 of queue q has no leader" in error.message


async def produced_when_the_map_has_come(cluster: ServiceCluster, queue: Queue) -> None:
    """b has an old map. It asks for a newer one, and accepts the item when it has that map."""
    for group in queue.groups:
        cluster.lead(group, "a")
    produced = asyncio.get_running_loop().create_task(cluster.produce("b", b"x", queue=queue.name))
    await cluster.confirming.wait()
    assert not produced.done()
    cluster.maps["b"].catch_up()
    cluster.members["b"].events.on_map(cluster.maps["b"].map)
    await produced


async def test_a_queue_that_another_node_has_just_made_is_found():
    async with service_cluster("a", "b") as cluster:
        cluster.lead(PLACEMENT_GROUP, "a")
        cluster.maps["b"].fall_behind()
        queue = await cluster.base.create("new")
        await produced_when_the_map_has_come(cluster, queue)


async def test_a_queue_that_this_node_still_takes_for_unfinished_is_found():
    async with service_cluster("a", "b") as cluster:
        cluster.lead(PLACEMENT_GROUP, "a")

        def stay(placed: PlacementMap) -> None:
            queue = placed.find("default", "new")
            if queue is not None and queue.state is QueueState.CREATING:
                cluster.maps["b"].fall_behind()

        cluster.base.placement.watch(stay)
        queue = await cluster.base.create("new")
        await produced_when_the_map_has_come(cluster, queue)


async def test_a_queue_that_is_being_created_is_refused_with_a_delay():
    async with service_cluster("a", "b") as cluster:
        cluster.lead(PLACEMENT_GROUP, "a")
        refused: list[asyncio.Task[QueratorError]] = []

        def ask(placed: PlacementMap) -> None:
            queue = placed.find("default", "new")
            if queue is not None and queue.state is QueueState.CREATING and not refused:
                for maps in cluster.maps.values():
                    maps.fall_behind()
                asking = refusal(cluster.produce("b", b"x", queue="new"))
                refused.append(asyncio.get_running_loop().create_task(asking))

        cluster.base.placement.watch(ask)
        await cluster.base.create("new")
        error = await refused[0]
        assert error.code is ErrorCode.UNAVAILABLE
        assert error.message == "queue new is being created"
        assert error.retry_delay_ms == OVERLOADED_RETRY_MS
        assert cluster.confirmed == 1


async def test_a_queue_that_is_nowhere_is_not_found():
    async with service_cluster("a", "b") as cluster:
        cluster.lead(PLACEMENT_GROUP, "a")
        assert await code(cluster.produce("b", b"x", queue="nowhere")) is ErrorCode.QUEUE_NOT_FOUND


def first_produce(cluster: ServiceCluster) -> Awaitable[Any]:
    return cluster.produce("b", b"x", queue="new")


def waiting_lease(cluster: ServiceCluster) -> Awaitable[Any]:
    return cluster.lease("b", queue="new", wait_ms=LONG_MS)


def look_at_queue(cluster: ServiceCluster) -> Awaitable[Any]:
    return admin_of(cluster, "b").get_queue("default", "new")


async def succeed(asked: Awaitable[Any]) -> None:
    await asked


def look_at_numbers(cluster: ServiceCluster) -> Awaitable[Any]:
    return admin_of(cluster, "b").queue_stats("default", "new")


def deletion(cluster: ServiceCluster) -> Awaitable[Any]:
    return admin_of(cluster, "b").delete_queue("default", "new")


@pytest.mark.parametrize("ask", [first_produce, waiting_lease, look_at_queue, deletion])
@pytest.mark.parametrize("leader", ["a", None])
async def test_nobody_is_told_that_there_is_no_queue_while_the_map_cannot_catch_up(
    monkeypatch: pytest.MonkeyPatch,
    ask: Callable[[ServiceCluster], Awaitable[Any]],
    leader: str | None,
):
    monkeypatch.setattr(directory, "CATCH_UP_S", 0.05)
    async with service_cluster("a", "b") as cluster:
        cluster.lead(PLACEMENT_GROUP, leader)
        cluster.maps["b"].fall_behind()
        await cluster.base.create("new")
        error = await refusal(ask(cluster))
        assert error.code is ErrorCode.UNAVAILABLE
        assert error.message.startswith("there is no queue new in namespace default")
        assert error.retry_delay_ms == OVERLOADED_RETRY_MS


@pytest.mark.parametrize("ask", [first_produce, look_at_numbers])
@pytest.mark.parametrize("catches_up", [False, True])
async def test_a_queue_that_was_made_anew_is_not_taken_for_the_one_that_was_deleted(
    monkeypatch: pytest.MonkeyPatch,
    ask: Callable[[ServiceCluster], Awaitable[Any]],
    catches_up: bool,
):
    """The node's map has the former queue of that name, in the state DELETING."""
    if not catches_up:
        monkeypatch.setattr(directory, "CATCH_UP_S", 0.05)
    async with service_cluster("a", "b") as cluster:
        cluster.lead(PLACEMENT_GROUP, "a")
        before = cluster.maps["b"].map
        queue = await cluster.base.create("new")
        for group in queue.groups:
            cluster.lead(group, "a")
        former = msgspec.structs.replace(
            queue, id=QueueId(999), groups=(GroupId(999),), state=QueueState.DELETING
        )
        cluster.maps["b"].fall_behind(before.evolve(before.epoch + 1, put=[former]))
        if catches_up:
            asking = asyncio.get_running_loop().create_task(succeed(ask(cluster)))
            await cluster.map_confirming.wait()
            cluster.hear("b")
            await asking
        else:
            error = await refusal(ask(cluster))
            assert error.code is ErrorCode.UNAVAILABLE
            assert error.message.startswith("queue new is being deleted, by the map of this node")


async def test_nobody_is_told_that_there_is_no_namespace_while_the_map_cannot_catch_up(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(directory, "CATCH_UP_S", 0.05)
    async with service_cluster("a", "b") as cluster:
        cluster.lead(PLACEMENT_GROUP, "a")
        cluster.maps["b"].fall_behind()
        await cluster.base.admin.create_queue("others", "q", QueueSettings())
        admin = admin_of(cluster, "b")
        assert await code(admin.list_queues("others", 0, "")) is ErrorCode.UNAVAILABLE
        assert await code(admin.get_queue("others", "q")) is ErrorCode.UNAVAILABLE
        monkeypatch.undo()
        cluster.hear("b")
        assert [queue.name for queue in (await admin.list_queues("others", 0, "")).queues] == ["q"]
        assert await code(admin.list_queues("nowhere", 0, "")) is ErrorCode.NAMESPACE_NOT_FOUND


async def test_who_asks_while_another_question_is_under_way_finds_what_was_made_after_that_one():
    async with service_cluster("a", "b") as cluster:
        cluster.lead(PLACEMENT_GROUP, "a")
        cluster.maps["b"].fall_behind()
        await cluster.base.create("first")
        newer = cluster.maps["a"].map
        loop = asyncio.get_running_loop()
        first = loop.create_task(code(cluster.produce("b", b"x", queue="nowhere")))
        await cluster.confirming.wait()
        await asyncio.sleep(0.01)
        for group in (await cluster.base.create("new")).groups:
            cluster.lead(group, "a")
        second = loop.create_task(cluster.produce("b", b"x", queue="new"))
        await asyncio.sleep(0)
        cluster.maps["b"].fall_behind(newer)
        cluster.members["b"].events.on_map(newer)
        assert await first is ErrorCode.QUEUE_NOT_FOUND
        await asyncio.sleep(0.01)
        assert not second.done()
        cluster.hear("b")
        await second


async def test_without_the_placement_group_known_queues_can_be_used(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(directory, "CATCH_UP_S", 0.05)
    async with service_cluster("a", "b") as cluster:
        cluster.lead(PLACEMENT_GROUP, None)
        await cluster.produce("b", b"x")
        assert (await admin_of(cluster, "b").get_queue("default", "q")).name == "q"


async def test_routing_names_nodes_and_leaders():
    async with service_cluster("a", "b", partitions=3) as cluster:
        for node in ("a", "b"):
            routing = await cluster.members[node].routing("default", "q")
            assert (routing.node, routing.leaders) == (node, ("a", "b", "a"))
        cluster.lead(group_of(cluster, 1), None)
        assert (await cluster.members["a"].routing("default", "q")).leaders == ("a", "", "a")
        assert (await cluster.members["a"].routing("default", "")).leaders == ()


async def test_what_is_moved_to_a_queue_that_is_not_known_yet_is_not_taken_back():
    async with service_cluster("a", "b") as cluster:
        cluster.lead(PLACEMENT_GROUP, "b")
        cluster.maps["a"].fall_behind()
        dead = await cluster.base.create("dead")
        for group in dead.groups:
            cluster.lead(group, "b")
        await cluster.base.admin.update_queue(
            "default", "q", QueueSettings(dead_queue="dead"), ("dead_queue",), 0
        )
        await cluster.produce("a", b"x")
        reply = await cluster.lease("a", wait_ms=LONG_MS)
        await cluster.retry("a", *reply.batches, dead=True)
        await cluster.confirming.wait()
        cluster.maps["a"].catch_up()
        cluster.members["a"].events.on_map(cluster.maps["a"].map)
        await cluster.base.until(lambda: cluster.base.counts("dead").ready == 1)
        assert not [one for one in cluster.proposed if isinstance(one[2], MoveReturn)]


async def grown(cluster: ServiceCluster, clock: Clock | None = None) -> AdminService:
    """The admin service of `a`, whose map lacks the second partition. Both have an item."""
    admin = admin_of(cluster, "a", clock)
    await cluster.grow(2, behind="a", leader="b")
    for number in range(2):
        await cluster.base.produce(b"%d" % number)
    return admin


async def test_counts_through_an_old_map_have_all_partitions():
    async with service_cluster("a", "b") as cluster:
        admin = await grown(cluster)
        stats = await admin.queue_stats("default", "q")
        assert (len(stats.partitions), stats.total.ready) == (2, 2)


async def test_time_is_put_back_through_an_old_map_in_all_partitions():
    async with service_cluster("a", "b") as cluster:
        admin = await grown(cluster, SimulatedClock())
        found = await admin.repair_time("default", "q", dry_run=True)
        assert [one.partition for one in found] == [0, 1]


async def test_counts_through_an_old_map_that_nobody_can_renew_are_those_of_that_map():
    async with service_cluster("a", "b") as cluster:
        admin = await grown(cluster)
        cluster.lead(PLACEMENT_GROUP, None)
        stats = await admin.queue_stats("default", "q", timeout_ms=200)
        assert (len(stats.partitions), stats.total.ready) == (1, 1)


@pytest.mark.parametrize("size", [1, 100])
async def test_lists_through_an_old_map_have_the_items_of_all_partitions(size):
    async with service_cluster("a", "b") as cluster:
        admin = await grown(cluster)
        found, token = 0, ""
        while True:
            page = await admin.peek_items("default", "q", 0, size, token)
            found += len(page.items)
            token = page.next_page_token
            if not token:
                break
        assert found == 2


@pytest.mark.parametrize("ids", [(), ("0-1", "1-1")])
async def test_letters_are_sent_home_through_an_old_map_from_all_partitions(ids):
    """`q` is the dead queue of another queue, and gets a second partition."""
    async with service_cluster("a", "b") as cluster:
        await cluster.base.create("home", partitions=2, dead_queue="q")
        home = cluster.base.placement.map.find("default", "home")
        assert home is not None
        for group in home.groups:
            cluster.lead(group, "b")
        admin = admin_of(cluster, "a")
        await cluster.grow(2, behind="a", leader="b")
        for number in range(2):
            await cluster.base.produce(b"%d" % number, queue="home")
            for batch in (await cluster.base.lease(1, queue="home")).batches:
                await cluster.base.retry(batch, queue="home", dead=True)
        await cluster.base.until(lambda: cluster.base.counts("q").ready == 2)
        assert await admin.redrive_dead_letters("default", "home", ids) == 2


async def test_nobody_is_told_that_there_is_no_partition_while_the_map_cannot_catch_up(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(directory, "CATCH_UP_S", 0.1)
    async with service_cluster("a", "b") as cluster:
        await cluster.base.create("home", dead_queue="q")
        admin = admin_of(cluster, "a")
        for leader, expected in ((None, ErrorCode.UNAVAILABLE), ("b", ErrorCode.INVALID_ARGUMENT)):
            cluster.lead(PLACEMENT_GROUP, leader)
            asked = admin.redrive_dead_letters("default", "home", ("0-1", "1-1"), timeout_ms=500)
            error = await refusal(asked)
            assert (error.code, error.field) == (expected, "item_ids[1]")


@pytest.mark.parametrize("door", ["lease", "browse", "read", "release", "stage", "commit"])
async def test_a_call_that_names_a_partition_of_which_an_old_map_does_not_know_is_to_come_again(
    monkeypatch: pytest.MonkeyPatch, door: str
):
    """A commit that is refused for good makes its driver stage the tasks again."""
    monkeypatch.setattr(directory, "CATCH_UP_S", 0.1)
    async with service_cluster("a", "b") as cluster:
        await cluster.grow(2, behind="a", leader="b")
        attempt = await fill(cluster.members["b"], (b"x",), partition=1)
        service = cluster.members["a"]
        cluster.lead(PLACEMENT_GROUP, None)
        calls: dict[str, Callable[[], Awaitable[Any]]] = {
            "lease": lambda: service.lease(lease_call(partition=1)),
            "browse": lambda: service.browse(BrowseCall("default", "q", 1, 1, 0)),
            "read": lambda: service.readers.read(ReadBatchCall("default", "q", "lake", 1, 1)),
            "release": lambda: service.readers.release(
                ReleaseReaderCall("default", "q", "lake", 1, timeout_ms=200)
            ),
            "stage": lambda: service.stage(stage_call(b"y", task=1, partition=1)),
            "commit": lambda: service.commit(commit_call(attempt)),
        }
        error = await refusal(calls[door]())
        assert (error.code, error.field) == (ErrorCode.UNAVAILABLE, "partition")
        assert "which may be old" in error.message


async def test_a_lease_by_id_through_an_old_map_finds_the_item():
    async with service_cluster("a", "b") as cluster:
        await grown(cluster)
        call = lease_call(chosen=ChosenItems(("1-1",)))
        [run] = (await cluster.members["a"].lease(call)).batches
        assert (run.partition, run.loaded.first_seq) == (1, 1)


async def test_a_lease_by_id_is_to_come_again_while_the_map_cannot_catch_up(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(directory, "CATCH_UP_S", 0.1)
    async with service_cluster("a", "b") as cluster:
        await grown(cluster)
        call = lease_call(chosen=ChosenItems(("0-1", "1-1")))
        cluster.lead(PLACEMENT_GROUP, None)
        error = await refusal(cluster.members["a"].lease(call))
        assert (error.code, error.field) == (ErrorCode.UNAVAILABLE, "item_ids[1]")
