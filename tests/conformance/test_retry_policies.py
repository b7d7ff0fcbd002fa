"""Retry policies of a queue and of an item: how long a failed item waits."""

import time

import pytest

from querator.v1.items_pb2 import (
    RETRY_BACKOFF_EXPONENTIAL,
    RETRY_BACKOFF_FIXED,
    RETRY_BACKOFF_LINEAR,
    Item,
    RetryPolicy,
)
from tests.conformance.make import Make
from tests.conformance.queues import Queue, refusal, soon, span

CLOSE_S = 2.0
"""How far a due time may be from what a test computes; tests use waits of many minutes."""


async def waits(queue: Queue, number: int) -> list[float]:
    """Fails the only item that often: how long it would wait each time. Runs it at once."""
    found = []
    for _ in range(number):
        item = await queue.lease_one()
        await queue.retry(item)
        [shown] = await queue.scheduled()
        found.append(shown.due_at.ToMilliseconds() / 1000 - time.time())
        await queue.reschedule(item.id, run_now=True)
    return found


def close_to(seconds: float) -> object:
    return pytest.approx(seconds, abs=CLOSE_S)


async def test_without_a_policy_a_failed_item_is_ready_at_once(make: Make):
    queue = await make()
    await queue.produce("a")
    await queue.retry(await queue.lease_one())
    assert await queue.counts() == {"ready": 1}


async def test_a_fixed_wait_is_the_same_each_time(make: Make):
    queue = await make(retry_delay=span(600), retry_backoff=RETRY_BACKOFF_FIXED, retry_jitter=False)
    await queue.produce("a")
    assert await waits(queue, 3) == [close_to(600)] * 3


async def test_a_linear_wait_grows_by_the_delay(make: Make):
    queue = await make(
        retry_delay=span(600), retry_backoff=RETRY_BACKOFF_LINEAR, retry_jitter=False
    )
    await queue.produce("a")
    assert await waits(queue, 3) == [close_to(600), close_to(1200), close_to(1800)]


async def test_an_exponential_wait_doubles(make: Make):
    queue = await make(
        retry_delay=span(300), retry_backoff=RETRY_BACKOFF_EXPONENTIAL, retry_jitter=False
    )
    await queue.produce("a")
    assert await waits(queue, 4) == [close_to(300), close_to(600), close_to(1200), close_to(2400)]


async def test_a_wait_is_exponential_unless_the_queue_says_otherwise(make: Make):
    queue = await make(retry_delay=span(300), retry_jitter=False)
    await queue.produce("a")
    assert await waits(queue, 2) == [close_to(300), close_to(600)]


async def test_a_wait_is_no_longer_than_the_longest(make: Make):
    queue = await make(retry_delay=span(300), retry_delay_max=span(700), retry_jitter=False)
    await queue.produce("a")
    assert await waits(queue, 4) == [close_to(300), close_to(600), close_to(700), close_to(700)]


async def test_the_longest_wait_is_an_hour_by_default(make: Make):
    queue = await make(retry_delay=span(3000), retry_jitter=False)
    await queue.produce("a")
    assert await waits(queue, 2) == [close_to(3000), close_to(3600)]


async def test_a_delay_that_is_longer_than_the_longest_wait_counts(make: Make):
    queue = await make(retry_delay=span(900), retry_delay_max=span(60), retry_jitter=False)
    await queue.produce("a")
    assert await waits(queue, 2) == [close_to(900)] * 2


async def test_with_jitter_waits_are_parts_of_the_delay_and_differ(make: Make):
    queue = await make(retry_delay=span(86_400), retry_backoff=RETRY_BACKOFF_FIXED)
    await queue.produce("a")
    found = await waits(queue, 8)
    assert all(wait < 86_401 for wait in found)
    assert len({round(wait) for wait in found}) > 2


async def test_an_item_that_waits_comes_back_by_itself(make: Make):
    queue = await make(retry_delay=span(0.3), retry_jitter=False)
    await queue.produce("a")
    first = await queue.lease_one()
    retried_s = time.time()
    await queue.retry(first)
    assert (await queue.lease_one()).attempt == 2
    assert time.time() > retried_s + 0.29


async def test_the_time_of_a_retry_wins_over_the_policy(make: Make):
    queue = await make(retry_delay=span(600), retry_jitter=False)
    await queue.produce("a")
    await queue.retry(await queue.lease_one(), at=soon(7200))
    [shown] = await queue.scheduled()
    assert shown.due_at.ToMilliseconds() / 1000 - time.time() == close_to(7200)


