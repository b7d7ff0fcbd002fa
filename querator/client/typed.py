"""Checks of the types of arguments, by the annotations of public functions.

A wrong type would otherwise fail somewhere inside, with an error that does not name the argument.
"""

import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_WORDS: Final[dict[type, str]] = {
    bool: "True or False",
    bytes: "bytes",
    datetime: "a datetime with a time zone, for example datetime(2030, 1, 1, tzinfo=UTC)",
    float: "a number",
    int: "a whole number",
    str: "a text",
    timedelta: "a timedelta, for example timedelta(seconds=30)",
}
_SHOWN_CHARS: Final = 80


class _Expected(NamedTuple):
    """What an argument must be: an instance of one of `kinds`."""

    kinds: tuple[type, ...]
    words: str

    def check(self, name: str, value: object) -> None:
        fits = isinstance(value, self.kinds)
        if isinstance(value, bool) and bool not in self.kinds:
            # A bool is an int for Python, and here a slip.
            fits = False
        if not fits:
            words = self.words
            if bytes in self.kinds:
                words += json_hint(name, value)
            raise wrong_type(name, value, words)


def json_hint(name: str, value: object) -> str:
    """How a payload that is a value for JSON becomes bytes; empty for other values."""
    if not isinstance(value, dict | list | tuple):
        return ""
    argument = name.rpartition(".")[2].rpartition(" ")[2]
    return f"; for JSON give json.dumps({argument}) or msgspec.json.encode({argument})"


def check_unsigned(name: str, value: int, bits: int) -> None:
    """Raises ValueError for a number that a request does not carry."""
    most = 2**bits - 1
    if not 0 <= value <= most:
        raise ValueError(f"{name} is {value}; it must be a whole number from 0 to {most}")


def wrong_type(name: str, value: object, expected: str) -> TypeError:
    """The error for an argument of a wrong type."""
    shown = repr(value)
    if len(shown) > _SHOWN_CHARS:
        shown = f"{shown[:_SHOWN_CHARS]}…"
    return TypeError(f"{name} is {shown}; it must be {expected}")


def typed(function: Callable[P, R]) -> Callable[P, R]:
    """Makes a function raise TypeError for arguments that do not fit its annotations. The message
    names the argument, what is expected, and the value. Only the outer type is checked: of a list,
    not its elements.
    """

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        arguments = _arguments(function)
        for (name, expected), value in zip(arguments.positional, args, strict=False):
            if expected is not None:
                expected.check(name, value)
        if arguments.rest is not None:
            name, rest = arguments.rest
            for value in args[len(arguments.positional) :]:
                rest.check(name, value)
        for name, value in kwargs.items():
            named = arguments.named.get(name)
            if named is not None:
                named.check(name, value)
        return function(*args, **kwargs)

    return checked


def check_like(function: Callable[..., Any], arguments: Mapping[str, object]) -> None:
    """Checks named arguments as those of another function, which is `typed`."""
    named = _arguments(inspect.unwrap(function)).named
    for name, value in arguments.items():
        expected = named.get(name)
        if expected is not None:
            expected.check(name, value)


def check_fields(struct: object, name: str) -> None:
    """Checks the fields of an object by the annotations of its class. `name`: that of the object in
    the error.
    """
    for field, hint in typing.get_type_hints(type(struct)).items():
        expected = _expected(hint)
        if expected is not None:
            expected.check(f"{name}.{field}", getattr(struct, field))


class _Arguments(NamedTuple):
    positional: tuple[tuple[str, _Expected | None], ...]
    named: dict[str, _Expected | None]
    rest: tuple[str, _Expected] | None
    """That of `*args`."""


@functools.cache
def _arguments(function: Callable[..., Any]) -> _Arguments:
    """The arguments of a function. Read at its first call, when all modules are loaded."""
    hints = typing.get_type_hints(function)
    positional: list[tuple[str, _Expected | None]] = []
    named: dict[str, _Expected | None] = {}
    rest = None
    for name, parameter in inspect.signature(function).parameters.items():
        expected = _expected(hints[name]) if name in hints else None
        if parameter.kind is parameter.VAR_POSITIONAL:
            rest = None if expected is None else (name, expected)
        elif parameter.kind is not parameter.VAR_KEYWORD:
            named[name] = expected
            if parameter.kind is not parameter.KEYWORD_ONLY:
                positional.append((name, expected))
    return _Arguments(tuple(positional), named, rest)


def _expected(hint: Any) -> _Expected | None:
    """What fits an annotation; None: anything."""
    alternatives = (
        typing.get_args(hint)
        if typing.get_origin(hint) in (types.UnionType, typing.Union)
        else (hint,)
    )
    kinds = [typing.get_origin(one) or one for one in alternatives]
    if object in kinds or Any in kinds or not all(isinstance(kind, type) for kind in kinds):
        return None
    words = [_words(kind) for kind in kinds if kind is not types.NoneType]
    if types.NoneType in kinds:
        words.append("None")
    return _Expected(tuple(kinds), " or ".join(words))


def _words(kind: type) -> str:
    if kind in _WORDS:
        return _WORDS[kind]
    name = kind.__name__
    if issubclass(kind, Enum):
        return f"one of {', '.join(f'{name}.{member.name}' for member in kind)}"
    if kind.__module__ == "collections.abc":
        return {"Callable": "a function", "Iterable": "a list or another iterable"}.get(
            name, f"a {name.lower()}"
        )
    return f"{'an' if name[0] in 'AEIO' else 'a'} {name}"
