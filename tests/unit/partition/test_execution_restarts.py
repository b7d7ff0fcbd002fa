"""Starts of executions that have ended, as scenarios: what begins again, what stays, what goes."""

from typing import Any

import pytest

from querator.model.errors import ErrorCode
from querator.model.execution_commands import FireTimers
from querator.model.executions import (
    ArriveKind,
    Close,
    ExecutionState,
    KeyPolicy,
    Park,
    Published,
    RecordKind,
    Timer,
)
from querator.model.limits import START_REQUESTS_MAX
from tests.unit.partition.execution_queue import (
    RETENTION_MS,
    SECRET,
    ExecutionQueue,
    Worker,
    arrived,
    path,
    recorded,
    refused,
    spawn,
    step,
)

DONE = Close(RecordKind.COMPLETED, b"result")
OTHER: dict[str, Any] = {"arguments": b"o" * 16, "payload": b"other args"}


def restart(queue: ExecutionQueue, request: bytes = b"again", **changes):
    return queue.start(
        policy=KeyPolicy.RESTART_CLOSED, request=request.ljust(16, b"."), **(OTHER | changes)
    )


def ended(**changes) -> tuple[ExecutionQueue, Worker]:
    """An execution that has ended with its result."""
    queue = ExecutionQueue()
    worker = queue.worker(request=b"first".ljust(16, b"."), **changes)
    recorded(queue.record(worker, step(1), then=DONE))
    return queue, worker


def test_an_execution_that_has_ended_begins_its_next_run():
    queue, worker = ended()
    started = restart(queue, function="shop.other", version="2", priority=-3)
    assert (started.execution, started.run, started.attached) == (worker.execution, 2, False)
    view = queue.view()
    assert (view.state, view.function, view.version) == (
        ExecutionState.RUNNABLE, "shop.other", "2",
    )  # fmt: skip
    assert (view.closed_ms, view.end_index, view.records) == (0, 0, 1)
    [first] = queue.journal()
    assert (first.index, first.note.kind, first.note.payload) == (
        0, RecordKind.STARTED, b"other args",
    )  # fmt: skip
    [again] = queue.lease()
    assert again.execution == worker.execution
    assert refused(queue.record(worker, step(2)))[0] is ErrorCode.LEASE_LOST
    recorded(queue.record(again, then=Close(RecordKind.COMPLETED, b"second")))
    assert queue.end().note.payload == b"second"


@pytest.mark.parametrize("outcome", [RecordKind.COMPLETED, RecordKind.FAILED, RecordKind.CANCELLED])
def test_each_end_can_be_followed_by_a_run(outcome):
    queue = ExecutionQueue()
    recorded(queue.record(queue.worker(), then=Close(outcome)))
    assert restart(queue).run == 2


def test_an_execution_that_was_terminated_begins_again():
    queue = ExecutionQueue()
    queue.start()
    queue.arrive(ArriveKind.CANCEL)
    queue.arrive(ArriveKind.TERMINATE)
    assert restart(queue).run == 2
    view = queue.view()
    assert (view.cancelled, view.unread, view.records) == (False, 0, 1)
    assert len(queue.lease()) == 1
    # The next run can be cancelled, too.
    assert not arrived(queue.arrive(ArriveKind.CANCEL)).repeated


def test_a_repeated_request_begins_one_run():
    queue, _ = ended()
    assert restart(queue).run == 2
    again = restart(queue)
    assert (again.run, again.state, again.attached) == (2, ExecutionState.RUNNABLE, False)
    # Also when the run has ended since, and when another request has begun the next one.
    [worker] = queue.lease()
    recorded(queue.record(worker, then=DONE))
    again = restart(queue)
    assert (again.run, again.state, again.attached) == (2, ExecutionState.COMPLETED, False)
    assert restart(queue, b"another", arguments=b"h" * 16).run == 3
    recorded(queue.record(queue.leased("a"), then=DONE))
    assert restart(queue).run == 3


def test_the_request_that_has_made_an_execution_does_not_begin_it_again():
    queue, _ = ended()
    again = restart(queue, b"first")
    assert (again.run, again.state) == (1, ExecutionState.COMPLETED)


def test_the_last_requests_are_remembered():
    queue, _ = ended()
    for nth in range(START_REQUESTS_MAX):
        assert restart(queue, b"%d" % nth).run == nth + 2
        recorded(queue.record(queue.leased("a"), then=DONE))
    for nth in range(START_REQUESTS_MAX):
        assert restart(queue, b"%d" % nth).run == START_REQUESTS_MAX + 1
    assert restart(queue, b"first").run == START_REQUESTS_MAX + 2


def test_an_open_execution_is_attached_to_or_exists():
    queue = ExecutionQueue()
    queue.start()
    found = restart(queue, arguments=b"h" * 16)
    assert (found.run, found.attached) == (1, True)
    assert refused(restart(queue)) == (ErrorCode.EXECUTION_EXISTS, "id")
    assert refused(restart(queue, function="f")) == (ErrorCode.EXECUTION_EXISTS, "id")
    assert len(queue.journal()) == 1


def test_later_starts_are_compared_with_the_new_arguments():
    queue, _ = ended()
    restart(queue)
    assert queue.start(**OTHER).attached
    assert refused(queue.start()) == (ErrorCode.EXECUTION_EXISTS, "id")


def test_a_producer_pause_refuses_the_next_run_and_leaves_the_last_one():
    queue, _ = ended()
    queue.log.configure(2, executions=queue.settings, produce_paused=True)
    assert refused(restart(queue))[0] is ErrorCode.QUEUE_PAUSED
    assert queue.view().state is ExecutionState.COMPLETED
    assert queue.start().attached


