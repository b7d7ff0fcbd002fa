"""The columns of reads, without Arrow: its import takes longer than the work of Spark's short-lived
processes on the driver. `columns.ARROW_SCHEMA` is the same schema.
"""

from typing import Final

SPARK_SCHEMA: Final = (
    "`key` string, `value` binary, `queue` string, `partition` int, `offset` bigint, "
    "`timestamp` timestamp, `headers` array<struct<`key`: string, `value`: binary>>, `id` string, "
    "`kind` string, `encoding` string, `reference` string, `priority` int, `group` string, "
    "`attempts` int, `state` string, `enqueue_at` timestamp, `due_at` timestamp, "
    "`errors` array<string>, "
    "`dead_letter` struct<`queue`: string, `partition`: int, `offset`: bigint, `attempts`: int, "
    "`reason`: string, `timestamp`: timestamp, `died_at`: timestamp, `errors`: array<string>>"
)
"""The schema as DDL."""
COLUMNS: Final = (
    "key",
    "value",
    "queue",
    "partition",
    "offset",
    "timestamp",
    "headers",
    "id",
    "kind",
    "encoding",
    "reference",
    "priority",
    "group",
    "attempts",
    "state",
    "enqueue_at",
    "due_at",
    "errors",
    "dead_letter",
)
