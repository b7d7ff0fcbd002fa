"""Executions as scenarios: each transition of their states, and each refusal."""

from typing import Any

import pytest

from querator.model.commands import (
    Cancel,
    Complete,
    LeaseItems,
    Purge,
    Refusal,
    Retry,
)
from querator.model.entries import Proposal
from querator.model.errors import ErrorCode
from querator.model.execution_commands import FireTimers, StartExecution
from querator.model.executions import (
    ArriveKind,
    Close,
    ExecutionState,
    Fold,
    GiveBack,
    KeyPolicy,
    Note,
    Park,
    RecordKind,
    Timer,
    delivery_order,
)
from querator.model.limits import (
    EXECUTION_LAPSES_MAX,
    EXECUTION_TIMERS_MAX,
    JOURNAL_RECORDS_KEPT,
    JOURNAL_RECORDS_MAX,
    RECORDS_UNANSWERED_MAX,
    SCHEDULE_AHEAD_MS_MAX,
    SIGNALS_UNREAD_MAX,
)
from querator.model.readers import OpenReader
from tests.unit.partition.execution_queue import (
    LEASE_MS,
    RETENTION_MS,
    SECRET,
    ExecutionQueue,
    Worker,
    arrived,
    call,
    path,
    recorded,
    refused,
    step,
)
from tests.unit.partition.partition_log import PartitionLog

STATES = ExecutionState
DONE = Close(RecordKind.COMPLETED, b"result")


def test_a_start_makes_a_row_a_record_and_an_activation():
    queue = ExecutionQueue()
    started = queue.start("order-17")
    assert (started.execution, started.run, started.attached) == (1, 1, False)
    view = queue.view("order-17")
    assert (view.state, view.function, view.secret) == (STATES.RUNNABLE, "shop.checkout", SECRET)
    (first,) = queue.journal("order-17")
    assert (first.index, first.note.kind, first.note.payload) == (0, RecordKind.STARTED, b"args")
    (worker,) = queue.lease()
    assert worker.execution == started.execution
    assert queue.lease() == []


def test_a_repeated_start_attaches():
    queue = ExecutionQueue()
    first, again = queue.start(), queue.start()
    assert (again.execution, again.attached) == (first.execution, True)
    assert refused(queue.start(policy=KeyPolicy.FAIL)) == (ErrorCode.EXECUTION_EXISTS, "id")
    assert refused(queue.start(function="other")) == (ErrorCode.EXECUTION_EXISTS, "id")
    assert refused(queue.start(arguments=b"x" * 16)) == (ErrorCode.EXECUTION_EXISTS, "id")
    assert len(queue.lease(9)) == 1


def test_a_start_that_is_sent_again_is_no_other_one():
    queue = ExecutionQueue()
    command: dict[str, Any] = {"policy": KeyPolicy.FAIL, "request": b"r" * 16}
    first, again = queue.start(**command), queue.start(**command)
    assert (again.execution, again.attached) == (first.execution, False)


def test_a_start_may_begin_later():
    queue = ExecutionQueue()
    queue.start(start_at_ms=queue.log.now_ms + 60_000)
    assert queue.view().state is STATES.RUNNABLE
    assert queue.lease() == []
    queue.log.advance(60_000)
    assert len(queue.lease()) == 1


def test_activations_are_leased_by_priority():
    queue = ExecutionQueue()
    queue.start("low", priority=5)
    queue.start("high", priority=-5)
    queue.start("middle")
    found = [queue.at(worker.item).id for worker in queue.lease(3)]
    assert found == ["high", "middle", "low"]


def test_records_are_appended_in_order():
    queue = ExecutionQueue()
    worker = queue.worker()
    assert recorded(queue.record(worker, step(1), step(2))).first_index == 1
    assert recorded(queue.record(worker, step(3))).first_index == 3
    assert [record.note.path for record in queue.journal()][1:] == [path(1), path(2), path(3)]
    assert queue.view().state is STATES.RUNNABLE


def test_a_record_says_with_which_version_the_execution_continues():
    queue = ExecutionQueue()
    worker = queue.worker()
    queue.record(worker, version="2")
    assert queue.at(worker.item).version == "2"
    queue.record(worker, step(1))
    assert queue.at(worker.item).version == "2"


def test_an_activation_has_the_paths_of_its_open_timers():
    queue = ExecutionQueue()
    worker = queue.worker()
    timers = tuple(Timer(path(nth), queue.log.now_ms + 900 * nth) for nth in (1, 2, 3))
    queue.record(worker, timers=timers)
    queue.record(worker, timers=(Timer(path(3), 0),))
    queue.log.advance(1_000)
    assert queue.at(worker.item).timer_paths == (path(2),)


