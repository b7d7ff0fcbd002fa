"""Commands and results of transactional produce; conventions as in `model.commands`.

A *batch* of a *producer* becomes visible as a whole. Its items wait in *stages*: a stage is what
one attempt at one task of the batch has put into one partition. Partition 0 of the queue is the
coordinator: it numbers the transactions and decides. The partitions that hold stages are the
participants.

    participant    Stage · DropStages · Prepare · Publish · Discard
    coordinator    Begin · Decide · AbortTxn · Finish
"""

from enum import IntEnum

import msgspec

from querator.model.errors import ErrorCode
from querator.model.item_options import FlowNames, ItemSpecial


class TransactionState(IntEnum):
    """The state of a transaction. COMMITTED and ABORTED are decisions, and final."""

    NONE = 0
    PREPARING = 1
    COMMITTED = 2
    ABORTED = 3


class Stage(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=30):
    """Adds items to a stage, invisibly. Their wire bytes travel as the proposal's attachment.

    `attempt` (16 bytes) names the attempt at the task, `sequence` (from 1) its request: a repeat
    changes nothing. `checksum` is the CRC-32 of the attachment. `lengths`, `specials`, `routing`,
    `slots` and `flows` are as in Produce.
    """

    producer: str
    batch: int
    task: int
    attempt: bytes
    sequence: int
    checksum: int
    lengths: bytes
    specials: tuple[ItemSpecial, ...] = ()
    routing: int = 0
    slots: bytes = b""
    flows: FlowNames | None = None


class StageClaim(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A stage's content, as reported by the client that filled it: the number of items, and the sum
    of the checksums of its requests, modulo 2**32.
    """

    task: int
    attempt: bytes
    count: int
    checksum: int


class Prepare(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=31):
    """Checks the stages of a batch that a transaction will publish, and pins all or none for it."""

    txn: int
    producer: str
    batch: int
    claims: tuple[StageClaim, ...]


class Publish(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=32):
    """Makes the items visible that are pinned for the transaction, within the apply bound; then
    drops the other attempts at its batch. The partition remembers that the producer's batch is
    committed. If `producer` is not given, it is that of the pinned stages.
    """

    txn: int
    producer: str = ""
    batch: int = -1


class Discard(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=33):
    """Releases the pins of the transaction. `keep`: another transaction may prepare the stages. The
    partition remembers that the transaction is over; `producer` and `batch` are as in Publish.
    """

    txn: int
    keep: bool = False
    producer: str = ""
    batch: int = -1


class DropStages(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=34):
    """Drops the unpinned stages of a batch, within the apply bound. `committed`: the partition
    remembers that the producer's batches up to this one are committed (-1: none).
    """

    producer: str
    batch: int
    committed: int = -1


class Participant(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A partition of the queue, and its stages that will be published."""

    partition: int
    group: int
    claims: tuple[StageClaim, ...]


class Begin(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=35):
    """Opens a transaction for a batch, unless the batch is committed or its producer has one."""

    producer: str
    batch: int
    participants: tuple[Participant, ...]


class Decide(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=36):
    """Commits a transaction that is being prepared (`code` 0), or aborts it for a reason; a decided
    transaction is unchanged. `keep` is as in Discard.
    """

    txn: int
    code: int = 0
    message: str = ""
    keep: bool = False


class AbortTxn(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=37):
    """Aborts the transaction of a batch, if there is one that is being prepared."""

    producer: str
    batch: int


class Finish(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=38):
    """All participants have carried out the decision."""

    txn: int


TxnCommand = Stage | Prepare | Publish | Discard | DropStages | Begin | Decide | AbortTxn | Finish


class StageResult(msgspec.Struct, frozen=True, gc=False):
    """`repeated`: the request existed already. `committed`: its batch is committed, nothing was
    staged.
    """

    repeated: bool = False
    committed: bool = False


class TxnResult(msgspec.Struct, frozen=True, gc=False):
    """A transaction as the coordinator has it. `txn` 0: there is none, or none any more.

    `mine`: it is the transaction of the request. `code` and `message` say why it was aborted.
    """

    txn: int
    state: TransactionState
    mine: bool = True
    code: ErrorCode | None = None
    message: str = ""


class ProducerTotals(msgspec.Struct, frozen=True, gc=False):
    """The committed totals of a producer: its last batch (-1: none), the items of that batch, and
    of all.
    """

    batch: int = -1
    batch_items: int = 0
    items: int = 0


class StagedTotals(msgspec.Struct, frozen=True):
    """What is staged of a batch, in all partitions or in one, for operators. `state` PREPARING:
    some of it is pinned; COMMITTED: it is being published.
    """

    producer: str
    batch: int
    stages: int
    items: int
    bytes: int
    begun_ms: int
    since_ms: int
    state: TransactionState

    def joined(self, other: "StagedTotals") -> "StagedTotals":
        """The sum of both parts of one batch."""
        return StagedTotals(
            producer=self.producer,
            batch=self.batch,
            stages=self.stages + other.stages,
            items=self.items + other.items,
            bytes=self.bytes + other.bytes,
            begun_ms=min(self.begun_ms, other.begun_ms),
            since_ms=max(self.since_ms, other.since_ms),
            state=max(self.state, other.state),
        )
