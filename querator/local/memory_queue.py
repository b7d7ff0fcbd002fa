"""A queue of executions in memory, with the rules of a real one: one partition, without a log.

A command is applied when it comes. Time moves by a call. `MemoryCalls` takes the place of the calls
of a client, so that `querator.durable.Executions` works on such a queue.
"""

import builtins
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from struct import pack
from typing import Any, Final, NamedTuple

import uuid_utils
from msgspec.structs import replace

from querator.client.errors import ExecutionNotFound, make_error
from querator.client.executions import (
    EXECUTION_STATES,
    KEY_POLICIES,
    EndedInfo,
    ExecutionCalls,
    ExecutionInfo,
    ExecutionStateName,
    KeyPolicyName,
    ReplayFacts,
    RewoundInfo,
)
from querator.client.values import Item
from querator.durable.outbox import Sending
from querator.model.commands import (
    Configure,
    Extend,
    Lease,
    LeaseCaller,
    LeaseGrant,
    LeaseResult,
    PartitionSettings,
    Refusal,
)
from querator.model.entries import Proposal
from querator.model.errors import ErrorCode, QueratorError
from querator.model.execution_calls import ExecutionView, PublishedPage
from querator.model.execution_commands import (
    Arrive,
    Arrived,
    LeasePinned,
    PinnedLease,
    Recorded,
    RecordProgress,
    RewindExecution,
    Rewound,
    Started,
    StartExecution,
    check_arrive,
    check_record,
    check_rewind,
    check_start,
)
from querator.model.executions import (
    ArriveKind,
    Close,
    ExecutionState,
    JournalRecord,
    NewRun,
    Published,
    chance_key,
)
from querator.model.limits import (
    EXECUTION_RETENTION_MS_MAX,
    EXECUTION_SECRET_BYTES,
    JOURNAL_INLINE_BYTES_MAX,
    JOURNAL_RECORDS_MAX,
    START_REQUEST_BYTES,
)
from querator.model.queues import ExecutionSettings
from querator.partition.execution_queries import (
    end_of,
    execution_at,
    execution_of,
    journal_page,
    list_executions,
    published_page,
)
from querator.partition.machine import PartitionMachine
from querator.partition.masks import ordinals
from querator.partition.pins import fitting_pins
from querator.storage import attachments
from querator.storage.memory_environment import MemoryEnvironment

NAMESPACE: Final = "default"
QUEUE: Final = "harness"
LEASE_MS: Final = 30_000
_GROUP: Final = 1
_DUE_ROUNDS_MAX: Final = 10_000
"""Commands that one instant may bring; each has an apply bound of its own."""


def _hash(arguments: bytes) -> bytes:
    """By which executions of an id are compared."""
    return blake2b(arguments, digest_size=16).digest()


class Activation(NamedTuple):
    """An execution under a lease."""

    lease: int
    item: int
    view: ExecutionView


