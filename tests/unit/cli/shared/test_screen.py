"""A picture that is drawn again in its place."""

import io
from collections.abc import Iterator

import pytest

from querator.cli.shared.output import BULLET, Screen, note, picture_lines
from querator.cli.shared.tables import FittedTable


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("LINES", "4")
    yield Terminal()
    Screen.shown = None


def test_paragraphs_are_broken_and_bullets_indented():
    table = FittedTable(["queue", "items"], [["mail", 12]])
    lines = [line.text for line in picture_lines([f"{BULLET}one two three", "", table], 12)]
    assert lines[:3] == ["  - one two", "    three", ""]
    assert lines[-1].split() == ["mail", "12"]
    assert [line.text for line in picture_lines(["one two three"], None)] == ["one two three"]


def test_the_second_picture_replaces_the_first(terminal: Terminal):
    screen = Screen(terminal)
    screen.show(["one", "two"])
    first = terminal.getvalue()
    assert first == "one\x1b[K\ntwo\x1b[K\n\x1b[J"
    screen.show(["three"])
    assert terminal.getvalue() == f"{first}\x1b[2Fthree\x1b[K\n\x1b[J"


def test_a_picture_is_cut_at_the_height_of_the_terminal(terminal: Terminal):
    Screen(terminal).show(["1", "2", "3", "4", "5"])
    assert terminal.getvalue().count("\n") == 3


def test_a_note_stands_above_the_picture(terminal: Terminal, capsys: pytest.CaptureFixture[str]):
    screen = Screen(terminal)
    screen.show(["one", "two"])
    drawn = len(terminal.getvalue())
    note("a node was killed")
    screen.show(["three", "four"])
    assert terminal.getvalue()[drawn:] == "\x1b[2F\x1b[Jthree\x1b[K\nfour\x1b[K\n\x1b[J"
    assert capsys.readouterr().err == "a node was killed\n"
    screen.close()
    drawn = len(terminal.getvalue())
    note("done")
    assert len(terminal.getvalue()) == drawn
