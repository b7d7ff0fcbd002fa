"""A write transaction in memory, over any committed state, until its commit.

Changes wait in one dictionary (key to value, or to None when deleted), which reads consult first. A
scan merges it with the rows below. So a back end receives only the net changes, at once, and a
read of the transaction's own writes costs no call into it. `lmdb_environment` has the cost of such
a call beside a busy thread.

A child transaction is an undo list: the pending value that each key had when the child first
changed it. An exception in the block restores those values.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from sortedcontainers import SortedList

from querator.model.limits import KEY_BYTES_STORED_MAX
from querator.storage.environment import ReadTransaction, added_bytes

Changes = dict[bytes, bytes | None]
"""Net changes of a transaction; None deletes."""
Row = tuple[bytes, bytes]
_T = TypeVar("_T")


class Ending(Protocol):
    """How a back end ends a transaction. Called once, by `commit` or by `abort`."""

    def commit(self, changes: Changes, *, sync: bool) -> None: ...

    def abort(self) -> None: ...


class _Untouched:
    """Marks a key in an undo list that had no pending change."""


_UNTOUCHED = _Untouched()
_Undo = dict[bytes, bytes | _Untouched | None]


class OverlayTransaction:
    """A `WriteTransaction`. It is aborted if `before_put` raises."""

    __slots__ = (
        "_base",
        "_before_put",
        "_ending",
        "_fresh",
        "_keys",
        "_open",
        "_pending",
        "_undo",
        "_version",
    )

    def __init__(
        self,
        base: ReadTransaction,
        ending: Ending,
        *,
        before_put: Callable[[], None] | None = None,
    ) -> None:
        self._base = base
        self._ending = ending
        self._before_put = before_put
        self._pending: Changes = {}
        self._undo: list[_Undo] = []
        # Keys of `_pending`, sorted only for a scan; `_fresh` has the keys not yet sorted in.
        self._keys: SortedList[bytes] = SortedList()
        self._fresh: list[bytes] = []
        self._open = True
        # Counts changes, so that a scan detects that it is no longer valid.
        self._version = 0

    def get(self, key: bytes) -> bytes | None:
        assert self._open
        pending = self._pending
        if key in pending:
            return pending[key]
        return self._base.get(key)

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[Row]:
        assert self._open
        rows = self._base.scan(start, stop, reverse=reverse)
        if self._pending:
            self._sort()
            keys = self._keys.irange(start, stop, inclusive=(True, False), reverse=reverse)
            rows = merged(rows, keys, self._pending, reverse=reverse)
        return self._unchanged(rows, self._version)

    def keys(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        assert self._open
        keys = self._base.keys(start, stop)
        if self._pending:
            self._sort()
            changed = self._keys.irange(start, stop, inclusive=(True, False))
            rows = merged(((key, b"") for key in keys), changed, self._pending, reverse=False)
            keys = (key for key, _ in rows)
        return self._unchanged(keys, self._version)

    def changes(self) -> Mapping[bytes, bytes | None]:
        return self._pending

    def added_bytes(self) -> int:
        pending = self._pending
        if not self._undo:
            return added_bytes(pending.items())
        return added_bytes((key, pending[key]) for key in self._undo[-1])

    def before(self, key: bytes) -> bytes | None:
        return self._base.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        assert self._open
        assert 0 < len(key) <= KEY_BYTES_STORED_MAX
        if self._before_put is not None:
            self._refusable(self._before_put)
        self._set(key, value)

    def delete(self, key: bytes) -> bool:
        if self.get(key) is None:
            return False
        self._set(key, None)
        return True

    def child(self) -> AbstractContextManager["OverlayTransaction"]:
        assert self._open
        return _Child(self)

    def commit(self, *, sync: bool) -> None:
        assert self._open
        assert not self._undo, "a child transaction is open"
        self._open = False
        self._ending.commit(self._pending, sync=sync)

    def abort(self) -> None:
        if self._open:
            self._open = False
            self._ending.abort()

    def _set(self, key: bytes, value: bytes | None) -> None:
        pending = self._pending
        if key not in pending:
            self._fresh.append(key)
            if self._undo:
                self._undo[-1].setdefault(key, _UNTOUCHED)
        elif self._undo:
            self._undo[-1].setdefault(key, pending[key])
        pending[key] = value
        self._version += 1

    def _restore(self, undo: _Undo) -> None:
        for key, value in undo.items():
            if isinstance(value, _Untouched):
                del self._pending[key]
            else:
                self._pending[key] = value
        self._keys.clear()
        self._fresh = list(self._pending)
        self._version += 1

    def _sort(self) -> None:
        if self._fresh:
            self._keys.update(self._fresh)
            self._fresh.clear()

    def _unchanged(self, rows: Iterator[_T], version: int) -> Iterator[_T]:
        for row in rows:
            assert self._version == version, "the transaction changed during a scan"
            yield row

    def _refusable(self, check: Callable[[], None]) -> None:
        try:
            check()
        except BaseException:
            self.abort()
            raise


class _Child:
    """The block of a child transaction: the parent with one more undo list."""

    __slots__ = ("_depth", "_txn")

    def __init__(self, txn: OverlayTransaction) -> None:
        self._txn = txn
        self._depth = 0

    def __enter__(self) -> OverlayTransaction:
        undo = self._txn._undo
        undo.append({})
        self._depth = len(undo)
        return self._txn

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        txn = self._txn
        if not txn._open:
            assert kind is not None, "the transaction ended in its child"
            return
        assert len(txn._undo) == self._depth, "children end in the reverse of their order"
        undo = txn._undo.pop()
        if kind is not None:
            txn._restore(undo)
        elif txn._undo:
            parent = txn._undo[-1]
            for key, value in undo.items():
                parent.setdefault(key, value)


def merged(
    rows: Iterator[Row], keys: Iterator[bytes], changes: Changes, *, reverse: bool
) -> Iterator[Row]:
    """Merges `changes` into `rows`; `keys` are the changed keys in the range, in the order of the
    rows.
    """
    key = next(keys, None)
    for row in rows:
        while key is not None and (key > row[0] if reverse else key < row[0]):
            value = changes[key]
            if value is not None:
                yield key, value
            key = next(keys, None)
        if key == row[0]:
            value = changes[row[0]]
            if value is not None:
                yield row[0], value
            key = next(keys, None)
        else:
            yield row
    while key is not None:
        value = changes[key]
        if value is not None:
            yield key, value
        key = next(keys, None)
