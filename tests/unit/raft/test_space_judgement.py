"""What is taken on of the space that is left."""

import msgspec
import pytest

from querator.model.entries import Entry
from querator.model.errors import ErrorCode
from querator.model.limits import TURN_BYTES_MAX
from querator.raft.messages import Append, LogEntry
from querator.raft.space import Space
from querator.storage.environment import Usage
from querator.storage.memory_environment import MemoryEnvironment

RESERVE = 1_000_000
FLOOR = RESERVE // 4


class Disk(MemoryEnvironment):
    def __init__(self, free_bytes: int) -> None:
        super().__init__()
        self.free_bytes = free_bytes
        self.looks = 0

    def usage(self) -> Usage:
        self.looks += 1
        usage = super().usage()
        return msgspec.structs.replace(usage, free_bytes=self.free_bytes, reserve_bytes=RESERVE)


def entries(size: int) -> Append:
    return Append(1, 1, 0, 0, 0, 0, (LogEntry(1, 0, 2, b"", (b"x" * size,)),))


def test_what_a_turn_takes_on_is_counted_together_whoever_it_comes_from():
    disk = Disk(FLOOR + 300_000)
    space = Space(disk)
    space.begin_turn()
    assert space.takes_entries(entries(100_000))
    assert not space.takes_entries(entries(100_000)), "it needs twice its bytes"
    assert space.takes_calls(Entry(b""), 20)
    assert not space.takes_calls(Entry(b""), 10)
    assert disk.looks == 1
    space.begin_turn()
    assert space.takes_entries(entries(100_000))
    assert disk.looks == 2


@pytest.mark.parametrize(
    ("free", "plain", "attached"),
    [
        (FLOOR, False, False),
        (FLOOR + 5_000, True, False),
        (RESERVE, True, False),
        (RESERVE + 10_000, True, True),
    ],
)
def test_calls_that_bring_nothing_go_on_longer(free, plain, attached):
    space = Space(Disk(free))
    assert space.takes_calls(Entry(b""), 1) == plain
    space = Space(Disk(free))
    assert space.takes_calls(Entry(b"", (b"x",)), 1) == attached
    kept = RESERVE if not attached else FLOOR
    refusal = space.refusal(attached=not attached)
    assert refusal.code is ErrorCode.STORAGE_FULL
    assert f"{kept} are kept in reserve" in str(refusal)


def test_a_disk_that_is_emptied_by_others_is_seen_in_the_next_turn():
    disk = Disk(0)
    space = Space(disk)
    assert not space.takes_entries(entries(1))
    disk.free_bytes = 10 * RESERVE
    space.begin_turn()
    assert space.takes_entries(entries(1))


@pytest.mark.parametrize(("free", "short"), [(2 * RESERVE, True), (2 * RESERVE + 100_000, False)])
def test_it_is_said_once_that_space_is_short(free, short):
    space = Space(Disk(free))
    assert not space.was_short(), "nobody has looked"
    assert space.takes_calls(Entry(b""), 1)
    assert space.was_short() == short
    assert not space.was_short()


def test_a_snapshot_takes_what_nothing_else_may():
    space = Space(Disk(FLOOR))
    assert not space.takes_calls(Entry(b""), 1)
    assert not space.takes_entries(entries(1))
    assert space.take_staging() == FLOOR - RESERVE // 8
    assert space.take_staging() == 0
    space = Space(Disk(1 << 40))
    assert space.take_staging() == TURN_BYTES_MAX