def test_a_large_payload_is_stored_once_and_read_back():
    queue = ExecutionQueue()
    worker = queue.worker()
    large = b"x" * 5_000
    note = step(1, payload=b"", place=1)
    recorded(queue.record(worker, note, step(2), large=(large,)))
    assert [record.note.payload for record in queue.journal()] == [b"args", large, b"ok"]
    recorded(queue.record(worker, then=Close(RecordKind.COMPLETED, place=1), large=(large + b"y",)))
    assert queue.end().note.payload == large + b"y"


def test_a_start_with_large_arguments():
    queue = ExecutionQueue()
    queue.start("a", b"z" * 4_000)
    queue.start("a", b"z" * 4_000)
    assert queue.journal()[0].note.payload == b"z" * 4_000


def test_a_park_ends_the_activation_and_a_signal_makes_another():
    queue = ExecutionQueue()
    worker = queue.worker()
    recorded(queue.park(worker, step(1), names=("go",)))
    assert queue.view().state is STATES.PARKED
    assert queue.lease() == []
    assert arrived(queue.signal("go")).index == 2
    assert queue.view().state is STATES.RUNNABLE
    (again,) = queue.lease()
    assert again.item != worker.item
    assert queue.kinds() == ["STARTED", "STEP_DONE", "SIGNAL"]


def test_only_what_it_waits_for_wakes_a_parked_execution():
    queue = ExecutionQueue()
    worker = queue.worker()
    recorded(queue.park(worker, names=("go",), paths=(path(4),)))
    arrived(queue.signal("other"))
    arrived(queue.resolve(worker.execution, path(5)))
    assert queue.view().state is STATES.PARKED
    arrived(queue.resolve(worker.execution, path(4)))
    assert queue.view().state is STATES.RUNNABLE


def test_a_park_for_anything_is_woken_by_anything():
    queue = ExecutionQueue()
    recorded(queue.record(queue.worker(), then=Park(anything=True)))
    arrived(queue.signal("whatever"))
    assert queue.view().state is STATES.RUNNABLE


def test_a_park_for_all_is_woken_by_the_last():
    queue = ExecutionQueue()
    worker = queue.worker()
    arrived(queue.resolve(worker.execution, path(1)))
    recorded(queue.record(worker, then=Park((path(1), path(2), path(3)), all_of=True)))
    arrived(queue.resolve(worker.execution, path(3)))
    arrived(queue.resolve(worker.execution, path(9)))
    assert queue.view().state is STATES.PARKED
    arrived(queue.resolve(worker.execution, path(2)))
    assert queue.view().state is STATES.RUNNABLE


def test_a_timer_wakes_at_its_time():
    queue = ExecutionQueue()
    worker = queue.worker()
    due_ms = queue.log.now_ms + 60_000
    recorded(queue.park(worker, paths=(path(1),), timers=(Timer(path(1), due_ms),)))
    queue.log.advance(59_999)
    assert queue.view().state is STATES.PARKED
    queue.log.advance(1)
    assert queue.view().state is STATES.RUNNABLE
    fired = queue.journal()[-1].note
    assert (fired.kind, fired.path, fired.at_ms) == (RecordKind.TIMER_FIRED, path(1), due_ms)
    assert queue.view().timers == 0


def test_a_timer_of_the_past_fires_at_once():
    queue = ExecutionQueue()
    worker = queue.worker()
    recorded(queue.park(worker, paths=(path(1),), timers=(Timer(path(1), 1),)))
    queue.log.advance(0)
    assert queue.view().state is STATES.RUNNABLE


def test_a_timer_may_be_moved_and_withdrawn():
    queue = ExecutionQueue()
    worker = queue.worker()
    now_ms = queue.log.now_ms
    recorded(queue.record(worker, timers=(Timer(path(1), now_ms + 5_000),
                                          Timer(path(2), now_ms + 5_000))))  # fmt: skip
    recorded(queue.record(worker, timers=(Timer(path(1), now_ms + 9_000), Timer(path(2), 0),
                                          Timer(path(3), 0))))  # fmt: skip
    assert queue.view().timers == 1
    queue.log.advance(8_999)
    assert queue.kinds() == ["STARTED"]
    queue.log.advance(1)
    assert queue.kinds() == ["STARTED", "TIMER_FIRED"]


def test_a_timer_that_fires_while_the_worker_withdraws_it_stays_in_the_journal():
    queue = ExecutionQueue()
    worker = queue.worker()
    recorded(queue.record(worker, timers=(Timer(path(1), queue.log.now_ms + 1_000),)))
    queue.log.advance(1_000)
    recorded(queue.record(worker, timers=(Timer(path(1), 0),)))
    assert queue.kinds() == ["STARTED", "TIMER_FIRED"]


