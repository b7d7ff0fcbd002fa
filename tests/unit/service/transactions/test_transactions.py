"""Transactional produce over several nodes: any caller, any leader, missing participants."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from zlib import crc32

import pytest

from querator.model.commands import Refusal
from querator.model.errors import ErrorCode
from querator.model.ids import PLACEMENT_GROUP, GroupId
from querator.model.limits import TXN_CLAIMS_MAX
from querator.model.queues import QueueSettings
from querator.model.transactions import (
    Begin,
    Decide,
    Discard,
    Finish,
    Participant,
    Prepare,
    Publish,
    StageClaim,
    TransactionState,
)
from querator.model.txn_calls import (
    AbortCall,
    AbortReply,
    CommitCall,
    CommitReply,
    CommittedAttempt,
    StageCall,
    StagedPart,
    StageReply,
)
from querator.service.queue_service import QueueService
from querator.service.transactions.calls import participants
from tests.unit.service.routing.test_router import group_of
from tests.unit.service.service_cluster import ServiceCluster, service_cluster
from tests.unit.service.service_node import (
    LONG_MS,
    ServiceNode,
    code,
    payloads,
    produce_call,
    refusal,
    service_node,
)

SPARK = "query-1"


def attempt(number: int = 1) -> bytes:
    return number.to_bytes(16, "big")


def stage_call(*payloads: bytes, task: int = 0, number: int = 1, **more: Any) -> StageCall:
    """`number` identifies the attempt."""
    keyed = {name: more.pop(name) for name in ("keys", "keyed") if name in more}
    produced = produce_call(*payloads, **keyed)
    fields = {"producer": SPARK, "batch": 0, "sequence": 1, "timeout_ms": LONG_MS, **more}
    return StageCall(
        namespace="default",
        queue="q",
        task=task,
        attempt=attempt(number),
        items=produced.items,
        lengths=produced.lengths,
        specials=produced.specials,
        slots=produced.slots,
        **fields,
    )


def commit_call(*attempts: CommittedAttempt, **more: Any) -> CommitCall:
    fields = {"producer": SPARK, "batch": 0, "timeout_ms": LONG_MS, **more}
    return CommitCall("default", "q", attempts=attempts, **fields)


def abort_call(batch: int = 0) -> AbortCall:
    return AbortCall("default", "q", SPARK, batch, LONG_MS)


async def fill(
    service: QueueService, *requests: tuple[bytes, ...], task: int = 0, number: int = 1, **more: Any
) -> CommittedAttempt:
    """Stages requests of one attempt. Returns what a commit names of the attempt."""
    parts: dict[int, StagedPart] = {}
    for sequence, items in enumerate(requests, start=1):
        call = stage_call(*items, task=task, number=number, sequence=sequence, **more)
        reply = await service.stage(call)
        assert not reply.committed
        for part in reply.parts:
            before = parts.get(part.partition, StagedPart(part.partition, 0, 0))
            parts[part.partition] = StagedPart(
                part.partition,
                before.count + part.count,
                (before.checksum + part.checksum) % 2**32,
            )
    return CommittedAttempt(task, attempt(number), tuple(parts.values()))


@asynccontextmanager
async def nodes(*names: str, **settings: Any) -> AsyncIterator[ServiceCluster]:
    """Like `service_cluster`, but the service that created the queue is stopped."""
    async with service_cluster(*names, **settings) as cluster:
        await cluster.base.queues.stop()
        cluster.lead(PLACEMENT_GROUP, names[0])
        yield cluster


async def everything(cluster: ServiceCluster, count: int, name: str = "a") -> list[bytes]:
    """Leases `count` items, and checks that there are no more. Returns their payloads, sorted."""
    found: list[bytes] = []
    while len(found) < count:
        reply = await cluster.lease(name, wait_ms=LONG_MS)
        found += payloads(*reply.batches)
    assert not (await cluster.lease(name)).batches
    return sorted(found)


ITEMS = [b"%d.%d" % (task, number) for task in range(3) for number in range(4)]


async def three_tasks(service: QueueService, **more: Any) -> list[CommittedAttempt]:
    return [
        await fill(
            service, *[(b"%d.%d" % (task, number),) for number in range(4)], task=task, **more
        )
        for task in range(3)
    ]


async def test_a_batch_of_several_tasks_on_several_nodes():
    async with nodes("a", "b", "c", partitions=3) as cluster:
        attempts = await three_tasks(cluster.members["a"])
        await fill(cluster.members["b"], (b"loser",), task=1, number=2)
        assert {part.partition for one in attempts for part in one.parts} == {0, 1, 2}
        assert not (await cluster.lease("b")).batches
        reply = await cluster.members["c"].commit(commit_call(*attempts))
        assert reply == CommitReply(repeated=False, durable=False)
        assert await everything(cluster, 12) == ITEMS
        again = await cluster.members["b"].commit(commit_call(*attempts))
        assert again.repeated
        gone = commit_call(CommittedAttempt(0, attempt(1), (StagedPart(5, 1, 1),)))
        assert (await cluster.members["b"].commit(gone)).repeated
        replayed = await cluster.members["a"].stage(stage_call(b"x", number=9))
        assert replayed == StageReply((), False, committed=True)
        assert (await cluster.members["a"].staged("default", "q")).batches == ()


async def test_items_with_keys_go_to_their_partitions():
    async with nodes("a", "b", partitions=3) as cluster:
        keys = [b"k%d" % number for number in range(12)]
        items = [b"v%d" % number for number in range(12)]
        one = await fill(cluster.members["a"], tuple(items), keyed=keys)
        assert len(one.parts) == 3
        await cluster.members["a"].commit(commit_call(one))
        assert await everything(cluster, 12) == sorted(items)


async def test_a_request_that_is_repeated_and_one_that_names_its_partition():
    async with nodes("a", "b", partitions=3) as cluster:
        call = stage_call(b"x", partition=2)
        first = await cluster.members["a"].stage(call)
        again = await cluster.members["b"].stage(call)
        assert [(p.partition, p.count, p.repeated) for p in first.parts] == [(2, 1, False)]
        assert [(p.partition, p.count, p.repeated) for p in again.parts] == [(2, 1, True)]
        assert first.parts[0].checksum == again.parts[0].checksum == crc32(call.items)
        wrong = await refusal(cluster.members["a"].stage(stage_call(b"x", partition=3)))
        assert (wrong.code, wrong.field, wrong.value) == (
            ErrorCode.INVALID_ARGUMENT, "partition", "3",
        )  # fmt: skip


async def test_what_a_commit_says_must_be_there():
    async with nodes("a", "b", partitions=2) as cluster:
        one = await fill(cluster.members["a"], (b"x",))
        ghost = CommittedAttempt(7, attempt(7), (StagedPart(1, 1, 1),))
        error = await refusal(cluster.members["b"].commit(commit_call(one, ghost)))
        assert (error.code, error.field) == (ErrorCode.TRANSACTION_ABORTED, "stages")
        assert "task 7 does not exist" in error.message
        assert "partition 1" in error.message
        assert not (await cluster.lease("a")).batches
        two = await fill(cluster.members["a"], (b"x",), number=2)
        assert not (await cluster.members["a"].commit(commit_call(two))).repeated
        assert await everything(cluster, 1) == [b"x"]


async def test_malformed_commits():
    async with nodes("a") as cluster:
        part = (StagedPart(0, 1, 1),)
        twice = commit_call(
            CommittedAttempt(0, attempt(1), part), CommittedAttempt(0, attempt(2), part)
        )
        error = await refusal(cluster.members["a"].commit(twice))
        assert (error.code, error.field) == (ErrorCode.INVALID_ARGUMENT, "stages[1].task")
        many = [CommittedAttempt(n, attempt(n), part) for n in range(TXN_CLAIMS_MAX + 1)]
        error = await refusal(cluster.members["a"].commit(commit_call(*many)))
        assert (error.code, error.field, error.limit) == (
            ErrorCode.LIMIT_EXCEEDED, "stages", "10000 stages",
        )  # fmt: skip
        gone = commit_call(CommittedAttempt(0, attempt(1), (StagedPart(5, 1, 1),)))
        error = await refusal(cluster.members["a"].commit(gone))
        assert (error.code, error.value) == (ErrorCode.TRANSACTION_ABORTED, "5")
        assert await code(
            cluster.members["a"].commit(CommitCall("default", "none", SPARK, 0, ()))
        ) is ErrorCode.QUEUE_NOT_FOUND  # fmt: skip


async def test_abort_drops_what_is_staged_and_is_too_late_after_the_commit():
    async with nodes("a", "b", partitions=3) as cluster:
        await three_tasks(cluster.members["a"])
        listed = await cluster.members["b"].staged("default", "q")
        [one] = listed.batches
        assert (one.producer, one.batch, one.items, one.state) == (
            SPARK,
            0,
            12,
            TransactionState.NONE,
        )
        dropped = await cluster.members["b"].abort(abort_call())
        assert not dropped.committed
        assert dropped.stages == one.stages > 3
        assert await cluster.members["b"].abort(abort_call()) == AbortReply(False, 0)
        assert (await cluster.members["b"].staged("default", "q")).batches == ()
        attempts = await three_tasks(cluster.members["a"], number=2)
        await cluster.members["a"].commit(commit_call(*attempts))
        assert await cluster.members["b"].abort(abort_call()) == AbortReply(True, 0)
        assert await everything(cluster, 12) == ITEMS


@pytest.mark.parametrize("partition", [0, 1])
@pytest.mark.parametrize("kind", [Begin, Prepare, Decide, Publish, Finish])
async def test_leaders_change_at_each_step(kind: type, partition: int):
    """Right after a command of each kind has reached a leader, another node takes over the
    leadership of the coordinator or of a participant.
    """
    async with nodes("a", "b", "c", partitions=3) as cluster:
        queue = cluster.base.placement.map.find("default", "q")
        assert queue is not None
        attempts = await three_tasks(cluster.members["b"])
        told = cluster.on_effects

        def on_effects(group: Any, effects: Any) -> None:
            told(group, effects)
            seen = any(isinstance(command, kind) for _, _, command in cluster.proposed)
            if seen and cluster.leaders[queue.groups[partition]] != "c":
                cluster.lead(queue.groups[partition], "c")

        cluster.on_effects = on_effects  # type: ignore[method-assign]
        reply = await cluster.members["b"].commit(commit_call(*attempts))
        assert reply.durable is False
        assert await everything(cluster, 12, "b") == ITEMS


async def test_a_participant_that_is_gone_aborts_and_is_not_waited_for():
    async with nodes("a", "b", partitions=2) as cluster:
        queue = cluster.base.placement.map.find("default", "q")
        assert queue is not None
        one = await fill(cluster.members["a"], (b"x",), (b"y",))
        whole = participants(queue, commit_call(one))
        begin = Begin(SPARK, 0, (*whole, Participant(7, GroupId(999), whole[0].claims)))
        result = await cluster.members["b"].router.propose(queue.groups[0], begin)
        assert result.state is TransactionState.PREPARING
        await cluster.base.until(
            lambda: any(isinstance(command, Finish) for _, _, command in cluster.proposed)
        )
        error = await refusal(cluster.members["a"].commit(commit_call(one)))
        assert error.code is ErrorCode.TRANSACTION_ABORTED
        assert not (await cluster.lease("a")).batches


async def test_answers_that_get_lost_change_nothing():
    async with nodes("a", "b", partitions=3) as cluster:
        attempts = await three_tasks(cluster.members["b"])
        cluster.loses_answers = 6
        await cluster.members["b"].commit(commit_call(*attempts))
        assert await everything(cluster, 12) == ITEMS


async def test_two_drivers_commit_the_same_batch():
    async with nodes("a", "b", partitions=3) as cluster:
        mine = await three_tasks(cluster.members["a"])
        theirs = await three_tasks(cluster.members["b"], number=2)
        async with asyncio.TaskGroup() as group:
            one = group.create_task(cluster.members["a"].commit(commit_call(*mine)))
            two = group.create_task(cluster.members["b"].commit(commit_call(*theirs)))
        assert sorted([one.result().repeated, two.result().repeated]) == [False, True]
        assert await everything(cluster, 12) == ITEMS


async def test_a_commit_that_waits_too_long_says_so_and_goes_on():
    async with nodes("a", "b", partitions=2) as cluster:
        queue = cluster.base.placement.map.find("default", "q")
        assert queue is not None
        attempts = [await fill(cluster.members["a"], (b"x",), (b"y",))]
        assert {part.partition for part in attempts[0].parts} == {0, 1}
        cluster.lead(queue.groups[1], None)
        error = await refusal(cluster.members["a"].commit(commit_call(*attempts, timeout_ms=500)))
        assert (error.code, error.field) == (ErrorCode.OUTCOME_UNKNOWN, "batch")
        [one] = (await with_leader(cluster, queue.groups[1])).batches
        assert one.state in (TransactionState.PREPARING, TransactionState.COMMITTED)
        assert await everything(cluster, 2) == [b"x", b"y"]
        assert (await cluster.members["a"].commit(commit_call(*attempts))).repeated


async def with_leader(cluster: ServiceCluster, group: Any) -> Any:
    """The list of transactions, requested while the partition gets a leader."""
    listed = asyncio.get_running_loop().create_task(cluster.members["a"].staged("default", "q"))
    cluster.lead(group, "b")
    return await listed


async def test_a_look_at_transactions_says_before_its_deadline_that_nobody_leads():
    async with nodes("a", "b") as cluster:
        cluster.lead(group_of(cluster), None)
        looks = (
            cluster.members["b"].staged("default", "q", timeout_ms=50),
            cluster.members["b"].producer_totals("default", "q", SPARK, timeout_ms=50),
        )
        for look in looks:
            error = await refusal(look)
            assert error.code is ErrorCode.DEADLINE_EXCEEDED
            assert "partition 0 of queue q has no leader" in error.message


async def test_an_empty_batch():
    async with nodes("a") as cluster:
        assert not (await cluster.members["a"].commit(commit_call(batch=3))).repeated
        assert (await cluster.members["a"].commit(commit_call(batch=2))).repeated
        assert not (await cluster.lease("a")).batches


async def test_a_full_queue_takes_the_batch_when_there_is_room():
    async with nodes("a", partition_items_max=2) as cluster:
        await cluster.produce("a", b"first")
        one = await fill(cluster.members["a"], (b"x", b"y"))
        error = await refusal(cluster.members["a"].commit(commit_call(one)))
        assert (error.code, error.retriable) == (ErrorCode.QUEUE_FULL, True)
        leased = await cluster.lease("a")
        await cluster.complete("a", *leased.batches)
        assert not (await cluster.members["a"].commit(commit_call(one))).repeated
        assert await everything(cluster, 2) == [b"x", b"y"]


async def change(node: ServiceNode, partitions: int) -> None:
    settings = QueueSettings(partitions=partitions)
    await node.admin.update_queue("default", "q", settings, ("partitions",), 0)


@pytest.mark.parametrize("after", [1, 5])
async def test_a_batch_that_was_staged_before_the_partitions_changed(after: int):
    async with service_node() as node:
        await node.create(partitions=3)
        attempts = await three_tasks(node.queues)
        await change(node, after)
        error = await refusal(node.queues.commit(commit_call(*attempts)))
        assert error.code is ErrorCode.TRANSACTION_ABORTED
        assert "number of partitions changed" in error.message
        late = await refusal(node.queues.stage(stage_call(b"x", sequence=5, partition=0)))
        assert late.code is ErrorCode.TRANSACTION_ABORTED
        keys = [b"k%d" % number for number in range(40)]
        spread = await refusal(node.queues.stage(stage_call(*keys, sequence=6, keyed=keys)))
        assert spread.code is ErrorCode.TRANSACTION_ABORTED
        assert spread.message.endswith("as another attempt"), "some of it is in new partitions"
        again = await three_tasks(node.queues, number=2)
        assert not (await node.queues.commit(commit_call(*again))).repeated
        await node.until(lambda: node.counts().ready == 12)
        found: list[bytes] = []
        while len(found) < 12:
            found += payloads(*(await node.lease(100, wait_ms=LONG_MS)).batches)
        assert sorted(found) == ITEMS


async def test_a_change_of_partitions_waits_for_what_is_pinned():
    """Partitions that get a batch's keys after the change know these keys."""
    async with service_node() as node:
        await node.create(partitions=2)
        keys = tuple(b"k%d" % number for number in range(20))
        one = await fill(node.queues, keys, keys=keys)
        async with asyncio.TaskGroup() as group:
            group.create_task(node.queues.commit(commit_call(one)))
            group.create_task(change(node, 5))
        await node.produce(*keys, keys=keys)
        await node.until(lambda: node.counts().produced == 20)
        assert node.counts().duplicates == 20


