"""Rewinds as scenarios: what stays, what goes, and what is refused."""

from typing import Any

import pytest

from querator.model.commands import Refusal
from querator.model.errors import ErrorCode, QueratorError
from querator.model.execution_commands import (
    FireTimers,
    RewindExecution,
    Rewound,
    check_rewind,
)
from querator.model.executions import (
    ArriveKind,
    Close,
    ExecutionState,
    Fold,
    GiveBack,
    KeyPolicy,
    NewRun,
    Park,
    RecordKind,
    Timer,
)
from querator.model.limits import EXECUTION_REWINDS_MAX
from tests.unit.partition.execution_queue import (
    RETENTION_MS,
    ExecutionQueue,
    Worker,
    arrived,
    call,
    path,
    recorded,
    refused,
    spawn,
    step,
)

DONE = Close(RecordKind.COMPLETED, b"result")
KINDS = RecordKind


def sent(queue: ExecutionQueue, to: int, name: str = "a", **changes: Any) -> Any:
    changes.setdefault("request", b"%016d" % queue.log.index)
    command = RewindExecution(name, to, **changes)
    check_rewind(command)
    return queue.log.one(command)


def rewound(queue: ExecutionQueue, to: int, name: str = "a", **changes: Any) -> Rewound:
    result = sent(queue, to, name, **changes)
    assert isinstance(result, Rewound), result
    return result


def why(result: object) -> str:
    assert isinstance(result, Refusal), result
    assert (result.code, result.field) == (ErrorCode.INVALID_ARGUMENT, "record")
    return result.message


def ended(*steps: int) -> tuple[ExecutionQueue, Worker]:
    """An execution that has ended, with one record for each step."""
    queue = ExecutionQueue()
    worker = queue.worker()
    recorded(queue.record(worker, *[step(nth) for nth in steps], then=DONE))
    return queue, worker


def paths(queue: ExecutionQueue, name: str = "a") -> list[bytes]:
    return [one.note.path for one in queue.journal(name)]


def kinds(queue: ExecutionQueue, name: str = "a") -> list[RecordKind]:
    return [RecordKind(one.note.kind) for one in queue.journal(name)]


def test_an_execution_that_has_ended_continues_from_a_record():
    queue, worker = ended(1, 2, 3)
    assert rewound(queue, 2) == Rewound(worker.execution, 2, 2, 0)
    assert paths(queue) == [b"", path(1), path(2)]
    view = queue.view()
    assert (view.state, view.run, view.closed_ms) == (ExecutionState.RUNNABLE, 2, 0)
    again = queue.leased("a")
    assert queue.at(again.item).origin == 1
    first = recorded(queue.record(again, step(3), then=DONE)).first_index
    # No index is used twice.
    assert first == 5
    assert queue.view().state is ExecutionState.COMPLETED


def test_a_rewind_to_the_arguments_leaves_them_alone():
    queue, _ = ended(1, 2)
    rewound(queue, 0)
    assert [one.note.payload for one in queue.journal()] == [b"args"]


def test_the_lease_of_one_that_runs_is_fenced():
    queue = ExecutionQueue()
    worker = queue.worker()
    queue.record(worker, step(1), step(2))
    rewound(queue, 1)
    assert refused(queue.record(worker, step(3)))[0] is ErrorCode.LEASE_LOST
    assert queue.leased("a").item != worker.item
    assert paths(queue) == [b"", path(1)]


def test_the_last_record_may_be_the_one():
    queue = ExecutionQueue()
    worker = queue.worker()
    queue.record(worker, step(1))
    assert rewound(queue, 1).records == 0
    assert refused(queue.record(worker, step(2)))[0] is ErrorCode.LEASE_LOST


