"""Checkpoints: which lease saves one, what keeps and ends it, and the bytes that it counts for."""

import sys
from struct import pack
from types import FrameType
from typing import Any

import pytest

from querator.model.commands import (
    Cancel,
    Complete,
    Extend,
    GiveUp,
    ItemCheckpoint,
    LeaseGrant,
    LeaseItems,
    Move,
    MoveDone,
    MoveReturn,
    Purge,
    Redrive,
    Refusal,
    Retry,
    SaveCheckpoints,
)
from querator.model.entries import Proposal
from querator.model.errors import ErrorCode
from querator.model.limits import CHECKPOINT_BYTES_MAX, MOVE_BATCH_BYTES_MAX, REPLY_BYTES_DEFAULT
from querator.model.readers import AdvanceReader, OpenReader
from querator.partition import queries
from querator.partition.browse import Span, browse
from querator.partition.overlays import overlays_of
from querator.partition.payloads import BlockDamaged, is_held
from querator.partition.rows import decode_state
from querator.storage import generations
from querator.storage.memory_environment import MemoryEnvironment
from querator.storage.tables import ATTACHMENTS, OVERLAYS, STATE
from tests.unit.partition.partition_log import GROUP, PartitionLog, dead_to, lease_of, seqs

DEAD_GROUP = 9
FULL = b"x" * CHECKPOINT_BYTES_MAX


@pytest.fixture
def log() -> PartitionLog:
    log = PartitionLog()
    log.configure()
    return log


def lease(log: PartitionLog, count: int = 100, **changes: Any) -> LeaseGrant:
    grant = log.one(lease_of(count, **changes)).grants[0]
    assert isinstance(grant, LeaseGrant)
    return grant


def saving(
    number: int, *saved: tuple[int, bytes], revision: int = 0, extend: Extend | None = None
) -> Proposal:
    return Proposal(
        SaveCheckpoints(
            extend or Extend((number,)),
            pack(f"<{len(saved)}I", *(len(data) for _, data in saved)),
            tuple(ItemCheckpoint(number, seq, revision) for seq, _ in saved),
        ),
        b"".join(data for _, data in saved),
    )


def save(log: PartitionLog, number: int, *saved: tuple[int, bytes], **changes: Any) -> Any:
    return log.entry(saving(number, *saved, **changes))[0]


def retry(log: PartitionLog, number: int, *items: int, **changes: Any) -> Any:
    ranges = tuple((seq, 1) for seq in items)
    return log.one(Retry((LeaseItems(number, ranges),), **changes))


def of_grant(log: PartitionLog, grant: LeaseGrant) -> dict[int, bytes]:
    """The checkpoints with which the items are delivered, by sequence, without empty ones."""
    found: dict[int, bytes] = {}
    with log.environment.snapshot() as txn:
        view = generations.view(txn, log.group)
        for segment in grant.segments:
            loaded = queries.load_segment(view, log.group, segment.first_seq, segment.mask)
            assert loaded is not None
            ordinals = loaded.ordinals or range(loaded.count)
            for later in loaded.overlays:
                assert later.checkpoint_bytes == len(later.checkpoint)
                if later.checkpoint:
                    found[loaded.first_seq + ordinals[later.index]] = later.checkpoint
    return found


def delivered(log: PartitionLog) -> dict[int, bytes]:
    return of_grant(log, lease(log))


def sizes(log: PartitionLog) -> dict[int, int]:
    with log.environment.snapshot() as txn:
        page = queries.peek(txn, log.group, None, after_seq=0, limit=5000, bytes_max=10**9)
    return {item.seq: item.checkpoint_bytes for item in page.items}


def counted(log: PartitionLog) -> tuple[int, int]:
    with log.environment.snapshot() as txn:
        raw = STATE.get(txn, log.group)
    assert raw is not None
    state = decode_state(raw)
    return state.checkpoints, state.checkpoint_bytes


