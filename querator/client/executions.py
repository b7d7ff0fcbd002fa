"""Calls of ExecutionService, repeated as all calls of a client are.

`querator.durable` is built on them: values and exceptions are bytes here, and functions are names.
A call that changes something may be repeated: a start by its request id, a signal by its message
id, a Record by its number under its lease.

Longer than 500 lines: one class has a method for each call, and the values that it takes and gives.
"""

import asyncio
import builtins
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, Literal, NamedTuple, get_args

import msgspec
import uuid_utils

from querator.client import clock
from querator.client.errors import LeaseEnded, LeaseLost, OutcomeUnknown, Unseen
from querator.client.items import duration, instant, timestamp
from querator.client.transport.channel import Connection
from querator.client.transport.nodes import ATTEMPT_SECONDS, Nodes
from querator.model.executions import (
    ChildStart,
    Close,
    Fold,
    GiveBack,
    JournalRecord,
    NewRun,
    Note,
    Park,
    Then,
    Timer,
)
from querator.model.limits import REQUEST_TIMEOUT_MS_MAX
from querator.v1 import execution_service_pb2 as v1
from querator.v1 import queue_service_pb2

ExecutionStateName = Literal[
    "runnable", "parked", "stuck", "completed", "failed", "cancelled", "terminated", "pinned"
]
EXECUTION_STATES: Final[tuple[ExecutionStateName, ...]] = get_args(ExecutionStateName)
"""In the order of their numbers, from 1."""

KeyPolicyName = Literal["attach", "fail", "restart_closed"]
KEY_POLICIES: Final[tuple[KeyPolicyName, ...]] = get_args(KeyPolicyName)
"""In the order of their numbers, from 1."""


class ExecutionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An execution as others see it. `reason`: why it is stuck or pinned. `timers`: those that have
    not fired. `unread_signals`: those that its code has not been given. `parent`: the id of the one
    that has started it; empty: none has. `children`: those that it waits for. `refused_versions`:
    those of its function that do not fit its journal.
    """

    id: str
    function: str
    version: str
    run: int
    state: ExecutionStateName
    partition: int
    created_at: datetime
    closed_at: datetime | None
    deadline: datetime | None
    records: int
    journal_bytes: int
    unread_signals: int
    timers: int
    cancelled: bool
    reason: str
    parent: str = ""
    children: int = 0
    refused_versions: tuple[str, ...] = ()

    @property
    def closed(self) -> bool:
        """Whether it has ended."""
        return self.closed_at is not None


class RewoundInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a rewind has done: the execution continues in this run. `repeated`: the first attempt of
    the call had done it, whose counts are not known.
    """

    run: int
    removed_records: int
    cancelled_children: int
    repeated: bool = False


class ReplayFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay of a journal needs beside its records. `number`: that of the execution in its
    partition. `chance`: what its random numbers follow from. `timers`: paths of those that the
    partition has. `next_index`: that of the next record.
    """

    number: int
    origin_run: int
    chance: bytes
    timers: tuple[bytes, ...]
    next_index: int


class ActivationGrant(msgspec.Struct, frozen=True, kw_only=True):
    """An activation that is leased, with the beginning of its journal. `next_index`: where the
    journal continues; 0: it is whole. `timers`: paths of those that the partition has. `now_ms`:
    its time, in milliseconds since the Unix epoch. `origin_run`: the run in which the journal has
    begun. `seen`: the last arrival that an earlier worker has given to the code.
    """

    lease_id: str
    item: int
    partition: int
    execution: int
    id: str
    run: int
    function: str
    version: str
    secret: bytes
    remaining: timedelta
    records: tuple[JournalRecord, ...]
    next_index: int
    timers: tuple[bytes, ...]
    now_ms: int
    origin_run: int
    seen: int = 0


class AtWork(NamedTuple):
    """An execution that a worker has at work, and the last index of the journal that it knows."""

    lease_id: str
    item: int
    execution: int
    known: int


class ProgressReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker says of an execution whose activation it leases."""

    lease_id: str
    item: int
    execution: int
    number: int
    seen: int
    records: tuple[Note, ...] = ()
    folds: tuple[Fold, ...] = ()
    timers: tuple[Timer, ...] = ()
    children: tuple[ChildStart, ...] = ()
    cancels: tuple[bytes, ...] = ()
    published: tuple[tuple[str, bytes], ...] = ()
    version: str = ""
    produced: tuple[tuple[str, bytes], ...] = ()
    """Items by queue: the fields of a message that has items."""
    then: Then


