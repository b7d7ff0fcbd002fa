"""Random operations on each back end, compared with a dictionary that is copied at each step."""

import tempfile
from abc import abstractmethod
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from querator.storage.environment import Environment, WriteTransaction
from tests.unit.storage.conftest import Disk, LmdbDisk, MemoryDisk

Rows = dict[bytes, bytes]
Manager = AbstractContextManager[Any]

KEYS = st.sampled_from([bytes([65 + n]) * (1 + n % 3) for n in range(12)])
BOUNDS = st.one_of(KEYS, st.sampled_from([b"", b"A\0", b"\xff"]))
VALUES = st.sampled_from([b"", b"1", b"22", bytes(1_500), bytes(5_000)])


class _Undo(Exception):
    pass


class StorageModel(RuleBasedStateMachine):
    """`layers[0]` is the state beneath the transaction; the last layer is what the transaction
    sees.
    """

    disk: Disk

    @abstractmethod
    def new_disk(self) -> Disk:
        """An empty disk of the back end."""

    @initialize()
    def start(self) -> None:
        self.disk = self.new_disk()
        self.environment: Environment = self.disk.open()
        self.committed: Rows = {}
        self.synced: Rows = {}
        self.txn: Any = None
        self.children: list[tuple[Manager, WriteTransaction]] = []
        self.layers: list[Rows] = []
        self.snapshots: list[tuple[Manager, Any, Rows]] = []

    def teardown(self) -> None:
        if hasattr(self, "environment"):
            self.close_snapshots()
            self.disk.close()

    def close_snapshots(self) -> None:
        for manager, _, _ in self.snapshots:
            manager.__exit__(None, None, None)
        self.snapshots.clear()

    @precondition(lambda self: self.txn is None)
    @rule()
    def begin(self) -> None:
        self.txn = self.environment.begin()
        self.layers = [dict(self.committed)]

    @precondition(lambda self: self.txn is not None)
    @rule(key=KEYS, value=VALUES)
    def put(self, key: bytes, value: bytes) -> None:
        self.txn.put(key, value)
        self.layers[-1][key] = value

    @precondition(lambda self: self.txn is not None)
    @rule(key=KEYS)
    def delete(self, key: bytes) -> None:
        assert self.txn.delete(key) == (self.layers[-1].pop(key, None) is not None)

    @precondition(lambda self: self.txn is not None)
    @rule(key=KEYS)
    def get(self, key: bytes) -> None:
        assert self.txn.get(key) == self.layers[-1].get(key)
        assert self.txn.before(key) == self.committed.get(key)

    @precondition(lambda self: self.txn is not None)
    @rule()
    def changes(self) -> None:
        changes = self.txn.changes()
        rows = {key: value for key, value in self.committed.items() if key not in changes}
        rows.update((key, value) for key, value in changes.items() if value is not None)
        assert rows == self.layers[-1]

    @precondition(lambda self: self.txn is not None)
    @rule(start=BOUNDS, stop=BOUNDS, reverse=st.booleans())
    def scan(self, start: bytes, stop: bytes, reverse: bool) -> None:
        found = list(self.txn.scan(start, stop, reverse=reverse))
        assert found == between(self.layers[-1], start, stop, reverse=reverse)
        rows = between(self.layers[-1], start, stop, reverse=False)
        assert list(self.txn.keys(start, stop)) == [key for key, _ in rows]

    @precondition(lambda self: self.txn is not None and len(self.children) < 3)
    @rule()
    def open_child(self) -> None:
        manager = self.txn.child()
        self.children.append((manager, self.txn))
        self.txn = manager.__enter__()
        self.layers.append(dict(self.layers[-1]))

    @precondition(lambda self: self.children)
    @rule(keep=st.booleans())
    def end_child(self, keep: bool) -> None:
        manager, parent = self.children.pop()
        changed = self.layers.pop()
        if keep:
            manager.__exit__(None, None, None)
            self.layers[-1] = changed
        else:
            undo = _Undo()
            assert not manager.__exit__(_Undo, undo, None)
        self.txn = parent

    @precondition(lambda self: self.txn is not None and not self.children)
    @rule(sync=st.booleans())
    def commit(self, sync: bool) -> None:
        self.txn.commit(sync=sync)
        self.txn = None
        self.committed = self.layers.pop()
        if sync or self.environment.durable:
            self.synced = dict(self.committed)

    @precondition(lambda self: self.txn is not None and not self.children)
    @rule()
    def abort(self) -> None:
        self.txn.abort()
        self.txn = None

    @precondition(lambda self: len(self.snapshots) < 3)
    @rule()
    def snapshot(self) -> None:
        manager = self.environment.snapshot()
        self.snapshots.append((manager, manager.__enter__(), dict(self.committed)))

    @precondition(lambda self: self.snapshots)
    @rule(start=BOUNDS, stop=BOUNDS, reverse=st.booleans(), key=KEYS)
    def read_snapshots(self, start: bytes, stop: bytes, reverse: bool, key: bytes) -> None:
        for _, snapshot, rows in self.snapshots:
            found = list(snapshot.scan(start, stop, reverse=reverse))
            assert found == between(rows, start, stop, reverse=reverse)
            keys = [key for key, _ in between(rows, start, stop, reverse=False)]
            assert list(snapshot.keys(start, stop)) == keys
            assert snapshot.get(key) == rows.get(key)

    @precondition(lambda self: self.snapshots)
    @rule()
    def end_snapshots(self) -> None:
        self.close_snapshots()

    @rule()
    def crash(self) -> None:
        """Writes that were not synced are lost: LMDB syncs every commit, memory the commits that
        ask for it.
        """
        self.close_snapshots()
        self.children.clear()
        self.txn = None
        self.environment = self.disk.open()
        self.committed = dict(self.synced)

    @invariant()
    def the_committed_state_is_the_models(self) -> None:
        if hasattr(self, "environment"):
            with self.environment.snapshot() as snapshot:
                assert list(snapshot.scan(b"", b"\xff")) == sorted(self.committed.items())


def between(rows: Rows, start: bytes, stop: bytes, *, reverse: bool) -> list[tuple[bytes, bytes]]:
    return sorted(
        ((key, value) for key, value in rows.items() if start <= key < stop), reverse=reverse
    )


class MemoryModel(StorageModel):
    def new_disk(self) -> Disk:
        return MemoryDisk()


class LmdbModel(StorageModel):
    def new_disk(self) -> Disk:
        self.directory = tempfile.TemporaryDirectory()
        return LmdbDisk(Path(self.directory.name))

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "directory"):
            self.directory.cleanup()


TestMemoryModel = MemoryModel.TestCase
TestMemoryModel.settings = settings(max_examples=60, stateful_step_count=60)
TestLmdbModel = LmdbModel.TestCase
TestLmdbModel.settings = settings(max_examples=25, stateful_step_count=50)
