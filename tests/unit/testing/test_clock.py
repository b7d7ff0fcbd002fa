"""FrozenClock: time of a real node in memory, which a test moves."""

from datetime import UTC, datetime, timedelta

import pytest

from querator import SyncClient, SyncNode
from querator.client import Item, ItemState
from querator.client.errors import LeaseLost
from querator.testing import FrozenClock

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)


def test_a_skip_lets_a_lease_lapse(querator_clock: FrozenClock, querator_client: SyncClient):
    client = querator_client
    client.create_queue("q", lease_timeout=timedelta(seconds=30))
    client.produce("q", b"x")
    (first,) = client.lease("q")
    querator_clock.skip(timedelta(seconds=29))
    assert client.lease("q") == []
    querator_clock.skip(SECOND)
    (second,) = client.lease("q")
    assert (first.attempt, second.attempt) == (1, 2)
    with pytest.raises(LeaseLost):
        first.complete()
    second.complete()


def test_delays_come_due_by_skips_alone(querator_clock: FrozenClock, querator_client: SyncClient):
    client = querator_client
    client.create_queue("q")
    client.produce("q", Item(b"x", delay=HOUR))
    assert [item.due_at for item in client.peek("q")] == [querator_clock.now() + HOUR]
    querator_clock.skip(HOUR - SECOND)
    assert client.lease("q") == []
    querator_clock.skip(SECOND)
    (item,) = client.lease("q")
    item.retry(delay=HOUR, error="later")
    querator_clock.skip(HOUR - SECOND)
    assert [found.state for found in client.peek("q")] == [ItemState.SCHEDULED]
    querator_clock.skip(SECOND)
    assert [found.attempt for found in client.lease("q")] == [2]


def test_failed_items_wait_by_the_retry_policy_of_their_queue(
    querator_clock: FrozenClock, querator_client: SyncClient
):
    client = querator_client
    client.create_queue("q", retry_delay=HOUR, retry_delay_max=3 * HOUR, retry_jitter=False)
    client.produce("q", b"x")
    for hours in (1, 2, 3, 3):
        (item,) = client.lease("q")
        item.retry(error="busy")
        querator_clock.skip(hours * HOUR - SECOND)
        assert client.lease("q") == []
        querator_clock.skip(SECOND)
    client.update_queue("q", retry_backoff="fixed", retry_delay=timedelta(minutes=5))
    (item,) = client.lease("q")
    item.retry(error="busy")
    assert [item.due_at for item in client.peek("q")] == [
        querator_clock.now() + timedelta(minutes=5)
    ]
    assert client.get_queue("q").retry_backoff == "fixed"
    with pytest.raises(ValueError, match="retry_backoff is 'random'; it must be one of fixed"):
        client.update_queue("q", retry_backoff="random")  # type: ignore[arg-type]


def test_a_consumer_leaves_the_time_of_a_retry_to_its_queue(
    querator_clock: FrozenClock, querator_client: SyncClient
):
    client = querator_client
    client.create_queue("q", retry_delay=HOUR, retry_jitter=False)
    client.produce("q", b"x")

    def fail(item: object) -> None:
        consumer.stop()
        raise ValueError("busy")

    with client.consumer("q") as consumer:
        consumer.run(fail, retry_first=None)
    assert [item.due_at for item in client.peek("q")] == [querator_clock.now() + HOUR]


def test_a_waiting_consumer_gets_what_a_skip_makes_ready(
    querator_clock: FrozenClock, querator_client: SyncClient
):
    client = querator_client
    client.create_queue("q")
    client.produce("q", Item(b"x", delay=HOUR))
    with client.consumer("q") as consumer:
        querator_clock.skip(HOUR)
        item = next(iter(consumer))
        item.complete()
    assert client.stats("q").total.completed == 1


def test_items_expire_by_a_skip(querator_clock: FrozenClock, querator_client: SyncClient):
    querator_client.create_queue("q", expire_timeout=HOUR)
    querator_client.produce("q", b"x")
    querator_clock.skip(HOUR)
    assert querator_client.stats("q").total.expired == 1


def test_clients_work_after_skips_of_years(
    querator_clock: FrozenClock, querator_client: SyncClient
):
    client = querator_client
    client.create_queue("q")
    with client.producer("q") as producer:
        for _ in range(3):
            querator_clock.skip(timedelta(days=400))
            client.produce("q", b"single")
            producer.produce(b"stream")
    assert client.stats("q").total.ready == 6


def test_a_call_after_a_skip_sees_what_came_due(
    querator_clock: FrozenClock, querator_client: SyncClient
):
    client = querator_client
    client.create_queue("q", lease_timeout=timedelta(seconds=30))
    for _ in range(40):
        client.produce("q", Item(b"x", delay=HOUR))
        querator_clock.skip(HOUR)
        (first,) = client.lease("q")
        querator_clock.skip(timedelta(seconds=30))
        (second,) = client.lease("q")
        assert (first.attempt, second.attempt) == (1, 2)
        second.complete()


def test_time_stands_still_from_the_given_instant():
    noon = datetime(2030, 1, 1, 12, tzinfo=UTC)
    with FrozenClock(noon) as clock, SyncNode(memory=True, clock=clock) as node:
        with node.client() as client:
            client.create_queue("q")
            client.produce("q", b"x")
            assert [item.produced_at for item in client.peek("q")] == [noon]
            clock.skip(timedelta(microseconds=1))
            assert clock.now() == noon + timedelta(milliseconds=1)


def test_what_is_not_a_step_forwards_is_refused():
    clock = FrozenClock()
    before = clock.now()
    with pytest.raises(TypeError, match="duration is 30; it must be a timedelta"):
        clock.skip(30)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="time does not go back"):
        clock.skip(-SECOND)
    assert clock.now() == before
    with pytest.raises(ValueError, match="time zone"):
        FrozenClock(datetime(2030, 1, 1))  # noqa: DTZ001 - the naive instant is the point


def test_two_clocks_cannot_rule_at_once():
    with FrozenClock():
        with pytest.raises(RuntimeError, match="replaced already"), FrozenClock():
            raise AssertionError("not reached")
    with FrozenClock():
        pass