def attachments_of(log: PartitionLog) -> int:
    """Attachments that the state holds, when the log is short."""
    for _ in range(log.keep + 1):
        log.one(Extend((1,)))
    with log.environment.snapshot() as txn:
        return len(list(ATTACHMENTS.rows(txn, log.group)))


def test_a_checkpoint_is_delivered_with_the_next_lease_and_extends_this_one(log):
    log.produce(3)
    grant = lease(log)
    log.now_ms += 10_000
    result = save(log, 1, (2, b"half"))
    assert result.outcomes == ((1, grant.deadline_ms + 10_000),)
    assert result.lost == ()
    assert result.now_ms == log.now_ms
    assert sizes(log) == {1: 0, 2: 4, 3: 0}
    log.advance(30_000)
    assert delivered(log) == {2: b"half"}
    assert counted(log) == (1, 4)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"retry_at_ms": 1},
        {"count_attempt": False},
        {"error": "busy", "attributes": (("page", "7"),)},
        {"priority": 7},
    ],
)
def test_every_way_back_keeps_it(log, change):
    log.produce(2)
    save(log, lease(log).lease, (1, b"half"))
    retry(log, 1, **change)
    assert delivered(log) == {1: b"half"}


def test_the_last_one_of_a_lease_wins(log):
    log.produce(1)
    lease(log)
    for data in (b"first", FULL, b"third"):
        save(log, 1, (1, data))
    assert counted(log) == (1, 5)
    retry(log, 1)
    assert delivered(log) == {1: b"third"}
    # The block of the item, and the checkpoint.
    assert attachments_of(log) == 2


def test_two_in_one_entry_leave_one_attachment(log):
    log.produce(1)
    lease(log)
    log.entry(saving(1, (1, b"first")), saving(1, (1, b"second")))
    assert attachments_of(log) == 2
    retry(log, 1)
    assert delivered(log) == {1: b"second"}


def test_an_older_revision_of_the_same_lease_changes_nothing(log):
    log.produce(1)
    lease(log)
    assert save(log, 1, (1, b"second"), revision=20).lost == ()
    assert save(log, 1, (1, b"first"), revision=10).lost == ()
    assert save(log, 1, (1, b"repeat"), revision=20).lost == ()
    assert attachments_of(log) == 2
    retry(log, 1)
    grant = lease(log)
    assert of_grant(log, grant) == {1: b"second"}
    # Revisions are those of one lease.
    save(log, grant.lease, (1, b"third"), revision=1)
    retry(log, grant.lease)
    assert delivered(log) == {1: b"third"}


def test_a_late_checkpoint_does_not_come_back_after_it_was_cleared(log):
    log.produce(1)
    lease(log)
    save(log, 1, (1, b"one"), revision=1)
    save(log, 1, (1, b""), revision=2)
    save(log, 1, (1, b"one"), revision=1)
    assert sizes(log) == {1: 0}
    assert attachments_of(log) == 1
    retry(log, 1)
    assert delivered(log) == {}


def test_a_lease_that_ended_saves_nothing(log):
    log.produce(2)
    lease(log)
    save(log, 1, (1, b"mine"))
    log.advance(30_000)
    result = save(log, 1, (1, b"late"), (2, b"late"))
    assert (result.outcomes, result.lost) == (((1, 0),), ((1, 1), (1, 2)))
    second = lease(log)
    assert of_grant(log, second) == {1: b"mine"}
    assert save(log, 1, (1, b"late"), revision=10**15).lost == ((1, 1),)
    retry(log, second.lease)
    assert delivered(log) == {1: b"mine"}


def test_a_lease_saves_only_for_items_that_it_holds(log):
    log.produce(3)
    lease(log, 2)
    other = lease(log)
    log.one(Complete((LeaseItems(1, ((1, 1),)),)))
    result = save(log, 1, (1, b"gone"), (2, b"mine"), (3, b"another's"), (99, b"no item"))
    assert result.outcomes[0][1] > 0
    assert result.lost == ((1, 1), (1, 3), (1, 99))
    retry(log, 1)
    retry(log, other.lease)
    assert delivered(log) == {2: b"mine"}


