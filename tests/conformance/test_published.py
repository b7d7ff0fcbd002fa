"""Published values of executions: written by Records, read at any time."""

import asyncio

import pytest

from querator.v1 import execution_service_pb2 as v1
from tests.conformance.executions import Executions, begun, executions, kinds, step, value
from tests.conformance.make import Make
from tests.conformance.queues import PATIENCE_S, refusal

pytestmark = pytest.mark.doors("unary", "streams-1")

ONE = b"\x01"


def shown(answer: v1.ReadPublishedResponse) -> dict[str, bytes]:
    return {one.key: one.value for one in answer.values}


async def test_nothing_is_published_at_first(make: Make):
    shop = await executions(make)
    await shop.start()
    found = await shop.published()
    assert (shown(found), found.version, found.closed) == ({}, 0, False)


async def test_a_value_is_read_by_its_key(make: Make):
    shop, held = await begun(make)
    await shop.record(held, published=[value("state", b"here"), value("other", b"there")])
    assert shown(await shop.published("state")) == {"state": b"here"}
    assert shown(await shop.published("nothing")) == {}


async def test_all_values_are_read_without_a_key(make: Make):
    shop, held = await begun(make)
    await shop.record(held, published=[value("a", b"1")])
    await shop.record(held, published=[value("b", b"2")])
    assert shown(await shop.published()) == {"a": b"1", "b": b"2"}


async def test_the_newest_value_of_a_key_is_read(make: Make):
    shop, held = await begun(make)
    await shop.record(held, published=[value("a", b"1")])
    await shop.record(held, published=[value("a", b"2")])
    found = await shop.published("a")
    assert shown(found) == {"a": b"2"}
    assert found.version == 2


async def test_versions_count_all_changes(make: Make):
    shop, held = await begun(make)
    await shop.record(held, published=[value("a", b"1"), value("b", b"1")])
    await shop.record(held, published=[value("a", b"2")])
    found = await shop.published()
    assert [(one.key, one.version) for one in found.values] == [("b", 2), ("a", 3)]


async def test_only_later_versions_are_read(make: Make):
    shop, held = await begun(make)
    await shop.record(held, published=[value("a", b"1"), value("b", b"1")])
    assert shown(await shop.published(after=1)) == {"b": b"1"}
    assert shown(await shop.published(after=2)) == {}


async def test_a_value_may_be_empty(make: Make):
    shop, held = await begun(make)
    await shop.record(held, published=[value("a", b"")])
    assert shown(await shop.published()) == {"a": b""}


async def test_a_value_is_no_record_of_the_journal(make: Make):
    shop, held = await begun(make)
    await shop.record(held, step(ONE), published=[value("a", b"1")])
    assert kinds(await shop.journal()) == ["STARTED", "STEP_DONE"]


async def test_a_read_waits_for_a_value(make: Make):
    shop, held = await begun(make)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(shop.published("a", wait_s=PATIENCE_S))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await shop.record(held, published=[value("a", b"1")])
    assert shown(waiting.result()) == {"a": b"1"}


async def test_a_read_waits_for_a_later_version(make: Make):
    shop, held = await begun(make)
    await shop.record(held, published=[value("a", b"1")])
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(shop.published("a", after=1, wait_s=PATIENCE_S))
        await shop.record(held, published=[value("a", b"2")])
    assert shown(waiting.result()) == {"a": b"2"}


async def test_a_read_ends_empty_when_its_time_is_over(make: Make):
    shop, _ = await begun(make)
    assert shown(await shop.published("a", wait_s=0.2)) == {}


async def test_a_wait_ends_when_the_execution_ends(make: Make):
    shop, held = await begun(make)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(shop.published("a", wait_s=PATIENCE_S))
        await shop.close(held)
    assert (shown(waiting.result()), waiting.result().closed) == ({}, True)


async def test_values_stay_with_what_has_ended(make: Make):
    shop, held = await begun(make)
    await shop.record(held, published=[value("a", b"1")])
    await shop.close(held)
    found = await shop.published("a")
    assert (shown(found), found.closed) == ({"a": b"1"}, True)


async def test_a_value_goes_with_the_park_of_its_record(make: Make):
    shop, held = await begun(make)
    await shop.record(held, published=[value("a", b"1")], park=v1.Park(names=["word"]))
    assert shown(await shop.published()) == {"a": b"1"}
    assert await shop.state() == "PARKED"


async def test_a_record_that_is_repeated_publishes_once(make: Make):
    shop, held = await begun(make)
    await shop.record(held, number=1, published=[value("a", b"1")])
    assert (await shop.record(held, number=1, published=[value("a", b"1")])).repeated_answer
    assert (await shop.published()).version == 1


async def test_a_lost_lease_publishes_nothing(make: Make):
    shop = await executions(make)
    await shop.start()
    lost = await shop.lease_one(timeout_s=1)
    await shop.lease_one()
    refused = await refusal(shop.record(lost, published=[value("a", b"late")]))
    assert refused.code == "LEASE_LOST"
    assert shown(await shop.published()) == {}


async def test_values_are_read_through_all_nodes(make: Make):
    shop, held = await begun(make)
    await shop.record(held, published=[value("a", b"1")])
    for node in range(make.size):
        assert shown(await shop.through(node).published()) == {"a": b"1"}


async def test_64_keys_may_be_published_and_no_more(make: Make):
    shop, held = await begun(make)
    keys = [f"k{number}" for number in range(64)]
    await shop.record(held, number=1, published=[value(key, b"x") for key in keys])
    refused = await refusal(shop.record(held, number=2, published=[value("more", b"x")]))
    assert (refused.code, refused.field) == ("LIMIT_EXCEEDED", "published")
    assert sorted(shown(await shop.published())) == sorted(keys)
    await shop.record(held, number=2, published=[value("k0", b"y")])


async def test_keys_and_values_have_64_kib(make: Make):
    shop, held = await begun(make)
    await shop.record(held, number=1, published=[value("a", b"x" * 40_000)])
    refused = await refusal(shop.record(held, number=2, published=[value("b", b"x" * 30_000)]))
    assert (refused.code, refused.field) == ("LIMIT_EXCEEDED", "published")
    assert list(shown(await shop.published())) == ["a"]


async def test_a_key_that_is_named_twice_is_refused(make: Make):
    shop, held = await begun(make)
    refused = await refusal(shop.record(held, published=[value("a", b"1"), value("a", b"2")]))
    assert (refused.code, refused.field) == ("INVALID_ARGUMENT", "published[1].key")
    assert shown(await shop.published()) == {}


async def test_a_value_without_a_key_is_refused(make: Make):
    shop, held = await begun(make)
    refused = await refusal(shop.record(held, published=[value("", b"1")]))
    assert (refused.code, refused.field) == ("INVALID_ARGUMENT", "published[0].key")


async def test_a_key_of_256_bytes_is_refused(make: Make):
    shop, held = await begun(make)
    refused = await refusal(shop.record(held, published=[value("k" * 256, b"1")]))
    assert refused.facts == ("LIMIT_EXCEEDED", "published[0].key", "255 bytes", "256 bytes")


async def test_values_of_an_unknown_execution_are_not_found(make: Make):
    shop = await executions(make)
    assert (await refusal(shop.published(id_="nothing"))).code == "EXECUTION_NOT_FOUND"


async def test_values_in_a_queue_of_items_are_refused(make: Make):
    stranger = Executions(await make(), make.nodes)
    assert (await refusal(stranger.published())).code == "QUEUE_KIND"
