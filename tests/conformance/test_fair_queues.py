"""Fair queues: groups share the leases, by turns or by what is in flight."""

import asyncio
from collections import Counter

from querator.v1.admin_service_pb2 import (
    FAIRNESS_TURNS,
    QUEUE_KIND_FAIR,
    QUEUE_KIND_PLAIN,
    GroupSettings,
    ListGroupsRequest,
)
from querator.v1.items_pb2 import Item
from tests.conformance.door import CALL_S
from tests.conformance.make import Make
from tests.conformance.queues import Leased, Queue, refusal, span, texts
from tests.conformance.stubs import answer


def of(group: str, number: int = 1, **fields: object) -> list[Item]:
    items = range(1, number + 1)
    return [
        Item(payload=f"{group} {n}".encode(), group=group, **fields)  # type: ignore[arg-type]
        for n in items
    ]


async def fair(make: Make, **settings: object) -> Queue:
    given: dict[str, object] = {"kind": QUEUE_KIND_FAIR, **settings}
    return await make(**given)  # type: ignore[arg-type]


def shares(items: list[Leased]) -> dict[str, int]:
    return dict(Counter(item.item.group for item in items))


async def test_a_single_item_passes_the_many_of_another_group(make: Make):
    queue = await fair(make)
    await queue.produce(*of("many", 100))
    await queue.produce(*of("single"))
    assert "single 1" in texts(await queue.lease(2))


async def test_groups_get_equal_shares_of_one_lease(make: Make):
    queue = await fair(make)
    await queue.produce(*of("a", 30), *of("b", 30), *of("c", 30))
    assert shares(await queue.lease(30)) == {"a": 10, "b": 10, "c": 10}


async def test_groups_get_equal_shares_of_many_small_leases(make: Make):
    queue = await fair(make, fairness=FAIRNESS_TURNS)
    await queue.produce(*of("a", 20), *of("b", 20))
    taken = [await queue.lease_one() for _ in range(10)]
    assert shares(taken) == {"a": 5, "b": 5}


async def test_the_order_in_a_group_is_that_of_its_produces(make: Make):
    queue = await fair(make)
    await queue.produce(*of("a", 5), *of("b", 5))
    taken = await queue.lease(10)
    assert [text for text in texts(taken) if text[0] == "a"] == [f"a {n}" for n in range(1, 6)]


async def test_what_a_group_does_not_use_is_shared_by_the_others(make: Make):
    queue = await fair(make)
    await queue.produce(*of("a", 20), *of("b", 2))
    assert shares(await queue.lease(12)) == {"a": 10, "b": 2}


async def test_a_group_of_three_times_the_weight_gets_three_times_as_many(make: Make):
    queue = await fair(make, fairness=FAIRNESS_TURNS, groups=[GroupSettings(path="a", weight=3)])
    await queue.produce(*of("a", 40), *of("b", 40))
    assert shares(await queue.lease(20)) == {"a": 15, "b": 5}


async def test_weights_hold_for_what_is_in_flight(make: Make):
    queue = await fair(make, groups=[GroupSettings(path="a", weight=3)])
    await queue.produce(*of("a", 40), *of("b", 40))
    assert shares(await queue.lease(20)) == {"a": 15, "b": 5}


async def test_a_weight_that_is_changed_holds_at_once(make: Make):
    queue = await fair(make, fairness=FAIRNESS_TURNS)
    await queue.produce(*of("a", 40), *of("b", 40))
    assert shares(await queue.lease(10)) == {"a": 5, "b": 5}
    await queue.update(groups=[GroupSettings(path="b", weight=4)])
    assert shares(await queue.lease(20)) == {"a": 4, "b": 16}


async def test_a_group_that_holds_many_items_gives_way(make: Make):
    queue = await fair(make)
    await queue.produce(*of("slow", 10))
    await queue.lease(6)
    await queue.produce(*of("quick", 10))
    assert shares(await queue.lease(6)) == {"quick": 6}


async def test_items_without_a_group_are_one_more_group(make: Make):
    queue = await fair(make)
    await queue.produce(*of("", 10), *of("a", 10))
    assert shares(await queue.lease(10)) == {"": 5, "a": 5}


async def test_each_level_of_a_path_is_fair_in_itself(make: Make):
    queue = await fair(make)
    await queue.produce(*of("a.x", 20), *of("a.y", 20), *of("b", 20))
    assert shares(await queue.lease(12)) == {"a.x": 3, "a.y": 3, "b": 6}