def test_the_deadline_cancels():
    queue = ExecutionQueue()
    worker = queue.worker(deadline_ms=queue.log.now_ms + 10_000)
    recorded(queue.park(worker, names=("go",)))
    queue.log.advance(10_000)
    assert queue.view().state is STATES.RUNNABLE
    last = queue.journal()[-1].note
    assert (last.kind, last.name) == (RecordKind.CANCEL, "deadline")
    again = arrived(queue.arrive(ArriveKind.CANCEL))
    assert (again.index, again.repeated) == (1, True)


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        (RecordKind.COMPLETED, STATES.COMPLETED),
        (RecordKind.FAILED, STATES.FAILED),
        (RecordKind.CANCELLED, STATES.CANCELLED),
    ],
)
def test_a_close_is_the_last_record_and_is_kept_for_a_time(outcome, state):
    queue = ExecutionQueue()
    recorded(queue.record(queue.worker(), step(1), then=Close(outcome, b"result")))
    assert queue.view().state is state
    assert queue.lease() == []
    end = queue.end()
    assert (end.index, end.note.kind, end.note.payload) == (2, outcome, b"result")
    queue.log.advance(RETENTION_MS - 1)
    assert queue.view().state is state
    queue.log.advance(1)
    assert queue.find() is None
    assert queue.start().attached is False


def test_a_termination_ends_in_every_state():
    queue = ExecutionQueue()
    parked, leased = queue.worker("parked"), queue.worker("leased")
    stuck = queue.worker("stuck")
    recorded(queue.park(parked, names=("go",)))
    recorded(queue.record(stuck, then=GiveBack(stuck=True, reason="undecodable")))
    queue.start("ready")
    for name in ("parked", "leased", "stuck", "ready"):
        arrived(queue.arrive(ArriveKind.TERMINATE, name, payload=b"enough"))
        assert queue.view(name).state is STATES.TERMINATED
        assert queue.end(name).note.payload == b"enough"
        assert arrived(queue.arrive(ArriveKind.TERMINATE, name)).repeated
    assert queue.lease() == []
    assert refused(queue.record(leased, step(1)))[0] is ErrorCode.LEASE_LOST


def test_a_stuck_execution_keeps_what_arrives_and_is_retried():
    queue = ExecutionQueue()
    worker = queue.worker()
    recorded(queue.record(worker, then=GiveBack(stuck=True, reason="undecodable")))
    assert (queue.view().state, queue.view().reason) == (STATES.STUCK, "undecodable")
    arrived(queue.signal())
    arrived(queue.arrive(ArriveKind.CANCEL))
    assert queue.lease() == []
    assert not arrived(queue.arrive(ArriveKind.RETRY)).repeated
    assert (queue.view().state, queue.view().reason) == (STATES.RUNNABLE, "")
    assert arrived(queue.arrive(ArriveKind.RETRY)).repeated
    assert len(queue.lease(9)) == 1
    assert queue.kinds() == ["STARTED", "SIGNAL", "CANCEL"]


def test_an_activation_that_is_given_back_is_leased_again():
    queue = ExecutionQueue()
    worker = queue.worker()
    recorded(queue.record(worker, step(1), then=GiveBack()))
    (again,) = queue.lease()
    assert again.item == worker.item
    assert again.lease != worker.lease
    assert refused(queue.record(worker, step(2)))[0] is ErrorCode.LEASE_LOST
    assert recorded(queue.record(again, step(2))).first_index == 2


def test_ten_lapses_without_a_record_make_it_stuck():
    queue = ExecutionQueue()
    queue.start()
    for lapse in range(EXECUTION_LAPSES_MAX):
        assert queue.view().state is STATES.RUNNABLE, lapse
        assert len(queue.lease()) == 1
        queue.log.advance(LEASE_MS + 1)
    assert queue.view().state is STATES.STUCK
    assert "10 leases in a row" in queue.view().reason


def test_a_record_begins_the_count_of_lapses_again():
    queue = ExecutionQueue()
    queue.start()
    for lapse in range(2 * EXECUTION_LAPSES_MAX):
        (worker,) = queue.lease()
        if lapse % 9 == 8:
            recorded(queue.record(worker, step(lapse)))
        queue.log.advance(LEASE_MS + 1)
    assert queue.view().state is STATES.RUNNABLE


def test_a_lease_is_extended_by_a_record():
    queue = ExecutionQueue()
    worker = queue.worker()
    for _ in range(3):
        queue.log.advance(20_000)
        extended = recorded(queue.record(worker, extend_ms=LEASE_MS))
        assert extended.deadline_ms == queue.log.now_ms + LEASE_MS


# Fences.


