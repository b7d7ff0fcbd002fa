"""Children of executions as scenarios: starts, results, cancellations, refusals, retention."""

import msgspec
import pytest

from querator.model.errors import ErrorCode
from querator.model.execution_commands import FireTimers
from querator.model.executions import (
    ArriveKind,
    ChildRefusal,
    Close,
    ExecutionState,
    Fold,
    Note,
    Park,
    RecordKind,
    Timer,
    child_result_path,
)
from querator.model.limits import (
    EXECUTION_CHILD_WAITS_MAX,
    EXECUTION_CHILDREN_DEEP_MAX,
    EXECUTION_CHILDREN_MAX,
    EXECUTION_FIRES_MAX,
    JOURNAL_BYTES_MAX,
    JOURNAL_INLINE_BYTES_MAX,
    JOURNAL_RECORDS_KEPT,
    JOURNAL_RECORDS_MAX,
)
from querator.partition import execution_children
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
from tests.unit.partition.partition_log import PartitionLog

STATES = ExecutionState
DONE = Close(RecordKind.COMPLETED, b"result")
RESULT = child_result_path(path(1))


def family(*children, **changes):
    """An execution with children, its worker, and theirs."""
    queue = ExecutionQueue(**changes)
    parent = queue.worker()
    queue.spawn(parent, *(children or (spawn(1),)))
    workers = queue.lease(len(children) or 1)
    return queue, parent, workers


def refusal_of(queue: ExecutionQueue) -> str:
    """Why the last child of execution a was not started."""
    last = queue.journal()[-1].note
    assert last.kind == RecordKind.CHILD_REFUSED
    found = msgspec.json.decode(last.payload, type=ChildRefusal)
    assert found.message
    return found.code


def test_a_child_starts_with_the_past_of_its_parent():
    queue = ExecutionQueue()
    parent = queue.worker()
    result = recorded(queue.record(parent, step(1), children=(spawn(2),)))
    assert result.first_index == 1
    assert queue.kinds() == ["STARTED", "STEP_DONE", "CHILD_STARTED"]
    started = queue.journal()[2].note
    assert (started.path, started.name) == (path(2), "shop.ship")
    child, view = queue.view("a/1"), queue.view()
    assert (child.state, child.function, child.parent_id) == (STATES.RUNNABLE, "shop.ship", "a")
    assert (view.children, view.parent_id) == (1, "")
    assert queue.journal("a/1")[0].note.payload == b"child args"
    assert child.secret not in (view.secret, bytes(16))
    (worker,) = queue.lease()
    assert worker.execution == child.number


def test_a_repeated_record_starts_nothing():
    queue, parent, _ = family()
    again = recorded(queue.record(parent, children=(spawn(1),), number=1))
    assert again.repeated
    assert queue.kinds() == ["STARTED", "CHILD_STARTED"]
    assert queue.lease(9) == []


def test_a_record_without_its_lease_starts_nothing():
    queue = ExecutionQueue()
    worker = queue.worker()
    late = Worker(worker.execution, worker.item, worker.lease + 1)
    assert refused(queue.record(late, children=(spawn(1),)))[0] is ErrorCode.LEASE_LOST
    assert queue.find("a/1") is None


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        (RecordKind.COMPLETED, "CHILD_DONE"),
        (RecordKind.FAILED, "CHILD_FAILED"),
        (RecordKind.CANCELLED, "CHILD_CANCELLED"),
    ],
)
def test_the_end_of_a_child_wakes_its_parent(outcome, kind):
    queue, parent, (child,) = family()
    recorded(queue.record(parent, seen=1, then=Park((RESULT,))))
    assert queue.view().state is STATES.PARKED
    recorded(queue.record(child, then=Close(outcome, b"result")))
    assert queue.kinds()[-1] == kind
    last = queue.journal()[-1].note
    assert (last.path, last.name, last.payload) == (RESULT, "shop.ship", b"result")
    assert (queue.view().state, queue.view().children) == (STATES.RUNNABLE, 0)


def test_a_terminated_child_says_so():
    queue, _, _ = family()
    arrived(queue.arrive(ArriveKind.TERMINATE, "a/1", payload=b"enough"))
    last = queue.journal()[-1].note
    assert (last.kind, last.payload) == (RecordKind.CHILD_TERMINATED, b"enough")


