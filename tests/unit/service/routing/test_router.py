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
from tests.unit.service.serving import (
    LONG_MS,
    code,
    payloads,
    producer_id,
    refusal,
    whole,
)
from tests.unit.service.stage import Stage, staged


def group_of(stage: Stage, partition: int = 0, name: str = "q") -> GroupId:
    queue = stage.base.placement.map.find("default", name)
    assert queue is not None
    return queue.groups[partition]


def start(coroutine: Any) -> "asyncio.Task[Any]":
    return asyncio.get_running_loop().create_task(coroutine)


async def rounds(count: int = 20) -> None:
    """Runs the event loop for `count` rounds, without waiting."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_any_node_takes_and_gives_items():
    async with staged("a", "b") as stage:
        await stage.produce("b", b"one", b"two")
        assert stage.forwarded == {"Produce": 1}
        reply = await stage.lease("b", wait_ms=LONG_MS)
        assert payloads(*reply.batches) == [b"one", b"two"]
        [outcome] = (await stage.complete("b", *reply.batches)).outcomes
        assert outcome.error is None
        assert (await stage.base.total()).completed == 2


async def test_items_with_lease_timeouts_of_their_own_come_from_another_node():
    async with staged("a", "b") as stage:
        await stage.base.produce(b"x", b"y", b"z", lease_timeouts_ms=[50_000, 0, 50_000])
        batches = (await stage.lease("b", wait_ms=LONG_MS)).batches
        assert payloads(*batches) == [b"x", b"y", b"z"]
        left = [round(batch.remaining_ms, -3) for batch in batches]
        assert left[0] == left[2] == 50_000 != left[1]
        assert batches[0].lease_id == batches[2].lease_id != batches[1].lease_id
        outcomes = (await stage.complete("b", *batches)).outcomes
        assert [outcome.error for outcome in outcomes] == [None] * 3


async def test_what_this_node_leads_does_not_travel():
    async with staged("a", "b", partitions=2) as stage:
        for _ in range(4):
            await stage.produce("a", b"x")
        assert not stage.forwarded
        assert {group for _, group, command in stage.proposed if isinstance(command, Produce)} == {
            group_of(stage, 0)
        }


async def test_one_node_leases_from_all():
    async with staged("a", "b", "c", partitions=6) as stage:
        for number in range(30):
            await stage.produce("abc"[number % 3], b"%d" % number)
        seen: set[bytes] = set()
        while len(seen) < 30:
            reply = await stage.lease("b", 100, wait_ms=LONG_MS)
            seen.update(payloads(*reply.batches))
            await stage.complete("b", *reply.batches)
        assert (await stage.base.total()).completed == 30


@pytest.mark.parametrize("at_once", [1, 3])
async def test_partitions_that_others_lead_are_leased_from_in_turn(at_once: int):
    """No lease takes everything: each partition always has ready items."""
    async with staged("a", "b", partitions=8) as stage:
        for name in "ab":
            for _ in range(100):
                await stage.produce(name, *(b"x" for _ in range(4)))
        got: Counter[int] = Counter()
        for _ in range(40):
            leases = [start(stage.lease("b", 1, wait_ms=LONG_MS)) for _ in range(at_once)]
            for lease in leases:
                got.update(batch.partition for batch in (await lease).batches)
        assert len(got) == 8, got
        assert max(got.values()) <= 3 * min(got.values()), got


async def test_a_waiting_lease_is_woken_by_what_another_node_takes():
    async with staged("a", "b") as stage:
        waiting = start(stage.lease("b", wait_ms=LONG_MS))
        await rounds()
        await stage.produce("a", b"x")
        assert payloads(*(await waiting).batches) == [b"x"]
        assert stage.leases() == 1


async def test_a_lease_that_does_not_wait_finds_what_another_node_has():
    async with staged("a", "b") as stage:
        await stage.produce("a", b"x")
        assert payloads(*(await stage.lease("b")).batches) == [b"x"]
        leases = stage.leases()
        assert (await stage.lease("b")).batches == ()
        assert stage.leases() == leases, "nothing was asked for nothing"


async def test_an_item_that_many_want_costs_one_lease():
    async with staged("a", "b", "c") as stage:
        waiting = [start(stage.lease("abc"[n % 3], 1, wait_ms=LONG_MS)) for n in range(30)]
        await rounds()
        for number in range(30):
            await stage.produce("a", b"%d" % number)
        got = [payload for task in waiting for payload in payloads(*(await task).batches)]
        assert sorted(got) == sorted(b"%d" % number for number in range(30))
        assert stage.leases() <= 45


async def test_nodes_with_more_who_wait_get_more():
    async with staged("a", "b", "c") as stage:
        name_of = {
            start(stage.lease(name, 1, wait_ms=LONG_MS)): name
            for name, count in (("a", 10), ("b", 20), ("c", 30))
            for _ in range(count)
        }
        await rounds()
        waiting = set(name_of)
        got: Counter[str] = Counter()
        while len(waiting) > 30:
            await stage.produce("a", b"x")
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            got.update(name_of[task] for task in done)
        assert all(abs(got[name] - share) <= 2 for name, share in (("a", 5), ("b", 10), ("c", 15)))
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)


async def test_what_one_node_does_not_take_is_offered_to_the_next():
    async with staged("a", "b", "c") as stage:
        first = start(stage.lease("b", 1, wait_ms=LONG_MS))
        await rounds()
        stage.cut("a", "b")
        second = start(stage.lease("c", 1, wait_ms=LONG_MS))
        await rounds()
        await stage.produce("a", b"x")
        assert payloads(*(await second).batches) == [b"x"]
        stage.mend("a", "b")
        await stage.produce("a", b"y")
        assert payloads(*(await first).batches) == [b"y"]


async def test_a_node_that_is_back_is_told_at_once_who_waits():
    async with staged("a", "b") as stage:
        waiting = start(stage.lease("b", 1, wait_ms=LONG_MS))
        await rounds()
        told = stage.demands["b"]
        stage.cut("a", "b")
        stage.mend("a", "b")
        await rounds()
        assert stage.demands["b"] == told + 1
        await stage.produce("a", b"x")
        assert payloads(*(await waiting).batches) == [b"x"]


async def test_who_waits_no_longer_gives_back_what_it_is_offered():
    async with staged("a", "b") as stage:
        waiting = start(stage.lease("b", 1, wait_ms=LONG_MS))
        await rounds()
        waiting.cancel()
        await asyncio.wait([waiting])
        await stage.produce("a", b"x")
        assert payloads(*(await stage.lease("a", wait_ms=LONG_MS)).batches) == [b"x"]
        assert stage.leases() == 1


async def test_who_is_served_here_all_the_time_gets_what_another_node_takes():
    async with staged("a", "b", partitions=2) as stage:
        for number in range(100):
            await stage.produce("b", b"%d" % number)
        subscription = await stage.members["b"].subscribe(
            SubscribeCall("default", "q", "c", 1, 3 * MIB)
        )
        subscription.grant(1, 0)
        await subscription.next()
        await stage.produce("a", b"there")
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
    async with staged("a", "b") as stage:
        there = stage.members["a"].exchange
        assert there is not None
        propose, asked, joined = there.propose, asyncio.Event(), asyncio.Event()

        async def propose_when_both_wait(*call: Any) -> Any:
            asked.set()
            await joined.wait()
            return await propose(*call)

        first = start(stage.lease("b", 1, wait_ms=LONG_MS))
        await rounds()
        monkeypatch.setattr(there, "propose", lambda *call: start(propose_when_both_wait(*call)))
        await stage.produce("a", b"x")
        await asked.wait()
        second = start(stage.lease("b", 1, wait_ms=LONG_MS))
        await rounds()
        joined.set()
        assert payloads(*(await first).batches) == [b"x"]
        await stage.produce("a", b"y")
        assert payloads(*(await second).batches) == [b"y"]


async def test_who_waits_is_told_after_a_second_link_in_the_node_s_name_has_ended():
    async with staged("a", "b") as stage:
        there = stage.members["a"].exchange
        assert there is not None
        told: list[int] = []

        def push(_node: str, _group: GroupId, items: int) -> None:
            told.append(items)

        there.linked("b", push)
        there.unlinked("b", push)
        waiting = start(stage.lease("b", 1, wait_ms=LONG_MS))
        await rounds()
        await stage.produce("a", b"x")
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
    monkeypatch.setattr(node_exchange, "DESKS_S", 0.02)
    async with staged("a", "b", "c", "d", **d) as stage:
        (group,) = stage.leaders
        waiting = start(stage.lease("d", 1, wait_ms=LONG_MS))
        await rounds()
        stage.lead(group, leads)
        await stage.produce(leads, b"x")
        async with asyncio.timeout(10):
            assert payloads(*(await waiting).batches) == [b"x"]


@pytest.mark.parametrize(
    "d", [{"bare": "d"}, {"stopped": "d"}], ids=["without replicas", "whose replicas are stopped"]
)
@pytest.mark.parametrize("leads", ["b", "c"])
async def test_a_lease_that_does_not_wait_finds_who_leads_now(leads: str, d: dict[str, Any]):
    async with staged("a", "b", "c", "d", **d) as stage:
        (group,) = stage.leaders
        await stage.produce("d", b"x")
        stage.lead(group, leads)
        assert payloads(*(await stage.lease("d")).batches) == [b"x"]


@pytest.mark.parametrize(
    "d", [{"bare": "d"}, {"stopped": "d"}], ids=["without replicas", "whose replicas are stopped"]
)
@pytest.mark.parametrize("leads", ["b", "c"])
async def test_a_node_without_replicas_finds_who_leads_after_the_leader_has_died(
    leads: str, d: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(node_exchange, "DESKS_S", 0.02)
    async with staged("a", "b", "c", "d", **d) as stage, asyncio.timeout(20):
        (group,) = stage.leaders
        waiting = start(stage.lease("d", 1, wait_ms=LONG_MS))
        await rounds()
        for name in "bcd":
            stage.cut("a", name)
        stage.unreached.add("a")
        stage.lead(group, leads)
        await stage.produce(leads, b"x")
        assert payloads(*(await waiting).batches) == [b"x"]
        await stage.produce("d", b"y")
        assert payloads(*(await stage.lease("d")).batches) == [b"y"]


async def test_a_node_that_does_not_answer_is_not_taken_for_the_leader_for_ever(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(node_exchange, "DESKS_S", 0.02)
    monkeypatch.setattr(node_exchange, "LOOK_AROUND_S", 0.1)
    async with staged("a", "b", "d", bare="d") as stage, asyncio.timeout(20):
        (group,) = stage.leaders
        query = stage.forwarders["d"].query

        def unanswered(node: str, asked: Query) -> "asyncio.Future[Any]":
            return asyncio.get_running_loop().create_future() if node == "a" else query(node, asked)

        monkeypatch.setattr(stage.forwarders["d"], "query", unanswered)
        waiting = start(stage.lease("d", 1, wait_ms=LONG_MS))
        await rounds()
        stage.lead(group, "b")
        await stage.produce("b", b"x")
        assert payloads(*(await waiting).batches) == [b"x"]


async def test_a_call_follows_the_leader():
    async with staged("a", "b", "c") as stage:
        group = group_of(stage)
        stage.leaders[group] = "c"
        stage.members["a"].events.on_leadership(group, False)
        stage.members["c"].events.on_leadership(group, True)
        # b still takes a for the leader, and a knows that c leads.
        await stage.produce("b", b"x")
        assert [name for name, _, command in stage.proposed if isinstance(command, Produce)] == [
            "a",
            "c",
        ]


async def test_calls_wait_while_nobody_leads_and_keep_their_order():
    async with staged("a", "b") as stage:
        group = group_of(stage)
        stage.lead(group, None)
        tasks = [start(stage.produce("b", b"%d" % number)) for number in range(50)]
        await rounds()
        assert not any(task.done() for task in tasks)
        stage.lead(group, "a")
        late = start(stage.produce("b", b"50"))
        await asyncio.wait([*tasks, late])
        reply = await stage.lease("a")
        assert payloads(*reply.batches) == [b"%d" % number for number in range(51)]


async def test_a_deadline_without_a_leader_says_which_partition():
    async with staged("a", "b", partitions=2) as stage:
        stage.lead(group_of(stage, 0), None)
        stage.lead(group_of(stage, 1), None)
        error = await refusal(stage.produce("b", b"x", timeout_ms=10))
        assert error.code is ErrorCode.DEADLINE_EXCEEDED
        assert "of queue q has no leader" in error.message


async def test_a_lost_quorum_is_reported_as_that():
    async with staged("a", "b", "c") as stage:
        stage.lead(group_of(stage), None)
        stage.unreached |= {"a", "c"}
        error = await refusal(stage.produce("b", b"x", timeout_ms=10))
        assert error.code is ErrorCode.DEADLINE_EXCEEDED
        assert "partition 0 of queue q has no leader: of its 3 replicas it needs 2" in error.message
        assert "those on a, c are out of reach" in error.message


async def test_a_node_that_is_cut_off_sends_callers_away(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(router, "CUT_OFF_S", 0.05)
    monkeypatch.setattr(node_exchange, "DESKS_S", 0.05)
    async with staged("a", "b", "c") as stage:
        subscription = await stage.members["b"].subscribe(
            SubscribeCall("default", "q", "c", 100, 3 * MIB)
        )
        subscription.grant(10, 0)
        delivery = start(subscription.next())
        leasing = start(stage.lease("b", wait_ms=LONG_MS))
        stage.lead(group_of(stage), None)
        stage.unreached |= {"a", "c"}
        for task in (start(stage.produce("b", b"x", timeout_ms=LONG_MS)), leasing, delivery):
            error = await refusal(task)
            assert error.code is ErrorCode.UNAVAILABLE
            assert "those on a, c are out of reach; not executed" in error.message
        await subscription.close(polite=False)


async def test_a_node_that_hangs_sends_callers_away_until_it_goes_on(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(node_exchange, "DESKS_S", 0.05)
    async with staged("a", "b") as stage:
        stage.lead(group_of(stage), "b")
        leasing = start(stage.lease("b", wait_ms=LONG_MS))
        await rounds()
        stage.hanging.add("b")
        stage.members["b"].events.on_hang(True)
        for task in (start(stage.produce("b", b"x", timeout_ms=LONG_MS)), leasing):
            error = await refusal(task)
            assert error.code is ErrorCode.UNAVAILABLE
            assert "the node that led partition 0 of queue q hangs" in error.message
        stage.hanging.clear()
        stage.members["b"].events.on_hang(False)
        await stage.produce("b", b"x", timeout_ms=LONG_MS)


async def test_one_node_out_of_reach_cuts_nobody_off(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(router, "CUT_OFF_S", 0.01)
    async with staged("a", "b", "c") as stage:
        stage.lead(group_of(stage), None)
        stage.unreached.add("a")
        task = start(stage.produce("b", b"x", timeout_ms=LONG_MS))
        await asyncio.wait([task], timeout=0.1)
        assert not task.done()
        stage.lead(group_of(stage), "c")
        await task


async def test_what_came_after_an_unknown_outcome_is_said():
    async with staged("a", "b", "c") as stage:
        stage.loses_answers = 1
        task = start(
            stage.produce("b", b"x", producer_id=producer_id(), sequence=1, timeout_ms=200)
        )
        await stage.base.until(lambda: stage.base.counts().produced == 1)
        stage.lead(group_of(stage), None)
        error = await refusal(task)
        assert error.code is ErrorCode.OUTCOME_UNKNOWN
        assert error.field == "partition"
        assert "after that partition 0 of queue q has no leader" in error.message


async def test_a_leader_out_of_reach_is_named():
    async with staged("a", "b") as stage:
        stage.cut("a", "b")
        error = await refusal(stage.produce("b", b"x", timeout_ms=10))
        assert error.code is ErrorCode.DEADLINE_EXCEEDED
        assert "led by a, which cannot be reached" in error.message


async def test_a_call_goes_on_when_its_leader_can_be_reached_again():
    async with staged("a", "b") as stage:
        stage.cut("a", "b")
        task = start(stage.produce("b", b"x", timeout_ms=LONG_MS))
        await rounds()
        stage.mend("a", "b")
        await task


async def test_an_identified_produce_is_repeated_for_its_caller():
    async with staged("a", "b") as stage:
        for node in ("a", "b"):
            stage.loses_answers = 1
            producer = producer_id()
            reply = await stage.produce(node, b"x", producer_id=producer, sequence=1)
            assert reply.batches[0].repeated
        assert (await stage.base.total()).produced == 2


async def test_a_produce_without_identity_is_not_repeated():
    async with staged("a", "b") as stage:
        stage.loses_answers = 1
        assert await code(stage.produce("b", b"x")) is ErrorCode.OUTCOME_UNKNOWN
        assert (await stage.base.total()).produced == 1


async def test_a_lease_whose_answer_is_lost_is_repeated():
    async with staged("a", "b") as stage:
        await stage.produce("a", b"x")
        for node in ("b", "a"):
            stage.loses_answers = 1
            [batch] = (await stage.lease(node, wait_ms=LONG_MS)).batches
            assert (payloads(batch), batch.repeated, batch.attempt) == ([b"x"], False, 1)
            await stage.retry(node, batch, count_attempt=False)
        assert (await stage.base.total()).delivered == 2


async def test_a_settle_whose_answer_is_lost_is_repeated():
    async with staged("a", "b") as stage:
        await stage.produce("a", b"x")
        [batch] = (await stage.lease("b", wait_ms=LONG_MS)).batches
        stage.loses_answers = 1
        [outcome] = (await stage.complete("b", batch)).outcomes
        assert outcome.error is None
        assert outcome.repeated
        assert (await stage.base.total()).completed == 1


async def test_a_leader_that_vanishes_with_a_command_does_not_hold_its_caller():
    async with staged("a", "b", "c") as stage:
        held: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        host = stage.members["a"].exchange
        assert host is not None
        stage.members["a"].exchange.propose = lambda *_: held  # type: ignore[union-attr,method-assign]
        task = start(stage.produce("b", b"x", producer_id=producer_id(), sequence=1))
        await rounds()
        stage.lead(group_of(stage), "c")
        await task
        held.cancel()


async def test_a_node_that_has_failed_is_not_the_end():
    async with staged("a", "b", "c") as stage:
        group = group_of(stage)
        stage.failed.add("a")
        # A client that calls the failed node itself has to try another one.
        assert await code(stage.produce("a", b"x")) is ErrorCode.UNAVAILABLE
        waiting = start(stage.lease("c", wait_ms=LONG_MS))
        produced = start(stage.produce("b", b"x"))
        await rounds()
        assert not produced.done()
        stage.lead(group, "b")
        await produced
        assert payloads(*(await waiting).batches) == [b"x"]


async def test_dead_letters_move_between_nodes():
    async with staged("a", "b") as stage:
        dead = await stage.base.create("dead", partitions=2)
        await stage.base.admin.update_queue(
            "default", "q", QueueSettings(dead_queue="dead"), ("dead_queue",), 0
        )
        for group in dead.groups:
            stage.lead(group, "b")
        await stage.produce("a", *[b"x"] * 10)
        reply = await stage.lease("b", wait_ms=LONG_MS)
        await stage.retry("b", *reply.batches, dead=True)

        def arrived() -> bool:
            return stage.base.counts("dead").ready == 10 and stage.base.counts("q").moving == 0

        await stage.base.until(arrived)
        assert stage.forwarded["Move"]


async def test_dead_letters_follow_when_a_full_queue_of_another_node_has_room():
    async with staged("a", "b") as stage:
        dead = await stage.base.create("dead", partition_items_max=4)
        await stage.base.admin.update_queue(
            "default", "q", QueueSettings(dead_queue="dead"), ("dead_queue",), 0
        )
        stage.lead(dead.groups[0], "b")
        await stage.produce("a", *[b"x"] * 10)
        reply = await stage.lease("a", wait_ms=LONG_MS)
        await stage.retry("a", *reply.batches, dead=True)
        drained = 0
        while drained < 10:
            reply = await stage.lease("b", 3, queue="dead", wait_ms=LONG_MS)
            drained += sum(batch.loaded.count for batch in reply.batches)
            refs = tuple(whole(batch) for batch in reply.batches)
            await stage.members["b"].complete(CompleteCall("default", "dead", refs))
        await stage.base.until(lambda: stage.base.counts("q").moving == 0)
        assert stage.base.counts("dead").moved_in == 10


async def test_streams_deliver_and_extend_over_nodes():
    async with staged("a", "b") as stage:
        subscription = await stage.members["b"].subscribe(
            SubscribeCall("default", "q", "c", 100, 3 * MIB)
        )
        subscription.grant(10, 0)
        delivery = start(subscription.next())
        await rounds()
        await stage.produce("a", b"x")
        [batch] = (await delivery).batches
        assert payloads(batch) == [b"x"]
        await subscription.close(polite=True)
        await stage.base.until(lambda: stage.base.counts().released == 1)


async def test_a_lease_is_extended_once_at_a_time_while_nobody_leads():
    clock = SimulatedClock()
    async with staged("a", "b", clock=clock, lease_timeout_ms=1_000) as stage:
        subscription = await stage.members["b"].subscribe(
            SubscribeCall("default", "q", "c", 100, 3 * MIB, auto_extend=True)
        )
        subscription.grant(10, 0)
        await stage.produce("a", b"x")
        await subscription.next()
        stage.lead(group_of(stage), None)
        clock.advance(5_000)
        waiting = start(stage.lease("b", wait_ms=LONG_MS))
        await asyncio.wait([waiting], timeout=0.5)
        stage.lead(group_of(stage), "a")
        await stage.base.until(lambda: stage.forwarded["Extend"] > 0)
        await rounds()
        assert stage.forwarded["Extend"] == 1
        waiting.cancel()
        await subscription.close(polite=False)


async def test_what_a_stream_held_is_released_when_there_is_a_leader_again():
    async with staged("a", "b") as stage:
        subscription = await stage.members["b"].subscribe(
            SubscribeCall("default", "q", "c", 100, 3 * MIB)
        )
        subscription.grant(10, 0)
        await stage.produce("a", b"x")
        await subscription.next()
        stage.lead(group_of(stage), None)
        await subscription.close(polite=True)
        await rounds()
        assert stage.base.counts().released == 0
        stage.lead(group_of(stage), "b")
        await stage.base.until(lambda: stage.base.counts().released == 1)


async def test_leases_name_themselves_only_among_nodes():
    async with staged("a", "b") as stage:
        await stage.produce("a", b"x")
        await stage.lease("b", wait_ms=LONG_MS)
        [lease] = [command for _, _, command in stage.proposed if isinstance(command, Lease)]
        assert all(caller.request_id for caller in lease.callers)
        assert stage.base.queues.router.lease_name() == ""


async def test_nodes_share_though_leases_take_more_than_was_offered():
    async with staged("a", "b", "c") as stage:
        got: Counter[str] = Counter()

        async def consume(name: str) -> None:
            while True:
                # The leases of the other nodes are offered one item at a time, and take all ready
                # items.
                reply = await stage.lease(name, 4, wait_ms=LONG_MS)
                got[name] += len(payloads(*reply.batches))

        consuming = [start(consume(name)) for name in "abc" for _ in range(10)]
        await rounds()
        producing = []
        for _ in range(600):
            producing.append(start(stage.produce("a", b"x")))
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
    async with staged("a", "b") as stage:
        start(stage.lease("b", 1, wait_ms=LONG_MS))
        await rounds()
        waiting = start(stage.lease("a", 1, wait_ms=LONG_MS))
        await rounds()
        await stage.produce("a", b"x")
        assert payloads(*(await waiting).batches) == [b"x"]


async def test_a_wait_without_any_leader_does_not_end_as_if_nothing_was_ready():
    async with staged("a", "b", partitions=2) as stage:
        first, second = stage.leaders
        for group in (first, second):
            stage.lead(group, None)
        error = await refusal(stage.lease("a", wait_ms=20))
        assert error.code is ErrorCode.NOT_LEADER
        stage.lead(first, "b")
        assert (await stage.lease("a", wait_ms=20)).batches == ()
        assert await code(stage.lease("a", wait_ms=20, partition=1)) is ErrorCode.NOT_LEADER


async def test_who_waits_on_a_node_whose_replica_has_stopped_finds_who_leads(
    monkeypatch: pytest.MonkeyPatch,
):
    """The node loses its leader before it knows that its replica does not run."""
    monkeypatch.setattr(node_exchange, "DESKS_S", 0.02)
    async with staged("a", "b", "d") as stage, asyncio.timeout(20):
        (group,) = stage.leaders
        waiting = start(stage.lease("d", 1, wait_ms=LONG_MS))
        await rounds()
        stage.members["d"].events.on_leader(group, None)
        stage.stopped = frozenset("d")
        stage.lead(group, "b")
        await stage.produce("b", b"x")
        assert payloads(*(await waiting).batches) == [b"x"]


async def test_a_node_from_which_a_replica_moves_away_does_not_guess_who_leads():
    """Its replica learns of the next leader, so it must not ask one node after another."""
    async with staged("a", "b", "c", leaving="b") as stage:
        group = group_of(stage)
        route = stage.members["b"].router.route(group)
        assert route.leader == "a"
        stage.lead(group, None)
        assert (route.leader, route.is_reachable) == ("", False)


@pytest.mark.parametrize(
    "d", [{"bare": "d"}, {"stopped": "d"}], ids=["without replicas", "whose replicas are stopped"]
)
async def test_payloads_do_not_travel_to_a_node_that_may_lead(d: dict[str, Any]):
    """Seed 121414 of whole nodes: each waiting produce sent its megabyte to one guessed leader
    after another, and nothing else passed the links.
    """
    async with staged("a", "b", "c", "d", **d) as stage, asyncio.timeout(20):
        (group,) = stage.leaders
        stage.lead(group, None)
        produced = [start(stage.produce("d", b"%d" % number)) for number in range(20)]
        await asyncio.sleep(0.3)
        assert stage.forwarded["Produce"] == 0
        stage.lead(group, "c")
        await asyncio.gather(*produced)
        assert stage.forwarded["Produce"] == 20
        await stage.produce("d", b"one more")
        assert stage.forwarded["Produce"] == 21


async def test_a_deadline_before_a_node_says_whether_it_leads_is_certainly_not_executed(
    monkeypatch: pytest.MonkeyPatch,
):
    async with staged("a", "b", "d", bare="d") as stage, asyncio.timeout(20):
        (group,) = stage.leaders
        stage.lead(group, None)
        query = stage.forwarders["d"].query
        asked = asyncio.Event()

        def unanswered(node: str, question: Query) -> "asyncio.Future[Any]":
            if not isinstance(question, ClosureQuery):
                return query(node, question)
            asked.set()
            return asyncio.get_running_loop().create_future()

        monkeypatch.setattr(stage.forwarders["d"], "query", unanswered)
        produced = start(stage.produce("d", b"x", timeout_ms=100))
        await asked.wait()
        error = await refusal(produced)
        assert error.code is ErrorCode.DEADLINE_EXCEEDED
        assert "did not say before the deadline whether it leads partition 0" in error.message
        assert stage.forwarded["Produce"] == 0


async def test_a_question_to_a_node_that_vanishes_is_no_outcome(monkeypatch: pytest.MonkeyPatch):
    async with staged("a", "b", "d", bare="d") as stage, asyncio.timeout(20):
        (group,) = stage.leaders
        question = asyncio.get_running_loop().create_future()
        query = stage.forwarders["d"].query
        vanished: list[Query] = []

        def once(node: str, asked: Query) -> "asyncio.Future[Any]":
            if vanished or not isinstance(asked, ClosureQuery):
                return query(node, asked)
            vanished.append(asked)
            return question

        monkeypatch.setattr(stage.forwarders["d"], "query", once)
        produced = start(stage.produce("d", b"x"))
        await rounds()
        question.set_exception(QueratorError(ErrorCode.OUTCOME_UNKNOWN, "the link broke"))
        await produced
        assert vanished == [ClosureQuery(group)]
