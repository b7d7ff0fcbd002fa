"""Admission of work by the remaining disk space."""

from contextlib import suppress

import msgspec
import pytest

from querator.model.entries import Entry, Need, Tier
from querator.model.errors import ErrorCode
from querator.model.limits import MIB, TURN_BYTES_MAX
from querator.model.nodes import node_key
from querator.raft.log.disk_budget import BudgetExceeded, DiskBudget
from querator.raft.messages import Append, LogEntry
from querator.storage.environment import Usage
from querator.storage.memory_environment import MemoryEnvironment

RESERVE = 1_000_000
FLOOR = RESERVE // 4
FREES = Need(Tier.FREES, 0)


class Disk(MemoryEnvironment):
    def __init__(self, free_bytes: int, *, by_quota: bool = False) -> None:
        super().__init__()
        self.free_bytes = free_bytes
        self.by_quota = by_quota
        self.looks = 0

    def usage(self) -> Usage:
        self.looks += 1
        quota_bytes = 1 << 41
        return Usage(
            used_bytes=quota_bytes - self.free_bytes if self.by_quota else 0,
            free_bytes=self.free_bytes,
            quota_bytes=quota_bytes,
            reserve_bytes=RESERVE,
        )


def budget(disk: Disk) -> DiskBudget:
    return DiskBudget(disk, node_key("n1", "1"))


def entries(size: int) -> Append:
    return Append(
        term=1,
        sequence=1,
        read_round=0,
        prev_index=0,
        prev_term=0,
        commit_index=0,
        entries=(LogEntry(1, 0, 2, b"", (b"x" * size,)),),
    )


def test_what_a_turn_takes_on_is_counted_together_whoever_it_comes_from():
    disk = Disk(FLOOR + 300_000)
    space = budget(disk)
    space.begin_turn()
    assert space.takes_entries(entries(100_000))
    assert not space.takes_entries(entries(100_000)), "it needs twice its bytes"
    assert space.takes_calls(Entry(b""), 20, FREES)
    assert not space.takes_calls(Entry(b""), 10, FREES)
    assert disk.looks == 1
    space.begin_turn()
    assert space.takes_entries(entries(100_000))
    assert disk.looks == 2


@pytest.mark.parametrize(
    ("free", "taken"),
    [
        (FLOOR, []),
        (FLOOR + 5_000, [Tier.FREES]),
        (2 * FLOOR, [Tier.FREES]),
        (2 * FLOOR + 5_000, [Tier.FREES, Tier.LEASES]),
        (RESERVE, [Tier.FREES, Tier.LEASES]),
        (RESERVE + 10_000, [Tier.FREES, Tier.LEASES, Tier.ADDS]),
    ],
)
def test_adds_are_refused_first_and_what_frees_last(free, taken):
    found = [tier for tier in Tier if budget(Disk(free)).takes_calls(Entry(b""), 1, Need(tier, 0))]
    assert found == taken
    refusal = budget(Disk(free)).refusal(Tier.LEASES)
    assert refusal.code is ErrorCode.STORAGE_FULL


def test_the_refusal_says_what_is_kept():
    space = budget(Disk(RESERVE))
    assert not space.takes_calls(Entry(b"", (b"x",)), 1, Need(Tier.ADDS, 0))
    assert str(space.refusal(Tier.ADDS)).endswith(
        "the disk of node n1 is full, with 1.0 MiB free and 1.0 MiB kept in reserve: consume "
        "items, or free space on it"
    )


def test_the_refusal_says_what_is_free_inside_the_file():
    disk = Disk(0)
    usage = msgspec.structs.replace(
        disk.usage(), idle_bytes=200 * MIB, idle_until_bytes=3 * MIB // 2
    )
    disk.usage = lambda: usage  # type: ignore[method-assign]
    space = budget(disk)
    assert not space.takes_calls(Entry(b""), 1, Need(Tier.ADDS, 0))
    assert str(space.refusal(Tier.ADDS)).endswith(
        "free space on it; 200.0 MiB inside the data file can be used again when the disk has 1.5 "
        "MiB free"
    )


