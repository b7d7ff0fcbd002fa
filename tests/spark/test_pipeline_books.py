"""Final reports of pipelines: summaries balance when nothing is lost, whatever a filter does, and
failures name their reason.
"""

import os
import time
from itertools import count
from typing import Any

import msgspec
import pytest

from querator import SyncClient
from querator.client import Item
from querator.spark.pipelines import (
    ArchiveSettings,
    Columns,
    CopySettings,
    IngestSettings,
    PipelineFailed,
    QueuePlace,
    ReplaySettings,
    SettingsError,
    Summary,
    archive,
    copy,
    ingest,
    replay,
)
from tests.spark.conftest import Nodes
from tests.spark.test_write import values

NUMBERS = count()


@pytest.fixture
def place(node: Nodes, client: SyncClient) -> QueuePlace:
    """A queue of the test's own."""
    name = f"books-{next(NUMBERS)}"
    client.create_queue(name, partitions=2)
    client.create_queue(f"{name}-other", partitions=2)
    return QueuePlace(node.endpoint, name)


def other(place: QueuePlace) -> QueuePlace:
    return QueuePlace(place.endpoint, f"{place.queue}-other")


def counts(summary: Summary) -> tuple[int, int, int]:
    assert summary.balanced
    return summary.taken.value, summary.left_out, summary.made.value


def produce(client: SyncClient, place: QueuePlace, numbers: Any) -> None:
    with client.producer(place.queue) as producer:
        producer.produce_many([Item(b"%d" % number, kind="k") for number in numbers])


def test_a_filter_that_nothing_passes_leaves_all_out(spark, node, client, place, tmp_path):
    """Spark plans such a query without its source."""
    (tmp_path / "in.txt").write_text("a\nb\nc\n")
    nothing = "1 = 0"
    settings = IngestSettings(str(tmp_path / "in.txt"), "text", place, where=nothing)
    assert counts(ingest(spark, settings)) == (3, 3, 0)
    produce(client, place, range(5))
    copying = CopySettings(place, other(place), "copy", str(tmp_path / "copy"), where=nothing)
    assert counts(copy(spark, copying)) == (5, 5, 0)
    produce(client, place, range(7))
    archive(spark, ArchiveSettings(place, "lake", str(tmp_path / "lake")))
    # The run before was killed while it recorded which query it belongs to.
    (tmp_path / "replay").mkdir()
    (tmp_path / "replay" / "querator-replay.json").touch()
    replaying = ReplaySettings(
        str(tmp_path / "lake"), other(place), str(tmp_path / "replay"), where=nothing
    )
    assert counts(replay(spark, replaying)) == (7, 7, 0)
    assert values(spark, node, other(place).queue) == {}


def test_a_filter_by_chance_is_counted_as_it_was(spark, node, client, place, tmp_path):
    produce(client, place, range(400))
    settings = CopySettings(
        place, other(place), "copy", str(tmp_path / "copy"), where="rand() < 0.5"
    )
    taken, left_out, made = counts(copy(spark, settings))
    assert (taken, left_out + made) == (400, 400)
    assert values(spark, node, other(place).queue).total() == made


def test_a_copy_adopts_once(spark, node, client, place, tmp_path):
    produce(client, place, range(10))
    settings = CopySettings(place, other(place), "copy", str(tmp_path / "lost"))
    assert counts(copy(spark, settings)) == (10, 0, 10)
    settings = msgspec.structs.replace(settings, checkpoint=str(tmp_path / "new"))
    adopting = msgspec.structs.replace(settings, adopt=True)
    assert counts(copy(spark, adopting)) == (0, 0, 0)
    produce(client, place, range(10, 15))
    assert counts(copy(spark, settings)) == (5, 0, 5)
    assert values(spark, node, other(place).queue).total() == 15


def test_a_file_that_is_old_when_it_comes_is_taken(spark, node, place, tmp_path):
    """For instance a file that was moved, or copied with its times."""
    (tmp_path / "in").mkdir()
    settings = IngestSettings(
        str(tmp_path / "in"), "text", place, checkpoint=str(tmp_path / "done")
    )
    (tmp_path / "in" / "recent").write_text("a\n")
    assert counts(ingest(spark, settings)) == (1, 0, 1)
    (tmp_path / "old").write_text("b\nc\n")
    long_ago = time.time() - 400 * 86_400
    os.utime(tmp_path / "old", (long_ago, long_ago))
    (tmp_path / "old").rename(tmp_path / "in" / "old")
    assert counts(ingest(spark, settings)) == (2, 0, 2)
    assert counts(ingest(spark, settings)) == (0, 0, 0)
    assert values(spark, node, place.queue) == {b"a": 1, b"b": 1, b"c": 1}


def test_a_copy_goes_on_without_a_batch_that_was_released(spark, node, client, place, tmp_path):
    """Its items are in the queue again, and come under another name."""
    produce(client, place, range(10))
    settings = CopySettings(place, other(place), "copy", str(tmp_path / "copy"))
    broken = msgspec.structs.replace(settings, columns=Columns(key="raise_error('broken')"))
    with pytest.raises(PipelineFailed, match="broken"):
        copy(spark, broken)
    node.run(node.members.querator("reader", "release", place.queue, "copy", "--yes"))
    with pytest.raises(PipelineFailed, match=r"BATCH_RELEASED.* --skip-released"):
        copy(spark, settings)
    skipping = msgspec.structs.replace(settings, skip_released=True)
    assert counts(copy(spark, skipping)) == (20, 10, 10)
    assert values(spark, node, other(place).queue) == {b"%d" % number: 1 for number in range(10)}
    assert counts(copy(spark, skipping)) == (0, 0, 0)


def test_a_failure_says_what_it_comes_from(spark, place, tmp_path):
    """Spark itself reports only where it failed."""
    (tmp_path / "in.json").write_text('{"a": 1}\n{"a": \n')
    settings = IngestSettings(str(tmp_path / "in.json"), "json", place, schema="a int")
    with pytest.raises(PipelineFailed, match=r"in\.json cannot be read: Unexpected end-of-input"):
        ingest(spark, settings)


@pytest.mark.parametrize("path", ["/lake/[1]", "/lake/a*", "/lake/{a}", "/lake/a?"])
def test_an_archive_is_not_begun_where_spark_would_not_find_it_again(path):
    with pytest.raises(SettingsError, match="Spark takes it for a pattern"):
        ArchiveSettings(QueuePlace("h:1", "q"), "lake", path)
