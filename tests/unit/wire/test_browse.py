"""Requests and answers of scans."""

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from querator.model.calls import BrowseCall, BrowsedPage
from querator.model.errors import ErrorCode, QueratorError
from querator.v1 import items_pb2, queue_service_pb2
from querator.wire.browse import encode_browsed, parse_browse

READY, LEASED = items_pb2.ITEM_STATE_READY, items_pb2.ITEM_STATE_LEASED


def request(**fields) -> bytes:
    return queue_service_pb2.BrowseRequest(**{"queue": "q", **fields}).SerializeToString()


def test_a_request_of_everything():
    assert parse_browse(request()) == BrowseCall("default", "q", 0, 0, 0)


def test_a_request_with_all_fields():
    call = parse_browse(
        request(
            namespace="n",
            partition=3,
            from_seq=7,
            upto_seq=9,
            states=[READY, LEASED, READY],
            kinds=["email", ""],
            produced_from=Timestamp(seconds=1, nanos=1),
            produced_before=Timestamp(seconds=2),
            without_value=True,
        )
    )
    assert call == BrowseCall(
        namespace="n",
        queue="q",
        partition=3,
        from_seq=7,
        upto_seq=9,
        states=0b110,
        kinds=("email", ""),
        produced_from_ms=1_001,
        produced_before_ms=2_000,
        with_value=False,
    )


@pytest.mark.parametrize(
    ("fields", "field", "code"),
    [
        ({"queue": ""}, "queue", ErrorCode.INVALID_ARGUMENT),
        ({"partition": 1_024}, "partition", ErrorCode.LIMIT_EXCEEDED),
        ({"from_seq": 2**63}, "from_seq", ErrorCode.LIMIT_EXCEEDED),
        ({"upto_seq": 2**63}, "upto_seq", ErrorCode.LIMIT_EXCEEDED),
        ({"states": [READY, 0]}, "states[1]", ErrorCode.INVALID_ARGUMENT),
        ({"states": [17]}, "states[0]", ErrorCode.INVALID_ARGUMENT),
        ({"kinds": ["k"] * 101}, "kinds", ErrorCode.LIMIT_EXCEEDED),
        ({"kinds": ["k", "k" * 256]}, "kinds[1]", ErrorCode.LIMIT_EXCEEDED),
        ({"produced_from": Timestamp(seconds=-1)}, "produced_from", ErrorCode.INVALID_ARGUMENT),
        ({"produced_before": Timestamp(nanos=-1)}, "produced_before", ErrorCode.INVALID_ARGUMENT),
    ],
)
def test_what_is_refused_names_its_field(fields, field, code):
    with pytest.raises(QueratorError) as caught:
        parse_browse(request(**fields))
    assert (caught.value.field, caught.value.code) == (field, code)


def test_an_answer_is_read_as_it_was_written():
    columns = items_pb2.ItemColumns(partition=2, rows=1, seq=b"\1" + b"\0" * 7)
    page = BrowsedPage(columns.SerializeToString(), 12, 11)
    response = queue_service_pb2.BrowseResponse.FromString(encode_browsed(page))
    assert (response.columns, response.next_seq, response.upto_seq) == (columns, 12, 11)
