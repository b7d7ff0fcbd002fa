"""Produce requests: the call has exactly the items that upb parses, byte for byte."""

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from querator.model.calls import ProduceCall, ProducedBatch, ProduceReply
from querator.model.commands import NO_SLOT, ItemSpecial
from querator.model.errors import QueratorError
from querator.model.item_options import NO_FLOW, FlowNames
from querator.model.queues import RetryBackoff, RetryWaits
from querator.model.routing import slot_of_key
from querator.v1 import items_pb2, queue_service_pb2
from querator.wire import fields, frames, produce
from querator.wire.field_checks import RequestLimits
from tests.unit.wire import valid_requests as make

TAG = b"\x7a"


def parse(data: bytes) -> ProduceCall:
    return produce.parse_produce(data, now_ms=make.NOW_MS)


def stored(call: ProduceCall) -> list[bytes]:
    """The items, cut by their lengths as the partition does."""
    sizes = struct.unpack(f"<{len(call.lengths) // 4}I", call.lengths)
    pieces, pos = [], 0
    for size in sizes:
        pieces.append(call.items[pos : pos + size])
        pos += size
    assert pos == len(call.items)
    return pieces


def overlong(value: int, length: int) -> bytes:
    """A varint encoded in `length` bytes, even if fewer suffice."""
    groups = [(value >> 7 * n) & 0x7F | 0x80 for n in range(length)]
    groups[-1] &= 0x7F
    return bytes(groups)


