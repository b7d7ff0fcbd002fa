"""Executions that wait for a worker with a version that fits."""

import pytest

from querator.model.commands import Extend, Refusal
from querator.model.errors import ErrorCode
from querator.model.execution_commands import FireTimers, LeasePinned
from querator.model.executions import (
    ArriveKind,
    Close,
    ExecutionState,
    GiveBack,
    NewRun,
    RecordKind,
    Timer,
)
from querator.model.lease_limits import LeaseLimits
from querator.model.limits import (
    EXECUTION_FIRES_MAX,
    EXECUTION_LAPSES_MAX,
    EXECUTION_REFUSALS_MAX,
)
from querator.model.queues import ExecutionSettings
from querator.partition.execution_rows import ExecutionCounts
from querator.partition.pins import fitting_pins
from querator.partition.rows import decode_state
from querator.storage.tables import STATE
from tests.unit.partition.execution_queue import (
    LEASE_MS,
    RETENTION_MS,
    ExecutionQueue,
    arrived,
    path,
    recorded,
    refused,
    step,
)
from tests.unit.partition.partition_log import GROUP, PartitionLog

STATES = ExecutionState
CHECKOUT = "shop.checkout"
DONE = Close(RecordKind.COMPLETED, b"result")


def pinned(version: str = "2", reason: str = "record 1 is another one") -> GiveBack:
    return GiveBack(reason=reason, pinned=True, refused=version)


def a_pinned_one(name: str = "a", version: str = "2") -> ExecutionQueue:
    """An execution of version 1 that a worker with another one has refused."""
    queue = ExecutionQueue()
    recorded(queue.record(queue.worker(name), then=pinned(version)))
    return queue


def test_what_a_worker_cannot_run_is_leased_by_no_other_one_like_it():
    queue = a_pinned_one()
    view = queue.view()
    assert (view.state, view.reason) == (STATES.PINNED, "record 1 is another one")
    assert queue.lease() == []
    assert queue.lease_pinned({CHECKOUT: "2"}) == []
    assert queue.lease_pinned({"shop.ship": "1"}) == []


@pytest.mark.parametrize("version", ["1", "3"])
def test_its_version_gets_it_and_one_that_was_not_tried(version):
    queue = a_pinned_one()
    (worker,) = queue.lease_pinned({"shop.ship": "9", CHECKOUT: version})
    view = queue.view()
    assert (worker.execution, view.state, view.reason) == (view.number, STATES.RUNNABLE, "")
    assert queue.lease() == []
    recorded(queue.record(worker, step(1), version=version, then=DONE))
    assert queue.view().state is STATES.COMPLETED


def test_each_version_that_does_not_fit_is_tried_once():
    queue = a_pinned_one()
    for version in ("3", "4"):
        (worker,) = queue.lease_pinned({CHECKOUT: version})
        recorded(queue.record(worker, then=pinned(version, f"not with {version}")))
        assert queue.lease_pinned({CHECKOUT: version}) == []
    assert queue.view().reason == "not with 4"
    assert queue.lease_pinned({CHECKOUT: "2"}) == []
    assert len(queue.lease_pinned({CHECKOUT: "1"})) == 1


def test_a_worker_without_the_function_leaves_it_to_those_that_have_it():
    queue = a_pinned_one(version="")
    assert queue.lease() == []
    (worker,) = queue.lease_pinned({CHECKOUT: "2"})
    recorded(queue.record(worker, then=DONE))


def test_the_last_refused_versions_are_known():
    queue = a_pinned_one(version="v0")
    for nth in range(1, EXECUTION_REFUSALS_MAX + 1):
        (worker,) = queue.lease_pinned({CHECKOUT: f"v{nth}"})
        recorded(queue.record(worker, then=pinned(f"v{nth}")))
    assert queue.lease_pinned({CHECKOUT: "v1"}) == []
    assert len(queue.lease_pinned({CHECKOUT: "v0"})) == 1


def test_what_arrives_meanwhile_is_kept():
    queue = a_pinned_one()
    first = arrived(queue.signal())
    assert queue.view().state is STATES.PINNED
    (worker,) = queue.lease_pinned({CHECKOUT: "1"})
    recorded(queue.record(worker, seen=first.index, then=DONE))
    assert queue.view().state is STATES.COMPLETED


