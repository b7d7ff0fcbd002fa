"""Readers over the partitions of a queue, on any node."""

import asyncio
import threading
from typing import Any

import pytest

from querator.model.errors import ErrorCode
from querator.model.ids import PLACEMENT_GROUP
from querator.model.limits import BATCH_BYTES_DEFAULT, BATCH_ITEMS_DEFAULT
from querator.model.queues import QueueSettings
from querator.model.reader_calls import (
    AdvanceOutcome,
    AdvanceReaderCall,
    OpenReaderCall,
    ReadBatchCall,
    ReaderAck,
    ReleaseReaderCall,
)
from querator.model.readers import AdvanceReader, OpenReader, ReleaseReader
from querator.partition import invariants
from querator.partition.segments import ready_rows_upto
from querator.service.queue_service import QueueService
from querator.service.routing import directory
from querator.v1 import items_pb2
from tests.unit.service.routing.test_router import group_of, rounds, start
from tests.unit.service.service_cluster import ServiceCluster, service_cluster
from tests.unit.service.service_node import LONG_MS, ServiceNode, code, refusal, service_node


class Driver:
    """A reader that acknowledges the batches it has received, through any service."""

    def __init__(self, reader_id: str = "lake") -> None:
        self.reader_id = reader_id
        self.epoch = 0
        self.acks: dict[int, int] = {}

    async def open(self, service: QueueService) -> None:
        opened = await service.readers.open(OpenReaderCall("default", "q", self.reader_id))
        self.epoch = opened.epoch

    def call(self, max_items: int = BATCH_ITEMS_DEFAULT, **more: Any) -> AdvanceReaderCall:
        acks = tuple(ReaderAck(partition, seq) for partition, seq in self.acks.items())
        fields = {"max_bytes": BATCH_BYTES_DEFAULT, "acks": acks, **more}
        return AdvanceReaderCall(
            "default", "q", self.reader_id, self.epoch, max_items=max_items, **fields
        )

    async def advance(
        self, service: QueueService, max_items: int = BATCH_ITEMS_DEFAULT, **more: Any
    ) -> tuple[AdvanceOutcome, ...]:
        advanced = await service.readers.advance(self.call(max_items, **more))
        return advanced.partitions

    def take(self, progress: tuple[AdvanceOutcome, ...]) -> int:
        """Notes the received batches, to acknowledge them next. Returns their number of items."""
        for one in progress:
            if one.batch is not None:
                self.acks[one.partition] = one.batch.seq
        return items(progress)


def items(progress: tuple[AdvanceOutcome, ...]) -> int:
    return sum(one.batch.count for one in progress if one.batch is not None)


def proposed(cluster: ServiceCluster, kind: type) -> int:
    return sum(1 for _, _, command in cluster.proposed if isinstance(command, kind))


async def fill(node: ServiceNode, count: int) -> None:
    for number in range(count):
        await node.produce(b"%d" % number)


async def test_a_reader_reads_all_partitions_to_the_end():
    async with service_node() as node:
        await node.create(partitions=3)
        await fill(node, 9)
        lake = Driver()
        await lake.open(node.queues)
        first = await lake.advance(node.queues)
        assert items(first) == 9
        assert await lake.advance(node.queues) == first
        lake.take(first)
        await fill(node, 2)
        assert lake.take(await lake.advance(node.queues)) == 2
        assert items(await lake.advance(node.queues)) == 0
        total = await node.total()
        assert (total.acknowledged, total.reserved, total.ready) == (11, 0, 0)


async def test_what_one_trigger_may_have_is_shared_out():
    async with service_node() as node:
        await node.create(partitions=3)
        await fill(node, 12)
        lake = Driver()
        await lake.open(node.queues)
        progress = await lake.advance(node.queues, 7)
        counts = [one.batch.count for one in progress if one.batch is not None]
        assert sorted(counts) == [2, 2, 3]
        # Open batches count: the reader gets no more items.
        assert await lake.advance(node.queues, 7) == progress
        lake.take(progress)
        assert lake.take(await lake.advance(node.queues, 7)) == 5


