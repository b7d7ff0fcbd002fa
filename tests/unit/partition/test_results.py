"""Results of items: what asks for one, how it ends, how long it is kept, and what it counts for."""

import sys
from struct import pack
from types import FrameType
from typing import Any

import pytest

from querator.model.commands import (
    Answer,
    AnsweredItem,
    Cancel,
    Complete,
    Expire,
    Extend,
    Follow,
    FollowTarget,
    GiveUp,
    ItemSpecial,
    LeaseGrant,
    LeaseItems,
    MoveDone,
    MoveReturn,
    Produce,
    Purge,
    Refusal,
    RepairTime,
    Retry,
    Route,
)
from querator.model.entries import Proposal, Tier
from querator.model.errors import ErrorCode
from querator.model.item_options import OnDuplicate
from querator.model.limits import KEEP_RESULT_MS_MAX, MINUTE_MS
from querator.model.queues import DedupUntil
from querator.model.readers import AdvanceReader, OpenReader
from querator.model.result_calls import EndedItem, ItemEnd
from querator.partition import results
from querator.partition.dedup_export import ClosureQuery, closure
from querator.partition.result_queries import ended_items
from querator.partition.rows import DeadCause, decode_state
from querator.storage.attachments import AttachmentDamaged
from querator.storage.memory_environment import MemoryEnvironment
from querator.storage.tables import ATTACHMENTS, RESULTS, STATE
from tests.unit.partition.partition_log import GROUP, PartitionLog, dead_to, lease_of, produce

KEEP_MS = 600_000
DEAD_GROUP = 9


@pytest.fixture
def log() -> PartitionLog:
    log = PartitionLog()
    log.configure()
    return log


def asking(*ordinals: int, keep_ms: int = KEEP_MS, **changes: Any) -> tuple[ItemSpecial, ...]:
    return tuple(ItemSpecial(ordinal, keep_result_ms=keep_ms, **changes) for ordinal in ordinals)


def lease(log: PartitionLog, count: int = 100) -> int:
    grant = log.one(lease_of(count)).grants[0]
    assert isinstance(grant, LeaseGrant)
    return grant.lease


def answering(complete: Complete, *returned: tuple[int, int, bytes]) -> Proposal:
    """`returned` are (lease, sequence, data)."""
    return Proposal(
        Answer(
            complete,
            pack(f"<{len(returned)}I", *(len(data) for _, _, data in returned)),
            tuple(AnsweredItem(number, seq) for number, seq, _ in returned),
        ),
        b"".join(data for _, _, data in returned),
    )


def complete_with(log: PartitionLog, number: int, *returned: tuple[int, bytes]) -> Any:
    """Completes what the lease holds."""
    named = [(number, seq, data) for seq, data in returned]
    return log.entry(answering(Complete((LeaseItems(number),)), *named))[0]


def ended(log: PartitionLog, *seqs: int, bytes_max: int = 10**9) -> dict[int, EndedItem]:
    with log.environment.snapshot() as txn:
        page = ended_items(txn, log.group, seqs, bytes_max=bytes_max)
    return {item.seq: item for item in page.items}


def ends(log: PartitionLog, *seqs: int) -> dict[int, tuple[int, bytes]]:
    return {seq: (item.outcome, item.data) for seq, item in ended(log, *seqs).items()}


def counted(log: PartitionLog) -> tuple[int, int, int, int]:
    with log.environment.snapshot() as txn:
        raw = STATE.get(txn, log.group)
    assert raw is not None
    state = decode_state(raw)
    return state.results, state.asked, state.answered, state.result_bytes


def attachments_of(log: PartitionLog) -> int:
    """Attachments that the state holds, when the log is short."""
    for _ in range(log.keep + 1):
        log.one(Extend((1,)))
    with log.environment.snapshot() as txn:
        return len(list(ATTACHMENTS.rows(txn, log.group)))


def sweep(log: PartitionLog, ms: int) -> None:
    log.now_ms += ms
    for _ in range(5):
        for command in log.machine.due_commands(log.now_ms):
            log.one(command)


def test_a_complete_returns_results_to_the_items_that_asked(log):
    log.produce(3, specials=asking(0, 2))
    assert ends(log, 1, 3) == {}
    assert counted(log) == (2, 2, 0, 0)
    number = lease(log)
    result = complete_with(log, number, (1, b"one"), (2, b"two"), (3, b"three"))
    assert result.outcomes[0].done == ((1, 3),)
    assert ends(log, 1, 3) == {1: (ItemEnd.COMPLETED, b"one"), 3: (ItemEnd.COMPLETED, b"three")}
    assert ended(log, 2)[2].outcome == ItemEnd.NONE
    assert counted(log) == (2, 0, 2, 8)
    # The item that has not asked has left nothing.
    assert attachments_of(log) == 2


