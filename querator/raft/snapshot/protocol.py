"""How a replica that is behind its leader's log gets the whole state, while the group serves calls.

The leader (`raft.snapshot.sender`) copies its rows in key order, in steps of bounded work, each in
a short read transaction of its own. It notes which copied rows change meanwhile, and sends those
again. When a step leaves nothing to be copied, the receiver has what the leader had in that step's
transaction: the state at its applied index *a*. From a + 1 on the follower continues with the log.

So nothing is frozen, neither in memory nor by a long read transaction; no attachment is pinned; and
the leader's work is not disturbed. The log is pinned from a on, which is known only at the very
end. Memory holds the window of unacknowledged chunks, and the keys that changed: at most
`CHANGES_MAX`, beyond which the attempt is given up.

Proof that the copy is that of index a. Let C be the rows before the cursor, D the noted keys.
Before and after every commit and every step, in the order of the chunks: the receiver has of C \\ D
what the sender has. A commit changes keys in C only by putting them into D. A step moves keys from
D, or from behind the cursor, into C, with their value in its transaction. No commit runs beside a
step, because one thread does both. At the end C is everything and D is empty.

What is copied:

    attachments   those that the state holds: entry applied, and not marked dead. They never change,
                  and are created in the order of their keys. So they are copied in this order up to
                  the applied index, and only deaths are noted. A receiver has many of them already:
                  in its old state, which is a prefix of the same history, or from an interrupted
                  attempt. Up to that point it gets only keys (`Listed`), copies those that the new
                  generation lacks from its old one, and deletes those that are not listed. An
                  attachment that lives at a and whose entry the old state had applied lived there
                  too, because each is created once and dies once.
    state         all tables of the generation but raft's.
    not           log, term, vote: the receiver keeps its own term and vote; its log begins after a.

    sender                    receiver
    ----------------------    ------------------------------------------------------------------
    SnapshotOffer        →    creates the staging generation, or empties its tables, or finds that
                              it has already a part of this snapshot
                         ←    READY: the last chunk that is on its disk, and up to which entry it
                              has attachments
    SnapshotChunk …      →    writes into the staging generation, in the turns' transactions
                         ←    RECEIVED, after the sync
    (nothing for a while: SnapshotOffer again, which replaces lost messages)
    SnapshotChunk: End   →    sums up what it has; if equal, the owner switches to it
                         ←    INSTALLED
                         ←    REFUSED, when it cannot: the sender is done, and the owner tries again

Checks: each chunk has a CRC-32 of the stream up to it. Sealed rows are checked when they are read
and when they are written. At the end the receiver reads all of the staging generation, and compares
the number of rows and the sum of their hashes with the sender's. The hash is additive, so that the
sender can subtract and add single rows.

When the end has arrived, and the receiver has committed less than a:

    its log has no entry of a's term at a     it installs: no entry of its log from a on can be
                                              committed, because a committed one equals the leader's
    its log has                               it must not: entries after a may be acknowledged. But
                                              all up to a is equal, hence committed; it answers
                                              INSTALLED and continues with its log
"""

from enum import IntEnum
from hashlib import blake2b
from typing import Final

import msgspec

from querator.model.limits import KIB, MIB, REQUEST_BYTES_CAP
from querator.model.nodes import Replicas
from querator.storage.keys import ALL, Table
from querator.storage.sealed import checksum
from querator.storage.tables import ATTACHMENTS, RAFT_TABLES

CHUNK_BYTES: Final = 256 * KIB
"""Most bytes of a chunk's content."""
WINDOW_BYTES: Final = 4 * MIB
"""Most bytes sent and not acknowledged, unless one value is larger."""
STEP_ROWS_MAX: Final = 1_000
STEP_BYTES_MAX: Final = 512 * KIB
"""Most bytes read in one step of the sender, unless one value is larger."""
CHANGES_MAX: Final = 200_000
"""Most keys that changed behind the cursor: about 20 MB of memory."""
VALUE_BYTES_MAX: Final = 2 * REQUEST_BYTES_CAP
"""A longer value is not a row of this release."""
_CHUNK_SPARE: Final = 512
"""Bytes around the values in a chunk."""
PIECE_BYTES: Final = CHUNK_BYTES - _CHUNK_SPARE