async def test_nothing_is_proposed_when_nothing_would_change():
    async with service_node() as node:
        await node.create()
        lake = Driver()
        await lake.open(node.queues)
        index = node.index()
        for _ in range(3):
            assert items(await lake.advance(node.queues)) == 0
        await node.produce(b"x")
        progress = await lake.advance(node.queues)
        assert node.index() == index + 2
        assert await lake.advance(node.queues) == progress
        assert node.index() == index + 2


async def test_a_waiting_call_is_woken_by_the_first_item():
    async with service_node() as node:
        await node.create(partitions=2)
        lake = Driver()
        await lake.open(node.queues)
        waiting = start(lake.advance(node.queues, wait_ms=LONG_MS))
        await rounds()
        await node.produce(b"x")
        assert items(await waiting) == 1


async def test_a_call_that_waited_in_vain_has_nothing():
    async with service_node() as node:
        await node.create()
        lake = Driver()
        await lake.open(node.queues)
        assert items(await lake.advance(node.queues, wait_ms=50)) == 0
        assert items(await lake.advance(node.queues, wait_ms=LONG_MS, timeout_ms=300)) == 0


async def test_a_bounded_call_does_not_wait():
    async with service_node() as node:
        await node.create()
        await node.produce(b"x")
        lake = Driver()
        opened = await node.queues.readers.open(OpenReaderCall("default", "q", "lake"))
        lake.epoch = opened.epoch
        upto = opened.partitions[0].ready_upto
        await node.produce(b"y")
        acks = (ReaderAck(0, 0, upto),)
        progress = await lake.advance(node.queues, acks=acks, wait_ms=LONG_MS)
        assert items(progress) == 1
        acks = (ReaderAck(0, 1, upto),)
        assert items(await lake.advance(node.queues, acks=acks, wait_ms=LONG_MS)) == 0


async def test_a_bounded_call_seeks_in_another_thread(monkeypatch):
    """It may look at a thousand lanes."""
    seeking: set[int] = set()

    def seen(*arguments: Any) -> Any:
        seeking.add(threading.get_ident())
        return ready_rows_upto(*arguments)

    monkeypatch.setattr("querator.partition.reader_queries.ready_rows_upto", seen)
    async with service_node() as node:
        await node.create()
        await node.produce(b"x")
        opened = await node.queues.readers.open(OpenReaderCall("default", "q", "lake"))
        lake = Driver()
        lake.epoch = opened.epoch
        acks = (ReaderAck(0, 0, opened.partitions[0].ready_upto),)
        assert items(await lake.advance(node.queues, acks=acks)) == 1
    assert seeking
    assert threading.get_ident() not in seeking


async def test_acknowledging_only():
    async with service_node() as node:
        await node.create()
        await fill(node, 2)
        lake = Driver()
        await lake.open(node.queues)
        lake.take(await lake.advance(node.queues, 1))
        progress = await lake.advance(node.queues, acknowledge_only=True, wait_ms=LONG_MS)
        assert progress == (AdvanceOutcome(0, 1),)
        assert (await node.total()).ready == 1


async def test_a_later_run_fences_the_earlier_one():
    async with service_node() as node:
        await node.create(partitions=2)
        await fill(node, 4)
        zombie, lake = Driver(), Driver()
        await zombie.open(node.queues)
        progress = await zombie.advance(node.queues)
        await lake.open(node.queues)
        zombie.take(progress)
        error = await refusal(zombie.advance(node.queues))
        assert (error.code, error.limit, error.value) == (ErrorCode.READER_FENCED, "2", "1")
        again = await lake.advance(node.queues)
        assert [one.batch.replays for one in again if one.batch] == [1, 1]
        assert (await node.total()).acknowledged == 0


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"acks": (ReaderAck(0, 0),)}, ErrorCode.ACK_MISMATCH),
        ({"acks": (ReaderAck(0, 9),)}, ErrorCode.ACK_MISMATCH),
    ],
)
async def test_a_reader_that_has_lost_its_memory_is_refused(changes, expected):
    async with service_node() as node:
        await node.create()
        await fill(node, 2)
        lake = Driver()
        await lake.open(node.queues)
        lake.take(await lake.advance(node.queues, 1))
        await lake.advance(node.queues, 1)
        assert await code(lake.advance(node.queues, **changes)) is expected


