"""What of a durable function would not be the same in a replay, found in its source.

Read are durable functions, the durable functions that they call, and the plain functions of the
same package that they call. Steps are not: they may do all of this. A call of what is only known
when the program runs (a method, a function in a variable) is not followed.

A line with the comment `# querator: allow REASON` is allowed.
"""

import ast
import builtins
import functools
import inspect
import linecache
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Final

import msgspec

from querator.durable import functions as durables
from querator.durable.functions import Durable, Step
from querator.durable.lint_rules import UNKNOWN, Bindings, CallRules, SetRules

_ALLOWED: Final = re.compile(r"#\s*querator: allow\b[ :]*(.*)")
_SET_ORDER: Final = "the order of this set is another one in each process; sort it"
_AS_COMPLETED: Final = (
    "as_completed() makes tasks of coroutines in the order of a set; give it tasks"
)
_Definition = ast.FunctionDef | ast.AsyncFunctionDef


class LintFinding(msgspec.Struct, frozen=True, order=True):
    """A line that may not be the same in a replay. `function` is the durable function that comes
    there. `is_read` is false where there is no source.
    """

    path: str
    line: int
    text: str
    function: str
    is_read: bool = True

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text} (in {self.function})"


def lint(functions: Iterable[Durable[..., Any]]) -> list[LintFinding]:
    """The findings in functions and in what they call, each line once, by file and line."""
    found: dict[tuple[str, int, str], LintFinding] = {}
    for function in functions:
        for one in _of(function):
            found.setdefault((one.path, one.line, one.text), one)
    return sorted(found.values())


@functools.lru_cache(maxsize=1_024)
def _of(function: Durable[..., Any]) -> tuple[LintFinding, ...]:
    reader = _Reader(function.name)
    reader.read(function.function, is_needed=True)
    return tuple(reader.found)


class _Reader:
    """Reads each function once."""

    def __init__(self, name: str) -> None:
        self.found: list[LintFinding] = []
        self._name = name
        self._read: set[object] = set()
        self._calls = CallRules()

    def read(self, function: object, *, is_needed: bool = False) -> None:
        if not isinstance(function, FunctionType) or function.__code__ in self._read:
            return
        code = function.__code__
        self._read.add(code)
        lines = _lines_of(function)
        definition = _definition(tuple(lines), code.co_name, code.co_firstlineno)
        if definition is not None:
            self._check(function, definition, lines)
        elif is_needed:
            text = f"the source of {code.co_name} cannot be read"
            self._find(function, code.co_firstlineno, text, is_read=False)

    def _check(self, function: FunctionType, definition: _Definition, lines: list[str]) -> None:
        body = _Body(function, definition)
        for node, text in body.findings(self._calls):
            begin, end = node.lineno, node.end_lineno or node.lineno
            comments = (_ALLOWED.search(line) for line in lines[begin - 1 : end])
            allowed = next((one for one in comments if one), None)
            if allowed is None:
                self._find(function, begin, text)
            elif not allowed[1].strip():
                self._find(function, begin, f"{text}; `querator: allow` needs a reason behind it")
        for called in body.called:
            if isinstance(called, Durable):
                self.read(called.function)
            elif _package(called) == _package(function):
                self.read(called)

    def _find(self, function: FunctionType, line: int, text: str, *, is_read: bool = True) -> None:
        path = _shown_path(function.__code__.co_filename)
        self.found.append(LintFinding(path, line, text, self._name, is_read))