class _Attachments:
    """The payloads of a command that are too large to be in it."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def placed(self, value: Any) -> Any:
        """The value, with its payload beside the command if it is large."""
        if len(value.payload) <= JOURNAL_INLINE_BYTES_MAX:
            return value
        self.pieces.append(value.payload)
        return replace(value, payload=b"", place=len(self.pieces))

    @property
    def lengths(self) -> bytes:
        return pack(f"<{len(self.pieces)}I", *map(len, self.pieces))

    @property
    def data(self) -> bytes:
        return b"".join(self.pieces)


class MemoryQueue:
    """Every call raises the exceptions of a client. Times are ms since the epoch."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self._environment = MemoryEnvironment()
        self._machine = PartitionMachine(_GROUP)
        self._index = 0
        self._requests = 0
        self._due_ms: int | None = None
        self.produced: dict[str, list[Item]] = {}
        """What executions have produced, by queue."""
        settings = PartitionSettings(
            namespace=NAMESPACE, queue=QUEUE, queue_id=1, partition=0, lease_timeout_ms=LEASE_MS,
            expire_timeout_ms=0, max_attempts=0, dedup_window_ms=0, items_max=0,
            executions=ExecutionSettings(EXECUTION_RETENTION_MS_MAX),
        )  # fmt: skip
        self._apply(Configure(1, settings))

    def _apply(self, command: Any, attachment: bytes = b"") -> Any:
        entry = self._machine.pack((Proposal(command, attachment),), self.now_ms)
        self._index += 1
        txn = self._environment.begin()
        for part, data in enumerate(entry.attachments):
            attachments.write(txn, _GROUP, self._index, part, data)
        with txn.child() as child:
            # The log would keep everything: attachments are released with the queue.
            applied = self._machine.apply(child, self._index, 1, entry.command, log_first=1)
        txn.commit(sync=False)
        self._due_ms = applied.due_ms
        [result] = applied.results
        if isinstance(result, Refusal):
            raise make_error(
                result.code, result.message, field=result.field, limit=result.limit,
                value=result.value,
            )  # fmt: skip
        return result

    # --- time ----------------------------------------------------------------------------------

    def move(self, to_ms: int) -> bool:
        """Lets time pass, and what becomes due happen. Returns whether something has happened."""
        self.now_ms = max(self.now_ms, to_ms)
        for rounds in range(_DUE_ROUNDS_MAX):
            commands = self._machine.due_commands(self.now_ms)
            if not commands:
                return rounds > 0
            for command in commands:
                self._apply(command)
        raise RuntimeError(f"what is due at {self.now_ms} does not become done")

    def next_due(self) -> int | None:
        """When time does something to an execution that has not ended; None: it does not."""
        waits = any(
            view.timers or view.deadline_ms or view.state == ExecutionState.RUNNABLE
            for view in self.views()
            if not view.closed_ms
        )
        return self._due_ms if waits else None

    # --- workers -------------------------------------------------------------------------------

    def lease(self, versions: Mapping[str, str]) -> Activation | None:
        """The next activation that can be leased by a worker with these versions, by function."""
        result: LeaseResult = self._apply(Lease((LeaseCaller("harness", "", 1, 0),)))
        [grant] = result.grants
        assert isinstance(grant, LeaseGrant)
        if not grant.segments:
            return self._lease_pinned(versions)
        [segment] = grant.segments
        [ordinal] = ordinals(segment.mask)
        return self._activation(grant.lease, segment.first_seq + ordinal)

    def _lease_pinned(self, versions: Mapping[str, str]) -> Activation | None:
        with self._environment.snapshot() as txn:
            pins = fitting_pins(txn, _GROUP, versions, 1)
        if not pins:
            return None
        leased: PinnedLease = self._apply(LeasePinned("harness", "", 1, pins))
        [(item, _)] = leased.activations
        return self._activation(leased.lease, item)

    def _activation(self, lease: int, item: int) -> Activation:
        with self._environment.snapshot() as txn:
            view = execution_at(txn, _GROUP, item)
        assert view is not None
        return Activation(lease, item, view)

    def extend(self, leases: tuple[int, ...]) -> None:
        self._apply(Extend(leases))

    def record(self, activation: Activation, sending: Sending, *, version: str = "") -> int:
        """Applies a Record; returns the index of its first one. Raises Unseen, when nothing was
        applied.
        """
        beside = _Attachments()
        records = tuple(map(beside.placed, sending.notes))
        folds = tuple(replace(fold, note=beside.placed(fold.note)) for fold in sending.folds)
        children = tuple(
            beside.placed(replace(child, arguments=_hash(child.payload)))
            for child in sending.children
        )
        then = sending.then
        if isinstance(then, Close | NewRun):
            then = beside.placed(then)
        command = RecordProgress(
            execution=activation.view.number, item=activation.item, lease=activation.lease,
            number=sending.number, seen=sending.seen, records=records, folds=folds,
            timers=sending.timers, then=then, lengths=beside.lengths, children=children,
            cancels=sending.cancels,
            published=tuple(Published(key, value) for key, value in sending.published),
            version=version,
        )  # fmt: skip
        check_record(command)
        recorded: Recorded = self._apply(command, beside.data)
        if not recorded.repeated:
            for one in sending.produced:
                self.produced.setdefault(one.queue, []).extend(one.items)
        return recorded.first_index

    # --- clients -------------------------------------------------------------------------------

    def start(
        self,
        execution_id: str,
        function: str,
        arguments: bytes,
        *,
        version: str = "1",
        key_policy: KeyPolicyName = "attach",
        priority: int = 0,
        start_at_ms: int = 0,
        deadline_ms: int = 0,
    ) -> Started:
        """The secret follows from the id, so that chance repeats in each queue."""
        beside = _Attachments()
        secret = blake2b(execution_id.encode(), digest_size=EXECUTION_SECRET_BYTES)
        command = beside.placed(
            StartExecution(
                id=execution_id, function=function, version=version, secret=secret.digest(),
                arguments=_hash(arguments), payload=arguments,
                policy=KEY_POLICIES.index(key_policy) + 1, priority=priority,
                start_at_ms=start_at_ms, deadline_ms=deadline_ms,
                request=self._request(),
            )
        )  # fmt: skip
        command = replace(command, lengths=beside.lengths)
        _checked(check_start, command)
        started: Started = self._apply(command, beside.data)
        return started

    def arrive(self, command: Arrive) -> Arrived:
        beside = _Attachments()
        command = beside.placed(command)
        command = replace(command, lengths=beside.lengths)
        _checked(check_arrive, command)
        arrived: Arrived = self._apply(command, beside.data)
        return arrived

    def rewind(
        self, execution_id: str, record: int, *, run: int = 0, keep_children: bool = False
    ) -> Rewound:
        command = RewindExecution(
            execution_id, record, run, self._request(), keep_children=keep_children
        )
        _checked(check_rewind, command)
        rewound: Rewound = self._apply(command)
        return rewound

    def _request(self) -> bytes:
        """The name of a request that no other one has."""
        self._requests += 1
        return self._requests.to_bytes(START_REQUEST_BYTES, "big")

    # --- reads ---------------------------------------------------------------------------------

    def view(self, execution_id: str) -> ExecutionView | None:
        with self._environment.snapshot() as txn:
            return execution_of(txn, _GROUP, execution_id)

    def views(
        self, function: str = "", state: ExecutionState | None = None
    ) -> Sequence[ExecutionView]:
        with self._environment.snapshot() as txn:
            return list_executions(
                txn, _GROUP, after=0, function=function, state=state,
                count_max=1 << 30, rows_max=1 << 30,
            ).executions  # fmt: skip

    def end(self, view: ExecutionView) -> JournalRecord | None:
        with self._environment.snapshot() as txn:
            return end_of(txn, _GROUP, view)

    def published(self, execution_id: str, key: str, after: int) -> PublishedPage:
        with self._environment.snapshot() as txn:
            return published_page(txn, _GROUP, execution_id, key=key, after=after)

    def journal(self, number: int, first: int = 0) -> tuple[JournalRecord, ...]:
        with self._environment.snapshot() as txn:
            page = journal_page(
                txn, _GROUP, number, first=first, count_max=2 * JOURNAL_RECORDS_MAX,
                bytes_max=1 << 40,
            )  # fmt: skip
        assert not page.next_index
        return page.records


