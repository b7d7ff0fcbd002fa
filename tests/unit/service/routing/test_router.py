"""Any node serves any partition, and a change of leaders is invisible to callers."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from querator.model.calls import CompleteCall, SubscribeCall
from querator.model.commands import Lease, Produce
from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import GroupId
from querator.model.limits import MIB
from querator.model.queues import QueueSettings
from querator.partition.dedup_export import ClosureQuery
from querator.raft.clock import SimulatedClock
from querator.service.exchange import demands, node_exchange, offers
from querator.service.routing import router
from querator.service.routing.forwarder import Query
from tests.unit.service.service_cluster import ServiceCluster, service_cluster
from tests.unit.service.service_node import (
    LONG_MS,
    code,
    payloads,
    producer_id,
    refusal,
    whole,
)


def group_of(cluster: ServiceCluster, partition: int = 0, name: str = "q") -> GroupId:
    queue = cluster.base.placement.map.find("default", name)
    assert queue is not None
    return queue.groups[partition]


def start(coroutine: Any) -> "asyncio.Task[Any]":
    return asyncio.get_running_loop().create_task(coroutine)


async def rounds(count: int = 20) -> None:
    """Runs the event loop for `count` rounds, without waiting."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_any_node_takes_and_gives_items():
    async with service_cluster("a", "b") as cluster:
        await cluster.produce("b", b"one", b"two")
        assert cluster.forwarded == {"Produce": 1}
        reply = await cluster.lease("b", wait_ms=LONG_MS)
        assert payloads(*reply.batches) == [b"one", b"two"]
        [outcome] = (await cluster.complete("b", *reply.batches)).outcomes
        assert outcome.error is None
        assert (await cluster.base.total()).completed == 2


async def test_items_with_lease_timeouts_of_their_own_come_from_another_node():
    async with service_cluster("a", "b") as cluster:
        await cluster.base.produce(b"x", b"y", b"z", lease_timeouts_ms=[50_000, 0, 50_000])
        batches = (await cluster.lease("b", wait_ms=LONG_MS)).batches
        assert payloads(*batches) == [b"x", b"y", b"z"]
        left = [round(batch.remaining_ms, -3) for batch in batches]
        assert left[0] == left[2] == 50_000 != left[1]
        assert batches[0].lease_id == batches[2].lease_id != batches[1].lease_id
        outcomes = (await cluster.complete("b", *batches)).outcomes
        assert [outcome.error for outcome in outcomes] == [None] * 3


async def test_what_this_node_leads_does_not_travel():
    async with service_cluster("a", "b", partitions=2) as cluster:
        for _ in range(4):
            await cluster.produce("a", b"x")
        assert not cluster.forwarded
        assert {
            group for _, group, command in cluster.proposed if isinstance(command, Produce)
        } == {group_of(cluster, 0)}


async def test_one_node_leases_from_all():
    async with service_cluster("a", "b", "c", partitions=6) as cluster:
        for number in range(30):
            await cluster.produce("abc"[number % 3], b"%d" % number)
        seen: set[bytes] = set()
        while len(seen) < 30:
            reply = await cluster.lease("b", 100, wait_ms=LONG_MS)
            seen.update(payloads(*reply.batches))
            await cluster.complete("b", *reply.batches)
        assert (await cluster.base.total()).completed == 30


@pytest.mark.parametrize("at_once", [1, 3])
async def test_partitions_that_others_lead_are_leased_from_in_turn(at_once: int):
    """No lease takes everything: each partition always has ready items."""
    async with service_cluster("a", "b", partitions=8) as cluster:
        for name in "ab":
            for _ in range(100):
                await cluster.produce(name, *(b"x" for _ in range(4)))
        got: Counter[int] = Counter()
        for _ in range(40):
            leases = [start(cluster.lease("b", 1, wait_ms=LONG_MS)) for _ in range(at_once)]
            for lease in leases:
                got.update(batch.partition for batch in (await lease).batches)
        assert len(got) == 8, got
        assert max(got.values()) <= 3 * min(got.values()), got