FIRST: Final = b""
"""Before all keys."""
LAST: Final = b"\xff" * 16
"""After all keys of attachments."""


def chain(crc: int, content: bytes) -> int:
    """The CRC-32 of a stream: of the CRC of its beginning, and the content that follows."""
    return checksum(crc.to_bytes(4, "big"), content)


class Verdict(IntEnum):
    READY = 1
    """Chunks after `sequence` are expected; attachments of entries up to `index` are there."""
    RECEIVED = 2
    INSTALLED = 3
    """The follower's state and log agree with the leader's up to `index`."""
    REFUSED = 4
    """Refused for `reason`; nothing more of this snapshot is expected."""


class Position(msgspec.Struct, frozen=True, array_like=True):
    """Data that belongs to the state at `index`: term and time of that entry, the bytes of the log
    up to it, and the last configuration up to there, with the index of its entry.
    """

    index: int
    term: int
    now_ms: int
    log_bytes: int
    replicas_index: int
    replicas: Replicas


class Rows(msgspec.Struct, frozen=True, array_like=True, tag=1, gc=False):
    """Keys without the group, and values as they are stored; None: deleted."""

    rows: tuple[tuple[bytes, bytes | None], ...]


class Piece(msgspec.Struct, frozen=True, array_like=True, tag=2, gc=False):
    """A piece of a long value: pieces of one key follow each other until they are `total` bytes."""

    key: bytes
    total: int
    data: bytes


class Listed(msgspec.Struct, frozen=True, array_like=True, tag=3, gc=False):
    """The attachments after `after`, up to `upto`: keys without table and group."""

    after: bytes
    upto: bytes
    keys: tuple[bytes, ...]


class End(msgspec.Struct, frozen=True, array_like=True, tag=4, gc=False):
    position: Position
    rows: int
    rows_sum: bytes
    attachments: int
    attachments_sum: bytes


Content = Rows | Piece | Listed | End

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Content).decode


class Sum:
    """The number of rows, and the sum of their hashes modulo 2^128; the order of rows is
    irrelevant.
    """

    __slots__ = ("_total", "count")

    def __init__(self) -> None:
        self.count = 0
        self._total = 0

    def add(self, key: bytes, value: bytes) -> None:
        self.count += 1
        self._total += _hash(key, value)

    def remove(self, key: bytes, value: bytes) -> None:
        self.count -= 1
        self._total -= _hash(key, value)

    def digest(self) -> bytes:
        return (self._total % (1 << 128)).to_bytes(16, "big")


def _hash(key: bytes, value: bytes) -> int:
    summed = blake2b(bytes([len(key)]) + key + value, digest_size=16)
    return int.from_bytes(summed.digest(), "big")


def state_tables() -> list[Table]:
    """Tables of a machine's state, by letter."""
    tables = [table for table in ALL.values() if table.in_generations and table not in RAFT_TABLES]
    return sorted(tables, key=lambda table: table.letter)


def without_group(key: bytes) -> bytes:
    return key[:1] + key[9:]


def with_group(key: bytes, group: int) -> bytes:
    return key[:1] + group.to_bytes(8, "big") + key[1:]


def attachment_key(key: bytes, group: int) -> bytes:
    """The full key of an attachment, from a key without table and group."""
    return with_group(ATTACHMENTS.letter + key, group)


def after_entry(index: int) -> bytes:
    """The end of the keys of all attachments of entries up to `index`, before those of later
    ones.
    """
    return index.to_bytes(8, "big") + b"\xff" * 5


def entry_index(key: bytes) -> int:
    """Entry index in an attachment's key without table and group."""
    return int.from_bytes(key[:8], "big")
