"""What a worker gets with a lease: read where the lease shows that the replica has applied it."""

import pytest

from querator.model.executions import GiveBack
from querator.model.ids import GroupId
from querator.service.reading import executions
from querator.service.reading.executions import are_leased, read_activations
from querator.service.routing.forwarder import ActivationsQuery
from tests.unit.partition.execution_queue import (
    ExecutionQueue,
    Worker,
    recorded,
    step,
)
from tests.unit.partition.partition_log import GROUP


def query(*workers: Worker) -> ActivationsQuery:
    return ActivationsQuery(GroupId(GROUP), workers[0].lease, tuple(one.item for one in workers))


def holds(shop: ExecutionQueue, asked: ActivationsQuery) -> bool:
    with shop.log.environment.snapshot() as txn:
        return are_leased(txn, asked)


def test_a_lease_shows_that_it_was_applied() -> None:
    shop = ExecutionQueue()
    worker = shop.worker()
    assert holds(shop, query(worker))


def test_another_lease_shows_nothing() -> None:
    shop = ExecutionQueue()
    first = shop.worker()
    recorded(shop.record(first, then=GiveBack()))
    [second] = shop.lease()
    assert second.lease != first.lease
    assert not holds(shop, query(first))
    assert holds(shop, query(second))


def test_all_of_the_activations_must_be_leased() -> None:
    shop = ExecutionQueue()
    shop.start("a")
    shop.start("b")
    one, other = shop.lease(2)
    assert one.lease == other.lease
    recorded(shop.record(other, then=GiveBack()))
    assert holds(shop, query(one))
    assert not holds(shop, query(one, other))


def test_a_replica_without_the_activation_shows_nothing() -> None:
    shop = ExecutionQueue()
    worker = shop.worker()
    assert not holds(shop, query(worker._replace(item=worker.item + 1)))


def test_the_journal_comes_with_the_execution() -> None:
    shop = ExecutionQueue()
    worker = shop.worker()
    recorded(shop.record(worker, step(1), step(2)))
    with shop.log.environment.snapshot() as txn:
        [found] = read_activations(txn, query(worker))
    assert found.view.id == "a"
    assert [record.index for record in found.journal.records] == [0, 1, 2]
    assert not found.journal.next_index


def test_it_comes_with_the_time_of_the_state() -> None:
    """Not with one that a worker could find to be ahead of the answers to its records."""
    shop = ExecutionQueue()
    worker = shop.worker()
    leased_ms = shop.log.now_ms
    shop.log.now_ms += 40
    with shop.log.environment.snapshot() as txn:
        [found] = read_activations(txn, query(worker))
    assert found.now_ms == leased_ms


def test_an_activation_that_is_gone_is_left_out() -> None:
    shop = ExecutionQueue()
    worker = shop.worker()
    with shop.log.environment.snapshot() as txn:
        assert read_activations(txn, query(worker._replace(item=worker.item + 1))) == ()


def test_all_journals_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("ACTIVATION_JOURNAL_BYTES_MAX", "REPLY_BYTES_DEFAULT"):
        monkeypatch.setattr(executions, limit, 2_000)
    shop = ExecutionQueue()
    names = ("a", "b")
    for name in names:
        shop.start(name)
    workers = shop.lease(len(names))
    for worker in workers:
        for number in range(1, 4):
            recorded(shop.record(worker, step(number, payload=b"x" * 900)))
    with shop.log.environment.snapshot() as txn:
        first, second = read_activations(txn, query(*workers))
    assert 1 < len(first.journal.records) < 4
    assert [record.index for record in second.journal.records] == [0]
    assert second.journal.next_index == 1
