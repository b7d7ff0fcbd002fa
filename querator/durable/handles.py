"""Executions for programs: start them, wait for their results, send them signals."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, ParamSpec, TypeVar, overload

import msgspec
import uuid_utils

from querator.client import Client
from querator.client.executions import (
    EXECUTION_STATES,
    KEY_POLICIES,
    EndedInfo,
    ExecutionInfo,
    ExecutionStateName,
    KeyPolicyName,
    RewoundInfo,
)
from querator.client.typed import typed
from querator.durable.arguments import encode_arguments
from querator.durable.codec import Codec
from querator.durable.endings import Endings
from querator.durable.errors import (
    CodecError,
    DurableError,
    ExecutionCancelled,
    ExecutionTerminated,
    PromiseRejected,
)
from querator.durable.exports import ExportedExecution
from querator.durable.functions import Durable, checked_function
from querator.durable.promises import PromiseToken
from querator.durable.waits import checked
from querator.durable.worker import make_codec
from querator.model.executions import JournalRecord, RecordKind, decode_path

P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V")

_EXPORT_TRIES = 10


class JournalEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A record of a journal, for people. `kind` is for example "STEP_DONE", `path` "1.3", `site`
    "shop/checkout.py:41". `payload` are the bytes of the codec. `after` is the last arrival that
    the code had been given before a record of a worker.
    """

    index: int
    kind: str
    path: str
    name: str
    site: str
    at: datetime
    payload: bytes
    after: int = 0


class PublishedValue(msgspec.Struct, Generic[T], frozen=True):
    """What the code of an execution has published under a key. `version` grows with each change of
    a value of the execution.
    """

    value: T
    version: int


class ExecutionHandle(Generic[T]):
    """One execution, by its id. Made by `Executions`; making it asks nothing of a server."""

    def __init__(
        self, executions: "Executions", execution_id: str, function: "Durable[..., Any] | None"
    ) -> None:
        self.id = execution_id
        self._executions = executions
        self._function = function

    def __repr__(self) -> str:
        return f"<ExecutionHandle of {self.id!r} in queue {self._executions.queue!r}>"

    async def result(self, *, timeout: timedelta | None = None) -> T:  # noqa: ASYNC109
        """What the function has returned. Raises what it has raised: its own type, if that is built
        in or registered with the codec, else `RemoteError`. Raises `ExecutionCancelled` and
        `ExecutionTerminated`; and TimeoutError, which says the state, if it has not ended in time.
        """
        ended = await self._executions.ended(self.id, timeout)
        if ended is None:
            info, end = await self._executions.get_with_end(self.id)
            if end is None:
                why = f": {info.reason}" if info.reason else ""
                raise TimeoutError(
                    f"execution {self.id} has not ended in {timeout}; it is {info.state}{why}"
                )
        else:
            end = ended[1]
        value: T = self._executions.outcome(self.id, end, self._function)
        return value

    async def signal(self, name: str, value: Any = None) -> None:
        """Sends a signal; it arrives once, also if the call is repeated."""
        await self._executions.signal(self.id, name, value)

    async def cancel(self, reason: str = "") -> bool:
        """Asks it to end: its code is given a cancellation. Returns whether it is the first."""
        return await self._executions.cancel(self.id, reason)

    async def terminate(self, reason: str = "") -> bool:
        """Ends it at once: nothing of its code runs any more, no compensation either."""
        return await self._executions.terminate(self.id, reason)

    async def retry(self) -> bool:
        """Lets a stuck or pinned execution run again, with any worker. Returns whether it was."""
        return await self._executions.retry(self.id)

    async def rewind(
        self, to: int, *, keep_children: bool = False, run: int | None = None
    ) -> RewoundInfo:
        """Lets it continue behind the record with index `to` of its journal, in a new run: whether
        it has ended, is stuck, waits, or runs at a worker, whose lease ends. What its code has
        recorded behind that goes. Signals that came later are unread again.

        Children that it has started behind the record are cancelled; with `keep_children` they go
        on, and the code finds them when it starts them again. `run`: refuses if it has another one
        by now. Raises `InvalidArgument` for a record that is not in the journal, is the end, or is
        inside of a folded call.
        """
        return await self._executions.rewind(self.id, to, keep_children=keep_children, run=run)

    async def get(self) -> ExecutionInfo:
        """Its state and counts."""
        return await self._executions.get(self.id)

    @overload
    async def published(
        self, key: str, kind: type[V], *, after: int = 0, wait: timedelta | None = None
    ) -> PublishedValue[V] | None: ...

    @overload
    async def published(
        self, key: str, *, after: int = 0, wait: timedelta | None = None
    ) -> PublishedValue[Any] | None: ...

    async def published(
        self, key: str, kind: Any = Any, *, after: int = 0, wait: timedelta | None = None
    ) -> PublishedValue[Any] | None:
        """The value that its code has published under a key, of a version above `after`. None:
        there is none, also not within `wait`, or the execution ends without one.
        """
        return await self._executions.published(self.id, key, kind, after=after, wait=wait)

    async def all_published(self) -> dict[str, PublishedValue[Any]]:
        """All values that its code has published, by key, in the order of their last changes."""
        return await self._executions.all_published(self.id)

    def journal(self) -> AsyncIterator[JournalEntry]:
        """Yields the records of its journal."""
        return self._executions.journal(self.id)

    async def export(self) -> ExportedExecution:
        """The execution with all that a replay of its journal needs. See `Executions.export`."""
        return await self._executions.export(self.id)


