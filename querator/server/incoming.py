"""Messages that have not come whole, and the memory that they take.

gRPC keeps what has come of a message until all of it has, and its Python server has no quota for
that. So the node looks at its connections itself. What gRPC has taken off a connection since the
last whole message is what it may hold for it.

    together on all connections            the node ends
    more than INCOMPLETE_BYTES_MAX         connections on which nothing has come for `STALLED_S`
    more than twice as much                any

It begins with the connection on which nothing has come for the longest time, and stops as soon as
the rest is within the bound. It looks at the connections every `LOOK_S`, and `GROWTH_S` after the
process has grown by `GROWTH_BYTES`, or while there is more than the bound.
"""

import asyncio
import contextlib
import ctypes
import fcntl
import os
import socket
import struct
import termios
from collections.abc import Callable, Iterator, Set
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, TypeAlias

import msgspec

from querator import telemetry
from querator.model.limits import INCOMPLETE_BYTES_MAX, KIB, MIB

LOOK_S: Final = 2.0
GROWTH_S: Final = 0.05
"""How often the size of the process is read."""
GROWTH_BYTES: Final = 16 * MIB
LATE_S: Final = 0.2
"""An event loop that is later than this has messages that are whole and that nobody has read."""
STALLED_S: Final = 1.0
SMALL_BYTES: Final = 64 * KIB
"""What a connection may have received besides messages: headers, pings, windows."""

Peer: TypeAlias = tuple[str, int]

_INFO: Final = struct.Struct("=52xI72xQ")
"""Of Linux's struct tcp_info: tcpi_last_data_recv (ms) and tcpi_bytes_received."""
_INT: Final = struct.Struct("=i")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")

_libc: Final = ctypes.CDLL(None)
_log = telemetry.logger(__name__)


class Received(msgspec.Struct, frozen=True):
    """Bytes that have been taken off a connection from the address `peer`, and how long ago the
    last of them came.
    """

    peer: Peer
    size: int
    idle_s: float


