"""All tables of a node's environment: one letter each, and the layout of their keys.

A key is the table's letter, the group id (u64, never reused), then the parts of the layout, all
big-endian, so that the order of keys is the order of the parts. Values are bytes; their layouts
belong to the room that owns the table. No user string is part of a key: names are interned or
hashed (BLAKE2b-128, with the full value compared in the row).
"""

import re
import struct
from collections.abc import Iterator

from querator.model.limits import KEY_BYTES_STORED_MAX
from querator.storage.environment import ReadTransaction, WriteTransaction

ALL: dict[bytes, "Table"] = {}
"""Every table by its letter; a table enters when it is made."""

_CODE = re.compile(r"\d*[a-zA-Z?]")


class Table:
    """Rows of one kind. `layout`: struct codes of the key parts after the group, `QI` or `16s`."""

    __slots__ = ("_key", "_prefixes", "letter", "name")

    def __init__(self, name: str, letter: bytes, layout: str) -> None:
        self.name = name
        self.letter = letter
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

    def bounds(self, group: int, *parts: int | bytes) -> tuple[bytes, bytes]:
        """Start and stop for `scan` of the rows of a group whose keys begin with `parts`."""
        start = self._prefixes[len(parts)].pack(self.letter, group, *parts)
        return start, (int.from_bytes(start, "big") + 1).to_bytes(len(start), "big")

    def rows(
        self, txn: ReadTransaction, group: int, *parts: int | bytes, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Rows of a group whose keys begin with `parts`, as `scan` gives them."""
        start, stop = self.bounds(group, *parts)
        return txn.scan(start, stop, reverse=reverse)


def delete_group(txn: WriteTransaction, group: int, *, rows_max: int, bytes_max: int) -> bool:
    """Deletes rows of a group from all tables, up to both bounds; whether none is left.

    Called again in later transactions until it says so. Values count with their bytes; at least one
    row goes, so that every call makes progress.
    """
    assert rows_max > 0
    keys: list[bytes] = []
    size = 0
    done = True
    for table in ALL.values():
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


ATTACHMENTS = Table("attachments", b"P", "QI")
"""index, part → CRC-32 and bytes (`storage.attachments`)."""
ATTACHMENTS_DEAD = Table("attachments_dead", b"d", "QI")
"""index, part → nothing: the state machine has let go of it, the log has not."""

# Tables of a Raft group (querator/raft); the room documents their values in `raft.journal`.
LOG = Table("log", b"L", "Q")
"""index → term, time, sizes, command; its attachments are in a table of their own."""
MEMBERS = Table("members", b"M", "")
"""→ term, vote, beginning of the log, runs of terms in it."""
APPLIED = Table("applied", b"A", "")
"""→ index, term and time of the last applied entry."""


# Tables of a partition (querator/partition); the room documents their values in `partition.rows`.
STATE = Table("state", b"s", "")
"""→ applied index, term and time, counters, next numbers, earliest due times."""
SETTINGS = Table("settings", b"c", "")
"""→ version, settings."""
BLOCKS = Table("blocks", b"B", "Q")
"""first_seq → attachment, offsets of items, times. Immutable."""
LIVING = Table("living", b"g", "Q")
"""first_seq → mask of the items that are there; no row while all of the block are."""
SEGMENTS = Table("segments", b"T", "QB")
"""first_seq, lowest ordinal → state, attempt, mask. The authority on where an item is."""
READY = Table("ready", b"R", "QQB")
"""lane, position, lowest ordinal → first_seq."""
SCHEDULED = Table("scheduled", b"S", "QQB")
"""due_ms, first_seq, lowest ordinal → nothing."""
EXPIRIES = Table("expiries", b"X", "QQ")
"""expire_at_ms, first_seq → nothing."""
OVERLAYS = Table("overlays", b"I", "Q")
"""seq → what became of one item since it was produced."""
LEASES = Table("leases", b"E", "Q")
"""lease → holder, deadline, items with their outcomes."""
DEADLINES = Table("deadlines", b"D", "QQ")
"""deadline_ms, lease → nothing."""
CLIENT_LEASES = Table("client_leases", b"C", "16sQ")
"""hash of client_id, lease → nothing."""
LEASE_REQUESTS = Table("lease_requests", b"q", "16s")
"""hash of client_id and request_id → lease."""
ENDED = Table("ended_leases", b"e", "Q")
"""lease → holder, end, items with their outcomes."""
ENDED_ORDER = Table("ended_order", b"f", "QQ")
"""ended_at_ms, lease → nothing."""
PRODUCERS = Table("producers", b"i", "16s")
"""producer_id → highest sequence, what is still remembered."""
PRODUCER_OUTCOMES = Table("producer_outcomes", b"u", "16sQ")
"""producer_id, sequence → first result."""
PRODUCER_CHECKS = Table("producer_checks", b"v", "Q16s")
"""check_at_ms, producer_id → nothing."""
DEDUP_KEYS = Table("dedup_keys", b"k", "16s")
"""hash of dedup_key → key, seq, when."""
DEDUP_ORDER = Table("dedup_order", b"l", "Q16s")
"""produced_at_ms, hash of dedup_key → nothing."""
OUTBOX = Table("outbox", b"o", "QQ")
"""target group, number of the first move → items on their way."""
OUTBOX_TARGETS = Table("outbox_targets", b"h", "Q")
"""target group → next move number, moves acknowledged."""
MOVED_UPTO = Table("moved_upto", b"m", "Q")
"""source group → the last move received from it."""

# What a replica of a partition holds, attachments and log aside: hashed by its digest.
PARTITION_TABLES = tuple(
    sorted(
        (
            STATE, SETTINGS, BLOCKS, LIVING, SEGMENTS, READY, SCHEDULED, EXPIRIES, OVERLAYS,
            LEASES, DEADLINES, CLIENT_LEASES, LEASE_REQUESTS, ENDED, ENDED_ORDER,
            PRODUCERS, PRODUCER_OUTCOMES, PRODUCER_CHECKS, DEDUP_KEYS, DEDUP_ORDER,
            OUTBOX, OUTBOX_TARGETS, MOVED_UPTO,
        ),
        key=lambda table: table.letter,
    )
)  # fmt: skip

# The placement group (`placement.rows`).
PLACEMENT = Table("placement", b"0", "")
"""(one row) → epoch of the map, counters of ids, time."""
NAMESPACES = Table("namespaces", b"1", "16s")
"""hash of name → name."""
QUEUES = Table("queues", b"2", "Q")
"""queue id → queue, version of the settings that all its partitions have."""

NODE = Table("node", b"3", "")
"""(one row, group 0) → whose directory this is (`storage.identity`)."""
