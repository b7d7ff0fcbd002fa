"""What is asked about transactions and what is answered; conventions as in `model.calls`."""

import msgspec

from querator.model.specials import ItemSpecial
from querator.model.transactions import StagedBatch


class StageCall(msgspec.Struct, frozen=True):
    """Items of one request of an attempt at a task; `items`, `lengths`, `specials` and `slots` as
    of `ProduceCall`. `partition` None: the node chooses.
    """

    namespace: str
    queue: str
    producer: str
    batch: int
    task: int
    attempt: bytes
    sequence: int
    items: bytes
    lengths: bytes
    specials: tuple[ItemSpecial, ...] = ()
    slots: bytes = b""
    partition: int | None = None
    timeout_ms: int = 0


class StagedPart(msgspec.Struct, frozen=True):
    """What one partition has got; of a stage in a commit: of all its requests together."""

    partition: int
    count: int
    checksum: int
    repeated: bool = False


class StageReply(msgspec.Struct, frozen=True):
    """`committed`: the batch is, nothing was staged and nothing needs to be."""

    parts: tuple[StagedPart, ...]
    durable: bool
    committed: bool = False


class CommittedAttempt(msgspec.Struct, frozen=True):
    """The attempt at a task that counts, with what it has staged by partition."""

    task: int
    attempt: bytes
    parts: tuple[StagedPart, ...]


class CommitCall(msgspec.Struct, frozen=True):
    namespace: str
    queue: str
    producer: str
    batch: int
    attempts: tuple[CommittedAttempt, ...]
    timeout_ms: int = 0


class CommitReply(msgspec.Struct, frozen=True):
    """`repeated`: the batch had been committed before."""

    repeated: bool
    durable: bool


class AbortCall(msgspec.Struct, frozen=True):
    namespace: str
    queue: str
    producer: str
    batch: int
    timeout_ms: int = 0


class AbortReply(msgspec.Struct, frozen=True):
    """`committed`: too late, nothing was aborted. `stages` counts those that were dropped."""

    committed: bool
    stages: int


class TxnList(msgspec.Struct, frozen=True):
    """What is staged in a queue by batch, the oldest first; `more`: some are left out."""

    batches: tuple[StagedBatch, ...]
    more: bool
