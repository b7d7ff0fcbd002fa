"""The calls about groups of fair queues: requests to calls, and replies to bytes."""

from querator.model import limits
from querator.model.flow_calls import GroupCounts, GroupPage, ListGroupsCall
from querator.model.ids import check_name
from querator.v1 import admin_service_pb2
from querator.wire import field_checks


def parse_list_groups(data: bytes, *, timeout_ms: int = 0) -> ListGroupsCall:
    message = field_checks.parse_message(admin_service_pb2.ListGroupsRequest, data)
    return ListGroupsCall(
        namespace=field_checks.check_namespace(message.namespace),
        queue=check_name(message.queue, field="queue"),
        page_size=field_checks.check_range(
            message.page_size, field="page_size", least=0, most=limits.PAGE_ITEMS_MAX
        ),
        page_token=field_checks.check_chars(
            message.page_token, limits.PAGE_TOKEN_CHARS_MAX, field="page_token"
        ),
        stale=message.stale,
        timeout_ms=timeout_ms,
    )


def encode_groups(page: GroupPage) -> bytes:
    return admin_service_pb2.ListGroupsResponse(
        groups=map(_group_message, page.groups), next_page_token=page.next_page_token
    ).SerializeToString()


def _group_message(counts: GroupCounts) -> admin_service_pb2.GroupStats:
    message = admin_service_pb2.GroupStats(
        group=counts.path,
        weight=counts.weight,
        leased_max=counts.leased_max,
        items=counts.items,
        ready=counts.ready,
        leased=counts.leased,
    )
    if counts.oldest_ready_at_ms:
        message.oldest_ready_at.CopyFrom(field_checks.timestamp(counts.oldest_ready_at_ms))
    return message
