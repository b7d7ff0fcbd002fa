"""Circuit breakers: a queue stops its leases while items fail, and tries single items later."""

import asyncio

from querator.v1 import admin_service_pb2 as admin
from querator.v1.admin_service_pb2 import BreakerSettings, BreakerState, BreakerStats
from querator.v1.items_pb2 import Item
from tests.conformance.door import CALL_S
from tests.conformance.make import Make
from tests.conformance.queues import DONE, Queue, looks, refusal, soon, span, texts
from tests.conformance.stubs import answer

CLOSED, OPEN, HALF_OPEN = (
    admin.BREAKER_STATE_CLOSED, admin.BREAKER_STATE_OPEN, admin.BREAKER_STATE_HALF_OPEN,
)  # fmt: skip
SHORT_S = 0.2
"""How long what must not end is left to itself."""


def breaker(open_s: float = 3600, probes: int = 1, outcomes_min: int = 2) -> BreakerSettings:
    """One that opens at the second failure, and by default stays open for the whole test."""
    return BreakerSettings(
        failure_percent=50,
        outcomes_min=outcomes_min,
        window=span(600),
        open_time=span(open_s),
        probes=probes,
    )


async def opened(make: Make, *things: str, settings: BreakerSettings | None = None) -> Queue:
    """A queue with these items, after two others have failed for ever."""
    queue = await make(breaker=settings or breaker(), dead_queue="")
    await queue.produce("bad", "bad")
    failed = await queue.lease(2)
    if things:
        await queue.produce(*things)
    await queue.reject(*failed)
    return queue


async def states(queue: Queue) -> list[BreakerStats]:
    return [one.breaker for one in (await queue.all_stats()).partitions]


async def until_state(queue: Queue, state: BreakerState.ValueType) -> BreakerStats:
    """The breaker of the only partition, when it is in this state."""
    found = BreakerStats()
    async for _ in looks():
        [found] = await states(queue)
        if found.state == state:
            return found
    raise AssertionError(f"the breaker is {found}")


async def set_by_hand(make: Make, queue: Queue, state: BreakerState.ValueType) -> int:
    request = admin.SetBreakerRequest(state=state, **queue.named)
    response = await answer(make.nodes[0].admin.SetBreaker(request, timeout=CALL_S))
    return int(response.changed)


# --- it opens --------------------------------------------------------------------------------


async def test_rejected_items_open_the_breaker(make: Make):
    queue = await opened(make, "a")
    await queue.lease_nothing()
    [found] = await states(queue)
    assert (found.state, found.outcomes, found.failures) == (OPEN, 2, 2)
    assert found.until.ToMilliseconds() - found.since.ToMilliseconds() == 3_600_000


async def test_retried_items_open_the_breaker(make: Make):
    queue = await make(breaker=breaker())
    await queue.produce("a", "b")
    await queue.retry(*await queue.lease(2))
    await queue.lease_nothing()


async def test_leases_that_end_open_the_breaker(make: Make):
    queue = await make(breaker=breaker())
    await queue.produce("a", "b")
    await queue.lease(2, timeout_s=1)
    await until_state(queue, OPEN)
    await queue.lease_nothing()


async def test_released_items_do_not_open_the_breaker(make: Make):
    queue = await make(breaker=breaker())
    await queue.produce("a", "b")
    await queue.release(*await queue.lease(2))
    assert texts(await queue.lease(2)) == ["a", "b"]


async def test_items_that_are_retried_without_an_attempt_later_do_not_open_the_breaker(make: Make):
    queue = await make(breaker=breaker())
    await queue.produce("a", "b")
    await queue.release(*await queue.lease(2), at=soon(0.5))
    assert sorted(texts(await queue.lease(1) + await queue.lease(1))) == ["a", "b"]


async def test_below_the_rate_the_breaker_stays_closed(make: Make):
    queue = await make(breaker=breaker(outcomes_min=3))
    await queue.produce("a", "b", "c", "d")
    items = await queue.lease(3)
    await queue.complete(*items[:2])
    await queue.reject(items[2])
    await queue.lease_one()
    [found] = await states(queue)
    assert (found.state, found.outcomes, found.failures) == (CLOSED, 3, 1)


# --- it is open ------------------------------------------------------------------------------


async def test_what_is_leased_can_be_settled_while_the_breaker_is_open(make: Make):
    queue = await make(breaker=breaker())
    await queue.produce("a", "b", "c", "d")
    items = await queue.lease(4)
    await queue.reject(*items[:2])
    [outcome] = await queue.extend(items[2].lease_id, timeout_s=600)
    assert outcome.deadline.ToMilliseconds() / 1000 > items[2].deadline_s + 60
    assert await queue.complete(items[2]) == [DONE]
    assert await queue.release(items[3]) == [DONE]
    await queue.lease_nothing()


async def test_producers_continue_and_items_become_due_while_the_breaker_is_open(make: Make):
    queue = await opened(make)
    await queue.produce("a", Item(payload=b"b", enqueue_at=soon(0.5)))
    await queue.until(ready=2, scheduled=0)
    await queue.lease_nothing()


async def test_a_consumer_that_waited_before_gets_nothing_while_the_breaker_is_open(make: Make):
    queue = await opened(make)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(queue.lease_one())
        await queue.produce("a")
        await asyncio.sleep(SHORT_S)
        assert not waiting.done()
        await set_by_hand(make, queue, CLOSED)
    assert waiting.result().text == "a"


# --- it tries single items -------------------------------------------------------------------


