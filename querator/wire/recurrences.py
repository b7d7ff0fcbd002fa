"""The calls about recurrences, and the items that recurrences produce.

A template is the bytes of an `Item`. Its items are made of it by the leader, and are checked as
those of a produce are.
"""

from datetime import UTC, datetime

import msgspec

from querator.model import limits
from querator.model.commands import ItemSpecial
from querator.model.errors import QueratorError, invalid, over_limit
from querator.model.ids import PartitionNumber, Seq, check_name, format_item_id
from querator.model.recurrence_calls import (
    ComingRun,
    CreateRecurrenceCall,
    ListRecurrencesCall,
    PauseRecurrenceCall,
    RecurrenceCall,
    RecurrenceTimesCall,
    ShownRecurrence,
    ShownRecurrences,
    UpdateRecurrenceCall,
)
from querator.model.recurrences import MissedRuns, Overlap, RecurrenceSpec
from querator.v1 import items_pb2, queue_service_pb2, recurrences_pb2
from querator.wire import field_checks
from querator.wire.field_checks import DEFAULT_LIMITS
from querator.wire.produce import check_items

NAME, NUMBER, DUE_AT = "recurrence", "recurrence-number", "recurrence-due-at"
"""The attributes of each item."""
_NUMBER_MAX = (1 << 64) - 1
_LAST_MS = 253_402_300_799_999
"""The end of the year 9999."""
_NO_FIELDS = ("dedup_key", "enqueue_at", "keep_result")
"""Fields of an item that a template must not have."""

# Names of fields in the protocol's RecurrenceSpec and in the model's, where they differ.
_MODEL_FIELDS = {
    "interval": "interval_ms",
    "phase": "phase_ms",
    "jitter": "jitter_ms",
    "missed_after": "missed_after_ms",
}
_FIELDS = frozenset(recurrences_pb2.RecurrenceSpec.DESCRIPTOR.fields_by_name)


# --- items -----------------------------------------------------------------------------------


class MadeItem(msgspec.Struct, frozen=True):
    """An item as in `Produce`: its tagged, length-prefixed bytes, and its special if it has one."""

    data: bytes
    special: ItemSpecial | None


def make_item(template: bytes, *, name: str, due_ms: int, number: int) -> MadeItem:
    """The item of a due time. Raises `QueratorError`, with fields of the item as `items[0]`."""
    item = items_pb2.Item.FromString(template)
    due_at = _instant_text(due_ms)
    if b"{{" in item.payload:
        for placeholder, text in (
            (b"{{due_at}}", due_at),
            (b"{{due_ms}}", str(due_ms)),
            (b"{{number}}", str(number)),
            (b"{{recurrence}}", name),
        ):
            item.payload = item.payload.replace(placeholder, text.encode())
    item.attributes[NAME] = name
    item.attributes[NUMBER] = str(number)
    item.attributes[DUE_AT] = due_at
    message = queue_service_pb2.ProduceRequest(items=[item])
    data = message.SerializeToString()
    checked = check_items(message, data, ((0, len(data)),), due_ms, DEFAULT_LIMITS)
    return MadeItem(checked.items, checked.specials[0] if checked.specials else None)


def group_and_key(template: bytes) -> tuple[str, str]:
    """Those of the items of a template; empty: none."""
    item = items_pb2.Item.FromString(template)
    return item.group, item.key


def check_template(template: bytes, *, name: str) -> None:
    """Raises `QueratorError` for a template whose items would be refused, or are too large."""
    item = items_pb2.Item.FromString(template)
    given = {field.name for field, _ in item.ListFields()}
    for field in _NO_FIELDS:
        if field in given:
            raise invalid(f"spec.item.{field}", "must not be set in the item of a recurrence")
    for attribute in (NAME, NUMBER, DUE_AT):
        if attribute in item.attributes:
            reason = f"must not have {attribute}: each run sets it"
            raise invalid("spec.item.attributes", reason, value=attribute)
    _check_item_bytes(len(template))
    try:
        longest = make_item(template, name=name, due_ms=_LAST_MS, number=_NUMBER_MAX)
    except QueratorError as error:
        raise QueratorError(
            error.code,
            error.message.replace("items[0]", "spec.item"),
            field=error.field.replace("items[0]", "spec.item"),
            limit=error.limit,
            value=error.value,
        ) from error
    _check_item_bytes(len(longest.data))


def _check_item_bytes(value: int) -> None:
    most = limits.RECURRENCE_ITEM_BYTES_MAX
    if value > most:
        raise over_limit("spec.item", value=value, limit=most, unit="bytes")


