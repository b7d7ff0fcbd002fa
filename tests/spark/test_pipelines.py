"""Pipelines on a real cluster of three processes: every item comes out once, and is counted."""

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from querator import Client, SyncClient
from querator.client import Item
from querator.client.errors import NotFound
from querator.client.sync.leases import SyncLeasedItem
from querator.spark.options import browse_options
from querator.spark.pipelines import (
    ArchiveSettings,
    BatchProgress,
    Columns,
    Control,
    CopySettings,
    IngestSettings,
    PipelineFailed,
    QueuePlace,
    RedriveSettings,
    ReplaySettings,
    SettingsError,
    Summary,
    archive,
    copy,
    ingest,
    redrive,
    replay,
)
from querator.spark.pipelines.reader_options import names_of
from querator.spark.rpc import cluster
from tests.spark.broken_off import archiving, break_off, copying
from tests.spark.conftest import Nodes
from tests.spark.test_write import values

pytestmark = pytest.mark.timeout(300)
NUMBERS = count()
KINDS = ("even", "odd")
SOON = timedelta(seconds=10)


@pytest.fixture(scope="module")
def client(trio: Nodes) -> Iterator[SyncClient]:
    with SyncClient(trio.endpoint) as client:
        yield client


@pytest.fixture
def place(trio: Nodes, client: SyncClient) -> QueuePlace:
    """A queue of the test's own."""
    name = f"pipe-{next(NUMBERS)}"
    client.create_queue(name, partitions=2)
    return QueuePlace(trio.endpoint, name)


def second(client: SyncClient, place: QueuePlace) -> QueuePlace:
    """Another queue."""
    name = f"{place.queue}-other"
    client.create_queue(name, partitions=3)
    return QueuePlace(place.endpoint, name)


def produce(client: SyncClient, place: QueuePlace, numbers: Any, kinds: Any = KINDS) -> None:
    items = [
        Item(b"%d" % number, key=f"{number % 7}", kind=kinds[number % 2]) for number in numbers
    ]
    with client.producer(place.queue) as producer:
        producer.produce_many(items)


def counts(summary: Summary) -> tuple[int, int, int]:
    assert summary.balanced
    return summary.taken.value, summary.left_out, summary.made.value


def until_ready(client: SyncClient, place: QueuePlace, count: int) -> None:
    """Waits until the letters have arrived, which takes a moment."""
    while client.stats(place.queue).total.ready < count:
        pass


def texts(home: Path, name: str, numbers: Any) -> None:
    (home / "in").mkdir(exist_ok=True)
    (home / "in" / name).write_text("".join(f"{number}\n" for number in numbers))


def archived(spark: Any, home: Path) -> list[int]:
    rows = spark.read.parquet(str(home / "lake")).select("value").collect()
    return sorted(int(bytes(row["value"])) for row in rows)


def test_files_become_items_in_one_transaction(spark, trio, client, place, tmp_path):
    lines = [f"{number},{number % 3},carrier {number % 2}" for number in range(300)]
    (tmp_path / "flights.csv").write_text("\n".join(["number,delay,carrier", *lines]))
    settings = IngestSettings(
        str(tmp_path / "flights.csv"),
        "csv",
        place,
        Columns(key="carrier", kind="concat('late ', delay)", enqueue_at="now()"),
        where="delay > 0",
    )
    heard: list[BatchProgress] = []
    assert counts(ingest(spark, settings, Control(heard.append))) == (300, 100, 200)
    assert [progress.items for progress in heard] == [200]
    found = values(spark, trio, place.queue)
    assert set(found.values()) == {1}
    assert len(found) == 200
    assert b'{"number":"1","delay":"1","carrier":"carrier 1"}' in found
    [item] = client.lease(place.queue, max_items=1)
    assert (item.key[:7], item.kind[:5]) == ("carrier", "late ")


def test_new_files_become_items_run_by_run(spark, trio, client, place, tmp_path):
    settings = IngestSettings(
        str(tmp_path / "in"), "text", place, checkpoint=str(tmp_path / "done"), max_bytes=1
    )
    texts(tmp_path, "a", range(100))
    texts(tmp_path, "b", range(100, 200))
    summary = ingest(spark, settings)
    assert (counts(summary), summary.batches) == ((200, 0, 200), 2)
    assert counts(ingest(spark, settings)) == (0, 0, 0)
    texts(tmp_path, "c", range(200, 250))
    # A batch whose commit is lost, as by a killed driver, is recognised.
    for name in ("1", ".1.crc"):
        (tmp_path / "done" / "commits" / name).unlink()
    assert counts(ingest(spark, settings)) == (150, 0, 150)
    assert values(spark, trio, place.queue) == Counter(b"%d" % number for number in range(250))


