"""Reads of recurrences for other threads: by name, as pages, and those that wait for the leader."""

from collections.abc import Iterator

import msgspec

from querator.model.recurrences import RecurrenceState, RunCounts, jitter_ms
from querator.partition.queries import state_time
from querator.partition.recurrences import NOW, load, named
from querator.partition.rows import PartitionState, decode_state
from querator.storage import generations
from querator.storage.environment import ReadTransaction
from querator.storage.tables import RECURRENCE_TIMES, RECURRENCES, STATE

RUNS_READ_MAX = 64
RUNS_READ_BYTES = 1 << 20
"""Waiting recurrences, and about bytes of their templates, that are read for the counts."""


class RecurrencePage(msgspec.Struct, frozen=True, array_like=True):
    """Recurrences by number. `now_ms` is state time. `after`: where the next page starts; 0: there
    is none.
    """

    recurrences: tuple[RecurrenceState, ...]
    now_ms: int
    after: int = 0


def by_name(txn: ReadTransaction, group: int, name: str) -> RecurrencePage:
    """One recurrence, or none."""
    txn = generations.view(txn, group)
    found = named(txn, group, name)
    return RecurrencePage(() if found is None else (found,), state_time(txn, group))


def page(
    txn: ReadTransaction, group: int, *, after: int, limit: int, bytes_max: int
) -> RecurrencePage:
    """At most `limit` recurrences after a number, and about `bytes_max` bytes of templates."""
    txn = generations.view(txn, group)
    _, stop = RECURRENCES.bounds(group)
    numbers = (
        int.from_bytes(key[-8:], "big")
        for key, _ in txn.scan(RECURRENCES.key(group, after + 1), stop)
    )
    return _taken(txn, group, numbers, limit, bytes_max)


def waiting(
    txn: ReadTransaction, group: int, *, after: int, limit: int, bytes_max: int
) -> RecurrencePage:
    """As `page`, of the recurrences that wait for the leader."""
    txn = generations.view(txn, group)
    start = RECURRENCE_TIMES.key(group, NOW, after + 1)
    _, stop = RECURRENCE_TIMES.bounds(group, NOW)
    numbers = (int.from_bytes(key[-8:], "big") for key, _ in txn.scan(start, stop))
    return _taken(txn, group, numbers, limit, bytes_max)


def run_counts(txn: ReadTransaction, group: int) -> RunCounts:
    """Of the recurrences that wait for the leader, the first RUNS_READ_MAX are considered."""
    raw = STATE.get(generations.view(txn, group), group)
    state = PartitionState() if raw is None else decode_state(raw)
    waits_since_ms = 0
    if state.recurring:
        page = waiting(txn, group, after=0, limit=RUNS_READ_MAX, bytes_max=RUNS_READ_BYTES)
        instants = (_fire_ms(group, one) for one in page.recurrences)
        waits_since_ms = min((at_ms for at_ms in instants if at_ms), default=0)
    return RunCounts(
        state.runs_fired, state.runs_skipped, state.runs_missed, state.runs_late_ms, waits_since_ms
    )


def _fire_ms(group: int, recurrence: RecurrenceState) -> int:
    """When its next run fires; 0: that is not known."""
    due_ms = recurrence.runs.next_due_ms
    return due_ms and due_ms + jitter_ms(group, recurrence.number, recurrence.row.spec, due_ms)


def _taken(
    txn: ReadTransaction, group: int, numbers: Iterator[int], limit: int, bytes_max: int
) -> RecurrencePage:
    found: list[RecurrenceState] = []
    size = 0
    for number in numbers:
        if len(found) == limit or (found and size >= bytes_max):
            return RecurrencePage(tuple(found), state_time(txn, group), found[-1].number)
        recurrence = load(txn, group, number)
        assert recurrence is not None, "the index names a recurrence"
        found.append(recurrence)
        size += len(recurrence.row.spec.item)
    return RecurrencePage(tuple(found), state_time(txn, group))
