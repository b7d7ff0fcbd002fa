"""Dead letters: reasons, lists, redrive, drop, and what a dead queue may be."""

import time
from typing import Any

from querator.v1.admin_service_pb2 import DeadLetterFilter
from querator.v1.items_pb2 import (
    DEAD_REASON_ATTEMPTS,
    DEAD_REASON_EXPIRED,
    DEAD_REASON_REJECTED,
    Item,
)
from tests.conformance.make import Make
from tests.conformance.queues import DONE, Queue, refusal, soon, span, texts


async def dying(make: Make, **settings: Any) -> tuple[Queue, Queue]:
    """A queue and its dead queue."""
    dead = await make()
    return await make(dead_queue=dead.name, **settings), dead


async def die(queue: Queue, *names: str) -> None:
    """Produces and rejects items; returns when they are dead letters."""
    before = (await queue.stats()).dead
    await queue.produce(*names)
    for item in await queue.lease(len(names)):
        await queue.reject(item, error=f"{item.text} failed")
    await queue.dead_letters(before + len(names))


async def test_an_item_without_attempts_left_becomes_a_dead_letter(make: Make):
    queue, dead = await dying(make, max_attempts=2)
    await queue.produce("a")
    for _ in range(2):
        await queue.retry(await queue.lease_one(), error="busy")
    letter = await dead.lease_one()
    assert letter.dead is not None
    assert (letter.dead.reason, letter.dead.attempts) == (DEAD_REASON_ATTEMPTS, 2)
    assert list(letter.dead.errors) == ["busy", "busy"]


async def test_a_dead_letter_names_where_it_came_from_and_when(make: Make):
    queue, _ = await dying(make)
    before_s = time.time()
    [made] = await queue.produce("a")
    await queue.reject(await queue.lease_one())
    [letter] = await queue.dead_letters(1)
    origin = letter.dead_letter
    assert (origin.origin_queue, f"{origin.origin_partition}-{origin.origin_seq}") == (
        queue.name, made.id,
    )  # fmt: skip
    for at in (origin.produced_at, origin.died_at):
        assert before_s - 1 <= at.ToMilliseconds() / 1000 <= time.time() + 1
    assert origin.died_at.ToMilliseconds() >= origin.produced_at.ToMilliseconds()


async def test_a_dead_letter_has_everything_that_its_producer_gave(make: Make):
    queue, dead = await dying(make)
    item = Item(
        payload=b"\x00\xff", kind="k", encoding="e", reference="r", attributes={"a": "b"},
        group="g",
    )  # fmt: skip
    await queue.produce(item)
    await queue.reject(await queue.lease_one())
    assert (await dead.lease_one()).item == item


async def test_a_dead_letter_begins_with_no_attempts_in_its_dead_queue(make: Make):
    queue, dead = await dying(make, max_attempts=1)
    await queue.produce("a")
    await queue.retry(await queue.lease_one())
    assert (await dead.lease_one()).attempt == 1


async def test_a_dead_letter_is_worked_on_like_any_item(make: Make):
    queue, dead = await dying(make)
    await die(queue, "a")
    item = await dead.lease_one()
    await dead.retry(item, error="not yet")
    again = await dead.lease_one()
    assert (again.attempt, again.errors) == (2, ("not yet",))
    assert await dead.complete(again) == [DONE]
    assert await queue.dead_letters(0) == []


async def test_dead_letters_of_several_queues_share_a_dead_queue_and_are_listed_apart(make: Make):
    dead = await make()
    one, other = await make(dead_queue=dead.name), await make(dead_queue=dead.name)
    await die(one, "a", "b")
    await die(other, "c")
    assert [letter.item.payload for letter in await one.dead_letters(2)] == [b"a", b"b"]
    assert [letter.item.payload for letter in await other.dead_letters(1)] == [b"c"]
    assert len(await dead.dead_letters(3)) == 3


async def test_dead_letters_arrive_once_and_in_their_order(make: Make):
    queue, dead = await dying(make, max_attempts=1)
    await queue.produce(*map(str, range(300)))
    await queue.retry(*await queue.lease(300))
    assert texts(await dead.lease(300)) == [str(number) for number in range(300)]
    assert await queue.counts("moved_out", "dead") == {"moved_out": 300, "dead": 300}


async def test_without_a_dead_queue_dead_letters_are_dropped_and_counted(make: Make):
    queue = await make(dead_queue="", max_attempts=1)
    await queue.produce("a", "b")
    a, b = await queue.lease(2)
    await queue.retry(a)
    await queue.reject(b)
    assert await queue.counts("dead", "dropped", "moving") == {
        "dead": 2, "dropped": 2, "moving": 0,
    }  # fmt: skip


async def test_a_queue_has_the_dead_queue_dead_unless_it_says_otherwise(make: Make):
    namespace = make.name()
    queue = await make(namespace=namespace)
    assert (await queue.get()).settings.dead_queue == "dead"
    await die(queue, "a")
    assert (await make.queue("dead", namespace).lease_one()).text == "a"