def test_a_record_after_the_lease_is_refused():
    queue = ExecutionQueue()
    late = queue.worker()
    recorded(queue.record(late, step(1)))
    queue.log.advance(LEASE_MS + 1)
    assert refused(queue.record(late, step(2))) == (ErrorCode.LEASE_LOST, "lease")
    (worker,) = queue.lease()
    assert refused(queue.record(late, step(2))) == (ErrorCode.LEASE_LOST, "lease")
    assert recorded(queue.record(worker, step(2))).first_index == 2
    assert len(queue.journal()) == 3


def test_a_lease_of_several_activations_is_a_fence_for_each():
    queue = ExecutionQueue()
    queue.start("a")
    queue.start("b")
    one, other = queue.lease(2)
    assert one.lease == other.lease
    recorded(queue.park(one, names=("go",)))
    recorded(queue.record(other, step(1)))
    assert refused(queue.record(one, step(1)))[0] is ErrorCode.LEASE_LOST
    mixed = one._replace(item=other.item)
    assert refused(queue.record(mixed, step(1), number=2))[0] is ErrorCode.LEASE_LOST


def test_a_repeated_record_gets_the_first_answer():
    queue = ExecutionQueue()
    worker = queue.worker()
    first = recorded(queue.record(worker, step(1)))
    arrived(queue.signal())
    second = recorded(queue.record(worker, step(2)))
    third = recorded(queue.park(worker, step(3), names=("other",)))
    for number, before in ((1, first), (2, second), (3, third)):
        again = recorded(queue.record(worker, step(number), number=number))
        assert (again.first_index, again.repeated) == (before.first_index, True)
    assert len(queue.journal()) == 5


def test_the_answers_of_as_many_records_are_remembered_as_may_be_unanswered():
    queue = ExecutionQueue()
    worker = queue.worker()
    for number in range(RECORDS_UNANSWERED_MAX + 1):
        recorded(queue.record(worker, step(number)))
    assert recorded(queue.record(worker, number=2)).first_index == 2
    assert refused(queue.record(worker, number=1)) == (ErrorCode.SEQUENCE_GAP, "number")


def test_a_gap_in_the_numbers_is_refused():
    queue = ExecutionQueue()
    worker = queue.worker()
    assert refused(queue.record(worker, step(1), number=2)) == (ErrorCode.SEQUENCE_GAP, "number")
    recorded(queue.record(worker, step(1)))
    result = queue.record(worker, step(2), number=3)
    assert refused(result) == (ErrorCode.SEQUENCE_GAP, "number")
    assert (result.limit, result.value) == ("2", "3")


def test_an_unknown_execution_has_no_records():
    queue = ExecutionQueue()
    worker = queue.worker()._replace(execution=99)
    assert refused(queue.record(worker)) == (ErrorCode.EXECUTION_NOT_FOUND, "execution")


# Order.


def test_what_a_record_has_seen_does_not_fall_and_is_not_in_the_future():
    queue = ExecutionQueue()
    worker = queue.worker()
    arrived(queue.signal())
    assert refused(queue.record(worker, seen=2)) == (ErrorCode.INVALID_ARGUMENT, "seen")
    bad = queue.record(worker, step(1, after=1), seen=0)
    assert refused(bad) == (ErrorCode.INVALID_ARGUMENT, "records[0].after")
    recorded(queue.record(worker, step(1, after=1), seen=1))
    assert refused(queue.record(worker, seen=0)) == (ErrorCode.INVALID_ARGUMENT, "seen")
    bad = queue.record(worker, step(2, after=1), step(3), seen=1)
    assert refused(bad) == (ErrorCode.INVALID_ARGUMENT, "records[1].after")
    assert queue.kinds() == ["STARTED", "SIGNAL", "STEP_DONE"]


def test_a_park_over_an_arrival_is_refused_as_a_whole():
    queue = ExecutionQueue()
    worker = queue.worker()
    arrived(queue.signal("go"))
    result = queue.park(worker, step(1), names=("go",))
    assert refused(result) == (ErrorCode.UNSEEN, "seen")
    assert (result.limit, result.value) == ("1", "0")
    assert (queue.view().state, len(queue.journal())) == (STATES.RUNNABLE, 2)
    recorded(queue.park(worker, step(1), names=("go",), seen=1))
    assert queue.view().state is STATES.PARKED


@pytest.mark.parametrize(
    "then", [Park((path(1),)), Park((path(1), path(2))), Park((path(1),), all_of=True),
             Park(anything=True)],
)  # fmt: skip
def test_a_park_over_a_resolution_is_refused(then):
    queue = ExecutionQueue()
    worker = queue.worker()
    arrived(queue.resolve(worker.execution, path(1)))
    assert refused(queue.record(worker, then=then)) == (ErrorCode.UNSEEN, "seen")


