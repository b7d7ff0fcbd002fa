"""A WSGI site that uses the SDK before and after gunicorn forks its workers. The module holds
gunicorn's settings too (`python:tests.integration.forked_site`).
"""

import os
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

from querator import SyncClient

ADDRESS = os.environ["QUERATOR_TEST_ADDRESS"]
QUEUE = os.environ["QUERATOR_TEST_QUEUE"]
WAIT = timedelta(seconds=20)

bind = "127.0.0.1:0"
workers = 4
preload_app = True

parents_client = SyncClient(ADDRESS)
parents_client.produce(QUEUE, b"before the fork")

clients: list[SyncClient] = []
"""The client of a worker."""


def post_fork(server: Any, worker: Any) -> None:
    clients.append(SyncClient(ADDRESS))


def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Answers with the process id, when each worker has one request, and has produced an item."""
    (client,) = clients
    client.produce(QUEUE, b"%d" % os.getpid())
    while client.stats(QUEUE).total.produced < 1 + workers:
        pass
    with client.consumer(QUEUE, prefetch_items=1, idle_timeout=WAIT) as consumer:
        next(iter(consumer)).complete()
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"%d" % os.getpid()]
