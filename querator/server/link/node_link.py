"""One link from this node to another: asks leave in order, answers return in any order.

    down ──dialed──► open ──broken, or the other node stops──► down, dialed again after a pause,
                                                      or as soon as the other node dials this one

When a link breaks, asks that were sent may have been executed (OUTCOME_UNKNOWN); asks that were not
sent certainly were not (UNAVAILABLE). While a frame is being sent, more asks gather for the next
one. With many unanswered asks a frame also waits a moment for more. So a busy link sends few large
frames.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from querator import telemetry
from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import GroupId, QueueId
from querator.model.limits import (
    FORWARDS_BYTES_WAITING_MAX,
    MIB,
    PROPOSAL_OVERHEAD_BYTES,
)
from querator.model.shares import Shares
from querator.raft.group import call_errors
from querator.raft.refusals import PeerRefused, RefusalLog
from querator.server.link import node_frames as frames
from querator.server.link.link_handshake import Step, dial
from querator.server.link.link_wire import Connect, Wire, WireBroken
from querator.service.routing.forwarder import Query
from querator.v1 import node_service_pb2

FRAME_BYTES = 1 * MIB
"""Limit of the asks in one frame together; a single ask may be larger."""
ASKS_WAITING_MAX = 16_384
GATHER_FROM = 16
GATHER_S = 0.002
"""With more than GATHER_FROM unanswered asks, a frame waits for this time, for more asks. Sending a
frame and reading it costs more CPU than the rest of a produce of one item, and the leader has the
asks before to work on meanwhile.
"""
_QUERIES = GroupId(-1)
"""Stand-in group for questions: they are small and have one share of the limits together."""
RETRY_S_MIN = 0.05
RETRY_S_MAX = 1.0

_log = telemetry.logger(__name__)


class _Waiting:
    """An ask that waits for its answer."""

    __slots__ = ("bytes", "future", "group", "query", "sent")

    def __init__(
        self, future: "asyncio.Future[Any]", group: GroupId, size: int, query: Query | None
    ) -> None:
        self.future = future
        self.group = group
        self.bytes = size
        self.query = query
        self.sent = False


class NodeLink:
    """The link to the node `name` at `address`. `own` makes this node's hello; `on_reach` is called
    when `worth_trying` changes, `on_offer` at each offer of the other node; `connect` makes the
    connection.
    """

    def __init__(
        self,
        name: str,
        address: str,
        *,
        key: bytes,
        connect: Connect,
        own: Callable[[str], frames.LinkHello],
        refusals: RefusalLog,
        on_reach: Callable[[str], None],
        on_offer: Callable[[str, GroupId, int], None],
    ) -> None:
        self.name = name
        self.address = address
        self.open = False
        self._key = key
        self._connect = connect
        self._own = own
        self._refusals = refusals
        self._on_reach = on_reach
        self._on_offer = on_offer
        self._loop = asyncio.get_running_loop()
        self._tried = False
        self._waiting: dict[int, _Waiting] = {}
        self._shares = self._no_shares()
        self._next_id = 1
        self._queue: deque[frames.Ask] = deque()
        self._wake = asyncio.Event()
        self._closing = False
        self._hurry = asyncio.Event()
        # Owned: `close` ends and awaits it.
        self._task = self._loop.create_task(self._keep_open())

    @staticmethod
    def _no_shares() -> Shares[GroupId]:
        return Shares(calls_max=ASKS_WAITING_MAX, bytes_max=FORWARDS_BYTES_WAITING_MAX)

    @property
    def worth_trying(self) -> bool:
        return self.open or not self._tried

    # --- asks --------------------------------------------------------------------------------

    def propose(self, group: GroupId, command: Any, attachment: bytes) -> "asyncio.Future[Any]":
        size = len(attachment) + PROPOSAL_OVERHEAD_BYTES
        future, id = self._expect(group, size, None)
        if id:
            self._queue.append(frames.propose(id, group, command, attachment))
            self._wake.set()
        return future

    def query(self, query: Query) -> "asyncio.Future[Any]":
        future, id = self._expect(_QUERIES, PROPOSAL_OVERHEAD_BYTES, query)
        if id:
            self._queue.append(frames.Question(id, query))
            self._wake.set()
        return future

    def demand(self, queue: QueueId, waiters: int, items: int) -> None:
        if self.worth_trying:
            self._queue.append(frames.Demand(queue, waiters, items))
            self._wake.set()

    def _expect(
        self, group: GroupId, size: int, query: Query | None
    ) -> tuple["asyncio.Future[Any]", int]:
        """A future, and the number of its answer; 0: the future has failed already."""
        future: asyncio.Future[Any] = self._loop.create_future()
        if not self.worth_trying:
            future.set_exception(self._unreachable())
            return future, 0
        excess = self._shares.try_add(group, size)
        if excess is not None:
            future.set_exception(call_errors.full(excess, group, f"wait for node {self.name}"))
            return future, 0
        id = self._next_id
        self._next_id += 1
        self._waiting[id] = _Waiting(future, group, size, query)
        future.add_done_callback(partial(self._forget, id))
        return future, id

    def _forget(self, id: int, _: "asyncio.Future[Any]") -> None:
        """The caller no longer waits. An ask that is not sent yet will not be sent."""
        waiting = self._waiting.pop(id, None)
        if waiting is not None:
            self._shares.remove(waiting.group, waiting.bytes)

    def _unreachable(self) -> QueratorError:
        message = f"node {self.name} cannot be reached at {self.address}; not executed"
        return QueratorError(ErrorCode.UNAVAILABLE, message)

    # --- life --------------------------------------------------------------------------------

    async def close(self) -> None:
        self._closing = True
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def hurry(self) -> None:
        """The other node has just been heard, so it is dialed without a pause."""
        self._hurry.set()

    async def _keep_open(self) -> None:
        pause_s = RETRY_S_MIN
        try:
            while True:
                self._hurry.clear()
                if await self._lived():
                    pause_s = RETRY_S_MIN
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._hurry.wait()
                pause_s = RETRY_S_MIN if self._hurry.is_set() else min(pause_s * 2, RETRY_S_MAX)
        finally:
            self._down()

    async def _lived(self) -> bool:
        """As `_live`; a defect ends only the connection, and the link is opened again."""
        try:
            return await self._live()
        except Exception:  # noqa: BLE001 - calls must not wait for a dead link
            _log.exception("links.failed", name=self.name, address=self.address)
            return False

    async def _live(self) -> bool:
        """One connection from opening to end. Returns whether the other node was reached."""
        reached = False
        async with self._connect(self.address) as wire:
            try:
                await self._shake_hands(wire)
                reached = True
                self._set_open(True)
                await self._converse(wire)
            except PeerRefused as refused:
                self._refusals.refused(
                    refused, address=self.address, name=self.name, now_s=self._loop.time()
                )
            except (WireBroken, TimeoutError) as error:
                _log.debug("links.broken", name=self.name, error=str(error))
            finally:
                self._down()
        return reached

    async def _shake_hands(self, wire: Wire) -> None:
        async def send(step: Step) -> None:
            await wire.write(node_service_pb2.LinkRequest(handshake=step))

        async def receive() -> Step:
            response = await wire.read()
            if response is None:
                raise TimeoutError(f"node {self.name} ended the link")
            return response.handshake

        await dial(self._key, self._own(self.name), send, receive)

    async def _converse(self, wire: Wire) -> None:
        async with asyncio.TaskGroup() as tasks:
            writer = tasks.create_task(self._write(wire))
            try:
                await self._read(wire)
            finally:
                writer.cancel()

    async def _read(self, wire: Wire) -> None:
        """Reads until the link ends."""
        try:
            while (response := await wire.read()) is not None:
                for answer in frames.decode_answers(response.answers):
                    self._take(answer)
        except WireBroken as error:
            _log.debug("links.broken", name=self.name, error=str(error))
        except frames.FrameError as error:
            _log.error("links.unreadable", name=self.name, error=str(error))

    async def _write(self, wire: Wire) -> None:
        try:
            while self.open:
                self._wake.clear()
                while asks := self._gather():
                    data = frames.encode_asks(asks)
                    await wire.write(node_service_pb2.LinkRequest(asks=data))
                await self._wake.wait()
                if len(self._waiting) > GATHER_FROM:
                    await asyncio.sleep(GATHER_S)
            await wire.done_writing()
        except WireBroken:
            # The reader logs why the link ended.
            return

    def _gather(self) -> list[frames.Ask]:
        """The asks of the next frame. They count as sent."""
        asks: list[frames.Ask] = []
        size = 0
        while self._queue and size < FRAME_BYTES:
            ask = self._queue.popleft()
            if not isinstance(ask, frames.Demand):
                waiting = self._waiting.get(ask.id)
                if waiting is None:
                    continue
                waiting.sent = True
                size += waiting.bytes
            asks.append(ask)
        return asks

    def _set_open(self, open: bool) -> None:
        before = self.worth_trying
        self._tried = True
        if self.open != open:
            self.open = open
            _log.info(
                "links.opened" if open else "links.closed", name=self.name, address=self.address
            )
        if before != self.worth_trying:
            self._on_reach(self.name)

    def _down(self) -> None:
        """The link has ended: each waiting ask fails with UNAVAILABLE or OUTCOME_UNKNOWN."""
        self._queue.clear()
        waiting, self._waiting = self._waiting, {}
        self._shares = self._no_shares()
        try:
            self._set_open(False)
        finally:
            for each in waiting.values():
                if each.future.done():
                    continue
                if each.sent:
                    message = f"the link to node {self.name} broke before the answer came"
                    each.future.set_exception(QueratorError(ErrorCode.OUTCOME_UNKNOWN, message))
                else:
                    each.future.set_exception(self._unreachable())

    # --- answers -----------------------------------------------------------------------------

    def _take(self, answer: frames.Answer) -> None:
        match answer:
            case frames.Offer():
                self._on_offer(self.name, answer.group, answer.items)
            case frames.Closing():
                # Nothing more is sent. Sent asks are still answered, possibly by refusals.
                self._set_open(False)
                self._refuse_unsent()
                self._wake.set()
            case _:
                self._on_answer(answer)

    def _refuse_unsent(self) -> None:
        self._queue.clear()
        for waiting in list(self._waiting.values()):
            if not waiting.sent and not waiting.future.done():
                waiting.future.set_exception(self._unreachable())

    def _on_answer(self, answer: frames.Result | frames.Reply | frames.ErrorFrame) -> None:
        waiting = self._waiting.get(answer.id)
        if waiting is None or waiting.future.done():
            return
        if isinstance(answer, frames.Result):
            waiting.future.set_result(frames.value_of(answer))
        elif isinstance(answer, frames.ErrorFrame):
            waiting.future.set_exception(frames.error_of(answer))
        else:
            assert waiting.query is not None
            waiting.future.set_result(frames.reply_of(answer, waiting.query))
