"""New runs of executions as scenarios: what stays, what goes, and what is refused."""

import pytest

from querator.model.errors import ErrorCode, QueratorError
from querator.model.execution_commands import FireTimers
from querator.model.executions import (
    ArriveKind,
    Close,
    ExecutionState,
    NewRun,
    Park,
    Published,
    RecordKind,
    Timer,
    check_then,
)
from querator.model.limits import JOURNAL_RECORDS_MAX
from tests.unit.partition.execution_queue import (
    ExecutionQueue,
    arrived,
    path,
    recorded,
    refused,
    spawn,
    step,
)

NEXT = NewRun(b"next args")


def test_a_new_run_has_its_arguments_and_nothing_else():
    queue = ExecutionQueue()
    worker = queue.worker(deadline_ms=queue.log.now_ms + 1_000_000)
    queue.record(worker, step(1), step(2), published=(Published("k", b"v"),))
    secret = queue.view().secret
    recorded(queue.record(worker, step(3), then=NEXT))
    view = queue.view()
    assert (view.run, view.state, view.records) == (2, ExecutionState.RUNNABLE, 1)
    assert (view.secret, view.deadline_ms > 0, queue.published()) == (secret, True, {"k": b"v"})
    [first] = queue.journal()
    assert (first.index, first.note.payload) == (0, b"next args")
    [again] = queue.lease()
    assert again.item != worker.item
    # The lease of the run before it holds nothing any more.
    assert refused(queue.record(worker, step(1)))[0] is ErrorCode.LEASE_LOST
    recorded(queue.record(again, step(1), then=Close(RecordKind.COMPLETED, b"end")))
    assert queue.end().note.payload == b"end"


def test_the_record_may_be_repeated():
    queue = ExecutionQueue()
    worker = queue.worker()
    first = recorded(queue.record(worker, step(1), then=NEXT))
    again = recorded(queue.record(worker, step(1), then=NEXT, number=1))
    assert (again.repeated, again.first_index) == (True, first.first_index)
    assert queue.view().run == 2


def test_signals_that_were_not_received_come_along_in_their_order():
    queue = ExecutionQueue()
    worker = queue.worker()
    indexes = [
        arrived(queue.signal("go", payload=b"%d" % nth, message_id=f"m{nth}")).index
        for nth in range(4)
    ]
    # The code was given the first three, and has received the first one.
    recorded(queue.record(worker, seen=indexes[2], then=NewRun(b"", unread=((indexes[1], 2),))))
    assert [one.note.payload for one in queue.journal()[1:]] == [b"1", b"2", b"3"]
    assert [one.index for one in queue.journal()[1:]] == indexes[1:]
    assert queue.view().unread == 3
    # Message ids stay known, also those of signals that are gone.
    assert [arrived(queue.signal(message_id=f"m{nth}")).repeated for nth in range(4)] == [True] * 4
    [worker] = queue.lease()
    assert refused(queue.record(worker, then=Park(names=("go",))))[0] is ErrorCode.UNSEEN
    recorded(queue.record(worker, seen=indexes[3], then=Park(names=("go",))))
    assert queue.view().unread == 0


def test_large_payloads_go_with_their_records_and_stay_with_their_signals():
    queue = ExecutionQueue()
    worker = queue.worker()
    large = b"x" * 5000
    arrived(queue.arrive(ArriveKind.SIGNAL, "a", large, name="go"))
    queue.record(worker, step(1, payload=b"", place=1), large=(large,))
    recorded(queue.record(worker, large=(b"y" * 3000,), then=NewRun(place=1)))
    assert [len(one.note.payload) for one in queue.journal()] == [3000, 5000]


def test_timers_promises_and_results_of_children_are_gone():
    queue = ExecutionQueue()
    worker = queue.worker()
    queue.spawn(worker, spawn(3))
    [child] = queue.lease()
    queue.record(child, then=Close(RecordKind.COMPLETED, b"result"))
    arrived(queue.resolve(worker.execution, path(2)))
    soon, late = queue.log.now_ms + 1_000, queue.log.now_ms + 5_000
    queue.record(worker, timers=(Timer(path(1), soon), Timer(path(4), late)))
    queue.log.now_ms = soon + 1
    queue.log.one(FireTimers())
    assert "TIMER_FIRED" in queue.kinds()
    recorded(queue.record(worker, then=NEXT))
    assert (queue.kinds(), queue.view().timers) == (["STARTED"], 0)
    # A path of the run before it is free, and its timer fires no more.
    [worker] = queue.lease()
    queue.spawn(worker, spawn(3, id="a/2"))
    queue.log.now_ms = late + 1
    queue.log.one(FireTimers())
    assert queue.kinds() == ["STARTED", "CHILD_STARTED"]


