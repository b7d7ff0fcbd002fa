"""The random part of waits after failed attempts, and what items say about their retries.
`test_scenarios` has the policies of queues without the random part.
"""

from statistics import mean

import pytest

from querator.model.commands import Expire, ItemSpecial, LeaseItems, Move, MoveDone, Redrive, Retry
from querator.model.limits import APPLY_SEGMENTS_MAX, BLOCK_ITEMS_MAX, RELEASES_MAX
from querator.model.queues import RetryBackoff, RetryWaits
from querator.partition import queries
from querator.partition.rows import decode_block
from querator.storage.memory_environment import MemoryEnvironment
from querator.storage.tables import BLOCKS, SCHEDULED
from tests.unit.partition.partition_log import GROUP, PartitionLog, dead_to, lease_of
from tests.unit.partition.scenario_language import run

DELAY_MS = 100_000
FIXED = RetryWaits(DELAY_MS, DELAY_MS, RetryBackoff.FIXED)


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
    policy = RetryWaits(1_000, 3_600_000)
    assert [policy.longest_ms(attempt) for attempt in (1, 2, 3)] == [1_000, 2_000, 4_000]
    assert policy.longest_ms(65_535) == 3_600_000
    assert RetryWaits(7_200_000, 3_600_000).longest_ms(3) == 7_200_000
    assert RetryWaits().longest_ms(7) == 0


OF_ITEMS = {
    "an item's number of attempts wins over the queue's": """
        configure max_attempts=2
        produce 4 attempts=1,-,3,0 -> 1-4
        lease 9 -> 1-4
        retry L1 -> done 1-4
        lease 9 -> 2-4x2
        retry L2 -> done 2-4
        lease 9 -> 3-4x3
        retry L3 -> done 3-4
        lease 9 -> 4x4
        stats dropped -> 3
    """,
    "it holds in a queue without a limit, and for lapses": """
        configure dead=9
        produce 2 attempts=1,- -> 1-2
        lease 9 timeout=1000 -> 1-2
        wait 1000
        lease 9 -> 2x2
        stats dead moving -> 1 1
    """,
    "an item's policy wins over the queue's, also where it says not to wait": """
        configure retry=fixed,60000,60000
        produce 4 retries=linear:1000:9000,-,fixed:0:100,fixed:500:500 -> 1-4
        lease 9 -> 1-4
        retry L1 -> done 1-4
        due -> 500: 4 1000: 1 60000: 2
        lease 9 -> 3x2
        wait 1000
        lease 9 -> 4x2 1x2
        retry L3 -> done 1 4
        due -> 500: 4 2000: 1 59000: 2
    """,
    "a lapsed item waits by its own policy": """
        configure
        produce 2 retries=fixed:5000:5000,- -> 1-2
        lease 9 timeout=1000 -> 1-2
        wait 1000
        due -> 5000: 1
        lease 9 -> 2x2
    """,
    "items of one policy return together": """
        configure
        produce 5 retries=fixed:500:500,-,fixed:500:500,-,fixed:500:500 -> 1-5
        lease 9 -> 1-5
        retry L1 -> done 1-5
        lease 9 -> 2x2 4x2
        wait 500
        lease 9 -> 1x2 3x2 5x2
    """,
    "a time of the retry wins over an item's policy": """
        configure
        produce 1 retries=fixed:60000:60000 -> 1
        lease 1 -> 1
        retry L1 in=1000 -> done 1
        due -> 1000: 1
    """,
    "a release is no failed attempt": """
        configure
        produce 1 attempts=1 retries=fixed:60000:60000 -> 1
        lease 1 -> 1
        retry L1 free -> done 1
        lease 1 -> 1
    """,
    "a batch of a reader that is given back counts by the items' own limits": """
        configure max_attempts=9
        produce 3 attempts=-,1,- -> 1-3
        open lake -> 1
        advance lake 1 0 9 -> 1: 1-3
        release lake 1 -> 3
        stats dropped ready -> 1 2
        lease 9 -> 1x2 3x2
    """,
    "a queue with a lower limit does not reach items with one of their own": """
        configure
        produce 2 attempts=5,- -> 1-2
        lease 9 -> 1-2
        retry L1 -> done 1-2
        configure max_attempts=1
        lease 9 -> 1x2
        stats dropped -> 1
    """,
    "an item that waits for its retry dies at its age": """
        configure expire_timeout_ms=5000 dead=9
        produce 2 retries=fixed:4000:4000,fixed:60000:60000 -> 1-2
        wait 2000
        lease 9 -> 1-2
        retry L1 -> done 1-2
        due -> 4000: 1 60000: 2
        wait 2999
        stats scheduled moving expired -> 2 0 0
        wait 1
        stats scheduled moving expired -> 0 2 2
    """,
    "scheduled and moved items keep what they say": """
        configure max_attempts=9 retry=fixed,60000,60000 expire_timeout_ms=3600000
        produce 2 in=1000 attempts=1,- retries=-,fixed:500:500 -> 1-2
        move 1-2 in=2000 -> 2
        wait 2000
        lease 9 -> 1-2
        retry L1 -> done 1-2
        stats dropped -> 1
        due -> 500: 2
    """,
}


