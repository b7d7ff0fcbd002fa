"""One TCP connection to a peer, with or without TLS: bytes in through a `FrameReader`, frames out
through a bounded queue. Never blocks, unless its socket does.

A turn costs about one receive and one send system call for each peer, whatever was said: each call
gives the interpreter lock away, and beside a busy thread it comes back late.
"""

import enum
import errno
import socket
from collections import deque
from itertools import islice
from typing import Final

from querator.model.limits import (
    PEER_PING_MS,
    PEER_QUIET_MS,
    PEER_RECEIVE_BYTES,
    PEER_SILENCE_MS_MAX,
    PEER_TLS_RECORDS_MAX,
)
from querator.model.nodes import NodeKey
from querator.raft.refusals import Code, Refused
from querator.raft.tcp.channel import IN_THE_CLEAR, Channel
from querator.raft.tcp.frames import MAGIC, REFUSAL_LIMITS, FrameReader, Kind, frame
from querator.raft.tcp.handshake import Handshake
from querator.raft.tcp.hello import Hello

_BUFFERS_SENT_MAX: Final = 512
"""Of one system call; the kernel takes 1,024."""

PING_S: Final = PEER_PING_MS / 1000
SILENCE_S: Final = PEER_SILENCE_MS_MAX / 1000
_QUIET_S: Final = PEER_QUIET_MS / 1000
_GAPS: Final = 3
_KEEPALIVE_S: Final = 5
_KEEPALIVE_PROBES: Final = 3


class Phase(enum.Enum):
    CONNECTING = enum.auto()
    SHAKING = enum.auto()
    OPEN = enum.auto()
    CLOSED = enum.auto()


