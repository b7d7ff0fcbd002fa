"""The nodes of a cluster that a client knows, and the choice of one for a call.

Any node answers any request, so a client uses one node, and another one when that does not answer.
It begins with the given addresses, and learns the other nodes from the first node that answers. A
node that has failed is left alone for a while, longer each time, as long as there is another one.
The same holds for a node that cannot be connected to, for example because its address has changed:
gRPC would wait for seconds, and continues to try meanwhile.

    good ──no connection, no answer, or it stops──► left alone ──its time is over──► good
"""

import asyncio
import contextlib
import os
import random
from collections.abc import Awaitable, Callable, Collection, Iterable
from functools import partial
from typing import Any, TypeVar

import grpc

from querator.client.errors import (
    ConnectionFailed,
    DeadlineExceeded,
    ErrorCode,
    NotLeader,
    OutcomeUnknown,
    RequestError,
    StorageFailed,
    copy_error,
)
from querator.client.errors import make_error as make
from querator.client.transport import forking
from querator.client.transport.attempts import repeated
from querator.client.transport.channel import Connection
from querator.client.transport.known_node import KnownNode
from querator.client.transport.rpc_errors import connection_failed
from querator.client.transport.waits import NO_LEADER, Waits
from querator.model import limits
from querator.v1 import queue_service_pb2
from querator.wire.tls import Tls

R = TypeVar("R")

ATTEMPT_SECONDS = 1.5
"""A request that can be repeated and is not meant to wait goes to another node when one has not
answered within this time.
"""
NEAR_SECONDS = 0.25
"""A node to which no connection is made within this time is left for another one."""
LEARN_SECONDS = 30.0
"""How often the client asks for the list of nodes while it makes requests."""
ASK_SECONDS = 1.0
"""Timeout of a request for the list of nodes."""
ASK_END_SECONDS = 0.25
"""How long `close` waits for the answer to such a request. gRPC completes a cancelled call later,
on the loop of the call. By then the program may have closed that loop, and another loop of the
process would log "Event loop is closed".
"""


_UNREACHED = (OutcomeUnknown, NotLeader, DeadlineExceeded)
"""Errors of a node that does not reach a partition's leader. The node works, but it may be cut off
from the others, so the next attempt goes to another node.
"""


