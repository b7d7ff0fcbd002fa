"""kill -9 at random moments under load: acknowledged items are there, completed items stay gone."""

import asyncio
import os
import random
from pathlib import Path

import grpc
import pytest

from querator.v1 import admin_service_pb2 as admin_pb
from querator.v1.admin_service_pb2_grpc import AdminServiceStub
from tests.checkers.history import Look, Looked
from tests.checkers.report import check
from tests.integration.processes import ServerProcess, verify
from tests.integration.stub_load import (
    StubLoad,
    acknowledged,
    completed,
    new_recorder,
    new_references,
)

KILLS = int(os.environ.get("KILLS", "8"))
SEED = 20130101
QUEUE = "work"
PARTITIONS = 3


async def create_queue(address: str) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        await AdminServiceStub(channel).CreateQueue(
            admin_pb.CreateQueueRequest(
                queue=QUEUE, settings=admin_pb.QueueSettings(partitions=PARTITIONS)
            )
        )


async def counts(address: str) -> admin_pb.PartitionStats:
    async with grpc.aio.insecure_channel(address) as channel:
        answer = await AdminServiceStub(channel).GetQueueStats(
            admin_pb.GetQueueStatsRequest(queue=QUEUE)
        )
        return answer.total


@pytest.mark.timeout(900)
async def test_kills_lose_nothing_and_bring_nothing_back(tmp_path: Path) -> None:
    moments = random.Random(SEED)
    process = ServerProcess(tmp_path / "data")
    await process.start()
    recorder = new_recorder(QUEUE, PARTITIONS)
    load = StubLoad(QUEUE, lambda: process.address, SEED, recorder)
    try:
        await create_queue(process.address)
        async with asyncio.TaskGroup() as group:
            for n in range(3):
                group.create_task(load.produce(batch_items=(1, 10, 100)[n]))
                group.create_task(load.consume(f"c{n}"))
            for _ in range(KILLS):
                # The moment of the kill is the test's input, not a wait for something to happen.
                await asyncio.sleep(moments.uniform(0.05, 0.7))
                await process.kill()
                await verify(process.data_dir)
                await process.start()
            load.gone.set()
        await load.consume("drain", until_empty=True)
        look = recorder.begin("end", QUEUE, Look())
        total = await counts(process.address)
        assert (total.ready, total.leased, total.scheduled, total.moving) == (0, 0, 0, 0)
        look.ended(Looked())
        assert await process.terminate() == 0
        await verify(process.data_dir)
    finally:
        if process.running:
            await process.kill()
    history = recorder.history
    history.write(tmp_path / "history")
    assert check(history).lines()[:-1] == []
    assert len(acknowledged(history)) > KILLS, "the load must have done something between the kills"
    assert completed(history) > KILLS


async def test_a_drain_waits_for_a_node_that_is_down(tmp_path: Path) -> None:
    """The last part of the test above: the node may refuse its first calls."""
    process = ServerProcess(tmp_path / "data")
    await process.start()
    load = StubLoad(QUEUE, lambda: process.address, SEED, new_recorder(QUEUE, PARTITIONS))
    try:
        await create_queue(process.address)
        async with load.stub() as stub:
            await load.produce_once(stub, new_references(10), b"", 0)
        await process.kill()
        load.gone.set()
        async with asyncio.TaskGroup() as group:
            draining = group.create_task(load.consume("drain", until_empty=True))
            await asyncio.sleep(0.5)
            assert not draining.done()
            await process.start()
        assert (await counts(process.address)).completed == 10
    finally:
        if process.running:
            await process.kill()
