"""The Spark program of the demo: `python -m querator.spark.flights.driver SETTINGS`. SETTINGS is
`Settings` as JSON.

Two chains of pipelines run at the same time: CSV → queue FLIGHTS → archive, and CSV → queue
DEPARTURES → copied into queue BOARDING. Then the archive is counted. The program may be killed at
any point: started again with the same settings, every pipeline continues at its last position.
"""

import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, Final

import msgspec

from querator.spark.flights.archive import count_flights
from querator.spark.flights.delays import Flights
from querator.spark.flights.settings import (
    BOARDING,
    COUNT,
    DEPARTURES,
    FLIGHTS,
    SESSION,
    DriverReport,
    Settings,
)
from querator.spark.pipelines import (
    ArchiveSettings,
    BatchProgress,
    Columns,
    Control,
    CopySettings,
    IngestSettings,
    QueuePlace,
    Summary,
    archive,
    copy,
    ingest,
    open_session,
)
from querator.spark.pipelines.session import QUICK_JAVA

TASK_TRIES: Final = 4
"""Attempts at a task. A task whose worker is killed is tried again: in local mode Spark does that
only if it is configured.
"""

Run = Callable[[Any, Control], Summary]


class PipelineStep(msgspec.Struct, frozen=True):
    """A pipeline and its name."""

    name: str
    run: Run


class Driver:
    def __init__(self, spark: Any, settings: Settings) -> None:
        self._spark = spark
        self._settings = settings
        self._stop = threading.Event()
        self._saying = threading.Lock()

    def run(self) -> Flights:
        """Runs both chains. If a pipeline fails, stops the other chain and then raises that
        error.
        """
        self._say(DriverReport(SESSION))
        lines = (
            (self._ingest(FLIGHTS), PipelineStep("archive", self._archive)),
            (self._ingest(DEPARTURES), PipelineStep("copy", self._copy)),
        )
        with ThreadPoolExecutor(len(lines)) as pool:
            running = [pool.submit(self._follow, line) for line in lines]
            wait(running, return_when=FIRST_EXCEPTION)
            if any(each.done() and each.exception() for each in running):
                self._stop.set()
        for each in running:
            each.result()
        self._say(DriverReport(COUNT))
        return count_flights(self._spark, str(self._settings.archive))

    def _follow(self, line: Sequence[PipelineStep]) -> None:
        for step in line:
            if self._stop.is_set():
                return
            control = Control(partial(self._report, step.name))
            control.stop = self._stop
            self._say(DriverReport(step.name, summary=step.run(self._spark, control)))

    def _report(self, pipeline: str, progress: BatchProgress) -> None:
        self._say(DriverReport(pipeline, progress.batch, progress.items))

    def _say(self, said: DriverReport) -> None:
        with self._saying:
            sys.stdout.write(f"{msgspec.json.encode(said).decode()}\n")
            sys.stdout.flush()

    # --- pipelines ---------------------------------------------------------------------------

    def _ingest(self, queue: str) -> PipelineStep:
        """The payload of a flight is its row as JSON. All values are texts, as in the CSV."""
        settings = self._settings
        texts = ", ".join(f"`{field}` string" for field in ("row", *settings.fields))
        fields = ", ".join(f"`{field}`" for field in settings.fields)
        ingesting = IngestSettings(
            settings.parts,
            "csv",
            self._place(queue),
            Columns(
                value=f"to_json(struct({fields}))",
                key="if(tailnum = 'NA', flight, tailnum)",
                kind="carrier",
                encoding="'application/json'",
                reference="`row`",
            ),
            schema=texts,
            checkpoint=self._checkpoint(f"ingest-{queue}"),
            max_bytes=settings.batch_bytes,
        )
        return PipelineStep(
            f"ingest {queue}", lambda spark, control: ingest(spark, ingesting, control)
        )

    def _archive(self, spark: Any, control: Control) -> Summary:
        settings = ArchiveSettings(
            source=self._place(FLIGHTS),
            reader_id="lake",
            path=str(self._settings.archive),
            partition_by=(
                "month=cast(get_json_object(string(value), '$.month') AS int)",
                "carrier=kind",
            ),
            checkpoint=self._checkpoint("archive"),
            max_items=self._settings.batch_items,
        )
        return archive(spark, settings, control)

    def _copy(self, spark: Any, control: Control) -> Summary:
        settings = CopySettings(
            self._place(DEPARTURES),
            self._place(BOARDING),
            "boarding",
            self._checkpoint("copy"),
            max_items=2 * self._settings.batch_items,
        )
        return copy(spark, settings, control)

    def _place(self, queue: str) -> QueuePlace:
        return QueuePlace(self._settings.endpoint, queue)

    def _checkpoint(self, name: str) -> str:
        return f"{self._settings.home}/checkpoints/{name}"


def main(settings: Settings) -> None:
    spark = open_session(
        f"local[2,{TASK_TRIES}]",
        {
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": QUICK_JAVA,
            "spark.sql.shuffle.partitions": "2",
        },
        name="querator spark demo",
    )
    flights = Driver(spark, settings).run()
    settings.counts.write_bytes(msgspec.json.encode(flights))
    spark.stop()


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=Settings))
