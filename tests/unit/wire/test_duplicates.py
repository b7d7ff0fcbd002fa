"""Items that say what they do to others with their dedup key."""

from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from querator.model.calls import ProducedBatch, ProduceReply
from querator.model.errors import QueratorError
from querator.model.item_options import OnDuplicate
from querator.v1 import items_pb2, queue_service_pb2
from querator.wire import produce
from tests.unit.wire import valid_requests as make

SOON = Timestamp(seconds=make.NOW_MS // 1000 + 5)
BUMPED = {"dedup_key": "k", "on_duplicate": items_pb2.ON_DUPLICATE_BUMP}


@pytest.mark.parametrize(
    ("fields", "what", "most_ms"),
    [
        ({"dedup_key": "k"}, OnDuplicate.KEEP, 0),
        ({"dedup_key": "k", "on_duplicate": items_pb2.ON_DUPLICATE_KEEP}, OnDuplicate.KEEP, 0),
        (
            {"dedup_key": "k", "on_duplicate": items_pb2.ON_DUPLICATE_REPLACE},
            OnDuplicate.REPLACE,
            0,
        ),
        ({**BUMPED, "enqueue_at": SOON}, OnDuplicate.BUMP, 3_600_000),
        (
            {**BUMPED, "enqueue_at": SOON, "debounce_max": make.seconds(60)},
            OnDuplicate.BUMP,
            60_000,
        ),
    ],
)
def test_what_an_item_does_to_one_with_its_key(fields: Any, what: OnDuplicate, most_ms: int):
    request = queue_service_pb2.ProduceRequest(queue="q", items=[items_pb2.Item(**fields)])
    call = produce.parse_produce(request.SerializeToString(), now_ms=make.NOW_MS)
    [special] = call.specials
    assert (special.on_duplicate, special.debounce_max_ms) == (what, most_ms)
    assert call.takes_over == (what is not OnDuplicate.KEEP)


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"on_duplicate": 1}, "on_duplicate", "needs a dedup_key"),
        ({"on_duplicate": 2}, "on_duplicate", "needs a dedup_key"),
        ({"dedup_key": "k", "on_duplicate": 9}, "on_duplicate", "is not a known value"),
        (BUMPED, "on_duplicate", "BUMP needs an enqueue_at"),
        (
            {"dedup_key": "k", "debounce_max": make.seconds(5)},
            "debounce_max",
            "needs on_duplicate BUMP",
        ),
        (
            {**BUMPED, "enqueue_at": SOON, "debounce_max": make.milliseconds(999)},
            "debounce_max",
            "999 ms; the least is 1000 ms",
        ),
        (
            {**BUMPED, "enqueue_at": SOON, "debounce_max": make.seconds(7 * 86_400 + 1)},
            "debounce_max",
            "604800000 ms",
        ),
    ],
)
def test_what_an_item_may_not_say_about_one_with_its_key(fields: Any, field: str, words: str):
    items = [items_pb2.Item(payload=b"x"), items_pb2.Item(**fields)]
    request = queue_service_pb2.ProduceRequest(queue="q", items=items)
    with pytest.raises(QueratorError) as caught:
        produce.parse_produce(request.SerializeToString(), now_ms=make.NOW_MS)
    assert caught.value.field == f"items[1].{field}"
    assert words in caught.value.message


def test_replaced_items_are_in_the_answer():
    batch = ProducedBatch(2, 9, 2, duplicates=((0, 2, 4),), replaced=((1, 2, 5),))
    answer = queue_service_pb2.ProduceResponse.FromString(
        produce.encode_produced(ProduceReply((batch,), durable=True))
    )
    assert answer.batches[0].replaced == [
        queue_service_pb2.ReplacedItem(index=1, partition=2, seq=5)
    ]