def test_a_result_that_the_code_has_not_seen_prevents_a_park():
    queue, parent, (child,) = family()
    recorded(queue.record(child, then=DONE))
    park = Park((RESULT,))
    assert refused(queue.record(parent, seen=1, then=park)) == (ErrorCode.UNSEEN, "seen")
    assert refused(queue.record(parent, seen=2, then=park))[0] is ErrorCode.INVALID_ARGUMENT


def test_a_large_result_is_copied_and_outlives_the_child():
    queue, parent, (child,) = family()
    large = b"x" * (5 * JOURNAL_INLINE_BYTES_MAX)
    recorded(queue.record(child, then=Close(RecordKind.COMPLETED, place=1), large=(large,)))
    recorded(queue.record(parent, seen=2, then=Park(names=("go",))))
    queue.log.advance(RETENTION_MS)
    queue.log.one(FireTimers())
    assert queue.find("a/1") is None
    assert queue.journal()[-1].note.payload == large


def test_a_result_without_room_says_so(monkeypatch):
    queue, _, (child,) = family()
    monkeypatch.setattr(execution_children, "JOURNAL_BYTES_MAX", queue.view().size + 5)
    assert JOURNAL_BYTES_MAX > 5
    recorded(queue.record(child, then=DONE))
    last = queue.journal()[-1].note
    assert (last.kind, last.payload) == (RecordKind.CHILD_LOST, b"")
    assert queue.end("a/1").note.payload == b"result"


def test_large_arguments_belong_to_the_child():
    queue = ExecutionQueue()
    parent = queue.worker()
    large = b"y" * (3 * JOURNAL_INLINE_BYTES_MAX)
    size = queue.view().size
    child = spawn(1, payload=b"", place=1)
    recorded(queue.record(parent, children=(child,), large=(large,)))
    assert queue.journal("a/1")[0].note.payload == large
    assert queue.view().size < size + 200
    again = spawn(2, payload=b"", place=1)
    recorded(queue.record(parent, children=(again,), large=(large,)))
    assert queue.kinds()[-1] == "CHILD_STARTED"


def test_the_same_child_gives_its_result_to_each_that_waits():
    queue, parent, (child,) = family()
    queue.spawn(parent, spawn(2))
    assert queue.view().children == 2
    recorded(queue.record(child, then=DONE))
    assert queue.kinds()[-2:] == ["CHILD_DONE", "CHILD_DONE"]
    queue.spawn(parent, spawn(3), seen=4)
    assert queue.kinds()[-2:] == ["CHILD_STARTED", "CHILD_DONE"]
    assert queue.journal()[-1].note.path == child_result_path(path(3))
    assert (queue.view().children, len(queue.lease(9))) == (0, 0)


def test_few_operations_wait_for_one_child():
    queue, parent, _ = family()
    for nth in range(2, EXECUTION_CHILD_WAITS_MAX + 1):
        queue.spawn(parent, spawn(nth))
    queue.spawn(parent, spawn(100))
    assert refusal_of(queue) == "LIMIT_EXCEEDED"


@pytest.mark.parametrize(
    "changes", [{"function": "shop.other"}, {"arguments": b"d" * 16}, {"id": "a"}, {"id": "b"}]
)
def test_an_id_that_is_taken_is_refused_in_the_code(changes):
    queue, parent, _ = family()
    queue.start("b", function="shop.ship", arguments=b"c" * 16)
    queue.spawn(parent, spawn(2, **changes))
    assert refusal_of(queue) == "EXECUTION_EXISTS"
    assert queue.view().children == 1


def test_a_child_is_not_its_own_ancestor():
    queue, _, (child,) = family()
    queue.spawn(child, spawn(1, id="a", function="shop.checkout", arguments=b"h" * 16))
    last = queue.journal("a/1")[-1].note
    assert last.kind == RecordKind.CHILD_REFUSED
    assert b"ancestor" in last.payload


def test_children_are_only_so_deep():
    queue = ExecutionQueue()
    worker = queue.worker()
    name = "a"
    for deep in range(EXECUTION_CHILDREN_DEEP_MAX):
        queue.spawn(worker, spawn(1, id=f"a/{deep}"))
        name = f"a/{deep}"
        (worker,) = queue.lease()
    queue.spawn(worker, spawn(1, id="a/last"))
    assert queue.kinds(name)[-1] == "CHILD_REFUSED"
    assert queue.find("a/last") is None


