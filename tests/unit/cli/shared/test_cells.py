"""Widths of texts in a terminal."""

import pytest

from querator.cli.shared import cells


@pytest.mark.parametrize(
    ("text", "width"),
    [("", 0), ("mail", 4), ("Zürich", 6), ("東京", 4), ("e\u0301", 1), ("─█…", 3), ("👍", 2)],
)
def test_width(text: str, width: int):
    assert cells.width(text) == width


def test_a_text_is_cut_with_an_ellipsis():
    assert cells.cut("mail", 4) == "mail"
    assert cells.cut("mailbox", 4) == "mai…"
    assert cells.cut("mail box", 6) == "mail…"
    assert cells.cut("東京都", 5) == "東京…"
    assert cells.cut("東京都", 4) == "東…"


def test_a_text_is_broken_into_lines():
    assert cells.wrapped("", 10) == [""]
    assert cells.wrapped("one two three", 8, indent="  ") == ["one two", "  three"]
    assert cells.wrapped("Zürich und Bern", 8) == ["Zürich", "und Bern"]
    assert cells.wrapped("東京都港区", 6, indent="  ") == ["東京都", "  港区"]
    assert cells.wrapped("東京", 1, indent="    ") == ["東京"]
