"""Outgoing connections. Names are resolved at each attempt, and their addresses tried one after the
other. After the last address the next attempt waits, longer each time, with jitter.

A name is resolved in a thread of its own, because a resolver that hangs must not block the raft
thread; numeric addresses need none. The thread only stores its result and calls `wake`.
"""

import errno
import os
import random
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from querator import telemetry
from querator.config import ConfigError, parse_address
from querator.model.limits import (
    PEER_RESOLVE_MS_MAX,
    PEER_RETRY_MS_MAX,
    PEER_RETRY_MS_MIN,
    PEER_SILENCE_MS_MAX,
)
from querator.raft.tcp.connection import set_up

_RETRY_S_MIN: Final = PEER_RETRY_MS_MIN / 1000
_RETRY_S_MAX: Final = PEER_RETRY_MS_MAX / 1000
_RESOLVE_S_MAX: Final = PEER_RESOLVE_MS_MAX / 1000
_PROVED_S: Final = PEER_SILENCE_MS_MAX / 1000
"""A connection that has lived this long resets the waits."""

Target = tuple[socket.AddressFamily, Any]
"""Family and socket address."""

Resolve = Callable[[str, int], list[Target]]

_log = telemetry.logger(__name__)


def resolve(host: str, port: int) -> list[Target]:
    """Resolves by the machine's resolver; may block for long. Raises OSError, UnicodeError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(family, address) for family, _, _, _, address in found]


def numeric(host: str, port: int) -> list[Target] | None:
    """Targets of a numeric address, without a resolver; None for a name."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        return None
    return [(family, address) for family, _, _, _, address in found]


class _Peer:
    """A dialed node. Busy from the beginning of an attempt to the end of its connection."""

    __slots__ = (
        "address",
        "busy",
        "due_s",
        "opened_s",
        "resolving",
        "said",
        "targets",
        "wait_s",
    )

    def __init__(self, address: str, now_s: float) -> None:
        self.address = address
        self.busy = False
        self.due_s = now_s
        self.opened_s: float | None = None
        self.resolving: object | None = None
        """The current resolution: results of older ones are ignored."""
        self.said = ""
        """The last logged reason, so that each reason is logged once."""
        self.targets: deque[Target] = deque()
        self.wait_s = _RETRY_S_MIN


class Dialer:
    """Begins connections; their owner reports the end of each."""

    def __init__(
        self, *, chance: random.Random, wake: Callable[[], None], resolve: Resolve = resolve
    ) -> None:
        self._chance = chance
        self._wake = wake
        self._resolve = resolve
        self._peers: dict[str, _Peer] = {}
        self._resolved: deque[tuple[str, object, list[Target] | str]] = deque()

    def set_peers(self, addresses: Mapping[str, str], now_s: float) -> None:
        """Sets the nodes to dial from here on, by name. Connections of other nodes continue."""
        for name in self._peers.keys() - addresses.keys():
            del self._peers[name]
        for name, address in addresses.items():
            peer = self._peers.get(name)
            if peer is None:
                self._peers[name] = _Peer(address, now_s)
            elif peer.address != address:
                peer.address = address
                peer.targets.clear()
                peer.resolving = None
                peer.due_s = min(peer.due_s, now_s)

    def due_s(self) -> float:
        """When `dial` has something to do without being woken; infinity: never."""
        waits = (peer.due_s for peer in self._peers.values() if not peer.busy)
        return min(waits, default=float("inf"))

    def dial(self, now_s: float) -> Iterator[tuple[str, str, socket.socket]]:
        """Name, address and socket of each connection begun, at most one for each peer."""
        self._take_resolved(now_s)
        for name, peer in list(self._peers.items()):
            if peer.busy or now_s < peer.due_s:
                continue
            if peer.resolving is not None:
                peer.resolving = None
                self._back_off(name, peer, now_s, "its name takes too long to be resolved")
                continue
            if not peer.targets:
                self._find(name, peer, now_s)
            sock = self._connect(name, peer, now_s)
            if sock is not None:
                yield name, peer.address, sock

    def failed(self, name: str, reason: str, now_s: float) -> None:
        """The connect failed: the next address, or the next attempt, is due."""
        peer = self._peers.get(name)
        if peer is None:
            return
        peer.busy = False
        if peer.targets:
            peer.due_s = now_s
        else:
            self._back_off(name, peer, now_s, reason)

    def opened(self, name: str, now_s: float) -> None:
        peer = self._peers.get(name)
        if peer is not None:
            peer.opened_s = now_s
            peer.said = ""

    def ended(self, name: str, now_s: float) -> None:
        """An established connection has ended; its owner has logged the reason."""
        peer = self._peers.get(name)
        if peer is None:
            return
        peer.busy = False
        peer.targets.clear()
        if peer.opened_s is not None and now_s - peer.opened_s >= _PROVED_S:
            peer.wait_s = _RETRY_S_MIN
        peer.opened_s = None
        self._wait(peer, now_s)

    def _back_off(self, name: str, peer: _Peer, now_s: float, reason: str) -> None:
        if reason != peer.said:
            peer.said = reason
            _log.info("peers.unreachable", name=name, address=peer.address, reason=reason)
        self._wait(peer, now_s)

    def _wait(self, peer: _Peer, now_s: float) -> None:
        peer.due_s = now_s + peer.wait_s * self._chance.uniform(0.5, 1.0)
        peer.wait_s = min(2 * peer.wait_s, _RETRY_S_MAX)

    # --- names ---------------------------------------------------------------------------

    def _find(self, name: str, peer: _Peer, now_s: float) -> None:
        """Finds targets at once, or begins a resolution, or fails."""
        try:
            host, port = parse_address(peer.address)
        except ConfigError:
            self._back_off(name, peer, now_s, "its address is not HOST:PORT")
            return
        found = numeric(host, port)
        if found is not None:
            peer.targets.extend(found)
            return
        peer.resolving = token = object()
        peer.due_s = now_s + _RESOLVE_S_MAX
        threading.Thread(
            target=self._run, args=(name, token, host, port), name="resolve", daemon=True
        ).start()

    def _run(self, name: str, token: object, host: str, port: int) -> None:
        try:
            result: list[Target] | str = self._resolve(host, port) or "its name has no address"
        except (OSError, UnicodeError) as error:
            result = f"its name cannot be resolved: {_words(error)}"
        self._resolved.append((name, token, result))
        self._wake()

    def _take_resolved(self, now_s: float) -> None:
        while self._resolved:
            name, token, result = self._resolved.popleft()
            peer = self._peers.get(name)
            if peer is None or peer.resolving is not token:
                continue
            peer.resolving = None
            if isinstance(result, str):
                self._back_off(name, peer, now_s, result)
            else:
                peer.targets.extend(result)
                peer.due_s = now_s

    # --- connecting ----------------------------------------------------------------------

    def _connect(self, name: str, peer: _Peer, now_s: float) -> socket.socket | None:
        """Begins to connect to the next target that can be tried at all."""
        reason = ""
        while peer.targets:
            family, address = peer.targets.popleft()
            try:
                sock = socket.socket(family, socket.SOCK_STREAM)
            except OSError as error:
                reason = _words(error)
                continue
            try:
                set_up(sock)
                failure = sock.connect_ex(address)
            except (OSError, OverflowError) as error:
                reason = _words(error)
                sock.close()
                continue
            if failure in (0, errno.EINPROGRESS):
                peer.busy = True
                return sock
            reason = os.strerror(failure)
            sock.close()
        if reason:
            self._back_off(name, peer, now_s, reason)
        return None


def _words(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
