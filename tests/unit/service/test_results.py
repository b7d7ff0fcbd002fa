"""Results across partitions, nodes and leaders: how they come with a complete, and how they are
waited for.
"""

import asyncio
from typing import Any

import msgspec
import pytest

from querator.model.calls import CompleteCall, LeasedRun, ProduceReply, ReturnedResult
from querator.model.commands import Cancel, PartitionEffects
from querator.model.errors import ErrorCode
from querator.model.item_options import ItemSpecial
from querator.model.limits import PRODUCE_BYTES_HELD_MAX, REPLY_BYTES_DEFAULT
from querator.model.queues import QueueSettings
from querator.model.result_calls import EndedItem, ItemEnd, ResultsReply, WaitResultsCall
from querator.partition.result_queries import ResultsPage
from querator.service.admission import CONNECTION
from querator.service.queue_service import QueueService
from querator.service.results import waits
from querator.service.routing.forwarder import ResultsQuery
from querator.storage.memory_environment import MemoryEnvironment
from querator.storage.tables import ATTACHMENTS
from tests.unit.service.routing.test_router import group_of
from tests.unit.service.service_cluster import ServiceCluster, service_cluster
from tests.unit.service.service_node import (
    LONG_MS,
    ServiceNode,
    code,
    produce_call,
    ref,
    refusal,
    seqs,
    service_node,
)
from tests.unit.service.storage_damage import damaged
from tests.unit.service.test_checkpoints import whole_on_b

Id = tuple[int, int]


def asking(*payloads: bytes, **more: Any) -> Any:
    specials = tuple(
        ItemSpecial(ordinal, keep_result_ms=600_000) for ordinal in range(len(payloads))
    )
    return msgspec.structs.replace(produce_call(*payloads, **more), specials=specials)


async def produce(service: QueueService, *payloads: bytes) -> list[Id]:
    """Stores items that ask for their results; returns their ids."""
    return ids_of(await service.produce(asking(*payloads)))


def ids_of(reply: ProduceReply) -> list[Id]:
    return [
        (batch.partition, batch.first_seq + offset)
        for batch in reply.batches
        for offset in range(batch.count)
    ]


def wait_call(*items: Id, wait_ms: int = LONG_MS, queue: str = "q") -> WaitResultsCall:
    return WaitResultsCall("default", queue, items, wait_ms)


async def complete_with(
    service: QueueService, data: bytes, *batches: LeasedRun, queue: str = "q"
) -> Any:
    """Completes batches with a result for each item: the data and its sequence."""
    results = tuple(
        ReturnedResult(batch.lease_id, seq, data and data + b"%d" % seq)
        for batch in batches
        for seq in seqs(batch)
    )
    return await service.complete(
        CompleteCall("default", queue, tuple(map(ref, batches)), results=results)
    )


def found(reply: ResultsReply) -> dict[Id, tuple[int, bytes]]:
    return {(partition, one.seq): (one.outcome, one.data) for partition, one in reply.items}


class Waiting:
    """A call that waits. `parked` returns when its question has found nothing, at `at`."""

    def __init__(
        self, service: QueueService, at: QueueService | None = None, *, call: WaitResultsCall
    ) -> None:
        """`at`: the service at which its question waits; None: at the one that is called."""
        self._waits = (at or service).events._results
        self._look = self._waits._look
        self._waits._look = self._looking  # type: ignore[method-assign]
        self._looked = asyncio.Semaphore(0)
        self.seqs: list[tuple[int, ...]] = []
        """Items of the questions that have looked since then."""
        self.task = asyncio.get_running_loop().create_task(service.wait_results(call))

    async def _looking(self, query: ResultsQuery) -> ResultsPage:
        self.seqs.append(query.seqs)
        page = await self._look(query)
        if not page.items:
            # The question waits from this step on.
            self._looked.release()
        return page

    async def parked(self, questions: int = 1) -> None:
        for _ in range(questions):
            await self._looked.acquire()

    async def found(self) -> dict[Id, tuple[int, bytes]]:
        return found(await self.task)


def waiting(node: ServiceNode, *items: Id) -> Waiting:
    return Waiting(node.queues, call=wait_call(*items))