class Incoming:
    """Of one server, on the event loop. `start` once, `stop` before the loop ends."""

    def __init__(
        self,
        received: Callable[[], list[Received]] | None = None,
        end: Callable[[Set[Peer]], None] | None = None,
    ) -> None:
        """Without arguments it looks at this process, as soon as `start` has told the port."""
        self._port = 0
        self._received = received or self._of_process
        self._end = end or self._end_of_process
        # Of its own: others may have all threads of the loop at work.
        self._thread = ThreadPoolExecutor(1, "incoming")
        self._heard: set[str] = set()
        self._whole: dict[Peer, int] = {}
        """What had come on a connection when its last message was known to be whole."""
        self._ending: Set[Peer] = frozenset()
        """Connections that were ended, and are not closed yet."""
        self._watching: asyncio.Task[None] | None = None
        self.incomplete_bytes = 0
        """As of the last look."""
        self.ended = 0
        """Connections that were ended."""

    def start(self, port: int) -> None:
        """Looks at the connections of the server at that port from here on."""
        self._port = port
        # Owned: `stop` ends and awaits it.
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait((self._watching,))
        self._thread.shutdown(wait=False)

    async def _watch(self) -> None:
        """Says when a look fails, once, and looks again."""
        clock = asyncio.get_running_loop().time
        due_s, least, failed = clock(), 0, False
        while True:
            slept_s = clock()
            await asyncio.sleep(GROWTH_S)
            if clock() - slept_s > GROWTH_S + LATE_S:
                continue
            try:
                resident = _resident_bytes()
                least = min(least, resident)
                if clock() >= due_s or resident - least >= GROWTH_BYTES:
                    least = resident
                    await self.look()
                    much = self.incomplete_bytes > INCOMPLETE_BYTES_MAX
                    due_s = clock() + (GROWTH_S if much else LOOK_S)
            except Exception:  # noqa: BLE001 - the next look may succeed
                if not failed:
                    _log.exception("grpc.incomplete_unknown")
                failed = True

    def of(self, peer: str) -> Callable[[], None]:
        """What to call for each whole message of that peer."""
        return partial(self._heard.add, peer)

    def heard(self, peer: str) -> None:
        """A message of the peer, an address as gRPC writes it, is whole."""
        self._heard.add(peer)

    async def look(self) -> None:
        """Looks now."""
        loop = asyncio.get_running_loop()
        received = await loop.run_in_executor(self._thread, self._received)
        # By port alone: how gRPC writes addresses is its own. Two peers with one port are rare, and
        # it only makes what is held look less.
        heard = {peer.rpartition(":")[2] for peer in self._heard}
        self._heard.clear()
        self._ending = {one.peer for one in received if one.peer in self._ending}
        before, self._whole = self._whole, {}
        held: list[tuple[Received, int]] = []
        for one in received:
            whole = one.size if str(one.peer[1]) in heard else before.get(one.peer, 0)
            self._whole[one.peer] = whole = min(whole, one.size)
            if one.size - whole > SMALL_BYTES and one.peer not in self._ending:
                held.append((one, one.size - whole))
        self.incomplete_bytes = sum(size for _, size in held)
        if ending := self._too_much(held):
            self._ending |= ending
            await loop.run_in_executor(self._thread, self._end, ending)

    def _too_much(self, held: list[tuple[Received, int]]) -> Set[Peer]:
        left, ending = self.incomplete_bytes, set[Peer]()
        idle_s = STALLED_S if left <= 2 * INCOMPLETE_BYTES_MAX else 0.0
        for one, size in sorted(held, key=lambda each: -each[0].idle_s):
            if left <= INCOMPLETE_BYTES_MAX or one.idle_s < idle_s:
                break
            left -= size
            ending.add(one.peer)
        if ending:
            self.ended += len(ending)
            _log.warning(
                "grpc.incomplete_ended",
                connections=len(ending),
                bytes=self.incomplete_bytes - left,
                bytes_max=INCOMPLETE_BYTES_MAX,
            )
        return ending

    # --- this process, in a thread -----------------------------------------------------------

    def _of_process(self) -> list[Received]:
        found = []
        for sock, peer in _connections(self._port):
            with contextlib.suppress(OSError):
                info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
                idle_ms, size = _INFO.unpack(info)
                # What gRPC has not read takes the kernel's memory, and is bounded there.
                unread = fcntl.ioctl(sock.fileno(), termios.FIONREAD, bytes(_INT.size))
                size -= _INT.unpack(unread)[0]
                found.append(Received(peer, size, idle_ms / 1000))
        return found

    def _end_of_process(self, peers: Set[Peer]) -> None:
        for sock, peer in _connections(self._port):
            if peer in peers:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
        if hasattr(_libc, "malloc_trim"):
            # gRPC's memory is in arenas of many threads, which keep what is freed.
            _libc.malloc_trim(0)


def _connections(port: int) -> Iterator[tuple[socket.socket, Peer]]:
    """Sockets of this process that were accepted at the port, and where they come from. They belong
    to gRPC: they are not to be closed, and may be closed at any time.
    """
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), _borrowed(int(name)) as sock:
            # Of a socket that listens, or has been closed, there is no other end.
            own, other = sock.getsockname(), sock.getpeername()
            if isinstance(own, tuple) and own[1] == port:
                yield sock, (other[0], other[1])


@contextlib.contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    """Raises OSError when it is no socket, or closed."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=descriptor)
    try:
        yield sock
    finally:
        sock.detach()


def _resident_bytes() -> int:
    """Of this process."""
    # Not by `read`: it is taken for a call that may block, which one of /proc does not.
    descriptor = os.open("/proc/self/statm", os.O_RDONLY)
    try:
        return int(os.pread(descriptor, 64, 0).split()[1]) * _PAGE_BYTES
    finally:
        os.close(descriptor)
