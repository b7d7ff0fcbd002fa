"""Executions that are rewound, under faults; `python -m tests.simulation.rewinds` runs more."""

from contextlib import AbstractContextManager
from typing import Any

import pytest
from msgspec.structs import replace

from querator.durable import children
from querator.durable.code import ExecutionCode
from querator.durable.machine import living
from querator.durable.seeds import seed as seed_of
from querator.model.executions import RecordKind
from querator.partition import (
    execution_children,
    execution_rewinds,
    execution_time,
    recording,
)
from tests.simulation.mutants import replaced
from tests.simulation.rewinds import many, run
from tests.unit.durable import families

SEEDS = 12


def test_a_rewind_changes_no_result_and_doubles_no_child() -> None:
    tally = many(range(SEEDS))
    assert tally.rewinds > 5 * SEEDS
    assert tally.closed > SEEDS
    assert tally.kept > SEEDS
    assert tally.cancelled > SEEDS / 4
    assert tally.folded > SEEDS / 2
    assert tally.deaths > SEEDS
    assert tally.refused > 0
    assert living() == 0


def unfenced() -> AbstractContextManager[None]:
    """A worker whose lease has ended with the rewind records what it has done."""
    return replaced(recording, "_holds", lambda context, command, row: row.activation > 0)


def keeps_a_child_twice() -> AbstractContextManager[None]:
    """Ids of children follow from the run: behind a rewind there is another one."""

    def made(identity: Any, path: bytes) -> str:
        return before(replace(identity, origin=identity.run), path)

    before = children._made_id
    return replaced(children, "_made_id", made)


def draws_again() -> AbstractContextManager[None]:
    """Random numbers follow from the run."""

    def seed(self: ExecutionCode, *parts: bytes) -> bytes:
        return seed_of(self.identity.secret, self.identity.run.to_bytes(8, "big"), *parts)

    return replaced(ExecutionCode, "seed", seed)


def attaches_to_what_was_cut() -> AbstractContextManager[None]:
    """The code is given the end of the child that the rewind has cancelled."""
    return replaced(execution_children, "is_cut", lambda number, row, other: False)


def forgets_former_children() -> AbstractContextManager[None]:
    """Ids of the children of a child whose place another one has are taken."""

    def is_cut(number: int, row: Any, other: Any) -> bool:
        return bool(before(number, replace(row, former=[]), other))

    before = execution_children.is_cut
    return replaced(execution_children, "is_cut", is_cut)


def leaves_detached_ones() -> AbstractContextManager[None]:
    """Detached children of a child whose place another one has go on."""
    return replaced(execution_time, "DISCARDED", b"?")


def loses_results() -> AbstractContextManager[None]:
    """Results of earlier children go, too."""
    return replaced(execution_rewinds, "CHILD_RESULTS", frozenset())


def loses_late_results() -> AbstractContextManager[None]:
    """Results that came behind the end do not arrive."""
    return replaced(execution_rewinds, "_give_late", lambda *arguments: None)


def loses_signals() -> AbstractContextManager[None]:
    class Kinds:
        SIGNAL = RecordKind.TERMINATED

        def __getattr__(self, name: str) -> RecordKind:
            return RecordKind[name]

    return replaced(execution_rewinds, "RecordKind", Kinds())


def keeps_the_waits() -> AbstractContextManager[None]:
    """Timers that were set behind the record fire."""
    return replaced(execution_rewinds, "_cut_waits", lambda *arguments, **others: None)


def rewinds_twice() -> AbstractContextManager[None]:
    """A request that is repeated rewinds once more."""
    return replaced(execution_rewinds, "has_begun", lambda row, request: False)


@pytest.mark.parametrize(
    ("mutant", "seed"),
    [
        (unfenced, 1), (keeps_a_child_twice, 1), (draws_again, 0), (attaches_to_what_was_cut, 4),
        (forgets_former_children, 0), (leaves_detached_ones, 37), (loses_results, 6),
        (loses_late_results, 0), (loses_signals, 0), (keeps_the_waits, 0), (rewinds_twice, 0),
    ],
)  # fmt: skip
def test_a_mutant_is_found(mutant: Any, seed: int) -> None:
    """By the first seed that has found it, or one of the next."""
    with mutant(), replaced(families, "_MOVES_MAX", 4_000):
        for each in range(seed, seed + 4):
            try:
                run(each)
            except AssertionError:
                return
    raise AssertionError(f"{mutant.__name__} was not found by seed {seed} and the next")