def test_an_execution_has_only_so_many_open_children():
    queue = ExecutionQueue(log=PartitionLog(checked=False))
    parent = queue.worker()
    for begin in range(0, EXECUTION_CHILDREN_MAX, 250):
        queue.spawn(parent, *(spawn(nth + 1, id=f"a/{nth}") for nth in range(begin, begin + 250)))
    assert queue.view().children == EXECUTION_CHILDREN_MAX
    queue.spawn(parent, spawn(5_000, id="a/more"))
    assert refusal_of(queue) == "LIMIT_EXCEEDED"
    (child,) = queue.lease()
    recorded(queue.record(child, then=DONE))
    queue.spawn(parent, spawn(5_001, id="a/more"))
    assert queue.kinds()[-1] == "CHILD_STARTED"
    arrived(queue.arrive(ArriveKind.TERMINATE))
    queue.log.one(FireTimers())
    cancelled = sum(queue.view(f"a/{nth}").cancelled for nth in range(1, EXECUTION_CHILDREN_MAX))
    assert cancelled == EXECUTION_FIRES_MAX
    queue.log.one(FireTimers())
    queue.log.one(FireTimers())
    assert all(queue.view(f"a/{nth}").cancelled for nth in range(1, EXECUTION_CHILDREN_MAX))


def test_a_journal_has_room_for_results(monkeypatch):
    queue = ExecutionQueue()
    parent = queue.worker()
    assert JOURNAL_RECORDS_MAX > JOURNAL_RECORDS_KEPT
    monkeypatch.setattr(execution_children, "JOURNAL_RECORDS_MAX", JOURNAL_RECORDS_KEPT + 5)
    queue.spawn(parent, spawn(1), spawn(2, id="a/2"))
    assert queue.kinds()[-2:] == ["CHILD_STARTED", "CHILD_STARTED"]
    queue.spawn(parent, spawn(3, id="a/3"))
    assert refusal_of(queue) == "JOURNAL_FULL"


def test_a_partition_has_room_for_executions(monkeypatch):
    queue = ExecutionQueue()
    parent = queue.worker()
    monkeypatch.setattr(execution_children, "EXECUTIONS_MAX", 1)
    queue.spawn(parent, spawn(1))
    assert refusal_of(queue) == "QUEUE_FULL"


def test_a_path_starts_one_child():
    queue, parent, _ = family()
    twice = queue.record(parent, children=(spawn(1, id="a/2"),))
    assert refused(twice) == (ErrorCode.INVALID_ARGUMENT, "children[0].path")
    timer = queue.record(parent, timers=(Timer(RESULT, queue.log.now_ms + 1),))
    assert refused(timer) == (ErrorCode.INVALID_ARGUMENT, "timers[0].path")
    assert refused(queue.resolve(parent.execution, RESULT))[0] is ErrorCode.TOKEN_INVALID


def ends(queue: ExecutionQueue, name: str) -> bool:
    """Whether an execution was cancelled, when all that is due has fired."""
    for _ in range(5):
        queue.log.one(FireTimers())
    cancel = [each.note for each in queue.journal(name) if each.note.kind == RecordKind.CANCEL]
    assert all(note.name == "parent" and b"its parent a" in note.payload for note in cancel)
    return bool(cancel)


@pytest.mark.parametrize("way", ["close", "cancel", "terminate", "deadline"])
@pytest.mark.parametrize(
    ("options", "with_cancel", "with_end"),
    [
        ({}, True, True),
        ({"shielded": True}, False, True),
        ({"detached": True}, False, False),
    ],
)
def test_children_end_with_their_parent(way, options, with_cancel, with_end):
    queue = ExecutionQueue()
    deadline = queue.log.now_ms + 5_000 if way == "deadline" else 0
    parent = queue.worker(deadline_ms=deadline)
    queue.spawn(parent, spawn(1, **options))
    if way == "close":
        recorded(queue.record(parent, then=DONE))
    elif way == "deadline":
        queue.log.advance(5_000)
    else:
        arrived(queue.arrive(ArriveKind[way.upper()]))
    expected = with_cancel if way in ("cancel", "deadline") else with_end
    assert ends(queue, "a/1") is expected


def test_the_end_of_a_tree_ends_all_of_it():
    queue, parent, (child,) = family()
    queue.spawn(child, spawn(1, id="a/2"))
    recorded(queue.record(parent, then=DONE))
    for _ in range(3):
        queue.log.one(FireTimers())
    assert queue.view("a/1").cancelled
    assert queue.view("a/2").cancelled


