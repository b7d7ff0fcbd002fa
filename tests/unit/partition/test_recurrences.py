"""Recurrences of a partition: each due time is decided once, whatever leaders propose."""

from datetime import UTC, datetime
from struct import pack
from typing import Any

import msgspec
import pytest

from querator.model.commands import (
    Complete,
    Configure,
    Done,
    LeaseItems,
    RepairTime,
    Retry,
)
from querator.model.entries import Proposal
from querator.model.errors import ErrorCode
from querator.model.limits import RECURRENCES_MAX
from querator.model.recurrences import (
    DecidedSpan,
    DeleteRecurrence,
    Fire,
    MissedRuns,
    Overlap,
    PauseRecurrence,
    PutRecurrence,
    RecurrenceResult,
    RecurrenceSpec,
    RecurrenceState,
    Remind,
)
from querator.partition import queries, recurrence_queries
from querator.partition.rows import PartitionState, decode_state
from querator.service.recurring.planning import plan
from querator.storage.tables import STATE
from querator.v1 import items_pb2, queue_service_pb2
from tests.unit.partition.partition_log import (
    GROUP,
    START_MS,
    PartitionLog,
    dead_to,
    lease_of,
    seqs,
    settings,
)

MINUTE_MS = 60_000
EVERY_MINUTE = RecurrenceSpec(interval_ms=MINUTE_MS, phase_ms=0, item=b"\x0a\x01x")


def new_log(**changes) -> PartitionLog:
    log = PartitionLog()
    log.configure(**changes)
    return log


def make(log: PartitionLog, name: str = "r", **changes) -> RecurrenceState:
    spec = msgspec.structs.replace(EVERY_MINUTE, **changes)
    result = log.one(PutRecurrence(name, spec))
    assert isinstance(result, RecurrenceResult)
    return result.recurrence


def get(log: PartitionLog, name: str = "r") -> RecurrenceState:
    with log.environment.snapshot() as txn:
        [found] = recurrence_queries.by_name(txn, GROUP, name).recurrences
    return found


def waiting(log: PartitionLog) -> recurrence_queries.RecurrencePage:
    with log.environment.snapshot() as txn:
        return recurrence_queries.waiting(txn, GROUP, after=0, limit=1_000, bytes_max=1 << 30)


def state(log: PartitionLog) -> PartitionState:
    with log.environment.snapshot() as txn:
        raw = STATE.get(txn, log.group)
    assert raw is not None
    return decode_state(raw)


def lead(log: PartitionLog) -> list[Done]:
    """Does what a leader does until no recurrence waits."""
    done: list[Done] = []
    for _ in range(100):
        page = waiting(log)
        if not page.recurrences:
            assert not log.applied.effects.recurring
            return done
        assert log.applied.effects.recurring == len(page.recurrences)
        done += log.entry(*(Proposal(*plan(GROUP, one, page.now_ms)) for one in page.recurrences))
    raise AssertionError("what waits must become decided")


def pass_time(log: PartitionLog, milliseconds: int) -> None:
    log.advance(milliseconds)
    lead(log)


def lease_all(log: PartitionLog) -> list[int]:
    return seqs(log.one(lease_of(200)).grants[0])


def fire(found: RecurrenceState, *due_ms: int, **changes) -> Proposal:
    """A decision with items of one byte."""
    count = len(due_ms)
    upto_ms = due_ms[-1] if due_ms else found.runs.after_ms
    values: dict[str, Any] = {
        "recurrence": found.number,
        "revision": found.row.revision,
        "after_ms": found.runs.after_ms,
        "number": found.runs.fired + 1,
        "due_ms": due_ms,
        "lengths": pack(f"<{count}I", *[1] * count),
        "specials": (),
        "missed": 0,
        "upto_ms": upto_ms,
        "next_due_ms": upto_ms + MINUTE_MS,
        "next_at_ms": upto_ms + MINUTE_MS,
    }
    return Proposal(Fire(**(values | changes)), b"x" * count)


def test_a_recurrence_produces_one_item_at_each_due_time():
    log = new_log()
    made = make(log)
    assert (made.number, made.row.revision, made.runs.after_ms) == (1, 1, START_MS)
    assert lead(log) == [Done(1)]
    first_ms = get(log).runs.next_due_ms
    assert START_MS < first_ms <= START_MS + MINUTE_MS
    assert first_ms % MINUTE_MS == 0
    pass_time(log, first_ms - START_MS - 1)
    assert state(log).ready == 0
    pass_time(log, 1)
    assert (state(log).ready, get(log).runs.fired) == (1, 1)
    for _ in range(5):
        pass_time(log, MINUTE_MS)
    runs = get(log).runs
    assert (runs.fired, runs.last_due_ms, runs.last_seq) == (6, first_ms + 5 * MINUTE_MS, 6)
    assert runs.spans == (DecidedSpan(first_ms, first_ms + 5 * MINUTE_MS),)
    assert lease_all(log) == [1, 2, 3, 4, 5, 6]


