"""Asks a node for its description before there is a cluster; used by formation."""

import secrets
import socket
from typing import Final

from querator.config import ConfigError, parse_address
from querator.raft.clock import Clock, RealClock
from querator.raft.refusals import PeerRefused
from querator.raft.tcp.channel import PeerTls
from querator.raft.tcp.connection import PeerConnection
from querator.raft.tcp.frames import NONCE_BYTES, QUERY_LIMITS
from querator.raft.tcp.handshake import Handshake, HandshakeState
from querator.raft.tcp.hello import PeerInfo, Query, encode_hello

_CLOCK: Final = RealClock()


class QueryFailed(Exception):
    """There is no answer; the message is one line with the reason."""


class QueryRefused(QueryFailed):
    """The other node refuses, with this code and reason."""

    def __init__(self, address: str, refused: PeerRefused) -> None:
        super().__init__(f"{address}: it refuses: {refused.reason}")
        self.code = refused.code
        self.reason = refused.reason


def query(
    address: str,
    token: bytes,
    timeout_s: float,
    *,
    info: PeerInfo | None = None,
    tls: PeerTls | None = None,
    clock: Clock = _CLOCK,
) -> bytes:
    """The description of the node at `address` (HOST:PORT), which has proven that it knows the
    token. Blocks for at most `timeout_s`, in addition to resolving a name: call it on a thread of
    its own. `info` describes the asking node; `tls` None: unencrypted.

    Raises QueryFailed, and QueryRefused when the other node gives the reason.
    """
    deadline_s = clock.monotonic_s() + timeout_s
    try:
        with socket.create_connection(parse_address(address), timeout=timeout_s) as sock:
            connection = PeerConnection(
                sock, address, dialed=address, now_s=clock.monotonic_s(), deadline_s=deadline_s
            )
            if tls is not None:
                connection.secure(tls.dial())
            return _ask(connection, token, Query(info), clock)
    except PeerRefused as refused:
        if refused.by_peer:
            raise QueryRefused(address, refused) from refused
        raise QueryFailed(f"{address}: {refused.reason}") from refused
    except ConfigError as error:
        raise QueryFailed(f"{address!r} is not HOST:PORT") from error
    except (OSError, UnicodeError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        raise QueryFailed(f"{address}: {reason}") from error


def _ask(connection: PeerConnection, token: bytes, asked: Query, clock: Clock) -> bytes:
    """Raises PeerRefused and OSError."""
    question = encode_hello(asked)
    handshake, reply = Handshake.dial(token, secrets.token_bytes(NONCE_BYTES), question)
    connection.reader.limits = QUERY_LIMITS
    connection.put(*reply)
    while True:
        connection.send(clock.monotonic_s())
        arrived = connection.reader.next()
        if arrived is None:
            if not connection.more():
                _wait(connection, clock)
            continue
        kind, body = arrived
        handshake.binding = connection.binding
        answer = handshake.receive(kind, bytes(body))
        if handshake.state is HandshakeState.PROVEN:
            return handshake.payload
        if answer is not None:
            connection.put(*answer)


def _wait(connection: PeerConnection, clock: Clock) -> None:
    """Waits until bytes arrive."""
    now_s = clock.monotonic_s()
    if now_s >= connection.deadline_s:
        raise TimeoutError("it does not answer in time")
    connection.socket.settimeout(connection.deadline_s - now_s)
    try:
        connection.receive(now_s)
    except EOFError as error:
        what = "in the middle of TLS" if connection.awaits_tls else "without an answer"
        raise ConnectionError(f"it closed the connection {what}") from error
    except PeerRefused:
        # TLS may have an alert to send to the other side.
        connection.send(now_s)
        raise
