"""A worker process of durable functions: which functions it runs, and how it begins and ends.

The engine is `querator.durable.Worker`. `querator worker` runs it when its module has durable
functions.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from types import ModuleType
from typing import Any, Final

import click

from querator.cli.shared.failures import ExitCode, Failure
from querator.client import Client, QueueInfo
from querator.client.errors import NotFound
from querator.durable import Durable, Step, Worker
from querator.durable.worker import CONCURRENCY_DEFAULT
from querator.worker.loading import LoadError, load
from querator.worker.log import LOG

_KIND: Final = "executions"


def durable_functions(found: object, name: str) -> tuple[Durable[..., Any], ...]:
    """The durable functions of a module, a collection, or a name; none: it is a handler of items.
    `name` is for the message. Raises LoadError for a collection with something else in it.
    """
    if isinstance(found, Durable):
        return (found,)
    if isinstance(found, Step):
        module = name.partition(":")[0]
        raise LoadError(
            f"{name} is a step. Give the durable functions that call it: {module}, which is all "
            "of the module, or a list in it."
        )
    if isinstance(found, ModuleType):
        marked = [one for one in vars(found).values() if isinstance(one, Durable)]
        return tuple(dict.fromkeys(marked))
    if isinstance(found, Mapping):
        found = tuple(found.values())
    if callable(found) or not isinstance(found, list | tuple | set | frozenset):
        return ()
    if not found:
        raise LoadError(f"{name} is empty. Give durable functions, or a handler of items.")
    for one in found:
        if not isinstance(one, Durable):
            raise LoadError(f"{name} has {one!r}, which is not marked with @durable.")
    return tuple(found)


def loaded_functions(name: str) -> tuple[Durable[..., Any], ...]:
    """The durable functions of `MODULE[:NAME]`, found from the working directory. What the module
    prints goes to standard error. Raises Failure.
    """
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            found = durable_functions(load(name), name)
    except LoadError as error:
        if error.details:
            click.echo(error.details, err=True, nl=False)
        raise Failure(str(error), ExitCode.USAGE) from error
    if not found:
        raise Failure(f"{name} has no durable functions.", ExitCode.USAGE)
    return found


class DurableWork:
    """A worker from its queue to its end. It runs once.

    `cut_short`: a second signal has ended the steps.
    """

    def __init__(
        self,
        client: Client,
        queue: str,
        functions: tuple[Durable[..., Any], ...],
        *,
        concurrency: int | None,
        errors: Iterable[type[Exception]],
        lease_timeout: timedelta | None,
        grace: timedelta,
        create: bool,
    ) -> None:
        """Raises ValueError as `Worker`."""
        self.cut_short = False
        self._client = client
        self._queue = queue
        self._create = create
        self._grace = grace
        self._is_stopping = False
        self._is_open = False
        self._task: asyncio.Task[Any] | None = None
        concurrency = CONCURRENCY_DEFAULT if concurrency is None else concurrency
        self._worker = Worker(
            client, queue, functions, concurrency=concurrency, errors=errors,
            lease_timeout=lease_timeout, grace=grace,
        )  # fmt: skip
        names = ", ".join(sorted(one.name for one in functions))
        self._begins = f"{names}; {concurrency} executions at a time"

    def stop_by_signal(self, grace: timedelta | None) -> None:
        """Stops politely; with a grace, ends the steps at once."""
        self._is_stopping = True
        if grace is None:
            LOG.info(
                "Worker of %s stops by a signal: steps have %g s; a second signal ends them",
                self._queue,
                self._grace.total_seconds(),
            )
            self._worker.stop()
        else:
            LOG.info("Worker of %s ends its steps", self._queue)
            self.cut_short = True
        if self._task is not None and (self.cut_short or not self._is_open):
            self._task.cancel()

    async def run(self, on_begin: Callable[[], None] | None) -> None:
        """Runs executions until it is stopped. `on_begin` is called when the queue is found. Raises
        QueueNotFound, NamespaceNotFound, and ValueError for a queue of another kind.
        """
        self._task = asyncio.current_task()
        assert self._task is not None
        try:
            info = await self._found_queue()
            if info.kind != _KIND:
                raise ValueError(
                    f"Queue {self._queue} is of kind {info.kind}, and durable functions need one "
                    f"of kind {_KIND}"
                )
            if on_begin is not None:
                on_begin()
            self._is_open = True
            LOG.info("Worker of %s runs %s", self._queue, self._begins)
            await self._worker.run()
        except asyncio.CancelledError:
            if not self._is_stopping or self._task.uncancel():
                raise
        finally:
            LOG.info("Worker of %s ended", self._queue)

    async def _found_queue(self) -> QueueInfo:
        LOG.debug("Worker looks for queue %s at %s", self._queue, self._client.address)
        try:
            return await self._client.get_queue(self._queue)
        except NotFound:
            if not self._create:
                raise
        info = await self._client.create_queue(self._queue, kind=_KIND)
        LOG.info("Queue %s is created", self._queue)
        return info
