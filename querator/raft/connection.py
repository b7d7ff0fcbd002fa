"""One TCP connection to a peer: bytes in through a `FrameReader`, frames out through a bounded
queue. Never blocks.

A turn costs about one receive and one send system call for each peer, whatever was said: each call
gives the interpreter lock away, and beside a busy thread it comes back late.
"""

import enum
import errno
import socket
from collections import deque
from itertools import islice
from typing import Final

from querator.model.nodes import NodeKey
from querator.raft.frames import FrameReader, Kind, frame
from querator.raft.handshake import Handshake
from querator.raft.hellos import Hello

_BUFFERS_SENT_MAX: Final = 512
"""Of one system call; the kernel takes 1,024."""

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
        "_queue",
        "address",
        "deadline_s",
        "dialed",
        "handshake",
        "hello",
        "key",
        "phase",
        "queued_bytes",
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
        self.sent_s = now_s
        self.queued_bytes = 0
        self.watches_room = False
        """Whether the poll tells when the socket takes more."""
        self._queue: deque[bytes | memoryview] = deque()

    @property
    def name(self) -> str:
        """Of the node at the other end, as far as it is known; else empty."""
        return self.hello.info.name if self.hello is not None else self.dialed or ""

    def receive(self, now_s: float) -> bool:
        """Whether bytes came: one system call. Raises EOFError at the end, and OSError."""
        try:
            count = self.socket.recv_into(self.reader.space())
        except BlockingIOError:
            return False
        if not count:
            raise EOFError
        self.reader.received(count)
        self.received_s = now_s
        return True

    def put(self, kind: Kind, body: bytes = b"") -> None:
        """Queues a frame."""
        buffers = frame(kind, body)
        self._queue.extend(buffers)
        self.queued_bytes += sum(map(len, buffers))

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
