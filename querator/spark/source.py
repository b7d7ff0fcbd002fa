"""The data source as Spark knows it. Instances are pickled: they hold the options alone."""

from collections.abc import Mapping
from typing import Any, Final, NoReturn

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from querator.spark.browsing import BrowseReader
from querator.spark.columns import ARROW_SCHEMA, SPARK_SCHEMA
from querator.spark.options import (
    OptionError,
    browse_options,
    check_options,
    is_of_a_table,
    stream_options,
)
from querator.spark.streaming import QueueStreamReader

_RECORDED: Final = "querator"
"""Metadata of a table's first column: its options."""


class NotSupported(NotImplementedError):
    """Something that Spark can do with other sources; the message says what to do instead."""


class QueratorDataSource(DataSource):
    """Format `querator`: `spark.read` is a snapshot scan of a queue, `spark.readStream` takes items
    out of it, each exactly once. See docs/spark.md.
    """

    @classmethod
    def name(cls) -> str:
        return "querator"

    def schema(self) -> StructType | str:
        """The same for all queues. Options are checked here already, before anything is planned.

        Spark asks when a table is created, with its options; when the table is read it hands over
        the schema without them. So they go along with the schema.
        """
        check_options(self.options)
        if not is_of_a_table(self.options):
            return SPARK_SCHEMA
        schema: StructType = from_arrow_schema(ARROW_SCHEMA)
        schema.fields[0].metadata = {_RECORDED: dict(self.options)}
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Raises OptionError."""
        return BrowseReader(browse_options(_options(schema, self.options)))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Raises OptionError."""
        return QueueStreamReader(stream_options(_options(schema, self.options)))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        _refuse("write to a queue", "produce in foreachPartition with")

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        _refuse("write a stream to a queue", "produce in foreachBatch with")


def _options(schema: StructType, given: Mapping[str, str]) -> Mapping[str, str]:
    """Those of the query (`SELECT … WITH (…)`) win over those of its table. Raises OptionError."""
    if schema.fieldNames() != ARROW_SCHEMA.names:
        raise OptionError(
            "the schema of a queue is fixed: leave out .schema(…), and select the columns"
        )
    recorded: dict[str, Any] = schema.fields[0].metadata.get(_RECORDED, {})
    return {**recorded, **given}


def _refuse(what: str, instead: str) -> NoReturn:
    raise NotSupported(
        f"this version of querator does not {what} through Spark; {instead} querator.SyncClient"
    )
