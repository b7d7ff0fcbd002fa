"""Leases that lapse before their answer arrives, and partitions that grant nothing."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from querator.model.calls import SubscribeCall
from querator.model.commands import Lease, LeaseGrant, LeaseResult
from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import GroupId
from querator.model.limits import LEASES_EMPTY_MAX, MIB
from querator.raft.clock import SimulatedClock
from querator.service.lease import dispatcher, lost_requests
from querator.storage.memory_environment import MemoryEnvironment
from tests.unit.raft.running_host import CommitGate
from tests.unit.service.service_cluster import ServiceCluster, service_cluster
from tests.unit.service.service_node import LONG_MS, payloads, refusal

LAPSED_MS = 4_000
"""The timeout of the lease plus the grace period of a leader."""


def start(coroutine: Any) -> "asyncio.Task[Any]":
    return asyncio.get_running_loop().create_task(coroutine)


async def rounds(count: int = 50) -> None:
    """Runs the event loop for `count` rounds, without waiting."""
    for _ in range(count):
        await asyncio.sleep(0)


def closed(cluster: ServiceCluster) -> CommitGate:
    """A closed gate: nothing is committed until the test opens it."""
    environment = cluster.base.environment
    assert isinstance(environment, MemoryEnvironment)
    gate = CommitGate(environment)
    gate.close()
    return gate


async def first_lease(cluster: ServiceCluster) -> None:
    while not cluster.leases():  # noqa: ASYNC110 - a command under way has no event
        await asyncio.sleep(0)


async def lose_the_first_grant(cluster: ServiceCluster, gate: CommitGate) -> None:
    """Cuts the link when the leader is about to grant. The `gate` was closed before the lease call
    began.
    """
    await first_lease(cluster)
    cluster.cut("a", "b")
    gate.open()
    await cluster.base.until(lambda: cluster.base.counts().leased == 1)


async def lose_the_first_lease(
    cluster: ServiceCluster, clock: SimulatedClock, gate: CommitGate
) -> None:
    """As `lose_the_first_grant`, and mends the link after the lease has lapsed."""
    await lose_the_first_grant(cluster, gate)
    clock.advance(LAPSED_MS)
    await cluster.base.until(lambda: cluster.base.counts().lapsed == 1)
    cluster.mend("a", "b")


async def test_a_named_lease_whose_first_answer_was_lost_for_most_of_its_time_is_delivered():
    clock = SimulatedClock()
    async with service_cluster("a", "b", clock=clock, lease_timeout_ms=10_000) as cluster:
        await cluster.produce("a", b"x")
        gate = closed(cluster)
        leasing = start(cluster.lease("b", 1, wait_ms=LONG_MS, request_id="mine"))
        await lose_the_first_grant(cluster, gate)
        clock.advance(6_000)
        cluster.mend("a", "b")
        async with asyncio.timeout(5):
            [batch] = (await leasing).batches
        assert (payloads(batch), batch.repeated, batch.attempt) == ([b"x"], True, 1)
        assert 3_000 < batch.remaining_ms <= 4_000


async def test_a_waiting_lease_that_lapsed_on_its_way_is_granted_again():
    clock = SimulatedClock()
    async with service_cluster("a", "b", clock=clock, lease_timeout_ms=1_000) as cluster:
        await cluster.produce("a", b"x")
        gate = closed(cluster)
        leasing = start(cluster.lease("b", 1, wait_ms=LONG_MS))
        await lose_the_first_lease(cluster, clock, gate)
        async with asyncio.timeout(5):
            [batch] = (await leasing).batches
        assert (payloads(batch), batch.repeated, batch.attempt) == ([b"x"], False, 2)
        assert cluster.leases() <= 3, "the first one, its repeat, and one under another name"


async def test_a_stream_whose_lease_lapsed_on_its_way_delivers_the_item():
    clock = SimulatedClock()
    async with service_cluster("a", "b", clock=clock, lease_timeout_ms=1_000) as cluster:
        await cluster.produce("a", b"x")
        subscription = await cluster.members["b"].subscribe(
            SubscribeCall("default", "q", "c", 10, 3 * MIB)
        )
        gate = closed(cluster)
        subscription.grant(100, 0)
        delivery = start(subscription.next())
        await lose_the_first_lease(cluster, clock, gate)
        async with asyncio.timeout(5):
            [batch] = (await delivery).batches
        assert payloads(batch) == [b"x"]
        assert cluster.leases() <= 4
        await subscription.close(polite=True)


async def hang_during_a_lease(cluster: ServiceCluster, leasing: "asyncio.Task[Any]") -> None:
    """The leader's disk hangs while a lease is being written, and the lease is granted then."""
    gate = closed(cluster)
    await first_lease(cluster)
    await gate.reached()
    events = cluster.members["a"].events
    cluster.hanging.add("a")
    events.on_hang(True)
    await rounds()
    gate.open()
    await cluster.base.until(lambda: cluster.base.counts().leased == 1)
    assert cluster.leases() == 1
    cluster.hanging.clear()
    events.on_hang(False)


