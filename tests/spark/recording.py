"""A source of numbers that records how Spark calls it. It needs no cluster."""

import json  # noqa: TID251 - offsets and limits are compared as the text that Spark has
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

Offset = dict[str, Any]


class RecordingSource(DataSource):
    """Options: `home`, where the checkpoint is and the calls are written; `items`; `most` of a
    batch; `turned`, the number from which on offsets have their keys reversed; `lost`, the number
    after which an offset is not returned.
    """

    @classmethod
    def name(cls) -> str:
        return "recording"

    def schema(self) -> str:
        return "number bigint"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return RecordingReader(dict(self.options))


@dataclass
class Numbers(InputPartition):
    begin: int
    end: int


class RecordingReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: dict[str, str]) -> None:
        self._home = Path(options["home"])
        self._items = int(options.get("items", "8"))
        self._most = int(options.get("most", "5"))
        self._turned = int(options.get("turned", "-1"))
        self._lost = int(options.get("lost", "-1"))

    def _say(self, call: str, **more: Any) -> None:
        said = {"call": call, "pid": os.getpid(), **more}
        for log in ("offsets", "commits"):
            folder = self._home / "checkpoint" / log
            names = [path.name for path in folder.iterdir()] if folder.exists() else []
            said[log] = sorted(int(name) for name in names if name.isdecimal())
        with (self._home / "calls").open("a") as calls:
            calls.write(json.dumps(said) + "\n")

    def prepareForTriggerAvailableNow(self) -> None:
        self._say("prepareForTriggerAvailableNow")

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._most)

    def initialOffset(self) -> Offset:
        self._say("initialOffset")
        return {"n": 0, "of": "numbers"}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        given = {"kind": type(limit).__name__, **asdict(limit)}
        self._say("latestOffset", start=json.dumps(start), limit=given)
        end = min(self._items, start["n"] + self._most)
        if 0 <= self._lost < end:
            raise ValueError("the offset is not returned")
        if end == start["n"] == self._turned and list(start) == ["n", "of"]:
            return {"of": "numbers", "n": end}
        return start if end == start["n"] else {"n": end, "of": "numbers"}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        self._say("partitions", start=json.dumps(start), end=json.dumps(end))
        return [Numbers(start["n"], end["n"])] if start["n"] < end["n"] else []

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, Numbers)
        self._say("read")
        numbers = list(range(partition.begin, partition.end))
        yield pa.RecordBatch.from_arrays([pa.array(numbers, pa.int64())], names=["number"])

    def commit(self, end: Offset) -> None:
        self._say("commit", end=json.dumps(end))