class ProgressAnswer(NamedTuple):
    """The index of the first record of a report, and the partition's time, in milliseconds since
    the Unix epoch.
    """

    first_index: int
    now_ms: int


EndedInfo = tuple[ExecutionInfo, JournalRecord]
"""An execution that has ended, with its last record."""


class ExecutionCalls:
    """The calls of one client about executions. Every method may raise `RequestError`."""

    def __init__(self, nodes: Nodes, namespace: str) -> None:
        self.namespace = namespace
        self._nodes = nodes

    def check_open(self) -> None:
        """Raises `Unavailable` if the client is closed."""
        self._nodes.check_open()

    def now(self) -> datetime:
        """The time from which delays count."""
        return clock.now()

    async def start(
        self,
        queue: str,
        execution_id: str,
        function: str,
        *,
        version: str,
        arguments: bytes,
        key_policy: KeyPolicyName = "attach",
        priority: int = 0,
        start_at: datetime | None = None,
        deadline: datetime | None = None,
    ) -> bool:
        """Returns whether this call has begun a run. Raises `ExecutionExists`."""
        request = v1.StartExecutionRequest(
            namespace=self.namespace, queue=queue, id=execution_id, function=function,
            version=version, arguments=arguments, priority=priority,
            key_policy=v1.KeyPolicy.ValueType(KEY_POLICIES.index(key_policy) + 1),
            request_id=uuid_utils.uuid7().hex,
            start_at=None if start_at is None else timestamp(start_at, "start_at"),
            deadline=None if deadline is None else timestamp(deadline, "deadline"),
        )  # fmt: skip
        response = await self._nodes.call(
            lambda node, left: node.call_execution("start", request, left),
            patience=ATTEMPT_SECONDS,
        )
        return not response.attached

    async def lease(
        self,
        queue: str,
        *,
        client_id: str,
        most: int,
        wait: timedelta,
        lease_timeout: timedelta | None,
        request_id: str,
        versions: Mapping[str, str],
        given_up: bool = False,
    ) -> list[ActivationGrant]:
        """Waits for the first activation. `versions` are those of the functions of the worker: it
        gets pinned executions that may fit. `given_up`: what the request with this id was granted,
        whose answer may be lost. Raises `LeaseEnded` when the lease of an earlier request with this
        id has ended.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + wait.total_seconds()
        request = v1.LeaseActivationsRequest(
            namespace=self.namespace, queue=queue, client_id=client_id, request_id=request_id,
            max_activations=most, given_up=given_up,
            functions=[
                v1.FunctionVersion(function=function, version=version)
                for function, version in versions.items()
            ],
            lease_timeout=(
                None if lease_timeout is None else duration(lease_timeout, "lease_timeout")
            ),
        )  # fmt: skip

        async def ask(node: Connection, left: float) -> v1.LeaseActivationsResponse:
            waits_ms = int(max(0.0, until - loop.time()) * 1000)
            # The shortest wait says "at once": none would mean the deadline of the call.
            request.request_timeout.FromMilliseconds(max(1, waits_ms))
            response: v1.LeaseActivationsResponse = await node.call_execution(
                "lease", request, left, waits=True
            )
            return response

        seconds = wait.total_seconds() + self._nodes.request_timeout
        call = partial(
            self._nodes.call, ask, patience=wait.total_seconds() + ATTEMPT_SECONDS,
            telling=(LeaseEnded,),
        )  # fmt: skip
        started = loop.time()
        try:
            response = await call(seconds=seconds, repeatable=False)
        except OutcomeUnknown as unknown:
            if unknown.field == "partition" and unknown.value:
                # What the partition may have granted is granted once.
                request.partition = int(unknown.value)
            response = await call(seconds=max(0.0, seconds - (loop.time() - started)))
        return [_grant(each) for each in response.activations]

    async def record(self, queue: str, report: ProgressReport) -> ProgressAnswer:
        """Raises `Unseen`, when nothing was applied, and `LeaseLost`."""
        request = progress_request(self.namespace, queue, report)
        response = await self._nodes.call(
            lambda node, left: node.call_execution("record", request, left),
            patience=ATTEMPT_SECONDS,
            # A repeat of a Record that was applied gets its answer, also behind later arrivals.
            telling=(Unseen, LeaseLost),
        )
        return ProgressAnswer(response.first_index, response.now_ms)

    async def extend(
        self, queue: str, lease_ids: list[str], *, seconds: float
    ) -> dict[str, timedelta | None]:
        """How long each lease lasts from the answer on; None: it is lost. Tries for `seconds`."""
        request = queue_service_pb2.ExtendRequest(
            namespace=self.namespace, queue=queue, lease_ids=lease_ids
        )
        response = await self._nodes.call(
            lambda node, left: node.call_execution("extend", request, left),
            seconds=seconds,
            patience=ATTEMPT_SECONDS,
        )
        return {
            outcome.lease_id: (None if outcome.error else outcome.lease_remaining.ToTimedelta())
            for outcome in response.outcomes
        }

    async def signal(self, queue: str, execution_id: str, name: str, payload: bytes) -> int:
        """Returns the index of the signal in the journal."""
        request = v1.SignalExecutionRequest(
            namespace=self.namespace, queue=queue, id=execution_id, name=name, payload=payload,
            message_id=uuid_utils.uuid7().hex,
        )  # fmt: skip
        response = await self._nodes.call(
            lambda node, left: node.call_execution("signal", request, left),
            patience=ATTEMPT_SECONDS,
        )
        return int(response.index)

    async def resolve(
        self,
        namespace: str,
        queue: str,
        *,
        partition: int,
        execution: int,
        run: int,
        path: bytes,
        proof: bytes,
        payload: bytes,
        reject: bool,
    ) -> bool:
        """Returns whether this is the resolution that counts. It is not known of a call that was
        repeated, whose first attempt may have won: then it says False.
        """
        request = v1.ResolvePromiseRequest(
            namespace=namespace, queue=queue, partition=partition, execution=execution, run=run,
            path=path, proof=proof, payload=payload, reject=reject,
        )  # fmt: skip
        response = await self._nodes.call(
            lambda node, left: node.call_execution("resolve", request, left),
            patience=ATTEMPT_SECONDS,
        )
        return not response.repeated_answer

    async def cancel(self, queue: str, execution_id: str, reason: str) -> bool:
        """Returns whether it was not cancelled before."""
        request = v1.CancelExecutionRequest(
            namespace=self.namespace, queue=queue, id=execution_id, reason=reason
        )
        response = await self._nodes.call(
            lambda node, left: node.executions.CancelExecution(request, timeout=left),
            patience=ATTEMPT_SECONDS,
        )
        return not response.repeated_answer

    async def terminate(self, queue: str, execution_id: str, reason: str) -> bool:
        """Returns whether it was not terminated before."""
        request = v1.TerminateExecutionRequest(
            namespace=self.namespace, queue=queue, id=execution_id, reason=reason
        )
        response = await self._nodes.call(
            lambda node, left: node.executions.TerminateExecution(request, timeout=left),
            patience=ATTEMPT_SECONDS,
        )
        return not response.repeated_answer

    async def retry(self, queue: str, execution_id: str) -> bool:
        """Returns whether it was stuck or pinned."""
        request = v1.RetryExecutionRequest(namespace=self.namespace, queue=queue, id=execution_id)
        response = await self._nodes.call(
            lambda node, left: node.executions.RetryExecution(request, timeout=left),
            patience=ATTEMPT_SECONDS,
        )
        return bool(response.changed)

    async def rewind(
        self, queue: str, execution_id: str, record: int, *, run: int, keep_children: bool
    ) -> RewoundInfo:
        """Raises `InvalidArgument` for a record that is no place to continue from."""
        request = v1.RewindExecutionRequest(
            namespace=self.namespace, queue=queue, id=execution_id, record=record, run=run,
            keep_children=keep_children, request_id=uuid_utils.uuid7().hex,
        )  # fmt: skip
        response = await self._nodes.call(
            lambda node, left: node.executions.RewindExecution(request, timeout=left),
            patience=ATTEMPT_SECONDS,
        )
        return RewoundInfo(
            run=response.run, removed_records=response.removed_records,
            cancelled_children=response.cancelled_children, repeated=response.repeated_answer,
        )  # fmt: skip

    async def get(
        self, queue: str, execution_id: str
    ) -> tuple[ExecutionInfo, JournalRecord | None]:
        """The execution, with its last record if it has ended. Raises `ExecutionNotFound`."""
        request = v1.GetExecutionRequest(namespace=self.namespace, queue=queue, id=execution_id)
        response = await self._nodes.call(
            lambda node, left: node.call_execution("get", request, left),
            patience=ATTEMPT_SECONDS,
            changes=False,
        )
        end = _record(response.end) if response.HasField("end") else None
        return _info(response.execution), end

    async def replay_facts(
        self, queue: str, execution_id: str
    ) -> tuple[ExecutionInfo, ReplayFacts]:
        """The execution, with what a replay of its journal needs. Raises `ExecutionNotFound`."""
        request = v1.GetExecutionRequest(
            namespace=self.namespace, queue=queue, id=execution_id, for_replay=True
        )
        response = await self._nodes.call(
            lambda node, left: node.call_execution("get", request, left),
            patience=ATTEMPT_SECONDS,
            changes=False,
        )
        replay = response.replay
        facts = ReplayFacts(
            number=response.execution.execution, origin_run=replay.origin_run,
            chance=replay.chance, timers=tuple(replay.timers), next_index=replay.next_index,
        )  # fmt: skip
        return _info(response.execution), facts

    async def wait(
        self, queue: str, ids: Sequence[str], *, seconds: float
    ) -> dict[str, EndedInfo | None]:
        """Those of the executions that have ended, as soon as one has; None: there is none with
        this id. Empty: none has ended in this time.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        request = v1.WaitExecutionsRequest(namespace=self.namespace, queue=queue, ids=ids)

        async def ask(node: Connection, left: float) -> v1.WaitExecutionsResponse:
            waits_ms = int(max(0.0, until - loop.time()) * 1000)
            request.wait_timeout.FromMilliseconds(waits_ms)
            response: v1.WaitExecutionsResponse = await node.call_execution(
                "wait", request, left, waits=True
            )
            return response

        response = await self._nodes.call(
            ask,
            seconds=seconds + self._nodes.request_timeout,
            patience=seconds + ATTEMPT_SECONDS,
            changes=False,
        )
        return {
            one.id: (_info(one.execution), _record(one.end)) if one.HasField("end") else None
            for one in response.executions
        }

    async def arrivals(
        self, queue: str, known: Sequence[AtWork], *, seconds: float
    ) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
        """What has happened to executions at work, as soon as something has: those for which
        something has arrived, and those whose lease is lost, by lease and item. Nothing, if nothing
        has in this time.
        """
        request = v1.WaitArrivalsRequest(
            namespace=self.namespace,
            queue=queue,
            executions=[
                v1.KnownJournal(
                    lease_id=one.lease_id, item=one.item, execution=one.execution, index=one.known
                )
                for one in known
            ],
        )
        request.wait_timeout.FromMilliseconds(int(seconds * 1000))
        response = await self._nodes.call(
            lambda node, left: node.call_execution("arrivals", request, left, waits=True),
            seconds=seconds + self._nodes.request_timeout,
            patience=seconds + ATTEMPT_SECONDS,
            changes=False,
        )
        return (
            [(one.lease_id, one.item) for one in response.arrived],
            [(one.lease_id, one.item) for one in response.lost],
        )

    async def published(
        self, queue: str, execution_id: str, key: str, *, after: int, seconds: float
    ) -> tuple[bytes, int] | None:
        """The published value of a key, with its version, if that is above `after`. Waits for it;
        None: there is none in this time, or the execution has ended. Raises `ExecutionNotFound`.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        request = v1.ReadPublishedRequest(
            namespace=self.namespace, queue=queue, id=execution_id, key=key, after_version=after
        )

        async def ask(node: Connection, left: float) -> v1.ReadPublishedResponse:
            waits_ms = int(max(0.0, until - loop.time()) * 1000)
            request.wait_timeout.FromMilliseconds(min(waits_ms, REQUEST_TIMEOUT_MS_MAX))
            response: v1.ReadPublishedResponse = await node.executions.ReadPublished(
                request, timeout=left
            )
            return response

        while True:
            response = await self._nodes.call(
                ask,
                seconds=max(0.0, until - loop.time()) + self._nodes.request_timeout,
                patience=max(0.0, until - loop.time()) + ATTEMPT_SECONDS,
                changes=False,
            )
            for one in response.values:
                return one.value, one.version
            if response.closed or loop.time() >= until:
                return None

    async def all_published(
        self, queue: str, execution_id: str
    ) -> builtins.list[tuple[str, bytes, int]]:
        """Key, value and version of all published values, by version. Raises
        `ExecutionNotFound`.
        """
        request = v1.ReadPublishedRequest(namespace=self.namespace, queue=queue, id=execution_id)
        response = await self._nodes.call(
            lambda node, left: node.executions.ReadPublished(request, timeout=left),
            changes=False,
        )
        return [(one.key, one.value, one.version) for one in response.values]

    async def list(
        self, queue: str, *, function: str, state: ExecutionStateName | None
    ) -> AsyncIterator[ExecutionInfo]:
        """Yields executions, in the order of their starts within each partition."""
        number = 0 if state is None else EXECUTION_STATES.index(state) + 1
        request = v1.ListExecutionsRequest(
            namespace=self.namespace, queue=queue, function=function,
            state=v1.ExecutionState.ValueType(number),
        )  # fmt: skip
        while True:
            response = await self._nodes.call(
                lambda node, left: node.executions.ListExecutions(request, timeout=left),
                patience=ATTEMPT_SECONDS,
                changes=False,
            )
            for execution in response.executions:
                yield _info(execution)
            if not response.next_page_token:
                return
            request.page_token = response.next_page_token

    async def journal(
        self, queue: str, execution_id: str, first_index: int = 0
    ) -> AsyncIterator[JournalRecord]:
        """Yields the records from `first_index` on, by pages."""
        request = v1.ReadJournalRequest(
            namespace=self.namespace, queue=queue, id=execution_id, first_index=first_index
        )
        while True:
            response = await self._nodes.call(
                lambda node, left: node.call_execution("journal", request, left),
                patience=ATTEMPT_SECONDS,
                changes=False,
            )
            for record in response.records:
                yield _record(record)
            if not response.next_index:
                return
            request.first_index = response.next_index


# --- messages ------------------------------------------------------------------------------------


def _items(queue: str, encoded: bytes) -> queue_service_pb2.FollowUps:
    message = queue_service_pb2.FollowUps.FromString(encoded)
    message.queue = queue
    return message


def progress_request(
    namespace: str, queue: str, report: ProgressReport
) -> v1.RecordProgressRequest:
    """The message of a Record."""
    request = v1.RecordProgressRequest(
        namespace=namespace, queue=queue, lease_id=report.lease_id, item=report.item,
        execution=report.execution, number=report.number, seen=report.seen,
        records=map(_note, report.records),
        folds=[
            v1.Fold(
                index=fold.index,
                record=_note(fold.note),
                removed=[v1.Fold.Run(first=first, count=count) for first, count in fold.removed],
            )
            for fold in report.folds
        ],
        timers=[v1.Timer(path=timer.path, due_ms=timer.due_ms) for timer in report.timers],
        children=[
            v1.ChildStart(
                path=child.path, id=child.id, function=child.function, version=child.version,
                arguments=child.payload, detached=child.detached, shielded=child.shielded,
                site=child.site,
            )
            for child in report.children
        ],
        cancels=report.cancels,
        published=[v1.PublishedValue(key=key, value=value) for key, value in report.published],
        version=report.version,
        produced=[_items(queue, encoded) for queue, encoded in report.produced],
    )  # fmt: skip
    match report.then:
        case Park() as park:
            request.park.CopyFrom(
                v1.Park(
                    paths=park.paths,
                    names=park.names,
                    all_of=park.all_of,
                    anything=park.anything,
                )
            )
        case Close() as close:
            outcome = v1.RecordKind.ValueType(close.outcome)
            request.close.CopyFrom(
                v1.Close(outcome=outcome, payload=close.payload, drain=close.drain)
            )
        case GiveBack() as back:
            request.give_back.CopyFrom(
                v1.GiveBack(
                    stuck=back.stuck,
                    reason=back.reason,
                    pinned=back.pinned,
                    refused_version=back.refused,
                )
            )
        case NewRun() as run:
            unread = [v1.NewRun.Run(first=first, count=count) for first, count in run.unread]
            request.new_run.CopyFrom(v1.NewRun(arguments=run.payload, unread=unread))
    return request


def _note(note: Note) -> v1.JournalRecord:
    return v1.JournalRecord(
        kind=v1.RecordKind.ValueType(note.kind), path=note.path, name=note.name, site=note.site,
        after=note.after, at_ms=note.at_ms, payload=note.payload,
    )  # fmt: skip


def _record(message: v1.JournalRecord) -> JournalRecord:
    note = Note(
        kind=message.kind, path=message.path, name=message.name, site=message.site,
        after=message.after, at_ms=message.at_ms, payload=message.payload,
    )  # fmt: skip
    return JournalRecord(message.index, note)


def _grant(message: v1.Activation) -> ActivationGrant:
    return ActivationGrant(
        lease_id=message.lease_id, item=message.item, partition=message.partition,
        execution=message.execution, id=message.id, run=message.run, function=message.function,
        version=message.version, secret=message.secret, remaining=message.remaining.ToTimedelta(),
        records=tuple(map(_record, message.records)), next_index=message.next_index,
        timers=tuple(message.timers), now_ms=message.now_ms, origin_run=message.origin_run,
        seen=message.seen,
    )  # fmt: skip


def _info(message: v1.Execution) -> ExecutionInfo:
    def at(field: Any) -> datetime | None:
        return instant(getattr(message, field)) if message.HasField(field) else None

    return ExecutionInfo(
        id=message.id, function=message.function, version=message.version, run=message.run,
        state=EXECUTION_STATES[message.state - 1], partition=message.partition,
        created_at=instant(message.created_at), closed_at=at("closed_at"),
        deadline=at("deadline"), records=message.records, journal_bytes=message.journal_bytes,
        unread_signals=message.unread_signals, timers=message.timers,
        cancelled=message.cancelled, reason=message.reason, parent=message.parent_id,
        children=message.children, refused_versions=tuple(message.refused_versions),
    )  # fmt: skip
