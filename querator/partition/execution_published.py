"""Published values of an execution: what its code lets readers outside see, by key.

A Record carries the values that are new. Each has a row of its own, with the version at which it
has changed: the versions of an execution count all changes. A value that is published again as it
is changes nothing, so that a worker may send it more than once. The values stay with an execution
that has ended.
"""

from typing import NamedTuple

from querator.model.commands import Refusal
from querator.model.errors import ErrorCode
from querator.model.execution_commands import RecordProgress
from querator.model.limits import PUBLISHED_BYTES_MAX, PUBLISHED_KEYS_MAX
from querator.partition.apply_context import ApplyContext
from querator.partition.execution_rows import (
    ExecutionRow,
    PublishedRow,
    decode_published,
    name_hash,
)
from querator.partition.executions import counts_of
from querator.partition.rows import encode
from querator.storage.tables import PUBLISHED


class PublishedChange(NamedTuple):
    """A value that is new, or another one than before."""

    mark: bytes
    key: str
    value: bytes
    growth: int
    is_new: bool


def judge_published(
    context: ApplyContext,
    command: RecordProgress,
    row: ExecutionRow,
    changes: list[PublishedChange],
) -> Refusal | None:
    """Finds what a Record changes. Returns the refusal of values for which there is no room."""
    for one in command.published:
        mark = name_hash(one.key)
        raw = PUBLISHED.get(context.txn, context.group, command.execution, mark)
        if raw is None:
            growth = len(one.key.encode()) + len(one.value)
            changes.append(PublishedChange(mark, one.key, one.value, growth, is_new=True))
            continue
        old = decode_published(raw).value
        if old != one.value:
            growth = len(one.value) - len(old)
            changes.append(PublishedChange(mark, one.key, one.value, growth, is_new=False))
    keys = row.published + sum(change.is_new for change in changes)
    size = row.published_bytes + sum(change.growth for change in changes)
    if keys > PUBLISHED_KEYS_MAX:
        return _too_much(row, keys, PUBLISHED_KEYS_MAX, "keys")
    if changes and size > PUBLISHED_BYTES_MAX:
        return _too_much(row, size, PUBLISHED_BYTES_MAX, "bytes")
    return None


def _too_much(row: ExecutionRow, value: int, limit: int, unit: str) -> Refusal:
    return Refusal(
        ErrorCode.LIMIT_EXCEEDED,
        f"execution {row.id} would have published {value} {unit}; the limit is {limit} {unit}",
        field="published",
        limit=f"{limit} {unit}",
        value=f"{value} {unit}",
    )


def publish(
    context: ApplyContext, number: int, row: ExecutionRow, changes: list[PublishedChange]
) -> None:
    """Carries the changes out. The caller writes the row."""
    if not changes:
        return
    counts_of(context).notices += 1
    context.published_ids.append(row.id)
    for change in changes:
        row.published_version += 1
        row.published += change.is_new
        row.published_bytes += change.growth
        value = PublishedRow(change.key, change.value, row.published_version)
        PUBLISHED.put(context.txn, context.group, number, change.mark, value=encode(value))
