"""The data source class that Spark uses. Instances are pickled: they hold only the options.

Spark makes several short-lived processes for each query. This module therefore imports nothing that
only later steps need: the import of Arrow and gRPC takes a third of a second of such a process.
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
"""Metadata key of a table's first column, which holds the table's options."""


class NotSupported(ValueError):
    """An operation that other sources allow and this one does not; the message names an
    alternative.
    """


class QueratorDataSource(DataSource):
    """The format `querator`. `spark.read` is a snapshot scan of a queue, and `spark.readStream`
    takes items out of it, each exactly once. `df.write` and `writeStream` put rows into it, each
    exactly once. See docs/spark.md.
    """

    @classmethod
    def name(cls) -> str:
        return "querator"

    def schema(self) -> StructType | str:
        """The schema, which is the same for all queues. Options are checked here, before planning.

        Spark asks when a table is created, and passes the table's options. When the table is read,
        Spark passes the schema without the options. The schema therefore carries them.
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
        """Wrong options: a reader whose first call raises OptionError. Spark's runner of streams
        (seen in 4.3) would report an UnboundLocalError of its own in place of an error raised here.
        """
        from querator.spark.streaming import QueueStreamReader, RefusingStreamReader

        try:
            options = stream_options(_options(schema, self.options))
        except OptionError as error:
            return RefusingStreamReader(error)
        return QueueStreamReader(options)

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
        # An insert into a table has all of the table's columns, and none of the options endpoint
        # and queue.
        whole = tuple(schema.fieldNames()) == COLUMNS
        given = self.options
        of_table = _recorded(schema) if whole and not {"endpoint", "queue"} & set(given) else {}
        return sink_options(given, of_table=of_table)


def _options(schema: StructType, given: Mapping[str, str]) -> Mapping[str, str]:
    """The options of the query (`SELECT … WITH (…)`) override those of its table. Raises
    OptionError.
    """
    if tuple(schema.fieldNames()) != COLUMNS:
        raise OptionError(
            "the schema of a queue is fixed: leave out .schema(…), and select the columns"
        )
    return {**_recorded(schema), **given}


def _recorded(schema: StructType) -> dict[str, Any]:
    recorded: dict[str, Any] = schema.fields[0].metadata.get(_RECORDED, {})
    return recorded