async def test_the_queue_dead_has_no_dead_queue(make: Make):
    namespace = make.name()
    dead = make.queue("dead", namespace)
    await dead.create()
    assert (await dead.get()).settings.dead_queue == ""
    await dead.produce("a")
    await dead.reject(await dead.lease_one())
    assert (await dead.stats()).dropped == 1


async def test_a_dead_queue_that_does_not_exist_is_refused_by_name(make: Make):
    dead, queue = make.queue(), make.queue()
    said = await refusal(queue.create(dead_queue=dead.name))
    assert (said.code, said.field, said.value) == (
        "QUEUE_NOT_FOUND", "settings.dead_queue", dead.name,
    )  # fmt: skip
    assert (await refusal(queue.get())).code == "QUEUE_NOT_FOUND"


async def test_a_queue_is_refused_as_its_own_dead_queue(make: Make):
    queue = make.queue()
    said = await refusal(queue.create(dead_queue=queue.name))
    assert said.field == "settings.dead_queue"
    assert (await refusal(queue.get())).code == "QUEUE_NOT_FOUND"


async def test_letters_that_die_in_a_dead_queue_go_to_the_queue_dead(make: Make):
    namespace = make.name()
    dead = await make(namespace=namespace)
    queue = await make(namespace=namespace, dead_queue=dead.name)
    await die(queue, "a")
    await dead.reject(await dead.lease_one())
    letter = await make.queue("dead", namespace).lease_one()
    assert letter.dead is not None
    assert (letter.text, letter.dead.origin_queue) == ("a", dead.name)


async def test_a_chain_of_dead_queues_is_refused(make: Make):
    last = await make()
    dead = await make(dead_queue=last.name)
    said = await refusal(make.queue().create(dead_queue=dead.name))
    assert (said.code, said.field, said.value) == (
        "INVALID_ARGUMENT", "settings.dead_queue", dead.name,
    )  # fmt: skip


async def test_two_queues_are_refused_as_dead_queues_of_each_other(make: Make):
    one = await make()
    other = await make(dead_queue=one.name)
    said = await refusal(one.update(dead_queue=other.name))
    assert (said.code, said.field) == ("INVALID_ARGUMENT", "settings.dead_queue")
    assert (await one.get()).settings.dead_queue == "dead"


async def test_what_an_item_says_about_attempts_has_no_effect_in_a_dead_queue(make: Make):
    queue, dead = await dying(make)
    await queue.produce(Item(payload=b"a", max_attempts=1))
    await queue.retry(await queue.lease_one())
    for attempt in (1, 2, 3):
        item = await dead.lease_one()
        assert item.attempt == attempt
        await dead.retry(item)


async def test_what_an_item_says_about_attempts_holds_again_when_it_is_redriven(make: Make):
    queue, _ = await dying(make)
    await queue.produce(Item(payload=b"a", max_attempts=1))
    for deaths in (1, 2):
        await queue.retry(await queue.lease_one())
        await queue.dead_letters(1)
        assert (await queue.stats()).dead == deaths
        await queue.redrive()


async def test_the_attributes_of_a_retry_go_with_the_dead_letter_and_back(make: Make):
    queue, dead = await dying(make)
    await queue.produce(Item(payload=b"a", attributes={"page": "1"}))
    await queue.retry(await queue.lease_one(), attributes={"page": "7"})
    await queue.reject(await queue.lease_one())
    await queue.dead_letters(1)
    [letter] = await dead.peek()
    assert dict(letter.attributes.values) == {"page": "7"}
    await queue.redrive()
    assert (await queue.lease_one()).attributes == {"page": "7"}


async def test_a_full_dead_queue_holds_letters_back_and_gets_them_when_it_has_room(make: Make):
    dead = await make(partition_items_max=1)
    queue = await make(dead_queue=dead.name)
    await queue.produce("a", "b")
    for item in await queue.lease(2):
        await queue.reject(item)
    await dead.until(ready=1)
    await queue.until(moving=1)
    assert await dead.complete(await dead.lease_one()) == [DONE]
    assert texts(await dead.lease(1)) == ["b"]
    assert await queue.counts() == {}


# -- redrive


async def test_a_redrive_sends_all_letters_back_each_once(make: Make):
    queue, dead = await dying(make)
    await die(queue, *"abc")
    assert await queue.redrive() == 3
    assert texts(await queue.lease(3)) == ["a", "b", "c"]
    assert await dead.counts() == {}
    assert await queue.redrive() == 0


async def test_a_redriven_item_begins_with_no_attempts_and_no_words(make: Make):
    queue, _ = await dying(make)
    await die(queue, "a")
    await queue.redrive()
    item = await queue.lease_one()
    assert (item.attempt, item.errors) == (1, ())


async def test_a_redrive_of_named_letters_leaves_the_others(make: Make):
    queue, _ = await dying(make)
    await die(queue, *"abc")
    letters = await queue.dead_letters(3)
    assert await queue.redrive(f"{letters[1].partition}-{letters[1].seq}") == 1
    assert texts(await queue.lease(1)) == ["b"]
    assert [one.item.payload for one in await queue.dead_letters(2)] == [b"a", b"c"]


