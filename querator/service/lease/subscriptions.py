"""Lease streams: deliveries against credit.

A stream leases only items that its consumer can take: within the granted credit, and at most
BATCHES_AHEAD_MAX batches ahead of the reader, so that one turn of a partition can lease several
batches. Credit is spent when a waiter is posted; credit for items that were not granted is
refunded.

Each stream parks one waiter. It parks more while full batches are ready in addition to the demand
of all parked waiters of the queue; otherwise a batch would be cut into pieces. For the same reason
credit for less than a batch waits while another batch is on its way. The size of a batch in bytes
is estimated from the last one.

When half of the lease time of an untaken batch is over, all ready batches are released, and nothing
is leased ahead until `next` is awaited again. The leases of a reader that has stopped reading must
not lapse, because that would cost its items an attempt. Grants of one partition are delivered in
the partition's order.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
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
from querator.model.errors import ErrorCode, QueratorError, invalid, over_limit
from querator.model.limits import (
    REPLY_BYTES_DEFAULT,
    STREAM_BATCH_ITEMS_DEFAULT,
    STREAM_CREDIT_ITEMS_MAX,
)
from querator.model.queues import Queue
from querator.service.lease.dispatcher import LeaseDispatcher
from querator.service.lease.former_streams import FormerStreams
from querator.service.lease.held_leases import HeldLeases
from querator.service.lease.replies import PayloadCache, load
from querator.service.lease.waiter import Deficit, Grant, Waiter
from querator.service.repair.damage import DamagedBlocks
from querator.service.routing.outcomes import stopping_error
from querator.service.routing.route import PartitionRoute
from querator.service.routing.router import Router
from querator.service.settle import SettleService

if TYPE_CHECKING:
    from querator.raft.clock import Clock
    from querator.storage.environment import Environment

_Call = TypeVar("_Call", CompleteCall, RetryCall, ExtendCall)

BATCHES_AHEAD_MAX = 8
"""Limit of batches that are requested, or wait to be taken."""


class Subscription:
    """One lease stream. One task awaits `next`; every method may be called meanwhile."""

    def __init__(
        self,
        call: SubscribeCall,
        queue: Queue,
        *,
        settling: SettleService,
        dispatcher: LeaseDispatcher,
        router: Router,
        environment: "Environment",
        cache: PayloadCache,
        damage: DamagedBlocks,
        clock: "Clock",
        left: Callable[["Subscription"], None],
    ) -> None:
        """`left` is called once, when the stream has closed."""
        self.lease_timeout_ms = call.lease_timeout_ms or queue.settings.lease_timeout_ms
        self.durable = environment.durable
        self._call = call
        self._queue = queue
        self._settling = settling
        self._dispatcher = dispatcher
        self._router = router
        self._environment = environment
        self._cache = cache
        self._damage = damage
        self._clock = clock
        self._left = left
        self._loop = asyncio.get_running_loop()
        self._items_max = call.max_items or STREAM_BATCH_ITEMS_DEFAULT
        self._bytes_max = call.max_bytes or REPLY_BYTES_DEFAULT
        self._credit_items = 0
        self._item_bytes = 0
        """Average size of an item in the last batch; 0: not known."""
        self._credit_bytes: int | None = 0
        """None: unlimited."""
        self._bytes_needed = 0
        """Credit that the next item needs, because it was larger than the requested bytes; 0: not
        known.
        """
        self._account = Deficit()
        self._posted: dict[Waiter, None] = {}
        self._ready: deque[Grant] = deque()
        """Grants that are not delivered, those of one partition in the partition's order."""
        self._held = HeldLeases(
            router=router,
            clock=clock,
            auto_extend=call.auto_extend,
            lease_timeout_ms=call.lease_timeout_ms,
            on_room=self._pump,
        )
        self._former: FormerStreams | None = None
        if call.stream_number > 1:
            self._former = FormerStreams(
                call, router.routes(queue), router=router, lease_timeout_ms=self.lease_timeout_ms
            )
        self._stale: asyncio.TimerHandle | None = None
        """Timer that checks for stale batches; set while a batch is ready."""
        self._stale_s = 0.0
        self._ahead = True
        """Whether batches are leased while `next` is not awaited."""
        self._next: asyncio.Future[None] | None = None
        self._delivers = True
        """False when the consumer has ended its deliveries."""
        self._error: QueratorError | None = None
        self._closed = False

    # --- deliveries --------------------------------------------------------------------------

    def grant(self, items: int, bytes: int) -> None:
        """Adds credit. From a call with `bytes` 0 on, the credit in bytes is unlimited."""
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
        """Credit in items that is spent, and for which nothing has been delivered yet."""
        asked = sum(waiter.items_max for waiter in self._posted)
        return asked + sum(_size(grant)[0] for grant in self._ready)

    async def next(self) -> LeaseReply:
        """Returns the next delivery, with at least one item. Raises the error that ended the
        stream: UNAVAILABLE when the node stops, QUEUE_DELETING, ITEM_TOO_LARGE for the
        subscription's `max_bytes`, or another error of a lease.

        Cancelling it loses nothing: the next call delivers.
        """
        assert self._next is None, "one task awaits the next delivery"
        self._ahead = True
        while True:
            while grants := self._take():
                reply = self._deliver(grants)
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

    def end_deliveries(self) -> None:
        """Withdraws all credit, also future credit, and releases what is not delivered. `next` then
        waits for the end of the stream. Delivered leases stay.
        """
        self._delivers = False
        self._withdraw()

    def as_of_now(self, reply: LeaseReply) -> LeaseReply | None:
        """Updates a delivery that has waited to be written: sets the remaining time of its leases,
        and gives ended leases back, or all of them after `end_deliveries`. Returns None when no
        lease remains.
        """
        batches = []
        for batch in reply.batches:
            remaining_s = self._held.remaining_s(batch.lease_id)
            if remaining_s > 0 and self._delivers:
                left_ms = int(remaining_s * 1000)
                batches.append(msgspec.structs.replace(batch, remaining_ms=left_ms))
            else:
                self._held.give_back(batch.lease_id)
                self._refund(batch.loaded.count, len(batch.loaded.items))
        if len(batches) < len(reply.batches):
            self._pump()
        return LeaseReply(tuple(batches), reply.durable) if batches else None

    def _take(self) -> list[Grant]:
        """Takes one delivery from the head of the ready grants."""
        taken: list[Grant] = []
        items_left, bytes_left = self._items_max, self._bytes_max
        while self._ready and not self._follows_another(self._ready[0]):
            items, size = _size(self._ready[0])
            items_left -= items
            bytes_left -= size
            if taken and (items_left < 0 or bytes_left < 0):
                break
            taken.append(self._ready.popleft())
        return taken

    def _follows_another(self, grant: Grant) -> bool:
        """Whether an unanswered waiter holds older items of the same partition."""
        return any(_is_before(other, grant) for waiter in self._posted for other in waiter.grants)

    def _line_up(self, grant: Grant) -> None:
        """Makes a grant ready, before younger grants of the same partition."""
        for place, other in enumerate(self._ready):
            if _is_before(grant, other):
                self._ready.insert(place, grant)
                return
        self._ready.append(grant)

    def _deliver(self, grants: list[Grant]) -> LeaseReply | None:
        try:
            loaded = load(
                self._environment,
                self._cache,
                self._router.map.get(self._queue.id) or self._queue,
                grants,
                now_s=self._clock.monotonic_s(),
            )
        except Exception:
            self._dispatcher.release(grants)
            for grant in grants:
                self._give_back(grant)
            raise
        self._dispatcher.release(loaded.late)
        for grant in loaded.late:
            self._give_back(grant)
        self._damage.give_back(loaded.unread)
        left_out: Counter[tuple[PartitionRoute, int]] = Counter()
        for unread in loaded.unread:
            self._refund(unread.items, unread.bytes)
            left_out[unread.route, unread.lease] += unread.items
        for grant in grants:
            if grant not in loaded.late:
                self._held.add(grant, left_out=left_out[grant.route, grant.lease])
        if not loaded.batches:
            return None
        return LeaseReply(tuple(loaded.batches), self.durable)

    def _give_back(self, grant: Grant) -> None:
        """Refunds the credit of a grant that is not delivered."""
        self._refund(*_size(grant))

    def _refund(self, items: int, size: int) -> None:
        self._credit_items += items
        if self._credit_bytes is not None:
            self._credit_bytes += size

    # --- demand ------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Posts waiters while credit, space for batches and ready items allow one more."""
        if self._closed or self._error is not None or not self._delivers:
            return
        batches_max = BATCHES_AHEAD_MAX if self._ahead else int(self._next is not None)
        room = batches_max - self._batches_ready() - len(self._posted)
        parked = sum(not waiter.asked for waiter in self._posted)
        while room > 0 and self._has_batch_for(parked) and self._post():
            room -= 1
            parked += 1

    def _batches_ready(self) -> int:
        """Approximate number of deliveries in the ready grants."""
        if not self._ready:
            return 0
        items, size = map(sum, zip(*map(_size, self._ready), strict=True))
        return max(-(-items // self._items_max), -(-size // self._bytes_max))

    def _has_batch_for(self, parked: int) -> bool:
        """Whether a full batch is ready for one more waiter, beyond the demand of all parked
        waiters of the queue. The first waiter of a stream needs none: it waits for items.
        """
        wanted = self._dispatcher.wanted + self._items_max
        return not parked or self._dispatcher.ready(most=wanted) >= wanted

    def _post(self) -> bool:
        """Posts a waiter for one batch, if the credit allows it."""
        if self._error is not None:
            return False
        items = min(self._items_max, self._credit_items)
        # Twice the average, because the next items may be larger.
        wanted = min(self._bytes_max, 2 * items * self._item_bytes or self._bytes_max)
        size = wanted if self._credit_bytes is None else min(wanted, self._credit_bytes)
        if items <= 0 or size <= 0 or size < self._bytes_needed:
            return False
        if (items < self._items_max or size < wanted) and (self._posted or self._ready):
            return False
        if not self._held.has_room():
            return False
        self._credit_items -= items
        if self._credit_bytes is not None:
            self._credit_bytes -= size
        waiter = Waiter(
            client_id=self._call.client_id,
            request_id=self._lease_name(),
            rename=self._lease_name,
            items_max=items,
            bytes_max=size,
            lease_timeout_ms=self._call.lease_timeout_ms,
            answer=self._answered,
            on_asked=self._pump,
            account=self._account,
        )
        self._posted[waiter] = None
        self._dispatcher.join(waiter)
        return True

    def _lease_name(self) -> str:
        call = self._call
        if call.consumer_id:
            return self._router.stream_lease_name(call.consumer_id, call.stream_number)
        return self._router.lease_name()

    def _answered(self, waiter: Waiter) -> None:
        del self._posted[waiter]
        items = size = 0
        for grant in waiter.grants:
            its_items, its_size = _size(grant)
            items += its_items
            size += its_size
        self._refund(waiter.items_max - items, waiter.bytes_max - size)
        if waiter.grants:
            self._bytes_needed = 0
            self._item_bytes = -(-size // items)
            for grant in waiter.grants:
                self._line_up(grant)
            self._watch_ready()
        elif waiter.error is not None:
            self._lease_failed(waiter, waiter.error)
        else:
            # The wait of a stream has no time limit: the dispatcher has been closed.
            self._error = stopping_error()
        self._notify()
        self._pump()

    def _watch_ready(self) -> None:
        """Sets the timer for the time when the first ready grant becomes stale."""
        if not self._ready:
            return
        stale_s = min(grant.expires_s - grant.length_s / 2 for grant in self._ready)
        if self._stale is not None:
            if self._stale_s <= stale_s:
                return
            self._stale.cancel()
        self._stale_s = stale_s
        delay_s = max(0.0, stale_s - self._clock.monotonic_s())
        self._stale = self._loop.call_later(delay_s, self._release_stale)

    def _release_stale(self) -> None:
        """Releases grants that the reader does not take, and withdraws waiters without need."""
        self._stale = None
        now_s = self._clock.monotonic_s()
        if all(grant.expires_s - now_s > grant.length_s / 2 for grant in self._ready):
            self._watch_ready()
            return
        self._ahead = self._next is not None
        for grant in self._ready:
            self._give_back(grant)
        self._dispatcher.release(list(self._ready))
        self._ready.clear()
        for waiter in [waiter for waiter in self._posted if not waiter.asked]:
            del self._posted[waiter]
            self._dispatcher.abandon(waiter)
            self._refund(waiter.items_max, waiter.bytes_max)
        self._pump()

    def _lease_failed(self, waiter: Waiter, error: QueratorError) -> None:
        if error.code is ErrorCode.OUTCOME_UNKNOWN:
            # The dispatcher gives back what was granted. The stream asks again.
            return
        if error.code is ErrorCode.STORAGE_FULL:
            # The stream asks again after the dispatcher's pause: it outlives a full disk.
            return
        if error.code is ErrorCode.ITEM_TOO_LARGE and waiter.bytes_max < self._bytes_max:
            self._item_bytes = 0
            if self._credit_bytes is None or self._credit_bytes > waiter.bytes_max:
                return
            # The stream waits until the consumer grants more bytes.
            self._bytes_needed = waiter.bytes_max + 1
            return
        self._error = error

    def _notify(self) -> None:
        if self._next is not None and not self._next.done():
            self._next.set_result(None)

    # --- settling ----------------------------------------------------------------------------

    async def complete(self, call: CompleteCall) -> SettleReply:
        """`namespace` and `queue` may be empty; otherwise they must be the subscription's."""
        reply = await self._settling.settle(self._own(call))
        self._held.settled(reply)
        return reply

    async def retry(self, call: RetryCall) -> SettleReply:
        """As `complete`."""
        reply = await self._settling.settle(self._own(call))
        self._held.settled(reply)
        return reply

    async def extend(self, call: ExtendCall) -> ExtendReply:
        """As `complete`. Without leases and client: all leases of the subscription's client."""
        call = self._own(call)
        if not call.lease_ids and not call.client_id:
            call = msgspec.structs.replace(call, client_id=self._call.client_id)
        asked_s = self._clock.monotonic_s()
        reply = await self._settling.extend(call)
        self._held.extended(reply, asked_s)
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

    # --- the end -----------------------------------------------------------------------------

    def end(self, error: QueratorError) -> None:
        """Stops deliveries: releases the ready grants; `next` then raises `error`."""
        if self._error is None:
            self._error = error
        self._withdraw()
        self._notify()

    def _withdraw(self) -> None:
        """Withdraws the waiters, and releases their grants and the ready ones."""
        for waiter in list(self._posted):
            self._dispatcher.abandon(waiter)
        self._posted.clear()
        if self._stale is not None:
            self._stale.cancel()
            self._stale = None
        self._dispatcher.release(list(self._ready))
        self._ready.clear()

    async def close(self, *, polite: bool) -> None:
        """Ends the stream. Leases that were not delivered are always released. Delivered leases
        that are not settled are released if `polite` or if the subscription says so; otherwise they
        lapse. Closing again does nothing.
        """
        if self._closed:
            return
        self._closed = True
        self.end(QueratorError(ErrorCode.UNAVAILABLE, "the stream is closed"))
        self._held.close(release=polite or self._call.release_on_disconnect)
        self._left(self)
        if self._former is not None:
            await self._former.close()


def _size(grant: Grant) -> tuple[int, int]:
    """Items and bytes."""
    items = size = 0
    for segment in grant.segments:
        items += segment.count
        size += segment.bytes
    return items, size


def _is_before(one: Grant, other: Grant) -> bool:
    """Whether the same partition has granted both, `one` before `other`."""
    return one.route is other.route and one.lease < other.lease