def test_nothing_of_the_former_run_stays():
    queue = ExecutionQueue()
    worker = queue.worker()
    number = worker.execution
    signal = arrived(queue.signal(message_id="m"))
    queue.signal(payload=b"", name="a")
    now_ms = queue.log.now_ms
    recorded(
        queue.record(
            worker, step(1), seen=signal.index, published=(Published("k", b"v"),),
            timers=(Timer(path(2), now_ms + 5_000),), then=Park((path(2), path(3))),
        )
    )  # fmt: skip
    arrived(queue.resolve(number, path(3)))
    recorded(queue.record(queue.leased("a"), seen=signal.index + 2, then=DONE))
    restart(queue)
    view = queue.view()
    assert (view.records, view.unread, view.timers) == (1, 0, 0)
    assert queue.published() == {}
    # A signal that was accepted before is not delivered again.
    assert arrived(queue.signal(message_id="m")).repeated
    # The promise is one of the run before it.
    assert refused(queue.resolve(number, path(3), run=1))[0] is ErrorCode.TOKEN_INVALID
    assert not arrived(queue.resolve(number, path(3), run=2)).repeated
    queue.log.advance(10_000)
    assert [one.note.kind for one in queue.journal()] == [RecordKind.STARTED, RecordKind.RESOLVED]


def test_published_versions_continue():
    queue = ExecutionQueue()
    recorded(queue.record(queue.worker(), published=(Published("k", b"v"),), then=DONE))
    version = queue.values().version
    restart(queue)
    recorded(queue.record(queue.leased("a"), published=(Published("k", b"w"),)))
    assert [one.version for one in queue.values(after=version).values] == [version + 1]


def test_deadlines_are_those_of_the_new_start():
    queue, _ = ended(deadline_ms=ExecutionQueue().log.now_ms + 50_000)
    restart(queue)
    queue.log.advance(60_000)
    assert not queue.view().cancelled
    queue, _ = ended()
    restart(queue, deadline_ms=queue.log.now_ms + 50_000)
    queue.log.advance(60_000)
    assert queue.view().cancelled


def test_it_may_begin_later():
    queue, _ = ended()
    restart(queue, start_at_ms=queue.log.now_ms + 60_000)
    assert queue.lease() == []
    queue.log.advance(60_000)
    assert len(queue.lease()) == 1


def test_it_is_kept_from_its_last_end_on():
    queue, _ = ended()
    queue.log.advance(RETENTION_MS - 1_000)
    restart(queue)
    queue.log.advance(RETENTION_MS)
    assert queue.view().state is ExecutionState.RUNNABLE
    recorded(queue.record(queue.leased("a"), then=DONE))
    queue.log.advance(RETENTION_MS - 1)
    assert queue.find() is not None
    queue.log.advance(1)
    assert queue.find() is None
    assert restart(queue).run == 1


def test_children_of_the_former_run_are_cancelled_and_those_of_the_next_one_are_not():
    queue = ExecutionQueue()
    worker = queue.worker()
    queue.spawn(worker, spawn(1, id="a/1"), spawn(2, id="a/2", detached=True),
                spawn(3, id="a/3", shielded=True))  # fmt: skip
    recorded(queue.record(worker, seen=3, then=DONE))
    # The start comes before FireTimers has cancelled them.
    restart(queue)
    assert [queue.view(f"a/{nth}").cancelled for nth in (1, 2, 3)] == [True, False, True]
    parent = queue.leased("a")
    queue.spawn(parent, spawn(1, id="a/4"))
    queue.log.one(FireTimers())
    assert not queue.view("a/4").cancelled
    # What the former children return goes nowhere.
    for name in ("a/1", "a/2"):
        queue.arrive(ArriveKind.TERMINATE, name)
    assert [one.note.kind for one in queue.journal()] == [
        RecordKind.STARTED, RecordKind.CHILD_STARTED,
    ]  # fmt: skip


def test_a_child_that_begins_again_has_no_parent():
    queue = ExecutionQueue()
    worker = queue.worker()
    queue.spawn(worker, spawn(1))
    recorded(queue.record(queue.leased("a/1"), then=DONE))
    arrivals = len(queue.journal())
    assert restart(queue, name="a/1").run == 2
    assert queue.view("a/1").parent_id == ""
    recorded(queue.record(queue.leased("a/1"), then=DONE))
    assert len(queue.journal()) == arrivals


def test_a_child_with_a_child_begins_again():
    queue = ExecutionQueue()
    queue.spawn(queue.worker(), spawn(1))
    child = queue.leased("a/1")
    queue.spawn(child, spawn(1, id="a/2"))
    recorded(queue.record(child, seen=1, then=DONE))
    assert restart(queue, name="a/1").run == 2
    assert queue.view("a/2").cancelled


def test_large_arguments_and_a_large_result_have_their_attachments():
    queue = ExecutionQueue()
    queue.start("a", b"x" * 5_000)
    recorded(queue.record(queue.leased("a"), large=(b"y" * 4_000,),
                          then=Close(RecordKind.COMPLETED, place=1)))  # fmt: skip
    queue.start("a", b"z" * 3_000, policy=KeyPolicy.RESTART_CLOSED, arguments=b"o" * 16)
    assert [one.note.payload for one in queue.journal()] == [b"z" * 3_000]


def test_the_secret_is_a_new_one():
    queue, _ = ended()
    restart(queue, secret=b"n" * 16)
    assert queue.view().secret == b"n" * 16 != SECRET
