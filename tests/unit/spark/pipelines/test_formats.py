"""The first bytes of a file say whether it is of the chosen format."""

import pytest

from querator.spark.pipelines.formats import misfit, wrong_format

PARQUET = b"PAR1\x15\x04\x15"


@pytest.mark.parametrize(
    ("chosen", "head", "words"),
    [
        ("json", b"id,name\n1,ann\n", "is not JSON: it begins with 'id,name.1,ann.'"),
        ("json", PARQUET, "is a Parquet file"),
        ("text", PARQUET, "is a Parquet file"),
        ("csv", PARQUET, "is a Parquet file"),
        ("csv", b"PK\x03\x04\x14\x00", "is a ZIP file"),
        ("csv", b"ORC\x08", "is an ORC file"),
        ("csv", b'{"id": 1}\n', "is not CSV with a header: it begins with '{\"id\": 1}.'"),
        ("csv", b"id\x00\x01\xff", "is not text: it begins with 'id...'"),
        ("text", b"\x1f\x8b\x08", "is compressed by gzip, and its name does not end with .gz"),
        ("parquet", b"id,name", "is no Parquet file: it begins with 'id,name'"),
        ("parquet", b"", "is no Parquet file: it is empty"),
    ],
)
def test_a_file_of_another_format(chosen: str, head: bytes, words: str) -> None:
    assert misfit(chosen, head, "part-0", ()) == words


@pytest.mark.parametrize(
    ("chosen", "head", "name", "options"),
    [
        ("json", b'{"id": 1}', "a", ()),
        ("json", b'\xef\xbb\xbf\n [{"id": 1}]', "a", ()),
        ("json", b"", "a", ()),
        ("csv", "größe,preis\n".encode(), "a", ()),
        ("csv", b'{"id": 1},2\n', "a", ("header",)),
        ("csv", b"\xff\xfei\x00d\x00", "a", ("encoding",)),
        ("json", b"id,name", "a", ("pathGlobFilter",)),
        ("json", b'# exported\n{"id": 1}', "a", ("mode",)),
        ("json", b'// exported\n{"id": 1}', "a", ("allowComments",)),
        ("parquet", b"", "a", ("ignoreCorruptFiles",)),
        ("text", b"\x1f\x8b\x08", "a.gz", ()),
        ("parquet", PARQUET, "a", ()),
        ("parquet", b"PARE\x15", "a", ()),
    ],
)
def test_a_file_that_may_be_of_the_format(
    chosen: str, head: bytes, name: str, options: tuple[str, ...]
) -> None:
    assert misfit(chosen, head, name, options) == ""


@pytest.mark.parametrize(
    ("chosen", "head", "way_out"),
    [
        ("csv", b'{"id": 1}', "give json"),
        ("json", PARQUET, "give parquet"),
        ("json", b"id,name", "give the format of the files"),
    ],
)
def test_the_message_names_a_better_format_if_it_is_known(
    chosen: str, head: bytes, way_out: str
) -> None:
    assert wrong_format(chosen, "in", "is not", head) == (
        f"format is {chosen}: file in is not; {way_out}"
    )