def test_one_call_saves_under_several_leases(log):
    log.produce(2)
    lease(log, 1)
    lease(log, 1)
    command = SaveCheckpoints(
        Extend((1, 2, 77)),
        pack("<3I", 1, 2, 3),
        (ItemCheckpoint(1, 1), ItemCheckpoint(2, 2), ItemCheckpoint(77, 1)),
    )
    result = log.one(command, b"abbccc")
    assert [end_ms > 0 for _, end_ms in result.outcomes] == [True, True, False]
    assert result.lost == ((77, 1),)
    log.advance(30_000)
    assert delivered(log) == {1: b"a", 2: b"bb"}


def test_a_malformed_command_is_refused_and_leaves_nothing(log):
    log.produce(1)
    lease(log)
    for command in (
        SaveCheckpoints(Extend((), "c"), pack("<I", 1), (ItemCheckpoint(1, 1),)),
        SaveCheckpoints(Extend((1,)), pack("<I", 1), ()),
    ):
        refused = log.one(command, b"x")
        assert isinstance(refused, Refusal)
        assert (refused.code, refused.field) == (ErrorCode.INVALID_ARGUMENT, "checkpoints")
    assert attachments_of(log) == 1
    assert sizes(log) == {1: 0}


def test_a_retry_may_clear_it(log):
    log.produce(2)
    lease(log)
    save(log, 1, (1, b"one"), (2, b"two"))
    retry(log, 1, 1, clear_checkpoint=True)
    retry(log, 1, 2)
    assert counted(log) == (1, 3)
    assert delivered(log) == {2: b"two"}
    assert attachments_of(log) == 2


def test_a_retry_that_clears_is_no_repeat_of_one_that_does_not(log):
    """A node that ends a stream releases its leases."""
    log.produce(1)
    lease(log)
    save(log, 1, (1, b"one"))
    retry(log, 1, count_attempt=False)
    (outcome,) = retry(log, 1, 1, count_attempt=False, clear_checkpoint=True).outcomes
    assert (outcome.done, outcome.repeated, outcome.lost) == ((), (), ((1, 1),))
    grant = lease(log)
    retry(log, grant.lease, clear_checkpoint=True)
    (outcome,) = retry(log, grant.lease, 1, clear_checkpoint=True).outcomes
    assert outcome.repeated == ((1, 1),)


def end_by_complete(log: PartitionLog) -> None:
    log.one(Complete((LeaseItems(1),)))


def end_by_cancel(log: PartitionLog) -> None:
    retry(log, 1)
    log.one(Cancel(((1, 2),)))


def end_by_purge(log: PartitionLog) -> None:
    retry(log, 1)
    log.one(Purge(0, 99, scheduled=True))


def end_by_death_without_a_dead_queue(log: PartitionLog) -> None:
    retry(log, 1, dead=True)


def end_by_giving_up(log: PartitionLog) -> None:
    retry(log, 1)
    log.one(GiveUp((1,)))


def end_by_a_reader(log: PartitionLog) -> None:
    retry(log, 1)
    log.one(OpenReader("lake"))
    log.one(AdvanceReader("lake", 1, 0, 10, 10**6))
    log.one(AdvanceReader("lake", 1, 1, 0, 0))


@pytest.mark.parametrize(
    "end",
    [
        end_by_complete,
        end_by_cancel,
        end_by_purge,
        end_by_death_without_a_dead_queue,
        end_by_giving_up,
        end_by_a_reader,
    ],
)
def test_nothing_is_left_of_it_when_its_item_is_gone(log, end):
    log.produce(2)
    lease(log)
    save(log, 1, (1, b"one"), (2, FULL))
    save(log, 1, (1, b""), revision=1)
    end(log)
    assert sizes(log) == {}
    assert counted(log) == (0, 0)
    assert attachments_of(log) == 0


