"""Input of `produce`: arguments, files, lines, JSON lines, CSV.

Each source yields one `InputLine` for every item of its input: an item, or the reason why there is
none. After a bad line the source continues with the next one.
"""

import base64
import binascii
import csv
import io
import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, BinaryIO

import msgspec

from querator.cli.shared.item_template import JsonRetry, retry_of
from querator.cli.shared.parameters import (
    INSTANT_EXAMPLE,
    duration_field,
    parse_instant,
)
from querator.client.values import ON_DUPLICATE, Item
from querator.model.limits import (
    ATTEMPTS_MAX,
    DEBOUNCE_MAX_MS_MAX,
    EXPIRE_TIMEOUT_MS_MAX,
    KEEP_RESULT_MS_MAX,
    LEASE_TIMEOUT_MS_MAX,
    PAYLOAD_BYTES_CAP,
    PRIORITY_MAX,
    PRIORITY_MIN,
    SCHEDULE_AHEAD_MS_MAX,
)

LINE_BYTES_MAX = 2 * PAYLOAD_BYTES_CAP
"""Longer lines are refused unread. The limit allows the payload in base64, and the other fields."""


class InputLine(msgspec.Struct, frozen=True):
    """Line `number` of the input, from 1, with either `item` or `problem`. `name` is empty for a
    line.
    """

    number: int
    item: Item | None = None
    problem: str = ""
    name: str = ""

    @property
    def place(self) -> str:
        """The line, for a message: `line 3`, or the name of the payload."""
        return self.name or f"line {self.number}"


class SourceError(Exception):
    """The input as a whole cannot be read; the message is a sentence for the user."""


class CsvColumns(msgspec.Struct, frozen=True):
    """The CSV columns of the item's fields. Without a payload column the payload is the row as a
    JSON object.
    """

    payload: str = ""
    kind: str = ""
    key: str = ""
    group: str = ""
    reference: str = ""
    dedup_key: str = ""


def read_arguments(payloads: tuple[str, ...], template: Item) -> Iterator[InputLine]:
    """Each argument is a payload, byte for byte."""
    for number, payload in enumerate(payloads, 1):
        item = msgspec.structs.replace(template, payload=os.fsencode(payload))
        yield InputLine(number, item, name=f"payload {number}")


def read_files(
    paths: tuple[str, ...], open_stdin: Callable[[], BinaryIO], template: Item
) -> Iterator[InputLine]:
    """Each file is a payload, byte for byte; `-` is standard input. Raises OSError for a file that
    cannot be read.
    """
    for number, path in enumerate(paths, 1):
        if path == "-":
            name, payload = "standard input", open_stdin().read(PAYLOAD_BYTES_CAP + 1)
        else:
            with open(path, "rb") as file:
                name, payload = path, file.read(PAYLOAD_BYTES_CAP + 1)
        if len(payload) > PAYLOAD_BYTES_CAP:
            problem = f"is larger than {PAYLOAD_BYTES_CAP:,} bytes"
            yield InputLine(number, problem=problem, name=name)
        else:
            yield InputLine(number, msgspec.structs.replace(template, payload=payload), name=name)


def read_lines(stream: BinaryIO, template: Item) -> Iterator[InputLine]:
    """Each line that is not blank is a payload, byte for byte, without its line end."""
    for number, line in _bounded_lines(stream):
        if line is None:
            yield _too_long(number)
        elif line.strip():
            yield InputLine(number, msgspec.structs.replace(template, payload=line))


def with_dedup_keys(source: Callable[[], Iterator[InputLine]], prefix: str) -> Iterator[InputLine]:
    """Gives items without a dedup key one that has the number of their line."""
    for line in source():
        if line.item is not None and not line.item.dedup_key:
            item = msgspec.structs.replace(line.item, dedup_key=f"{prefix}:{line.number}")
            line = msgspec.structs.replace(line, item=item)
        yield line


def read_json_files(
    paths: tuple[str, ...], open_stdin: Callable[[], BinaryIO], template: Item
) -> Iterator[InputLine]:
    """As `read_json_lines`, from files; `-` is standard input. Lines are numbered through all
    files, and named by their file. Raises OSError for a file that cannot be read.
    """
    before = 0
    for path in paths:
        last = 0
        with open_stdin() if path == "-" else open(path, "rb") as stream:
            for line in read_json_lines(stream, template):
                last = line.number
                yield msgspec.structs.replace(
                    line, number=before + last, name=f"{path}, line {last}"
                )
        before += last