class Executions:
    """The executions of one queue, for programs that start them and wait for them.

        handle = await Executions(client, "shop").start(checkout, "book", id="order-17")
        print(await handle.result(timeout=timedelta(minutes=1)))

    The queue has the kind "executions" (`client.create_queue("shop", kind="executions")`). `codec`
    or `errors`: as for `Worker`. Calls are repeated as those of the client are, and raise
    `RequestError`.
    """

    @typed
    def __init__(
        self,
        client: Client,
        queue: str,
        *,
        codec: Codec | None = None,
        errors: Iterable[type[Exception]] = (),
    ) -> None:
        self._client = client
        self.queue = queue
        self._codec = make_codec(codec, errors)
        self._endings = Endings(client, queue)

    @overload
    async def start(
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
    ) -> ExecutionHandle[T]: ...

    @overload
    async def start(
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
    ) -> ExecutionHandle[T]: ...

    async def start(
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
    ) -> ExecutionHandle[Any]:
        """Starts an execution, once per `id` (None: a new one, made by this call). If there is one
        with the same function and arguments, its handle is returned; `ExecutionExists` is raised
        for others. `key_policy` "fail" raises it for any; with "restart_closed", one that has ended
        begins its next run with this function and these arguments, and an empty journal.

        It begins after `delay`, and is cancelled at `deadline`. Lower numbers of `priority` come
        first. A parameter of the function that has one of these names must be given by place.
        Raises TypeError for arguments that the function does not take, and CodecError for values
        without JSON.
        """
        checked_function(function)
        if key_policy not in KEY_POLICIES:
            allowed = ", ".join(KEY_POLICIES)
            raise ValueError(f"key_policy is {key_policy!r}; it must be one of {allowed}")
        if delay is not None and delay < timedelta(0):
            raise ValueError(f"delay is {delay}; it must not be negative")
        execution_id = str(uuid_utils.uuid7()) if id is None else id
        calls = self._client.executions
        await calls.start(
            self.queue,
            execution_id,
            function.name,
            version=function.version,
            arguments=encode_arguments(function, self._codec, args, kwargs),
            key_policy=key_policy,
            priority=priority,
            start_at=None if delay is None else calls.now() + delay,
            deadline=deadline,
        )
        return ExecutionHandle(self, execution_id, function)

    @typed
    def handle(self, id: str, function: Durable[..., Any] | None = None) -> ExecutionHandle[Any]:
        """The handle of an execution that was started before. The `function` says the type of the
        result; without it, the result is plain JSON.
        """
        return ExecutionHandle(self, id, function)

    @typed
    async def signal(self, id: str, name: str, value: Any = None) -> None:
        """Sends a signal to an execution. Raises `ExecutionClosed` if it has ended."""
        payload = self._codec.encode(value, "value")
        await self._client.executions.signal(self.queue, id, name, payload)

    @typed
    async def resolve(self, token: str, value: Any = None) -> bool:
        """Gives a promise its value; the first resolution wins. Returns whether this is it; after a
        lost answer, it may be it although False is returned. Raises `TokenInvalid`, and CodecError
        for a text that is no token.
        """
        return await self._resolve(token, self._codec.encode(value, "value"), reject=False)

    @typed
    async def reject(self, token: str, error: Exception | str) -> bool:
        """Gives a promise an exception; a text is raised as `PromiseRejected`. The rest is as for
        `resolve`.
        """
        if isinstance(error, str):
            error = PromiseRejected(error)
        return await self._resolve(token, self._codec.encode_error(error), reject=True)

    async def _resolve(self, token: str, payload: bytes, *, reject: bool) -> bool:
        named = PromiseToken.decode(token)
        return await self._client.executions.resolve(
            named.namespace, named.queue, partition=named.partition, execution=named.number,
            run=named.run, path=named.path, proof=named.mac, payload=payload, reject=reject,
        )  # fmt: skip

    @typed
    async def cancel(self, id: str, reason: str = "") -> bool:
        """As `ExecutionHandle.cancel`."""
        return await self._client.executions.cancel(self.queue, id, reason)

    @typed
    async def terminate(self, id: str, reason: str = "") -> bool:
        """As `ExecutionHandle.terminate`."""
        return await self._client.executions.terminate(self.queue, id, reason)

    @typed
    async def retry(self, id: str) -> bool:
        """As `ExecutionHandle.retry`."""
        return await self._client.executions.retry(self.queue, id)

    @typed
    async def rewind(
        self, id: str, to: int, *, keep_children: bool = False, run: int | None = None
    ) -> RewoundInfo:
        """As `ExecutionHandle.rewind`."""
        if to < 0:
            raise ValueError(f"to is {to}; it must not be negative")
        if run is not None and run < 1:
            raise ValueError(f"run is {run}; it must be positive")
        return await self._client.executions.rewind(
            self.queue, id, to, run=run or 0, keep_children=keep_children
        )

    @typed
    async def get(self, id: str) -> ExecutionInfo:
        """The state of an execution. Raises `ExecutionNotFound`."""
        return (await self.get_with_end(id))[0]

    async def get_with_end(self, id: str) -> tuple[ExecutionInfo, JournalRecord | None]:
        """The state, with the last record of the journal if the execution has ended."""
        return await self._client.executions.get(self.queue, id)

    @typed
    async def published(
        self,
        id: str,
        key: str,
        kind: Any = Any,
        *,
        after: int = 0,
        wait: timedelta | None = None,
    ) -> PublishedValue[Any] | None:
        """As `ExecutionHandle.published`."""
        if wait is not None and wait < timedelta(0):
            raise ValueError(f"wait is {wait}; it must not be negative")
        if after < 0:
            raise ValueError(f"after is {after}; it must not be negative")
        seconds = 0.0 if wait is None else wait.total_seconds()
        found = await self._client.executions.published(
            self.queue, id, checked(key, "key"), after=after, seconds=seconds
        )
        if found is None:
            return None
        data, version = found
        value = self._codec.decode(data, kind, f"the published value {key} of execution {id}")
        return PublishedValue(value, version)

    async def all_published(self, id: str) -> dict[str, PublishedValue[Any]]:
        """As `ExecutionHandle.all_published`."""
        found = await self._client.executions.all_published(self.queue, id)
        return {
            key: PublishedValue(
                self._codec.decode(data, Any, f"the published value {key} of execution {id}"),
                version,
            )
            for key, data, version in found
        }

    async def ended(self, id: str, timeout: timedelta | None) -> EndedInfo | None:  # noqa: ASYNC109
        """An execution that has ended, with the last record of its journal. None: it has not ended
        in time.
        """
        try:
            async with asyncio.timeout(None if timeout is None else timeout.total_seconds()):
                return await self._endings.wait(id)
        except TimeoutError:
            return None

    def list(
        self, *, function: str = "", state: ExecutionStateName | None = None
    ) -> AsyncIterator[ExecutionInfo]:
        """Yields executions, in the order of their starts within each partition: those of a
        function, or in a state, if it is given.
        """
        if state is not None and state not in EXECUTION_STATES:
            raise ValueError(f"state is {state!r}; it must be one of {', '.join(EXECUTION_STATES)}")
        return self._client.executions.list(self.queue, function=function, state=state)

    async def journal(self, id: str) -> AsyncIterator[JournalEntry]:
        """Yields the records of a journal."""
        async for record in self._client.executions.journal(self.queue, id):
            yield journal_entry(record)

    @typed
    async def export(self, id: str) -> ExportedExecution:
        """The execution with all that a replay of its journal needs: `to_json()` is a line for
        `querator execution replay` and `querator.testing.assert_replays`. It has the data of the
        execution, and nothing that opens its promises. Raises DurableError if it has changed
        whenever it was read.
        """
        calls = self._client.executions
        for _ in range(_EXPORT_TRIES):
            info, facts = await calls.replay_facts(self.queue, id)
            records = [
                record
                async for record in calls.journal(self.queue, id)
                if record.index < facts.next_index
            ]
            # A fold removes records, and a new run has others. What came behind does not matter.
            if len(records) == info.records and (await self.get(id)).run == info.run:
                return ExportedExecution(
                    id=id, function=info.function, version=info.version, run=info.run,
                    origin_run=facts.origin_run, state=info.state, namespace=calls.namespace,
                    queue=self.queue, partition=info.partition, number=facts.number,
                    chance=facts.chance, timers=facts.timers, records=tuple(records),
                )  # fmt: skip
        raise DurableError(
            f"execution {id} has changed while its journal was read, {_EXPORT_TRIES} times"
        )

    def outcome(self, id: str, end: JournalRecord, function: Durable[..., Any] | None) -> Any:
        """What the last record of a journal says: the value is returned, and else it raises."""
        note = end.note
        if note.kind == RecordKind.COMPLETED:
            kind = Any if function is None else function.result_type
            return self._codec.decode(note.payload, kind, f"the result of execution {id}")
        if note.kind == RecordKind.FAILED:
            raise self._codec.decode_error(note.payload)
        reason = note.payload.decode("utf-8", "replace")
        why = f": {reason}" if reason else ""
        if note.kind == RecordKind.CANCELLED:
            raise ExecutionCancelled(f"execution {id} was cancelled{why}")
        if note.kind == RecordKind.TERMINATED:
            raise ExecutionTerminated(f"execution {id} was terminated{why}")
        raise CodecError(f"execution {id} ends with a record of the unknown kind {note.kind}")


def journal_entry(record: JournalRecord) -> JournalEntry:
    """The record, for people."""
    note = record.note
    known = note.kind in RecordKind.__members__.values()
    return JournalEntry(
        index=record.index,
        kind=RecordKind(note.kind).name if known else str(note.kind),
        path=".".join(map(str, decode_path(note.path))),
        name=note.name,
        site=note.site,
        at=datetime.fromtimestamp(note.at_ms / 1000, UTC),
        payload=note.payload,
        after=note.after,
    )