async def test_unknown_readers_epochs_and_partitions():
    async with service_node() as node:
        await node.create(partitions=2)
        lake = Driver()
        lake.epoch = 1
        assert await code(lake.advance(node.queues)) is ErrorCode.READER_NOT_FOUND
        await lake.open(node.queues)
        lake.epoch = 5
        assert await code(lake.advance(node.queues)) is ErrorCode.READER_NOT_FOUND
        release = node.queues.readers.release
        call = ReleaseReaderCall("default", "q", "pond")
        assert await code(release(call)) is ErrorCode.READER_NOT_FOUND
        call = ReleaseReaderCall("default", "q", "lake", 7)
        assert await code(release(call)) is ErrorCode.INVALID_ARGUMENT
        call = ReleaseReaderCall("default", "q", "lake", 0, remove=True)
        assert await code(release(call)) is ErrorCode.INVALID_ARGUMENT
        # A partition that the queue does not have has nothing to acknowledge.
        lake.epoch = 1
        lake.acks[9] = 4
        assert (await lake.advance(node.queues))[-1] == AdvanceOutcome(9, 4, gone=True)


async def test_readers_are_listed_with_what_they_hold():
    async with service_node() as node:
        await node.create(partitions=2)
        await fill(node, 4)
        lake, pond = Driver(), Driver("pond")
        await pond.open(node.queues)
        await lake.open(node.queues)
        await lake.advance(node.queues, 2)
        for stale in (False, True):
            [first, second] = await node.queues.readers.list("default", "q", stale=stale)
            assert (first.reader_id, second.reader_id) == ("lake", "pond")
            assert [partition for partition, _ in first.partitions] == [0, 1]
            assert [state.batch.count for _, state in first.partitions if state.batch] == [1, 1]
            assert [state.ready for _, state in second.partitions] == [1, 1]


async def test_released_items_go_to_others_and_the_reader_hears_of_it():
    async with service_node() as node:
        await node.create(partitions=2)
        await fill(node, 6)
        lake = Driver()
        await lake.open(node.queues)
        progress = await lake.advance(node.queues)
        release = node.queues.readers.release
        one = await release(ReleaseReaderCall("default", "q", "lake", 1))
        assert (one.batches, one.items) == (1, 3)
        rest = await release(ReleaseReaderCall("default", "q", "lake"))
        assert (rest.batches, rest.items) == (1, 3)
        none = await release(ReleaseReaderCall("default", "q", "lake"))
        assert (none.batches, none.items) == (0, 0)
        batches = (await node.lease(100)).batches
        assert {batch.attempt for batch in batches} == {2}
        lake.take(progress)
        assert await code(lake.advance(node.queues)) is ErrorCode.BATCH_RELEASED
        assert items(await lake.advance(node.queues, skip_released=True)) == 0


async def test_a_batch_that_is_given_up_dies_and_counts_as_acknowledged():
    async with service_node() as node:
        await node.create(partitions=2)
        await fill(node, 4)
        lake = Driver()
        await lake.open(node.queues)
        progress = await lake.advance(node.queues)
        release = node.queues.readers.release
        call = ReleaseReaderCall("default", "q", "lake", 1, batch_seq=2, dead=True)
        assert (await release(call)).items == 0
        call = ReleaseReaderCall("default", "q", "lake", 1, batch_seq=1, dead=True)
        given_up = await release(call)
        assert (given_up.batches, given_up.items) == (1, 2)
        opened = await node.queues.readers.open(OpenReaderCall("default", "q", "lake"))
        assert [position.dead_seq for position in opened.partitions] == [0, 1]
        lake.epoch = opened.epoch
        lake.take(progress)
        assert items(await lake.advance(node.queues)) == 0
        total = await node.total()
        assert (total.acknowledged, total.dead, total.reserved, total.ready) == (2, 2, 0, 0)


