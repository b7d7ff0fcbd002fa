"""Executions and what they have recorded and published, as JSON, and values as arguments."""

from datetime import datetime
from typing import Any, Final

import click
import msgspec

from querator.cli.journals import json_value, value_text
from querator.cli.shared.views import payload_texts
from querator.client.executions import ExecutionInfo
from querator.durable import JournalEntry
from querator.model.executions import RecordKind

_BEGINS_JSON: Final = ("{", "[", '"')


class ListedExecutionView(msgspec.Struct, frozen=True, kw_only=True):
    """An execution, as `--output json` prints it."""

    id: str
    function: str
    version: str
    run: int
    state: str
    partition: int
    created_at: datetime
    closed_at: datetime | None
    deadline: datetime | None
    records: int
    journal_bytes: int
    unread_signals: int
    timers: int
    cancelled: bool
    reason: str
    parent: str
    children: int
    refused_versions: tuple[str, ...]


class EndedView(ListedExecutionView, frozen=True, kw_only=True):
    """An execution with its end. `result` is null if there is none, or if its bytes are no JSON.
    `error` is the exception, or the reason of a cancellation.
    """

    result: Any
    error: str | None


class RecordView(msgspec.Struct, frozen=True, kw_only=True):
    """A record of a journal. `value` is null if the payload is no JSON: then it is in `payload` as
    text, or in `payload_base64`.
    """

    index: int
    kind: str
    name: str
    path: str
    site: str
    at: datetime
    after: int
    payload_bytes: int
    value: Any
    payload: str | None
    payload_base64: str | None


class PublishedView(msgspec.Struct, frozen=True, kw_only=True):
    """A published value. `value` is null if its bytes are no JSON: then they are in `payload` as
    text, or in `payload_base64`.
    """

    key: str
    version: int
    value: Any
    payload: str | None
    payload_base64: str | None


class _Value(click.ParamType[Any]):
    """A JSON value; what is no JSON is a text."""

    name = "value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        text = str(value)
        try:
            return msgspec.json.decode(text)
        except (msgspec.MsgspecError, UnicodeEncodeError) as error:
            if text.lstrip().startswith(_BEGINS_JSON):
                self.fail(f"{text!r} begins like JSON, and is none: {error}.", param, ctx)
            return text


VALUE: Final = _Value()


def listed_view(info: ExecutionInfo) -> ListedExecutionView:
    return ListedExecutionView(**_fields(info))


def ended_view(info: ExecutionInfo, end: JournalEntry | None) -> EndedView:
    result = error = None
    if end is not None:
        if end.kind == RecordKind.COMPLETED.name:
            result = json_value(end.payload)
        else:
            error = value_text(end)
    return EndedView(**_fields(info), result=result, error=error)


def published_view(key: str, data: bytes, version: int) -> PublishedView:
    return PublishedView(key=key, version=version, **_payload_fields(data))


def record_view(one: JournalEntry) -> RecordView:
    return RecordView(
        index=one.index,
        kind=one.kind.lower(),
        name=one.name,
        path=one.path,
        site=one.site,
        at=one.at,
        after=one.after,
        payload_bytes=len(one.payload),
        **_payload_fields(one.payload),
    )


def _payload_fields(data: bytes) -> dict[str, Any]:
    """Bytes as `value`; as `payload` or `payload_base64` if they are no JSON."""
    value = json_value(data)
    text, encoded = (None, None) if value is not None else payload_texts(data)
    return {"value": value, "payload": text, "payload_base64": encoded}


def _fields(info: ExecutionInfo) -> dict[str, Any]:
    return {name: getattr(info, name) for name in ListedExecutionView.__struct_fields__}
