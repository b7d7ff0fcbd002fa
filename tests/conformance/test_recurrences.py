"""Recurrences: items that a queue produces by itself."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from google.protobuf.field_mask_pb2 import FieldMask

from querator.v1.admin_service_pb2 import QUEUE_KIND_FAIR, QUEUE_KIND_KEYED
from querator.v1.items_pb2 import Item
from querator.v1.recurrences_pb2 import MISSED_RUNS_ALL, RUN_OVERLAP_SKIP, RecurrenceSpec
from tests.conformance.make import Make
from tests.conformance.queues import Queue, looks, refusal, soon, span, texts

HOUR: dict[str, Any] = {"interval": span(3600), "item": Item(payload=b"x")}
calls_of_operators = pytest.mark.doors("unary")


async def change(queue: Queue, *, expected: int = 0, **spec: Any) -> RecurrenceSpec:
    changed = await queue.recurrences(
        "Update",
        name="tick",
        spec=RecurrenceSpec(**spec),
        update_mask=FieldMask(paths=list(spec)),
        expected_revision=expected,
    )
    found: RecurrenceSpec = changed.recurrence.spec
    return found


# -- the items


async def test_a_queue_produces_an_item_for_each_interval(make: Make):
    queue = await make()
    await queue.recur()
    assert texts(await queue.lease(2)) == ["1", "2"]


async def test_a_queue_produces_items_by_a_cron_expression_with_seconds(make: Make):
    queue = await make()
    await queue.recur(cron="* * * * * *", item=Item(payload=b"{{number}}"))
    assert texts(await queue.lease(2)) == ["1", "2"]


async def test_each_item_names_its_recurrence_its_number_and_its_due_time(make: Make):
    queue = await make()
    await queue.recur("clock", item=Item(payload=b"{{recurrence}} {{number}} {{due_at}}"))
    item = await queue.lease_one()
    due_at = item.attributes["recurrence-due-at"]
    assert item.text == f"clock 1 {due_at}"
    assert (item.attributes["recurrence"], item.attributes["recurrence-number"]) == ("clock", "1")


async def test_due_times_are_one_interval_apart(make: Make):
    queue = await make()
    await queue.recur(item=Item(payload=b"{{due_ms}}"), missed=MISSED_RUNS_ALL)
    first, second = (int(text) for text in texts(await queue.lease(2)))
    assert second - first == 1000


async def test_a_phase_decides_when_an_interval_begins(make: Make):
    queue = await make()
    await queue.recur(interval=span(1), phase=span(0.25), item=Item(payload=b"{{due_ms}}"))
    assert int((await queue.lease_one()).text) % 1000 == 250


async def test_an_item_keeps_the_fields_of_its_template(make: Make):
    queue = await make()
    template = Item(
        payload=b"x", kind="k", encoding="e", reference="r", attributes={"a": "b"}, priority=4,
        max_attempts=2,
    )  # fmt: skip
    await queue.recur(item=template)
    got = await queue.lease_one()
    assert (got.item.kind, got.item.encoding, got.item.reference) == ("k", "e", "r")
    assert (got.attributes["a"], got.priority, got.item.max_attempts) == ("b", 4, 2)


async def test_an_item_of_a_recurrence_is_retried_like_any_other(make: Make):
    queue = await make()
    await queue.recur(overlap=RUN_OVERLAP_SKIP)
    await queue.retry(await queue.lease_one(), error="it fails")
    again = await queue.lease_one()
    assert (again.text, again.attempt, again.errors) == ("1", 2, ("it fails",))


async def test_two_recurrences_of_a_queue_count_for_themselves(make: Make):
    queue = await make()
    for name in ("a", "b"):
        await queue.recur(name, item=Item(payload=b"{{recurrence}}{{number}}"))
    assert {"a1", "b1"} <= {*texts(await queue.lease(4))}


async def test_a_consumer_that_waits_gets_the_item(make: Make):
    queue = await make()
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(queue.lease_one())
        await queue.recur()
    assert waiting.result().text == "1"


async def test_a_run_is_skipped_while_the_last_item_is_not_finished(make: Make):
    queue = await make()
    await queue.recur(overlap=RUN_OVERLAP_SKIP)
    await queue.lease(1)
    async for _ in looks():
        if (await queue.recurrence()).skipped >= 1:
            break
    assert (await queue.recurrence()).fired == 1
    assert await queue.counts() == {"leased": 1}


async def test_a_run_comes_when_the_last_item_is_finished(make: Make):
    queue = await make()
    await queue.recur(overlap=RUN_OVERLAP_SKIP)
    await queue.complete(await queue.lease_one())
    assert (await queue.lease_one()).text == "2"


async def test_a_full_queue_gets_the_item_when_there_is_space(make: Make):
    queue = await make(partitions=1, partition_items_max=1)
    await queue.produce("a")
    await queue.recur(missed=MISSED_RUNS_ALL)
    item = await queue.lease_one()
    assert item.text == "a"
    await queue.complete(item)
    assert (await queue.lease_one()).text == "1"


async def test_the_items_that_are_there_stay_when_a_recurrence_is_deleted(make: Make):
    queue = await make()
    await queue.recur()
    await queue.until(ready=1)
    await queue.recurrences("Delete", name="tick")
    assert (await queue.lease_one()).text == "1"


async def test_recurrences_continue_when_the_number_of_partitions_changes(make: Make):
    queue = await make(partitions=1)
    await queue.recur()
    await queue.lease(1)
    await queue.update(partitions=3)
    assert (await queue.lease_one()).text == "2"


async def test_the_items_of_a_fair_queue_have_the_group_of_the_template(make: Make):
    queue = await make(kind=QUEUE_KIND_FAIR)
    await queue.recur(item=Item(payload=b"{{number}}", group="eu.de"))
    item = await queue.lease_one()
    assert (item.text, item.item.group) == ("1", "eu.de")


@pytest.mark.parametrize("key", ["a", "b", "c"])
async def test_the_items_of_a_key_are_leased_one_after_the_other(make: Make, key: str):
    queue = await make(kind=QUEUE_KIND_KEYED, partitions=3)
    await queue.produce(Item(payload=b"earlier", key=key))
    earlier = await queue.lease_one()
    await queue.recur(item=Item(payload=b"{{number}}", key=key))
    async for _ in looks():
        if (await queue.recurrence()).fired:
            break
    fired = (await queue.recurrences("Pause", name="tick")).recurrence.fired
    await queue.until(ready=fired, leased=1, moving=0)
    await queue.produce(Item(payload=b"later", key=key))
    await queue.complete(earlier)
    for text in (*(str(number) for number in range(1, fired + 1)), "later"):
        item = await queue.lease_one()
        assert (item.text, item.item.key) == (text, key)
        await queue.complete(item)


# -- what operators see


@calls_of_operators
async def test_a_recurrence_says_what_it_has_done(make: Make):
    queue = await make()
    made = await queue.recur()
    assert (made.name, made.fired, made.paused, made.revision) == ("tick", 0, False, 1)
    await queue.until(ready=1)
    found = await queue.recurrence()
    assert found.fired >= 1
    assert found.last_item_id.startswith("0-")
    assert found.last_fired_at.ToMilliseconds() >= found.last_due_at.ToMilliseconds()


@calls_of_operators
async def test_the_next_due_time_is_shown(make: Make):
    queue = await make()
    await queue.recur(**HOUR)
    async for _ in looks():
        if (await queue.recurrence()).HasField("next_due_at"):
            break
    due_s = (await queue.recurrence()).next_due_at.ToMilliseconds() / 1000
    assert 3500 < due_s - soon(0).ToMilliseconds() / 1000 <= 3600


@calls_of_operators
async def test_recurrences_are_listed_in_the_order_of_their_creation(make: Make):
    queue = await make()
    for name in ("c", "a", "b"):
        await queue.recur(name, **HOUR)
    listed = await queue.recurrences("List")
    assert [one.name for one in listed.recurrences] == ["c", "a", "b"]


@calls_of_operators
async def test_recurrences_are_listed_page_by_page(make: Make):
    queue = await make()
    for name in ("c", "a", "b"):
        await queue.recur(name, **HOUR)
    page = await queue.recurrences("List", page_size=2)
    rest = await queue.recurrences("List", page_size=2, page_token=page.next_page_token)
    assert [one.name for one in (*page.recurrences, *rest.recurrences)] == ["c", "a", "b"]
    assert not rest.next_page_token


@calls_of_operators
async def test_the_same_recurrence_may_be_created_again(make: Make):
    queue = await make()
    spec = RecurrenceSpec(**HOUR)
    answers = [await queue.recurrences("Create", name="tick", spec=spec) for _ in range(2)]
    assert [answer.created for answer in answers] == [True, False]


@calls_of_operators
async def test_another_recurrence_of_the_name_is_refused(make: Make):
    queue = await make()
    await queue.recur(**HOUR)
    refused = await refusal(queue.recur(interval=span(60)))
    assert refused.code == "RECURRENCE_EXISTS"


@calls_of_operators
async def test_a_paused_recurrence_produces_nothing(make: Make):
    queue = await make()
    await queue.recur()
    paused = (await queue.recurrences("Pause", name="tick")).recurrence
    assert paused.paused
    await queue.recur("other")
    async for _ in looks():
        if (await queue.recurrence("other")).fired >= 2:
            break
    assert (await queue.recurrence()).fired == paused.fired


async def test_a_resumed_recurrence_continues_with_its_number(make: Make):
    queue = await make()
    await queue.recur()
    await queue.lease(1)
    fired = (await queue.recurrences("Pause", name="tick")).recurrence.fired
    await queue.recurrences("Pause", name="tick", resume=True)
    assert int(texts(await queue.lease(fired))[-1]) == fired + 1


async def test_a_changed_template_is_used_for_the_next_item(make: Make):
    queue = await make()
    await queue.recur()
    spec = await change(queue, item=Item(payload=b"changed"))
    assert spec.interval == span(1)
    async for _ in looks():
        if (await queue.lease_one()).text == "changed":
            break
    assert (await queue.lease_one()).text == "changed"


@calls_of_operators
async def test_a_change_of_another_revision_is_refused(make: Make):
    queue = await make()
    await queue.recur(**HOUR)
    refused = await refusal(change(queue, expected=9, interval=span(60)))
    assert refused.code == "VERSION_CONFLICT"


@calls_of_operators
async def test_a_deleted_recurrence_is_not_found(make: Make):
    queue = await make()
    await queue.recur(**HOUR)
    await queue.recurrences("Delete", name="tick")
    assert (await refusal(queue.recurrence())).code == "RECURRENCE_NOT_FOUND"


# -- what is refused


@calls_of_operators
@pytest.mark.parametrize("field", ["key", "dedup_key", "enqueue_at"])
async def test_a_template_that_says_where_and_when_is_refused(make: Make, field: str):
    queue = await make()
    given: dict[str, Any] = {field: soon(5) if field == "enqueue_at" else "k"}
    item = Item(payload=b"x", **given)
    refused = await refusal(queue.recur(item=item))
    assert (refused.code, refused.field) == ("INVALID_ARGUMENT", f"spec.item.{field}")


@calls_of_operators
@pytest.mark.parametrize("cron", ["* * * *", "61 * * * *", "0 0 30 2 *", "@never"])
async def test_a_cron_expression_that_says_no_time_is_refused(make: Make, cron: str):
    queue = await make()
    refused = await refusal(queue.recur(cron=cron, item=Item(payload=b"x")))
    assert (refused.code, refused.field) == ("INVALID_ARGUMENT", "spec.cron")


@calls_of_operators
async def test_an_unknown_time_zone_is_refused(make: Make):
    queue = await make()
    spec: dict[str, Any] = {
        "cron": "0 9 * * *",
        "time_zone": "Europe/Atlantis",
        "item": Item(payload=b"x"),
    }
    refused = await refusal(queue.recur(**spec))
    assert (refused.code, refused.field) == ("INVALID_ARGUMENT", "spec.time_zone")


@calls_of_operators
@pytest.mark.parametrize("seconds", [0, 0.999, 366 * 86_400 + 1])
async def test_an_interval_out_of_its_bounds_is_refused(make: Make, seconds: float):
    queue = await make()
    assert (await refusal(queue.recur(interval=span(seconds)))).field == "spec.interval"


@calls_of_operators
async def test_a_key_is_refused_where_the_queue_is_not_keyed(make: Make):
    queue = await make(kind=QUEUE_KIND_FAIR)
    refused = await refusal(queue.recur(item=Item(key="k")))
    assert (refused.code, refused.field) == ("INVALID_ARGUMENT", "spec.item.key")


@calls_of_operators
async def test_a_group_that_is_no_path_is_refused_in_a_fair_queue(make: Make):
    queue = await make(kind=QUEUE_KIND_FAIR)
    refused = await refusal(queue.recur(item=Item(group="eu..de")))
    assert (refused.code, refused.field) == ("INVALID_ARGUMENT", "spec.item.group")


@calls_of_operators
async def test_runs_of_an_item_with_a_key_are_never_skipped(make: Make):
    queue = await make(kind=QUEUE_KIND_KEYED)
    refused = await refusal(queue.recur(item=Item(key="k"), overlap=RUN_OVERLAP_SKIP))
    assert (refused.code, refused.field) == ("INVALID_ARGUMENT", "spec.overlap")
    await queue.recur(item=Item(key="k"))
    refused = await refusal(change(queue, overlap=RUN_OVERLAP_SKIP))
    assert (refused.code, refused.field) == ("INVALID_ARGUMENT", "spec.overlap")


@calls_of_operators
async def test_a_queue_that_does_not_exist_has_none(make: Make):
    assert (await refusal(make.queue().recur())).code == "QUEUE_NOT_FOUND"


@calls_of_operators
async def test_coming_due_times_follow_the_time_zone(make: Make):
    queue = await make()
    spec: dict[str, Any] = {
        "cron": "0 9 * * *",
        "time_zone": "Asia/Kolkata",
        "item": Item(payload=b"x"),
    }
    made = await queue.recur(**spec)
    async for _ in looks():
        made = await queue.recurrence()
        if made.HasField("next_due_at"):
            break
    due_at = datetime.fromtimestamp(made.next_due_at.seconds, UTC)
    assert (due_at.hour, due_at.minute) == (3, 30)
