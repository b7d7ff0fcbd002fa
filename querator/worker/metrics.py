"""Prometheus metrics of workers.

They stand beside the metrics of the program itself, in the library's registry. With several
processes, each process writes its values to files of one directory, and the supervising process
adds them up at each scrape (the multiprocess mode of prometheus-client).
"""

import os
from wsgiref.simple_server import WSGIServer

from prometheus_client import (
    REGISTRY,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    start_http_server,
)
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from querator.worker.outcomes import ItemOutcome

DIRECTORY_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""Variable of the environment by which prometheus-client writes its values to files. It must be set
before a process imports prometheus-client."""

_SECONDS = (0.005, 0.02, 0.1, 0.5, 2, 10, 30, 60, 300, 1800)


class WorkerMetrics:
    """The metrics of the workers of one process. One object for each registry."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._items = Counter(
            "querator_worker_items",
            f"Items by outcome: {', '.join(outcome.value for outcome in ItemOutcome)}.",
            ["queue", "outcome"],
            registry=registry,
        )
        self._in_progress = Gauge(
            "querator_worker_items_in_progress",
            "Items whose handler runs now.",
            ["queue"],
            registry=registry,
            multiprocess_mode="livesum",
        )
        self._seconds = Histogram(
            "querator_worker_handler_seconds",
            "How long handlers take, until they return or raise.",
            ["queue"],
            registry=registry,
            buckets=_SECONDS,
        )

    def begin(self, queue: str) -> None:
        """Shows the queue before its first item."""
        for outcome in ItemOutcome:
            self._items.labels(queue, outcome.value)
        self._in_progress.labels(queue)
        self._seconds.labels(queue)

    def started(self, queue: str) -> None:
        self._in_progress.labels(queue).inc()

    def ended(self, queue: str, seconds: float) -> None:
        """The handler has returned or raised."""
        self._in_progress.labels(queue).dec()
        self._seconds.labels(queue).observe(seconds)

    def settled(self, queue: str, outcome: ItemOutcome) -> None:
        self._items.labels(queue, outcome.value).inc()


class MetricsServer:
    """Serves `/metrics` on a thread, until `close`."""

    def __init__(self, host: str, port: int, *, directory: str = "") -> None:
        """`port` 0: a free one. `directory`: that of the processes whose values are added up;
        empty: the values of this process. Raises OSError when it cannot listen.
        """
        registry = REGISTRY
        if directory:
            registry = CollectorRegistry()
            MultiProcessCollector(registry, path=directory)  # type: ignore[no-untyped-call]
        self._server: WSGIServer
        self._server, self._thread = start_http_server(port, addr=host, registry=registry)
        self.port: int = self._server.server_port

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def forget_process(pid: int, directory: str) -> None:
    """Drops the values of an ended process that count only while it lives. Its counters stay."""
    if os.path.isdir(directory):
        mark_process_dead(pid, directory)  # type: ignore[no-untyped-call]