def test_a_promise_of_the_run_before_is_refused_by_name():
    queue = ExecutionQueue()
    worker = queue.worker()
    recorded(queue.record(worker, then=NEXT))
    result = queue.resolve(worker.execution, path(1), run=1)
    assert refused(result) == (ErrorCode.TOKEN_INVALID, "run")
    assert (result.limit, result.value) == ("2", "1")
    assert refused(queue.resolve(worker.execution, path(1), run=3))[0] is ErrorCode.TOKEN_INVALID
    forged = queue.resolve(worker.execution, path(1), run=1, mac=bytes(16))
    assert refused(forged) == (ErrorCode.TOKEN_INVALID, "proof")
    arrived(queue.resolve(worker.execution, path(1), run=2))


def test_a_child_that_has_not_ended_prevents_it():
    queue = ExecutionQueue()
    worker = queue.worker()
    queue.spawn(worker, spawn(1))
    assert refused(queue.record(worker, then=NEXT)) == (ErrorCode.INVALID_ARGUMENT, "new_run")
    # Nothing was done: the worker keeps its lease.
    assert queue.view().run == 1
    [child] = queue.lease()
    queue.record(child, then=Close(RecordKind.COMPLETED))
    recorded(queue.record(worker, then=NEXT))


def test_a_detached_child_continues_and_its_result_is_dropped():
    queue = ExecutionQueue()
    worker = queue.worker()
    queue.spawn(worker, spawn(1, detached=True))
    recorded(queue.record(worker, then=NEXT))
    assert queue.view().children == 0
    recorded(queue.record(queue.leased("a/1"), then=Close(RecordKind.COMPLETED)))
    assert queue.kinds() == ["STARTED"]
    # It is a child of the run before.
    queue.spawn(queue.leased("a"), spawn(1))
    assert queue.kinds()[-1] == "CHILD_REFUSED"


def test_a_parent_hears_of_the_last_run():
    queue = ExecutionQueue()
    parent = queue.worker()
    queue.spawn(parent, spawn(1))
    [child] = queue.lease()
    recorded(queue.record(child, then=NEXT))
    assert queue.view().children == 1
    [child] = queue.lease()
    queue.record(child, then=Close(RecordKind.COMPLETED, b"last"))
    assert (queue.kinds()[-1], queue.journal()[-1].note.payload) == ("CHILD_DONE", b"last")


def test_a_cancellation_that_the_code_does_not_know_comes_along():
    queue = ExecutionQueue()
    worker = queue.worker()
    cancel = arrived(queue.arrive(ArriveKind.CANCEL)).index
    recorded(queue.record(worker, then=NEXT))
    assert (queue.kinds(), queue.view().cancelled) == (["STARTED", "CANCEL"], True)
    [worker] = queue.lease()
    assert refused(queue.record(worker, then=Park(names=("go",))))[0] is ErrorCode.UNSEEN
    # Now it does know it.
    result = queue.record(worker, seen=cancel, then=NEXT)
    assert refused(result) == (ErrorCode.INVALID_ARGUMENT, "new_run")
    assert result.value == str(cancel)


def test_a_full_journal_begins_again():
    queue = ExecutionQueue()
    worker = queue.worker()
    for first in range(1, 9_900, 256):
        count = min(256, 9_900 - first)
        queue.record(worker, *[step(first + nth) for nth in range(count)])
    recorded(queue.record(worker, then=NEXT))
    assert (queue.view().records, queue.kinds()) == (1, ["STARTED"])


def test_a_start_is_compared_with_the_first_arguments():
    queue = ExecutionQueue()
    worker = queue.worker()
    recorded(queue.record(worker, then=NEXT))
    assert queue.start().attached
    assert refused(queue.start(arguments=b"i" * 16))[0] is ErrorCode.EXECUTION_EXISTS


@pytest.mark.parametrize(
    ("unread", "field"),
    [
        (((0, 1),), "new_run.unread[0]"),
        (((3, 1), (2, 1)), "new_run.unread[1]"),
        (((1, 0),), "new_run.unread[0]"),
        (((1, 1 << 62),), "new_run.unread"),
        (tuple((2 * nth, 1) for nth in range(1, JOURNAL_RECORDS_MAX + 2)), "new_run.unread"),
    ],
)
def test_malformed_runs_of_signals_are_refused(unread, field):
    with pytest.raises(QueratorError) as caught:
        check_then(NewRun(unread=unread))
    assert caught.value.field == field
