"""Purge, Cancel and DropLetters: what they remove, what stays, and what one command costs."""

from struct import pack

import pytest

from querator.model.commands import (
    Cancel,
    Complete,
    DeadTarget,
    DropLetters,
    ItemsChanged,
    ItemsRemoved,
    LeaseItems,
    LetterFilter,
    Produce,
    Purge,
    Redrive,
    RedriveResult,
    Retry,
    Route,
    Unhold,
)
from querator.model.entries import Tier
from querator.model.errors import ErrorCode
from querator.model.limits import APPLY_SEGMENTS_MAX, BLOCK_ITEMS_MAX, CANCEL_ITEMS_MAX
from querator.partition import queries
from querator.partition.needs import need
from querator.storage.tables import BLOCKS, OVERLAYS
from tests.unit.partition.partition_log import GROUP, PartitionLog, lease_of, seqs
from tests.unit.partition.scenario_language import run
from tests.unit.partition.test_moves import carry, kill, letters, pair

SCENARIOS = {
    "a purge removes items that are ready or scheduled, and counts them": """
        configure
        produce 3 -> 1-3
        produce 2 in=5000 -> 4-5
        purge 5 -> 5
        stats ready scheduled cancelled dead dropped bytes -> 0 0 5 0 0 0
        lease 9 -> none
    """,
    "a purge leaves scheduled items if it is asked to": """
        configure
        produce 2 -> 1-2
        produce 2 in=5000 -> 3-4
        purge 4 here -> 2
        wait 5000
        lease 9 -> 3-4
    """,
    "items after the last sequence stay, also those of a repeat": """
        configure
        produce 2 -> 1-2
        purge 2 -> 2
        produce 2 -> 3-4
        purge 2 -> 0
        purge 3 -> 1
        lease 9 -> 4
    """,
    "leased items stay, can be completed, and come back by a retry": """
        configure
        produce 3 -> 1-3
        lease 2 -> 1-2
        purge 3 -> 1
        complete L1 1 -> done 1
        retry L1 2 -> done 2
        lease 9 -> 2x2
        stats completed cancelled -> 1 1
    """,
    "items in a reader's batch stay": """
        configure
        produce 4 -> 1-4
        open lake -> 1
        advance lake 1 0 2 -> 1: 1-2
        purge 4 -> 2
        advance lake 1 1 9 -> none
        stats acknowledged cancelled reserved -> 2 2 0
    """,
    "items on their way to the dead queue stay": """
        configure dead=9
        produce 2 -> 1-2
        lease 1 -> 1
        retry L1 dead -> done 1
        purge 2 -> 1
        stats moving cancelled -> 1 1
    """,
    "the dedup key of a purged item is remembered like that of a completed one": """
        configure
        produce 1 keys=a -> 1
        purge 1 -> 1
        produce 1 keys=a -> 2 0:1
    """,
    "ready and scheduled items are cancelled by name": """
        configure
        produce 3 -> 1-3
        produce 2 in=5000 -> 4-5
        lease 1 -> 1
        remove 1-2 5 9 -> 2 missing 1 9
        remove 2 -> 0 missing 2
        lease 9 -> 3
        stats cancelled scheduled -> 2 1
    """,
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name):
    run(SCENARIOS[name])


def new_log(**changes):
    log = PartitionLog()
    log.configure(**changes)
    return log


