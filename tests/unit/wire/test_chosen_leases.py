"""Leases of chosen items: bad requests are refused by field, limit and value."""

from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from querator.model.calls import ChosenItems
from querator.model.errors import ErrorCode, QueratorError
from querator.v1.queue_service_pb2 import LeaseFilter, LeaseRequest
from querator.wire import lease


def parsed(**fields: Any) -> ChosenItems | None:
    request = LeaseRequest(queue="mail", client_id="c", max_items=1, **fields)
    return lease.parse_lease(request.SerializeToString()).chosen


def test_what_is_chosen():
    assert parsed() is None
    assert parsed(item_ids=["0-1", "1-7"]) == ChosenItems(("0-1", "1-7"))
    chosen = LeaseFilter(kinds=["fax", ""], attributes={"b": "2", "a": "1"})
    assert parsed(filter=chosen, wait_timeout=Duration()) == ChosenItems(
        kinds=("fax", ""), attributes=(("a", "1"), ("b", "2"))
    )


@pytest.mark.parametrize(
    ("fields", "code", "field", "value"),
    [
        ({"item_ids": ["0-1"] * 1_001}, ErrorCode.LIMIT_EXCEEDED, "item_ids", "1001 items"),
        ({"item_ids": ["0-1", "x"]}, ErrorCode.INVALID_ARGUMENT, "item_ids[1]", "x"),
        ({"filter": LeaseFilter()}, ErrorCode.INVALID_ARGUMENT, "filter", ""),
        (
            {"item_ids": ["0-1"], "filter": LeaseFilter(kinds=["x"])},
            ErrorCode.INVALID_ARGUMENT, "filter", "",
        ),
        (
            {"item_ids": ["0-1"], "wait_timeout": Duration(seconds=1)},
            ErrorCode.INVALID_ARGUMENT, "wait_timeout", "",
        ),
        (
            {"filter": LeaseFilter(kinds=["x"] * 101)},
            ErrorCode.LIMIT_EXCEEDED, "filter.kinds", "101 kinds",
        ),
        (
            {"filter": LeaseFilter(kinds=["a", "x" * 256])},
            ErrorCode.LIMIT_EXCEEDED, "filter.kinds[1]", "256 characters",
        ),
        (
            {"filter": LeaseFilter(attributes={str(n): "" for n in range(65)})},
            ErrorCode.LIMIT_EXCEEDED, "filter.attributes", "65 attributes",
        ),
    ],
)  # fmt: skip
def test_bad_choices_are_named(fields: dict[str, Any], code: ErrorCode, field: str, value: str):
    with pytest.raises(QueratorError) as caught:
        parsed(**fields)
    assert (caught.value.code, caught.value.field, caught.value.value) == (code, field, value)