async def test_a_wait_ends_with_the_complete():
    async with service_node() as node:
        await node.create()
        [one] = await produce(node.queues, b"a")
        call = waiting(node, one)
        await call.parked()
        await complete_with(node.queues, b"done ", *(await node.lease()).batches)
        assert await call.found() == {one: (ItemEnd.COMPLETED, b"done 1")}
        assert node.queues.events._results.questions == 0
        assert (await node.total()).results == 1
        assert (await node.total()).result_bytes == len(b"done 1")


async def test_a_result_that_is_there_is_answered_at_once_and_again():
    async with service_node() as node:
        await node.create()
        [one] = await produce(node.queues, b"a")
        await node.complete(*(await node.lease()).batches)
        for wait_ms in (0, LONG_MS):
            reply = await node.queues.wait_results(wait_call(one, wait_ms=wait_ms))
            assert found(reply) == {one: (ItemEnd.COMPLETED, b"")}


async def test_a_call_that_does_not_wait_is_answered_with_nothing():
    async with service_node() as node:
        await node.create()
        [one] = await produce(node.queues, b"a")
        assert (await node.queues.wait_results(wait_call(one, wait_ms=0))).items == ()


async def test_a_wait_ends_with_nothing(monkeypatch):
    monkeypatch.setattr(waits, "RESULT_LOOK_MS_MAX", 5)
    async with service_node() as node:
        await node.create()
        [one] = await produce(node.queues, b"a")
        # Longer than one question waits.
        assert (await node.queues.wait_results(wait_call(one, wait_ms=20))).items == ()


async def test_an_end_wakes_only_the_questions_about_its_item():
    async with service_node() as node:
        groups = (await node.create()).groups
        one, two = await produce(node.queues, b"a", b"b")
        first = waiting(node, one)
        await first.parked()
        second = waiting(node, two)
        await second.parked()
        [batch] = (await node.lease(1)).batches
        await complete_with(node.queues, b"", batch)
        assert await first.found() == {one: (ItemEnd.COMPLETED, b"")}
        # Each has looked when it came, and the first one at the end of its item.
        assert first.seqs == [(1,), (2,), (1,)]
        await node.host.propose(groups[0], Cancel(((2, 1),)))
        assert await second.found() == {two: (ItemEnd.REMOVED, b"")}


async def test_effects_that_were_missed_wake_all_questions():
    async with service_node() as node:
        await node.create()
        [one] = await produce(node.queues, b"a")
        call = waiting(node, one)
        await call.parked()
        events = node.queues.events
        passed = events.on_effects

        def without_names(group: Any, effects: PartitionEffects) -> None:
            passed(group, msgspec.structs.replace(effects, answered_seqs=()))

        events.on_effects = without_names  # type: ignore[method-assign]
        await node.complete(*(await node.lease()).batches)
        assert await call.found() == {one: (ItemEnd.COMPLETED, b"")}


async def test_a_call_for_many_items_returns_those_that_have_ended():
    async with service_node() as node:
        await node.create(partitions=3)
        items = [(await produce(node.queues, b"%d" % number))[0] for number in range(3)]
        assert len({partition for partition, _ in items}) == 3
        call = waiting(node, *items)
        await call.parked(3)
        batch, *others = (await node.lease()).batches
        await complete_with(node.queues, b"x", batch)
        done = (batch.partition, batch.loaded.first_seq)
        assert await call.found() == {done: (ItemEnd.COMPLETED, b"x1")}
        assert node.queues.events._results.questions == 0
        await complete_with(node.queues, b"y", *others)
        left = [one for one in items if one != done]
        answers: dict[Id, Any] = {}
        while set(answers) != set(left):
            asked = wait_call(*(one for one in left if one not in answers))
            answers |= found(await node.queues.wait_results(asked))
        assert set(answers.values()) == {(ItemEnd.COMPLETED, b"y1")}


async def test_a_reply_has_the_results_that_fit():
    async with service_node() as node:
        await node.create()
        items = await produce(node.queues, b"a", b"b", b"c", b"d")
        size = REPLY_BYTES_DEFAULT // 3
        for _ in items:
            await complete_with(node.queues, b"x" * size, *(await node.lease(1)).batches)
        seen: dict[Id, Any] = {}
        rounds = 0
        while len(seen) < len(items):
            asked = wait_call(*(one for one in items if one not in seen))
            seen |= found(await node.queues.wait_results(asked))
            rounds += 1
        assert rounds == 2


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ((0, 7), "the queue has no such item"),
        ((0, 1), "the item was produced without keep_result"),
        ((5, 1), "queue q has no partition 5"),
    ],
)
async def test_why_there_is_no_result(item, words):
    async with service_node() as node:
        await node.create()
        await node.produce(b"plain")
        [asked] = await produce(node.queues, b"a")
        # One without a result answers a call for others, too.
        [(_, one)] = (await node.queues.wait_results(wait_call(asked, item))).items
        assert isinstance(one, EndedItem)
        assert one.outcome == ItemEnd.NONE
        assert words in one.error