class _Body:
    """The source of one function, with what its names stand for."""

    def __init__(self, function: FunctionType, definition: _Definition) -> None:
        self.called: list[Any] = []
        """Functions that it calls."""
        self._function = function
        self._definition = definition
        self._bindings = Bindings(definition)
        self._cells = _cells(function)
        self._imported = dict(_imported(self._bindings.imports, function))
        self._sets = SetRules(self._bindings, self._resolve)
        self._steps = self._names_of_steps()

    def findings(self, calls: CallRules) -> Iterator[tuple[ast.expr, str]]:
        for statement in self._definition.body:
            yield from self._walk(statement, calls)

    def _walk(
        self, node: ast.AST, calls: CallRules, *, any_order: bool = False
    ) -> Iterator[tuple[ast.expr, str]]:
        if isinstance(node, _Definition) and self._is_step(node):
            return
        if not any_order:
            for taken in self._sets.taken_by(node):
                yield taken, _SET_ORDER
        if isinstance(node, ast.Call):
            yield from self._call(node, calls)
            return
        if isinstance(node, ast.Name | ast.Attribute):
            if text := calls.of_value(node, self._resolve):
                yield node, text
                return
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
            for child in ast.iter_child_nodes(node):
                if child is not node.annotation:
                    yield from self._walk(child, calls)
            return
        for child in ast.iter_child_nodes(node):
            yield from self._walk(child, calls)

    def _call(self, call: ast.Call, calls: CallRules) -> Iterator[tuple[ast.expr, str]]:
        if text := calls.of_call(call, self._resolve):
            yield call, text
        elif self._sets.as_completed_of_coroutines(call):
            yield call, _AS_COMPLETED
        else:
            self.called.append(self._resolve(call.func))
        any_order = self._sets.is_any_order(call)
        is_step = self._takes_step(call)
        yield from self._walk(call.func, calls)
        for nth, argument in enumerate(call.args):
            if not (nth == 0 and is_step and isinstance(argument, ast.Lambda)):
                yield from self._walk(argument, calls, any_order=any_order)
        for keyword in call.keywords:
            yield from self._walk(keyword.value, calls)

    # --- steps within the function -----------------------------------------------------------

    def _takes_step(self, call: ast.Call) -> bool:
        """Whether the first argument is a function that is run as a step: by `call`, `step`, or
        `undo.add`.
        """
        if isinstance(call.func, ast.Attribute) and call.func.attr == "add":
            return True
        called = self._resolve(call.func)
        return called is durables.call or called is durables.step

    def _names_of_steps(self) -> set[str]:
        return {
            call.args[0].id
            for call in ast.walk(self._definition)
            if isinstance(call, ast.Call)
            and call.args
            and isinstance(call.args[0], ast.Name)
            and self._takes_step(call)
        }

    def _is_step(self, node: ast.AST) -> bool:
        if not isinstance(node, _Definition):
            return False
        marks = [one.func if isinstance(one, ast.Call) else one for one in node.decorator_list]
        return node.name in self._steps or any(self._resolve(one) is durables.step for one in marks)

    # --- names -------------------------------------------------------------------------------

    def _resolve(self, node: ast.expr) -> Any:
        """What an expression stands for, if it is a name, or one of a module or a class."""
        if isinstance(node, ast.Name):
            return self._named(node.id)
        if not isinstance(node, ast.Attribute):
            return UNKNOWN
        owner = self._resolve(node.value)
        if isinstance(owner, ModuleType):
            return vars(owner).get(node.attr, UNKNOWN)
        if isinstance(owner, type):
            found = inspect.getattr_static(owner, node.attr, UNKNOWN)
            return found.__func__ if isinstance(found, staticmethod | classmethod) else found
        return UNKNOWN

    def _named(self, name: str) -> Any:
        if name in self._imported:
            return self._imported[name]
        if name in self._bindings.names:
            return UNKNOWN
        if name in self._cells:
            return self._cells[name]
        if name in self._function.__globals__:
            return self._function.__globals__[name]
        return getattr(builtins, name, UNKNOWN)


def _cells(function: FunctionType) -> dict[str, Any]:
    """What it closes over."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # It is not bound yet.
            found[name] = UNKNOWN
    return found


def _imported(
    imports: list[ast.Import | ast.ImportFrom], function: FunctionType
) -> Iterator[tuple[str, Any]]:
    """What it imports itself, of modules that are there already."""
    for statement in imports:
        for one in statement.names:
            if isinstance(statement, ast.Import):
                whole = one.name if one.asname else one.name.partition(".")[0]
                yield one.asname or whole, sys.modules.get(whole, UNKNOWN)
            else:
                module = sys.modules.get(_module_name(statement, function))
                there = {} if module is None else vars(module)
                yield one.asname or one.name, there.get(one.name, UNKNOWN)


def _module_name(statement: ast.ImportFrom, function: FunctionType) -> str:
    name = statement.module or ""
    if not statement.level:
        return name
    package = (function.__globals__.get("__package__") or "").split(".")
    base = package[: len(package) - statement.level + 1]
    return ".".join([*base, name] if name else base)


def _package(value: object) -> str:
    if not isinstance(value, FunctionType) or isinstance(value, Step):
        return ""
    return (value.__module__ or "").partition(".")[0]


def _lines_of(function: FunctionType) -> list[str]:
    name = function.__code__.co_filename
    linecache.checkcache(name)
    return linecache.getlines(name, function.__globals__)


@functools.lru_cache(maxsize=256)
def _definitions(lines: tuple[str, ...]) -> dict[tuple[str, int], _Definition]:
    """The functions of a file, by name and first line, as code objects have them."""
    try:
        tree = ast.parse("".join(lines))
    except (SyntaxError, ValueError):
        return {}
    return {
        (node.name, min([node.lineno, *(one.lineno for one in node.decorator_list)])): node
        for node in ast.walk(tree)
        if isinstance(node, _Definition)
    }


def _definition(lines: tuple[str, ...], name: str, first_line: int) -> _Definition | None:
    return _definitions(lines).get((name, first_line))


def _shown_path(name: str) -> str:
    path = Path(name)
    folder = Path.cwd()
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else name