async def test_a_removed_reader_is_unknown_everywhere():
    async with service_node() as node:
        await node.create(partitions=2)
        await fill(node, 4)
        lake = Driver()
        await lake.open(node.queues)
        await lake.advance(node.queues)
        call = ReleaseReaderCall("default", "q", "lake", remove=True)
        released = await node.queues.readers.release(call)
        assert (released.batches, released.items) == (2, 4)
        assert await node.queues.readers.list("default", "q", stale=False) == ()
        assert await code(lake.advance(node.queues)) is ErrorCode.READER_NOT_FOUND


async def test_a_reader_that_was_removed_from_some_partitions_is_opened_again():
    async with service_cluster("a", "b", partitions=2) as cluster:
        lake = Driver()
        for _ in range(3):
            await lake.open(cluster.members["a"])
        router = cluster.members["a"].router
        await router.call(router.route(group_of(cluster)), ReleaseReader("lake", 0, remove=True))
        await lake.open(cluster.members["b"])
        await fill(cluster.base, 2)
        assert items(await lake.advance(cluster.members["b"])) == 2


async def test_any_node_serves_any_reader():
    async with service_cluster("a", "b", partitions=4) as cluster:
        for number in range(8):
            await cluster.produce("a", b"%d" % number)
        lake = Driver()
        await lake.open(cluster.members["b"])
        first = await lake.advance(cluster.members["a"])
        assert items(first) == 8
        assert await lake.advance(cluster.members["b"]) == first
        lake.take(first)
        assert items(await lake.advance(cluster.members["b"])) == 0
        assert (await cluster.base.total()).acknowledged == 8


async def test_a_call_waits_at_the_leader():
    async with service_cluster("a", "b") as cluster:
        lake = Driver()
        await lake.open(cluster.members["b"])
        waiting = start(lake.advance(cluster.members["b"], wait_ms=LONG_MS))
        await rounds()
        await cluster.produce("a", b"x")
        assert items(await waiting) == 1
        assert proposed(cluster, AdvanceReader) == 1


async def test_a_lost_answer_is_repeated():
    async with service_cluster("a", "b") as cluster:
        await cluster.produce("a", b"x")
        lake = Driver()
        await lake.open(cluster.members["b"])
        cluster.loses_answers = 1
        progress = await lake.advance(cluster.members["b"])
        assert items(progress) == 1
        lake.take(progress)
        cluster.loses_answers = 1
        assert items(await lake.advance(cluster.members["b"])) == 0
        total = await cluster.base.total()
        assert (total.acknowledged, total.reserved) == (1, 0)


async def test_a_younger_partition_hears_of_a_reader_when_it_is_met():
    async with service_cluster("a", "b", partitions=2) as cluster:
        await cluster.produce("a", b"x")
        lake = Driver()
        group = group_of(cluster, 0)
        router = cluster.members["a"].router
        opened = await router.call(router.route(group), OpenReader("lake"))
        lake.epoch = opened.epoch  # type: ignore[union-attr]
        assert items(await lake.advance(cluster.members["b"])) == 1
        [reader] = await cluster.members["a"].readers.list("default", "q", stale=False)
        assert [state.epoch for _, state in reader.partitions] == [1, 1]


async def test_two_runs_at_once_leave_one():
    async with service_cluster("a", "b", partitions=3) as cluster:
        first, second = Driver(), Driver()
        await asyncio.gather(
            *(start(driver.open(cluster.members[name])) for driver, name in
              ((first, "a"), (second, "b"))),
            return_exceptions=True,
        )  # fmt: skip
        last = Driver()
        await last.open(cluster.members["a"])
        assert last.epoch == 3
        assert items(await last.advance(cluster.members["b"])) == 0
        with cluster.base.environment.snapshot() as txn:
            assert invariants.check(txn, group_of(cluster, 0)) == []


