"""Whether a checkpoint belongs to a reader, before a query opens that reader on the queue.

Spark writes a file `offsets/N` before each batch: a line with its version, one with settings, and
one with the offset of each source.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from querator.spark.offsets import OffsetError, pairs_of
from querator.spark.options import stream_options
from querator.spark.pipelines.settings import QueuePlace, SettingsError, StreamSettings

OFFSETS: Final = "offsets"
_LINE_OF_SOURCE: Final = 2


def check_reader(
    stream: StreamSettings, source: QueuePlace, names: Iterable[str], read: Callable[[str], str]
) -> None:
    """Checks the newest of the files of the directory `offsets`, if there is one. `read` returns
    the text of a file. Raises SettingsError.
    """
    numbers = [int(name) for name in names if name.isdecimal()]
    if not numbers:
        return
    lines = read(str(max(numbers))).splitlines()
    # A run that was killed while it wrote the file leaves a part of it, which Spark judges.
    if len(lines) <= _LINE_OF_SOURCE:
        return
    try:
        offset: Any = msgspec.json.decode(lines[_LINE_OF_SOURCE])
    except msgspec.DecodeError:
        return
    if not isinstance(offset, dict) or not {"v", "q", "r"} <= offset.keys():
        raise SettingsError(
            f"checkpoint {stream.checkpoint} is of a query that reads no queue: give this one a "
            "checkpoint of its own"
        )
    try:
        pairs_of(stream_options(stream.options(source)), offset)
    except OffsetError as error:
        raise SettingsError(str(error)) from error
