"""Follow-ups in requests that settle: what is taken, and what is refused by name."""

from struct import pack
from typing import Any

import pytest

from querator.model import limits
from querator.model.calls import CompleteCall, FollowUpItems, RetryCall
from querator.model.errors import ErrorCode, QueratorError
from querator.model.item_options import ItemSpecial
from querator.model.routing import slot_of_key
from querator.v1 import items_pb2, queue_service_pb2
from querator.wire import frames, settle
from querator.wire.field_checks import RequestLimits
from querator.wire.produce import parse_produce
from tests.unit.wire import valid_requests as make

Item = items_pb2.Item


def group(queue: str, *items: Item) -> queue_service_pb2.FollowUps:
    return queue_service_pb2.FollowUps(queue=queue, items=items)


def completing(*groups: queue_service_pb2.FollowUps, **fields: Any) -> bytes:
    return make.complete(follow_ups=groups, **fields).SerializeToString()


def refused(data: bytes, **changes: Any) -> QueratorError:
    with pytest.raises(QueratorError) as caught:
        settle.parse_complete(data, now_ms=make.NOW_MS, **changes)
    return caught.value


def test_items_are_as_those_of_a_produce():
    items = (Item(payload=b"a"), Item(payload=b"b", dedup_key="k", priority=3))
    call = settle.parse_complete(
        completing(group("mail", *items), group("", Item())), now_ms=make.NOW_MS
    )
    produced = parse_produce(
        queue_service_pb2.ProduceRequest(queue="mail", items=items).SerializeToString(),
        now_ms=make.NOW_MS,
    )
    assert isinstance(call, CompleteCall)
    assert call.all_or_nothing
    assert call.follow_ups == (
        FollowUpItems("mail", produced.items, produced.lengths, produced.specials, produced.slots),
        FollowUpItems("orders", b"\x7a\x00", pack("<I", 2)),
    )
    assert call.follow_ups[0].specials == (ItemSpecial(1, dedup_key=b"k", priority=3),)
    assert call.follow_ups[0].slots == pack("<2H", 0xFFFF, slot_of_key(b"k"))


def test_retries_and_frames_have_them():
    groups = [group("", Item(payload=b"a"))]
    call = settle.parse_retry(
        make.retry(follow_ups=groups, dead=True).SerializeToString(), now_ms=make.NOW_MS
    )
    assert isinstance(call, RetryCall)
    assert (call.all_or_nothing, call.dead, len(call.follow_ups)) == (True, True, 1)
    for frame in (
        {"retry": make.retry(follow_ups=groups)},
        {"complete": make.complete(follow_ups=groups)},
    ):
        data = queue_service_pb2.LeaseStreamRequest(request_number=5, **frame)
        number, said = frames.parse_lease_frame(
            data.SerializeToString(), subscribed=make.SUBSCRIBED, now_ms=make.NOW_MS
        )
        assert number == 5
        assert isinstance(said, CompleteCall | RetryCall)
        assert [part.queue for part in said.follow_ups] == ["orders"]


@pytest.mark.parametrize(
    ("groups", "field", "message"),
    [
        ([group("a/b", Item())], "follow_ups[0].queue", "follow_ups[0].queue"),
        (
            [group("a", Item()), group("b")],
            "follow_ups[1].items",
            "follow_ups[1].items must not be",
        ),
        (
            [group("a", Item(), Item(payload=b"x" * (limits.PAYLOAD_BYTES_MAX + 1)))],
            "follow_ups[0].items[1].payload",
            "follow_ups[0].items[1].payload is 1048577 bytes; the limit is 1048576 bytes",
        ),
        (
            [group("a", Item(key="k" * 513))],
            "follow_ups[0].items[0].key",
            "follow_ups[0].items[0].key is 513 bytes; the limit is 512 bytes",
        ),
        (
            [group("a", *[Item()] * 600), group("b", *[Item()] * 401)],
            "follow_ups",
            "follow_ups is 1001 items; the limit is 1000 items",
        ),
        (
            [group("a", Item())] * (limits.FOLLOW_UP_QUEUES_MAX + 1),
            "follow_ups",
            "follow_ups is 101 queues; the limit is 100 queues",
        ),
        (
            [
                group("a", Item()),
                group(
                    "b", Item(), Item(dedup_key="k", on_duplicate=items_pb2.ON_DUPLICATE_REPLACE)
                ),
            ],
            "follow_ups[1].items[1].on_duplicate",
            "REPLACE is not possible for a follow-up",
        ),
    ],
)
def test_refusals_name_the_field(groups: list[Any], field: str, message: str):
    error = refused(completing(*groups))
    assert error.field == field
    assert message in error.message


def test_they_belong_to_one_lease():
    error = refused(completing(group("a", Item()), leases=[make.lease_items()] * 2))
    assert (error.code, error.field, error.limit, error.value) == (
        ErrorCode.LIMIT_EXCEEDED, "leases", "1 lease", "2 leases",
    )  # fmt: skip


def test_the_limits_of_the_node_hold():
    small = RequestLimits(payload_bytes_max=3, request_bytes_max=200, request_items_max=2)
    assert (
        refused(completing(group("a", Item(payload=b"four"))), request_limits=small).field
        == "follow_ups[0].items[0].payload"
    )
    assert refused(completing(group("a", *[Item()] * 3)), request_limits=small).limit == "2 items"
    error = refused(completing(group("a", Item(reference="r" * 200))), request_limits=small)
    assert (error.field, error.limit) == ("request", "200 bytes")
