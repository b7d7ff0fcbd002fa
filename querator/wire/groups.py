"""The calls about groups of fair queues and keys of keyed ones: requests to calls, and replies to
bytes.
"""

from querator.model import limits
from querator.model.errors import invalid
from querator.model.flow_calls import (
    GroupCounts,
    GroupPage,
    KeyCounts,
    KeyPage,
    ListGroupsCall,
    ListKeysCall,
    SkipKeyCall,
)
from querator.model.ids import check_name, parse_item_id
from querator.v1 import admin_service_pb2
from querator.wire import field_checks


def parse_list_groups(data: bytes, *, timeout_ms: int = 0) -> ListGroupsCall:
    message = field_checks.parse_message(admin_service_pb2.ListGroupsRequest, data)
    return ListGroupsCall(**field_checks.list_fields(message, timeout_ms=timeout_ms))


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
        paused=counts.paused,
    )
    if counts.oldest_ready_at_ms:
        message.oldest_ready_at.CopyFrom(field_checks.timestamp(counts.oldest_ready_at_ms))
    if counts.next_ms:
        message.next_at.CopyFrom(field_checks.timestamp(counts.next_ms))
    return message


def parse_list_keys(data: bytes, *, timeout_ms: int = 0) -> ListKeysCall:
    message = field_checks.parse_message(admin_service_pb2.ListKeysRequest, data)
    field_checks.check_bytes(message.key, limits.KEY_BYTES_MAX, field="key")
    return ListKeysCall(
        **field_checks.list_fields(message, timeout_ms=timeout_ms),
        key=message.key,
        blocked=message.blocked,
        head_attempts_min=message.head_attempts_min,
    )


def encode_keys(page: KeyPage) -> bytes:
    return admin_service_pb2.ListKeysResponse(
        keys=map(_key_message, page.keys), next_page_token=page.next_page_token
    ).SerializeToString()


def _key_message(counts: KeyCounts) -> admin_service_pb2.KeyStats:
    message = admin_service_pb2.KeyStats(
        key=counts.key,
        waiting=counts.waiting,
        leased=counts.leased,
        head_item_id=counts.head_item_id,
        head_attempts=counts.head_attempts,
    )
    if counts.oldest_ready_at_ms:
        message.oldest_ready_at.CopyFrom(field_checks.timestamp(counts.oldest_ready_at_ms))
    if counts.next_ms:
        message.next_at.CopyFrom(field_checks.timestamp(counts.next_ms))
    if counts.blocked_until_ms:
        message.blocked_until.CopyFrom(field_checks.timestamp(counts.blocked_until_ms))
    return message


def parse_skip_key(data: bytes, *, timeout_ms: int = 0) -> SkipKeyCall:
    message = field_checks.parse_message(admin_service_pb2.SkipKeyRequest, data)
    if not message.key:
        raise invalid("key", "must not be empty")
    field_checks.check_bytes(message.key, limits.KEY_BYTES_MAX, field="key")
    parse_item_id(message.item_id, field="item_id")
    return SkipKeyCall(
        namespace=field_checks.check_namespace(message.namespace),
        queue=check_name(message.queue, field="queue"),
        key=message.key,
        item_id=message.item_id,
        dead=message.dead,
        timeout_ms=timeout_ms,
    )


def encode_skipped(*, skipped: bool) -> bytes:
    return admin_service_pb2.SkipKeyResponse(skipped=skipped).SerializeToString()
