"""Durable functions on the tables of a partition, under faults; `python -m
tests.simulation.executions` runs more seeds.
"""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from querator.durable import outbox
from querator.durable.machine import living
from querator.durable.publishing import Publishing
from querator.model.commands import Refusal
from querator.model.execution_commands import RecordProgress
from querator.model.executions import Close, Note, RecordKind
from querator.partition import recording
from querator.partition.apply_context import ApplyContext
from querator.partition.execution_folds import as_row
from querator.partition.execution_published import PublishedChange, judge_published
from querator.partition.execution_rows import ExecutionRow, RecordRow
from querator.partition.executions import Part
from tests.simulation.executions import RealPartition, Tally, many
from tests.simulation.mutants import replaced
from tests.unit.durable.random_programs import compare

SEEDS = 80


def test_faults_leave_no_trace_in_what_the_code_does() -> None:
    tally = many(range(SEEDS))
    assert tally.effects > 5 * SEEDS
    assert tally.deaths > 2 * SEEDS
    assert tally.refused > SEEDS / 2
    assert tally.folded > SEEDS
    assert tally.repeats > SEEDS
    assert living() == 0


def test_programs_do_what_their_twins_in_plain_asyncio_do() -> None:
    for seed in range(SEEDS):
        compare(seed, partition=RealPartition(seed))


def found_by(seeds: range) -> Tally | None:
    """None: the checks of a run, or the invariants of the partition, have found something."""
    try:
        return many(seeds)
    except AssertionError:
        return None


def test_a_record_without_its_lease_is_found() -> None:
    with replaced(recording, "_holds", lambda context, command, row: True):
        assert found_by(range(SEEDS)) is None


def test_a_park_over_what_has_arrived_is_found() -> None:
    with replaced(recording, "_behind", lambda context, command, row: []):
        assert found_by(range(SEEDS)) is None


def test_an_end_before_what_the_code_has_seen_is_found() -> None:
    def early(context: ApplyContext, note: Note, parts: Sequence[Part]) -> RecordRow:
        ended = note.kind in (RecordKind.COMPLETED, RecordKind.FAILED)
        return as_row(context, replace(note, after=0) if ended else note, parts)

    with replaced(recording, "as_row", early):
        assert found_by(range(SEEDS)) is None


def test_values_that_a_close_does_not_publish_are_found() -> None:
    def unless_it_closes(
        context: ApplyContext,
        command: RecordProgress,
        row: ExecutionRow,
        changes: list[PublishedChange],
    ) -> Refusal | None:
        found = judge_published(context, command, row, changes)
        if isinstance(command.then, Close):
            changes.clear()
        return found

    with replaced(recording, "judge_published", unless_it_closes):
        assert found_by(range(SEEDS)) is None


def test_values_wait_for_the_records_before_them() -> None:
    with replaced(outbox, "RECORD_NOTES_MAX", 1):
        assert many(range(SEEDS)).runs == SEEDS
        take = Publishing.take
        with replaced(Publishing, "take", lambda self, before: take(self, None)):
            assert found_by(range(SEEDS)) is None


@pytest.mark.parametrize("seed", [0, 19, 24, 25])
def test_seeds_that_have_found_something(seed: int) -> None:
    """A timer that fired before it was registered again; an end before arrivals that the code had
    seen; a `seen` that fell, because the arrival was folded.
    """
    assert many(range(seed, seed + 1)).runs == 1
