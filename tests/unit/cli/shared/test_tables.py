"""Tables that fit the terminal."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from querator.cli.shared.tables import Column, FittedTable, TableStream

COUNTS = ("queue", Column("ready", keep=True), "leased", "acknowledged", "expired")


def lines(table: FittedTable, width: int | None) -> list[str]:
    return [line.text for line in table.lines(width)]


def test_a_table_that_fits_has_all_its_columns() -> None:
    table = FittedTable(COUNTS, [("mail", 1_204, 3, 0, 0), ("other", 7, 0, 0, 0)])
    assert lines(table, 80) == [
        "queue  ready  leased  acknowledged  expired",
        "───────────────────────────────────────────",
        "mail   1,204       3             0        0",
        "other      7       0             0        0",
    ]


def test_a_narrow_table_leaves_out_the_columns_of_zeros_and_says_so() -> None:
    table = FittedTable(COUNTS, [("mail", 0, 3, 0, 0), ("other", 0, 0, 0, 0)])
    assert lines(table, 42) == [
        "queue  ready  leased",
        "────────────────────",
        "mail       0       3",
        "other      0       0",
        "0 in all rows: acknowledged, expired",
    ]


def test_then_long_texts_are_cut() -> None:
    table = FittedTable(("item", "kind", Column("payload", cut=True)), [("0-1", "", "x" * 60)])
    assert lines(table, 30)[2] == f"0-1   {'x' * 23}…"
    wide = FittedTable(("item", "kind", Column("payload", cut=True)), [("0-1", "", "東京" * 20)])
    assert lines(wide, 30)[2] == f"0-1   {'東京' * 5}東…"


def test_then_the_columns_go_below_each_other_in_two_parts() -> None:
    table = FittedTable(COUNTS, [("mail", 1_204, 3, 17, 1)])
    assert lines(table, 30) == [
        "queue  ready  leased",
        "────────────────────",
        "mail   1,204       3",
        "",
        "queue  acknowledged  expired",
        "────────────────────────────",
        "mail             17        1",
    ]


def test_at_last_a_row_becomes_a_list() -> None:
    table = FittedTable(("node", "why"), [("node-1", "it does not answer at all"), ("node-2", "")])
    assert lines(table, 24) == [
        "node node-1",
        "  why  it does not",
        "       answer at all",
        "",
        "node node-2",
    ]


NAMES = ("name", "first", Column("second", cut=True), "third")


@given(
    rows=st.lists(
        st.tuples(
            st.text("ab", min_size=1, max_size=12),
            st.integers(0, 10**12),
            st.text("x y", max_size=90),
            st.text("z", max_size=30),
        ),
        max_size=4,
    ),
    width=st.integers(40, 120),
)
def test_no_line_is_wider_than_the_terminal_and_no_value_is_lost(
    rows: Sequence[tuple[str, int, str, str]], width: int
) -> None:
    shown = lines(FittedTable(NAMES, rows), width)
    assert all(len(line) <= width for line in shown)
    words = {word for line in shown for word in line.split()}
    for name, number, _, text in rows:
        assert name in words
        assert f"{number:,}" in words
        assert not text or text in "".join(words)


def test_a_stream_repeats_the_names_only_when_its_rows_do_not_fit_any_more() -> None:
    stream = TableStream(("item", "due", "payload"), 24)
    first = [line.text for line in stream.lines([("0-1", "", "a long text here")])]
    assert first == ["item  payload", "──────────────────────", "0-1   a long text here"]
    assert [line.text for line in stream.lines([("0-2", "", "b")])] == ["0-2   b"]
    with_due = [line.text for line in stream.lines([("0-3", "noon", "c")])]
    assert with_due == [
        "",
        "item  due   payload",
        "───────────────────",
        "0-3   noon  c",
    ]


def test_later_rows_of_a_stream_use_the_whole_width() -> None:
    stream = TableStream(("item", Column("payload", cut=True)), 30)
    list(stream.lines([("0-1", "a")]))
    assert [line.text for line in stream.lines([("0-2", "b" * 40)])] == [f"0-2   {'b' * 23}…"]


def test_a_stream_in_a_pipe_never_cuts() -> None:
    stream = TableStream(("item", Column("payload", cut=True)), None)
    list(stream.lines([("0-1", "a")]))
    assert [line.text for line in stream.lines([("0-1000000", "b" * 200)])] == [
        f"0-1000000  {'b' * 200}"
    ]