def test_what_was_pinned_in_a_run_wakes_for_workers_that_fit():
    queue = a_pinned_one()
    (worker,) = queue.lease_pinned({CHECKOUT: "1"})
    recorded(queue.park(worker, step(1), names=("go",)))
    assert queue.view().reason == ""
    arrived(queue.signal())
    assert (queue.view().state, queue.view().reason) == (STATES.PINNED, "record 1 is another one")
    assert queue.lease() == []
    assert queue.lease_pinned({CHECKOUT: "2"}) == []
    assert len(queue.lease_pinned({CHECKOUT: "1"})) == 1


def test_a_timer_wakes_it_as_well():
    queue = a_pinned_one()
    (worker,) = queue.lease_pinned({CHECKOUT: "1"})
    due = Timer(path(1), queue.log.now_ms + 1_000)
    recorded(queue.park(worker, timers=(due,), paths=(path(1),)))
    queue.log.advance(1_000)
    queue.log.one(FireTimers())
    assert queue.view().state is STATES.PINNED


def test_what_is_given_back_politely_or_lapses_waits_again():
    queue = a_pinned_one()
    (worker,) = queue.lease_pinned({CHECKOUT: "1"})
    recorded(queue.record(worker, then=GiveBack()))
    assert queue.view().state is STATES.PINNED
    (late,) = queue.lease_pinned({CHECKOUT: "1"})
    queue.log.advance(LEASE_MS + 1)
    view = queue.view()
    assert (view.state, view.lapses) == (STATES.PINNED, 1)
    assert refused(queue.record(late, then=DONE)) == (ErrorCode.LEASE_LOST, "lease")
    assert len(queue.lease_pinned({CHECKOUT: "1"})) == 1


def test_a_worker_that_dies_of_it_makes_it_stuck():
    queue = a_pinned_one()
    for _ in range(EXECUTION_LAPSES_MAX):
        assert len(queue.lease_pinned({CHECKOUT: "1"})) == 1
        queue.log.advance(LEASE_MS + 1)
    assert queue.view().state is STATES.STUCK
    assert queue.lease_pinned({CHECKOUT: "1"}) == []
    arrived(queue.arrive(ArriveKind.RETRY))
    assert len(queue.lease()) == 1


def test_a_person_may_let_every_worker_try_it():
    queue = a_pinned_one()
    assert not arrived(queue.arrive(ArriveKind.RETRY)).repeated
    assert queue.view().state is STATES.RUNNABLE
    (worker,) = queue.lease()
    assert queue.lease_pinned({CHECKOUT: "1"}) == []
    recorded(queue.record(worker, then=pinned("2")))
    assert queue.view().state is STATES.PINNED


def test_it_can_be_terminated_and_is_cancelled_by_the_worker_that_fits():
    queue = a_pinned_one()
    cancelled = arrived(queue.arrive(ArriveKind.CANCEL))
    assert queue.view().state is STATES.PINNED
    arrived(queue.arrive(ArriveKind.TERMINATE))
    assert queue.view().state is STATES.TERMINATED
    assert queue.lease_pinned({CHECKOUT: "1"}) == []
    queue.log.advance(3_600_000)
    assert cancelled.index == 1
    assert queue.find() is None


def test_a_new_run_is_for_every_worker():
    queue = a_pinned_one()
    (worker,) = queue.lease_pinned({CHECKOUT: "1"})
    recorded(queue.record(worker, then=NewRun(b"args")))
    assert len(queue.lease()) == 1


def test_those_that_wait_longest_come_first_whatever_they_wait_for():
    queue = ExecutionQueue()
    for nth, version in enumerate("2332"):
        recorded(queue.record(queue.worker(f"x{nth}"), then=pinned(version)))
    names = []
    while found := queue.lease_pinned({CHECKOUT: "1"}):
        names.append(queue.at(found[0].item).id)
    assert names == ["x0", "x1", "x2", "x3"]


