"""The calls about scheduled items: requests to calls, and replies to bytes."""

from querator.model import limits
from querator.model.calls import PeekedPage
from querator.model.errors import invalid
from querator.model.ids import check_name
from querator.model.schedule_calls import (
    CountScheduledCall,
    DueFilter,
    ListScheduledCall,
    RescheduleCall,
    RescheduleReply,
    ScheduledCounts,
)
from querator.v1 import admin_service_pb2
from querator.wire import field_checks
from querator.wire.item_ids import named_items
from querator.wire.queues import peeked

_Spanned = (
    admin_service_pb2.ListScheduledItemsRequest
    | admin_service_pb2.CountScheduledItemsRequest
    | admin_service_pb2.ScheduledFilter
)


def parse_list_scheduled(data: bytes, *, timeout_ms: int = 0) -> ListScheduledCall:
    message = field_checks.parse_message(admin_service_pb2.ListScheduledItemsRequest, data)
    return ListScheduledCall(
        **field_checks.list_fields(message, timeout_ms=timeout_ms),
        due=_due(message),
    )


def parse_count_scheduled(data: bytes, *, timeout_ms: int = 0) -> CountScheduledCall:
    message = field_checks.parse_message(admin_service_pb2.CountScheduledItemsRequest, data)
    due = _due(message)
    interval_ms = 0
    if message.HasField("interval"):
        interval_ms = field_checks.duration_ms(
            message.interval,
            field="interval",
            least_ms=limits.SCHEDULE_INTERVAL_MS_MIN,
            most_ms=limits.SCHEDULE_INTERVAL_MS_MAX,
        )
    return CountScheduledCall(
        namespace=field_checks.check_namespace(message.namespace),
        queue=check_name(message.queue, field="queue"),
        from_ms=due.from_ms if message.HasField("due_from") else None,
        until_ms=due.until_ms,
        kind=due.kind,
        interval_ms=interval_ms,
        stale=message.stale,
        timeout_ms=timeout_ms,
    )


def parse_reschedule(data: bytes, *, timeout_ms: int = 0) -> RescheduleCall:
    message = field_checks.parse_message(admin_service_pb2.RescheduleItemsRequest, data)
    by_filter = message.HasField("filter")
    if by_filter == bool(message.item_ids):
        other = "not both" if by_filter else "one of them is required"
        raise invalid("item_ids", f"names items, or filter chooses them: {other}")
    item_ids = named_items(message.item_ids)
    action = message.WhichOneof("action")
    if action is None:
        raise invalid("action", "is required: due_at, run_now or cancel")
    if action != "due_at" and not getattr(message, action):
        raise invalid(action, "must not be false; leave it out", value="false")
    if message.dry_run and not by_filter:
        raise invalid("dry_run", "needs a filter; ListScheduledItems shows items", value="true")
    return RescheduleCall(
        namespace=field_checks.check_namespace(message.namespace),
        queue=check_name(message.queue, field="queue"),
        item_ids=item_ids,
        due=_due(message.filter, path="filter.") if by_filter else None,
        due_at_ms=field_checks.instant_ms(message.due_at, field="due_at")
        if action == "due_at"
        else 0,
        cancel=action == "cancel",
        dry_run=message.dry_run,
        timeout_ms=timeout_ms,
    )


def _due(message: _Spanned, path: str = "") -> DueFilter:
    from_ms = until_ms = 0
    if message.HasField("due_from"):
        from_ms = field_checks.instant_ms(message.due_from, field=f"{path}due_from")
    if message.HasField("due_until"):
        field = f"{path}due_until"
        until_ms = field_checks.instant_ms(message.due_until, field=field)
        if until_ms <= from_ms:
            text = message.due_until.ToJsonString()
            raise invalid(field, f"must be after {path}due_from", value=text)
    kind = field_checks.check_chars(message.kind, limits.KIND_CHARS_MAX, field=f"{path}kind")
    return DueFilter(from_ms, until_ms, kind)


def encode_scheduled(page: PeekedPage) -> bytes:
    return admin_service_pb2.ListScheduledItemsResponse(
        items=peeked(page), next_page_token=page.next_page_token
    ).SerializeToString()


def encode_scheduled_counts(counts: ScheduledCounts) -> bytes:
    return admin_service_pb2.CountScheduledItemsResponse(
        buckets=[
            admin_service_pb2.ScheduledBucket(
                starts_at=field_checks.timestamp(starts_at_ms), items=items
            )
            for starts_at_ms, items in counts.buckets
        ],
        total=counts.total,
        before=counts.before,
        after=counts.after,
    ).SerializeToString()


def encode_rescheduled(reply: RescheduleReply) -> bytes:
    return admin_service_pb2.RescheduleItemsResponse(
        changed=reply.changed, not_scheduled=reply.not_scheduled
    ).SerializeToString()