def test_a_complete_without_results_ends_with_an_empty_one(log):
    log.produce(2, specials=asking(0, 1))
    log.one(Complete((LeaseItems(lease(log), ((1, 1),)),)))
    assert ends(log, 1, 2) == {1: (ItemEnd.COMPLETED, b"")}
    assert complete_with(log, 1, (2, b"")).outcomes[0].done == ((2, 1),)
    assert ends(log, 1, 2)[2] == (ItemEnd.COMPLETED, b"")
    assert attachments_of(log) == 0


def test_the_effects_of_an_entry_name_the_items_that_ended_in_it(log):
    log.produce(3, specials=asking(0, 1, 2))
    assert (log.applied.effects.answered, log.applied.effects.answered_seqs) == (0, ())
    number = lease(log)
    log.one(Complete((LeaseItems(number, ((1, 1), (3, 1))),)))
    assert (log.applied.effects.answered, log.applied.effects.answered_seqs) == (2, (1, 3))
    log.one(Extend((number,)))
    assert (log.applied.effects.answered, log.applied.effects.answered_seqs) == (2, ())


def test_a_repeat_of_a_complete_does_not_change_the_result(log):
    log.produce(1, specials=asking(0))
    number = lease(log)
    complete_with(log, number, (1, b"first"))
    again = complete_with(log, number, (1, b"second"))
    assert again.outcomes[0].repeated == ((1, 1),)
    assert ends(log, 1) == {1: (ItemEnd.COMPLETED, b"first")}
    assert attachments_of(log) == 1


def test_only_the_lease_that_holds_the_item_returns_its_result(log):
    log.produce(2, specials=asking(0, 1))
    first = lease(log, 1)
    log.advance(30_000)
    second, third = lease(log, 1), lease(log, 1)
    lost = complete_with(log, first, (1, b"late"))
    assert lost.outcomes[0].lost == ((1, 1),)
    assert ends(log, 1, 2) == {}
    # Both leases are named, and each result belongs to one of them.
    of = {2: second, 1: third} if lease_has(log, second, 2) else {1: second, 2: third}
    other = {1: of[2], 2: of[1]}
    leases = (LeaseItems(second), LeaseItems(third))
    log.entry(answering(Complete(leases), (of[1], 1, b"mine"), (other[2], 2, b"not mine")))
    assert ends(log, 1, 2) == {1: (ItemEnd.COMPLETED, b"mine"), 2: (ItemEnd.COMPLETED, b"")}
    assert attachments_of(log) == 1


def lease_has(log: PartitionLog, number: int, seq: int) -> bool:
    result = log.one(Complete((LeaseItems(number, ((seq, 1), (77, 1))),), all_or_nothing=True))
    return bool(result.outcomes[0].lost == ((77, 1),))


def test_a_lost_item_leaves_no_result_of_an_all_or_nothing_complete(log):
    log.produce(1, specials=asking(0))
    number = lease(log)
    command = Complete((LeaseItems(number, ((1, 1), (9, 1))),), all_or_nothing=True)
    log.entry(answering(command, (number, 1, b"one")))
    assert ends(log, 1) == {}
    assert attachments_of(log) == 1


@pytest.mark.parametrize(
    "command",
    [
        Answer(Complete((LeaseItems(1),)), pack("<2I", 1, 0), (AnsweredItem(1, 1),)),
        Answer(Complete((LeaseItems(1),)), pack("<I", 1), ()),
    ],
)
def test_a_malformed_command_is_refused_and_leaves_nothing(log, command):
    log.produce(1, specials=asking(0))
    lease(log)
    refused = log.one(command, b"x")
    assert isinstance(refused, Refusal)
    assert (refused.code, refused.field) == (ErrorCode.INVALID_ARGUMENT, "results")
    assert ends(log, 1) == {}
    assert attachments_of(log) == 1


def test_an_unconfigured_partition_refuses_results(log):
    empty = PartitionLog()
    refused = complete_with(empty, 1, (1, b"x"))
    assert refused.code is ErrorCode.UNAVAILABLE
    assert attachments_of(empty) == 0


