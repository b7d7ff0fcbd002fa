"""Stages: they are invisible until their transaction publishes them completely and once; unwanted
stages are deleted.
"""

import msgspec
import pytest

from querator.model.commands import (
    Complete,
    Configure,
    Done,
    Expire,
    LeaseItems,
    Refusal,
    Route,
    Unhold,
)
from querator.model.entries import Proposal
from querator.model.errors import ErrorCode
from querator.model.item_options import ItemSpecial
from querator.model.limits import STAGE_TIMEOUT_MS
from querator.model.transactions import (
    Discard,
    DropStages,
    Prepare,
    Publish,
    StageClaim,
    StageResult,
    TransactionState,
)
from querator.partition import queries, staging
from querator.partition.dedup_export import ClosureQuery, closure
from querator.partition.txn_steps import StagedPage, StagedQuery, answer
from tests.unit.partition.partition_log import PartitionLog, lease_of, produce, seqs, settings
from tests.unit.partition.transaction_queue import SPARK, TransactionQueue, attempt, claim, stage_of

ITEMS = [b"one", b"two", b"three"]


@pytest.fixture
def queue():
    return TransactionQueue(1)


def stats(log):
    with log.environment.snapshot() as txn:
        return queries.stats(txn, log.group)


def prepare(log, *claims: StageClaim, txn=1, batch=0, producer=SPARK):
    return log.one(Prepare(txn, producer, batch, claims))


def test_what_is_staged_is_seen_by_nobody(queue):
    log = queue.logs[0]
    assert queue.stage(0, ITEMS) == StageResult()
    assert queue.visible(0) == []
    assert log.one(lease_of()).grants[0].lease == 0
    counts = stats(log)
    assert (counts.ready, counts.bytes, counts.produced) == (0, 0, 0)
    assert (counts.staged, counts.staged_bytes, counts.stages) == (3, 11, 1)
    assert counts.oldest_stage_at_ms == log.now_ms


def test_what_is_published_is_as_if_produced_then(queue):
    log = queue.logs[0]
    log.produce([b"before"])
    queue.stage(0, ITEMS)
    log.produce([b"after"])
    log.advance(60_000)
    assert prepare(log, claim(ITEMS)) == Done(1)
    assert queue.visible(0) == [b"before", b"after"]
    assert log.one(Publish(1)) == Done(0)
    assert queue.visible(0) == [b"before", b"after", *ITEMS]
    assert seqs(log.one(lease_of()).grants[0]) == [1, 2, 3, 4, 5]
    counts = stats(log)
    assert (counts.staged, counts.staged_bytes, counts.stages) == (0, 0, 0)
    assert counts.produced == 5
    assert counts.oldest_stage_at_ms == 0


def test_times_and_keys_count_from_the_publication():
    log = TransactionQueue(1, expire_timeout_ms=600_000).logs[0]
    later = log.now_ms + 300_000
    command, data = stage_of(
        [b"plain", b"late", b"brief", b"twin", b"twin again"],
        specials=(
            ItemSpecial(1, enqueue_at_ms=later),
            ItemSpecial(2, expire_timeout_ms=5_000),
            ItemSpecial(3, dedup_key=b"k"),
            ItemSpecial(4, dedup_key=b"k"),
        ),
    )
    log.one(command, data)
    log.produce([b"rival"], specials=(ItemSpecial(0, dedup_key=b"other"),))
    log.advance(60_000)
    claims = StageClaim(0, attempt(1), 5, command.checksum)
    prepare(log, claims)
    assert log.one(Publish(1)) == Done(0)
    counts = stats(log)
    assert (counts.ready, counts.scheduled, counts.duplicates) == (4, 1, 1)
    log.advance(6_000)
    assert stats(log).expired == 1
    log.advance(300_000)
    assert (stats(log).scheduled, stats(log).ready) == (0, 4)
    again = log.produce([b"third"], specials=(ItemSpecial(0, dedup_key=b"k"),))
    assert [twin[0] for twin in again.duplicates] == [0]
    log.advance(240_000)
    assert stats(log).expired == 2
    log.advance(60_000)
    assert stats(log).expired == 4, "those published at 60 s live for 600 s"
    assert stats(log).ready == 1


