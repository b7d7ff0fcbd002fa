"""A lane of a producer: gathers items, sends them as requests on its own stream, and repeats each
request until it has a final answer.

While no request is unanswered, a batch leaves at the end of the event loop's round: a lone item
never waits. Otherwise a batch leaves when it is full, when the linger has passed, or when all
requests are answered. So batches grow under load.

`Window` keeps the requests until they are answered; `Stream` sends them.
"""

import asyncio

from google.protobuf.message import DecodeError

from querator.client.errors import (
    ConnectionFailed,
    ErrorCode,
    RequestError,
    copy_error,
    make_error,
)
from querator.client.items import AnyItem, encode_items, produce_frame
from querator.client.producing.leader_affinity import LeaderAffinity
from querator.client.producing.sinks import ITEM_FIELD, Gathered
from querator.client.producing.window import OutcomeReceiver, PendingProduce, Window
from querator.client.results import produced_runs
from querator.client.transport.attempts import is_malformed
from querator.client.transport.backoff import Backoff
from querator.client.transport.nodes import Nodes
from querator.client.transport.rpc_errors import from_frame, is_of_the_node
from querator.client.transport.stream import Stream
from querator.client.transport.wait_queue import WaitQueue
from querator.client.values import ProducedItem
from querator.v1 import queue_service_pb2

LINGER_SECONDS_MIN = 0.002
LINGER_SECONDS_MAX = 0.01
"""Bounds of a linger that is derived from the time of answers."""
CLOSE_SECONDS = 5.0
PATIENCE_SECONDS_MIN = 1.0
PATIENCE_ANSWERS = 4
"""A node that is silent for this multiple of the time of answers is left for another one, if there
is one. gRPC notices a node that hangs, or a network partition, much later.
"""