def test_a_queue_is_copied_changed_and_filtered(spark, trio, client, place, tmp_path):
    target = second(client, place)
    produce(client, place, range(500))
    settings = CopySettings(
        place,
        target,
        "copy",
        str(tmp_path / "checkpoint"),
        Columns(value="concat('number ', cast(value AS string))", reference="id"),
        where="kind = 'even'",
        max_items=200,
    )
    heard: list[BatchProgress] = []
    assert counts(copy(spark, settings, Control(heard.append))) == (500, 250, 250)
    assert sum(progress.items for progress in heard) == 500
    assert heard[-1].left == 0
    expected = Counter(b"number %d" % number for number in range(0, 500, 2))
    assert values(spark, trio, target.queue) == expected
    [item] = client.lease(target.queue, max_items=1)
    assert (item.kind, len(item.key), item.reference[1]) == ("even", 1, "-")
    assert client.stats(place.queue).total.acknowledged == 500
    # A pipeline that keeps running is ended between two batches.
    produce(client, place, range(500, 600))
    control = Control()
    control.report = lambda _: control.stop.set()
    settings = msgspec.structs.replace(settings, continuous=True, every_seconds=3_600)
    assert counts(copy(spark, settings, control)) == (100, 50, 50)


def test_dead_letters_are_shown_chosen_and_sent_back(spark, client, place):
    grave = second(client, place)
    client.update_queue(place.queue, dead_queue=grave.queue)
    produce(client, place, range(60))
    left = 60
    while left:
        for item in client.lease(place.queue, max_items=left, wait=SOON):
            client.retry(place.queue, item, dead=True, error=f"broken {item.kind}")
            left -= 1
    until_ready(client, grave, 60)
    shown = redrive(spark, RedriveSettings(place, dry_run=True))
    assert (*counts(shown), shown.would_be_sent) == (60, 0, 0, 60)
    found = [(group.reason, group.kind, group.items, group.error) for group in shown.groups]
    assert found == [("rejected", "even", 30, "broken even"), ("rejected", "odd", 30, "broken odd")]
    assert redrive(spark, RedriveSettings(place, reasons=("expired",), dry_run=True)).groups == ()
    # A consumer of the dead queue has one of them.
    [held] = client.lease(grave.queue, max_items=1, wait=SOON)
    settings = RedriveSettings(
        place, kinds=("even",), where="error LIKE 'broken%' AND value < '5'", rate=1_000
    )
    chosen = [number for number in range(0, 60, 2) if str(number) < "5"]
    kept = int(held.payload) in chosen
    heard: list[BatchProgress] = []
    sent = len(chosen) - kept
    assert counts(redrive(spark, settings, Control(heard.append))) == (len(chosen), kept, sent)
    assert [(progress.items, progress.left) for progress in heard] == [(sent, 0)]
    until_ready(client, place, sent)
    assert counts(redrive(spark, RedriveSettings(place))) == (60 - sent, 1, 59 - sent)
    again: list[SyncLeasedItem] = []
    while len(again) < 59:
        again += client.lease(place.queue, max_items=60, wait=SOON)
    assert {(item.attempt, item.kind) for item in again} == {(1, "even"), (1, "odd")}


def test_an_archive_is_replayed_in_its_range_once(spark, trio, client, place, tmp_path):
    target = second(client, place)
    produce(client, place, range(300))
    lake = str(tmp_path / "lake")
    archive(spark, ArchiveSettings(place, "lake", lake))
    produce(client, place, range(300, 900))
    archive(spark, ArchiveSettings(place, "lake", lake))
    rows = (
        spark.read.parquet(lake).selectExpr("int(string(value)) AS number", "timestamp").collect()
    )
    since = min(row["timestamp"] for row in rows if row["number"] >= 300)
    settings = ReplaySettings(
        lake,
        target,
        str(tmp_path / "checkpoint"),
        since=since.replace(tzinfo=UTC),
        where="kind = 'odd'",
        rate=100,
    )
    control = Control()

    def stop(progress: BatchProgress) -> None:
        control.stop.set()

    control.report = stop
    first = replay(spark, settings, control)
    taken, left_out, made = counts(first)
    assert first.batches == 1
    assert 0 < made < 300
    faster = msgspec.structs.replace(settings, rate=10_000)
    second_taken, second_left_out, second_made = counts(replay(spark, faster))
    assert (taken + second_taken, left_out + second_left_out) == (600, 300)
    assert made + second_made == 300
    assert counts(replay(spark, faster)) == (0, 0, 0)
    expected = Counter(b"%d" % number for number in range(301, 900, 2))
    assert values(spark, trio, target.queue) == expected
    [item] = client.lease(target.queue, max_items=1, wait=SOON)
    assert (item.kind, len(item.key)) == ("odd", 1)
    with pytest.raises(SettingsError, match="a checkpoint is of one queue and one choice of items"):
        replay(spark, msgspec.structs.replace(settings, since=None))
    with pytest.raises(SettingsError, match=r"with where kind = 'odd', and it is unset"):
        replay(spark, msgspec.structs.replace(settings, where=""))


