"""The producer's window: repeated requests, their identity, and unknown outcomes."""

import time
from dataclasses import dataclass, field

from querator.client import clock as wall_clock
from querator.client.errors import (
    ErrorCode,
    OutcomeUnknown,
    QueueFull,
    RequestError,
    make_error,
)
from querator.client.producing.window import (
    ANSWER_SECONDS,
    IDENTITY_SECONDS_MAX,
    PendingProduce,
    Window,
)

GAP = make_error(ErrorCode.SEQUENCE_GAP, "gap")
FULL = make_error(ErrorCode.QUEUE_FULL, "full", retry_delay_ms=70)
BAD = make_error(ErrorCode.LIMIT_EXCEEDED, "bad")
UNKNOWN = make_error(ErrorCode.OUTCOME_UNKNOWN, "unknown")
EXPIRED = make_error(ErrorCode.PRODUCER_EXPIRED, "expired")


@dataclass
class _Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class _Sink:
    errors: list[RequestError] = field(default_factory=list)

    def done(self, runs, durable) -> None:
        raise AssertionError("the window answers nobody")

    def failed(self, error: RequestError) -> None:
        self.errors.append(error)


def _window(count: int, *, ordered: bool = True, clock: _Clock | None = None) -> Window:
    window = Window(ordered, clock or _Clock())
    for number in range(1, count + 1):
        window.add(
            PendingProduce(
                number=number, pieces=[b"x"], size=1, count=1, deadline=10.0 * number, sink=_Sink()
            )
        )
    return window


def _send_all(window: Window) -> list[PendingProduce]:
    sent = []
    while (request := window.next_request()) is not None:
        sent.append(request)
    return sent


def _refuse(window: Window, request: PendingProduce, error: RequestError) -> bool:
    assert window.pop_answered(request.number) is request
    return window.refused(request, error)


def test_requests_are_sent_once_in_order_with_consecutive_sequences():
    window = _window(3)
    assert [request.sequence for request in _send_all(window)] == [1, 2, 3]
    assert _send_all(window) == []


def test_a_refusal_for_the_time_being_rewinds_with_the_same_identity():
    window = _window(3)
    first, second, third = _send_all(window)
    identity = window.identity
    assert _refuse(window, first, FULL)
    assert window.next_request() is None
    assert not window.quiet
    assert _refuse(window, second, GAP)
    assert _refuse(window, third, GAP)
    assert window.quiet
    assert window.retry_delay_ms == 70
    assert window.requeue() == []
    assert [(r.number, r.sequence) for r in _send_all(window)] == [(1, 1), (2, 2), (3, 3)]
    assert window.identity == identity


def test_after_a_final_refusal_the_rest_goes_on_under_a_new_identity():
    window = _window(3)
    first, second, third = _send_all(window)
    identity = window.identity
    assert not _refuse(window, first, BAD)
    window.remove(first)
    assert _refuse(window, second, GAP)
    assert _refuse(window, third, GAP)
    assert window.requeue() == []
    assert [(r.number, r.sequence) for r in _send_all(window)] == [(2, 1), (3, 2)]
    assert window.identity != identity


def test_what_may_have_been_executed_keeps_its_identity_after_a_break():
    window = _window(2)
    _send_all(window)
    identity = window.identity
    window.broken()
    assert window.requeue() == []
    assert [(r.number, r.sequence) for r in _send_all(window)] == [(1, 1), (2, 2)]
    assert window.identity == identity
    assert all(request.maybe_executed for request in window)


def test_what_may_have_been_executed_is_never_sent_under_another_identity():
    window = _window(3)
    first, _second = window.next_request(), window.next_request()
    window.broken()
    window.requeue()
    _send_all(window)
    assert first is not None
    for request in list(window):
        assert _refuse(window, request, GAP)
    failed = window.requeue()
    assert [request.number for request, _ in failed] == [1, 2]
    assert all(isinstance(error, OutcomeUnknown) for _, error in failed)
    assert [(r.number, r.sequence) for r in _send_all(window)] == [(3, 1)]


def test_unordered_requests_know_no_gap():
    window = _window(2, ordered=False)
    first, second = _send_all(window)
    assert not _refuse(window, first, GAP)
    assert _refuse(window, second, FULL)


