"""Readers: items in named batches, for programs that must be able to read the same items again.

A reader begins a run (`open`) and then advances repeatedly: it acknowledges the batches that it has
made safe, and gets the next batches, one for each partition. A call may be repeated whatever its
outcome was. An open batch stays open until it is acknowledged.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta

import msgspec
import uuid_utils

from querator.client.errors import ErrorCode
from querator.client.items import instant
from querator.client.transport.nodes import Nodes
from querator.client.transport.rpc_errors import code_of
from querator.client.typed import typed
from querator.v1 import reader_service_pb2 as pb

_NOTHING: Mapping[int, int] = {}


class NamedBatch(msgspec.Struct, frozen=True):
    """A numbered batch of items of one partition. `bytes`: size of the items. `replays`: how many
    runs of the reader have begun since the batch was handed out.
    """

    seq: int
    count: int
    bytes: int
    opened_at: datetime
    replays: int


class ReaderPosition(msgspec.Struct, frozen=True):
    """Position of a reader in a partition when its run begins. `acked_seq`: the last acknowledged
    batch. `batch`: the open batch, if there is one. `dead_seq`: the last batch whose items were
    made dead letters; 0: there is none. `ready_upto`: for `Readers.advance`.
    """

    partition: int
    acked_seq: int
    batch: NamedBatch | None
    ready_upto: int
    dead_seq: int = 0


class ReaderRun(msgspec.Struct, frozen=True):
    """A run of a reader: its epoch, which fences earlier runs, and where it begins."""

    epoch: int
    partitions: tuple[ReaderPosition, ...]


class ReaderProgress(msgspec.Struct, frozen=True):
    """Result of an advance in one partition. `batch`: the open batch, if there is one. `error`: why
    the partition did not advance, as far as is known; the next call may succeed. `gone`: the
    partition does not belong to the queue any more.
    """

    partition: int
    acked_seq: int
    batch: NamedBatch | None
    error: ErrorCode | None
    gone: bool


class ReaderPartition(msgspec.Struct, frozen=True):
    """State of a reader in one partition. `ready`: number of items that wait there."""

    partition: int
    epoch: int
    acked_seq: int
    batch: NamedBatch | None
    ready: int


class Reader(msgspec.Struct, frozen=True):
    """State of a reader. `opened_at`: start of its last run. `advanced_at` None: it has never
    advanced.
    """

    reader_id: str
    epoch: int
    opened_at: datetime
    advanced_at: datetime | None
    partitions: tuple[ReaderPartition, ...]


class Released(msgspec.Struct, frozen=True):
    """Numbers of the batches and items that `Readers.release` has released."""

    batches: int
    items: int


class Readers:
    """Calls about the readers of one client's namespace. Every method may raise `RequestError`."""

    def __init__(self, nodes: Nodes, namespace: str) -> None:
        self._nodes = nodes
        self._namespace = namespace

    @typed
    async def open(self, queue: str, reader_id: str) -> ReaderRun:
        """Begins a run. From then on the calls of earlier runs are refused (`ReaderFenced`). The
        reader is created if the queue does not know it.
        """
        request = pb.OpenReaderRequest(
            namespace=self._namespace,
            queue=queue,
            reader_id=reader_id,
            request_id=str(uuid_utils.uuid7()),
        )
        response = await self._nodes.call(
            lambda node, left: node.readers.OpenReader(request, timeout=left)
        )
        return ReaderRun(response.epoch, tuple(map(_position, response.partitions)))

    @typed
    async def advance(
        self,
        queue: str,
        reader_id: str,
        epoch: int,
        acks: Mapping[int, int] = _NOTHING,
        *,
        max_items: int = 0,
        max_bytes: int = 0,
        wait: timedelta | None = None,
        ready_upto: Mapping[int, int] = _NOTHING,
        acknowledge_only: bool = False,
        skip_released: bool = False,
    ) -> tuple[ReaderProgress, ...]:
        """Acknowledges batches and returns the open batches by partition.

        `acks`: batch to acknowledge, by partition; 0 for a partition that is not named. `max_items`
        (0: 50,000) and `max_bytes` (0: 64 MiB) hold for all partitions together. `wait`: how long
        to wait for the first item. `ready_upto`: by partition, from the position that `open` has
        returned; takes only items that were waiting then. `acknowledge_only`: opens no batches.

        Raises `ReaderFenced`, `AckMismatch`, `BatchReleased` (not with `skip_released`).
        """
        seconds = wait.total_seconds() if wait else 0.0
        request = pb.AdvanceReaderRequest(
            namespace=self._namespace,
            queue=queue,
            reader_id=reader_id,
            epoch=epoch,
            acks=[
                pb.ReaderAck(
                    partition=partition,
                    ack_seq=acks.get(partition, 0),
                    ready_upto=ready_upto.get(partition, 0),
                )
                for partition in sorted({*acks, *ready_upto})
            ],
            max_items=max_items,
            max_bytes=max_bytes,
            acknowledge_only=acknowledge_only,
            skip_released=skip_released,
        )
        if seconds:
            request.wait_timeout.FromMilliseconds(int(seconds * 1000))
        response = await self._nodes.call(
            lambda node, left: node.readers.AdvanceReader(request, timeout=left),
            seconds=self._nodes.request_timeout + seconds,
        )
        return tuple(map(_progress, response.partitions))

    @typed
    async def list(self, queue: str, *, stale: bool = False) -> tuple[Reader, ...]:
        """Returns the readers of a queue, ordered by name. `stale` as in `Client.stats`."""
        request = pb.ListReadersRequest(namespace=self._namespace, queue=queue, stale=stale)
        response = await self._nodes.call(
            lambda node, left: node.readers.ListReaders(request, timeout=left), changes=False
        )
        return tuple(map(_reader, response.readers))

    @typed
    async def release(
        self,
        queue: str,
        reader_id: str,
        *,
        partition: int | None = None,
        remove: bool = False,
        dead_letters: bool = False,
    ) -> Released:
        """Gives the items of open batches (of one `partition`, or of all) back to the queue; their
        attempt counts. `remove`: also removes the reader with its acknowledgements. `dead_letters`:
        the items become dead letters instead (dropped and counted if the queue has no dead queue),
        and the reader continues behind them. The call is not repeated when its outcome is unknown
        (`OutcomeUnknown`).
        """
        request = pb.ReleaseReaderRequest(
            namespace=self._namespace,
            queue=queue,
            reader_id=reader_id,
            partition=partition,
            remove=remove,
            dead_letters=dead_letters,
        )
        response = await self._nodes.call(
            lambda node, left: node.readers.ReleaseReader(request, timeout=left),
            # A repeat might release batches that were handed out since.
            repeatable=False,
        )
        return Released(response.batches, response.items)


def _batch(batch: pb.NamedBatch) -> NamedBatch:
    return NamedBatch(batch.seq, batch.count, batch.bytes, instant(batch.opened_at), batch.replays)


def _position(position: pb.ReaderPosition) -> ReaderPosition:
    batch = _batch(position.open_batch) if position.HasField("open_batch") else None
    return ReaderPosition(
        position.partition, position.acked_seq, batch, position.ready_upto, position.dead_seq
    )


def _progress(progress: pb.ReaderProgress) -> ReaderProgress:
    return ReaderProgress(
        progress.partition,
        progress.acked_seq,
        _batch(progress.batch) if progress.HasField("batch") else None,
        code_of(progress.error) if progress.error else None,
        progress.gone,
    )


def _reader(reader: pb.Reader) -> Reader:
    return Reader(
        reader.reader_id,
        reader.epoch,
        instant(reader.opened_at),
        instant(reader.advanced_at) if reader.HasField("advanced_at") else None,
        tuple(
            ReaderPartition(
                part.partition,
                part.epoch,
                part.acked_seq,
                _batch(part.open_batch) if part.HasField("open_batch") else None,
                part.ready,
            )
            for part in reader.partitions
        ),
    )
