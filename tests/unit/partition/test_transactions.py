"""Transactions over partitions: a batch becomes visible completely and once, or not at all, even if
carriers die on the way.
"""

import pytest

from querator.model.commands import Route
from querator.model.errors import ErrorCode
from querator.model.limits import TXN_PRODUCER_RETENTION_MS
from querator.model.transactions import (
    AbortTxn,
    Begin,
    Decide,
    Discard,
    DropStages,
    Finish,
    Participant,
    Prepare,
    ProducerTotals,
    Publish,
    StageClaim,
    StageResult,
    TransactionState,
    TxnResult,
)
from querator.partition import staging, transactions
from querator.partition.txn_steps import (
    CommittedQuery,
    PinnedTxn,
    ProducerQuery,
    TxnQuery,
    answer,
    open_txns,
    pinned_txns,
)
from tests.unit.partition.transaction_queue import SPARK, TransactionQueue, attempt, claim

PREPARING, COMMITTED, ABORTED = (
    TransactionState.PREPARING,
    TransactionState.COMMITTED,
    TransactionState.ABORTED,
)
EVERYTHING = sorted([b"p%d task %d" % (p, task) for p in range(3) for task in range(2)])


Claims = dict[int, list[StageClaim]]


def staged(batch: int = 0) -> tuple[TransactionQueue, Claims]:
    queue = TransactionQueue(3)
    return queue, stage_all(queue, batch)


def stage_all(queue: TransactionQueue, batch: int = 0, attempt_number: int = 1) -> Claims:
    claims: Claims = {}
    for partition in range(3):
        for task in range(2):
            items = [b"p%d task %d" % (partition, task)]
            at = {"task": task, "attempt_number": attempt_number}
            assert queue.stage(partition, items, batch=batch, **at) == StageResult()
            claims.setdefault(partition, []).append(claim(items, **at))
    return claims


def ask(queue: TransactionQueue, query):
    with queue.environment.snapshot() as txn:
        return answer(txn, query)


def test_what_a_producer_has_committed_is_counted():
    queue, claims = staged()
    assert ask(queue, ProducerQuery(11, SPARK)) == ProducerTotals()
    queue.begin(claims)
    assert ask(queue, ProducerQuery(11, SPARK)) == ProducerTotals()
    assert queue.carry()
    assert ask(queue, ProducerQuery(11, SPARK)) == ProducerTotals(0, 6, 6)
    queue.begin(claims)
    assert ask(queue, ProducerQuery(11, SPARK)) == ProducerTotals(0, 6, 6), "a repeat counts once"
    queue.begin({}, batch=5)
    assert queue.carry()
    assert ask(queue, ProducerQuery(11, SPARK)) == ProducerTotals(5, 0, 6)
    queue.begin(stage_all(queue, batch=7), batch=7)
    assert queue.carry()
    assert ask(queue, ProducerQuery(11, SPARK)) == ProducerTotals(7, 6, 12)


def test_a_batch_is_committed_by_one_row_and_then_published():
    queue, claims = staged()
    assert queue.begin(claims) == TxnResult(1, PREPARING)
    assert not queue.carry(3)
    assert queue.everything() == []
    assert ask(queue, CommittedQuery(11, (SPARK, "other"))) == (-1, -1)
    assert queue.logs[0].one(Decide(1)) == TxnResult(1, COMMITTED)
    assert ask(queue, CommittedQuery(11, (SPARK,))) == (0,)
    assert queue.everything() == []
    assert not queue.carry(1)
    assert len(queue.everything()) == 2, "partition by partition"
    assert queue.carry()
    assert queue.everything() == EVERYTHING
    assert ask(queue, TxnQuery(11, 1, SPARK, 0)).state is COMMITTED


@pytest.mark.parametrize("steps", range(9))
def test_a_carrier_may_die_at_each_step(steps):
    queue, claims = staged()
    assert queue.begin(claims).txn == 1
    queue.carry(steps)
    assert queue.begin(claims).state in (PREPARING, COMMITTED), "the driver asks again"
    assert queue.carry()
    assert queue.everything() == EVERYTHING
    assert queue.begin(claims) == TxnResult(0, COMMITTED)
    assert all(queue.staged(number) == [] for number in range(3))


@pytest.mark.parametrize("steps", range(9))
def test_a_carrier_of_an_abort_may_die_at_each_step(steps):
    queue, claims = staged()
    claims[2][1] = StageClaim(7, attempt(7), 1, 1)
    queue.begin(claims)
    queue.carry(steps)
    assert queue.carry()
    assert queue.everything() == []
    ended = ask(queue, TxnQuery(11, 1, SPARK, 0))
    assert (ended.state, ended.code) == (ABORTED, ErrorCode.TRANSACTION_ABORTED)
    assert "task 7 does not exist" in ended.message
    assert "partition 2" in ended.message
    again = stage_all(queue, attempt_number=2)
    assert queue.begin(again) == TxnResult(2, PREPARING)
    assert queue.carry()
    assert queue.everything() == EVERYTHING


