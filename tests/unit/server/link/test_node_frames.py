"""Frames between nodes arrive as they were sent, and bytes that are no frame are rejected."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from querator.model.calls import (
    BreakerCounts,
    BrowsedItem,
    DeadOrigin,
    ExecutionTotals,
    FlowCounts,
    LaterAttributes,
    LimitCounts,
    LoadedItems,
    PartitionCounts,
)
from querator.model.commands import (
    Cancel,
    Complete,
    DeadTarget,
    Done,
    DropLetters,
    Extend,
    ExtendResult,
    ItemsChanged,
    ItemsRemoved,
    Lease,
    LeaseCaller,
    LeasedSegment,
    LeaseGrant,
    LeaseItems,
    LetterFilter,
    Move,
    MovedItem,
    MoveDone,
    MoveReturn,
    Produce,
    ProduceResult,
    Purge,
    Redrive,
    RedriveResult,
    Refusal,
    Reschedule,
    Retry,
    SetBreaker,
    SettledLease,
    SettleResult,
)
from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import PLACEMENT_GROUP, GroupId, QueueId
from querator.model.lease_calls import LeaseSummary
from querator.model.queues import BreakerState, Queue, QueueSettings, QueueState
from querator.model.rates import ItemRates
from querator.model.recurrences import (
    DecidedSpan,
    Overlap,
    RecurrenceResult,
    RecurrenceRow,
    RecurrenceSpec,
    RecurrenceState,
    RunsRow,
)
from querator.model.transactions import (
    Begin,
    Participant,
    ProducerTotals,
    Stage,
    StageClaim,
    StagedTotals,
    StageResult,
    TransactionState,
    TxnResult,
)
from querator.partition.flow_queries import FlowPage
from querator.partition.lease_queries import LeaseSummaries
from querator.partition.queries import ItemPage, LeasePage
from querator.partition.recurrence_queries import RecurrencePage
from querator.partition.schedule_queries import (
    DueCounts,
    DueKey,
    DuePage,
    DuePlace,
    DueSpan,
)
from querator.partition.txn_steps import (
    CommittedQuery,
    ProducerQuery,
    StagedPage,
    StagedQuery,
    TxnQuery,
)
from querator.placement.map import commands as placement
from querator.server.link import node_frames as frames
from querator.service.routing.forwarder import (
    CarriedLease,
    DueCountsQuery,
    DueItemsQuery,
    DueKeysQuery,
    EpochQuery,
    FlowsQuery,
    ItemsQuery,
    LeasesQuery,
    LettersQuery,
    PeekQuery,
    ReadyQuery,
    RecurrencesQuery,
    StatsQuery,
    StreamLeasesQuery,
)

GROUP = GroupId(7)
QUEUE = Queue(
    namespace="default",
    name="q",
    id=QueueId(3),
    state=QueueState.ACTIVE,
    settings=QueueSettings(partitions=2),
    settings_version=4,
    created_at_ms=5,
    groups=(GROUP,),
)
COUNTS: dict[str, Any] = dict.fromkeys(PartitionCounts.__struct_fields__, 2**63)
BREAKER = BreakerCounts(BreakerState.HALF_OPEN, 2**62, 2**62, 2**63, 2**63, 999, probing=True)
LIMITS = LimitCounts(2**32 - 1, 2**32 - 1, 2**62, 2**32 - 1)
RATES = (ItemRates(0.5, 1e9, 0.0),) * 3
EXECUTIONS = ExecutionTotals(2**63, 2**62, 2**61, 2**60, 2**59)
ALL = {
    "waits_for": (0, 1_023), "breaker": BREAKER, "limits": LIMITS, "rates": RATES,
    "executions": EXECUTIONS,
}  # fmt: skip
STATS = PartitionCounts(**{**COUNTS, **ALL})
LETTER = DeadOrigin(
    origin_queue="q",
    origin_partition=1,
    origin_seq=2**63,
    attempts=3,
    reason=1,
    errors=("no",),
    produced_at_ms=4,
    died_at_ms=5,
)

COMMANDS = [
    Produce(b"\1\0\0\0", b"p" * 16, 2**63, True),
    Lease((LeaseCaller("c", "r", 5, 6, 7),)),
    Complete((LeaseItems(1, ((2**64 - 2, 1),)),), True),
    Retry(
        leases=(LeaseItems(1),),
        retry_at_ms=2,
        dead=True,
        error="why",
        count_attempt=False,
        all_or_nothing=True,
    ),
    Extend((1, 2), "c", 3),
    Move(
        1,
        2,
        b"\1\0\0\0",
        (
            MovedItem(
                origin_queue="q",
                origin_partition=0,
                origin_group=1,
                origin_seq=2,
                attempts=3,
                reason=4,
                errors=("e",),
                produced_at_ms=5,
                died_at_ms=6,
            ),
        ),
    ),
    MoveDone(1, 2),
    MoveReturn(1),
    Redrive("q", (DeadTarget("q", 0, 1),), (1, 2), 3),
    Redrive("q", (DeadTarget("q", 0, 1),), chosen=LetterFilter((1, 3), 4, 5)),
    Purge(2**63, 2**64 - 1, scheduled=True),
    Cancel(((2**64 - 9, 3),)),
    SetBreaker(open=True),
    DropLetters("q", (2**64 - 9,), 3, LetterFilter((2,), 4, 5)),
    Reschedule(((2**64 - 9, 3),), 2**47, True, 5, 6),
    Stage(
        producer="p",
        batch=2**62,
        task=3,
        attempt=b"a" * 16,
        sequence=4,
        checksum=2**32 - 1,
        lengths=b"\1\0\0\0",
    ),
    Begin("p", 1, (Participant(0, 11, (StageClaim(3, b"a" * 16, 5, 6),)),)),
]
CHANGES = [
    placement.CreateQueue("default", "q", QueueSettings()),
    placement.UpdateQueue("default", "q", QueueSettings(), ("description",), 3),
    placement.DeleteQueue("default", "q"),
]
RECURRENCE = RecurrenceState(
    2**64 - 1,
    RecurrenceRow("digest", RecurrenceSpec(cron="@daily", overlap=Overlap.SKIP), 2, True, 3),
    RunsRow(4, 5, 6, (DecidedSpan(7, 8),), True, error="slow"),
)
RESULTS = [
    Refusal(ErrorCode.QUEUE_FULL, "full", "field", "5 items", "6 items"),
    Done(3),
    ProduceResult(2**64 - 5, 3, True, ((0, 1),)),
    SettleResult((SettledLease(1, ((2, 3),), (), ((4, 5),), True),)),
    ExtendResult(((1, 2),), 3),
    RedriveResult(1, 2),
    ItemsRemoved(3, 2**64 - 1),
    RecurrenceResult(RECURRENCE, changed=True),
    ItemsChanged(3, ((2**64 - 1, 1),)),
    placement.QueueCreated(QUEUE, True),
    placement.QueueUpdated(QUEUE),
    placement.QueueDeleted(QUEUE, True),
    StageResult(repeated=True),
    TxnResult(3, TransactionState.ABORTED, False, ErrorCode.TRANSACTION_ABORTED, "no"),
]
ANSWERS: list[tuple[Any, Any]] = [
    (RecurrencesQuery(GROUP, "digest"), RecurrencePage((RECURRENCE,), 5)),
    (RecurrencesQuery(GROUP, after=3, limit=9), RecurrencePage((), 5, 7)),
    (StatsQuery(GROUP), STATS),
    (
        PeekQuery(group=GROUP, state=2, after_seq=3, limit=4, bytes_max=5, stale=True),
        ItemPage(
            (
                BrowsedItem(
                    seq=1,
                    state=2,
                    attempt=3,
                    produced_at_ms=4,
                    due_at_ms=5,
                    lease=6,
                    dead_letter=LETTER,
                    errors=("e",),
                    item=b"\x7a\0",
                    client_id="me",
                    deadline_ms=7,
                    leased_at_ms=8,
                ),
            ),
            9,
        ),
    ),
    (
        DueKeysQuery(GROUP, DueSpan(3, 4, "mail"), DuePlace(5, 2**64 - 1), 6, True),
        DuePage((DueKey(7, 2**64 - 1, 8),), DuePlace(9, 10)),
    ),
    (DueKeysQuery(GROUP, DueSpan(), DuePlace(0, 0), 1), DuePage((), None)),
    (
        DueItemsQuery(GROUP, (DuePlace(5, 1),)),
        (
            BrowsedItem(
                seq=1,
                state=3,
                attempt=0,
                produced_at_ms=4,
                due_at_ms=5,
                lease=0,
                dead_letter=None,
                errors=(),
                item=b"\x7a\0",
            ),
        ),
    ),
    (
        DueCountsQuery(GROUP, DueSpan(3, 4), 1_000, DuePlace(5, 6)),
        DueCounts(((0, 3), (7, 1)), 8, 9, DuePlace(10, 11)),
    ),
    (LettersQuery(GROUP, None, 3, 4, 5), ItemPage((), 0)),
    (ItemsQuery(GROUP, (1, 2**63), 3, True), ItemPage((), 7)),
    (
        FlowsQuery(GROUP, bytes(range(16)), 100, True),
        FlowPage((FlowCounts(b"eu.de", 3, 50, 60, 7, 8, 9, 10, 11, 12),), b"h" * 16),
    ),
    (
        StreamLeasesQuery(
            group=GROUP, client_id="c", consumer_id="me", before=2, after_lease=3, limit=4
        ),
        LeasePage((2**63, 5), 5),
    ),
    (
        LeasesQuery(GROUP, "c", 2, 3, 4, True),
        LeaseSummaries((LeaseSummary(1, "c", 2, 3, 4, 5),), 6),
    ),
    (ReadyQuery(QueueId(3)), ((GROUP, 5),)),
    (EpochQuery(), 17),
    (TxnQuery(GROUP, 3, "p", 2**62, 500), TxnResult(3, TransactionState.COMMITTED)),
    (CommittedQuery(GROUP, ("p", "q")), (-1, 7)),
    (ProducerQuery(GROUP, "p"), ProducerTotals(3, 4, 5)),
    (
        StagedQuery(GROUP, 10),
        StagedPage(
            (
                StagedTotals(
                    producer="p",
                    batch=1,
                    stages=2,
                    items=3,
                    bytes=4,
                    begun_ms=5,
                    since_ms=6,
                    state=TransactionState.PREPARING,
                ),
            ),
            True,
        ),
    ),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda each: type(each).__name__)
def test_commands(command):
    sent = frames.propose(5, GROUP, command, b"attachment")
    [ask] = frames.decode_asks(frames.encode_asks([sent]))
    assert isinstance(ask, frames.Propose)
    assert (ask.id, ask.group, ask.attachment) == (5, GROUP, b"attachment")
    assert frames.command_of(ask) == command


@pytest.mark.parametrize("command", CHANGES, ids=lambda each: type(each).__name__)
def test_changes_of_the_map(command):
    [ask] = frames.decode_asks(
        frames.encode_asks([frames.propose(5, PLACEMENT_GROUP, command, b"")])
    )
    assert isinstance(ask, frames.Propose)
    assert frames.command_of(ask) == command


@pytest.mark.parametrize("value", RESULTS, ids=lambda each: type(each).__name__)
def test_results(value):
    [answer] = frames.decode_answers(frames.encode_answers([frames.result(5, value)]))
    assert isinstance(answer, frames.Result)
    assert frames.value_of(answer) == value


def test_leases_bring_what_is_leased():
    mask = (1 << 256) - 1
    loaded = LoadedItems(
        first_seq=9,
        ordinals=(0, 2),
        count=2,
        produced_at_ms=3,
        overlays=(LaterAttributes(1, LETTER, ("e",)),),
        items=b"items",
    )
    lease = CarriedLease(
        (
            LeaseGrant(4, 5, (LeasedSegment(9, mask, 1, 256, 1_000),), True),
            Refusal(ErrorCode.ITEM_TOO_LARGE, "large"),
            LeaseGrant(0, 0, ()),
        ),
        11,
        ((loaded,), (), ()),
        12,
        (GroupId(13), 14),
    )
    [answer] = frames.decode_answers(frames.encode_answers([frames.result(5, lease)]))
    assert isinstance(answer, frames.Result)
    got = frames.value_of(answer)
    assert (got.loaded, got.ready, got.now_ms) == (lease.loaded, 12, 11)
    assert got.elsewhere == (13, 14)
    assert got.grants[0].segments == (LeasedSegment(9, 0, 1, 256, 1_000),)
    assert (got.grants[0].lease, got.grants[0].deadline_ms, got.grants[0].repeated) == (4, 5, True)
    assert got.grants[1:] == lease.grants[1:]


@pytest.mark.parametrize(("query", "value"), ANSWERS)
def test_questions_and_replies(query, value):
    [ask] = frames.decode_asks(frames.encode_asks([frames.Question(5, query)]))
    assert ask == frames.Question(5, query)
    [answer] = frames.decode_answers(frames.encode_answers([frames.reply(5, value)]))
    assert isinstance(answer, frames.Reply)
    assert frames.reply_of(answer, query) == value


def test_failures_offers_demands_and_the_end():
    error = QueratorError(
        ErrorCode.OVERLOADED, "much", field="f", limit="1", value="2", retry_delay_ms=50
    )
    said: list[frames.Answer] = [frames.failure(5, error), frames.Offer(GROUP, 3), frames.Closing()]
    got = frames.decode_answers(frames.encode_answers(said))
    assert got == said
    assert isinstance(got[0], frames.ErrorFrame)
    again = frames.error_of(got[0])
    assert vars(again) == vars(error)
    demand = frames.Demand(QueueId(3), 1, 100)
    assert frames.decode_asks(frames.encode_asks([demand])) == [demand]


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data):
    for decode in (frames.decode_asks, frames.decode_answers, frames.decode_hello):
        try:
            decode(data)
        except frames.FrameError:
            continue


@given(st.data())
def test_damaged_frames_are_refused_or_read(data):
    whole = frames.encode_asks([frames.propose(5, GROUP, COMMANDS[1], b"x")])
    at = data.draw(st.integers(0, len(whole) - 1))
    damaged = bytearray(whole)
    damaged[at] = data.draw(st.integers(0, 255))
    try:
        for ask in frames.decode_asks(bytes(damaged)):
            if isinstance(ask, frames.Propose):
                frames.command_of(ask)
    except frames.FrameError:
        return


def test_results_of_a_kind_that_is_not_known():
    with pytest.raises(frames.FrameError, match="kind 99"):
        frames.value_of(frames.Result(1, 99, frames.result(1, Done()).result))
