"""Steps of a transaction that arrive late: a partition remembers what it has finished."""

import pytest

from querator.model.commands import Adopt, Done, Refusal, Route
from querator.model.errors import ErrorCode
from querator.model.limits import TXN_PRODUCER_RETENTION_MS
from querator.model.transactions import (
    Begin,
    Decide,
    Discard,
    DropStages,
    Prepare,
    Publish,
    StageResult,
    TransactionState,
    TxnResult,
)
from querator.partition import dedup_export, txn_producers
from querator.partition.dedup_export import FactsQuery
from querator.partition.txn_steps import OpenBatchName, open_batches
from querator.storage.tables import TXN_PRODUCERS
from tests.unit.partition.partition_log import PartitionLog
from tests.unit.partition.transaction_queue import SPARK, TransactionQueue, claim, stage_of

ITEMS = [b"one", b"two"]


def participant(**settings) -> PartitionLog:
    """A partition that does not coordinate."""
    return TransactionQueue(2, **settings).logs[1]


def stage(log: PartitionLog, items: list[bytes] = ITEMS, **changes):
    return log.one(*stage_of(items, **changes))


def produced(log: PartitionLog) -> int:
    ready: int = log.applied.effects.ready
    return ready


def remembered(txn, log: PartitionLog) -> int:
    return sum(1 for _ in TXN_PRODUCERS.rows(txn, log.group))


def committed(log: PartitionLog, *, txn: int = 1, batch: int = 0, producer: str = SPARK) -> None:
    assert stage(log, batch=batch, producer=producer) == StageResult()
    assert log.one(Prepare(txn, producer, batch, (claim(ITEMS),))) == Done(1)
    assert log.one(Publish(txn, producer, batch)) == Done(0)


@pytest.mark.parametrize("partition", [0, 1])
def test_stage_prepare_and_publish_that_all_come_late_make_no_item_twice(partition):
    queue = TransactionQueue(2)
    log = queue.logs[partition]
    late = (
        stage_of(ITEMS),
        (Prepare(1, SPARK, 0, (claim(ITEMS),)), b""),
        (Publish(1, SPARK, 0), b""),
    )
    queue.stage(partition, ITEMS)
    assert queue.begin({partition: [claim(ITEMS)]}).txn == 1
    assert queue.carry()
    answers = [log.one(*step) for step in late]
    assert queue.visible(partition) == ITEMS
    assert answers[0] == StageResult(committed=True)
    assert isinstance(answers[1], Refusal)
    assert (answers[1].code, answers[1].field) == (ErrorCode.TRANSACTION_ABORTED, "stages")
    assert "transaction 1 of producer query-1 has ended" in answers[1].message
    assert answers[2] == Done(0)
    assert queue.staged(partition) == []


def test_an_attempt_that_stages_after_the_commit_is_told_and_keeps_nothing():
    log = participant()
    committed(log, batch=5)
    for batch in (4, 5):
        assert stage(log, [b"late"], batch=batch, sequence=7, attempt_number=2) == StageResult(
            committed=True
        )
    assert stage(log, [b"next"], batch=6) == StageResult()


def test_a_step_without_names_finishes_the_batch_that_it_finds():
    log = participant()
    stage(log)
    log.one(Prepare(1, SPARK, 0, (claim(ITEMS),)))
    assert log.one(Publish(1)) == Done(0)
    assert stage(log) == StageResult(committed=True)


def test_a_late_prepare_of_what_was_discarded_pins_nothing():
    log = participant()
    stage(log)
    late = Prepare(1, SPARK, 0, (claim(ITEMS),))
    assert log.one(Discard(1, True, SPARK, 0)) == Done(0), "it overtakes the first Prepare"
    refused = log.one(late)
    assert isinstance(refused, Refusal)
    assert refused.code is ErrorCode.TRANSACTION_ABORTED
    assert log.one(Prepare(2, SPARK, 0, (claim(ITEMS),))) == Done(1), "another commit may have it"
    assert log.one(Publish(2, SPARK, 0)) == Done(0)
    assert produced(log) == 2


def test_a_batch_that_was_aborted_may_be_staged_again():
    log = participant()
    stage(log)
    log.one(Prepare(1, SPARK, 0, (claim(ITEMS),)))
    log.one(Discard(1, False, SPARK, 0))
    assert stage(log, attempt_number=2) == StageResult()
    assert log.one(Prepare(2, SPARK, 0, (claim(ITEMS, attempt_number=2),))) == Done(1)


def test_a_publication_is_not_stopped_by_a_later_batch():
    log = participant()
    stage(log)
    log.one(Prepare(1, SPARK, 0, (claim(ITEMS),)))
    committed(log, txn=2, batch=1)
    assert log.one(Publish(1, SPARK, 0)) == Done(0)
    assert produced(log) == 4


