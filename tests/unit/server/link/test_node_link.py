"""Links between nodes: their calls, which nodes may open them, and their ends."""

import asyncio
from functools import partial
from typing import Any

import grpc
import pytest

from querator.model.commands import Retry
from querator.model.errors import ErrorCode
from querator.model.ids import GroupId
from querator.model.limits import MIB
from querator.model.placement_map import PlacedNode, PlacementMap
from querator.server.link import node_frames, node_link
from querator.server.link.forwarding import Forwarding
from querator.service.routing.forwarder import StatsQuery
from querator.storage.memory_environment import MemoryEnvironment
from querator.storage.tables import OVERLAYS
from querator.v1 import node_service_pb2, node_service_pb2_grpc
from tests.unit.server.linked_cluster import TOKEN, LinkedCluster, linked_cluster
from tests.unit.service.service_node import LONG_MS, payloads, producer_id, refusal
from tests.unit.service.storage_damage import garbage


def group_of(cluster: LinkedCluster, partition: int = 0) -> GroupId:
    queue = cluster.base.placement.map.find("default", "q")
    assert queue is not None
    return queue.groups[partition]


async def status_of(call: Any) -> grpc.StatusCode:
    """The final status of the call. Messages before it are skipped."""
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def test_items_go_and_come_over_a_link():
    async with linked_cluster("a", "b") as cluster:
        produced = await cluster.produce(
            "b", b"one", b"x" * MIB, producer_id=producer_id(), sequence=1
        )
        assert produced.batches[0].count == 2
        reply = await cluster.lease("b", wait_ms=LONG_MS)
        assert payloads(*reply.batches) == [b"one", b"x" * MIB]
        [outcome] = (await cluster.complete("b", *reply.batches[:1])).outcomes
        assert outcome.error is None


async def test_a_lease_that_cannot_be_carried_is_answered_and_goes_back():
    async with linked_cluster("a", "b") as cluster:
        await cluster.produce("a", b"one")
        leased = await cluster.lease("a", wait_ms=LONG_MS)
        await cluster.retry("a", *leased.batches, error="once")
        environment = cluster.base.environment
        assert isinstance(environment, MemoryEnvironment)
        await cluster.until_open()

        def retries() -> int:
            return sum(isinstance(command, Retry) for _, _, command in cluster.proposed)

        with garbage(environment, OVERLAYS, group_of(cluster)):
            waiting = asyncio.get_running_loop().create_task(cluster.lease("b", wait_ms=LONG_MS))
            # The lease that could not be sent goes back.
            await cluster.until(lambda: retries() == 2)
        reply = await waiting
        assert payloads(*reply.batches) == [b"one"]
        assert reply.batches[0].attempt == 2


async def test_a_link_is_opened_again_after_a_defect_of_its_owner():
    class Failing:
        def __init__(self) -> None:
            self.reached: list[str] = []

        def on_reach(self, node: str) -> None:
            self.reached.append(node)
            if len(self.reached) == 2:
                raise RuntimeError("nobody expects this")

        def on_offer(self, node: str, group: GroupId, items: int) -> None: ...

    async with linked_cluster("a") as cluster:
        link = Forwarding("b", token=TOKEN)
        owner = Failing()
        link.watch(owner)
        there = PlacedNode("a", "1", "", cluster.addresses["a"])
        link.on_map(PlacementMap(1, cluster_id="c", nodes=[there]))
        try:
            await cluster.until(lambda: link.open() == {"a"})
            await cluster.stop("a")
            await cluster.until(lambda: len(owner.reached) == 2)
            await cluster.serve_again("a", cluster.addresses["a"])
            await cluster.until(lambda: link.open() == {"a"})
        finally:
            await link.close()


async def test_waiting_leases_are_woken_over_links():
    async with linked_cluster("a", "b", "c") as cluster:
        await cluster.until_open()
        waiting = [
            asyncio.get_running_loop().create_task(cluster.lease(name, 1, wait_ms=LONG_MS))
            for name in "abcabc"
        ]
        for number in range(6):
            await cluster.produce("b", b"%d" % number)
        got = [payload for task in waiting for payload in payloads(*(await task).batches)]
        assert sorted(got) == [b"%d" % number for number in range(6)]