@pytest.mark.parametrize("targets", [(), dead_to(DEAD_GROUP)])
def test_a_dead_item_answers_with_its_reason_and_last_error(log, targets):
    log.configure(2, dead_targets=targets, max_attempts=2)
    log.produce(2, specials=asking(0, 1))
    number = lease(log)
    log.one(Retry((LeaseItems(number, ((1, 1),)),), error="slow"))
    log.one(Retry((LeaseItems(number, ((2, 1),)),), error="no such address", dead=True))
    log.one(Retry((LeaseItems(lease(log)),), error="broken"))
    found = ended(log, 1, 2)
    assert (found[1].outcome, found[1].reason) == (ItemEnd.DEAD, DeadCause.ATTEMPTS)
    assert (found[1].error, found[1].attempts) == ("broken", 2)
    assert (found[2].outcome, found[2].reason) == (ItemEnd.DEAD, DeadCause.REJECTED)
    assert (found[2].error, found[2].attempts) == ("no such address", 1)
    assert found[2].ended_ms == log.now_ms


def test_an_expired_item_answers(log):
    log.produce(1, specials=asking(0, expire_timeout_ms=1000))
    log.now_ms += 2000
    log.one(Expire())
    assert ended(log, 1)[1].reason == DeadCause.EXPIRED
    assert ended(log, 1)[1].attempts == 0


def test_a_lapse_that_uses_up_the_attempts_answers(log):
    log.configure(2, max_attempts=1)
    log.produce(1, specials=asking(0))
    lease(log)
    log.advance(30_000)
    assert (ended(log, 1)[1].reason, ended(log, 1)[1].error) == (DeadCause.ATTEMPTS, "")


def test_the_first_end_is_final(log):
    log.configure(2, dead_targets=dead_to(DEAD_GROUP))
    log.produce(2, specials=asking(0, 1))
    number = lease(log)
    log.one(Retry((LeaseItems(number),), dead=True))
    first = ended(log, 1, 2)
    log.one(MoveDone(DEAD_GROUP, 1))
    log.one(MoveReturn(DEAD_GROUP))
    complete_with(log, lease(log), (2, b"too late"))
    assert ended(log, 1, 2) == first
    assert counted(log)[2] == 2
    assert attachments_of(log) == 0


def test_an_item_that_returns_after_its_result_is_over_has_none(log):
    log.configure(2, dead_targets=dead_to(DEAD_GROUP))
    log.produce(1, specials=asking(0, keep_ms=1000))
    log.one(Retry((LeaseItems(lease(log)),), dead=True))
    sweep(log, 2 * MINUTE_MS)
    log.one(MoveReturn(DEAD_GROUP))
    assert "without keep_result" in ended(log, 1)[1].error
    complete_with(log, lease(log), (1, b"too late"))
    assert ended(log, 1)[1].outcome == ItemEnd.NONE
    assert counted(log) == (0, 0, 1, 0)


@pytest.mark.parametrize(
    "removal",
    [
        Cancel(((1, 2),)),
        Purge(0, 2, scheduled=True),
        GiveUp((1,)),
    ],
)
def test_removed_items_answer(log, removal):
    log.produce(2, specials=asking(0, 1))
    log.one(removal)
    assert ends(log, 1, 2) == {1: (ItemEnd.REMOVED, b""), 2: (ItemEnd.REMOVED, b"")}


def test_an_item_that_an_operator_rejects_answers(log):
    log.produce(1, specials=asking(0))
    log.one(Cancel(((1, 1),), dead=True))
    assert ended(log, 1)[1].reason == DeadCause.REJECTED


def test_an_item_that_a_reader_acknowledges_is_completed(log):
    log.produce(2, specials=asking(0))
    log.one(OpenReader("r", 1))
    log.one(AdvanceReader("r", 1, 0, 10, 10**6))
    assert ends(log, 1) == {}
    log.one(AdvanceReader("r", 1, 1, 0, 0))
    assert ends(log, 1) == {1: (ItemEnd.COMPLETED, b"")}


def test_a_replaced_item_answers_also_in_its_own_entry(log):
    log.configure(2, dedup_until=DedupUntil.DONE)
    waits = asking(0, dedup_key=b"k")
    takes = (ItemSpecial(0, dedup_key=b"k", on_duplicate=OnDuplicate.REPLACE),)
    log.produce(1, specials=waits)
    log.produce(1, specials=takes)
    assert ends(log, 1) == {1: (ItemEnd.REMOVED, b"")}
    complete_with(log, lease(log))
    log.entry(produce([b"a"], specials=waits), produce([b"b"], specials=takes))
    assert ends(log, 3) == {3: (ItemEnd.REMOVED, b"")}


