"""Pauses: of leases and of producers of a queue, and of groups."""

import msgspec
import pytest

from querator.model.calls import PartitionCounts
from querator.model.commands import (
    Complete,
    Expire,
    Extend,
    LeaseItems,
    ProduceResult,
    Refusal,
    Retry,
)
from querator.model.errors import ErrorCode
from querator.model.queues import GroupSettings
from querator.model.readers import AdvanceReader, OpenReader
from querator.partition import queries, reader_queries
from tests.unit.partition.flow_queue import FlowQueue, fair
from tests.unit.partition.partition_log import GROUP, START_MS, PartitionLog, lease_of, seqs
from tests.unit.partition.transaction_queue import TransactionQueue, claim

PRODUCER = (START_MS - 1_000).to_bytes(6, "big") + bytes(10)


def queue(items: int = 0, **changes: bool) -> PartitionLog:
    log = PartitionLog()
    log.configure()
    if items:
        log.produce(items)
    log.configure(2, **changes)
    return log


def leased(log: PartitionLog, items: int = 100) -> list[int]:
    return seqs(log.one(lease_of(items)).grants[0])


def counts(log: PartitionLog) -> PartitionCounts:
    with log.environment.snapshot() as txn:
        return queries.stats(txn, log.group)


# --- leases ----------------------------------------------------------------------------------


def test_nothing_is_leased_while_leases_are_paused():
    log = queue(3, lease_paused=True)
    assert leased(log) == []
    log.produce(1)
    assert leased(log) == []
    log.configure(3)
    assert leased(log) == [1, 2, 3, 4]


def test_consumers_are_not_told_of_items_that_they_cannot_lease():
    log = queue(3, lease_paused=True)
    assert log.applied.effects.ready == 0
    log.produce(1)
    assert log.applied.effects.ready == 0
    log.configure(3)
    assert log.applied.effects.ready == 4


def test_a_node_that_starts_knows_that_leases_are_paused():
    log = queue(3, lease_paused=True)
    with log.environment.snapshot() as txn:
        assert log.machine.recover(txn).effects.ready == 0
        assert queries.effects(txn, GROUP).ready == 0
    assert counts(log).ready == 3


def test_leases_that_run_go_on_while_leases_are_paused():
    log = queue(3)
    grant = log.one(lease_of(3)).grants[0]
    log.configure(3, lease_paused=True)
    ((_, deadline_ms),) = log.one(Extend((grant.lease,), lease_timeout_ms=90_000)).outcomes
    assert deadline_ms == log.now_ms + 90_000
    done = log.one(Complete((LeaseItems(grant.lease, ((1, 1),)),))).outcomes[0]
    assert done.done == ((1, 1),)
    log.one(Retry((LeaseItems(grant.lease, ((2, 1),)),)))
    assert leased(log) == []
    log.now_ms += 91_000
    log.one(Expire())
    assert counts(log).leased == 0
    log.configure(4)
    assert sorted(leased(log)) == [2, 3]


def test_a_repeated_lease_request_gets_its_answer_while_leases_are_paused():
    log = queue(3)
    request = lease_of(2, request_id="r1")
    first = log.one(request).grants[0]
    log.configure(3, lease_paused=True)
    again = log.one(request).grants[0]
    assert (seqs(again), again.lease, again.repeated) == (seqs(first), first.lease, True)


def test_readers_get_no_batch_while_leases_are_paused():
    log = queue(3)
    epoch = log.one(OpenReader("lake")).epoch
    log.configure(3, lease_paused=True)
    assert log.one(AdvanceReader("lake", epoch, 0, 100, 10**6)).batch is None
    log.configure(4)
    assert log.one(AdvanceReader("lake", epoch, 0, 100, 10**6)).batch.count == 3


def test_a_reader_sees_that_it_would_get_nothing_while_leases_are_paused():
    """Else it would ask again at once, with an entry of the log each time."""
    log = queue(3)
    epoch = log.one(OpenReader("lake")).epoch
    log.configure(3, lease_paused=True)
    advance = AdvanceReader("lake", epoch, 0, 100, 10**6)
    with log.environment.snapshot() as txn:
        found = reader_queries.outlook(txn, GROUP, advance)
    assert found.ready == 0
    assert found.result is not None
    log.configure(4)
    with log.environment.snapshot() as txn:
        assert reader_queries.outlook(txn, GROUP, advance).ready == 3


def test_a_batch_that_is_open_can_be_acknowledged_while_leases_are_paused():
    log = queue(3)
    epoch = log.one(OpenReader("lake")).epoch
    seq = log.one(AdvanceReader("lake", epoch, 0, 2, 10**6)).batch.seq
    log.configure(3, lease_paused=True)
    result = log.one(AdvanceReader("lake", epoch, seq, 2, 10**6))
    assert result.batch is None
    assert counts(log).acknowledged == 2