@pytest.mark.parametrize("first", range(8))
@pytest.mark.parametrize("second", range(4))
def test_two_carriers_at_once(first, second):
    """One carrier is held up while the other continues, and then repeats the steps that it had
    read.
    """
    queue, claims = staged()
    queue.begin(claims)
    with queue.environment.snapshot() as txn:
        [held] = open_txns(txn, 11)
    queue.carry(first)
    for group, step in held.steps[: second + 1]:
        queue.logs[group - 11].one(step)
    assert queue.carry()
    for group, step in held.steps:
        queue.logs[group - 11].one(step)
    queue.logs[0].one(Finish(1))
    assert queue.everything() == EVERYTHING
    with queue.environment.snapshot() as txn:
        assert [pinned_txns(txn, log.group) for log in queue.logs] == [(), (), ()]


def test_all_of_a_commit_that_is_repeated_with_other_attempts_is_a_duplicate():
    queue, claims = staged()
    queue.begin(claims)
    queue.carry()
    again = queue.begin({0: [claim([b"other"], attempt_number=9)]})
    assert again == TxnResult(0, COMMITTED)
    assert queue.carry()
    assert queue.everything() == EVERYTHING


def test_stage_of_a_committed_batch_is_not_taken_by_the_coordinator():
    queue, claims = staged(batch=5)
    queue.begin(claims, batch=5)
    queue.carry()
    for batch in (4, 5):
        assert queue.stage(0, [b"x"], batch=batch) == StageResult(committed=True)
    assert queue.stage(0, [b"x"], batch=6) == StageResult()


def test_an_empty_batch_is_committed_too():
    queue = TransactionQueue(1)
    assert queue.begin({}, batch=3) == TxnResult(1, PREPARING)
    assert queue.carry()
    assert ask(queue, CommittedQuery(11, (SPARK,))) == (3,)


def test_one_undecided_transaction_for_a_producer():
    queue, claims = staged()
    other = stage_all(queue, batch=0, attempt_number=2)
    assert queue.begin(claims) == TxnResult(1, PREPARING)
    assert queue.begin(claims) == TxnResult(1, PREPARING)
    assert queue.begin(other) == TxnResult(1, PREPARING, mine=False)
    assert queue.begin(other, batch=1) == TxnResult(1, PREPARING, mine=False)
    assert queue.begin({}, producer="q2") == TxnResult(2, PREPARING)
    queue.carry()
    assert queue.begin(other) == TxnResult(0, COMMITTED)
    assert queue.everything() == EVERYTHING


def test_an_abort_that_is_not_carried_out_is_in_the_way():
    queue, claims = staged()
    queue.begin(claims)
    queue.logs[0].one(Decide(1, int(ErrorCode.QUEUE_FULL), "full", keep=True))
    assert queue.begin(claims) == TxnResult(1, ABORTED, mine=False)
    queue.carry()
    assert queue.begin(claims) == TxnResult(2, PREPARING), "nothing of it was dropped"
    queue.carry()
    assert queue.everything() == EVERYTHING


def test_publishing_is_not_in_the_way_of_the_next_batch():
    queue, claims = staged()
    queue.begin(claims)
    queue.carry(4)
    more = {0: [claim([b"next"])]}
    queue.stage(0, [b"next"], batch=1)
    assert queue.begin(more, batch=1) == TxnResult(2, PREPARING)
    queue.carry()
    assert queue.everything() == sorted([*EVERYTHING, b"next"])


def test_a_decision_stays():
    queue, claims = staged()
    queue.begin(claims)
    code = int(ErrorCode.TRANSACTION_ABORTED)
    assert queue.logs[0].one(Finish(1)) == TxnResult(1, PREPARING), "too early"
    assert queue.logs[0].one(Decide(1, code, "no")).state is ABORTED
    assert queue.logs[0].one(Decide(1)).state is ABORTED
    queue.carry()
    assert queue.logs[0].one(Decide(1)) == TxnResult(0, TransactionState.NONE)
    assert queue.everything() == []


def test_abort_before_the_decision_and_after_it():
    queue, claims = staged()
    abort = AbortTxn(SPARK, 0)
    assert queue.logs[0].one(abort) == TxnResult(0, TransactionState.NONE)
    queue.begin(claims)
    queue.carry(2)
    aborted = queue.logs[0].one(abort)
    assert (aborted.txn, aborted.state) == (1, ABORTED)
    assert queue.logs[0].one(AbortTxn(SPARK, 1)) == TxnResult(0, TransactionState.NONE)
    queue.carry()
    assert [log.one(DropStages(SPARK, 0)).changed for log in queue.logs] == [0, 0, 2]
    claims = stage_all(queue, attempt_number=2)
    queue.begin(claims)
    queue.carry(4)
    assert queue.logs[0].one(abort) == TxnResult(0, COMMITTED)
    queue.carry()
    assert queue.logs[0].one(abort) == TxnResult(0, COMMITTED)
    assert queue.everything() == EVERYTHING


