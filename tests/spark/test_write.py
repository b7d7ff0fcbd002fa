"""`df.write.format("querator")` and `writeStream`: each row an item, once."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from querator import SyncClient
from querator.client.transactions import TxnState
from tests.spark.test_browse import load

EVERYTHING = (
    "value binary, key string, kind string, encoding string, reference string, "
    "headers array<struct<key: string, value: binary>>, priority int, `group` string, "
    "enqueue_at timestamp, dedupe_key string"
)


def create(node: Any, queue: str, **settings: Any) -> dict[str, str]:
    """Creates the queue; returns the options for it."""
    with SyncClient(node.endpoint) as client:
        client.create_queue(queue, **settings)
    return {"endpoint": node.endpoint, "queue": queue}


def save(frame: Any, options: dict[str, str], **more: Any) -> None:
    frame.write.format("querator").mode("append").options(**options, **more).save()


def settled(node: Any, queue: str) -> None:
    """Waits until committed items are visible, which takes a moment. Attempts that do not count may
    stay staged.
    """
    with SyncClient(node.endpoint) as client:
        while any(
            batch.state is not TxnState.STAGED for batch in client.staged_batches(queue).batches
        ):
            pass


def values(spark: Any, node: Any, queue: str) -> Counter[bytes]:
    settled(node, queue)
    rows = load(spark, node.endpoint, queue).select("value").collect()
    return Counter(bytes(row["value"]) for row in rows)


def numbers(count: int) -> Counter[bytes]:
    return Counter(str(number).encode() for number in range(count))


def test_each_row_is_an_item(spark, node):
    options = create(node, "rows", partitions=2)
    frame = spark.range(5_000).selectExpr("cast(id as string) AS value").repartition(3)
    save(frame, options)
    assert values(spark, node, "rows") == numbers(5_000)


def test_every_column_arrives_and_can_be_read(spark, node):
    options = create(node, "columns")
    soon = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    full = (
        b"\xff", "k", "e", "c", "r", [("a", b"1"), ("b", b"")], -3, "g", soon, "d",
    )  # fmt: skip
    bare = (b"", None, None, "", None, None, None, None, None, None)
    save(spark.createDataFrame([full, bare], EVERYTHING), options)
    settled(node, "columns")
    rows = {row["key"]: row for row in load(spark, node.endpoint, "columns").collect()}
    row = rows["k"]
    assert bytes(row["value"]) == b"\xff"
    assert [row[name] for name in ("kind", "encoding", "reference", "priority", "group")] == [
        "e", "c", "r", -3, "g",
    ]  # fmt: skip
    assert {each["key"]: bytes(each["value"]) for each in row["headers"]} == {"a": b"1", "b": b""}
    assert (row["state"], row["enqueue_at"].astimezone(UTC)) == ("scheduled", soon)
    row = rows[None]
    assert row["priority"] == 0
    empty = ("kind", "encoding", "reference", "headers", "group", "enqueue_at")
    assert [row[name] for name in empty] == [None] * len(empty)
    assert (bytes(row["value"]), row["state"]) == (b"", "ready")


def test_what_was_read_can_be_written(spark, node):
    create(node, "from")
    options = create(node, "to")
    with SyncClient(node.endpoint) as client:
        client.produce("from", b"a", b"b")
    save(load(spark, node.endpoint, "from"), options)
    assert values(spark, node, "to") == {b"a": 1, b"b": 1}


def test_a_partition_may_be_named(spark, node):
    options = create(node, "placed", partitions=3)
    frame = spark.range(30).selectExpr(
        "cast(id as string) AS value", "cast(id % 2 as int) AS partition"
    )
    save(frame, options)
    settled(node, "placed")
    found = load(spark, node.endpoint, "placed").groupBy("partition").count().collect()
    assert {row["partition"]: row["count"] for row in found} == {0: 15, 1: 15}


def test_insert_into(spark, node):
    options = create(node, "inserted")
    spark.sql(
        "CREATE TABLE inserted USING querator "
        f"OPTIONS (endpoint '{node.endpoint}', queue '{options['queue']}')"
    )
    try:
        spark.sql("INSERT INTO inserted (value, kind) VALUES (cast('a' AS binary), 'k')")
        spark.sql(
            "INSERT INTO inserted WITH (guarantee = 'atLeastOnce') (value) "
            "SELECT cast(cast(id AS string) AS binary) FROM range(2)"
        )
        assert values(spark, node, "inserted") == {b"a": 1, b"0": 1, b"1": 1}
        [row] = spark.sql("SELECT count(*) AS n FROM inserted WHERE kind = 'k'").collect()
        assert row["n"] == 1
    finally:
        spark.sql("DROP TABLE inserted")


# --- streams -----------------------------------------------------------------------------------


class Texts:
    """A stream of text files, one for each micro-batch."""

    def __init__(self, spark: Any, home: Path) -> None:
        self.spark, self.home = spark, home
        self.source, self.checkpoint = home / "source", home / "checkpoint"
        self.source.mkdir()

    def add(self, name: str, *lines: object) -> None:
        (self.home / name).write_text("".join(f"{line}\n" for line in lines))
        (self.home / name).rename(self.source / name)

    def frame(self) -> Any:
        reader = self.spark.readStream.format("text").option("maxFilesPerTrigger", 1)
        return reader.load(str(self.source))

    def start(self, writer: Any) -> None:
        """Runs until all files are written."""
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()

    def forget_last_commit(self) -> None:
        """Deletes the last commit, as if the driver had died between the sink's commit and
        its own.
        """
        commits = self.checkpoint / "commits"
        last = max(int(path.name) for path in commits.iterdir() if path.name.isdecimal())
        (commits / str(last)).unlink()
        (commits / f".{last}.crc").unlink(missing_ok=True)


@pytest.fixture
def texts(spark, tmp_path) -> Texts:
    made = Texts(spark, tmp_path)
    made.add("0", *range(100))
    made.add("1", *range(100, 200))
    return made


def test_a_stream_whose_last_commit_is_forgotten_writes_nothing_twice(spark, node, texts):
    options = create(node, "stream", partitions=2)
    for _ in range(2):
        texts.start(texts.frame().writeStream.format("querator").options(**options))
        assert values(spark, node, "stream") == numbers(200)
        texts.forget_last_commit()
    texts.add("2", *range(200, 300))
    texts.start(texts.frame().writeStream.format("querator").options(**options))
    assert values(spark, node, "stream") == numbers(300)


def test_for_each_batch_with_a_name_writes_nothing_twice(spark, node, texts):
    options = create(node, "each")

    def both(frame: Any, number: int) -> None:
        save(frame, options, txnAppId="plain")
        save(frame.selectExpr("concat('x', value) AS value"), options, txnAppId="marked")

    for _ in range(2):
        texts.start(texts.frame().writeStream.foreachBatch(both))
        found = values(spark, node, "each")
        assert found == numbers(200) + Counter(b"x%d" % number for number in range(200))
        texts.forget_last_commit()


def test_for_each_batch_without_a_name_is_refused(spark, node, texts):
    options = create(node, "nameless")
    with pytest.raises(PySparkException, match="needs option txnAppId"):
        texts.start(texts.frame().writeStream.foreachBatch(lambda frame, _: save(frame, options)))
    assert values(spark, node, "nameless") == {}


def test_a_stream_that_would_replace_is_refused(spark, node, texts):
    options = create(node, "complete")
    counted = texts.frame().groupBy("value").count().select("value")
    writer = counted.writeStream.outputMode("complete").format("querator").options(**options)
    with pytest.raises(PySparkException, match="no output mode complete"):
        texts.start(writer)


# --- what is wrong -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "more", "words"),
    [
        ("'a' AS value, 'k' AS kee", {}, "no column 'kee': did you mean key"),
        ("'a' AS value, 1 AS total", {}, "no column 'total': there are value, key"),
        ("'a' AS payload", {}, "no column 'payload'"),
        ("'a' AS key", {}, "there is no column value"),
        ("1 AS value", {}, "column value is int: it must be binary or string"),
        ("'a' AS value, 1 AS key", {}, "column key is int: it must be string"),
        ("'a' AS value, array('a') AS headers", {}, "array<struct<key: string, value: binary>>"),
        ("'a' AS value, 'now' AS enqueue_at", {}, "it must be timestamp"),
        ("'a' AS value", {"guarantee": "idempotent"}, "needs a key for each row"),
        ("'a' AS value", {"dedupeKeyColumn": "order"}, "option dedupeKeyColumn is 'order'"),
        ("'a' AS value", {"guarantee": "exactlyOnce"}, "transactional, idempotent, atLeastOnce"),
        ("'a' AS value", {"txnVersion": "1"}, "give both"),
        ("'a' AS value", {"txnAppId": "a", "txnVersion": "-1"}, "option txnVersion is '-1'"),
        (
            "'a' AS value",
            {"oversizePolicy": "drop"},
            "option oversizePolicy is 'drop': .*fail, skip",
        ),
        ("'a' AS value", {"states": "ready"}, "option states is for reads only"),
        ("'a' AS value", {"garantee": "x"}, "did you mean guarantee"),
        ("'a' AS value", {"queue": "nowhere"}, "there is no queue nowhere.*nothing was written"),
        (
            "'a' AS value, 1 AS partition",
            {"guarantee": "atLeastOnce"},
            "column partition is 1 in row 0 of this task: it is for guarantee=transactional",
        ),
    ],
)
def test_what_cannot_be_written_is_refused_before_data_moves(spark, node, columns, more, words):
    options = {"endpoint": node.endpoint, "queue": "refusing", **more}
    with SyncClient(node.endpoint) as client:
        client.create_queue("refusing")
    frame = spark.sql(f"SELECT {columns}")
    with pytest.raises(PySparkException, match=f"(?s){words}"):
        save(frame, options)
    assert values(spark, node, "refusing") == {}


def test_overwrite_is_refused(spark, node):
    options = create(node, "kept")
    writer = spark.sql("SELECT 'a' AS value").write.format("querator").mode("overwrite")
    with pytest.raises(PySparkException, match="never replaces what is in a queue"):
        writer.options(**options).save()


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ("cast(nullif(id, 2) AS string) AS value", "column value is null in row 2 of this task"),
        ("repeat('x', 2000000) AS value", "column value has 2,000,000 bytes in row 0 of this task"),
        ("'a' AS value, 'urgent' AS priority", "column priority is string: it must be int"),
        ("'a' AS value, 3000000000 AS priority", "column priority is 3000000000 in row 0"),
        ("'a' AS value, repeat('k', 600) AS key", "refused for its column key.*512"),
        (
            "'a' AS value, array(named_struct('key', 'a', 'value', x'ff')) AS headers",
            "not UTF-8 in the value of 'a'",
        ),
        ("'a' AS value, 7 AS partition", "is 7.*has 1 partitions"),
    ],
)
def test_a_row_that_cannot_be_written_is_named_and_nothing_is_written(spark, node, columns, words):
    with SyncClient(node.endpoint) as client:
        client.create_queue("refusing")
    spark.range(5).coalesce(1).createOrReplaceTempView("five")
    frame = spark.sql(f"SELECT {columns} FROM five")
    with pytest.raises(PySparkException, match=f"(?s){words}"):
        save(frame, {"endpoint": node.endpoint, "queue": "refusing"})
    assert values(spark, node, "refusing") == {}