def test_scans_show_the_size_and_do_not_read_it(log):
    log.produce(2)
    save(log, lease(log).lease, (2, FULL))
    with log.environment.snapshot() as txn:
        (run,) = browse(txn, GROUP, Span(1)).runs
    (later,) = run.overlays
    assert (later.index, later.checkpoint_bytes, later.checkpoint) == (1, len(FULL), b"")


# --- moves ------------------------------------------------------------------------------------


def dead_pair() -> tuple[PartitionLog, PartitionLog]:
    environment = MemoryEnvironment()
    work = PartitionLog(environment)
    work.configure(dead_targets=dead_to(DEAD_GROUP))
    dead = PartitionLog(environment, group=DEAD_GROUP)
    dead.configure(queue="dead")
    return work, dead


def carry(source: PartitionLog, target: PartitionLog, *, done: bool = True) -> Any:
    with source.environment.snapshot() as txn:
        batch = queries.outbox_batch(txn, source.group)
    assert batch is not None
    move = Move(
        source.group,
        batch.first_move,
        batch.lengths,
        batch.items,
        checkpoints=batch.checkpoints,
    )
    moved = target.one(move, batch.attachment)
    if done:
        source.one(MoveDone(target.group, moved.upto_move))
    return moved


def test_it_goes_with_a_dead_letter_and_returns_with_the_redriven_item():
    work, dead = dead_pair()
    work.produce(3)
    lease(work)
    save(work, 1, (1, b"one"), (3, FULL))
    retry(work, 1, dead=True)
    carry(work, dead)
    assert counted(work) == (0, 0)
    assert attachments_of(work) == 0
    assert sizes(dead) == {1: 3, 2: 0, 3: len(FULL)}
    grant = lease(dead)
    assert of_grant(dead, grant) == {1: b"one", 3: FULL}
    # A consumer of the dead queue may save another one.
    save(dead, grant.lease, (1, b"repaired"))
    retry(dead, grant.lease)
    dead.one(Redrive("work", dead_to(GROUP)))
    carry(dead, work)
    assert delivered(work) == {4: b"repaired", 6: FULL}
    assert attachments_of(dead) == 0


def test_a_move_that_is_sent_again_leaves_no_second_copy():
    work, dead = dead_pair()
    work.produce(2)
    lease(work)
    save(work, 1, (1, b"one"), (2, b"two"))
    retry(work, 1, 1, dead=True)
    carry(work, dead, done=False)
    retry(work, 1, 2, dead=True)
    assert carry(work, dead, done=False).changed == 1
    assert carry(work, dead).changed == 0
    assert delivered(dead) == {1: b"one", 3: b"two"}
    # Two blocks, and a checkpoint for each item.
    assert attachments_of(dead) == 4


def test_a_full_target_takes_the_first_ones():
    work, dead = dead_pair()
    dead.configure(version=2, queue="dead", items_max=1)
    work.produce(2)
    lease(work)
    save(work, 1, (1, b"one"), (2, b"two"))
    retry(work, 1, dead=True)
    assert carry(work, dead).changed == 1
    assert delivered(dead) == {1: b"one"}
    assert counted(work) == (1, 3)
    assert counted(dead) == (1, 3)


def test_an_item_that_returns_from_the_outbox_keeps_it():
    work, _ = dead_pair()
    work.produce(1)
    save(work, lease(work).lease, (1, b"one"))
    retry(work, 1, dead=True)
    work.one(MoveReturn(DEAD_GROUP))
    assert delivered(work) == {1: b"one"}


def full_items(count: int) -> PartitionLog:
    log = PartitionLog(checked=False)
    log.configure(dead_targets=dead_to(DEAD_GROUP))
    log.produce(count)
    number = lease(log, count).lease
    for seq in range(1, count + 1):
        save(log, number, (seq, FULL))
    retry(log, number)
    return log


