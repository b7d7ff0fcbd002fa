"""Values of the tables of transactional produce; conventions as in `partition.rows`."""

from hashlib import blake2b

import msgspec

from querator.model.specials import ItemSpecial
from querator.model.transactions import Participant
from querator.partition.rows import encode

__all__ = [
    "StageRow", "StagedPiece", "TxnProducerRow", "TxnRow", "decode_piece", "decode_stage",
    "decode_txn", "decode_txn_producer", "encode", "producer_hash",
]  # fmt: skip


class StageRow(msgspec.Struct, array_like=True):
    """What one attempt at one task has put into the partition. `count` items of `size` bytes are
    left of it to publish or to delete, `keys` of them with a dedup key (0 in rows of versions that
    did not count them). `txn`: the transaction that it is pinned for; `since_ms`:
    when that was done, or its last request came; `check_at_ms`: when to look at it, 0 while it is
    pinned.
    `doomed`: it has lost its name and is being deleted.
    """

    producer: str
    batch: int
    task: int
    attempt: bytes
    routing: int
    begun_ms: int
    since_ms: int
    check_at_ms: int
    count: int = 0
    size: int = 0
    checksum: int = 0
    txn: int = 0
    doomed: bool = False
    keys: int = 0


class StagedPiece(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Items of one attachment. Ordinals of `specials` count in the piece; `slots` as of Produce."""

    index: int
    part: int
    lengths: bytes
    size: int
    specials: tuple[ItemSpecial, ...] = ()
    slots: bytes = b""


class TxnProducerRow(msgspec.Struct, array_like=True):
    """Up to `committed` its batches are (-1: none). `open`: its transaction that is not decided, or
    whose abort is not carried out. The last abort is remembered for those who ask later.
    `batch_items` are those of batch `committed`, `items` those of all that were committed. Up to
    `finished` its transactions are published or let go of in this partition.
    """

    producer: str
    last_ms: int
    check_at_ms: int
    committed: int = -1
    open: int = 0
    aborted: int = 0
    code: int = 0
    message: str = ""
    batch_items: int = 0
    items: int = 0
    finished: int = 0


class TxnRow(msgspec.Struct, array_like=True):
    """`state` is a `TxnState`; the others as of Begin and Decide."""

    producer: str
    batch: int
    state: int
    begun_ms: int
    participants: tuple[Participant, ...]
    code: int = 0
    message: str = ""
    keep: bool = False


decode_stage = msgspec.msgpack.Decoder(StageRow).decode
decode_piece = msgspec.msgpack.Decoder(StagedPiece).decode
decode_txn = msgspec.msgpack.Decoder(TxnRow).decode
decode_txn_producer = msgspec.msgpack.Decoder(TxnProducerRow).decode


def producer_hash(producer: str) -> bytes:
    return blake2b(producer.encode(), digest_size=16).digest()
