"""Changes between two steps of a sender, on so few rows that every coincidence happens."""

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from querator.raft.snapshot import sender
from querator.raft.snapshot.protocol import Position
from querator.raft.snapshot.receiver import SnapshotReceiver
from querator.raft.snapshot.sender import SnapshotSender
from querator.storage import attachments, generations
from querator.storage.environment import ReadTransaction, WriteTransaction
from querator.storage.keys import Table
from querator.storage.memory_environment import MemoryEnvironment
from querator.storage.tables import (
    ATTACHMENTS,
    ATTACHMENTS_DEAD,
    BLOCKS,
    EXPIRIES,
    RAFT_TABLES,
    SETTINGS,
)

G = 7
TABLES = (BLOCKS, EXPIRIES, SETTINGS)
ROWS: tuple[tuple[Table, tuple[int, ...]], ...] = (
    *((BLOCKS, (number,)) for number in range(3)),
    *((EXPIRIES, (1, number)) for number in range(2)),
    (SETTINGS, ()),
)

WRITES = st.tuples(
    st.just("write"), st.integers(0, len(ROWS) - 1), st.sampled_from([b"1", b"22", None])
)
ENTRIES = st.tuples(st.just("entry"), st.integers(0, 2), st.none())
DROPS = st.tuples(st.just("drop"), st.integers(0, 9), st.none())
TRUNCATES = st.tuples(st.just("truncate"), st.integers(1, 2), st.none())
COMMITS = st.lists(st.one_of(WRITES, WRITES, ENTRIES, DROPS, TRUNCATES), max_size=4)
RUNS = st.lists(
    st.tuples(COMMITS, st.sampled_from(["both", "both", "leader", "cut"])), min_size=6, max_size=20
)


class Leader:
    """Writes rows, and entries whose attachments are held until they are dropped."""

    def __init__(self) -> None:
        self.environment = MemoryEnvironment()
        self.index = 0
        self.log_first = 1
        self.parts = [0]
        self.held: list[tuple[int, int]] = []

    def commit(self, changes: list[Any], before_commit: Callable[[WriteTransaction], None]) -> None:
        txn = self.environment.begin()
        for what, number, value in changes:
            getattr(self, f"_{what}")(txn, number, value)
        before_commit(txn)
        txn.commit(sync=True)

    def _write(self, txn: WriteTransaction, number: int, value: bytes | None) -> None:
        table, parts = ROWS[number]
        if value is None:
            table.delete(txn, G, *parts)
        else:
            table.put(txn, G, *parts, value=value)

    def _entry(self, txn: WriteTransaction, parts: int, _: None) -> None:
        self.index += 1
        self.parts.append(parts)
        for part in range(parts):
            attachments.write(txn, G, self.index, part, b"%d.%d" % (self.index, part))
            self.held.append((self.index, part))

    def _drop(self, txn: WriteTransaction, number: int, _: None) -> None:
        if self.held:
            index, part = self.held.pop(number % len(self.held))
            attachments.drop(txn, G, index, part, log_first=self.log_first)

    def _truncate(self, txn: WriteTransaction, entries: int, _: None) -> None:
        while entries > 0 and self.log_first <= self.index:
            attachments.release(txn, G, self.log_first, self.parts[self.log_first])
            self.log_first += 1
            entries -= 1

    def position(self, _: ReadTransaction) -> Position:
        return Position(
            index=self.index, term=1, now_ms=0, log_bytes=0, replicas_index=0, replicas=()
        )


def state(view: ReadTransaction) -> dict[bytes, bytes]:
    """The rows of the state, and the attachments that it holds."""
    found = {key: value for table in TABLES for key, value in table.rows(view, G)}
    held = {
        key: value
        for key, value in ATTACHMENTS.rows(view, G)
        if ATTACHMENTS_DEAD.get(view, G, *ATTACHMENTS.parts(key)) is None
    }
    return found | held


@given(
    st.lists(COMMITS, min_size=4, max_size=8),
    RUNS,
    st.sampled_from([1, 2, 3]),
    st.sampled_from([1, 1 << 20]),
    st.integers(0, 6),
)
@settings(max_examples=400)
def test_the_copy_is_what_the_leader_had_at_the_end(before, run, rows_max, room, has_upto):
    patch = pytest.MonkeyPatch()
    patch.setattr(sender, "STEP_ROWS_MAX", rows_max)
    try:
        copy(before, run, room, has_upto)
    finally:
        patch.undo()


def copy(before: list[Any], run: list[Any], room: int, has_upto: int) -> None:
    leader, follower = Leader(), MemoryEnvironment()
    for changes in before:
        leader.commit(changes, lambda txn: None)
    # The follower's old state has the attachments that were held of a prefix of the entries.
    txn = follower.begin()
    old_index = min(has_upto, leader.index)
    for index, part in leader.held:
        if index <= old_index:
            attachments.write(txn, G, index, part, b"%d.%d" % (index, part))
    txn.commit(sync=True)
    with follower.snapshot() as snapshot:
        receiver = SnapshotReceiver(G, snapshot)
    sender = SnapshotSender(leader.environment, G, 0, leader.position, term=1, number=1, now_s=0.0)
    there: list[Any] = []
    expected: dict[bytes, bytes] | None = None
    ready: list[Any] = [((), "both")] * 2
    for changes, action in (*ready, *run, *(ready * 50)):
        leader.commit(changes, sender.before_commit)
        if action == "cut":
            there.clear()
            sender.interrupted(0.0)
        there += sender.step(0.0, room)
        if sender.end is not None and expected is None:
            with leader.environment.snapshot() as snapshot:
                expected = state(snapshot)
        if action == "both":
            for reply in follower_turn(follower, receiver, there, old_index):
                sender.on_reply(reply, 0.0)
            there.clear()
    assert sender.failed is None
    assert sender.done is not None
    with follower.snapshot() as snapshot:
        view = generations.view(snapshot, G)
        assert state(view) == expected
        for table in RAFT_TABLES:
            assert table is ATTACHMENTS or not list(table.rows(view, G))


def follower_turn(
    environment: MemoryEnvironment, receiver: SnapshotReceiver, messages: list[Any], index: int
) -> list[Any]:
    for message in messages:
        receiver.on_message(message)
    txn = environment.begin()
    receiver.write(txn, now_s=0.0, space_bytes=1 << 30, applied_index=index)
    if receiver.ready_to_install is not None:
        receiver.install(txn)
    txn.commit(sync=True)
    return receiver.replies()
