"""Moves between partitions: dead letters out, redrives home, each exactly once."""

import pytest

from querator.model.commands import (
    Complete,
    DeadTarget,
    Done,
    LeaseItems,
    Move,
    Moved,
    MoveDone,
    MoveElsewhere,
    MoveReturn,
    Redrive,
    RedriveResult,
    ResumeMoves,
    Retry,
    Route,
)
from querator.model.errors import ErrorCode
from querator.model.item_options import ItemSpecial
from querator.model.limits import MOVE_BATCH_BYTES_MAX, MOVE_BATCH_ITEMS_MAX
from querator.partition import queries
from querator.partition.payloads import BlockDamaged
from querator.storage.memory_environment import MemoryEnvironment
from querator.storage.tables import ATTACHMENTS, OUTBOX_TARGETS
from tests.unit.partition.partition_log import (
    GROUP,
    START_MS,
    PartitionLog,
    dead_to,
    lease_of,
    produce,
)

DEAD = 9


def pair() -> tuple[PartitionLog, PartitionLog]:
    environment = MemoryEnvironment()
    work = PartitionLog(environment, all_events=True)
    work.configure(dead_targets=dead_to(DEAD), expire_timeout_ms=3_600_000)
    dead = PartitionLog(environment, group=DEAD, all_events=True)
    dead.configure(queue="dead")
    return work, dead


def kill(log: PartitionLog, items: int | list[bytes]) -> None:
    log.produce(items)
    grant = log.one(lease_of(10_000)).grants[0]
    log.one(Retry((LeaseItems(grant.lease),), dead=True, error="broken"))


def kill_urgent(log: PartitionLog) -> None:
    """Kills two items; the second has the lower priority."""
    log.produce(2, specials=(ItemSpecial(0, priority=4), ItemSpecial(1, priority=-4)))
    grant = log.one(lease_of(9)).grants[0]
    log.one(Retry((LeaseItems(grant.lease),), dead=True))


def leased_priorities(log: PartitionLog) -> list[tuple[int, int]]:
    """The priority and the number of items of each segment, as they are leased."""
    grant = log.one(lease_of(9)).grants[0]
    return [(segment.priority, segment.count) for segment in grant.segments]


def batch_of(log: PartitionLog, target: int | None = None):
    with log.environment.snapshot() as txn:
        return queries.outbox_batch(txn, log.group, target)


def send(source: PartitionLog, target: PartitionLog):
    batch = batch_of(source, target.group)
    move = Move(
        source.group, batch.first_move, batch.lengths, batch.items, since=batch.since
    )  # fmt: skip
    return target.one(move, batch.attachment)


def carry(source: PartitionLog, target: PartitionLog) -> int:
    """Sends batches as the carrier does until none is left; the number of items."""
    carried = 0
    while (batch := batch_of(source, target.group)) is not None:
        carried += send(source, target).changed
        source.one(MoveDone(target.group, batch.first_move + len(batch.items) - 1))
    return carried


def stats(log: PartitionLog):
    with log.environment.snapshot() as txn:
        return queries.stats(txn, log.group)


def letters(log: PartitionLog, origin: str | None = None):
    with log.environment.snapshot() as txn:
        return queries.dead_letters(
            txn, log.group, origin, after_seq=0, limit=1000, bytes_max=10**7
        ).items


def test_a_dead_letter_arrives_with_its_origin():
    work, dead = pair()
    kill(work, [b"one", b"two"])
    assert work.applied.effects.outbox == 2
    assert carry(work, dead) == 2
    assert work.applied.effects.outbox == 0
    assert (stats(work).moved_out, stats(dead).moved_in, stats(dead).ready) == (2, 2, 2)
    first, second = letters(dead, "work")
    assert (first.item, second.item) == (b"one", b"two")
    letter = first.dead_letter
    assert (letter.origin_queue, letter.origin_partition, letter.origin_seq) == ("work", 0, 1)
    assert (letter.attempts, letter.reason, letter.errors) == (1, 3, ("broken",))
    assert (letter.produced_at_ms, letter.died_at_ms) == (START_MS, START_MS)
    assert letters(dead, "other") == ()


def test_a_move_sent_again_arrives_once():
    work, dead = pair()
    kill(work, 3)
    assert send(work, dead) == Moved(3, 3)
    assert send(work, dead) == Moved(0, 3)
    work.one(MoveDone(DEAD, 2))
    assert send(work, dead) == Moved(0, 3)
    kill(work, 2)
    assert send(work, dead) == Moved(2, 5)
    work.one(MoveDone(DEAD, 5))
    work.one(MoveDone(DEAD, 4))
    assert batch_of(work) is None
    assert [item.dead_letter.origin_seq for item in letters(dead)] == [1, 2, 3, 4, 5]


