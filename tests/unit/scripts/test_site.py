"""The site of docs/: links that leave it, what it loads, and lists that come from the code."""

import re
from pathlib import Path

import pytest

from querator.model import limits
from querator.model.errors import ErrorCode
from scripts import docs, limits_list, site

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("link", "there"),
    [
        ("[the CLI](../cli.md#exit-codes)", "[the CLI](../cli.md#exit-codes)"),
        ("[limits](../../querator/model/limits.py)", "limits (`querator/model/limits.py`)"),
        ("[`proto`](../../proto)", "`proto`"),
        ("[text](page.md)", "[text](page.md)"),
    ],
)
def test_a_link_out_of_docs_becomes_a_path(link: str, there: str):
    assert site.inside(link, ROOT / "docs" / "guides", ROOT / "docs") == there


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        (
            "a.html",
            '<script src="https://cdn.example/x.js"></script>',
            ["https://cdn.example/x.js"],
        ),
        ("a.html", '<img src="//img.example/x.png">', ["//img.example/x.png"]),
        ("a.html", '<link rel="stylesheet" href="http://f.example/">', ["http://f.example/"]),
        ("a.html", '<link rel="canonical" href="https://q.example/">', []),
        ("a.html", '<a href="https://q.example/">a link</a><img src="x.png">', []),
        ("a.css", "@import 'https://f.example/a.css';", ["https://f.example/a.css"]),
        ("a.css", "b { background: url(//f.example/b.png) }", ["//f.example/b.png"]),
        ("a.css", "b { background: url(b.png) }", []),
    ],
)
def test_what_a_site_loads_from_elsewhere(tmp_path: Path, name: str, text: str, found: list[str]):
    (tmp_path / name).write_text(text)
    assert list(site.loaded_from_elsewhere(tmp_path)) == [f"{name}: {it}" for it in found]


def test_every_limit_is_listed_with_its_unit():
    listed = {limit.name: limit for limit in limits_list.all_limits()}
    constants = {name for name in vars(limits) if name.isupper()}
    units = {"KIB", "MIB", "GIB"} | {f"{unit}_MS" for unit in ("SECOND", "MINUTE", "HOUR", "DAY")}
    assert set(listed) == constants - units - {"YEAR_MS"}
    assert limits_list.amount(listed["PAYLOAD_BYTES_MAX"]) == "1 MiB"
    assert limits_list.amount(listed["LEASE_TIMEOUT_MS_MAX"]) == "24 h"
    assert limits_list.amount(listed["DEDUP_WINDOW_MS_MAX"]) == "7 days"
    assert limits_list.amount(listed["ATTEMPTS_MAX"]) == "65,535"
    assert listed["ATTEMPTS_MAX"].section == "Queues."


def test_every_error_has_its_exception_and_what_to_do():
    page = docs.ERRORS_PAGE.read_text()
    _, table, advice = page.partition("<!-- exceptions:")[2].partition("<!-- end -->")
    assert table
    for code in ErrorCode:
        (row,) = (line for line in docs.exceptions_table().splitlines() if f"`{code.name}`" in line)
        exception = row.split("`")[3]
        assert f"`{exception}`" in advice, f"{exception} ({code.name}) has no advice"


def test_every_page_has_a_place_in_the_navigation():
    """A decision is listed by adr/README.md instead."""
    text = (ROOT / "mkdocs.yml").read_text()
    entered = set(re.findall(r": (\S+\.md)$", text, re.MULTILINE))
    pages = {path.relative_to(docs.DOCS).as_posix() for path in docs.DOCS.rglob("*.md")}
    assert entered == {page for page in pages if not page.startswith("adr/0")}
