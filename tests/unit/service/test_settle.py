"""Complete, retry and extend across partitions."""

import asyncio
from typing import Any

import pytest

from querator.model.calls import CompleteCall, ExtendCall, LeasedRanges
from querator.model.errors import ErrorCode
from querator.model.ids import PLACEMENT_GROUP
from querator.raft.clock import SimulatedClock
from querator.service.routing import directory
from querator.storage.memory_environment import MemoryEnvironment
from tests.unit.raft.running_host import CommitGate
from tests.unit.service.service_cluster import service_cluster
from tests.unit.service.service_node import (
    LONG_MS,
    code,
    payloads,
    refusal,
    seqs,
    service_node,
    whole,
)


async def test_leases_of_all_partitions_are_completed_in_one_call_and_order():
    async with service_node() as node:
        await node.create(partitions=4)
        for _ in range(4):
            await node.produce(*[b"x"] * 5)
        batches = (await node.lease(20)).batches
        refs = [whole(batch) for batch in reversed(batches)]
        reply = await node.complete(*refs)
        assert [outcome.lease_id for outcome in reply.outcomes] == [r.lease_id for r in refs]
        for outcome, batch in zip(reply.outcomes, reversed(batches), strict=True):
            assert outcome.done == ((batch.loaded.first_seq, 5),)
            assert outcome.error is None
        assert (await node.total()).completed == 20


async def test_completing_twice_gives_the_same_answer():
    async with service_node() as node:
        await node.create()
        await node.produce(b"a", b"b")
        [batch] = (await node.lease()).batches
        [first] = (await node.complete(batch)).outcomes
        [second] = (await node.complete(batch)).outcomes
        assert first.done == second.repeated
        assert second.error is None


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("verb", ["reject", "later", "now", "complete"])
async def test_what_follows_a_release_is_lost(named, verb):
    clock = SimulatedClock()
    async with service_node(clock=clock) as node:
        await node.create()
        await node.produce(b"a", b"b")
        [batch] = (await node.lease()).batches
        ref = whole(batch) if named else LeasedRanges(batch.lease_id)
        assert (await node.retry(ref, count_attempt=False)).outcomes[0].error is None
        if verb == "complete":
            [outcome] = (await node.complete(ref)).outcomes
        elif verb == "later":
            [outcome] = (await node.retry(ref, retry_at_ms=clock.wall_ms() + 60_000)).outcomes
        else:
            [outcome] = (await node.retry(ref, dead=verb == "reject")).outcomes
        assert (outcome.error, outcome.repeated) == (ErrorCode.LEASE_LOST, ())
        assert outcome.lost == ((batch.loaded.first_seq, 2),)
        assert (await node.total()).ready == 2
        [outcome] = (await node.retry(ref, count_attempt=False)).outcomes
        assert (outcome.error, outcome.repeated) == (None, ((batch.loaded.first_seq, 2),))
        assert (await node.extend(batch.lease_id)).outcomes[0].deadline_ms == 0


@pytest.mark.parametrize("kind", ["release", "retry", "later", "later release", "reject"])
async def test_a_retry_with_a_priority_is_no_repeat_of_one_without(kind: str):
    """A node that gives a lease back has no priority for its items."""
    clock = SimulatedClock()
    more: dict[str, Any] = {
        "retry_at_ms": clock.wall_ms() + 60_000 if "later" in kind else 0,
        "count_attempt": "release" not in kind,
        "dead": kind == "reject",
    }
    async with service_node(clock=clock) as node:
        await node.create()
        await node.produce(b"a", b"b")
        [first] = (await node.lease(max_items=1)).batches
        [second] = (await node.lease(max_items=1)).batches
        await node.retry(first, **more)
        await node.retry(second, **more, priority=-5)
        for lease, other in ((first, -5), (second, None)):
            [outcome] = (await node.retry(lease, **more, priority=other)).outcomes
            assert (outcome.error, outcome.repeated) == (ErrorCode.LEASE_LOST, ())
        for lease, same in ((first, None), (second, -5)):
            [outcome] = (await node.retry(lease, **more, priority=same)).outcomes
            assert (outcome.error, len(outcome.repeated)) == (None, 1)


async def test_a_precise_answer_for_each_item():
    async with service_node() as node:
        await node.create()
        await node.produce(b"a", b"b", b"c")
        [batch] = (await node.lease()).batches
        one, two, three = seqs(batch)
        await node.retry(LeasedRanges(batch.lease_id, ((two, 1),)))
        [outcome] = (await node.complete(LeasedRanges(batch.lease_id, ((one, 3),)))).outcomes
        assert outcome.done == ((one, 1), (three, 1))
        assert outcome.lost == ((two, 1),)
        assert outcome.error is ErrorCode.LEASE_LOST


async def test_all_or_nothing():
    async with service_node() as node:
        await node.create()
        await node.produce(b"a", b"b")
        [batch] = (await node.lease()).batches
        one, two = seqs(batch)
        await node.retry(LeasedRanges(batch.lease_id, ((two, 1),)))
        [outcome] = (
            await node.complete(LeasedRanges(batch.lease_id, ((one, 2),)), all_or_nothing=True)
        ).outcomes
        assert (outcome.done, outcome.lost) == ((), ((two, 1),))
        assert (await node.total()).completed == 0


