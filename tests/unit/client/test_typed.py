"""Arguments of wrong types: the error names the argument, what is expected, and the value."""

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from querator.client import Client, Item, ItemId, LeaseRef, SyncClient
from querator.client.errors import InvalidArgument
from querator.client.items import encode_items
from querator.client.typed import typed
from tests.unit.client.fake_node import FakeNode

SECONDS = "it must be a timedelta, for example timedelta(seconds=30)"
WRONG_CALLS: list[tuple[Callable[[Any], Any], str]] = [
    (lambda c: c.produce(5, b"x"), "queue is 5; it must be a text"),
    (lambda c: c.produce("q", 5), "items is 5; it must be an Item or bytes or a text"),
    (lambda c: c.create_queue(b"q"), "name is b'q'; it must be a text"),
    (
        lambda c: c.create_queue("q", partitions="4"),
        "partitions is '4'; it must be a whole number or None",
    ),
    (
        lambda c: c.create_queue("q", partitions=True),
        "partitions is True; it must be a whole number or None",
    ),
    (lambda c: c.create_queue("q", lease_timeout=30), f"lease_timeout is 30; {SECONDS} or None"),
    (lambda c: c.update_queue("q", dedup_window=60), f"dedup_window is 60; {SECONDS} or None"),
    (lambda c: c.lease("q", wait=20), f"wait is 20; {SECONDS} or None"),
    (lambda c: c.lease("q", max_items="3"), "max_items is '3'; it must be a whole number"),
    (lambda c: c.extend("q", "1", lease_timeout=9.5), f"lease_timeout is 9.5; {SECONDS} or None"),
    (lambda c: c.retry("q", "1", delay=1), f"delay is 1; {SECONDS} or None"),
    (lambda c: c.stats("q", stale="yes"), "stale is 'yes'; it must be True or False"),
    (lambda c: c.producer("q", linger=5), f"linger is 5; {SECONDS} or None"),
    (lambda c: c.consumer("q", idle_timeout=5), f"idle_timeout is 5; {SECONDS} or None"),
    (
        lambda c: c.produce("q", {"to": "ann"}),
        "items is {'to': 'ann'}; it must be an Item or bytes or a text; for JSON give "
        "json.dumps(items) or msgspec.json.encode(items)",
    ),
    (lambda c: c.redrive("q", [5]), "item_ids[0] is 5; it must be an ItemId or a text such as"),
    (lambda c: c.redrive("q", ["0-1", None]), "item_ids[1] is None; it must be an ItemId or a"),
    (lambda c: c.redrive("q", "0-1"), "item_ids is '0-1'; it must be a list or another iterable"),
    (lambda c: c.complete("q", None), "held is None; it must be a LeasedItem or a LeasedBatch or"),
    (lambda c: c.complete("q", LeaseRef(5)), "held.lease_id is 5; it must be a text"),  # type: ignore[arg-type]
    (lambda c: c.retry("q", LeaseRef("1", 5)), "held.items is 5; it must be a tuple"),  # type: ignore[arg-type]
    (lambda c: c.retry("q", LeaseRef("1", (None,))), "held.items[0] is None; it must be an Item"),  # type: ignore[arg-type]
    (lambda c: c.consumer("q", prefetch_items="9"), "prefetch_items is '9'; it must be a whole nu"),
]


@pytest.mark.parametrize(("call", "words"), WRONG_CALLS)
async def test_a_call_with_a_wrong_type_names_the_argument(call, words):
    client = Client("127.0.0.1:1")
    with pytest.raises(TypeError) as wrong:
        await call(client)
    assert str(wrong.value).startswith(words)


@pytest.mark.parametrize("kind", [Client, SyncClient])
def test_a_client_with_wrong_options_names_the_option(kind):
    for options, words in (
        ({"request_timeout": 30}, f"request_timeout is 30; {SECONDS}"),
        ({"connect_timeout": 5.0}, f"connect_timeout is 5.0; {SECONDS}"),
        ({"tls": "ca.pem"}, "tls is 'ca.pem'; it must be a Tls or None"),
        (
            {"address": 4470},
            "address is 4470; it must be a text or a list or another iterable or None",
        ),
    ):
        with pytest.raises(TypeError) as wrong:
            kind(**options)
        assert str(wrong.value) == words


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (5, "an item is 5; it must be an Item, bytes or str"),
        (Item(payload=5), "item.payload is 5; it must be bytes or a text"),  # type: ignore[arg-type]
        (
            {"a": 1},
            "an item is {'a': 1}; it must be an Item, bytes or str; for JSON give json."
            "dumps(item) or msgspec.json.encode(item)",
        ),
        (
            Item([1]),  # type: ignore[arg-type]
            "item.payload is [1]; it must be bytes or a text; for JSON give json.dumps(payload) or "
            "msgspec.json.encode(payload)",
        ),
        (Item(attributes={1: "a"}), "a key of item.attributes is 1; it must be a text"),  # type: ignore[dict-item]
        (Item(key=5), "item.key is 5; it must be a text"),  # type: ignore[arg-type]
        (Item(delay=5), f"item.delay is 5; {SECONDS} or None"),  # type: ignore[arg-type]
        (Item(attributes={"a": 1}), "item.attributes['a'] is 1; it must be a text"),  # type: ignore[dict-item]
    ],
)
def test_an_item_with_a_wrong_type_names_the_field(item, words):
    with pytest.raises(TypeError) as wrong:
        encode_items([item])
    assert str(wrong.value) == words


