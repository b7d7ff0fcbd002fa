"""The groups of a node share the node's bound for logs."""

import random

import pytest

from querator.model.ids import GroupId
from querator.model.limits import KIB, LOG_PART_BYTES_MAX, LOG_PART_BYTES_MIN, MIB
from querator.raft.host import Host
from querator.raft.log.window import SHARE_S, LogWindow
from querator.storage.memory_environment import MemoryEnvironment
from tests.unit.raft.fake_machine import RegisterMachine
from tests.unit.raft.running_host import running_host

DATA = b"d" * (4 * KIB)
SLACK = 8 * KIB
"""Size of an entry that was appended after the last check."""


def window(*sizes: int, bytes_max: int) -> LogWindow:
    made = LogWindow(bytes_max)
    for group, size in enumerate(sizes, 1):
        made.record_size(GroupId(group), size)
    made.divide(0.0)
    return made


def test_within_the_bound_every_group_keeps_what_it_likes():
    assert window(60 * MIB, 40 * MIB, bytes_max=100 * MIB).part_bytes == LOG_PART_BYTES_MAX
    assert window(10, bytes_max=64 * KIB).part_bytes == 64 * KIB


@pytest.mark.parametrize(
    ("sizes", "part"),
    [
        ([30, 30, 30], 20),
        ([1, 2, 60], 57),
        ([10, 10, 70, 30], 20),
        ([30] * 20, 3),
    ],
)
def test_beyond_it_large_logs_share_evenly_what_small_ones_leave(sizes, part):
    made = window(*(size * MIB for size in sizes), bytes_max=60 * MIB)
    assert made.part_bytes == part * MIB


def test_a_group_keeps_something_however_many_are_busy():
    made = window(*[MIB] * 2_000, bytes_max=64 * MIB)
    assert made.part_bytes == LOG_PART_BYTES_MIN


def test_parts_are_computed_when_the_logs_have_grown_or_time_has_passed():
    made = window(50, 50, bytes_max=80)
    assert made.part_bytes == 40
    for group in (3, 4):
        made.record_size(GroupId(group), 2)
        made.divide(0.1)
    assert made.part_bytes == 40, "they have hardly grown"
    made.divide(SHARE_S)
    assert made.part_bytes == 38
    made.record_size(GroupId(5), 40)
    made.divide(SHARE_S)
    assert made.part_bytes == 25
    made.forget(GroupId(1))
    made.forget(GroupId(2))
    made.divide(SHARE_S)
    assert made.part_bytes == 80
    assert made.groups_to_trim() == []


def test_the_largest_give_way_first_until_they_are_within_their_parts():
    made = window(50, 10, 90, 80, 70, 60, bytes_max=100)
    assert made.part_bytes == 18
    assert made.groups_to_trim() == [3, 4, 5, 6]
    made.record_size(GroupId(3), 18)
    assert made.groups_to_trim() == [4, 5, 6, 1]
    for group in (1, 4, 5, 6):
        made.record_size(GroupId(group), 10)
    assert made.groups_to_trim() == []


def log_bytes(host: Host, *groups: int) -> int:
    found = [host.status(GroupId(group)) for group in groups]
    return sum(status.log_bytes for status in found if status is not None)


async def fill(host: Host, *groups: int, entries: int) -> None:
    for _ in range(entries):
        for group in groups:
            await host.propose(GroupId(group), 1, DATA)


async def test_many_busy_groups_keep_no_more_than_one():
    groups = range(1, 7)
    machines = [RegisterMachine(group) for group in groups]
    async with running_host(MemoryEnvironment(), *machines, log_bytes_kept=256 * KIB) as host:
        await fill(host, 1, entries=80)
        assert log_bytes(host, 1) > 200 * KIB, "one group has all of it"
        await fill(host, *groups, entries=40)
        kept = [log_bytes(host, group) for group in groups]
        assert sum(kept) <= 256 * KIB + SLACK
        assert min(kept) > 256 * KIB / 6 - 2 * SLACK, "an even part"


async def test_logs_of_idle_groups_give_way():
    machines = [RegisterMachine(group) for group in range(1, 4)]
    async with running_host(MemoryEnvironment(), *machines, log_bytes_kept=256 * KIB) as host:
        await fill(host, 1, 2, entries=30)
        await fill(host, 3, entries=60)
        assert log_bytes(host, 1, 2, 3) <= 256 * KIB + SLACK
        assert log_bytes(host, 3) > 70 * KIB


def test_the_books_are_right_after_any_work():
    chance = random.Random(7)
    made = LogWindow(1000)
    sizes: dict[GroupId, int] = {}
    for step in range(2_000):
        group = GroupId(chance.randrange(1, 30))
        if chance.random() < 0.1:
            made.forget(group)
            sizes.pop(group, None)
        else:
            sizes[group] = chance.randrange(200)
            made.record_size(group, sizes[group])
        made.divide(step / 10)
        if sum(sizes.values()) <= 1000:
            assert made.part_bytes == 1000
        assert all(sizes[found] > made.part_bytes for found in made.groups_to_trim())
