"""Layouts of the rows of transactional produce. The conventions are those of `partition.rows`."""

from hashlib import blake2b

import msgspec

from querator.model.item_options import FlowNames, ItemSpecial
from querator.model.transactions import Participant
from querator.partition.rows import encode

__all__ = [
    "StageRow", "StagedPiece", "TxnProducerRow", "TxnRow", "decode_piece", "decode_stage",
    "decode_txn", "decode_txn_producer", "encode", "producer_hash",
]  # fmt: skip


class StageRow(msgspec.Struct, array_like=True):
    """A stage: the items that one attempt at one task has put into the partition. `count` items of
    `size` bytes are still to be published or deleted, `keys` of them with a dedup key (0 in rows of
    versions that did not count them). `txn` is the transaction for which the stage is pinned.
    `since_ms` is when it was pinned or unpinned, or when its last request came. `check_at_ms` is
    when to check it, 0 while it is pinned. `doomed`: the stage has lost its name and is being
    deleted.
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
    """Items of one attachment. The ordinals of `specials` count from the start of the piece.
    `slots` and `flows` are as in Produce.
    """

    index: int
    part: int
    lengths: bytes
    size: int
    specials: tuple[ItemSpecial, ...] = ()
    slots: bytes = b""
    flows: FlowNames | None = None


class TxnProducerRow(msgspec.Struct, array_like=True):
    """A producer of transactions. Its batches up to `committed` are committed (-1: none). `open` is
    its transaction that is not decided, or whose abort is not carried out. The last abort
    (`aborted`, `code`, `message`) is remembered for later queries. `batch_items` counts the items
    of batch `committed`, `items` those of all committed batches. Transactions up to `finished` are
    published or discarded in this partition.
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
    """`state` is a `TransactionState`. The other fields are as in Begin and Decide."""

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
