"""Checks of paths on this machine before Spark starts, because its start takes seconds."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click

from querator.cli.spark.run import settings_of
from querator.cli.spark.words import as_typed, sentence
from querator.spark.pipelines.formats import (
    HEAD_BYTES,
    is_hidden,
    misfit,
    no_stream_of,
    wrong_format,
)
from querator.spark.pipelines.settings import QueuePlace, StreamSettings

_PATTERN: Final = re.compile(r"[*?\[{]")


def check_path(path: str, master: str) -> None:
    """Raises UsageError if Spark on this machine would find nothing at `path`."""
    place = _local(path, master)
    if place and not os.path.exists(place):
        raise click.UsageError(f"PATH: there is no file or directory {place}.")


def check_several(path: str, master: str) -> None:
    """Raises UsageError if `path`, on this machine, is one file: Spark follows directories only."""
    place = _local(path, master)
    if place and os.path.isfile(place):
        raise click.UsageError(sentence(as_typed(no_stream_of(place))))


def check_archive(path: str, master: str) -> None:
    """Raises UsageError if `path`, on this machine, is a file: an archive is a directory."""
    place = _local(path, master)
    if place and os.path.isfile(place):
        raise click.UsageError(f"PATH: {place} is a file; an archive is a directory.")


def check_checkpoint(stream: StreamSettings, source: QueuePlace, master: str) -> None:
    """Raises UsageError if the checkpoint, on this machine, is of another queue or reader."""
    # It imports PySpark, which help does without.
    from querator.spark.pipelines.checkpoints import OFFSETS, check_reader

    place = _local(stream.checkpoint, master)
    home = Path(place, OFFSETS)
    if not place or not home.is_dir():
        return

    def read(name: str) -> str:
        # A run that was killed may have left a part of a file, which ends within a letter.
        return Path(home, name).read_text("utf-8", errors="replace")

    try:
        names = [each.name for each in home.iterdir()]
        with settings_of():
            check_reader(stream, source, names, read)
    except OSError as error:
        raise click.UsageError(f"--checkpoint: {error.filename}: {error.strerror}.") from error


def check_format(path: str, master: str, chosen: str, options: Mapping[str, str]) -> None:
    """Raises UsageError if the first file at `path`, on this machine, is of another format."""
    place = _local(path, master)
    name = _first_file(place) if place else ""
    if not name:
        return
    try:
        with open(name, "rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError as error:
        raise click.UsageError(f"PATH: {name}: {error.strerror}.") from error
    words = misfit(chosen, head, os.path.basename(name), options)
    if words:
        raise click.UsageError(f"--{wrong_format(chosen, name, words, head)}.")


def _local(path: str, master: str) -> str:
    """The path as one of this machine; empty if it is elsewhere, or a pattern."""
    place = path.removeprefix("file://")
    if not master.startswith("local") or "://" in place or _PATTERN.search(place):
        return ""
    return place


def _first_file(place: str) -> str:
    """The first file that Spark would read; empty if there is none, or only in directories
    below.
    """
    if os.path.isfile(place):
        return place
    # To open a pipe would wait for its writer.
    if not os.path.isdir(place):
        return ""
    with os.scandir(place) as entries:
        names = [each.name for each in entries if each.is_file() and not is_hidden(each.name)]
    return os.path.join(place, min(names)) if names else ""