def read_json_lines(stream: BinaryIO, template: Item) -> Iterator[InputLine]:
    """Each line that is not blank is a JSON object of `JsonItem`'s fields."""
    for number, line in _bounded_lines(stream):
        if line is None:
            yield _too_long(number)
        elif line.strip():
            try:
                yield InputLine(number, _json_item(_decode_json_item(line), template))
            except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
                yield InputLine(number, problem=_json_problem(line, error))


def _json_problem(line: bytes, error: Exception) -> str:
    """What is wrong with a line: the field, what it must be, and its value."""
    text = str(error)
    if not isinstance(error, msgspec.ValidationError):
        return text
    try:
        given = _decode_any(line)
    except msgspec.DecodeError as malformed:
        return str(malformed)
    if not isinstance(given, dict):
        return f"a line must be a JSON object, not {_shown(given)}"
    for name, value in given.items():
        if name not in JsonItem.__struct_fields__:
            return (
                f"there is no field {name!r}: a line is an item; put an object of your own under "
                "`payload`"
            )
        wanted = _wanted(name, value)
        if wanted:
            return f"{name} is {_shown(value)}; it must be {wanted}"
    return text


def _wanted(name: str, value: object) -> str:
    """What the field must be; empty: it is that, or the field is a payload."""
    if value is None or name == "payload":
        return ""
    if name == "attributes":
        fits = isinstance(value, dict) and all(isinstance(text, str) for text in value.values())
        return "" if fits else "an object of texts"
    if name == "priority":
        return "" if type(value) is int else _A_PRIORITY
    if name == "max_attempts":
        return "" if type(value) is int else _ATTEMPTS
    if name == "retry":
        return _retry_wanted(value)
    if isinstance(value, str):
        return ""
    if name == "enqueue_at":
        return f"an instant, {INSTANT_EXAMPLE}"
    return "a text with a duration, for example 5m" if name in _DURATIONS else "a text"


def _retry_wanted(value: object) -> str:
    if not isinstance(value, dict):
        return 'an object, for example {"delay": "1s"}'
    if not isinstance(value.get("delay"), str):
        return 'an object with a text for delay, for example {"delay": "1s"}'
    texts = all(isinstance(value.get(name, ""), str) for name in ("delay_max", "backoff"))
    if texts and isinstance(value.get("jitter", True), bool):
        return ""
    return "an object with texts for delay, delay_max and backoff, and true or false for jitter"


def _shown(value: object) -> str:
    text = _encode_json(value).decode()
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


def read_csv(stream: BinaryIO, columns: CsvColumns, template: Item) -> Iterator[InputLine]:
    """The first line names the columns. Raises SourceError if a requested column is missing."""
    # Bytes that are not UTF-8 become lone surrogates; the encoder of the row refuses them line by
    # line.
    text = io.TextIOWrapper(stream, "utf-8-sig", errors="surrogateescape", newline="")
    reader = csv.reader(text)
    try:
        header = next(reader, None)
    except csv.Error as error:
        raise SourceError(f"line 1: {error}") from None
    if header is None:
        raise SourceError("the CSV is empty: its first line must name the columns")
    row_item = _RowItem(header, columns, template)
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield InputLine(reader.line_num, problem=str(error))
            continue
        if row:
            yield row_item.line(reader.line_num, row)


class _RowItem:
    """Makes an item of a CSV row."""

    def __init__(self, header: list[str], columns: CsvColumns, template: Item) -> None:
        if len(set(header)) != len(header):
            raise SourceError("two CSV columns have the same name")
        self._header = header
        self._template = template
        self._positions: dict[str, int] = {}
        for field in CsvColumns.__struct_fields__:
            name = getattr(columns, field)
            if name and name not in header:
                raise SourceError(f"the CSV has no column {name!r}; it has: {', '.join(header)}")
            if name:
                self._positions[field] = header.index(name)

    def line(self, number: int, row: list[str]) -> InputLine:
        if len(row) != len(self._header):
            return InputLine(
                number, problem=f"has {len(row)} columns; the first line has {len(self._header)}"
            )
        changes: dict[str, Any] = {
            field: row[position] for field, position in self._positions.items()
        }
        try:
            if "payload" in changes:
                changes["payload"] = changes["payload"].encode()
            else:
                changes["payload"] = _encode_json(dict(zip(self._header, row, strict=True)))
                changes["encoding"] = self._template.encoding or "application/json"
            for value in changes.values():
                if isinstance(value, str):
                    value.encode()
        except UnicodeEncodeError:
            return InputLine(number, problem="is not UTF-8")
        return InputLine(number, msgspec.structs.replace(self._template, **changes))