def test_an_abort_of_another_batch_leaves_the_transaction_alone():
    queue, claims = staged(batch=2)
    queue.begin(claims, batch=2)
    assert queue.logs[0].one(AbortTxn(SPARK, 3)) == TxnResult(0, TransactionState.NONE)
    queue.carry()
    assert queue.everything() == EVERYTHING


def test_partitions_that_change_before_the_decision_abort_it():
    queue, claims = staged()
    queue.begin(claims)
    queue.carry(1)
    for log in queue.logs:
        log.one(Route(1, 4, open=True))
    queue.carry()
    assert queue.everything() == []
    ended = ask(queue, TxnQuery(11, 1, SPARK, 0))
    assert "number of partitions changed" in ended.message
    assert ended.code is ErrorCode.TRANSACTION_ABORTED


def test_partitions_that_change_after_the_decision_do_not():
    queue, claims = staged()
    queue.begin(claims)
    queue.carry(4)
    for log in queue.logs:
        log.one(Route(1, 2, open=True))
    queue.carry()
    assert queue.everything() == EVERYTHING


def test_what_is_pinned_for_a_transaction_that_is_over_is_found_and_let_go():
    queue, claims = staged()
    late = Prepare(1, SPARK, 0, tuple(claims[1]))
    queue.begin(claims)
    queue.logs[0].one(Decide(1, int(ErrorCode.QUEUE_FULL), "full", keep=True))
    queue.carry()
    refused = queue.logs[1].one(late)
    assert refused.code is ErrorCode.TRANSACTION_ABORTED
    for log in queue.logs:
        log.advance(TXN_PRODUCER_RETENTION_MS + 180_000)
    claims = stage_all(queue)
    queue.logs[1].one(late)
    with queue.environment.snapshot() as txn:
        [pinned] = pinned_txns(txn, 12)
    assert pinned == PinnedTxn(1, SPARK, 0)
    assert ask(queue, TxnQuery(11, 1, SPARK, 0)).txn == 0
    queue.logs[1].one(Discard(1, keep=True))
    assert queue.begin(claims) == TxnResult(2, PREPARING)
    queue.carry()
    assert queue.everything() == EVERYTHING


def test_only_the_first_partition_coordinates():
    queue = TransactionQueue(2)
    refused = queue.logs[1].one(Begin(SPARK, 0, ()))
    assert (refused.code, refused.field) == (ErrorCode.INVALID_ARGUMENT, "partition")


@pytest.mark.parametrize(
    ("command", "field"),
    [
        (Begin("", 0, ()), "producer"),
        (Begin("p" * 129, 0, ()), "producer"),
        (Begin(SPARK, -1, ()), "batch"),
        (Begin(SPARK, 1 << 63, ()), "batch"),
        (
            Begin(SPARK, 0, (Participant(0, 11, (StageClaim(0, attempt(1), 1, 1),) * 10_001),)),
            "stages",
        ),
    ],
)
def test_malformed_commits_open_nothing(command, field):
    queue = TransactionQueue(1)
    refused = queue.logs[0].one(command)
    assert (refused.code, refused.field) == (ErrorCode.INVALID_ARGUMENT, field)
    assert queue.carry()


def test_transactions_and_producers_are_bounded(monkeypatch):
    queue = TransactionQueue(1)
    monkeypatch.setattr(transactions, "TXNS_OPEN_MAX", 2)
    monkeypatch.setattr(transactions, "TXN_PRODUCERS_MAX", 2)
    queue.begin({}, producer="a")
    queue.begin({}, producer="b")
    full = queue.begin({}, producer="c")
    assert (full.code, full.limit) == (ErrorCode.OVERLOADED, "2")
    queue.carry()
    full = queue.begin({}, producer="c")
    assert (full.code, full.limit) == (ErrorCode.TOO_MANY_PRODUCERS, "2")
    assert queue.begin({}, producer="a", batch=1).state is PREPARING


def test_producers_are_forgotten_when_they_have_been_silent_for_long():
    queue = TransactionQueue(1)
    queue.begin({}, batch=4)
    queue.carry()
    queue.logs[0].advance(TXN_PRODUCER_RETENTION_MS - 1)
    queue.begin({}, batch=5)
    queue.carry()
    queue.logs[0].advance(TXN_PRODUCER_RETENTION_MS - 1)
    assert ask(queue, CommittedQuery(11, (SPARK,))) == (5,)
    queue.logs[0].advance(180_000)
    assert ask(queue, CommittedQuery(11, (SPARK,))) == (-1,)


def test_large_publications_survive_a_death_at_each_entry(monkeypatch):
    monkeypatch.setattr(staging, "APPLY_SEGMENTS_MAX", 2)
    for steps in range(14):
        queue, claims = staged()
        queue.begin(claims)
        queue.carry(steps)
        assert queue.carry()
        assert queue.everything() == EVERYTHING
        assert queue.logs[1].one(Publish(1)).changed == 0