def test_a_purge_of_many_segments_continues_in_further_commands():
    """Between them the partition does other work, and later items stay."""
    log = new_log()
    log.checked = False
    blocks = 17
    for _ in range(blocks):
        log.produce(BLOCK_ITEMS_MAX)
        _scatter(log)
    log.checked = True
    upto = blocks * BLOCK_ITEMS_MAX
    removed, from_seq, commands = 0, 0, 0
    while commands == 0 or from_seq:
        result = log.one(Purge(from_seq, upto, scheduled=True))
        removed += result.removed
        commands += 1
        from_seq = result.next_seq
        log.produce(1)
    assert (removed, commands) == (blocks * BLOCK_ITEMS_MAX // 2, 2)
    assert seqs(log.one(lease_of(9)).grants[0]) == [upto + 1, upto + 2]


def _scatter(log: PartitionLog) -> None:
    """Leases a block; completes each second item, and schedules the others one by one."""
    grant = log.one(lease_of(BLOCK_ITEMS_MAX)).grants[0]
    first = grant.segments[0].first_seq
    done = tuple((first + n, 1) for n in range(0, BLOCK_ITEMS_MAX, 2))
    log.one(Complete((LeaseItems(grant.lease, done),)))
    for n in range(1, BLOCK_ITEMS_MAX, 2):
        later = (LeaseItems(grant.lease, ((first + n, 1),)),)
        log.one(Retry(later, retry_at_ms=log.now_ms + 10_000 + n))


def test_a_command_reads_a_bounded_number_of_blocks():
    log = new_log()
    log.checked = False
    for _ in range(APPLY_SEGMENTS_MAX + 5):
        log.produce(1)
    upto = APPLY_SEGMENTS_MAX + 5
    first = log.one(Purge(0, upto, scheduled=True))
    assert first == ItemsRemoved(APPLY_SEGMENTS_MAX, APPLY_SEGMENTS_MAX + 1)
    log.checked = True
    assert log.one(Purge(first.next_seq, upto, scheduled=True)) == ItemsRemoved(5, 0)
    assert log.one(Purge(0, upto, scheduled=True)) == ItemsRemoved(0, 0)


def test_the_overlays_of_dead_letters_count_as_work():
    """A letter has a row of its own. So fewer letters than other items are removed at once."""
    work, dead = pair()
    work.checked = dead.checked = False
    letters_max = APPLY_SEGMENTS_MAX + BLOCK_ITEMS_MAX
    for _ in range(10):
        kill(work, 250)
        carry(work, dead)
    result = dead.one(Purge(0, 2_500, scheduled=True))
    assert 0 < result.removed <= letters_max
    assert result.next_seq
    rest = dead.one(Purge(result.next_seq, 2_500, scheduled=True))
    assert (result.removed + rest.removed, rest.next_seq) == (2_500, 0)
    with dead.environment.snapshot() as txn:
        assert not list(OVERLAYS.rows(txn, dead.group))
        assert not list(BLOCKS.rows(txn, dead.group))


def test_held_items_are_purged_and_the_others_of_their_key_follow():
    """Two of four partitions: items of slots that came from partition 0 wait for it."""
    log = new_log(partition=2)
    log.one(Route(1, 2, open=True))
    log.one(Route(2, 4, open=True, before=2))
    slots = pack("<3H", 2, 2, 0xFFFF)
    log.one(Produce(pack("<3I", 1, 1, 1), slots=slots, routing=2), b"xyz")
    assert log.one(Purge(0, 2, scheduled=False)) == ItemsRemoved(2, 0)
    log.one(Produce(pack("<I", 1), slots=pack("<H", 2), routing=2), b"w")
    assert seqs(log.one(lease_of(9)).grants[0]) == [3]
    log.one(Unhold(2, b"\x01"))
    assert seqs(log.one(lease_of(9)).grants[0]) == [4]


def test_a_purge_of_earlier_items_lets_held_items_of_other_partitions_follow():
    log = new_log(partition=0)
    log.one(Route(1, 1, open=True))
    log.produce(3)
    log.one(Route(2, 2, open=True, before=1))
    assert log.applied.effects.drained == 0
    log.one(Purge(0, 3, scheduled=True))
    assert log.applied.effects.drained == 1


def test_a_cancel_of_too_many_items_is_refused_by_name():
    log = new_log()
    log.produce(2)
    refused = log.one(Cancel(((1, CANCEL_ITEMS_MAX + 1),)))
    assert (refused.code, refused.field) == (ErrorCode.LIMIT_EXCEEDED, "item_ids")
    assert (refused.limit, refused.value) == ("1000 items", "1001 items")
    most = log.one(Cancel(((1, CANCEL_ITEMS_MAX),)))
    assert most == ItemsChanged(2, ((3, CANCEL_ITEMS_MAX - 2),))


def test_removals_are_possible_while_the_disk_is_full():
    log = new_log()
    removals = (Purge(0, 9, scheduled=True), Cancel(((1, 1),)), DropLetters("work"))
    with log.environment.snapshot() as txn:
        assert {need(txn, GROUP, one).tier for one in removals} == {Tier.FREES}


def test_urgent_items_are_purged_from_their_lane():
    run("""
        configure
        produce 4 priorities=-5,0,3,-5 -> 1-4
        purge 3 -> 3
        lease 9 -> 4
    """)


# --- dead letters ---------------------------------------------------------------------------


def test_letters_are_dropped_by_name_and_only_those_of_the_queue():
    work, dead = pair()
    dead.produce(1)
    kill(work, 3)
    carry(work, dead)
    assert dead.one(DropLetters("other")) == ItemsRemoved(0, 0)
    assert dead.one(DropLetters("work", (1, 3, 99))) == ItemsRemoved(1, 0)
    assert dead.one(DropLetters("work", (3,))) == ItemsRemoved(0, 0)
    assert [one.seq for one in letters(dead)] == [2, 4]
    assert dead.one(DropLetters("work")) == ItemsRemoved(2, 0)
    with dead.environment.snapshot() as txn:
        found = queries.stats(txn, dead.group)
    assert (found.ready, found.cancelled, found.dropped, found.dead) == (1, 3, 0, 0)


def test_letters_that_are_leased_are_not_dropped():
    work, dead = pair()
    kill(work, 2)
    carry(work, dead)
    dead.one(lease_of(1))
    assert dead.one(DropLetters("work")) == ItemsRemoved(1, 0)
    assert [one.seq for one in letters(dead)] == [1]


def three_deaths():
    """Letters 1 (rejected), 2 (expired an hour later), 3 (rejected another hour later)."""
    work, dead = pair()
    kill(work, 1)
    start_ms = work.now_ms
    carry(work, dead)
    work.produce(1)
    work.advance(3_601_000)
    carry(work, dead)
    work.now_ms = start_ms + 7_300_000
    kill(work, 1)
    carry(work, dead)
    died = [one.dead_letter.died_at_ms for one in letters(dead)]
    assert [one.dead_letter.reason for one in letters(dead)] == [3, 2, 3]
    return dead, died


FILTERS = {
    "by reason": (lambda died: LetterFilter((2,)), [2]),
    "by several reasons": (lambda died: LetterFilter((1, 2)), [2]),
    "the older ones": (lambda died: LetterFilter(died_until_ms=died[2]), [1, 2]),
    "the younger ones": (lambda died: LetterFilter(died_from_ms=died[1]), [2, 3]),
    "by both": (lambda died: LetterFilter((3,), died[0], died[2]), [1]),
    "none": (lambda died: LetterFilter((1,)), []),
}


@pytest.mark.parametrize("name", FILTERS)
def test_letters_are_chosen(name):
    made, chosen = FILTERS[name]
    for command in ("drop", "redrive", "count"):
        dead, died = three_deaths()
        wanted = made(died)
        if command == "count":
            with dead.environment.snapshot() as txn:
                found = queries.count_letters(txn, dead.group, "work", wanted, after_seq=0)
            assert found == (len(chosen), 0)
            continue
        if command == "drop":
            assert dead.one(DropLetters("work", (), 0, wanted)) == ItemsRemoved(len(chosen), 0)
        else:
            homes = (DeadTarget("work", 0, GROUP),)
            done = dead.one(Redrive("work", homes, (), 0, wanted))
            assert done == RedriveResult(len(chosen), 0)
        assert [one.seq for one in letters(dead)] == [n for n in (1, 2, 3) if n not in chosen]


def test_a_void_or_leased_letter_is_not_counted():
    work, dead = pair()
    kill(work, 2)
    carry(work, dead)
    dead.one(lease_of(1))
    with dead.environment.snapshot() as txn:
        assert queries.count_letters(txn, dead.group, "work", LetterFilter(), after_seq=0) == (1, 0)