@pytest.mark.parametrize("then", [Park(names=("go",)), GiveBack(stuck=True, reason="help")])
def test_one_that_is_parked_or_stuck_can_run(then):
    queue = ExecutionQueue()
    recorded(queue.record(queue.worker(), step(1), step(2), then=then))
    rewound(queue, 1)
    assert (queue.view().state, queue.view().reason) == (ExecutionState.RUNNABLE, "")
    recorded(queue.record(queue.leased("a"), then=DONE))


def test_a_repeated_request_rewinds_once():
    queue, _ = ended(1, 2)
    request = b"r" * 16
    assert rewound(queue, 1, request=request).run == 2
    recorded(queue.record(queue.leased("a"), step(2), then=DONE))
    assert rewound(queue, 1, request=request) == Rewound(1, 2, repeated=True)
    assert queue.view().state is ExecutionState.COMPLETED


def test_signals_behind_the_record_are_unread_again():
    queue = ExecutionQueue()
    worker = queue.worker()
    recorded(queue.record(worker, step(1)))
    indexes = [arrived(queue.signal(payload=b"%d" % nth, message_id=f"m{nth}")).index
               for nth in range(2)]  # fmt: skip
    recorded(queue.record(worker, step(2, after=indexes[0]), seen=indexes[1], then=DONE))
    rewound(queue, 1)
    assert [one.index for one in queue.journal()] == [0, 1, *indexes]
    assert queue.view().unread == 2
    assert arrived(queue.signal(message_id="m0")).repeated
    again = queue.leased("a")
    assert refused(queue.record(again, then=Park(names=("go",))))[0] is ErrorCode.UNSEEN


def test_cancellations_behind_the_record_go_and_others_stay():
    queue = ExecutionQueue()
    worker = queue.worker()
    recorded(queue.record(worker, step(1)))
    cancel = arrived(queue.arrive(ArriveKind.CANCEL)).index
    recorded(queue.record(worker, step(2), seen=cancel, then=Close(RecordKind.CANCELLED)))
    rewound(queue, 3)
    assert queue.view().cancelled
    rewound(queue, 1)
    assert not queue.view().cancelled
    assert not arrived(queue.arrive(ArriveKind.CANCEL)).repeated


def test_one_that_was_terminated_continues():
    queue = ExecutionQueue()
    queue.start()
    queue.arrive(ArriveKind.TERMINATE)
    assert rewound(queue, 0).records == 1


def test_timers_go():
    queue = ExecutionQueue()
    worker = queue.worker()
    now_ms = queue.log.now_ms
    timers = tuple(Timer(path(nth), now_ms + nth * 1_000) for nth in (2, 3))
    recorded(queue.record(worker, step(1), timers=timers, then=Park((path(2),))))
    queue.log.advance(2_000)
    assert kinds(queue) == [KINDS.STARTED, KINDS.STEP_DONE, KINDS.TIMER_FIRED]
    rewound(queue, 1)
    assert (kinds(queue), queue.view().timers) == ([KINDS.STARTED, KINDS.STEP_DONE], 0)
    queue.log.advance(9_000)
    assert len(queue.journal()) == 2
    # The same operation may set its timer once more.
    recorded(queue.record(queue.leased("a"), timers=timers, then=Park((path(2),))))


def test_a_promise_behind_the_record_can_be_resolved_once_more():
    queue = ExecutionQueue()
    number = queue.worker().execution
    arrived(queue.resolve(number, path(1)))
    arrived(queue.resolve(number, path(2)))
    rewound(queue, 1)
    # Its token stays valid: those that were given away before the record are.
    assert arrived(queue.resolve(number, path(1))).repeated
    assert not arrived(queue.resolve(number, path(2))).repeated


def test_tokens_of_an_earlier_origin_are_still_refused():
    queue = ExecutionQueue()
    worker = queue.worker()
    recorded(queue.record(worker, then=NewRun(b"next")))
    rewound(queue, 0)
    assert queue.view().run == 3
    assert refused(queue.resolve(worker.execution, path(1), run=1))[0] is ErrorCode.TOKEN_INVALID
    assert refused(queue.resolve(worker.execution, path(1), run=3))[0] is ErrorCode.TOKEN_INVALID
    assert not arrived(queue.resolve(worker.execution, path(1), run=2)).repeated


