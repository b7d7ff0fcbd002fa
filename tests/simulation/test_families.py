"""Executions with children under faults; `python -m tests.simulation.families` runs more seeds."""

from contextlib import AbstractContextManager
from typing import Any

import pytest

from querator.durable import mapping
from querator.durable.children import Child, SpawnOptions
from querator.durable.machine import ExecutionMachine, living
from querator.partition import execution_arrivals, execution_children, recording
from querator.partition.execution_rows import ChildEnds
from tests.simulation.families import many, run
from tests.simulation.mutants import replaced

SEEDS = 100


def test_children_start_once_and_end_once() -> None:
    tally = many(range(SEEDS))
    assert tally.executions > 4 * SEEDS
    assert tally.results > SEEDS
    assert tally.maps > SEEDS / 4
    assert tally.cancelled > SEEDS / 2
    assert tally.deaths > SEEDS
    assert tally.refused > 0
    assert tally.repeats > SEEDS
    assert living() == 0


def unfenced() -> AbstractContextManager[None]:
    """A worker whose lease is over starts children, too."""
    return replaced(recording, "_holds", lambda context, command, row: row.activation > 0)


def starts_again() -> AbstractContextManager[None]:
    """A worker starts what the journal says has started."""

    def started(self: Child[Any]) -> None:
        before(self)
        code = self._code
        code.outbox.start(self.command(b"[[],{}]"), code.made)

    before = Child.started
    return replaced(Child, "started", started)


def without_cancellations() -> AbstractContextManager[None]:
    """The end of a parent does not reach its children."""
    return replaced(execution_children, "forsake", lambda context, number, row: None)


def forgets_a_cancel() -> AbstractContextManager[None]:
    """Children of an execution that a client has cancelled are not."""
    return replaced(execution_arrivals, "forsake", lambda context, number, row: None)


def cancels_all() -> AbstractContextManager[None]:
    """What is detached is cancelled, too."""

    def ends(*arguments: Any, **options: Any) -> None:
        with replaced(execution_children, "ChildEnds", _All):
            start(*arguments, **options)

    start = execution_children._start
    return replaced(execution_children, "_start", ends)


class _All:
    NEVER = WITH_END = WITH_CANCEL = ChildEnds.WITH_CANCEL


def loses_a_result() -> AbstractContextManager[None]:
    """The result of a child does not arrive while its parent is leased."""

    def give(context: Any, number: int, row: Any, *arguments: Any, path: bytes) -> None:
        if row.activation:
            row.children -= 1
        else:
            before(context, number, row, *arguments, path=path)

    before = execution_children.give
    return replaced(execution_children, "give", give)


def gives_a_result_twice() -> AbstractContextManager[None]:
    def give(context: Any, number: int, row: Any, *arguments: Any, path: bytes) -> None:
        before(context, number, row, *arguments, path=path)
        row.children += 1
        before(context, number, row, *arguments, path=path)

    before = execution_children.give
    return replaced(execution_children, "give", give)


def takes_any_id() -> AbstractContextManager[None]:
    """An id that is taken gets another execution."""
    return replaced(execution_children, "find_execution", lambda context, name: None)


def keeps_timers() -> AbstractContextManager[None]:
    """A time limit that ends in a replay leaves its timer with the partition."""
    return replaced(ExecutionMachine, "_withdraw", lambda self, timers: None)


def cancels_for_an_await() -> AbstractContextManager[None]:
    """What is detached is cancelled when an await of it is."""
    return replaced(SpawnOptions, "follows", property(lambda self: self.cancel))


def joins_portions_backwards() -> AbstractContextManager[None]:
    """The results of a map are not in the order of its items."""

    async def backwards(self: Any, items: Any, parallel: int) -> list[Any]:
        return list(reversed(await before(self, items, parallel)))

    before = mapping._Mapping.run
    return replaced(mapping._Mapping, "run", backwards)


def drops_what_has_failed() -> AbstractContextManager[None]:
    """A map leaves out the items whose children have failed."""

    async def without(self: Any, items: Any, parallel: int) -> list[Any]:
        found = await before(self, items, parallel)
        return [one for one in found if not isinstance(one, Exception)]

    before = mapping._Mapping._portion
    return replaced(mapping._Mapping, "_portion", without)


@pytest.mark.parametrize(
    "mutant",
    [
        unfenced, starts_again, without_cancellations, forgets_a_cancel, cancels_all,
        loses_a_result, gives_a_result_twice, takes_any_id, keeps_timers, cancels_for_an_await,
        joins_portions_backwards, drops_what_has_failed,
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
