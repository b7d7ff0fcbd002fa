"""The frames of a link between two nodes, as bytes: lists of asks one way, of answers the other.

Commands keep their form in the log. A result travels with the number of its type. A mask can be
wider than msgpack's integers, so leased segments travel without masks: the leased items come with
them. A node that cannot read a frame ends the link, because the handshake has proven that both
nodes have the same version.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from querator.model.calls import BlockDamage, BrowsedItem, BrowsedPage, LoadedItems, PartitionCounts
from querator.model.commands import (
    Command,
    Done,
    ExtendResult,
    ItemsChanged,
    ItemsRemoved,
    LeasedSegment,
    LeaseGrant,
    Moved,
    ProduceResult,
    RedriveResult,
    Refusal,
    SettleResult,
)
from querator.model.errors import ErrorCode, QueratorError
from querator.model.execution_calls import (
    EndedPage,
    ExecutionPage,
    JournalPage,
    NewsPage,
    PinsPage,
    PublishedPage,
    ReadActivation,
)
from querator.model.execution_commands import Arrived, PinnedLease, Recorded, Rewound, Started
from querator.model.ids import PLACEMENT_GROUP, GroupId, QueueId
from querator.model.reader_calls import BatchPage, ReaderState
from querator.model.readers import ReaderResult
from querator.model.recurrences import RecurrenceResult
from querator.model.transactions import ProducerTotals, StageResult, TxnResult
from querator.partition.dedup_export import (
    AwayKeysQuery,
    Closure,
    ClosureQuery,
    FactsPage,
    FactsQuery,
    KeptKeysQuery,
)
from querator.partition.feed_queries import EventsPage
from querator.partition.flow_queries import FlowPage
from querator.partition.lease_queries import LeaseSummaries
from querator.partition.queries import ItemPage, LeasePage
from querator.partition.reader_queries import Outlook
from querator.partition.recurrence_queries import RecurrencePage
from querator.partition.result_queries import ResultsPage
from querator.partition.schedule_queries import DueCounts, DuePage
from querator.partition.txn_steps import (
    CommittedQuery,
    ProducerQuery,
    StagedPage,
    StagedQuery,
    TxnQuery,
)
from querator.placement.map import commands as placement
from querator.service.routing.forwarder import (
    ActivationsQuery,
    AdvanceQuery,
    AheadQuery,
    BatchQuery,
    BrowseQuery,
    CarriedLease,
    DamageQuery,
    DueCountsQuery,
    DueItemsQuery,
    DueKeysQuery,
    EndedQuery,
    EpochQuery,
    EventsQuery,
    ExecutionsQuery,
    FlowsQuery,
    ItemsQuery,
    JournalQuery,
    LeasesQuery,
    LetterCountsQuery,
    LettersQuery,
    NewsQuery,
    Payload,
    PayloadQuery,
    PeekQuery,
    PinsQuery,
    PublishedQuery,
    Query,
    ReadersQuery,
    ReadyQuery,
    RecurrencesQuery,
    ResultsQuery,
    StatsQuery,
    StreamLeasesQuery,
)

LINK_VERSION = 23
"""Version of the frames in this module. Two nodes talk only if they have the same version."""


class LinkHello(msgspec.Struct, frozen=True, array_like=True):
    """A node's description of itself in the handshake. `to`: the node that it expects to reach."""

    version: int
    cluster_id: str
    name: str
    to: str


# --- asks --------------------------------------------------------------------------------


class Propose(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="c"):
    id: int
    group: GroupId
    command: msgspec.Raw
    attachment: bytes = b""


class Question(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="q"):
    id: int
    query: Query


class Demand(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="d"):
    """A demand for items of a queue, without an answer."""

    queue: QueueId
    waiters: int
    items: int


Ask = Propose | Question | Demand


# --- answers -----------------------------------------------------------------------------


class Result(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="r"):
    """The result of a command; `kind` is the number of its type."""

    id: int
    kind: int
    result: msgspec.Raw


class Reply(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="a"):
    """The answer to a question; its type follows from the question's type."""

    id: int
    answer: msgspec.Raw


class ErrorFrame(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="f"):
    """The error of a command or a question."""

    id: int
    code: ErrorCode
    message: str
    field: str = ""
    limit: str = ""
    value: str = ""
    retry_delay_ms: int | None = None


class Offer(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="o"):
    """The sender keeps `items` of a group for this node for a short time."""

    group: GroupId
    items: int


class Closing(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="x"):
    """The node stops: it accepts no more asks and still answers the accepted ones."""


Answer = Result | Reply | ErrorFrame | Offer | Closing


# --- leases ------------------------------------------------------------------------------


class _Segment(msgspec.Struct, frozen=True, array_like=True, gc=False):
    first_seq: int
    attempt: int
    count: int
    bytes: int
    lease: int = 0
    deadline_ms: int = 0
    priority: int = 0