def test_a_deadline_that_has_passed_goes_and_another_one_stays():
    queue = ExecutionQueue()
    worker = queue.worker(deadline_ms=queue.log.now_ms + 1_000)
    queue.log.advance(1_000)
    recorded(queue.record(worker, seen=1, then=Close(RecordKind.CANCELLED)))
    rewound(queue, 0)
    assert queue.view().deadline_ms == 0
    queue = ExecutionQueue()
    worker = queue.worker(deadline_ms=queue.log.now_ms + 10_000)
    recorded(queue.record(worker, then=DONE))
    rewound(queue, 0)
    queue.log.advance(10_000)
    assert queue.view().cancelled


def test_it_is_kept_from_its_last_end_on():
    queue, _ = ended(1)
    queue.log.advance(RETENTION_MS - 1)
    rewound(queue, 0)
    queue.log.advance(RETENTION_MS)
    recorded(queue.record(queue.leased("a"), then=DONE))
    queue.log.advance(RETENTION_MS - 1)
    assert queue.find() is not None
    queue.log.advance(1)
    assert queue.find() is None


# --- children -------------------------------------------------------------------------------------


def with_children() -> tuple[ExecutionQueue, Worker]:
    """Child a/1 is record 1, step 2 is record 2, and children a/2 and a/3 are behind it."""
    queue = ExecutionQueue()
    worker = queue.worker()
    queue.spawn(worker, spawn(1, id="a/1"))
    recorded(queue.record(worker, step(2), seen=1))
    queue.spawn(worker, spawn(3, id="a/2"), spawn(4, id="a/3", detached=True), seen=1)
    return queue, worker


def test_children_behind_the_record_are_cancelled_and_others_are_not():
    queue, _ = with_children()
    assert rewound(queue, 2).children == 2
    assert [queue.view(f"a/{nth}").cancelled for nth in (1, 2, 3)] == [False, True, True]
    assert queue.view().children == 1
    # What they return goes nowhere.
    queue.arrive(ArriveKind.TERMINATE, "a/2")
    assert KINDS.CHILD_TERMINATED not in kinds(queue)
    queue.arrive(ArriveKind.TERMINATE, "a/1")
    assert KINDS.CHILD_TERMINATED in kinds(queue)


@pytest.mark.parametrize("has_ended", [False, True])
def test_a_child_that_is_started_again_is_another_one(has_ended):
    queue, _ = with_children()
    former = queue.view("a/2").number
    if has_ended:
        recorded(queue.record(queue.leased("a/2"), then=DONE))
    rewound(queue, 2)
    queue.spawn(queue.leased("a"), spawn(3, id="a/2", arguments=b"n" * 16), seen=1)
    assert kinds(queue)[-1] is KINDS.CHILD_STARTED
    view = queue.view("a/2")
    assert (view.number == former, view.cancelled, view.records) == (False, False, 1)
    queue.log.one(FireTimers())
    recorded(queue.record(queue.leased("a/2"), then=DONE))
    assert kinds(queue).count(KINDS.CHILD_DONE) == 1


def test_children_of_a_child_that_is_another_one_are_cancelled():
    queue, _ = with_children()
    queue.spawn(queue.leased("a/2"), spawn(1, id="a/2/1"))
    rewound(queue, 2)
    queue.spawn(queue.leased("a"), spawn(3, id="a/2"), seen=1)
    queue.log.one(FireTimers())
    assert queue.view("a/2/1").cancelled