def test_an_item_that_repeats_a_dedup_key_asks_for_nothing(log):
    log.produce(1, specials=asking(0, dedup_key=b"k"))
    result = log.produce(2, specials=asking(0, 1, dedup_key=b"k"))
    assert [duplicate[:2] for duplicate in result.duplicates] == [(0, 1), (1, 1)]
    assert counted(log) == (1, 1, 0, 0)


def test_a_repeated_produce_asks_once(log):
    results = [
        log.produce(1, specials=asking(0), producer_id=uuid7(log), sequence=1) for _ in range(2)
    ]
    assert [result.repeated for result in results] == [False, True]
    assert counted(log) == (1, 1, 0, 0)


def uuid7(log: PartitionLog) -> bytes:
    head = log.now_ms.to_bytes(6, "big")
    return head + bytes([0x70, 0, 0x80]) + bytes(7)


def test_results_are_kept_for_their_time_after_the_end(log):
    log.produce(2, specials=(*asking(0, keep_ms=5_000), *asking(1, keep_ms=10 * MINUTE_MS)))
    number = lease(log)
    log.now_ms += 20_000
    complete_with(log, number, (1, b"short"), (2, b"long"))
    sweep(log, 4_999)
    assert set(ends(log, 1, 2)) == {1, 2}
    assert counted(log)[0] == 2
    sweep(log, MINUTE_MS)
    assert "keep_result is over" in ended(log, 1)[1].error
    assert ends(log, 2) == {2: (ItemEnd.COMPLETED, b"long")}
    assert counted(log) == (1, 0, 2, 4)
    sweep(log, 10 * MINUTE_MS)
    assert ended(log, 2)[2].outcome == ItemEnd.NONE
    assert counted(log) == (0, 0, 2, 0)
    assert attachments_of(log) == 0


def test_no_result_is_kept_longer_than_the_limit(log):
    log.produce(1, specials=asking(0, keep_ms=10**12))
    log.one(Complete((LeaseItems(lease(log)),)))
    sweep(log, KEEP_RESULT_MS_MAX + MINUTE_MS)
    assert counted(log)[0] == 0


def test_many_results_are_forgotten_in_bounded_steps(log):
    log.checked = False
    for _ in range(3):
        log.produce(1000, specials=asking(*range(1000), keep_ms=1000))
    for _ in range(3):
        log.one(Complete((LeaseItems(lease(log, 1000)),)))
    log.now_ms += MINUTE_MS
    left = []
    while counted(log)[0]:
        log.one(Expire())
        left.append(counted(log)[0])
    assert left == [1000, 0]
    log.checked = True
    log.one(Expire())


def test_a_lapse_of_many_items_counts_its_results(log):
    log.checked = False
    log.configure(2, max_attempts=1)
    for _ in range(4):
        log.produce(1000, specials=asking(*range(1000)))
    for _ in range(4):
        lease(log, 1000)
    log.now_ms += 30_000
    answered = []
    while counted(log)[1]:
        log.one(Expire())
        answered.append(counted(log)[2])
    assert answered == [2000, 4000]


def test_the_limit_of_results_refuses_a_produce_and_no_complete(log, monkeypatch):
    monkeypatch.setattr(results, "RESULTS_MAX", 3)
    log.produce(2, specials=asking(0, 1))
    refused, accepted = log.entry(
        produce([b"a", b"b"], specials=asking(0, 1)), produce([b"c"], specials=asking(0))
    )
    assert isinstance(refused, Refusal)
    assert (refused.code, refused.field) == (ErrorCode.TOO_MANY_RESULTS, "keep_result")
    assert (refused.limit, refused.value) == ("3", "4")
    assert accepted.count == 1
    log.produce(1)
    complete_with(log, lease(log), (1, b"one"), (2, b"two"))
    # Kept results count, until they are over.
    assert isinstance(log.produce(1, specials=asking(0)), Refusal)
    sweep(log, KEEP_MS + MINUTE_MS)
    assert log.produce(1, specials=asking(0)).count == 1


def test_follow_ups_ask_for_nothing_and_their_items_still_answer(log):
    log.produce(1, specials=asking(0))
    settle = Complete((LeaseItems(lease(log)),), all_or_nothing=True)
    log.one(Follow(settle, pack("<I", 1), (FollowTarget("work", 0, 0, 1),), asking(0)), b"x")
    assert ends(log, 1) == {1: (ItemEnd.COMPLETED, b"")}
    assert counted(log) == (1, 0, 1, 0)


