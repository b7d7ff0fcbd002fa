"""The facts about Spark's engine on which the stream source relies, one in each test: a version of
Spark that changes one fails by its name. Spark documents none of them.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.errors import StreamingQueryException

from querator.spark import register
from tests.spark.recording import RecordingSource

WAIT_S = 60
Call = dict[str, Any]


def run(
    spark: Any,
    home: Path,
    *,
    fails: bool = False,
    registers: Callable[[Any], None] = lambda spark: spark.dataSource.register(RecordingSource),
    **options: Any,
) -> list[Call]:
    """Runs to the end of the available data; returns the calls that were made."""
    registers(spark)
    frame = spark.readStream.format("recording").options(home=str(home), **options).load()

    def sink(batch: Any, number: int) -> None:
        batch.collect()
        if fails:
            raise ValueError("the sink is full")

    before = len(calls(home))
    query = (
        frame.writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(home / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(WAIT_S)
    return calls(home)[before:]


def calls(home: Path) -> list[Call]:
    path = home / "calls"
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [msgspec.json.decode(line) for line in lines]


def of(made: list[Call], name: str) -> list[Call]:
    return [call for call in made if call["call"] == name]


def logged(home: Path) -> list[str]:
    """The offsets that are written ahead, as text, by batch."""
    folder = home / "checkpoint" / "offsets"
    names = sorted((path.name for path in folder.iterdir() if path.name.isdecimal()), key=int)
    return [(folder / name).read_text().splitlines()[2] for name in names]


@pytest.fixture(scope="module")
def ended(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Call]]:
    """A run of two batches, [0, 5) and [5, 8)."""
    home = tmp_path_factory.mktemp("ended")
    return home, run(spark, home)


def test_an_offset_is_asked_for_behind_a_batch_only_when_that_is_committed(ended):
    """Everything rests on this: `start` is the acknowledgement."""
    home, made = ended
    ends = logged(home)
    asked = of(made, "latestOffset")
    assert len(asked) == 3
    for call in asked:
        if call["start"] in ends:
            assert ends.index(call["start"]) in call["commits"]
    assert [call["start"] for call in asked[1:]] == ends


def test_the_last_batch_is_never_told_to_be_committed(ended):
    home, made = ended
    first, _ = logged(home)
    assert [call["end"] for call in of(made, "commit")] == [first]


def test_the_last_batch_is_committed_when_a_run_asks_for_the_last_time(ended):
    home, made = ended
    last = of(made, "latestOffset")[-1]
    assert last["start"] == logged(home)[-1]
    assert last["commits"] == [0, 1]


def test_the_default_limit_comes_with_each_question(ended):
    _, made = ended
    limits = [call["limit"] for call in of(made, "latestOffset")]
    assert limits == [{"kind": "ReadMaxRows", "max_rows": 5}] * 3


def test_a_run_that_is_to_end_is_prepared_first(ended):
    _, made = ended
    assert made[0]["call"] == "prepareForTriggerAvailableNow"


def test_batches_are_planned_from_what_was_written_ahead(ended):
    home, made = ended
    planned = of(made, "partitions")
    assert [call["end"] for call in planned] == logged(home)
    assert [call["offsets"] for call in planned] == [[0], [0, 1]]


def test_the_driver_asks_in_one_process_and_executors_read_in_others(ended):
    _, made = ended
    driver = {call["pid"] for call in made if call["call"] != "read"}
    assert len(driver) == 1
    assert driver.isdisjoint(call["pid"] for call in of(made, "read"))


def test_a_batch_that_was_not_committed_is_planned_again_from_the_same_text(spark, tmp_path):
    with pytest.raises(StreamingQueryException, match="the sink is full"):
        run(spark, tmp_path, fails=True)
    before = of(calls(tmp_path), "partitions")[-1]
    # There are more items by then.
    made = run(spark, tmp_path, items="20")
    again, *_ = (call for call in made if call["call"] in ("partitions", "latestOffset"))
    assert (again["call"], again["start"]) == ("partitions", before["start"])
    assert again["end"] == before["end"] == logged(tmp_path)[0]
    # Spark asks for the first offset once more, while nothing is committed.
    assert made.index(again) > made.index(of(made, "initialOffset")[0])
    assert of(made, "latestOffset")[0]["start"] == before["end"]


def test_an_offset_that_was_not_written_is_asked_for_again(spark, tmp_path):
    with pytest.raises(StreamingQueryException, match="the offset is not returned"):
        run(spark, tmp_path, lost="5")
    lost = of(calls(tmp_path), "latestOffset")[-1]
    assert lost["commits"] == lost["offsets"] == [0]
    made = run(spark, tmp_path)
    assert of(made, "latestOffset")[0]["start"] == lost["start"]
    assert of(made, "partitions")[0]["start"] == lost["start"]


def test_an_offset_with_its_keys_in_another_order_is_news(spark, tmp_path):
    run(spark, tmp_path, turned="8")
    _, second, third = logged(tmp_path)
    assert msgspec.json.decode(second) == msgspec.json.decode(third)
    assert second != third


def variables(spark: Any) -> set[str]:
    """Environment variables, in the map that all queries of the registered source share."""
    manager = spark._jsparkSession.sessionState().dataSourceManager()
    return set(manager.lookupDataSource("recording").dataSourceCls().envVars())


def test_a_stream_puts_variables_into_a_map_that_all_queries_of_the_source_share(spark, tmp_path):
    """It is not synchronized: see `querator.spark.registration`."""
    spark.dataSource.register(RecordingSource)
    before = variables(spark)
    run(spark, tmp_path, registers=lambda spark: None)
    assert variables(spark) - before == {
        "SPARK_AUTH_SOCKET_TIMEOUT",
        "SPARK_BUFFER_SIZE",
        "SPARK_LOCAL_DIRS",
        "SPARK_PYTHON_RUNTIME",
    }


def test_a_stream_finds_its_variables_in_the_map_of_a_source_that_was_registered_for_it(
    spark, tmp_path
):
    environment = dict(spark.sparkContext.environment)
    register(spark, RecordingSource)
    before = variables(spark)
    run(spark, tmp_path, registers=lambda spark: None)
    assert variables(spark) == before
    # Other Python processes have none of it.
    assert spark.sparkContext.environment == environment


def test_workers_load_the_installed_package_although_spark_puts_its_zip_in_front(spark):
    def loaded(_: int) -> str:
        import pyspark

        return str(pyspark.__file__)

    import pyspark

    assert spark.sparkContext.parallelize([0], 1).map(loaded).collect() == [pyspark.__file__]
