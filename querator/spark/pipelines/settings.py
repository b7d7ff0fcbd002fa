"""Settings of the pipelines: typed, and checked when they are made, without Spark.

Checks that need Spark or the cluster (a column, a path, a queue) are made by the pipeline itself,
before data moves.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Final, Literal

import msgspec

from querator.client.values import DeadReason
from querator.spark.options import RETRY_SECONDS, browse_options, stream_options, target
from querator.spark.pipelines.reader_options import find_unknown
from querator.spark.pipelines.setting_types import find_fault

FileFormat = Literal["json", "csv", "parquet", "text"]
FORMATS: Final[tuple[FileFormat, ...]] = ("json", "csv", "parquet", "text")
MODES: Final = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")
"""Spark's modes for records that cannot be read."""
ARCHIVE_PARTITIONS: Final = ("date=to_date(timestamp)", "kind")
ARCHIVE_ITEMS: Final = 200_000
ARCHIVE_BYTES: Final = 256 * 1024 * 1024
EVERY_SECONDS_MAX: Final = 86_400
ARCHIVE_SECONDS: Final = 60.0
"""Seconds between batches of a continuous archive: each batch has its own files."""
RATE_MAX: Final = 10_000_000
REASONS: Final = tuple(reason.name.lower() for reason in DeadReason)
INGEST_BYTES: Final = 256 * 1024 * 1024
_PATTERN: Final = frozenset("*?[]{}\\")
_NAME: Final = re.compile(r"[A-Za-z_]\w*")


class SettingsError(ValueError):
    """A setting is missing or wrong; the message names it, its value and a remedy."""


def _check_types(settings: msgspec.Struct) -> None:
    fault = find_fault(settings)
    if fault:
        raise SettingsError(fault)


class QueuePlace(msgspec.Struct, frozen=True):
    """A queue, and its address for Spark's machines: `endpoint` is `host:port` of a node, or
    several with commas between. TLS files are on every machine of Spark: the CA file alone means
    TLS, all three mean mutual TLS. `retry_seconds` is how long failures may last, 1 to 86,400.
    """

    endpoint: str
    queue: str
    namespace: str = ""
    tls_ca_file: str = ""
    tls_cert_file: str = ""
    tls_key_file: str = ""
    retry_seconds: float = RETRY_SECONDS

    def __post_init__(self) -> None:
        """Raises OptionError, SettingsError."""
        _check_types(self)
        if not self.queue:
            raise SettingsError("queue is empty: give the name of a queue")
        target(self.options())

    def options(self, **more: str) -> dict[str, str]:
        """Options for the data source, without empty ones."""
        given = {
            "endpoint": self.endpoint,
            "queue": self.queue,
            "namespace": self.namespace,
            "tlsCaFile": self.tls_ca_file,
            "tlsCertFile": self.tls_cert_file,
            "tlsKeyFile": self.tls_key_file,
            "retryTimeout": str(self.retry_seconds),
            **more,
        }
        return {name: value for name, value in given.items() if value}


class Columns(msgspec.Struct, frozen=True):
    """Sources of an item's fields: for each an SQL expression over the columns of the source; ""
    leaves it to the pipeline.
    """

    value: str = ""
    key: str = ""
    kind: str = ""
    encoding: str = ""
    reference: str = ""
    headers: str = ""
    priority: str = ""
    group: str = ""
    enqueue_at: str = ""
    dedupe_key: str = ""
    max_attempts: str = ""
    retry: str = ""

    def __post_init__(self) -> None:
        """Raises SettingsError."""
        _check_types(self)


class IngestSettings(msgspec.Struct, frozen=True):
    """Settings of `ingest`. `schema` is DDL; "" infers it. `options` are those of Spark's reader of
    the format. `where` drops rows that do not satisfy it. With a `checkpoint` each file is ingested
    once, however often the pipeline runs, in batches of about `max_bytes`; without one, all of
    `path` is one transaction.
    """

    path: str
    format: FileFormat
    target: QueuePlace
    columns: Columns = Columns()
    schema: str = ""
    options: Mapping[str, str] = {}
    where: str = ""
    checkpoint: str = ""
    continuous: bool = False
    max_bytes: int = INGEST_BYTES

    def __post_init__(self) -> None:
        """Raises SettingsError."""
        _check_types(self)
        _given("path", self.path, "files or a directory of them")
        if self.format not in FORMATS:
            raise SettingsError(f"format is {self.format!r}: there are {', '.join(FORMATS)}")
        if self.continuous and not self.checkpoint:
            raise SettingsError(
                "continuous needs a checkpoint: a directory that records which files are done"
            )
        _positive("max_bytes", self.max_bytes)
        unknown = find_unknown(self.format, self.options)
        if unknown:
            raise SettingsError(unknown)
        for name, value in self.options.items():
            if name.lower() == "mode" and value.upper() not in MODES:
                # Spark takes an unknown mode for PERMISSIVE, and makes nulls of wrong records.
                raise SettingsError(f"option mode={value}: there are {', '.join(MODES)}")


