"""Schedules: order by due time, lists, counts, moves, runs and cancels."""

import time

from google.protobuf.timestamp_pb2 import Timestamp

from querator.v1.admin_service_pb2 import PeekedItem, ScheduledFilter
from querator.v1.items_pb2 import Item
from tests.conformance.make import Make
from tests.conformance.queues import instant, refusal, soon, span, texts

HOUR_S = 3600


def later(text: str, seconds: float, **fields: object) -> Item:
    return Item(payload=text.encode(), enqueue_at=soon(seconds), **fields)  # type: ignore[arg-type]


def shown(items: list[PeekedItem]) -> list[str]:
    return [one.item.payload.decode() for one in items]


async def test_a_scheduled_item_is_not_leased_before_its_time(make: Make):
    queue = await make()
    due = soon(0.5)
    await queue.produce(Item(payload=b"a", enqueue_at=due))
    await queue.lease(1)
    assert time.time() >= due.ToMilliseconds() / 1000


async def test_items_come_in_the_order_of_their_due_times(make: Make):
    queue = await make()
    delays = {"c": 0.7, "a": 0.3, "d": 0.9, "b": 0.5}
    await queue.produce(*(later(text, seconds) for text, seconds in delays.items()))
    assert texts(await queue.lease(4)) == ["a", "b", "c", "d"]


async def test_items_that_are_due_at_one_time_come_in_the_order_of_their_produces(make: Make):
    queue = await make()
    due = soon(0.5)
    await queue.produce(*(Item(payload=text.encode(), enqueue_at=due) for text in "abc"))
    await queue.produce(*(Item(payload=text.encode(), enqueue_at=due) for text in "def"))
    assert texts(await queue.lease(6)) == list("abcdef")


async def test_a_waiting_caller_gets_each_of_several_due_items_at_its_time(make: Make):
    queue = await make()
    dues = [soon(seconds) for seconds in (0.3, 0.6, 0.9)]
    await queue.produce(*(Item(payload=b"%d" % n, enqueue_at=due) for n, due in enumerate(dues)))
    for number, due in enumerate(dues):
        assert (await queue.lease_one()).text == str(number)
        assert time.time() >= due.ToMilliseconds() / 1000


async def test_a_time_in_the_past_is_now(make: Make):
    queue = await make()
    await queue.produce(later("a", -HOUR_S))
    assert await queue.counts() == {"ready": 1}


async def test_a_time_less_than_100_ms_ahead_is_now(make: Make):
    queue = await make()
    await queue.produce(later("a", 0.05))
    assert await queue.counts() == {"ready": 1}


async def test_an_item_may_be_ten_years_ahead(make: Make):
    queue = await make()
    await queue.produce(later("a", 10 * 365 * 86_400 - 60))
    assert await queue.counts() == {"scheduled": 1}


async def test_a_time_in_the_year_9999_is_refused(make: Make):
    queue = await make()
    item = Item(payload=b"a", enqueue_at=instant(253_402_300_799))
    said = await refusal(queue.produce("good", item))
    assert (said.code, said.field) == ("LIMIT_EXCEEDED", "items[1].enqueue_at")
    assert said.limit == "315360000000 ms ahead"
    assert await queue.counts() == {}


async def test_a_time_that_is_none_is_refused(make: Make):
    queue = await make()
    item = Item(payload=b"a", enqueue_at=Timestamp(seconds=1, nanos=-5))
    said = await refusal(queue.produce(item))
    assert (said.code, said.field) == ("INVALID_ARGUMENT", "items[0].enqueue_at")


# -- lists and counts


async def test_a_list_shows_scheduled_items_by_due_time_over_all_partitions(make: Make):
    queue = await make(partitions=3)
    order = [5, 2, 9, 1, 7, 3]
    for hours in order:
        await queue.produce(later(str(hours), hours * HOUR_S, key=f"k{hours}"))
    assert shown(await queue.scheduled()) == ["1", "2", "3", "5", "7", "9"]


