"""Requests and answers of complete, retry and extend."""

from collections.abc import Sequence

from querator.model import ids, limits
from querator.model.calls import (
    Checkpoint,
    CompleteCall,
    ExtendCall,
    ExtendReply,
    FollowUpItems,
    LeasedRanges,
    LeaseOutcome,
    RetryCall,
    SettleReply,
)
from querator.model.commands import Attributes, Ranges
from querator.model.errors import ErrorCode, QueratorError, invalid, over_limit
from querator.model.ids import check_name
from querator.model.item_options import ItemSpecial, OnDuplicate
from querator.v1 import errors_pb2, items_pb2, queue_service_pb2
from querator.wire import field_checks
from querator.wire.field_checks import DEFAULT_LIMITS, RequestLimits
from querator.wire.produce import check_items, check_request_bytes
from querator.wire.results import check_returned, refuse_kept

_SEQ_MAX = 2**64 - 1


def parse_complete(
    data: bytes, *, now_ms: int, request_limits: RequestLimits = DEFAULT_LIMITS
) -> CompleteCall:
    """A `CompleteRequest`. `now_ms` bounds how far ahead follow-ups may be scheduled."""
    message = field_checks.parse_message(queue_service_pb2.CompleteRequest, data)
    queue = check_name(message.queue, field="queue")
    namespace = field_checks.check_namespace(message.namespace)
    return check_complete(message, namespace, queue, now_ms, request_limits)


def parse_retry(
    data: bytes, *, now_ms: int, request_limits: RequestLimits = DEFAULT_LIMITS
) -> RetryCall:
    """A `RetryRequest`. `now_ms` bounds how far ahead the items, and follow-ups, may be
    scheduled.
    """
    message = field_checks.parse_message(queue_service_pb2.RetryRequest, data)
    queue = check_name(message.queue, field="queue")
    namespace = field_checks.check_namespace(message.namespace)
    return check_retry(message, namespace, queue, now_ms, request_limits)


def parse_extend(data: bytes) -> ExtendCall:
    """An `ExtendRequest`."""
    message = field_checks.parse_message(queue_service_pb2.ExtendRequest, data)
    queue = check_name(message.queue, field="queue")
    return check_extend(message, field_checks.check_namespace(message.namespace), queue)


def check_complete(
    message: queue_service_pb2.CompleteRequest,
    namespace: str,
    queue: str,
    now_ms: int,
    request_limits: RequestLimits,
) -> CompleteCall:
    if message.follow_ups:
        if message.results:
            check_returned(message, ())
        return CompleteCall(
            namespace=namespace,
            queue=queue,
            leases=_one_lease(message.leases),
            all_or_nothing=True,
            follow_ups=_follow_ups(message, queue, now_ms, request_limits),
        )
    leases = _leases(message.leases)
    return CompleteCall(
        namespace=namespace,
        queue=queue,
        leases=leases,
        all_or_nothing=message.all_or_nothing,
        results=check_returned(message, leases) if message.results else (),
    )


def check_retry(
    message: queue_service_pb2.RetryRequest,
    namespace: str,
    queue: str,
    now_ms: int,
    request_limits: RequestLimits,
) -> RetryCall:
    retry_at_ms = 0
    if message.HasField("retry_at"):
        if message.dead:
            raise invalid("retry_at", "has no meaning for dead letters")
        retry_at_ms = field_checks.scheduled_ms(message.retry_at, field="retry_at", now_ms=now_ms)
    return RetryCall(
        namespace=namespace,
        queue=queue,
        leases=_one_lease(message.leases) if message.follow_ups else _leases(message.leases),
        retry_at_ms=retry_at_ms,
        dead=message.dead,
        error=field_checks.check_chars(message.error, limits.ERROR_CHARS_MAX, field="error"),
        count_attempt=message.count_attempt if message.HasField("count_attempt") else True,
        all_or_nothing=message.all_or_nothing or bool(message.follow_ups),
        priority=message.priority if message.HasField("priority") else None,
        attributes=_attributes(message),
        follow_ups=_follow_ups(message, queue, now_ms, request_limits),
        clear_checkpoint=message.clear_checkpoint,
    )


def _one_lease(leases: Sequence[queue_service_pb2.LeaseItems]) -> tuple[LeasedRanges, ...]:
    if len(leases) > 1:
        raise QueratorError(
            ErrorCode.LIMIT_EXCEEDED,
            f"leases is {len(leases)} leases; with follow_ups the limit is 1 lease: send a request "
            "for each lease",
            field="leases",
            limit="1 lease",
            value=f"{len(leases)} leases",
        )
    return _leases(leases)


