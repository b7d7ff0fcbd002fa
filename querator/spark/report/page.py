"""Reports as HTML: one file without scripts, which loads nothing.

All text is untrusted, because it may come from items: it is escaped, and the page's own policy
forbids scripts and addresses. Charts are images within the file, in which nothing runs either.
"""

import base64
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from typing import Final

import msgspec

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"

Cell = str | int | float | None


class Picture(msgspec.Struct, frozen=True):
    """`svg` is drawn by `charts`; `says` is the alternative text."""

    title: str
    svg: bytes
    says: str


class PageTable(msgspec.Struct, frozen=True):
    """The first column names the row; the others are quantities."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


class Section(msgspec.Struct, frozen=True):
    """`facts` are names and values; `words` is a sentence or two."""

    title: str
    words: str = ""
    facts: tuple[tuple[str, Cell], ...] = ()
    parts: tuple[Picture | PageTable, ...] = ()


class Page(msgspec.Struct, frozen=True):
    """`problems`: one sentence for each imbalance; if there is none, the page says that all is
    well.
    """

    title: str
    words: str
    problems: tuple[str, ...]
    sections: tuple[Section, ...]


def render(page: Page) -> str:
    """The whole HTML document."""
    style = resources.files(__package__).joinpath("page.css").read_text(encoding="utf-8")
    return "".join(
        (
            "<!DOCTYPE html>\n",
            '<html lang="en">\n<head>\n<meta charset="utf-8">\n',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n',
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
            f"<title>{_text(page.title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n",
            f"<header>\n<h1>{_text(page.title)}</h1>\n<p>{_text(page.words)}</p>\n</header>\n",
            _verdict(page.problems),
            *map(_section, page.sections),
            "</body>\n</html>\n",
        )
    )


def _verdict(problems: Sequence[str]) -> str:
    if not problems:
        return '<p class="well">All counts balance.</p>\n'
    lines = "".join(f"<li>{_text(problem)}</li>" for problem in problems)
    return f'<div class="wrong"><p>Counts do not balance:</p><ul>{lines}</ul></div>\n'


def _section(section: Section) -> str:
    words = f"<p>{_text(section.words)}</p>\n" if section.words else ""
    parts = "".join(
        _picture(part) if isinstance(part, Picture) else _table(part) for part in section.parts
    )
    return (
        f"<section>\n<h2>{_text(section.title)}</h2>\n{words}{_facts(section.facts)}{parts}"
        "</section>\n"
    )


def _facts(facts: Iterable[tuple[str, Cell]]) -> str:
    lines = "".join(
        f"<div><dt>{_text(name)}</dt><dd>{_text(cell_text(value))}</dd></div>"
        for name, value in facts
    )
    return f"<dl>{lines}</dl>\n" if lines else ""


def _picture(picture: Picture) -> str:
    data = base64.b64encode(picture.svg).decode()
    return (
        f"<figure>\n<figcaption>{_text(picture.title)}</figcaption>\n"
        f'<img alt="{_text(picture.says)}" src="data:image/svg+xml;base64,{data}">\n</figure>\n'
    )


def _table(table: PageTable) -> str:
    head = "".join(f'<th scope="col">{_text(name)}</th>' for name in table.columns)
    lines = "".join(
        "<tr>" + "".join(f"<td>{_text(cell_text(cell))}</td>" for cell in row) + "</tr>\n"
        for row in table.rows
    )
    return (
        f'<div class="table"><table>\n<caption>{_text(table.title)}</caption>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{lines}</tbody>\n</table></div>\n"
    )


def cell_text(value: Cell) -> str:
    """A value in readable form."""
    if value is None:
        return "–"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.2f}" if abs(value) < 100 else f"{value:,.0f}"
    return value


def _text(text: str) -> str:
    """Escapes text for HTML; replaces unprintable characters."""
    return escape("".join(letter if letter.isprintable() else "�" for letter in text))
