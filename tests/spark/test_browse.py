"""`spark.read.format("querator")`: a snapshot of a queue, whole and exact."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from querator import SyncClient
from querator.client import Item
from querator.spark import QueratorDataSource
from querator.spark.browsing import BrowseReader, Range
from querator.spark.options import browse_options
from querator.spark.rpc import cluster
from querator.v1 import queue_service_pb2

SOON = timedelta(seconds=10)


def load(spark: Any, endpoint: str, queue: str, **options: Any) -> Any:
    options = {"endpoint": endpoint, "queue": queue, **options}
    return spark.read.format("querator").options(**options).load()


@pytest.fixture(scope="session")
def filled(node) -> str:
    """A queue of two partitions with 1,000 items, of which ten are leased and ten are gone."""
    with SyncClient(node.endpoint) as client:
        client.create_queue("filled", partitions=2, lease_timeout=timedelta(hours=1))
        items = [
            Item(
                b"%04d" % number,
                kind="even" if number % 2 == 0 else "odd",
                key=f"k{number % 10}",
                attributes={"number": str(number)},
            )
            for number in range(1_000)
        ]
        client.produce("filled", *items)
        leased = 0
        while leased < 20:
            batch = client.lease("filled", max_items=min(10, 20 - leased), wait=SOON)
            if leased < 10:
                client.complete("filled", *batch[: 10 - leased])
            leased += len(batch)
    return "filled"


def test_all_that_is_there_once(spark, node, filled):
    frame = load(spark, node.endpoint, filled)
    rows = frame.collect()
    assert len({row["id"] for row in rows}) == len(rows) == 990
    assert len({bytes(row["value"]) for row in rows}) == 990
    for row in rows:
        number = int(bytes(row["value"]))
        assert row["kind"] == ("even" if number % 2 == 0 else "odd")
        assert row["key"] == f"k{number % 10}"
        assert [(each["key"], bytes(each["value"])) for each in row["headers"]] == [
            ("number", b"%d" % number)
        ]
        assert row["id"] == f"{row['partition']}-{row['offset']}"
        assert (row["queue"], row["dead_letter"]) == ("filled", None)
    assert {row["partition"] for row in rows} == {0, 1}
    counts = {row["state"]: row["count"] for row in frame.groupBy("state").count().collect()}
    assert counts == {"ready": 980, "leased": 10}


def test_options_choose(spark, node, filled):
    assert load(spark, node.endpoint, filled, states="leased").count() == 10
    assert load(spark, node.endpoint, filled, kinds="even,odd").count() == 990
    even = load(spark, node.endpoint, filled, kinds="even")
    assert {row["kind"] for row in even.select("kind").distinct().collect()} == {"even"}
    bare = load(spark, node.endpoint, filled, includeValue="false")
    assert bare.filter(F.col("value").isNull()).count() == 990
    ahead = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    assert load(spark, node.endpoint, filled, startingTimestamp=ahead).count() == 0
    assert load(spark, node.endpoint, filled, endingTimestamp=ahead).count() == 990


def test_a_partition_may_be_read_in_parts(spark, node, filled):
    frame = load(spark, node.endpoint, filled, minPartitions="7")
    assert frame.rdd.getNumPartitions() >= 7
    assert len({row["id"] for row in frame.select("id").collect()}) == 990


def test_an_empty_queue(spark, node):
    with SyncClient(node.endpoint) as client:
        client.create_queue("empty")
    assert load(spark, node.endpoint, "empty").count() == 0


def test_a_frame_is_of_what_was_there_when_it_was_planned(spark, node):
    with SyncClient(node.endpoint) as client:
        client.create_queue("later")
        client.produce("later", b"a", b"b")
        frame = load(spark, node.endpoint, "later")
        assert frame.count() == 2
        client.produce("later", b"c")
        assert frame.count() == 2
        assert load(spark, node.endpoint, "later").count() == 3


def test_sql(spark, node, filled):
    spark.sql(
        f"CREATE TABLE flights USING querator OPTIONS (endpoint '{node.endpoint}', queue 'filled')"
    )
    try:
        [row] = spark.sql("SELECT count(*) AS n FROM flights WHERE state = 'leased'").collect()
        assert row["n"] == 10
        [row] = spark.sql("SELECT count(*) AS n FROM flights WITH (states = 'ready')").collect()
        assert row["n"] == 980
    finally:
        spark.sql("DROP TABLE flights")
    spark.sql(
        "CREATE TEMPORARY VIEW flights USING querator "
        f"OPTIONS (endpoint '{node.endpoint}', queue 'filled')"
    )
    assert spark.sql("SELECT DISTINCT kind FROM flights").count() == 2
    spark.catalog.dropTempView("flights")


def test_a_limit_ends_the_scan(spark, node, filled):
    assert len(load(spark, node.endpoint, filled).limit(5).collect()) == 5


def test_dead_letters_say_where_they_came_from(spark, node):
    with SyncClient(node.endpoint) as client:
        client.create_queue("grave")
        client.create_queue("mortal", dead_queue="grave")
        client.produce("mortal", b"x")
        leased = client.lease("mortal", wait=SOON)
        client.retry("mortal", *leased, dead=True, error="broken")
        assert client.lease("grave", wait=SOON)
    [row] = load(spark, node.endpoint, "grave").collect()
    letter = row["dead_letter"]
    assert (letter["queue"], letter["reason"], letter["attempts"]) == ("mortal", "rejected", 1)
    assert row["state"] == "leased"


def test_the_source_may_be_registered(spark, node, filled):
    spark.dataSource.register(QueratorDataSource)
    assert load(spark, node.endpoint, filled).count() == 990


# --- what is wrong ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"queu": "q"}, "did you mean queue"),
        ({"queue": ""}, "option queue is missing"),
        ({"endpoint": ""}, "option endpoint is missing"),
    ],
)
def test_options_are_refused_before_anything_is_planned(spark, node, changes, words):
    with pytest.raises(PySparkException, match=words):
        load(spark, **{"endpoint": node.endpoint, "queue": "filled", **changes})


def failure(spark: Any, **options: Any) -> str:
    frame = spark.read.format("querator").options(**options).load()
    with pytest.raises(PySparkException) as caught:
        frame.count()
    return str(caught.value)


def test_a_queue_that_is_not_there(spark, node):
    with SyncClient(node.endpoint) as client:
        client.create_queue("somewhere")
    said = failure(spark, endpoint=node.endpoint, queue="somwhere")
    assert "there is no queue somwhere" in said
    assert "; did you mean somewhere" in said
    assert "querator queue create" in said


def test_a_cluster_that_is_not_there(spark):
    said = failure(spark, endpoint="127.0.0.1:1", queue="q", retryTimeout="1")
    assert "cannot be reached" in said
    assert "127.0.0.1:1" in said
    assert "--advertise-client" in said


def test_a_schema_of_the_users_own(spark, node, filled):
    reader = spark.read.format("querator").schema("value binary")
    frame = reader.options(endpoint=node.endpoint, queue=filled).load()
    with pytest.raises(PySparkException, match="schema of a queue is fixed"):
        frame.count()


# --- without Spark: the calls that it makes --------------------------------------------------


def test_a_reader_that_is_left_alone_ends_its_stream(node, filled):
    reader = BrowseReader(browse_options({"endpoint": node.endpoint, "queue": filled}))
    batches: Any = reader.read(reader.partitions()[0])
    assert next(batches).num_rows > 0
    batches.close()
    assert list(batches) == []


def test_a_range_of_nothing(node, filled):
    reader = BrowseReader(browse_options({"endpoint": node.endpoint, "queue": filled}))
    assert list(reader.read(Range(0, 5_000, 6_000))) == []


def test_a_scan_goes_on_with_the_next_leader(three):
    with SyncClient(three.endpoint) as client:
        client.create_queue("q", partitions=1)
        with client.producer("q") as producer:
            producer.produce_many([Item(b"%05d" % n + bytes(1_000)) for n in range(20_000)])
    options = browse_options({"endpoint": three.endpoint, "queue": "q"})
    connections = cluster(options.target)
    leader = connections.leader("", "q", 0)
    [led] = [each for each in three.members.by_name.values() if each.address == leader]
    # To the head: a request that was refused, and sent again, has skipped sequences.
    request = queue_service_pb2.BrowseRequest(queue="q", from_seq=1)
    found: list[bytes] = []
    for answer in connections.browse(request, retry_seconds=60):
        if not found:
            three.run(led.kill())
        offsets = memoryview(answer.message.columns.value.offsets).cast("i").tolist()
        found += [bytes(answer.payloads[at : at + 5]) for at in offsets[:-1]]
    assert found == [b"%05d" % number for number in range(20_000)]
