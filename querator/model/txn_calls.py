"""The calls about transactions and their replies; conventions as in `model.calls`."""

import msgspec

from querator.model.item_options import FlowNames, ItemSpecial
from querator.model.transactions import StagedTotals


class StageCall(msgspec.Struct, frozen=True):
    """Items of one request of an attempt at a task. `items`, `lengths`, `specials`, `slots`,
    `groups`, `keys` and `takes_over` are as in `ProduceCall`. `partition` None: the node chooses.
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
    groups: FlowNames | None = None
    keys: FlowNames | None = None
    takes_over: bool = False


class StagedPart(msgspec.Struct, frozen=True):
    """What one partition received; in a commit, the sum over all requests of a stage."""

    partition: int
    count: int
    checksum: int
    repeated: bool = False


class StageReply(msgspec.Struct, frozen=True):
    """`committed`: the batch is committed; nothing was staged and nothing needs to be."""

    parts: tuple[StagedPart, ...]
    durable: bool
    committed: bool = False


class CommittedAttempt(msgspec.Struct, frozen=True):
    """The valid attempt at a task, with what it has staged by partition."""

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
    """`committed`: it was too late, nothing was aborted. `stages` counts the dropped ones."""

    committed: bool
    stages: int


class TxnList(msgspec.Struct, frozen=True):
    """The staged batches of a queue, the oldest first; `more`: some are left out."""

    batches: tuple[StagedTotals, ...]
    more: bool
