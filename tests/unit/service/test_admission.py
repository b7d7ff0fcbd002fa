"""Calls that wait for one partition, or come from one client, leave capacity for the others."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from querator.model.calls import CompleteCall, LeasedRun, SettleReply
from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import GroupId
from querator.model.shares import Excess, Shares, share
from querator.raft import host
from querator.service import admission, assembly
from querator.service.admission import CONNECTION
from querator.storage.memory_environment import MemoryEnvironment
from tests.unit.raft.running_host import CommitGate
from tests.unit.service.service_cluster import ServiceCluster, service_cluster
from tests.unit.service.service_node import LONG_MS, produce_call, ref, refusal, service_node

MANY = 30
ITEM = b"x" * 1_000


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembly, "PRODUCE_BYTES_HELD_MAX", 40_000)
    monkeypatch.setattr(admission, "LEADERLESS_BYTES_MAX", 10_000)
    monkeypatch.setattr(admission, "LEADERLESS_CALLS_MAX", 10)


def start(coroutine: Any) -> "asyncio.Task[Any]":
    return asyncio.get_running_loop().create_task(coroutine)


async def rounds(count: int = 50) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def stop(tasks: "list[asyncio.Task[Any]]") -> Counter[str]:
    """Cancels the tasks. Returns the counted errors of those that had ended, as code and field."""
    found = Counter(
        f"{error.code.name} {error.field}"
        for task in tasks
        if task.done() and isinstance(error := task.exception(), QueratorError)
    )
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return found


async def with_healthy(cluster: ServiceCluster, leader: str) -> GroupId:
    """Creates a queue `healthy`. Returns the group of the queue `q`."""
    healthy = await cluster.base.create("healthy")
    cluster.lead(healthy.groups[0], leader)
    queue = cluster.base.placement.map.find("default", "q")
    assert queue is not None
    return queue.groups[0]


async def test_a_partition_without_a_leader_leaves_room_for_another_queue():
    async with service_cluster("a", "b") as cluster:
        cluster.lead(await with_healthy(cluster, "a"), None)
        waiting = [start(cluster.produce("a", ITEM, timeout_ms=LONG_MS)) for _ in range(MANY)]
        await rounds()
        for _ in range(MANY):
            await cluster.produce("a", *[ITEM] * 5, queue="healthy")
        errors = [task.exception() for task in waiting if task.done()]
        assert set(await stop(waiting)) == {"OVERLOADED partition"}
        first = errors[0]
        assert isinstance(first, QueratorError)
        assert "produces that wait for a leader of partition 0 of queue q would be" in str(first)
        assert first.retry_delay_ms
        # The calls that have ended do not count.
        cluster.lead(await_group(cluster), "a")
        await cluster.produce("a", *[ITEM] * 30)


def await_group(cluster: ServiceCluster) -> GroupId:
    queue = cluster.base.placement.map.find("default", "q")
    assert queue is not None
    return queue.groups[0]


async def test_what_waits_for_a_leader_goes_when_there_is_one():
    async with service_cluster("a", "b") as cluster:
        group = await with_healthy(cluster, "a")
        cluster.lead(group, None)
        waiting = [start(cluster.produce("a", ITEM, timeout_ms=LONG_MS)) for _ in range(5)]
        await rounds()
        cluster.lead(group, "b")
        await asyncio.gather(*waiting)
        held, _, _ = cluster.members["a"].admissions
        assert (held.calls, held.bytes) == (0, 0)


async def test_a_partition_that_does_not_answer_leaves_room_for_another_queue():
    async with service_cluster("a", "b") as cluster:
        stuck = await with_healthy(cluster, "b")
        cluster.lead(stuck, "b")
        there = cluster.members["b"].exchange
        assert there is not None
        propose = there.propose

        def hanging(
            node: str, group: GroupId, command: Any, attachment: bytes
        ) -> "asyncio.Future[Any]":
            if group == stuck:
                return asyncio.get_running_loop().create_future()
            return propose(node, group, command, attachment)

        there.propose = hanging  # type: ignore[method-assign]
        budget = cluster.members["a"]._producing.budget
        budget.sent = admission.Admission("produces", "partition", calls_max=99, bytes_max=20_000)
        waiting = [start(cluster.produce("a", ITEM, timeout_ms=LONG_MS)) for _ in range(MANY)]
        await rounds()
        for _ in range(MANY):
            await asyncio.gather(*(cluster.produce("a", ITEM, queue="healthy") for _ in range(3)))
        refused = await stop(waiting)
        assert set(refused) == {"OVERLOADED partition"}
        assert refused.total() < MANY, "it has what nobody else needs"


async def complete_healthy(cluster: ServiceCluster, batch: LeasedRun) -> SettleReply:
    call = CompleteCall("default", "healthy", (ref(batch),))
    return await cluster.members["a"].complete(call)


async def test_settles_of_a_partition_without_a_leader_leave_room_for_others():
    async with service_cluster("a", "b") as cluster:
        group = await with_healthy(cluster, "a")
        await cluster.produce("a", *[b"x"] * MANY)
        await cluster.produce("a", *[b"x"] * MANY, queue="healthy")
        stuck = [(await cluster.lease("a", 1)).batches[0] for _ in range(MANY)]
        healthy = [(await cluster.lease("a", 1, queue="healthy")).batches[0] for _ in range(MANY)]
        cluster.lead(group, None)
        waiting = [start(cluster.complete("a", batch)) for batch in stuck]
        await rounds()
        for batch in healthy:
            [outcome] = (await complete_healthy(cluster, batch)).outcomes
            assert outcome.error is None
        assert set(await stop(waiting)) == {"OVERLOADED partition"}


async def test_a_client_that_fills_its_share_leaves_room_for_another_one(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(admission, "LEADERLESS_BYTES_MAX", 1_000_000)
    monkeypatch.setattr(admission, "LEADERLESS_CALLS_MAX", 1_000)
    async with service_cluster("a", "b") as cluster:

        async def produce(client: str, queue: str, count: int = 1) -> None:
            CONNECTION.set(client)
            call = produce_call(*[ITEM] * count, queue=queue, timeout_ms=LONG_MS)
            await cluster.members["a"].produce(call)

        cluster.lead(await with_healthy(cluster, "a"), None)
        waiting = [start(produce("greedy", "q")) for _ in range(2 * MANY)]
        await rounds()
        error = await refusal(produce("greedy", "healthy"))
        assert (error.code, error.field) == (ErrorCode.OVERLOADED, "connection")
        assert "of connection greedy would be" in error.message
        for _ in range(MANY):
            await start(produce("modest", "healthy", 5))
        assert set(await stop(waiting)) == {"OVERLOADED connection"}


async def test_commands_of_one_group_leave_room_for_those_of_another(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(host, "PROPOSAL_BYTES_WAITING_MAX", 40_000)
    environment = MemoryEnvironment()
    async with service_node(environment) as node:
        await node.create()
        await node.create("healthy")
        gate = CommitGate(environment)
        gate.close()
        tasks = [start(node.produce(ITEM)) for _ in range(2 * MANY)]
        await gate.reached()
        await rounds()
        refused = [task for task in tasks if task.done()]
        assert refused
        assert all(task.exception() is not None for task in refused)
        modest = start(node.produce(ITEM, queue="healthy"))
        await rounds()
        assert not modest.done(), "it was taken on"
        gate.open()
        await modest
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("greedy", [1, 2, 5, 20])
@pytest.mark.parametrize("size", [0, 1])
def test_shares(greedy: int, size: int):
    """Keys that take all they can leave a share for a later key, of calls and of bytes alike."""
    shares: Shares[int] = (
        Shares(bytes_max=10_000) if size else Shares(calls_max=10_000, bytes_max=10_000)
    )
    for _ in range(10_000):
        for key in range(greedy):
            if shares.excess(key, size) is None:
                shares.add(key, size)
    assert all(
        abs(shares.used(key)[0] - 2 * 10_000 / (2 * greedy + 1)) <= 2 * greedy
        for key in range(greedy)
    )
    taken = 0
    while shares.excess(-1, size) is None:
        shares.add(-1, size)
        taken += 1
    assert taken >= (10_000 - 2 * greedy) / (2 * greedy + 1) * 2 / 3 - 2
    assert shares.excess(0, size) is not None
    for key in range(greedy):
        for _ in range(shares.used(key)[0]):
            shares.remove(key, size)
    assert shares.calls == taken


def test_a_key_with_nothing_gets_in_and_one_alone_may_exceed_the_limit():
    shares: Shares[str] = Shares(bytes_max=100)
    assert shares.excess("a", 1_000) is None
    shares.add("a", 60)
    assert shares.excess("b", 40) is None
    assert shares.excess("b", 41) == Excess("bytes", 101, 100, whole=True)
    assert shares.excess("a", 40) == Excess("bytes", 100, 67, whole=False)


@given(
    st.integers(1, 40),
    st.integers(0, 100),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30), st.booleans()), max_size=60),
)
def test_while_little_is_used_nothing_is_refused_that_the_rule_would_take(
    calls_max, bytes_max, asks
):
    """Compares `Shares` with its rule, computed without the shortcut for little use."""
    shares: Shares[int] = Shares(calls_max=calls_max, bytes_max=bytes_max)
    has: dict[int, list[int]] = {}
    for key, size, leaves in asks:
        if leaves and has.get(key):
            shares.remove(key, has[key].pop())
        mine = has.setdefault(key, [])
        everything = [one for some in has.values() for one in some]
        rules = [(calls_max, len(everything), len(mine), 1)]
        if bytes_max:
            rules.append((bytes_max, sum(everything), sum(mine), size))
        fits = all(
            not total
            or (
                total + more <= most
                and (not of_key or of_key + more <= share(most, total - of_key))
            )
            for most, total, of_key, more in rules
        )
        assert (shares.excess(key, size) is None) == fits
        if fits:
            shares.add(key, size)
            mine.append(size)
        assert (shares.calls, shares.bytes) == (
            len(everything) + fits,
            sum(everything) + fits * size,
        )