async def test_items_of_one_lease_may_be_named_one_by_one():
    async with service_node() as node:
        await node.create()
        await node.produce(b"a", b"b", b"c")
        [batch] = (await node.lease()).batches
        refs = [LeasedRanges(batch.lease_id, ((seq, 1),)) for seq in seqs(batch)]
        reply = await node.complete(*refs)
        assert [outcome.done for outcome in reply.outcomes] == [r.ranges for r in refs]


async def test_leases_of_other_queues_are_lost():
    async with service_node() as node:
        await node.create("q")
        await node.create("other")
        await node.produce(b"x", queue="other")
        [batch] = (await node.lease(queue="other")).batches
        foreign = [batch.lease_id, "ffff.0.1", f"{batch.lease_id.split('.')[0]}.3ff.1"]
        reply = await node.complete(*map(LeasedRanges, foreign))
        assert [outcome.error for outcome in reply.outcomes] == [ErrorCode.LEASE_LOST] * 3
        reply = await node.extend(*foreign)
        assert [outcome.deadline_ms for outcome in reply.outcomes] == [0] * 3
        assert (await node.total("other")).leased == 1


@pytest.mark.parametrize("lease_id", ["", "x", "1.0", "1.0.g", "1.0.1 ", "1." + "0" * 5 + ".1"])
async def test_malformed_lease_ids_are_refused_by_name(lease_id):
    async with service_node() as node:
        await node.create()
        error = await refusal(node.complete(LeasedRanges("1.0.1"), LeasedRanges(lease_id)))
        assert (error.code, error.field) == (ErrorCode.INVALID_ARGUMENT, "leases[1].lease_id")
        error = await refusal(node.extend("1.0.1", lease_id))
        assert (error.code, error.field) == (ErrorCode.INVALID_ARGUMENT, "lease_ids[1]")


@pytest.mark.parametrize(
    ("ranges", "field"),
    [
        (((0, 1),), "leases[0].ranges[0].first_seq"),
        (((1, 0),), "leases[0].ranges[0].count"),
        (((1, 5), (3, 1)), "leases[0].ranges[1].first_seq"),
        (((5, 1), (1, 1)), "leases[0].ranges[1].first_seq"),
        (((1, 2**64),), "leases[0].ranges[0]"),
    ],
)
async def test_impossible_ranges_are_refused_by_name(ranges, field):
    async with service_node() as node:
        await node.create()
        error = await refusal(node.complete(LeasedRanges("1.0.1", ranges)))
        assert (error.code, error.field) == (ErrorCode.INVALID_ARGUMENT, field)


async def test_empty_and_huge_calls():
    async with service_node() as node:
        await node.create()
        assert await code(node.complete()) is ErrorCode.INVALID_ARGUMENT
        many = [LeasedRanges("1.0.1")] * 1_001
        assert await code(node.complete(*many)) is ErrorCode.LIMIT_EXCEEDED
        assert (await refusal(node.extend())).field == "client_id"


async def test_retry_later_and_redelivery_order():
    clock = SimulatedClock()
    async with service_node(clock=clock) as node:
        await node.create()
        await node.produce(b"A", b"B", b"C")
        [batch] = (await node.lease(1)).batches
        await node.retry(batch)
        reply = await node.lease(3)
        assert payloads(*reply.batches) == [b"B", b"C", b"A"]
        await node.retry(reply.batches[-1], retry_at_ms=clock.wall_ms() + 10_000)
        assert (await node.total()).scheduled == 1


async def test_extend_by_lease_and_by_client():
    clock = SimulatedClock()
    async with service_node(clock=clock) as node:
        await node.create(partitions=2, lease_timeout_ms=10_000)
        for _ in range(2):
            await node.produce(b"x")
        batches = (await node.lease(2, client_id="me")).batches
        clock.advance(4_000)
        reply = await node.extend(*(batch.lease_id for batch in reversed(batches)))
        assert [o.lease_id for o in reply.outcomes] == [b.lease_id for b in reversed(batches)]
        for outcome, batch in zip(reply.outcomes, reversed(batches), strict=True):
            assert outcome.deadline_ms >= batch.deadline_ms + 4_000
            assert 9_000 < outcome.remaining_ms <= 10_000
        reply = await node.extend(client_id="me", lease_timeout_ms=60_000)
        assert {outcome.lease_id for outcome in reply.outcomes} == {b.lease_id for b in batches}
        assert all(outcome.remaining_ms > 50_000 for outcome in reply.outcomes)
        assert (await node.extend(client_id="nobody")).outcomes == ()


async def test_a_deadline_leaves_the_outcome_unknown():
    environment = MemoryEnvironment()
    async with service_node(environment) as node:
        await node.create()
        await node.produce(b"x")
        [batch] = (await node.lease()).batches
        gate = CommitGate(environment)
        gate.close()
        error = await refusal(node.complete(batch, timeout_ms=20))
        gate.open()
        assert error.code is ErrorCode.OUTCOME_UNKNOWN
        assert "partition 0 of queue q" in error.message
        [outcome] = (await node.complete(batch)).outcomes
        assert outcome.repeated


