"""Handlers and exceptions by name, with checks that say what is wrong.

Names are `module:name`, where both may have dots. The module is imported, and must be found from
the working directory or be installed.
"""

import builtins
import difflib
import inspect
import traceback
from importlib import import_module
from types import ModuleType
from typing import Any

_NAMES_MAX = 8
"""Most names of a module that a message lists."""


class LoadError(Exception):
    """A handler or an exception cannot be used. The message is a sentence for the user. `details`:
    the traceback of a module that failed; else empty.
    """

    def __init__(self, message: str, *, details: str = "") -> None:
        super().__init__(message)
        self.details = details


def load(spec: str) -> Any:
    """Imports what `module:name` names, or a whole module. Raises LoadError."""
    module_name, colon, name = spec.partition(":")
    if not module_name or (colon and not name):
        raise LoadError(f"{spec!r} is not MODULE:HANDLER, for example tasks:handle.")
    module = _module(module_name)
    return _attribute(module, name) if name else module


def check_handler(handler: Any, name: str) -> None:
    """Raises LoadError unless `handler` is a function of one item. `name` is for the message."""
    if isinstance(handler, ModuleType) and ":" not in name:
        raise LoadError(
            f"{name!r} is not MODULE:HANDLER, for example tasks:handle. It is a module without "
            "durable functions."
        )
    if isinstance(handler, type):
        raise LoadError(f"{name} is a class. Give a function of one argument, the item.")
    if not callable(handler):
        raise LoadError(
            f"{name} is of type {type(handler).__name__}, which cannot be called. Give a function "
            "of one argument, the item."
        )
    call = handler if inspect.isroutine(handler) else type(handler).__call__
    if inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call):
        raise LoadError(f"{name} is a generator: it has yield. Give a function that returns.")
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):
        # Some functions that are written in C have no signature to check.
        return
    try:
        signature.bind(object())
    except TypeError as error:
        raise LoadError(
            f"{name}{signature} cannot be called with one argument, the item: {error}."
        ) from error


def load_exception(name: str) -> type[Exception]:
    """Returns a class of exceptions: a built-in one by its name, or `module:Name`, or with a dot
    between them. Raises LoadError.
    """
    module_name, colon, attribute = name.partition(":")
    if not colon:
        module_name, _, attribute = name.rpartition(".")
    if not attribute:
        raise LoadError(f"{name!r} is not an exception; write ValueError, or module:Name.")
    found = _attribute(_module(module_name) if module_name else builtins, attribute)
    if not (isinstance(found, type) and issubclass(found, Exception)):
        raise LoadError(f"{name} is not a class of exceptions.")
    return found


def _module(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise LoadError(
                f"There is no module {error.name!r} in the working directory, and none is "
                "installed."
            ) from error
        raise _failed_import(name, error) from error
    except (ImportError, TypeError, ValueError) as error:
        raise _failed_import(name, error) from error
    # The module is the user's: it may raise anything.
    except (Exception, SystemExit) as error:
        raise _failed_import(name, error) from error


def _failed_import(name: str, error: BaseException) -> LoadError:
    return LoadError(
        f"Module {name!r} cannot be imported: {type(error).__name__}: {error}",
        details="".join(traceback.format_exception(error)),
    )


def _attribute(module: ModuleType, path: str) -> Any:
    found: Any = module
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise LoadError(_unknown(found, module.__name__, name)) from None
    return found


def _unknown(owner: Any, module: str, name: str) -> str:
    where = f"Module {module!r}" if isinstance(owner, ModuleType) else f"{owner!r} of {module!r}"
    names = [one for one in dir(owner) if not one.startswith("_")]
    if near := difflib.get_close_matches(name, names, n=1):
        return f"{where} has no {name!r}. Did you mean {near[0]!r}?"
    functions = [one for one in names if _is_own_function(owner, one)]
    if not functions:
        return f"{where} has no {name!r}, and no function at all."
    listed = ", ".join(functions[:_NAMES_MAX])
    more = ", …" if len(functions) > _NAMES_MAX else ""
    return f"{where} has no {name!r}. Its functions are: {listed}{more}."


def _is_own_function(owner: Any, name: str) -> bool:
    found = getattr(owner, name, None)
    return inspect.isfunction(found) and found.__module__ == getattr(owner, "__name__", None)