def test_items_expire_while_leases_are_paused():
    log = PartitionLog()
    log.configure(expire_timeout_ms=1_000)
    log.produce(2)
    log.configure(2, expire_timeout_ms=1_000, lease_paused=True)
    log.now_ms += 3_000
    log.one(Expire())
    assert (counts(log).expired, counts(log).ready) == (2, 0)


def test_an_older_version_of_the_settings_pauses_nothing():
    log = queue(3)
    log.configure(1, lease_paused=True, produce_paused=True)
    assert isinstance(log.produce(1), ProduceResult)
    assert leased(log) == [1, 2, 3, 4]


# --- producers -------------------------------------------------------------------------------


def test_producers_are_refused_while_they_are_paused():
    log = queue(1, produce_paused=True)
    refused = log.produce(2)
    assert refused == Refusal(
        ErrorCode.QUEUE_PAUSED, "producers of queue work are paused", field="queue", value="work"
    )
    assert leased(log) == [1]
    log.configure(3)
    assert isinstance(log.produce(1), ProduceResult)


def test_a_repeated_produce_gets_its_answer_while_producers_are_paused():
    log = PartitionLog()
    log.configure()
    first = log.produce(2, producer_id=PRODUCER, sequence=1)
    log.configure(2, produce_paused=True)
    again = log.produce(2, producer_id=PRODUCER, sequence=1)
    assert (again.first_seq, again.repeated) == (first.first_seq, True)
    assert log.produce(2, producer_id=PRODUCER, sequence=2).code is ErrorCode.QUEUE_PAUSED
    log.configure(3)
    assert isinstance(log.produce(2, producer_id=PRODUCER, sequence=2), ProduceResult)


def test_batches_are_neither_staged_nor_committed_while_producers_are_paused():
    queue = TransactionQueue(1)
    assert not isinstance(queue.stage(0, [b"a"]), Refusal)
    queue.logs[0].configure(2, produce_paused=True)
    refused = queue.stage(0, [b"b"], task=1)
    assert isinstance(refused, Refusal)
    assert refused.code is ErrorCode.QUEUE_PAUSED
    queue.begin({0: [claim([b"a"])]})
    assert queue.carry()
    assert counts(queue.logs[0]).ready == 0


def test_a_batch_that_is_decided_is_published_while_producers_are_paused():
    queue = TransactionQueue(1)
    queue.stage(0, [b"a"])
    queue.begin({0: [claim([b"a"])]})
    # Prepare and Decide.
    assert not queue.carry(2)
    queue.logs[0].configure(2, produce_paused=True)
    assert queue.carry()
    assert counts(queue.logs[0]).ready == 1


# --- groups ----------------------------------------------------------------------------------


def paused(*paths: str, **others: int) -> tuple[GroupSettings, ...]:
    groups = [GroupSettings(path, paused=True) for path in paths]
    groups += [GroupSettings(path, weight) for path, weight in others.items()]
    return tuple(sorted(groups, key=lambda group: group.path))


def test_nothing_of_a_paused_group_is_leased():
    log = FlowQueue(fair(groups=paused("a", b=2)))
    log.fill({"a": 3, "b": 2})
    assert log.applied.effects.ready == 2
    assert sorted(log.take()) == ["b", "b"]
    assert log.applied.effects.ready == 0
    log.set(fair())
    assert log.applied.effects.ready == 3
    assert log.take() == ["a"] * 3


def test_a_paused_group_pauses_those_below_it():
    log = FlowQueue(fair(groups=paused("eu")))
    log.fill({"eu": 1, "eu.de": 2, "eu.de.by": 2, "europa": 1})
    assert log.take() == ["europa"]
    log.set(fair(groups=paused("eu.de")))
    assert log.take() == ["eu"]
    log.set(fair())
    assert sorted(log.take()) == ["eu.de", "eu.de", "eu.de.by", "eu.de.by"]


def test_a_group_that_is_paused_while_it_has_leases():
    log = FlowQueue(fair())
    log.fill({"a": 4})
    grant = log.lease(2)
    log.set(fair(groups=paused("a")))
    assert log.lease().segments == ()
    log.one(Retry((LeaseItems(grant.lease),)))
    assert log.lease().segments == ()
    log.set(fair())
    assert log.take() == ["a"] * 4


@pytest.mark.parametrize("limit", [0, 2])
def test_a_group_that_resumes_has_its_limit_again(limit: int):
    limited = GroupSettings("a", 1, limit)
    log = FlowQueue(fair(groups=(msgspec.structs.replace(limited, paused=True),)))
    log.fill({"a": 5})
    assert log.take() == []
    log.set(fair(groups=(limited,)))
    assert len(seqs(log.lease())) == (limit or 5)


def test_readers_get_nothing_of_a_paused_group():
    log = FlowQueue(fair(groups=paused("a")))
    log.fill({"a": 3, "b": 2})
    epoch = log.one(OpenReader("lake")).epoch
    assert log.one(AdvanceReader("lake", epoch, 0, 100, 10**6)).batch.count == 2