def test_a_command_leases_a_bounded_number():
    queue = ExecutionQueue(log=PartitionLog(checked=False))
    count = EXECUTION_FIRES_MAX + 5
    for nth in range(count):
        queue.start(f"x{nth}")
    for worker in queue.lease(count):
        recorded(queue.record(worker, then=pinned()))
    assert len(queue.lease_pinned({CHECKOUT: "1"}, 3)) == 3
    assert len(queue.lease_pinned({CHECKOUT: "1"}, 1_000)) == EXECUTION_FIRES_MAX
    assert len(queue.lease_pinned({CHECKOUT: "1"}, 1_000)) == 2


def test_a_repeated_request_gets_the_same_lease():
    queue = a_pinned_one()
    first = queue.lease_pinned({CHECKOUT: "1"}, request_id="r1")
    assert queue.lease_pinned({CHECKOUT: "1"}, request_id="r1") == first
    queue.record(first[0], then=DONE)
    late = queue.log.one(LeasePinned("worker", "r1", 1, ()))
    assert isinstance(late, Refusal)
    assert late.code is ErrorCode.LEASE_ENDED


def test_a_pause_and_limits_hold():
    queue = a_pinned_one()
    executions = ExecutionSettings(RETENTION_MS)
    queue.log.configure(2, executions=executions, lease_paused=True)
    assert queue.lease_pinned({CHECKOUT: "1"}) == []
    assert queue.view().state is STATES.PINNED
    queue.log.configure(3, executions=executions, limits=LeaseLimits(leased_max=1))
    queue.start("b")
    (worker,) = queue.lease()
    assert queue.lease_pinned({CHECKOUT: "1"}, 9) == []
    recorded(queue.record(worker, then=DONE))
    assert len(queue.lease_pinned({CHECKOUT: "1"}, 9)) == 1


def test_a_pin_that_is_gone_leases_nothing():
    queue = a_pinned_one()
    with queue.log.environment.snapshot() as txn:
        pins = fitting_pins(txn, GROUP, {CHECKOUT: "1"}, 9)
    arrived(queue.arrive(ArriveKind.RETRY))
    result = queue.log.one(LeasePinned("worker", "", 1, pins))
    assert (result.lease, result.activations) == (0, ())


def test_a_queue_of_items_has_no_pins():
    log = PartitionLog()
    log.configure()
    assert refused(log.one(LeasePinned("worker", "", 1, ()))) == (ErrorCode.QUEUE_KIND, "queue")


def test_the_lease_of_a_pinned_one_is_like_others():
    queue = a_pinned_one()
    (worker,) = queue.lease_pinned({CHECKOUT: "1"}, lease_timeout_ms=5_000)
    queue.log.advance(4_000)
    queue.log.one(Extend((worker.lease,)))
    queue.log.advance(4_000)
    recorded(queue.record(worker, then=DONE))
    assert queue.view().state is STATES.COMPLETED


def counts(queue: ExecutionQueue) -> ExecutionCounts:
    with queue.log.environment.snapshot() as txn:
        raw = STATE.get(txn, GROUP)
    assert raw is not None
    found = decode_state(raw).executions
    assert found is not None
    return found


def test_they_are_counted_and_each_pin_is_a_notice():
    queue = a_pinned_one()
    first = counts(queue)
    assert (first.pinned, first.notices) == (1, 1)
    (worker,) = queue.lease_pinned({CHECKOUT: "1"})
    assert counts(queue).pinned == 0
    recorded(queue.record(worker, then=GiveBack()))
    assert (counts(queue).pinned, counts(queue).notices) == (1, 2)


def test_who_gives_back_has_seen_nothing_and_the_code_may_end_before_an_arrival():
    """A worker that did not run the code said that the code had seen all arrivals. Code that ends
    before them has not, and its end was refused.
    """
    queue = ExecutionQueue()
    worker = queue.worker()
    first = arrived(queue.signal())
    recorded(queue.record(worker, seen=first.index))
    last = arrived(queue.signal())
    recorded(queue.record(worker, then=pinned()))
    assert (queue.view().seen, queue.view().unread) == (first.index, 1)
    (again,) = queue.lease_pinned({CHECKOUT: "1"})
    assert refused(queue.record(again, step(1), then=pinned())) == (
        ErrorCode.INVALID_ARGUMENT, "seen",
    )  # fmt: skip
    recorded(queue.record(again, seen=first.index, then=DONE))
    assert (queue.view().state, queue.view().seen) == (STATES.COMPLETED, first.index)
    assert last.index == first.index + 1
