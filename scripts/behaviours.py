"""The behaviours of tests/conformance, for the docs: their names, and how many run where.

They are collected by pytest, so that the pages have what runs. A behaviour is a test function; its
name is a sentence. The subject of a module is the first line of its docstring up to a colon.
"""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Collection, Iterable
from functools import cache
from pathlib import Path
from typing import Final

FOLDER: Final = Path("tests/conformance")
_TEST: Final = re.compile(r"(?P<path>\S+)::test_(?P<name>\w+)\[(?P<door>[a-z]+)-(?P<nodes>\d)\]")
Places = frozenset[tuple[str, int]]
"""Where a behaviour runs: doors, and numbers of nodes."""


@cache
def collected() -> dict[str, dict[str, Places]]:
    """By module, and by name of the behaviour: where it runs. `make ci` leaves some places out."""
    env = {name: value for name, value in os.environ.items() if name != "CI"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", str(FOLDER), "--collect-only", "-q", "-p", "no:randomly"],
        capture_output=True,
        text=True,
        check=True,
        env=env,
    )
    return by_module(done.stdout.splitlines())


def by_module(lines: Iterable[str]) -> dict[str, dict[str, Places]]:
    """Of the list that pytest prints."""
    found: dict[str, dict[str, Places]] = {}
    for line in lines:
        if match := _TEST.fullmatch(line):
            behaviours = found.setdefault(match["path"], {})
            place = (match["door"], int(match["nodes"]))
            behaviours[match["name"]] = behaviours.get(match["name"], frozenset()) | {place}
    return dict(sorted(found.items()))


def subject(path: str) -> str:
    docstring = ast.get_docstring(ast.parse(Path(path).read_text(encoding="utf-8")))
    assert docstring, path
    return re.split(r"[:.\n]", docstring)[0]


def places(behaviours: Iterable[Places]) -> list[tuple[str, int]]:
    return sorted(set().union(*behaviours), key=lambda place: (place[1], place[0] != "unary"))


def counts_table() -> str:
    """How many behaviours run where, by subject."""
    modules = collected()
    columns = places(where for module in modules.values() for where in module.values())
    titles = [f"{door}, {nodes} node{'s' * (nodes > 1)}" for door, nodes in columns]
    lines = [f"| subject | behaviours | {' | '.join(titles)} |"]
    lines.append("|---|" + "---|" * (1 + len(columns)))
    for path, behaviours in modules.items():
        lines.append(_row(subject(path), behaviours.values(), columns))
    every = [where for module in modules.values() for where in module.values()]
    lines.append(_row("all", every, columns))
    return "\n".join(lines) + "\n"


def _row(name: str, behaviours: Collection[Places], columns: Iterable[tuple[str, int]]) -> str:
    numbers = [len(behaviours), *(sum(one in where for where in behaviours) for one in columns)]
    return f"| {name} | {' | '.join(map(str, numbers))} |"


def names_list() -> str:
    """All behaviours by subject, in the order of their modules."""
    modules = collected()
    everywhere = set(places(where for module in modules.values() for where in module.values()))
    lines: list[str] = []
    for path, behaviours in modules.items():
        lines += [f"## {subject(path)}", ""]
        for name, where in behaviours.items():
            lines.append(f"- {sentence(name)}{_only(where, everywhere)}")
        lines.append("")
    return "\n".join(lines)


def sentence(name: str) -> str:
    words = name.replace("_", " ")
    return f"{words[0].upper()}{words[1:]}."


def _only(where: Places, everywhere: set[tuple[str, int]]) -> str:
    """A remark on a behaviour that does not run everywhere."""
    said = []
    doors, sizes = {door for door, _ in where}, {nodes for _, nodes in where}
    if doors != {door for door, _ in everywhere}:
        said.append(" and ".join(sorted(doors)))
    if sizes != {nodes for _, nodes in everywhere}:
        said.append(" and ".join(f"{nodes} nodes" for nodes in sorted(sizes)))
    return f" ({', '.join(said)})" if said else ""
