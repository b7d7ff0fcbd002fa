"""The handshake of a peer connection: both sides prove that they know the cluster's token, which is
never sent, and describe themselves.

    dialer                                         acceptor
    OPEN       nonce d                ──────────►
               ◄──────────                         CHALLENGE  nonce a
    PROOF      proof of d, payload d  ──────────►
               ◄──────────                         ANSWER     proof of a, payload a
    READY                             ──────────►

A proof is HMAC-SHA256 under the token over: the protocol's label and version, the role of the
proving side, both nonces, the dialer's payload and the acceptor's (none yet in the dialer's proof).
The roles make a reflected proof useless, and each side's proof useless to the other side. Fresh
nonces of both prevent replay. The proof covers both payloads, so that an intermediary cannot change
the identities. The dialer proves first: a node that only connects learns nothing from which to
guess the token. Payloads are opaque here (`raft.tcp.hello`).

Frames after the handshake have checksums, not authentication: a network where others can change
packets needs TLS (`raft.tcp.channel`) or a tunnel. Inside TLS a proof also covers the binding of
its connection, so that it cannot be relayed to another connection.

`_STEPS` lists all valid steps. Any other frame is Refused. REFUSED may arrive at any time, and is
Refused with the other side's reason. Once PROVEN, the owner checks `payload` and either calls
`agree` or ends the connection with `refusal_frame`. No I/O, clock or randomness here.
"""

import enum
import hmac
from collections.abc import Callable
from typing import Final, Self

import msgspec

from querator.model.limits import PEER_REFUSAL_CHARS_MAX
from querator.raft.refusals import Code, PeerRefused
from querator.raft.tcp.frames import NONCE_BYTES, PROOF_BYTES, VERSION, FrameKind

_LABEL: Final = b"querator peer handshake"

Reply = tuple[FrameKind, bytes]


class HandshakeState(enum.Enum):
    # States of the dialer.
    OPENED = enum.auto()
    PROVING = enum.auto()
    # States of the acceptor.
    LISTENING = enum.auto()
    CHALLENGED = enum.auto()
    ANSWERED = enum.auto()
    # States of both.
    PROVEN = enum.auto()
    """The other side knows the token: its payload must be checked."""
    DONE = enum.auto()


class _Told(msgspec.Struct, array_like=True):
    code: str
    reason: str


_CODES: Final = {code.value: code for code in Code}
_encode = msgspec.msgpack.Encoder().encode
_decode_told = msgspec.msgpack.Decoder(_Told).decode