async def test_what_is_pinned_for_a_finished_transaction_is_let_go(monkeypatch):
    monkeypatch.setattr("querator.service.transactions.driver.STAGES_ASK_MS", 1)
    async with nodes("a", "b", partitions=2) as cluster:
        queue = cluster.base.placement.map.find("default", "q")
        assert queue is not None
        one = await fill(cluster.members["a"], (b"x",), (b"y",))
        ghost = CommittedAttempt(7, attempt(7), (StagedPart(0, 1, 1),))
        await refusal(cluster.members["a"].commit(commit_call(one, ghost)))
        late = await fill(cluster.members["a"], (b"x",), (b"y",), number=2)
        begins = [command for _, _, command in cluster.proposed if isinstance(command, Begin)]
        assert len(begins) >= 1
        [part] = [part for part in late.parts if part.partition == 1]
        command = Prepare(99, SPARK, 0, (StageClaim(0, late.attempt, part.count, part.checksum),))
        pinned = await cluster.members["a"].router.propose(queue.groups[1], command)
        assert not isinstance(pinned, Refusal)
        await cluster.base.until(
            lambda: any(
                isinstance(command, Discard) and group == queue.groups[1]
                for _, group, command in cluster.proposed
            )
        )
        assert not (await cluster.lease("a")).batches


