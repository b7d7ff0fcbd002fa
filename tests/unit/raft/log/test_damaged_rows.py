"""Damage in rows that Raft itself keeps stops the group that owns them, and no other group."""

import struct
from collections.abc import Callable

import pytest

from querator.model.entries import Entry
from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import GroupId
from querator.raft.clock import SimulatedClock
from querator.raft.engine.library import NO_OP
from querator.raft.log.journal import Journal, Stamped
from querator.raft.log.rows import mark_deleting
from querator.storage.environment import WriteTransaction
from querator.storage.memory_environment import MemoryEnvironment
from querator.storage.sealed import seal
from querator.storage.tables import APPLIED, ATTACHMENTS, LOG, MEMBERS
from tests.unit.raft.fake_machine import EventRecorder, RegisterMachine, read
from tests.unit.raft.running_host import running_host

G1, G2 = GroupId(1), GroupId(2)
G7 = GroupId(7)


def flip(key: bytes, position: int) -> Callable[[WriteTransaction], None]:
    def change(txn: WriteTransaction) -> None:
        row = bytearray(txn.get(key) or b"")
        row[position] ^= 1
        txn.put(key, bytes(row))

    return change


def cut(key: bytes, length: int) -> Callable[[WriteTransaction], None]:
    return lambda txn: txn.put(key, (txn.get(key) or b"")[:length])


def lose(key: bytes) -> Callable[[WriteTransaction], None]:
    def change(txn: WriteTransaction) -> None:
        assert txn.delete(key)

    return change


def apply_more_than_the_log_has(txn: WriteTransaction) -> None:
    key = APPLIED.key(G1)
    txn.put(key, seal(key, struct.pack(">QQQ", 9, 1, 0)))


def lose_entries_that_are_not_applied(txn: WriteTransaction) -> None:
    key = APPLIED.key(G1)
    txn.put(key, seal(key, struct.pack(">QQQ", 1, 1, 0)))
    for index in (1, 2):
        txn.delete(LOG.key(G1, index))


@pytest.mark.parametrize(
    "damage",
    [
        *(flip(MEMBERS.key(G1), position) for position in (0, 4, 6, 7, -1)),
        cut(MEMBERS.key(G1), 0),
        cut(MEMBERS.key(G1), 4),
        lose(MEMBERS.key(G1)),
        *(flip(APPLIED.key(G1), position) for position in (0, 11, -1)),
        cut(APPLIED.key(G1), 3),
        cut(LOG.key(G1, 3), 2),
        apply_more_than_the_log_has,
        lose_entries_that_are_not_applied,
    ],
)
async def test_damage_stops_one_group(damage):
    environment = MemoryEnvironment()
    async with running_host(environment, RegisterMachine(1), RegisterMachine(2)) as host:
        await host.propose(G1, 1)
        await host.propose(G1, 1)
        await host.propose(G2, 2)
    txn = environment.begin()
    damage(txn)
    txn.commit(sync=True)
    owner = EventRecorder()
    async with running_host(environment, RegisterMachine(2), owner=owner) as host:
        with pytest.raises(QueratorError) as caught:
            await host.create_group(G1, RegisterMachine(1))
        assert caught.value.code is ErrorCode.INTERNAL
        assert (await host.propose(G2, 1))[0] == 3
    assert owner.failures == []
    assert [group for group, _ in owner.quarantined] == [G1]
    with environment.snapshot() as snapshot:
        assert read(snapshot, 1).value == 2, "what is there is left as it is"


def test_golden_bytes():
    """Rows that a released version wrote stay readable for ever: two entries of the log with a
    no-op and a command, the member rows of a living group and of one that is being deleted, two
    attachments.
    """
    environment = MemoryEnvironment()
    with environment.snapshot() as snapshot:
        journal = Journal.open(snapshot, G7)
    journal.setCurrentTerm(3, 1)
    journal.add(NO_OP, 1, 3)
    journal.add(Stamped(Entry(b"command", (b"one", b"two")), 1_700_000_000_000), 2, 3)
    txn = environment.begin()
    journal.flush(txn)
    mark_deleting(txn, GroupId(8))
    txn.commit(sync=True)
    with environment.snapshot() as snapshot:
        rows = {key.hex(): value.hex() for key, value in snapshot.scan(b"\x00", b"\xff")}
    assert rows == {
        "4c00000000000000070000000000000001": "f0fab8b9"
        "01000000000000008000000000000000030000000000000000" + "0000000000000080",
        "4c00000000000000070000000000000002": "a74885e3"
        "02000000020000008d00000000000000030000018bcfe56800"
        + "000000000000010d"
        + b"command".hex(),
        "4d0000000000000007": "4976f471" + "9b02c203010000000091920103" + "0191920090",
        "4d0000000000000008": "e62493b6" + "9b02c300c00000000090" + "0090",
        "500000000000000007000000000000000200000000": "c087ef43" + b"one".hex(),
        "500000000000000007000000000000000200000001": "139d84b1" + b"two".hex(),
    }


async def test_golden_bytes_of_the_applied_index():
    environment, clock = MemoryEnvironment(), SimulatedClock(wall_ms=1_700_000_000_000)
    async with running_host(environment, RegisterMachine(1), clock=clock) as host:
        assert await host.propose(G1, 1) == (1, 2)
    with environment.snapshot() as snapshot:
        value = APPLIED.get(snapshot, G1)
    assert value is not None
    assert value.hex() == "dac5e32c" + "0000000000000002" + "0000000000000001" + "0000018bcfe56800"


@pytest.mark.parametrize("wanted", [True, False])
async def test_an_attachment_is_written_again_while_it_belongs_there(wanted: bool):
    environment = MemoryEnvironment()
    async with running_host(environment, RegisterMachine(1)) as host:
        await host.propose(G1, 2, b"attached")
        with environment.snapshot() as txn:
            [(key, stored)] = list(ATTACHMENTS.rows(txn, G1))
        index, part = map(int, ATTACHMENTS.parts(key))
        environment._rows[key] = b"damaged"
        await host.mend(G1, index, part, b"attached", lambda txn: wanted)
        assert environment._rows[key] == (stored if wanted else b"damaged")


async def test_an_attachment_that_finds_no_space_is_not_written_again():
    environment = MemoryEnvironment(quota_bytes=64 * 1024)
    async with running_host(environment, RegisterMachine(1)) as host:
        with pytest.raises(QueratorError) as caught:
            await host.mend(G1, 1, 0, bytes(1024 * 1024), lambda txn: True)
        assert caught.value.code is ErrorCode.STORAGE_FULL
        await host.propose(G1, 2)
