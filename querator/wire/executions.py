"""The calls about executions. A payload up to JOURNAL_INLINE_BYTES_MAX is in its command; larger
ones are attachments of the command, in the order in which the message has them.
"""

from collections.abc import Iterable
from hashlib import blake2b
from struct import pack
from typing import Literal

import msgspec
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from querator.model import limits
from querator.model.calls import FollowUpItems, LeaseCall
from querator.model.errors import invalid, over_limit
from querator.model.execution_calls import (
    ArriveCall,
    EndedReply,
    ExecutionView,
    JournalCall,
    JournalPage,
    KnownJournal,
    LeasedActivation,
    ListExecutionsCall,
    News,
    NewsCall,
    ProgressCall,
    PublishedCall,
    PublishedPage,
    RewindCall,
    ShownExecution,
    ShownExecutions,
    StartCall,
    StartReply,
    WaitExecutionsCall,
)
from querator.model.execution_commands import (
    Arrive,
    Arrived,
    Recorded,
    RecordProgress,
    RewindExecution,
    Rewound,
    StartExecution,
    check_arrive,
    check_record,
    check_rewind,
    check_start,
)
from querator.model.executions import (
    ArriveKind,
    ChildStart,
    Close,
    ExecutionState,
    Fold,
    GiveBack,
    GoOn,
    JournalRecord,
    KeyPolicy,
    NewRun,
    Note,
    Park,
    Published,
    Then,
    Timer,
    chance_key,
    check_text,
)
from querator.model.ids import GroupId, PartitionNumber, check_name, parse_lease_id
from querator.v1 import execution_service_pb2 as v1
from querator.wire import field_checks
from querator.wire.field_checks import DEFAULT_LIMITS, RequestLimits
from querator.wire.lease import parse_partition
from querator.wire.produce import check_request_bytes
from querator.wire.settle import check_follow_ups

NO_SECRET = bytes(limits.EXECUTION_SECRET_BYTES)
"""In the place of a secret that the service chooses."""