async def test_an_attempt_that_goes_on_after_the_commit_is_told_in_every_partition(monkeypatch):
    monkeypatch.setattr("querator.service.transactions.driver.STAGES_ASK_MS", 1)
    async with nodes("a", "b", partitions=2) as cluster:
        zombie = stage_call(b"late", task=1, number=9, sequence=2, partition=1)
        one = await fill(cluster.members["a"], (b"x",), partition=0)
        await cluster.members["a"].commit(commit_call(one))
        told = await cluster.members["b"].stage(
            stage_call(b"late", task=1, number=9, sequence=1 << 40, partition=0)
        )
        assert told.committed, "a participant knows it"
        assert not (await cluster.members["b"].stage(zombie)).committed, (
            "the other one does not yet"
        )
        await cluster.base.until(lambda: cluster.base.counts().stages == 0)
        again = await cluster.members["b"].stage(zombie)
        assert again.committed
        assert await everything(cluster, 1) == [b"x"]


async def test_a_node_that_starts_again_goes_on():
    async with service_node() as node:
        await node.create(partitions=2)
        environment = node.environment
        one = await fill(node.queues, (b"x",), (b"y",))
        queue = node.placement.map.find("default", "q")
        assert queue is not None
        call = commit_call(one)
        begin = Begin(SPARK, 0, participants(queue, call))
        await node.queues.stop()
        result = await node.host.propose(queue.groups[0], begin)
        assert result.state is TransactionState.PREPARING
        assert node.counts().ready == 0
    async with service_node(environment) as node:  # type: ignore[arg-type]
        await node.until(lambda: node.counts().ready == 2)
        assert (await node.queues.commit(call)).repeated


