"""Records of executions as text: what a step returned, what it raised, what has arrived.

The default codec writes JSON, which is shown as it is. Bytes of another codec are shown by their
number.
"""

from datetime import UTC, datetime
from typing import Any

import msgspec

from querator.cli.shared.texts import instant_text, printable
from querator.cli.shared.views import preview
from querator.durable import JournalEntry
from querator.durable.attempts import decode_attempt
from querator.durable.codec import RecordedError
from querator.durable.errors import CodecError
from querator.model.executions import RecordKind

_ERRORS = frozenset(
    {
        RecordKind.STEP_FAILED.name,
        RecordKind.CALL_FAILED.name,
        RecordKind.CALL_FAILED_LATER.name,
        RecordKind.FAILED.name,
        RecordKind.REJECTED.name,
    }
)
_VALUE_CHARS = 200
"""Of a value in a table in a pipe. A terminal has less room."""


def value_text(entry: JournalEntry, *, characters_max: int = _VALUE_CHARS) -> str:
    """The payload of a record in one line, cut: JSON, the exception, or the reason."""
    if not entry.payload:
        return ""
    text = _special_text(entry)
    return preview(entry.payload if text is None else text, characters_max=characters_max)


def _special_text(entry: JournalEntry) -> str | None:
    """None: the payload is shown as it is."""
    if entry.kind in _ERRORS:
        return error_text(entry.payload)
    try:
        if entry.kind == RecordKind.STARTED.name:
            return _call_text(entry.payload)
        if entry.kind == RecordKind.ATTEMPT_FAILED.name:
            return _attempt_text(entry.payload)
    except (msgspec.MsgspecError, CodecError, ValueError, OverflowError, OSError):
        return None
    return None


def error_text(payload: bytes) -> str | None:
    """An exception: `ValueError: no such card`. None: the bytes are of another codec."""
    try:
        error = msgspec.json.decode(payload, type=RecordedError)
    except msgspec.MsgspecError:
        return None
    name = error.type.removeprefix("builtins.")
    return f"{name}: {error.text}" if error.text else name


def _call_text(payload: bytes) -> str:
    """The arguments, as they are written in a call."""
    args, named = msgspec.json.decode(
        payload, type=tuple[list[msgspec.Raw], dict[str, msgspec.Raw]]
    )
    words = [bytes(one).decode() for one in args]
    words += [f"{name}={bytes(one).decode()}" for name, one in named.items()]
    return f"({', '.join(words)})"


def _attempt_text(payload: bytes) -> str:
    attempt, due_ms = decode_attempt(payload)
    *_, recorded = msgspec.json.decode(payload, type=tuple[int, int, msgspec.Raw])
    again = instant_text(datetime.fromtimestamp(due_ms / 1000, UTC))
    return f"attempt {attempt}: {error_text(bytes(recorded))}; again from {again}"


def json_value(payload: bytes) -> Any:
    """The value for a line of JSON; None: the bytes are no JSON."""
    try:
        msgspec.json.decode(payload)
    except msgspec.MsgspecError:
        return None
    return msgspec.Raw(payload)


def shown_value(payload: bytes) -> str:
    """A result as a command prints it: a text without its quotes, else JSON as it is."""
    try:
        value = msgspec.json.decode(payload)
    except msgspec.MsgspecError:
        return printable(payload.decode("utf-8", "replace"))
    return value if isinstance(value, str) else payload.decode()
