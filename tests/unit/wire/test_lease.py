"""Lease requests and answers."""

from hypothesis import given
from hypothesis import strategies as st

from querator.model import limits
from querator.model.calls import (
    DeadOrigin,
    LaterAttributes,
    LeaseCall,
    LeasedRun,
    LeaseReply,
    LoadedItems,
    SubscribeCall,
)
from querator.v1 import items_pb2, queue_service_pb2
from querator.wire import frames, lease
from tests.unit.wire import valid_requests as make

u16, u32 = st.integers(0, 2**16), st.integers(0, 2**32 - 1)
instants = st.integers(0, 4 * make.NOW_MS)
texts = st.tuples() | st.tuples(st.text(max_size=20), st.text(max_size=5))
dead_letters = st.builds(
    DeadOrigin,
    origin_queue=st.text(max_size=9),
    origin_partition=u16,
    origin_seq=u32,
    attempts=u16,
    reason=st.integers(1, 3),
    errors=texts,
    produced_at_ms=instants,
    died_at_ms=instants,
)
overlays = st.builds(
    LaterAttributes,
    index=u16,
    dead_letter=st.none() | dead_letters,
    errors=texts,
    attributes=st.none()
    | st.dictionaries(st.text(max_size=9), st.text(max_size=9), max_size=3).map(
        lambda values: tuple(sorted(values.items()))
    ),
)


@st.composite
def batches(draw: st.DrawFn) -> LeasedRun:
    payloads = draw(st.lists(st.binary(max_size=300), max_size=4))
    items = queue_service_pb2.ProduceRequest(
        items=[items_pb2.Item(payload=payload, kind="k") for payload in payloads]
    )
    ordinals = draw(st.just(()) | st.just(tuple(range(0, 2 * len(payloads), 2))))
    return LeasedRun(
        lease_id=draw(st.text(max_size=20)),
        queue=draw(st.text(max_size=20)),
        partition=draw(u16),
        attempt=draw(u16),
        deadline_ms=draw(instants),
        remaining_ms=draw(st.integers(-5, 10**8)),
        repeated=draw(st.booleans()),
        loaded=LoadedItems(
            first_seq=draw(u32),
            ordinals=ordinals,
            count=len(payloads),
            produced_at_ms=draw(instants),
            overlays=tuple(draw(st.lists(overlays, max_size=2))),
            items=items.SerializeToString(),
        ),
    )


def check_batch(message: items_pb2.LeasedBatch, batch: LeasedRun) -> None:
    loaded = batch.loaded
    assert message.lease_id == batch.lease_id
    assert message.queue == batch.queue
    assert message.partition == batch.partition
    assert message.attempt == batch.attempt
    assert message.first_seq == loaded.first_seq
    assert tuple(message.ordinals) == loaded.ordinals
    assert message.deadline.ToMilliseconds() == batch.deadline_ms
    assert message.lease_remaining.ToMilliseconds() == max(0, batch.remaining_ms)
    assert message.produced_at.ToMilliseconds() == loaded.produced_at_ms
    assert message.repeated_answer == batch.repeated
    stored = queue_service_pb2.ProduceRequest.FromString(loaded.items)
    assert message.items == stored.items
    for got, overlay in zip(message.overlays, loaded.overlays, strict=True):
        assert (got.index, tuple(got.errors)) == (overlay.index, overlay.errors)
        assert got.HasField("attributes") == (overlay.attributes is not None)
        assert dict(got.attributes.values) == dict(overlay.attributes or ())
        letter = overlay.dead_letter
        assert got.HasField("dead_letter") == (letter is not None)
        if letter is not None:
            assert got.dead_letter.origin_queue == letter.origin_queue
            assert got.dead_letter.origin_partition == letter.origin_partition
            assert got.dead_letter.origin_seq == letter.origin_seq
            assert got.dead_letter.attempts == letter.attempts
            assert got.dead_letter.reason == letter.reason
            assert tuple(got.dead_letter.errors) == letter.errors
            assert got.dead_letter.produced_at.ToMilliseconds() == letter.produced_at_ms
            assert got.dead_letter.died_at.ToMilliseconds() == letter.died_at_ms


@given(st.builds(LeaseReply, st.lists(batches(), max_size=3).map(tuple), st.booleans()))
def test_a_reply_is_a_lease_response(reply: LeaseReply) -> None:
    message = queue_service_pb2.LeaseResponse.FromString(lease.encode_leased(reply))
    assert message.durable == reply.durable
    for got, batch in zip(message.batches, reply.batches, strict=True):
        check_batch(got, batch)
    frame = queue_service_pb2.LeaseStreamResponse.FromString(frames.encode_delivery(reply))
    assert frame.request_number == 0
    assert frame.WhichOneof("frame") == "leased"
    assert frame.leased == message


@given(
    st.builds(
        LeaseCall,
        namespace=st.just("default"),
        queue=st.just("q"),
        client_id=st.text(min_size=1, max_size=128),
        request_id=st.text(max_size=128),
        max_items=st.integers(1, limits.REQUEST_ITEMS_MAX),
        max_bytes=st.integers(1, limits.REPLY_BYTES_MAX),
        lease_timeout_ms=st.just(0)
        | st.integers(limits.LEASE_TIMEOUT_MS_MIN, limits.LEASE_TIMEOUT_MS_MAX),
        wait_ms=st.integers(0, limits.REQUEST_TIMEOUT_MS_MAX),
        partition=st.none() | st.integers(0, limits.PARTITIONS_MAX - 1),
    )
)
def test_a_lease_request_is_a_lease_call(call: LeaseCall) -> None:
    message = queue_service_pb2.LeaseRequest(
        queue=call.queue,
        client_id=call.client_id,
        request_id=call.request_id,
        max_items=call.max_items,
        max_bytes=call.max_bytes,
        wait_timeout=make.milliseconds(call.wait_ms),
        partition=call.partition,
    )
    if call.lease_timeout_ms:
        message.lease_timeout.CopyFrom(make.milliseconds(call.lease_timeout_ms))
    assert lease.parse_lease(message.SerializeToString()) == call


def test_what_a_subscription_leaves_out_has_defaults() -> None:
    frame = queue_service_pb2.LeaseStreamRequest(request_number=7, subscribe=make.subscribe())
    parsed = frames.parse_lease_frame(frame.SerializeToString(), subscribed=None, now_ms=0)
    assert parsed == (
        7,
        SubscribeCall(
            namespace="default",
            queue="orders",
            client_id="c",
            max_items=limits.STREAM_BATCH_ITEMS_DEFAULT,
            max_bytes=limits.REPLY_BYTES_DEFAULT,
        ),
    )
