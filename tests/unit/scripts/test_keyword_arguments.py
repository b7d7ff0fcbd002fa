"""Calls with many arguments name them."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[3] / "querator"
POSITIONAL_MAX = 5
VARIADIC = {"pack", "put", "get", "delete", "select", "agg", "TypeVar"}
"""Functions that take any number of arguments of one kind."""


def test_a_call_with_many_arguments_passes_them_by_keyword():
    found = [
        f"{path.relative_to(ROOT)}:{call.lineno}: {ast.unparse(call.func)}"
        for path in sorted(ROOT.rglob("*.py"))
        if path.parent.name != "v1"
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call)
        and len(call.args) > POSITIONAL_MAX
        and not any(isinstance(argument, ast.Starred) for argument in call.args)
        and ast.unparse(call.func).rpartition(".")[2] not in VARIADIC
    ]
    assert found == []
