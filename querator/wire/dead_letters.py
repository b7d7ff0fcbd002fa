"""The calls that redrive and drop dead letters: requests to calls, and replies to bytes."""

import msgspec

from querator.model.commands import ALL_LETTERS, LetterFilter
from querator.model.errors import invalid
from querator.model.ids import check_name
from querator.v1 import admin_service_pb2, items_pb2
from querator.wire import field_checks
from querator.wire.item_ids import named_items


class LettersCall(msgspec.Struct, frozen=True):
    """Dead letters of a queue: those of `item_ids`, or else those that `chosen` chooses."""

    namespace: str
    queue: str
    item_ids: tuple[str, ...] = ()
    chosen: LetterFilter = ALL_LETTERS
    dry_run: bool = False


def parse_redrive(data: bytes) -> LettersCall:
    return _call(field_checks.parse_message(admin_service_pb2.RedriveDeadLettersRequest, data))


def parse_drop(data: bytes) -> LettersCall:
    message = field_checks.parse_message(admin_service_pb2.DropDeadLettersRequest, data)
    if not message.item_ids and not message.HasField("filter"):
        raise invalid("item_ids", "names letters, or filter chooses them: one of them is required")
    return _call(message)


def _call(
    message: admin_service_pb2.RedriveDeadLettersRequest | admin_service_pb2.DropDeadLettersRequest,
) -> LettersCall:
    if message.item_ids and message.HasField("filter"):
        raise invalid("item_ids", "names letters, or filter chooses them: not both")
    if message.item_ids and message.dry_run:
        raise invalid("dry_run", "is not for item_ids; ListDeadLetters shows letters", value="true")
    return LettersCall(
        namespace=field_checks.check_namespace(message.namespace),
        queue=check_name(message.queue, field="queue"),
        item_ids=named_items(message.item_ids),
        chosen=_filter(message.filter),
        dry_run=message.dry_run,
    )


def _filter(message: admin_service_pb2.DeadLetterFilter) -> LetterFilter:
    reasons = []
    for position, reason in enumerate(message.reasons):
        if reason == 0 or reason not in items_pb2.DeadReason.values():
            known = ", ".join(items_pb2.DeadReason.keys()[1:])
            field = f"filter.reasons[{position}]"
            raise invalid(field, f"must be one of {known}", value=int(reason))
        reasons.append(int(reason))
    from_ms = until_ms = 0
    if message.HasField("died_from"):
        from_ms = field_checks.instant_ms(message.died_from, field="filter.died_from")
    if message.HasField("died_until"):
        until_ms = field_checks.instant_ms(message.died_until, field="filter.died_until")
        if until_ms <= from_ms:
            text = message.died_until.ToJsonString()
            raise invalid("filter.died_until", "must be after filter.died_from", value=text)
    return LetterFilter(tuple(sorted(set(reasons))), from_ms, until_ms)


def encode_redriven(count: int) -> bytes:
    return admin_service_pb2.RedriveDeadLettersResponse(redriven=count).SerializeToString()


def encode_dropped(count: int) -> bytes:
    return admin_service_pb2.DropDeadLettersResponse(dropped=count).SerializeToString()