def test_items_of_a_transaction_keep_their_priority(queue):
    log = queue.logs[0]
    log.produce(1)
    queue.stage(0, ITEMS, specials=(ItemSpecial(0, priority=5), ItemSpecial(2, priority=-5)))
    prepare(log, claim(ITEMS))
    log.one(Publish(1))
    grant = log.one(lease_of()).grants[0]
    assert [segment.priority for segment in grant.segments] == [-5, 0, 0, 5]
    assert seqs(grant) == [4, 1, 3, 2]


def test_a_request_that_is_repeated_is_staged_once(queue):
    assert queue.stage(0, ITEMS, sequence=7) == StageResult()
    assert queue.stage(0, [b"more"], sequence=5) == StageResult()
    assert queue.stage(0, ITEMS, sequence=7) == StageResult(repeated=True)
    assert sorted(queue.staged(0)) == [b"more", b"onetwothree"]
    whole = StageClaim(
        0, attempt(1), 4, (claim(ITEMS).checksum + claim([b"more"]).checksum) % 2**32
    )
    assert prepare(queue.logs[0], whole) == Done(1)
    assert queue.stage(0, ITEMS, sequence=7) == StageResult(repeated=True)
    refused = queue.stage(0, [b"late"], sequence=8)
    assert (refused.code, refused.field) == (ErrorCode.TRANSACTION_ABORTED, "attempt")
    queue.logs[0].one(Publish(1))
    assert queue.visible(0) == [b"more", *ITEMS], "by the numbers of the requests"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"lengths": b""}, "items"),
        ({"lengths": b"\x01"}, "items"),
        ({"producer": ""}, "producer"),
        ({"producer": "p" * 129}, "producer"),
        ({"attempt": b"short"}, "attempt"),
        ({"batch": -1}, "batch"),
        ({"batch": 1 << 63}, "batch"),
        ({"task": -1}, "task"),
        ({"task": 1 << 31}, "task"),
        ({"sequence": 0}, "sequence"),
    ],
)
def test_malformed_requests_are_refused_and_leave_nothing(queue, change, field):
    command, data = stage_of([b"x"])
    command = msgspec.structs.replace(command, **change)
    if len(command.lengths) % 4 or not command.lengths:
        data = b""
    refused = queue.logs[0].one(command, data)
    assert (refused.code, refused.field) == (ErrorCode.INVALID_ARGUMENT, field)
    assert stats(queue.logs[0]).stages == 0


def test_a_partition_without_settings_stages_nothing():
    log = PartitionLog()
    command, data = stage_of(ITEMS)
    assert log.one(command, data).code is ErrorCode.UNAVAILABLE
    assert log.one(Prepare(1, SPARK, 0, ())).code is ErrorCode.UNAVAILABLE
    assert log.one(Publish(1)).code is ErrorCode.UNAVAILABLE


def test_staged_bytes_and_stages_are_bounded(queue, monkeypatch):
    monkeypatch.setattr(staging, "STAGED_BYTES_MAX", 20)
    monkeypatch.setattr(staging, "STAGES_MAX", 2)
    assert queue.stage(0, [b"x" * 15]) == StageResult()
    full = queue.stage(0, [b"x" * 6], sequence=2)
    assert (full.code, full.limit, full.value) == (ErrorCode.STAGE_FULL, "20", "21")
    assert queue.stage(0, [b"x" * 5], task=1) == StageResult()
    full = queue.stage(0, [b""], task=2)
    assert (full.code, full.limit, full.value) == (ErrorCode.STAGE_FULL, "2", "3")
    assert queue.logs[0].one(DropStages(SPARK, 0)) == Done(2)
    queue.logs[0].advance(0)
    assert queue.staged(0) == []
    assert queue.stage(0, [b"x" * 20]) == StageResult()