def _follow_ups(
    message: queue_service_pb2.CompleteRequest | queue_service_pb2.RetryRequest,
    own_queue: str,
    now_ms: int,
    request_limits: RequestLimits,
) -> tuple[FollowUpItems, ...]:
    """The follow-ups of a request for items of `own_queue`."""
    if not message.follow_ups:
        return ()
    check_request_bytes(message.ByteSize(), request_limits)
    return check_follow_ups(
        message.follow_ups, own_queue, now_ms, request_limits,
        field="follow_ups", what="a follow-up",
    )  # fmt: skip


def check_follow_ups(
    parts: Sequence[queue_service_pb2.FollowUps],
    own_queue: str,
    now_ms: int,
    request_limits: RequestLimits,
    *,
    field: str,
    what: str,
) -> tuple[FollowUpItems, ...]:
    """The items of a request for `own_queue` and others; `field` has them, and each is `what`.
    Raises INVALID_ARGUMENT or LIMIT_EXCEEDED.
    """
    if len(parts) > limits.FOLLOW_UP_QUEUES_MAX:
        most = limits.FOLLOW_UP_QUEUES_MAX
        raise over_limit(field, value=len(parts), limit=most, unit="queues")
    count = sum(len(part.items) for part in parts)
    if count > request_limits.request_items_max:
        most = request_limits.request_items_max
        raise over_limit(field, value=count, limit=most, unit="items")
    found = []
    for place, part in enumerate(parts):
        path = f"{field}[{place}]."
        queue = check_name(part.queue, field=f"{path}queue") if part.queue else own_queue
        # As protobuf writes it, the items are tagged and length-prefixed like those of a produce.
        data = part.SerializeToString()
        try:
            checked = check_items(part, data, ((0, len(data)),), now_ms, request_limits)
        except QueratorError as error:
            raise field_checks.within(path, error) from error
        if checked.takes_over:
            raise _takes_over(path, checked.specials, what)
        refuse_kept(checked.specials, path=f"{path}items[{{}}].", what=what)
        found.append(
            FollowUpItems(queue, checked.items, checked.lengths, checked.specials, checked.slots)
        )
    return tuple(found)


def _takes_over(path: str, specials: tuple[ItemSpecial, ...], what: str) -> QueratorError:
    special = next(one for one in specials if one.on_duplicate is not OnDuplicate.KEEP)
    return invalid(
        f"{path}items[{special.ordinal}].on_duplicate",
        f"{special.on_duplicate.name} is not possible for {what}: it does not replace other items",
        value=special.on_duplicate.name,
    )


def _attributes(message: queue_service_pb2.RetryRequest) -> Attributes | None:
    if not message.HasField("attributes"):
        return None
    values = message.attributes.values
    field_checks.check_attributes(values, field="attributes")
    return tuple(sorted(values.items()))


def check_extend(
    message: queue_service_pb2.ExtendRequest, namespace: str, queue: str, client_id: str = ""
) -> ExtendCall:
    """Checks an extend. `client_id`: the owner of the leases when the request names neither leases
    nor a client.
    """
    lease_ids = tuple(message.lease_ids)
    whose = message.client_id or ("" if lease_ids else client_id)
    if whose or not lease_ids:
        field_checks.check_client_id(whose)
    _check_count("lease_ids", lease_ids)
    for position, lease_id in enumerate(lease_ids):
        ids.parse_lease_id(lease_id, field=f"lease_ids[{position}]")
    lease_timeout_ms = 0
    if message.HasField("lease_timeout"):
        lease_timeout_ms = field_checks.lease_timeout_ms(message.lease_timeout)
    return ExtendCall(
        namespace=namespace,
        queue=queue,
        lease_ids=lease_ids,
        client_id=whose,
        lease_timeout_ms=lease_timeout_ms,
        checkpoints=_checkpoints(message) if message.checkpoints else (),
    )


def _checkpoints(message: queue_service_pb2.ExtendRequest) -> tuple[Checkpoint, ...]:
    if not message.lease_ids:
        raise invalid("lease_ids", "must name the leases of the checkpoints, not be empty")
    count = len(message.checkpoints)
    if count > limits.CHECKPOINTS_MAX:
        raise over_limit(
            "checkpoints", value=count, limit=limits.CHECKPOINTS_MAX, unit="checkpoints"
        )
    leases = frozenset(message.lease_ids)
    places: dict[tuple[str, int], int] = {}
    total = 0
    for position, one in enumerate(message.checkpoints):
        path = f"checkpoints[{position}]"
        if one.lease_id not in leases:
            raise invalid(f"{path}.lease_id", "must be among lease_ids", value=one.lease_id[:64])
        if not one.seq:
            raise invalid(f"{path}.seq", "must be at least 1", value=0)
        first = places.setdefault((one.lease_id, one.seq), position)
        if first != position:
            raise invalid(f"{path}.seq", f"is that of checkpoints[{first}]", value=one.seq)
        size = len(one.data)
        if size > limits.CHECKPOINT_BYTES_MAX:
            most = limits.CHECKPOINT_BYTES_MAX
            raise over_limit(f"{path}.data", value=size, limit=most, unit="bytes")
        total += size
    if total > limits.CHECKPOINTS_BYTES_MAX:
        most = limits.CHECKPOINTS_BYTES_MAX
        raise over_limit("checkpoints", value=total, limit=most, unit="bytes")
    return tuple(
        Checkpoint(one.lease_id, one.seq, one.data, one.revision) for one in message.checkpoints
    )