def test_a_queue_is_archived_by_day_and_kind(spark, client, place, tmp_path):
    kinds = ("even", "100 % odd")
    produce(client, place, range(500), kinds)
    settings = ArchiveSettings(place, "lake", str(tmp_path / "lake"), max_items=300)
    summary = archive(spark, settings)
    assert (counts(summary), summary.batches) == ((500, 0, 500), 2)
    produce(client, place, range(500, 600), kinds)
    # Its batch is stored and not committed: it comes again, and is in the files already.
    commit = tmp_path / "lake" / "_checkpoint" / "commits" / "2"
    commit.touch()
    with pytest.raises(PipelineFailed):
        archive(spark, settings)
    commit.unlink()
    produce(client, place, range(600, 700), kinds)
    assert counts(archive(spark, settings)) == (200, 0, 200)
    assert archived(spark, tmp_path) == list(range(700))
    frame = spark.read.parquet(str(tmp_path / "lake"))
    assert {row["kind"] for row in frame.select("kind").distinct().collect()} == {*kinds}
    assert "date" in frame.columns
    [path, *_others] = (tmp_path / "lake").rglob("*.parquet")
    footer = pq.ParquetFile(path).schema_arrow
    # Not INT96, which other programs read without a zone.
    assert str(footer.field("timestamp").type) == "timestamp[us, tz=UTC]"
    assert "state" not in frame.columns


def test_a_row_that_is_gone_from_the_archive_is_missed(spark, client, place, tmp_path):
    produce(client, place, range(100))

    def lose_one(_: BatchProgress) -> None:
        [path, *_others] = (tmp_path / "lake").rglob("kind=even/*.parquet")
        pq.write_table(pq.ParquetFile(path).read().slice(1), path)
        (path.parent / f".{path.name}.crc").unlink()

    settings = ArchiveSettings(place, "lake", str(tmp_path / "lake"))
    summary = archive(spark, settings, Control(lose_one))
    assert not summary.balanced
    assert (summary.taken.value, summary.made.value, summary.missing) == (100, 99, 1)


def test_an_archive_without_its_checkpoint_is_refused(spark, client, place, tmp_path):
    produce(client, place, range(10))
    lake = str(tmp_path / "lake")
    archive(spark, ArchiveSettings(place, "lake", lake, partition_by=()))
    other = ArchiveSettings(place, "other", lake, checkpoint=str(tmp_path / "other"))
    with pytest.raises(SettingsError, match=r"has 1 batches, and checkpoint .* has 0"):
        archive(spark, other)


async def readers(trio: Nodes, queue: str) -> list[str]:
    async with Client(trio.endpoint) as client:
        return [reader.reader_id for reader in await client.readers.list(queue)]


def test_a_checkpoint_of_another_reader_is_refused_before_its_reader_is_opened(
    spark, trio, client, place, tmp_path
):
    produce(client, place, range(3))
    lake = str(tmp_path / "lake")
    archive(spark, ArchiveSettings(place, "lake", lake, partition_by=()))
    with pytest.raises(SettingsError, match="the checkpoint is of readerId 'lake'"):
        archive(spark, ArchiveSettings(place, "other", lake, partition_by=()))
    copying_it = CopySettings(place, second(client, place), "other", f"{lake}/_checkpoint")
    with pytest.raises(SettingsError, match="the checkpoint is of readerId 'lake'"):
        copy(spark, copying_it)
    assert trio.run(readers(trio, place.queue)) == ["lake"]


