"""Attributes that a retry gives to items: where they reach, what keeps them, and their bounds."""

from typing import Any

import pytest

from querator.model.commands import (
    Attributes,
    LeaseGrant,
    LeaseItems,
    Move,
    MoveReturn,
    Redrive,
    Refusal,
    Retry,
)
from querator.model.errors import ErrorCode
from querator.model.limits import (
    ATTRIBUTES_BYTES_MAX,
    BROWSE_BYTES,
    MOVE_BATCH_BYTES_MAX,
    REPLY_BYTES_DEFAULT,
    RETRY_ATTRIBUTES_ITEMS_MAX,
)
from querator.model.readers import AdvanceReader, OpenReader
from querator.partition import queries, reader_queries
from querator.partition.browse import Span, browse
from querator.storage import generations
from querator.storage.memory_environment import MemoryEnvironment
from tests.unit.partition.partition_log import GROUP, PartitionLog, dead_to, lease_of, seqs

DEAD_GROUP = 9
PAGE_7: Attributes = (("page", "7"), ("relay", "b"))
PAGE_8: Attributes = (("page", "8"),)
LONG: Attributes = (("n", "x" * (ATTRIBUTES_BYTES_MAX - 1)),)


@pytest.fixture
def log() -> PartitionLog:
    log = PartitionLog()
    log.configure()
    return log


def lease(log: PartitionLog, count: int = 100) -> LeaseGrant:
    grant = log.one(lease_of(count)).grants[0]
    assert isinstance(grant, LeaseGrant)
    return grant


def retry(log: PartitionLog, number: int, *items: int, **changes: Any) -> Any:
    ranges = tuple((seq, 1) for seq in items)
    return log.one(Retry((LeaseItems(number, ranges),), **changes))


def attributes_of(log: PartitionLog) -> dict[int, Attributes | None]:
    with log.environment.snapshot() as txn:
        page = queries.peek(txn, log.group, None, after_seq=0, limit=5000, bytes_max=10**9)
    return {item.seq: item.attributes for item in page.items}


def delivered(log: PartitionLog) -> dict[int, Attributes | None]:
    """Leases all items. Returns those that retries have changed, by sequence."""
    grant = lease(log)
    found: dict[int, Attributes | None] = {}
    with log.environment.snapshot() as txn:
        view = generations.view(txn, log.group)
        for segment in grant.segments:
            loaded = queries.load_segment(view, log.group, segment.first_seq, segment.mask)
            assert loaded is not None
            ordinals = loaded.ordinals or range(loaded.count)
            for overlay in loaded.overlays:
                found[loaded.first_seq + ordinals[overlay.index]] = overlay.attributes
    return found


def test_a_retry_gives_items_other_attributes(log):
    log.produce(3)
    lease(log)
    retry(log, 1, 2, attributes=PAGE_7)
    retry(log, 1, 3)
    assert attributes_of(log) == {1: None, 2: PAGE_7, 3: None}
    assert delivered(log) == {2: PAGE_7}


def test_they_replace_all_that_an_earlier_retry_gave_and_stay_without_others(log):
    log.produce(1)
    seen = []
    for attributes in (PAGE_7, None, PAGE_8, ()):
        retry(log, lease(log).lease, attributes=attributes)
        seen.append(attributes_of(log)[1])
    assert seen == [PAGE_7, PAGE_7, PAGE_8, ()]


@pytest.mark.parametrize("changes", [{"count_attempt": False}, {"retry_at_ms": 1}, {"priority": 3}])
def test_a_release_and_a_retry_for_later_change_them_too(log, changes):
    log.produce(1)
    retry(log, lease(log).lease, attributes=PAGE_7, **changes)
    assert delivered(log) == {1: PAGE_7}


def test_errors_and_attributes_are_kept_beside_each_other(log):
    log.produce(1)
    retry(log, lease(log).lease, error="slow")
    retry(log, lease(log).lease, attributes=PAGE_7)
    retry(log, lease(log).lease, error="broken")
    with log.environment.snapshot() as txn:
        (item,) = queries.peek(txn, log.group, None, after_seq=0, limit=9, bytes_max=10**9).items
    assert (item.errors, item.attributes) == (("slow", "broken"), PAGE_7)


def test_a_lapsed_lease_leaves_them(log):
    log.produce(1)
    retry(log, lease(log).lease, attributes=PAGE_7)
    lease(log)
    log.advance(30_000)
    assert delivered(log) == {1: PAGE_7}


def test_a_retry_with_attributes_is_no_repeat_of_one_without(log):
    """A node that ends a stream releases its leases."""
    log.produce(2)
    lease(log)
    retry(log, 1, count_attempt=False)
    (outcome,) = retry(log, 1, 1, 2, count_attempt=False, attributes=PAGE_7).outcomes
    assert (outcome.done, outcome.repeated, outcome.lost) == ((), (), ((1, 2),))
    assert attributes_of(log) == {1: None, 2: None}


def test_a_repeat_changes_nothing(log):
    log.produce(1)
    lease(log)
    retry(log, 1, 1, attributes=PAGE_7)
    retry(log, lease(log).lease, attributes=PAGE_8)
    (outcome,) = retry(log, 1, 1, attributes=PAGE_7).outcomes
    assert outcome.repeated == ((1, 1),)
    assert attributes_of(log) == {1: PAGE_8}


