"""Versions of durable functions: hashes of their byte code.

What counts: the instructions with their constants and names, the defaults that are plain values,
the names of steps, and the same of what the function calls: other durable functions, and plain
functions of the same package. What does not: comments, docstrings, line numbers, names of files,
and the code of steps, which may change at any time. The hash is one of this version of Python.
Another one compiles the same source to other byte code; that is another version, which is tried as
every other one.
"""

import dis
from collections.abc import Callable, Iterator
from hashlib import blake2b
from itertools import zip_longest
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

_HASH_BYTES: Final = 6
_PLAIN: Final = (bool, int, float, complex, str, bytes, type(None), type(...))

Called = Callable[[object], Callable[..., Any] | None]
"""Whose code counts, of what a function names."""


def hash_of(
    function: Callable[..., Any], durable_of: Called, step_of: Callable[[object], str]
) -> str:
    """Twelve characters that follow from the code of a function, and of what it calls.

    `durable_of` gives the function of one that is durable, and `step_of` the name of a step.
    """
    digest = blake2b(digest_size=_HASH_BYTES)
    for part in _Reader(durable_of, step_of).parts(function):
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(4, "big") + data)
    return digest.hexdigest()


class _Reader:
    """Reads each function once."""

    def __init__(self, durable_of: Called, step_of: Callable[[object], str]) -> None:
        self._durable_of = durable_of
        self._step_of = step_of
        self._read: set[CodeType] = set()

    def parts(self, function: Callable[..., Any]) -> Iterator[str]:
        """What counts of a function, and of those that it calls."""
        if not isinstance(function, FunctionType) or function.__code__ in self._read:
            return
        self._read.add(function.__code__)
        kwdefaults = sorted((function.__kwdefaults__ or {}).items())
        yield _constant((*(function.__defaults__ or ()), *kwdefaults))
        yield from _code_parts(function.__code__)
        for name, named in _named(function):
            durable = self._durable_of(named)
            if durable is not None:
                yield f"{name} is durable"
                yield from self.parts(durable)
            elif step := self._step_of(named):
                yield f"{name} is step {step}"
            elif isinstance(named, FunctionType) and _package(named) == _package(function):
                yield name
                yield from self.parts(named)


def _code_parts(code: CodeType) -> Iterator[str]:
    yield repr((code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount))
    yield repr(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
    instructions = list(dis.get_instructions(code))
    for one, behind in zip_longest(instructions, instructions[1:]):
        if one.opname == "NOP":
            # A statement that does nothing has one, for tracers.
            continue
        if behind is not None and behind.argval == "__firstlineno__":
            # The body of a class says from Python 3.13 on in which line it begins.
            continue
        if isinstance(one.argval, CodeType):
            yield one.opname
            yield from _code_parts(one.argval)
        elif one.opcode in dis.hasconst:
            yield f"{one.opname} {_constant(one.argval)}"
        else:
            yield f"{one.opname} {one.argrepr or one.arg}"


def _constant(value: object) -> str:
    """The text of a constant, in one order for sets; of other objects only the type, because their
    texts may have addresses.
    """
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, tuple):
        return f"({', '.join(map(_constant, value))})"
    if isinstance(value, frozenset):
        return f"{{{', '.join(sorted(map(_constant, value)))}}}"
    return type(value).__qualname__


def _package(function: FunctionType) -> str:
    return (function.__module__ or "").partition(".")[0]


def _named(function: FunctionType) -> list[tuple[str, object]]:
    """What the names in a function stand for: globals, what it closes over, members of modules."""
    found: dict[str, object] = {}
    names = set(_names(function.__code__))
    for name in names & function.__globals__.keys():
        found[name] = value = function.__globals__[name]
        if isinstance(value, ModuleType):
            members = vars(value)
            found |= {f"{name}.{each}": members[each] for each in names & members.keys()}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # It is not bound yet.
            continue
    return sorted(found.items(), key=lambda each: each[0])


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _names(each)
