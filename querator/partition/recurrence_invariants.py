"""The invariants of the tables of recurrences (`partition.invariants`)."""

from querator.partition.recurrences import NEVER, NOW, decode_recurrence, decode_runs, name_hash
from querator.partition.rows import PartitionState
from querator.storage.environment import ReadTransaction
from querator.storage.tables import (
    RECURRENCE_NAMES,
    RECURRENCE_RUNS,
    RECURRENCE_TIMES,
    RECURRENCES,
)


def check_recurrences(txn: ReadTransaction, group: int, state: PartitionState) -> list[str]:
    wrong: list[str] = []
    rows = {
        int.from_bytes(key[-8:], "big"): decode_recurrence(raw)
        for key, raw in RECURRENCES.rows(txn, group)
    }
    runs = {
        int.from_bytes(key[-8:], "big"): decode_runs(raw)
        for key, raw in RECURRENCE_RUNS.rows(txn, group)
    }
    if rows.keys() != runs.keys():
        wrong.append("recurrences and their runs disagree")
    names = {
        bytes(key[-16:]): int.from_bytes(raw, "big")
        for key, raw in RECURRENCE_NAMES.rows(txn, group)
    }
    if names != {name_hash(row.name): number for number, row in rows.items()}:
        wrong.append("recurrences and their names disagree")
    if any(number >= state.next_recurrence for number in rows):
        wrong.append("the number of a recurrence will be used again")
    times = {RECURRENCE_TIMES.parts(key) for key, _ in RECURRENCE_TIMES.rows(txn, group)}
    if times != {(one.place_ms, number) for number, one in runs.items() if one.place_ms != NEVER}:
        wrong.append("recurrences and their index of times disagree")
    for number, one in runs.items():
        row = rows.get(number)
        if row is not None and row.paused != (one.place_ms == NEVER):
            wrong.append(f"recurrence {number} is paused, or in the index of times")
        if one.next_due_ms and not one.after_ms < one.next_due_ms:
            wrong.append(f"the next due time of recurrence {number} is decided")
        if any(span.from_ms > span.upto_ms for span in one.spans):
            wrong.append(f"a span of recurrence {number} ends before it begins")
    if state.recurrences != len(rows):
        wrong.append(f"recurrences counts {state.recurrences}; there are {len(rows)}")
    waiting = sum(one.place_ms == NOW for one in runs.values())
    if state.recurring != waiting:
        wrong.append(f"recurring counts {state.recurring}; there are {waiting}")
    first_ms = min((one.place_ms for one in runs.values() if one.place_ms > NOW), default=0)
    if first_ms and not 0 < state.recurring_head_ms <= first_ms:
        wrong.append(f"recurrences come at {first_ms}; the head says {state.recurring_head_ms}")
    return wrong