class Nodes:
    """The nodes and their connections. `connect_timeout`: seconds after which calls give up when no
    node has ever answered. Once a node has answered, calls wait until their own timeout.
    """

    def __init__(
        self,
        addresses: Iterable[str],
        *,
        request_timeout: float,
        connect_timeout: float,
        tls: Tls | None = None,
    ) -> None:
        self.request_timeout = request_timeout
        self._connect_timeout = connect_timeout
        self._tls = tls
        self._loop = self.loop = _running_loop()
        self._pid = os.getpid()
        self._nodes = {
            address: KnownNode(address, tls, name="", given=True) for address in addresses
        }
        self._current = random.choice(list(self._nodes.values()))
        self._reached = False
        self._closed = False
        self._learned = -LEARN_SECONDS
        self._teaches = True
        self._learning: asyncio.Task[None] | None = None
        self._ending: dict[asyncio.Task[None], Connection] = {}
        self._woken = asyncio.Event()
        self.waits = Waits(self._loop.time)
        """Why requests are being repeated."""
        self._asleep = forking.register(self)

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(self._nodes)

    async def close(self) -> None:
        """Ends open calls and closes the connections. Later calls get `Unavailable`."""
        self._closed = True
        await self._disconnect()

    async def _disconnect(self) -> None:
        if self._learning is not None:
            await asyncio.wait((self._learning,), timeout=ASK_END_SECONDS)
        if self._learning is not None:
            self._learning.cancel()
            await asyncio.gather(self._learning, return_exceptions=True)
        released = [node.release() for node in self._nodes.values()]
        for connection in (*released, *self._ending.values()):
            if connection is not None:
                await connection.close()
        await asyncio.gather(*self._ending)

    def check_open(self) -> None:
        """Raises `Unavailable` when the client is closed, `UsedAfterFork` in another process."""
        self.check_process()
        if self._closed:
            raise make(ErrorCode.UNAVAILABLE, "the client is closed")

    def check_process(self) -> None:
        forking.check_process(self._pid, "client")

    @property
    def usable_here(self) -> bool:
        """Whether this is the process and the event loop of the connections."""
        return self._pid == os.getpid() and self.loop is _running_loop()

    def check_here(self) -> None:
        """Raises `UsedAfterFork` in another process, RuntimeError on another event loop."""
        self.check_process()
        if self.loop is not _running_loop():
            raise RuntimeError(
                "this Client belongs to the event loop on which it was used first, and that is not "
                "the running one: make one in each asyncio.run"
            )

    # --- forks (`forking.Sleeper`) ---------------------------------------------------------

    @property
    def connected(self) -> bool:
        return bool(self._ending) or any(node.opened for node in self._nodes.values())

    async def sleep(self) -> None:
        """Closes the connections. Calls and streams wait for `wake`, and are then repeated."""
        self._asleep = True
        self._woken.clear()
        await self._disconnect()

    def drop(self) -> None:
        for node in self._nodes.values():
            node.release()
        self._ending.clear()
        self._learning = None

    def wake(self) -> None:
        self._asleep = False
        self._woken.set()

    async def _awake(self) -> None:
        while self._asleep:
            await self._woken.wait()

    # --- choice of a node ------------------------------------------------------------------

    async def near(self, address: str = "") -> Connection:
        """Returns the node at `address` if it is known and good; else a random good one, so that
        the streams of many clients spread over the nodes. The node is connected, if a node can be
        connected within a moment.
        """
        self.check_open()
        await self._awake()
        now = self._loop.time()
        wanted = self._nodes.get(address)
        if wanted is None or wanted.alone_until > now:
            wanted = self._any(now)
        return (await self._near(wanted)).connection

    async def _near(self, node: KnownNode) -> KnownNode:
        """Returns this node, or another good one when it is not connected within NEAR_SECONDS."""
        left: list[KnownNode] = []
        while not self._connected(node):
            if self._other(node, self._loop.time()) is node:
                break
            connection = node.connection
            if await connection.connect(NEAR_SECONDS):
                break
            await self._awake()
            if not node.has(connection):
                # A fork has closed it.
                continue
            now = self._loop.time()
            node.missed(now)
            node.alone_until = now + node.backoff.next()
            self._learned = -LEARN_SECONDS
            left.append(node)
            near = [one for one in left if self._connected(one)]
            node = near[0] if near else self._other(node, now)
        # The node may have left the cluster meanwhile.
        here = self._nodes.get(node.address) is node
        return node if here else self._any(self._loop.time())

    def _connected(self, node: KnownNode) -> bool:
        """Whether the node is connected; if not, starts connecting. A lost connection is replaced
        by a new one, because it would first try the former address of the node's name.
        """
        lost = node.connection
        if lost.lost and not lost.closed:
            node.release()
            self._end(lost, self.request_timeout)
        return node.connection.connected

    def _any(self, now: float) -> KnownNode:
        good = [node for node in self._nodes.values() if node.alone_until <= now]
        if good:
            return random.choice(good)
        return min(self._nodes.values(), key=lambda node: node.alone_until)

    def _other(self, node: KnownNode, now: float, asked: Collection[KnownNode] = ()) -> KnownNode:
        """Returns another good node, if there is one; preferably one that is not in `asked`."""
        others = [one for one in self._nodes.values() if one is not node]
        good = [one for one in others if one.alone_until <= now]
        return random.choice([one for one in good if one not in asked] or good or [node])

    def is_good(self, address: str) -> bool:
        """Whether the node is known and not left alone."""
        node = self._nodes.get(address)
        return node is not None and node.alone_until <= self._loop.time()

    def is_near(self, address: str) -> bool:
        """Whether the node is good and connected. If it is only good, starts connecting."""
        return self.is_good(address) and self._connected(self._nodes[address])

    def has_good(self) -> bool:
        """Whether any node is not left alone."""
        now = self._loop.time()
        return any(node.alone_until <= now for node in self._nodes.values())

    def failed(self, connection: Connection, error: RequestError) -> bool:
        """Records an error of a call. Returns whether it is a failure of the node."""
        if not _against_the_node(error):
            if not isinstance(error, ConnectionFailed):
                self.mark_working(connection)
            return False
        node = self._nodes.get(connection.address)
        if node is not None and node.has(connection):
            now = self._loop.time()
            node.alone_until = now + node.backoff.next()
            if NO_LEADER not in error.message:
                node.lost(error, now)
        self._learned = -LEARN_SECONDS
        return True

    def leave(self, address: str) -> bool:
        """Leaves the node of a stream, which cannot do what others may, alone for a while. Returns
        False, without effect, if there is no other good node.
        """
        node = self._nodes.get(address)
        now = self._loop.time()
        if node is None or self._other(node, now) is node:
            return False
        node.alone_until = now + node.backoff.next()
        self._learned = -LEARN_SECONDS
        return True

    def mark_working(self, connection: Connection) -> None:
        """Records that the node works."""
        self._reached = True
        node = self._nodes.get(connection.address)
        if node is not None:
            node.works(self._loop.time())
            if node.alone_until:
                node.alone_until = 0.0
                node.backoff.reset()
        if self._teaches and self._loop.time() - self._learned > LEARN_SECONDS:
            self._learned = self._loop.time()
            if self._learning is None:
                # Owned: `close` ends and awaits it.
                self._learning = self._loop.create_task(self._learn(connection))
                self._learning.add_done_callback(self._has_learned)

    def hopeless(self, error: RequestError, waited: float) -> bool:
        """Whether to give up, `waited` seconds after the first try: no node has ever answered, and
        there was enough time, or more time does not help.
        """
        if self._reached or not isinstance(error, ConnectionFailed):
            return False
        return waited >= self._connect_timeout or all(
            node.connection.wrong for node in self._nodes.values()
        )

    async def explained(self, error: RequestError) -> RequestError:
        """The error, with the causes of all addresses if it is that no node can be reached. Until
        a node has answered, waits for probes that run.
        """
        if not isinstance(error, ConnectionFailed):
            return error
        faults = await asyncio.gather(
            *(
                node.connection.explained(error, patient=not self._reached)
                for node in self._nodes.values()
            )
        )
        return connection_failed(faults)

    # --- calls -----------------------------------------------------------------------------

    async def call(
        self,
        send: Callable[[Connection, float], Awaitable[R]],
        *,
        seconds: float | None = None,
        patience: float | None = None,
        changes: bool = True,
        repeatable: bool = True,
        telling: tuple[type[RequestError], ...] = (),
    ) -> R:
        """Returns what `send(node, seconds left)` returns. Repeats it while that can help and
        `seconds` (default: the client's request timeout) have not passed. `patience`: seconds that
        one node may take; None: the remaining time. It doubles when a node reports in time that it
        has waited without success: that node lives, and each attempt costs a whole request.
        `telling` as in `repeated`.

        Raises the last refusal, or `OutcomeUnknown` when an attempt may have been executed.
        """
        asked: set[KnownNode] = set()
        request = object()

        async def attempt(left: float) -> R | RequestError:
            nonlocal patience
            self.check_open()
            await self._awake()
            if patience is not None and len(self._nodes) > 1:
                left = min(left, patience)
            now = self._loop.time()
            if self._current.alone_until > now:
                self._current = self._any(now)
            self._current = await self._near(self._current)
            left -= self._loop.time() - now
            connection = self._current.connection
            asked.add(self._current)
            try:
                answer = await connection.attempt(partial(send, connection), left, changes)
            except RequestError as cut:
                if self._closed or not connection.closed:
                    raise
                # A fork has closed the connection, or the node has left the cluster. The error's
                # traceback would keep the connection in memory, and thereby gRPC in use.
                return copy_error(cut)
            if isinstance(answer, RequestError):
                self.waits.refused(request, answer)
                if patience is not None and _waited_in_vain(answer):
                    patience *= 2
                if not self.failed(connection, answer) and isinstance(answer, _UNREACHED):
                    self._current = self._other(self._current, now, asked)
            else:
                self.mark_working(connection)
                self.waits.executed(request)
            return answer

        try:
            return await repeated(
                attempt,
                seconds=self.request_timeout if seconds is None else seconds,
                hopeless=self.hopeless,
                elsewhere=lambda error: _against_the_node(error) and self.has_good(),
                repeatable=repeatable,
                telling=telling,
            )
        except ConnectionFailed as error:
            raise await self.explained(error) from None
        finally:
            self.waits.ended(request)

    # --- list of nodes ---------------------------------------------------------------------

    async def leader(self, namespace: str, queue: str, place: Callable[[int], int]) -> str:
        """Returns the address of the node that leads partition `place(number of partitions)` of the
        queue. Empty when it is not known, or when there is only one node.
        """
        if not self._teaches or (self._learned > 0 and len(self._nodes) == 1):
            return ""
        asked = await self.near(self._current.address)
        if not await asked.connect(ASK_SECONDS if len(self._nodes) == 1 else NEAR_SECONDS):
            return ""
        routing = await self._ask(asked, namespace, queue)
        if routing is None or not routing.leaders:
            return ""
        name = routing.leaders[place(len(routing.leaders))]
        return next(
            (address for address, node in self._nodes.items() if name and node.name == name), ""
        )

    async def _learn(self, connection: Connection) -> None:
        with contextlib.suppress(RequestError):  # The client is closed.
            await self._ask(connection, "", "")

    def _has_learned(self, task: "asyncio.Task[None]") -> None:
        self._learning = None
        if not task.cancelled():
            task.result()

    async def _ask(
        self, connection: Connection, namespace: str, queue: str
    ) -> queue_service_pb2.GetRoutingResponse | None:
        """Asks a node for the nodes and leaders, and takes in the nodes; None without an answer."""
        request = queue_service_pb2.GetRoutingRequest(namespace=namespace, queue=queue)
        try:
            routing: Any = await connection.attempt(
                lambda left: connection.queues.GetRouting(request, timeout=left), ASK_SECONDS, False
            )
        except RequestError:
            # The connection was closed meanwhile.
            self.check_open()
            return None
        if isinstance(routing, RequestError):
            if routing.grpc_status:
                self._teaches = routing.grpc_status != grpc.StatusCode.UNIMPLEMENTED.name
            return None
        assert isinstance(routing, queue_service_pb2.GetRoutingResponse)
        self._learned = self._loop.time()
        self._take_in(connection, routing)
        return routing

    def _take_in(
        self, connection: Connection, routing: queue_service_pb2.GetRoutingResponse
    ) -> None:
        there = {node.name: node.client_address for node in routing.nodes if node.client_address}
        asked = self._nodes.get(connection.address)
        if asked is not None:
            # In a cluster an address other than the node's own may belong to a service for all.
            asked.name = routing.node if len(there) == 1 else ""
        known = {node.name for node in self._nodes.values() if node.name}
        for name, address in there.items():
            node = self._nodes.get(address)
            if node is not None:
                node.name = name
            elif name not in known and not self._closed:
                self._nodes[address] = KnownNode(address, self._tls, name=name, given=False)
        for address, node in list(self._nodes.items()):
            if not node.given and there.get(node.name) != address:
                self._drop(address, node)

    def _drop(self, address: str, node: KnownNode) -> None:
        """Forgets a node that has left the cluster or has another address."""
        del self._nodes[address]
        if self._current is node:
            self._current = self._any(self._loop.time())
        connection = node.release()
        if connection is not None:
            self._end(connection, limits.SECOND_MS / 1000)

    def _end(self, connection: Connection, seconds: float) -> None:
        """Closes the connection when its calls have ended, at the latest after `seconds`."""
        # Owned: `close` awaits it.
        task = self._loop.create_task(connection.close(seconds))
        self._ending[task] = connection
        task.add_done_callback(self._ending.pop)


def _running_loop() -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(
            "a Client is used on an event loop, from async functions; a program without one uses "
            "SyncClient"
        ) from None


def _waited_in_vain(error: RequestError) -> bool:
    """Whether a node reports that it had no leader, or no answer of it, within its time."""
    return bool(error.request_id) and isinstance(error, DeadlineExceeded | OutcomeUnknown)


def _against_the_node(error: RequestError) -> bool:
    """Whether the node is at fault, so that another one may succeed: it was not reached, did not
    answer (an error from a node has a request id), is stopping, or has failed.
    """
    if isinstance(error, OutcomeUnknown):
        return not error.request_id
    if isinstance(error, ConnectionFailed | StorageFailed):
        return True
    return error.code is ErrorCode.UNAVAILABLE
