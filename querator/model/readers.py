"""Commands and results of readers; conventions as in `model.commands`, what they do in
`partition.readers`.
"""

import msgspec


class OpenReader(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=20):
    """Makes a reader known, or opens another epoch of it: earlier ones are refused from then on.

    `epoch` 0: the one after the last; else this one, unless the partition knows a later one. A
    repeat with the same `request_id` (empty: none) opens no other.
    """

    reader_id: str
    epoch: int = 0
    request_id: str = ""


class AdvanceReader(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=21):
    """Acknowledges the reader's open batch, if `ack_seq` names it, and reserves the next one; an
    open batch that is not acknowledged stays what it is, and is the answer.

    `max_items` 0: nothing is reserved. Of several items the bytes are at most `max_bytes`.
    `upto_position`: only items that had this place in line, or one before it; 0: all.
    `skip_released`: a batch whose items were released counts as acknowledged.
    """

    reader_id: str
    epoch: int
    ack_seq: int
    max_items: int
    max_bytes: int
    upto_position: int = 0
    skip_released: bool = False


class ReleaseReader(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=22):
    """Gives the items of the reader's open batch back, if it is `batch_seq`, their attempt counted.

    `remove`: and forgets the reader, unless another batch is open. `dead`: the items die instead,
    as rejected ones, and the batch counts as acknowledged.
    """

    reader_id: str
    batch_seq: int
    remove: bool = False
    dead: bool = False


ReaderCommand = OpenReader | AdvanceReader | ReleaseReader


class NamedBatch(msgspec.Struct, frozen=True, gc=False):
    """Items reserved for a reader under a number that names no other batch of the reader in the
    partition. `replays`: how many epochs were opened while it was open.
    """

    seq: int
    count: int
    bytes: int
    opened_at_ms: int
    replays: int


class ReaderResult(msgspec.Struct, frozen=True, gc=False):
    """A reader as a command has left it. `position`: the last place in line that any item has got;
    `now_ms` the state time. `dead_seq`: the last batch whose items were made to die; 0: none.
    `routing`: the last version of the queue's number of partitions that this one was told.
    """

    epoch: int
    acked_seq: int
    batch: NamedBatch | None
    position: int
    now_ms: int
    dead_seq: int = 0
    routing: int = 0
