"""A run of a reader, in the driver: from the start of a query to its end.

A run begins with the first call that needs the queue. Calls of earlier runs are then refused, and
the batches that those runs left open count as replayed. Advancing acknowledges what Spark has
committed, and returns the batches that are then open. A call that fails half way is repeated: open
batches stay open.

When a batch would be handed out again after more runs than the user allows, this is an error; or
the batch is given up, and its items become dead letters. An open batch is no proof of a failure:
Spark may have committed it, and only its acknowledgement is missing.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Final

import uuid_utils

from querator.client.errors import (
    AckMismatch,
    BatchNotFound,
    BatchReleased,
    ErrorCode,
    NotFound,
    ReaderFenced,
    ReaderNotFound,
    RequestError,
    make_error,
)
from querator.client.transport.rpc_errors import code_of
from querator.spark.offsets import BatchPart
from querator.spark.options import OptionError, StreamOptions
from querator.spark.rpc import Patience, cluster
from querator.spark.sending import sender
from querator.v1 import reader_service_pb2 as pb

_FIRST_PLACE: Final = 1
"""The lowest position in the wait queue of a partition; a bound of 0 would mean no bound."""


class PoisonBatch(RuntimeError):
    """Several runs in succession have begun a batch, and none has finished it. The message names
    the batch and the remedies.
    """


class ReaderCalls:
    """Every method raises RequestError and Unreachable. The errors name a remedy."""

    def __init__(self, options: StreamOptions, *, bounded: bool) -> None:
        """Opens the reader. `bounded`: the run hands out only items that are in the wait queue when
        it begins. Raises OptionError.
        """
        self._options = options
        self._cluster = cluster(options.target)
        self._bounded = bounded
        if options.gives_up:
            self._check_dead_queue()
        self._open()

    def _check_dead_queue(self) -> None:
        options = self._options
        try:
            settings = sender(options.target).queue(
                options.namespace, options.queue, retry_seconds=options.retry_seconds
            )
        except RequestError as error:
            raise explained(error, options) from None
        if not settings.dead_queue:
            raise OptionError(
                f"poisonPolicy=deadLetter: queue {options.queue} has no dead queue, so the items "
                f"would be dropped; give it one with `querator queue update {options.queue} "
                "--dead-queue NAME`"
            )

    def _open(self) -> None:
        options = self._options
        request = pb.OpenReaderRequest(
            namespace=options.namespace,
            queue=options.queue,
            reader_id=options.reader_id,
            request_id=str(uuid_utils.uuid7()),
        )
        try:
            opened = self._cluster.open_reader(request, retry_seconds=options.retry_seconds)
        except RequestError as error:
            raise explained(error, options) from None
        self._epoch = opened.epoch
        self._found = {
            each.partition: each.open_batch
            for each in opened.partitions
            if each.HasField("open_batch")
        }
        self._given_up = {each.partition: each.dead_seq for each in opened.partitions}
        self._acked = {each.partition: each.acked_seq for each in opened.partitions}
        # For an empty partition the lowest position is the bound.
        self._bounds = {
            each.partition: max(_FIRST_PLACE, each.ready_upto) for each in opened.partitions
        }

    def advance(
        self, acks: Mapping[int, int], *, max_items: int, max_bytes: int
    ) -> list[pb.ReaderProgress]:
        """Acknowledges the batches up to `acks`, and returns the open batches by partition. A
        bounded run that returns no batch has reached all partitions, because a run ends then.
        Raises PoisonBatch.
        """
        patience = Patience(self._options.retry_seconds)
        while True:
            progress = self._progress(acks, max_items, max_bytes)
            away = [each for each in progress if each.error]
            if not (self._bounded and away) or any(each.HasField("batch") for each in progress):
                return progress
            if not patience.wait(None):
                raise self._incomplete(away)

    def _incomplete(self, away: Sequence[pb.ReaderProgress]) -> RequestError:
        options = self._options
        reasons = ", ".join(
            f"partition {each.partition} of {options.queue} ({code_of(each.error).name})"
            for each in away
        )
        return make_error(
            ErrorCode.UNAVAILABLE,
            f"{reasons} did not answer for {options.retry_seconds:g} s (option "
            "retryTimeout): items that waited there when this run began are not read, or not "
            "acknowledged. Everything else is done; start the query again when the partition has a "
            "leader (`querator cluster status`)",
        )

    def _progress(
        self, acks: Mapping[int, int], max_items: int, max_bytes: int
    ) -> list[pb.ReaderProgress]:
        options = self._options
        if options.adopts:
            acks = {
                partition: max(acks.get(partition, 0), self._acked.get(partition, 0))
                for partition in {*acks, *self._acked}
            }
        try:
            response = self._advance(acks, max_items, max_bytes)
        except RequestError as error:
            raise explained(error, options) from None
        given_up = [
            self._gives_up(each.partition, each.batch)
            for each in response.partitions
            if each.HasField("batch")
        ]
        if any(given_up):
            return self._progress(acks, max_items, max_bytes)
        if self._bounded:
            for each in response.partitions:
                # A partition without a bound was created after the run began: it gets the lowest
                # bound.
                if not each.error:
                    self._bounds.setdefault(each.partition, _FIRST_PLACE)
        return list(response.partitions)

    def to_read(self, parts: Sequence[BatchPart]) -> list[BatchPart]:
        """The parts whose items were not given up, in this run or in an earlier one. Raises
        PoisonBatch.
        """
        for partition, seq in sorted({(part.partition, part.batch_seq) for part in parts}):
            batch = self._found.get(partition)
            if batch is not None and batch.seq == seq:
                self._gives_up(partition, batch)
        return [part for part in parts if self._given_up.get(part.partition) != part.batch_seq]

    def _gives_up(self, partition: int, batch: pb.NamedBatch) -> bool:
        """Whether the batch is given up, because it was replayed too often. Raises PoisonBatch."""
        options = self._options
        if not 0 < options.max_replays < batch.replays:
            return False
        what = (
            f"batch {batch.seq} of reader {options.reader_id!r} in partition {partition} of "
            f"{options.queue} ({batch.count:,} items)"
        )
        why = f"{batch.replays} runs of the query have begun since it was given out"
        if not options.gives_up:
            raise PoisonBatch(
                f"{what} was never finished, and {why}; option maxBatchReplays is "
                f"{options.max_replays}. Repair the cause of the failures, and start the query "
                "without maxBatchReplays once; or have the items made dead letters: "
                '.option("poisonPolicy", "deadLetter"). spark.read with the option '
                "states=reserved shows them"
            )
        request = pb.ReleaseReaderRequest(
            namespace=options.namespace,
            queue=options.queue,
            reader_id=options.reader_id,
            partition=partition,
            batch_seq=batch.seq,
            dead_letters=True,
        )
        try:
            self._cluster.release_reader(request, retry_seconds=options.retry_seconds)
        except RequestError as error:
            raise explained(error, options) from None
        self._given_up[partition] = batch.seq
        sys.stderr.write(
            f"querator: {what} is given up, because {why}; its items are dead letters\n"
        )
        return True

    def _advance(
        self, acks: Mapping[int, int], max_items: int, max_bytes: int
    ) -> pb.AdvanceReaderResponse:
        options = self._options
        bounds = self._bounds if self._bounded else {}
        request = pb.AdvanceReaderRequest(
            namespace=options.namespace,
            queue=options.queue,
            reader_id=options.reader_id,
            epoch=self._epoch,
            acks=[
                pb.ReaderAck(
                    partition=partition,
                    ack_seq=acks.get(partition, 0),
                    ready_upto=bounds.get(partition, 0),
                )
                for partition in sorted({*acks, *bounds})
            ],
            max_items=max_items,
            max_bytes=max_bytes,
            skip_released=not options.fail_on_data_loss,
        )
        request.wait_timeout.FromMilliseconds(int(options.poll_seconds * 1000))
        return self._cluster.advance_reader(request, retry_seconds=options.retry_seconds)


def explained(error: RequestError, options: StreamOptions) -> RequestError:
    """The same error, with a remedy in Spark's terms."""
    endpoints = ",".join(options.target.endpoints)
    ways_out: tuple[tuple[type[RequestError], str], ...] = (
        (
            AckMismatch,
            "The checkpoint of this query and the queue do not agree. If the checkpoint was "
            "deleted or set back, put it back; or continue after the acknowledged batches with "
            '.option("onCheckpointMismatch", "adopt"); or read under another readerId. If '
            "the queue or the reader was created again, begin with a new checkpointLocation. "
            "With a new checkpoint give file sinks a new path too: they leave out batches with a "
            "number that they have seen",
        ),
        (
            ReaderFenced,
            f"Another query reads with readerId {options.reader_id!r}, or this stream is in the "
            "query twice: give each a readerId and a checkpointLocation of its own. If this "
            "driver was considered dead and started again elsewhere, the other driver continues",
        ),
        (
            BatchReleased,
            "Other consumers may process these items again. To continue without them: "
            '.option("failOnDataLoss", "false"); for a pipeline --skip-released',
        ),
        (
            BatchNotFound,
            "The checkpoint was set back behind the query's last commit, or another query reads "
            f"with readerId {options.reader_id!r}. To continue without these items: "
            '.option("failOnDataLoss", "false")',
        ),
        (
            ReaderNotFound,
            "It was removed (`querator reader release --remove`) while the query ran; start the "
            "query again, with a new checkpointLocation",
        ),
        (
            NotFound,
            f"Asked of the cluster at {endpoints}; check the options queue, namespace and "
            "endpoint, or make it with `querator queue create`",
        ),
    )
    for kind, way_out in ways_out:
        if isinstance(error, kind):
            error.message = f"{error.message}. {way_out}"
            break
    return error
