"""`querator worker` with durable functions: which ones it finds, and what it refuses."""

from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner

from querator.cli import querator
from querator.cli.durable_worker import durable_functions
from querator.durable import durable, step
from querator.worker.loading import LoadError


@durable
async def checkout(order: str) -> str:
    return order


@durable
def pack(order: str) -> str:
    return order


def handle(item: object) -> None: ...


FUNCTIONS = [checkout, pack]
BY_NAME = {"a": checkout, "b": pack}


@step
async def charge(order: str, euros: int) -> None:
    """A step, taken for what a worker runs."""


EMPTY: list[Any] = []
MIXED = [checkout, handle]


@pytest.mark.parametrize(
    ("found", "names"),
    [
        (checkout, ("checkout",)),
        (FUNCTIONS, ("checkout", "pack")),
        (tuple(FUNCTIONS), ("checkout", "pack")),
        (BY_NAME, ("checkout", "pack")),
        (handle, ()),
        ("text", ()),
        (17, ()),
    ],
)
def test_functions_are_taken_from_what_has_them(found: object, names: tuple[str, ...]) -> None:
    assert tuple(one.name for one in durable_functions(found, "shop:x")) == names


def test_a_module_gives_each_of_its_functions_once() -> None:
    module = ModuleType("shop")
    vars(module).update(checkout=checkout, again=checkout, pack=pack, handle=handle)
    assert durable_functions(module, "shop") == (checkout, pack)
    assert durable_functions(ModuleType("empty"), "empty") == ()


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (EMPTY, "shop:x is empty. Give durable functions, or a handler of items."),
        (MIXED, "which is not marked with @durable."),
    ],
)
def test_a_collection_has_nothing_else(found: object, words: str) -> None:
    with pytest.raises(LoadError, match=words):
        durable_functions(found, "shop:x")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("EMPTY",), "EMPTY is empty."),
        (("MIXED",), "is not marked with @durable"),
        (("charge",), "charge is a step. Give the durable functions that call it: "),
        (("FUNCTIONS", "--until-empty"), "for which there is no --until-empty."),
        (("pack", "--prefetch", "200", "--retry-on", "OSError"),
         "for which there is no --prefetch and no --retry-on."),
        (("FUNCTIONS", "--metrics-port", "0"), "for which there is no --metrics-port."),
        (("FUNCTIONS", "--error", "Eror"), "has no 'Eror'. Did you mean"),
        (("handle", "--error", "ValueError"), "--error is for durable functions, and"),
    ],
)  # fmt: skip
def test_what_does_not_fit_durable_functions_is_refused(
    arguments: tuple[str, ...], words: str
) -> None:
    """No server is asked: the port of the address is closed."""
    name, *options = arguments
    command = ["worker", f"{__name__}:{name}", "--queue", "shop", *options]
    shown = CliRunner().invoke(querator, [*command, "--address", "127.0.0.1:1"])
    assert shown.exit_code == 2, shown.output
    assert words in shown.output
