"""Requests and answers of TransactionService: stage, commit, abort, list, producer totals."""

from querator.model import limits
from querator.model.errors import invalid
from querator.model.ids import check_name
from querator.model.transactions import ProducerTotals, StagedTotals
from querator.model.txn_calls import (
    AbortCall,
    AbortReply,
    CommitCall,
    CommitReply,
    CommittedAttempt,
    StageCall,
    StagedPart,
    StageReply,
    TxnList,
)
from querator.v1 import transaction_service_pb2 as pb
from querator.wire import field_checks
from querator.wire.field_checks import DEFAULT_LIMITS, RequestLimits
from querator.wire.produce import check_items, check_request_bytes
from querator.wire.results import refuse_kept


def parse_stage(
    data: bytes, *, now_ms: int, request_limits: RequestLimits = DEFAULT_LIMITS
) -> StageCall:
    """A `StageRequest`; `now_ms` bounds how far ahead items may be scheduled."""
    check_request_bytes(len(data), request_limits)
    message = field_checks.parse_message(pb.StageRequest, data)
    items = check_items(message, data, ((0, len(data)),), now_ms, request_limits)
    refuse_kept(items.specials, path="items[{}].", what="items of a transaction")
    namespace, queue, producer, batch = _batch(message)
    sequence = field_checks.check_range(
        message.sequence, field="sequence", least=1, most=limits.TXN_NUMBER_MAX
    )
    return StageCall(
        namespace=namespace,
        queue=queue,
        producer=producer,
        batch=batch,
        task=_task(message.task, "task"),
        attempt=_attempt(message.attempt, "attempt"),
        sequence=sequence,
        items=items.items,
        lengths=items.lengths,
        specials=items.specials,
        slots=items.slots,
        groups=items.groups,
        keys=items.keys,
        partition=message.partition if message.HasField("partition") else None,
        timeout_ms=_timeout_ms(message),
        takes_over=items.takes_over,
    )


def encode_staged(reply: StageReply) -> bytes:
    """A `StageResponse`."""
    return pb.StageResponse(
        parts=[
            pb.StagedPart(partition=one.partition, count=one.count, checksum=one.checksum)
            for one in reply.parts
        ],
        already_committed=reply.committed,
        repeated_answer=bool(reply.parts) and all(one.repeated for one in reply.parts),
        durable=reply.durable,
    ).SerializeToString()


def parse_commit(data: bytes) -> CommitCall:
    """A `CommitTxnRequest`."""
    message = field_checks.parse_message(pb.CommitTxnRequest, data)
    namespace, queue, producer, batch = _batch(message)
    attempts = []
    for position, one in enumerate(message.stages):
        path = f"stages[{position}]"
        parts = []
        for place, part in enumerate(one.parts):
            if not part.count:
                raise invalid(f"{path}.parts[{place}].count", "must be at least 1", value=0)
            parts.append(StagedPart(part.partition, part.count, part.checksum))
        if len({part.partition for part in parts}) < len(parts):
            raise invalid(f"{path}.parts", "must name each partition once")
        attempts.append(
            CommittedAttempt(
                _task(one.task, f"{path}.task"),
                _attempt(one.attempt, f"{path}.attempt"),
                tuple(parts),
            )
        )
    return CommitCall(
        namespace=namespace,
        queue=queue,
        producer=producer,
        batch=batch,
        attempts=tuple(attempts),
        timeout_ms=_timeout_ms(message),
    )


def encode_committed(reply: CommitReply) -> bytes:
    """A `CommitTxnResponse`."""
    return pb.CommitTxnResponse(
        repeated_answer=reply.repeated, durable=reply.durable
    ).SerializeToString()


def parse_abort(data: bytes) -> AbortCall:
    """An `AbortTxnRequest`."""
    message = field_checks.parse_message(pb.AbortTxnRequest, data)
    return AbortCall(*_batch(message), _timeout_ms(message))


def encode_aborted(reply: AbortReply) -> bytes:
    """An `AbortTxnResponse`."""
    return pb.AbortTxnResponse(
        already_committed=reply.committed, stages=reply.stages
    ).SerializeToString()


def parse_list(data: bytes) -> tuple[str, str]:
    """A `ListTxnsRequest`: namespace and name of the queue."""
    message = field_checks.parse_message(pb.ListTxnsRequest, data)
    return field_checks.check_namespace(message.namespace), check_name(message.queue, field="queue")


def encode_list(found: TxnList) -> bytes:
    """A `ListTxnsResponse`."""
    return pb.ListTxnsResponse(txns=map(_txn, found.batches), more=found.more).SerializeToString()


def parse_producer(data: bytes) -> tuple[str, str, str]:
    """A `GetTxnProducerRequest`: namespace and name of the queue, and the producer."""
    message = field_checks.parse_message(pb.GetTxnProducerRequest, data)
    namespace = field_checks.check_namespace(message.namespace)
    return (
        namespace,
        check_name(message.queue, field="queue"),
        _producer(message.producer),
    )


def encode_totals(totals: ProducerTotals) -> bytes:
    """A `GetTxnProducerResponse`."""
    return pb.GetTxnProducerResponse(
        batch=None if totals.batch < 0 else totals.batch,
        batch_items=totals.batch_items,
        items=totals.items,
    ).SerializeToString()


def _txn(one: StagedTotals) -> pb.Txn:
    return pb.Txn(
        producer=one.producer,
        batch=one.batch,
        # The model's NONE is the state of a staged batch before its commit.
        state=pb.TxnState.Name(one.state + 1),  # type: ignore[arg-type]
        stages=one.stages,
        items=one.items,
        bytes=one.bytes,
        begun_at=field_checks.timestamp(one.begun_ms),
        changed_at=field_checks.timestamp(one.since_ms),
    )


def _batch(
    message: pb.StageRequest | pb.CommitTxnRequest | pb.AbortTxnRequest,
) -> tuple[str, str, str, int]:
    namespace = field_checks.check_namespace(message.namespace)
    queue = check_name(message.queue, field="queue")
    producer = _producer(message.producer)
    batch = field_checks.check_range(
        message.batch, field="batch", least=0, most=limits.TXN_NUMBER_MAX
    )
    return namespace, queue, producer, batch


def _producer(name: str) -> str:
    if not name:
        raise invalid("producer", "must not be empty")
    return field_checks.check_chars(name, limits.TXN_PRODUCER_CHARS_MAX, field="producer")


def _task(number: int, field: str) -> int:
    return field_checks.check_range(number, field=field, least=0, most=limits.TXN_TASKS_MAX - 1)


def _attempt(attempt: bytes, field: str) -> bytes:
    if len(attempt) != limits.TXN_ATTEMPT_BYTES:
        raise invalid(
            field,
            f"is {len(attempt)} bytes; a UUID is {limits.TXN_ATTEMPT_BYTES} bytes",
            value=attempt.hex(),
        )
    return attempt


def _timeout_ms(message: pb.StageRequest | pb.CommitTxnRequest | pb.AbortTxnRequest) -> int:
    if not message.HasField("request_timeout"):
        return 0
    return field_checks.duration_ms(
        message.request_timeout,
        field="request_timeout",
        least_ms=0,
        most_ms=limits.REQUEST_TIMEOUT_MS_MAX,
    )