class StreamSettings(msgspec.Struct, frozen=True):
    """How items are taken out of a queue. `reader_id` and `checkpoint` belong together, to one
    pipeline. `adopt`: if the checkpoint is behind the queue, continue at the queue's position.
    `min_tasks`: the least number of tasks for a batch. `skip_released`: continue without the items
    of batches that an operator has given back to the queue, and count them as left out. A run ends
    when it has taken all available items, or is `continuous`, with at most one batch in
    `every_seconds`.
    """

    reader_id: str
    checkpoint: str
    max_items: int
    max_bytes: int
    min_tasks: int = 1
    adopt: bool = False
    continuous: bool = False
    every_seconds: float = 0
    skip_released: bool = False

    def options(self, place: QueuePlace) -> dict[str, str]:
        """Options for the data source. Raises OptionError, SettingsError."""
        _given(
            "reader_id",
            self.reader_id,
            "a name for this pipeline, under which the queue records its progress",
        )
        _given("checkpoint", self.checkpoint, "a directory that records the progress")
        if not 0 <= self.every_seconds <= EVERY_SECONDS_MAX:
            raise SettingsError(
                f"every_seconds is {self.every_seconds:,.0f} s: give 0 to {EVERY_SECONDS_MAX:,} s"
            )
        options = place.options(
            readerId=self.reader_id,
            maxItemsPerTrigger=str(self.max_items),
            maxBytesPerTrigger=str(self.max_bytes),
            minPartitions=str(self.min_tasks),
            onCheckpointMismatch="adopt" if self.adopt else "fail",
            failOnDataLoss=str(not self.skip_released).lower(),
        )
        stream_options(options)
        return options


class ArchiveSettings(msgspec.Struct, frozen=True):
    """Settings of `archive`. `partition_by`: columns, or `name=SQL expression`; empty: no
    directories below `path`. `checkpoint` "" is `_checkpoint` below `path`. Other fields are as in
    StreamSettings.
    """

    source: QueuePlace
    reader_id: str
    path: str
    partition_by: tuple[str, ...] = ARCHIVE_PARTITIONS
    checkpoint: str = ""
    max_items: int = ARCHIVE_ITEMS
    max_bytes: int = ARCHIVE_BYTES
    min_tasks: int = 1
    adopt: bool = False
    continuous: bool = False
    every_seconds: float = ARCHIVE_SECONDS
    skip_released: bool = False

    def __post_init__(self) -> None:
        """Raises OptionError, SettingsError."""
        _check_types(self)
        _given("path", self.path, "the directory of the archive")
        if _PATTERN.intersection(self.path):
            raise SettingsError(
                f"path is {self.path}: Spark takes it for a pattern, and would not find the files "
                f"again; give one without {' '.join(sorted(_PATTERN))}"
            )
        for each in self.partition_by:
            name, _ = partition_column(each)
            if _NAME.fullmatch(name) is None:
                raise SettingsError(
                    f"partition_by has {each!r}: give a column, or name=SQL expression"
                )
        self.stream.options(self.source)

    @property
    def stream(self) -> StreamSettings:
        checkpoint = self.checkpoint or f"{self.path.rstrip('/')}/_checkpoint"
        return StreamSettings(
            reader_id=self.reader_id,
            checkpoint=checkpoint,
            max_items=self.max_items,
            max_bytes=self.max_bytes,
            min_tasks=self.min_tasks,
            adopt=self.adopt,
            continuous=self.continuous,
            every_seconds=self.every_seconds,
            skip_released=self.skip_released,
        )


