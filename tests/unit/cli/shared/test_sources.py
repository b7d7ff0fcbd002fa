"""How `produce` reads its input, and reports bad lines."""

from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path

import pytest

from querator.cli.shared.sources import (
    LINE_BYTES_MAX,
    CsvColumns,
    InputLine,
    SourceError,
    read_csv,
    read_json_files,
    read_json_lines,
    read_lines,
)
from querator.client.values import Item, RetryPolicy

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
        b'"group":"g","attributes":{"a":"b"},"priority":-7,"delay":"5m",'
        b'"expire_timeout":"1h","lease_timeout":"10s","dedup_key":"d","max_attempts":0,'
        b'"retry":{"delay":"1s","delay_max":"10m","backoff":"linear","jitter":false}}\n'
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
        priority=-7,
        delay=timedelta(minutes=5),
        expire_timeout=timedelta(hours=1),
        lease_timeout=timedelta(seconds=10),
        dedup_key="d",
        max_attempts=0,
        retry=RetryPolicy(timedelta(seconds=1), timedelta(minutes=10), "linear", False),
    )


@pytest.mark.parametrize("text", ["2026-01-31T08:00:00", "2026-01-31T10:00:00+02:00"])
def test_an_instant_of_a_json_line_is_in_utc_unless_it_says_otherwise(text: str) -> None:
    line = b'{"payload":"a","enqueue_at":"%b"}' % text.encode()
    (read,) = read_json_lines(BytesIO(line), TEMPLATE)
    assert read.item is not None
    assert read.item.enqueue_at == datetime(2026, 1, 31, 8, tzinfo=UTC)


def test_json_lines_of_several_files_are_named_by_file(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b'{"payload":"a"}\n{"payload":"b"}\n')
    two.write_bytes(b'{}\n{"payload":"c"}\n')
    stdin = BytesIO(b'{"payload":"d"}\n')
    paths = (str(one), str(two), "-")
    lines = list(read_json_files(paths, lambda: stdin, TEMPLATE))
    assert [line.item and line.item.payload for line in lines] == [b"a", b"b", None, b"c", b"d"]
    assert [line.number for line in lines] == [1, 2, 3, 4, 5]
    assert lines[2].place == f"{two}, line 1"


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
        (b"[]", "a line must be a JSON object, not []"),
        (b"{}", "payload is missing"),
        (b'{"payload":"a","extra":1}', "there is no field 'extra'"),
        (b'{"payload":"a","payload_base64":"AA=="}', "not both"),
        (b'{"payload_base64":"*"}', "base64"),
        (
            b'{"payload":"a","max_attempts":65536}',
            "max_attempts is 65536; it must be a whole number from 0 to 65535",
        ),
        (
            b'{"payload":"a","max_attempts":"3"}',
            'max_attempts is "3"; it must be a whole number from 0 to 65535',
        ),
        (
            b'{"payload":"a","retry":"1s"}',
            'retry is "1s"; it must be an object, for example {"delay": "1s"}',
        ),
        (
            b'{"payload":"a","retry":{}}',
            'retry is {}; it must be an object with a text for delay, for example {"delay": "1s"}',
        ),
        (
            b'{"payload":"a","retry":{"delay":"soon"}}',
            'retry.delay is "soon"; it must be a duration, for example 30s, 5m, 1h30m or 7d',
        ),
        (
            b'{"payload":"a","retry":{"delay":"10ms"}}',
            "retry.delay is 10ms; it must be 0 or at least 100ms",
        ),
        (
            b'{"payload":"a","retry":{"delay":"31d"}}',
            "retry.delay is 31d; at most 30d",
        ),
        (
            b'{"payload":"a","retry":{"delay":"1s","delay_max":"0"}}',
            "retry.delay_max is 0; at least 100ms",
        ),
        (
            b'{"payload":"a","retry":{"delay":"1s","backoff":"cubic"}}',
            "retry.backoff is 'cubic'; it must be one of fixed, linear, exponential",
        ),
        (
            b'{"payload":"a","priority":"urgent"}',
            'priority is "urgent"; it must be a whole number from -2147483648 to 2147483647',
        ),
        (
            b'{"payload":"a","priority":2147483648}',
            "priority is 2147483648; it must be a whole number from -2147483648 to 2147483647",
        ),
        (
            b'{"payload":"a","priority":true}',
            "priority is true; it must be a whole number from -2147483648 to 2147483647",
        ),
        (
            b'{"payload":"a","delay":"soon"}',
            'delay is "soon"; it must be a duration, for example 30s, 5m, 1h30m or 7d',
        ),
        (b'{"payload":"a","delay":5}', "delay is 5; it must be a text with a duration"),
        (b'{"payload":"a","delay":"4000d"}', "delay is 4000d; at most 10 years"),
        (b'{"payload":"a","lease_timeout":"99h"}', "lease_timeout is 99h; at most 24h"),
        (
            b'{"payload":"a","enqueue_at":"tomorrow"}',
            'enqueue_at is "tomorrow"; it must be an instant, for example 2026-01-31T08:00:00Z',
        ),
        (b'{"payload":"a","enqueue_at":17}', "enqueue_at is 17; it must be an instant"),
        (b'{"payload":"a","kind":["mail"]}', 'kind is ["mail"]; it must be a text'),
        (b'{"payload":"a","attributes":{"n":1}}', 'attributes is {"n":1}; it must be an object of'),
        (b'{"payload":"a","delay":"1s","enqueue_at":"2026-01-31T08:00:00Z"}', "not both"),
        (b'{"payload":"\xff"}', "utf-8"),
    ],
)
def test_a_bad_json_line_is_named_and_the_others_go_on(line: bytes, words: str) -> None:
    bad, good = read_json_lines(BytesIO(line + b'\n{"payload":"b"}\n'), TEMPLATE)
    assert bad.item is None
    assert words.lower() in bad.problem.lower()
    assert good == InputLine(2, Item(b"b", kind="note"))


def test_a_line_with_a_wrong_value_that_is_malformed_behind_it_is_named() -> None:
    [read] = read_json_lines(BytesIO(b'{"key":5, oh'), TEMPLATE)
    assert "malformed" in read.problem


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