@pytest.mark.parametrize("name", OF_ITEMS)
def test_what_items_say(name: str):
    run(OF_ITEMS[name])


def test_an_item_with_one_attempt_is_not_spent_by_releases():
    """Other items of the same lease are, as far as releases count."""
    log = PartitionLog()
    log.configure()
    log.produce(3, specials=(ItemSpecial(1, max_attempts=1),))
    for _ in range(RELEASES_MAX):
        grant = log.one(lease_of()).grants[0]
        log.one(Retry((LeaseItems(grant.lease),), count_attempt=False))
    grant = log.one(lease_of()).grants[0]
    attempts = {
        segment.first_seq + ordinal: segment.attempt
        for segment in grant.segments
        for ordinal in range(3)
        if segment.mask >> ordinal & 1
    }
    assert attempts == {1: 2, 2: 1, 3: 2}


def test_a_redriven_item_has_its_own_limit_again_and_a_dead_letter_that_of_its_queue():
    environment = MemoryEnvironment()
    work, dead = PartitionLog(environment), PartitionLog(environment, group=9)
    work.configure(dead_targets=dead_to(9))
    dead.configure(queue="dead", max_attempts=0)
    special = ItemSpecial(0, max_attempts=1, retry=FIXED)
    work.produce(1, specials=(special,))
    for _ in range(2):
        fail(work)
        carry(work, dead)
        fail(dead)
        assert waits_ms(dead) == []
        dead.one(Redrive("work", dead_to(GROUP)))
        carry(dead, work)
    with environment.snapshot() as txn:
        (times,) = [own for _, row in BLOCKS.rows(txn, GROUP) for own in decode_block(row).own]
    assert (times.max_attempts, times.retry) == (1, FIXED)


def fail(log: PartitionLog) -> None:
    log.one(Retry((LeaseItems(log.one(lease_of()).grants[0].lease),)))


def carry(source: PartitionLog, target: PartitionLog) -> None:
    with source.environment.snapshot() as txn:
        batch = queries.outbox_batch(txn, source.group)
    assert batch is not None
    move = Move(source.group, batch.first_move, batch.lengths, batch.items)
    done = target.one(move, batch.attachment)
    source.one(MoveDone(target.group, done.upto_move))


def test_plain_items_have_no_row_of_their_own():
    log = PartitionLog()
    log.configure(max_attempts=3, retry=FIXED)
    log.produce(3, specials=(ItemSpecial(1, priority=4), ItemSpecial(2, dedup_key=b"k")))
    with log.environment.snapshot() as txn:
        assert [decode_block(row).own for _, row in BLOCKS.rows(txn, GROUP)] == [()]


def own_waits(log: PartitionLog, blocks: int) -> list[int]:
    """Blocks of items that all wait for another time, each under a lease of its own."""
    leases = []
    for _ in range(blocks):
        log.produce(
            BLOCK_ITEMS_MAX,
            specials=tuple(
                ItemSpecial(n, retry=RetryWaits(1_000 + n, 60_000, RetryBackoff.FIXED, False))
                for n in range(BLOCK_ITEMS_MAX)
            ),
        )
        leases.append(log.one(lease_of(BLOCK_ITEMS_MAX)).grants[0].lease)
    return leases


def test_the_work_of_lapses_is_bounded_by_the_pieces_into_which_items_part():
    """`PartitionLog` checks the bytes that each command may write."""
    log = PartitionLog(checked=False)
    log.configure(lease_timeout_ms=1_000)
    own_waits(log, 20)
    log.now_ms += 1_000
    works = []
    while (work := log.one(Expire()).changed) > 0:
        works.append(work)
    assert sum(works) == 20 * BLOCK_ITEMS_MAX
    assert max(works) < APPLY_SEGMENTS_MAX + BLOCK_ITEMS_MAX
    assert len(set(waits_ms(log))) == BLOCK_ITEMS_MAX


def test_one_retry_of_items_that_all_wait_for_another_time_stays_within_its_bytes():
    log = PartitionLog(checked=False)
    log.configure()
    leases = own_waits(log, 10)
    log.one(Retry(tuple(map(LeaseItems, leases)), error="slow", priority=3))
    assert len(waits_ms(log)) == 10 * BLOCK_ITEMS_MAX