async def test_a_list_shows_items_that_wait_for_a_retry(make: Make):
    queue = await make()
    await queue.produce("a")
    await queue.retry(await queue.lease_one(), at=soon(HOUR_S), error="busy")
    [item] = await queue.scheduled()
    assert (item.attempt, list(item.errors)) == (1, ["busy"])


async def test_a_list_from_one_time_until_another_includes_the_first_alone(make: Make):
    queue = await make()
    dues = [instant(time.time() // 1 + hours * HOUR_S) for hours in range(1, 5)]
    await queue.produce(*(Item(payload=b"%d" % n, enqueue_at=due) for n, due in enumerate(dues)))
    assert shown(await queue.scheduled(due_from=dues[1], due_until=dues[3])) == ["1", "2"]


async def test_a_list_of_one_kind_leaves_the_others_out(make: Make):
    queue = await make()
    await queue.produce(
        later("a", HOUR_S, kind="bill"), later("b", HOUR_S), later("c", HOUR_S, kind="letter")
    )
    assert shown(await queue.scheduled(kind="bill")) == ["a"]


async def test_a_list_in_pages_has_each_item_once(make: Make):
    queue = await make(partitions=2)
    for number in range(25):
        await queue.produce(later(str(number), HOUR_S + number, key=str(number)))
    assert shown(await queue.scheduled(page_size=4)) == [str(number) for number in range(25)]


async def test_a_list_shows_neither_ready_nor_leased_items(make: Make):
    queue = await make()
    await queue.produce("leased", "ready")
    await queue.lease(1)
    assert await queue.scheduled() == []


async def test_counts_by_interval_have_what_is_due_in_each(make: Make):
    queue = await make()
    begin_s = time.time() // 60 * 60 + HOUR_S
    for minutes in (0, 0.5, 2, 2.1, 2.9):
        item = Item(payload=b"x", enqueue_at=instant(begin_s + minutes * 60))
        await queue.produce(item)
    counted = await queue.count_scheduled(due_from=instant(begin_s), interval=span(60))
    found = {
        round(bucket.starts_at.ToSeconds() - begin_s) // 60: bucket.items
        for bucket in counted.buckets
    }
    assert found == {0: 2, 2: 3}
    assert counted.total == 5


async def test_counts_say_what_is_due_before_and_after_the_range(make: Make):
    queue = await make()
    begin_s = time.time() // 60 * 60 + 2 * HOUR_S
    for hours in (-1, -0.5, 0, 1, 2, 3):
        item = Item(payload=b"x", enqueue_at=instant(begin_s + hours * HOUR_S))
        await queue.produce(item)
    counted = await queue.count_scheduled(
        due_from=instant(begin_s), due_until=instant(begin_s + 2 * HOUR_S), interval=span(600)
    )
    assert (counted.before, counted.total, counted.after) == (2, 2, 2)


async def test_a_range_of_more_than_1000_intervals_is_refused(make: Make):
    queue = await make()
    said = await refusal(
        queue.count_scheduled(due_from=soon(0), due_until=soon(1_002), interval=span(1))
    )
    assert (said.code, said.field) == ("LIMIT_EXCEEDED", "interval")


async def test_an_interval_below_a_second_is_refused(make: Make):
    queue = await make()
    said = await refusal(queue.count_scheduled(interval=span(0.999)))
    assert said.facts == ("LIMIT_EXCEEDED", "interval", "1000 ms", "999 ms")


# -- changes


async def test_a_moved_item_is_due_at_its_new_time(make: Make):
    queue = await make()
    [made] = await queue.produce(later("a", HOUR_S))
    due = soon(0.4)
    assert (await queue.reschedule(made.id, due_at=due)).changed == 1
    await queue.lease(1)
    assert time.time() >= due.ToMilliseconds() / 1000


async def test_an_item_may_be_moved_to_a_later_time(make: Make):
    queue = await make()
    [made] = await queue.produce(later("moved", HOUR_S))
    await queue.produce(later("other", 2 * HOUR_S))
    await queue.reschedule(made.id, due_at=soon(3 * HOUR_S))
    assert shown(await queue.scheduled()) == ["other", "moved"]


async def test_a_move_to_the_past_makes_the_item_ready(make: Make):
    queue = await make()
    [made] = await queue.produce(later("a", HOUR_S))
    assert (await queue.reschedule(made.id, due_at=soon(-1))).changed == 1
    assert await queue.counts() == {"ready": 1}


async def test_a_move_that_is_repeated_changes_nothing(make: Make):
    queue = await make()
    [made] = await queue.produce(later("a", HOUR_S))
    due = soon(2 * HOUR_S)
    assert (await queue.reschedule(made.id, due_at=due)).changed == 1
    assert (await queue.reschedule(made.id, due_at=due)).changed == 0


async def test_an_item_that_is_run_now_is_ready_with_its_attempts_and_words(make: Make):
    queue = await make()
    await queue.produce("a")
    await queue.retry(await queue.lease_one(), at=soon(HOUR_S), error="busy")
    [waits] = await queue.scheduled()
    await queue.reschedule(f"{waits.partition}-{waits.seq}", run_now=True)
    item = await queue.lease_one()
    assert (item.attempt, item.errors) == (2, ("busy",))


async def test_a_cancelled_item_never_comes_and_is_counted(make: Make):
    queue = await make()
    cancelled, _ = await queue.produce(later("cancelled", 2), later("stays", 2.2))
    assert (await queue.reschedule(cancelled.id, cancel=True)).changed == 1
    assert texts(await queue.lease(1)) == ["stays"]
    assert await queue.counts("cancelled", "dead", "scheduled") == {
        "cancelled": 1, "dead": 0, "scheduled": 0,
    }  # fmt: skip


async def test_ids_that_name_no_scheduled_item_are_returned(make: Make):
    queue = await make()
    ready, waits = await queue.produce("ready", later("waits", HOUR_S))
    done = await queue.reschedule(ready.id, waits.id, "0-999", run_now=True)
    assert (done.changed, sorted(done.not_scheduled)) == (1, sorted([ready.id, "0-999"]))


async def test_a_filter_changes_what_it_chooses_and_nothing_else(make: Make):
    queue = await make(partitions=2)
    for number in range(10):
        kind = "bill" if number % 2 else "letter"
        await queue.produce(later(str(number), HOUR_S * (number + 1), kind=kind, key=str(number)))
    chosen = ScheduledFilter(kind="bill", due_until=soon(HOUR_S * 5.5))
    assert (await queue.reschedule(filter=chosen, cancel=True)).changed == 2
    assert shown(await queue.scheduled()) == ["0", "2", "4", "5", "6", "7", "8", "9"]


async def test_an_empty_filter_chooses_all_scheduled_items(make: Make):
    queue = await make()
    await queue.produce("ready", later("a", HOUR_S), later("b", 2 * HOUR_S))
    assert (await queue.reschedule(filter=ScheduledFilter(), run_now=True)).changed == 2
    assert await queue.counts() == {"ready": 3}


async def test_a_dry_run_counts_and_changes_nothing(make: Make):
    queue = await make()
    await queue.produce(later("a", HOUR_S), later("b", HOUR_S))
    done = await queue.reschedule(filter=ScheduledFilter(), cancel=True, dry_run=True)
    assert done.changed == 2
    assert await queue.counts() == {"scheduled": 2}


async def test_a_change_without_ids_and_filter_is_refused(make: Make):
    queue = await make()
    await queue.produce(later("a", HOUR_S))
    said = await refusal(queue.reschedule(cancel=True))
    assert (said.code, said.field) == ("INVALID_ARGUMENT", "item_ids")
    assert await queue.counts() == {"scheduled": 1}


async def test_a_change_without_an_action_is_refused(make: Make):
    queue = await make()
    said = await refusal(queue.reschedule("0-1"))
    assert (said.code, said.field) == ("INVALID_ARGUMENT", "action")


async def test_a_move_to_more_than_ten_years_ahead_is_refused(make: Make):
    queue = await make()
    [made] = await queue.produce(later("a", HOUR_S))
    said = await refusal(queue.reschedule(made.id, due_at=instant(253_402_300_799)))
    assert (said.code, said.field) == ("LIMIT_EXCEEDED", "due_at")
    assert await queue.counts() == {"scheduled": 1}
