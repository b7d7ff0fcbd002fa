"""What replicas of a group, and nodes, say to each other, and how it is written in a frame.

Messages of a group travel in an `Envelope`. Terms make every message of an older leadership
recognisable: a receiver drops it, or answers with its own term. The numbers follow Ongaro,
Consensus: Bridging Theory and Practice; figures 3.1 and 5.3, sections 3.10 (transfer), 6.4 (reads),
9.6 (pre-vote).

A frame is a list of messages between two nodes in msgpack, each `[tag, field, …]`. Its bytes are
bounded by the transport. Whatever does not decode to exactly this is a MessageError: the sender is
not a node of this release, and the connection ends.
"""

from collections.abc import Iterator

import msgspec

from querator.model.ids import GroupId
from querator.model.limits import PEER_FRAME_BYTES_MAX
from querator.model.starts import Met


class MessageError(Exception):
    """The bytes are no frame of messages."""


class LogEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An entry on its way; its index follows from its place. `kind` as of `raft.log.journal`."""

    term: int
    now_ms: int
    kind: int
    command: bytes
    attachments: tuple[bytes, ...] = ()


class RequestVote(msgspec.Struct, frozen=True, array_like=True, tag="v", gc=False):
    """The candidate's term and the end of its log.

    `pre`: would you vote for me in this term? Changes nothing at either side. `transfer`: the
    leader itself asked for this election, so that it does not count that it was heard lately.
    `wall_ms`: the sender's wall clock; 0: not said.
    """

    term: int
    last_index: int
    last_term: int
    pre: bool = False
    transfer: bool = False
    wall_ms: int = 0


class VoteReply(msgspec.Struct, frozen=True, array_like=True, tag="w", gc=False):
    """`term` of the request when granted, else the voter's own. `wall_ms` as in the request."""

    term: int
    granted: bool
    pre: bool = False
    wall_ms: int = 0


class Append(msgspec.Struct, frozen=True, array_like=True, tag="a", gc=False):
    """Entries that follow (prev_index, prev_term). `sequence` counts the leader's messages to this
    follower in its term; the reply repeats it, and `read_round`.
    """

    term: int
    sequence: int
    read_round: int
    prev_index: int
    prev_term: int
    commit_index: int
    entries: tuple[LogEntry, ...] = ()


class AppendReply(msgspec.Struct, frozen=True, array_like=True, tag="b", gc=False):
    """After the follower's sync. `success`: its log equals the leader's up to `index`, on disk.

    Else `index` is where the leader should try: the first of the follower's entries of
    `conflict_term`, which is the term it has at prev_index, or the end of its log (0: it has none
    there). A reply of a higher term says only that.
    """

    term: int
    sequence: int
    read_round: int
    success: bool
    index: int
    conflict_term: int = 0


class TimeoutNow(msgspec.Struct, frozen=True, array_like=True, tag="t", gc=False):
    """The leader wants this follower, which has all of its log, to stand for election at once."""

    term: int


class SnapshotOffer(msgspec.Struct, frozen=True, array_like=True, tag="o", gc=False):
    """A leader wants to send its state, or to go on with that; see `raft.snapshot.protocol`.

    `number` counts its snapshots of this group in this term.
    """

    term: int
    number: int


class SnapshotChunk(msgspec.Struct, frozen=True, array_like=True, tag="s", gc=False):
    """A piece of the stream, from `sequence` 1 on. `crc` is the CRC-32 of the last chunk's `crc` (4
    bytes, big-endian; 0 before the first) and the content, so that it is the whole stream's.
    """

    term: int
    number: int
    sequence: int
    crc: int
    content: bytes


class SnapshotReply(msgspec.Struct, frozen=True, array_like=True, tag="r", gc=False):
    """After the follower's sync: chunks up to `sequence` are on its disk. `verdict` as of
    `raft.snapshot.protocol.Verdict`, which says what `index` is.
    """

    term: int
    number: int
    verdict: int
    sequence: int = 0
    index: int = 0
    reason: str = ""


GroupMessage = (
    RequestVote
    | VoteReply
    | Append
    | AppendReply
    | TimeoutNow
    | SnapshotOffer
    | SnapshotChunk
    | SnapshotReply
)


class Envelope(msgspec.Struct, frozen=True, array_like=True, tag="e", gc=False):
    """A message of a group from replica `sender` to replica `to`."""

    group: GroupId
    to: int
    sender: int
    message: GroupMessage


class Beat(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A leader's empty message to a follower whose log it knows: `commit_index` is at most what the
    follower has acknowledged in this term.
    """

    group: GroupId
    to: int
    sender: int
    term: int
    commit_index: int


class Heartbeat(msgspec.Struct, frozen=True, array_like=True, tag="h", gc=False):
    """The beats of all groups that the sender leads and the receiver follows."""

    round: int
    wall_ms: int
    beats: tuple[Beat, ...]


class Stale(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A beat that was not followed: the replica is gone (term 0), or in a higher term, or does not
    have what it is said to have acknowledged (the term of the beat).
    """

    group: GroupId
    to: int
    sender: int
    term: int


class HeartbeatReply(msgspec.Struct, frozen=True, array_like=True, tag="i", gc=False):
    """Says of all beats of the round that they were followed, but for those named."""

    round: int
    wall_ms: int
    stale: tuple[Stale, ...] = ()


class Meetings(msgspec.Struct, frozen=True, array_like=True, tag="m", gc=False):
    """Which starts of nodes the sender knows, its own among them (`raft.starts`)."""

    met: tuple[Met, ...]


PeerMessage = Envelope | Heartbeat | HeartbeatReply | Meetings

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[PeerMessage]).decode


def encode_frame(messages: list[PeerMessage]) -> bytes:
    return _encode(messages)


def encode_frames(messages: list[PeerMessage]) -> Iterator[bytes]:
    """Bodies of at most PEER_FRAME_BYTES_MAX. One message fits into a frame: replication bounds
    what it sends at once.
    """
    body = encode_frame(messages)
    if len(body) <= PEER_FRAME_BYTES_MAX:
        yield body
        return
    assert len(messages) > 1, f"a message of {len(body)} bytes fits into no frame"
    half = len(messages) // 2
    yield from encode_frames(messages[:half])
    yield from encode_frames(messages[half:])


def decode_frame(frame: bytes | memoryview) -> list[PeerMessage]:
    """Raises MessageError."""
    try:
        return _decode(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MessageError(f"not a frame of messages: {error}") from error
