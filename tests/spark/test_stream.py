"""`spark.readStream.format("querator")` on real PySpark: each item once in the query's result, and
each fact about the engine on which that rests, by name.
"""

from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException

from querator import SyncClient
from querator.client import Item
from tests.spark.conftest import Nodes

NUMBERS = count()
WAIT_S = 60


@pytest.fixture
def queue(client: SyncClient) -> str:
    name = f"lake-{next(NUMBERS)}"
    client.create_queue(name, partitions=2)
    return name


def produce(client: SyncClient, queue: str, numbers: Any) -> None:
    items = [Item(b"%d" % number, key=f"{number % 7}") for number in numbers]
    with client.producer(queue) as producer:
        producer.produce_many(items)


def stream(spark: Any, node: Nodes, queue: str, **options: Any) -> Any:
    given = {"endpoint": node.endpoint, "queue": queue, "readerId": "lake", **options}
    return spark.readStream.format("querator").options(**given).load()


def to_parquet(frame: Any, home: Path) -> Any:
    return (
        frame.writeStream.format("parquet")
        .option("path", str(home / "out"))
        .option("checkpointLocation", str(home / "checkpoint"))
    )


def archive(frame: Any, home: Path) -> Any:
    """Runs to the end of the available items."""
    query = to_parquet(frame, home).trigger(availableNow=True).start()
    assert query.awaitTermination(WAIT_S)
    return query


def archived(spark: Any, home: Path) -> list[int]:
    rows = spark.read.parquet(str(home / "out")).select("value").collect()
    return sorted(int(bytes(row["value"])) for row in rows)


def batches(home: Path, log: str) -> list[int]:
    folder = home / "checkpoint" / log
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal())


def offset(home: Path, batch: int) -> str:
    return (home / "checkpoint" / "offsets" / str(batch)).read_text().splitlines()[2]


def test_a_queue_is_archived_run_by_run(spark, node, client, queue, tmp_path):
    produce(client, queue, range(1_000))
    frame = stream(spark, node, queue, maxItemsPerTrigger="300", minPartitions="4")
    archive(frame, tmp_path)
    assert archived(spark, tmp_path) == list(range(1_000))
    assert len(batches(tmp_path, "commits")) == 4
    # Its last batch is acknowledged as well: nothing remains for the next run.
    total = client.stats(queue).total
    assert (total.acknowledged, total.reserved, total.ready) == (1_000, 0, 0)
    produce(client, queue, range(1_000, 1_200))
    archive(frame, tmp_path)
    assert archived(spark, tmp_path) == list(range(1_200))
    archive(frame, tmp_path)
    assert len(batches(tmp_path, "commits")) == 5
    row = spark.read.parquet(str(tmp_path / "out")).first()
    assert (row["queue"], row["state"], row["attempts"]) == (queue, "reserved", 0)
    start = f'{{"v": 1, "q": "{queue}", "r": "lake", "p": {{"0": [1, '
    assert offset(tmp_path, 0).startswith(start)


def test_a_query_that_goes_on_takes_what_comes(spark, node, client, queue, tmp_path):
    query = to_parquet(stream(spark, node, queue), tmp_path).start()
    try:
        for begin in range(0, 300, 100):
            produce(client, queue, range(begin, begin + 100))
            query.processAllAvailable()
            assert len(archived(spark, tmp_path)) == begin + 100
    finally:
        query.stop()
    assert archived(spark, tmp_path) == list(range(300))


def test_a_batch_whose_commit_is_lost_is_the_same_again(spark, node, client, queue, tmp_path):
    """A trigger of one batch ends before it is acknowledged; then its commit is deleted."""
    produce(client, queue, range(100))
    frame = stream(spark, node, queue, maxItemsPerTrigger="60")
    seen: list[list[int]] = []

    def keep(batch: Any, number: int) -> None:
        assert number == 0
        seen.append(sorted(int(bytes(row["value"])) for row in batch.collect()))

    for _ in range(2):
        query = (
            frame.writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(once=True)
            .start()
        )
        assert query.awaitTermination(WAIT_S)
        assert batches(tmp_path, "commits") == [0]
        for name in ("0", ".0.crc"):
            (tmp_path / "checkpoint" / "commits" / name).unlink()
        produce(client, queue, range(100, 110))
    assert len(seen[0]) == 60
    assert seen[0] == seen[1]


