"""A Celery application that uses the SDK before and after the workers are forked. Run as a program,
it sends one task for each worker.
"""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from celery import Celery, signals

from querator import SyncClient

ADDRESS = os.environ["QUERATOR_TEST_ADDRESS"]
FOLDER = Path(os.environ["QUERATOR_TEST_FOLDER"])
QUEUE = os.environ["QUERATOR_TEST_QUEUE"]
WAIT = timedelta(seconds=20)
WORKERS = 4

app = Celery("tests.integration.forked_tasks", broker="filesystem://")
app.conf.broker_transport_options = {
    "data_folder_in": str(FOLDER),
    "data_folder_out": str(FOLDER),
    "control_folder": str(FOLDER / "control"),
}
app.conf.worker_prefetch_multiplier = 1
app.conf.task_ignore_result = True

clients: list[SyncClient] = []
"""The client of a worker process."""


@signals.worker_init.connect  # type: ignore[untyped-decorator]
def _before_the_fork(**_: Any) -> None:
    SyncClient(ADDRESS).produce(QUEUE, b"before the fork")


@signals.worker_process_init.connect  # type: ignore[untyped-decorator]
def _in_the_worker(**_: Any) -> None:
    clients.append(SyncClient(ADDRESS))


@app.task  # type: ignore[untyped-decorator]
def round_trip() -> None:
    """Returns when each worker has a task, and has consumed an item."""
    (client,) = clients
    client.produce(QUEUE, b"%d" % os.getpid())
    while client.stats(QUEUE).total.produced < 1 + WORKERS:
        pass
    with client.consumer(QUEUE, prefetch_items=1, idle_timeout=WAIT) as consumer:
        next(iter(consumer)).complete()


if __name__ == "__main__":
    from tests.integration import forked_tasks

    for _ in range(WORKERS):
        forked_tasks.round_trip.delay()
