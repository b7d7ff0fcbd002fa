"""The facts about Spark on which writes rely, one by one: a version that differs fails here, by
name.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uuid_utils
from pyspark.errors import PySparkException
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StringType, StructType

from querator.spark.writing import Task
from tests.spark.test_write import Texts


class Note(WriterCommitMessage):
    def __init__(self, writer: str, task: Task, types: list[str]) -> None:
        self.writer, self.task, self.types = writer, task, types


class Notes:
    """Calls of both writers, as lines of a file. `fails`: a file; while it exists commits fail,
    after they have done their work.
    """

    def __init__(self, path: str, fails: str) -> None:
        self.path, self.fails = path, fails
        self.name = str(uuid_utils.uuid7())

    def note(self, call: str, messages: Sequence[Any], batch: int | None = None) -> None:
        line = {
            "call": call,
            "writer": self.name,
            "batch": batch,
            "messages": [
                {"writer": m.writer, "task": [m.task.number, m.task.query, m.task.batch]}
                | {"types": m.types}
                for m in messages
                if m is not None
            ],
        }
        with Path(self.path).open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")
        if call == "commit" and Path(self.fails).exists():
            raise RuntimeError("the answer was lost")

    def wrote(self, batches: Iterator[Any]) -> Note:
        types = [str(batch.schema.field("value").type) for batch in batches]
        return Note(self.name, Task.current(), types)


class BatchNotes(DataSourceArrowWriter):
    def __init__(self, notes: Notes) -> None:
        self.notes = notes

    def write(self, iterator: Iterator[Any]) -> Note:
        return self.notes.wrote(iterator)

    def commit(self, messages: Sequence[Any]) -> None:
        self.notes.note("commit", messages)

    def abort(self, messages: Sequence[Any]) -> None:
        self.notes.note("abort", messages)


class StreamNotes(DataSourceStreamArrowWriter):
    def __init__(self, notes: Notes) -> None:
        self.notes = notes

    def write(self, iterator: Iterator[Any]) -> Note:
        return self.notes.wrote(iterator)

    def commit(self, messages: Sequence[Any], batchId: int) -> None:
        self.notes.note("commit", messages, batchId)

    def abort(self, messages: Sequence[Any], batchId: int) -> None:
        self.notes.note("abort", messages, batchId)


class Noting(DataSource):
    @classmethod
    def name(cls) -> str:
        return "noting"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return BatchNotes(Notes(self.options["path"], self.options["fails"]))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return StreamNotes(Notes(self.options["path"], self.options["fails"]))


class Book:
    def __init__(self, home: Path) -> None:
        self.path, self.fails = home / "notes", home / "fails"
        self.options = {"path": str(self.path), "fails": str(self.fails)}

    def calls(self) -> list[Any]:
        lines = self.path.read_bytes().splitlines()
        self.path.unlink()
        return [msgspec.json.decode(line) for line in lines]


@pytest.fixture
def book(spark, tmp_path) -> Book:
    spark.dataSource.register(Noting)
    return Book(tmp_path)


@pytest.fixture
def texts(spark, tmp_path) -> Texts:
    made = Texts(spark, tmp_path)
    made.add("0", "a")
    return made


def test_the_writer_of_a_batch_is_the_one_that_commits_and_its_tasks_know_no_batch(spark, book):
    frame = spark.range(10).selectExpr("cast(id AS string) AS value").repartition(2)
    frame.write.format("noting").mode("append").options(**book.options).save()
    [commit] = book.calls()
    assert commit["call"] == "commit"
    assert {each["writer"] for each in commit["messages"]} == {commit["writer"]}
    assert sorted(each["task"] for each in commit["messages"]) == [[0, "", None], [1, "", None]]
    assert commit["messages"][0]["types"] == ["string"]


def test_a_batch_whose_commit_fails_is_aborted_with_the_same_messages(spark, book):
    book.fails.touch()
    frame = spark.sql("SELECT 'a' AS value")
    with pytest.raises(PySparkException, match="the answer was lost"):
        frame.write.format("noting").mode("append").options(**book.options).save()
    commit, abort = book.calls()
    assert (commit["call"], abort["call"]) == ("commit", "abort")
    assert commit["messages"] == abort["messages"]


def test_the_writer_of_a_stream_is_another_one_in_its_tasks_which_know_query_and_batch(book, texts):
    texts.add("1", "b")
    texts.start(texts.frame().writeStream.format("noting").options(**book.options))
    calls = book.calls()
    assert [(call["call"], call["batch"]) for call in calls] == [("commit", 0), ("commit", 1)]
    tasks = [each["task"] for call in calls for each in call["messages"]]
    assert [batch for _, _, batch in tasks] == [0, 1]
    [query] = {query for _, query, _ in tasks}
    assert len(query) == 36
    for call in calls:
        assert call["writer"] not in {each["writer"] for each in call["messages"]}


def test_a_stream_whose_commit_fails_is_aborted_and_repeats_the_batch_as_the_same_query(
    book, texts
):
    book.fails.touch()
    writer = texts.frame().writeStream.format("noting").options(**book.options)
    with pytest.raises(PySparkException, match="the answer was lost"):
        texts.start(writer)
    commit, abort = book.calls()
    assert (commit["call"], abort["call"], abort["batch"]) == ("commit", "abort", 0)
    assert commit["messages"] == abort["messages"]
    book.fails.unlink()
    texts.start(texts.frame().writeStream.format("noting").options(**book.options))
    [repeated] = book.calls()
    assert (repeated["call"], repeated["batch"]) == ("commit", 0)
    assert [m["task"] for m in repeated["messages"]] == [m["task"] for m in commit["messages"]]


def test_tasks_of_a_write_in_for_each_batch_know_query_and_batch(book, texts):
    def write(frame: Any, number: int) -> None:
        frame.write.format("noting").mode("append").options(**book.options).save()

    texts.start(texts.frame().writeStream.foreachBatch(write))
    [commit] = book.calls()
    [[number, query, batch]] = [each["task"] for each in commit["messages"]]
    assert (number, len(query), batch) == (0, 36, 0)


class Tabled(DataSource):
    """Records what Spark passes for each write as a line of a file, and records the options of a
    table with its schema, as the format `querator` does.
    """

    @classmethod
    def name(cls) -> str:
        return "tabled"

    def schema(self) -> StructType:
        schema = StructType().add("value", StringType()).add("notes", StringType())
        if "provider" in self.options:
            schema.fields[0].metadata = {"of_table": dict(self.options)}
        return schema

    def reader(self, schema: StructType) -> "OneRow":
        return OneRow()

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        path = schema.fields[0].metadata["of_table"]["notes"]
        with Path(path).open("a") as file:
            file.write(f"{dict(self.options)} {schema.json()} {overwrite}\n")
        return Thrown()


class OneRow(DataSourceReader):
    def read(self, partition: Any) -> Iterator[tuple[str, str]]:
        yield "a", "b"


class Thrown(DataSourceWriter):
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


@pytest.mark.parametrize("options", [{}, {"guarantee": "atLeastOnce"}])
def test_a_saved_frame_of_a_table_is_handed_over_as_an_insert_into_the_table(
    spark, tmp_path, options
):
    """A frame of a table that is saved without `queue` therefore goes into the queue of the table:
    it cannot be distinguished from an insert.
    """
    notes = tmp_path / "writes"
    spark.dataSource.register(Tabled)
    spark.sql(f"CREATE TABLE tabled_one USING tabled OPTIONS (notes '{notes}')")
    said = ", ".join(f"{name} = '{value}'" for name, value in options.items())
    try:
        into = f"INSERT INTO tabled_one {f'WITH ({said})' if said else ''}"
        spark.sql(f"{into} SELECT * FROM tabled_one")
        frame = spark.table("tabled_one")
        frame.write.format("tabled").mode("append").options(**options).save()
        inserted, saved = notes.read_text().splitlines()
        assert inserted == saved
    finally:
        spark.sql("DROP TABLE tabled_one")
