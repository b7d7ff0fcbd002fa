"""Requests of readers on the wire, and their answers."""

from typing import Any

import pytest

from querator.model.errors import ErrorCode, QueratorError
from querator.model.limits import BATCH_BYTES_DEFAULT, BATCH_ITEMS_DEFAULT
from querator.model.reader_calls import (
    AdvancedReader,
    AdvanceOutcome,
    BatchPage,
    OpenedReader,
    ReaderAck,
    ReaderPartitions,
    ReaderStart,
    ReaderState,
)
from querator.model.readers import NumberedBatch
from querator.v1 import errors_pb2, items_pb2
from querator.v1 import reader_service_pb2 as pb
from querator.wire import readers

BATCH = NumberedBatch(7, 50_000, 1 << 26, 5_000, 2)
NAMED: Any = {"queue": "orders", "reader_id": "lake"}


def test_defaults_of_an_advance():
    message = pb.AdvanceReaderRequest(**NAMED, epoch=3, acks=[pb.ReaderAck(ack_seq=2)])
    call = readers.parse_advance_reader(message.SerializeToString())
    assert (call.namespace, call.queue, call.reader_id) == ("default", "orders", "lake")
    assert (call.epoch, call.acks) == (3, (ReaderAck(0, 2),))
    assert (call.max_items, call.max_bytes) == (BATCH_ITEMS_DEFAULT, BATCH_BYTES_DEFAULT)
    assert (call.wait_ms, call.acknowledge_only, call.skip_released) == (0, False, False)


BAD: Any = {
    "queue": {"queue": "", "epoch": 1},
    "reader_id": {"reader_id": "", "epoch": 1},
    "epoch": {},
    "max_items": {"epoch": 1, "max_items": 500_001},
    "max_bytes": {"epoch": 1, "max_bytes": (1 << 30) + 1},
    "acks[1].partition": {"epoch": 1, "acks": [pb.ReaderAck(), pb.ReaderAck(ack_seq=1)]},
    "acks[0].ack_seq": {"epoch": 1, "acks": [pb.ReaderAck(ack_seq=1 << 63)]},
    "acks[0].partition": {"epoch": 1, "acks": [pb.ReaderAck(partition=1024)]},
    "acks": {"epoch": 1, "acks": [pb.ReaderAck(partition=n) for n in range(1025)]},
}


@pytest.mark.parametrize("field", BAD)
def test_what_is_wrong_is_named(field):
    message = pb.AdvanceReaderRequest(**{**NAMED, **BAD[field]})
    with pytest.raises(QueratorError) as caught:
        readers.parse_advance_reader(message.SerializeToString())
    assert caught.value.field == field


def test_a_reader_id_is_bounded_in_bytes():
    message = pb.OpenReaderRequest(queue="orders", reader_id="é" * 65)
    with pytest.raises(QueratorError) as caught:
        readers.parse_open_reader(message.SerializeToString())
    error = caught.value
    assert (error.field, error.limit, error.value) == ("reader_id", "128 bytes", "130 bytes")


def test_bytes_that_are_no_message():
    for parse in (
        readers.parse_open_reader,
        readers.parse_advance_reader,
        readers.parse_list_readers,
        readers.parse_release_reader,
    ):
        with pytest.raises(QueratorError):
            parse(b"\xff")


def test_a_release_names_a_partition_or_none():
    message = pb.ReleaseReaderRequest(**NAMED)
    assert readers.parse_release_reader(message.SerializeToString()).partition is None
    message.partition = 0
    assert readers.parse_release_reader(message.SerializeToString()).partition == 0


def test_a_release_may_name_one_batch_and_make_dead_letters():
    message = pb.ReleaseReaderRequest(**NAMED, partition=3, batch_seq=17, dead_letters=True)
    call = readers.parse_release_reader(message.SerializeToString())
    assert (call.partition, call.batch_seq, call.dead, call.remove) == (3, 17, True, False)
    message.ClearField("partition")
    with pytest.raises(QueratorError, match="give partition") as caught:
        readers.parse_release_reader(message.SerializeToString())
    assert caught.value.field == "batch_seq"


def test_answers_arrive():
    opened = pb.OpenReaderResponse.FromString(
        readers.encode_opened(
            OpenedReader(4, (ReaderStart(0, 6, BATCH, 90, 5), ReaderStart(1, 0, None, 0)))
        )
    )
    assert (opened.epoch, opened.partitions[0].acked_seq) == (4, 6)
    assert [position.dead_seq for position in opened.partitions] == [5, 0]
    batch = opened.partitions[0].open_batch
    assert (batch.seq, batch.count, batch.bytes, batch.replays) == (7, 50_000, 1 << 26, 2)
    assert batch.opened_at.ToMilliseconds() == 5_000
    assert not opened.partitions[1].HasField("open_batch")
    advanced = pb.AdvanceReaderResponse.FromString(
        readers.encode_advanced(
            AdvancedReader(
                (
                    AdvanceOutcome(0, 6, BATCH),
                    AdvanceOutcome(1, 2, error=ErrorCode.NOT_LEADER),
                    AdvanceOutcome(9, 3, gone=True),
                )
            )
        )
    )
    first, second, third = advanced.partitions
    assert (first.HasField("batch"), second.HasField("batch")) == (True, False)
    assert (first.error, second.error) == (0, errors_pb2.ERROR_CODE_NOT_LEADER)
    assert (third.partition, third.acked_seq, third.gone) == (9, 3, True)


def test_a_listed_reader_is_in_its_last_run():
    reader = ReaderPartitions(
        "lake",
        (
            (
                0,
                ReaderState(
                    reader_id="lake",
                    epoch=2,
                    opened_at_ms=3_000,
                    advanced_at_ms=4_000,
                    acked_seq=1,
                    batch=BATCH,
                    ready=9,
                    now_ms=5_000,
                ),
            ),
            (
                1,
                ReaderState(
                    reader_id="lake",
                    epoch=1,
                    opened_at_ms=1_000,
                    advanced_at_ms=0,
                    acked_seq=0,
                    batch=None,
                    ready=0,
                    now_ms=5_000,
                ),
            ),
        ),
    )
    message = pb.ListReadersResponse.FromString(readers.encode_readers((reader,)))
    [listed] = message.readers
    assert (listed.reader_id, listed.epoch) == ("lake", 2)
    assert listed.opened_at.ToMilliseconds() == 3_000
    assert listed.advanced_at.ToMilliseconds() == 4_000
    assert [(part.ready, part.HasField("open_batch")) for part in listed.partitions] == [
        (9, True),
        (0, False),
    ]


def test_a_part_of_a_batch_is_asked_for_and_comes():
    message = pb.ReadBatchRequest(**NAMED, partition=3, batch_seq=9, from_index=5, upto_index=8)
    call = readers.parse_read_batch(message.SerializeToString())
    assert (call.partition, call.batch_seq, call.from_index, call.upto_index) == (3, 9, 5, 8)
    assert call.with_value
    columns = items_pb2.ItemColumns(partition=3, rows=1).SerializeToString()
    page = pb.ReadBatchResponse.FromString(readers.encode_batch_page(BatchPage(columns, 6, 8)))
    assert (page.columns.partition, page.columns.rows, page.next_index) == (3, 1, 6)


@pytest.mark.parametrize("changes", [{"batch_seq": 0}, {"partition": 1024, "batch_seq": 1}])
def test_a_part_of_no_batch_is_refused(changes):
    message = pb.ReadBatchRequest(**{**NAMED, **changes})
    with pytest.raises(QueratorError) as caught:
        readers.parse_read_batch(message.SerializeToString())
    assert caught.value.field in changes
