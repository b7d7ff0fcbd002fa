"""The data source as Spark knows it. Instances are pickled: they hold the options alone.

Spark makes them in processes that live for a moment, several for each query. So nothing is imported
here that only the later steps need: Arrow and gRPC take a third of a second of such a process.
"""

from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from querator.spark.options import (
    OptionError,
    browse_options,
    check_options,
    is_of_a_table,
    stream_options,
)
from querator.spark.schema import COLUMNS, SPARK_SCHEMA
from querator.spark.sink_options import SinkOptions, sink_options

_RECORDED: Final = "querator"
"""Metadata of a table's first column: its options."""


class NotSupported(ValueError):
    """Something that Spark can do with other sources; the message says what to do instead."""


class QueratorDataSource(DataSource):
    """Format `querator`: `spark.read` is a snapshot scan of a queue, `spark.readStream` takes items
    out of it, each exactly once; `df.write` and `writeStream` put rows into it, each exactly once.
    See docs/spark.md.
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
        from pyspark.sql.pandas.types import from_arrow_schema

        from querator.spark.columns import ARROW_SCHEMA

        schema: StructType = from_arrow_schema(ARROW_SCHEMA)
        schema.fields[0].metadata = {_RECORDED: dict(self.options)}
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Raises OptionError."""
        from querator.spark.browsing import BrowseReader

        return BrowseReader(browse_options(_options(schema, self.options)))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Raises OptionError."""
        from querator.spark.streaming import QueueStreamReader

        return QueueStreamReader(stream_options(_options(schema, self.options)))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Raises NotSupported, OptionError, RowsError, NotFound, Unreachable."""
        from querator.spark.writing import BatchWriter

        writer = BatchWriter(self._sink_options(schema, overwrite), schema)
        writer.check_queue()
        return writer

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """As `writer`."""
        from querator.spark.writing import StreamWriter

        writer = StreamWriter(self._sink_options(schema, overwrite), schema)
        writer.check_queue()
        return writer

    def _sink_options(self, schema: StructType, overwrite: bool) -> SinkOptions:
        if overwrite:
            raise NotSupported(
                "a write never replaces what is in a queue, so there is no mode overwrite and no "
                "output mode complete; nothing was written. Use append, and empty the queue by "
                "consuming it or by `querator queue delete`"
            )
        # A table is inserted into with all of its columns, and with no option of the query's own
        # that says where.
        whole = tuple(schema.fieldNames()) == COLUMNS
        given = self.options
        of_table = _recorded(schema) if whole and not {"endpoint", "queue"} & set(given) else {}
        return sink_options(given, of_table=of_table)


def _options(schema: StructType, given: Mapping[str, str]) -> Mapping[str, str]:
    """Those of the query (`SELECT … WITH (…)`) win over those of its table. Raises OptionError."""
    if tuple(schema.fieldNames()) != COLUMNS:
        raise OptionError(
            "the schema of a queue is fixed: leave out .schema(…), and select the columns"
        )
    return {**_recorded(schema), **given}


def _recorded(schema: StructType) -> dict[str, Any]:
    recorded: dict[str, Any] = schema.fields[0].metadata.get(_RECORDED, {})
    return recorded
