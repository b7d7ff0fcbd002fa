"""A program that reads a queue by named batches, as a streaming job does.

Its result for a batch is stored atomically with the batch's name, and outlives the program. The
program dies now and then. It then begins another run, acknowledges what is stored, and gets its
open batches again. The remains of the former run continue for a while.

    a name means the same items, always
    an item is in one batch that is stored (the ledger: it is completed by that)
    an epoch that another one has ended gets nothing more
"""

import random
from itertools import pairwise
from typing import Any

from querator.model.errors import ErrorCode
from querator.model.limits import MIB
from querator.model.reader_calls import (
    AdvancedReader,
    AdvanceOutcome,
    AdvanceReaderCall,
    BatchPage,
    OpenReaderCall,
    ReadBatchCall,
    ReaderAck,
)
from querator.node_core import NodeCore
from querator.v1 import items_pb2
from tests.simulation.whole.programs import NAMESPACE, Ground, Program

QUEUE = "r"
READER = "lake"
DIES = 0.1
"""Probability that it begins another run."""
STORES = 0.8
"""Probability that it stores what it has read; otherwise it dies before."""
Name = tuple[int, int]
"""Partition and number of a batch."""


class Reading(Program):
    """`batches` is the number of stored batches."""

    def __init__(
        self, ground: Ground, name: str, queue: str, chance: random.Random, *, pause_us: int
    ) -> None:
        super().__init__(ground, name, queue, chance, pause_us=pause_us)
        self.batches = 0
        self._epoch = 0
        self._former: tuple[int, tuple[ReaderAck, ...]] | None = None
        self._stored: dict[int, int] = {}
        """The last stored batch, by partition."""
        self._seen: dict[Name, list[str]] = {}
        self._careful = False

    async def act(self) -> None:
        if not self._epoch or self._chance.random() < DIES:
            await self._open()
        elif self._former is not None and self._chance.random() < 0.2:
            await self._go_on_with_former()
        if self._epoch:
            await self._advance()

    async def finish(self) -> None:
        """Reads until no item is left for it, and all that it had is acknowledged."""
        self._careful = True
        while not self._epoch:
            await self._open()
        while True:
            progress = await self._advance()
            if progress and not any(one.batch or one.error for one in progress):
                return

    # --- its calls ---------------------------------------------------------------------------

    async def _open(self) -> None:
        request_id = f"{self.name} {self._chance.getrandbits(64):x}"
        call = OpenReaderCall(NAMESPACE, self.queue, READER, request_id=request_id)
        ended = await self.call("open", lambda core: core.service.readers.open(call), again=True)
        if ended.result is None:
            if ended.error is not None:
                self.unexpected("an open", ended)
            # It is unknown whether the former run continues.
            self._epoch, self._former = 0, None
            return
        if self._epoch:
            self._former = self._epoch, self._acks()
        self._epoch = ended.result.epoch

    def _acks(self) -> tuple[ReaderAck, ...]:
        return tuple(ReaderAck(*stored) for stored in sorted(self._stored.items()))

    def _call(self, epoch: int, acks: tuple[ReaderAck, ...]) -> AdvanceReaderCall:
        return AdvanceReaderCall(
            NAMESPACE,
            self.queue,
            READER,
            epoch,
            acks,
            max_items=self._chance.choice((3, 50)),
            max_bytes=MIB,
            wait_ms=self._chance.choice((0, 0, 700)),
            acknowledge_only=not self._careful and self._chance.random() < 0.1,
        )

    async def _advance(self) -> tuple[AdvanceOutcome, ...]:
        call = self._call(self._epoch, self._acks())
        ended = await self.call(
            "advance", lambda core: core.service.readers.advance(call), again=True
        )
        if ended.result is None:
            if ended.error is not None:
                self.unexpected("an advance", ended)
            return ()
        advanced: AdvancedReader = ended.result
        for one in advanced.partitions:
            if one.batch is not None:
                await self._use(one.partition, one.batch.seq, one.batch.count)
        return advanced.partitions

    async def _go_on_with_former(self) -> None:
        """Makes a call of the run that was ended."""
        assert self._former is not None
        call = self._call(*self._former)
        ended = await self.call(
            "late advance", lambda core: core.service.readers.advance(call), again=True
        )
        if ended.gave_up:
            return
        if ended.error is None or ended.error.code is not ErrorCode.READER_FENCED:
            self._ground.found(f"{self.name}: epoch {call.epoch} was ended, and goes on: {ended}")

    # --- what it makes of a batch ------------------------------------------------------------

    async def _use(self, partition: int, seq: int, count: int) -> None:
        if self._stored.get(partition, 0) >= seq:
            self._ground.found(f"{self.name}: batch {partition}.{seq} comes once more, and is done")
            return
        items = await self._read(partition, seq)
        if items is None:
            return
        if len(items) != count:
            self._ground.found(
                f"{self.name}: batch {partition}.{seq} has {len(items)} items, and not {count}"
            )
        if self._seen.setdefault((partition, seq), items) != items:
            self._ground.found(f"{self.name}: batch {partition}.{seq} had other items before")
        if not self._careful and self._chance.random() > STORES:
            return
        self._stored[partition] = seq
        self.batches += 1
        self._ground.ledger.completed(self._ground.timeline.now_us, items)

    async def _read(self, partition: int, seq: int) -> list[str] | None:
        """None: there is no answer."""
        call = ReadBatchCall(NAMESPACE, self.queue, READER, partition, seq)

        async def read(core: NodeCore) -> list[BatchPage]:
            reading = await core.service.readers.read(call)
            try:
                pages = [await reading.page(0)]
                while pages[-1].next_index < pages[-1].upto_index:
                    pages.append(await reading.page(pages[-1].next_index))
                return pages
            finally:
                reading.close()

        ended = await self.call("read", read, again=True)
        if ended.result is None:
            if ended.error is not None:
                self.unexpected("a read", ended)
            return None
        return [reference for page in ended.result for reference in _references(page)]


def _references(page: BatchPage) -> list[str]:
    """The payloads: references and spaces of wire items."""
    columns: Any = items_pb2.ItemColumns.FromString(page.columns)
    value = columns.value
    offsets = memoryview(value.offsets).cast("i")
    return [value.data[begin:end].decode().strip() for begin, end in pairwise(offsets)]