def test_a_negative_duration_and_an_instant_without_a_zone_are_named():
    with pytest.raises(InvalidArgument) as negative:
        encode_items([Item(lease_timeout=timedelta(seconds=-1))])
    assert negative.value.field == "lease_timeout"
    with pytest.raises(ValueError, match=r"enqueue_at is .*2030.*; it must have a time zone"):
        encode_items([Item(enqueue_at=datetime(2030, 1, 1))])  # noqa: DTZ001 - the mistake


async def test_items_are_not_the_letters_of_a_text():
    async with FakeNode.running() as node, Client(node.address) as client:
        async with client.producer("q") as producer:
            with pytest.raises(TypeError, match="items is 'abc'; it must be a list or another"):
                await producer.produce_many("abc")


async def test_what_a_handler_settles_with_is_checked():
    async with FakeNode.running() as node, Client(node.address) as client:
        await node.make_ready([b"a"])
        async with client.consumer("q") as consumer:
            item = await anext(consumer)
            with pytest.raises(TypeError, match="delay is 5; it must be a timedelta"):
                item.retry(delay=5)  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="lease_timeout is 5; it must be a timedelta"):
                await item.extend(5)  # type: ignore[arg-type]
            await item.complete()


async def test_a_handler_of_the_wrong_kind_is_refused():
    async with FakeNode.running() as node, Client(node.address) as client:
        await node.make_ready([b"a"])

        def plain(item: object) -> None:
            """Not an async function."""

        async with client.consumer("q") as consumer:
            with pytest.raises(TypeError, match="handler is 'x'; it must be a function"):
                await consumer.run("x")  # type: ignore[arg-type]
            with pytest.raises(TypeError, match=r"handler is .*plain.*; it must be an async func"):
                await consumer.run(plain)  # type: ignore[arg-type]
            assert consumer.held == 0


async def test_an_async_handler_of_a_sync_consumer_is_refused():
    async def handler(item: object) -> None:
        """Not a plain function."""

    async with FakeNode.running() as node:

        def use() -> None:
            with SyncClient(node.address) as client, client.consumer("q") as consumer:
                consumer.run(handler)

        with pytest.raises(TypeError, match=r"handler is .*; it must be a plain function"):
            await asyncio.to_thread(use)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda c: c.create_queue("q", max_attempts=-1), "max_attempts is -1; it must be a whole"),
        (lambda c: c.create_queue("q", partitions=2**40), "partitions is 1099511627776; it must"),
        (lambda c: c.abort_batch("q", "p", -1), "batch is -1; it must be a whole number from 0 to"),
        (lambda c: c.complete("q", LeaseRef("1", (-1,))), r"held.items\[0\] is -1; it must be a"),
    ],
)
async def test_a_number_that_a_request_does_not_carry_is_named(call, words):
    with pytest.raises(ValueError, match=words):
        await call(Client("127.0.0.1:1"))


def test_an_item_id_that_is_no_text_is_named():
    wrong: Any = 5
    with pytest.raises(TypeError, match="item_id is 5; it must be a text such as '0-17'"):
        ItemId.parse(wrong)


async def test_produce_many_refuses_what_is_no_list_of_items():
    async with FakeNode.running() as node, Client(node.address) as client:
        async with client.producer("q") as producer:
            for wrong in ("abc", b"abc", {"a": 1}, Item(b"a")):
                with pytest.raises(TypeError, match=r"items is .* iterable of items"):
                    await producer.produce_many(wrong)  # type: ignore[arg-type]
    assert node.stored == []


def test_any_value_fits_object_and_any():
    @typed
    def give(value: object, other: Any = None) -> tuple[object, Any]:
        return value, other

    assert give(True, other=False) == (True, False)
    assert give(None) == (None, None)
