"""Bounds the memory of incomplete gRPC messages.

gRPC buffers a message until it is complete, and its Python server has no quota for these buffers.
So the node keeps an account of each connection:

    bytes that gRPC has read from it               by the kernel, at each check
    less each message that a handler has           `Messages.got`, with `OVERHEAD_BYTES`
    less `ALLOWED_BYTES_S` for each second         pings
    at least 0

The remaining bytes are of messages that are incomplete, or that no handler has read.

    on all connections together            the node ends
    more than INCOMPLETE_BYTES_MAX         connections without data for `STALLED_S`, except those
                                           that wait for the node to read
    more than twice as much                any connections, those that wait for the node last

The node ends the connection first that has been without data for the longest time. It stops when
the remaining bytes are within the bound. gRPC may keep the memory of an ended connection for
seconds. The bytes of recently ended connections count again after `RELEASE_S`, at most as many as
the process has grown by. The node checks the connections every `LOOK_S`; also within `STEP_S` after
the process has grown by `GROWTH_BYTES`, and every `STEP_S` while the bound is exceeded. A late
event loop has complete messages that no handler has received yet. So for `CALM_S` after a delay the
node ends connections only beyond three times the bound.
"""

import asyncio
import contextlib
import ctypes
import fcntl
import ipaddress
import os
import socket
import struct
import termios
import time
from collections import Counter
from collections.abc import Callable, Iterator, Set
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeAlias

import msgspec

from querator import telemetry
from querator.model.limits import INCOMPLETE_BYTES_MAX, KIB, MIB

LOOK_S: Final = 2.0
STEP_S: Final = 0.05
"""Interval of the readings of the process's size."""
GROWTH_BYTES: Final = 16 * MIB
STALLED_S: Final = 1.5
LATE_S: Final = 0.2
CALM_S: Final = 1.0
CLOSING_S: Final = 5.0
RELEASE_S: Final = 0.3
"""Time after which the memory of an ended connection should be free."""
OVERHEAD_BYTES: Final = 16 * KIB
"""Upper bound of a message's headers and frames; metadata may have 8 KiB."""
ALLOWED_BYTES_S: Final = 100
"""A client that pings every second sends 17 bytes, 39 with TLS."""
SMALL_BYTES: Final = 64 * KIB
"""Smaller amounts on a connection do not count."""

Address: TypeAlias = tuple[str, int]
"""Address of the remote end."""

_INFO: Final = struct.Struct("=52xI72xQ")
"""Fields of Linux's struct tcp_info: tcpi_last_data_recv (ms) and tcpi_bytes_received."""
_NO_ADDRESS: Final = struct.pack("=H14x", socket.AF_UNSPEC)
"""A sockaddr. To connect to it dissolves the connection, see connect(2)."""
_INT: Final = struct.Struct("=i")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_HAS_PROC: Final = os.path.isdir("/proc/self/fd")

_libc: Final = ctypes.CDLL(None)
_log = telemetry.logger(__name__)


class Taken(msgspec.Struct, frozen=True):
    """Bytes that gRPC has read from a connection, and the time since the last data came."""

    address: Address
    size: int
    idle_s: float


class Messages:
    """Reports the messages of one call or stream."""

    __slots__ = ("_incoming", "_peer")

    def __init__(self, incoming: "Incoming", peer: str) -> None:
        self._incoming = incoming
        self._peer = peer

    def got(self, size: int) -> None:
        """A handler has received a message of `size` bytes."""
        self._incoming.got(self._peer, size)

    @contextlib.contextmanager
    def unread(self) -> Iterator[None]:
        """Marks the stream as not read by the node while the block runs."""
        waiting = self._incoming.unread
        waiting[self._peer] += 1
        try:
            yield
        finally:
            waiting[self._peer] -= 1
            if not waiting[self._peer]:
                del waiting[self._peer]


