"""Checks the English of the docs, and of docstrings and comments: `python -m scripts.check_prose`.

- Rare words: `WORDS` must stay below `RATE_LIMIT` per 10,000 words, all of them together. There are
  three rates: of the docs, of docstrings and comments of querator/, and of those of tests/ and
  scripts/.
- Long sentences: a sentence of the docs has at most `SENTENCE_WORDS_MAX` words, outside of tables
  and code blocks. A colon and a semicolon end a sentence, too.
- Long cells: a cell of a table in the docs has at most `CELL_CHARS_MAX` characters.

Each finding is printed as `path:line: text`, then the rates. The exit code is 1 when a rate reaches
its limit, or when a sentence or a cell is too long. `--rates` prints the rates alone, and exits
with 0. Code blocks, code spans, targets of links and generated Python files are not checked.
"""

import argparse
import ast
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, pairwise
from pathlib import Path
from typing import Final, NamedTuple

WORDS: Final = (
    "who",
    "whoever",
    "somebody",
    "nobody",
    "told",
    "goes on",
    "so many",
    "anew",
    "in vain",
    "besides",
)
RATE_LIMIT: Final = 3.0
"""Occurrences per 10,000 words: from this rate on a kind fails."""
SENTENCE_WORDS_MAX: Final = 40
CELL_CHARS_MAX: Final = 120
DOCS: Final = "docs"
CODE: Final = "docstrings and comments of querator"
OTHER_CODE: Final = "docstrings and comments of tests and scripts"
FOLDERS: Final = {"querator": CODE, "tests": OTHER_CODE, "scripts": OTHER_CODE}
GENERATED: Final = Path("querator/v1")
PAGES: Final = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")

_QUOTE_CHARS: Final = 90
"""Length of the quotation in a finding."""
_WORD: Final = re.compile(
    r"\b(?:" + "|".join(word.replace(" ", r"\s+") for word in WORDS) + r")\b", re.IGNORECASE
)
_NOT_PROSE: Final = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)|(?<=\])\([^)\s]*\)", re.DOTALL)
"""Code spans and targets of links."""
_SENTENCE_END: Final = re.compile(r"[.!?:;][)\]\"'*_’”]*\s+")
_FENCE: Final = re.compile(r"\s*(```+|~~~+)")
_LIST_ITEM: Final = re.compile(r"\s*(?:[-*+]|\d+[.)])\s+")
_CELL_BORDER: Final = re.compile(r"(?<!\\)\|")
_INDENTED: Final = "    "
_BODIES: Final = ("body", "orelse", "handlers", "finalbody", "cases")
"""Fields of the syntax tree that hold statements, or parts of statements that do."""
_STRING_OR_COMMENT: Final = re.compile(
    r"""(?P<quote>\"{3}|'{3})(?:[^\\]|\\.)*?(?P=quote)"""
    r"""|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|#[^\n]*""",
    re.DOTALL,
)
"""A mark of a comment within a string begins no comment."""


class Block(NamedTuple):
    """Lines of prose that belong together; `line` is the number of the first one. A row of a table
    is a block.
    """

    line: int
    text: str
    is_row: bool = False

    def line_at(self, offset: int) -> int:
        return self.line + self.text.count("\n", 0, offset)


class Finding(NamedTuple):
    path: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


@dataclass
class Tally:
    """The words of one kind of text; `found` counts those of `WORDS`."""

    words: int = 0
    found: Counter[str] = field(default_factory=Counter)

    @property
    def rate(self) -> float:
        return 10_000 * self.found.total() / self.words if self.words else 0.0

    def __str__(self) -> str:
        parts = ", ".join(f"{word} {count}" for word, count in self.found.most_common())
        return f"{self.rate:.1f} per 10,000 of {self.words:,} words" + (parts and f" ({parts})")


@dataclass
class Report:
    rare: list[Finding] = field(default_factory=list)
    """Occurrences of `WORDS`."""
    long: list[Finding] = field(default_factory=list)
    """Sentences and cells."""
    tallies: dict[str, Tally] = field(
        default_factory=lambda: {kind: Tally() for kind in (DOCS, CODE, OTHER_CODE)}
    )

    @property
    def fails(self) -> bool:
        return bool(self.long) or any(tally.rate >= RATE_LIMIT for tally in self.tallies.values())

    def add(self, kind: str, path: Path, blocks: Iterable[Block]) -> None:
        tally = self.tallies[kind]
        for block in blocks:
            tally.words += _count(block.text)
            for line, word, quote in rare_words(block):
                tally.found[word] += 1
                self.rare.append(Finding(path, line, f"{word!r}: {quote}"))
            if kind == DOCS:
                long = long_cells(block) if block.is_row else long_sentences(block)
                self.long += (Finding(path, line, text) for line, text in long)


# --- blocks --------------------------------------------------------------------------------------


