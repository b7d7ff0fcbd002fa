"""Any node takes any call, and users of the SDK do not notice nodes that come and go: real
processes.
"""

import asyncio
import contextlib
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from querator import Client
from querator.client import LeasedItem
from querator.client.errors import OutcomeUnknown, Unavailable
from querator.v1 import queue_service_pb2, queue_service_pb2_grpc
from tests.integration.process_cluster import ProcessCluster, process_cluster
from tests.integration.processes import run
from tests.integration.sdk_load import SdkLoad, check

pytestmark = pytest.mark.timeout(180)


def addresses(cluster: ProcessCluster) -> str:
    return ",".join(member.address for member in cluster.by_name.values())


async def test_what_one_node_takes_every_node_gives(tmp_path: Path):
    async with process_cluster(tmp_path) as cluster:
        await cluster.start()
        async with (
            Client(cluster["a"].address) as a,
            Client(cluster["b"].address) as b,
            Client(cluster["c"].address) as c,
        ):
            await a.create_queue("dead", partitions=2, max_attempts=0, dead_queue="")
            await b.create_queue("q", partitions=6, dead_queue="dead", max_attempts=1)
            for number in range(60):
                client = (a, b, c)[number % 3]
                await client.produce("q", b"%d" % number)
                # At once, and by another node: reads are linearizable.
                other = (b, c, a)[number % 3]
                assert (await other.stats("q")).total.produced == number + 1
            items: list[LeasedItem] = []
            while len(items) < 60:
                items += await c.lease("q", max_items=7, wait=timedelta(seconds=5))
            assert {item.payload for item in items} == {b"%d" % number for number in range(60)}
            await a.complete("q", *items[:50])
            await b.retry("q", *items[50:])
            dead: list[LeasedItem] = []
            while len(dead) < 10:
                dead += await c.lease("dead", max_items=10, wait=timedelta(seconds=5))
            total = (await c.stats("q")).total
            assert (total.completed, total.dead, total.ready, total.leased) == (50, 10, 0, 0)


async def test_users_see_no_error_when_nodes_are_killed(tmp_path: Path):
    async with process_cluster(tmp_path) as cluster:
        await cluster.start()
        load = SdkLoad(addresses(cluster))

        async def kill_each() -> None:
            for name in "abc":
                await asyncio.sleep(1.0)
                await cluster[name].kill()
                await asyncio.sleep(2.0)
                await cluster[name].start()
                await cluster.until_well(name)

        await load.run(kill_each)
        await check(load)


def subscribing(number: int, *held: str) -> queue_service_pb2.LeaseStreamRequest:
    """Opens a stream whose leases do not lapse within this test."""
    subscribe = queue_service_pb2.Subscribe(
        queue="q", client_id="c", max_items=5, auto_extend=True,
        consumer_id="me", stream_number=number, held_lease_ids=held,
    )  # fmt: skip
    subscribe.lease_timeout.FromTimedelta(timedelta(hours=1))
    return queue_service_pb2.LeaseStreamRequest(subscribe=subscribe)


@contextlib.asynccontextmanager
async def streaming(address: str, first: queue_service_pb2.LeaseStreamRequest, items: int) -> Any:
    async with grpc.aio.insecure_channel(address) as channel:
        stream = queue_service_pb2_grpc.QueueServiceStub(channel).LeaseStream()
        await stream.write(first)
        credit = queue_service_pb2.Credit(items=items)
        await stream.write(queue_service_pb2.LeaseStreamRequest(credit=credit))
        answer = await stream.read()
        assert isinstance(answer, queue_service_pb2.LeaseStreamResponse)
        assert answer.HasField("subscribed")
        yield stream
        stream.cancel()


async def test_what_was_on_its_way_through_a_killed_node_comes_back(tmp_path: Path):
    async with process_cluster(tmp_path) as cluster:
        await cluster.start()
        async with Client(addresses(cluster)) as client:
            await client.create_queue("q", partitions=6, max_attempts=0, dead_queue="")
            for number in range(60):
                await client.produce("q", b"%d" % number)
            async with streaming(cluster["a"].address, subscribing(1), 60) as stream:
                came = (await stream.read()).leased.batches
                while (await client.stats("q")).total.leased < 40:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                await cluster["a"].kill()
            following = subscribing(2, *{batch.lease_id for batch in came})
            async with streaming(cluster["b"].address, following, 60) as stream:
                batches = [*came]
                while sum(len(batch.items) for batch in batches) < 60:
                    batches += (await stream.read()).leased.batches
            items = [item.payload for batch in batches for item in batch.items]
            assert sorted(items) == sorted(b"%d" % number for number in range(60))
            assert {batch.attempt for batch in batches} == {1}
            assert (await client.stats("q")).total.lapsed == 0


async def test_users_see_no_error_when_nodes_are_restarted_one_by_one(tmp_path: Path):
    async with process_cluster(tmp_path) as cluster:
        await cluster.start()
        # One address is enough: the client learns the others.
        load = SdkLoad(cluster["a"].address)

        async def restart_each() -> None:
            for name in "abc":
                await asyncio.sleep(1.0)
                assert await cluster[name].stop() == 0
                await cluster[name].start()
                await cluster.until_well(name)

        await load.run(restart_each)
        await check(load)


async def test_a_lost_quorum_is_reported_as_that(tmp_path: Path):
    async with process_cluster(tmp_path) as cluster:
        await cluster.start()
        async with Client(cluster["a"].address, request_timeout=timedelta(seconds=10)) as client:
            await client.create_queue("q", partitions=3, max_attempts=0, dead_queue="")
            await client.produce("q", b"x")
            # A replica is behind its leader by a moment.
            while not (await client.stats("q", stale=True)).total.produced:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            for name in "bc":
                await cluster[name].kill()
            with contextlib.suppress(OutcomeUnknown, Unavailable):
                # A node that still believes to lead may accept this.
                await client.produce("q", b"y")
            with pytest.raises(Unavailable) as caught:
                await client.produce("q", b"z")
            assert "of queue q has no leader (b, c unreachable)" in str(caught.value)
            answers = await asyncio.gather(
                client.lease("q"),
                client.stats("q"),
                client.create_queue("r", max_attempts=0, dead_queue=""),
                client.update_queue("q", max_attempts=3),
                return_exceptions=True,
            )
            for answer in answers:
                assert isinstance(answer, Unavailable | OutcomeUnknown)
                assert "leader (b, c unreachable)" in str(answer)
            to = ("--address", cluster["a"].address, "--request-timeout", "4s")
            commands = (
                ("produce", "q", "x"),
                ("lease", "q"),
                ("queue", "create", "r", "--dead-queue", ""),
                ("node", "drain", "b"),
                ("node", "remove", "b", "--yes"),
            )
            for code, _, error in await asyncio.gather(*(run(*each, *to) for each in commands)):
                assert code in (4, 5), error
                assert "(b, c unreachable)" in error
            # The data of any replica can still be read.
            assert (await client.stats("q", stale=True)).total.produced >= 1
            assert [item async for item in client.peek("q", stale=True)]
            out, _ = await cluster.querator("stats", "q", "--stale", "--output", "json")
            assert '"produced":' in out
            await cluster["b"].start()
            await client.produce("q", b"w")