async def test_a_settled_lease_does_not_wake_others_for_nothing():
    async with service_node() as node:
        await node.create()
        await node.produce(b"x")
        [batch] = (await node.lease()).batches
        waiting = asyncio.get_running_loop().create_task(node.lease(wait_ms=LONG_MS))
        await asyncio.sleep(0)
        await node.complete(batch)
        index = node.index()
        await node.produce(b"y")
        assert payloads(*(await waiting).batches) == [b"y"]
        assert node.index() == index + 2, "a produce and a lease"


@pytest.mark.parametrize("extends", [True, False])
async def test_leases_of_a_partition_that_a_node_has_not_heard_of_are_not_lost(extends):
    async with service_cluster("a", "b") as cluster:
        await cluster.grow(2, behind="a", leader="b")
        for number in range(2):
            await cluster.base.produce(b"%d" % number)
        first, second = [
            batch for _ in range(2) for batch in (await cluster.lease("b", wait_ms=LONG_MS)).batches
        ]
        assert {first.partition, second.partition} == {0, 1}
        if extends:
            call = ExtendCall("default", "q", (first.lease_id, second.lease_id))
            outcomes = (await cluster.members["a"].extend(call)).outcomes
            assert all(outcome.deadline_ms for outcome in outcomes)
        reply = await cluster.complete("a", first, second)
        assert [outcome.error for outcome in reply.outcomes] == [None, None]


async def test_leases_that_a_node_cannot_have_heard_of_are_not_said_to_be_lost(
    monkeypatch: pytest.MonkeyPatch,
):
    """The queue has a second partition, and the node does not receive the current map."""
    monkeypatch.setattr(directory, "CATCH_UP_S", 0.1)
    async with service_cluster("a", "b") as cluster:
        await cluster.grow(2, behind="a", leader="b")
        for number in range(2):
            await cluster.base.produce(b"%d" % number)
        leased = [
            batch for _ in range(2) for batch in (await cluster.lease("b", wait_ms=LONG_MS)).batches
        ]
        first, second = sorted(leased, key=lambda batch: batch.partition)
        cluster.lead(PLACEMENT_GROUP, None)
        extending = cluster.members["a"].extend(ExtendCall("default", "q", (second.lease_id,)))
        assert (await refusal(extending)).code is ErrorCode.UNAVAILABLE
        reply = await cluster.complete("a", first, second)
        assert [outcome.error for outcome in reply.outcomes] == [None, ErrorCode.UNAVAILABLE]
        assert not reply.outcomes[1].lost
        assert (await refusal(cluster.complete("a", second))).code is ErrorCode.UNAVAILABLE
        cluster.lead(PLACEMENT_GROUP, "b")
        cluster.hear("a")
        [outcome] = (await cluster.complete("a", second)).outcomes
        assert outcome.error is None


async def test_all_leases_of_a_client_are_extended_through_an_old_map():
    async with service_cluster("a", "b") as cluster:
        await cluster.grow(2, behind="a", leader="b")
        for number in range(2):
            await cluster.base.produce(b"%d" % number)
        leased = [
            batch
            for _ in range(2)
            for batch in (await cluster.lease("b", wait_ms=LONG_MS, client_id="me")).batches
        ]
        reply = await cluster.members["a"].extend(ExtendCall("default", "q", (), client_id="me"))
        assert {outcome.lease_id for outcome in reply.outcomes} == {
            batch.lease_id for batch in leased
        }


async def test_leases_of_a_client_are_extended_while_the_map_cannot_catch_up(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(directory, "CATCH_UP_S", 0.1)
    async with service_cluster("a", "b") as cluster:
        await cluster.produce("a", b"x")
        [batch] = (await cluster.lease("a", client_id="me")).batches
        cluster.lead(PLACEMENT_GROUP, None)
        reply = await cluster.members["a"].extend(ExtendCall("default", "q", (), client_id="me"))
        assert [outcome.lease_id for outcome in reply.outcomes] == [batch.lease_id]


async def test_what_may_have_been_executed_in_one_partition_is_not_said_to_be_refused():
    """Partition 0 has no leader, and partition 1 executes without an answer."""
    async with service_cluster("a", "b", partitions=2) as cluster:
        for number in range(2):
            await cluster.base.produce(b"%d" % number)
        leased = [
            batch for _ in range(2) for batch in (await cluster.lease("a", wait_ms=LONG_MS)).batches
        ]
        assert sorted(batch.partition for batch in leased) == [0, 1]
        queue = cluster.base.placement.map.find("default", "q")
        assert queue is not None
        cluster.lead(queue.groups[0], None)
        cluster.lead(queue.groups[1], "b")
        cluster.loses_answers = 100
        refs = tuple(LeasedRanges(batch.lease_id) for batch in leased)
        completing = cluster.members["a"].complete(
            CompleteCall("default", "q", refs, timeout_ms=300)
        )
        assert (await refusal(completing)).code is ErrorCode.OUTCOME_UNKNOWN
