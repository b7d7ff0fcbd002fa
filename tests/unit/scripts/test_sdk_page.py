"""docs/sdk.md names everything that programs import, and the defaults that the calls have."""

import inspect
import re
from pathlib import Path

import pytest

import querator
from querator import Client, LeasedItem

PAGE = (Path(__file__).parents[3] / "docs" / "sdk.md").read_text()


def rows_under(words: str) -> list[list[str]]:
    """Cells of the rows of the first table after these words."""
    lines = PAGE.split(words, 1)[1].strip("\n").split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def codes(text: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", text))


def test_every_public_name_is_in_the_table_of_names():
    rows = rows_under("works on programs):\n")
    assert set(querator.__all__) <= codes(" ".join(cell for row in rows for cell in row))


@pytest.mark.parametrize("call", ["producer", "consumer"])
def test_options_have_the_defaults_of_the_page(call: str):
    parameters = inspect.signature(getattr(Client, call)).parameters
    options = {
        name: repr(each.default)
        for name, each in parameters.items()
        if each.kind is inspect.Parameter.KEYWORD_ONLY
    }
    rows = rows_under(f"Options of `client.{call}`, with their defaults:\n")
    assert {row[0].strip("`"): row[1].strip("`") for row in rows} == options


def test_attributes_of_a_leased_item():
    rows = rows_under("A leased item has these attributes:\n")
    properties = {name for name, each in vars(LeasedItem).items() if isinstance(each, property)}
    assert codes(" ".join(row[0] for row in rows)) == properties - {"batch", "index"}
