"""A checkpoint says which reader it belongs to, before a query opens that reader."""

from pathlib import Path

import click
import msgspec
import pytest

from querator.cli.spark.paths import check_checkpoint
from querator.spark.offsets import offset_of
from querator.spark.options import stream_options
from querator.spark.pipelines.settings import QueuePlace, StreamSettings

PLACE = QueuePlace("h:1", "orders")


def settings(home: Path, reader_id: str = "lake") -> StreamSettings:
    return StreamSettings(reader_id, str(home), max_items=1, max_bytes=1)


def written(home: Path, number: int, offset: object) -> None:
    (home / "offsets").mkdir(exist_ok=True)
    text = f"v1\n{{}}\n{msgspec.json.encode(offset).decode()}"
    (home / "offsets" / str(number)).write_text(text)


def lake(home: Path) -> dict[str, object]:
    return offset_of(stream_options(settings(home).options(PLACE)), {0: (1, 2)})


def test_the_newest_offset_is_of_the_reader(tmp_path: Path) -> None:
    check_checkpoint(settings(tmp_path), PLACE, "local[*]")
    written(tmp_path, 9, {"logOffset": 1})
    written(tmp_path, 10, lake(tmp_path))
    check_checkpoint(settings(tmp_path), PLACE, "local[*]")
    check_checkpoint(settings(tmp_path, "other"), PLACE, "yarn")


def test_another_reader_or_queue_is_refused(tmp_path: Path) -> None:
    written(tmp_path, 0, lake(tmp_path))
    with pytest.raises(click.UsageError, match="checkpoint is of readerId 'lake', and"):
        check_checkpoint(settings(tmp_path, "other"), PLACE, "local[*]")
    with pytest.raises(click.UsageError, match="checkpoint is of queue 'orders', and"):
        check_checkpoint(settings(tmp_path), QueuePlace("h:1", "other"), "local[*]")


def test_a_checkpoint_of_another_kind_of_query_is_refused(tmp_path: Path) -> None:
    written(tmp_path, 0, {"logOffset": 1})
    with pytest.raises(click.UsageError, match=f"heckpoint {tmp_path} is of a query that reads no"):
        check_checkpoint(settings(tmp_path), PLACE, "local[*]")


def test_half_a_file_is_left_to_spark(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text("v1\n{}\n{")
    check_checkpoint(settings(tmp_path), PLACE, "local[*]")
    (tmp_path / "offsets" / "0").write_bytes('v1\n{}\n{"größe'.encode()[:-3])
    check_checkpoint(settings(tmp_path), PLACE, "local[*]")
    (tmp_path / "offsets" / "0").write_text("")
    check_checkpoint(settings(tmp_path), PLACE, "local[*]")


def test_a_checkpoint_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "offsets" / "0").mkdir(parents=True)
    with pytest.raises(click.UsageError, match=r"--checkpoint: .*offsets/0: Is a directory"):
        check_checkpoint(settings(tmp_path), PLACE, "local[*]")
