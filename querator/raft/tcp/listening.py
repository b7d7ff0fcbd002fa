"""The listening socket: accepts connections, a bounded number at a time, and pauses for a moment
when the machine has no more descriptors.
"""

import select
import socket
from collections.abc import Iterator
from typing import Any, Final

from querator import telemetry
from querator.config import listen_error, parse_address
from querator.model.limits import PEER_ACCEPTS_TURN_MAX, PEER_RETRY_MS_MAX
from querator.raft.tcp.connection import host_port
from querator.raft.tcp.dialing import numeric, resolve

_REST_S: Final = PEER_RETRY_MS_MAX / 1000
_NEVER: Final = float("inf")
_BACKLOG: Final = 128

_log = telemetry.logger(__name__)


class Listener:
    def __init__(self, address: str, poll: select.epoll) -> None:
        """Raises ListenError when it cannot listen, ConfigError when the address is not
        HOST:PORT.
        """
        host, port = parse_address(address, setting="listen_peers")
        try:
            family, target = (numeric(host, port) or resolve(host, port))[0]
            self._socket = socket.create_server(target[:2], family=family, backlog=_BACKLOG)
        except OSError as error:
            raise listen_error("listen_peers", address, error) from error
        self._socket.setblocking(False)
        self.address = host_port(self._socket.getsockname())
        """HOST:PORT, with the real port."""
        self.due_s = _NEVER
        """When to call `on_time`; infinity: never."""
        self._poll = poll
        poll.register(self._socket, select.EPOLLIN)

    def fileno(self) -> int:
        return self._socket.fileno()

    def accept(self, now_s: float) -> Iterator[tuple[socket.socket, str]]:
        """Sockets and the addresses of their other ends."""
        for _ in range(PEER_ACCEPTS_TURN_MAX):
            try:
                sock, address = self._accept()
            except (BlockingIOError, ConnectionError):
                return
            except OSError as error:
                # The socket would be ready all the time, and accept would fail each time.
                _log.error("peers.accept_failed", reason=error.strerror)
                self._poll.unregister(self._socket)
                self.due_s = now_s + _REST_S
                return
            yield sock, host_port(address)

    def on_time(self, now_s: float) -> None:
        if now_s >= self.due_s:
            self.due_s = _NEVER
            self._poll.register(self._socket, select.EPOLLIN)

    def close(self) -> None:
        self._socket.close()

    def _accept(self) -> tuple[socket.socket, Any]:
        return self._socket.accept()
