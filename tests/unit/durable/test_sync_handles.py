"""The calls about executions without await are those with it."""

import inspect
from typing import Any

import pytest

from querator.durable import ExecutionHandle, Executions, SyncExecutionHandle, SyncExecutions

INSIDE = {"ended", "get_with_end", "outcome", "run"}
"""What the packages use among themselves."""


def calls(kind: type) -> dict[str, list[tuple[str, Any, Any]]]:
    """The methods with their parameters: name, kind and default."""
    return {
        name: [
            (one.name, one.kind, one.default)
            for one in inspect.signature(method).parameters.values()
        ]
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") and name not in INSIDE
    }


@pytest.mark.parametrize(
    ("waiting", "awaited"),
    [(SyncExecutions, Executions), (SyncExecutionHandle, ExecutionHandle)],
)
def test_the_methods_and_their_parameters_are_the_same(waiting: type, awaited: type) -> None:
    assert calls(waiting) == calls(awaited)