class Connection:
    """`address` is the other end, for people. `dialed` is the name of the node that this one meant
    to reach; None when it was reached itself. Times are of the monotonic clock.
    """

    __slots__ = (
        "_arrived",
        "_begun",
        "_channel",
        "_filled",
        "_queue",
        "_unsealed",
        "address",
        "deadline_s",
        "dialed",
        "gap_s",
        "handshake",
        "hello",
        "key",
        "phase",
        "queued_bytes",
        "quiet",
        "reader",
        "received_s",
        "sent_s",
        "socket",
        "watches_room",
    )

    def __init__(
        self,
        sock: socket.socket,
        address: str,
        *,
        dialed: str | None,
        now_s: float,
        deadline_s: float,
    ) -> None:
        self.socket = sock
        self.address = address
        self.dialed = dialed
        self.phase = Phase.SHAKING if dialed is None else Phase.CONNECTING
        self.reader = FrameReader()
        self.handshake: Handshake | None = None
        self.hello: Hello | None = None
        """What the other side has said of itself, once it is proven and judged."""
        self.key: NodeKey | None = None
        self.deadline_s = deadline_s
        """When the handshake must be done."""
        self.received_s = now_s
        self.gap_s = 0.0
        """The longest time in which nothing came; it counts less as time passes."""
        self.quiet = False
        """Whether the peers have been told that nothing comes."""
        self.sent_s = now_s
        self.queued_bytes = 0
        self.watches_room = False
        """Whether the poll tells when the socket takes more."""
        self._queue: deque[bytes | memoryview] = deque()
        self._channel: Channel | None = None
        """None: in the clear."""
        self._unsealed: list[bytes] = []
        """What is to be said when TLS is there."""
        self._begun = False
        """Whether something has arrived that may be TLS."""
        self._arrived = memoryview(b"")
        """Where bytes of TLS arrive."""
        self._filled = False
        """Whether the last of them took all of it: there may be more in the socket."""

    @property
    def binding(self) -> bytes:
        """What names the connection to its two ends; empty without TLS, and until it is there."""
        return b"" if self._channel is None else self._channel.binding

    @property
    def awaits_tls(self) -> bool:
        return self._channel is not None and not self._channel.done

    @property
    def worn(self) -> bool:
        """Whether its keys have been used for so long that it should be made anew."""
        return self._channel is not None and self._channel.records >= PEER_TLS_RECORDS_MAX

    @property
    def due_s(self) -> float:
        """When it is to be looked at if nothing happens before."""
        if self.phase is not Phase.OPEN:
            return self.deadline_s
        due_s = self.received_s + SILENCE_S
        if not self.quiet:
            due_s = min(due_s, self.quiet_s)
        return due_s if self.queued_bytes else min(due_s, self.sent_s + PING_S)

    @property
    def quiet_s(self) -> float:
        """When its node is quiet if nothing comes."""
        return self.received_s + max(_QUIET_S, _GAPS * self.gap_s)

    @property
    def name(self) -> str:
        """Of the node at the other end, as far as it is known; else empty."""
        return self.hello.info.name if self.hello is not None else self.dialed or ""

    def receive(self, now_s: float) -> bool:
        """Whether the reader has got bytes: one system call. With TLS there may be `more`, and
        something to send. Raises EOFError at the end, OSError and Refused.
        """
        if self._channel is None:
            count = self._receive(self.reader.space(), now_s)
            self.reader.received(count)
            return count > 0
        count = self._receive(self._arrived, now_s)
        self._filled = count == len(self._arrived)
        if not count:
            return False
        if not self._begun and bytes(self._arrived[:1]) == MAGIC[:1]:
            return self._in_the_clear(self._arrived[:count])
        self._begun = True
        try:
            self._channel.feed(self._arrived[:count])
        finally:
            self._take(self._channel.outgoing())
        return self.more()

    def _receive(self, into: memoryview, now_s: float) -> int:
        """0: nothing is there."""
        try:
            count = self.socket.recv_into(into)
        except BlockingIOError:
            return 0
        if not count:
            raise EOFError
        self._heard(now_s)
        return count

    def _heard(self, now_s: float) -> None:
        self.gap_s = max(self.gap_s, now_s - self.received_s)
        self.received_s = now_s

    def more(self) -> bool:
        """Whether the reader has got more of what `receive` has brought, or of the frame that has
        begun in it; to be asked until it has not, each time when the reader has no whole frame any
        more. Raises as `receive`.
        """
        channel = self._channel
        if channel is None or not channel.done:
            return False
        if self._unsealed:
            for buffer in self._unsealed:
                channel.write(buffer)
            self._unsealed.clear()
        try:
            count = channel.read(self.reader.space())
        finally:
            self._take(channel.outgoing())
        self.reader.received(count)
        if not count and self._filled and self.reader.partial:
            return self.receive(self.received_s)
        return count > 0

    def _in_the_clear(self, begin: memoryview) -> bool:
        """The other side has no TLS. Whoever was dialed may say why."""
        self._channel = None
        if self.dialed is None:
            raise Refused(Code.TLS, IN_THE_CLEAR)
        self.reader.limits = REFUSAL_LIMITS
        self.reader.space()[: len(begin)] = begin
        self.reader.received(len(begin))
        return True

    def secure(self, channel: Channel) -> None:
        """What follows is inside TLS; before anything was said or heard."""
        self._channel = channel
        self._arrived = memoryview(bytearray(PEER_RECEIVE_BYTES))
        self._take(channel.outgoing())

    def put(self, kind: Kind, body: bytes = b"") -> None:
        """Queues a frame; until TLS is there, if it is to be, it counts for nothing."""
        buffers = frame(kind, body)
        channel = self._channel
        if channel is None:
            self._queue.extend(buffers)
            self.queued_bytes += sum(map(len, buffers))
        elif channel.done:
            for buffer in buffers:
                channel.write(buffer)
            self._take(channel.outgoing())
        else:
            self._unsealed += buffers

    def _take(self, sealed: bytes) -> None:
        if sealed:
            self._queue.append(sealed)
            self.queued_bytes += len(sealed)

    def send(self, now_s: float) -> None:
        """What the socket takes of the queue. Raises OSError."""
        queue = self._queue
        while queue:
            buffers = list(islice(queue, _BUFFERS_SENT_MAX))
            try:
                count = self.socket.sendmsg(buffers)
            except BlockingIOError:
                return
            self.sent_s = now_s
            self.queued_bytes -= count
            for buffer in buffers:
                if count < len(buffer):
                    queue[0] = memoryview(buffer)[count:]
                    return
                count -= len(buffer)
                queue.popleft()

    def connect_error(self) -> int:
        """Of a connect that has ended: 0, or its errno."""
        failure = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if failure:
            return failure
        try:
            itself = self.socket.getsockname() == self.socket.getpeername()
        except OSError as error:
            return error.errno or errno.ENOTCONN
        # When nobody listens at a port of the range that the kernel takes own ports from, TCP may
        # connect a socket to itself.
        return errno.ECONNREFUSED if itself else 0

    def close(self) -> None:
        self.phase = Phase.CLOSED
        self.socket.close()
        self._queue.clear()
        self.queued_bytes = 0


def set_up(sock: socket.socket) -> None:
    """Small frames leave at once, and the kernel looks after a peer that vanished."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEPALIVE_PROBES)


def host_port(address: object) -> str:
    """HOST:PORT of a socket's address."""
    match address:
        case (str(host), int(port), *_):
            return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return str(address)
