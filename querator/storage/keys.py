"""Keys: the order of the rows of many tables and groups in one environment.

A key is the table's letter, the group id (u64, never reused), then the parts of the layout, all
big-endian, so that keys sort by their parts. No user string is part of a key: names are interned or
hashed (BLAKE2b-128, with the full value compared in the row).

Tables that are not `in_generations` belong to the node: they are not deleted with a group, and not
copied to another replica of it (`storage.generations`).
"""

import re
import struct
from collections.abc import Iterator

from querator.model.limits import KEY_BYTES_STORED_MAX
from querator.storage.environment import ReadTransaction, StorageCorrupt, WriteTransaction

ALL: dict[bytes, "Table"] = {}
"""Every table by its letter. The constructor of a table adds it."""

_CODE = re.compile(r"\d*[a-zA-Z?]")


class Table:
    """Rows of one kind. `layout`: struct codes of the key parts after the group (`QI`, `16s`)."""

    __slots__ = ("_key", "_prefixes", "in_generations", "letter", "name")

    def __init__(
        self, name: str, letter: bytes, layout: str, *, in_generations: bool = True
    ) -> None:
        self.name = name
        self.letter = letter
        self.in_generations = in_generations
        codes = _CODE.findall(layout)
        assert "".join(codes) == layout
        self._prefixes = [
            struct.Struct(">cQ" + "".join(codes[:count])) for count in range(len(codes) + 1)
        ]
        self._key = struct.Struct(">cQ" + layout)
        assert len(letter) == 1
        assert letter not in ALL, f"the letter of {name} is taken"
        assert self._key.size <= KEY_BYTES_STORED_MAX
        ALL[letter] = self

    @property
    def key_bytes(self) -> int:
        """Length of a key."""
        return self._key.size

    def key(self, group: int, *parts: int | bytes) -> bytes:
        return self._key.pack(self.letter, group, *parts)

    def parts(self, key: bytes) -> tuple[int | bytes, ...]:
        """The parts of a key after the group. Raises StorageCorrupt for a key of another length."""
        try:
            return self._key.unpack(key)[2:]
        except struct.error as error:
            message = f"a key of table {self.name} has {len(key)} bytes instead of {self.key_bytes}"
            raise StorageCorrupt(message) from error

    def get(self, txn: ReadTransaction, group: int, *parts: int | bytes) -> bytes | None:
        return txn.get(self._key.pack(self.letter, group, *parts))

    def put(self, txn: WriteTransaction, group: int, *parts: int | bytes, value: bytes) -> None:
        txn.put(self._key.pack(self.letter, group, *parts), value)

    def delete(self, txn: WriteTransaction, group: int, *parts: int | bytes) -> bool:
        return txn.delete(self._key.pack(self.letter, group, *parts))

    def bounds(self, group: int, *parts: int | bytes) -> tuple[bytes, bytes]:
        """Start and stop of a `scan` of the rows of a group whose keys begin with `parts`."""
        start = self._prefixes[len(parts)].pack(self.letter, group, *parts)
        return start, (int.from_bytes(start, "big") + 1).to_bytes(len(start), "big")

    def rows(
        self, txn: ReadTransaction, group: int, *parts: int | bytes, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Rows of a group whose keys begin with `parts`, as `scan` returns them."""
        start, stop = self.bounds(group, *parts)
        return txn.scan(start, stop, reverse=reverse)


def delete_group(txn: WriteTransaction, group: int, *, rows_max: int, bytes_max: int) -> bool:
    """Deletes rows of one generation of a group from all its tables, up to both bounds. Returns
    whether no row remains.

    The caller repeats it in later transactions until it returns True. Values count by their bytes.
    At least one row is deleted, so every call makes progress.
    """
    assert rows_max > 0
    keys: list[bytes] = []
    size = 0
    done = True
    for table in ALL.values():
        if not table.in_generations:
            continue
        for key, value in table.rows(txn, group):
            size += len(key) + len(value)
            if len(keys) == rows_max or (keys and size > bytes_max):
                done = False
                break
            keys.append(key)
        if not done:
            break
    for key in keys:
        txn.delete(key)
    return done
