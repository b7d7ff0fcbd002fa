"""Handlers and exceptions by name: what is loaded, and what a message says."""

import functools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from querator.client.errors import LeaseLost
from querator.worker.calling import is_async
from querator.worker.loading import LoadError, check_handler, load, load_exception

TASKS = """
import functools


def handle(item): ...
async def handle_async(item): ...
def defaults(item, again=False, *rest, **more): ...
def two(item, database): ...
def none(): ...
def named(*, item): ...
def generator(item): yield
async def generator_async(item): yield


class Handler:
    def __call__(self, item): ...
    async def method(self, item): ...
    @classmethod
    def made(cls, item): ...


class AsyncHandler:
    async def __call__(self, item): ...


instance = Handler()
instance_async = AsyncHandler()
bound = functools.partial(two, database="db")
number = 7


class TooBusy(Exception): ...
class Stop(BaseException): ...
"""


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The module `loaded_tasks`, and a folder for others, which are forgotten afterwards."""
    (tmp_path / "loaded_tasks.py").write_text(TASKS)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("loaded_"):
            del sys.modules[name]


@pytest.mark.parametrize(
    ("name", "asynchronous"),
    [
        ("handle", False),
        ("handle_async", True),
        ("defaults", False),
        ("instance", False),
        ("instance_async", True),
        ("instance.method", True),
        ("Handler.made", False),
        ("bound", False),
    ],
)
def test_functions_of_one_argument_are_handlers(name: str, asynchronous: bool):
    handler = load(f"loaded_tasks:{name}")
    check_handler(handler, name)
    assert is_async(handler) is asynchronous


def test_partials_of_async_functions_are_async():
    async def handle(item, database): ...

    assert is_async(functools.partial(handle, database="db"))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("loaded_tasks", "is not MODULE:HANDLER, for example tasks:handle. It is a module without"),
        ("loaded_tasks:", "'loaded_tasks:' is not MODULE:HANDLER, for example tasks:handle."),
        (
            "loaded_tasks:functools",
            "loaded_tasks:functools is of type module, which cannot be called.",
        ),
        (":handle", "':handle' is not MODULE:HANDLER, for example tasks:handle."),
        ("loaded_none:handle", "There is no module 'loaded_none' in the working directory, and"),
        ("loaded_none.tasks:handle", "There is no module 'loaded_none' in the working"),
        ("loaded_tasks:handel", "Module 'loaded_tasks' has no 'handel'. Did you mean 'handle'?"),
        ("loaded_tasks:zzz", "has no 'zzz'. Its functions are: defaults, generator,"),
        ("loaded_tasks:instance.zzz", "has no 'zzz'"),
        ("loaded_tasks:number", "loaded_tasks:number is of type int, which cannot be called."),
        ("loaded_tasks:Handler", "loaded_tasks:Handler is a class. Give a function"),
        ("loaded_tasks:two", "two(item, database) cannot be called with one argument, the item:"),
        ("loaded_tasks:none", "none() cannot be called with one argument, the item: too many"),
        ("loaded_tasks:named", "named(*, item) cannot be called with one argument"),
        ("loaded_tasks:generator", "loaded_tasks:generator is a generator: it has yield."),
        ("loaded_tasks:generator_async", "loaded_tasks:generator_async is a generator"),
    ],
)
def test_what_is_no_handler_is_named_with_the_reason(spec: str, words: str):
    with pytest.raises(LoadError, match=re.escape(words)) as caught:
        check_handler(load(spec), spec)
    assert caught.value.details == ""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def broken(:", "cannot be imported: SyntaxError"),
        ("import loaded_missing", "cannot be imported: ModuleNotFoundError: No module named"),
        ("raise OSError('no database')", "cannot be imported: OSError: no database"),
        ("raise SystemExit(3)", "cannot be imported: SystemExit: 3"),
    ],
)
def test_a_module_that_fails_is_shown_with_its_traceback(modules: Path, text: str, words: str):
    (modules / "loaded_broken.py").write_text(text)
    with pytest.raises(LoadError, match=words) as caught:
        load("loaded_broken:handle")
    assert "loaded_broken.py" in caught.value.details


def test_exceptions_have_names():
    assert load_exception("ValueError") is ValueError
    assert load_exception("querator.client.errors.LeaseLost") is LeaseLost
    assert load_exception("querator.client.errors:LeaseLost") is LeaseLost
    assert load_exception("loaded_tasks:TooBusy").__name__ == "TooBusy"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "'' is not an exception"),
        ("ValueErorr", "Did you mean 'ValueError'?"),
        ("print", "print is not a class of exceptions."),
        ("KeyboardInterrupt", "KeyboardInterrupt is not a class of exceptions."),
        ("loaded_tasks:Stop", "loaded_tasks:Stop is not a class of exceptions."),
        ("loaded_none.TooBusy", "There is no module 'loaded_none'"),
    ],
)
def test_what_is_no_exception_is_named_with_the_reason(name: str, words: str):
    with pytest.raises(LoadError, match=re.escape(words)):
        load_exception(name)