def test_large_requests_are_cut_into_pieces_and_published_in_order(queue):
    items = [b"%d," % number + b"x" * 2_000 for number in range(400)]
    queue.stage(0, items)
    assert len(queue.staged(0)) > 2
    prepare(queue.logs[0], claim(items))
    queue.logs[0].one(Publish(1))
    assert queue.visible(0) == items


def test_a_large_publication_goes_on_in_further_entries(queue, monkeypatch):
    monkeypatch.setattr(staging, "APPLY_SEGMENTS_MAX", 3)
    items = [[b"%d.%d" % (task, n) for n in range(2)] for task in range(7)]
    for task, there in enumerate(items):
        queue.stage(0, there, task=task)
    queue.stage(0, [b"loser"], task=3, attempt_number=2)
    prepare(queue.logs[0], *(claim(there, task=task) for task, there in enumerate(items)))
    entries = 1
    while queue.logs[0].one(Publish(1)) == Done(1):
        entries += 1
        assert entries < 10
    assert entries == 4
    assert queue.visible(0) == [item for there in items for item in there]
    queue.logs[0].advance(0)
    assert queue.staged(0) == [], "the other attempt went with the last entry"
    assert queue.logs[0].one(Publish(1)) == Done(0)
    assert len(queue.visible(0)) == 14


def test_other_attempts_and_other_batches(queue):
    log = queue.logs[0]
    queue.stage(0, [b"first"], attempt_number=1)
    queue.stage(0, [b"second"], attempt_number=2)
    queue.stage(0, [b"next batch"], batch=1)
    queue.stage(0, [b"another producer"], producer="q2")
    prepare(log, claim([b"second"], attempt_number=2))
    log.one(Publish(1))
    log.advance(0)
    assert queue.visible(0) == [b"second"]
    assert sorted(queue.staged(0)) == [b"another producer", b"next batch"]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (claim(ITEMS, task=9), "task 9 does not exist"),
        (claim(ITEMS, attempt_number=9), "does not exist"),
        (claim([b"one"]), "has 3 items"),
        (StageClaim(0, attempt(1), 3, 17), "the commit says 3 with 17"),
    ],
)
def test_stages_that_are_not_as_claimed_pin_nothing(queue, wrong, says):
    log = queue.logs[0]
    queue.stage(0, ITEMS)
    queue.stage(0, [b"fine"], task=1)
    refused = prepare(log, claim([b"fine"], task=1), wrong)
    assert isinstance(refused, Refusal)
    assert (refused.code, refused.field) == (ErrorCode.TRANSACTION_ABORTED, "stages")
    assert says in refused.message
    assert "partition 0" in refused.message
    assert log.one(DropStages(SPARK, 0)) == Done(2), "neither was pinned"


def test_prepare_again_changes_nothing_and_two_transactions_do_not_share(queue):
    log = queue.logs[0]
    queue.stage(0, ITEMS)
    assert prepare(log, claim(ITEMS), claim(ITEMS)) == Done(1)
    assert prepare(log, claim(ITEMS)) == Done(0)
    log.configure(version=2, items_max=1)
    assert prepare(log, claim(ITEMS)) == Done(0)
    refused = prepare(log, claim(ITEMS), txn=2)
    assert "another transaction" in refused.message
    assert log.one(Publish(2)) == Done(0)
    assert queue.visible(0) == []


def test_what_is_pinned_counts_for_the_limit_of_the_queue():
    queue = TransactionQueue(1, items_max=5)
    log = queue.logs[0]
    log.produce(1)
    queue.stage(0, ITEMS)
    queue.stage(0, ITEMS, task=1)
    refused = prepare(log, claim(ITEMS), claim(ITEMS, task=1))
    assert (refused.code, refused.limit, refused.value) == (ErrorCode.QUEUE_FULL, "5", "7")
    assert prepare(log, claim(ITEMS)) == Done(1)
    assert log.produce(2).code is ErrorCode.QUEUE_FULL
    assert log.produce(1).count == 1
    log.one(Publish(1))
    assert stats(log).ready == 5