def test_items_are_copied_once_while_a_leader_is_killed(spark, trio, client, place, tmp_path):
    target = second(client, place)
    produce(client, place, range(600))
    connections = cluster(browse_options(place.options()).target)
    address = connections.leader("", place.queue, 0)
    [led] = [each for each in trio.members.by_name.values() if each.address == address]

    def kill(progress: BatchProgress) -> None:
        if progress.batch == 0:
            trio.run(led.kill())

    settings = CopySettings(place, target, "copy", str(tmp_path / "checkpoint"), max_items=100)
    try:
        assert counts(copy(spark, settings, Control(kill))) == (600, 0, 600)
        assert values(spark, trio, target.queue) == Counter(b"%d" % number for number in range(600))
    finally:
        trio.run(led.start())


def test_pipelines_go_on_whose_driver_died_in_a_batch_of_both(spark, trio, client, tmp_path):
    for name in ("from", "to", "archived"):
        # One partition: a batch is one task, and the stuck one leaves the other tasks to the copy.
        client.create_queue(name, partitions=1)
    for name in ("from", "archived"):
        produce(client, QueuePlace(trio.endpoint, name), range(300))
    break_off(spark, tmp_path, trio.endpoint)
    assert sum(batch.items for batch in client.staged_batches("to").batches) == 100
    assert client.stats("archived").total.reserved == 100
    assert counts(copy(spark, copying(tmp_path, trio.endpoint))) == (200, 0, 200)
    assert counts(archive(spark, archiving(tmp_path, trio.endpoint))) == (200, 0, 200)
    assert values(spark, trio, "to") == Counter(b"%d" % number for number in range(300))
    assert archived(spark, tmp_path) == list(range(300))
    for name in ("from", "archived"):
        total = client.stats(name).total
        assert (total.acknowledged, total.reserved, total.ready) == (300, 0, 0)


@pytest.mark.parametrize(
    ("columns", "where", "words"),
    [
        (
            Columns(key="carier"),
            "",
            r"key = carier: there is no column carier; did you mean carrier or delay\? For a "
            "constant write \"'carier'\"$",
        ),
        (
            Columns(key="uper(carrier)"),
            "",
            r"key = uper\(carrier\): there is no function uper; did you mean upper or user\?$",
        ),
        (Columns(kind="cast(delay AS integr)"), "", "there is no type INTEGR; did you mean int"),
        (Columns(value="map('a', 1)"), "", "column value is map<string,int>: it must be binary or"),
        (Columns(), "delay >", "where delay >: this is not SQL: syntax error at end of input$"),
        (Columns(), "delay", "where delay: delay is string: it must be true or false"),
    ],
)
def test_expressions_are_refused_before_data_moves(
    spark, client, place, tmp_path, columns, where, words
):
    (tmp_path / "in.csv").write_text("carrier,delay\nA,1\n")
    settings = IngestSettings(str(tmp_path / "in.csv"), "csv", place, columns, where=where)
    with pytest.raises(SettingsError, match=words):
        ingest(spark, settings)


def test_all_wrong_expressions_are_named(spark, place, tmp_path):
    (tmp_path / "in.csv").write_text("carrier,delay\nA,1\n")
    columns = Columns(key="carier", kind="uper(carrier)", priority="array(1)")
    words = (
        "^column key = carier: there is no column carier; did you mean carrier.*; "
        r"column kind = uper\(carrier\): there is no function uper.*; "
        r"column priority = array\(1\): array<int> cannot become int$"
    )
    with pytest.raises(SettingsError, match=words):
        ingest(spark, IngestSettings(str(tmp_path / "in.csv"), "csv", place, columns))


