"""Changes of the number of partitions that fail: requests continue with the old number."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from querator.model.commands import Adopt, Route
from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import PLACEMENT_GROUP, GroupId
from querator.model.queues import Queue, QueueSettings
from querator.model.routing import partition_of_key, partition_of_producer
from querator.partition.dedup_export import Closure
from querator.placement import placement
from querator.placement.map.commands import QueueRouted
from querator.placement.tasks import partition_calls, repartitioning
from querator.placement.tasks.partition_calls import here
from querator.storage.memory_environment import MemoryEnvironment
from tests.unit.service.routing.test_router import rounds
from tests.unit.service.service_node import (
    ServiceNode,
    code,
    payloads,
    producer_id,
    refusal,
    service_node,
)
from tests.unit.service.transactions.test_transactions import commit_call, fill

WAIT_MS = 20_000
"""Longer than a change may stop requests. A failing test takes this long."""

STAGED = tuple((b"%d" % number,) for number in range(12))
"""Requests of a batch."""


class Road:
    """The path from the leader of group 0 to the partitions. It does not reach those in `away`."""

    def __init__(self, node: ServiceNode) -> None:
        self.away: set[GroupId] = set()
        self.lost: tuple[type[Any], ...] = ()
        """Kinds of commands that are lost on the way to partitions in `away`. Empty: all commands
        and queries are lost.
        """
        self.pinned = False
        """Whether every partition reports something pinned for a transaction."""
        self.hangs = False
        """Whether a call to a partition in `away` gets no answer. False: it fails at once."""
        self.told: list[Any] = []
        self._propose = node.host.propose
        self._ask = here(node.host, node.environment)
        node.placement._repartitioner.telling.propose = self.propose
        node.placement._repartitioner.telling.ask = self.ask
        node.placement._reconciler._propose = self.propose

    async def propose(self, group: GroupId, command: Any) -> Any:
        self.told.append(command)
        if group in self.away and (not self.lost or isinstance(command, self.lost)):
            await self._fail(group)
        return await self._propose(group, command)

    async def ask(self, group: GroupId, query: Any) -> Any:
        if group in self.away and not self.lost:
            await self._fail(group)
        answer = await self._ask(group, query)
        if isinstance(answer, Closure) and self.pinned:
            answer = msgspec.structs.replace(answer, pinned=True)
        return answer

    async def _fail(self, group: GroupId) -> None:
        if self.hangs:
            await asyncio.get_running_loop().create_future()
        raise QueratorError(ErrorCode.NOT_LEADER, f"group {group} has no leader")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repartitioning, "ROUTING_CLOSED_MS_MAX", 50)
    monkeypatch.setattr(partition_calls, "ANSWER_S", 0.05)
    monkeypatch.setattr(placement, "AGAIN_AFTER_S_MAX", 0.05)


def placed(node: ServiceNode) -> Queue:
    found = node.placement.map.find("default", "q")
    assert found is not None
    return found


def change(node: ServiceNode, partitions: int, **more: Any) -> "asyncio.Task[Queue]":
    settings = QueueSettings(partitions=partitions)
    return asyncio.get_running_loop().create_task(
        node.admin.update_queue("default", "q", settings, ("partitions",), 0, **more)
    )


async def ended(task: "asyncio.Task[Any]") -> None:
    task.cancel()
    await asyncio.wait([task])


async def assert_taken(node: ServiceNode, *partitions: int) -> None:
    """Produces with identities and with keys to these of four partitions, and without either."""
    for number in range(48):
        if partition_of_key(key := b"k%d" % number, 4) in partitions:
            await node.produce(b"x", keyed=[key], timeout_ms=WAIT_MS)
        producer = producer_id()
        if partition_of_producer(producer, 1, ordered=False, partitions=4) in partitions:
            await node.produce(b"x", producer_id=producer, sequence=1, timeout_ms=WAIT_MS)
        await node.produce(b"x", timeout_ms=WAIT_MS)


@asynccontextmanager
async def with_four(environment: MemoryEnvironment | None = None) -> AsyncIterator[ServiceNode]:
    async with service_node(environment) as node:
        await node.create(partitions=4)
        yield node


@pytest.mark.parametrize("hangs", [False, True])
@pytest.mark.parametrize("partitions", [2, 6])
async def test_a_partition_that_is_lost_on_the_way_stops_nothing(partitions: int, hangs: bool):
    async with with_four() as node:
        known: dict[str, Any] = {"keyed": [b"b", b"ee"], "producer_id": producer_id()}
        assert {partition_of_key(key, 4) for key in known["keyed"]} == {1, 2}
        first = await node.produce(b"1", b"2", sequence=1, **known)
        road = Road(node)
        road.away, road.lost, road.hangs = {placed(node).groups[3]}, (Route,), hangs
        changing = change(node, partitions)
        await node.until(lambda: placed(node).is_changing)
        await assert_taken(node, 0, 1, 2)
        await node.until(lambda: placed(node).routing == 2)
        assert (placed(node).routed_partitions, placed(node).settings.partitions) == (4, partitions)
        await assert_taken(node, 0, 1, 2)
        again = await node.produce(b"1", b"2", sequence=1, **known)
        assert [(b.partition, b.first_seq, b.repeated) for b in again.batches] == [
            (b.partition, b.first_seq, True) for b in first.batches
        ]
        await ended(changing)


@pytest.mark.parametrize("partitions", [2, 6])
async def test_a_change_that_was_undone_is_made_later(
    partitions: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(repartitioning, "ROUTING_AGAIN_MS", 1)
    async with with_four() as node:
        keys = [b"k%d" % number for number in range(40)]
        identified: dict[str, Any] = {"keyed": keys, "producer_id": producer_id(), "sequence": 1}
        await node.produce(*keys, **identified)
        road = Road(node)
        road.away, road.lost = {placed(node).groups[3]}, (Route,)
        changing = change(node, partitions)
        await node.until(lambda: placed(node).routing >= 2)
        second = {**identified, "sequence": 2}
        producing = asyncio.get_running_loop().create_task(
            node.produce(*keys, **second, timeout_ms=WAIT_MS)
        )
        await node.until(lambda: node.counts().produced > 40)
        road.away = set()
        queue = await changing
        await producing
        assert (queue.routed_partitions, queue.is_changing) == (partitions, False)
        for request in (identified, second):
            assert all(one.repeated for one in (await node.produce(*keys, **request)).batches)
        assert (await node.total()).produced == 80
        found: list[bytes] = []
        while len(found) < 80:
            for batch in (await node.lease(100, wait_ms=WAIT_MS)).batches:
                found += payloads(batch)
                await node.complete(batch)
        assert sorted(found) == sorted(keys * 2)
        await node.until(lambda: not node.counts().waits_for)


async def test_a_partition_that_was_away_is_told_when_it_is_back():
    async with with_four() as node:
        road = Road(node)
        road.away, road.hangs = {placed(node).groups[3]}, True
        road.lost = (Route,)
        changing = change(node, 6)
        await node.until(lambda: placed(node).routing == 2)
        await ended(changing)
        # The partition knows the previous routing version. It refuses requests of this version
        # until it receives the Route command.
        waiting = [
            asyncio.get_running_loop().create_task(
                node.produce(b"x", keyed=[b"k%d" % number], timeout_ms=WAIT_MS)
            )
            for number in range(20)
        ]
        await asyncio.wait(waiting, timeout=0.05)
        road.away = set()
        for task in waiting:
            await task
        assert node.counts().produced == 20


async def test_a_transaction_that_stays_prepared_undoes_a_change():
    async with with_four() as node:
        road = Road(node)
        road.pinned = True
        changing = change(node, 6)
        await node.until(lambda: placed(node).is_changing)
        await assert_taken(node, 0, 1, 2, 3)
        assert placed(node).routed_partitions == 4
        await ended(changing)


async def test_partitions_that_a_lost_leader_left_closed_are_reopened():
    environment = MemoryEnvironment()
    async with with_four(environment) as node:
        road = Road(node)
        road.away, road.lost = set(placed(node).groups), (Adopt, QueueRouted)
        road.hangs = True
        road.away.add(PLACEMENT_GROUP)
        changing = change(node, 6)
        await node.until(lambda: len(placed(node).groups) == 6)
        while not any(isinstance(one, Route) and one.open for one in road.told):
            await node.produce(b"x")
        await ended(changing)
    async with service_node(environment) as node:
        road = Road(node)
        road.away, road.hangs = {placed(node).groups[3]}, True
        await node.until(lambda: placed(node).routing >= 1)
        assert (placed(node).routed_partitions, placed(node).routing) == (4, 2)
        road.away = set()
        await assert_taken(node, 0, 1, 2, 3)


async def test_the_old_number_undoes_a_change(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(repartitioning, "ROUTING_AGAIN_MS", 1)
    async with with_four() as node:
        road = Road(node)
        road.away = {placed(node).groups[3]}
        changing = change(node, 6)
        await node.until(lambda: placed(node).is_changing)
        error = await refusal(change(node, 8))
        assert error.code is ErrorCode.UNAVAILABLE
        assert "partitions=4 undoes that" in error.message
        undoing = change(node, 4)
        await node.until(lambda: placed(node).settings.partitions == 4)
        road.away = set()
        queue = await undoing
        assert (queue.routed_partitions, queue.is_changing) == (4, False)
        assert not (await changing).is_changing
        await node.until(lambda: len(placed(node).groups) == 4)
        await assert_taken(node, 0, 1, 2, 3)
        assert (await change(node, 6)).routed_partitions == 6


async def test_a_caller_hears_which_partition_is_waited_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(repartitioning, "ROUTING_AGAIN_MS", 1)
    async with with_four() as node:
        road = Road(node)
        road.away = {placed(node).groups[3], placed(node).groups[1]}
        error = await refusal(change(node, 6, timeout_ms=200))
        assert (error.code, error.field, error.value) == (
            ErrorCode.OUTCOME_UNKNOWN,
            "partition",
            "1, 3",
        )
        assert "until then requests use 4 partitions" in error.message
        assert node.placement.missing(placed(node).id) == (1, 3)
        road.away = set()
        await node.until(lambda: not placed(node).is_changing)
        assert node.placement.missing(placed(node).id) == ()


async def test_a_change_whose_answer_was_lost_is_not_called_undone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(repartitioning, "ROUTING_CLOSED_MS_MAX", WAIT_MS)
    async with with_four() as node:
        road = Road(node)
        propose = road.propose

        async def loses_answer(group: GroupId, command: Any) -> Any:
            result = await propose(group, command)
            if isinstance(command, QueueRouted):
                raise QueratorError(ErrorCode.OUTCOME_UNKNOWN, "the leader was deposed")
            return result

        node.placement._repartitioner.telling.propose = loses_answer
        assert (await change(node, 6)).routed_partitions == 6
        assert (await change(node, 4)).routed_partitions == 4
        assert sum(isinstance(one, QueueRouted) for one in road.told) == 2
        assert "undone" not in caplog.text


async def test_a_batch_that_was_staged_before_a_change_was_undone_is_aborted_whole():
    async with with_four() as node:
        first = await fill(node.queues, *STAGED)
        road = Road(node)
        road.away, road.lost = {placed(node).groups[3]}, (Route,)
        changing = change(node, 6)
        await node.until(lambda: placed(node).routing == 2)
        await ended(changing)
        assert await code(node.queues.commit(commit_call(first))) is ErrorCode.TRANSACTION_ABORTED
        assert (await node.total()).produced == 0
        road.away = set()
        again = await fill(node.queues, *STAGED, number=2)
        await node.queues.commit(commit_call(again))
        while (total := await node.total()).produced < 12 or total.stages:
            await rounds()
        assert total.produced == 12