async def test_waiting_for_a_queue_that_does_not_exist_is_refused():
    async with service_node() as node:
        await node.create()
        refused = node.queues.wait_results(wait_call((0, 1), queue="other"))
        assert await code(refused) is ErrorCode.QUEUE_NOT_FOUND


async def test_the_deletion_of_the_queue_ends_the_wait():
    async with service_node() as node:
        await node.create()
        [one] = await produce(node.queues, b"a")
        call = waiting(node, one)
        await call.parked()
        await node.admin.delete_queue("default", "q")
        assert await code(call.task) in (ErrorCode.QUEUE_DELETING, ErrorCode.QUEUE_NOT_FOUND)


async def test_a_node_that_stops_ends_the_wait():
    async with service_node() as node:
        await node.create()
        [one] = await produce(node.queues, b"a")
        call = waiting(node, one)
        await call.parked()
        await node.queues.stop()
        assert await code(call.task) is ErrorCode.UNAVAILABLE


async def test_waiting_calls_are_bounded(monkeypatch):
    monkeypatch.setattr(waits, "RESULT_QUESTIONS_MAX", 1)
    async with service_node() as node:
        await node.create()
        [one] = await produce(node.queues, b"a")
        call = waiting(node, one)
        await call.parked()
        error = await refusal(node.queues.wait_results(wait_call(one)))
        assert (error.code, error.field) == (ErrorCode.OVERLOADED, "node")
        assert (error.limit, error.value) == ("1 questions", "2 questions")
        await node.complete(*(await node.lease()).batches)
        assert await call.found() == {one: (ItemEnd.COMPLETED, b"")}


async def test_a_caller_that_leaves_leaves_no_question():
    async with service_node() as node:
        await node.create(partitions=2)
        items = [(await produce(node.queues, b"a"))[0] for _ in range(2)]
        call = waiting(node, *items)
        await call.parked(2)
        call.task.cancel()
        await asyncio.gather(call.task, return_exceptions=True)
        assert node.queues.events._results.questions == 0


async def test_a_node_that_does_not_lead_waits_at_the_leader():
    async with service_cluster("a", "b") as cluster:
        a, b = cluster.members["a"], cluster.members["b"]
        [one] = await produce(b, b"x")
        call = Waiting(b, a, call=wait_call(one))
        await call.parked()
        [batch] = (await cluster.lease("b", wait_ms=LONG_MS)).batches
        outcome = await complete_with(b, b"done ", batch)
        assert outcome.outcomes[0].done == ((1, 1),)
        assert await call.found() == {one: (ItemEnd.COMPLETED, b"done 1")}


async def test_a_wait_continues_at_the_next_leader():
    async with service_cluster("a", "b", "c") as cluster:
        [one] = await produce(cluster.members["c"], b"x")
        call = Waiting(cluster.members["c"], cluster.members["a"], call=wait_call(one))
        await call.parked()
        cluster.lead(group_of(cluster), "b")
        moved = Waiting(cluster.members["c"], cluster.members["b"], call=wait_call(one))
        await moved.parked()
        [batch] = (await cluster.lease("b", wait_ms=LONG_MS)).batches
        await complete_with(cluster.members["b"], b"done ", batch)
        for each in (call, moved):
            assert await each.found() == {one: (ItemEnd.COMPLETED, b"done 1")}


async def test_a_partition_without_a_leader_does_not_keep_back_another_one():
    async with service_cluster("a", partitions=2) as cluster:
        service = cluster.members["a"]
        items = [(await produce(service, b"x"))[0] for _ in range(2)]
        await node_complete(cluster, items[1])
        cluster.lead(cluster_groups(cluster)[items[0][0]], None)
        assert await Waiting(service, call=wait_call(*items)).found() == {
            items[1]: (ItemEnd.COMPLETED, b"")
        }


def cluster_groups(cluster: ServiceCluster) -> Any:
    queue = cluster.base.placement.map.find("default", "q")
    assert queue is not None
    return queue.groups