def test_children_that_are_kept_are_those_that_are_started_again():
    queue, _ = with_children()
    numbers = [queue.view(f"a/{nth}").number for nth in (2, 3)]
    second, third = queue.leased("a/2"), queue.leased("a/3")
    assert rewound(queue, 2, keep_children=True).children == 0
    recorded(queue.record(third, then=DONE))
    worker = queue.leased("a")
    queue.spawn(worker, spawn(3, id="a/2"), spawn(4, id="a/3", detached=True), seen=1)
    assert [queue.view(f"a/{nth}").number for nth in (2, 3)] == numbers
    assert not queue.view("a/2").cancelled
    recorded(queue.record(second, then=DONE))
    assert kinds(queue).count(KINDS.CHILD_DONE) == 2


def test_children_that_are_kept_and_not_started_again_end_with_their_parent():
    queue, _ = with_children()
    rewound(queue, 2, keep_children=True)
    recorded(queue.record(queue.leased("a"), seen=1, then=DONE))
    queue.log.one(FireTimers())
    assert [queue.view(f"a/{nth}").cancelled for nth in (1, 2, 3)] == [True, True, False]


def test_a_child_that_is_kept_and_not_started_again_keeps_its_parent_from_a_new_run():
    queue, _ = with_children()
    rewound(queue, 0, keep_children=True)
    worker = queue.leased("a")
    new_run = refused(queue.record(worker, then=NewRun(b"")))
    assert new_run == (ErrorCode.INVALID_ARGUMENT, "new_run")


def test_detached_children_of_a_child_that_is_another_one_are_cancelled():
    queue, _ = with_children()
    queue.spawn(queue.leased("a/2"), spawn(1, id="a/2/1", detached=True))
    rewound(queue, 2)
    queue.spawn(queue.leased("a"), spawn(3, id="a/2"), seen=1)
    queue.log.one(FireTimers())
    assert queue.view("a/2/1").cancelled
    # The other one may start it again, too.
    queue.spawn(queue.leased("a/2"), spawn(1, id="a/2/1"))
    assert not queue.view("a/2/1").cancelled


def test_the_result_of_an_earlier_child_stays():
    queue, worker = with_children()
    recorded(queue.record(queue.leased("a/1"), then=DONE))
    recorded(queue.record(worker, step(5), seen=5, then=DONE))
    rewound(queue, 2)
    assert kinds(queue)[-1] is KINDS.CHILD_DONE


def test_the_result_of_an_earlier_child_that_came_behind_the_end_arrives():
    queue, worker = with_children()
    recorded(queue.record(worker, seen=4, then=DONE))
    queue.arrive(ArriveKind.TERMINATE, "a/1")
    assert KINDS.CHILD_TERMINATED not in kinds(queue)
    rewound(queue, 2)
    assert kinds(queue)[-1] is KINDS.CHILD_TERMINATED
    assert queue.view().children == 0


def test_the_result_of_an_earlier_child_that_has_begun_again_is_lost():
    queue, worker = with_children()
    recorded(queue.record(worker, seen=4, then=DONE))
    queue.arrive(ArriveKind.TERMINATE, "a/1")
    queue.start("a/1", policy=KeyPolicy.RESTART_CLOSED, request=b"r" * 16)
    rewound(queue, 2)
    assert kinds(queue)[-1] is KINDS.CHILD_LOST


def test_a_child_that_is_rewound_gives_its_result_once():
    queue = ExecutionQueue()
    queue.spawn(queue.worker(), spawn(1))
    child = queue.leased("a/1")
    recorded(queue.record(child, step(1)))
    rewound(queue, 0, "a/1")
    recorded(queue.record(queue.leased("a/1"), then=DONE))
    assert kinds(queue).count(KINDS.CHILD_DONE) == 1
    # Its parent has its result: now it is no child any more.
    rewound(queue, 0, "a/1")
    assert queue.view("a/1").parent_id == ""
    recorded(queue.record(queue.leased("a/1"), then=DONE))
    assert kinds(queue).count(KINDS.CHILD_DONE) == 1


# --- refusals -------------------------------------------------------------------------------------