def stage_keys(log: PartitionLog, *keys: bytes, task: int) -> StageClaim:
    """Stages an item without a key and one for each key. Returns the claim of the stage."""
    specials = tuple(ItemSpecial(ordinal, dedup_key=key) for ordinal, key in enumerate(keys, 1))
    items = [b"%d" % ordinal for ordinal in range(len(keys) + 1)]
    command, data = stage_of(items, task=task, specials=specials)
    assert log.one(command, data) == StageResult()
    return claim(items, task=task)


def test_keys_of_what_is_pinned_are_reserved(monkeypatch):
    monkeypatch.setattr("querator.partition.dedup.DEDUP_KEYS_MAX", 5)
    log = TransactionQueue(1).logs[0]
    log.produce(1, specials=(ItemSpecial(0, dedup_key=b"here"),))
    three, two = stage_keys(log, b"a", b"b", b"c", task=0), stage_keys(log, b"d", b"e", task=1)
    refused = prepare(log, three, two)
    assert refused.code is ErrorCode.TOO_MANY_DEDUP_KEYS
    assert (refused.field, refused.limit, refused.value) == ("dedup_key", "5", "6")
    assert prepare(log, three) == Done(1)
    assert prepare(log, two, txn=2).value == "6"
    late = log.produce(2, specials=tuple(ItemSpecial(n, dedup_key=b"%d" % n) for n in range(2)))
    assert (late.code, late.value) == (ErrorCode.TOO_MANY_DEDUP_KEYS, "6")
    assert log.produce(1, specials=(ItemSpecial(0, dedup_key=b"d"),)).count == 1
    assert log.one(Publish(1)) == Done(0)
    assert stats(log).produced == 6
    again = log.produce(1, specials=(ItemSpecial(0, dedup_key=b"f"),))
    assert (again.code, again.value) == (ErrorCode.TOO_MANY_DEDUP_KEYS, "6")


@pytest.mark.parametrize("keep", [True, False])
def test_keys_are_free_again_when_a_transaction_is_aborted(monkeypatch, keep):
    monkeypatch.setattr("querator.partition.dedup.DEDUP_KEYS_MAX", 3)
    log = TransactionQueue(1).logs[0]
    stage = stage_keys(log, b"a", b"b", b"c", task=0)
    assert prepare(log, stage) == Done(1)
    key = (ItemSpecial(0, dedup_key=b"other"),)
    assert log.produce(1, specials=key).code is ErrorCode.TOO_MANY_DEDUP_KEYS
    assert log.one(Discard(1, keep=keep)) == Done(0)
    assert log.produce(1, specials=key).count == 1
    if keep:
        assert prepare(log, stage, txn=2).code is ErrorCode.TOO_MANY_DEDUP_KEYS


def test_keys_are_not_reserved_where_the_queue_remembers_none(monkeypatch):
    monkeypatch.setattr("querator.partition.dedup.DEDUP_KEYS_MAX", 1)
    log = TransactionQueue(1, dedup_window_ms=0).logs[0]
    assert prepare(log, stage_keys(log, b"a", b"b", task=0)) == Done(1)
    assert log.one(Publish(1)) == Done(0)


def test_a_publication_in_steps_frees_its_keys_in_steps(monkeypatch):
    monkeypatch.setattr(staging, "APPLY_SEGMENTS_MAX", 1)
    monkeypatch.setattr("querator.partition.dedup.DEDUP_KEYS_MAX", 4)
    log = TransactionQueue(1).logs[0]
    claims = [stage_keys(log, b"a", b"b", task=0), stage_keys(log, b"b", b"c", task=1)]
    assert prepare(log, *claims) == Done(2)
    while log.one(Publish(1)).changed:
        pass
    assert log.produce(1, specials=(ItemSpecial(0, dedup_key=b"d"),)).count == 1, "b was twice"


