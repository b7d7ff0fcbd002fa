"""Commands and results of readers; conventions as in `model.commands`, semantics in
`partition.readers`.
"""

import msgspec


class OpenReader(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=20):
    """Registers a reader, or opens another epoch of it: earlier epochs are refused from then on.

    `epoch` 0: the one after the last; else this one, unless the partition knows a later one. A
    repeat with the same `request_id` (empty: none) opens no other.
    """

    reader_id: str
    epoch: int = 0
    request_id: str = ""


class AdvanceReader(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=21):
    """Acknowledges the reader's open batch, if `ack_seq` names it, and reserves the next one. An
    open batch that is not acknowledged is unchanged, and is the answer.

    `max_items` 0: nothing is reserved. Several items have at most `max_bytes` together.
    `upto_position`: only items that had this position in the wait queue, or an earlier one; 0: all.
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
    """Gives the items of the reader's open batch back, if it is `batch_seq`; their attempt counts.

    `remove` also forgets the reader, unless another batch is open. `dead`: the items die instead,
    as rejected ones, and the batch counts as acknowledged.
    """

    reader_id: str
    batch_seq: int
    remove: bool = False
    dead: bool = False


ReaderCommand = OpenReader | AdvanceReader | ReleaseReader


class NumberedBatch(msgspec.Struct, frozen=True, gc=False):
    """Items reserved for a reader under a number that names no other batch of the reader in the
    partition. `replays` is the number of epochs that were opened while the batch was open.
    """

    seq: int
    count: int
    bytes: int
    opened_at_ms: int
    replays: int


class ReaderResult(msgspec.Struct, frozen=True, gc=False):
    """A reader after a command. `position` is the last position in the wait queue that any item
    got; `now_ms` the state time. `dead_seq` is the last batch whose items were made dead letters;
    0: none. `routing` is the last version of the queue's number of partitions that this partition
    received.
    """

    epoch: int
    acked_seq: int
    batch: NumberedBatch | None
    position: int
    now_ms: int
    dead_seq: int = 0
    routing: int = 0