async def test_a_stream_gets_what_a_hanging_leader_has_granted_to_it_late():
    """Before, the items waited for the whole time of a lease that no consumer had."""
    async with service_cluster("a", "b") as cluster:
        subscription = await cluster.members["a"].subscribe(
            SubscribeCall("default", "q", "c", 10, 3 * MIB, consumer_id="me", stream_number=1)
        )
        await cluster.produce("a", b"x")
        delivery = start(subscription.next())
        subscription.grant(100, 0)
        await hang_during_a_lease(cluster, delivery)
        async with asyncio.timeout(5):
            [batch] = (await delivery).batches
        assert (payloads(batch), batch.repeated, batch.attempt) == ([b"x"], False, 1)
        counts = cluster.base.counts()
        assert (counts.leased, counts.lapsed) == (1, 0)
        await subscription.close(polite=True)


async def test_a_lease_call_without_a_name_leaves_nothing_at_a_hanging_leader():
    async with service_cluster("a", "b") as cluster:
        await cluster.produce("a", b"x")
        leasing = start(cluster.lease("a", 1, wait_ms=LONG_MS))
        await hang_during_a_lease(cluster, leasing)
        assert (await refusal(leasing)).code is ErrorCode.OUTCOME_UNKNOWN
        async with asyncio.timeout(5):
            await cluster.base.until(lambda: cluster.base.counts().leased == 0)
        assert cluster.base.counts().ready == 1


async def test_a_lease_call_with_a_name_finds_what_a_hanging_leader_has_granted():
    async with service_cluster("a", "b") as cluster:
        await cluster.produce("a", b"x")
        named = {"request_id": "mine", "partition": 0, "wait_ms": LONG_MS}
        leasing = start(cluster.lease("a", 1, **named))
        await hang_during_a_lease(cluster, leasing)
        assert (await refusal(leasing)).code is ErrorCode.OUTCOME_UNKNOWN
        await rounds()
        async with asyncio.timeout(5):
            [batch] = (await cluster.lease("a", 1, **named)).batches
        assert (payloads(batch), batch.repeated, batch.attempt) == ([b"x"], True, 1)


async def test_a_client_hears_that_the_lease_it_has_named_is_over():
    clock = SimulatedClock()
    async with service_cluster("a", "b", clock=clock, lease_timeout_ms=1_000) as cluster:
        await cluster.produce("a", b"x")
        gate = closed(cluster)
        leasing = start(cluster.lease("b", 1, wait_ms=LONG_MS, request_id="mine"))
        await lose_the_first_lease(cluster, clock, gate)
        error = await refusal(leasing)
        assert (error.code, error.field) == (ErrorCode.LEASE_ENDED, "request_id")
        assert cluster.leases() == 2


async def test_a_repeated_request_follows_the_leader_of_its_partition():
    async with service_cluster("a", "b", "c") as cluster:
        await cluster.produce("a", b"x")
        named = {"request_id": "mine", "partition": 0, "wait_ms": LONG_MS}
        [first] = (await cluster.lease("b", 1, **named)).batches
        queue = cluster.base.placement.map.find("default", "q")
        assert queue is not None
        [group] = queue.groups
        cluster.leaders[group] = "c"
        cluster.members["a"].events.on_leadership(group, False)
        cluster.members["c"].events.on_leadership(group, True)
        # b asks a, which does not lead. No ready item makes b ask again.
        async with asyncio.timeout(5):
            [again] = (await cluster.lease("b", 1, **named)).batches
        assert (again.lease_id, again.repeated) == (first.lease_id, True)