_ATTEMPTS = f"a whole number from 0 to {ATTEMPTS_MAX}"
_A_PRIORITY = f"a whole number from {PRIORITY_MIN} to {PRIORITY_MAX}"
_DURATIONS = {
    "debounce_max": DEBOUNCE_MAX_MS_MAX,
    "delay": SCHEDULE_AHEAD_MS_MAX,
    "expire_timeout": EXPIRE_TIMEOUT_MS_MAX,
    "keep_result": KEEP_RESULT_MS_MAX,
    "lease_timeout": LEASE_TIMEOUT_MS_MAX,
}
"""Field → the longest duration."""
_SHOWN_CHARS = 80


class JsonItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One line of `--json-lines`. A payload that is not a string is stored as its JSON text. `id`
    and `queue` are those of an export (`querator queue export`), and are not used.
    """

    id: str | None = None
    queue: str | None = None
    payload: msgspec.Raw = msgspec.Raw()
    payload_base64: str | None = None
    kind: str | None = None
    encoding: str | None = None
    reference: str | None = None
    attributes: dict[str, str] | None = None
    priority: int | None = None
    group: str | None = None
    key: str | None = None
    enqueue_at: str | None = None
    delay: str | None = None
    expire_timeout: str | None = None
    lease_timeout: str | None = None
    dedup_key: str | None = None
    on_duplicate: str | None = None
    debounce_max: str | None = None
    keep_result: str | None = None
    max_attempts: int | None = None
    retry: JsonRetry | None = None


_AS_GIVEN = (
    "kind", "encoding", "reference", "attributes", "priority", "group", "key", "dedup_key",
    "on_duplicate", "max_attempts",
)  # fmt: skip
_decode_json_item = msgspec.json.Decoder(JsonItem).decode
_decode_any = msgspec.json.Decoder().decode
_encode_json = msgspec.json.Encoder().encode


def _json_item(line: JsonItem, template: Item) -> Item:
    changes: dict[str, Any] = {
        name: getattr(line, name) for name in _AS_GIVEN if getattr(line, name) is not None
    }
    changes["payload"] = _json_payload(line)
    if not PRIORITY_MIN <= changes.get("priority", 0) <= PRIORITY_MAX:
        raise ValueError(f"priority is {line.priority}; it must be {_A_PRIORITY}")
    if not 0 <= changes.get("max_attempts", 0) <= ATTEMPTS_MAX:
        raise ValueError(f"max_attempts is {line.max_attempts}; it must be {_ATTEMPTS}")
    if changes.get("on_duplicate", "keep") not in ON_DUPLICATE:
        raise ValueError(
            f"on_duplicate is {_shown(line.on_duplicate)}; it must be one of "
            f"{', '.join(ON_DUPLICATE)}"
        )
    if line.retry is not None:
        changes["retry"] = retry_of(line.retry)
    if line.enqueue_at is not None:
        try:
            instant = parse_instant(line.enqueue_at)
        except ValueError:
            raise ValueError(
                f"enqueue_at is {_shown(line.enqueue_at)}; it must be an instant, {INSTANT_EXAMPLE}"
            ) from None
        changes["enqueue_at"], changes["delay"] = instant, None
    if line.delay is not None:
        if line.enqueue_at is not None:
            raise ValueError("give enqueue_at or delay, not both")
        changes["enqueue_at"] = None
    for name, most_ms in _DURATIONS.items():
        if (text := getattr(line, name)) is not None:
            changes[name] = duration_field(name, text, timedelta(milliseconds=most_ms))
    return msgspec.structs.replace(template, **changes)


def _json_payload(line: JsonItem) -> bytes:
    given = bytes(line.payload)
    if given and line.payload_base64 is not None:
        raise ValueError("give payload or payload_base64, not both")
    if line.payload_base64 is not None:
        try:
            return base64.b64decode(line.payload_base64, validate=True)
        except binascii.Error:
            raise ValueError("payload_base64 is not base64") from None
    if not given:
        raise ValueError("payload is missing")
    value = _decode_any(given)
    return value.encode() if isinstance(value, str) else given


def _bounded_lines(stream: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
    """Number and bytes of each line without its end; None for one that is too long."""
    number = 0
    while line := stream.readline(LINE_BYTES_MAX + 1):
        number += 1
        if len(line) > LINE_BYTES_MAX:
            while line and not line.endswith(b"\n"):
                line = stream.readline(LINE_BYTES_MAX)
            yield number, None
        else:
            yield number, line.removesuffix(b"\n").removesuffix(b"\r")


def _too_long(number: int) -> InputLine:
    return InputLine(number, problem=f"is longer than {LINE_BYTES_MAX:,} bytes")