async def test_a_waiting_lease_is_woken_by_what_another_node_takes():
    async with service_cluster("a", "b") as cluster:
        waiting = start(cluster.lease("b", wait_ms=LONG_MS))
        await rounds()
        await cluster.produce("a", b"x")
        assert payloads(*(await waiting).batches) == [b"x"]
        assert cluster.leases() == 1


async def test_a_lease_that_does_not_wait_finds_what_another_node_has():
    async with service_cluster("a", "b") as cluster:
        await cluster.produce("a", b"x")
        assert payloads(*(await cluster.lease("b")).batches) == [b"x"]
        leases = cluster.leases()
        assert (await cluster.lease("b")).batches == ()
        assert cluster.leases() == leases, "nothing was asked for nothing"


async def test_an_item_that_many_want_costs_one_lease():
    async with service_cluster("a", "b", "c") as cluster:
        waiting = [start(cluster.lease("abc"[n % 3], 1, wait_ms=LONG_MS)) for n in range(30)]
        await rounds()
        for number in range(30):
            await cluster.produce("a", b"%d" % number)
        got = [payload for task in waiting for payload in payloads(*(await task).batches)]
        assert sorted(got) == sorted(b"%d" % number for number in range(30))
        assert cluster.leases() <= 45


async def test_nodes_with_more_who_wait_get_more():
    async with service_cluster("a", "b", "c") as cluster:
        name_of = {
            start(cluster.lease(name, 1, wait_ms=LONG_MS)): name
            for name, count in (("a", 10), ("b", 20), ("c", 30))
            for _ in range(count)
        }
        await rounds()
        waiting = set(name_of)
        got: Counter[str] = Counter()
        while len(waiting) > 30:
            await cluster.produce("a", b"x")
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            got.update(name_of[task] for task in done)
        assert all(abs(got[name] - share) <= 2 for name, share in (("a", 5), ("b", 10), ("c", 15)))
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)


async def test_what_one_node_does_not_take_is_offered_to_the_next():
    async with service_cluster("a", "b", "c") as cluster:
        first = start(cluster.lease("b", 1, wait_ms=LONG_MS))
        await rounds()
        cluster.cut("a", "b")
        second = start(cluster.lease("c", 1, wait_ms=LONG_MS))
        await rounds()
        await cluster.produce("a", b"x")
        assert payloads(*(await second).batches) == [b"x"]
        cluster.mend("a", "b")
        await cluster.produce("a", b"y")
        assert payloads(*(await first).batches) == [b"y"]


async def test_a_node_that_is_back_is_told_at_once_who_waits():
    async with service_cluster("a", "b") as cluster:
        waiting = start(cluster.lease("b", 1, wait_ms=LONG_MS))
        await rounds()
        told = cluster.demands["b"]
        cluster.cut("a", "b")
        cluster.mend("a", "b")
        await rounds()
        assert cluster.demands["b"] == told + 1
        await cluster.produce("a", b"x")
        assert payloads(*(await waiting).batches) == [b"x"]


async def test_who_waits_no_longer_gives_back_what_it_is_offered():
    async with service_cluster("a", "b") as cluster:
        waiting = start(cluster.lease("b", 1, wait_ms=LONG_MS))
        await rounds()
        waiting.cancel()
        await asyncio.wait([waiting])
        await cluster.produce("a", b"x")
        assert payloads(*(await cluster.lease("a", wait_ms=LONG_MS)).batches) == [b"x"]
        assert cluster.leases() == 1


async def test_who_is_served_here_all_the_time_gets_what_another_node_takes():
    async with service_cluster("a", "b", partitions=2) as cluster:
        for number in range(100):
            await cluster.produce("b", b"%d" % number)
        subscription = await cluster.members["b"].subscribe(
            SubscribeCall("default", "q", "c", 1, 3 * MIB)
        )
        subscription.grant(1, 0)
        await subscription.next()
        await cluster.produce("a", b"there")
        for _ in range(50):
            subscription.grant(1, 0)
            [batch] = (await subscription.next()).batches
            if payloads(batch) == [b"there"]:
                break
        else:
            pytest.fail("what this node leads is emptied first")
        await subscription.close(polite=True)


