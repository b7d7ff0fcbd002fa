"""Frames: bytes that arrive, in pieces of any size, yield a frame that was sent, or are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from querator.model.limits import MIB, PEER_FRAME_BYTES_MAX, PEER_RECEIVE_BYTES
from querator.raft.refusals import Code, PeerRefused
from querator.raft.tcp.frames import (
    HANDSHAKE_LIMITS,
    HEADER_BYTES,
    NONCE_BYTES,
    OPEN_LIMITS,
    FrameKind,
    FrameReader,
    Limits,
    frame,
)
from querator.storage.sealed import checksum

Frame = tuple[FrameKind, bytes]

FRAMES = st.lists(
    st.one_of(
        st.tuples(st.just(FrameKind.MESSAGES), st.binary(max_size=300)),
        st.tuples(st.just(FrameKind.PING), st.just(b"")),
    ),
    max_size=8,
)


def on_the_wire(frames: list[Frame]) -> bytes:
    return b"".join(b"".join(frame(kind, body)) for kind, body in frames)


def feed(reader: FrameReader, data: bytes) -> list[Frame]:
    """The frames that `data` completes."""
    frames = []
    rest = memoryview(data)
    while rest:
        space = reader.space()
        count = min(len(space), len(rest))
        assert count > 0
        space[:count] = rest[:count]
        reader.received(count)
        rest = rest[count:]
        while (arrived := reader.next()) is not None:
            frames.append((arrived[0], bytes(arrived[1])))
    return frames


def feed_bytewise(reader: FrameReader, data: bytes, arrived: list[Frame]) -> None:
    for position in range(len(data)):
        arrived += feed(reader, data[position : position + 1])


def code_of(data: bytes, limits: Limits = OPEN_LIMITS) -> Code:
    with pytest.raises(PeerRefused) as caught:
        feed(FrameReader(limits), data)
    return caught.value.code


@given(FRAMES, st.lists(st.integers(1, 200)))
def test_frames_arrive_however_they_are_cut(frames, cuts):
    reader, data, arrived = FrameReader(OPEN_LIMITS), on_the_wire(frames), []
    for cut in cuts:
        arrived += feed(reader, data[:cut])
        data = data[cut:]
    arrived += feed(reader, data)
    assert arrived == frames
    assert not reader.partial


def test_two_frames_cut_at_every_position():
    frames = [(FrameKind.MESSAGES, b"a body"), (FrameKind.PING, b"")]
    data = on_the_wire(frames)
    for cut in range(len(data) + 1):
        reader = FrameReader(OPEN_LIMITS)
        first = feed(reader, data[:cut])
        assert first == frames[: len(first)]
        assert reader.partial is (cut not in (0, HEADER_BYTES + 6, len(data)))
        assert first + feed(reader, data[cut:]) == frames


@given(FRAMES.filter(bool), st.data())
def test_a_flipped_bit_never_becomes_another_frame(frames, data):
    wire = bytearray(on_the_wire(frames))
    bit = data.draw(st.integers(0, 8 * len(wire) - 1))
    wire[bit // 8] ^= 1 << bit % 8
    arrived: list[Frame] = []
    with pytest.raises(PeerRefused):
        feed_bytewise(FrameReader(OPEN_LIMITS), bytes(wire), arrived)
    assert arrived == frames[: len(arrived)]


@given(st.binary(min_size=1, max_size=200), st.sampled_from([OPEN_LIMITS, HANDSHAKE_LIMITS]))
def test_garbage_is_refused_or_waited_for(data, limits):
    reader = FrameReader(limits)
    try:
        assert feed(reader, data) == []
    except PeerRefused:
        return
    assert reader.partial
    assert len(data) < HEADER_BYTES


@given(st.binary(max_size=200))
def test_garbage_behind_the_magic_is_refused(data):
    data = b"QP" + data
    if len(data) < HEADER_BYTES:
        assert feed(FrameReader(OPEN_LIMITS), data) == []
    else:
        assert code_of(data) is Code.DAMAGED


def test_a_frame_too_large_is_refused_by_its_header_and_says_what_is_allowed():
    header = frame(FrameKind.OPEN, bytes(NONCE_BYTES + 1))[0][:HEADER_BYTES]
    with pytest.raises(PeerRefused, match=r"OPEN has 33 bytes; the most is 32") as caught:
        feed(FrameReader(HANDSHAKE_LIMITS), header)
    assert caught.value.code is Code.TOO_LARGE
    with pytest.raises(PeerRefused, match=str(PEER_FRAME_BYTES_MAX)):
        feed(
            FrameReader(OPEN_LIMITS), frame(FrameKind.MESSAGES, bytes(PEER_FRAME_BYTES_MAX + 1))[0]
        )


def test_who_has_proven_nothing_may_not_send_messages():
    assert code_of(frame(FrameKind.MESSAGES)[0], HANDSHAKE_LIMITS) is Code.UNEXPECTED


def test_another_version_is_refused_unless_it_refuses():
    def of_version(kind: FrameKind, body: bytes) -> bytes:
        front = b"QP\x07" + frame(kind, body)[0][3:12]
        return front + checksum(b"", front).to_bytes(4, "big") + body

    assert code_of(of_version(FrameKind.PING, b"")) is Code.VERSION
    with pytest.raises(PeerRefused, match="version 7 of the peer protocol, and this node 1"):
        feed(FrameReader(), of_version(FrameKind.OPEN, b"n" * NONCE_BYTES))
    assert feed(FrameReader(), of_version(FrameKind.REFUSED, b"why")) == [
        (FrameKind.REFUSED, b"why")
    ]


@pytest.mark.parametrize(
    ("begin", "who"),
    [
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "a gRPC or HTTP/2 client"),
        (b"GET / HTTP/1.1\r\n", "an HTTP client"),
        (b"SSH-2.0-OpenSSH", "an SSH client"),
        (b"\x00", r"a client that begins with b'\\x00'"),
    ],
)
def test_strangers_are_named(begin, who):
    with pytest.raises(PeerRefused, match=who) as caught:
        feed(FrameReader(), begin)
    assert caught.value.code is Code.STRANGER


def test_a_large_frame_is_moved_once_and_its_buffer_given_back():
    large = b"x" * PEER_FRAME_BYTES_MAX
    frames = [(FrameKind.MESSAGES, b"small"), (FrameKind.MESSAGES, large), (FrameKind.PING, b"")]
    data = memoryview(on_the_wire(frames))
    reader = FrameReader(OPEN_LIMITS)
    arrived: list[FrameKind] = []
    buffers: list[object] = []
    lengths: list[int] = []
    while data:
        space = reader.space()
        if not any(space.obj is buffer for buffer in buffers):
            buffers.append(space.obj)
        count = min(len(space), len(data), MIB)
        space[:count] = data[:count]
        reader.received(count)
        data = data[count:]
        while (got := reader.next()) is not None:
            arrived.append(got[0])
            lengths.append(len(got[1]))
    assert arrived == [kind for kind, _ in frames]
    assert lengths == [len(body) for _, body in frames]
    assert len(buffers) == 3, "a small one, that of the frame, a small one"
    assert len(reader.space()) == PEER_RECEIVE_BYTES