class _Page:
    """Collects the blocks of a Markdown page, line by line."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self._paragraph: list[str] = []
        self._first = 0
        self._fence = ""
        self._in_list = False

    def read(self, number: int, line: str) -> None:
        if self._is_fenced(line):
            return
        if not line.strip():
            self.end()
        elif line.startswith(_INDENTED) and not self._paragraph and not self._in_list:
            # An indented code block.
            return
        elif line.lstrip().startswith("|"):
            self.end()
            self.blocks.append(Block(number, line, is_row=True))
        elif line.startswith(("#", "<!--")):
            self.end()
            self._in_list = False
            if line.startswith("#"):
                self.blocks.append(Block(number, line.lstrip("# ")))
        else:
            self._add(number, line)

    def end(self) -> None:
        """Ends the paragraph, or the item of a list."""
        if self._paragraph:
            self.blocks.append(Block(self._first, "\n".join(self._paragraph)))
        self._paragraph = []

    def _is_fenced(self, line: str) -> bool:
        """Whether the line belongs to a code block between fences."""
        if self._fence:
            if line.strip().startswith(self._fence):
                self._fence = ""
            return True
        fence = _FENCE.match(line)
        if fence is None:
            return False
        self.end()
        self._fence = fence[1]
        return True

    def _add(self, number: int, line: str) -> None:
        item = _LIST_ITEM.match(line)
        if item is not None:
            self.end()
            self._in_list = True
            line = line[item.end() :]
        elif not self._paragraph and not line[0].isspace():
            self._in_list = False
        if not self._paragraph:
            self._first = number
        self._paragraph.append(line.strip().removeprefix("> "))


def page_blocks(text: str) -> list[Block]:
    """Paragraphs, items of lists, headings and rows of tables of a Markdown page."""
    page = _Page()
    for number, line in enumerate(text.splitlines(), 1):
        page.read(number, line)
    page.end()
    return page.blocks


def code_blocks(source: str) -> Iterator[Block]:
    """Docstrings, of names as well, and comments of a Python file."""
    lines = source.splitlines()
    for statement in _statements(ast.parse(source)):
        if (
            isinstance(statement, ast.Expr)
            and isinstance(statement.value, ast.Constant)
            and isinstance(statement.value.value, str)
        ):
            text = "\n".join(lines[statement.lineno - 1 : statement.end_lineno])
            yield Block(statement.lineno, text)
    yield from _comments(source)


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """The statements below the node, however deep. No expression contains one."""
    for name in _BODIES:
        for part in getattr(tree, name, ()):
            yield part
            yield from _statements(part)


def _comments(source: str) -> Iterator[Block]:
    """Comments on lines that follow each other, in the same column, are one block."""
    first = column = line = start = 0
    texts: list[str] = []
    for match in _STRING_OR_COMMENT.finditer(source):
        if not match[0].startswith("#"):
            continue
        line += source.count("\n", start, match.start())
        start = match.start()
        at = line + 1, start - (source.rfind("\n", 0, start) + 1)
        if texts and at != (first + len(texts), column):
            yield Block(first, "\n".join(texts))
            texts = []
        if not texts:
            first, column = at
        texts.append(match[0].lstrip("#! "))
    if texts:
        yield Block(first, "\n".join(texts))


# --- findings ------------------------------------------------------------------------------------


def rare_words(block: Block) -> Iterator[tuple[int, str, str]]:
    """Line, word and quotation for each of `WORDS` in the block."""
    lines = block.text.split("\n")
    for match in _WORD.finditer(_NOT_PROSE.sub(_blank, block.text)):
        line = block.line_at(match.start())
        word = " ".join(match[0].lower().split())
        yield line, word, _quote(lines[line - block.line])


def long_sentences(block: Block) -> Iterator[tuple[int, str]]:
    ends = (match.end() for match in _SENTENCE_END.finditer(block.text))
    for start, end in pairwise(chain([0], ends, [len(block.text)])):
        sentence = block.text[start:end]
        count = _count(sentence)
        if count > SENTENCE_WORDS_MAX:
            yield block.line_at(start), f"sentence of {count} words: {_quote(sentence)}"


def long_cells(row: Block) -> Iterator[tuple[int, str]]:
    for cell in _CELL_BORDER.split(row.text):
        length = len(cell.strip())
        if length > CELL_CHARS_MAX:
            yield row.line, f"cell of {length} characters: {_quote(cell)}"


def _count(text: str) -> int:
    """Number of words; punctuation that stands by itself does not count."""
    return sum(any(char.isalnum() for char in word) for word in text.split())


def _blank(match: re.Match[str]) -> str:
    """Blanks of the length of the match."""
    return re.sub(r"[^\n]", "`", match[0])


def _quote(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _QUOTE_CHARS else f"{text[: _QUOTE_CHARS - 1]}…"


# --- all files -----------------------------------------------------------------------------------


def check(root: Path) -> Report:
    """Reads the docs and the Python files of the repository at `root`."""
    report = Report()
    pages = (root / name for name in PAGES)
    for path in (*sorted((root / "docs").rglob("*.md")), *filter(Path.exists, pages)):
        report.add(DOCS, path.relative_to(root), page_blocks(path.read_text(encoding="utf-8")))
    for folder, kind in FOLDERS.items():
        for path in sorted((root / folder).rglob("*.py")):
            name = path.relative_to(root)
            if not name.is_relative_to(GENERATED):
                report.add(kind, name, code_blocks(path.read_text(encoding="utf-8")))
    return report


def main(arguments: list[str], root: Path) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.check_prose")
    parser.add_argument("--rates", action="store_true", help="print the rates alone, and exit 0")
    rates_alone: bool = parser.parse_args(arguments).rates
    report = check(root)
    if not rates_alone:
        for finding in sorted(report.rare + report.long):
            print(finding)
    for kind, tally in report.tallies.items():
        print(f"{kind}: {tally}, the limit is {RATE_LIMIT:g}")
    return 0 if rates_alone else int(report.fails)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Path(__file__).parents[1]))
