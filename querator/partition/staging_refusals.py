"""Refusals of requests to stage items."""

from querator.model.commands import Refusal
from querator.model.errors import ErrorCode
from querator.model.limits import (
    TXN_ATTEMPT_BYTES,
    TXN_NUMBER_MAX,
    TXN_PRODUCER_CHARS_MAX,
    TXN_TASKS_MAX,
)
from querator.model.transactions import Stage
from querator.partition.staging_rows import StageRow


def malformed(command: Stage) -> Refusal | None:
    """The refusal of a malformed command, which the service must not have accepted; else None."""
    wrong = ""
    if not command.lengths or len(command.lengths) % 4:
        wrong = "items must not be empty"
    elif not 0 < len(command.producer) <= TXN_PRODUCER_CHARS_MAX:
        wrong = f"producer must have 1 to {TXN_PRODUCER_CHARS_MAX} characters"
    elif len(command.attempt) != TXN_ATTEMPT_BYTES:
        wrong = f"attempt has {len(command.attempt)} bytes; it must have {TXN_ATTEMPT_BYTES}"
    elif not 0 <= command.batch <= TXN_NUMBER_MAX:
        wrong = f"batch must be 0 to {TXN_NUMBER_MAX}"
    elif not 0 <= command.task < TXN_TASKS_MAX:
        wrong = f"task must be 0 to {TXN_TASKS_MAX - 1}"
    elif not 0 < command.sequence <= TXN_NUMBER_MAX:
        wrong = f"sequence must be 1 to {TXN_NUMBER_MAX}"
    if not wrong:
        return None
    return Refusal(ErrorCode.INVALID_ARGUMENT, wrong, field=wrong.split(maxsplit=1)[0])


def closed(row: StageRow, routing: int) -> Refusal | None:
    """The refusal if an existing stage takes no more items; else None."""
    if row.txn:
        message = f"{name_of(row.task, row.attempt)} is being committed; it takes no more items"
    elif row.routing != routing:
        message = (
            f"{name_of(row.task, row.attempt)} was begun when the queue had other partitions; "
            "stage the items of the task again, as another attempt"
        )
    else:
        return None
    return Refusal(ErrorCode.TRANSACTION_ABORTED, message, field="attempt", value=row.attempt.hex())


def full(what: str, value: int, limit: int) -> Refusal:
    """The refusal if the partition has no space for a stage."""
    return Refusal(
        ErrorCode.STAGE_FULL,
        f"the partition would have {value} {what}; the limit is {limit}: commit or abort batches, "
        "commit smaller ones, or use more partitions",
        field="items",
        limit=str(limit),
        value=str(value),
    )


def name_of(task: int, attempt: bytes) -> str:
    return f"attempt {attempt.hex()} at task {task}"