def test_a_child_that_starts_behind_a_cancellation_is_cancelled():
    queue = ExecutionQueue()
    parent = queue.worker()
    cancel = arrived(queue.arrive(ArriveKind.CANCEL)).index
    queue.spawn(parent, spawn(1), spawn(2, id="a/2", shielded=True))
    assert queue.view("a/1").cancelled
    assert not queue.view("a/2").cancelled
    # What is started to clean up is not.
    queue.spawn(parent, spawn(3, id="a/3"), seen=cancel)
    assert not ends(queue, "a/3")
    recorded(queue.record(parent, seen=cancel, then=DONE))
    assert ends(queue, "a/3")
    assert ends(queue, "a/2")


def test_a_parent_cancels_one_child():
    queue, parent, _ = family(spawn(1), spawn(2, id="a/2", detached=True))
    recorded(queue.record(parent, cancels=(path(2), path(7))))
    assert queue.view("a/2").cancelled
    assert not queue.view("a/1").cancelled
    recorded(queue.record(parent, cancels=(path(2),)))
    assert queue.kinds("a/2").count("CANCEL") == 1


def test_a_child_that_has_ended_is_not_cancelled():
    queue, parent, (child,) = family()
    recorded(queue.record(child, then=DONE))
    recorded(queue.record(parent, seen=2, cancels=(path(1),), then=DONE))
    queue.log.one(FireTimers())
    assert queue.kinds("a/1") == ["STARTED", "COMPLETED"]


def test_the_result_for_a_parent_that_has_ended_is_dropped():
    queue, parent, (child,) = family()
    recorded(queue.record(parent, then=DONE))
    recorded(queue.record(child, then=DONE))
    assert queue.kinds() == ["STARTED", "CHILD_STARTED", "COMPLETED"]
    assert queue.view().children == 0


def test_a_child_may_outlive_the_row_of_its_parent():
    queue, parent, _ = family(spawn(1, detached=True))
    recorded(queue.record(parent, then=DONE))
    queue.log.advance(RETENTION_MS)
    queue.log.one(FireTimers())
    assert queue.find() is None
    assert not ends(queue, "a/1")
    child = queue.leased("a/1")
    recorded(queue.record(child, then=DONE))
    assert queue.view("a/1").state is STATES.COMPLETED


def test_a_parent_that_is_removed_cancels_first(monkeypatch):
    """The removal does not wait until FireTimers has come to the children."""
    queue, parent, _ = family()
    recorded(queue.record(parent, then=DONE))
    with monkeypatch.context() as patch:
        patch.setattr("querator.partition.execution_time.EXECUTION_FIRES_MAX", 0)
        queue.log.now_ms += RETENTION_MS
        queue.log.one(FireTimers())
    assert queue.find() is None
    assert queue.view("a/1").cancelled


def test_an_id_is_free_when_its_child_is_gone():
    queue, parent, (child,) = family()
    recorded(queue.record(child, then=DONE))
    recorded(queue.record(parent, seen=2, then=Park(names=("go",))))
    queue.log.advance(RETENTION_MS)
    queue.log.one(FireTimers())
    queue.signal()
    again = queue.leased("a")
    queue.spawn(again, spawn(2), seen=3)
    assert queue.kinds()[-1] == "CHILD_STARTED"
    assert queue.view("a/1").number != child.execution


def test_a_fold_keeps_a_child_that_has_not_ended():
    queue = ExecutionQueue()
    parent = queue.worker()
    queue.spawn(parent, spawn(9, 1))
    fold = Fold(3, call(9), ((1, 2),))
    (child,) = queue.lease()
    recorded(queue.record(parent, step(9, 2)))
    start = Fold(1, call(9))
    assert refused(queue.record(parent, seen=1, folds=(start,)))[1] == "folds[0].index"
    early = Fold(2, call(9), ((1, 1),))
    assert refused(queue.record(parent, seen=1, folds=(early,)))[1] == "folds[0].removed"
    recorded(queue.record(child, then=DONE))
    recorded(queue.record(parent, seen=3, folds=(fold,)))
    assert queue.kinds() == ["STARTED", "CALL_DONE_LATER"]
    recorded(queue.record(parent, seen=3, then=DONE))


def test_a_stuck_parent_gets_the_result_when_it_is_tried_again():
    queue, parent, (child,) = family()
    bad = queue.record(parent, Note(RecordKind.TIMER_DONE, RESULT))
    assert refused(bad)[0] is ErrorCode.INVALID_ARGUMENT
    assert queue.view().state is STATES.STUCK
    recorded(queue.record(child, then=DONE))
    assert queue.view().state is STATES.STUCK
    arrived(queue.arrive(ArriveKind.RETRY))
    assert queue.kinds()[-1] == "CHILD_DONE"
