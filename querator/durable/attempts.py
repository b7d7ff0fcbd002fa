"""Steps that are to begin, and the waits before their next attempts.

A wait of up to a second is made in the worker, and is in no journal. Before a longer one the
attempt is recorded. The worker waits then as well, and the partition has a timer for it while the
execution is parked; the earlier of the two counts, because the code sees neither.
"""

from collections.abc import Iterator

import msgspec

from querator.durable.code import ExecutionCode
from querator.durable.codec import Codec
from querator.durable.errors import CodecError
from querator.durable.operations import Operation
from querator.durable.paths import Path
from querator.durable.seeds import share
from querator.model.limits import STEP_RETRY_HERE_MS_MAX


class Attempts:
    """The attempts of one execution that have not begun."""

    def __init__(self, code: ExecutionCode) -> None:
        self._code = code
        self._steps: dict[Path, Operation] = {}
        self._recorded: dict[Path, Operation] = {}
        """Those whose last attempt is in the journal, by the path of the timer before the next."""

    def add(self, operation: Operation) -> None:
        self._steps[operation.path] = operation

    def delay_ms(self, operation: Operation) -> int:
        """How long to wait after the attempt that has failed. The jitter follows from the path."""
        attempt = operation.attempt
        jitter = share(self._code.seed(operation.path, attempt.to_bytes(4, "big")))
        return operation.needed_step.retry.delay_ms(attempt, jitter)

    def wait(self, operation: Operation, due_ms: int, *, is_recorded: bool) -> None:
        """The next attempt may begin at that time."""
        operation.attempt += 1
        operation.retry_at_ms = due_ms
        operation.is_begun = False
        if is_recorded:
            self._recorded[operation.retry_path] = operation
            # The partition may fire it when the worker has waited already.
            self._code.loop.withdrawn.add(operation.retry_path)
        if not self._code.is_replaying:
            self._steps[operation.path] = operation

    def fired(self, path: Path) -> bool:
        """The partition has fired a timer; returns whether it is one before an attempt."""
        operation = self._recorded.pop(path, None)
        if operation is None:
            return False
        operation.retry_at_ms = 0
        operation.retry_is_registered = False
        return True

    def is_recorded(self, operation: Operation) -> bool:
        """Whether the step waits, and the journal says for what."""
        return operation.retry_path in self._recorded

    def take_ready(self, now_ms: int, acknowledged: int) -> list[Operation]:
        """The steps that may begin, by the prefix rule and by their time. They are forgotten."""
        ready = []
        for operation in list(self._steps.values()):
            if operation.path not in self._code.pending:
                self.forget(operation)
            elif operation.retry_at_ms <= now_ms and (
                operation.begins_after <= acknowledged or not operation.needed_step.effects
            ):
                self.forget(operation)
                operation.retry_at_ms = 0
                ready.append(operation)
        return ready

    def forget(self, operation: Operation) -> None:
        """The next attempt begins, or is not needed any more."""
        self._steps.pop(operation.path, None)
        self._recorded.pop(operation.retry_path, None)
        if operation.retry_is_registered:
            operation.retry_is_registered = False
            self._code.loop.to_withdraw.append(operation.retry_path)

    def wait_for_records(self, acknowledged: int) -> bool:
        """Whether a step waits for a record to be durable."""
        return any(
            each.begins_after > acknowledged
            and each.needed_step.effects
            and each.path in self._code.pending
            for each in self._steps.values()
        )

    def next_due(self) -> int | None:
        dues = (each.retry_at_ms for each in self._steps.values() if each.retry_at_ms)
        return min(dues, default=None)

    def recorded(self) -> Iterator[tuple[Path, Operation]]:
        """The steps that wait, by the paths of their timers."""
        for path, operation in self._recorded.items():
            if operation.path in self._code.pending:
                yield path, operation


def is_long(delay_ms: int) -> bool:
    """Whether an attempt is recorded before a wait of this length."""
    return delay_ms > STEP_RETRY_HERE_MS_MAX


def encode_attempt(codec: Codec, error: BaseException, attempt: int, due_ms: int) -> bytes:
    """The payload of a failed attempt that is followed by another one at that time."""
    return b"[%d,%d,%s]" % (attempt, due_ms, codec.encode_error(error))


def decode_attempt(payload: bytes) -> tuple[int, int]:
    """The number of the attempt, and when the next may begin. Raises CodecError."""
    try:
        attempt, due_ms, _ = msgspec.json.decode(payload, type=tuple[int, int, msgspec.Raw])
    except msgspec.MsgspecError as error:
        raise CodecError(f"a failed attempt cannot be read from the journal: {error}") from error
    return attempt, due_ms