async def test_a_redrive_by_reason_leaves_other_letters(make: Make):
    queue, _ = await dying(make)
    await queue.produce(Item(payload=b"expired", expire_timeout=span(0.2)))
    await queue.dead_letters(1)
    await die(queue, "rejected")
    chosen = DeadLetterFilter(reasons=[DEAD_REASON_REJECTED])
    assert await queue.redrive(filter=chosen) == 1
    assert texts(await queue.lease(1)) == ["rejected"]
    [left] = await queue.dead_letters(1)
    assert left.dead_letter.reason == DEAD_REASON_EXPIRED


async def test_a_redrive_by_time_of_death_leaves_other_letters(make: Make):
    queue, _ = await dying(make)
    await die(queue, "a")
    [first] = await queue.dead_letters(1)
    await die(queue, "b")
    second = (await queue.dead_letters(2))[1]
    assert second.dead_letter.died_at.ToNanoseconds() > first.dead_letter.died_at.ToNanoseconds()
    chosen = DeadLetterFilter(died_from=second.dead_letter.died_at)
    assert await queue.redrive(filter=chosen) == 1
    assert texts(await queue.lease(1)) == ["b"]


async def test_a_dry_run_of_a_redrive_counts_and_moves_nothing(make: Make):
    queue, dead = await dying(make)
    await die(queue, "a", "b")
    assert await queue.redrive(dry_run=True) == 2
    assert await dead.counts() == {"ready": 2}


async def test_a_redrive_leaves_letters_of_other_queues(make: Make):
    dead = await make()
    one, other = await make(dead_queue=dead.name), await make(dead_queue=dead.name)
    await die(one, "a")
    await die(other, "b")
    assert await one.redrive() == 1
    assert texts(await one.lease(1)) == ["a"]
    assert await dead.counts() == {"ready": 1}


async def test_a_leased_letter_is_not_redriven(make: Make):
    queue, dead = await dying(make)
    await die(queue, "a", "b")
    held = await dead.lease_one()
    assert await queue.redrive() == 1
    assert texts(await queue.lease(1)) == ["b"]
    assert await dead.complete(held) == [DONE]


async def test_a_redriven_item_may_die_again(make: Make):
    queue, _ = await dying(make)
    await die(queue, "a")
    await queue.redrive()
    await queue.reject(await queue.lease_one(), error="again")
    [letter] = await queue.dead_letters(1)
    assert list(letter.dead_letter.errors) == ["again"]
    assert (await queue.stats()).dead == 2


async def test_a_redrive_of_ids_with_a_filter_is_refused(make: Make):
    queue, _ = await dying(make)
    said = await refusal(queue.redrive("0-1", filter=DeadLetterFilter()))
    assert said.code == "INVALID_ARGUMENT"


async def test_a_filter_with_an_unknown_reason_is_refused(make: Make):
    queue, _ = await dying(make)
    said = await refusal(queue.redrive(filter=DeadLetterFilter(reasons=[77])))  # type: ignore[list-item]
    assert (said.code, said.field) == ("INVALID_ARGUMENT", "filter.reasons[0]")


# -- drop


async def test_a_drop_removes_letters_for_ever_and_counts_them(make: Make):
    queue, dead = await dying(make)
    await die(queue, *"abc")
    letters = await queue.dead_letters(3)
    assert await queue.drop(f"{letters[0].partition}-{letters[0].seq}") == 1
    assert [one.item.payload for one in await queue.dead_letters(2)] == [b"b", b"c"]
    assert (await dead.stats()).cancelled == 1


async def test_a_drop_by_an_empty_filter_removes_all_letters_of_the_queue(make: Make):
    dead = await make()
    one, other = await make(dead_queue=dead.name), await make(dead_queue=dead.name)
    await die(one, "a", "b")
    await die(other, "c")
    assert await one.drop(filter=DeadLetterFilter()) == 2
    assert await dead.counts() == {"ready": 1}
    assert await one.redrive() == 0


async def test_a_drop_without_ids_and_filter_is_refused(make: Make):
    queue, dead = await dying(make)
    await die(queue, "a")
    said = await refusal(queue.drop())
    assert said.code == "INVALID_ARGUMENT"
    assert await dead.counts() == {"ready": 1}


async def test_a_dry_run_of_a_drop_removes_nothing(make: Make):
    queue, dead = await dying(make)
    await die(queue, "a")
    assert await queue.drop(filter=DeadLetterFilter(), dry_run=True) == 1
    assert await dead.counts() == {"ready": 1}


async def test_leased_and_scheduled_letters_are_not_dropped(make: Make):
    queue, dead = await dying(make)
    await die(queue, *"abc")
    _held, waits = await dead.lease(2)
    await dead.retry(waits, at=soon(3600))
    assert await queue.drop(filter=DeadLetterFilter()) == 1
    assert await dead.counts() == {"leased": 1, "scheduled": 1}