async def test_who_waits_beside_a_lease_is_not_forgotten_when_that_is_answered(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(demands, "AGAIN_S", 3_600.0)
    async with service_cluster("a", "b") as cluster:
        there = cluster.members["a"].exchange
        assert there is not None
        propose, asked, joined = there.propose, asyncio.Event(), asyncio.Event()

        async def propose_when_both_wait(*call: Any) -> Any:
            asked.set()
            await joined.wait()
            return await propose(*call)

        first = start(cluster.lease("b", 1, wait_ms=LONG_MS))
        await rounds()
        monkeypatch.setattr(there, "propose", lambda *call: start(propose_when_both_wait(*call)))
        await cluster.produce("a", b"x")
        await asked.wait()
        second = start(cluster.lease("b", 1, wait_ms=LONG_MS))
        await rounds()
        joined.set()
        assert payloads(*(await first).batches) == [b"x"]
        await cluster.produce("a", b"y")
        assert payloads(*(await second).batches) == [b"y"]


async def test_who_waits_is_told_after_a_second_link_in_the_node_s_name_has_ended():
    async with service_cluster("a", "b") as cluster:
        there = cluster.members["a"].exchange
        assert there is not None
        told: list[int] = []

        def push(_node: str, _group: GroupId, items: int) -> None:
            told.append(items)

        there.linked("b", push)
        there.unlinked("b", push)
        waiting = start(cluster.lease("b", 1, wait_ms=LONG_MS))
        await rounds()
        await cluster.produce("a", b"x")
        assert payloads(*(await waiting).batches) == [b"x"]
        assert told == []


@pytest.mark.parametrize(
    "d", [{"bare": "d"}, {"stopped": "d"}], ids=["without replicas", "whose replicas are stopped"]
)
@pytest.mark.parametrize("leads", ["b", "c"])
async def test_who_waits_on_a_node_without_replicas_finds_who_leads_now(
    leads: str, d: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    """Seed 20116 of whole nodes: the node kept sending its demand to the former leader."""
    monkeypatch.setattr(node_exchange, "DISPATCHERS_S", 0.02)
    async with service_cluster("a", "b", "c", "d", **d) as cluster:
        (group,) = cluster.leaders
        waiting = start(cluster.lease("d", 1, wait_ms=LONG_MS))
        await rounds()
        cluster.lead(group, leads)
        await cluster.produce(leads, b"x")
        async with asyncio.timeout(10):
            assert payloads(*(await waiting).batches) == [b"x"]


@pytest.mark.parametrize(
    "d", [{"bare": "d"}, {"stopped": "d"}], ids=["without replicas", "whose replicas are stopped"]
)
@pytest.mark.parametrize("leads", ["b", "c"])
async def test_a_lease_that_does_not_wait_finds_who_leads_now(leads: str, d: dict[str, Any]):
    async with service_cluster("a", "b", "c", "d", **d) as cluster:
        (group,) = cluster.leaders
        await cluster.produce("d", b"x")
        cluster.lead(group, leads)
        assert payloads(*(await cluster.lease("d")).batches) == [b"x"]


@pytest.mark.parametrize(
    "d", [{"bare": "d"}, {"stopped": "d"}], ids=["without replicas", "whose replicas are stopped"]
)
@pytest.mark.parametrize("leads", ["b", "c"])
async def test_a_node_without_replicas_finds_who_leads_after_the_leader_has_died(
    leads: str, d: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(node_exchange, "DISPATCHERS_S", 0.02)
    async with service_cluster("a", "b", "c", "d", **d) as cluster, asyncio.timeout(20):
        (group,) = cluster.leaders
        waiting = start(cluster.lease("d", 1, wait_ms=LONG_MS))
        await rounds()
        for name in "bcd":
            cluster.cut("a", name)
        cluster.unreached.add("a")
        cluster.lead(group, leads)
        await cluster.produce(leads, b"x")
        assert payloads(*(await waiting).batches) == [b"x"]
        await cluster.produce("d", b"y")
        assert payloads(*(await cluster.lease("d")).batches) == [b"y"]


async def test_a_node_that_does_not_answer_is_not_taken_for_the_leader_for_ever(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(node_exchange, "DISPATCHERS_S", 0.02)
    monkeypatch.setattr(node_exchange, "LOOK_AROUND_S", 0.1)
    async with service_cluster("a", "b", "d", bare="d") as cluster, asyncio.timeout(20):
        (group,) = cluster.leaders
        query = cluster.forwarders["d"].query

        def unanswered(node: str, asked: Query) -> "asyncio.Future[Any]":
            return asyncio.get_running_loop().create_future() if node == "a" else query(node, asked)

        monkeypatch.setattr(cluster.forwarders["d"], "query", unanswered)
        waiting = start(cluster.lease("d", 1, wait_ms=LONG_MS))
        await rounds()
        cluster.lead(group, "b")
        await cluster.produce("b", b"x")
        assert payloads(*(await waiting).batches) == [b"x"]


async def test_a_call_follows_the_leader():
    async with service_cluster("a", "b", "c") as cluster:
        group = group_of(cluster)
        cluster.leaders[group] = "c"
        cluster.members["a"].events.on_leadership(group, False)
        cluster.members["c"].events.on_leadership(group, True)
        # b still takes a for the leader, and a knows that c leads.
        await cluster.produce("b", b"x")
        assert [name for name, _, command in cluster.proposed if isinstance(command, Produce)] == [
            "a",
            "c",
        ]


async def test_calls_wait_while_nobody_leads_and_keep_their_order():
    async with service_cluster("a", "b") as cluster:
        group = group_of(cluster)
        cluster.lead(group, None)
        tasks = [start(cluster.produce("b", b"%d" % number)) for number in range(50)]
        await rounds()
        assert not any(task.done() for task in tasks)
        cluster.lead(group, "a")
        late = start(cluster.produce("b", b"50"))
        await asyncio.wait([*tasks, late])
        reply = await cluster.lease("a")
        assert payloads(*reply.batches) == [b"%d" % number for number in range(51)]


async def test_a_deadline_without_a_leader_says_which_partition():
    async with service_cluster("a", "b", partitions=2) as cluster:
        cluster.lead(group_of(cluster, 0), None)
        cluster.lead(group_of(cluster, 1), None)
        error = await refusal(cluster.produce("b", b"x", timeout_ms=10))
        assert error.code is ErrorCode.DEADLINE_EXCEEDED
        assert "of queue q has no leader" in error.message


async def test_a_lost_quorum_is_reported_as_that():
    async with service_cluster("a", "b", "c") as cluster:
        cluster.lead(group_of(cluster), None)
        cluster.unreached |= {"a", "c"}
        error = await refusal(cluster.produce("b", b"x", timeout_ms=10))
        assert error.code is ErrorCode.DEADLINE_EXCEEDED
        assert "partition 0 of queue q has no leader (a, c unreachable)" in error.message


async def test_a_node_that_is_cut_off_sends_callers_away(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(router, "CUT_OFF_S", 0.05)
    monkeypatch.setattr(node_exchange, "DISPATCHERS_S", 0.05)
    async with service_cluster("a", "b", "c") as cluster:
        subscription = await cluster.members["b"].subscribe(
            SubscribeCall("default", "q", "c", 100, 3 * MIB)
        )
        subscription.grant(10, 0)
        delivery = start(subscription.next())
        leasing = start(cluster.lease("b", wait_ms=LONG_MS))
        cluster.lead(group_of(cluster), None)
        cluster.unreached |= {"a", "c"}
        for task in (start(cluster.produce("b", b"x", timeout_ms=LONG_MS)), leasing, delivery):
            error = await refusal(task)
            assert error.code is ErrorCode.UNAVAILABLE
            assert "(a, c unreachable); not executed" in error.message
        await subscription.close(polite=False)


async def test_a_node_that_hangs_sends_callers_away_until_it_goes_on(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(node_exchange, "DISPATCHERS_S", 0.05)
    async with service_cluster("a", "b") as cluster:
        cluster.lead(group_of(cluster), "b")
        leasing = start(cluster.lease("b", wait_ms=LONG_MS))
        await rounds()
        cluster.hanging.add("b")
        cluster.members["b"].events.on_hang(True)
        for task in (start(cluster.produce("b", b"x", timeout_ms=LONG_MS)), leasing):
            error = await refusal(task)
            assert error.code is ErrorCode.UNAVAILABLE
            assert "the node that led partition 0 of queue q hangs" in error.message
        cluster.hanging.clear()
        cluster.members["b"].events.on_hang(False)
        await cluster.produce("b", b"x", timeout_ms=LONG_MS)


async def test_one_node_out_of_reach_cuts_nobody_off(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(router, "CUT_OFF_S", 0.01)
    async with service_cluster("a", "b", "c") as cluster:
        cluster.lead(group_of(cluster), None)
        cluster.unreached.add("a")
        task = start(cluster.produce("b", b"x", timeout_ms=LONG_MS))
        await asyncio.wait([task], timeout=0.1)
        assert not task.done()
        cluster.lead(group_of(cluster), "c")
        await task


async def test_what_came_after_an_unknown_outcome_is_said():
    async with service_cluster("a", "b", "c") as cluster:
        cluster.loses_answers = 1
        task = start(
            cluster.produce("b", b"x", producer_id=producer_id(), sequence=1, timeout_ms=200)
        )
        await cluster.base.until(lambda: cluster.base.counts().produced == 1)
        cluster.lead(group_of(cluster), None)
        error = await refusal(task)
        assert error.code is ErrorCode.OUTCOME_UNKNOWN
        assert error.field == "partition"
        assert "after that partition 0 of queue q has no leader" in error.message


async def test_a_leader_out_of_reach_is_named():
    async with service_cluster("a", "b") as cluster:
        cluster.cut("a", "b")
        error = await refusal(cluster.produce("b", b"x", timeout_ms=10))
        assert error.code is ErrorCode.DEADLINE_EXCEEDED
        assert "led by a, which cannot be reached" in error.message


async def test_a_call_goes_on_when_its_leader_can_be_reached_again():
    async with service_cluster("a", "b") as cluster:
        cluster.cut("a", "b")
        task = start(cluster.produce("b", b"x", timeout_ms=LONG_MS))
        await rounds()
        cluster.mend("a", "b")
        await task


async def test_an_identified_produce_is_repeated_for_its_caller():
    async with service_cluster("a", "b") as cluster:
        for node in ("a", "b"):
            cluster.loses_answers = 1
            producer = producer_id()
            reply = await cluster.produce(node, b"x", producer_id=producer, sequence=1)
            assert reply.batches[0].repeated
        assert (await cluster.base.total()).produced == 2


async def test_a_produce_without_identity_is_not_repeated():
    async with service_cluster("a", "b") as cluster:
        cluster.loses_answers = 1
        assert await code(cluster.produce("b", b"x")) is ErrorCode.OUTCOME_UNKNOWN
        assert (await cluster.base.total()).produced == 1


async def test_a_lease_whose_answer_is_lost_is_repeated():
    async with service_cluster("a", "b") as cluster:
        await cluster.produce("a", b"x")
        for node in ("b", "a"):
            cluster.loses_answers = 1
            [batch] = (await cluster.lease(node, wait_ms=LONG_MS)).batches
            assert (payloads(batch), batch.repeated, batch.attempt) == ([b"x"], False, 1)
            await cluster.retry(node, batch, count_attempt=False)
        assert (await cluster.base.total()).delivered == 2


async def test_a_settle_whose_answer_is_lost_is_repeated():
    async with service_cluster("a", "b") as cluster:
        await cluster.produce("a", b"x")
        [batch] = (await cluster.lease("b", wait_ms=LONG_MS)).batches
        cluster.loses_answers = 1
        [outcome] = (await cluster.complete("b", batch)).outcomes
        assert outcome.error is None
        assert outcome.repeated
        assert (await cluster.base.total()).completed == 1


async def test_a_leader_that_vanishes_with_a_command_does_not_hold_its_caller():
    async with service_cluster("a", "b", "c") as cluster:
        held: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        host = cluster.members["a"].exchange
        assert host is not None
        cluster.members["a"].exchange.propose = lambda *_: held  # type: ignore[union-attr,method-assign]
        task = start(cluster.produce("b", b"x", producer_id=producer_id(), sequence=1))
        await rounds()
        cluster.lead(group_of(cluster), "c")
        await task
        held.cancel()


async def test_a_node_that_has_failed_is_not_the_end():
    async with service_cluster("a", "b", "c") as cluster:
        group = group_of(cluster)
        cluster.failed.add("a")
        # A client that calls the failed node itself has to try another one.
        assert await code(cluster.produce("a", b"x")) is ErrorCode.UNAVAILABLE
        waiting = start(cluster.lease("c", wait_ms=LONG_MS))
        produced = start(cluster.produce("b", b"x"))
        await rounds()
        assert not produced.done()
        cluster.lead(group, "b")
        await produced
        assert payloads(*(await waiting).batches) == [b"x"]


async def test_dead_letters_move_between_nodes():
    async with service_cluster("a", "b") as cluster:
        dead = await cluster.base.create("dead", partitions=2)
        await cluster.base.admin.update_queue(
            "default", "q", QueueSettings(dead_queue="dead"), ("dead_queue",), 0
        )
        for group in dead.groups:
            cluster.lead(group, "b")
        await cluster.produce("a", *[b"x"] * 10)
        reply = await cluster.lease("b", wait_ms=LONG_MS)
        await cluster.retry("b", *reply.batches, dead=True)

        def arrived() -> bool:
            return cluster.base.counts("dead").ready == 10 and cluster.base.counts("q").moving == 0

        await cluster.base.until(arrived)
        assert cluster.forwarded["Move"]


async def test_dead_letters_follow_when_a_full_queue_of_another_node_has_room():
    async with service_cluster("a", "b") as cluster:
        dead = await cluster.base.create("dead", partition_items_max=4)
        await cluster.base.admin.update_queue(
            "default", "q", QueueSettings(dead_queue="dead"), ("dead_queue",), 0
        )
        cluster.lead(dead.groups[0], "b")
        await cluster.produce("a", *[b"x"] * 10)
        reply = await cluster.lease("a", wait_ms=LONG_MS)
        await cluster.retry("a", *reply.batches, dead=True)
        drained = 0
        while drained < 10:
            reply = await cluster.lease("b", 3, queue="dead", wait_ms=LONG_MS)
            drained += sum(batch.loaded.count for batch in reply.batches)
            refs = tuple(whole(batch) for batch in reply.batches)
            await cluster.members["b"].complete(CompleteCall("default", "dead", refs))
        await cluster.base.until(lambda: cluster.base.counts("q").moving == 0)
        assert cluster.base.counts("dead").moved_in == 10


async def test_streams_deliver_and_extend_over_nodes():
    async with service_cluster("a", "b") as cluster:
        subscription = await cluster.members["b"].subscribe(
            SubscribeCall("default", "q", "c", 100, 3 * MIB)
        )
        subscription.grant(10, 0)
        delivery = start(subscription.next())
        await rounds()
        await cluster.produce("a", b"x")
        [batch] = (await delivery).batches
        assert payloads(batch) == [b"x"]
        await subscription.close(polite=True)
        await cluster.base.until(lambda: cluster.base.counts().released == 1)


async def test_a_lease_is_extended_once_at_a_time_while_nobody_leads():
    clock = SimulatedClock()
    async with service_cluster("a", "b", clock=clock, lease_timeout_ms=1_000) as cluster:
        subscription = await cluster.members["b"].subscribe(
            SubscribeCall("default", "q", "c", 100, 3 * MIB, auto_extend=True)
        )
        subscription.grant(10, 0)
        await cluster.produce("a", b"x")
        await subscription.next()
        cluster.lead(group_of(cluster), None)
        clock.advance(5_000)
        waiting = start(cluster.lease("b", wait_ms=LONG_MS))
        await asyncio.wait([waiting], timeout=0.5)
        cluster.lead(group_of(cluster), "a")
        await cluster.base.until(lambda: cluster.forwarded["Extend"] > 0)
        await rounds()
        assert cluster.forwarded["Extend"] == 1
        waiting.cancel()
        await subscription.close(polite=False)


async def test_what_a_stream_held_is_released_when_there_is_a_leader_again():
    async with service_cluster("a", "b") as cluster:
        subscription = await cluster.members["b"].subscribe(
            SubscribeCall("default", "q", "c", 100, 3 * MIB)
        )
        subscription.grant(10, 0)
        await cluster.produce("a", b"x")
        await subscription.next()
        cluster.lead(group_of(cluster), None)
        await subscription.close(polite=True)
        await rounds()
        assert cluster.base.counts().released == 0
        cluster.lead(group_of(cluster), "b")
        await cluster.base.until(lambda: cluster.base.counts().released == 1)


async def test_leases_name_themselves_only_among_nodes():
    async with service_cluster("a", "b") as cluster:
        await cluster.produce("a", b"x")
        await cluster.lease("b", wait_ms=LONG_MS)
        [lease] = [command for _, _, command in cluster.proposed if isinstance(command, Lease)]
        assert all(caller.request_id for caller in lease.callers)
        assert cluster.base.queues.router.lease_name() == ""


async def test_nodes_share_though_leases_take_more_than_was_offered():
    async with service_cluster("a", "b", "c") as cluster:
        got: Counter[str] = Counter()

        async def consume(name: str) -> None:
            while True:
                # The leases of the other nodes are offered one item at a time, and take all ready
                # items.
                reply = await cluster.lease(name, 4, wait_ms=LONG_MS)
                got[name] += len(payloads(*reply.batches))

        consuming = [start(consume(name)) for name in "abc" for _ in range(10)]
        await rounds()
        producing = []
        for _ in range(600):
            producing.append(start(cluster.produce("a", b"x")))
            await rounds(20)
        await asyncio.wait(producing)
        while got.total() < 600:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        for task in consuming:
            task.cancel()
        await asyncio.wait(consuming)
        assert max(got.values()) < 1.5 * min(got.values()), got


async def test_a_node_that_has_said_nothing_for_long_is_forgotten(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(offers, "DEMAND_S", 0.0)
    async with service_cluster("a", "b") as cluster:
        start(cluster.lease("b", 1, wait_ms=LONG_MS))
        await rounds()
        waiting = start(cluster.lease("a", 1, wait_ms=LONG_MS))
        await rounds()
        await cluster.produce("a", b"x")
        assert payloads(*(await waiting).batches) == [b"x"]


async def test_a_wait_without_any_leader_does_not_end_as_if_nothing_was_ready():
    async with service_cluster("a", "b", partitions=2) as cluster:
        first, second = cluster.leaders
        for group in (first, second):
            cluster.lead(group, None)
        error = await refusal(cluster.lease("a", wait_ms=20))
        assert error.code is ErrorCode.NOT_LEADER
        cluster.lead(first, "b")
        assert (await cluster.lease("a", wait_ms=20)).batches == ()
        assert await code(cluster.lease("a", wait_ms=20, partition=1)) is ErrorCode.NOT_LEADER


async def test_who_waits_on_a_node_whose_replica_has_stopped_finds_who_leads(
    monkeypatch: pytest.MonkeyPatch,
):
    """The node loses its leader before it knows that its replica does not run."""
    monkeypatch.setattr(node_exchange, "DISPATCHERS_S", 0.02)
    async with service_cluster("a", "b", "d") as cluster, asyncio.timeout(20):
        (group,) = cluster.leaders
        waiting = start(cluster.lease("d", 1, wait_ms=LONG_MS))
        await rounds()
        cluster.members["d"].events.on_leader(group, None)
        cluster.stopped = frozenset("d")
        cluster.lead(group, "b")
        await cluster.produce("b", b"x")
        assert payloads(*(await waiting).batches) == [b"x"]


async def test_a_node_from_which_a_replica_moves_away_does_not_guess_who_leads():
    """Its replica learns of the next leader, so it must not ask one node after another."""
    async with service_cluster("a", "b", "c", leaving="b") as cluster:
        group = group_of(cluster)
        route = cluster.members["b"].router.route(group)
        assert route.leader == "a"
        cluster.lead(group, None)
        assert (route.leader, route.is_reachable) == ("", False)


@pytest.mark.parametrize(
    "d", [{"bare": "d"}, {"stopped": "d"}], ids=["without replicas", "whose replicas are stopped"]
)
async def test_payloads_do_not_travel_to_a_node_that_may_lead(d: dict[str, Any]):
    """Seed 121414 of whole nodes: each waiting produce sent its megabyte to one guessed leader
    after another, and nothing else passed the links.
    """
    async with service_cluster("a", "b", "c", "d", **d) as cluster, asyncio.timeout(20):
        (group,) = cluster.leaders
        cluster.lead(group, None)
        produced = [start(cluster.produce("d", b"%d" % number)) for number in range(20)]
        await asyncio.sleep(0.3)
        assert cluster.forwarded["Produce"] == 0
        cluster.lead(group, "c")
        await asyncio.gather(*produced)
        assert cluster.forwarded["Produce"] == 20
        await cluster.produce("d", b"one more")
        assert cluster.forwarded["Produce"] == 21


async def test_waiting_calls_do_not_wake_each_other_while_no_node_leads(
    monkeypatch: pytest.MonkeyPatch,
):
    """Seed 41404 of whole nodes: each guess at the next leader woke all calls that paused, and each
    of them asked again at once.
    """
    monkeypatch.setattr(router, "LEADER_RETRY_S", 60.0)
    async with service_cluster("a", "b", "c", "d", bare="d") as cluster, asyncio.timeout(20):
        (group,) = cluster.leaders
        cluster.lead(group, None)
        query = cluster.forwarders["d"].query
        asked: Counter[str] = Counter()

        def counted(node: str, question: Query) -> "asyncio.Future[Any]":
            asked[node] += isinstance(question, ClosureQuery)
            return query(node, question)

        monkeypatch.setattr(cluster.forwarders["d"], "query", counted)
        produced = [start(cluster.produce("d", b"%d" % number)) for number in range(20)]
        await rounds(1_000)
        assert sum(asked.values()) <= 1 + router.HOPS_MAX
        cluster.lead(group, "c")
        first = start(cluster.produce("d", b"one more"))
        await asyncio.gather(first, *produced)
        assert cluster.forwarded["Produce"] == 21


async def test_a_deadline_before_a_node_says_whether_it_leads_is_certainly_not_executed(
    monkeypatch: pytest.MonkeyPatch,
):
    async with service_cluster("a", "b", "d", bare="d") as cluster, asyncio.timeout(20):
        (group,) = cluster.leaders
        cluster.lead(group, None)
        query = cluster.forwarders["d"].query
        asked = asyncio.Event()

        def unanswered(node: str, question: Query) -> "asyncio.Future[Any]":
            if not isinstance(question, ClosureQuery):
                return query(node, question)
            asked.set()
            return asyncio.get_running_loop().create_future()

        monkeypatch.setattr(cluster.forwarders["d"], "query", unanswered)
        produced = start(cluster.produce("d", b"x", timeout_ms=100))
        await asked.wait()
        error = await refusal(produced)
        assert error.code is ErrorCode.DEADLINE_EXCEEDED
        assert "did not say before the deadline whether it leads partition 0" in error.message
        assert cluster.forwarded["Produce"] == 0


async def test_a_question_to_a_node_that_vanishes_is_no_outcome(monkeypatch: pytest.MonkeyPatch):
    async with service_cluster("a", "b", "d", bare="d") as cluster, asyncio.timeout(20):
        (group,) = cluster.leaders
        question = asyncio.get_running_loop().create_future()
        query = cluster.forwarders["d"].query
        vanished: list[Query] = []

        def once(node: str, asked: Query) -> "asyncio.Future[Any]":
            if vanished or not isinstance(asked, ClosureQuery):
                return query(node, asked)
            vanished.append(asked)
            return question

        monkeypatch.setattr(cluster.forwarders["d"], "query", once)
        produced = start(cluster.produce("d", b"x"))
        await rounds()
        question.set_exception(QueratorError(ErrorCode.OUTCOME_UNKNOWN, "the link broke"))
        await produced
        assert vanished == [ClosureQuery(group)]