def _check_count(field: str, leases: Sequence[object]) -> None:
    most = limits.REQUEST_LEASES_MAX
    if len(leases) > most:
        raise over_limit(field, value=len(leases), limit=most, unit="leases")


def _leases(leases: Sequence[queue_service_pb2.LeaseItems]) -> tuple[LeasedRanges, ...]:
    if not leases:
        raise invalid("leases", "must not be empty")
    _check_count("leases", leases)
    ranges = sum(len(lease.ranges) for lease in leases)
    if ranges > limits.REQUEST_RANGES_MAX:
        raise over_limit("leases", value=ranges, limit=limits.REQUEST_RANGES_MAX, unit="ranges")
    refs = []
    for position, lease in enumerate(leases):
        path = f"leases[{position}]"
        ids.parse_lease_id(lease.lease_id, field=f"{path}.lease_id")
        refs.append(LeasedRanges(lease.lease_id, _ranges(lease.ranges, f"{path}.ranges")))
    return tuple(refs)


def _ranges(ranges: Sequence[items_pb2.SeqRange], field: str) -> Ranges:
    """Checks ranges; returns them ascending and merged, so that they neither overlap nor touch."""
    for position, each in enumerate(ranges):
        path = f"{field}[{position}]"
        if not each.first_seq:
            raise invalid(f"{path}.first_seq", "must be at least 1", value=0)
        if not each.count:
            raise invalid(f"{path}.count", "must be at least 1", value=0)
        if each.first_seq + each.count - 1 > _SEQ_MAX:
            raise invalid(path, "ends behind the last sequence", value=each.first_seq)
    merged: list[tuple[int, int]] = []
    for first, count in sorted((each.first_seq, each.count) for each in ranges):
        if merged and first <= sum(merged[-1]):
            start = merged[-1][0]
            merged[-1] = (start, max(sum(merged[-1]), first + count) - start)
        else:
            merged.append((first, count))
    return tuple(merged)


def encode_completed(reply: SettleReply) -> bytes:
    """A `CompleteResponse`."""
    return completed_message(reply).SerializeToString()


def encode_retried(reply: SettleReply) -> bytes:
    """A `RetryResponse`."""
    return retried_message(reply).SerializeToString()


def encode_extended(reply: ExtendReply) -> bytes:
    """An `ExtendResponse`."""
    return extended_message(reply).SerializeToString()


def completed_message(reply: SettleReply) -> queue_service_pb2.CompleteResponse:
    return queue_service_pb2.CompleteResponse(outcomes=map(_outcome, reply.outcomes))


def retried_message(reply: SettleReply) -> queue_service_pb2.RetryResponse:
    return queue_service_pb2.RetryResponse(outcomes=map(_outcome, reply.outcomes))


def extended_message(reply: ExtendReply) -> queue_service_pb2.ExtendResponse:
    message = queue_service_pb2.ExtendResponse()
    for outcome in reply.outcomes:
        added = message.outcomes.add(lease_id=outcome.lease_id)
        if outcome.deadline_ms:
            added.deadline.CopyFrom(field_checks.timestamp(outcome.deadline_ms))
            added.lease_remaining.CopyFrom(field_checks.duration(max(0, outcome.remaining_ms)))
        else:
            added.error = errors_pb2.ErrorCode.ERROR_CODE_LEASE_LOST
        added.lost_checkpoints.extend(outcome.lost_checkpoints)
    return message


def _outcome(outcome: LeaseOutcome) -> queue_service_pb2.LeaseOutcome:
    return queue_service_pb2.LeaseOutcome(
        lease_id=outcome.lease_id,
        done=_seq_ranges(outcome.done),
        repeated_answer=_seq_ranges(outcome.repeated),
        lost=_seq_ranges(outcome.lost),
        error=_code(outcome.error),
    )


def _code(code: ErrorCode | None) -> errors_pb2.ErrorCode.ValueType:
    return errors_pb2.ErrorCode.ValueType(code or 0)


def _seq_ranges(ranges: Ranges) -> list[items_pb2.SeqRange]:
    return [items_pb2.SeqRange(first_seq=first, count=count) for first, count in ranges]
