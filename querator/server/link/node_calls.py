"""NodeService: answers the asks of other nodes from this node alone.

    reader ──commands──► raft package ───► answers ──► writer
       └─────questions──► a task each ──────┘   ▲
                                     offers ────┘

Commands are proposed as they are read, so commands for one group keep their order. A node must
first prove that it knows the cluster's token (`link_handshake`).
"""

import asyncio
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from querator import telemetry
from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import GroupId
from querator.model.limits import MIB, PROPOSAL_OVERHEAD_BYTES
from querator.raft.refusals import Code, PeerRefused
from querator.server.calls.grpc_calls import DRAINING, refusal_of
from querator.server.calls.streams import read_frame
from querator.server.incoming import Messages
from querator.server.link import node_frames as frames
from querator.server.link.link_handshake import Step, accept
from querator.server.link.link_wire import Accepted
from querator.service.exchange.node_exchange import NodeExchange
from querator.v1 import node_service_pb2

if TYPE_CHECKING:
    from querator.server.link.forwarding import Forwarding

FRAME_BYTES = 1 * MIB
"""Limit of the answers in one frame together; a single answer may be larger."""

_METHOD = "Link"
_log = telemetry.logger(__name__)


class NodeCalls:
    """One link from another node; see `streams.LiveStream`."""

    def __init__(
        self,
        context: Accepted,
        request_id: str,
        exchange: NodeExchange,
        forwarding: "Forwarding",
        messages: Messages,
    ) -> None:
        self._context = context
        self._request_id = request_id
        self._exchange = exchange
        self._forwarding = forwarding
        self._messages = messages
        self._loop = asyncio.get_running_loop()
        self._node = ""
        self._answers: deque[frames.Answer] = deque()
        self._asked = 0
        self._wake = asyncio.Event()
        self._draining = False
        self._read_all = False

    def drain(self) -> None:
        """Announces that no more asks are accepted. Accepted asks are still answered."""
        if not self._draining:
            self._draining = True
            self._say(frames.Closing())

    async def run(self) -> QueratorError | None:
        try:
            self._node = (
                await accept(self._forwarding.key, self._send, self._receive, self._judge)
            ).name
        except PeerRefused as refused:
            self._forwarding.refusals.refused(
                refused, address=self._context.peer(), name="", now_s=self._loop.time()
            )
            return QueratorError(ErrorCode.INVALID_ARGUMENT, refused.reason)
        except TimeoutError:
            return QueratorError(ErrorCode.DEADLINE_EXCEEDED, "no handshake in time")
        self._forwarding.on_link_opened(self._node)
        push = self._push
        self._exchange.linked(self._node, push)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._write())
                ending = await self._read(tasks)
                self._read_all = True
                self._wake.set()
        finally:
            self._exchange.unlinked(self._node, push)
        return ending or (DRAINING if self._draining else None)

    # --- the handshake -----------------------------------------------------------------------

    async def _send(self, step: Step) -> None:
        await self._context.write(node_service_pb2.LinkResponse(handshake=step).SerializeToString())

    async def _receive(self) -> Step:
        data = await read_frame(self._context, self._messages)
        if data is None:
            raise PeerRefused(Code.CLOSED, "it ended the link", by_peer=True)
        return _request(data).handshake

    def _judge(self, theirs: frames.LinkHello) -> frames.LinkHello:
        own = self._forwarding.hello(theirs.name)
        if not own.cluster_id or theirs.cluster_id != own.cluster_id:
            raise PeerRefused(
                Code.CLUSTER, f"it belongs to cluster {theirs.cluster_id or '(none)'}"
            )
        if theirs.to != own.name:
            raise PeerRefused(Code.WRONG_NODE, f"it looks for node {theirs.to}; this is {own.name}")
        if theirs.name == own.name:
            raise PeerRefused(Code.OWN_NAME, f"it has the name of this node, {own.name}")
        return own

    # --- asks ----------------------------------------------------------------------------------

    async def _read(self, tasks: asyncio.TaskGroup) -> QueratorError | None:
        """Reads until the other node half-closes. Returns an error if a frame cannot be read."""
        try:
            while (data := await read_frame(self._context, self._messages)) is not None:
                for ask in frames.decode_asks(_request(data).asks):
                    self._take(ask, tasks)
        except frames.FrameError as error:
            _log.error("links.unreadable", name=self._node, error=str(error))
            return QueratorError(ErrorCode.INVALID_ARGUMENT, "a frame cannot be read")
        return None

    def _take(self, ask: frames.Ask, tasks: asyncio.TaskGroup) -> None:
        if isinstance(ask, frames.Demand):
            self._exchange.demand(self._node, ask.queue, waiters=ask.waiters, items=ask.items)
            return
        if self._draining:
            self._say(frames.failure(ask.id, DRAINING))
            return
        command = None if isinstance(ask, frames.Question) else frames.command_of(ask)
        self._asked += 1
        if isinstance(ask, frames.Question):
            tasks.create_task(self._reply(ask))
        else:
            future = self._exchange.propose(self._node, ask.group, command, ask.attachment)
            future.add_done_callback(partial(self._proposed, ask.id, ask.group, command))

    def _proposed(
        self, id: int, group: GroupId, command: Any, future: "asyncio.Future[Any]"
    ) -> None:
        if future.cancelled():
            self._answer(frames.failure(id, DRAINING))
            return
        try:
            result = self._exchange.carried(self._node, group, command, future.result())
            answer = frames.result(id, result)
        except Exception as error:  # noqa: BLE001 - every command needs an answer
            self._fail(id, error)
        else:
            self._answer(answer)

    async def _reply(self, ask: frames.Question) -> None:
        try:
            answer = await self._exchange.answer(self._node, ask.query)
        except Exception as error:  # noqa: BLE001 - the top of the question's task
            self._fail(ask.id, error)
        else:
            self._answer(frames.reply(ask.id, answer))

    def _fail(self, id: int, error: Exception) -> None:
        request_id = f"{self._request_id}/{id}"
        refusal = refusal_of(error, request_id=request_id, method=_METHOD)
        self._answer(frames.failure(id, refusal))

    # --- answers -------------------------------------------------------------------------------

    def _answer(self, answer: frames.Answer) -> None:
        self._asked -= 1
        self._say(answer)

    def _say(self, answer: frames.Answer) -> None:
        self._answers.append(answer)
        self._wake.set()

    def _push(self, node: str, group: GroupId, items: int) -> None:
        self._say(frames.Offer(group, items))

    async def _write(self) -> None:
        """Writes until every ask that was read is answered."""
        while True:
            self._wake.clear()
            while self._answers:
                data = frames.encode_answers(self._gather())
                await self._context.write(
                    node_service_pb2.LinkResponse(answers=data).SerializeToString()
                )
            if self._read_all and not self._asked:
                return
            await self._wake.wait()

    def _gather(self) -> list[frames.Answer]:
        answers: list[frames.Answer] = []
        size = 0
        while self._answers and size < FRAME_BYTES:
            answer = self._answers.popleft()
            if isinstance(answer, frames.Result):
                size += memoryview(answer.result).nbytes
            elif isinstance(answer, frames.Reply):
                size += memoryview(answer.answer).nbytes
            size += PROPOSAL_OVERHEAD_BYTES
            answers.append(answer)
        return answers


def _request(data: bytes) -> node_service_pb2.LinkRequest:
    try:
        return node_service_pb2.LinkRequest.FromString(data)
    except Exception as error:
        raise frames.FrameError(f"not a frame of a link: {error}") from error