def _checked(check: Callable[[Any], None], command: Any) -> None:
    """Raises as a client does, which gets the error from a node."""
    try:
        check(command)
    except QueratorError as error:
        raise make_error(
            error.code, error.message, field=error.field, limit=error.limit, value=error.value
        ) from None


class MemoryCalls(ExecutionCalls):
    """The calls of a client on a queue in memory, whatever queue they name."""

    def __init__(
        self,
        queue: MemoryQueue,
        *,
        settle: Callable[[], Awaitable[None]],
        ended: Callable[[Sequence[str]], Awaitable[None]],
        passing: Callable[[Callable[[], bool], int], Awaitable[None]],
    ) -> None:
        """`settle` lets what can happen at this instant happen. `ended` lets time pass until one of
        the executions has ended, and `passing` until something is so, or for some milliseconds.
        """
        self.namespace = NAMESPACE
        self._memory = queue
        self._settle = settle
        self._until_ended = ended
        self._passing = passing

    def check_open(self) -> None:
        """A queue in memory is always open."""

    def now(self) -> datetime:
        return instant(self._memory.now_ms)

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
        started = self._memory.start(
            execution_id, function, arguments, version=version, key_policy=key_policy,
            priority=priority, start_at_ms=_ms(start_at), deadline_ms=_ms(deadline),
        )  # fmt: skip
        await self._settle()
        return not started.attached

    async def signal(self, queue: str, execution_id: str, name: str, payload: bytes) -> int:
        message_id = uuid_utils.uuid7().hex
        arrived = await self._arrive(
            Arrive(ArriveKind.SIGNAL, execution_id, name=name, message_id=message_id,
                   payload=payload)
        )  # fmt: skip
        return arrived.index

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
        kind = ArriveKind.REJECT if reject else ArriveKind.RESOLVE
        arrived = await self._arrive(
            Arrive(kind, execution=execution, run=run, path=path, mac=proof, payload=payload)
        )
        return not arrived.repeated

    async def cancel(self, queue: str, execution_id: str, reason: str) -> bool:
        payload = reason.encode()
        arrived = await self._arrive(Arrive(ArriveKind.CANCEL, execution_id, payload=payload))
        return not arrived.repeated

    async def terminate(self, queue: str, execution_id: str, reason: str) -> bool:
        payload = reason.encode()
        arrived = await self._arrive(Arrive(ArriveKind.TERMINATE, execution_id, payload=payload))
        return not arrived.repeated

    async def retry(self, queue: str, execution_id: str) -> bool:
        return not (await self._arrive(Arrive(ArriveKind.RETRY, execution_id))).repeated

    async def rewind(
        self, queue: str, execution_id: str, record: int, *, run: int, keep_children: bool
    ) -> RewoundInfo:
        rewound = self._memory.rewind(execution_id, record, run=run, keep_children=keep_children)
        await self._settle()
        return RewoundInfo(
            run=rewound.run, removed_records=rewound.records,
            cancelled_children=rewound.children,
        )  # fmt: skip

    async def _arrive(self, command: Arrive) -> Arrived:
        arrived = self._memory.arrive(command)
        await self._settle()
        return arrived

    async def get(
        self, queue: str, execution_id: str
    ) -> tuple[ExecutionInfo, JournalRecord | None]:
        view = self._found(execution_id)
        return _info(view), self._memory.end(view)

    async def replay_facts(
        self, queue: str, execution_id: str
    ) -> tuple[ExecutionInfo, ReplayFacts]:
        view = self._found(execution_id)
        return _info(view), ReplayFacts(
            number=view.number, origin_run=view.origin, chance=chance_key(view.secret),
            timers=view.timer_paths, next_index=view.next_index,
        )  # fmt: skip

    async def wait(
        self, queue: str, ids: Sequence[str], *, seconds: float
    ) -> dict[str, EndedInfo | None]:
        await self._until_ended(ids)
        found: dict[str, EndedInfo | None] = {}
        for one in ids:
            view = self._memory.view(one)
            end = None if view is None else self._memory.end(view)
            if view is None:
                found[one] = None
            elif end is not None:
                found[one] = _info(view), end
        return found

    async def published(
        self, queue: str, execution_id: str, key: str, *, after: int, seconds: float
    ) -> tuple[bytes, int] | None:
        def page() -> PublishedPage:
            return self._memory.published(execution_id, key, after)

        self._found(execution_id)
        await self._passing(lambda: page().is_final, round(seconds * 1000))
        for one in page().values:
            return one.value, one.version
        return None

    async def all_published(
        self, queue: str, execution_id: str
    ) -> builtins.list[tuple[str, bytes, int]]:
        self._found(execution_id)
        found = self._memory.published(execution_id, "", 0).values
        return [(one.key, one.value, one.version) for one in found]

    async def list(
        self, queue: str, *, function: str, state: ExecutionStateName | None
    ) -> AsyncIterator[ExecutionInfo]:
        number = None if state is None else ExecutionState(EXECUTION_STATES.index(state) + 1)
        for view in self._memory.views(function, number):
            yield _info(view)

    async def journal(
        self, queue: str, execution_id: str, first_index: int = 0
    ) -> AsyncIterator[JournalRecord]:
        for record in self._memory.journal(self._found(execution_id).number, first_index):
            yield record

    def _found(self, execution_id: str) -> ExecutionView:
        view = self._memory.view(execution_id)
        if view is None:
            text = f"there is no execution {execution_id}"
            raise ExecutionNotFound(
                ErrorCode.EXECUTION_NOT_FOUND, text, field="id", value=execution_id
            )
        return view


def _info(view: ExecutionView) -> ExecutionInfo:
    return ExecutionInfo(
        id=view.id, function=view.function, version=view.version, run=view.run,
        state=EXECUTION_STATES[view.state - 1], partition=0, created_at=instant(view.created_ms),
        closed_at=instant(view.closed_ms) if view.closed_ms else None,
        deadline=instant(view.deadline_ms) if view.deadline_ms else None, records=view.records,
        journal_bytes=view.size, unread_signals=view.unread, timers=view.timers,
        cancelled=view.cancelled, reason=view.reason, parent=view.parent_id,
        children=view.children, refused_versions=view.refused,
    )  # fmt: skip


def instant(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def _ms(at: datetime | None) -> int:
    return 0 if at is None else round(at.timestamp() * 1000)
