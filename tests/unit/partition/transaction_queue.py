"""A queue of partitions with transactions, and a carrier of these, which may die."""

from struct import pack
from typing import Any
from zlib import crc32

from querator.model.commands import Refusal
from querator.model.item_options import ItemSpecial
from querator.model.transactions import (
    Begin,
    Finish,
    Participant,
    Stage,
    StageClaim,
    StageResult,
    TransactionState,
)
from querator.partition import queries
from querator.partition.staging_rows import decode_piece
from querator.partition.txn_steps import open_txns, verdict
from querator.storage import attachments
from querator.storage.memory_environment import MemoryEnvironment
from querator.storage.tables import STAGED
from tests.unit.partition.partition_log import PartitionLog

SPARK = "query-1"


def attempt(number: int) -> bytes:
    return number.to_bytes(16, "big")


def stage_of(
    items: list[bytes],
    *,
    producer: str = SPARK,
    batch: int = 0,
    task: int = 0,
    attempt_number: int = 1,
    sequence: int = 1,
    specials: tuple[ItemSpecial, ...] = (),
    routing: int = 0,
    slots: bytes = b"",
) -> tuple[Stage, bytes]:
    data = b"".join(items)
    lengths = pack(f"<{len(items)}I", *map(len, items))
    command = Stage(
        producer=producer,
        batch=batch,
        task=task,
        attempt=attempt(attempt_number),
        sequence=sequence,
        checksum=crc32(data),
        lengths=lengths,
        specials=specials,
        routing=routing,
        slots=slots,
    )
    return command, data


def claim(items: list[bytes], *, task: int = 0, attempt_number: int = 1) -> StageClaim:
    """The claim of items that were staged by one request."""
    return StageClaim(task, attempt(attempt_number), len(items), crc32(b"".join(items)))


class TransactionQueue:
    """`count` partitions of one queue. Group ids begin with 11."""

    def __init__(self, count: int, *, all_events: bool = False, **settings: Any) -> None:
        environment = MemoryEnvironment()
        self.logs = [
            PartitionLog(environment, group=11 + number, all_events=all_events)
            for number in range(count)
        ]
        for number, log in enumerate(self.logs):
            log.configure(partition=number, **settings)
        self.environment = environment
        self.left = -1
        """Steps until the carrier dies; below 0: it does not die."""
        self.sent: list[tuple[int, Any, Any]] = []
        """The commands that carriers have sent: group, command, result."""

    def stage(self, partition: int, items: list[bytes], **changes: Any) -> StageResult | Refusal:
        command, data = stage_of(items, **changes)
        result: StageResult | Refusal = self.logs[partition].one(command, data)
        return result

    def begin(self, claims: dict[int, list[StageClaim]], *, batch: int = 0, producer: str = SPARK):
        participants = tuple(
            Participant(number, self.logs[number].group, tuple(there))
            for number, there in sorted(claims.items())
        )
        return self.logs[0].one(Begin(producer, batch, participants))

    def carry(self, steps: int = -1) -> bool:
        """Carries out the open transactions. False: the carrier died after `steps` steps."""
        self.left = steps
        while True:
            with self.environment.snapshot() as txn:
                found = open_txns(txn, self.logs[0].group)
            if not found:
                return True
            for each in found:
                answers = []
                for group, step in each.steps:
                    answers.append(self._step(group, step))
                    while answers[-1] is not None and each.state != TransactionState.PREPARING:
                        if not answers[-1].changed:
                            break
                        answers[-1] = self._step(group, step)
                    if answers[-1] is None:
                        return False
                if each.state == TransactionState.PREPARING:
                    last = self._step(11, verdict(each.number, answers))
                else:
                    last = self._step(11, Finish(each.number))
                if last is None:
                    return False

    def _step(self, group: int, command):
        if not self.left:
            return None
        self.left -= 1
        result = self.logs[group - 11].one(command)
        self.sent.append((group, command, result))
        return result

    def visible(self, partition: int) -> list[bytes]:
        """All items of a partition, by sequence."""
        with self.environment.snapshot() as txn:
            page = queries.peek(
                txn, 11 + partition, None, after_seq=0, limit=10_000, bytes_max=1 << 40
            )
        return [item.item for item in page.items]

    def everything(self) -> list[bytes]:
        return sorted(item for number in range(len(self.logs)) for item in self.visible(number))

    def staged(self, partition: int) -> list[bytes]:
        """The payloads that stages of a partition hold."""
        group = 11 + partition
        with self.environment.snapshot() as txn:
            pieces = [decode_piece(row) for _, row in STAGED.rows(txn, group)]
            return [attachments.read(txn, group, one.index, one.part) or b"" for one in pieces]