class _Grant(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A lease, or only a `refusal`."""

    lease: int
    deadline_ms: int
    repeated: bool
    segments: tuple[_Segment, ...]
    loaded: tuple[LoadedItems | None, ...]
    refusal: Refusal | None = None


class _Lease(msgspec.Struct, frozen=True, array_like=True):
    now_ms: int
    ready: int
    grants: tuple[_Grant, ...]
    elsewhere: tuple[GroupId, int] | None


def _pack_lease(result: CarriedLease) -> _Lease:
    grants = []
    for grant, loaded in zip(result.grants, result.loaded, strict=True):
        if isinstance(grant, Refusal):
            grants.append(
                _Grant(
                    lease=0, deadline_ms=0, repeated=False, segments=(), loaded=(), refusal=grant
                )
            )
            continue
        segments = tuple(
            _Segment(
                first_seq=each.first_seq,
                attempt=each.attempt,
                count=each.count,
                bytes=each.bytes,
                lease=each.lease,
                deadline_ms=each.deadline_ms,
                priority=each.priority,
            )
            for each in grant.segments
        )
        grants.append(
            _Grant(
                lease=grant.lease,
                deadline_ms=grant.deadline_ms,
                repeated=grant.repeated,
                segments=segments,
                loaded=loaded,
                refusal=None,
            )
        )
    return _Lease(result.now_ms, result.ready, tuple(grants), result.elsewhere)


def _unpack_lease(lease: _Lease) -> CarriedLease:
    grants = tuple(
        LeaseGrant(
            grant.lease,
            grant.deadline_ms,
            tuple(
                LeasedSegment(
                    first_seq=each.first_seq,
                    mask=0,
                    attempt=each.attempt,
                    count=each.count,
                    bytes=each.bytes,
                    lease=each.lease,
                    deadline_ms=each.deadline_ms,
                    priority=each.priority,
                )
                for each in grant.segments
            ),
            grant.repeated,
        )
        if grant.refusal is None
        else grant.refusal
        for grant in lease.grants
    )
    loaded = tuple(grant.loaded for grant in lease.grants)
    return CarriedLease(grants, lease.now_ms, loaded, lease.ready, lease.elsewhere)


# --- to bytes and back -------------------------------------------------------------------

_RESULTS: tuple[type, ...] = (
    Refusal,
    Done,
    ProduceResult,
    SettleResult,
    ExtendResult,
    RedriveResult,
    ReaderResult,
    placement.QueueCreated,
    placement.QueueUpdated,
    placement.QueueDeleted,
    StageResult,
    TxnResult,
    Moved,
    ItemsChanged,
    ItemsRemoved,
    RecurrenceResult,
    Started,
    Recorded,
    Arrived,
    PinnedLease,
    Rewound,
)
_LEASE = len(_RESULTS)

_encode = msgspec.msgpack.Encoder().encode
_decode_asks = msgspec.msgpack.Decoder(list[Ask]).decode
_decode_answers = msgspec.msgpack.Decoder(list[Answer]).decode
_decode_hello = msgspec.msgpack.Decoder(LinkHello).decode
_decode_command = msgspec.msgpack.Decoder(Command).decode
_decode_change = msgspec.msgpack.Decoder(placement.Command).decode
_decode_results: tuple[Callable[[Any], Any], ...] = tuple(
    msgspec.msgpack.Decoder(kind).decode for kind in _RESULTS
)
_decode_lease = msgspec.msgpack.Decoder(_Lease).decode
_kind_of = {kind: number for number, kind in enumerate(_RESULTS)}
_REPLIES: dict[type, Any] = {
    StatsQuery: msgspec.msgpack.Decoder(PartitionCounts).decode,
    PeekQuery: msgspec.msgpack.Decoder(ItemPage).decode,
    ItemsQuery: msgspec.msgpack.Decoder(ItemPage).decode,
    AheadQuery: msgspec.msgpack.Decoder(tuple[int, ...]).decode,
    LetterCountsQuery: msgspec.msgpack.Decoder(tuple[int, int]).decode,
    LettersQuery: msgspec.msgpack.Decoder(ItemPage).decode,
    DueKeysQuery: msgspec.msgpack.Decoder(DuePage).decode,
    DueItemsQuery: msgspec.msgpack.Decoder(tuple[BrowsedItem, ...]).decode,
    FlowsQuery: msgspec.msgpack.Decoder(FlowPage).decode,
    DueCountsQuery: msgspec.msgpack.Decoder(DueCounts).decode,
    BrowseQuery: msgspec.msgpack.Decoder(BrowsedPage).decode,
    StreamLeasesQuery: msgspec.msgpack.Decoder(LeasePage).decode,
    LeasesQuery: msgspec.msgpack.Decoder(LeaseSummaries).decode,
    ReadersQuery: msgspec.msgpack.Decoder(tuple[ReaderState, ...]).decode,
    AdvanceQuery: msgspec.msgpack.Decoder(Outlook).decode,
    BatchQuery: msgspec.msgpack.Decoder(BatchPage).decode,
    PayloadQuery: msgspec.msgpack.Decoder(Payload).decode,
    DamageQuery: msgspec.msgpack.Decoder(tuple[BlockDamage, ...]).decode,
    ResultsQuery: msgspec.msgpack.Decoder(ResultsPage).decode,
    EventsQuery: msgspec.msgpack.Decoder(EventsPage).decode,
    ActivationsQuery: msgspec.msgpack.Decoder(tuple[ReadActivation, ...]).decode,
    ExecutionsQuery: msgspec.msgpack.Decoder(ExecutionPage).decode,
    EndedQuery: msgspec.msgpack.Decoder(EndedPage).decode,
    PublishedQuery: msgspec.msgpack.Decoder(PublishedPage).decode,
    PinsQuery: msgspec.msgpack.Decoder(PinsPage).decode,
    NewsQuery: msgspec.msgpack.Decoder(NewsPage).decode,
    JournalQuery: msgspec.msgpack.Decoder(JournalPage).decode,
    RecurrencesQuery: msgspec.msgpack.Decoder(RecurrencePage).decode,
    ReadyQuery: msgspec.msgpack.Decoder(tuple[tuple[GroupId, int], ...]).decode,
    EpochQuery: msgspec.msgpack.Decoder(int).decode,
    FactsQuery: msgspec.msgpack.Decoder(FactsPage).decode,
    TxnQuery: msgspec.msgpack.Decoder(TxnResult).decode,
    CommittedQuery: msgspec.msgpack.Decoder(tuple[int, ...]).decode,
    ProducerQuery: msgspec.msgpack.Decoder(ProducerTotals).decode,
    StagedQuery: msgspec.msgpack.Decoder(StagedPage).decode,
    ClosureQuery: msgspec.msgpack.Decoder(Closure).decode,
    AwayKeysQuery: msgspec.msgpack.Decoder(tuple[tuple[int, int], ...]).decode,
    KeptKeysQuery: msgspec.msgpack.Decoder(tuple[int, ...]).decode,
}


T = TypeVar("T")


class FrameError(Exception):
    """The bytes are not a frame of a link."""


def encode_hello(hello: LinkHello) -> bytes:
    return _encode(hello)


def decode_hello(data: bytes) -> LinkHello:
    """Raises FrameError."""
    return _read(_decode_hello, data)


def encode_asks(asks: Sequence[Ask]) -> bytes:
    return _encode(asks)


def decode_asks(data: bytes) -> list[Ask]:
    """Raises FrameError."""
    return _read(_decode_asks, data)


def encode_answers(answers: Sequence[Answer]) -> bytes:
    return _encode(answers)


def decode_answers(data: bytes) -> list[Answer]:
    """Raises FrameError."""
    return _read(_decode_answers, data)


def propose(id: int, group: GroupId, command: Any, attachment: bytes) -> Propose:
    return Propose(id, group, msgspec.Raw(_encode(command)), attachment)


def command_of(ask: Propose) -> Any:
    """Raises FrameError."""
    return _read(_decode_change if ask.group == PLACEMENT_GROUP else _decode_command, ask.command)


def result(id: int, value: Any) -> Result:
    if isinstance(value, CarriedLease):
        return Result(id, _LEASE, msgspec.Raw(_encode(_pack_lease(value))))
    return Result(id, _kind_of[type(value)], msgspec.Raw(_encode(value)))


def value_of(answer: Result) -> Any:
    """Raises FrameError."""
    if answer.kind == _LEASE:
        return _unpack_lease(_read(_decode_lease, answer.result))
    if answer.kind > _LEASE:
        raise FrameError(f"results of kind {answer.kind} are not known")
    return _read(_decode_results[answer.kind], answer.result)


def reply(id: int, value: Any) -> Reply:
    return Reply(id, msgspec.Raw(_encode(value)))


def reply_of(answer: Reply, query: Query) -> Any:
    """Raises FrameError."""
    return _read(_REPLIES[type(query)], answer.answer)


def failure(id: int, error: QueratorError) -> ErrorFrame:
    return ErrorFrame(
        id=id,
        code=error.code,
        message=error.message,
        field=error.field,
        limit=error.limit,
        value=error.value,
        retry_delay_ms=error.retry_delay_ms,
    )


def error_of(answer: ErrorFrame) -> QueratorError:
    return QueratorError(
        answer.code,
        answer.message,
        field=answer.field,
        limit=answer.limit,
        value=answer.value,
        retry_delay_ms=answer.retry_delay_ms,
    )


def _read(decode: Callable[[Any], T], data: Any) -> T:
    try:
        return decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(f"not a frame of a link: {error}") from error
