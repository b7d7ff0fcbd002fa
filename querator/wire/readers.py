"""Requests and answers of ReaderService."""

from querator.model import limits
from querator.model.errors import invalid, over_limit
from querator.model.ids import check_name
from querator.model.reader_calls import (
    AdvancedReader,
    AdvanceOutcome,
    AdvanceReaderCall,
    BatchPage,
    OpenedReader,
    OpenReaderCall,
    ReadBatchCall,
    ReaderAck,
    ReaderPartitions,
    ReleasedReader,
    ReleaseReaderCall,
)
from querator.model.readers import NumberedBatch
from querator.v1 import errors_pb2
from querator.v1 import reader_service_pb2 as pb
from querator.wire import field_checks
from querator.wire.fields import prefix
from querator.wire.queues import QueueName

_COLUMNS = pb.ReadBatchResponse.COLUMNS_FIELD_NUMBER
_U63_MAX = 2**63 - 1
"""Largest value that fits the signed numbers of other languages and of columns."""


def parse_open_reader(data: bytes) -> OpenReaderCall:
    """An `OpenReaderRequest`."""
    message = field_checks.parse_message(pb.OpenReaderRequest, data)
    return OpenReaderCall(
        field_checks.check_namespace(message.namespace),
        check_name(message.queue, field="queue"),
        _reader_id(message.reader_id),
        request_id=field_checks.check_chars(
            message.request_id, limits.REQUEST_ID_CHARS_MAX, field="request_id"
        ),
    )


def parse_advance_reader(data: bytes) -> AdvanceReaderCall:
    """An `AdvanceReaderRequest`."""
    message = field_checks.parse_message(pb.AdvanceReaderRequest, data)
    most = limits.BATCH_ITEMS_MAX
    max_items = field_checks.check_range(
        message.max_items, field="max_items", least=0, most=most, unit="items"
    )
    max_bytes = field_checks.check_range(
        message.max_bytes, field="max_bytes", least=0, most=limits.BATCH_BYTES_MAX, unit="bytes"
    )
    wait_ms = 0
    if message.HasField("wait_timeout"):
        wait_ms = field_checks.duration_ms(
            message.wait_timeout,
            field="wait_timeout",
            least_ms=0,
            most_ms=limits.REQUEST_TIMEOUT_MS_MAX,
        )
    return AdvanceReaderCall(
        namespace=field_checks.check_namespace(message.namespace),
        queue=check_name(message.queue, field="queue"),
        reader_id=_reader_id(message.reader_id),
        epoch=field_checks.check_range(message.epoch, field="epoch", least=1, most=_U63_MAX),
        acks=_acks(message),
        max_items=max_items or limits.BATCH_ITEMS_DEFAULT,
        max_bytes=max_bytes or limits.BATCH_BYTES_DEFAULT,
        wait_ms=wait_ms,
        acknowledge_only=message.acknowledge_only,
        skip_released=message.skip_released,
    )


def _acks(message: pb.AdvanceReaderRequest) -> tuple[ReaderAck, ...]:
    if len(message.acks) > limits.PARTITIONS_MAX:
        most = limits.PARTITIONS_MAX
        raise over_limit("acks", value=len(message.acks), limit=most, unit="partitions")
    acks: dict[int, ReaderAck] = {}
    for place, ack in enumerate(message.acks):
        path = f"acks[{place}]"
        partition = _partition(ack.partition, f"{path}.partition")
        if partition in acks:
            raise invalid(f"{path}.partition", "is named twice", value=partition)
        acks[partition] = ReaderAck(
            partition,
            field_checks.check_range(ack.ack_seq, field=f"{path}.ack_seq", least=0, most=_U63_MAX),
            field_checks.check_range(
                ack.ready_upto, field=f"{path}.ready_upto", least=0, most=_U63_MAX
            ),
        )
    return tuple(acks.values())


def parse_read_batch(data: bytes) -> ReadBatchCall:
    """A `ReadBatchRequest`."""
    message = field_checks.parse_message(pb.ReadBatchRequest, data)
    return ReadBatchCall(
        namespace=field_checks.check_namespace(message.namespace),
        queue=check_name(message.queue, field="queue"),
        reader_id=_reader_id(message.reader_id),
        partition=_partition(message.partition, "partition"),
        batch_seq=field_checks.check_range(
            message.batch_seq, field="batch_seq", least=1, most=_U63_MAX
        ),
        from_index=message.from_index,
        upto_index=message.upto_index,
        with_value=not message.without_value,
    )