async def test_after_the_open_time_one_item_is_leased_at_a_time(make: Make):
    queue = await opened(make, "a", "b", "c", settings=breaker(open_s=1, probes=3))
    item = await queue.lease_one()
    await queue.lease_nothing()
    [found] = await states(queue)
    assert (found.state, found.probing, found.probes_passed) == (HALF_OPEN, True, 0)
    await queue.complete(item)
    assert (await queue.lease_one()).text == "b"
    await queue.lease_nothing()


async def test_single_items_that_succeed_close_the_breaker(make: Make):
    queue = await opened(make, *"abcdef", settings=breaker(open_s=1, probes=2))
    for _ in range(2):
        await queue.complete(await queue.lease_one())
    assert texts(await queue.lease(4)) == ["c", "d", "e", "f"]
    [found] = await states(queue)
    assert (found.state, found.outcomes, found.failures) == (CLOSED, 0, 0)


async def test_a_single_item_that_fails_opens_the_breaker_again(make: Make):
    queue = await opened(make, "a", "b", settings=breaker(open_s=1))
    item = await queue.lease_one()
    await queue.update(breaker=breaker(open_s=3600))
    await queue.retry(item)
    assert (await until_state(queue, OPEN)).failures == 0
    await queue.lease_nothing()


async def test_a_single_item_whose_lease_ends_opens_the_breaker_again(make: Make):
    queue = await opened(make, "a", "b", settings=breaker(open_s=1))
    await queue.lease_one(timeout_s=1)
    await queue.update(breaker=breaker(open_s=3600))
    await until_state(queue, OPEN)
    await queue.lease_nothing()


async def test_after_a_released_single_item_the_next_one_is_tried(make: Make):
    queue = await opened(make, "a", "b", settings=breaker(open_s=1))
    await queue.release(await queue.lease_one())
    assert (await queue.lease_one()).text == "a"
    await queue.lease_nothing()


async def test_an_empty_queue_tries_the_next_item_that_comes(make: Make):
    queue = await opened(make, settings=breaker(open_s=1))
    await until_state(queue, HALF_OPEN)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(queue.lease_one())
        await asyncio.sleep(SHORT_S)
        await queue.produce("a")
    assert await queue.complete(waiting.result()) == [DONE]
    await until_state(queue, CLOSED)


async def test_late_outcomes_neither_open_nor_close_the_breaker(make: Make):
    queue = await make(breaker=breaker(open_s=1), dead_queue="")
    await queue.produce(*map(str, range(10)))
    items = await queue.lease(8)
    await queue.reject(*items[:2])
    await until_state(queue, HALF_OPEN)
    await queue.complete(*items[2:4])
    assert (await until_state(queue, HALF_OPEN)).probes_passed == 0
    await queue.complete(await queue.lease_one())
    await until_state(queue, CLOSED)
    await queue.reject(*items[4:])
    await queue.lease_one()


# --- operators -------------------------------------------------------------------------------


async def test_opened_by_hand_all_partitions_stop(make: Make):
    queue = await make(breaker=breaker(), partitions=3)
    await queue.produce(*map(str, range(9)))
    assert await set_by_hand(make, queue, OPEN) == 3
    await queue.lease_nothing()
    assert [one.state for one in await states(queue)] == [OPEN] * 3
    assert await set_by_hand(make, queue, OPEN) == 0


async def test_opened_by_hand_the_breaker_tries_items_after_its_open_time(make: Make):
    queue = await make(breaker=breaker(open_s=1))
    await queue.produce("a", "b")
    await set_by_hand(make, queue, OPEN)
    await queue.complete(await queue.lease_one())
    assert (await queue.lease_one()).text == "b"


async def test_closed_by_hand_consumers_continue(make: Make):
    queue = await opened(make, "a", "b")
    assert await set_by_hand(make, queue, CLOSED) == 1
    assert texts(await queue.lease(2)) == ["a", "b"]
    assert await set_by_hand(make, queue, CLOSED) == 0


async def test_a_queue_without_a_breaker_cannot_be_opened(make: Make):
    queue = await make()
    refused = await refusal(set_by_hand(make, queue, OPEN))
    assert (refused.code, refused.field, refused.value) == (
        "INVALID_ARGUMENT", "queue", queue.name,
    )  # fmt: skip


async def test_a_removed_breaker_lets_consumers_continue(make: Make):
    queue = await opened(make, "a", "b")
    await queue.update_paths("breaker")
    assert texts(await queue.lease(2)) == ["a", "b"]
    assert not (await queue.get()).settings.HasField("breaker")


async def test_a_paused_queue_tries_no_item(make: Make):
    queue = await opened(make, "a", settings=breaker(open_s=1))
    await queue.update(lease_paused=True)
    await until_state(queue, HALF_OPEN)
    await queue.lease_nothing()
    await queue.update(lease_paused=False)
    assert (await queue.lease_one()).text == "a"


async def test_partitions_that_are_added_begin_closed(make: Make):
    queue = await opened(make)
    await queue.update(partitions=3)
    assert [one.state for one in await states(queue)] == [OPEN, CLOSED, CLOSED]


async def test_settings_of_a_breaker_out_of_range_are_refused_by_name(make: Make):
    queue = make.queue()
    for wrong, field, limit, value in (
        (BreakerSettings(failure_percent=101), "failure_percent", "100", "101"),
        (BreakerSettings(outcomes_min=0), "outcomes_min", "1", "0"),
        (BreakerSettings(window=span(0.5)), "window", "1000 ms", "500 ms"),
        (BreakerSettings(open_time=span(90_000)), "open_time", "86400000 ms", "90000000 ms"),
        (BreakerSettings(probes=1_001), "probes", "1000", "1001"),
    ):
        refused = await refusal(queue.create(breaker=wrong))
        assert (refused.code, refused.field, refused.limit, refused.value) == (
            "LIMIT_EXCEEDED", f"settings.breaker.{field}", limit, value,
        )  # fmt: skip