async def node_complete(cluster: ServiceCluster, item: Id) -> None:
    for batch in (await cluster.lease("a")).batches:
        if (batch.partition, batch.loaded.first_seq) == item:
            await cluster.complete("a", batch)
        else:
            await cluster.retry("a", batch, count_attempt=False)


async def test_results_of_several_partitions_come_with_one_complete():
    async with service_node() as node:
        await node.create(partitions=3)
        items = [(await produce(node.queues, b"%d" % number))[0] for number in range(3)]
        reply = await complete_with(node.queues, b"of ", *(await node.lease()).batches)
        assert all(outcome.done for outcome in reply.outcomes)
        for one in items:
            assert found(await node.queues.wait_results(wait_call(one))) == {
                one: (ItemEnd.COMPLETED, b"of 1")
            }


async def test_a_stream_completes_with_results():
    async with service_node() as node:
        await node.create()
        [one] = await produce(node.queues, b"a")
        stream = await node.subscribe()
        stream.grant(1, 0)
        [batch] = (await stream.next()).batches
        call = CompleteCall(
            "", "", (ref(batch),), results=(ReturnedResult(batch.lease_id, 1, b"sent"),)
        )
        assert (await stream.complete(call)).outcomes[0].done == ((1, 1),)
        assert found(await node.queues.wait_results(wait_call(one))) == {
            one: (ItemEnd.COMPLETED, b"sent")
        }
        await stream.close(polite=True)


async def test_their_bytes_count_as_those_of_produces():
    async with service_node() as node:
        await node.create()
        await produce(node.queues, b"a")
        [batch] = (await node.lease()).batches
        held = node.queues._settling._produces
        held.add(CONNECTION.get(), PRODUCE_BYTES_HELD_MAX)
        error = await refusal(complete_with(node.queues, b"x", batch))
        assert error.code is ErrorCode.OVERLOADED
        held.remove(CONNECTION.get(), PRODUCE_BYTES_HELD_MAX)
        assert (await complete_with(node.queues, b"x", batch)).outcomes[0].done


async def test_a_damaged_result_is_an_error_until_it_is_mended():
    async with service_node() as node:
        group = (await node.create()).groups[0]
        [one] = await produce(node.queues, b"a")
        await complete_with(node.queues, b"x", *(await node.lease()).batches)
        assert isinstance(node.environment, MemoryEnvironment)
        with node.environment.snapshot() as txn:
            nth = len(list(ATTACHMENTS.rows(txn, group))) - 1
        with damaged(node.environment, group, nth):
            error = await refusal(node.queues.wait_results(wait_call(one)))
            assert (error.code, error.field) == (ErrorCode.UNAVAILABLE, "partition")
            assert "a result in partition 0 of queue q is damaged" in error.message
        assert found(await node.queues.wait_results(wait_call(one))) == {
            one: (ItemEnd.COMPLETED, b"x1")
        }


async def test_another_replica_mends_a_result():
    async with service_cluster("a", "b") as cluster:
        [one] = await produce(cluster.members["a"], b"x")
        [batch] = (await cluster.lease("a", wait_ms=LONG_MS)).batches
        await complete_with(cluster.members["a"], b"done ", batch)
        other = whole_on_b(cluster, 1)
        service = cluster.members["a"]
        assert await code(service.wait_results(wait_call(one))) is ErrorCode.UNAVAILABLE
        group = group_of(cluster)
        for index, part in list(service.damage._rows[group]):
            await service.damage._mend_row(group, index, part)
        assert other.asked >= 1
        assert found(await service.wait_results(wait_call(one))) == {
            one: (ItemEnd.COMPLETED, b"done 1")
        }


async def test_fewer_partitions_keep_the_results_of_those_that_close():
    async with service_node() as node:
        await node.create(partitions=3)
        items = [(await produce(node.queues, b"x"))[0] for _ in range(3)]
        settings = QueueSettings(partitions=1)
        await node.admin.update_queue("default", "q", settings, ("partitions",), 0)
        call = waiting(node, items[2])
        await call.parked()
        await complete_with(node.queues, b"late ", *(await node.lease()).batches)
        assert await call.found() == {items[2]: (ItemEnd.COMPLETED, b"late 1")}
        for one in items:
            reply = await node.queues.wait_results(wait_call(one))
            assert found(reply) == {one: (ItemEnd.COMPLETED, b"late 1")}
