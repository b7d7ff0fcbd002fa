"""The unanswered requests of a producer: which one to send next, and what an answer means.

A request is numbered when it is made (`number`, for this stream) and gets a sequence when it is
first sent (`sequence`, for the producer's identity). Its states are

    queued ──sent──► on the wire ──answered──► done, or failed permanently
      ▲                  │  refused temporarily, or the stream broke
      └──────────────────┘  queued again, in the order of the numbers

*Refusals stop the window*: nothing is sent until every request on the wire is answered. Then all
unfinished requests are queued again. In an ordered producer the requests behind a refused one are
refused as well (SEQUENCE_GAP), so this is also the rewind.

*A new identity* is taken in three cases. The oldest request, sent as the oldest, is answered with
SEQUENCE_GAP (an earlier request failed permanently, or the node has forgotten it). A request is
answered with PRODUCER_EXPIRED. Or the identity is too old. The requests then get new sequences. A
request that may have been executed under its old sequence cannot be repeated under a new one: it
fails with `OutcomeUnknown`.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import uuid_utils

from querator.client import clock as wall_clock
from querator.client.errors import (
    DeadlineExceeded,
    ErrorCode,
    OutcomeUnknown,
    ProducerExpired,
    RequestError,
    SequenceGap,
    make_error,
)
from querator.client.values import ProducedRun

# Well under the time for which a node remembers a producer (PRODUCER_RETENTION_MS, 7 days).
IDENTITY_SECONDS_MAX = 24 * 3600.0
# How long after its deadline a request that is on the wire may still be answered. The node knows
# the deadline too, and reports whether it accepted the request.
ANSWER_SECONDS = 1.0


class OutcomeReceiver(Protocol):
    """The receiver of a request's outcome."""

    def done(self, runs: tuple[ProducedRun, ...], durable: bool) -> None: ...
    def failed(self, error: RequestError) -> None: ...


@dataclass(slots=True, eq=False)
class PendingProduce:
    """A produce request. `pieces`, joined, are the bytes of its items. `deadline` is an instant of
    the loop's clock.
    """

    number: int
    pieces: list[bytes]
    size: int
    count: int
    deadline: float
    sink: OutcomeReceiver
    sequence: int = 0
    maybe_executed: bool = False
    sent_first: bool = False
    """Whether it was the oldest request when it was last sent: no earlier one could be missing."""
    refusal: RequestError | None = None
    """The refusal of the last attempt; None while an attempt is on the wire."""
    reason: RequestError | None = None
    """The last refusal that is about the request itself."""


@dataclass(slots=True, frozen=True)
class ProducerIdentity:
    """A producer's identity at the partitions. `born` is an instant of the loop's clock, which may
    stand still while the machine is suspended; `born_ns` is one of the wall clock, which the nodes
    compare with theirs.
    """

    id: bytes
    born: float
    born_ns: int

    @classmethod
    def new(cls, now: float) -> "ProducerIdentity":
        born_ns = wall_clock.now_ns()
        return cls(uuid_utils.uuid7(nanoseconds=born_ns).bytes, now, born_ns)

    def is_too_old(self, now: float) -> bool:
        """Whether the nodes may soon forget it. `now` is an instant of the loop's clock."""
        age = max(now - self.born, (wall_clock.now_ns() - self.born_ns) / 1e9)
        return age > IDENTITY_SECONDS_MAX


