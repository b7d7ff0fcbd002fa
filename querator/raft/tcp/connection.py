"""One TCP connection to a peer, with or without TLS: bytes in through a `FrameReader`, frames out
through a bounded queue. Never blocks, unless its socket does.

A turn costs about one receive and one send system call for each peer, whatever the number of
messages. Each call releases the interpreter lock, and beside a busy thread it gets the lock back
late.
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
from querator.raft.refusals import Code, PeerRefused
from querator.raft.tcp.channel import IN_THE_CLEAR, Channel
from querator.raft.tcp.frames import MAGIC, REFUSAL_LIMITS, FrameKind, FrameReader, frame
from querator.raft.tcp.handshake import Handshake
from querator.raft.tcp.hello import Hello

_BUFFERS_SENT_MAX: Final = 512
"""Most buffers in one system call; the kernel accepts 1,024."""

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


class PeerConnection:
    """A connection. `address` is the other end, for people. `dialed` is the name of the node that
    this node dialed; None when the other side dialed. Times are of the monotonic clock.
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
        """The other side's description of itself, once it is proven and checked."""
        self.key: NodeKey | None = None
        self.deadline_s = deadline_s
        """When the handshake must be done."""
        self.received_s = now_s
        self.gap_s = 0.0
        """The longest time without received bytes; its weight falls as time passes."""
        self.quiet = False
        """Whether the silence of the connection has been reported."""
        self.sent_s = now_s
        self.queued_bytes = 0
        self.watches_room = False
        """Whether the poll reports when the socket accepts more."""
        self._queue: deque[bytes | memoryview] = deque()
        self._channel: Channel | None = None
        """None: unencrypted."""
        self._unsealed: list[bytes] = []
        """Buffers to be written when TLS is ready."""
        self._begun = False
        """Whether bytes have arrived that may be TLS."""
        self._arrived = memoryview(b"")
        """Buffer for received TLS bytes."""
        self._filled = False
        """Whether the last receive filled all of it: there may be more in the socket."""

    @property
    def binding(self) -> bytes:
        """Identifies the connection to its two ends; empty without TLS, and until TLS is ready."""
        return b"" if self._channel is None else self._channel.binding

    @property
    def awaits_tls(self) -> bool:
        return self._channel is not None and not self._channel.done

    @property
    def worn(self) -> bool:
        """Whether its keys have been used for so long that it should be replaced."""
        return self._channel is not None and self._channel.records >= PEER_TLS_RECORDS_MAX

    @property
    def due_s(self) -> float:
        """When it must be checked if nothing happens before."""
        if self.phase is not Phase.OPEN:
            return self.deadline_s
        due_s = self.received_s + SILENCE_S
        if not self.quiet:
            due_s = min(due_s, self.quiet_s)
        return due_s if self.queued_bytes else min(due_s, self.sent_s + PING_S)

    @property
    def quiet_s(self) -> float:
        """When its node counts as quiet if nothing arrives."""
        return self.received_s + max(_QUIET_S, _GAPS * self.gap_s)

    @property
    def name(self) -> str:
        """Name of the node at the other end, as far as it is known; else empty."""
        return self.hello.info.name if self.hello is not None else self.dialed or ""

    def receive(self, now_s: float) -> bool:
        """Receives by one system call; returns whether the reader got bytes. With TLS there may be
        `more`, and something to send. Raises EOFError at the end, OSError and PeerRefused.
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
        self._note_received(now_s)
        return count

    def _note_received(self, now_s: float) -> None:
        self.gap_s = max(self.gap_s, now_s - self.received_s)
        self.received_s = now_s

    def more(self) -> bool:
        """Whether the reader got more of what `receive` has brought, or of a frame that has begun
        in it. Call it until it returns False, each time after the reader has no whole frame any
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
        """Handles a side without TLS. If it was dialed, it may send the reason."""
        self._channel = None
        if self.dialed is None:
            raise PeerRefused(Code.TLS, IN_THE_CLEAR)
        self.reader.limits = REFUSAL_LIMITS
        self.reader.space()[: len(begin)] = begin
        self.reader.received(len(begin))
        return True

    def secure(self, channel: Channel) -> None:
        """Puts all further bytes inside TLS; called before any byte was sent or received."""
        self._channel = channel
        self._arrived = memoryview(bytearray(PEER_RECEIVE_BYTES))
        self._take(channel.outgoing())

    def put(self, kind: FrameKind, body: bytes = b"") -> None:
        """Queues a frame. Until TLS is ready, if it is used, the frame does not count as queued."""
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
        """Sends what the socket accepts of the queue. Raises OSError."""
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
        """Result of a connect that has ended: 0, or its errno."""
        failure = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if failure:
            return failure
        try:
            itself = self.socket.getsockname() == self.socket.getpeername()
        except OSError as error:
            return error.errno or errno.ENOTCONN
        # When no process listens at a port of the range from which the kernel takes local ports,
        # TCP may connect a socket to itself.
        return errno.ECONNREFUSED if itself else 0

    def close(self) -> None:
        self.phase = Phase.CLOSED
        self.socket.close()
        self._queue.clear()
        self.queued_bytes = 0


def set_up(sock: socket.socket) -> None:
    """Sends small frames at once, and lets the kernel detect a peer that vanished."""
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
