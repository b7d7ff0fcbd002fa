"""Pipelines in a thread that has never seen the session, as in a program that runs several."""

from concurrent.futures import ThreadPoolExecutor

from querator.spark.pipelines import CopySettings, IngestSettings, QueuePlace, copy, ingest
from tests.spark.test_write import create


def test_pipelines_write_from_any_thread(spark, node, tmp_path):
    create(node, "threads")
    create(node, "threads-other")
    (tmp_path / "in").write_text("a\nb\n")
    place = QueuePlace(node.endpoint, "threads")
    ingesting = IngestSettings(str(tmp_path / "in"), "text", place)
    other = QueuePlace(node.endpoint, "threads-other")
    copying = CopySettings(place, other, "copy", str(tmp_path / "checkpoint"))
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(ingest, spark, ingesting).result().made.value == 2
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(copy, spark, copying).result().made.value == 2