async def test_priorities_come_before_turns(make: Make):
    queue = await fair(make)
    await queue.produce(*of("a", 3), *of("b", 3, priority=-1))
    assert shares(await queue.lease(3)) == {"b": 3}


async def test_a_group_at_its_limit_gets_no_more_until_an_item_is_done(make: Make):
    queue = await fair(make, group_leased_max=2)
    await queue.produce(*of("a", 5))
    first, _ = await queue.lease(2)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(queue.lease_one(client="other"))
        await queue.produce(*of("b"))
    assert waiting.result().text == "b 1"
    await queue.complete(first)
    assert texts(await queue.lease(1)) == ["a 3"]


async def test_a_limit_of_one_group_leaves_the_others_without(make: Make):
    queue = await fair(make, groups=[GroupSettings(path="a", leased_max=1)])
    await queue.produce(*of("a", 5), *of("b", 5))
    assert shares(await queue.lease(6)) == {"a": 1, "b": 5}


async def test_a_limit_counts_the_groups_below(make: Make):
    queue = await fair(make, groups=[GroupSettings(path="a", leased_max=2)])
    await queue.produce(*of("a.x", 5), *of("a.y", 5), *of("b", 3))
    taken = shares(await queue.lease(5))
    assert taken["b"] == 3
    assert sum(taken.values()) - taken["b"] == 2


async def test_a_lapse_makes_room_under_a_limit(make: Make):
    queue = await fair(make, group_leased_max=1, lease_timeout=span(1))
    await queue.produce(*of("a", 2))
    await queue.lease(1, client="silent")
    assert (await queue.lease_one(client="other", timeout_s=60)).item.group == "a"
    assert await queue.counts("leased", "lapsed") == {"leased": 1, "lapsed": 1}


async def test_a_dead_letter_keeps_its_group_and_returns_to_it(make: Make):
    dead = await make()
    queue = await fair(make, dead_queue=dead.name)
    await queue.produce(*of("a"))
    await queue.reject(await queue.lease_one())
    await queue.dead_letters(1)
    await queue.redrive()
    assert (await queue.lease_one()).item.group == "a"


async def test_the_list_of_groups_has_their_counts(make: Make):
    queue = await fair(make, groups=[GroupSettings(path="a", weight=3, leased_max=9)])
    await queue.produce(*of("a", 4), *of("b", 2))
    await queue.lease(3)
    request = ListGroupsRequest(queue=queue.name)
    reply = await answer(make.nodes[0].admin.ListGroups(request, timeout=CALL_S))
    found = {one.group: one for one in reply.groups}
    assert (found["a"].items, found["a"].weight, found["a"].leased_max) == (4, 3, 9)
    assert (found["b"].items, found["b"].weight) == (2, 1)
    assert found["a"].leased + found["b"].leased == 3
    assert found["a"].ready + found["b"].ready == 3


async def test_a_group_path_with_an_empty_part_is_refused_by_its_item(make: Make):
    queue = await fair(make)
    said = await refusal(queue.produce(*of("good"), *of("a..b")))
    assert (said.code, said.field) == ("INVALID_ARGUMENT", "items[1].group")
    assert await queue.counts() == {}


async def test_a_group_path_of_nine_levels_is_refused(make: Make):
    queue = await fair(make)
    await queue.produce(*of(".".join("abcdefgh")))
    said = await refusal(queue.produce(*of(".".join("abcdefghi"))))
    assert (said.code, said.field) == ("LIMIT_EXCEEDED", "items[0].group")


async def test_a_weight_of_nothing_is_refused(make: Make):
    queue = make.queue()
    groups = [GroupSettings(path="a", weight=0)]
    said = await refusal(queue.create(kind=QUEUE_KIND_FAIR, groups=groups))
    assert (said.code, said.field) == ("LIMIT_EXCEEDED", "settings.groups[0].weight")


async def test_weights_are_refused_on_a_plain_queue(make: Make):
    said = await refusal(make.queue().create(groups=[GroupSettings(path="a", weight=2)]))
    assert (said.code, said.field) == ("INVALID_ARGUMENT", "settings.groups")


async def test_a_fair_queue_cannot_become_a_plain_one(make: Make):
    queue = await fair(make)
    said = await refusal(queue.update(kind=QUEUE_KIND_PLAIN))
    assert said.field == "settings.kind"


async def test_any_text_is_a_group_in_a_plain_queue(make: Make):
    queue = await make()
    await queue.produce(*of("a..b"))
    assert (await queue.lease_one()).item.group == "a..b"
