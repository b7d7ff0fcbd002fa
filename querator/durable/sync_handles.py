"""Executions, for programs without an event loop: the calls of `handles`, without await."""

from collections.abc import Callable, Coroutine, Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any, Generic, ParamSpec, TypeVar, overload

from querator.client import Client, SyncClient
from querator.client.executions import (
    ExecutionInfo,
    ExecutionStateName,
    KeyPolicyName,
    RewoundInfo,
)
from querator.client.typed import typed
from querator.durable.codec import Codec
from querator.durable.exports import ExportedExecution
from querator.durable.functions import Durable
from querator.durable.handles import (
    ExecutionHandle,
    Executions,
    JournalEntry,
    PublishedValue,
)
from querator.durable.worker import make_codec

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")
V = TypeVar("V")


class SyncExecutionHandle(Generic[T]):
    """One execution, by its id, as `ExecutionHandle`. Made by `SyncExecutions`."""

    def __init__(
        self, executions: "SyncExecutions", execution_id: str, function: Durable[..., Any] | None
    ) -> None:
        self.id = execution_id
        self._executions = executions
        self._function = function

    def result(self, *, timeout: timedelta | None = None) -> T:
        """What the function has returned. See `ExecutionHandle.result`."""
        value: T = self._run(lambda handle: handle.result(timeout=timeout))
        return value

    def signal(self, name: str, value: Any = None) -> None:
        """Sends a signal. See `ExecutionHandle.signal`."""
        self._run(lambda handle: handle.signal(name, value))

    def cancel(self, reason: str = "") -> bool:
        """Asks it to end. See `ExecutionHandle.cancel`."""
        return self._run(lambda handle: handle.cancel(reason))

    def terminate(self, reason: str = "") -> bool:
        """Ends it at once. See `ExecutionHandle.terminate`."""
        return self._run(lambda handle: handle.terminate(reason))

    def retry(self) -> bool:
        """Lets a stuck execution run again. See `ExecutionHandle.retry`."""
        return self._run(lambda handle: handle.retry())

    def rewind(
        self, to: int, *, keep_children: bool = False, run: int | None = None
    ) -> RewoundInfo:
        """Lets it continue behind a record. See `ExecutionHandle.rewind`."""
        return self._run(lambda handle: handle.rewind(to, keep_children=keep_children, run=run))

    def get(self) -> ExecutionInfo:
        """Its state and counts."""
        return self._run(lambda handle: handle.get())

    @overload
    def published(
        self, key: str, kind: type[V], *, after: int = 0, wait: timedelta | None = None
    ) -> PublishedValue[V] | None: ...

    @overload
    def published(
        self, key: str, *, after: int = 0, wait: timedelta | None = None
    ) -> PublishedValue[Any] | None: ...

    def published(
        self, key: str, kind: Any = Any, *, after: int = 0, wait: timedelta | None = None
    ) -> PublishedValue[Any] | None:
        """What its code has published under a key. See `ExecutionHandle.published`."""
        return self._run(lambda handle: handle.published(key, kind, after=after, wait=wait))

    def all_published(self) -> dict[str, PublishedValue[Any]]:
        """All published values. See `ExecutionHandle.all_published`."""
        return self._run(lambda handle: handle.all_published())

    def journal(self) -> Iterator[JournalEntry]:
        """Yields the records of its journal."""
        return self._executions.journal(self.id)

    def export(self) -> ExportedExecution:
        """The execution with all that a replay of its journal needs. See `Executions.export`."""
        return self._run(lambda handle: handle.export())

    def _run(self, call: Callable[[ExecutionHandle[Any]], Coroutine[Any, Any, R]]) -> R:
        return self._executions.run(lambda calls: call(calls.handle(self.id, self._function)))