def test_scans_and_readers_show_them(log):
    log.produce(2)
    lease(log)
    retry(log, 1, 2, attributes=PAGE_7)
    retry(log, 1, 1)
    with log.environment.snapshot() as txn:
        (run,) = browse(txn, GROUP, Span(1)).runs
    assert [(later.index, later.attributes) for later in run.overlays] == [(1, PAGE_7)]
    log.one(OpenReader("lake"))
    log.one(AdvanceReader("lake", 1, 0, 10, 10**6))
    with log.environment.snapshot() as txn:
        part = reader_queries.batch_part(
            txn, GROUP, "lake", batch_seq=1, from_index=0, upto_index=0
        )
    assert not isinstance(part, Refusal)
    assert [later.attributes for run in part.runs for later in run.overlays] == [PAGE_7]


def dead_pair() -> tuple[PartitionLog, PartitionLog]:
    environment = MemoryEnvironment()
    work = PartitionLog(environment)
    work.configure(dead_targets=dead_to(DEAD_GROUP))
    dead = PartitionLog(environment, group=DEAD_GROUP)
    dead.configure(queue="dead")
    return work, dead


def carry(source: PartitionLog, target: PartitionLog) -> None:
    with source.environment.snapshot() as txn:
        batch = queries.outbox_batch(txn, source.group)
    assert batch is not None
    move = Move(source.group, batch.first_move, batch.lengths, batch.items)
    target.one(move, batch.attachment)


def test_they_go_with_dead_letters_and_return_with_redriven_items():
    work, dead = dead_pair()
    work.produce(2)
    lease(work)
    retry(work, 1, 1, dead=True, attributes=PAGE_7)
    retry(work, 1, 2, dead=True)
    carry(work, dead)
    assert attributes_of(dead) == {1: PAGE_7, 2: None}
    # A consumer of the dead queue changes them again.
    retry(dead, lease(dead).lease, 2, attributes=PAGE_8)
    dead.advance(30_000)
    dead.one(Redrive("work", dead_to(GROUP)))
    carry(dead, work)
    arrived = {seq: found for seq, found in attributes_of(work).items() if seq > 2}
    assert set(arrived.values()) == {PAGE_7, PAGE_8}


def test_items_that_return_from_the_outbox_keep_them():
    work, _ = dead_pair()
    work.produce(1)
    retry(work, lease(work).lease, dead=True, attributes=PAGE_7)
    work.one(MoveReturn(DEAD_GROUP))
    assert delivered(work) == {1: PAGE_7}


def test_a_retry_changes_the_attributes_of_a_bounded_number_of_items():
    log = PartitionLog(checked=False)
    log.configure()
    log.produce(RETRY_ATTRIBUTES_ITEMS_MAX)
    log.produce(1)
    first, second = lease(log, RETRY_ATTRIBUTES_ITEMS_MAX).lease, lease(log).lease
    both = (LeaseItems(first), LeaseItems(second))
    refused = log.one(Retry(both, attributes=PAGE_7))
    assert isinstance(refused, Refusal)
    assert (refused.code, refused.field) == (ErrorCode.LIMIT_EXCEEDED, "leases")
    assert (refused.limit, refused.value) == ("1000 items", "1001 items")
    assert set(attributes_of(log).values()) == {None}
    # The leases are as before.
    assert log.one(Retry(both[:1], attributes=PAGE_7)).outcomes[0].done == ((1, 1000),)
    assert log.one(Retry(both[1:], attributes=PAGE_7)).outcomes[0].done == ((1001, 1),)
    # A repeat writes nothing, so it is not refused.
    repeated = log.one(Retry(both, attributes=PAGE_7)).outcomes
    assert [outcome.repeated for outcome in repeated] == [((1, 1000),), ((1001, 1),)]


def long_items(count: int) -> PartitionLog:
    log = PartitionLog(checked=False)
    log.configure(dead_targets=dead_to(DEAD_GROUP))
    log.produce(count)
    retry(log, lease(log, count).lease, attributes=LONG)
    return log


def test_a_lease_counts_them_against_its_bytes():
    log = long_items(600)
    grant = lease(log, 600)
    taken = len(seqs(grant))
    size = taken * ATTRIBUTES_BYTES_MAX
    assert REPLY_BYTES_DEFAULT - 2 * ATTRIBUTES_BYTES_MAX < size <= REPLY_BYTES_DEFAULT
    rest = lease(log, 600)
    assert seqs(grant)[-1] + 1 == seqs(rest)[0]
    assert taken + len(seqs(rest)) == 600


def test_a_lease_takes_one_item_however_long_they_are():
    log = long_items(2)
    small = lease_of(9, max_bytes=100)
    assert [seqs(log.one(small).grants[0]) for _ in range(2)] == [[1], [2]]


def test_scans_and_moves_count_them():
    log = long_items(600)
    with log.environment.snapshot() as txn:
        runs = browse(txn, GROUP, Span(1)).runs
    size = sum(queries.run_bytes(run) for run in runs)
    assert BROWSE_BYTES <= size < BROWSE_BYTES + 257 * (ATTRIBUTES_BYTES_MAX + 10)
    for _ in range(2):
        retry(log, lease(log, 600).lease, dead=True)
    with log.environment.snapshot() as txn:
        batch = queries.outbox_batch(txn, GROUP)
    assert batch is not None
    assert 100 < len(batch.items) <= MOVE_BATCH_BYTES_MAX // ATTRIBUTES_BYTES_MAX + 1