priorities = st.just(0) | st.integers(-(2**31), 2**31 - 1)
delays = st.integers(100, 30 * 86_400_000).map(make.milliseconds)
retries = st.builds(
    items_pb2.RetryPolicy,
    delay=st.just(make.milliseconds(0)) | delays,
    delay_max=st.none() | delays,
    backoff=st.integers(0, 3),
    jitter=st.none() | st.booleans(),
)
items = st.builds(
    items_pb2.Item,
    payload=st.binary(max_size=300) | st.integers(100, 20_000).map(bytes),
    kind=st.text(max_size=20),
    encoding=st.text(max_size=20),
    reference=st.text(max_size=200),
    attributes=st.dictionaries(st.text(max_size=10), st.text(max_size=10), max_size=3),
    priority=priorities,
    group=st.text(max_size=10),
    key=st.text(max_size=10),
    enqueue_at=st.none() | st.integers(0, 2 * make.NOW_MS // 1000 * 500).map(make.instant),
    expire_timeout=st.none() | st.integers(1, 10**9).map(make.milliseconds),
    lease_timeout=st.none() | st.integers(1_000, 86_400_000).map(make.milliseconds),
    dedup_key=st.text(max_size=10),
    max_attempts=st.none() | st.integers(0, 65_535),
    retry=st.none() | retries,
)


@given(st.lists(items, min_size=1, max_size=5))
def test_a_call_has_the_items_byte_for_byte(batch: list[items_pb2.Item]) -> None:
    request = make.produce(*batch, producer_id=make.PRODUCER_ID, sequence=9, ordered=True)
    data = request.SerializeToString()
    call = parse(data)
    assert data.endswith(call.items)
    assert items_pb2.LeasedBatch.FromString(call.items).items == request.items
    for piece, item in zip(stored(call), batch, strict=True):
        assert list(items_pb2.LeasedBatch.FromString(piece).items) == [item]
    assert (call.producer_id, call.sequence, call.ordered) == (make.PRODUCER_ID, 9, True)
    specials = {special.ordinal: special for special in call.specials}
    assert list(specials) == sorted(specials)
    for ordinal, item in enumerate(batch):
        special = specials.get(ordinal, ItemSpecial(ordinal))
        assert special == ItemSpecial(
            ordinal,
            enqueue_at_ms=item.enqueue_at.ToMilliseconds(),
            expire_timeout_ms=item.expire_timeout.ToMilliseconds(),
            lease_timeout_ms=item.lease_timeout.ToMilliseconds(),
            dedup_key=item.dedup_key.encode(),
            priority=item.priority,
            max_attempts=item.max_attempts if item.HasField("max_attempts") else None,
            retry=policy(item.retry) if item.HasField("retry") else None,
        )
        assert (ordinal in specials) == (special != ItemSpecial(ordinal))
    assert call.slots == slots(batch)
    assert names(call.groups, len(batch)) == [item.group for item in batch]
    assert names(call.keys, len(batch)) == [item.key for item in batch]


def names(flows: FlowNames | None, count: int) -> list[str]:
    """The name of each item."""
    if flows is None:
        return [""] * count
    assert len(set(flows.names)) == len(flows.names)
    positions = struct.unpack(f"<{count}H", flows.items)
    assert any(position != NO_FLOW for position in positions), "None says that there is none"
    return ["" if one == NO_FLOW else flows.names[one].decode() for one in positions]


def policy(message: items_pb2.RetryPolicy) -> RetryWaits:
    delay_max_ms = 3_600_000
    if message.HasField("delay_max"):
        delay_max_ms = message.delay_max.ToMilliseconds()
    return RetryWaits(
        message.delay.ToMilliseconds(),
        delay_max_ms,
        RetryBackoff(message.backoff or 3),
        not message.HasField("jitter") or message.jitter,
    )


def slots(batch: list[items_pb2.Item]) -> bytes:
    """Slots of the items by `key`, or else by `dedup_key`."""
    keys = [item.key or item.dedup_key for item in batch]
    numbers = [slot_of_key(key.encode()) if key else NO_SLOT for key in keys]
    return struct.pack(f"<{len(numbers)}H", *numbers) if any(keys) else b""


noise = st.one_of(
    # Field 15 with other wire types, which upb treats as unknown fields.
    st.just(b"\x78\x05"),
    st.just(b"\x79" + b"8 bytes!"),
    st.just(b"\x7d4byt"),
    # A group 15 that holds bytes like an item, and another group 15.
    st.just(b"\x7b\x7a\x02hi\x7b\x7a\x00\x7c\x7c"),
    # Unknown fields: LEN that contains an item's tag, varints, a group with all wire types.
    st.binary(max_size=8).map(lambda body: fields.prefix(99, len(body)) + body),
    st.just(fields.prefix(16, 3) + b"\x7a\x01a"),
    st.integers(0, 2**64 - 1).map(lambda n: fields.varint(77 << 3) + fields.varint(n)),
    st.just(b"\xa3\x06" + b"\x08\x01" + b"\x12\x01x" + b"\x19" + b"8 bytes!" + b"\xa4\x06"),
    # Known fields, at any place and repeated.
    st.just(b"\x12\x06orders"),
    st.just(b"\x28\x00"),
)
plain_item = st.binary(max_size=200).map(lambda b: fields.prefix(1, len(b)) + b)
unusual_item = st.tuples(plain_item, st.integers(1, 3), st.integers(2, 5)).map(
    lambda parts: overlong(0x7A, parts[1]) + overlong(len(parts[0]), parts[2]) + parts[0]
)
usual_item = plain_item.map(lambda body: fields.prefix(15, len(body)) + body)


@given(st.lists(st.one_of(noise, usual_item, unusual_item), max_size=12))
@example([b"\x7b\x7a\x02hi\x7b\x7a\x00\x7c\x7c", b"\x7a\x00"])
@example([b"\xfa\x00\x80\x00", b"\x7a\x80\x00"])
def test_items_are_found_between_anything_else(parts: list[bytes]) -> None:
    data = b"".join([*parts, b"\x12\x06orders"])
    request = queue_service_pb2.ProduceRequest.FromString(data)
    if not request.items:
        with pytest.raises(QueratorError, match="items"):
            parse(data)
        return
    call = parse(data)
    for piece, item in zip(stored(call), request.items, strict=True):
        assert list(items_pb2.LeasedBatch.FromString(piece).items) == [item]
        assert piece.startswith(fields.prefix(15, len(piece) - _prefix_bytes(piece)))


def _prefix_bytes(piece: bytes) -> int:
    return fields.next_field(piece, 0, len(piece))[2]


def check_against_upb(data: bytes) -> None:
    """The bytes are refused, or the call has the items that upb parses."""
    try:
        call = parse(data)
    except QueratorError:
        return
    request = queue_service_pb2.ProduceRequest.FromString(data)
    for piece, item in zip(stored(call), request.items, strict=True):
        assert piece[:1] == TAG
        assert list(items_pb2.LeasedBatch.FromString(piece).items) == [item]


@given(st.binary(max_size=60))
def test_random_bytes_are_refused_or_read_right(data: bytes) -> None:
    check_against_upb(data + b"\x12\x01q")
    check_against_upb(b"\x12\x01q" + data)
    check_against_upb(b"\x12\x01q\x7a\x03\x0a\x01a" + data + b"\x7a\x00")


@given(
    st.lists(items, min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4),
    st.integers(0, 10**6),
)
def test_mutated_requests_are_refused_or_read_right(
    batch: list[items_pb2.Item], changes: list[tuple[int, int]], cut: int
) -> None:
    data = bytearray(make.produce(*batch).SerializeToString())
    for position, value in changes:
        data[position % len(data)] = value
    check_against_upb(bytes(data))
    check_against_upb(bytes(data[: cut % len(data)]))


def test_every_truncation_is_refused_or_read_right() -> None:
    data = make.produce(*[items_pb2.Item(payload=b"p" * 200, kind="k")] * 3).SerializeToString()
    for length in range(len(data)):
        check_against_upb(data[:length])


@given(
    st.lists(
        st.tuples(st.sampled_from([0, 1, 100, 200, 300]), st.sampled_from(["", "a", "b"]),
                  st.sampled_from(["", "x", "y" * 511, "z" * 513]), st.sampled_from(["", "d", "e"]),
                  st.sampled_from([0, 3])),
        min_size=1, max_size=12,
    )
)  # fmt: skip
def test_items_that_have_much_in_common_are_told_apart(
    drawn: list[tuple[int, str, str, str, int]],
) -> None:
    batch = [
        items_pb2.Item(
            payload=bytes(size), kind=kind, key=key[:512], dedup_key=dedup_key,
            priority=priority,
        )
        for size, kind, key, dedup_key, priority in drawn
    ]  # fmt: skip
    call = parse(make.produce(*batch).SerializeToString())
    assert list(items_pb2.LeasedBatch.FromString(call.items).items) == batch
    assert [(one.ordinal, one.dedup_key, one.priority) for one in call.specials] == [
        (ordinal, item.dedup_key.encode(), item.priority)
        for ordinal, item in enumerate(batch)
        if item.dedup_key or item.priority
    ]
    assert call.slots == slots(batch)


def test_what_was_read_under_one_limit_does_not_pass_another() -> None:
    data = make.produce(*[items_pb2.Item(payload=bytes(400), kind="k")] * 3).SerializeToString()
    plain = make.produce(*[items_pb2.Item(payload=bytes(400))] * 3).SerializeToString()
    narrow = RequestLimits(payload_bytes_max=399)
    for request in (data, plain, plain):
        parse(request)
        with pytest.raises(QueratorError, match=r"items\[0\].payload is 400 bytes"):
            produce.parse_produce(request, now_ms=make.NOW_MS, request_limits=narrow)


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 128, 129, 130, 16_380, 16_384, 70_000])
def test_payloads_of_every_length_class(size: int) -> None:
    item = items_pb2.Item(payload=bytes(size))
    request = make.produce(item, item, items_pb2.Item(), item)
    for _ in range(2):
        call = parse(request.SerializeToString())
        assert items_pb2.LeasedBatch.FromString(call.items).items == request.items
        assert [len(piece) for piece in stored(call)] == [
            len(fields.prefix(15, each.ByteSize())) + each.ByteSize() for each in request.items
        ]


