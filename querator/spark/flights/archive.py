"""Counts of the archive of flights, by Spark."""

from typing import Any, Final

from pyspark.sql import functions as F

from querator.spark.flights.delays import LATE_MINUTES, Flights, cells
from querator.spark.pipelines.failures import explained

_SUMS: Final = ("flights", "cancelled", "arrived", "minutes", "late")


def count_flights(spark: Any, path: str) -> Flights:
    """Month and carrier come from the names of directories, everything else from the payloads.
    Raises PipelineFailed.
    """
    schema = "dep_time string, arr_delay string, hour string"
    with explained():
        rows = spark.read.parquet(path)
        flight = F.from_json(F.col("value").cast("string"), schema)
        rows = rows.select("reference", "month", "carrier", flight.alias("flight"))
        minutes = F.expr("try_cast(flight.arr_delay AS int)")
        found = (
            rows.groupBy("month", "carrier", F.col("flight.hour").cast("int").alias("hour"))
            .agg(
                F.count(F.lit(1)).alias("flights"),
                F.count_if(F.col("flight.dep_time") == "NA").alias("cancelled"),
                F.count(minutes).alias("arrived"),
                F.coalesce(F.sum(minutes), F.lit(0)).alias("minutes"),
                F.count_if(minutes >= LATE_MINUTES).alias("late"),
            )
            .collect()
        )
        distinct = rows.select(F.count_distinct("reference")).first()[0]
    return Flights(
        sum(row["flights"] for row in found),
        distinct,
        cells(
            ((row["month"], row["carrier"], row["hour"]), [row[name] for name in _SUMS])
            for row in found
        ),
    )
