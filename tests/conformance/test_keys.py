"""Keys and partitions: one partition for a key, and the order in it."""

from querator.v1.items_pb2 import Item
from tests.conformance.make import Make
from tests.conformance.queues import texts


def keyed(text: str, key: str) -> Item:
    return Item(payload=text.encode(), key=key)


async def test_items_of_one_key_are_in_one_partition(make: Make):
    queue = await make(partitions=5)
    made = [(await queue.produce(keyed("x", "customer-7")))[0].id for _ in range(10)]
    assert len({one.partition("-")[0] for one in made}) == 1


async def test_keys_are_spread_over_all_partitions(make: Make):
    queue = await make(partitions=4)
    made = await queue.produce(*(keyed("x", f"k{n}") for n in range(60)))
    assert {one.id.partition("-")[0] for one in made} == {"0", "1", "2", "3"}


async def test_a_key_has_the_partition_that_the_documentation_computes(make: Make):
    queue = await make(partitions=5)
    for key, slot in (("order-17", 2992), ("Grüße", 914)):
        [made] = await queue.produce(keyed("x", key))
        assert made.id.partition("-")[0] == str(slot % 5)


async def test_one_key_has_the_same_partition_in_queues_of_the_same_size(make: Make):
    one, other = await make(partitions=4), await make(partitions=4)
    for number in range(8):
        [here] = await one.produce(keyed("x", f"k{number}"))
        [there] = await other.produce(keyed("x", f"k{number}"))
        assert here.id.partition("-")[0] == there.id.partition("-")[0]


async def test_items_of_one_key_are_leased_in_the_order_of_their_produces(make: Make):
    queue = await make(partitions=3)
    for number in range(12):
        await queue.produce(keyed(str(number), "customer"), keyed("other", f"o{number}"))
    taken = [item for item in await queue.lease(24) if item.item.key == "customer"]
    assert texts(taken) == [str(number) for number in range(12)]


async def test_a_request_of_many_keys_is_answered_for_each_item_in_its_order(make: Make):
    queue = await make(partitions=3)
    made = await queue.produce(*(keyed(str(n), f"k{n}") for n in range(30)))
    shown = {f"{one.partition}-{one.seq}": one.item.payload for one in await queue.peek()}
    assert [shown[one.id] for one in made] == [b"%d" % n for n in range(30)]


async def test_a_repeat_of_a_request_of_many_keys_stores_nothing(make: Make):
    queue = await make(partitions=3)
    items = [keyed(str(n), f"k{n}") for n in range(12)]
    me = make.producer()
    first = await queue.produce(*items, producer_id=me, sequence=1)
    again = await queue.produce(*items, producer_id=me, sequence=1)
    assert [one.id for one in again] == [one.id for one in first]
    assert (await queue.stats()).ready == 12


async def test_the_order_of_a_key_holds_when_the_number_of_partitions_grows(make: Make):
    queue = await make(partitions=1)
    keys = [f"k{n}" for n in range(8)]
    await queue.produce(*(keyed(f"{number} {key}", key) for number in range(3) for key in keys))
    await queue.update(partitions=4)
    await queue.produce(*(keyed(f"{number} {key}", key) for number in range(3, 6) for key in keys))
    order: dict[str, list[str]] = {key: [] for key in keys}
    for _ in range(48):
        [item] = await queue.lease(1)
        order[item.item.key].append(item.text)
        await queue.complete(item)
    assert order == {key: [f"{number} {key}" for number in range(6)] for key in keys}


async def test_an_item_of_a_moved_key_waits_for_those_before_it(make: Make):
    queue = await make(partitions=1)
    keys = [f"k{n}" for n in range(8)]
    await queue.produce(*(keyed("old", key) for key in keys))
    await queue.update(partitions=3)
    await queue.produce(*(keyed("new", key) for key in keys))
    counts = await queue.counts()
    assert counts["held"] > 0
    assert sum(counts.values()) == 16
    old = await queue.lease(8)
    assert texts(old) == ["old"] * 8
    await queue.complete(*old)
    assert texts(await queue.lease(8)) == ["new"] * 8


async def test_a_key_is_carried_to_the_consumer(make: Make):
    queue = await make(partitions=2)
    await queue.produce(keyed("x", "Grüße"))
    assert (await queue.lease_one()).item.key == "Grüße"