async def test_a_partition_without_a_leader_leaves_the_others_what_they_are(monkeypatch):
    monkeypatch.setattr("querator.service.reading.advancing.READER_PARTITION_WAIT_MS", 50)
    async with service_cluster("a", "b", partitions=2) as cluster:
        await cluster.produce("a", b"x")
        await cluster.produce("b", b"y")
        lake = Driver()
        await lake.open(cluster.members["a"])
        cluster.lead(group_of(cluster, 1), None)
        progress = await lake.advance(cluster.members["a"])
        assert [one.error is None for one in progress] == [True, False]
        assert items(progress) == 1
        cluster.lead(group_of(cluster, 1), "b")
        lake.take(progress)
        assert items(await lake.advance(cluster.members["a"])) == 1
        cluster.lead(group_of(cluster, 0), None)
        cluster.lead(group_of(cluster, 1), None)
        error = await refusal(lake.advance(cluster.members["a"]))
        assert error.retriable


async def test_a_partition_without_a_leader_leaves_time_for_the_others():
    async with service_cluster("a", "b", partitions=2) as cluster:
        await cluster.produce("a", b"x")
        lake = Driver()
        await lake.open(cluster.members["a"])
        cluster.lead(group_of(cluster, 1), None)
        progress = await lake.advance(cluster.members["a"], timeout_ms=1_500)
        assert [one.error is None for one in progress] == [True, False]
        assert items(progress) == 1


async def test_a_waiting_call_outlives_a_change_of_leaders():
    async with service_cluster("a", "b") as cluster:
        lake = Driver()
        await lake.open(cluster.members["b"])
        waiting = start(lake.advance(cluster.members["b"], wait_ms=LONG_MS))
        await rounds()
        cluster.lead(group_of(cluster), "b")
        await rounds()
        await cluster.produce("a", b"x")
        assert items(await waiting) == 1


async def test_a_batch_is_read_where_its_partition_is_led():
    async with service_cluster("a", "b") as cluster:
        cluster.lead(PLACEMENT_GROUP, "a")
        await cluster.produce("a", b"x", b"y")
        lake = Driver()
        await lake.open(cluster.members["b"])
        progress = await lake.advance(cluster.members["b"])
        call = ReadBatchCall("default", "q", "lake", 0, 1)
        for name in ("a", "b"):
            reading = await cluster.members[name].readers.read(call)
            page = await reading.page(0)
            reading.close()
            columns = items_pb2.ItemColumns.FromString(page.columns)
            assert (columns.rows, columns.value.data, columns.partition) == (2, b"xy", 0)
            assert (page.next_index, page.upto_index) == (2, 2)
        lake.take(progress)
        await lake.advance(cluster.members["a"])
        reading = await cluster.members["b"].readers.read(call)
        assert await code(reading.page(0)) is ErrorCode.BATCH_NOT_FOUND
        reading.close()
        missing = ReadBatchCall("default", "q", "lake", 7, 1)
        assert await code(cluster.members["a"].readers.read(missing)) is ErrorCode.INVALID_ARGUMENT


async def test_a_waiting_call_ends_with_its_queue():
    async with service_node() as node:
        await node.create()
        lake = Driver()
        await lake.open(node.queues)
        waiting = start(lake.advance(node.queues, wait_ms=LONG_MS))
        await rounds()
        await node.admin.delete_queue("default", "q")
        assert await code(waiting) in (ErrorCode.QUEUE_DELETING, ErrorCode.QUEUE_NOT_FOUND)


async def opened_in_both(cluster: ServiceCluster) -> Driver:
    """A reader opened at b. Both partitions have an item. The map of a lacks the second one."""
    await cluster.grow(2, behind="a", leader="b")
    lake = Driver()
    await lake.open(cluster.members["b"])
    await fill(cluster.base, 2)
    return lake