def test_a_batch_that_fails_in_the_sink_is_the_same_again(spark, node, client, queue, tmp_path):
    produce(client, queue, range(50))
    seen: list[list[int]] = []
    fails = True

    def keep(batch: Any, number: int) -> None:
        seen.append(sorted(int(bytes(row["value"])) for row in batch.collect()))
        if fails:
            raise ValueError("the sink is full")

    def run() -> None:
        query = (
            stream(spark, node, queue)
            .writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(WAIT_S)

    with pytest.raises(StreamingQueryException, match="the sink is full"):
        run()
    fails = False
    run()
    assert seen == [list(range(50))] * 2


def test_items_go_from_queue_to_queue_once(spark, node, client, queue, tmp_path):
    """A trigger of one batch ends before it is acknowledged; its commit is deleted, and it is
    written again.
    """
    target = f"{queue}-copy"
    client.create_queue(target)
    produce(client, queue, range(300))

    def copy(**trigger: bool) -> None:
        query = (
            stream(spark, node, queue, maxItemsPerTrigger="200")
            .select("key", "value", "kind")
            .writeStream.format("querator")
            .options(endpoint=node.endpoint, queue=target)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(**trigger)
            .start()
        )
        assert query.awaitTermination(WAIT_S)

    copy(once=True)
    for name in ("0", ".0.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink()
    copy(availableNow=True)
    copied = spark.read.format("querator").options(endpoint=node.endpoint, queue=target).load()
    numbers = sorted(int(bytes(row["value"])) for row in copied.select("value").collect())
    assert numbers == list(range(300))
    assert client.stats(queue).total.acknowledged == 300


def test_batches_without_data_of_queries_with_state(spark, node, client, tmp_path):
    queue = f"lake-{next(NUMBERS)}"
    client.create_queue(queue, partitions=1)
    produce(client, queue, range(50))
    # Later: they advance the watermark, so that Spark has something to forget in the end.
    produce(client, queue, range(50, 60))
    frame = stream(spark, node, queue, maxItemsPerTrigger="50")
    frame = frame.withWatermark("timestamp", "0 seconds")
    archive(frame.dropDuplicatesWithinWatermark(["id"]), tmp_path)
    assert archived(spark, tmp_path) == list(range(60))
    first, second, third = (offset(tmp_path, batch) for batch in batches(tmp_path, "offsets"))
    assert first != second == third
    assert client.stats(queue).total.acknowledged == 60


# --- what is wrong ---------------------------------------------------------------------------


def failure(frame: Any, home: Path) -> str:
    with pytest.raises(PySparkException) as caught:
        archive(frame, home)
    return str(caught.value)


def test_a_stream_needs_a_name(spark, node, queue):
    options = {"endpoint": node.endpoint, "queue": queue}
    frame = spark.readStream.format("querator").options(**options).load()
    query = frame.writeStream.format("noop").start()
    with pytest.raises(PySparkException, match="option readerId is missing") as caught:
        query.processAllAvailable()
    # It is the only error: Spark's runner adds one of its own to errors of `streamReader`.
    assert "UnboundLocalError" not in str(caught.value)
    with pytest.raises(PySparkException, match="option readerId is missing") as caught:
        frame.writeStream.format("noop").trigger(availableNow=True).start().awaitTermination(WAIT_S)
    assert "UnboundLocalError" not in str(caught.value)


def test_options_of_scans_are_refused(spark, node, queue):
    with pytest.raises(PySparkException, match=r"option states is for spark\.read only"):
        stream(spark, node, queue, states="ready")


def test_a_stream_of_a_queue_that_is_not_there(spark, node, tmp_path):
    assert "querator queue create" in failure(stream(spark, node, "nowhere"), tmp_path)


def test_a_checkpoint_that_was_deleted(spark, node, client, queue, tmp_path):
    produce(client, queue, range(10))
    frame = stream(spark, node, queue)
    archive(frame, tmp_path / "a")
    produce(client, queue, range(10, 20))
    assert "onCheckpointMismatch" in failure(frame, tmp_path / "b")
    adopting = stream(spark, node, queue, onCheckpointMismatch="adopt")
    archive(adopting, tmp_path / "b")
    assert archived(spark, tmp_path / "b") == list(range(10, 20))


def test_a_second_query_with_the_same_name_ends_the_first(spark, node, client, queue, tmp_path):
    frame = stream(spark, node, queue)
    first = to_parquet(frame, tmp_path / "a").start()
    try:
        produce(client, queue, range(10))
        first.processAllAvailable()
        second = to_parquet(
            stream(spark, node, queue, onCheckpointMismatch="adopt"), tmp_path / "b"
        ).start()
        try:
            with pytest.raises(StreamingQueryException, match="READER_FENCED"):
                first.awaitTermination(WAIT_S)
        finally:
            second.stop()
    finally:
        first.stop()
