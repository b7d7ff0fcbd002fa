"""How `produce` reads its input, and reports bad lines."""

from datetime import timedelta
from io import BytesIO

import pytest

from querator.cli.shared.sources import (
    LINE_BYTES_MAX,
    CsvColumns,
    InputLine,
    SourceError,
    read_csv,
    read_json_lines,
    read_lines,
)
from querator.client.values import Item, Priority

TEMPLATE = Item(kind="note")


def test_lines_are_payloads_byte_for_byte() -> None:
    lines = list(read_lines(BytesIO(b"one\n\n  \r\n\xff\x00\r\nlast"), TEMPLATE))
    assert lines == [
        InputLine(1, Item(b"one", kind="note")),
        InputLine(4, Item(b"\xff\x00", kind="note")),
        InputLine(5, Item(b"last", kind="note")),
    ]


def test_a_line_that_is_too_long_is_refused_and_the_next_one_read() -> None:
    lines = list(read_lines(BytesIO(b"a" * (3 * LINE_BYTES_MAX) + b"\nnext\n"), TEMPLATE))
    assert [line.number for line in lines] == [1, 2]
    assert "longer" in lines[0].problem
    assert lines[1].item == Item(b"next", kind="note")


def test_a_json_line_may_have_every_field() -> None:
    line = (
        b'{"payload":"hi","kind":"mail","encoding":"text/plain","reference":"r","key":"k",'
        b'"group":"g","attributes":{"a":"b"},"priority":"high","delay":"5m",'
        b'"expire_timeout":"1h","lease_timeout":"10s","dedup_key":"d"}\n'
    )
    (read,) = read_json_lines(BytesIO(line), TEMPLATE)
    assert read.item == Item(
        payload=b"hi",
        kind="mail",
        encoding="text/plain",
        reference="r",
        key="k",
        group="g",
        attributes={"a": "b"},
        priority=Priority.HIGH,
        delay=timedelta(minutes=5),
        expire_timeout=timedelta(hours=1),
        lease_timeout=timedelta(seconds=10),
        dedup_key="d",
    )


@pytest.mark.parametrize(
    ("line", "payload"),
    [
        (b'{"payload":{"a": [1, 2]}}', b'{"a": [1, 2]}'),
        (b'{"payload":null}', b"null"),
        (b'{"payload":""}', b""),
        (b'{"payload":"\\u00e4"}', b"\xc3\xa4"),
        (b'{"payload_base64":"AAE="}', b"\x00\x01"),
    ],
)
def test_a_json_payload_is_text_or_json_or_base64(line: bytes, payload: bytes) -> None:
    (read,) = read_json_lines(BytesIO(line), TEMPLATE)
    assert read.item == Item(payload, kind="note")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"nonsense", "JSON"),
        (b"[]", "object"),
        (b"{}", "payload is missing"),
        (b'{"payload":"a","extra":1}', "extra"),
        (b'{"payload":"a","payload_base64":"AA=="}', "not both"),
        (b'{"payload_base64":"*"}', "base64"),
        (b'{"payload":"a","priority":"urgent"}', "priority"),
        (b'{"payload":"a","delay":"soon"}', "duration"),
        (b'{"payload":"a","enqueue_at":"2026-01-31T08:00:00"}', "offset"),
        (b'{"payload":"a","delay":"1s","enqueue_at":"2026-01-31T08:00:00Z"}', "not both"),
        (b'{"payload":"\xff"}', "utf-8"),
    ],
)
def test_a_bad_json_line_is_named_and_the_others_go_on(line: bytes, words: str) -> None:
    bad, good = read_json_lines(BytesIO(line + b'\n{"payload":"b"}\n'), TEMPLATE)
    assert bad.item is None
    assert words.lower() in bad.problem.lower()
    assert good == InputLine(2, Item(b"b", kind="note"))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b'{"payload":1,"priority":5}',
         "priority is 5: it must be lowest, low, normal, high or highest"),
        (b'{"payload":1,"priority":"urgent"}',
         'priority is "urgent": it must be lowest, low, normal, high or highest'),
        (b'{"payload":1,"key":17}', "key is 17: it must be a text"),
        (b'{"payload":1,"dedup_key":true}', "dedup_key is true: it must be a text"),
        (b'{"payload":1,"reference":["r"]}', 'reference is ["r"]: it must be a text'),
        (b'{"payload":1,"attributes":{"a":1}}',
         'attributes is {"a":1}: it must be an object of texts, such as {"origin": "web"}'),
        (b'{"payload":1,"delay":5}',
         "delay is 5: it must be a duration as a text, such as 30s or 1h30m"),
        (b'{"payload":1,"enqueue_at":"tomorrow"}',
         'enqueue_at is "tomorrow": it must be an instant with its offset, such as '
         "2026-01-31T08:00:00Z"),
        (b'["hello"]', 'a line is an object, such as {"payload": "hello"}'),
        (b'{"key":5, oh', "Expected `str | null`, got `int` - at `$.key`"),
    ],
)  # fmt: skip
def test_a_value_of_the_wrong_type_is_named_with_what_it_must_be(line: bytes, problem: str) -> None:
    [read] = read_json_lines(BytesIO(line), TEMPLATE)
    assert read.problem == problem


def test_a_csv_row_is_a_json_object() -> None:
    rows = list(read_csv(BytesIO(b'a,b\n1,"x,\ny"\n\n2,z\n'), CsvColumns(kind="a"), Item()))
    assert rows == [
        InputLine(3, Item(b'{"a":"1","b":"x,\\ny"}', encoding="application/json", kind="1")),
        InputLine(5, Item(b'{"a":"2","b":"z"}', encoding="application/json", kind="2")),
    ]


def test_a_csv_column_may_be_the_payload() -> None:
    columns = CsvColumns(payload="b", key="a", group="a", reference="a", dedup_key="a")
    (row,) = read_csv(BytesIO(b"\xef\xbb\xbfa,b\n1,x\n"), columns, TEMPLATE)
    assert row.item == Item(b"x", kind="note", key="1", group="1", reference="1", dedup_key="1")


def test_bad_csv_rows_are_named_and_the_others_go_on() -> None:
    short, garbled, good = read_csv(BytesIO(b"a,b\n1\n\xff,2\n3,4\n"), CsvColumns(), Item())
    assert (short.number, short.problem) == (2, "has 1 columns; the first line has 2")
    assert (garbled.number, garbled.problem) == (3, "is not UTF-8")
    assert good.item is not None


@pytest.mark.parametrize(
    ("text", "words"), [(b"", "empty"), (b"a,b\n", "no column 'c'"), (b"a,a\n", "same name")]
)
def test_a_csv_that_cannot_be_read_is_refused_whole(text: bytes, words: str) -> None:
    with pytest.raises(SourceError, match=words):
        list(read_csv(BytesIO(text), CsvColumns(kind="c" if b"b" in text else ""), Item()))
