"""What a client logs while partitions have no leader, and about lost nodes that it did not use."""

import pytest

from querator.client.errors import ErrorCode, make_error
from querator.client.transport.known_node import KnownNode
from querator.client.transport.waits import AGAIN_S, QUIET_S, Waits


class Time:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def time() -> Time:
    return Time()


def refusal(partition: int, missing: str = " (b, c unreachable)", queue: str = "q"):
    message = f"partition {partition} of queue {queue} has no leader{missing}; not executed"
    return make_error(ErrorCode.UNAVAILABLE, message)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name == "querator.client.connection"]


def test_an_outage_is_logged_at_its_beginning_each_half_minute_and_at_its_end(caplog, time):
    waits = Waits(time)
    requests = [object() for _ in range(50)]
    began_s = time.now_s
    while time.now_s < began_s + 2 * AGAIN_S + 1:
        for number, request in enumerate(requests):
            missing = " (b, c unreachable)" if number % 3 else ""
            waits.refused(request, refusal(number % 5, missing))
        time.now_s += 0.5
    for request in requests:
        waits.executed(request)
    first, second, third, last = lines(caplog)
    assert first == "Waiting: partition 0 of queue q has no leader; not executed"
    assert second == third
    assert second.startswith("Still waiting, 50 requests: partition 0 of queue q has no leader")
    assert last == "Requests are executed again"


def test_each_queue_is_a_cause_and_an_unknown_outcome_is_none(caplog, time):
    waits = Waits(time)
    later = "partition 1 of queue q did not answer; after that partition 1 of queue q has no leader"
    for _ in range(2):
        waits.refused("a", refusal(0))
        waits.refused("b", refusal(7, queue="r"))
        waits.refused("c", make_error(ErrorCode.OUTCOME_UNKNOWN, later))
        waits.noticed(make_error(ErrorCode.UNAVAILABLE, "the placement group has no leader"))
    assert lines(caplog) == [
        f"Waiting: {refusal(0).message}",
        f"Waiting: {refusal(7, queue='r').message}",
        "Waiting: the placement group has no leader",
    ]


def test_requests_to_other_partitions_are_no_end(caplog, time):
    waits = Waits(time)
    waits.refused("waits", refusal(0))
    waits.executed("another")
    waits.executed("waits")
    assert lines(caplog)[1:] == ["Requests are executed again"]


@pytest.mark.parametrize("gives_up", [True, False])
def test_a_refusal_without_a_waiting_request_ends_when_there_was_none_for_a_while(
    caplog, time, gives_up
):
    waits = Waits(time)
    if gives_up:
        waits.refused("one", refusal(0))
        waits.ended("one")
    else:
        waits.noticed(refusal(0))
    waits.executed("another")
    assert len(lines(caplog)) == 1
    time.now_s += QUIET_S
    waits.executed("another")
    assert lines(caplog)[1:] == ["Requests are executed again"]


def test_a_leader_that_comes_and_goes_is_logged_once_in_half_a_minute(caplog, time):
    waits = Waits(time)
    for _ in range(20):
        waits.refused("one", refusal(0))
        waits.executed("one")
    time.now_s += AGAIN_S
    waits.refused("one", refusal(1))
    assert lines(caplog) == [
        f"Waiting: {refusal(0).message}",
        "Requests are executed again",
        f"Waiting: {refusal(1).message}",
    ]


def test_an_outage_after_one_that_all_requests_gave_up_begins_again(caplog, time):
    waits = Waits(time)
    waits.refused("one", refusal(0))
    waits.ended("one")
    time.now_s += AGAIN_S
    waits.refused("two", refusal(0))
    waits.executed("two")
    assert lines(caplog) == [
        f"Waiting: {refusal(0).message}",
        f"Waiting: {refusal(0).message}",
        "Requests are executed again",
    ]


def test_an_outage_continues_when_one_request_gives_up_and_another_comes_soon(caplog, time):
    waits = Waits(time)
    waits.refused("one", refusal(0))
    time.now_s += AGAIN_S
    waits.ended("one")
    time.now_s += QUIET_S / 2
    waits.refused("two", refusal(0))
    assert lines(caplog) == [
        f"Waiting: {refusal(0).message}",
        f"Still waiting, 1 request: {refusal(0).message}",
    ]


@pytest.mark.parametrize("waiting", [0, 1])
def test_the_number_of_waiting_requests_is_said_if_there_are_any(caplog, time, waiting):
    waits = Waits(time)
    began_s = time.now_s
    while time.now_s <= began_s + AGAIN_S:
        for _ in range(waiting):
            waits.refused("one", refusal(0))
        waits.noticed(refusal(0))
        time.now_s += 0.5
    words = "Still waiting, 1 request: " if waiting else "Still waiting: "
    assert lines(caplog)[1].startswith(words)


def test_a_lost_node_that_was_not_used_says_so(caplog):
    node = KnownNode("127.0.0.1:1", None, name="", given=True)
    node.works(0.0)
    node.lost(make_error(ErrorCode.UNAVAILABLE, "the stream was cut"), 10.0)
    node.missed(14.0)
    node.works(610.0)
    assert lines(caplog)[1] == (
        "Connected to 127.0.0.1:1 again: it was lost 600.0 s ago, and not tried in the last 596.0 s"
    )