def test_a_record_inside_of_a_fold_is_refused_by_name():
    queue = ExecutionQueue()
    worker = queue.worker()
    recorded(queue.record(worker, step(1), step(2, 1), step(3), step(2, 2)))
    fold = Fold(4, call(2, name="pack"), ((2, 1),))
    recorded(queue.record(worker, step(4), folds=(fold,)))
    for to in (2, 3):
        assert f"record {to} of execution a is inside of the call pack (path 2)" in (
            message := why(sent(queue, to))
        )
        assert "records 2 to 4 are one; rewind to before 2, or to 4" in message
    rewound(queue, 4)
    assert paths(queue) == [b"", path(1), path(3), path(2)]
    rewound(queue, 1)
    assert paths(queue) == [b"", path(1)]


def test_a_record_inside_of_a_fold_that_was_sent_with_its_result_is_refused():
    queue = ExecutionQueue()
    worker = queue.worker()
    recorded(queue.record(worker, step(2, 1), step(3)))
    recorded(queue.record(worker, call(2), folds=(Fold(0, call(2), ((1, 1),)),)))
    assert "records 1 to 3 are one" in why(sent(queue, 2))
    # A fold of a fold begins where the first one has begun.
    recorded(queue.record(worker, step(9)))
    queue = ExecutionQueue()
    worker = queue.worker()
    recorded(queue.record(worker, step(2, 1, 1), step(2, 1, 2), step(3), step(2, 2)))
    recorded(queue.record(worker, folds=(Fold(2, call(2, 1), ((1, 1),)),)))
    recorded(queue.record(worker, folds=(Fold(4, call(2), ((2, 1),)),)))
    assert "records 1 to 4 are one" in why(sent(queue, 1))


def test_records_that_are_not_there_are_refused():
    queue, _ = ended(1, 2)
    assert "is not there; the last one is 3" in why(sent(queue, 4))
    assert "is the end of the execution" in why(sent(queue, 3))
    rewound(queue, 1)
    recorded(queue.record(queue.leased("a"), step(2)))
    assert "is not there; the last one is 4" in why(sent(queue, 2))


def test_another_run_is_refused():
    queue, _ = ended(1)
    rewound(queue, 0, run=1)
    assert refused(sent(queue, 0, run=1)) == (ErrorCode.EXECUTION_CLOSED, "run")


def test_an_execution_that_is_not_there_is_refused():
    queue = ExecutionQueue()
    assert refused(sent(queue, 0)) == (ErrorCode.EXECUTION_NOT_FOUND, "id")


def test_the_number_of_rewinds_is_bounded_and_an_earlier_one_is_always_possible():
    queue = ExecutionQueue()
    worker = queue.worker()
    for _ in range(EXECUTION_REWINDS_MAX):
        to = recorded(queue.record(worker, step(1), step(2))).first_index
        rewound(queue, to)
        worker = queue.leased("a")
    to = recorded(queue.record(worker, step(1), step(2))).first_index
    assert refused(sent(queue, to)) == (ErrorCode.LIMIT_EXCEEDED, "rewinds")
    recorded(queue.record(worker, step(3)))
    rewound(queue, 1)
    worker = queue.leased("a")
    to = recorded(queue.record(worker, step(1), step(2))).first_index
    rewound(queue, to)


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"id": ""}, "id"), ({"record": -1}, "record"), ({"run": -1}, "run"), ({"id": "a\n"}, "id")],
)
def test_a_malformed_command_is_refused(changes, field):
    with pytest.raises(QueratorError) as caught:
        check_rewind(RewindExecution(**({"id": "a", "record": 0} | changes)))
    assert caught.value.field == field


def test_large_payloads_go_with_their_records():
    queue = ExecutionQueue()
    worker = queue.worker()
    recorded(queue.record(worker, step(1, payload=b"", place=1), large=(b"x" * 5_000,)))
    recorded(queue.record(worker, step(2, payload=b"", place=1), large=(b"y" * 5_000,)))
    rewound(queue, 1)
    assert [one.note.payload for one in queue.journal()][1:] == [b"x" * 5_000]