async def test_a_lapse_waits_by_the_policy(make: Make):
    queue = await make(retry_delay=span(600), retry_jitter=False, lease_timeout=span(1))
    await queue.produce("a")
    await queue.lease(1)
    await queue.until(scheduled=1)
    [shown] = await queue.scheduled()
    assert shown.due_at.ToMilliseconds() / 1000 - time.time() == close_to(600)


async def test_a_release_does_not_wait(make: Make):
    queue = await make(retry_delay=span(600))
    await queue.produce("a")
    await queue.release(await queue.lease_one())
    assert await queue.counts() == {"ready": 1}


async def test_a_changed_policy_holds_from_the_next_failure_on(make: Make):
    queue = await make(retry_delay=span(600), retry_jitter=False)
    await queue.produce("a")
    await queue.retry(await queue.lease_one())
    await queue.update(retry_delay=span(3000))
    [shown] = await queue.scheduled()
    assert shown.due_at.ToMilliseconds() / 1000 - time.time() == close_to(600)
    await queue.reschedule(f"{shown.partition}-{shown.seq}", run_now=True)
    await queue.retry(await queue.lease_one())
    [shown] = await queue.scheduled()
    assert shown.due_at.ToMilliseconds() / 1000 - time.time() == close_to(3600)


async def test_a_policy_that_is_taken_away_makes_failed_items_ready_at_once(make: Make):
    queue = await make(retry_delay=span(600))
    await queue.produce("a")
    await queue.update(retry_delay=span(0))
    await queue.retry(await queue.lease_one())
    assert await queue.counts() == {"ready": 1}


# -- of an item


async def test_the_policy_of_an_item_wins_over_that_of_its_queue(make: Make):
    queue = await make(retry_delay=span(60), retry_jitter=False)
    policy = RetryPolicy(delay=span(600), backoff=RETRY_BACKOFF_FIXED, jitter=False)
    await queue.produce(Item(payload=b"a", retry=policy))
    assert await waits(queue, 2) == [close_to(600)] * 2


async def test_what_the_policy_of_an_item_leaves_out_does_not_come_from_the_queue(make: Make):
    queue = await make(
        retry_delay=span(60), retry_backoff=RETRY_BACKOFF_FIXED, retry_delay_max=span(60),
        retry_jitter=True,
    )  # fmt: skip
    await queue.produce(Item(payload=b"a", retry=RetryPolicy(delay=span(900), jitter=False)))
    assert await waits(queue, 3) == [close_to(900), close_to(1800), close_to(3600)]


async def test_a_policy_of_no_delay_returns_failed_items_at_once(make: Make):
    queue = await make(retry_delay=span(600))
    await queue.produce(Item(payload=b"a", retry=RetryPolicy(delay=span(0))))
    await queue.retry(await queue.lease_one())
    assert await queue.counts() == {"ready": 1}


async def test_a_changed_queue_does_not_reach_the_policy_of_an_item(make: Make):
    queue = await make()
    policy = RetryPolicy(delay=span(600), jitter=False)
    await queue.produce(Item(payload=b"a", retry=policy))
    await queue.update(retry_delay=span(60), retry_jitter=False)
    assert await waits(queue, 1) == [close_to(600)]


async def test_a_policy_without_a_delay_is_refused(make: Make):
    queue = await make()
    said = await refusal(queue.produce(Item(retry=RetryPolicy(jitter=False))))
    assert (said.code, said.field) == ("INVALID_ARGUMENT", "items[0].retry.delay")
    assert await queue.counts() == {}


async def test_a_delay_of_an_item_below_100_ms_is_refused(make: Make):
    queue = await make()
    said = await refusal(queue.produce(Item(retry=RetryPolicy(delay=span(0.099)))))
    assert said.facts == ("LIMIT_EXCEEDED", "items[0].retry.delay", "100 ms", "99 ms")


async def test_a_delay_of_a_queue_beyond_30_days_is_refused(make: Make):
    queue = make.queue()
    said = await refusal(queue.create(retry_delay=span(30 * 86_400 + 1)))
    assert said.facts == (
        "LIMIT_EXCEEDED", "settings.retry_delay", "2592000000 ms", "2592001000 ms",
    )  # fmt: skip


async def test_an_unknown_backoff_is_refused(make: Make):
    queue = await make()
    policy = RetryPolicy(delay=span(1), backoff=77)  # type: ignore[arg-type]
    said = await refusal(queue.produce(Item(retry=policy)))
    assert (said.code, said.field) == ("INVALID_ARGUMENT", "items[0].retry.backoff")
