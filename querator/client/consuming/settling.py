"""Gathering of completes and retries into frames. Settles of one round of the event loop share a
frame. While another frame is unanswered, settles of LINGER_SECONDS share one.

A frame is one complete or retry request. It is kept until it is answered. A repeat is safe, because
the partition remembers the outcome of a lease's items.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from querator.client.consuming.leases import LeasedBatch
from querator.client.consuming.verbs import Verb, requests
from querator.client.errors import ErrorCode, RequestError, copy_error, make_error
from querator.client.items import timestamp
from querator.client.results import lease_lost, seqs_of
from querator.client.transport.rpc_errors import code_of
from querator.model import limits
from querator.v1 import queue_service_pb2

LINGER_SECONDS = 0.002

AGAIN_SECONDS = 0.05
"""Pause before unsettled parts of a frame are sent again."""

NO_RESULTS: Mapping[int, bytes] = MappingProxyType({})

Waiter = tuple[int, "asyncio.Future[None]"]


class _Part:
    """The part of a frame for one batch. `mask` is the union of the waiters' masks. `results` are
    those of its items, by sequence.
    """

    __slots__ = ("batch", "mask", "results", "waiters")

    def __init__(self, batch: LeasedBatch) -> None:
        self.batch = batch
        self.mask = 0
        self.waiters: list[Waiter] = []
        self.results: dict[int, bytes] = {}


class SettleFrame:
    """One request. `deadline`: instant of the loop's clock at which it is given up. `refusal`: the
    last answer, while the frame waits to be sent again.
    """

    __slots__ = ("deadline", "maybe_executed", "number", "parts", "refusal", "verb")

    def __init__(self, verb: Verb, parts: list[_Part]) -> None:
        self.verb = verb
        self.parts = parts
        self.number = 0
        self.deadline = 0.0
        self.maybe_executed = False
        self.refusal: RequestError | None = None

    def lease_ids(self) -> list[str]:
        return [part.batch.lease.id for part in self.parts]

    def leases(self) -> list[queue_service_pb2.LeaseItems]:
        return [
            queue_service_pb2.LeaseItems(
                lease_id=part.batch.lease.id, ranges=part.batch.ranges(part.mask)
            )
            for part in self.parts
        ]

    def results(self) -> list[queue_service_pb2.ItemResult]:
        return [
            queue_service_pb2.ItemResult(lease_id=part.batch.lease.id, seq=seq, data=data)
            for part in self.parts
            for seq, data in part.results.items()
        ]

    def on_stream(self, namespace: str, queue: str) -> bytes:
        """The request as a frame of a lease stream, which is about to be sent."""
        self.maybe_executed = True
        self.refusal = None
        message = queue_service_pb2.LeaseStreamRequest(request_number=self.number)
        if self.verb.completes:
            message.complete.CopyFrom(self.complete_request(namespace, queue))
        else:
            message.retry.CopyFrom(self.retry_request(namespace, queue))
        return message.SerializeToString()

    def complete_request(self, namespace: str, queue: str) -> queue_service_pb2.CompleteRequest:
        return queue_service_pb2.CompleteRequest(
            namespace=namespace,
            queue=queue,
            leases=self.leases(),
            follow_ups=self.verb.follow_up_messages,
            results=self.results(),
        )

    def retry_request(self, namespace: str, queue: str) -> queue_service_pb2.RetryRequest:
        verb = self.verb
        return queue_service_pb2.RetryRequest(
            namespace=namespace,
            queue=queue,
            leases=self.leases(),
            retry_at=None if verb.retry_at is None else timestamp(verb.retry_at, "retry_at"),
            dead=verb.dead,
            error=verb.error,
            count_attempt=verb.count_attempt,
            priority=verb.priority,
            attributes=verb.attributes_message,
            clear_checkpoint=verb.clear_checkpoint,
            follow_ups=verb.follow_up_messages,
        )

    def resolve(self, outcomes: Sequence[queue_service_pb2.LeaseOutcome]) -> RequestError | None:
        """Resolves the waiters' futures; outcome i is that of part i. Parts whose partition could
        not answer stay in the frame, to be sent again; returns the reason.
        """
        left: list[_Part] = []
        reason: RequestError | None = None
        for part, outcome in zip(self.parts, outcomes, strict=True):
            if is_unsettled(outcome):
                left.append(part)
                reason = unsettled_error(outcome)
                continue
            lost = frozenset(seqs_of(outcome.lost)) if outcome.lost else frozenset()
            for mask, future in part.waiters:
                if future.done():
                    continue
                items = part.batch.lost_items(mask, lost) if lost else ()
                if items:
                    if len(items) == mask.bit_count():
                        part.batch.lease.lose()
                    future.set_exception(lease_lost(outcome.lease_id, items))
                else:
                    future.set_result(None)
        self.parts = left
        return reason

    def fail(self, error: RequestError) -> None:
        """Items that were refused because of their follow-ups can be settled otherwise."""
        refused = self.verb.follow_ups is not None and error.code is not ErrorCode.OUTCOME_UNKNOWN
        for part in self.parts:
            if refused:
                part.batch.not_settled(part.mask)
            for _, future in part.waiters:
                if not future.done():
                    future.set_exception(copy_error(error))


class Settler:
    """Gathers settles and passes them to `send` as frames. `busy` returns whether frames are
    unanswered; when none is, the owner calls `flush` before the linger has passed.
    """

    def __init__(
        self, send: Callable[[SettleFrame], None], busy: Callable[[], bool] = lambda: False
    ) -> None:
        self._send = send
        self._busy = busy
        self._timer: asyncio.Handle | None = None
        self._loop = asyncio.get_running_loop()
        self._gathered: dict[Verb, dict[LeasedBatch, _Part]] = {}
        self._results = self._result_bytes = 0
        """Numbers of the gathered results, which are in one frame."""

    def settle(
        self, verb: Verb, batch: LeasedBatch, mask: int, results: Mapping[int, bytes] = NO_RESULTS
    ) -> "asyncio.Future[None]":
        """`results` are those of the items, by sequence."""
        if results:
            self._make_room(results)
        future: asyncio.Future[None] = self._loop.create_future()
        if not self._gathered:
            self._timer = self._loop.call_soon(self._round_over)
        parts = self._gathered.setdefault(verb, {})
        part = parts.get(batch)
        if part is None:
            part = parts[batch] = _Part(batch)
        part.mask |= mask
        part.waiters.append((mask, future))
        if results:
            part.results.update(results)
        return future

    def _make_room(self, results: Mapping[int, bytes]) -> None:
        """Sends what is gathered if these results are too many for the same request."""
        count, size = len(results), sum(map(len, results.values()))
        if (
            self._results + count > limits.RESULTS_OF_COMPLETE_MAX
            or self._result_bytes + size > limits.RESULTS_BYTES_MAX
        ):
            self.flush()
        self._results += count
        self._result_bytes += size

    def lease_ids(self) -> list[str]:
        """Ids of the leases of gathered settles."""
        return [batch.lease.id for by_batch in self._gathered.values() for batch in by_batch]

    def _round_over(self) -> None:
        if self._busy():
            self._timer = self._loop.call_later(LINGER_SECONDS, self.flush)
        else:
            self.flush()

    def flush(self) -> None:
        """Sends the gathered settles."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        gathered, self._gathered = self._gathered, {}
        self._results = self._result_bytes = 0
        for verb, by_batch in gathered.items():
            for parts in requests(verb, list(by_batch.values()), _items_of):
                self._send(SettleFrame(verb, list(parts)))


def _items_of(part: _Part) -> int:
    return part.mask.bit_count()


def is_unsettled(outcome: queue_service_pb2.LeaseOutcome) -> bool:
    """Whether the partition could not report the outcome of the lease, and must be asked again."""
    return outcome.error != 0 and code_of(outcome.error) is not ErrorCode.LEASE_LOST


def unsettled_error(outcome: queue_service_pb2.LeaseOutcome) -> RequestError:
    return make_error(
        code_of(outcome.error),
        f"the partition of lease {outcome.lease_id} could not settle it",
        field="lease_id",
        value=outcome.lease_id,
    )


def unanswered() -> RequestError:
    return make_error(
        ErrorCode.OUTCOME_UNKNOWN,
        "no answer to a settle in time; if it was not executed, the lease lapses",
    )