def test_remind_comes_when_time_has_come_and_not_before():
    log = new_log()
    make(log)
    lead(log)
    due_ms = get(log).runs.next_due_ms
    assert log.applied.prompt_ms == due_ms
    assert log.machine.due_commands(due_ms - 1) == []
    assert log.machine.due_commands(due_ms) == [Remind()]
    assert log.machine.due_commands(due_ms, prompt=True) == [Remind()]


def test_a_decision_that_is_repeated_decides_nothing():
    log = new_log()
    make(log)
    log.advance(2 * MINUTE_MS)
    [found] = waiting(log).recurrences
    decision = Proposal(*plan(GROUP, found, log.now_ms))
    assert log.entry(decision, decision) == (Done(1), Done(0))
    assert log.entry(decision) == (Done(0),)
    assert state(log).ready == get(log).runs.fired == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"revision": 2},
        {"after_ms": START_MS + 1},
        {"number": 2},
        {"recurrence": 2},
        {"upto_ms": START_MS + 3 * MINUTE_MS},
        {"next_due_ms": START_MS + 1},
        {"next_at_ms": START_MS + MINUTE_MS},
        {"lengths": b""},
    ],
)
def test_a_decision_that_is_not_the_next_one_is_refused(changes):
    log = new_log()
    found = make(log)
    log.now_ms += 2 * MINUTE_MS
    proposal = fire(found, START_MS + MINUTE_MS, **changes)
    if not proposal.command.lengths:
        proposal = Proposal(proposal.command)
    assert log.entry(proposal) == (Done(0),)
    assert get(log).runs == found.runs
    assert log.entry(fire(found, START_MS + MINUTE_MS)) == (Done(1),)


@pytest.mark.parametrize(
    "due_ms",
    [
        (START_MS,),
        (START_MS + 3 * MINUTE_MS,),
        (START_MS + MINUTE_MS, START_MS + MINUTE_MS),
        (START_MS + 2 * MINUTE_MS, START_MS + MINUTE_MS),
    ],
)
def test_due_times_ascend_and_have_come(due_ms):
    log = new_log()
    found = make(log)
    log.now_ms += 2 * MINUTE_MS
    assert log.entry(fire(found, *due_ms)) == (Done(0),)
    assert state(log).ready == 0


def test_a_decision_for_a_deleted_recurrence_decides_nothing():
    """Also when another one has the name: numbers are never used again."""
    log = new_log()
    old = make(log)
    assert log.one(DeleteRecurrence("r")).changed
    assert log.applied.effects.recurring == 0
    new = make(log)
    assert new.number == 2
    log.now_ms += 2 * MINUTE_MS
    assert log.entry(fire(old, START_MS + MINUTE_MS)) == (Done(0),)
    assert log.entry(fire(new, START_MS + MINUTE_MS)) == (Done(1),)


def test_items_of_a_deleted_recurrence_stay():
    log = new_log()
    make(log)
    pass_time(log, MINUTE_MS)
    log.one(DeleteRecurrence("r"))
    pass_time(log, 10 * MINUTE_MS)
    assert state(log).ready == 1
    assert waiting(log).recurrences == ()


def test_creation_may_be_repeated():
    log = new_log()
    first = log.one(PutRecurrence("r", EVERY_MINUTE))
    again = log.one(PutRecurrence("r", EVERY_MINUTE))
    assert (first.changed, again.changed) == (True, False)
    assert again.recurrence == first.recurrence
    other = msgspec.structs.replace(EVERY_MINUTE, jitter_ms=1)
    refusal = log.one(PutRecurrence("r", other))
    assert (refusal.code, refusal.field) == (ErrorCode.RECURRENCE_EXISTS, "name")


def test_a_queue_has_a_limited_number_of_recurrences():
    log = new_log()
    log.checked = False
    for number in range(RECURRENCES_MAX):
        make(log, f"r{number}")
    refusal = log.one(PutRecurrence("more", EVERY_MINUTE))
    assert refusal.code is ErrorCode.TOO_MANY_RECURRENCES
    assert (refusal.field, refusal.limit, refusal.value) == ("name", "1000", "1001")
    log.one(DeleteRecurrence("r5"))
    log.checked = True
    assert log.one(PutRecurrence("more", EVERY_MINUTE)).changed
    pass_time(log, MINUTE_MS)
    assert state(log).ready == RECURRENCES_MAX