def test_open_stages_expire_and_pinned_ones_do_not(queue):
    log = queue.logs[0]
    queue.stage(0, [b"idle"], task=1)
    queue.stage(0, [b"busy"], task=2)
    queue.stage(0, [b"pinned"], task=3)
    prepare(log, claim([b"pinned"], task=3))
    log.advance(STAGE_TIMEOUT_MS - 1)
    assert len(queue.staged(0)) == 3
    queue.stage(0, [b"busier"], task=2, sequence=2)
    log.advance(60_001)
    assert sorted(queue.staged(0)) == [b"busier", b"busy", b"pinned"]
    log.advance(STAGE_TIMEOUT_MS)
    assert queue.staged(0) == [b"pinned"]
    log.advance(10 * STAGE_TIMEOUT_MS)
    log.one(Publish(1))
    assert queue.visible(0) == [b"pinned"]


def test_discard_lets_go_for_ever_or_for_another_try(queue):
    log = queue.logs[0]
    queue.stage(0, ITEMS)
    prepare(log, claim(ITEMS))
    assert log.one(Discard(1, keep=True)) == Done(0)
    assert prepare(log, claim(ITEMS), txn=2) == Done(1)
    assert log.one(Discard(2)) == Done(0)
    refused = prepare(log, claim(ITEMS), txn=3)
    assert "does not exist" in refused.message
    log.advance(0)
    assert queue.staged(0) == []
    assert log.one(Discard(2)) == Done(0)


def test_doomed_stages_are_deleted_bit_by_bit(queue, monkeypatch):
    log = queue.logs[0]
    for sequence in range(1, 8):
        queue.stage(0, [b"%d" % sequence], sequence=sequence)
    monkeypatch.setattr("querator.partition.expire.APPLY_SEGMENTS_MAX", 3)
    log.one(DropStages(SPARK, 0))
    left = []
    while queue.staged(0):
        log.one(Expire())
        left.append(len(queue.staged(0)))
        assert len(left) < 10
    assert left[:2] == [5, 3]
    assert stats(log).staged_bytes == 0


def test_an_abort_does_not_touch_what_is_pinned(queue):
    log = queue.logs[0]
    queue.stage(0, [b"pinned"])
    queue.stage(0, [b"open"], attempt_number=2)
    prepare(log, claim([b"pinned"]))
    assert log.one(DropStages(SPARK, 0)) == Done(1)
    assert log.one(DropStages(SPARK, 0)) == Done(0)
    log.one(Publish(1))
    assert queue.visible(0) == [b"pinned"]


def test_a_stage_belongs_to_one_number_of_partitions(queue):
    log = queue.logs[0]
    log.one(Route(1, 1, open=True))
    refused = queue.stage(0, ITEMS, routing=0)
    assert (refused.code, refused.value) == (ErrorCode.ROUTING_CHANGED, "1")
    assert queue.stage(0, ITEMS, routing=1) == StageResult()
    log.one(Route(2, 3, open=False))
    assert queue.stage(0, ITEMS, sequence=2, routing=2).code is ErrorCode.ROUTING_CHANGED
    log.one(Route(2, 3, open=True))
    refused = queue.stage(0, ITEMS, sequence=2, routing=2)
    assert refused.code is ErrorCode.TRANSACTION_ABORTED
    assert "other partitions" in refused.message
    repeated = queue.stage(0, ITEMS, routing=2)
    assert repeated.code is ErrorCode.TRANSACTION_ABORTED, "it was cut for other partitions"
    refused = prepare(log, claim(ITEMS))
    assert "before the number of partitions changed" in refused.message
    assert queue.stage(0, ITEMS, routing=2, attempt_number=2) == StageResult()
    assert prepare(log, claim(ITEMS, attempt_number=2)) == Done(1)


def test_a_closing_partition_publishes_what_was_pinned_before():
    log = PartitionLog()
    log.configure(partition=1)
    log.one(Route(1, 2, open=True))
    command, data = stage_of(ITEMS, routing=1)
    log.one(command, data)
    prepare(log, claim(ITEMS))
    log.one(Route(2, 1, open=True))
    refused = log.one(*stage_of(ITEMS, routing=2, task=1))
    assert refused.code is ErrorCode.ROUTING_CHANGED
    log.one(Publish(1))
    assert stats(log).ready == 3