class Lane:
    """One window and one stream. The owner has checked the options. `linger` is in seconds; None:
    about as long as answers take.
    """

    def __init__(
        self,
        nodes: Nodes,
        *,
        namespace: str,
        queue: str,
        batch_items: int,
        batch_bytes: int,
        linger: float | None,
        ordered: bool,
        max_in_flight: int,
    ) -> None:
        self._nodes = nodes
        self._namespace = namespace
        self._queue = queue
        self._batch_items = batch_items
        self._batch_bytes = batch_bytes
        self._linger = linger
        self._answer_seconds = 0.0
        """Smoothed time of answers, in seconds."""
        self._max_in_flight = max_in_flight
        self._loop = asyncio.get_running_loop()
        self._window = Window(ordered, self._loop.time)
        self._stream = Stream(nodes, "ProduceStream", self)
        self._open = Gathered()
        self._next_number = 1
        self._room = WaitQueue()
        self._idle: list[tuple[int, asyncio.Future[None]]] = []
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._resume_timer: asyncio.TimerHandle | None = None
        self._patience_timer: asyncio.TimerHandle | None = None
        self._heard = 0.0
        """When the last frame came, or when the first unanswered request was sent."""
        self._backoff = Backoff(first=0.01)
        self._trying_since: float | None = None
        self._home = LeaderAffinity(nodes, namespace, queue)
        self._end: Exception | None = None
        self._started = False

    def start(self) -> None:
        self._started = True
        self._stream.start()

    async def close(self) -> None:
        """Ends the stream. Unanswered requests fail, with `OutcomeUnknown` if they were sent."""
        waiting = CLOSE_SECONDS if not len(self._window) else 0.0
        await self._stream.close(patience=waiting)
        self._finish(make_error(ErrorCode.UNAVAILABLE, "the producer is closed"))

    @property
    def address(self) -> str:
        """Address of the stream's node; empty while there is none."""
        return self._stream.address

    def push(self) -> int:
        """Sends the gathered batch as soon as the window allows. Returns the number of the last
        request.
        """
        # The open batch, if there is one, gets the next number.
        last = self._next_number - (0 if self._open.futures else 1)
        self._open.due = True
        self._seal_if_due()
        return last

    async def wait_answered(self, last: int) -> None:
        """Returns when all requests up to this number are answered."""
        if not self._answered_upto(last):
            idle: asyncio.Future[None] = self._loop.create_future()
            self._idle.append((last, idle))
            await idle

    # Gathering.

    @property
    def has_room(self) -> bool:
        """Whether the open batch accepts an item at once."""
        return not self._room and not self._is_full

    @property
    def _is_full(self) -> bool:
        return len(self._open.futures) >= self._batch_items or self._open.size >= self._batch_bytes

    @property
    def gathers(self) -> bool:
        """Whether the open batch has items."""
        return bool(self._open.futures)

    def add(self, item: AnyItem) -> "asyncio.Future[ProducedItem]":
        """Puts the item into the open batch, which must have space."""
        self.check_usable()
        encoded = encode_items((item,))
        batch = self._open
        batch.pieces.append(b"".join(encoded.pieces))
        batch.size += encoded.size
        future: asyncio.Future[ProducedItem] = self._loop.create_future()
        batch.futures.append(future)
        if self._is_full:
            batch.due = True
            self._seal_if_due()
        elif batch.timer is None:
            batch.timer = self._loop.call_soon(self._round_over, batch)
        return future

    async def join(self, item: AnyItem) -> "asyncio.Future[ProducedItem]":
        """As `add`, but first waits until the open batch has space."""
        again = False
        while self._is_full or not (again or not self._room):
            await self._room.wait(first=again)
            again = True
        return self.add(item)

    def _round_over(self, batch: Gathered) -> None:
        if batch is not self._open:
            return
        if self._linger == 0 or not len(self._window):
            self._linger_over(batch)
        else:
            linger = self._linger
            if linger is None:
                linger = min(max(self._answer_seconds, LINGER_SECONDS_MIN), LINGER_SECONDS_MAX)
            batch.timer = self._loop.call_later(linger, self._linger_over, batch)

    def _linger_over(self, batch: Gathered) -> None:
        if batch is self._open and batch.futures:
            batch.due = True
            self._seal_if_due()

    def _seal_if_due(self) -> None:
        batch = self._open
        if not batch.due or not batch.futures or len(self._window) >= self._max_in_flight:
            return
        if batch.timer is not None:
            batch.timer.cancel()
        self._open = Gathered()
        self.send(batch.pieces, batch.size, len(batch.futures), batch)
        self._room.wake(self._batch_items)

    # The window.

    async def slot(self) -> None:
        """Waits for a place in the window, behind all items given before."""
        again = False
        while True:
            self.check_usable()
            if self._open.futures:
                self._open.due = True
                self._seal_if_due()
            if (
                not self._open.futures
                and len(self._window) < self._max_in_flight
                and (again or not self._room)
            ):
                return
            await self._room.wait(first=again)
            again = True

    def send(self, pieces: list[bytes], size: int, count: int, sink: OutcomeReceiver) -> None:
        """Sends encoded items as one request. The caller has awaited `slot`."""
        request = PendingProduce(
            number=self._next_number,
            pieces=pieces,
            size=size,
            count=count,
            deadline=self._loop.time() + self._nodes.request_timeout,
            sink=sink,
        )
        self._next_number += 1
        self._window.add(request)
        if self._deadline_timer is None:
            self._deadline_timer = self._loop.call_at(request.deadline, self._deadline)
        self._stream.wake()

    def _settled(self) -> None:
        """A request has left the window."""
        if not len(self._window):
            self._nodes.waits.ended(self)
        if self._open.futures and (self._open.due or not len(self._window)):
            self._open.due = True
            self._seal_if_due()
        self._room.wake(self._batch_items if not self._open.due else 1)
        waiting, self._idle = self._idle, []
        for last, idle in waiting:
            if not self._answered_upto(last):
                self._idle.append((last, idle))
            elif not idle.done():
                idle.set_result(None)

    def _answered_upto(self, number: int) -> bool:
        oldest = next(iter(self._window), None)
        return number < (self._next_number if oldest is None else oldest.number)

    def _fail(self, request: PendingProduce, error: RequestError) -> None:
        self._nodes.waits.ended(request)
        request.sink.failed(error)

    def _deadline(self) -> None:
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
        for request, error in self._window.expired(self._loop.time()):
            self._fail(request, error or self._window.break_reason or _too_late(self._nodes))
            # The next request has not been refused yet, and need not wait as long.
            self._backoff.reset()
            if self._resume_timer is not None:
                self._resume_timer.cancel()
                self._resume_timer = None
            self._settled()
        following = self._window.next_expiry()
        self._deadline_timer = (
            None if following is None else self._loop.call_at(following, self._deadline)
        )
        self._resume_when_quiet()

    def _patience(self) -> float:
        return max(PATIENCE_SECONDS_MIN, PATIENCE_ANSWERS * self._answer_seconds)

    def _look_at_node(self) -> None:
        """Leaves the node if it has been silent for too long while requests are unanswered."""
        self._patience_timer = None
        if self._window.quiet:
            return
        due = self._heard + self._patience()
        if self._loop.time() >= due:
            self._heard = self._loop.time()
            self._stream.leave(silent=True)
            due = self._heard + self._patience()
        self._patience_timer = self._loop.call_at(due, self._look_at_node)

    def _follow(self, leader: str) -> None:
        """An answer reports the leader of the partition. The stream moves there when all sent
        requests are answered.
        """
        if self._window.ordered and self._home.follows(leader, now_at=self._stream.address):
            self._window.pause()

    def _resume_when_quiet(self) -> None:
        if self._home.moving and self._window.quiet:
            self._stream.move()
            return
        if self._window.paused and self._window.quiet and self._resume_timer is None:
            delay = self._backoff.next(at_least_ms=self._window.retry_delay_ms)
            self._resume_timer = self._loop.call_later(delay, self._resume)

    def _resume(self) -> None:
        self._resume_timer = None
        if self._window.paused and self._window.quiet:
            self._requeue()
            self._stream.wake()

    def _requeue(self) -> None:
        for request, error in self._window.requeue():
            self._fail(request, error)
            self._settled()

    # Calls of the stream (`stream.Talker`).

    def wanted(self) -> bool:
        return len(self._window) > 0

    async def next_address(self) -> str:
        return await self._home.next_address(
            self._window.identity.id if self._window.ordered else b""
        )

    def opened(self) -> None:
        if self._trying_since is None:
            self._trying_since = self._loop.time()
        if self._home.arrived():
            self._requeue()

    def next_frame(self) -> bytes | None:
        waited_for = not self._window.quiet
        request = self._window.next_request()
        if request is None:
            self._resume_when_quiet()
            return None
        if not waited_for:
            self._heard = self._loop.time()
            if self._patience_timer is None:
                due = self._heard + self._patience()
                self._patience_timer = self._loop.call_at(due, self._look_at_node)
        return produce_frame(
            request.number,
            queue_service_pb2.ProduceRequest(
                namespace=self._namespace,
                queue=self._queue,
                producer_id=self._window.identity.id,
                sequence=request.sequence,
                ordered=self._window.ordered,
            ),
            seconds_left=request.deadline - self._loop.time(),
            pieces=request.pieces,
            size=request.size,
        )

    def received(self, frame: bytes) -> None:
        self._trying_since = None
        self._window.break_reason = None
        self._heard = self._loop.time()
        try:
            answer = queue_service_pb2.ProduceStreamResponse.FromString(frame)
        except DecodeError:
            raise make_error(ErrorCode.INTERNAL, "an answer is not a protobuf message") from None
        request = self._window.pop_answered(answer.request_number)
        if request is not None:
            if answer.HasField("produced"):
                self._backoff.reset()
                self._nodes.waits.ended(self)
                self._nodes.waits.executed(request)
                self._window.remove(request)
                given = request.deadline - self._nodes.request_timeout
                self._answer_seconds += (self._loop.time() - given - self._answer_seconds) / 8
                runs = produced_runs(answer.produced)
                request.sink.done(runs, answer.produced.durable)
                if answer.produced.leader_address:
                    self._follow(answer.produced.leader_address)
                self._settled()
            else:
                self._refused(request, from_frame(answer.error))
        self._resume_when_quiet()

    def _refused(self, request: PendingProduce, error: RequestError) -> None:
        if is_of_the_node(error) and self._nodes.leave(self._stream.address):
            self._home.leave()
        if self._drop_one(request, error) or self._window.refused(request, error):
            if error.retriable:
                self._nodes.waits.refused(request, error)
            if request.deadline <= self._loop.time():
                self._deadline()
            return
        self._nodes.waits.noticed(error)
        self._window.remove(request)
        if request.maybe_executed and not is_malformed(error):
            # The repeat is refused: the outcome of the attempt before stays unknown.
            request.reason = error
            error = self._window.unknown(request)
        self._fail(request, error)
        self._settled()

    def _drop_one(self, request: PendingProduce, error: RequestError) -> bool:
        """Fails one bad item of a gathered batch. The other items are sent again without it."""
        found = ITEM_FIELD.match(error.field)
        sink = request.sink
        if found is None or not isinstance(sink, Gathered) or len(sink.futures) < 2:
            return False
        index = int(found[1])
        if error.retriable or index >= len(sink.futures):
            return False
        error.field = error.field[found.end() :].lstrip(".")
        sink.fail_one(sink.futures.pop(index), error)
        request.size -= len(sink.pieces.pop(index))
        request.count -= 1
        self._window.pause()
        return True

    def on_broken(self, error: RequestError) -> bool:
        if len(self._window):
            self._nodes.waits.refused(self, error)
        self._home.arrived()
        self._window.broken()
        self._window.break_reason = error
        if self._resume_timer is not None:
            self._resume_timer.cancel()
            self._resume_timer = None
        waited = self._loop.time() - (self._trying_since or self._loop.time())
        if not error.retriable or self._nodes.hopeless(error, waited):
            self._fail_all(error)
        self._requeue()
        return True

    def stopped(self, error: Exception | None) -> None:
        self._window.broken()
        self._finish(error or make_error(ErrorCode.UNAVAILABLE, "the producer is closed"))

    def _fail_all(self, error: RequestError) -> None:
        for request in list(self._window):
            self._window.remove(request)
            unknown = request.maybe_executed and not isinstance(error, ConnectionFailed)
            self._fail(request, self._window.unknown(request) if unknown else error)
            self._settled()

    def _finish(self, error: Exception) -> None:
        """Ends sending; fails the waiting requests and wakes the waiting tasks."""
        if self._end is None:
            self._end = error
        self._nodes.waits.ended(self)
        reason = error if isinstance(error, RequestError) else _defect(error)
        timers = (self._deadline_timer, self._resume_timer, self._patience_timer, self._open.timer)
        for timer in timers:
            if timer is not None:
                timer.cancel()
        for request in list(self._window):
            self._window.remove(request)
            self._fail(request, self._window.unknown(request) if request.sequence else reason)
        self._open.failed(reason)
        self._open = Gathered()
        self._room.wake_all()
        for _, idle in self._idle:
            if not idle.done():
                idle.set_result(None)

    def check_usable(self) -> None:
        """Raises the error that has ended the lane, or RuntimeError if it was not started."""
        if self._end is not None:
            if isinstance(self._end, RequestError):
                raise copy_error(self._end)
            raise _defect(self._end) from self._end
        if not self._started:
            raise RuntimeError(
                "a producer is used in its block: async with client.producer(...), or with, for a "
                "SyncClient"
            )


def _too_late(nodes: Nodes) -> RequestError:
    return make_error(
        ErrorCode.DEADLINE_EXCEEDED,
        f"not sent within the request timeout of {nodes.request_timeout:g} s",
    )


def _defect(error: Exception) -> RequestError:
    return make_error(ErrorCode.INTERNAL, f"the client failed: {error!r}")
