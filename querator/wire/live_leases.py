"""The calls of operators about live leases: requests to calls, and replies to bytes."""

from querator.model import limits
from querator.model.ids import check_name, parse_lease_id
from querator.model.lease_calls import (
    LeaseListPage,
    ListedLease,
    ListLeasesCall,
    ReleaseLeasesCall,
    ReleaseLeasesReply,
)
from querator.v1 import admin_service_pb2
from querator.wire import field_checks


def parse_list_leases(data: bytes, *, timeout_ms: int = 0) -> ListLeasesCall:
    message = field_checks.parse_message(admin_service_pb2.ListLeasesRequest, data)
    field_checks.check_chars(message.client_id, limits.CLIENT_ID_CHARS_MAX, field="client_id")
    return ListLeasesCall(
        **field_checks.list_fields(message, timeout_ms=timeout_ms),
        client_id=message.client_id,
        older_than_ms=field_checks.duration_ms(
            message.older_than, field="older_than", least_ms=0, most_ms=limits.LEASE_AGE_MS_MAX
        ),
    )


def encode_leases(page: LeaseListPage) -> bytes:
    return admin_service_pb2.ListLeasesResponse(
        leases=map(_lease_message, page.leases), next_page_token=page.next_page_token
    ).SerializeToString()


def _lease_message(lease: ListedLease) -> admin_service_pb2.LeaseInfo:
    message = admin_service_pb2.LeaseInfo(
        lease_id=lease.lease_id, client_id=lease.client_id, items=lease.items
    )
    if lease.granted_at_ms:
        message.granted_at.CopyFrom(field_checks.timestamp(lease.granted_at_ms))
    if lease.extended_at_ms:
        message.extended_at.CopyFrom(field_checks.timestamp(lease.extended_at_ms))
    message.deadline.CopyFrom(field_checks.timestamp(lease.deadline_ms))
    return message


def parse_release_leases(data: bytes, *, timeout_ms: int = 0) -> ReleaseLeasesCall:
    message = field_checks.parse_message(admin_service_pb2.ReleaseLeasesRequest, data)
    field_checks.check_range(
        len(message.lease_ids), field="lease_ids", least=1, most=limits.REQUEST_LEASES_MAX
    )
    for position, lease_id in enumerate(message.lease_ids):
        parse_lease_id(lease_id, field=f"lease_ids[{position}]")
    return ReleaseLeasesCall(
        namespace=field_checks.check_namespace(message.namespace),
        queue=check_name(message.queue, field="queue"),
        lease_ids=tuple(message.lease_ids),
        count_attempt=message.count_attempt,
        timeout_ms=timeout_ms,
    )


def encode_released(reply: ReleaseLeasesReply) -> bytes:
    return admin_service_pb2.ReleaseLeasesResponse(
        released=reply.released, ended_lease_ids=reply.ended
    ).SerializeToString()