def test_an_update_names_the_revision_and_may_be_repeated():
    log = new_log()
    make(log)
    pass_time(log, MINUTE_MS)
    before = get(log).runs
    item = msgspec.structs.replace(EVERY_MINUTE, item=b"\x0a\x01y")
    result = log.one(PutRecurrence("r", item, 1))
    assert (result.changed, result.recurrence.row.revision) == (True, 2)
    assert result.recurrence.runs == before
    assert log.one(PutRecurrence("r", item, 1)).changed is False
    refusal = log.one(PutRecurrence("r", EVERY_MINUTE, 1))
    assert (refusal.code, refusal.field) == (ErrorCode.VERSION_CONFLICT, "expected_revision")
    refusal = log.one(PutRecurrence("none", EVERY_MINUTE, 1))
    assert (refusal.code, refusal.value) == (ErrorCode.RECURRENCE_NOT_FOUND, "none")


def test_after_a_change_of_the_schedule_due_times_count_from_then_on():
    log = new_log()
    make(log)
    pass_time(log, 3 * MINUTE_MS)
    fired = get(log).runs.fired
    other = msgspec.structs.replace(EVERY_MINUTE, interval_ms=10 * MINUTE_MS)
    log.one(PutRecurrence("r", other, 1))
    runs = get(log).runs
    assert (runs.after_ms, runs.next_due_ms, runs.spans) == (log.now_ms, 0, ())
    pass_time(log, 10 * MINUTE_MS)
    assert get(log).runs.fired == fired + 1


def test_a_paused_recurrence_rests_and_continues_with_the_due_times_after_that():
    log = new_log()
    make(log)
    pass_time(log, MINUTE_MS)
    assert log.one(PauseRecurrence("r", paused=True)).changed
    assert log.one(PauseRecurrence("r", paused=True)).changed is False
    pass_time(log, 10 * MINUTE_MS)
    assert get(log).runs.fired == 1
    assert log.machine.due_commands(log.now_ms + 100 * MINUTE_MS) == []
    assert log.one(PauseRecurrence("r", paused=False)).recurrence.row.revision == 3
    pass_time(log, MINUTE_MS)
    runs = get(log).runs
    assert (runs.fired, runs.missed) == (2, 0)
    refusal = log.one(PauseRecurrence("none", paused=True))
    assert refusal.code is ErrorCode.RECURRENCE_NOT_FOUND


def test_an_update_of_a_paused_recurrence_leaves_it_paused():
    log = new_log()
    make(log)
    log.one(PauseRecurrence("r", paused=True))
    log.one(PutRecurrence("r", msgspec.structs.replace(EVERY_MINUTE, interval_ms=1_000), 2))
    pass_time(log, MINUTE_MS)
    assert (get(log).row.paused, get(log).runs.fired) == (True, 0)


@pytest.mark.parametrize(
    ("missed", "most", "items", "skipped"),
    [
        (MissedRuns.SKIP, 1, 1, 10),
        (MissedRuns.ONE, 1, 2, 9),
        (MissedRuns.ALL, 3, 4, 7),
        (MissedRuns.ALL, 100, 11, 0),
    ],
)
def test_the_policy_decides_about_missed_due_times(missed, most, items, skipped):
    """A gap of 10 min 30 s: a due time is missed after one minute."""
    log = new_log()
    make(log, missed=missed, missed_max=most)
    lead(log)
    first_ms = get(log).runs.next_due_ms
    log.advance(first_ms + 10 * MINUTE_MS + 30_000 - log.now_ms)
    lead(log)
    runs = get(log).runs
    assert (runs.fired, runs.missed) == (items, skipped)
    assert runs.last_due_ms == first_ms + 10 * MINUTE_MS
    assert runs.next_due_ms == first_ms + 11 * MINUTE_MS


def test_many_missed_due_times_are_decided_in_several_commands():
    log = new_log()
    make(log, interval_ms=1_000, missed=MissedRuns.ALL, missed_max=1_000)
    lead(log)
    log.advance(1_000_000)
    assert lead(log) == [Done(1)] * 10
    assert (get(log).runs.fired, state(log).ready) == (1_000, 1_000)


