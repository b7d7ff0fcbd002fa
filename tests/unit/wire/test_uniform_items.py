"""Items that differ only in their payloads are cut apart. All others are left to the parser."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from querator.v1 import items_pb2
from querator.wire.field_checks import timestamp
from querator.wire.fields import prefix
from querator.wire.uniform_items import cut_alike

payloads = st.lists(
    st.binary(min_size=1, max_size=300) | st.integers(16_380, 16_390).map(bytes),
    min_size=1,
    max_size=6,
)
samples = st.builds(
    items_pb2.Item,
    kind=st.sampled_from(["", "email", "größe" * 30]),
    key=st.text(max_size=3),
    attributes=st.dictionaries(st.text(max_size=2), st.text(max_size=2), max_size=2),
    priority=st.integers(-3, 3),
    enqueue_at=st.none() | st.integers(0, 2**42).map(timestamp),
)


def framed(*items: bytes) -> tuple[bytes, list[int]]:
    """The items as they are stored, and their lengths."""
    each = [prefix(items_pb2.LeasedBatch.ITEMS_FIELD_NUMBER, len(item)) + item for item in items]
    return b"".join(each), [len(item) for item in each]


def serialized(sample: items_pb2.Item, payload: bytes) -> bytes:
    item = items_pb2.Item(payload=payload)
    item.MergeFrom(sample)
    return item.SerializeToString(deterministic=True)


@given(samples, payloads)
def test_items_that_are_alike_are_cut(sample: items_pb2.Item, of_items: list[bytes]):
    alike = cut_alike(*framed(*[serialized(sample, payload) for payload in of_items]))
    assert alike is not None
    assert list(alike.payloads) == of_items
    assert alike.sample == sample


PLAIN = b"\x0a\x01p\x12\x01k"


@pytest.mark.parametrize(
    "other",
    [
        b"\x0a\x01p\x12\x01l",
        b"\x0a\x01p",
        b"\x0a\x01p\x12\x01k\x1a\x01e",
        b"\x12\x01k\x0a\x01p",
        b"\x12\x01k",
        b"\x0a\x81\x00p\x12\x01k",
        b"\x0a\x01p\x12\x01k\x0a\x00",
    ],
    ids=[
        "another kind",
        "no kind",
        "more than a kind",
        "the payload behind the kind",
        "no payload",
        "a length that is longer than it needs to be",
        "a payload that is taken back",
    ],
)
def test_others_are_not(other: bytes):
    assert cut_alike(*framed(PLAIN, PLAIN)) is not None
    assert cut_alike(*framed(PLAIN, other)) is None
    assert cut_alike(*framed(PLAIN, other, PLAIN)) is None
    assert cut_alike(*framed(other, PLAIN)) is None


def test_what_is_no_item_is_left_to_the_parser():
    assert cut_alike(b"\x7a\x05\x0a\x09p", [5]) is None
    assert cut_alike(b"\x0a", [1]) is None


def test_lengths_that_no_item_has_are_noticed():
    # No item has 130 bytes. A length of one byte would leave 128 bytes, which need a length of two
    # bytes. A length of two bytes would leave 127 bytes, which need one.
    stored, _ = framed(b"\x0a\x7f" + bytes(127))
    assert cut_alike(stored + stored, [len(stored) - 1, len(stored) + 1]) is None