def test_what_is_remembered_is_one_row_for_a_producer_and_goes_in_its_time():
    log = participant()
    for batch in range(3):
        committed(log, txn=batch + 1, batch=batch)
    with log.environment.snapshot() as txn:
        assert remembered(txn, log) == 1
    log.advance(TXN_PRODUCER_RETENTION_MS - 1)
    assert stage(log, batch=2) == StageResult(committed=True)
    log.advance(180_000)
    assert stage(log, batch=2) == StageResult()


def test_a_participant_forgets_who_has_been_silent_for_longest(monkeypatch):
    monkeypatch.setattr(txn_producers, "TXN_PRODUCERS_MAX", 2)
    log = participant()
    for number, name in enumerate("abac"):
        committed(log, txn=number + 1, batch=number, producer=name)
        log.advance(3_600_000)
    assert stage(log, producer="a") == StageResult(committed=True)
    assert stage(log, producer="c") == StageResult(committed=True)
    assert stage(log, producer="b") == StageResult()


def test_a_partition_without_stages_of_the_batch_is_told_of_it():
    queue = TransactionQueue(2)
    queue.stage(0, ITEMS)
    queue.begin({0: [claim(ITEMS)]})
    queue.carry()
    log = queue.logs[1]
    for task in range(3):
        assert queue.stage(1, [b"zombie"], task=task, attempt_number=9) == StageResult()
    queue.stage(1, [b"next"], batch=1)
    queue.stage(1, [b"other"], producer="other")
    with queue.environment.snapshot() as txn:
        found = open_batches(txn, log.group, 10)
        assert set(found) == {
            OpenBatchName(SPARK, 0),
            OpenBatchName(SPARK, 1),
            OpenBatchName("other", 0),
        }
        assert len(open_batches(txn, log.group, 2)) == 2
    assert log.one(DropStages(SPARK, 0, committed=0)) == Done(3)
    log.advance(0)
    assert sorted(queue.staged(1)) == [b"next", b"other"]
    assert queue.stage(1, [b"zombie"], sequence=2, attempt_number=9) == StageResult(committed=True)


def test_a_partition_that_comes_learns_what_is_committed():
    queue = TransactionQueue(2)
    old, new = queue.logs
    queue.stage(0, ITEMS)
    queue.begin({0: [claim(ITEMS)]})
    queue.carry()
    old.one(Begin("open", 7, ()))
    queue.begin({}, producer="empty", batch=3)
    queue.carry()
    hand_over(old, new, before=1, partitions=2)
    for log in queue.logs:
        log.one(Route(1, 2, open=True, before=1))
    assert queue.stage(1, [b"zombie"], routing=1) == StageResult(committed=True)
    empty = queue.stage(1, [b"zombie"], producer="empty", batch=3, routing=1)
    assert empty == StageResult(committed=True)
    assert queue.stage(1, [b"next"], batch=1, routing=1) == StageResult()
    new.advance(TXN_PRODUCER_RETENTION_MS + 180_000)
    with queue.environment.snapshot() as txn:
        assert remembered(txn, new) == 0


def test_what_is_handed_over_is_read_in_pages_and_from_a_time_on(monkeypatch):
    monkeypatch.setattr(dedup_export, "PAGE_ROWS_MAX", 2)
    queue = TransactionQueue(2)
    old, new = queue.logs
    for number in range(5):
        queue.begin({}, producer=f"p{number}", batch=number)
    queue.carry()
    hand_over(old, new, before=1, partitions=2)
    for number in range(5):
        told = queue.stage(1, [b"x"], producer=f"p{number}", batch=number)
        assert told == StageResult(committed=True)
    old.advance(1_000)
    queue.begin({}, producer="p0", batch=9)
    queue.carry()
    adopted = hand_over(old, new, before=1, partitions=2, since_ms=old.now_ms)
    assert adopted == 1
    assert queue.stage(1, [b"x"], producer="p0", batch=9) == StageResult(committed=True)


def hand_over(
    old: PartitionLog, new: PartitionLog, *, before: int, partitions: int, since_ms: int = 0
) -> int:
    """Hands facts over, and returns how many of them changed anything."""
    after, count = b"", 0
    while True:
        with old.environment.snapshot() as txn:
            page = dedup_export.facts(
                txn, FactsQuery(old.group, before, partitions, after, since_ms)
            )
        for partition, found in page.facts:
            assert partition == 1
            count += new.one(Adopt(found)).changed
        after = page.after
        if not after:
            return count


def test_a_late_verdict_about_a_prepare_that_was_refused_changes_nothing():
    queue = TransactionQueue(2)
    queue.stage(1, ITEMS)
    queue.begin({1: [claim(ITEMS)]})
    assert not queue.carry(3)
    refused = queue.logs[1].one(Prepare(1, SPARK, 0, (claim(ITEMS),)))
    assert isinstance(refused, Refusal), "publication has begun"
    late = Decide(1, int(ErrorCode.TRANSACTION_ABORTED), refused.message)
    assert queue.logs[0].one(late) == TxnResult(1, TransactionState.COMMITTED)
    assert queue.carry()
    assert queue.visible(1) == ITEMS