def _instant_text(at_ms: int) -> str:
    at = datetime.fromtimestamp(at_ms // 1000, UTC).replace(microsecond=at_ms % 1000 * 1000)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


# --- requests --------------------------------------------------------------------------------

_Named = (
    recurrences_pb2.CreateRecurrenceRequest
    | recurrences_pb2.GetRecurrenceRequest
    | recurrences_pb2.UpdateRecurrenceRequest
    | recurrences_pb2.PauseRecurrenceRequest
    | recurrences_pb2.DeleteRecurrenceRequest
)


def parse_create(data: bytes, *, timeout_ms: int = 0) -> CreateRecurrenceCall:
    message = field_checks.parse_message(recurrences_pb2.CreateRecurrenceRequest, data)
    namespace, queue, name = _named(message)
    return CreateRecurrenceCall(namespace, queue, name, timeout_ms, spec=_spec(message.spec))


def parse_get(data: bytes, *, timeout_ms: int = 0) -> RecurrenceCall:
    message = field_checks.parse_message(recurrences_pb2.GetRecurrenceRequest, data)
    return RecurrenceCall(*_named(message), timeout_ms)


def parse_delete(data: bytes, *, timeout_ms: int = 0) -> RecurrenceCall:
    message = field_checks.parse_message(recurrences_pb2.DeleteRecurrenceRequest, data)
    return RecurrenceCall(*_named(message), timeout_ms)


def parse_pause(data: bytes, *, timeout_ms: int = 0) -> PauseRecurrenceCall:
    message = field_checks.parse_message(recurrences_pb2.PauseRecurrenceRequest, data)
    return PauseRecurrenceCall(*_named(message), timeout_ms, paused=not message.resume)


def parse_list(data: bytes, *, timeout_ms: int = 0) -> ListRecurrencesCall:
    message = field_checks.parse_message(recurrences_pb2.ListRecurrencesRequest, data)
    return ListRecurrencesCall(
        namespace=field_checks.check_namespace(message.namespace),
        queue=check_name(message.queue, field="queue"),
        page_size=field_checks.check_range(
            message.page_size, field="page_size", least=0, most=limits.PAGE_ITEMS_MAX
        ),
        page_token=field_checks.check_chars(
            message.page_token, limits.PAGE_TOKEN_CHARS_MAX, field="page_token"
        ),
        timeout_ms=timeout_ms,
    )


def parse_update(data: bytes, *, timeout_ms: int = 0) -> UpdateRecurrenceCall:
    message = field_checks.parse_message(recurrences_pb2.UpdateRecurrenceRequest, data)
    mask: list[str] = []
    for position, path in enumerate(message.update_mask.paths):
        if path not in _FIELDS:
            field = f"update_mask.paths[{position}]"
            raise invalid(field, "is not a field of RecurrenceSpec", value=path)
        mask.append(_MODEL_FIELDS.get(path, path))
    if not mask:
        raise invalid("update_mask", "must not be empty")
    namespace, queue, name = _named(message)
    return UpdateRecurrenceCall(
        namespace,
        queue,
        name,
        timeout_ms,
        spec=_spec(message.spec),
        mask=tuple(dict.fromkeys(mask)),
        expected_revision=message.expected_revision,
    )


def parse_times(data: bytes, *, timeout_ms: int = 0) -> RecurrenceTimesCall:
    message = field_checks.parse_message(recurrences_pb2.GetRecurrenceTimesRequest, data)
    by_spec = message.HasField("spec")
    if by_spec == bool(message.name):
        raise invalid("name", "names a recurrence, or spec describes one: set one of them")
    if by_spec and (message.namespace or message.queue):
        raise invalid("queue", "must not be set with spec", value=message.queue)
    after_ms = None
    if message.HasField("after"):
        after_ms = field_checks.instant_ms(message.after, field="after")
    return RecurrenceTimesCall(
        namespace="" if by_spec else field_checks.check_namespace(message.namespace),
        queue="" if by_spec else check_name(message.queue, field="queue"),
        name="" if by_spec else check_name(message.name, field="name"),
        spec=_spec(message.spec) if by_spec else None,
        count=field_checks.check_range(
            message.count, field="count", least=0, most=limits.RECURRENCE_TIMES_MAX
        ),
        after_ms=after_ms,
        timeout_ms=timeout_ms,
    )


def _named(message: _Named) -> tuple[str, str, str]:
    return (
        field_checks.check_namespace(message.namespace),
        check_name(message.queue, field="queue"),
        check_name(message.name, field="name"),
    )


def _spec(message: recurrences_pb2.RecurrenceSpec) -> RecurrenceSpec:
    """The specification, with defaults for what is not set. Checks each field by itself."""
    interval_ms = jitter_ms = 0
    phase_ms = -1
    if message.HasField("interval"):
        interval_ms = field_checks.duration_ms(
            message.interval,
            field="spec.interval",
            least_ms=limits.RECURRENCE_INTERVAL_MS_MIN,
            most_ms=limits.RECURRENCE_INTERVAL_MS_MAX,
        )
    if message.HasField("phase"):
        most_ms = limits.RECURRENCE_INTERVAL_MS_MAX - 1
        phase_ms = field_checks.duration_ms(
            message.phase, field="spec.phase", least_ms=0, most_ms=most_ms
        )
    if message.HasField("jitter"):
        jitter_ms = field_checks.duration_ms(
            message.jitter,
            field="spec.jitter",
            least_ms=0,
            most_ms=limits.RECURRENCE_JITTER_MS_MAX,
        )
    missed_max, missed_after_ms = limits.MISSED_RUNS_DEFAULT, limits.MISSED_AFTER_MS_DEFAULT
    if message.HasField("missed_max"):
        missed_max = field_checks.check_range(
            message.missed_max, field="spec.missed_max", least=1, most=limits.MISSED_RUNS_MAX
        )
    if message.HasField("missed_after"):
        missed_after_ms = field_checks.duration_ms(
            message.missed_after,
            field="spec.missed_after",
            least_ms=limits.MISSED_AFTER_MS_MIN,
            most_ms=limits.MISSED_AFTER_MS_MAX,
        )
    return RecurrenceSpec(
        cron=field_checks.check_chars(message.cron, limits.CRON_CHARS_MAX, field="spec.cron"),
        time_zone=field_checks.check_chars(
            message.time_zone, limits.TIME_ZONE_CHARS_MAX, field="spec.time_zone"
        ),
        interval_ms=interval_ms,
        phase_ms=phase_ms,
        jitter_ms=jitter_ms,
        missed=_missed(message.missed),
        missed_max=missed_max,
        missed_after_ms=missed_after_ms,
        overlap=_overlap(message.overlap),
        item=message.item.SerializeToString(deterministic=True),
    )


def _missed(number: int) -> MissedRuns:
    if number not in (0, *MissedRuns):
        raise invalid("spec.missed", "is not a known policy", value=number)
    return MissedRuns(number or MissedRuns.ONE)


def _overlap(number: int) -> Overlap:
    if number not in (0, *Overlap):
        raise invalid("spec.overlap", "is not a known policy", value=number)
    return Overlap(number or Overlap.ALLOW)


# --- replies -----------------------------------------------------------------------------------


def encode_created(shown: ShownRecurrence) -> bytes:
    return recurrences_pb2.CreateRecurrenceResponse(
        recurrence=_recurrence(shown), created=shown.changed
    ).SerializeToString()


def encode_got(shown: ShownRecurrence) -> bytes:
    return recurrences_pb2.GetRecurrenceResponse(recurrence=_recurrence(shown)).SerializeToString()


def encode_updated(shown: ShownRecurrence) -> bytes:
    return recurrences_pb2.UpdateRecurrenceResponse(
        recurrence=_recurrence(shown)
    ).SerializeToString()


def encode_paused(shown: ShownRecurrence) -> bytes:
    return recurrences_pb2.PauseRecurrenceResponse(
        recurrence=_recurrence(shown)
    ).SerializeToString()


def encode_deleted() -> bytes:
    return recurrences_pb2.DeleteRecurrenceResponse().SerializeToString()


def encode_listed(page: ShownRecurrences) -> bytes:
    return recurrences_pb2.ListRecurrencesResponse(
        recurrences=map(_recurrence, page.recurrences), next_page_token=page.next_page_token
    ).SerializeToString()


def encode_times(runs: list[ComingRun]) -> bytes:
    return recurrences_pb2.GetRecurrenceTimesResponse(
        times=[
            recurrences_pb2.RecurrenceTime(
                due_at=field_checks.timestamp(run.due_ms),
                fire_at=field_checks.timestamp(run.fire_ms),
            )
            for run in runs
        ]
    ).SerializeToString()


def _recurrence(shown: ShownRecurrence) -> recurrences_pb2.Recurrence:
    row, runs = shown.recurrence.row, shown.recurrence.runs
    message = recurrences_pb2.Recurrence(
        name=row.name,
        spec=_spec_message(row.spec),
        revision=row.revision,
        paused=row.paused,
        created_at=field_checks.timestamp(row.created_ms),
        fired=runs.fired,
        skipped=runs.skipped,
        missed=runs.missed,
        error=runs.error,
    )
    if runs.next_due_ms:
        message.next_due_at.CopyFrom(field_checks.timestamp(runs.next_due_ms))
        message.next_fire_at.CopyFrom(field_checks.timestamp(shown.next_fire_ms))
    if runs.fired:
        message.last_due_at.CopyFrom(field_checks.timestamp(runs.last_due_ms))
        message.last_fired_at.CopyFrom(field_checks.timestamp(runs.last_at_ms))
    if runs.last_seq:
        message.last_item_id = format_item_id(PartitionNumber(0), Seq(runs.last_seq))
    return message


def _spec_message(spec: RecurrenceSpec) -> recurrences_pb2.RecurrenceSpec:
    message = recurrences_pb2.RecurrenceSpec(
        cron=spec.cron,
        time_zone=spec.time_zone,
        missed=recurrences_pb2.MissedRuns.ValueType(spec.missed),
        missed_max=spec.missed_max,
        missed_after=field_checks.duration(spec.missed_after_ms),
        jitter=field_checks.duration(spec.jitter_ms),
        overlap=recurrences_pb2.RunOverlap.ValueType(spec.overlap),
        item=items_pb2.Item.FromString(spec.item),
    )
    if spec.interval_ms:
        message.interval.CopyFrom(field_checks.duration(spec.interval_ms))
    if spec.phase_ms >= 0:
        message.phase.CopyFrom(field_checks.duration(spec.phase_ms))
    return message