class SyncExecutions:
    """The executions of one queue, as `Executions`, for programs without an event loop.

    handle = SyncExecutions(client, "shop").start(checkout, "book", id="order-17")
    print(handle.result(timeout=timedelta(minutes=1)))
    """

    @typed
    def __init__(
        self,
        client: SyncClient,
        queue: str,
        *,
        codec: Codec | None = None,
        errors: Iterable[type[Exception]] = (),
    ) -> None:
        self._client = client
        self.queue = queue
        self._codec = make_codec(codec, errors)
        self._calls: Executions | None = None

    @overload
    def start(
        self,
        function: Durable[P, Coroutine[Any, Any, T]],
        /,
        *args: Any,
        id: str | None = ...,
        delay: timedelta | None = ...,
        deadline: datetime | None = ...,
        priority: int = ...,
        key_policy: KeyPolicyName = ...,
        **kwargs: Any,
    ) -> SyncExecutionHandle[T]: ...

    @overload
    def start(
        self,
        function: Durable[P, T],
        /,
        *args: Any,
        id: str | None = ...,
        delay: timedelta | None = ...,
        deadline: datetime | None = ...,
        priority: int = ...,
        key_policy: KeyPolicyName = ...,
        **kwargs: Any,
    ) -> SyncExecutionHandle[T]: ...

    def start(
        self,
        function: Durable[..., Any],
        /,
        *args: Any,
        id: str | None = None,
        delay: timedelta | None = None,
        deadline: datetime | None = None,
        priority: int = 0,
        key_policy: KeyPolicyName = "attach",
        **kwargs: Any,
    ) -> SyncExecutionHandle[Any]:
        """Starts an execution, once per `id`, and returns its handle. See `Executions.start`."""
        made: ExecutionHandle[Any] = self.run(
            lambda calls: calls.start(
                function, *args, id=id, delay=delay, deadline=deadline, priority=priority,
                key_policy=key_policy, **kwargs,
            )
        )  # fmt: skip
        return SyncExecutionHandle(self, made.id, function)

    @typed
    def handle(
        self, id: str, function: Durable[..., Any] | None = None
    ) -> SyncExecutionHandle[Any]:
        """The handle of an execution that was started before. See `Executions.handle`."""
        return SyncExecutionHandle(self, id, function)

    def signal(self, id: str, name: str, value: Any = None) -> None:
        """Sends a signal to an execution. See `Executions.signal`."""
        self.run(lambda calls: calls.signal(id, name, value))

    def resolve(self, token: str, value: Any = None) -> bool:
        """Gives a promise its value. See `Executions.resolve`."""
        return self.run(lambda calls: calls.resolve(token, value))

    def reject(self, token: str, error: Exception | str) -> bool:
        """Gives a promise an exception. See `Executions.reject`."""
        return self.run(lambda calls: calls.reject(token, error))

    def cancel(self, id: str, reason: str = "") -> bool:
        """As `SyncExecutionHandle.cancel`."""
        return self.run(lambda calls: calls.cancel(id, reason))

    def terminate(self, id: str, reason: str = "") -> bool:
        """As `SyncExecutionHandle.terminate`."""
        return self.run(lambda calls: calls.terminate(id, reason))

    def rewind(
        self, id: str, to: int, *, keep_children: bool = False, run: int | None = None
    ) -> RewoundInfo:
        """As `SyncExecutionHandle.rewind`."""
        return self.run(lambda calls: calls.rewind(id, to, keep_children=keep_children, run=run))

    def retry(self, id: str) -> bool:
        """As `SyncExecutionHandle.retry`."""
        return self.run(lambda calls: calls.retry(id))

    def get(self, id: str) -> ExecutionInfo:
        """The state of an execution. See `Executions.get`."""
        return self.run(lambda calls: calls.get(id))

    def published(
        self,
        id: str,
        key: str,
        kind: Any = Any,
        *,
        after: int = 0,
        wait: timedelta | None = None,
    ) -> PublishedValue[Any] | None:
        """As `SyncExecutionHandle.published`."""
        return self.run(lambda calls: calls.published(id, key, kind, after=after, wait=wait))

    def all_published(self, id: str) -> dict[str, PublishedValue[Any]]:
        """As `SyncExecutionHandle.all_published`."""
        return self.run(lambda calls: calls.all_published(id))

    def list(
        self, *, function: str = "", state: ExecutionStateName | None = None
    ) -> Iterator[ExecutionInfo]:
        """Yields executions. See `Executions.list`."""
        return self._client.iterate(
            lambda client: self._of(client).list(function=function, state=state)
        )

    def journal(self, id: str) -> Iterator[JournalEntry]:
        """Yields the records of a journal."""
        return self._client.iterate(lambda client: self._of(client).journal(id))

    def export(self, id: str) -> ExportedExecution:
        """The execution with all that a replay of its journal needs. See `Executions.export`."""
        return self.run(lambda calls: calls.export(id))

    def run(self, call: Callable[[Executions], Coroutine[Any, Any, T]]) -> T:
        """Calls `call` with the async calls, on the client's thread, and returns its outcome."""
        return self._client.run(lambda client: call(self._of(client)))

    def _of(self, client: Client) -> Executions:
        """On the client's thread: the waits of all threads share calls."""
        if self._calls is None:
            self._calls = Executions(client, self.queue, codec=self._codec)
        return self._calls
