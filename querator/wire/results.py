"""Results of items: the field of an item that asks for one, those of a complete, and the call that
waits for them.
"""

from collections.abc import Sequence

from querator.model import ids, limits
from querator.model.calls import LeasedRanges, ReturnedResult
from querator.model.errors import invalid, over_limit
from querator.model.ids import PartitionNumber, Seq, check_name
from querator.model.item_options import ItemSpecial
from querator.model.result_calls import EndedItem, ResultsReply, WaitResultsCall
from querator.v1 import items_pb2, queue_service_pb2
from querator.wire import field_checks
from querator.wire.item_ids import named_items


def check_keep_result(item: items_pb2.Item, path: str) -> int:
    """`keep_result` in ms, of an item that has it. Raises INVALID_ARGUMENT, LIMIT_EXCEEDED."""
    if item.on_duplicate > items_pb2.ON_DUPLICATE_KEEP:
        name = items_pb2.OnDuplicate.Name(item.on_duplicate)
        raise invalid(
            f"{path}keep_result",
            f"is not possible with {name}: an item that is replaced has no result",
            value=name,
        )
    return field_checks.duration_ms(
        item.keep_result,
        field=f"{path}keep_result",
        least_ms=limits.KEEP_RESULT_MS_MIN,
        most_ms=limits.KEEP_RESULT_MS_MAX,
    )


def refuse_kept(specials: Sequence[ItemSpecial], *, path: str, what: str) -> None:
    """Raises INVALID_ARGUMENT if one of the items asks for its result. `what`: the items."""
    for special in specials:
        if special.keep_result_ms:
            field = f"{path.format(special.ordinal)}keep_result"
            raise invalid(
                field, f"is not possible for {what}", value=f"{special.keep_result_ms} ms"
            )


def check_returned(
    message: queue_service_pb2.CompleteRequest, leases: Sequence[LeasedRanges]
) -> tuple[ReturnedResult, ...]:
    """The results of a complete of these leases. Raises INVALID_ARGUMENT, LIMIT_EXCEEDED."""
    if message.follow_ups:
        raise invalid("results", "are not possible with follow_ups: send one of them")
    count, most = len(message.results), limits.RESULTS_OF_COMPLETE_MAX
    if count > most:
        raise over_limit("results", value=count, limit=most, unit="results")
    named = frozenset(lease.lease_id for lease in leases)
    places: dict[tuple[str, int], int] = {}
    total = 0
    for position, one in enumerate(message.results):
        path = f"results[{position}]"
        if one.lease_id not in named:
            raise invalid(f"{path}.lease_id", "must be among leases", value=one.lease_id[:64])
        if not one.seq:
            raise invalid(f"{path}.seq", "must be at least 1", value=0)
        first = places.setdefault((one.lease_id, one.seq), position)
        if first != position:
            raise invalid(f"{path}.seq", f"is that of results[{first}]", value=one.seq)
        size = len(one.data)
        if size > limits.RESULT_BYTES_MAX:
            most = limits.RESULT_BYTES_MAX
            raise over_limit(f"{path}.data", value=size, limit=most, unit="bytes")
        total += size
    if total > limits.RESULTS_BYTES_MAX:
        raise over_limit("results", value=total, limit=limits.RESULTS_BYTES_MAX, unit="bytes")
    return tuple(ReturnedResult(one.lease_id, one.seq, one.data) for one in message.results)


def parse_wait_results(data: bytes) -> WaitResultsCall:
    """A `WaitResultsRequest`."""
    message = field_checks.parse_message(queue_service_pb2.WaitResultsRequest, data)
    if not message.item_ids:
        raise invalid("item_ids", "must not be empty")
    wait_ms = 0
    if message.HasField("wait_timeout"):
        wait_ms = field_checks.duration_ms(
            message.wait_timeout,
            field="wait_timeout",
            least_ms=0,
            most_ms=limits.REQUEST_TIMEOUT_MS_MAX,
        )
    items = (ids.parse_item_id(one, field="item_ids") for one in named_items(message.item_ids))
    return WaitResultsCall(
        namespace=field_checks.check_namespace(message.namespace),
        queue=check_name(message.queue, field="queue"),
        items=tuple(dict.fromkeys(items)),
        wait_ms=wait_ms,
    )


def encode_results(reply: ResultsReply) -> bytes:
    """A `WaitResultsResponse`."""
    return queue_service_pb2.WaitResultsResponse(
        items=[_ended_item(partition, item) for partition, item in reply.items]
    ).SerializeToString()


def _ended_item(partition: int, item: EndedItem) -> queue_service_pb2.EndedItem:
    return queue_service_pb2.EndedItem(
        item_id=ids.format_item_id(PartitionNumber(partition), Seq(item.seq)),
        outcome=queue_service_pb2.ItemOutcome.ValueType(item.outcome),
        data=item.data,
        reason=items_pb2.DeadReason.ValueType(item.reason),
        error=item.error,
        attempts=item.attempts,
        ended_at=field_checks.timestamp(item.ended_ms) if item.ended_ms else None,
    )
