"""The consumer's side of a lease stream: deliveries, settles, leases of earlier streams.

A consumer that stops ends the deliveries of its stream before it releases its items. Otherwise the
node would lease them to it again, because its credit is free then.

Longer than 500 lines: one object keeps what is leased, settled and unanswered on a stream, and each
of its events changes several of these.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import TypeVar

from google.protobuf.duration_pb2 import Duration

from querator.client.consuming.credit import CreditAccount
from querator.client.consuming.leases import (
    LeasedBatch,
    LeasedItem,
    LeaseState,
    masks_left,
    retrieve_exception,
)
from querator.client.consuming.settling import (
    AGAIN_SECONDS,
    NO_RESULTS,
    SettleFrame,
    Settler,
    unanswered,
)
from querator.client.consuming.subscribing import Subscribing
from querator.client.consuming.verbs import RELEASE, Verb
from querator.client.errors import ErrorCode, RequestError, copy_error, make_error
from querator.client.results import lease_lost
from querator.client.transport.nodes import Nodes
from querator.client.transport.rpc_errors import from_frame, is_of_the_node
from querator.client.transport.stream import Stream
from querator.client.transport.wait_queue import WaitQueue
from querator.client.values import ExtendOutcome
from querator.model import limits
from querator.v1 import queue_service_pb2

# Several rounds within the shortest lease (LEASE_TIMEOUT_MS_MIN, 1 s).
UPKEEP_SECONDS = 0.25
# A lease that ended this long ago by this process's clock is forgotten.
LAPSED_SECONDS = 5.0

T = TypeVar("T")

Extend = Callable[
    [list[str], timedelta | None, Sequence[queue_service_pb2.ItemCheckpoint]],
    Awaitable[list[ExtendOutcome]],
]
"""Extends leases, and saves checkpoints under them: (lease ids, timeout, checkpoints)."""


class LeaseTalker:
    """`stream.Talker` for leases, and `leases.Holder` for the delivered batches."""

    def __init__(
        self,
        nodes: Nodes,
        *,
        namespace: str,
        queue: str,
        client_id: str,
        extend: Extend,
        prefetch_items: int,
        prefetch_bytes: int,
        batch_items: int,
        batch_bytes: int,
        lease_timeout: Duration | None,
        auto_extend: bool,
        release_on_disconnect: bool,
    ) -> None:
        self._nodes = nodes
        self._namespace, self._queue = namespace, queue
        self._extend = extend
        self._credit = CreditAccount(
            prefetch_items=prefetch_items, prefetch_bytes=prefetch_bytes, batch_items=batch_items
        )
        self._auto_extend = auto_extend
        self._release_on_disconnect = release_on_disconnect
        self._subscribing = Subscribing(
            queue_service_pb2.Subscribe(
                namespace=namespace,
                queue=queue,
                client_id=client_id,
                lease_timeout=lease_timeout,
                max_items=batch_items,
                max_bytes=batch_bytes,
                auto_extend=auto_extend,
                release_on_disconnect=release_on_disconnect,
            )
        )
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time
        self._stream = Stream(nodes, "LeaseStream", self)
        self._settler = Settler(self._send, lambda: bool(self._frames))
        self._upkeep: asyncio.Task[None] | None = None
        self._ready: deque[LeasedBatch] = deque()
        self.parts: deque[LeasedItem] = deque()  # The run handed out item by item.
        self._came = 0.0
        self._batches: set[LeasedBatch] = set()
        self._streams = 0
        self._first_frame: bytes | None = None
        self._frames: dict[int, SettleFrame] = {}
        self._unsent: deque[SettleFrame] = deque()
        self._next_number = 1
        self._readers = WaitQueue()
        self._quiet: list[asyncio.Future[None]] = []
        self._trying_since: float | None = None
        self._end: Exception | None = None
        self.stopping = False
        self._closing = False

    # Calls of the consumer.

    def start(self) -> None:
        self._stream.start()
        # Owned: `close` ends and awaits it, `_upkeep_done` takes its exception.
        self._upkeep = self._loop.create_task(self._keep_up())
        self._upkeep.add_done_callback(self._upkeep_done)

    @property
    def held(self) -> int:
        return self._credit.held

    def stop(self) -> None:
        self.stopping = True
        self._readers.wake_all()
        self._stream.wake()

    def hold(self, items: int, batch_items: int) -> None:
        """Holds up to `items` items from here on."""
        self._credit.hold(items, batch_items)
        self._stream.wake()

    def give_back_waiting(self) -> None:
        """Releases the delivered items that are not handed out."""
        waiting = masks_left(self.parts, self._ready)
        self.parts.clear()
        self._ready.clear()
        for batch, mask in waiting.items():
            self.give_back(batch, mask)

    async def next_batch(self, idle_seconds: float | None) -> LeasedBatch | None:
        """The next run of items; None after `stop`, or when nothing came for `idle_seconds`."""
        return await self._next(self._pick_batch, idle_seconds)

    async def next_item(self, idle_seconds: float | None) -> LeasedItem | None:
        """As `next_batch`, but the next item of a run that several tasks share."""
        return await self._next(self._pick_item, idle_seconds)

    async def _next(self, pick: Callable[[], T | None], idle_seconds: float | None) -> T | None:
        if self._upkeep is None:
            raise RuntimeError(
                "a consumer is used in its block: async with client.consumer(...), or with, for a "
                "SyncClient"
            )
        began = self._loop.time()
        while not self.stopping:
            picked = pick()
            if picked is not None:
                return picked
            if self._end is not None:
                raise self._end_error()
            until = None
            if idle_seconds is not None:
                # A delivery to another task counts as well: the queue is not idle.
                until = max(began, self._came) + idle_seconds
                if until <= self._loop.time():
                    return None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await self._wait_for_delivery()
        return None

    def _pick_batch(self) -> LeasedBatch | None:
        while self._ready:
            batch = self._ready.popleft()
            if self.still_leased(batch):
                return batch
            self.give_back(batch, batch.left)
        return None

    def _pick_item(self) -> LeasedItem | None:
        while True:
            while self.parts:
                item = self.parts.popleft()
                if self.still_leased(item.batch):
                    return item
                self.give_back(item.batch, 1 << item.index)
            batch = self._pick_batch()
            if batch is None:
                return None
            self.parts.extend(batch)

    async def _wait_for_delivery(self) -> None:
        if self._worth_granting(reader_comes=True):
            self._stream.wake()
        await self._readers.wait()

    def still_leased(self, batch: LeasedBatch) -> bool:
        """Whether the batch may be handed out: its lease has not ended, as far as known here."""
        lease = batch.lease
        return lease.kept or lease.ends > self._loop.time()

    def give_back(self, batch: LeasedBatch, mask: int) -> None:
        """Releases items that are not handed out. Their lease has ended by this process's clock,
        but the server's clock decides, and the server might extend the unused lease.
        """
        if batch.counted and self._end is None:
            batch.settle(RELEASE, mask).add_done_callback(retrieve_exception)

    async def flush(self, *, patience: float | None) -> None:
        self._settler.flush()
        if self._frames:
            quiet: asyncio.Future[None] = self._loop.create_future()
            self._quiet.append(quiet)
            await asyncio.wait((quiet,), timeout=patience)

    async def close(self, *, patience: float) -> None:
        self.stop()
        self.parts.clear()
        self._closing = True
        if self._upkeep is not None:
            self._upkeep.cancel()
            await asyncio.gather(self._upkeep, return_exceptions=True)
        try:
            if self._end is None:
                self._release_earlier()
                await self.flush(patience=patience)
        finally:
            await self._stream.close(patience=patience if self._end is None else 0)
            self._finish(make_error(ErrorCode.UNAVAILABLE, "the consumer is closed"))

    def _release_earlier(self) -> None:
        """Gives back the items of earlier streams. The end of this stream does it for its own."""
        if self._release_on_disconnect:
            return
        for batch in list(self._batches):
            if batch.lease.stream != self._streams and batch.left:
                self.give_back(batch, batch.left)

    # `leases.Holder`.

    def settle(
        self, verb: Verb, batch: LeasedBatch, mask: int, results: Mapping[int, bytes] = NO_RESULTS
    ) -> "asyncio.Future[None]":
        if self._end is not None:
            failed: asyncio.Future[None] = self._loop.create_future()
            failed.set_exception(self._end_error())
            return failed
        if batch.counted:
            self._free(batch, mask.bit_count())
        return self._settler.settle(verb, batch, mask, results)

    def settled_elsewhere(self, batch: LeasedBatch, mask: int) -> None:
        if batch.counted:
            self._free(batch, mask.bit_count())

    def not_settled(self, batch: LeasedBatch, mask: int) -> None:
        if not batch.counted:
            return
        self._credit.held += mask.bit_count()
        if batch not in self._batches:
            self._batches.add(batch)
            self._credit.held_bytes += batch.size

    async def extend(
        self,
        lease: LeaseState,
        lease_timeout: timedelta | None,
        checkpoint: queue_service_pb2.ItemCheckpoint | None = None,
    ) -> None:
        outcomes = await self._extend(
            [lease.id], lease_timeout, () if checkpoint is None else (checkpoint,)
        )
        if not outcomes[0].remaining:
            lease.lose()
            raise lease_lost(lease.id)
        lease.extended(outcomes[0], now=self._loop.time())
        if outcomes[0].lost_checkpoints:
            raise lease_lost(lease.id)

    def _free(self, batch: LeasedBatch, items: int) -> None:
        """Subtracts items that are not held any more."""
        self._credit.held -= items
        if not batch.left:
            self._batches.discard(batch)
            self._credit.held_bytes -= batch.size
        if self._worth_granting():
            self._stream.wake()

    def _send(self, frame: SettleFrame) -> None:
        if self._end is not None:
            frame.fail(self._end_error())
            return
        frame.number = self._next_number
        frame.deadline = self._loop.time() + self._nodes.request_timeout
        self._next_number += 1
        self._frames[frame.number] = frame
        self._unsent.append(frame)
        self._stream.wake()

    # Calls of the stream (`stream.Talker`).

    def wanted(self) -> bool:
        return self._end is None

    async def next_address(self) -> str:
        return ""

    def opened(self) -> None:
        self._streams += 1
        self._credit.opened()
        if self._trying_since is None:
            self._trying_since = self._loop.time()
        held = {batch.lease.id for batch in self._batches}
        held.update(self._settler.lease_ids(), *map(SettleFrame.lease_ids, self._frames.values()))
        self._first_frame = self._subscribing.frame(self._streams, held)
        self._unsent = deque(self._frames.values())

    def next_frame(self) -> bytes | None:
        if self._first_frame is not None:
            frame, self._first_frame = self._first_frame, None
            return frame
        if self.stopping:
            # Before the releases: items that are free again are not leased to this consumer.
            end = self._credit.withdraw(self._next_number)
            if end is not None:
                # A node that does not know the frame refuses this number, which has no effect.
                self._next_number += 1
                return end
        if self._unsent:
            return self._unsent.popleft().on_stream(self._namespace, self._queue)
        if self._worth_granting() and not self.stopping:
            return self._credit.grant()
        return None

    def _worth_granting(self, *, reader_comes: bool = False) -> bool:
        waits = bool(reader_comes or self._readers) and not self._ready
        return self._credit.is_worth_granting(reader_waits=waits)

    def received(self, data: bytes) -> None:
        self._trying_since = None
        answer = queue_service_pb2.LeaseStreamResponse.FromString(data)
        kind = answer.WhichOneof("frame")
        if kind == "leased":
            self._nodes.waits.executed(self)
            self._delivered(answer.leased)
        elif kind == "completed":
            self._on_answer(answer.request_number, answer.completed)
        elif kind == "retried":
            self._on_answer(answer.request_number, answer.retried)
        elif kind == "error":
            self._refused(answer.request_number, from_frame(answer.error))

    def _delivered(self, leased: queue_service_pb2.LeaseResponse) -> None:
        now = self._loop.time()
        leases: dict[str, LeaseState] = {}
        for message in leased.batches:
            lease = leases.get(message.lease_id)
            if lease is None:
                lease = LeaseState(message, now=now, kept=self._auto_extend, stream=self._streams)
                leases[lease.id] = lease
            batch = LeasedBatch(message, self, lease)
            self._credit.delivered(batch.count, batch.size)
            self._batches.add(batch)
            self._ready.append(batch)
        self._came = now
        # One task for each item; a task that reads whole runs may then find none.
        self._readers.wake(sum(len(message.items) for message in leased.batches))
        if self.stopping and not self._closing:
            # For credit that was granted before the stop.
            self.give_back_waiting()

    def _on_answer(
        self,
        number: int,
        response: queue_service_pb2.CompleteResponse | queue_service_pb2.RetryResponse,
    ) -> None:
        frame = self._frames.get(number)
        if frame is None:
            return
        reason = frame.resolve(response.outcomes)
        if reason is not None and reason.retriable and self._loop.time() < frame.deadline:
            if is_of_the_node(reason):
                self._stream.leave()
            frame.refusal = reason
            self._loop.call_later(AGAIN_SECONDS, self._send_again, number, self._streams)
            return
        del self._frames[number]
        if reason is None:
            self._nodes.waits.executed(frame)
        else:
            self._fail(frame, reason)
        self._check_quiet()

    def _check_quiet(self) -> None:
        if not self._frames:
            self._settler.flush()
        if not self._frames:
            quiet, self._quiet = self._quiet, []
            for future in quiet:
                if not future.done():
                    future.set_result(None)

    def _refused(self, number: int, error: RequestError) -> None:
        frame = self._frames.get(number)
        self._nodes.waits.noticed(error, frame)
        if number == 0:
            # The subscription is refused, and a repeat would be refused as well.
            if not error.retriable:
                self._finish(error)
            return
        if frame is None:
            return
        if error.retriable and self._loop.time() < frame.deadline:
            if is_of_the_node(error):
                self._stream.leave()
            frame.refusal = error
            delay = max(AGAIN_SECONDS, (error.retry_delay_ms or 0) / 1000)
            self._loop.call_later(delay, self._send_again, number, self._streams)
            return
        del self._frames[number]
        self._fail(frame, error)
        self._check_quiet()

    def _fail(self, frame: SettleFrame, error: RequestError) -> None:
        self._nodes.waits.ended(frame)
        frame.fail(error)

    def _send_again(self, number: int, stream: int) -> None:
        frame = self._frames.get(number)
        if frame is not None and stream == self._streams:
            self._unsent.append(frame)
            self._stream.wake()

    def on_broken(self, error: RequestError) -> bool:
        waited = self._loop.time() - (self._trying_since or self._loop.time())
        if not error.retriable or self._nodes.hopeless(error, waited):
            self._finish(error)
            return False
        for batch in list(self._batches):
            if self._release_on_disconnect:
                self._forget(batch)
            else:
                batch.lease.left_alone(self._loop.time())
        return self._end is None and not self._closing

    def stopped(self, error: Exception | None) -> None:
        if error is not None or not self._closing:
            self._finish(error or make_error(ErrorCode.UNAVAILABLE, "the client is closed"))

    def _finish(self, error: Exception) -> None:
        """Ends sending; fails the waiting futures and wakes the waiting tasks."""
        if self._end is None:
            self._end = error
        self._settler.flush()
        frames, self._frames = self._frames, {}
        for frame in frames.values():
            self._fail(frame, unanswered() if frame.maybe_executed else self._end_error())
        self._check_quiet()
        self._readers.wake_all()

    def _end_error(self) -> RequestError:
        if isinstance(self._end, RequestError):
            return copy_error(self._end)
        return make_error(ErrorCode.INTERNAL, f"the client failed: {self._end!r}")

    # Upkeep: frames past their deadline, lapsed leases, leases of earlier streams.

    async def _keep_up(self) -> None:
        while True:
            await asyncio.sleep(UPKEEP_SECONDS)
            now = self._loop.time()
            self._give_up_frames(now)
            self._forget_lapsed(now)
            await self._extend_earlier(now)

    def _upkeep_done(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled():
            error = task.exception()
            if isinstance(error, Exception):
                self._finish(error)

    def _give_up_frames(self, now: float) -> None:
        for number, frame in list(self._frames.items()):
            if frame.deadline < now:
                del self._frames[number]
                self._fail(frame, frame.refusal or unanswered())
        self._check_quiet()

    def _forget_lapsed(self, now: float) -> None:
        for batch in list(self._batches):
            lease = batch.lease
            if not lease.kept and lease.ends + LAPSED_SECONDS < now:
                self._forget(batch)

    def _forget(self, batch: LeasedBatch) -> None:
        """The items may belong to another consumer: they do not count here any more."""
        batch.counted = False
        batch.lease.lose()
        self._batches.discard(batch)
        self._credit.held -= batch.left.bit_count()
        self._credit.held_bytes -= batch.size
        self._stream.wake()

    async def _extend_earlier(self, now: float) -> None:
        """Extends the leases of earlier streams of which a third of the time has passed."""
        if not self._auto_extend or self._release_on_disconnect:
            return
        due = {
            batch.lease.id: batch.lease
            for batch in self._batches
            if not batch.lease.kept and batch.lease.ends - now < batch.lease.timeout * 2 / 3
        }
        leases = list(due.values())[: limits.REQUEST_LEASES_MAX]
        if not leases:
            return
        timeout = timedelta(seconds=max(lease.timeout for lease in leases))
        try:
            outcomes = await self._extend([lease.id for lease in leases], timeout, ())
        except RequestError:
            # No node answers at the moment: the next round tries again, while there is time.
            return
        for lease, outcome in zip(leases, outcomes, strict=True):
            if outcome.remaining:
                lease.extended(outcome, now=self._loop.time())
            else:
                lease.lose()