def grants_nothing(cluster: ServiceCluster, name: str) -> Callable[[], int]:
    """Makes the node grant nothing while items are ready. Returns a counter of its leases."""
    there = cluster.members[name].exchange
    assert there is not None
    came = 0

    def propose(
        node: str, group: GroupId, command: Any, attachment: bytes
    ) -> "asyncio.Future[Any]":
        nonlocal came
        assert isinstance(command, Lease)
        came += 1
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        nothing = LeaseGrant(0, 0, ())
        answer.set_result(LeaseResult((nothing,) * len(command.callers), 0))
        return answer

    there.propose = propose  # type: ignore[method-assign]
    return lambda: came


async def test_a_partition_that_grants_nothing_is_not_asked_again_at_once(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(dispatcher, "OVERLOADED_RETRY_MS", LONG_MS)
    async with service_cluster("a", "b") as cluster:
        await cluster.produce("a", b"x")
        came = grants_nothing(cluster, "a")
        leasing = start(cluster.lease("b", 1, wait_ms=LONG_MS))
        await rounds(500)
        assert 0 < came() <= LEASES_EMPTY_MAX
        leasing.cancel()
        await asyncio.wait([leasing])


def without_space(cluster: ServiceCluster, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Makes the partition's leader refuse leases for lack of space until the test undoes the patch.
    Returns a counter of the leases.
    """
    propose = cluster.base.host.propose
    came = 0

    def refuse(group: GroupId, command: Any, attachment: bytes = b"") -> "asyncio.Future[Any]":
        nonlocal came
        if not isinstance(command, Lease):
            return propose(group, command, attachment)
        came += 1
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        answer.set_exception(QueratorError(ErrorCode.STORAGE_FULL, "1000 bytes are free"))
        return answer

    monkeypatch.setattr(cluster.base.host, "propose", refuse)
    return lambda: came


@pytest.mark.parametrize("node", ["a", "b"], ids=["at the leader", "at another node"])
async def test_a_stream_waits_while_a_node_has_no_space(node: str, monkeypatch: pytest.MonkeyPatch):
    async with service_cluster("a", "b") as cluster:
        await cluster.produce("a", b"x")
        subscription = await cluster.members[node].subscribe(
            SubscribeCall("default", "q", "c", 10, 3 * MIB)
        )
        with monkeypatch.context() as patched:
            came = without_space(cluster, patched)
            subscription.grant(100, 0)
            delivery = start(subscription.next())
            while came() < 3:  # noqa: ASYNC110 - a refused command has no event
                await asyncio.sleep(0)
            assert not delivery.done()
        async with asyncio.timeout(5):
            [batch] = (await delivery).batches
        assert payloads(batch) == [b"x"]
        await subscription.close(polite=True)


@pytest.mark.parametrize("node", ["a", "b"], ids=["at the leader", "at another node"])
async def test_a_stream_does_not_ask_a_node_without_space_again_at_once(
    node: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(dispatcher, "OVERLOADED_RETRY_MS", LONG_MS)
    async with service_cluster("a", "b") as cluster:
        await cluster.produce("a", b"x")
        came = without_space(cluster, monkeypatch)
        subscription = await cluster.members[node].subscribe(
            SubscribeCall("default", "q", "c", 10, 3 * MIB)
        )
        subscription.grant(100, 0)
        delivery = start(subscription.next())
        await rounds(500)
        assert came() == 1
        delivery.cancel()
        await asyncio.wait([delivery])
        await subscription.close(polite=True)


async def test_a_lease_that_waits_is_told_that_a_node_has_no_space(
    monkeypatch: pytest.MonkeyPatch,
):
    async with service_cluster("a", "b") as cluster:
        await cluster.produce("a", b"x")
        without_space(cluster, monkeypatch)
        error = await refusal(cluster.lease("b", 1, wait_ms=LONG_MS))
        assert error.code is ErrorCode.STORAGE_FULL


def test_only_the_last_lost_requests_are_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lost_requests, "LOST_LEASE_REQUESTS_MAX", 2)
    posted: list[Any] = []
    router: Any = SimpleNamespace(post=lambda _, command, **__: posted.append(command))
    route: Any = SimpleRoute()
    lost = lost_requests.LostRequests(router)
    for number in range(4):
        named = number == 3
        waiter = SimpleNamespace(client_id="c", request_id=f"r{number}", named=named)
        lost.add(route, [cast(Any, SimpleNamespace(waiter=waiter))])
    lost.look(route)
    assert not posted, "it cannot be reached"
    route.is_reachable = True
    lost.look(route)
    lost.look(route)
    [command] = posted
    assert [caller.request_id for caller in command.callers] == ["r1", "r2"]


class SimpleRoute:
    is_reachable = False