def test_a_park_over_a_cancellation_is_refused():
    queue = ExecutionQueue()
    worker = queue.worker()
    arrived(queue.arrive(ArriveKind.CANCEL, payload=b"changed my mind"))
    assert refused(queue.park(worker, names=("go",))) == (ErrorCode.UNSEEN, "seen")
    recorded(queue.park(worker, names=("go",), seen=1))


def test_a_park_that_nothing_would_end_is_refused():
    queue = ExecutionQueue()
    worker = queue.worker()
    arrived(queue.resolve(worker.execution, path(1)))
    bad = queue.park(worker, paths=(path(1),), seen=1)
    assert refused(bad) == (ErrorCode.INVALID_ARGUMENT, "park.paths[0]")


def test_the_end_comes_behind_the_arrivals_that_the_code_has_been_given():
    queue = ExecutionQueue()
    worker = queue.worker()
    recorded(queue.record(worker, step(1)))
    first, second = (arrived(queue.signal()).index for _ in range(2))
    recorded(queue.record(worker, seen=first, then=Close(RecordKind.COMPLETED)))
    order = [record.index for record in delivery_order(queue.journal())]
    assert order == [0, 1, first, second + 1, second]


def test_a_close_drains_the_mailbox_if_it_says_so():
    queue = ExecutionQueue()
    worker = queue.worker()
    arrived(queue.signal())
    drain = Close(RecordKind.COMPLETED, drain=True)
    assert refused(queue.record(worker, then=drain)) == (ErrorCode.UNSEEN, "seen")
    recorded(queue.record(worker, then=DONE))
    assert (queue.view().state, queue.view().unread) == (STATES.COMPLETED, 1)


def test_a_result_wins_over_a_cancellation_that_was_not_seen():
    queue = ExecutionQueue()
    worker = queue.worker()
    arrived(queue.arrive(ArriveKind.CANCEL))
    recorded(queue.record(worker, then=DONE))
    assert queue.view().state is STATES.COMPLETED


def test_a_worker_that_ends_a_timer_of_the_partition_is_stuck():
    queue = ExecutionQueue()
    worker = queue.worker()
    due_ms = queue.log.now_ms + 60_000
    recorded(queue.record(worker, timers=(Timer(path(1), due_ms),)))
    bad = queue.record(worker, step(1, kind=RecordKind.TIMER_DONE))
    assert refused(bad) == (ErrorCode.INVALID_ARGUMENT, "records[0].path")
    assert queue.view().state is STATES.STUCK
    assert path(1).hex() in queue.view().reason


def test_a_timer_that_was_given_to_the_code_is_not_set_again():
    queue = ExecutionQueue()
    worker = queue.worker()
    recorded(queue.record(worker, timers=(Timer(path(1), 1),)))
    queue.log.advance(0)
    later = Timer(path(1), queue.log.now_ms + 9_000)
    recorded(queue.record(worker, timers=(later,)))
    bad = queue.record(worker, timers=(later,), seen=1)
    assert refused(bad) == (ErrorCode.INVALID_ARGUMENT, "timers[0].path")


# Arrivals.


def test_a_signal_is_appended_once_for_its_message_id():
    queue = ExecutionQueue()
    queue.start()
    first = arrived(queue.signal(message_id="m1"))
    again = arrived(queue.signal(message_id="m1"))
    other = arrived(queue.signal(message_id="m2"))
    assert (again.index, again.repeated) == (first.index, True)
    assert (other.index, other.repeated) == (2, False)
    arrived(queue.arrive(ArriveKind.TERMINATE))
    assert arrived(queue.signal(message_id="m1")).repeated
    assert refused(queue.signal(message_id="m3")) == (ErrorCode.EXECUTION_CLOSED, "id")


def test_unread_signals_are_bounded():
    queue = ExecutionQueue(log=PartitionLog(checked=False))
    worker = queue.worker()
    for _ in range(SIGNALS_UNREAD_MAX):
        arrived(queue.signal())
    assert refused(queue.signal()) == (ErrorCode.SIGNALS_FULL, "id")
    recorded(queue.record(worker, seen=5))
    assert queue.view().unread == SIGNALS_UNREAD_MAX - 5
    queue.log.checked = True
    arrived(queue.signal())


def test_the_first_resolution_wins_and_others_are_told():
    queue = ExecutionQueue()
    worker = queue.worker()
    rejected = arrived(queue.resolve(worker.execution, path(1), kind=ArriveKind.REJECT))
    late = arrived(queue.resolve(worker.execution, path(1)))
    assert (rejected.kind, rejected.repeated) == (RecordKind.REJECTED, False)
    assert (late.index, late.kind, late.repeated) == (1, RecordKind.REJECTED, True)
    recorded(queue.record(worker, then=DONE, seen=1))
    assert arrived(queue.resolve(worker.execution, path(1))).repeated
    closed = queue.resolve(worker.execution, path(2))
    assert refused(closed) == (ErrorCode.EXECUTION_CLOSED, "id")


