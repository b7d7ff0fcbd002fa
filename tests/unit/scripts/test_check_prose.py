"""`python -m scripts.check_prose`: which text counts as prose, and the lines of its findings."""

from pathlib import Path

import pytest

from scripts import check_prose
from scripts.check_prose import Block, check, code_blocks, main, page_blocks, rare_words

PLAIN = "The leader answers. " * 2_000
"""6,000 words."""
PAGE = """\
# Title

A paragraph goes
on here, and `nobody` [links](a.md#who-may).
    It is continued.

- an item
  of two lines

      indented below an item

| a | b |
|---|---|
| told | c |

Text.

    indented code told

```
fenced code told
```
"""


def texts(blocks: list[Block]) -> list[tuple[int, str]]:
    return [(block.line, block.text) for block in blocks]


def found(text: str) -> list[tuple[int, str]]:
    return [(line, word) for block in page_blocks(text) for line, word, _ in rare_words(block)]


def repository(root: Path, **files: str) -> Path:
    """Writes files by name: `docs__a` is docs/a.md, `querator__a` is querator/a.py."""
    for name, text in files.items():
        suffix = ".py" if name.startswith(tuple(check_prose.FOLDERS)) else ".md"
        path = root / (name.replace("__", "/") + suffix)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_prose_of_a_page_is_all_but_its_code():
    blocks = page_blocks(PAGE)
    assert texts(blocks) == [
        (1, "Title"),
        (3, "A paragraph goes\non here, and `nobody` [links](a.md#who-may).\nIt is continued."),
        (7, "an item\nof two lines"),
        (10, "indented below an item"),
        (12, "| a | b |"),
        (13, "|---|---|"),
        (14, "| told | c |"),
        (16, "Text."),
    ]
    assert [block.line for block in blocks if block.is_row] == [12, 13, 14]


def test_words_are_found_across_lines_and_not_in_code_spans_or_links():
    assert found(PAGE) == [(3, "goes on"), (14, "told")]
    assert found("Whoever asks.\nWhose? WHO? The whole of it.") == [(1, "whoever"), (2, "who")]


def test_docstrings_and_comments_are_read_and_strings_are_not():
    source = '''\
"""Module."""

NAME = "nobody"
"""Of a name."""
# So
# many.
x = 1  # told


class A:
    """Of a class,
    in vain.
    """
'''
    blocks = list(code_blocks(source))
    assert sorted(texts(blocks)) == [
        (1, '"""Module."""'),
        (4, '"""Of a name."""'),
        (5, "So\nmany."),
        (7, "told"),
        (11, '    """Of a class,\n    in vain.\n    """'),
    ]
    words = [(line, word) for block in blocks for line, word, _ in rare_words(block)]
    assert sorted(words) == [(5, "so many"), (7, "told"), (12, "in vain")]


def test_marks_of_comments_in_strings_begin_none_and_statements_are_read_however_deep():
    source = '''\
a = "# told" + '# "told"' + "\\\\"  # first
b = "\\"# told"; c = r'\\'# told'  # second
d = """
# told \\""" "
"""  # third
e = f"{a['#']}"
match a:
    case 1:
        try:
            pass
        except ValueError:
            def f():
                "deep"
        finally:
            """last"""
'''
    assert sorted(texts(list(code_blocks(source)))) == [
        (1, "first"),
        (2, "second"),
        (5, "third"),
        (13, '                "deep"'),
        (15, '            """last"""'),
    ]


def test_sentences_and_cells_of_docs_have_a_length(tmp_path: Path):
    limit = check_prose.SENTENCE_WORDS_MAX
    short, long = "word " * (limit - 1) + "end. ", "word " * limit + "end."
    cell = "c" * check_prose.CELL_CHARS_MAX
    report = check(
        repository(
            tmp_path,
            docs__a=f"{short}\n{short}\n{long}\n",
            docs__adr__b=f"| {cell} | {long} |\n| a | {cell}c |\n",
            querator__a=f"# {long}\n",
        )
    )
    assert [str(finding).partition(": word")[0] for finding in report.long] == [
        f"docs/a.md:3: sentence of {limit + 1} words",
        f"docs/adr/b.md:1: cell of {len(long)} characters",
        f"docs/adr/b.md:2: cell of {len(cell) + 1} characters: {'c' * 89}…",
    ]
    assert report.fails


@pytest.mark.parametrize(
    ("docs", "code", "tests", "fails"),
    [(1, 1, 0, False), (2, 0, 0, True), (0, 2, 0, True), (0, 0, 1, False), (0, 0, 2, True)],
)
def test_each_kind_has_its_rate(tmp_path: Path, docs: int, code: int, tests: int, fails: bool):
    report = check(
        repository(
            tmp_path,
            README=PLAIN + "Told. " * docs,
            querator__a=f"# {PLAIN}{'Told. ' * code}\n",
            querator__v1__generated="# told told told\n",
            tests__a=f"# {PLAIN}{'Told. ' * tests}\n",
        )
    )
    counts = [tally.found.total() for tally in report.tallies.values()]
    assert counts == [docs, code, tests]
    assert len(report.rare) == docs + code + tests
    assert report.fails is fails


def test_the_exit_code_and_the_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    root = repository(tmp_path, README="One.\n\nNobody is told.\n", scripts__a="# anew\n")
    assert main([], root) == 1
    findings = "README.md:3: 'nobody': Nobody is told.\nREADME.md:3: 'told': Nobody is told.\n"
    rates = (
        "docs: 5000.0 per 10,000 of 4 words (nobody 1, told 1), the limit is 3\n"
        "docstrings and comments of querator: 0.0 per 10,000 of 0 words, the limit is 3\n"
        "docstrings and comments of tests and scripts: 10000.0 per 10,000 of 1 words (anew 1)"
        ", the limit is 3\n"
    )
    assert capsys.readouterr().out == f"{findings}scripts/a.py:1: 'anew': anew\n{rates}"
    assert main(["--rates"], root) == 0
    assert capsys.readouterr().out == rates
