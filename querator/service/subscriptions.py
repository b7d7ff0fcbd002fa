"""Lease streams: deliveries against credit.

A stream leases only what its consumer has room for: within the credit it has granted, and at most
BATCHES_AHEAD_MAX batches ahead of the reader, so that one turn of a partition can lease several.
Credit is spent when a waiter is posted, and what was not granted comes back. So many waiters of a
stream are parked as full batches are ready, and one in any case: with more, an arriving batch would
be cut in pieces; for the same reason credit for less than a batch waits while another batch is on
its way. How many bytes a batch will have is judged by the last one. A batch that nobody takes
until half of its time is over is released, and nothing is leased ahead until `next` is awaited
again: the leases of a reader that has stopped reading must not lapse, which would cost its items
an attempt.

A stream knows its live leases: what it has delivered, less what was settled on this stream or is
known to be lost. With `auto_extend` it extends them when a third of their time is over (one timer,
one command per partition). When it closes politely they are released.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec

from querator.model.calls import (
    CompleteCall,
    ExtendCall,
    ExtendReply,
    LeaseReply,
    RetryCall,
    SettleReply,
    SubscribeCall,
)
from querator.model.commands import Extend, ExtendResult, LeaseItems, Retry
from querator.model.errors import ErrorCode, QueratorError, invalid, over_limit
from querator.model.ids import parse_lease_id
from querator.model.limits import (
    REPLY_BYTES_DEFAULT,
    REQUEST_LEASES_MAX,
    STREAM_BATCH_ITEMS_DEFAULT,
    STREAM_CREDIT_ITEMS_MAX,
    STREAM_LEASES_MAX,
)
from querator.model.queues import Queue
from querator.service.replies import PayloadCache, load
from querator.service.router import Accepted, PartitionView, Router, stopping_error
from querator.service.waiters import Grant, LeaseDesk, Waiter

if TYPE_CHECKING:
    from querator.raft.clock import Clock
    from querator.service.queue_service import QueueService
    from querator.storage.environment import Environment

_Call = TypeVar("_Call", CompleteCall, RetryCall, ExtendCall)

BATCHES_AHEAD_MAX = 8
"""Batches that are asked for or wait to be taken."""
EXTEND_SHARE = 3
"""Leases are extended when this part of their time is over."""


class _Held:
    """A lease that was delivered; `left`: items not settled, as far as is known here."""

    __slots__ = ("expires_s", "lease", "left", "length_s", "view")

    def __init__(self, grant: Grant, left: int) -> None:
        self.view = grant.view
        self.lease = grant.lease
        self.left = left
        self.expires_s = grant.expires_s
        self.length_s = grant.length_s

    @property
    def extend_s(self) -> float:
        return self.expires_s - self.length_s * (EXTEND_SHARE - 1) / EXTEND_SHARE


class Subscription:
    """One lease stream. One task awaits `next`; every method may be called while it does."""

    def __init__(
        self,
        call: SubscribeCall,
        queue: Queue,
        *,
        service: "QueueService",
        desk: LeaseDesk,
        router: Router,
        environment: "Environment",
        cache: PayloadCache,
        clock: "Clock",
        left: Callable[["Subscription"], None],
    ) -> None:
        """`left` is called once, when the stream has closed."""
        self.lease_timeout_ms = call.lease_timeout_ms or queue.settings.lease_timeout_ms
        self.durable = environment.durable
        self._call = call
        self._queue = queue
        self._service = service
        self._desk = desk
        self._router = router
        self._environment = environment
        self._cache = cache
        self._clock = clock
        self._left = left
        self._loop = asyncio.get_running_loop()
        self._items_max = call.max_items or STREAM_BATCH_ITEMS_DEFAULT
        self._bytes_max = call.max_bytes or REPLY_BYTES_DEFAULT
        self._credit_items = 0
        self._item_bytes = 0
        """What an item of the last batch had on average; 0 when it is not known."""
        self._credit_bytes: int | None = 0
        """None: not bounded."""
        self._bytes_needed = 0
        """The next item is larger than the credit was that asked for it; 0 when it is not known."""
        self._posted: dict[Waiter, None] = {}
        self._ready: deque[list[Grant]] = deque()
        self._held: dict[tuple[int, int], _Held] = {}
        self._stale: asyncio.TimerHandle | None = None
        """When the batch that is ready has been ready for too long."""
        self._ahead = True
        """Whether a batch is leased while `next` is not awaited."""
        self._next: asyncio.Future[None] | None = None
        self._error: QueratorError | None = None
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0

    # --- deliveries --------------------------------------------------------------------------

    def grant(self, items: int, bytes: int) -> None:
        """Adds credit; `bytes` 0: as many as the items have, from here on."""
        if items < 0 or bytes < 0 or not (items or bytes):
            raise invalid("credit", "must be positive", value=f"{items} items, {bytes} bytes")
        total = self._credit_items + items + self._undelivered()
        if total > STREAM_CREDIT_ITEMS_MAX:
            raise over_limit(
                "credit.items", value=total, limit=STREAM_CREDIT_ITEMS_MAX, unit="items"
            )
        self._credit_items += items
        if not bytes:
            self._credit_bytes = None
        elif self._credit_bytes is not None:
            self._credit_bytes += bytes
        self._pump()

    def _undelivered(self) -> int:
        """Credit that is spent and for which nothing has been delivered yet."""
        asked = sum(waiter.items_max for waiter in self._posted)
        ready = (grant for grants in self._ready for grant in grants)
        return asked + sum(segment.count for grant in ready for segment in grant.segments)

    async def next(self) -> LeaseReply:
        """The next delivery; it has at least one item. Raises what ended the stream: UNAVAILABLE
        when the node stops, QUEUE_DELETING, ITEM_TOO_LARGE for the subscription's `max_bytes`, or
        another error of a lease.

        Cancelling it loses nothing: the next call delivers.
        """
        assert self._next is None, "one task awaits the next delivery"
        self._ahead = True
        while True:
            if self._stale is not None:
                self._stale.cancel()
                self._stale = None
            while self._ready:
                reply = self._deliver(self._ready.popleft())
                if reply is not None:
                    self._pump()
                    return reply
            if self._error is not None:
                raise self._error
            self._next = self._loop.create_future()
            try:
                self._pump()
                await self._next
            finally:
                self._next = None

    def _deliver(self, grants: list[Grant]) -> LeaseReply | None:
        batches, late = load(
            self._environment, self._cache, self._queue, grants, now_s=self._clock.monotonic_s()
        )
        if late:
            self._desk.release(late)
            for grant in late:
                self._give_back(grant)
        if not batches:
            return None
        for grant in grants:
            if grant in late:
                continue
            held = _Held(grant, sum(segment.count for segment in grant.segments))
            self._held[grant.view.group, grant.lease] = held
            if self._call.auto_extend:
                self._set_timer(held.extend_s)
        return LeaseReply(tuple(batches), self.durable)

    def _give_back(self, grant: Grant) -> None:
        """What was paid for a grant that is not delivered."""
        for segment in grant.segments:
            self._credit_items += segment.count
            if self._credit_bytes is not None:
                self._credit_bytes += segment.bytes

    # --- demand ------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Posts waiters while there is credit and room, and something for one more."""
        if self._closed or self._error is not None:
            return
        batches_max = BATCHES_AHEAD_MAX if self._ahead else int(self._next is not None)
        room = batches_max - len(self._ready) - len(self._posted)
        parked = sum(not waiter.asked for waiter in self._posted)
        while room > 0 and self._has_batch_for(parked) and self._post():
            room -= 1
            parked += 1

    def _has_batch_for(self, parked: int) -> bool:
        """Whether a full batch is ready for one more waiter than are parked; the first needs none,
        for it is the one that waits.
        """
        wanted = (parked + 1) * self._items_max
        return not parked or self._desk.ready(most=wanted) >= wanted

    def _post(self) -> bool:
        """Posts a waiter for one batch, if the credit allows."""
        items = min(self._items_max, self._credit_items)
        # Twice the average, for the next items may be larger.
        wanted = min(self._bytes_max, 2 * items * self._item_bytes or self._bytes_max)
        size = wanted if self._credit_bytes is None else min(wanted, self._credit_bytes)
        if items <= 0 or size <= 0 or size < self._bytes_needed:
            return False
        if (items < self._items_max or size < wanted) and (self._posted or self._ready):
            return False
        if len(self._held) >= STREAM_LEASES_MAX and not self._forget_lapsed():
            return False
        self._credit_items -= items
        if self._credit_bytes is not None:
            self._credit_bytes -= size
        waiter = Waiter(
            client_id=self._call.client_id,
            items_max=items,
            bytes_max=size,
            lease_timeout_ms=self._call.lease_timeout_ms,
            answer=self._answered,
            on_asked=self._pump,
        )
        self._posted[waiter] = None
        self._desk.join(waiter)
        return True

    def _answered(self, waiter: Waiter) -> None:
        del self._posted[waiter]
        items = size = 0
        for grant in waiter.grants:
            for segment in grant.segments:
                items += segment.count
                size += segment.bytes
        self._credit_items += waiter.items_max - items
        if self._credit_bytes is not None:
            self._credit_bytes += waiter.bytes_max - size
        if waiter.grants:
            self._bytes_needed = 0
            self._item_bytes = -(-size // items)
            self._ready.append(waiter.grants)
            if self._next is None and self._stale is None:
                length_s = min(grant.length_s for grant in waiter.grants)
                self._stale = self._loop.call_later(length_s / 2, self._release_stale)
        elif waiter.error is not None:
            self._lease_failed(waiter, waiter.error)
        else:
            # A stream's wait has no end of its own: the desk has been closed.
            self._error = stopping_error()
        self._notify()
        self._pump()

    def _release_stale(self) -> None:
        """Nobody has taken what is ready: gives it back."""
        self._stale = None
        self._ahead = False
        while self._ready:
            grants = self._ready.popleft()
            self._desk.release(grants)
            for grant in grants:
                self._give_back(grant)

    def _lease_failed(self, waiter: Waiter, error: QueratorError) -> None:
        if error.code is ErrorCode.OUTCOME_UNKNOWN:
            # Whatever was granted lapses; the stream asks again.
            return
        if error.code is ErrorCode.ITEM_TOO_LARGE and waiter.bytes_max < self._bytes_max:
            self._item_bytes = 0
            if self._credit_bytes is None or self._credit_bytes > waiter.bytes_max:
                return
            # It waits for the consumer to grant more bytes.
            self._bytes_needed = waiter.bytes_max + 1
            return
        self._error = error

    def _notify(self) -> None:
        if self._next is not None and not self._next.done():
            self._next.set_result(None)

    # --- settling ----------------------------------------------------------------------------

    async def complete(self, call: CompleteCall) -> SettleReply:
        """`namespace` and `queue` may be empty; else they are the subscription's."""
        reply = await self._service.complete(self._own(call))
        self._note_settled(reply)
        return reply

    async def retry(self, call: RetryCall) -> SettleReply:
        """As `complete`."""
        reply = await self._service.retry(self._own(call))
        self._note_settled(reply)
        return reply

    async def extend(self, call: ExtendCall) -> ExtendReply:
        """As `complete`; without leases and client, all leases of the subscription's client."""
        call = self._own(call)
        if not call.lease_ids and not call.client_id:
            call = msgspec.structs.replace(call, client_id=self._call.client_id)
        asked_s = self._clock.monotonic_s()
        reply = await self._service.extend(call)
        for outcome in reply.outcomes:
            group, _, lease = parse_lease_id(outcome.lease_id, field="lease_id")
            held = self._held.get((group, lease))
            if held is None:
                continue
            if outcome.deadline_ms:
                held.length_s = outcome.remaining_ms / 1000
                held.expires_s = asked_s + held.length_s
            else:
                del self._held[group, lease]
        return reply

    def _own(self, call: _Call) -> _Call:
        namespace = call.namespace or self._call.namespace
        name = call.queue or self._call.queue
        if (namespace, name) != (self._call.namespace, self._call.queue):
            raise invalid(
                "queue", f"must be empty or {self._call.queue} on this stream", value=name
            )
        if (namespace, name) == (call.namespace, call.queue):
            return call
        return msgspec.structs.replace(call, namespace=namespace, queue=name)

    def _note_settled(self, reply: SettleReply) -> None:
        """Forgets leases that are known to be finished, so that what is kept stays bounded."""
        for outcome in reply.outcomes:
            group, _, lease = parse_lease_id(outcome.lease_id, field="lease_id")
            held = self._held.get((group, lease))
            if held is None:
                continue
            named = (*outcome.done, *outcome.lost)
            held.left -= sum(count for _, count in named)
            unknown = outcome.error is ErrorCode.LEASE_LOST and not named
            if held.left <= 0 or unknown:
                del self._held[group, lease]
        self._pump()

    def _forget_lapsed(self) -> bool:
        """Forgets leases whose time is over; whether there is room for another."""
        now_s = self._clock.monotonic_s()
        for key, held in list(self._held.items()):
            if held.expires_s < now_s:
                del self._held[key]
        return len(self._held) < STREAM_LEASES_MAX

    # --- automatic extension -----------------------------------------------------------------

    def _set_timer(self, due_s: float) -> None:
        """Makes sure that the timer fires by then."""
        if self._closed:
            return
        if self._timer is not None:
            if self._timer_s <= due_s:
                return
            self._timer.cancel()
        self._timer_s = due_s
        delay_s = max(0.0, due_s - self._clock.monotonic_s())
        self._timer = self._loop.call_later(delay_s, self._extend_due)

    def _extend_due(self) -> None:
        """Extends what is due, and what will be soon."""
        self._timer = None
        now_s = self._clock.monotonic_s()
        due: dict[PartitionView, list[int]] = {}
        for held in self._held.values():
            if held.extend_s <= now_s + held.length_s / (2 * EXTEND_SHARE):
                due.setdefault(held.view, []).append(held.lease)
                # Should the extension fail, the next is tried after a third of what is left.
                held.length_s = max(0.1, held.expires_s - now_s)
        for view, leases in due.items():
            for start in range(0, len(leases), REQUEST_LEASES_MAX):
                command = Extend(
                    tuple(leases[start : start + REQUEST_LEASES_MAX]),
                    lease_timeout_ms=self._call.lease_timeout_ms,
                )
                self._router.post(view, command, then=partial(self._extended, view, now_s))
        if self._held:
            self._set_timer(min(held.extend_s for held in self._held.values()))

    def _extended(
        self, view: PartitionView, asked_s: float, outcome: Accepted | QueratorError
    ) -> None:
        if isinstance(outcome, QueratorError):
            return
        assert isinstance(outcome, ExtendResult)
        for lease, deadline_ms in outcome.outcomes:
            held = self._held.get((view.group, lease))
            if held is None:
                continue
            if deadline_ms:
                held.length_s = (deadline_ms - outcome.now_ms) / 1000
                held.expires_s = asked_s + held.length_s
            else:
                del self._held[view.group, lease]

    # --- the end -----------------------------------------------------------------------------

    def end(self, error: QueratorError) -> None:
        """No more deliveries: `next` raises `error` once what is ready has been released."""
        if self._error is None:
            self._error = error
        for waiter in list(self._posted):
            self._desk.abandon(waiter)
        self._posted.clear()
        if self._stale is not None:
            self._stale.cancel()
            self._stale = None
        while self._ready:
            self._desk.release(self._ready.popleft())
        self._notify()

    async def close(self, *, polite: bool) -> None:
        """Ends the stream. What was leased and not delivered is released in any case; what was
        delivered and is not settled is released if `polite` or if the subscription says so, else it
        lapses. Closing again does nothing.
        """
        if self._closed:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self.end(QueratorError(ErrorCode.UNAVAILABLE, "the stream is closed"))
        if polite or self._call.release_on_disconnect:
            by_view: dict[PartitionView, list[LeaseItems]] = {}
            for held in self._held.values():
                by_view.setdefault(held.view, []).append(LeaseItems(held.lease))
            for view, leases in by_view.items():
                for start in range(0, len(leases), REQUEST_LEASES_MAX):
                    batch = tuple(leases[start : start + REQUEST_LEASES_MAX])
                    self._router.post(view, Retry(batch, count_attempt=False), then=_released)
        self._held.clear()
        self._left(self)


def _released(_outcome: Accepted | QueratorError) -> None:
    """A release that failed leaves the leases to lapse; the consumer has gone."""