def test_a_token_that_was_not_made_is_refused():
    queue = ExecutionQueue()
    worker = queue.worker()
    number = worker.execution
    recorded(queue.record(worker, timers=(Timer(path(3), queue.log.now_ms + 9_000),)))
    for bad in (
        queue.resolve(number, path(1), mac=b"0" * 16),
        queue.resolve(number + 1, path(1)),
        queue.resolve(number, path(1), run=2),
        queue.resolve(number, path(3)),
    ):
        assert refused(bad) == (ErrorCode.TOKEN_INVALID, "proof")


@pytest.mark.parametrize("kind", [ArriveKind.SIGNAL, ArriveKind.CANCEL, ArriveKind.TERMINATE,
                                  ArriveKind.RETRY])  # fmt: skip
def test_what_is_sent_to_nothing_is_refused(kind):
    queue = ExecutionQueue()
    missing = queue.arrive(kind, "nothing", name="go")
    assert refused(missing) == (ErrorCode.EXECUTION_NOT_FOUND, "id")
    worker = queue.worker()
    gone = queue.arrive(kind, "a", name="go", run=2)
    assert refused(gone) == (ErrorCode.EXECUTION_CLOSED, "run")
    recorded(queue.record(worker, then=DONE))
    closed = queue.arrive(kind, "a", name="go")
    assert refused(closed) == (ErrorCode.EXECUTION_CLOSED, "id")


# Limits.


def test_a_journal_is_bounded_and_keeps_room_for_its_end():
    queue = ExecutionQueue(log=PartitionLog(checked=False))
    worker = queue.worker()

    def fill(limit: int) -> None:
        while (left := limit - queue.view().records) > 0:
            recorded(queue.record(worker, *[step(1)] * min(left, 256)))

    fill(JOURNAL_RECORDS_MAX - JOURNAL_RECORDS_KEPT)
    assert refused(queue.signal()) == (ErrorCode.JOURNAL_FULL, "id")
    full = queue.resolve(worker.execution, path(2))
    assert refused(full) == (ErrorCode.JOURNAL_FULL, "id")
    # What undoes may still be recorded.
    limit = JOURNAL_RECORDS_MAX
    fill(limit)
    assert refused(queue.record(worker, step(1))) == (ErrorCode.JOURNAL_FULL, "records")
    arrived(queue.arrive(ArriveKind.CANCEL))
    recorded(queue.record(worker, step(1), seen=limit))
    queue.log.checked = True
    recorded(queue.record(worker, step(1), then=Close(RecordKind.CANCELLED), seen=limit))


def test_the_bytes_of_a_journal_are_bounded():
    queue = ExecutionQueue()
    worker = queue.worker()
    large = b"x" * (8 << 20)
    note = step(1, payload=b"", place=1)
    recorded(queue.record(worker, note, large=(large,)))
    full = queue.record(worker, note, large=(large,))
    assert refused(full) == (ErrorCode.JOURNAL_FULL, "records")
    recorded(queue.record(worker, then=Close(RecordKind.FAILED, place=1), large=(large,)))


def test_timers_are_bounded():
    queue = ExecutionQueue(log=PartitionLog(checked=False))
    worker = queue.worker()
    due_ms = queue.log.now_ms + 60_000
    for first in range(0, EXECUTION_TIMERS_MAX, 250):
        timers = tuple(Timer(path(first + nth), due_ms) for nth in range(250))
        recorded(queue.record(worker, timers=timers))
    more = queue.record(worker, timers=(Timer(path(9_999), due_ms),))
    assert refused(more) == (ErrorCode.LIMIT_EXCEEDED, "timers")
    queue.log.checked = True
    swap = (Timer(path(0), 0), Timer(path(9_999), due_ms))
    recorded(queue.record(worker, timers=swap))
    recorded(queue.park(worker, names=("go",)))
    queue.log.advance(60_000)
    assert queue.view().timers == 0
    assert len(queue.journal()) == 1 + EXECUTION_TIMERS_MAX


def test_a_timer_in_too_many_years_is_refused():
    queue = ExecutionQueue()
    worker = queue.worker()
    due_ms = queue.log.now_ms + SCHEDULE_AHEAD_MS_MAX
    far = queue.record(worker, timers=(Timer(path(1), due_ms + 1),))
    assert refused(far) == (ErrorCode.LIMIT_EXCEEDED, "timers[0].due_ms")
    recorded(queue.record(worker, timers=(Timer(path(1), due_ms),)))


# Folds.