def encode_batch_page(page: BatchPage) -> bytes:
    """A `ReadBatchResponse`."""
    rest = pb.ReadBatchResponse(next_index=page.next_index)
    return b"".join((prefix(_COLUMNS, len(page.columns)), page.columns, rest.SerializeToString()))


def parse_list_readers(data: bytes) -> tuple[QueueName, bool]:
    """A `ListReadersRequest`: the queue, and whether the answer may be behind."""
    message = field_checks.parse_message(pb.ListReadersRequest, data)
    namespace = field_checks.check_namespace(message.namespace)
    return QueueName(namespace, check_name(message.queue, field="queue")), message.stale


def parse_release_reader(data: bytes) -> ReleaseReaderCall:
    """A `ReleaseReaderRequest`."""
    message = field_checks.parse_message(pb.ReleaseReaderRequest, data)
    partition = None
    if message.HasField("partition"):
        partition = _partition(message.partition, "partition")
    if message.batch_seq and partition is None:
        raise invalid("batch_seq", "is of one partition: give partition, too")
    return ReleaseReaderCall(
        namespace=field_checks.check_namespace(message.namespace),
        queue=check_name(message.queue, field="queue"),
        reader_id=_reader_id(message.reader_id),
        partition=partition,
        remove=message.remove,
        batch_seq=field_checks.check_range(
            message.batch_seq, field="batch_seq", least=0, most=_U63_MAX
        ),
        dead=message.dead_letters,
    )


def _reader_id(text: str) -> str:
    if not text:
        raise invalid("reader_id", "must not be empty")
    field_checks.check_bytes(text, limits.READER_ID_BYTES_MAX, field="reader_id")
    return text


def _partition(number: int, field: str) -> int:
    return field_checks.check_range(number, field=field, least=0, most=limits.PARTITIONS_MAX - 1)


def encode_opened(opened: OpenedReader) -> bytes:
    return pb.OpenReaderResponse(
        epoch=opened.epoch,
        partitions=[
            pb.ReaderPosition(
                partition=position.partition,
                acked_seq=position.acked_seq,
                open_batch=_batch(position.batch),
                ready_upto=position.ready_upto,
                dead_seq=position.dead_seq,
            )
            for position in opened.partitions
        ],
    ).SerializeToString()


def encode_advanced(advanced: AdvancedReader) -> bytes:
    return pb.AdvanceReaderResponse(
        partitions=map(_progress, advanced.partitions)
    ).SerializeToString()


def _progress(progress: AdvanceOutcome) -> pb.ReaderProgress:
    error = 0 if progress.error is None else progress.error.value
    return pb.ReaderProgress(
        partition=progress.partition,
        acked_seq=progress.acked_seq,
        batch=_batch(progress.batch),
        error=errors_pb2.ErrorCode.ValueType(error),
        gone=progress.gone,
    )


def encode_readers(readers: tuple[ReaderPartitions, ...]) -> bytes:
    return pb.ListReadersResponse(readers=map(_reader, readers)).SerializeToString()


def _reader(reader: ReaderPartitions) -> pb.Reader:
    states = [state for _, state in reader.partitions]
    advanced_at_ms = max(state.advanced_at_ms for state in states)
    epoch = max(state.epoch for state in states)
    return pb.Reader(
        reader_id=reader.reader_id,
        epoch=epoch,
        opened_at=field_checks.timestamp(
            min(state.opened_at_ms for state in states if state.epoch == epoch)
        ),
        advanced_at=field_checks.timestamp(advanced_at_ms) if advanced_at_ms else None,
        partitions=[
            pb.ReaderPartition(
                partition=partition,
                epoch=state.epoch,
                acked_seq=state.acked_seq,
                open_batch=_batch(state.batch),
                ready=state.ready,
            )
            for partition, state in reader.partitions
        ],
    )


def encode_released(released: ReleasedReader) -> bytes:
    return pb.ReleaseReaderResponse(
        batches=released.batches, items=released.items
    ).SerializeToString()


def _batch(batch: NumberedBatch | None) -> pb.NamedBatch | None:
    if batch is None:
        return None
    return pb.NamedBatch(
        seq=batch.seq,
        count=batch.count,
        bytes=batch.bytes,
        opened_at=field_checks.timestamp(batch.opened_at_ms),
        replays=batch.replays,
    )
