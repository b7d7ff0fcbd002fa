"""Executions as lines of JSON: what a replay of their journals needs.

A line has the execution and all its records. Payloads are texts where they are UTF-8, as those of
the default codec are; else they are base64. A line has the data of its execution, and nothing that
opens its promises: random numbers follow from `chance`, a hash of the secret.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path as FilePath
from typing import Annotated, BinaryIO, Final

import msgspec

from querator.durable.paths import Path
from querator.durable.promises import ExecutionIdentity
from querator.model.errors import QueratorError
from querator.model.executions import (
    ARRIVAL,
    PATH_ELEMENT_END,
    TIME_MS_END,
    JournalRecord,
    Note,
    RecordKind,
    decode_path,
    encode_path,
)
from querator.model.limits import EXECUTION_SECRET_BYTES

LINE_BYTES_MAX: Final = 1 << 29
"""Of a line. A journal has up to 16 MiB, and a byte up to six characters."""
_FORMAT: Final = 1
_KINDS: Final = {kind.name.lower(): kind for kind in RecordKind}
_NAMES: Final = {int(kind): name for name, kind in _KINDS.items()}
_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
_Time = Annotated[int, msgspec.Meta(ge=0, lt=TIME_MS_END)]


class ExportError(ValueError):
    """A line is not that of an exported execution."""


class ExportedExecution(msgspec.Struct, frozen=True, kw_only=True):
    """An execution with the journal of one run. `origin_run` is the run in which the journal has
    begun. `chance`: what random numbers follow from. `timers`: the paths of those that were set.
    """

    id: str
    function: str
    version: str
    run: int
    origin_run: int
    state: str
    namespace: str
    queue: str
    partition: int
    number: int
    chance: bytes
    timers: tuple[Path, ...]
    records: tuple[JournalRecord, ...]

    def to_json(self) -> bytes:
        """The line, with its end."""
        return msgspec.json.encode(_as_line(self)) + b"\n"

    @property
    def identity(self) -> ExecutionIdentity:
        return ExecutionIdentity(
            namespace=self.namespace, queue=self.queue, partition=self.partition,
            number=self.number, id=self.id, run=self.run, secret=bytes(EXECUTION_SECRET_BYTES),
            origin=self.origin_run, chance=self.chance,
        )  # fmt: skip


class _Record(msgspec.Struct, frozen=True, omit_defaults=True):
    index: _Count
    kind: str
    path: str = ""
    name: str = ""
    site: str = ""
    after: _Count = 0
    at_ms: _Time = 0
    payload: str = ""
    payload_base64: bytes | None = None


class _Line(msgspec.Struct, frozen=True):
    querator_execution: int
    id: str
    function: str
    version: str
    run: _Count
    origin_run: _Count
    state: str
    namespace: str
    queue: str
    partition: _Count
    number: _Count
    chance: bytes
    timers: list[str]
    records: list[_Record]


_decode: Final = msgspec.json.Decoder(_Line).decode


def read_exports(file: BinaryIO) -> Iterator[tuple[int, "ExportedExecution | ExportError"]]:
    """Yields the number of each line, counted from 1, with its execution, or what is wrong with it.
    Empty lines are skipped.
    """
    number = 0
    while line := file.readline(LINE_BYTES_MAX + 1):
        number += 1
        if len(line) > LINE_BYTES_MAX:
            yield number, ExportError(f"the line has over {LINE_BYTES_MAX} bytes")
            return
        if not line.strip():
            continue
        try:
            yield number, from_json(line)
        except ExportError as error:
            if not line.endswith(b"\n"):
                error = ExportError(f"the file is cut off here: {error}")
            yield number, error


@contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
    """The file, or standard input for `-`. Raises OSError."""
    if path == "-":
        yield sys.stdin.buffer
        return
    with FilePath(path).open("rb") as file:
        yield file


def from_json(line: bytes) -> ExportedExecution:
    """Raises ExportError."""
    try:
        read = _decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ExportError(f"this is no exported execution: {error}") from error
    if read.querator_execution != _FORMAT:
        raise ExportError(
            f"querator_execution is {read.querator_execution}; this version of Querator reads "
            f"{_FORMAT}"
        )
    if len(read.chance) != EXECUTION_SECRET_BYTES:
        raise ExportError(
            f"chance has {len(read.chance)} bytes; it must have {EXECUTION_SECRET_BYTES}"
        )
    records = tuple(_journal_record(one, f"records[{nth}]") for nth, one in enumerate(read.records))
    if not records or records[0].note.kind != RecordKind.STARTED:
        raise ExportError("records does not begin with one of the kind started")
    for nth, (one, other) in enumerate(pairwise(records), 1):
        if other.index <= one.index:
            raise ExportError(
                f"records[{nth}].index is {other.index}; it must be above {one.index}"
            )
        if other.note.kind == RecordKind.STARTED:
            raise ExportError(f"records[{nth}].kind is started; only the first one may be")
    return ExportedExecution(
        id=read.id, function=read.function, version=read.version, run=read.run,
        origin_run=read.origin_run, state=read.state, namespace=read.namespace, queue=read.queue,
        partition=read.partition, number=read.number, chance=read.chance,
        timers=tuple(_path(one, f"timers[{nth}]") for nth, one in enumerate(read.timers)),
        records=records,
    )  # fmt: skip


def _as_line(exported: ExportedExecution) -> _Line:
    return _Line(
        querator_execution=_FORMAT, id=exported.id, function=exported.function,
        version=exported.version, run=exported.run, origin_run=exported.origin_run,
        state=exported.state, namespace=exported.namespace, queue=exported.queue,
        partition=exported.partition, number=exported.number, chance=exported.chance,
        timers=[_path_text(path) for path in exported.timers],
        records=[_as_record(record) for record in exported.records],
    )  # fmt: skip


def _as_record(record: JournalRecord) -> _Record:
    note = record.note
    try:
        text, encoded = note.payload.decode(), None
    except UnicodeDecodeError:
        text, encoded = "", note.payload
    return _Record(
        index=record.index, kind=_NAMES.get(note.kind, str(note.kind)), path=_path_text(note.path),
        name=note.name, site=note.site, after=note.after, at_ms=note.at_ms, payload=text,
        payload_base64=encoded,
    )  # fmt: skip


def _journal_record(read: _Record, field: str) -> JournalRecord:
    kind = _KINDS.get(read.kind)
    if kind is None:
        raise ExportError(f"{field}.kind is {read.kind!r}, which is no kind of a record")
    if kind < ARRIVAL and read.after >= max(read.index, 1):
        raise ExportError(
            f"{field}.after is {read.after}; it must be below the index {read.index} of its record"
        )
    payload = read.payload.encode() if read.payload_base64 is None else read.payload_base64
    note = Note(
        kind=kind, path=_path(read.path, f"{field}.path"), name=read.name, site=read.site,
        after=read.after, at_ms=read.at_ms, payload=payload,
    )  # fmt: skip
    return JournalRecord(read.index, note)


def _path_text(path: Path) -> str:
    return ".".join(map(str, decode_path(path)))


def _path(text: str, field: str) -> Path:
    try:
        elements = [int(one) for one in text.split(".")] if text else []
        if not all(0 <= one < PATH_ELEMENT_END for one in elements):
            raise ValueError("an element is too large")
        path = encode_path(elements)
    except (ValueError, QueratorError):
        raise ExportError(f"{field} is {text!r}; it must be like 1.3, or empty") from None
    return path
