"""Commands in the pages, in blocks and within sentences, exist and have the options that they are
given.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from querator.cli import querator
from tests.integration.page_programs import DOCS, ROOT, page_blocks

PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
_IN_BLOCK = re.compile(r"(?:^|\$ |\| |\(|exec |-- )(?:\S*/)?querator (.+)")
_IN_TEXT = re.compile(r"`querator ([^`]+)`")
_END = ("|", "||", "&&", "&", ";", ">", "2>", "<", ">>")


def commands(page: Path) -> Iterator[list[str]]:
    """The words after `querator` of each command."""
    for block in page_blocks(page):
        if block.language in ("sh", "console", "shell", ""):
            for line in block.text.replace("\\\n", " ").splitlines():
                if match := _IN_BLOCK.search(line):
                    yield words(match[1])
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for match in _IN_TEXT.finditer(text):
        yield words(" ".join(match[1].split()))


def words(command: str) -> list[str]:
    try:
        split = shlex.split(command, comments=True)
    except ValueError:
        # A quotation that ends on a later line.
        split = command.split()
    ends = (at for at, word in enumerate(split) if word in _END)
    return split[: next(ends, len(split))]


def unknown(command: list[str]) -> str:
    """What the command line does not know of a command; empty if it knows all."""
    there: click.Command = querator
    options = {name for option in there.params for name in (*option.opts, *option.secondary_opts)}
    for word in command:
        if word.startswith("--"):
            name = word.partition("=")[0]
            if name not in options and name not in ("--help", "--"):
                return name
        elif isinstance(there, click.Group) and re.fullmatch(r"[a-z][a-z-]*", word):
            below = there.get_command(click.Context(there), word)
            if below is None:
                return word
            there = below
            options |= {name for it in there.params for name in (*it.opts, *it.secondary_opts)}
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_commands_of_a_page(page: Path):
    for command in commands(page):
        assert unknown(command) == "", f"querator {' '.join(command)}"


def test_an_unknown_command_or_option_is_noticed():
    assert unknown(["queue", "make", "mail"]) == "make"
    assert unknown(["queue", "create", "mail", "--colour", "red"]) == "--colour"
    assert unknown(["serve", "--data-dir", "./data", "--new"]) == ""
    assert words("produce mail 'a b' | cat") == ["produce", "mail", "a b"]
