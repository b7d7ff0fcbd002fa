"""Loops that continue as new runs, under faults; `python -m tests.simulation.loops` runs more."""

from contextlib import AbstractContextManager
from typing import Any

import pytest

from querator.durable.machine import ExecutionMachine, living
from querator.durable.mailboxes import Mailbox
from querator.model.executions import RecordKind
from querator.partition import execution_runs, recording
from tests.simulation.loops import many, run
from tests.simulation.mutants import replaced

SEEDS = 40


def test_signals_are_received_once_over_all_runs() -> None:
    tally = many(range(SEEDS))
    assert tally.runs > 10 * SEEDS
    assert tally.unread > 20 * SEEDS
    assert tally.deaths > SEEDS
    assert tally.refused > 0
    assert tally.repeats > SEEDS
    assert living() == 0


def unfenced() -> AbstractContextManager[None]:
    """A worker whose lease is over ends the run of another one."""
    return replaced(recording, "_holds", lambda context, command, row: row.activation > 0)


def drops_the_mailboxes() -> AbstractContextManager[None]:
    """Signals that the code was given, and has not received, do not come along."""
    return replaced(Mailbox, "indexes", property(lambda self: []))


def sees_behind_the_end() -> AbstractContextManager[None]:
    """Signals that come behind the end of a run count as given."""

    def deliver(self: ExecutionMachine, record: Any) -> None:
        before(self, record)
        if record.note.kind == RecordKind.SIGNAL:
            self._seen = max(self._seen, record.index)

    before = ExecutionMachine._deliver
    return replaced(ExecutionMachine, "_deliver", deliver)


def drops_what_is_unseen() -> AbstractContextManager[None]:
    """A new run has no signals at all."""

    def drop(context: Any, number: int, row: Any, unread: Any) -> None:
        row.seen = row.next_index
        before(context, number, row, ())

    before = execution_runs._drop_records
    return replaced(execution_runs, "_drop_records", drop)


def keeps_what_was_received() -> AbstractContextManager[None]:
    return replaced(execution_runs, "_is_in", lambda index, runs: True)


def keeps_the_waits() -> AbstractContextManager[None]:
    """Timers of a run fire in the next one."""
    return replaced(execution_runs, "_drop_waits", lambda context, number, row: None)


@pytest.mark.parametrize(
    "mutant",
    [
        unfenced, drops_the_mailboxes, sees_behind_the_end, drops_what_is_unseen,
        keeps_what_was_received, keeps_the_waits,
    ],
)  # fmt: skip
def test_a_mutant_is_found(mutant: Any) -> None:
    with mutant():
        for seed in range(SEEDS):
            try:
                run(seed)
            except AssertionError:
                return
    raise AssertionError(f"{mutant.__name__} was not found by {SEEDS} seeds")
