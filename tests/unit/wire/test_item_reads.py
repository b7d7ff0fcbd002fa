"""Reads of items by id: bad requests are refused by field, limit and value."""

from typing import Any

import pytest

from querator.model.calls import FoundItems, GetItemsCall
from querator.model.errors import ErrorCode, QueratorError
from querator.v1 import admin_service_pb2 as pb
from querator.wire import item_reads, queues


def parsed(**fields: Any) -> GetItemsCall:
    request = pb.GetItemsRequest(**{"queue": "mail", "item_ids": ["0-1"], **fields})
    return item_reads.parse_get(request.SerializeToString())


def test_a_request():
    assert parsed() == GetItemsCall("default", "mail", ("0-1",))
    assert parsed(namespace="n", stale=True) == GetItemsCall("n", "mail", ("0-1",), True)


@pytest.mark.parametrize(
    ("item_ids", "code", "field", "value"),
    [
        ([], ErrorCode.INVALID_ARGUMENT, "item_ids", ""),
        (["0-1"] * 1_001, ErrorCode.LIMIT_EXCEEDED, "item_ids", "1001 items"),
        (["0-1", "mail"], ErrorCode.INVALID_ARGUMENT, "item_ids[1]", "mail"),
    ],
)
def test_bad_ids_are_named(item_ids: list[str], code: ErrorCode, field: str, value: str):
    with pytest.raises(QueratorError) as caught:
        parsed(item_ids=item_ids)
    assert (caught.value.code, caught.value.field, caught.value.value) == (code, field, value)


def test_a_reply():
    found = FoundItems((), ("0-1",), ("0-2", "1-7"))
    reply = pb.GetItemsResponse.FromString(item_reads.encode_found(found))
    assert (list(reply.missing), list(reply.unread)) == (["0-1"], ["0-2", "1-7"])


def test_a_list_may_begin_after_an_id():
    request = pb.PeekItemsRequest(queue="mail", after_item_id="0-17")
    assert queues.parse_peek_items(request.SerializeToString()).after_item_id == "0-17"
    request.after_item_id = "mail"
    with pytest.raises(QueratorError) as caught:
        queues.parse_peek_items(request.SerializeToString())
    assert (caught.value.code, caught.value.field) == (ErrorCode.INVALID_ARGUMENT, "after_item_id")
