"""Lease streams: deliveries against credit.

A stream leases only what its consumer has room for: within the credit it has granted, and at most
BATCHES_AHEAD_MAX batches ahead of the reader, so that one turn of a partition can lease several.
Credit is spent when a waiter is posted, and what was not granted comes back. Of each stream one
waiter is parked, and more while full batches are ready beside what all parked waiters of the queue
want: with more, a batch would be cut in pieces. For the same reason credit for less than a batch
waits while another batch is on its way. How many bytes a batch will have is judged by the last one.
When a batch that nobody takes has half of its time over, all that is ready is released, and nothing
is leased ahead until `next` is awaited again: the leases of a reader that has stopped reading must
not lapse, which would cost its items an attempt. What a partition has granted is delivered in its
order.
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
from querator.service.lease.waiter import Account, Grant, Waiter
from querator.service.repair.damage import Damage
from querator.service.routing.outcomes import stopping_error
from querator.service.routing.route import PartitionRoute
from querator.service.routing.router import Router
from querator.service.settle import SettleService

if TYPE_CHECKING:
    from querator.raft.clock import Clock
    from querator.storage.environment import Environment

_Call = TypeVar("_Call", CompleteCall, RetryCall, ExtendCall)

BATCHES_AHEAD_MAX = 8
"""Batches that are asked for or wait to be taken."""


class Subscription:
    """One lease stream. One task awaits `next`; every method may be called while it does."""

    def __init__(
        self,
        call: SubscribeCall,
        queue: Queue,
        *,
        settling: SettleService,
        desk: LeaseDispatcher,
        router: Router,
        environment: "Environment",
        cache: PayloadCache,
        damage: Damage,
        clock: "Clock",
        left: Callable[["Subscription"], None],
    ) -> None:
        """`left` is called once, when the stream has closed."""
        self.lease_timeout_ms = call.lease_timeout_ms or queue.settings.lease_timeout_ms
        self.durable = environment.durable
        self._call = call
        self._queue = queue
        self._settling = settling
        self._desk = desk
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
        """What an item of the last batch had on average; 0 when it is not known."""
        self._credit_bytes: int | None = 0
        """None: not bounded."""
        self._bytes_needed = 0
        """The next item is larger than the credit was that asked for it; 0 when it is not known."""
        self._account = Account()
        self._posted: dict[Waiter, None] = {}
        self._ready: deque[Grant] = deque()
        """Granted and not delivered; those of one partition in its order."""
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
        """Looks for batches that have been ready for too long; set while any is."""
        self._stale_s = 0.0
        self._ahead = True
        """Whether a batch is leased while `next` is not awaited."""
        self._next: asyncio.Future[None] | None = None
        self._error: QueratorError | None = None
        self._closed = False

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
        return asked + sum(_size(grant)[0] for grant in self._ready)

    async def next(self) -> LeaseReply:
        """The next delivery; it has at least one item. Raises what ended the stream: UNAVAILABLE
        when the node stops, QUEUE_DELETING, ITEM_TOO_LARGE for the subscription's `max_bytes`, or
        another error of a lease.

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

    def as_of_now(self, reply: LeaseReply) -> LeaseReply | None:
        """A delivery that has waited to be written: with what remains of its leases, and without
        those that have ended, which are given back; None: nothing is left.
        """
        batches = []
        for batch in reply.batches:
            remaining_s = self._held.remaining_s(batch.lease_id)
            if remaining_s > 0:
                left_ms = int(remaining_s * 1000)
                batches.append(msgspec.structs.replace(batch, remaining_ms=left_ms))
            else:
                self._held.give_back(batch.lease_id)
                self._refund(batch.loaded.count, len(batch.loaded.items))
        if len(batches) < len(reply.batches):
            self._pump()
        return LeaseReply(tuple(batches), reply.durable) if batches else None

    def _take(self) -> list[Grant]:
        """Takes from the head of what is ready as much as one delivery may have."""
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
        """Whether a waiter that is not answered yet has older items of the same partition."""
        return any(_is_before(other, grant) for waiter in self._posted for other in waiter.grants)

    def _line_up(self, grant: Grant) -> None:
        """Makes a grant ready, before younger ones of the same partition."""
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
            self._desk.release(grants)
            for grant in grants:
                self._give_back(grant)
            raise
        self._desk.release(loaded.late)
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
        """What was paid for a grant that is not delivered."""
        self._refund(*_size(grant))

    def _refund(self, items: int, size: int) -> None:
        self._credit_items += items
        if self._credit_bytes is not None:
            self._credit_bytes += size

    # --- demand ------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Posts waiters while there is credit and room, and something for one more."""
        if self._closed or self._error is not None:
            return
        batches_max = BATCHES_AHEAD_MAX if self._ahead else int(self._next is not None)
        room = batches_max - self._batches_ready() - len(self._posted)
        parked = sum(not waiter.asked for waiter in self._posted)
        while room > 0 and self._has_batch_for(parked) and self._post():
            room -= 1
            parked += 1

    def _batches_ready(self) -> int:
        """How many deliveries what is ready makes, about."""
        if not self._ready:
            return 0
        items, size = map(sum, zip(*map(_size, self._ready), strict=True))
        return max(-(-items // self._items_max), -(-size // self._bytes_max))

    def _has_batch_for(self, parked: int) -> bool:
        """Whether a full batch is ready for one more waiter than are parked, those of other streams
        among them. The first of a stream needs none, for it is the one that waits.
        """
        wanted = self._desk.wanted + self._items_max
        return not parked or self._desk.ready(most=wanted) >= wanted

    def _post(self) -> bool:
        """Posts a waiter for one batch, if the credit allows."""
        if self._error is not None:
            return False
        items = min(self._items_max, self._credit_items)
        # Twice the average, for the next items may be larger.
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
        self._desk.join(waiter)
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
            # A stream's wait has no end of its own: the desk has been closed.
            self._error = stopping_error()
        self._notify()
        self._pump()

    def _watch_ready(self) -> None:
        """Makes sure that what is ready is looked at when the first of it is stale."""
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
        """Gives back what nobody takes, and what is asked for without need."""
        self._stale = None
        now_s = self._clock.monotonic_s()
        if all(grant.expires_s - now_s > grant.length_s / 2 for grant in self._ready):
            self._watch_ready()
            return
        self._ahead = self._next is not None
        for grant in self._ready:
            self._give_back(grant)
        self._desk.release(list(self._ready))
        self._ready.clear()
        for waiter in [waiter for waiter in self._posted if not waiter.asked]:
            del self._posted[waiter]
            self._desk.abandon(waiter)
            self._refund(waiter.items_max, waiter.bytes_max)
        self._pump()

    def _lease_failed(self, waiter: Waiter, error: QueratorError) -> None:
        if error.code is ErrorCode.OUTCOME_UNKNOWN:
            # What was granted lapses, or goes back when this stream has broken; it asks again.
            return
        if error.code is ErrorCode.STORAGE_FULL:
            # It asks again after the desk's pause: a stream lives longer than a full disk.
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
        reply = await self._settling.settle(self._own(call))
        self._held.settled(reply)
        return reply

    async def retry(self, call: RetryCall) -> SettleReply:
        """As `complete`."""
        reply = await self._settling.settle(self._own(call))
        self._held.settled(reply)
        return reply

    async def extend(self, call: ExtendCall) -> ExtendReply:
        """As `complete`; without leases and client, all leases of the subscription's client."""
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
        """No more deliveries: `next` raises `error` once what is ready has been released."""
        if self._error is None:
            self._error = error
        for waiter in list(self._posted):
            self._desk.abandon(waiter)
        self._posted.clear()
        if self._stale is not None:
            self._stale.cancel()
            self._stale = None
        self._desk.release(list(self._ready))
        self._ready.clear()
        self._notify()

    async def close(self, *, polite: bool) -> None:
        """Ends the stream. What was leased and not delivered is released in any case; what was
        delivered and is not settled is released if `polite` or if the subscription says so, else it
        lapses. Closing again does nothing.
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
    """Whether a partition has granted both, and `one` first."""
    return one.route is other.route and one.lease < other.lease