def folding() -> tuple[ExecutionQueue, Worker]:
    """A journal with three records of the call 1, and one of another."""
    queue = ExecutionQueue()
    worker = queue.worker()
    notes = (step(1, 1), step(2), step(1, 2), step(1, 3))
    recorded(queue.record(worker, *notes, seen=0))
    return queue, worker


def test_a_fold_stands_in_the_place_of_the_last_event():
    queue, worker = folding()
    before = queue.journal()[4].note
    fold = Fold(4, call(1, payload=b"sum", after=99, at_ms=99), ((1, 1), (3, 1)))
    recorded(queue.record(worker, folds=(fold,)))
    journal = queue.journal()
    assert [record.index for record in journal] == [0, 2, 4]
    folded = journal[-1].note
    assert (folded.kind, folded.path, folded.payload) == (RecordKind.CALL_DONE, path(1), b"sum")
    assert (folded.after, folded.at_ms) == (before.after, before.at_ms)
    assert queue.view().records == 3


def test_a_fold_over_an_arrival_is_an_arrival():
    queue = ExecutionQueue()
    worker = queue.worker()
    recorded(queue.record(worker, step(1, 1), timers=(Timer(path(1, 2), 1),)))
    queue.log.advance(0)
    fold = Fold(2, call(1), ((1, 1),))
    recorded(queue.record(worker, seen=2, folds=(fold,)))
    assert queue.kinds() == ["STARTED", "CALL_DONE_LATER"]


def test_a_fold_takes_the_signals_that_its_call_consumed():
    queue = ExecutionQueue()
    worker = queue.worker()
    arrived(queue.signal(message_id="m"))
    recorded(queue.record(worker, step(1, 2, after=1), seen=1))
    recorded(queue.record(worker, folds=(Fold(2, call(1), ((1, 1),)),), seen=1))
    assert queue.kinds() == ["STARTED", "CALL_DONE"]
    assert arrived(queue.signal(message_id="m")).repeated


def test_a_call_may_end_in_the_record_that_folds_it():
    queue, worker = folding()
    fold = Fold(0, call(1), ((1, 1), (3, 2)))
    recorded(queue.record(worker, step(3), call(1), folds=(fold,)))
    assert [record.note.path for record in queue.journal()][1:] == [path(2), path(3), path(1)]


def test_large_payloads_leave_with_a_fold():
    queue = ExecutionQueue()
    worker = queue.worker()
    notes = [step(1, nth, payload=b"", place=nth) for nth in (1, 2)]
    recorded(queue.record(worker, *notes, large=(b"x" * 2_000, b"y" * 3_000)))
    fold = Fold(2, call(1, payload=b"", place=1), ((1, 1),))
    recorded(queue.record(worker, folds=(fold,), large=(b"z" * 4_000,)))
    assert queue.journal()[1].note.payload == b"z" * 4_000
    assert queue.view().size < 5_000


@pytest.mark.parametrize(
    ("folds", "field"),
    [
        ((Fold(2, call(1)),), "folds[0].index"),
        ((Fold(9, call(1)),), "folds[0].index"),
        ((Fold(4, call(1, 3)),), "folds[0].index"),
        ((Fold(4, call(1), ((1, 3),)),), "folds[0].removed"),
        ((Fold(4, call(1)), Fold(4, call(1))), "folds[1].index"),
        ((Fold(4, call(1), ((1, 1),)), Fold(3, call(1), ((1, 1),))), "folds[1].removed"),
    ],
)
def test_a_fold_beyond_its_call_is_refused(folds, field):
    queue, worker = folding()
    bad = queue.record(worker, step(5), folds=folds)
    assert refused(bad) == (ErrorCode.INVALID_ARGUMENT, field)
    assert len(queue.journal()) == 5


def test_a_fold_does_not_reach_beyond_the_journal():
    queue, worker = folding()
    bad = queue.record(worker, call(1), folds=(Fold(0, call(1), ((3, 20),)),))
    assert refused(bad) == (ErrorCode.INVALID_ARGUMENT, "folds[0].removed")


def test_a_fold_takes_no_unread_arrival():
    queue = ExecutionQueue()
    worker = queue.worker()
    arrived(queue.signal())
    arrived(queue.resolve(worker.execution, path(1, 1)))
    recorded(queue.record(worker, step(1, 2)))
    removes = queue.record(worker, folds=(Fold(3, call(1), ((1, 1),)),))
    assert refused(removes) == (ErrorCode.INVALID_ARGUMENT, "folds[0].removed")
    overwrites = queue.record(worker, folds=(Fold(2, call(1)),), seen=1)
    assert refused(overwrites) == (ErrorCode.INVALID_ARGUMENT, "folds[0].index")


# Other queues, other commands.