def test_paths_and_queues_that_are_not_there_are_refused(spark, client, place, tmp_path):
    nowhere = str(tmp_path / "nowhere")
    (tmp_path / "in.txt").write_text("x\n")
    other = QueuePlace(place.endpoint, "nowhere")
    with pytest.raises(SettingsError, match=f"path is {nowhere}: there is nothing"):
        ingest(spark, IngestSettings(nowhere, "text", place))
    with pytest.raises(NotFound, match="nothing was written"):
        ingest(spark, IngestSettings(str(tmp_path / "in.txt"), "text", other))
    with pytest.raises(NotFound, match="nothing was taken"):
        archive(spark, ArchiveSettings(other, "lake", nowhere))
    with pytest.raises(NotFound, match="nothing was written"):
        copy(spark, CopySettings(place, other, "copy", str(tmp_path / "checkpoint")))
    client.update_queue(place.queue, dead_queue="")
    with pytest.raises(SettingsError, match="has no dead queue"):
        redrive(spark, RedriveSettings(place))
    with pytest.raises(SettingsError, match=f"path is {nowhere}: .*nowhere"):
        replay(spark, ReplaySettings(nowhere, place, str(tmp_path / "checkpoint")))
    spark.range(3).write.parquet(str(tmp_path / "other"))
    with pytest.raises(SettingsError, match="no archive of a queue: it has no column value"):
        replay(spark, ReplaySettings(str(tmp_path / "other"), place, str(tmp_path / "checkpoint")))
    assert not (tmp_path / "checkpoint").exists()
    (tmp_path / "in.json").write_text('{"a": 1}\n{"a": \n')
    unreadable = r"path is .*in\.json: a record cannot be read: .*; format is json: give the format"
    with pytest.raises(SettingsError, match=unreadable):
        ingest(spark, IngestSettings(str(tmp_path / "in.json"), "json", place))
    with pytest.raises(
        SettingsError, match=r"format is csv: file in\.json is not CSV .*give json$"
    ):
        ingest(spark, IngestSettings(str(tmp_path / "in.json"), "csv", place))
    with pytest.raises(
        SettingsError, match=r"format is text: file part-.* is a Parquet file; give"
    ):
        ingest(spark, IngestSettings(str(tmp_path / "other"), "text", place))
    with pytest.raises(SettingsError, match=r"path is s3a://nowhere/x: .*hadoop-aws:3\.\d"):
        ingest(spark, IngestSettings("s3a://nowhere/x", "text", place))
    assert client.stats(place.queue).total.produced == 0


def test_a_record_that_cannot_be_read_fails_a_run_in_one_line(spark, client, place, tmp_path):
    (tmp_path / "in.csv").write_text("id,customer\n1,ann\n2,bob,3\n")
    words = (
        rf"^file {tmp_path}/in\.csv cannot be read: a record does not have the columns of the "
        "others: 2,bob,3; format is csv: give the format of the files; if a quoted text has line "
        "breaks, read it by option multiLine=true .*mode=PERMISSIVE"
    )
    with pytest.raises(PipelineFailed, match=words):
        ingest(spark, IngestSettings(str(tmp_path / "in.csv"), "csv", place))
    columns = Columns(enqueue_at="customer")
    settings = IngestSettings(str(tmp_path / "in.csv"), "csv", place, columns, where="id = 1")
    with pytest.raises(PipelineFailed, match=r"^the value 'ann' is no timestamp; try_cast\("):
        ingest(spark, settings)
    assert client.stats(place.queue).total.produced == 0


def test_quotes_of_csv_are_doubled_and_may_have_line_breaks(spark, client, place, tmp_path):
    (tmp_path / "in.csv").write_text('id,name\n1,"Ana ""Nena"" Díaz"\n2,"two\nlines"\n')
    columns = Columns(value="name")
    with pytest.raises(PipelineFailed, match="by option multiLine=true"):
        ingest(spark, IngestSettings(str(tmp_path / "in.csv"), "csv", place))
    settings = IngestSettings(
        str(tmp_path / "in.csv"), "csv", place, columns, options={"multiLine": "true"}
    )
    assert counts(ingest(spark, settings)) == (2, 0, 2)
    assert {item.item.payload.decode() for item in client.peek(place.queue)} == {
        'Ana "Nena" Díaz',
        "two\nlines",
    }


def test_a_single_file_with_a_checkpoint_is_refused_and_leaves_the_checkpoint_as_it_was(
    spark, place, tmp_path
):
    (tmp_path / "in.txt").write_text("x\n")
    checkpoint = tmp_path / "checkpoint"
    settings = IngestSettings(str(tmp_path / "in.txt"), "text", place, checkpoint=str(checkpoint))
    with pytest.raises(SettingsError, match="one file: with a checkpoint it must be a directory"):
        ingest(spark, settings)
    assert not checkpoint.exists()
    settings = IngestSettings(f"{tmp_path}/*.txt", "text", place, checkpoint=str(checkpoint))
    assert counts(ingest(spark, settings)) == (1, 0, 1)


def test_the_options_of_readers_are_those_of_spark(spark):
    packages = spark._jvm.org.apache.spark.sql
    for chosen, options in (
        ("csv", packages.catalyst.csv.CSVOptions),
        ("json", packages.catalyst.json.JSONOptions),
        ("text", packages.execution.datasources.text.TextOptions),
        ("parquet", packages.execution.datasources.parquet.ParquetOptions),
    ):
        names = options.getAllOptions().mkString(" ").split()
        assert "compression" in names
        # Names with a dot are not checked.
        assert {name for name in names if "." not in name} <= set(names_of(chosen))
