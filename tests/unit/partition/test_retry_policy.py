"""The random part of waits after failed attempts. `test_scenarios` has the policies without it."""

from statistics import mean

from querator.model.commands import LeaseItems, Retry
from querator.model.queues import RetryBackoff, RetryPolicy
from querator.storage.tables import SCHEDULED
from tests.unit.partition.partition_log import PartitionLog, lease_of

DELAY_MS = 100_000
FIXED = RetryPolicy(DELAY_MS, DELAY_MS, RetryBackoff.FIXED)


def waits_ms(log: PartitionLog) -> list[int]:
    with log.environment.snapshot() as txn:
        due = [SCHEDULED.parts(key)[0] for key, _ in SCHEDULED.rows(txn, log.group)]
    return [int(due_ms) - log.now_ms for due_ms in due]


def failed_one_by_one(items: int) -> PartitionLog:
    log = PartitionLog()
    log.configure(retry=FIXED)
    log.produce(items)
    lease = log.one(lease_of(items)).grants[0].lease
    for seq in range(1, items + 1):
        log.one(Retry((LeaseItems(lease, ((seq, 1),)),)))
    return log


def test_items_that_fail_together_return_at_different_times():
    waits = waits_ms(failed_one_by_one(200))
    assert all(100 <= wait <= DELAY_MS for wait in waits)
    assert len(set(waits)) > 190
    assert 0.4 < mean(waits) / DELAY_MS < 0.6


def test_every_replica_draws_the_same():
    log = failed_one_by_one(20)
    replica = PartitionLog()
    for command, parts in log.entries:
        replica.replay(command, parts)
    replica.now_ms = log.now_ms
    assert waits_ms(replica) == waits_ms(log)


def test_no_wait_is_longer_than_the_longest():
    policy = RetryPolicy(1_000, 3_600_000)
    assert [policy.longest_ms(attempt) for attempt in (1, 2, 3)] == [1_000, 2_000, 4_000]
    assert policy.longest_ms(65_535) == 3_600_000
    assert RetryPolicy(7_200_000, 3_600_000).longest_ms(3) == 7_200_000
    assert RetryPolicy().longest_ms(7) == 0
