"""Items of the client and their bytes on the wire."""

import hashlib
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from querator.client import Item, ItemId, ProducedItems, RetryPolicy, admin
from querator.client.errors import ErrorCode, InvalidArgument, LimitExceeded, QueratorError
from querator.client.items import decode_item, duration, encode_items, keyed_by_content
from querator.client.values import ProducedRun
from querator.v1 import items_pb2, queue_service_pb2

SECOND = timedelta(seconds=1)
_TEXT = st.text(max_size=20)
_ITEMS = st.builds(
    Item,
    payload=st.binary(max_size=300) | _TEXT,
    kind=_TEXT,
    encoding=_TEXT,
    reference=_TEXT,
    attributes=st.dictionaries(_TEXT, _TEXT, max_size=3),
    priority=st.just(0) | st.integers(-(2**31), 2**31 - 1),
    group=_TEXT,
    key=_TEXT,
    enqueue_at=st.none()
    | st.integers(10**9, 4 * 10**9).map(lambda seconds: datetime.fromtimestamp(seconds, UTC)),
    expire_timeout=st.none() | st.timedeltas(timedelta(1), timedelta(100)),
    lease_timeout=st.none() | st.timedeltas(timedelta(1), timedelta(100)),
    dedup_key=_TEXT,
    max_attempts=st.none() | st.integers(0, 65_535),
    retry=st.none()
    | st.builds(
        RetryPolicy,
        delay=st.timedeltas(timedelta(0), timedelta(30)),
        delay_max=st.timedeltas(timedelta(0), timedelta(30)),
        backoff=st.sampled_from(["fixed", "linear", "exponential"]),
        jitter=st.booleans(),
    ),
)


def test_the_key_by_content_is_the_hash_of_kind_and_payload() -> None:
    key = "sha256:" + hashlib.sha256(b"email\0hello").hexdigest()
    email = keyed_by_content(Item("hello", kind="email", key="k", attributes={"trace": "1"}))
    assert email.dedup_key == key
    assert (email.payload, email.key, email.attributes) == ("hello", "k", {"trace": "1"})
    others = [Item(b"hello", kind="email"), Item("hello", kind="email", priority=3)]
    assert {keyed_by_content(item).dedup_key for item in others} == {key}


@given(st.lists(_ITEMS, min_size=2, max_size=2))
def test_only_kind_and_payload_count_as_content(items: list[Item]) -> None:
    keys = [keyed_by_content(msgspec.structs.replace(item, dedup_key="")) for item in items]
    same = len({(item.kind, as_bytes(item.payload)) for item in items}) == 1
    assert (keys[0].dedup_key == keys[1].dedup_key) == same


def as_bytes(payload: bytes | str) -> bytes:
    return payload.encode() if isinstance(payload, str) else payload


def test_bare_payloads_are_keyed_by_content_too() -> None:
    keys = {keyed_by_content(item).dedup_key for item in (b"x", "x", Item("x"))}
    assert len(keys) == 1
    assert keyed_by_content(Item("x", dedup_key="own")).dedup_key == "own"
    with pytest.raises(TypeError, match="must be an Item, bytes or str"):
        keyed_by_content({"payload": "x"})  # type: ignore[arg-type]


@given(st.lists(_ITEMS | st.binary(max_size=20_000) | _TEXT, max_size=5))
def test_a_request_of_pieces_is_one_that_protobuf_reads(items):
    encoded = encode_items(items)
    head = queue_service_pb2.ProduceRequest(queue="q", sequence=3).SerializeToString()
    body = b"".join(encoded.pieces)
    request = queue_service_pb2.ProduceRequest.FromString(head + body)
    assert (encoded.size, encoded.items) == (len(body), len(items))
    assert (request.queue, request.sequence) == ("q", 3)
    for sent, got in zip(items, map(decode_item, request.items), strict=True):
        expected = sent if isinstance(sent, Item) else Item(sent)
        payload = expected.payload
        if isinstance(payload, str):
            payload = payload.encode()
        assert got.payload == payload
        for name in Item.__struct_fields__:
            if name not in ("payload", "delay"):
                assert getattr(got, name) == getattr(expected, name), name


def test_delay_counts_from_the_call():
    before = datetime.now(UTC)
    pieces = encode_items([Item(b"x", delay=timedelta(hours=1))]).pieces
    item = queue_service_pb2.ProduceRequest.FromString(b"".join(pieces)).items[0]
    due = item.enqueue_at.ToDatetime(UTC)
    assert before <= due - timedelta(hours=1) <= datetime.now(UTC)