class Incoming:
    """Account of one server, on the event loop. `start` once, `stop` before the loop ends."""

    def __init__(
        self,
        taken: Callable[[], list[Taken]] | None = None,
        end: Callable[[Set[Address]], None] | None = None,
        now_s: Callable[[], float] = time.monotonic,
        memory: Callable[[], int] | None = None,
    ) -> None:
        """Without arguments it checks this process, as soon as `start` gives the address.
        `memory`: the bytes that the process uses, without pages of files.
        """
        self._host, self._port = "", 0
        self._taken = taken or self._of_process
        self._end = end or self._end_of_process
        self._now_s = now_s
        self._memory = memory or _taken_bytes
        # A thread of its own, because other work may occupy all threads of the loop.
        self._thread = ThreadPoolExecutor(1, "incoming")
        self._got: dict[str, int] = {}
        self.unread: Counter[str] = Counter()
        """Number of streams that the node does not read, by peer in gRPC's notation."""
        self._accounts: dict[Address, tuple[int, int]] = {}
        """(bytes read in total, incomplete bytes) at the last check."""
        self._closing: dict[Address, float] = {}
        """Ended connections, and the instant until which gRPC may take to close them."""
        self._lately: list[tuple[float, int]] = []
        """(instant, bytes) of ended connections, kept for `CLOSING_S`."""
        self._others_bytes = 0
        """Memory without incomplete messages, from when no connection had ended lately."""
        self._looked_s = now_s()
        self._watching: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._statm: int | None = None
        """Descriptor of the kernel's memory figures of this process, see proc(5)."""
        self._due_s = self._slept_s = now_s()
        self._calm_s = 0.0
        self._least = 0
        """Fewest resident bytes since the last check began."""
        self.incomplete_bytes = 0
        """Incomplete bytes at the last check."""
        self.ended = 0
        """Number of connections that the node has ended."""

    def start(self, host: str, port: int) -> None:
        """Starts to check the connections of the server at that address."""
        if not _HAS_PROC:
            _log.warning("grpc.incomplete_unknown", reason="there is no /proc/self/fd")
            return
        self._host, self._port = _plain(host), port
        self._statm = os.open("/proc/self/statm", os.O_RDONLY)
        # Owned: `stop` ends and awaits it.
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait((self._watching,))
        if self._statm is not None:
            os.close(self._statm)
            self._statm = None
        self._thread.shutdown(wait=False)

    async def _watch(self) -> None:
        failed = False
        while True:
            try:
                await self._until_due()
                await self.check(late=self._now_s() < self._calm_s)
            except Exception:  # noqa: BLE001 - the next check may succeed
                if not failed:
                    _log.exception("grpc.incomplete_unknown")
                failed = True
            else:
                failed = False
                if self.incomplete_bytes > INCOMPLETE_BYTES_MAX:
                    self._due_s = self._now_s() + STEP_S

    async def _until_due(self) -> None:
        """Returns when the next check is due."""
        due: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._step_later(due)
        try:
            await due
        finally:
            assert self._timer is not None
            self._timer.cancel()

    def _step_later(self, due: "asyncio.Future[None]") -> None:
        # A timer instead of a sleeping task: an idle node, too, has 20 steps a second.
        self._slept_s = self._now_s()
        self._timer = due.get_loop().call_later(STEP_S, self._step, due)

    def _step(self, due: "asyncio.Future[None]") -> None:
        if due.done():
            # The watch has been stopped.
            return
        now_s = self._now_s()
        if now_s - self._slept_s > STEP_S + LATE_S:
            self._calm_s = now_s + CALM_S
        try:
            resident = self._resident_bytes()
        except Exception as error:  # noqa: BLE001 - raised by `_until_due`
            due.set_exception(error)
            return
        self._least = min(self._least, resident)
        if now_s < self._due_s and resident - self._least < GROWTH_BYTES:
            self._step_later(due)
            return
        self._least, self._due_s = resident, now_s + LOOK_S
        due.set_result(None)

    def _resident_bytes(self) -> int:
        """Resident bytes of this process."""
        assert self._statm is not None
        # Not `read`, which checkers treat as a blocking call; a read of /proc does not block.
        return int(os.pread(self._statm, 128, 0).split(b" ", 2)[1]) * _PAGE_BYTES

    def got(self, peer: str, size: int) -> None:
        """A handler has received a message from the peer, an address in gRPC's notation."""
        if _HAS_PROC:
            self._got[peer] = self._got.get(peer, 0) + size + OVERHEAD_BYTES

    def messages_of(self, peer: str) -> Messages:
        return Messages(self, peer)

    async def check(self, *, late: bool = False) -> None:
        """Checks the connections now. `late`: the event loop was late."""
        loop = asyncio.get_running_loop()
        # Before the kernel's figures: they include all bytes of the messages that handlers have.
        # Messages that arrive meanwhile seem incomplete until the next check.
        got, self._got = self._got, {}
        try:
            taken = await loop.run_in_executor(self._thread, self._taken)
        except BaseException:
            for peer, size in self._got.items():
                got[peer] = got.get(peer, 0) + size
            self._got = got
            raise
        now_s = self._now_s()
        allowed = round((now_s - self._looked_s) * ALLOWED_BYTES_S)
        self._looked_s = now_s
        # By port alone, because gRPC has its own notation of hosts. If two connections have one
        # port, each is credited with the messages of both, so less seems incomplete.
        by_port: Counter[str] = Counter()
        for peer, size in got.items():
            by_port[_port(peer)] += size
        unread = {_port(peer) for peer in self.unread}
        before, self._accounts = self._accounts, {}
        closing = self._closing
        self._closing = {
            one.address: closing[one.address]
            for one in taken
            if closing.get(one.address, 0.0) > now_s
        }
        counted: list[tuple[bool, Taken, int]] = []
        for one in taken:
            size_before, left_before = before.get(one.address, (0, 0))
            if one.size < size_before:
                # This is another connection from the same address.
                size_before, left_before = 0, 0
            port = str(one.address[1])
            left = left_before + one.size - size_before - by_port[port] - allowed
            self._accounts[one.address] = one.size, max(0, left)
            if left > SMALL_BYTES and one.address not in self._closing:
                counted.append((port in unread, one, left))
        self.incomplete_bytes = sum(left for _, _, left in counted)
        if self._lately:
            await loop.run_in_executor(self._thread, _trim)
        ending = self._too_much(counted, self._kept(now_s), late=late)
        if ending:
            await loop.run_in_executor(self._thread, self._end, set(ending))
            self._closing |= dict.fromkeys(ending, now_s + CLOSING_S)
            self._lately.append((now_s, sum(ending.values())))
            self.ended += len(ending)
            _log.warning(
                "grpc.incomplete_ended",
                connections=len(ending),
                bytes=sum(ending.values()),
                bytes_max=INCOMPLETE_BYTES_MAX,
            )

    def _kept(self, now_s: float) -> int:
        """Bytes of ended connections that gRPC has not freed in time."""
        memory = self._memory()
        self._lately = [one for one in self._lately if one[0] + CLOSING_S > now_s]
        if not self._lately:
            self._others_bytes = memory - self.incomplete_bytes
            return 0
        due = sum(size for when, size in self._lately if when + RELEASE_S <= now_s)
        grown = memory - self._others_bytes - self.incomplete_bytes
        return max(0, min(due, grown))

    def _too_much(
        self, counted: list[tuple[bool, Taken, int]], kept: int, *, late: bool
    ) -> dict[Address, int]:
        """Connections to end, with the incomplete bytes of each."""
        left = self.incomplete_bytes + kept
        ending: dict[Address, int] = {}
        any_of_them = left > (3 if late else 2) * INCOMPLETE_BYTES_MAX
        if late and not any_of_them:
            return ending
        for unread, one, size in sorted(counted, key=lambda each: (each[0], -each[1].idle_s)):
            if left <= INCOMPLETE_BYTES_MAX:
                break
            if any_of_them or (not unread and one.idle_s >= STALLED_S):
                left -= size
                ending[one.address] = size
        return ending

    # --- this process, in a thread -----------------------------------------------------------

    def _of_process(self) -> list[Taken]:
        found = []
        for sock, address in _connections(self._host, self._port):
            with contextlib.suppress(OSError):
                info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
                idle_ms, size = _INFO.unpack(info)
                # Bytes that gRPC has not read are in the kernel's memory, and are bounded there.
                waiting = fcntl.ioctl(sock.fileno(), termios.FIONREAD, bytes(_INT.size))
                size -= _INT.unpack(waiting)[0]
                found.append(Taken(address, size, idle_ms / 1000))
        return found

    def _end_of_process(self, addresses: Set[Address]) -> None:
        for sock, address in _connections(self._host, self._port):
            if address in addresses:
                _reset(sock.fileno())


