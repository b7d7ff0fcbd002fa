"""A path of this machine, and the format of its files, are checked before Spark starts."""

import os
from pathlib import Path

import click
import pytest

from querator.cli.spark.paths import check_archive, check_format, check_path, check_several


def test_a_file_of_another_format_is_named_with_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "_done").write_bytes(b"")
    (tmp_path / ".part").write_bytes(b"")
    (tmp_path / "a.parquet").write_bytes(b"PAR1\x15\x04")
    (tmp_path / "b").mkdir()
    with pytest.raises(click.UsageError) as caught:
        check_format(str(tmp_path), "local[*]", "text", {})
    assert caught.value.message == (
        f"--format is text: file {tmp_path}/a.parquet is a Parquet file; give parquet."
    )
    check_format(f"file://{tmp_path}", "local[2]", "parquet", {})


@pytest.mark.parametrize(
    ("path", "master"),
    [("s3a://bucket/in", "local[*]"), ("/no/where/*.csv", "local[*]"), ("/no/where", "yarn")],
)
def test_what_this_machine_cannot_see_is_left_to_spark(path: str, master: str) -> None:
    check_path(path, master)
    check_format(path, master, "json", {})


def test_a_directory_without_files_is_left_to_spark(tmp_path: Path) -> None:
    (tmp_path / "day=1").mkdir()
    check_format(str(tmp_path), "local[*]", "json", {})


def test_a_pipe_is_left_to_spark(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    check_format(str(tmp_path / "pipe"), "local[*]", "json", {})


def test_an_archive_at_the_path_of_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lake").touch()
    with pytest.raises(click.UsageError, match="is a file; an archive is a directory"):
        check_archive(str(tmp_path / "lake"), "local[*]")
    check_archive(str(tmp_path / "other"), "local[*]")
    check_archive(str(tmp_path), "local[*]")


def test_a_path_that_is_missing_is_named() -> None:
    with pytest.raises(click.UsageError, match="there is no file or directory /no/where"):
        check_path("/no/where", "local[*]")


def test_a_single_file_with_a_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in.csv").touch()
    with pytest.raises(click.UsageError) as caught:
        check_several(str(tmp_path / "in.csv"), "local[*]")
    assert caught.value.message == (
        f"Path is {tmp_path}/in.csv, one file: with a checkpoint it must be a directory, or a "
        f"pattern such as {tmp_path}/*; or leave the checkpoint out."
    )
    check_several(str(tmp_path), "local[*]")
    check_several(f"{tmp_path}/*.csv", "local[*]")
    check_several(str(tmp_path / "in.csv"), "yarn")