def test_a_forgotten_producer_is_fatal_only_for_what_may_have_been_executed():
    window = _window(2, ordered=False)
    first, second = _send_all(window)
    first.maybe_executed = True
    assert not _refuse(window, first, EXPIRED)
    window.remove(first)
    identity = window.identity
    assert _refuse(window, second, EXPIRED)
    assert window.requeue() == []
    assert window.identity != identity


def test_time_runs_out_with_the_best_known_reason():
    window = _window(4)
    first, second = window.next_request(), window.next_request()
    assert first is not None
    assert second is not None
    assert _refuse(window, first, FULL)
    assert window.next_expiry() == first.deadline
    over = window.expired(first.deadline)
    assert window.next_expiry() == second.deadline + ANSWER_SECONDS
    assert window.expired(second.deadline) == []
    over += window.expired(35.0)
    assert [request.number for request, _ in over] == [1, 2, 3]
    assert isinstance(over[0][1], QueueFull)
    assert isinstance(over[1][1], OutcomeUnknown)
    assert over[2][1] is None
    assert window.pop_answered(second.number) is None
    assert window.quiet


def test_a_request_that_was_never_sent_leaves_no_gap_when_its_time_runs_out():
    window = _window(2)
    window.expired(15.0)
    assert [(r.number, r.sequence) for r in _send_all(window)] == [(2, 1)]


def test_an_unknown_outcome_is_asked_for_again():
    window = _window(1)
    (request,) = _send_all(window)
    assert _refuse(window, request, UNKNOWN)
    window.requeue()
    assert [r.sequence for r in _send_all(window)] == [1]
    assert request.maybe_executed


def test_an_old_identity_is_replaced_between_requests():
    clock = _Clock()
    window = _window(1, clock=clock)
    (first,) = _send_all(window)
    identity = window.identity
    clock.now = IDENTITY_SECONDS_MAX + 1
    window.add(PendingProduce(number=2, pieces=[b"x"], size=1, count=1, deadline=1e9, sink=_Sink()))
    assert window.next_request() is None
    assert window.paused
    assert window.pop_answered(first.number) is first
    window.remove(first)
    window.requeue()
    assert [(r.number, r.sequence) for r in _send_all(window)] == [(2, 1)]
    assert window.identity != identity


def test_time_in_which_the_machine_was_suspended_makes_an_identity_old():
    # The nodes' wall clocks went on; this machine's monotonic clock stood still.
    born_ns = time.time_ns()
    with wall_clock.replaced(lambda: born_ns):
        window = _window(1)
        (first,) = _send_all(window)
        assert window.pop_answered(first.number) is first
        window.remove(first)
    woken_ns = born_ns + int((IDENTITY_SECONDS_MAX + 1) * 1e9)
    with wall_clock.replaced(lambda: woken_ns):
        request = PendingProduce(
            number=2, pieces=[b"x"], size=1, count=1, deadline=1e9, sink=_Sink()
        )
        window.add(request)
        assert window.next_request() is None
        identity = window.identity
        window.requeue()
        assert window.next_request() is request
        assert window.identity != identity
        assert int.from_bytes(window.identity.id[:6], "big") == woken_ns // 1_000_000


def test_a_gap_that_comes_of_overtaking_keeps_the_identity():
    window = _window(3)
    first, second, third = _send_all(window)
    identity = window.identity
    # The second and third requests have reached a new leader before the first one.
    assert _refuse(window, second, GAP)
    assert _refuse(window, third, GAP)
    window.pop_answered(first.number)
    window.remove(first)
    assert window.requeue() == []
    assert [(r.number, r.sequence) for r in _send_all(window)] == [(2, 2), (3, 3)]
    assert window.identity == identity


def test_a_gap_before_the_oldest_asks_for_a_new_identity():
    window = _window(2)
    first, second = _send_all(window)
    assert _refuse(window, first, GAP)
    assert _refuse(window, second, GAP)
    assert window.requeue() == []
    assert [(r.number, r.sequence) for r in _send_all(window)] == [(1, 1), (2, 2)]
