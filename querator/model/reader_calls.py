"""The calls of readers and their replies; conventions as in `calls`."""

import msgspec

from querator.model.errors import ErrorCode
from querator.model.readers import NumberedBatch


class OpenReaderCall(msgspec.Struct, frozen=True):
    namespace: str
    queue: str
    reader_id: str
    timeout_ms: int = 0
    request_id: str = ""


class ReaderStart(msgspec.Struct, frozen=True):
    """`ready_upto` is the last position in the wait queue that any item of the partition had.
    `dead_seq` is the last batch whose items were made dead letters; 0: none.
    """

    partition: int
    acked_seq: int
    batch: NumberedBatch | None
    ready_upto: int
    dead_seq: int = 0


class OpenedReader(msgspec.Struct, frozen=True):
    epoch: int
    partitions: tuple[ReaderStart, ...]


class ReaderAck(msgspec.Struct, frozen=True):
    """`ready_upto` 0: any ready items are given out."""

    partition: int
    ack_seq: int
    ready_upto: int = 0


class AdvanceReaderCall(msgspec.Struct, frozen=True):
    """`max_items` and `max_bytes` apply to all partitions together. Partitions without an ack
    acknowledge nothing.
    """

    namespace: str
    queue: str
    reader_id: str
    epoch: int
    acks: tuple[ReaderAck, ...]
    max_items: int
    max_bytes: int
    wait_ms: int = 0
    acknowledge_only: bool = False
    skip_released: bool = False
    timeout_ms: int = 0


class AdvanceOutcome(msgspec.Struct, frozen=True):
    """`error` is why the partition is unchanged, as far as is known. `gone`: it left the queue, and
    was empty.
    """

    partition: int
    acked_seq: int
    batch: NumberedBatch | None = None
    error: ErrorCode | None = None
    gone: bool = False


class AdvancedReader(msgspec.Struct, frozen=True):
    """The progress by partition."""

    partitions: tuple[AdvanceOutcome, ...]


class ReadBatchCall(msgspec.Struct, frozen=True):
    """Reads items of an open batch from `from_index` up to before `upto_index` (0: to the end)."""

    namespace: str
    queue: str
    reader_id: str
    partition: int
    batch_seq: int
    from_index: int = 0
    upto_index: int = 0
    with_value: bool = True
    timeout_ms: int = 0


class BatchPage(msgspec.Struct, frozen=True, array_like=True):
    """`columns` is an `ItemColumns` of the items before `next_index`; the last page ends before
    `upto_index`.
    """

    columns: bytes
    next_index: int
    upto_index: int


class ReaderState(msgspec.Struct, frozen=True):
    """A reader in one partition, as of the state time `now_ms`. `opened_at_ms` is when its epoch
    began, `advanced_at_ms` when it last advanced (0: never). `ready` items wait for this or another
    client.
    """

    reader_id: str
    epoch: int
    opened_at_ms: int
    advanced_at_ms: int
    acked_seq: int
    batch: NumberedBatch | None
    ready: int
    now_ms: int


class ReaderPartitions(msgspec.Struct, frozen=True):
    """A reader with its partitions, as (number, state in it)."""

    reader_id: str
    partitions: tuple[tuple[int, ReaderState], ...]


class ReleaseReaderCall(msgspec.Struct, frozen=True):
    """Gives a batch back. `partition` None: all. `batch_seq` 0: any open batch. `dead`: the items
    become dead letters.
    """

    namespace: str
    queue: str
    reader_id: str
    partition: int | None = None
    remove: bool = False
    batch_seq: int = 0
    dead: bool = False
    timeout_ms: int = 0


class ReleasedReader(msgspec.Struct, frozen=True):
    batches: int
    items: int