class Handshake:
    """One side of one handshake."""

    __slots__ = (
        "_dialer_nonce",
        "_dials",
        "_nonce",
        "_own",
        "_token",
        "binding",
        "payload",
        "state",
    )

    def __init__(self, state: HandshakeState, token: bytes, nonce: bytes, own: bytes) -> None:
        assert token
        assert len(nonce) == NONCE_BYTES
        self.state = state
        self.payload = b""
        """The other side's proven payload, from PROVEN on."""
        self.binding = b""
        """Identifies the connection to its two ends, if it has TLS; set before anything arrives."""
        self._dials = state is HandshakeState.OPENED
        self._token = token
        self._nonce = nonce
        self._dialer_nonce = nonce
        self._own = own

    @classmethod
    def dial(cls, token: bytes, nonce: bytes, payload: bytes) -> tuple[Self, Reply]:
        """Begins a handshake. `nonce` is fresh: 32 random bytes."""
        return cls(HandshakeState.OPENED, token, nonce, payload), (FrameKind.OPEN, nonce)

    @classmethod
    def accept(cls, token: bytes, nonce: bytes) -> Self:
        return cls(HandshakeState.LISTENING, token, nonce, b"")

    def receive(self, kind: FrameKind, body: bytes) -> Reply | None:
        """Handles a frame; returns the frame to send, or None. Raises only PeerRefused."""
        if kind is FrameKind.REFUSED:
            raise refusal_text(body)
        step = _STEPS.get((self.state, kind))
        if step is None:
            raise PeerRefused(Code.UNEXPECTED, f"{kind.name} is not expected in a handshake here")
        return step(self, body)

    def agree(self, payload: bytes = b"") -> Reply:
        """Accepts the other side. `payload` is the acceptor's."""
        assert self.state is HandshakeState.PROVEN
        if self._dials:
            self.state = HandshakeState.DONE
            return FrameKind.READY, b""
        self.state = HandshakeState.ANSWERED
        nonces = (self._dialer_nonce, self._nonce)
        proof = self._proof(b"acceptor", *nonces, self.payload, payload)
        return FrameKind.ANSWER, proof + payload

    # --- the dialer's steps ------------------------------------------------------------

    def _challenged(self, body: bytes) -> Reply:
        if len(body) != NONCE_BYTES or body == self._nonce:
            raise PeerRefused(Code.UNEXPECTED, "CHALLENGE has no nonce of its own")
        self.state = HandshakeState.PROVING
        proof = self._proof(b"dialer", self._nonce, body, self._own, b"")
        self._dialer_nonce, self._nonce = self._nonce, body
        return FrameKind.PROOF, proof + self._own

    def _on_answer(self, body: bytes) -> None:
        payload = body[PROOF_BYTES:]
        nonces = (self._dialer_nonce, self._nonce)
        proof = self._proof(b"acceptor", *nonces, self._own, payload)
        self._proven(proof, body, payload)

    # --- the acceptor's steps ----------------------------------------------------------

    def _opened(self, body: bytes) -> Reply:
        if len(body) != NONCE_BYTES or body == self._nonce:
            raise PeerRefused(Code.UNEXPECTED, "OPEN has no nonce of its own")
        self.state = HandshakeState.CHALLENGED
        self._dialer_nonce = body
        return FrameKind.CHALLENGE, self._nonce

    def _tried(self, body: bytes) -> None:
        payload = body[PROOF_BYTES:]
        nonces = (self._dialer_nonce, self._nonce)
        self._proven(self._proof(b"dialer", *nonces, payload, b""), body, payload)

    def _finished(self, _: bytes) -> None:
        self.state = HandshakeState.DONE

    # --- both ----------------------------------------------------------------------------

    def _proven(self, proof: bytes, body: bytes, payload: bytes) -> None:
        if not hmac.compare_digest(proof, body[:PROOF_BYTES]):
            raise PeerRefused(Code.TOKEN, "it has another cluster token than this node")
        self.state = HandshakeState.PROVEN
        self.payload = payload

    def _proof(self, role: bytes, *parts: bytes) -> bytes:
        mac = hmac.new(self._token, digestmod="sha256")
        bound = (self.binding,) if self.binding else ()
        for part in (_LABEL, VERSION.to_bytes(1, "big"), role, *parts, *bound):
            # The length before each part separates it from the next part.
            mac.update(len(part).to_bytes(4, "big") + part)
        return mac.digest()


_STEPS: Final[
    dict[tuple[HandshakeState, FrameKind], Callable[[Handshake, bytes], Reply | None]]
] = {
    (HandshakeState.OPENED, FrameKind.CHALLENGE): Handshake._challenged,
    (HandshakeState.PROVING, FrameKind.ANSWER): Handshake._on_answer,
    (HandshakeState.LISTENING, FrameKind.OPEN): Handshake._opened,
    (HandshakeState.CHALLENGED, FrameKind.PROOF): Handshake._tried,
    (HandshakeState.ANSWERED, FrameKind.READY): Handshake._finished,
}


def refusal_frame(refused: PeerRefused) -> Reply:
    """The frame for the other side. Its body is the same in every version of the protocol."""
    return FrameKind.REFUSED, _encode(_Told(refused.code.value, refused.reason))


def refusal_text(body: bytes) -> PeerRefused:
    """Decodes a REFUSED frame. Its sender may be unproven: the result is bounded and printable."""
    try:
        said = _decode_told(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return PeerRefused(
            Code.UNEXPECTED, "it refuses, and the reason cannot be read", by_peer=True
        )
    code = _CODES.get(said.code, Code.UNEXPECTED)
    reason = "".join(char if char.isprintable() else "?" for char in said.reason)
    return PeerRefused(code, reason[:PEER_REFUSAL_CHARS_MAX], by_peer=True)