def test_keys_wait_for_what_was_published_before_a_change():
    queue = TransactionQueue(2)
    old, new = queue.logs
    # Slot 1 belongs to partition 0 of one, and to partition 1 of two.
    moved, plain = b"\x01\x00", b"\xff\xff"
    queue.stage(0, [b"before"], slots=moved)
    prepare(old, claim([b"before"]))
    for log in queue.logs:
        log.one(Route(1, 2, open=False, before=1))
    old.one(Publish(1))
    for log in queue.logs:
        log.one(Route(1, 2, open=True, before=1))
    items = [b"after", b"plain"]
    queue.stage(1, items, batch=1, routing=1, slots=moved + plain)
    prepare(new, claim(items), txn=2, batch=1)
    new.one(Publish(2))
    assert (stats(new).ready, stats(new).held, stats(new).waits_for) == (1, 1, (0,))
    assert changes(old) == ((1, False, b""),)
    grant = old.one(lease_of()).grants[0]
    assert changes(old) == ((1, False, b""),)
    old.one(Complete((LeaseItems(grant.lease),)))
    assert changes(old) == ((1, True, b""),)
    old.one(Unhold(1, b""))
    new.one(Unhold(1, b"\x01"))
    assert (stats(new).ready, stats(new).held, stats(new).waits_for) == (2, 0, ())
    assert changes(old) == changes(new) == ()


def changes(log):
    with log.environment.snapshot() as txn:
        return closure(txn, ClosureQuery(log.group)).changes


def test_a_partition_with_something_pinned_does_not_go():
    log = PartitionLog()
    log.configure(partition=1)
    log.one(Route(1, 2, open=True))
    command, data = stage_of(ITEMS, routing=1)
    log.one(command, data)
    prepare(log, claim(ITEMS))
    log.one(Route(2, 1, open=True))
    with log.environment.snapshot() as txn:
        pinned = closure(txn, ClosureQuery(log.group))
    assert pinned.closing
    assert pinned.pinned
    assert not pinned.is_empty
    log.one(Discard(1))
    with log.environment.snapshot() as txn:
        assert closure(txn, ClosureQuery(log.group)).is_empty


def test_settings_of_the_publication_hold(queue):
    log = queue.logs[0]
    queue.stage(0, ITEMS)
    prepare(log, claim(ITEMS))
    log.one(Configure(2, settings(expire_timeout_ms=1_000)))
    log.advance(500_000)
    log.one(Publish(1))
    assert stats(log).ready == 3
    log.advance(3_000)
    assert stats(log).expired == 3


def test_operators_see_what_is_staged(queue):
    log = queue.logs[0]
    begun = log.now_ms
    queue.stage(0, ITEMS, task=0)
    log.advance(1_000)
    queue.stage(0, ITEMS, task=1)
    queue.stage(0, [b"x"], producer="q2", batch=7)
    prepare(log, claim([b"x"]), producer="q2", batch=7)
    with log.environment.snapshot() as txn:
        page = answer(txn, StagedQuery(log.group, 10))
        short = answer(txn, StagedQuery(log.group, 1))
    assert isinstance(page, StagedPage)
    assert isinstance(short, StagedPage)
    assert not page.more
    first, second = page.batches
    assert (first.producer, first.batch, first.stages, first.items, first.bytes) == (
        SPARK, 0, 2, 6, 22,
    )  # fmt: skip
    assert (first.begun_ms, first.since_ms) == (begun, begun + 1_000)
    assert first.state is TransactionState.NONE
    assert (second.producer, second.state) == ("q2", TransactionState.PREPARING)
    assert short.batches == (first,)
    assert short.more


def test_stages_of_one_entry_have_their_own_attachments(queue):
    log = queue.logs[0]
    one, data = stage_of([b"a"], task=1)
    two, more = stage_of([b"b"], task=2)
    results = log.entry(Proposal(one, data), produce([b"plain"]), Proposal(two, more))
    assert results[0] == results[2] == StageResult()
    assert queue.visible(0) == [b"plain"]
    assert sorted(queue.staged(0)) == [b"a", b"b"]