async def test_who_waits_before_a_link_is_open_is_told_of_when_it_is():
    async with linked_cluster("a", "b") as cluster:
        waiting = asyncio.get_running_loop().create_task(cluster.lease("b", 1, wait_ms=LONG_MS))
        link = cluster.links["b"]._links["a"]
        for _ in range(10):
            await asyncio.sleep(0)
        assert not link.open
        assert [type(ask) for ask in link._queue] == [node_frames.Demand]
        await cluster.produce("a", b"x")
        assert payloads(*(await waiting).batches) == [b"x"]


async def test_many_produces_share_frames_and_keep_their_order():
    async with linked_cluster("a", "b") as cluster:
        producer = producer_id()
        tasks = [
            asyncio.get_running_loop().create_task(
                cluster.produce(
                    "b", b"%d" % number, producer_id=producer, sequence=number + 1, ordered=True
                )
            )
            for number in range(200)
        ]
        await asyncio.gather(*tasks)
        reply = await cluster.lease("a", 200)
        assert payloads(*reply.batches) == [b"%d" % number for number in range(200)]


async def test_a_busy_link_sends_few_frames(monkeypatch: pytest.MonkeyPatch):
    async with linked_cluster("a", "b") as cluster:
        await cluster.until_open()
        exchange: Any = cluster.members["a"].exchange
        held: list[tuple[Any, asyncio.Future[Any]]] = []

        def hold(*asked: Any) -> "asyncio.Future[Any]":
            future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            held.append((asked, future))
            return future

        def arrived(count: int) -> bool:
            return len(held) == count

        def answer(future: "asyncio.Future[Any]", done: "asyncio.Future[Any]") -> None:
            future.set_result(done.result())

        propose, exchange.propose = exchange.propose, hold
        sent: list[int] = []
        encode = node_frames.encode_asks

        def encoded(asks: Any) -> bytes:
            sent.append(len(asks))
            return encode(asks)

        monkeypatch.setattr(node_frames, "encode_asks", encoded)
        monkeypatch.setattr(node_link, "GATHER_S", 1.0)
        async with asyncio.TaskGroup() as tasks:
            for number in range(1, node_link.GATHER_FROM + 1):
                tasks.create_task(cluster.produce("b", b"x", timeout_ms=LONG_MS))
                await cluster.until(partial(arrived, number))
            assert sent == [1] * node_link.GATHER_FROM
            for _ in range(20):
                tasks.create_task(cluster.produce("b", b"x", timeout_ms=LONG_MS))
                # Long enough for a frame of its own.
                await asyncio.sleep(0.01)
            await cluster.until(partial(arrived, node_link.GATHER_FROM + 20))
            for asked, future in held:
                propose(*asked).add_done_callback(partial(answer, future))
        assert len(sent) <= node_link.GATHER_FROM + 5
        assert sum(sent) == node_link.GATHER_FROM + 20
        assert cluster.base.counts().produced == node_link.GATHER_FROM + 20


async def test_refusals_travel_whole():
    async with linked_cluster("a", "b", partition_items_max=1) as cluster:
        await cluster.produce("a", b"x")
        here = await refusal(cluster.produce("a", b"y"))
        there = await refusal(cluster.produce("b", b"y"))
        assert here.code is ErrorCode.QUEUE_FULL
        assert (there.code, there.message, there.limit, there.value) == (
            here.code,
            here.message,
            here.limit,
            here.value,
        )


async def test_queries_are_answered_by_the_leader():
    async with linked_cluster("a", "b") as cluster:
        await cluster.produce("a", b"x")
        reads = cluster.members["b"].reads
        [stats] = await reads.stats([group_of(cluster)], stale=False)
        assert (stats.ready, cluster.confirmed) == (1, 1)
        [stats] = await reads.stats([group_of(cluster)], stale=True)
        assert (stats.ready, cluster.confirmed) == (1, 1)


async def test_who_does_not_lead_says_who_does():
    async with linked_cluster("a", "b") as cluster:
        await cluster.until_open()
        error = await refusal(cluster.links["a"].query("b", StatsQuery(group_of(cluster))))
        assert (error.code, error.value) == (ErrorCode.NOT_LEADER, "a")