@pytest.mark.parametrize(
    "command",
    [
        Complete((LeaseItems(1),)),
        Retry((LeaseItems(1),), dead=True),
        Purge(1, 100, scheduled=True),
        Cancel(((1, 9),)),
        OpenReader("spark", 0, ""),
    ],
)
def test_a_queue_of_executions_has_no_items_of_producers(command):
    queue = ExecutionQueue()
    worker = queue.worker()
    assert refused(queue.log.one(command)) == (ErrorCode.QUEUE_KIND, "queue")
    recorded(queue.record(worker, step(1)))


def test_a_queue_of_executions_takes_no_items():
    queue = ExecutionQueue()
    assert refused(queue.log.produce(3)) == (ErrorCode.QUEUE_KIND, "queue")
    queue.worker()


def test_a_queue_of_items_takes_no_executions():
    log = PartitionLog()
    start = StartExecution("a", "f", "1", SECRET, b"h" * 16, place=1, lengths=b"\x02\0\0\0")
    assert refused(log.one(start, b"ab"))[0] is ErrorCode.UNAVAILABLE
    log.configure()
    assert refused(log.one(start, b"ab")) == (ErrorCode.QUEUE_KIND, "queue")
    assert refused(log.one(FireTimers())) == (ErrorCode.QUEUE_KIND, "queue")
    log.produce(1)


def test_a_paused_queue_starts_nothing_and_goes_on():
    queue = ExecutionQueue()
    worker = queue.worker()
    queue.log.configure(2, produce_paused=True)
    assert refused(queue.start("b"))[0] is ErrorCode.QUEUE_PAUSED
    recorded(queue.record(worker, step(1)))


def test_the_kind_of_a_queue_stays():
    queue = ExecutionQueue()
    queue.log.configure(2)
    queue.worker()
    log = PartitionLog()
    log.configure()
    log.produce(1)
    ExecutionQueue(log=log)
    assert not isinstance(log.produce(1), Refusal)


def test_starts_of_one_entry_share_a_block_and_can_be_used_in_it():
    queue = ExecutionQueue()
    starts = [
        Proposal(StartExecution(f"e{nth}", "f", "1", SECRET, b"h" * 16)) for nth in range(300)
    ]
    queue.log.entry(*starts)
    assert len(queue.lease(300)) == 300
    assert {queue.view(f"e{nth}").state for nth in range(300)} == {STATES.RUNNABLE}


def test_many_timers_fire_in_further_commands():
    queue = ExecutionQueue(log=PartitionLog(checked=False))
    due_ms = queue.log.now_ms + 1_000
    queue.log.entry(*(
        Proposal(StartExecution(f"e{nth}", "f", "1", SECRET, b"h" * 16)) for nth in range(1_200)
    ))  # fmt: skip
    for worker in queue.lease(1_200):
        recorded(queue.park(worker, paths=(path(1),), timers=(Timer(path(1), due_ms),)))
    queue.log.checked = True
    queue.log.advance(1_000)
    assert len(queue.lease(2_000)) == 1_200


def test_a_large_execution_is_removed_bit_by_bit():
    queue = ExecutionQueue(log=PartitionLog(checked=False))
    worker = queue.worker()
    for _ in range(20):
        recorded(queue.record(worker, *[step(1)] * 250))
    for nth in range(100):
        arrived(queue.signal(message_id=f"m{nth}"))
    recorded(queue.record(worker, timers=(Timer(path(1), queue.log.now_ms + RETENTION_MS * 2),)))
    recorded(queue.record(worker, then=DONE))
    queue.log.checked = True
    queue.log.now_ms += RETENTION_MS
    queue.log.entry(Proposal(FireTimers()))
    assert queue.find() is None
    queue.start()
    queue.log.advance(0)
    assert queue.view().number == 2
    assert len(queue.journal()) == 1


def test_a_record_of_several_parts_is_applied_whole_or_not_at_all():
    queue = ExecutionQueue()
    worker = queue.worker()
    far = Timer(path(1), queue.log.now_ms + SCHEDULE_AHEAD_MS_MAX * 2)
    large = (b"x" * 2_000,)
    bad = queue.record(
        worker, step(1), step(2, payload=b"", place=1), timers=(far,), then=Park((path(1),)),
        large=large,
    )  # fmt: skip
    assert refused(bad)[0] is ErrorCode.LIMIT_EXCEEDED
    assert (len(queue.journal()), queue.view().state) == (1, STATES.RUNNABLE)
    recorded(queue.record(worker, step(1)))


def test_notes_of_the_worker_keep_all_their_fields():
    queue = ExecutionQueue()
    worker = queue.worker()
    note = Note(RecordKind.STEP_FAILED, path(7), "ship", "shop.py:4", 0, 123, b"boom")
    recorded(queue.record(worker, note))
    assert queue.journal()[1].note == note
