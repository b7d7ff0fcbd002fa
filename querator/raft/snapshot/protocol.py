"""How a replica that is behind its leader's log gets the whole state, while the group serves.

The leader (`raft.snapshot.sender`) copies its rows in key order, in steps of bounded work, each in
a short read transaction of its own, and notes which of the rows that it has copied change
meanwhile: those go again. When in one step nothing is left to be copied, the receiver has what the
leader had in that step's transaction: the state at its applied index *a*. From a + 1 on the
follower goes on with the log.

So nothing is frozen, neither in memory nor by a long read transaction, no attachment is pinned, and
the leader works on undisturbed. The log is pinned from a on, which is known only at the very end.
Memory holds the window of chunks that are not acknowledged, and the keys that changed: at most
`CHANGES_MAX`, beyond which the attempt is given up.

Why the copy is that of index a. Let C be the rows before the cursor, D the noted keys. Before and
after every commit and every step, in order of the chunks: the receiver has of C \\ D what the
sender has. A commit changes keys in C only by putting them into D; a step moves keys from D, or
from behind the cursor into C, with the value they have in its transaction, which no commit runs
beside (one thread does both). At the end C is everything and D is empty.

What is copied:

    attachments   those that the state holds: entry applied, and not marked dead. They never change,
                  and are born in the order of their keys; so they are copied in this order up to
                  the applied index, and only deaths are noted. A receiver has many of them already:
                  in its old state, which is a prefix of the same history, or from an attempt that
                  was broken off. Up to that point it is sent keys alone (`Listed`), copies what it
                  does not have in the new generation from its old one, and deletes what is not
                  listed. An attachment that lives at a and whose entry the old state had applied
                  lived there too, for each is born once and dies once.
    state         all tables of the generation but raft's.
    not           log, term, vote: the receiver keeps its own term and vote; its log begins after a.

    sender                    receiver
    ----------------------    ------------------------------------------------------------------
    SnapshotOffer        →    makes the staging generation, or empties its tables, or finds that
                              it was in the middle of this very snapshot
                         ←    READY: the last chunk that is on its disk, and up to which entry it
                              has attachments
    SnapshotChunk …      →    into the staging generation, in the turns' transactions
                         ←    RECEIVED, after the sync
    (nothing for a while: SnapshotOffer again, which makes up for whatever was lost)
    SnapshotChunk: End   →    sums up what it has; equal: the owner switches to it
                         ←    INSTALLED
                         ←    REFUSED, when it cannot: the sender is done, and the owner tries again

Checks: each chunk has a CRC-32 of the stream up to it; sealed rows are checked when they are read
and when they are written; at the end the receiver reads all of the staging generation and compares
the number of rows and the sum of their hashes (an additive hash, so that the sender can take off
and add single rows) with what the sender's are.

When the end is there, and the receiver has committed less than a:

    its log has no entry of a's term at a     it installs: no entry of its log from a on can be
                                              committed, for a committed one equals the leader's
    its log has                               it must not: entries after a may be acknowledged. But
                                              all up to a is equal, hence committed; it says
                                              INSTALLED and goes on with its log
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
"""Of a chunk's content, the most."""
WINDOW_BYTES: Final = 4 * MIB
"""Sent and not acknowledged, unless one value is larger."""
STEP_ROWS_MAX: Final = 1_000
STEP_BYTES_MAX: Final = 512 * KIB
"""Read in one step of the sender, or one value."""
CHANGES_MAX: Final = 200_000
"""Keys that changed behind the cursor: about 20 MB of memory."""
VALUE_BYTES_MAX: Final = 2 * REQUEST_BYTES_CAP
"""Longer values are no rows of this release."""
_CHUNK_SPARE: Final = 512
"""What comes around the values in a chunk."""
PIECE_BYTES: Final = CHUNK_BYTES - _CHUNK_SPARE

FIRST: Final = b""
"""Before all keys."""
LAST: Final = b"\xff" * 16
"""Behind all keys of attachments."""


def chain(crc: int, content: bytes) -> int:
    """The CRC-32 of a stream, of that of its beginning and what follows."""
    return checksum(crc.to_bytes(4, "big"), content)


class Verdict(IntEnum):
    READY = 1
    """Chunks after `sequence` are wanted; attachments of entries up to `index` are there."""
    RECEIVED = 2
    INSTALLED = 3
    """The follower's state and log agree with the leader's up to `index`."""
    REFUSED = 4
    """For `reason`; nothing more of this snapshot is wanted."""


class Position(msgspec.Struct, frozen=True, array_like=True):
    """What belongs to the state at `index`: of the entry there its term, time and the bytes of the
    log up to it; and the last configuration up to there, with the index of its entry.
    """

    index: int
    term: int
    now_ms: int
    log_bytes: int
    replicas_index: int
    replicas: Replicas


class Rows(msgspec.Struct, frozen=True, array_like=True, tag=1, gc=False):
    """Key without the group, and value as it is stored; None: deleted."""

    rows: tuple[tuple[bytes, bytes | None], ...]


class Piece(msgspec.Struct, frozen=True, array_like=True, tag=2, gc=False):
    """Of a long value: pieces of one key follow each other until they are `total` bytes."""

    key: bytes
    total: int
    data: bytes


class Listed(msgspec.Struct, frozen=True, array_like=True, tag=3, gc=False):
    """Which attachments there are behind `after`, up to `upto`: keys without table and group."""

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
    """The number of rows, and the sum of their hashes modulo 2^128: rows come and go in any
    order.
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
    """The key of an attachment, of one without table and group."""
    return with_group(ATTACHMENTS.letter + key, group)


def after_entry(index: int) -> bytes:
    """Behind the keys of all attachments of entries up to `index`, before those of later ones."""
    return index.to_bytes(8, "big") + b"\xff" * 5


def entry_index(key: bytes) -> int:
    """Of an attachment's key without table and group."""
    return int.from_bytes(key[:8], "big")