def test_a_closing_partition_takes_no_moves_and_says_what_it_has():
    work, dead = pair()
    dead.configure(2, queue="dead", partition=1)
    kill(work, 3)
    assert send(work, dead) == Moved(3, 3)
    kill(work, 2)
    # Until the partition is open the change may be undone, so moves are accepted.
    dead.one(Route(1, 1, open=False))
    dead.one(Route(1, 1, open=True))
    refusal = send(work, dead)
    assert (refusal.code, refusal.limit) == (ErrorCode.ROUTING_CHANGED, "3")
    work.one(MoveDone(DEAD, 2))
    kill(work, 1)
    refusal = send(work, dead)
    assert (refusal.code, refusal.limit) == (ErrorCode.ROUTING_CHANGED, "3")
    other = PartitionLog(work.environment, group=DEAD + 1)
    other.configure(queue="dead")
    elsewhere = MoveElsewhere(DEAD, 3, other.group)
    assert work.one(elsewhere) == Done(4)
    assert work.one(elsewhere) == Done(0)
    assert batch_of(work, DEAD) is None
    with work.environment.snapshot() as txn:
        assert queries.outbox_targets(txn, GROUP) == (other.group,)
    assert carry(work, other) == 3
    arrived = [item.dead_letter.origin_seq for log in (dead, other) for item in letters(log)]
    assert sorted(arrived) == [1, 2, 3, 4, 5, 6]
    died = {item.dead_letter.died_at_ms for item in letters(other)}
    assert died == {START_MS}
    assert (stats(work).moved_out, stats(work).moving) == (6, 0)

    kill(work, 1)
    assert send(work, dead).code is ErrorCode.ROUTING_CHANGED
    assert work.one(MoveElsewhere(DEAD, 3, other.group)) == Done(1)
    assert carry(work, other) == 1


def closing(partition: int = 1) -> tuple[PartitionLog, PartitionLog]:
    """A source, and a partition that is closing and has three of five moves."""
    work, dead = pair()
    dead.configure(2, queue="dead", partition=partition)
    kill(work, 3)
    assert send(work, dead) == Moved(3, 3)
    work.one(MoveDone(DEAD, 3))
    kill(work, 2)
    dead.one(Route(1, 1, open=True))
    return work, dead


def test_a_partition_that_is_used_again_takes_moves_again():
    work, dead = closing()
    assert work.one(MoveElsewhere(DEAD, 3, DEAD + 1)) == Done(2)
    dead.one(Route(2, 8, open=False))
    assert dead.produce(1).count == 1
    kill(work, 1)
    assert send(work, dead).code is ErrorCode.ROUTING_CHANGED, "until the change is certain"
    dead.one(Route(2, 8, open=True))
    refusal = send(work, dead)
    assert (refusal.code, refusal.field) == (ErrorCode.UNAVAILABLE, "since")
    assert (refusal.limit, refusal.value) == ("2", "0")
    assert work.one(ResumeMoves(DEAD, 2)) == Done(1)
    assert batch_of(work, DEAD).first_move == 6
    assert send(work, dead) == Moved(1, 6)
    work.one(MoveDone(DEAD, 6))
    kill(work, 1)
    assert send(work, dead) == Moved(1, 7)
    assert [item.dead_letter.origin_seq for item in letters(dead)] == [1, 2, 3, 6, 7]


def test_a_batch_from_before_a_partition_was_closing_comes_too_late():
    work, dead = closing()
    late = batch_of(work, DEAD)
    assert work.one(MoveElsewhere(DEAD, 3, DEAD + 1)) == Done(2)
    dead.one(Route(2, 8, open=True))
    kill(work, 1)
    work.one(ResumeMoves(DEAD, 2))
    assert send(work, dead) == Moved(1, 6)
    before = Move(GROUP, late.first_move, late.lengths, late.items, since=late.since)
    assert dead.one(before, late.attachment) == Moved(0, 6)
    beyond = Move(GROUP, 7, late.lengths, late.items, since=late.since)
    assert dead.one(beyond, late.attachment).field == "since"


def test_an_answer_from_before_a_partition_takes_moves_again_sends_nothing_elsewhere():
    work, dead = closing()
    dead.one(Route(2, 8, open=True))
    assert work.one(ResumeMoves(DEAD, 2)) == Done(1)
    assert send(work, dead) == Moved(2, 5)
    assert work.one(MoveElsewhere(DEAD, 3, DEAD + 1)) == Done(0)
    assert work.one(ResumeMoves(DEAD, 1)) == Done(0), "an older one changes nothing"
    assert batch_of(work, DEAD).since == 2
    assert work.one(ResumeMoves(-1, 3)) == Done(0)
    assert work.one(MoveElsewhere(-1, 3, DEAD)) == Done(0)
    work.one(MoveDone(DEAD, 5))
    assert batch_of(work) is None


