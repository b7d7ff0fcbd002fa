"""A node, a queue of executions and a worker of it, in the process of a program."""

import asyncio
from collections.abc import Coroutine, Iterable
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Final, ParamSpec, Self, TypeVar, overload

from querator.client import Client
from querator.durable import Codec, Durable, ExecutionHandle, Executions, Worker
from querator.durable.worker import CONCURRENCY_DEFAULT, GRACE_DEFAULT, as_functions
from querator.node import Node
from querator.raft.clock import Clock

P = ParamSpec("P")
T = TypeVar("T")

QUEUE_DEFAULT: Final = "local"
LEASE_DEFAULT: Final = timedelta(seconds=10)
"""Shorter than that of a queue: one that starts a killed program again waits for it."""


class Local:
    """Runs durable functions, in a folder.

        async with Local("./shop", [checkout, ship]) as local:
            await local.run(checkout, order, id="order-17")

    The folder is made if it is not there. What is acknowledged is on disk. A program that dies and
    is started again continues its executions behind their last records, when the leases of the dead
    one are over: after `lease_timeout` at the latest. `data_dir` None: in memory, and nothing
    remains.

    `functions` and `errors`, `codec`, `concurrency` and `grace` are those of `Worker`, `queue` is
    the name of the queue. Other programs of the machine reach the node at `address`; `listen` is
    HOST:PORT with a port of your choice. An instance is used once, in `async with`.
    """

    def __init__(
        self,
        data_dir: Path | str | None,
        functions: Iterable[Durable[..., Any]],
        *,
        queue: str = QUEUE_DEFAULT,
        codec: Codec | None = None,
        errors: Iterable[type[Exception]] = (),
        concurrency: int = CONCURRENCY_DEFAULT,
        lease_timeout: timedelta = LEASE_DEFAULT,
        grace: timedelta = GRACE_DEFAULT,
        listen: str = "127.0.0.1:0",
        clock: Clock | None = None,
    ) -> None:
        """Raises TypeError and ValueError as `Worker`, when the block begins. `clock`: as for
        `Node`.
        """
        self._node = Node(
            data_dir, memory=data_dir is None, new=data_dir is not None, listen=listen, clock=clock
        )
        self._queue = queue
        self._functions = as_functions(functions)
        self._calls: dict[str, Any] = {"codec": codec, "errors": tuple(errors)}
        self._options: dict[str, Any] = {
            "concurrency": concurrency, "lease_timeout": lease_timeout, "grace": grace,
        }  # fmt: skip
        self._running = AsyncExitStack()
        self._client: Client | None = None
        self._executions: Executions | None = None
        self._worker: Worker | None = None
        self._working: asyncio.Task[None] | None = None

    # --- what it has -------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """HOST:PORT of the node, for `querator execution`, and for other programs."""
        return self._node.address

    @property
    def client(self) -> Client:
        """A client of the node."""
        assert self._client is not None, "it is used in `async with`"
        return self._client

    @property
    def executions(self) -> Executions:
        """The calls about executions: list them, resolve promises."""
        assert self._executions is not None, "it is used in `async with`"
        return self._executions

    # --- life --------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Raises as `Node.start`, for example if another process uses the folder."""
        try:
            await self._start()
        except BaseException:
            await self._running.aclose()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Steps under way may end within the grace; the executions stay. Raises what has ended the
        worker.
        """
        try:
            await self._stop_worker()
        finally:
            await self._running.aclose()

    async def _start(self) -> None:
        await self._running.enter_async_context(self._node)
        client = self._client = await self._running.enter_async_context(self._node.client())
        self._executions = Executions(client, self._queue, **self._calls)
        self._worker = Worker(client, self._queue, self._functions, **self._calls, **self._options)
        await client.create_queue(self._queue, kind="executions", if_exists="keep")
        # Owned: awaited by `_stop_worker`.
        self._working = asyncio.get_running_loop().create_task(self._worker.run())

    async def _stop_worker(self) -> None:
        assert self._worker is not None
        assert self._working is not None
        self._worker.stop()
        try:
            await asyncio.shield(self._working)
        except asyncio.CancelledError:
            self._working.cancel()
            await asyncio.gather(self._working, return_exceptions=True)
            raise

    # --- executions --------------------------------------------------------------------------

    @overload
    async def run(
        self, function: Durable[P, Coroutine[Any, Any, T]], /, *args: Any, **options: Any
    ) -> T: ...

    @overload
    async def run(self, function: Durable[P, T], /, *args: Any, **options: Any) -> T: ...

    async def run(self, function: Durable[..., Any], /, *args: Any, **options: Any) -> Any:
        """Starts an execution, waits for it, and returns its result, or raises what the function
        has raised: `start`, and `result` of its handle. `options` are those of `start`, and
        `timeout`, after which TimeoutError is raised; the execution continues then.

        With the `id` of an execution that has ended, its result is returned, and nothing is run.
        """
        timeout = options.pop("timeout", None)
        handle = await self.start(function, *args, **options)
        return await self._unless_it_ends(handle.result(timeout=timeout))

    @overload
    async def start(
        self, function: Durable[P, Coroutine[Any, Any, T]], /, *args: Any, **options: Any
    ) -> ExecutionHandle[T]: ...

    @overload
    async def start(
        self, function: Durable[P, T], /, *args: Any, **options: Any
    ) -> ExecutionHandle[T]: ...

    async def start(
        self, function: Durable[..., Any], /, *args: Any, **options: Any
    ) -> ExecutionHandle[Any]:
        """Starts an execution, and returns its handle. `options`: as for `Executions.start`, for
        example `id=` and `delay=`.
        """
        self._check_known(function)
        handle: ExecutionHandle[Any] = await self.executions.start(function, *args, **options)
        return handle

    def handle(self, id: str, function: Durable[..., Any] | None = None) -> ExecutionHandle[Any]:
        """The handle of an execution that was started before, as `Executions.handle`."""
        return self.executions.handle(id, function)

    def _check_known(self, function: Any) -> None:
        """Raises ValueError for a durable function that the worker does not run."""
        if isinstance(function, Durable) and all(one is not function for one in self._functions):
            names = ", ".join(one.name for one in self._functions)
            raise ValueError(f"functions does not have {function.name}; it has {names}")

    async def _unless_it_ends(self, waiting: Coroutine[Any, Any, T]) -> T:
        """The outcome, or the error that has ended the worker, without which there is none."""
        assert self._working is not None
        # Owned: awaited or cancelled below.
        result = asyncio.get_running_loop().create_task(waiting)
        try:
            await asyncio.wait({result, self._working}, return_when=asyncio.FIRST_COMPLETED)
            if not result.done():
                self._working.result()
                raise RuntimeError("the worker has ended, so the execution cannot")
            return result.result()
        finally:
            result.cancel()
