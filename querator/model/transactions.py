"""Commands and results of transactional produce; conventions as in `model.commands`.

A *batch* of a *producer* is what becomes visible together. Its items wait in *stages*: what one
attempt at one task of the batch has put into one partition. Partition 0 of the queue coordinates:
it numbers the transactions and decides; those that hold stages are its participants.

    participant    Stage · DropStages · Prepare · Publish · Discard
    coordinator    Begin · Decide · AbortTxn · Finish
"""

from enum import IntEnum

import msgspec

from querator.model.errors import ErrorCode
from querator.model.specials import ItemSpecial


class TxnState(IntEnum):
    """Where a transaction is. COMMITTED and ABORTED are decisions, and last."""

    NONE = 0
    PREPARING = 1
    COMMITTED = 2
    ABORTED = 3


class Stage(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=30):
    """Adds items to a stage, invisibly. Their wire bytes travel as the proposal's attachment.

    `attempt` (16 bytes) names the attempt at the task, `sequence` (from 1) the request of it: a
    repeat changes nothing. `checksum` is the CRC-32 of the attachment. `lengths`, `specials`,
    `routing` and `slots` as of Produce.
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


class StageClaim(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a stage holds, as whoever has filled it says: items, and the sum of the checksums of its
    requests, modulo 2**32.
    """

    task: int
    attempt: bytes
    count: int
    checksum: int


class Prepare(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=31):
    """Checks the stages of a batch that a transaction wants to publish, and pins them for it: all
    or none.
    """

    txn: int
    producer: str
    batch: int
    claims: tuple[StageClaim, ...]


class Publish(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=32):
    """Makes the items visible that are pinned for the transaction, within the apply bound; then the
    other attempts at its batch go. The partition remembers that the batch of the producer is
    committed; a `producer` that is not given is that of what is pinned.
    """

    txn: int
    producer: str = ""
    batch: int = -1


class Discard(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=33):
    """Lets go of what is pinned for the transaction. `keep`: another one may prepare it. The
    partition remembers that the transaction is over; `producer` and `batch` as of Publish.
    """

    txn: int
    keep: bool = False
    producer: str = ""
    batch: int = -1


class DropStages(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=34):
    """Drops the stages of a batch that are not pinned, within the apply bound. `committed`: the
    partition remembers that the producer's batches up to this one are (-1: none).
    """

    producer: str
    batch: int
    committed: int = -1


class Participant(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A partition of the queue, and the stages in it that are to be published."""

    partition: int
    group: int
    claims: tuple[StageClaim, ...]


class Begin(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=35):
    """Opens a transaction for a batch, unless the batch is committed or its producer has one."""

    producer: str
    batch: int
    participants: tuple[Participant, ...]


class Decide(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=36):
    """Commits a transaction that is being prepared (`code` 0), or aborts it for a reason; a
    transaction that is decided stays as it is. `keep` as of Discard.
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
    """All participants have carried out what was decided."""

    txn: int


TxnCommand = Stage | Prepare | Publish | Discard | DropStages | Begin | Decide | AbortTxn | Finish


class StageResult(msgspec.Struct, frozen=True, gc=False):
    """`repeated`: the request was there before. `committed`: its batch is, nothing was staged."""

    repeated: bool = False
    committed: bool = False


class TxnResult(msgspec.Struct, frozen=True, gc=False):
    """A transaction as the coordinator has it. `txn` 0: there is none, or none any more.

    `mine`: it is the one that was asked for. `code` and `message` say why it was aborted.
    """

    txn: int
    state: TxnState
    mine: bool = True
    code: ErrorCode | None = None
    message: str = ""


class ProducerTotals(msgspec.Struct, frozen=True, gc=False):
    """What is committed of a producer: its last batch (-1: none), the items of that, and of all."""

    batch: int = -1
    batch_items: int = 0
    items: int = 0


class StagedBatch(msgspec.Struct, frozen=True):
    """What is staged of a batch, or of it in one partition, for operators. `state` PREPARING: some
    of it is pinned; COMMITTED: it is being published.
    """

    producer: str
    batch: int
    stages: int
    items: int
    bytes: int
    begun_ms: int
    since_ms: int
    state: TxnState

    def joined(self, other: "StagedBatch") -> "StagedBatch":
        """Both together, of one batch."""
        return StagedBatch(
            self.producer,
            self.batch,
            self.stages + other.stages,
            self.items + other.items,
            self.bytes + other.bytes,
            min(self.begun_ms, other.begun_ms),
            max(self.since_ms, other.since_ms),
            max(self.state, other.state),
        )