def _reset(descriptor: int) -> None:
    """Ends the connection and drops the kernel's buffers. After a `shutdown`, gRPC would still read
    these buffers and the data in flight. A connection that survives is ended again after
    `CLOSING_S`.
    """
    _libc.connect(descriptor, _NO_ADDRESS, len(_NO_ADDRESS))


def _trim() -> None:
    """Frees memory of gRPC: it is in arenas of many threads, which keep freed memory."""
    if hasattr(_libc, "malloc_trim"):
        _libc.malloc_trim(0)


def _taken_bytes() -> int:
    """Resident bytes of this process, without pages of files."""
    resident, shared = _memory_pages()[1:3]
    return (resident - shared) * _PAGE_BYTES


def _connections(host: str, port: int) -> Iterator[tuple[socket.socket, Address]]:
    """Sockets of this process that were accepted at the address, and the remote end of each. They
    belong to gRPC: do not close them; gRPC may close them at any time. `host` empty: any host.
    """
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), _borrowed(int(name)) as sock:
            if sock.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            # A listening or closed socket has no remote end and raises OSError.
            own, other = sock.getsockname(), sock.getpeername()
            if own[1] == port and (not host or host == _plain(own[0])):
                yield sock, (other[0], other[1])


@contextlib.contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    """A socket object for the descriptor, which stays open. Raises OSError when it is no socket."""
    sock = socket.socket(fileno=descriptor)
    try:
        yield sock
    finally:
        sock.detach()


def _plain(host: str) -> str:
    """The numeric address, mapped IPv4 as IPv4; empty for a name and for a wildcard address."""
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return ""
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return "" if address.is_unspecified else str(address)


def _port(peer: str) -> str:
    return peer.rpartition(":")[2]


def _memory_pages() -> list[int]:
    """Size, resident, shared, and more: proc(5), statm."""
    # Not `read`, which checkers treat as a blocking call; a read of /proc does not block.
    descriptor = os.open("/proc/self/statm", os.O_RDONLY)
    try:
        return [int(pages) for pages in os.pread(descriptor, 128, 0).split()]
    finally:
        os.close(descriptor)