async def test_a_broken_link_leaves_what_was_sent_unknown_and_is_mended():
    async with linked_cluster("a", "b") as cluster:
        await cluster.until_open()
        held: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        exchange: Any = cluster.members["a"].exchange
        arrived: list[Any] = []

        def hold(*asked: Any) -> "asyncio.Future[Any]":
            arrived.append(asked)
            return held

        propose, exchange.propose = exchange.propose, hold
        task = asyncio.get_running_loop().create_task(cluster.produce("b", b"x"))
        # Wait for the arrival: a request that was not sent is certainly not executed.
        await cluster.until(lambda: bool(arrived))
        await cluster.stop("a")
        assert (await refusal(task)).code is ErrorCode.OUTCOME_UNKNOWN
        held.cancel()
        exchange.propose = propose
        await cluster.serve_again("a")
        cluster.tell()
        await cluster.produce("b", b"y", timeout_ms=LONG_MS)


async def test_a_node_that_comes_back_is_dialed_when_it_dials(monkeypatch: pytest.MonkeyPatch):
    """Other nodes reach a restarted node at once, without waiting for the end of a dial pause."""
    async with linked_cluster("a", "b") as cluster:
        await cluster.until_open()
        for bound in ("MIN", "MAX"):
            monkeypatch.setattr(f"querator.server.link.node_link.RETRY_S_{bound}", 3_600.0)
        b = cluster.addresses["b"]
        await cluster.stop("b")
        await cluster.until(lambda: not cluster.links["a"].open())
        await cluster.serve_again("b", b)
        # Like a node that starts: it first has no links, and then gets the map.
        alone = [PlacedNode("b", "1", "", b)]
        cluster.links["b"].on_map(PlacementMap(9, cluster_id="c", nodes=alone))
        cluster.tell("b")
        await cluster.until_open()


async def test_a_node_that_stops_answers_what_it_has_read_and_refuses_the_rest():
    async with linked_cluster("a", "b", "c") as cluster:
        await cluster.until_open()
        tasks = [
            asyncio.get_running_loop().create_task(cluster.produce("b", b"%d" % number))
            for number in range(50)
        ]
        await asyncio.sleep(0)
        stopping = asyncio.get_running_loop().create_task(cluster.stop("a", 10.0))
        await cluster.until(lambda: not cluster.links["b"].reaches("a"))
        cluster.lead(group_of(cluster), "c")
        # The produces have no identity, so no outcome may be unknown.
        await asyncio.gather(*tasks)
        await stopping
        assert cluster.base.counts().produced == 50


async def test_a_wrong_token_is_refused_and_disturbs_nobody():
    async with linked_cluster("a", "b") as cluster:
        await cluster.until_open()
        await cluster.serve("x", token=b"another")
        cluster.tell("x")
        link = cluster.links["x"]._links["a"]
        await cluster.until(lambda: not link.worth_trying)
        assert not cluster.links["x"].reaches("a")
        await cluster.produce("b", b"x")
        await cluster.links["x"].close()
        await cluster.stop("x")
        await cluster.members["x"].stop()


@pytest.mark.parametrize("cluster_id", ["another", ""])
async def test_a_node_of_another_cluster_is_refused(cluster_id):
    async with linked_cluster("a", "b") as cluster:
        await cluster.until_open()
        await cluster.serve("x")
        cluster.tell("x", cluster_id=cluster_id)
        link = cluster.links["x"]._links["a"]
        await cluster.until(lambda: not link.worth_trying)
        await cluster.links["x"].close()
        await cluster.stop("x")
        await cluster.members["x"].stop()


async def test_a_client_that_proves_nothing_is_not_heard():
    async with linked_cluster("a") as cluster:
        frames = [
            node_service_pb2.LinkRequest(asks=b"\x90"),
            node_service_pb2.LinkRequest(
                handshake=node_service_pb2.LinkHandshake(kind=1, body=b"short")
            ),
            node_service_pb2.LinkRequest(
                handshake=node_service_pb2.LinkHandshake(kind=99, body=b"")
            ),
        ]
        async with grpc.aio.insecure_channel(cluster.addresses["a"]) as channel:
            for frame in frames:
                call = node_service_pb2_grpc.NodeServiceStub(channel).Link()
                await call.write(frame)
                assert await status_of(call) is grpc.StatusCode.INVALID_ARGUMENT