@dataclass(slots=True)
class Window:
    """The unanswered requests of one stream. `clock` returns instants of the loop's clock."""

    ordered: bool
    clock: Callable[[], float]
    identity: ProducerIdentity = field(init=False)
    paused: bool = False
    retry_delay_ms: int = 0
    break_reason: RequestError | None = None
    """Why the last stream broke, until a frame comes on the next one."""
    _requests: dict[int, PendingProduce] = field(default_factory=dict)
    _queued: deque[PendingProduce] = field(default_factory=deque)
    _on_wire: set[int] = field(default_factory=set)
    _last_sequence: int = 0
    _missing: bool = False
    """Whether a sequence of this identity will never be stored, so that later ones cannot be."""

    def __post_init__(self) -> None:
        self.identity = ProducerIdentity.new(self.clock())

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[PendingProduce]:
        return iter(self._requests.values())

    @property
    def quiet(self) -> bool:
        """Whether no request is on the wire."""
        return not self._on_wire

    def add(self, request: PendingProduce) -> None:
        self._requests[request.number] = request
        self._queued.append(request)

    def next_request(self) -> PendingProduce | None:
        """Returns the next request to send, and marks it as sent; None if there is none."""
        if self.paused:
            return None
        while self._queued:
            request = self._queued.popleft()
            if request.number not in self._requests:
                continue
            if request.sequence == 0:
                if self._too_old():
                    self._queued.appendleft(request)
                    self.pause()
                    return None
                self._last_sequence += 1
                request.sequence = self._last_sequence
            request.refusal = None
            request.sent_first = next(iter(self._requests)) == request.number
            self._on_wire.add(request.number)
            return request
        return None

    def _too_old(self) -> bool:
        return self.identity.is_too_old(self.clock())

    def pause(self, error: RequestError | None = None) -> None:
        """Stops sending until `requeue`, which is due when the window is quiet."""
        self.paused = True
        if error is not None:
            self.retry_delay_ms = max(self.retry_delay_ms, error.retry_delay_ms or 0)

    def pop_answered(self, number: int) -> PendingProduce | None:
        """Returns the request that an answer belongs to; None if it has already failed."""
        self._on_wire.discard(number)
        return self._requests.get(number)

    def remove(self, request: PendingProduce) -> None:
        del self._requests[request.number]

    def refused(self, request: PendingProduce, error: RequestError) -> bool:
        """Records a refusal. Returns whether the request stays in the window, to be sent again."""
        if isinstance(error, OutcomeUnknown):
            request.maybe_executed = True
        elif isinstance(error, ProducerExpired) and request.maybe_executed:
            return False
        elif isinstance(error, SequenceGap):
            if not self.ordered:
                return False
        elif not (error.retriable or isinstance(error, ProducerExpired)):
            self._missing = self.ordered
            return False
        request.refusal = error
        if not isinstance(error, SequenceGap | DeadlineExceeded):
            request.reason = error
        self.pause(error)
        return True

    def broken(self) -> None:
        """The stream is gone: requests on the wire may have been executed."""
        for number in self._on_wire:
            if number in self._requests:
                self._requests[number].maybe_executed = True
        self._on_wire.clear()

    def requeue(self) -> list[tuple[PendingProduce, RequestError]]:
        """Queues all requests again, in order. Removes and returns the requests that fail by a
        change of identity, with their errors.
        """
        assert not self._on_wire
        failed: list[tuple[PendingProduce, RequestError]] = []
        if self._needs_identity():
            self.identity = ProducerIdentity.new(self.clock())
            self._last_sequence = 0
            self._missing = False
            for request in list(self._requests.values()):
                if request.maybe_executed:
                    self.remove(request)
                    failed.append((request, self.unknown(request)))
                request.sequence = 0
        self._queued = deque(self._requests.values())
        self.paused = False
        self.retry_delay_ms = 0
        return failed

    def _needs_identity(self) -> bool:
        if self._too_old() and not any(request.maybe_executed for request in self):
            return True
        for request in self._requests.values():
            if isinstance(request.refusal, ProducerExpired):
                return True
            if self.ordered and not self._missing:
                # Only the oldest request counts. Later ones have a gap as long as it is missing,
                # also one that overtook it on the way to another leader.
                return request.sent_first and isinstance(request.refusal, SequenceGap)
        return self._missing

    def expired(self, now: float) -> list[tuple[PendingProduce, RequestError | None]]:
        """Removes and returns the requests whose time has passed. Each is paired with
        `OutcomeUnknown` if it may have been executed, else with its last refusal, or with None if
        there was none.
        """
        over: list[tuple[PendingProduce, RequestError | None]] = []
        for request in list(self._requests.values()):
            if request.deadline > now:
                break
            if self._given_up_at(request) > now:
                continue
            self.remove(request)
            if request.maybe_executed or request.number in self._on_wire:
                over.append((request, self.unknown(request)))
            else:
                over.append((request, request.reason))
        return over

    def next_expiry(self) -> float | None:
        """When to call `expired` next; None if there are no requests."""
        return min(map(self._given_up_at, self._requests.values()), default=None)

    def _given_up_at(self, request: PendingProduce) -> float:
        return request.deadline + (ANSWER_SECONDS if request.number in self._on_wire else 0.0)

    def unknown(self, request: PendingProduce) -> RequestError:
        return produce_unknown(request.count, request.reason or self.break_reason)


def produce_unknown(count: int, reason: RequestError | None) -> RequestError:
    """The error for a request of `count` items whose outcome is not known; `reason`: what the last
    attempt ended with.
    """
    items = "this item" if count == 1 else f"these {count} items"
    message = f"outcome unknown: {items} may or may not be stored"
    if reason is None:
        return make_error(ErrorCode.OUTCOME_UNKNOWN, message)
    # The last attempt was not executed, an earlier one may have been.
    cause = reason.message.removesuffix("; not executed").rstrip(".")
    return make_error(
        ErrorCode.OUTCOME_UNKNOWN,
        f"{message}. {cause[:1].upper()}{cause[1:]}",
        field=reason.field,
        value=reason.value,
        request_id=reason.request_id,
    )