@pytest.mark.parametrize(
    ("item", "error"),
    [
        (17, TypeError),
        (None, TypeError),
        (Item(b"", enqueue_at=datetime(2030, 1, 1)), ValueError),  # noqa: DTZ001
        (Item(b"", delay=timedelta(1), enqueue_at=datetime(2030, 1, 1, tzinfo=UTC)), ValueError),
        (Item(b"", lease_timeout=timedelta(-1)), QueratorError),
    ],
)
def test_what_is_not_an_item_is_refused_before_it_is_sent(item, error):
    with pytest.raises(error):
        encode_items([item])


def wrong(value: object) -> Any:
    """A value that a type checker would refuse."""
    return value


@pytest.mark.parametrize(
    ("fields", "kind", "words"),
    [
        ({"max_attempts": 65_536}, ValueError, "max_attempts is 65536; it must be from 0 to 65535"),
        ({"max_attempts": "3"}, TypeError, "max_attempts is '3'; it must be a whole number"),
        ({"retry": timedelta(1)}, TypeError, "item.retry is .*; it must be a RetryPolicy or None"),
        (
            {"retry": RetryPolicy(wrong(5))},
            TypeError,
            "item.retry.delay is 5; it must be a timedelta",
        ),
        (
            {"retry": RetryPolicy(timedelta(1), backoff=wrong("cubic"))},
            ValueError,
            "item.retry.backoff is 'cubic'; it must be one of fixed, linear, exponential",
        ),
        ({"retry": RetryPolicy(-timedelta(1))}, InvalidArgument, "retry_delay is -1 day"),
    ],
)
def test_what_an_item_says_about_retries_is_checked(fields, kind, words):
    with pytest.raises(kind, match=words):
        encode_items([Item(b"x", **fields)])


def test_an_unset_backoff_is_exponential():
    message = items_pb2.Item(retry=items_pb2.RetryPolicy(delay=duration(SECOND, "retry_delay")))
    assert decode_item(message).retry == RetryPolicy(SECOND)


def test_item_ids_have_a_text_form():
    assert str(ItemId(3, 17)) == "3-17"
    assert ItemId.parse("3-17") == ItemId(3, 17)
    with pytest.raises(QueratorError, match="not an item id"):
        ItemId.parse("3_17")


def test_produced_items_are_in_the_order_of_the_call():
    runs = (
        ProducedRun(1, 10, 2, indexes=(0, 2)),
        ProducedRun(0, 5, 1, indexes=(1,), duplicates=((1, 4, 99),)),
    )
    items = ProducedItems(((3, runs), (1, (ProducedRun(2, 7, 1),))), True)
    assert [str(item) for item in items] == ["1-10", "4-99", "1-11", "2-7"]
    assert [item.duplicate for item in items] == [False, True, False, False]
    assert str(items[-1]) == "2-7"
    assert len(items) == 4
    assert repr(items) == "<ProducedItems: 1-10, 4-99, 1-11, 2-7>"


def test_the_text_of_many_produced_items_names_the_first_ones():
    items = ProducedItems(((12, (ProducedRun(0, 1, 12),)),), True)
    listed = ", ".join(f"0-{seq}" for seq in range(1, 11))
    assert repr(items) == f"<ProducedItems: {listed} and 2 more>"
    assert repr(ProducedItems((), True)) == "<ProducedItems: none>"


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"delay": timedelta.max}, "delay", f"delay is {timedelta.max}; at most 3650 days"),
        ({"delay": timedelta(days=4000)}, "delay", "delay is 4000 days, 0:00:00; at most 3650"),
        ({"delay": timedelta.min}, "delay", "delay is .*; it must not be negative"),
        ({"expire_timeout": timedelta.max}, "expire_timeout", "expire_timeout is .*; at most 3650"),
        ({"lease_timeout": timedelta.max}, "lease_timeout", "lease_timeout is .*; at most 1 day"),
    ],
)
def test_times_that_a_queue_does_not_keep_are_refused(fields, field, words):
    with pytest.raises(InvalidArgument, match=words) as refused:
        encode_items([Item(b"x", **fields)])
    assert refused.value.field == field
    if refused.value.code is ErrorCode.LIMIT_EXCEEDED:
        assert refused.value.limit
        assert refused.value.value == str(fields[field])


def test_a_naive_instant_is_named():
    with pytest.raises(ValueError, match=r"enqueue_at is datetime.* must have a time zone"):
        encode_items([Item(b"x", enqueue_at=datetime(2030, 1, 1))])  # noqa: DTZ001


@pytest.mark.parametrize("name", sorted(admin.DURATIONS | {"interval"}))
def test_durations_beyond_every_limit_are_refused_by_name(name: str):
    with pytest.raises(LimitExceeded) as refused:
        duration(timedelta(days=4_000_000), name)
    assert refused.value.field == name
