"""Asking a node for its description, before there is a cluster: what formation uses."""

import secrets
import socket
from typing import Final

from querator.config import ConfigError, parse_address
from querator.raft.clock import Clock, RealClock
from querator.raft.frames import NONCE_BYTES, QUERY_LIMITS, FrameReader, Kind, frame
from querator.raft.handshake import Handshake, State
from querator.raft.hellos import PeerInfo, Query, encode_hello
from querator.raft.refusals import Refused

_CLOCK: Final = RealClock()


class QueryFailed(Exception):
    """There is no answer; the message is one line that says why."""


def query(
    address: str,
    token: bytes,
    timeout_s: float,
    *,
    info: PeerInfo | None = None,
    clock: Clock = _CLOCK,
) -> bytes:
    """The description of the node at `address` (HOST:PORT), which has proven that it knows the
    token. Blocks, `timeout_s` at most besides resolving a name: for a thread of its own. `info` is
    what it is told of the node that asks.

    Raises QueryFailed.
    """
    deadline_s = clock.monotonic_s() + timeout_s
    try:
        with socket.create_connection(parse_address(address), timeout=timeout_s) as sock:
            return _ask(sock, token, Query(info), deadline_s, clock)
    except Refused as refused:
        reason = f"it refuses: {refused.reason}" if refused.by_peer else refused.reason
        raise QueryFailed(f"{address}: {reason}") from refused
    except ConfigError as error:
        raise QueryFailed(f"{address!r} is not HOST:PORT") from error
    except (OSError, UnicodeError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        raise QueryFailed(f"{address}: {reason}") from error


def _ask(sock: socket.socket, token: bytes, asked: Query, deadline_s: float, clock: Clock) -> bytes:
    """Raises Refused and OSError."""
    question = encode_hello(asked)
    handshake, reply = Handshake.dial(token, secrets.token_bytes(NONCE_BYTES), question)
    reader = FrameReader(QUERY_LIMITS)
    _send(sock, reply)
    while True:
        arrived = reader.next()
        if arrived is None:
            left_s = deadline_s - clock.monotonic_s()
            if left_s <= 0:
                raise TimeoutError("it does not answer in time")
            sock.settimeout(left_s)
            count = sock.recv_into(reader.space())
            if not count:
                raise ConnectionError("it closed the connection without an answer")
            reader.received(count)
            continue
        kind, body = arrived
        answer = handshake.receive(kind, bytes(body))
        if handshake.state is State.PROVEN:
            return handshake.payload
        if answer is not None:
            _send(sock, answer)


def _send(sock: socket.socket, reply: tuple[Kind, bytes]) -> None:
    sock.sendall(b"".join(frame(*reply)))
