"""A node inside the caller's process, for programs without an event loop.

    with querator.SyncNode(memory=True) as node, node.client() as client:
        client.create_queue("mail")
        client.produce("mail", b"hello")

The node is a `querator.Node` on an event loop of its own, in its own thread. So its clients may be
of any kind and in any thread, and a test that blocks does not block the node.
"""

import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from querator.node import Node

if TYPE_CHECKING:
    from querator.client import Client, SyncClient

T = TypeVar("T")


class SyncNode:
    """One node. `with` starts and stops it. An instance is used once.

    The arguments are those of `querator.Node`: give one of `data_dir`, `memory` and `environment`.
    `client` and `async_client` are for the time between start and stop.
    """

    def __init__(
        self, data_dir: Path | str | None = None, *, memory: bool = False, **options: Any
    ) -> None:
        self._node = Node(data_dir, memory=memory, **options)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> str:
        """HOST:PORT for clients, with the real port."""
        return self._node.address

    @property
    def admin_address(self) -> str:
        """HOST:PORT of the admin port, with the real port; empty without an admin port."""
        return self._node.admin_address

    @property
    def durable(self) -> bool:
        """Whether acknowledged changes survive the process and the machine."""
        return self._node.durable

    def client(self, **options: Any) -> "SyncClient":
        """A client of this node, for `with`. Options are those of `querator.SyncClient`."""
        from querator.client import SyncClient

        return SyncClient(self.address, **options)

    def async_client(self, **options: Any) -> "Client":
        """A client of this node for the caller's event loop. Options are those of
        `querator.Client`.
        """
        from querator.client import Client

        return Client(self.address, **options)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._loop is not None:
            try:
                self._run(self._node.__aexit__(kind, error, traceback))
            finally:
                self._end_thread()

    def start(self) -> None:
        """Returns when clients are served. Raises as `Node.start`, and RuntimeError when the node
        runs already.
        """
        if self._loop is not None:
            raise RuntimeError("the node runs already")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="querator-node", daemon=True
        )
        self._thread.start()
        try:
            self._run(self._node.start())
        except BaseException:
            self._end_thread()
            raise

    def stop(self) -> None:
        """Ends the node and its thread; returns when the directory is free. Idempotent."""
        if self._loop is not None:
            try:
                self._run(self._node.stop())
            finally:
                self._end_thread()

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Waits for the coroutine on the node's loop. An interrupt of the caller cancels it."""
        assert self._loop is not None
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _end_thread(self) -> None:
        assert self._loop is not None
        assert self._thread is not None
        loop, self._loop = self._loop, None
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
