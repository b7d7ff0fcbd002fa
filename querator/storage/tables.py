"""All tables of a node's environment: one letter each, and the layout of their keys.

A key is the table's letter, the group id (u64, never reused), then the parts of the layout, all big-endian, so
that the order of keys is the order of the parts. Values are bytes; their layouts belong to the room that owns
the table. No user string is part of a key: names are interned or hashed (BLAKE2b-128, with the full value
compared in the row).
"""

import struct
from collections.abc import Iterator

from querator.model.limits import KEY_BYTES_STORED_MAX
from querator.storage.environment import ReadTransaction, WriteTransaction


class Table:
    """Rows of one kind. `layout` are struct codes of the key's parts after the group, e.g. `QI` or `16s`."""

    __slots__ = ("_key", "_prefix", "letter", "name")

    def __init__(self, name: str, letter: bytes, layout: str) -> None:
        self.name = name
        self.letter = letter
        self._prefix = struct.Struct(">cQ")
        self._key = struct.Struct(">cQ" + layout)
        assert len(letter) == 1
        assert self._key.size <= KEY_BYTES_STORED_MAX

    def key(self, group: int, *parts: int | bytes) -> bytes:
        return self._key.pack(self.letter, group, *parts)

    def parts(self, key: bytes) -> tuple[int | bytes, ...]:
        """The parts of a key after the group."""
        return self._key.unpack(key)[2:]

    def get(self, txn: ReadTransaction, group: int, *parts: int | bytes) -> bytes | None:
        return txn.get(self._key.pack(self.letter, group, *parts))

    def put(self, txn: WriteTransaction, group: int, *parts: int | bytes, value: bytes) -> None:
        txn.put(self._key.pack(self.letter, group, *parts), value)

    def delete(self, txn: WriteTransaction, group: int, *parts: int | bytes) -> bool:
        return txn.delete(self._key.pack(self.letter, group, *parts))

    def bounds(self, group: int) -> tuple[bytes, bytes]:
        """Start and stop of all rows of a group, for `scan`."""
        return self._prefix.pack(self.letter, group), self._prefix.pack(self.letter, group + 1)

    def rows(self, txn: ReadTransaction, group: int, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        start, stop = self.bounds(group)
        return txn.scan(start, stop, reverse=reverse)