def test_what_has_arrived_before_does_not_arrive_again():
    work, dead = closing()
    kill(work, 1)
    dead.one(Route(2, 8, open=True))
    assert work.one(ResumeMoves(DEAD, 2)) == Done(1)
    assert send(work, dead) == Moved(3, 6)
    dead.one(Route(3, 1, open=True))
    dead.one(Route(4, 8, open=True))
    assert work.one(ResumeMoves(DEAD, 4)) == Done(1)
    assert batch_of(work, DEAD).first_move == 4, "the answer was lost"
    assert send(work, dead) == Moved(0, 6)


def test_moves_do_not_go_elsewhere_to_where_they_are():
    work, _ = pair()
    kill(work, 2)
    assert work.one(MoveElsewhere(DEAD, 0, DEAD)) == Done(0)
    assert stats(work).moving == 2


def test_a_gap_is_refused_and_names_what_is_expected():
    work, dead = pair()
    kill(work, 3)
    work.one(MoveDone(DEAD, 1))
    refusal = send(work, dead)
    assert (refusal.code, refusal.limit) == (ErrorCode.SEQUENCE_GAP, "1")
    assert stats(dead).ready == 0


def test_batches_are_bounded():
    work, dead = pair()
    for _ in range(3):
        kill(work, 250)
    assert len(batch_of(work).items) == MOVE_BATCH_ITEMS_MAX
    assert carry(work, dead) == 750
    # The errors of consumers count as well.
    kill(work, [b"x" * (MOVE_BATCH_BYTES_MAX // 2 - 10)] * 3)
    kill(work, [b"y" * (2 * MOVE_BATCH_BYTES_MAX)])
    assert len(batch_of(work).items) == 2
    assert carry(work, dead) == 4


def test_letters_before_a_damaged_one_are_not_held_up_by_it():
    source, target = pair()
    for item in (b"whole", b"damaged", b"behind"):
        kill(source, [item])
    txn = source.environment.begin()
    rows = list(ATTACHMENTS.rows(txn, source.group))
    [(key, row)] = [(key, row) for key, row in rows if b"damaged" in row]
    txn.put(key, row[:-1] + bytes([row[-1] ^ 1]))
    txn.commit(sync=False)
    sent = batch_of(source)
    assert sent.attachment == b"whole"
    send(source, target)
    source.checked = False
    source.one(MoveDone(target.group, sent.first_move))
    with pytest.raises(BlockDamaged):
        batch_of(source)


def test_a_target_takes_what_it_has_room_for_and_then_refuses():
    work, dead = pair()
    dead.configure(version=2, queue="dead", items_max=3)
    dead.produce(1)
    kill(work, 5)
    assert send(work, dead) == Moved(2, 2)
    refusal = send(work, dead)
    assert (refusal.code, refusal.field, refusal.limit) == (ErrorCode.QUEUE_FULL, "items", "3")
    work.one(MoveDone(DEAD, 2))
    assert (stats(work).moving, batch_of(work).first_move) == (3, 3)
    grant = dead.one(lease_of(2)).grants[0]
    dead.one(Complete((LeaseItems(grant.lease),)))
    # One batch has a known item, accepted items and items without room.
    assert send(work, dead) == Moved(2, 4)
    dead.configure(version=3, queue="dead", items_max=4)
    assert send(work, dead) == Moved(1, 5)
    work.one(MoveDone(DEAD, 5))
    assert [item.dead_letter.origin_seq for item in letters(dead)] == [2, 3, 4, 5]
    assert (stats(work).moving, stats(dead).moved_in) == (0, 5)


def test_a_lower_limit_of_the_target_refuses_and_loses_nothing():
    work, dead = pair()
    dead.produce(3)
    dead.configure(version=2, queue="dead", items_max=2)
    kill(work, 1)
    assert send(work, dead).code is ErrorCode.QUEUE_FULL
    dead.configure(version=3, queue="dead")
    assert carry(work, dead) == 1


def test_expired_letters_do_not_expire_again_by_their_own_timeout():
    work, dead = pair()
    work.entry(produce([b"a"]))
    work.advance(3_601_000)
    dead.now_ms = work.now_ms
    assert carry(work, dead) == 1
    dead.advance(10_000_000)
    assert [item.dead_letter.reason for item in letters(dead)] == [2]


def test_redrive_sends_letters_home_fresh():
    work, dead = pair()
    kill(work, 3)
    carry(work, dead)
    homes = (DeadTarget("work", 0, GROUP),)
    assert dead.one(Redrive("other", homes)) == RedriveResult(0, 0)
    assert dead.one(Redrive("work", homes, (2, 99))) == RedriveResult(1, 0)
    assert dead.one(Redrive("work", homes, (2,))) == RedriveResult(0, 0)
    assert carry(dead, work) == 1
    assert dead.one(Redrive("work", homes)) == RedriveResult(2, 0)
    assert carry(dead, work) == 2
    assert stats(dead).ready == stats(dead).moving == 0
    grant = work.one(lease_of(9)).grants[0]
    assert [segment.attempt for segment in grant.segments] == [1, 1]
    with work.environment.snapshot() as txn:
        first = grant.segments[0]
        loaded = queries.load_segment(txn, GROUP, first.first_seq, first.mask)
    assert loaded is not None
    assert (loaded.items, loaded.overlays) == (b"item 1", ())
    work.one(Complete((LeaseItems(grant.lease),)))


def test_redriven_letters_keep_their_priority():
    work, dead = pair()
    kill_urgent(work)
    carry(work, dead)
    assert dead.one(Redrive("work", (DeadTarget("work", 0, GROUP),))) == RedriveResult(2, 0)
    assert carry(dead, work) == 2
    work.produce(1)
    assert leased_priorities(work) == [(-4, 1), (0, 1), (4, 1)]


def test_moves_that_come_back_or_go_elsewhere_keep_their_priority():
    work, _ = pair()
    kill_urgent(work)
    assert work.one(MoveElsewhere(DEAD, 0, DEAD + 1)) == Done(2)
    other = PartitionLog(work.environment, group=DEAD + 1)
    other.configure(queue="dead")
    assert carry(work, other) == 2
    assert leased_priorities(other) == [(-4, 1), (4, 1)]
    kill_urgent(work)
    assert work.one(MoveReturn(DEAD)) == Done(2)
    assert leased_priorities(work) == [(-4, 1), (4, 1)]


def test_leased_letters_are_not_redriven():
    work, dead = pair()
    kill(work, 2)
    carry(work, dead)
    dead.one(lease_of(1))
    homes = (DeadTarget("work", 0, GROUP),)
    assert dead.one(Redrive("work", homes)) == RedriveResult(1, 0)
    assert dead.one(Redrive("work", ())).code is ErrorCode.INVALID_ARGUMENT


def test_letters_go_to_the_partition_of_the_same_number():
    work = PartitionLog()
    targets = tuple(DeadTarget("dead", number, 20 + number) for number in range(3))
    work.configure(partition=1, dead_targets=targets)
    kill(work, 1)
    work.configure(version=2, partition=5, dead_targets=targets)
    kill(work, 1)
    with work.environment.snapshot() as txn:
        assert queries.outbox_targets(txn, GROUP) == (21, 22)
    assert batch_of(work).target_group == 21


def test_moves_to_a_group_that_is_gone_come_back():
    work, _ = pair()
    kill(work, 3)
    work.one(MoveDone(DEAD, 1))
    work.configure(version=2)
    assert work.one(MoveReturn(DEAD)) == Done(2)
    assert work.one(MoveReturn(DEAD)) == Done(0)
    assert batch_of(work) is None
    grant = work.one(lease_of(9)).grants[0]
    assert [(segment.count, segment.attempt) for segment in grant.segments] == [(2, 1)]


def test_a_partition_without_settings_takes_no_moves():
    work, _ = pair()
    kill(work, 1)
    fresh = PartitionLog(group=11)
    refusal = send(work, _with_group(fresh, DEAD))
    assert refusal.code is ErrorCode.UNAVAILABLE


def _with_group(log: PartitionLog, group: int) -> PartitionLog:
    return PartitionLog(log.environment, group=group)


def test_a_target_that_is_gone_leaves_no_row_and_finished_ones_are_not_looked_at():
    environment = MemoryEnvironment()
    work = PartitionLog(environment)
    for target in range(DEAD, DEAD + 5):
        work.configure(target, dead_targets=dead_to(target))
        kill(work, 2)
    for target in range(DEAD, DEAD + 4):
        work.one(MoveDone(target, 2))
    with environment.snapshot() as txn:
        assert queries.outbox_targets(txn, GROUP) == (DEAD + 4,)
    assert work.one(MoveReturn(DEAD + 4)) == Done(2)
    for target in range(DEAD, DEAD + 4):
        assert work.one(MoveReturn(target)) == Done(0)
    with environment.snapshot() as txn:
        assert queries.outbox_targets(txn, GROUP) == ()
        assert list(OUTBOX_TARGETS.rows(txn, GROUP)) == []