class _Payloads:
    """The payloads of a command: those that become attachments."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def place(self, payload: bytes) -> tuple[bytes, int]:
        """The payload in the command, and its place beside it."""
        if len(payload) <= limits.JOURNAL_INLINE_BYTES_MAX:
            return payload, 0
        self.pieces.append(payload)
        return b"", len(self.pieces)

    @property
    def lengths(self) -> bytes:
        return pack(f"<{len(self.pieces)}I", *map(len, self.pieces))

    @property
    def attachment(self) -> bytes:
        return b"".join(self.pieces)


def parse_start(data: bytes) -> StartCall:
    message = field_checks.parse_message(v1.StartExecutionRequest, data)
    payloads = _Payloads()
    payload, place = payloads.place(message.arguments)
    command = StartExecution(
        id=message.id,
        function=message.function,
        version=message.version,
        secret=NO_SECRET,
        arguments=_arguments_hash(message.arguments),
        payload=payload,
        place=place,
        lengths=payloads.lengths,
        policy=message.key_policy or KeyPolicy.ATTACH,
        priority=message.priority,
        start_at_ms=_instant_ms(message, "start_at"),
        deadline_ms=_instant_ms(message, "deadline"),
        request=_request_hash(message.request_id),
    )
    check_start(command)
    return StartCall(
        *_queue(message), command, payloads.attachment, _timeout_ms(message.request_timeout)
    )


def parse_lease(data: bytes) -> LeaseCall:
    message = field_checks.parse_message(v1.LeaseActivationsRequest, data)
    lease_timeout_ms = 0
    if message.HasField("lease_timeout"):
        lease_timeout_ms = field_checks.lease_timeout_ms(message.lease_timeout)
    if message.given_up and not message.request_id:
        raise invalid("request_id", "must name the request that was given up")
    namespace, queue = _queue(message)
    return LeaseCall(
        namespace=namespace,
        queue=queue,
        client_id=field_checks.check_client_id(message.client_id),
        request_id=field_checks.check_chars(
            message.request_id, limits.REQUEST_ID_CHARS_MAX, field="request_id"
        ),
        max_items=field_checks.check_range(
            message.max_activations,
            field="max_activations",
            least=1,
            most=limits.REQUEST_ITEMS_MAX,
        ),
        max_bytes=0,
        lease_timeout_ms=lease_timeout_ms,
        wait_ms=_timeout_ms(message.request_timeout),
        partition=parse_partition(message),
        activations=True,
        versions=_versions(message),
        given_up=message.given_up,
    )


def _versions(message: v1.LeaseActivationsRequest) -> tuple[tuple[str, str], ...]:
    if len(message.functions) > limits.WORKER_FUNCTIONS_MAX:
        raise over_limit(
            "functions",
            value=len(message.functions),
            limit=limits.WORKER_FUNCTIONS_MAX,
            unit="functions",
        )
    versions: dict[str, str] = {}
    for nth, one in enumerate(message.functions):
        field = f"functions[{nth}]"
        check_text(one.function, field=f"{field}.function")
        check_text(
            one.version, field=f"{field}.version", bytes_max=limits.EXECUTION_VERSION_BYTES_MAX
        )
        if one.function in versions:
            raise invalid(f"{field}.function", "is there twice", value=one.function)
        versions[one.function] = one.version
    return tuple(sorted(versions.items()))


def parse_progress(
    data: bytes, *, now_ms: int, request_limits: RequestLimits = DEFAULT_LIMITS
) -> ProgressCall:
    message = field_checks.parse_message(v1.RecordProgressRequest, data)
    _, _, lease = parse_lease_id(message.lease_id, field="lease_id")
    payloads = _Payloads()
    records = tuple(_note(record, payloads) for record in message.records)
    folds = tuple(
        Fold(
            fold.index,
            _note(fold.record, payloads),
            tuple((run.first, run.count) for run in fold.removed),
        )
        for fold in message.folds
    )
    children = tuple(_child(child, payloads) for child in message.children)
    then = _then(message, payloads)
    extend_ms = 0
    if message.HasField("extend"):
        extend_ms = field_checks.lease_timeout_ms(message.extend, field="extend")
    command = RecordProgress(
        execution=message.execution,
        item=message.item,
        lease=lease,
        number=message.number,
        seen=message.seen,
        records=records,
        folds=folds,
        timers=tuple(Timer(timer.path, timer.due_ms) for timer in message.timers),
        then=then,
        extend_ms=extend_ms,
        lengths=payloads.lengths,
        children=children,
        cancels=tuple(message.cancels),
        published=tuple(Published(one.key, one.value) for one in message.published),
        version=message.version,
    )
    check_record(command)
    namespace, queue = _queue(message)
    return ProgressCall(
        namespace=namespace,
        queue=queue,
        lease_id=message.lease_id,
        command=command,
        attachment=payloads.attachment,
        timeout_ms=_timeout_ms(message.request_timeout),
        produced=_produced(message, queue, now_ms, request_limits),
    )


def _produced(
    message: v1.RecordProgressRequest, queue: str, now_ms: int, request_limits: RequestLimits
) -> tuple[FollowUpItems, ...]:
    """The items that the execution produces. The journal has to say that they were produced."""
    if not message.produced:
        return ()
    if not message.records:
        raise invalid("produced", "must come with the record that says so")
    check_request_bytes(message.ByteSize(), request_limits)
    return check_follow_ups(
        message.produced, queue, now_ms, request_limits, field="produced", what="an execution"
    )


def _note(record: v1.JournalRecord, payloads: _Payloads) -> Note:
    payload, place = payloads.place(record.payload)
    return Note(
        kind=record.kind,
        path=record.path,
        name=record.name,
        site=record.site,
        after=record.after,
        at_ms=record.at_ms,
        payload=payload,
        place=place,
    )


def _child(child: v1.ChildStart, payloads: _Payloads) -> ChildStart:
    payload, place = payloads.place(child.arguments)
    return ChildStart(
        path=child.path,
        id=child.id,
        function=child.function,
        version=child.version,
        arguments=_arguments_hash(child.arguments),
        payload=payload,
        place=place,
        detached=child.detached,
        shielded=child.shielded,
        site=child.site,
    )


def _request_hash(request_id: str) -> bytes:
    if not request_id:
        return b""
    field_checks.check_chars(request_id, limits.REQUEST_ID_CHARS_MAX, field="request_id")
    return blake2b(request_id.encode(), digest_size=limits.START_REQUEST_BYTES).digest()


def _arguments_hash(arguments: bytes) -> bytes:
    return blake2b(arguments, digest_size=16).digest()


def _then(message: v1.RecordProgressRequest, payloads: _Payloads) -> Then:
    which = message.WhichOneof("then")
    if which == "park":
        park = message.park
        return Park(tuple(park.paths), tuple(park.names), park.all_of, park.anything)
    if which == "close":
        payload, place = payloads.place(message.close.payload)
        return Close(message.close.outcome, payload, place, message.close.drain)
    if which == "give_back":
        back = message.give_back
        return GiveBack(back.stuck, back.reason, back.pinned, back.refused_version)
    if which == "new_run":
        unread = tuple((run.first, run.count) for run in message.new_run.unread)
        return NewRun(*payloads.place(message.new_run.arguments), unread)
    return GoOn()


def parse_signal(data: bytes) -> ArriveCall:
    message = field_checks.parse_message(v1.SignalExecutionRequest, data)
    payloads = _Payloads()
    payload, place = payloads.place(message.payload)
    command = Arrive(
        ArriveKind.SIGNAL,
        message.id,
        name=message.name,
        message_id=message.message_id,
        payload=payload,
        place=place,
        lengths=payloads.lengths,
    )
    return _arrive(message, command, payloads, message.request_timeout)


def parse_resolve(data: bytes) -> ArriveCall:
    message = field_checks.parse_message(v1.ResolvePromiseRequest, data)
    payloads = _Payloads()
    payload, place = payloads.place(message.payload)
    command = Arrive(
        ArriveKind.REJECT if message.reject else ArriveKind.RESOLVE,
        execution=message.execution,
        run=message.run,
        path=message.path,
        mac=message.proof,
        payload=payload,
        place=place,
        lengths=payloads.lengths,
    )
    call = _arrive(message, command, payloads, message.request_timeout)
    field_checks.check_range(
        message.partition, field="partition", least=0, most=limits.PARTITIONS_MAX - 1
    )
    return msgspec.structs.replace(call, partition=message.partition)


def parse_cancel(data: bytes) -> ArriveCall:
    message = field_checks.parse_message(v1.CancelExecutionRequest, data)
    return _ending(message, ArriveKind.CANCEL)


def parse_terminate(data: bytes) -> ArriveCall:
    message = field_checks.parse_message(v1.TerminateExecutionRequest, data)
    return _ending(message, ArriveKind.TERMINATE)


def _ending(
    message: v1.CancelExecutionRequest | v1.TerminateExecutionRequest, kind: ArriveKind
) -> ArriveCall:
    field_checks.check_chars(message.reason, limits.ERROR_CHARS_MAX, field="reason")
    payloads = _Payloads()
    payload, place = payloads.place(message.reason.encode())
    command = Arrive(kind, message.id, payload=payload, place=place, lengths=payloads.lengths)
    return _arrive(message, command, payloads, message.request_timeout)


def parse_retry(data: bytes) -> ArriveCall:
    message = field_checks.parse_message(v1.RetryExecutionRequest, data)
    command = Arrive(ArriveKind.RETRY, message.id)
    return _arrive(message, command, _Payloads(), message.request_timeout)


def parse_rewind(data: bytes) -> RewindCall:
    message = field_checks.parse_message(v1.RewindExecutionRequest, data)
    command = RewindExecution(
        message.id, message.record, message.run, _request_hash(message.request_id),
        keep_children=message.keep_children,
    )  # fmt: skip
    check_rewind(command)
    return RewindCall(*_queue(message), command, _timeout_ms(message.request_timeout))


def _arrive(
    message: "_Named", command: Arrive, payloads: _Payloads, timeout: Duration
) -> ArriveCall:
    check_arrive(command)
    return ArriveCall(*_queue(message), -1, command, payloads.attachment, _timeout_ms(timeout))


def parse_get(data: bytes) -> tuple[tuple[str, str, str], bool]:
    """Namespace, queue and id; and whether it is for a replay."""
    message = field_checks.parse_message(v1.GetExecutionRequest, data)
    check_text(message.id, field="id", bytes_max=limits.EXECUTION_ID_BYTES_MAX)
    return (*_queue(message), message.id), message.for_replay


def parse_list(data: bytes) -> ListExecutionsCall:
    message = field_checks.parse_message(v1.ListExecutionsRequest, data)
    if message.state not in v1.ExecutionState.values():
        raise invalid("state", "is not a known state", value=message.state)
    if message.function:
        check_text(message.function, field="function")
    return ListExecutionsCall(
        *_queue(message),
        function=message.function,
        state=ExecutionState(message.state) if message.state else None,
        page_size=field_checks.check_range(
            message.page_size or limits.PAGE_ITEMS_DEFAULT,
            field="page_size",
            least=1,
            most=limits.PAGE_ITEMS_MAX,
        ),
        page_token=field_checks.check_chars(
            message.page_token, limits.PAGE_TOKEN_CHARS_MAX, field="page_token"
        ),
        timeout_ms=0,
    )


def parse_wait(data: bytes) -> WaitExecutionsCall:
    message = field_checks.parse_message(v1.WaitExecutionsRequest, data)
    if not message.ids:
        raise invalid("ids", "must not be empty")
    if len(message.ids) > limits.EXECUTION_WAIT_IDS_MAX:
        raise over_limit(
            "ids", value=len(message.ids), limit=limits.EXECUTION_WAIT_IDS_MAX, unit="executions"
        )
    for nth, one in enumerate(message.ids):
        check_text(one, field=f"ids[{nth}]", bytes_max=limits.EXECUTION_ID_BYTES_MAX)
    return WaitExecutionsCall(
        *_queue(message),
        tuple(dict.fromkeys(message.ids)),
        _timeout_ms(message.wait_timeout, "wait_timeout"),
    )


def parse_arrivals(data: bytes) -> NewsCall:
    message = field_checks.parse_message(v1.WaitArrivalsRequest, data)
    most = limits.EXECUTION_WAIT_IDS_MAX
    if not message.executions:
        raise invalid("executions", "must not be empty")
    if len(message.executions) > most:
        raise over_limit("executions", value=len(message.executions), limit=most, unit="executions")
    known: dict[tuple[GroupId, PartitionNumber], list[KnownJournal]] = {}
    for nth, one in enumerate(message.executions):
        group, partition, lease = parse_lease_id(one.lease_id, field=f"executions[{nth}].lease_id")
        if not (one.execution and one.item):
            raise invalid(f"executions[{nth}]", "must have the number of an execution and its item")
        mine = known.setdefault((group, partition), [])
        mine.append(KnownJournal(one.execution, one.item, lease, one.index))
    return NewsCall(
        *_queue(message),
        {place: tuple(some) for place, some in known.items()},
        _timeout_ms(message.wait_timeout, "wait_timeout"),
    )


def parse_published(data: bytes) -> PublishedCall:
    message = field_checks.parse_message(v1.ReadPublishedRequest, data)
    check_text(message.id, field="id", bytes_max=limits.EXECUTION_ID_BYTES_MAX)
    if message.key:
        check_text(message.key, field="key")
    if message.after_version >= 1 << 63:
        raise invalid("after_version", "is beyond every version", value=message.after_version)
    return PublishedCall(
        *_queue(message),
        id=message.id,
        key=message.key,
        after=message.after_version,
        wait_ms=_timeout_ms(message.wait_timeout, "wait_timeout"),
    )


def parse_journal(data: bytes) -> JournalCall:
    message = field_checks.parse_message(v1.ReadJournalRequest, data)
    check_text(message.id, field="id", bytes_max=limits.EXECUTION_ID_BYTES_MAX)
    if message.first_index >= 1 << 63:
        raise invalid("first_index", "is beyond every journal", value=message.first_index)
    return JournalCall(
        *_queue(message),
        id=message.id,
        first=message.first_index,
        records_max=field_checks.check_range(
            message.max_records or limits.PAGE_ITEMS_MAX,
            field="max_records",
            least=1,
            most=limits.PAGE_ITEMS_MAX,
        ),
        timeout_ms=0,
    )


# --- answers -----------------------------------------------------------------------------------


def encode_started(reply: StartReply) -> bytes:
    started = reply.started
    return v1.StartExecutionResponse(
        partition=reply.partition,
        execution=started.execution,
        run=started.run,
        state=v1.ExecutionState.ValueType(started.state),
        attached=started.attached,
    ).SerializeToString()


def encode_leased(leased: Iterable[LeasedActivation]) -> bytes:
    return v1.LeaseActivationsResponse(
        activations=[
            v1.Activation(
                lease_id=one.lease_id,
                item=one.item,
                partition=one.partition,
                execution=one.view.number,
                id=one.view.id,
                run=one.view.run,
                function=one.view.function,
                version=one.view.version,
                secret=one.view.secret,
                attempt=one.attempt,
                remaining=field_checks.duration(one.remaining_ms),
                deadline=_timestamp(one.view.deadline_ms),
                records=[_record(record) for record in one.journal.records],
                next_index=one.journal.next_index,
                timers=one.view.timer_paths,
                now_ms=one.now_ms,
                origin_run=one.view.origin,
                seen=one.view.seen,
            )
            for one in leased
        ]
    ).SerializeToString()


def encode_recorded(result: Recorded) -> bytes:
    return v1.RecordProgressResponse(
        first_index=result.first_index,
        repeated_answer=result.repeated,
        deadline=_timestamp(result.deadline_ms),
        now_ms=result.now_ms,
    ).SerializeToString()


def encode_signalled(result: Arrived) -> bytes:
    return v1.SignalExecutionResponse(
        index=result.index, repeated_answer=result.repeated
    ).SerializeToString()


def encode_resolved(result: Arrived) -> bytes:
    return v1.ResolvePromiseResponse(
        index=result.index,
        kind=v1.RecordKind.ValueType(result.kind),
        repeated_answer=result.repeated,
    ).SerializeToString()


def encode_cancelled(result: Arrived) -> bytes:
    return v1.CancelExecutionResponse(
        index=result.index, repeated_answer=result.repeated
    ).SerializeToString()


def encode_terminated(result: Arrived) -> bytes:
    return v1.TerminateExecutionResponse(
        index=result.index, repeated_answer=result.repeated
    ).SerializeToString()


def encode_rewound(result: Rewound) -> bytes:
    return v1.RewindExecutionResponse(
        run=result.run,
        removed_records=result.records,
        cancelled_children=result.children,
        repeated_answer=result.repeated,
    ).SerializeToString()


def encode_retried(result: Arrived) -> bytes:
    return v1.RetryExecutionResponse(changed=not result.repeated).SerializeToString()


def encode_execution(shown: ShownExecution, *, for_replay: bool = False) -> bytes:
    return v1.GetExecutionResponse(
        execution=_execution(shown),
        end=None if shown.end is None else _record(shown.end),
        replay=_replay(shown.view) if for_replay else None,
    ).SerializeToString()


def _replay(view: ExecutionView) -> v1.ExecutionReplay:
    return v1.ExecutionReplay(
        origin_run=view.origin,
        chance=chance_key(view.secret),
        timers=view.timer_paths,
        next_index=view.next_index,
    )


def encode_ended(reply: EndedReply) -> bytes:
    return v1.WaitExecutionsResponse(
        executions=[
            v1.EndedExecution(id=one.id)
            if one.view is None or one.end is None
            else v1.EndedExecution(
                id=one.id,
                execution=_execution(ShownExecution(partition, one.view)),
                end=_record(one.end),
            )
            for partition, one in reply.executions
        ]
    ).SerializeToString()


def encode_news(news: News) -> bytes:
    return v1.WaitArrivalsResponse(
        arrived=[v1.LeasedExecution(lease_id=lease, item=item) for lease, item in news.arrived],
        lost=[v1.LeasedExecution(lease_id=lease, item=item) for lease, item in news.lost],
    ).SerializeToString()


def encode_published(page: PublishedPage) -> bytes:
    return v1.ReadPublishedResponse(
        values=[
            v1.PublishedValue(key=one.key, value=one.value, version=one.version)
            for one in page.values
        ],
        version=page.version,
        closed=page.closed,
    ).SerializeToString()


def encode_list(shown: ShownExecutions) -> bytes:
    return v1.ListExecutionsResponse(
        executions=[_execution(one) for one in shown.executions],
        next_page_token=shown.next_page_token,
    ).SerializeToString()


def encode_journal(page: JournalPage) -> bytes:
    return v1.ReadJournalResponse(
        records=[_record(record) for record in page.records], next_index=page.next_index
    ).SerializeToString()


def _execution(shown: ShownExecution) -> v1.Execution:
    view = shown.view
    return v1.Execution(
        id=view.id,
        function=view.function,
        version=view.version,
        run=view.run,
        state=v1.ExecutionState.ValueType(view.state),
        partition=shown.partition,
        execution=view.number,
        created_at=_timestamp(view.created_ms),
        closed_at=_timestamp(view.closed_ms),
        deadline=_timestamp(view.deadline_ms),
        records=view.records,
        journal_bytes=view.size,
        unread_signals=view.unread,
        timers=view.timers,
        cancelled=view.cancelled,
        reason=view.reason,
        parent_id=view.parent_id,
        children=view.children,
        refused_versions=view.refused,
    )


def _record(record: JournalRecord) -> v1.JournalRecord:
    note = record.note
    return v1.JournalRecord(
        index=record.index,
        kind=v1.RecordKind.ValueType(note.kind),
        path=note.path,
        name=note.name,
        site=note.site,
        after=note.after,
        at_ms=note.at_ms,
        payload=note.payload,
    )


# --- fields ------------------------------------------------------------------------------------

_Named = (
    v1.StartExecutionRequest
    | v1.LeaseActivationsRequest
    | v1.RecordProgressRequest
    | v1.SignalExecutionRequest
    | v1.ResolvePromiseRequest
    | v1.CancelExecutionRequest
    | v1.TerminateExecutionRequest
    | v1.RetryExecutionRequest
    | v1.RewindExecutionRequest
    | v1.GetExecutionRequest
    | v1.ListExecutionsRequest
    | v1.ReadJournalRequest
    | v1.WaitExecutionsRequest
    | v1.WaitArrivalsRequest
    | v1.ReadPublishedRequest
)


def _queue(message: _Named) -> tuple[str, str]:
    return field_checks.check_namespace(message.namespace), check_name(message.queue, field="queue")


def _timeout_ms(timeout: Duration, field: str = "request_timeout") -> int:
    if not timeout.seconds and not timeout.nanos:
        return 0
    return field_checks.duration_ms(
        timeout,
        field=field,
        least_ms=0,
        most_ms=limits.REQUEST_TIMEOUT_MS_MAX,
    )


def _instant_ms(message: v1.StartExecutionRequest, field: Literal["start_at", "deadline"]) -> int:
    if not message.HasField(field):
        return 0
    at: Timestamp = getattr(message, field)
    return field_checks.instant_ms(at, field=field)


def _timestamp(at_ms: int) -> Timestamp | None:
    return field_checks.timestamp(at_ms) if at_ms else None