def test_a_lease_counts_it_against_its_bytes():
    log = full_items(100)
    grant = lease(log, 100)
    size = len(seqs(grant)) * CHECKPOINT_BYTES_MAX
    assert REPLY_BYTES_DEFAULT - 2 * CHECKPOINT_BYTES_MAX < size <= REPLY_BYTES_DEFAULT
    rest = lease(log, 100)
    assert seqs(grant)[-1] + 1 == seqs(rest)[0]
    # One item is delivered, however long its checkpoint is.
    assert len(seqs(lease(log, 9, max_bytes=100))) == 1


def test_a_batch_of_moves_counts_it():
    log = full_items(60)
    log.one(Retry((LeaseItems(lease(log, 40).lease),), dead=True))
    with log.environment.snapshot() as txn:
        batch = queries.outbox_batch(txn, GROUP)
    assert batch is not None
    assert len(batch.items) == MOVE_BATCH_BYTES_MAX // (CHECKPOINT_BYTES_MAX + 10)
    assert [place for place, _ in batch.checkpoints] == list(range(len(batch.items)))


# --- damage -----------------------------------------------------------------------------------


def damage(log: PartitionLog, seq: int) -> None:
    txn = log.environment.begin()
    overlay = OVERLAYS.get(txn, log.group, seq)
    assert overlay is not None
    with log.environment.snapshot() as snapshot:
        later = overlays_of(snapshot, log.group, 1, 1 << (seq - 1))
    assert later[0].checkpoint_bytes
    for key, row in list(ATTACHMENTS.rows(txn, log.group)):
        if row[4:] == b"mine":
            txn.put(key, row[:-1] + b"!")
    txn.commit(sync=False)


def test_a_damaged_one_is_that_of_its_block(log):
    log.produce(2)
    save(log, lease(log).lease, (2, b"mine"))
    damage(log, 2)
    log.checked = False
    with log.environment.snapshot() as txn:
        with pytest.raises(BlockDamaged) as damaged:
            queries.load_segment(txn, GROUP, 1, 0b11)
        assert (damaged.value.first_seq, damaged.value.size) == (1, 4)
        assert is_held(txn, damaged.value)
        # The other item can be read.
        assert queries.load_segment(txn, GROUP, 1, 0b01) is not None
    save(log, 1, (2, b"again"))
    with log.environment.snapshot() as txn:
        assert not is_held(txn, damaged.value)
        assert queries.load_segment(txn, GROUP, 1, 0b11) is not None


def test_moves_end_before_a_damaged_one():
    work, _ = dead_pair()
    work.produce(2)
    save(work, lease(work).lease, (2, b"mine"))
    damage(work, 2)
    work.checked = False
    retry(work, 1, dead=True)
    with work.environment.snapshot() as txn:
        batch = queries.outbox_batch(txn, GROUP)
        assert batch is not None
        assert len(batch.items) == 1
    work.one(MoveDone(DEAD_GROUP, 1))
    with work.environment.snapshot() as txn, pytest.raises(BlockDamaged):
        queries.outbox_batch(txn, GROUP)


# --- cost -------------------------------------------------------------------------------------


def test_plain_items_pay_nothing():
    """In a life of 100 plain items no function for overlays or checkpoints is called."""
    log = PartitionLog(checked=False)
    log.configure()
    called: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            called.add(frame.f_code.co_filename.rpartition("/querator/")[2])

    sys.setprofile(note)
    try:
        log.produce(100)
        log.one(lease_of(100))
        log.one(Complete((LeaseItems(1),)))
    finally:
        sys.setprofile(None)
    assert {"partition/produce.py", "partition/lease.py", "partition/settle.py"} <= called
    assert not {"partition/overlays.py", "partition/checkpoints.py"} & called
    with log.environment.snapshot() as txn:
        assert not list(OVERLAYS.rows(txn, GROUP))
