"""The list of the behaviours of tests/conformance; test_docs.py compares it with the pages."""

import pytest

from scripts import behaviours

LINES = [
    "tests/conformance/test_keys.py::test_b_waits[unary-1]",
    "tests/conformance/test_keys.py::test_b_waits[streams-3]",
    "tests/conformance/test_keys.py::test_a_is_first[unary-1]",
    "",
    "3 tests collected in 0.10s",
]


def test_behaviours_are_found_in_what_pytest_lists() -> None:
    assert behaviours.by_module(LINES) == {
        "tests/conformance/test_keys.py": {
            "b_waits": {("unary", 1), ("streams", 3)},
            "a_is_first": {("unary", 1)},
        }
    }


def test_a_name_is_a_sentence() -> None:
    assert behaviours.sentence("a_is_first") == "A is first."


def test_the_table_and_the_list_have_every_behaviour_once() -> None:
    every = [name for module in behaviours.collected().values() for name in module]
    assert behaviours.counts_table().splitlines()[-1].startswith(f"| all | {len(every)} |")
    assert sum(line.startswith("- ") for line in behaviours.names_list().splitlines()) == len(every)


def test_there_are_as_many_as_are_promised() -> None:
    places = {
        place: sum(place in where for module in behaviours.collected().values()
                   for where in module.values())
        for place in [("unary", 1), ("unary", 3), ("streams", 1), ("streams", 3)]
    }  # fmt: skip
    assert min(places.values()) >= 300, places


@pytest.mark.parametrize("path", sorted(map(str, behaviours.FOLDER.glob("test_*.py"))))
def test_each_module_has_a_subject(path: str) -> None:
    assert behaviours.subject(path)
