"""Executions that begin again, under faults; `python -m tests.simulation.restarts` runs more."""

from contextlib import AbstractContextManager
from typing import Any

import pytest

from querator.durable.machine import living
from querator.model.executions import RecordKind
from querator.partition import execution_runs, execution_starts, recording
from tests.simulation.mutants import replaced
from tests.simulation.restarts import LIVES, many, run

SEEDS = 30


def test_a_request_begins_one_run() -> None:
    tally = many(range(SEEDS))
    assert tally.runs == LIVES * SEEDS
    assert tally.repeats > 5 * SEEDS
    assert tally.open > SEEDS
    assert tally.heard > SEEDS / 2
    assert tally.deaths > SEEDS
    assert tally.refused > 0
    assert living() == 0


def unfenced() -> AbstractContextManager[None]:
    """A worker whose lease is over records in the next run."""
    return replaced(recording, "_holds", lambda context, command, row: row.activation > 0)


def begins_twice() -> AbstractContextManager[None]:
    """A repeat of a start begins another run."""
    return replaced(execution_starts, "has_begun", lambda row, request: False)


def knows_the_last_request() -> AbstractContextManager[None]:
    """A repeat that comes behind another start begins another run."""
    return replaced(execution_starts, "_REQUESTS_BYTES_MAX", 16)


def leaves_children() -> AbstractContextManager[None]:
    """Children of the former run are not cancelled."""
    return replaced(execution_runs, "forget_children", lambda *arguments, reason: 0)


def keeps_signals() -> AbstractContextManager[None]:
    """Signals of the former run are received by the next one."""

    def records(context: Any, number: int) -> list[Any]:
        return [one for one in before(context, number) if one[1].kind != RecordKind.SIGNAL]

    before = execution_runs._records
    return replaced(execution_runs, "_records", records)


def keeps_the_waits() -> AbstractContextManager[None]:
    """Timers of the former run fire in the next one."""
    return replaced(execution_runs, "_drop_waits", lambda context, number, row: None)


@pytest.mark.parametrize(
    "mutant",
    [
        unfenced, begins_twice, knows_the_last_request, leaves_children, keeps_signals,
        keeps_the_waits,
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