def test_a_run_is_skipped_while_the_last_item_is_not_finished():
    log = new_log()
    make(log, overlap=Overlap.SKIP)
    pass_time(log, MINUTE_MS)
    pass_time(log, MINUTE_MS)
    runs = get(log).runs
    assert (runs.fired, runs.skipped) == (1, 1)
    grant = log.one(lease_of()).grants[0]
    pass_time(log, 20_000)
    log.one(Complete((LeaseItems(grant.lease),)))
    pass_time(log, MINUTE_MS)
    runs = get(log).runs
    assert (runs.fired, runs.skipped, runs.last_seq) == (2, 1, 2)


def test_of_due_times_that_come_together_the_first_runs_if_runs_may_not_overlap():
    log = new_log()
    make(log, overlap=Overlap.SKIP, interval_ms=1_000)
    lead(log)
    log.advance(30_000)
    lead(log)
    runs = get(log).runs
    assert (runs.fired, runs.skipped) == (1, 29)
    log.advance(30_000)
    lead(log)
    runs = get(log).runs
    assert (runs.fired, runs.skipped) == (1, 59)


def test_a_dead_item_is_finished():
    log = new_log(dead_targets=dead_to(9))
    make(log, overlap=Overlap.SKIP)
    pass_time(log, MINUTE_MS)
    grant = log.one(lease_of()).grants[0]
    log.one(Retry((LeaseItems(grant.lease),), dead=True))
    assert state(log).moving == 1
    pass_time(log, MINUTE_MS)
    assert (get(log).runs.fired, get(log).runs.skipped) == (2, 0)


def test_a_full_queue_refuses_and_the_run_waits():
    log = new_log(items_max=1)
    make(log)
    lead(log)
    log.produce(1)
    log.advance(MINUTE_MS)
    page = waiting(log)
    [refusal] = log.entry(Proposal(*plan(GROUP, page.recurrences[0], page.now_ms)))
    assert (refusal.code, refusal.limit) == (ErrorCode.QUEUE_FULL, "1")
    assert log.applied.effects.recurring == 1
    grant = log.one(lease_of()).grants[0]
    log.one(Complete((LeaseItems(grant.lease),)))
    lead(log)
    assert get(log).runs.fired == 1


def test_a_queue_with_little_space_takes_some_of_the_items():
    log = new_log(items_max=3)
    make(log, interval_ms=1_000)
    lead(log)
    log.advance(30_000)
    page = waiting(log)
    for number in (1, 2, 3):
        [found] = waiting(log).recurrences
        assert log.entry(Proposal(*plan(GROUP, found, page.now_ms, 1))) == (Done(1),)
        assert get(log).runs.fired == number
    [found] = waiting(log).recurrences
    [refusal] = log.entry(Proposal(*plan(GROUP, found, page.now_ms, 1)))
    assert refusal.code is ErrorCode.QUEUE_FULL


def test_in_a_full_queue_a_run_that_is_skipped_needs_no_space():
    log = new_log(items_max=1)
    make(log, overlap=Overlap.SKIP)
    pass_time(log, MINUTE_MS)
    pass_time(log, MINUTE_MS)
    assert (get(log).runs.fired, get(log).runs.skipped) == (1, 1)


def test_jitter_delays_each_run_by_the_same_part_on_each_node():
    log = new_log()
    make(log, jitter_ms=50_000)
    lead(log)
    delays = set()
    for _ in range(20):
        runs = get(log).runs
        delays.add(runs.place_ms - runs.next_due_ms)
        fired = runs.fired
        log.advance(runs.place_ms - log.now_ms - 1)
        assert get(log).runs.fired == fired
        pass_time(log, 1)
        assert get(log).runs.fired == fired + 1
    assert len(delays) > 10
    assert 0 <= min(delays)
    assert max(delays) <= 50_000


def test_items_have_the_template_their_due_time_and_their_number():
    item = items_pb2.Item(
        payload=b'{"at": "{{due_at}}", "n": {{number}}, "r": "{{recurrence}}", "{{other}}": 1}',
        kind="report",
        priority=-3,
        attributes={"team": "a"},
    )
    log = new_log()
    make(log, "nightly", item=item.SerializeToString())
    lead(log)
    pass_time(log, get(log, "nightly").runs.next_due_ms - log.now_ms)
    with log.environment.snapshot() as txn:
        [browsed] = queries.peek(txn, GROUP, None, after_seq=0, limit=9, bytes_max=1 << 20).items
    [produced] = queue_service_pb2.ProduceRequest.FromString(browsed.item).items
    due_at = datetime.fromtimestamp(get(log, "nightly").runs.last_due_ms / 1000, UTC)
    text = due_at.strftime("%Y-%m-%dT%H:%M:%S.000Z")
    payload = f'{{"at": "{text}", "n": 1, "r": "nightly", "{{{{other}}}}": 1}}'
    assert produced.payload == payload.encode()
    assert dict(produced.attributes) == {
        "team": "a",
        "recurrence": "nightly",
        "recurrence-number": "1",
        "recurrence-due-at": text,
    }
    assert log.one(lease_of()).grants[0].segments[0].priority == -3