async def test_a_partition_that_a_node_has_not_heard_of_is_not_gone():
    async with service_cluster("a", "b") as cluster:
        lake = await opened_in_both(cluster)
        first = await lake.advance(cluster.members["b"])
        assert lake.take(first) == 2
        assert sorted(lake.acks) == [0, 1]
        again = await lake.advance(cluster.members["a"])
        assert [(one.acked_seq, one.gone) for one in again] == [(1, False), (1, False)]


async def test_nobody_is_told_that_a_partition_is_gone_while_the_map_cannot_catch_up(monkeypatch):
    monkeypatch.setattr(directory, "CATCH_UP_S", 0.05)
    async with service_cluster("a", "b") as cluster:
        lake = Driver()
        await lake.open(cluster.members["b"])
        await cluster.produce("a", b"x")
        lake.acks = {1: 4}
        progress = await lake.advance(cluster.members["b"])
        assert items(progress) == 1
        assert progress[-1] == AdvanceOutcome(1, 4, error=ErrorCode.UNAVAILABLE)


async def test_a_batch_is_read_through_a_node_that_has_not_heard_of_its_partition():
    async with service_cluster("a", "b") as cluster:
        lake = await opened_in_both(cluster)
        assert items(await lake.advance(cluster.members["b"])) == 2
        reading = await cluster.members["a"].readers.read(
            ReadBatchCall("default", "q", "lake", 1, 1)
        )
        assert (await reading.page(0)).next_index == 1
        reading.close()


@pytest.mark.parametrize("remove", [True, False])
async def test_a_node_that_has_not_heard_of_a_partition_gives_back_what_is_open_there(remove):
    async with service_cluster("a", "b") as cluster:
        lake = await opened_in_both(cluster)
        assert items(await lake.advance(cluster.members["b"])) == 2
        call = ReleaseReaderCall("default", "q", "lake", remove=remove)
        released = await cluster.members["a"].readers.release(call)
        assert (released.batches, released.items) == (2, 2)
        assert (await cluster.base.total()).reserved == 0


async def test_a_run_that_could_not_begin_is_no_replay():
    async with service_cluster("a", "b", partitions=2) as cluster:
        await cluster.produce("a", b"x")
        lake = Driver()
        await lake.open(cluster.members["a"])
        assert items(await lake.advance(cluster.members["a"])) == 1
        cluster.lead(group_of(cluster, 1), None)
        for _ in range(3):
            call = OpenReaderCall("default", "q", "lake", timeout_ms=20)
            assert (await refusal(cluster.members["a"].readers.open(call))).retriable
        # The opens that failed have not ended the current run.
        cluster.lead(group_of(cluster, 1), "b")
        assert items(await lake.advance(cluster.members["a"])) == 1
        opened = await cluster.members["a"].readers.open(OpenReaderCall("default", "q", "lake"))
        assert [one.batch.replays for one in opened.partitions if one.batch] == [1]


async def test_a_reader_that_still_reads_is_removed_nowhere(monkeypatch):
    monkeypatch.setattr("querator.service.reading.advancing.READER_PARTITION_WAIT_MS", 50)
    async with service_cluster("a", "b", partitions=2) as cluster:
        cluster.lead(PLACEMENT_GROUP, "a")
        lake = Driver()
        await lake.open(cluster.members["a"])
        cluster.lead(group_of(cluster, 1), None)
        cluster.confirming.clear()
        call = ReleaseReaderCall("default", "q", "lake", remove=True)
        removing = start(cluster.members["b"].readers.release(call))
        await cluster.confirming.wait()
        # The removal has found no open batch in the first partition. A batch opens there before
        # the removal continues.
        await cluster.produce("a", b"x")
        assert items(await lake.advance(cluster.members["a"])) == 1
        cluster.lead(group_of(cluster, 1), "b")
        assert await code(removing) is ErrorCode.ACK_MISMATCH
        [reader] = await cluster.members["a"].readers.list("default", "q", stale=False)
        assert [partition for partition, _ in reader.partitions] == [0, 1]