async def test_a_coordinator_takes_no_partition_for_gone_that_it_has_not_heard_of():
    async with nodes("a", "b") as cluster:
        await cluster.grow(2, behind="a", leader="b")
        one = await fill(cluster.members["b"], (b"x",), (b"y",))
        assert {part.partition for part in one.parts} == {0, 1}
        assert not (await cluster.members["b"].commit(commit_call(one))).repeated
        assert await everything(cluster, 2, "b") == [b"x", b"y"]


async def test_what_is_committed_is_not_lost_with_a_coordinator_that_knew_all_partitions():
    """The leadership moves to a node with an old map right after the decision."""
    async with nodes("a", "b") as cluster:
        cluster.lead(group_of(cluster), "b")
        await cluster.grow(2, behind="a", leader="b")
        one = await fill(cluster.members["b"], (b"x",), (b"y",))
        told = cluster.on_effects

        def on_effects(group: Any, effects: Any) -> None:
            told(group, effects)
            seen = any(isinstance(command, Decide) for _, _, command in cluster.proposed)
            if seen and cluster.leaders[group_of(cluster)] != "a":
                cluster.lead(group_of(cluster), "a")

        cluster.on_effects = on_effects  # type: ignore[method-assign]
        assert not (await cluster.members["b"].commit(commit_call(one))).repeated
        assert await everything(cluster, 2, "b") == [b"x", b"y"]


async def test_a_node_that_has_not_heard_of_a_partition_takes_commits_of_what_is_in_it():
    async with nodes("a", "b") as cluster:
        await cluster.grow(2, behind="a", leader="b")
        one = await fill(cluster.members["b"], (b"x",), (b"y",))
        assert not (await cluster.members["a"].commit(commit_call(one))).repeated
        assert await everything(cluster, 2, "b") == [b"x", b"y"]
