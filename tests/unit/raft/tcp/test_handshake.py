"""The handshake: a peer without the token is refused, whatever it says, repeats or changes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from querator.model.limits import PEER_REFUSAL_CHARS_MAX
from querator.raft.refusals import Code, PeerRefused
from querator.raft.tcp.frames import NONCE_BYTES, PROOF_BYTES, FrameKind
from querator.raft.tcp.handshake import (
    _STEPS,
    Handshake,
    HandshakeState,
    Reply,
    refusal_frame,
    refusal_text,
)

TOKEN = b"the token of the cluster"
D, A = b"d" * NONCE_BYTES, b"a" * NONCE_BYTES
DIALER, ACCEPTOR = b"the dialer's payload", b"the acceptor's payload"

BODIES = st.one_of(
    st.binary(max_size=100),
    st.sampled_from([D, A, b"n" * NONCE_BYTES]),
    st.builds(bytes.__add__, st.binary(min_size=PROOF_BYTES, max_size=PROOF_BYTES), st.binary()),
)


def dialer(token: bytes = TOKEN) -> tuple[Handshake, Reply]:
    return Handshake.dial(token, D, DIALER)


def acceptor(token: bytes = TOKEN, nonce: bytes = A) -> Handshake:
    return Handshake.accept(token, nonce)


def sent(reply: Reply | None) -> Reply:
    assert reply is not None
    return reply


def shaken() -> tuple[list[Reply], Handshake, Handshake]:
    """All frames of a successful handshake, and its two sides."""
    one, opening = dialer()
    other = acceptor()
    challenge = sent(other.receive(*opening))
    proof = sent(one.receive(*challenge))
    assert other.receive(*proof) is None
    assert other.state is HandshakeState.PROVEN
    answer = other.agree(ACCEPTOR)
    assert one.receive(*answer) is None
    ready = one.agree()
    assert other.receive(*ready) is None
    return [opening, challenge, proof, answer, ready], one, other


def code_of(handshake: Handshake, frame: Reply) -> Code:
    with pytest.raises(PeerRefused) as caught:
        handshake.receive(*frame)
    return caught.value.code


def test_two_who_know_the_token_agree_on_what_both_said():
    frames, one, other = shaken()
    assert (one.state, other.state) == (HandshakeState.DONE, HandshakeState.DONE)
    assert (one.payload, other.payload) == (ACCEPTOR, DIALER)
    assert [kind for kind, _ in frames] == list(FrameKind)[1:6]
    assert not any(TOKEN in body for _, body in frames)


def test_a_dialer_with_another_token_learns_nothing_but_that():
    one, opening = dialer(b"guess")
    other = acceptor()
    proof = sent(one.receive(*sent(other.receive(*opening))))
    assert code_of(other, proof) is Code.TOKEN
    assert other.payload == b""


def test_an_acceptor_with_another_token_is_refused():
    one, opening = dialer()
    other = acceptor()
    sent(one.receive(*sent(other.receive(*opening))))
    false = Handshake.accept(b"guess", A)
    false.receive(*opening)
    # This acceptor accepts every dialer.
    false.state, false.payload = HandshakeState.PROVEN, DIALER
    assert code_of(one, false.agree(ACCEPTOR)) is Code.TOKEN
    assert one.state is HandshakeState.PROVING


def test_a_mirror_is_refused():
    one, opening = dialer()
    assert code_of(one, (FrameKind.CHALLENGE, opening[1])) is Code.UNEXPECTED
    one, opening = dialer()
    proof = sent(one.receive(FrameKind.CHALLENGE, A))
    assert code_of(one, (FrameKind.ANSWER, proof[1])) is Code.TOKEN
    other = acceptor()
    assert code_of(other, (FrameKind.OPEN, A)) is Code.UNEXPECTED


def test_a_dialer_between_two_nodes_cannot_use_the_proof_of_one_as_answer_to_it():
    one, opening = dialer()
    other = acceptor()
    challenge = sent(other.receive(*opening))
    proof = sent(one.receive(*challenge))
    third = acceptor(nonce=A)
    third.receive(*opening)
    # The third node has the token as well, and answers a payload that differs from the first
    # node's.
    third.state, third.payload = HandshakeState.PROVEN, b"another payload"
    assert code_of(one, third.agree(ACCEPTOR)) is Code.TOKEN
    assert other.receive(*proof) is None


def test_a_recorded_handshake_is_of_no_use_again():
    (opening, _, proof, answer, _), _, _ = shaken()
    again = acceptor(nonce=b"b" * NONCE_BYTES)
    again.receive(*opening)
    assert code_of(again, proof) is Code.TOKEN
    one, _ = Handshake.dial(TOKEN, b"e" * NONCE_BYTES, DIALER)
    one.receive(FrameKind.CHALLENGE, A)
    assert code_of(one, answer) is Code.TOKEN


@given(st.data())
def test_whatever_is_changed_on_the_way_nobody_believes_anything_else(data):
    def altered(frame: Reply) -> Reply:
        body = bytearray(frame[1])
        if body and not changed:
            bit = data.draw(st.none() | st.integers(0, 8 * len(body) - 1))
            if bit is not None:
                body[bit // 8] ^= 1 << bit % 8
                changed.append(frame[0])
        return frame[0], bytes(body)

    changed: list[FrameKind] = []
    one, opening = dialer()
    other = acceptor()
    try:
        proof = one.receive(*altered(sent(other.receive(*altered(opening)))))
        other.receive(*altered(sent(proof)))
        one.receive(*altered(other.agree(ACCEPTOR)))
        other.receive(*one.agree())
    except PeerRefused:
        assert changed
        assert one.state is not HandshakeState.DONE
        assert other.payload in (b"", DIALER)
    else:
        assert not changed
        assert (one.payload, other.payload) == (ACCEPTOR, DIALER)


@given(
    st.booleans(),
    st.lists(st.tuples(st.sampled_from([kind for kind in FrameKind if kind]), BODIES), max_size=6),
)
def test_whatever_is_said_without_the_token_proves_nothing_and_raises_only_refused(dials, frames):
    handshake = dialer()[0] if dials else acceptor()
    for frame in frames:
        try:
            handshake.receive(*frame)
        except PeerRefused:
            break
    assert handshake.state not in (HandshakeState.PROVEN, HandshakeState.DONE)
    assert handshake.payload == b""


@pytest.mark.parametrize("state", list(HandshakeState))
def test_what_is_not_in_the_table_is_refused(state):
    for kind in FrameKind:
        if (state, kind) not in _STEPS and kind is not FrameKind.REFUSED:
            handshake = acceptor()
            handshake.state = state
            assert code_of(handshake, (kind, b"")) is Code.UNEXPECTED


@pytest.mark.parametrize("code", list(Code))
def test_a_refusal_is_told_in_its_own_words(code):
    kind, body = refusal_frame(PeerRefused(code, "because of this\nand a second line"))
    handshake, _ = dialer()
    with pytest.raises(PeerRefused) as caught:
        handshake.receive(kind, body)
    assert (caught.value.code, caught.value.by_peer) == (code, True)
    assert caught.value.reason == "because of this?and a second line"


@given(st.binary(max_size=3000))
def test_a_refusal_that_cannot_be_read_is_one_all_the_same(body):
    assert refusal_text(body).by_peer


@pytest.mark.parametrize(
    "body",
    [
        b"\x91" * 2000,
        b"\x93\xa1a\xa1b" + b"\x91" * 2000,
        b"\x92\xa5token\xa2\xff\xfe",
        b"\x92\xa5later\xa3why",
        b"\x92\xa5token\xda\x0f\xa0" + b"x" * 4000,
    ],
)
def test_odd_refusals_are_bounded(body):
    refused = refusal_text(body)
    assert refused.code in (Code.UNEXPECTED, Code.TOKEN)
    assert 0 < len(refused.reason) <= PEER_REFUSAL_CHARS_MAX