async def test_a_younger_partition_waits_for_the_first_one(monkeypatch):
    monkeypatch.setattr("querator.service.reading.advancing.READER_PARTITION_WAIT_MS", 50)
    async with service_cluster("a", "b", partitions=3) as cluster:
        lake = Driver()
        router = cluster.members["b"].router
        for partition in (0, 1):
            opened = await router.call(
                router.route(group_of(cluster, partition)), OpenReader("lake", 1)
            )
            lake.epoch = opened.epoch  # type: ignore[union-attr]
        await cluster.produce("b", b"x")
        cluster.lead(group_of(cluster, 0), None)
        progress = await lake.advance(cluster.members["b"])
        assert items(progress) == 1
        assert [one.error is None for one in progress] == [False, True, False]


async def test_dead_items_at_the_head_are_not_the_end_of_what_is_there():
    async with service_node() as node:
        await node.create()
        await node.produce(b"x", b"y")
        await node.retry(*(await node.lease()).batches)
        await node.produce(b"z")
        settings = QueueSettings(max_attempts=1)
        await node.admin.update_queue("default", "q", settings, ("max_attempts",), 0)
        lake = Driver()
        opened = await node.queues.readers.open(OpenReaderCall("default", "q", "lake"))
        lake.epoch = opened.epoch
        acks = (ReaderAck(0, 0, opened.partitions[0].ready_upto),)
        progress = await lake.advance(node.queues, 1, acks=acks)
        assert items(progress) == 1
        assert (await node.total()).dead == 2


async def test_a_waiting_call_outlives_a_partition_that_goes(monkeypatch):
    monkeypatch.setattr("querator.placement.tasks.closing.CLOSING_S", 0.01)
    async with service_node() as node:
        going = (await node.create(partitions=2)).groups[1]
        lake = Driver()
        await lake.open(node.queues)
        await fill(node, 2)
        lake.take(await lake.advance(node.queues))
        await lake.advance(node.queues, acknowledge_only=True)
        waiting = start(lake.advance(node.queues, wait_ms=LONG_MS))
        await rounds()
        settings = QueueSettings(partitions=1)
        await node.admin.update_queue("default", "q", settings, ("partitions",), 0)
        while node.host.leads(going):
            await rounds()
        await node.produce(b"x")
        progress = await waiting
        assert items(progress) == 1
        assert progress[1] == AdvanceOutcome(1, lake.acks[1], gone=True)


async def test_a_late_open_does_not_fence_its_own_caller():
    async with service_cluster("a", "b", partitions=2) as cluster:
        lake = Driver()
        await lake.open(cluster.members["b"])
        late = [
            (group, command)
            for _, group, command in cluster.proposed
            if isinstance(command, OpenReader)
        ]
        for group, command in late:
            await cluster.base.host.propose(group, command)
        await cluster.produce("a", b"x")
        assert lake.take(await lake.advance(cluster.members["b"])) == 1


async def test_a_late_open_of_a_run_that_is_over_does_not_fence_the_next_one():
    async with service_cluster("a", "b", partitions=2) as cluster:
        former, lake = Driver(), Driver()
        await former.open(cluster.members["b"])
        late = [
            (group, command)
            for _, group, command in cluster.proposed
            if isinstance(command, OpenReader)
        ]
        await lake.open(cluster.members["a"])
        for group, command in late:
            await cluster.base.host.propose(group, command)
        await cluster.produce("a", b"x")
        assert lake.take(await lake.advance(cluster.members["a"])) == 1
        assert await code(former.advance(cluster.members["a"])) is ErrorCode.READER_FENCED


async def test_an_open_that_is_repeated_begins_one_run():
    async with service_cluster("a", "b", partitions=2) as cluster:
        call = OpenReaderCall("default", "q", "lake", request_id="one")
        first = await cluster.members["a"].readers.open(call)
        assert await cluster.members["b"].readers.open(call) == first
        other = OpenReaderCall("default", "q", "lake", request_id="two")
        assert (await cluster.members["b"].readers.open(other)).epoch == first.epoch + 1
        again = await refusal(cluster.members["b"].readers.open(call))
        assert again.code is ErrorCode.READER_FENCED
