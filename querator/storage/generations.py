"""Generations of a group's rows on one node: one in use, at most one incoming, some to be deleted.

A replica that is far behind receives the whole state from another replica
(`raft.snapshot.protocol`), over many transactions, while its own state stays in use. So a group may
have several *generations* of its rows. Each generation has a storage group of its own: the group's
id, with the number of the generation above its lowest 48 bits. One row per group names the
generation in use; a switch changes only this row.

All other code uses a *view* of the transaction. The view has the group's rows under the group's own
id, whatever their generation. So a machine, its digest and the checksums of sealed rows do not
depend on generations. Generation 0 is the plain id, and its view is the transaction itself.

    current    the generation in use
    staged     the incoming generation, or None
    doomed     generations to be deleted, in bounded steps, also after a restart
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

import msgspec

from querator.storage.environment import ReadTransaction, StorageCorrupt, WriteTransaction
from querator.storage.keys import delete_group
from querator.storage.sealed import seal, unseal
from querator.storage.tables import GENERATIONS, INCOMING, MEMBERS

_GROUP_BITS = 48
GENERATIONS_MAX = 1 << 16
"""Limit of generation numbers. A number is used again when its rows are deleted."""
_GROUP_MAX = 1 << _GROUP_BITS
_FORMAT = 1
_GROUP = slice(1, 9)
"""Position of the group in a key."""


class Generations(msgspec.Struct, frozen=True, array_like=True):
    format: int = _FORMAT
    current: int = 0
    staged: int | None = None
    doomed: tuple[int, ...] = ()

    def next(self) -> int:
        """A generation number that has no rows."""
        taken = {self.current, self.staged, *self.doomed}
        number = (self.current + 1) % GENERATIONS_MAX
        while number in taken:
            number = (number + 1) % GENERATIONS_MAX
        return number


_FIRST = Generations()
_decode = msgspec.msgpack.Decoder(Generations).decode
_encode = msgspec.msgpack.Encoder().encode


def read(txn: ReadTransaction, group: int) -> Generations:
    """Raises StorageCorrupt."""
    key = GENERATIONS.key(group)
    stored = txn.get(key)
    if stored is None:
        return _FIRST
    row = _decode(unseal(key, stored, f"generations of group {group}"))
    if row.format != _FORMAT:
        raise StorageCorrupt(f"group {group}: generations of unknown format {row.format}")
    return row


def write(txn: WriteTransaction, group: int, generations: Generations) -> None:
    key = GENERATIONS.key(group)
    if generations == _FIRST:
        txn.delete(key)
    else:
        txn.put(key, seal(key, _encode(generations)))


def storage_group(group: int, generation: int) -> int:
    """The group id in the keys of a generation's rows."""
    assert 0 <= group < _GROUP_MAX - 1
    assert 0 <= generation < GENERATIONS_MAX
    return generation << _GROUP_BITS | group


def group_of(storage: int) -> int:
    """The group that a storage group belongs to."""
    return storage % _GROUP_MAX


def stored_groups(txn: ReadTransaction) -> set[int]:
    """All groups with a replica here, whole or being deleted. Reads one key for each."""
    start, stop = MEMBERS.letter, bytes([MEMBERS.letter[0] + 1])
    return {group_of(int.from_bytes(key[_GROUP], "big")) for key in txn.keys(start, stop)}


def view(txn: ReadTransaction, group: int) -> ReadTransaction:
    """A view of the generation in use. Raises StorageCorrupt."""
    return view_of(txn, group, read(txn, group).current)


def view_of(txn: ReadTransaction, group: int, generation: int) -> ReadTransaction:
    return txn if generation == 0 else _View(txn, group, generation)


def write_view(txn: WriteTransaction, group: int, generation: int) -> WriteTransaction:
    return txn if generation == 0 else _WriteView(txn, group, generation)


def delete_generations(txn: WriteTransaction, group: int, *, rows_max: int, bytes_max: int) -> bool:
    """Deletes a group with all its generations, as `keys.delete_group` does. Returns whether no row
    remains.

    The generation in use is deleted last, because its rows say that the group is being deleted.
    """
    row = read(txn, group)
    for number in (*row.doomed, row.staged, row.current):
        if number is None:
            continue
        storage = storage_group(group, number)
        if not delete_group(txn, storage, rows_max=rows_max, bytes_max=bytes_max):
            return False
    INCOMING.delete(txn, group)
    GENERATIONS.delete(txn, group)
    return True


class _View:
    """Reads one generation, under the group's own id."""

    def __init__(self, txn: ReadTransaction, group: int, generation: int) -> None:
        self._txn = txn
        self._group = group
        self._storage = storage_group(group, generation)
        self._theirs = group.to_bytes(8, "big")
        self._ours = self._storage.to_bytes(8, "big")

    def get(self, key: bytes) -> bytes | None:
        return self._txn.get(self._inner(key))

    def scan(
        self, start: bytes, stop: bytes, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        theirs = self._theirs
        rows = self._txn.scan(self._inner(start), self._stop(stop), reverse=reverse)
        return ((key[:1] + theirs + key[9:], value) for key, value in rows)

    def keys(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        theirs = self._theirs
        keys = self._txn.keys(self._inner(start), self._stop(stop))
        return (key[:1] + theirs + key[9:] for key in keys)

    def _inner(self, key: bytes) -> bytes:
        assert key[_GROUP] == self._theirs, "a view is of one group"
        return key[:1] + self._ours + key[9:]

    def _stop(self, key: bytes) -> bytes:
        """The end of a range may be the beginning of the next group."""
        group = int.from_bytes(key[_GROUP], "big")
        assert self._group <= group <= self._group + 1, "a view is of one group"
        return key[:1] + (self._storage + group - self._group).to_bytes(8, "big") + key[9:]


class _WriteView(_View):
    """Changes one generation. The owner of the transaction ends it."""

    def __init__(self, txn: WriteTransaction, group: int, generation: int) -> None:
        super().__init__(txn, group, generation)
        self._writes = txn
        self._generation = generation

    def put(self, key: bytes, value: bytes) -> None:
        self._writes.put(self._inner(key), value)

    def delete(self, key: bytes) -> bool:
        return self._writes.delete(self._inner(key))

    def before(self, key: bytes) -> bytes | None:
        return self._writes.before(self._inner(key))

    def changes(self) -> Mapping[bytes, bytes | None]:
        theirs, ours = self._theirs, self._ours
        return {
            key[:1] + theirs + key[9:]: value
            for key, value in self._writes.changes().items()
            if key[_GROUP] == ours
        }

    def added_bytes(self) -> int:
        return self._writes.added_bytes()

    def child(self) -> AbstractContextManager[WriteTransaction]:
        return self._child()

    @contextmanager
    def _child(self) -> Iterator[WriteTransaction]:
        with self._writes.child() as child:
            yield _WriteView(child, self._group, self._generation)

    def commit(self, *, sync: bool) -> None:
        raise AssertionError("a view does not end its transaction")

    def abort(self) -> None:
        raise AssertionError("a view does not end its transaction")