class CopySettings(msgspec.Struct, frozen=True):
    """Settings of `copy`. `columns` are expressions over the columns of the source; a column
    without one is unchanged. Items that do not satisfy `where` are taken as well, and left out.
    """

    source: QueuePlace
    target: QueuePlace
    reader_id: str
    checkpoint: str
    columns: Columns = Columns()
    where: str = ""
    max_items: int = ARCHIVE_ITEMS
    max_bytes: int = ARCHIVE_BYTES
    min_tasks: int = 1
    adopt: bool = False
    continuous: bool = False
    every_seconds: float = 0
    skip_released: bool = False

    def __post_init__(self) -> None:
        """Raises OptionError, SettingsError."""
        _check_types(self)
        source, target = self.source, self.target
        if (source.endpoint, source.namespace, source.queue) == (
            target.endpoint,
            target.namespace,
            target.queue,
        ):
            raise SettingsError(
                f"source and target are both queue {source.queue}: the copy would never end"
            )
        self.stream.options(self.source)

    @property
    def stream(self) -> StreamSettings:
        return StreamSettings(
            reader_id=self.reader_id,
            checkpoint=self.checkpoint,
            max_items=self.max_items,
            max_bytes=self.max_bytes,
            min_tasks=self.min_tasks,
            adopt=self.adopt,
            continuous=self.continuous,
            every_seconds=self.every_seconds,
            skip_released=self.skip_released,
        )


class StatsSettings(msgspec.Struct, frozen=True):
    """Settings of `stats`. Without `sizes` payloads are not transferred. `min_tasks`: the least
    number of tasks.
    """

    source: QueuePlace
    sizes: bool = True
    min_tasks: int = 1

    def __post_init__(self) -> None:
        """Raises OptionError, SettingsError."""
        _check_types(self)
        browse_options(self.options())

    def options(self) -> dict[str, str]:
        """Options for the data source."""
        return self.source.options(
            includeValue=str(self.sizes).lower(), minPartitions=str(self.min_tasks)
        )


class RedriveSettings(msgspec.Struct, frozen=True):
    """Settings of `redrive`. `queue` is the one in which the items died. `reasons`, `kinds` ("":
    items without one) and `where` select dead letters; `where` is over the columns of reads with
    `reason`, `died_at` and `error` (the last one). `rate`: the most items per second, 0: no limit.
    """

    queue: QueuePlace
    reasons: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    where: str = ""
    dry_run: bool = False
    rate: float = 0

    def __post_init__(self) -> None:
        """Raises SettingsError."""
        _check_types(self)
        for reason in self.reasons:
            if reason not in REASONS:
                raise SettingsError(f"reasons has {reason!r}: there are {', '.join(REASONS)}")
        _rate(self.rate)


class ReplaySettings(msgspec.Struct, frozen=True):
    """Settings of `replay`. Selects items that were produced at `since` or later, and before
    `until`; None: no bound. `rate`: the most items per second, 0: no limit. `checkpoint` remembers
    the finished files; it belongs to `target` and to the range.
    """

    path: str
    target: QueuePlace
    checkpoint: str
    since: datetime | None = None
    until: datetime | None = None
    columns: Columns = Columns()
    where: str = ""
    rate: float = 0

    def __post_init__(self) -> None:
        """Raises SettingsError."""
        _check_types(self)
        _given("path", self.path, "the directory of an archive")
        _given("checkpoint", self.checkpoint, "a directory that records the progress")
        for name, instant in (("since", self.since), ("until", self.until)):
            if instant is not None and instant.tzinfo is None:
                raise SettingsError(f"{name} is {instant.isoformat()}: it needs a time zone")
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise SettingsError("since must be before until")
        _rate(self.rate)


def partition_column(text: str) -> tuple[str, str]:
    """Name and SQL expression of an element of `partition_by`."""
    name, separator, expression = text.partition("=")
    return name.strip(), (expression if separator else f"`{name.strip()}`").strip()


def _given(name: str, value: str, what: str) -> None:
    if not value:
        raise SettingsError(f"{name} is missing: give {what}")


def _rate(rate: float) -> None:
    if not 0 <= rate <= RATE_MAX:
        raise SettingsError(
            f"rate is {rate:g}: give items per second, up to {RATE_MAX:,}; 0: no limit"
        )


def _positive(name: str, value: float) -> None:
    if not value > 0:
        raise SettingsError(f"{name} is {value}: give more than 0")
