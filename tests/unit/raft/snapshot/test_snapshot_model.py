"""Snapshots under random load, losses, crashes and changes of leader, in any order.

After every switch the follower has exactly the state that its leader had when it sent the end. Once
the faults are over, the follower catches up, and no rows of interrupted attempts are left.
"""

import tempfile
from abc import abstractmethod
from pathlib import Path
from unittest import TestCase

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from querator.raft.snapshot import receiver, sender, staging
from querator.storage.memory_environment import MemoryEnvironment
from tests.unit.raft.snapshot.queue_workload import QueueWorkload
from tests.unit.raft.snapshot.snapshot_transfer import SnapshotReplica, SnapshotTransfer
from tests.unit.storage.conftest import Disk, LmdbDisk, MemoryDisk


class SnapshotModel(RuleBasedStateMachine):
    """Steps are small, so that a run has many."""

    @abstractmethod
    def new_disk(self) -> Disk:
        """An empty disk of the back end."""

    @initialize(
        seed=st.integers(0, 1 << 16),
        blocks=st.integers(0, 40),
        behind=st.integers(0, 40),
        generation=st.sampled_from([0, 1, 65_535]),
        keep=st.integers(1, 30),
        rows_max=st.sampled_from([3, 20, 100]),
        room_bytes=st.sampled_from([1, 20_000, 1 << 20]),
    )
    def start(
        self,
        seed: int,
        blocks: int,
        behind: int,
        generation: int,
        keep: int,
        rows_max: int,
        room_bytes: int,
    ) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(sender, "STEP_ROWS_MAX", rows_max)
        self.patch.setattr(receiver, "TURN_ROWS_MAX", 3 * rows_max)
        self.patch.setattr(staging, "TURN_ROWS_MAX", 3 * rows_max)
        self.load = QueueWorkload(seed)
        for _ in range(blocks):
            self.load.produce(30)
        leader = SnapshotReplica(
            MemoryEnvironment(), self.load.entries, generation=generation, keep=keep
        )
        leader.apply()
        self.disk = self.new_disk()
        follower = SnapshotReplica(self.disk.open(), self.load.entries, keep=keep)
        follower.apply(min(behind, blocks))
        self.sending = SnapshotTransfer(leader, follower)
        self.sending.link.room_bytes = room_bytes

    def teardown(self) -> None:
        if not hasattr(self, "sending"):
            return
        try:
            self._catch_up()
        finally:
            self.disk.close()
            self.patch.undo()

    def _catch_up(self) -> None:
        sending = self.sending
        sending.run()
        if sending.sender.failed is not None:
            sending.begin()
            sending.run()
        assert sending.sender.failed is None
        sending.clean_up()
        follower = sending.follower
        assert len(follower.generations_stored()) <= 1
        follower.apply()
        assert follower.digest() == sending.leader.digest()
        assert follower.held() == sending.leader.held()
        assert follower.wrong() == []

    @rule(times=st.integers(1, 3))
    def work(self, times: int) -> None:
        self.load.work(self.sending.leader, times)

    @rule(turns=st.integers(1, 6), most=st.integers(0, 3))
    def run_on(self, turns: int, most: int) -> None:
        for _ in range(turns):
            self.sending.leader_turn()
            self.sending.follower_turn(most)
            self.sending.now_s += 0.01

    @rule()
    def leader(self) -> None:
        self.sending.leader_turn()

    @rule(most=st.integers(0, 3))
    def follower(self, most: int) -> None:
        self.sending.follower_turn(most)

    @rule()
    def time_passes(self) -> None:
        self.sending.now_s += 3

    @rule()
    def connection_breaks(self) -> None:
        self.sending.disconnect()

    @rule()
    def follower_crashes(self) -> None:
        """The follower restarts with the state that it had synced."""
        self.sending.disconnect()
        self.sending.follower.environment = self.disk.open()
        self.sending.follower.recover()

    @rule()
    def leader_changes(self) -> None:
        """Another leader with the same state begins a new attempt."""
        self.sending.term += 1
        self.sending.begin()

    @rule()
    def attempt_ends(self) -> None:
        self.sending.begin()

    @rule(entries=st.integers(1, 3))
    def follower_gets_entries(self, entries: int) -> None:
        """The entries come from a leader that has kept more of its log."""
        follower = self.sending.follower
        last = min(follower.index + entries, len(self.load.entries.all))
        follower.apply(last)

    @precondition(lambda self: self.sending.sender.over)
    @rule()
    def again(self) -> None:
        self.sending.begin()


class MemorySnapshots(SnapshotModel):
    def new_disk(self) -> Disk:
        return MemoryDisk()


class LmdbSnapshots(SnapshotModel):
    def new_disk(self) -> Disk:
        self.directory = tempfile.TemporaryDirectory()
        return LmdbDisk(Path(self.directory.name) / "node")

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "directory"):
            self.directory.cleanup()


TestMemory: type[TestCase] = MemorySnapshots.TestCase
TestMemory.settings = settings(max_examples=100, stateful_step_count=30)  # type: ignore[attr-defined]
TestLmdb: type[TestCase] = LmdbSnapshots.TestCase
TestLmdb.settings = settings(max_examples=20, stateful_step_count=30)  # type: ignore[attr-defined]