@given(
    st.lists(st.one_of(noise, usual_item, unusual_item), max_size=5),
    st.lists(st.one_of(noise, usual_item), max_size=3),
    st.integers(0, 2**64 - 1),
)
def test_a_frame_has_what_upb_sees_also_in_pieces(
    first: list[bytes], second: list[bytes], number: int
) -> None:
    one, two = b"\x12\x01q" + b"".join(first), b"".join(second)
    frame = (
        fields.prefix(2, len(one)) + one + b"\x08" + fields.varint(number) + b"\x7a\x03not"
        + fields.prefix(2, len(two)) + two
    )  # fmt: skip
    message = queue_service_pb2.ProduceStreamRequest.FromString(frame)
    got, call = frames.parse_produce_frame(frame, now_ms=make.NOW_MS)
    assert got == number == message.request_number
    if isinstance(call, QueratorError):
        assert not message.produce.items
        return
    assert items_pb2.LeasedBatch.FromString(call.items).items == message.produce.items
    assert len(stored(call)) == len(message.produce.items)


def test_a_timeout_rounds_up_and_the_namespace_has_a_default() -> None:
    call = parse(make.produce(request_timeout=make.seconds(0, 1)).SerializeToString())
    assert call.timeout_ms == 1
    assert call.namespace == "default"


def test_a_reply_is_a_produce_response() -> None:
    reply = ProduceReply(
        batches=(
            ProducedBatch(partition=3, first_seq=2**40, count=2),
            ProducedBatch(1, 5, 3, indexes=(0, 2, 4), repeated=True, duplicates=((2, 1, 9),)),
        ),
        durable=True,
    )
    data = produce.encode_produced(reply)
    message = queue_service_pb2.ProduceResponse.FromString(data)
    assert message.durable
    plain, other = message.batches
    assert (plain.partition, plain.first_seq, plain.count) == (3, 2**40, 2)
    assert (list(plain.indexes), plain.repeated_answer) == ([], False)
    assert (list(other.indexes), other.repeated_answer) == ([0, 2, 4], True)
    assert [(d.index, d.partition, d.seq) for d in other.duplicates] == [(2, 1, 9)]
    frame = queue_service_pb2.ProduceStreamResponse.FromString(
        frames.encode_produced_frame(2**63, reply)
    )
    assert (frame.request_number, frame.produced) == (2**63, message)
