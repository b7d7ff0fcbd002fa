"""The calls about live leases: bad requests are refused by field, limit and value."""

from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from querator.model.errors import ErrorCode, QueratorError
from querator.model.lease_calls import (
    LeaseListPage,
    ListedLease,
    ListLeasesCall,
    ReleaseLeasesCall,
    ReleaseLeasesReply,
)
from querator.v1 import admin_service_pb2 as pb
from querator.wire import live_leases


def parsed_list(**fields: Any) -> ListLeasesCall:
    request = pb.ListLeasesRequest(**{"queue": "mail", **fields})
    return live_leases.parse_list_leases(request.SerializeToString())


def parsed_release(**fields: Any) -> ReleaseLeasesCall:
    request = pb.ReleaseLeasesRequest(**{"queue": "mail", "lease_ids": ["1.0.2"], **fields})
    return live_leases.parse_release_leases(request.SerializeToString())


def test_a_list_has_its_defaults():
    assert parsed_list() == ListLeasesCall("default", "mail")


def test_a_list_with_all_fields():
    assert parsed_list(
        namespace="n", page_size=7, page_token="t", stale=True, client_id="c",
        older_than=Duration(seconds=3600),
    ) == ListLeasesCall("n", "mail", 7, "t", True, "c", 3_600_000)  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "field", "limit", "value"),
    [
        ({"page_size": 1_001}, "page_size", "1000", "1001"),
        ({"client_id": "c" * 129}, "client_id", "128 characters", "129 characters"),
        (
            {"older_than": Duration(seconds=3_651 * 86_400)},
            "older_than", "315360000000 ms", "315446400000 ms",
        ),
    ],
)  # fmt: skip
def test_a_list_out_of_range_is_refused(fields: dict[str, Any], field: str, limit: str, value: str):
    with pytest.raises(QueratorError) as caught:
        parsed_list(**fields)
    error = caught.value
    assert error.code is ErrorCode.LIMIT_EXCEEDED
    assert (error.field, error.limit, error.value) == (field, limit, value)


def test_a_negative_age_is_refused():
    with pytest.raises(QueratorError) as caught:
        parsed_list(older_than=Duration(seconds=-1))
    error = caught.value
    assert (error.code, error.field) == (ErrorCode.INVALID_ARGUMENT, "older_than")
    assert error.value == "-1 s 0 ns"


def test_a_release():
    assert parsed_release(count_attempt=True) == ReleaseLeasesCall(
        "default", "mail", ("1.0.2",), count_attempt=True
    )


@pytest.mark.parametrize(("count", "limit"), [(0, "1"), (1_001, "1000")])
def test_a_release_names_a_number_of_leases_in_its_limits(count: int, limit: str):
    with pytest.raises(QueratorError) as caught:
        parsed_release(lease_ids=["1.0.2"] * count)
    error = caught.value
    assert (error.code, error.field) == (ErrorCode.LIMIT_EXCEEDED, "lease_ids")
    assert (error.limit, error.value) == (limit, str(count))


def test_a_lease_id_that_is_none_is_named():
    with pytest.raises(QueratorError) as caught:
        parsed_release(lease_ids=["1.0.2", "mail"])
    assert (caught.value.code, caught.value.field) == (ErrorCode.INVALID_ARGUMENT, "lease_ids[1]")


def test_replies():
    page = LeaseListPage((ListedLease("1.0.2", "c", 1_500, 2_500, 3_500, 4),), "next")
    reply = pb.ListLeasesResponse.FromString(live_leases.encode_leases(page))
    [lease] = reply.leases
    assert (lease.lease_id, lease.client_id, lease.items) == ("1.0.2", "c", 4)
    assert lease.granted_at.ToMilliseconds() == 1_500
    assert lease.extended_at.ToMilliseconds() == 2_500
    assert lease.deadline.ToMilliseconds() == 3_500
    assert reply.next_page_token == "next"
    released = pb.ReleaseLeasesResponse.FromString(
        live_leases.encode_released(ReleaseLeasesReply(3, ("1.0.2",)))
    )
    assert (released.released, list(released.ended_lease_ids)) == (3, ["1.0.2"])
