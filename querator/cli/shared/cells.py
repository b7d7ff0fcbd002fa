"""Widths of texts in the cells of a terminal. A letter of Chinese, Japanese or Korean takes two
cells, a mark that joins the letter before it none.
"""

import textwrap
import unicodedata


def width(text: str) -> int:
    """Cells of a text without control characters."""
    return len(text) if text.isascii() else sum(map(_cells, text))


def cut(text: str, cells: int) -> str:
    """The text, or as much of it as fits with an ellipsis."""
    if width(text) <= cells:
        return text
    return _split(text, cells - 1)[0].rstrip() + "…"


def wrapped(text: str, cells: int, *, indent: str = "") -> list[str]:
    """Lines of at most `cells`, at least one; the later ones begin with `indent`. Texts with
    letters of two cells, which have few spaces, are broken anywhere.
    """
    if width(text) == len(text):
        return textwrap.wrap(text, cells, subsequent_indent=indent) or [""]
    lines = []
    # A line has space for the indent and one letter.
    cells = max(cells, width(indent) + 2)
    while text:
        line, text = _split(text, cells)
        lines.append(line)
        text = text and indent + text
    return lines


def _cells(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def _split(text: str, cells: int) -> tuple[str, str]:
    """What fits, at least a character, and the rest."""
    used = 0
    for position, character in enumerate(text):
        used += _cells(character)
        if used > cells and position:
            return text[:position], text[position:]
    return text, ""
