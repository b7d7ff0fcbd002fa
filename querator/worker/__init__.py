"""The engine of `querator worker`, which programs may run themselves.

    async with querator.Client("127.0.0.1:4470") as client:
        worker = querator.Worker(client, "mail", handle, concurrency=20)
        await worker.run(stop_on_signals=True)

A worker calls one function with each item of one queue, and settles the item by what the function
does. It is made of the SDK's public parts, and loads neither the storage nor the Raft engine. The
command line is in `querator.cli.worker`. See docs/guides/worker.md.

    worker       Worker: one queue, one handler, one event loop
    outcomes     what became of an item
    calling      calls of handlers: on the event loop, or on threads
    loading      handlers and exceptions by name, with checks
    metrics      Prometheus metrics of workers
    supervisor   worker processes: starts them, replaces them, stops them
    child        one worker process, as it sees itself and as its supervisor sees it
    changes      changes of Python files, for `--reload`
    log          the logger of workers
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from querator.worker.calling import Handler
    from querator.worker.worker import Worker, WorkerResult

__all__ = ["Handler", "Worker", "WorkerResult"]

_HOMES = {"Handler": "calling", "Worker": "worker", "WorkerResult": "worker"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