# --- time goes back ------------------------------------------------------------------------------


def repair(log: PartitionLog, to_ms: int) -> None:
    log.now_ms = to_ms
    log.one(RepairTime(to_ms))


def test_after_a_repair_of_time_due_times_come_again_but_none_gets_a_second_item():
    """Time was ten days ahead. What has run by then has run; what was skipped runs in its time."""
    day_ms = 24 * 60 * MINUTE_MS
    log = new_log()
    make(log, interval_ms=day_ms, missed=MissedRuns.ONE)
    lead(log)
    first_ms = get(log).runs.next_due_ms
    pass_time(log, first_ms - log.now_ms)
    pass_time(log, 10 * day_ms)
    ahead = get(log).runs
    assert ahead.last_due_ms == first_ms + 10 * day_ms
    assert (ahead.fired, ahead.missed) == (3, 8)
    repair(log, first_ms + MINUTE_MS)
    lead(log)
    assert get(log).runs.next_due_ms == first_ms + day_ms
    for _ in range(8):
        pass_time(log, day_ms)
    runs = get(log).runs
    assert (runs.fired, runs.last_due_ms) == (11, first_ms + 8 * day_ms)
    assert runs.next_due_ms == first_ms + 11 * day_ms
    pass_time(log, 3 * day_ms)
    assert get(log).runs.last_due_ms == first_ms + 11 * day_ms
    assert get(log).runs.fired == 12


def test_a_small_step_back_repeats_no_run():
    log = new_log()
    make(log)
    lead(log)
    due_ms = get(log).runs.next_due_ms
    pass_time(log, due_ms - log.now_ms)
    repair(log, due_ms - 10_000)
    lead(log)
    assert get(log).runs.next_due_ms == due_ms + MINUTE_MS
    pass_time(log, 20_000)
    assert get(log).runs.fired == 1
    log.now_ms = due_ms + 2 * MINUTE_MS
    log.one(Remind())
    assert log.entry(fire(get(log), due_ms)) == (Done(0),)


def test_a_paused_recurrence_stays_paused_when_time_goes_back():
    log = new_log()
    make(log)
    pass_time(log, MINUTE_MS)
    pass_time(log, MINUTE_MS)
    log.one(PauseRecurrence("r", paused=True))
    repair(log, START_MS)
    pass_time(log, 20 * MINUTE_MS)
    assert get(log).runs.fired == 2


# --- others ----------------------------------------------------------------------------------


def test_a_zone_that_a_node_does_not_know_is_looked_for_again():
    log = new_log()
    make(log, cron="0 9 * * *", time_zone="Mars/Phobos", interval_ms=0)
    assert lead(log) == [Done(1)]
    runs = get(log).runs
    assert "Mars/Phobos" in runs.error
    assert (runs.next_due_ms, runs.place_ms) == (0, log.now_ms + MINUTE_MS)
    pass_time(log, MINUTE_MS)
    assert get(log).runs.place_ms == log.now_ms + MINUTE_MS
    found = get(log)
    known = msgspec.structs.replace(found.row.spec, time_zone="Europe/Berlin")
    log.one(PutRecurrence("r", known, 1))
    lead(log)
    assert (get(log).runs.error, get(log).runs.next_due_ms > 0) == ("", True)


def test_pages_are_bounded_by_number_and_bytes():
    log = new_log()
    for number in range(5):
        make(log, f"r{number}", item=b"\x0a\x64" + b"x" * 100)
    with log.environment.snapshot() as txn:
        one = recurrence_queries.page(txn, GROUP, after=0, limit=3, bytes_max=1 << 20)
        two = recurrence_queries.page(txn, GROUP, after=one.after, limit=3, bytes_max=1 << 20)
        small = recurrence_queries.page(txn, GROUP, after=0, limit=9, bytes_max=150)
    assert [each.row.name for each in one.recurrences] == ["r0", "r1", "r2"]
    assert ([each.row.name for each in two.recurrences], two.after) == (["r3", "r4"], 0)
    assert (len(small.recurrences), small.after) == (2, 2)


def test_the_settings_of_the_queue_hold_for_the_items():
    log = new_log(expire_timeout_ms=30_000)
    make(log)
    pass_time(log, MINUTE_MS)
    log.one(Configure(2, settings(expire_timeout_ms=0)))
    log.advance(40_000)
    assert state(log).expired == 1
