"""The handshake of a link: both nodes prove that they know the cluster's token.

The handshake is that of peer connections (`raft.tcp.handshake`) with a separate key, derived from
the token, so that a proof for one port is of no use on the other. Later frames are not
authenticated one by one: a network where others can change packets needs TLS or a tunnel.
"""

import asyncio
import hmac
import secrets
from collections.abc import Awaitable, Callable

from querator.raft.refusals import Code, PeerRefused
from querator.raft.tcp.frames import NONCE_BYTES, FrameKind
from querator.raft.tcp.handshake import Handshake, HandshakeState, refusal_frame
from querator.server.link.node_frames import (
    LINK_VERSION,
    FrameError,
    LinkHello,
    decode_hello,
    encode_hello,
)
from querator.v1 import node_service_pb2

HANDSHAKE_S = 2.0
_BODY_BYTES_MAX = 8 * 1024
_KINDS = {kind.value: kind for kind in FrameKind}

Step = node_service_pb2.LinkHandshake
Send = Callable[[Step], Awaitable[None]]
Receive = Callable[[], Awaitable[Step]]
"""Raises PeerRefused when it receives something other than a step."""


def link_key(token: bytes) -> bytes:
    """The key of links of the cluster with this token."""
    return hmac.digest(token, b"querator node link", "sha256")


async def dial(key: bytes, own: LinkHello, send: Send, receive: Receive) -> None:
    """Authenticates this node and the other one to each other. Raises PeerRefused, TimeoutError."""
    async with asyncio.timeout(HANDSHAKE_S):
        shake, opening = Handshake.dial(key, secrets.token_bytes(NONCE_BYTES), encode_hello(own))
        await send(_step(*opening))
        await _until(shake, HandshakeState.PROVEN, send, receive)
        theirs = _hello(shake)
        if theirs.name != own.to:
            raise PeerRefused(Code.WRONG_NODE, f"it is {theirs.name}, and not {own.to}")
        await send(_step(*shake.agree()))


async def accept(
    key: bytes,
    send: Send,
    receive: Receive,
    judge: Callable[[LinkHello], LinkHello],
) -> LinkHello:
    """Authenticates the node that has opened the link and returns its hello. `judge` gets that
    hello and returns this node's hello, or raises Refused. A refused node receives the reason.
    Raises PeerRefused, TimeoutError.
    """
    try:
        async with asyncio.timeout(HANDSHAKE_S):
            shake = Handshake.accept(key, secrets.token_bytes(NONCE_BYTES))
            await _until(shake, HandshakeState.PROVEN, send, receive)
            theirs = _hello(shake)
            await send(_step(*shake.agree(encode_hello(judge(theirs)))))
            await _until(shake, HandshakeState.DONE, send, receive)
            return theirs
    except PeerRefused as refused:
        if not refused.by_peer:
            await send(_step(*refusal_frame(refused)))
        raise


async def _until(shake: Handshake, state: HandshakeState, send: Send, receive: Receive) -> None:
    while shake.state is not state:
        step = await receive()
        kind = _KINDS.get(step.kind)
        if kind is None or len(step.body) > _BODY_BYTES_MAX:
            raise PeerRefused(Code.UNEXPECTED, "it sends a frame that is no step of a handshake")
        answer = shake.receive(kind, step.body)
        if answer is not None:
            await send(_step(*answer))


def _step(kind: FrameKind, body: bytes) -> Step:
    return Step(kind=kind, body=body)


def _hello(shake: Handshake) -> LinkHello:
    try:
        hello = decode_hello(shake.payload)
    except FrameError as error:
        raise PeerRefused(Code.UNEXPECTED, "it does not identify itself") from error
    if hello.version != LINK_VERSION:
        raise PeerRefused(
            Code.VERSION,
            f"it speaks version {hello.version} of links, and this node {LINK_VERSION}",
        )
    return hello
