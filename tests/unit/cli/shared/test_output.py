"""Text that reaches the terminal, and measured latencies."""

import pytest

from querator.cli.demo.measure import latency
from querator.cli.shared.output import count, write_table
from querator.cli.shared.tables import FittedTable
from querator.cli.shared.texts import printable as shown
from querator.cli.shared.views import payload_texts, preview


def test_foreign_text_cannot_steer_the_terminal() -> None:
    assert shown("a\x1b[31mb\nc\x07") == "a\\x1b[31mb\\nc\\x07"
    assert shown("Zürich – 東京") == "Zürich – 東京"


def test_markup_in_data_is_data(capsys: pytest.CaptureFixture[str]) -> None:
    write_table(("payload",), [("[bold]x[/bold] :smile:",)])
    assert "[bold]x[/bold] :smile:" in capsys.readouterr().out


def test_a_pipe_gets_whole_cells_without_padding(capsys: pytest.CaptureFixture[str]) -> None:
    long = "x" * 300
    write_table(("name", "text", "number"), [("a", long, 1_000), ("bb", "", 2)])
    lines = capsys.readouterr().out.splitlines()
    assert long in lines[2]
    assert lines[2].endswith("1,000")
    assert all(line == line.rstrip() for line in lines)


def test_a_table_without_rows_has_its_head() -> None:
    assert next(FittedTable(("a", "b"), []).lines(80)).text == "a  b"


def test_payloads_are_text_or_base64() -> None:
    assert payload_texts("ä".encode()) == ("ä", None)
    assert payload_texts(b"\xff\x00") == (None, "/wA=")
    assert preview(b"\xff" * 2_000) == "(2,000 bytes, not text)"
    assert len(preview(b"a" * 100, characters_max=10)) == 10


def test_counts_have_their_plural() -> None:
    assert [count(n, "item") for n in (0, 1, 1_200)] == ["0 items", "1 item", "1,200 items"]


def test_percentiles_are_by_nearest_rank() -> None:
    measured = latency([n / 1000 for n in range(100, 0, -1)])
    assert (measured.count, measured.p50_ms, measured.p99_ms, measured.max_ms) == (
        100,
        51,
        100,
        100,
    )
    assert latency([]).count == 0
