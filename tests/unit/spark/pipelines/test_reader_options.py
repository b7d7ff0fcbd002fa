"""Options of Spark's readers of files: unknown ones, and those that `ingest` sets by itself."""

import pytest

from querator.spark.pipelines.reader_options import find_unknown, ways_out, with_defaults


@pytest.mark.parametrize(
    ("chosen", "name", "words"),
    [
        (
            "csv",
            "multiLin",
            "Spark's reader of csv has no option 'multiLin': did you mean multiLine?",
        ),
        ("csv", "headr", "Spark's reader of csv has no option 'headr': did you mean header?"),
        ("json", "header", "Spark's reader of json has no option 'header': there are allowBack"),
        ("text", "zzz", "Spark's reader of text has no option 'zzz': there are compression, "),
        ("parquet", "mergeSchemas", "Spark's reader of parquet has no option 'mergeSchemas': did "),
    ],
)
def test_an_option_that_the_reader_does_not_know(chosen: str, name: str, words: str) -> None:
    assert find_unknown(chosen, {name: "true"}).startswith(words)


@pytest.mark.parametrize(
    ("chosen", "name"),
    [
        ("csv", "MULTILINE"),
        ("json", "recursiveFileLookup"),
        ("text", "maxFilesPerTrigger"),
        ("csv", "fs.s3a.endpoint"),
        ("avro", "anything"),
    ],
)
def test_an_option_that_the_reader_may_know(chosen: str, name: str) -> None:
    assert find_unknown(chosen, {name: "1"}) == ""


@pytest.mark.parametrize(
    ("options", "escape"),
    [
        ({}, '"'),
        ({"Escape": "\\"}, None),
        ({"escape": "\\"}, "\\"),
        ({"quote": "'"}, "'"),
        ({"quote": ""}, None),
    ],
)
def test_a_quote_of_csv_is_doubled_unless_the_user_says_otherwise(
    options: dict[str, str], escape: str | None
) -> None:
    assert with_defaults("csv", options).get("escape") == escape


def test_options_of_the_user_come_first() -> None:
    assert with_defaults("json", {"Mode": "PERMISSIVE"}) == {"Mode": "PERMISSIVE"}
    assert with_defaults("json", {}) == {"mode": "FAILFAST"}
    assert with_defaults("text", {}) == {}


def test_line_breaks_are_thought_of_before_nulls() -> None:
    said = ways_out("csv", {})
    assert said.index("multiLine=true") < said.index("mode=PERMISSIVE")
    assert "one task" in said
    assert "multiLine" not in ways_out("csv", {"multiline": "TRUE"})
    assert ways_out("parquet", {}) == "format is parquet: give the format of the files"