def test_a_closing_partition_stays_until_its_results_are_over():
    log = PartitionLog()
    log.configure(partition=1)
    log.produce(1, specials=asking(0, keep_ms=KEEP_RESULT_MS_MAX))
    log.one(Complete((LeaseItems(lease(log)),)))
    log.one(Route(2, 1, open=True))
    sweep(log, KEEP_RESULT_MS_MAX - 1)
    with log.environment.snapshot() as txn:
        assert not closure(txn, ClosureQuery(GROUP)).is_empty
    sweep(log, 2 * MINUTE_MS)
    with log.environment.snapshot() as txn:
        assert closure(txn, ClosureQuery(GROUP)).is_empty


def test_a_repair_of_time_keeps_results_for_their_time_from_then_on(log):
    log.produce(2, specials=asking(0, 1))
    number = lease(log)
    log.one(Complete((LeaseItems(number, ((1, 1),)),)))
    true_ms = log.now_ms
    log.now_ms += 10**9
    log.one(Complete((LeaseItems(number, ((2, 1),)),)))
    # The leader has no time to sweep before the repair.
    log.now_ms = true_ms
    log.one(RepairTime(true_ms))
    log.one(Expire())
    assert ended(log, 2)[2].ended_ms == true_ms
    sweep(log, KEEP_MS - 1)
    assert set(ends(log, 1, 2)) == {1, 2}
    sweep(log, 2 * MINUTE_MS)
    assert counted(log)[0] == 0


def test_a_page_ends_at_its_bytes_and_has_at_least_one(log):
    log.produce(3, specials=asking(0, 1, 2))
    complete_with(log, lease(log), (1, b"x" * 100), (2, b"y" * 100), (3, b"z"))
    assert set(ended(log, 1, 2, 3, bytes_max=50)) == {1}
    assert set(ended(log, 2, 3, bytes_max=50)) == {2}
    assert set(ended(log, 1, 2, 3, bytes_max=200)) == {1, 2}


def test_the_reason_why_there_is_no_result(log):
    log.produce(2, specials=asking(0))
    assert ended(log, 2)[2].error == "the item was produced without keep_result"
    assert ended(log, 3)[3].error == ended(log, 0)[0].error == "the queue has no such item"
    log.one(Complete((LeaseItems(lease(log)),)))
    assert "keep_result is over, or it was produced without one" in ended(log, 2)[2].error


def test_a_damaged_result_is_an_error(log):
    log.produce(1, specials=asking(0))
    complete_with(log, lease(log), (1, b"one"))
    txn = log.environment.begin()
    (key, stored), *_ = ATTACHMENTS.rows(txn, GROUP, log.index)
    txn.put(key, stored[:-1] + b"?")
    txn.commit(sync=False)
    with pytest.raises(AttachmentDamaged):
        ended(log, 1)


def test_space_for_a_result_is_refused_before_a_plain_complete(log):
    log.produce(1, specials=asking(0))
    number = lease(log)
    plain = Complete((LeaseItems(number),))
    with log.environment.snapshot() as txn:
        assert log.machine.need(txn, plain).tier is Tier.FREES
        with_data = answering(plain, (number, 1, b"x")).command
        assert log.machine.need(txn, with_data).tier is Tier.LEASES


def test_plain_items_cost_no_function_of_results(log):
    """Not one more row or call on the way of an item that asks for nothing."""
    calls: list[str] = []

    def trace(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename == results.__file__:
            calls.append(frame.f_code.co_name)

    log.checked = False
    sys.setprofile(trace)
    try:
        log.produce(100)
        log.one(Complete((LeaseItems(lease(log)),)))
        log.produce(1)
        log.one(Retry((LeaseItems(lease(log)),), dead=True))
    finally:
        sys.setprofile(None)
    assert calls == []


def test_replicas_and_restarts_agree(log):
    log.produce(2, specials=asking(0, 1))
    complete_with(log, lease(log, 1), (1, b"one"))
    other = PartitionLog(MemoryEnvironment())
    other.now_ms = log.now_ms
    for command, parts in log.entries:
        other.replay(command, parts)
    with log.environment.snapshot() as txn, other.environment.snapshot() as theirs:
        assert log.machine.digest(txn) == other.machine.digest(theirs)
        assert len(list(RESULTS.rows(theirs, GROUP))) == 2
        assert other.machine.recover(theirs).effects.answered == 1


def test_a_produce_without_a_result_has_no_row(log):
    log.entry(Proposal(Produce(pack("<I", 1), specials=(ItemSpecial(0, priority=1),)), b"x"))
    assert counted(log) == (0, 0, 0, 0)