@pytest.mark.parametrize("tier", [Tier.LEASES, Tier.FREES])
def test_the_refusal_advises_no_consuming_where_leases_are_refused(tier):
    space = budget(Disk(0))
    assert not space.takes_calls(Entry(b""), 1, Need(tier, 0))
    assert "node n1 is full, with 0.0 MiB free" in str(space.refusal(tier))
    assert str(space.refusal(tier)).endswith(": free space on it")
    quota = budget(Disk(0, by_quota=True))
    assert not quota.takes_calls(Entry(b""), 1, Need(tier, 0))
    assert str(quota.refusal(tier)).endswith(": raise storage_quota_bytes")


def test_what_one_turn_has_no_space_for_may_be_taken_on_in_the_next_one():
    disk = Disk(2 * FLOOR + 150_000)
    space = budget(disk)
    need = Need(Tier.LEASES, 100_000)
    space.begin_turn()
    assert space.takes_calls(Entry(b""), 1, need)
    assert not space.takes_calls(Entry(b""), 1, need)
    assert space.may_take_later(Entry(b""), 1, need)
    space.begin_turn()
    assert space.takes_calls(Entry(b""), 1, need)
    disk.free_bytes = 2 * FLOOR + 100_000
    space.begin_turn()
    assert not space.takes_calls(Entry(b""), 1, need)
    assert not space.may_take_later(Entry(b""), 1, need)


def test_a_need_beyond_all_bounds_does_not_refuse_for_ever():
    space = budget(Disk(RESERVE))
    assert space.takes_calls(Entry(b""), 1, Need(Tier.LEASES, 1 << 40))
    assert not space.roomy
    assert budget(Disk(17 * RESERVE)).roomy


def test_what_is_applied_stays_within_what_is_free():
    disk = Disk(RESERVE)
    space = budget(disk)
    space.begin_turn()
    txn = disk.begin()
    txn.put(b"journal", bytes(1_000))
    room = space.room(txn)
    assert room is not None
    assert room.free_bytes == RESERVE - RESERVE // 16 - txn.added_bytes()
    with txn.child() as child:
        child.put(b"fits", bytes(900_000))
        room.spend(child)
    with suppress(BudgetExceeded), txn.child() as child:
        child.put(b"does not", bytes(100_000))
        room.spend(child)
    assert txn.get(b"does not") is None
    assert room.refused
    assert space.was_short()
    assert not space.takes_mending(50_000), "it comes after what was applied"
    assert space.take_staging() == 0
    txn.abort()
    disk.free_bytes = 17 * RESERVE
    space.begin_turn()
    assert space.room(disk.begin()) is None


def test_a_disk_that_is_emptied_by_others_is_seen_in_the_next_turn():
    disk = Disk(0)
    space = budget(disk)
    assert not space.takes_entries(entries(1))
    disk.free_bytes = 10 * RESERVE
    space.begin_turn()
    assert space.takes_entries(entries(1))


@pytest.mark.parametrize(("free", "short"), [(2 * RESERVE, True), (2 * RESERVE + 100_000, False)])
def test_it_is_said_once_that_space_is_short(free, short):
    space = budget(Disk(free))
    assert not space.was_short(), "nobody has looked"
    assert space.takes_calls(Entry(b""), 1, FREES)
    assert space.was_short() == short
    assert not space.was_short()


def test_a_snapshot_takes_what_nothing_else_may():
    space = budget(Disk(FLOOR))
    assert not space.takes_calls(Entry(b""), 1, FREES)
    assert not space.takes_entries(entries(1))
    assert space.take_staging() == FLOOR - RESERVE // 8
    assert space.take_staging() == 0
    space = budget(Disk(1 << 40))
    assert space.take_staging() == TURN_BYTES_MAX
