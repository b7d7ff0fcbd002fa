"""Completes of items that are about to be delivered: counted apart, and no success of a breaker."""

from querator.model.commands import Complete, HalfOpen, LeaseItems, SetBreaker
from querator.model.queues import BreakerSettings, BreakerState
from querator.partition import queries
from tests.unit.partition.partition_log import GROUP, PartitionLog, lease_of, seqs


def delivered(log: PartitionLog, items: int) -> Complete:
    [grant] = log.one(lease_of(items)).grants
    return Complete((LeaseItems(grant.lease, ((seqs(grant)[0], items),)),), on_delivery=True)


def test_they_are_counted_apart_and_among_the_completed():
    log = PartitionLog()
    log.configure()
    log.produce(5)
    [grant] = log.one(lease_of(2)).grants
    log.one(Complete((LeaseItems(grant.lease),)))
    command = delivered(log, 3)
    [outcome] = log.one(command).outcomes
    assert (outcome.done, outcome.lost) == (((3, 3),), ())
    [again] = log.one(command).outcomes
    assert (again.done, again.repeated) == ((), ((3, 3),))
    with log.environment.snapshot() as txn:
        stats = queries.stats(txn, GROUP)
    assert (stats.completed, stats.completed_on_delivery, stats.ready) == (5, 3, 0)


def test_they_are_no_outcomes_of_a_breaker_and_free_the_place_of_a_probe():
    log = PartitionLog()
    log.configure(breaker=BreakerSettings(probes=1))
    log.produce(5)
    log.one(SetBreaker(True))
    log.advance(60_000)
    log.one(HalfOpen())
    log.one(delivered(log, 1))
    with log.environment.snapshot() as txn:
        stats = queries.stats(txn, GROUP)
    assert stats.breaker is not None
    assert (stats.breaker.state, stats.breaker.probing) == (BreakerState.HALF_OPEN, False)
    assert stats.breaker.probes_passed == 0
    log.one(SetBreaker(False))
    log.one(delivered(log, 3))
    with log.environment.snapshot() as txn:
        stats = queries.stats(txn, GROUP)
    assert stats.breaker is not None
    assert stats.breaker.outcomes == 0
