"""Messages between the replicas of a group, and between nodes, and their encoding in frames.

Messages of a group travel in an `Envelope`. A receiver recognises a message of an older leadership
by its term, and drops it or answers with its own term. The fields follow Ongaro, Consensus:
Bridging Theory and Practice; figures 3.1 and 5.3, sections 3.10 (transfer), 6.4 (reads), 9.6
(pre-vote).

A frame is a list of messages between two nodes in msgpack, each `[tag, field, …]`. The transport
bounds its bytes. Any other content is a MessageError: the sender is not a node of this release, and
the connection ends.
"""

from collections.abc import Iterator

import msgspec

from querator.model.ids import GroupId
from querator.model.limits import PEER_FRAME_BYTES_MAX
from querator.model.starts import Met


class MessageError(Exception):
    """The bytes are not a frame of messages."""


class LogEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An entry in a message; its position gives its index. `kind` is as in `raft.log.journal`."""

    term: int
    now_ms: int
    kind: int
    command: bytes
    attachments: tuple[bytes, ...] = ()


class RequestVote(msgspec.Struct, frozen=True, array_like=True, tag="v", gc=False):
    """The candidate's term and the end of its log.

    `pre`: asks whether the receiver would vote for the candidate in this term; changes nothing on
    either side. `transfer`: the leader itself asked for this election, so that recent contact with
    the leader does not count. `wall_ms`: the sender's wall clock; 0: not given.
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
    follower in its term; the reply repeats `sequence` and `read_round`.
    """

    term: int
    sequence: int
    read_round: int
    prev_index: int
    prev_term: int
    commit_index: int
    entries: tuple[LogEntry, ...] = ()


class AppendReply(msgspec.Struct, frozen=True, array_like=True, tag="b", gc=False):
    """Sent after the follower's sync. `success`: its log equals the leader's up to `index`, on
    disk.

    Else `index` is where the leader should try next. It is the follower's first entry of
    `conflict_term`, the term that the follower has at prev_index; or the end of its log
    (`conflict_term` 0: it has no entry at prev_index). A reply of a higher term carries only that
    term.

    `applied` is the last entry that the follower had applied before it received the message.
    """

    term: int
    sequence: int
    read_round: int
    success: bool
    index: int
    conflict_term: int = 0
    applied: int = 0


class TimeoutNow(msgspec.Struct, frozen=True, array_like=True, tag="t", gc=False):
    """The leader asks this follower, which has all of its log, to stand for election at once."""

    term: int


class SnapshotOffer(msgspec.Struct, frozen=True, array_like=True, tag="o", gc=False):
    """A leader asks to begin or continue sending its state; see `raft.snapshot.protocol`.

    `number` counts its snapshots of this group in this term.
    """

    term: int
    number: int


class SnapshotChunk(msgspec.Struct, frozen=True, array_like=True, tag="s", gc=False):
    """A piece of the stream, with `sequence` from 1 on. `crc` is the CRC-32 of the previous chunk's
    `crc` (4 bytes, big-endian; 0 before the first) and the content, so that it covers the whole
    stream.
    """

    term: int
    number: int
    sequence: int
    crc: int
    content: bytes


class SnapshotReply(msgspec.Struct, frozen=True, array_like=True, tag="r", gc=False):
    """Sent after the follower's sync: chunks up to `sequence` are on its disk. `verdict` is a
    `raft.snapshot.protocol.Verdict`, which defines `index`.
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
    """A leader's empty message to a follower whose log it knows: `commit_index` is at most the
    index that the follower has acknowledged in this term.
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
    """A beat that was not followed: the replica is gone (term 0), or is in a higher term, or does
    not have the entries that it should have acknowledged (the term of the beat).
    """

    group: GroupId
    to: int
    sender: int
    term: int


class HeartbeatReply(msgspec.Struct, frozen=True, array_like=True, tag="i", gc=False):
    """Acknowledges all beats of the round except the stale ones that it names."""

    round: int
    wall_ms: int
    stale: tuple[Stale, ...] = ()


class Meetings(msgspec.Struct, frozen=True, array_like=True, tag="m", gc=False):
    """The starts of nodes that the sender knows, including its own (`raft.starts`)."""

    met: tuple[Met, ...]


PeerMessage = Envelope | Heartbeat | HeartbeatReply | Meetings

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[PeerMessage]).decode


def encode_frame(messages: list[PeerMessage]) -> bytes:
    return _encode(messages)


def encode_frames(messages: list[PeerMessage]) -> Iterator[bytes]:
    """Yields bodies of at most PEER_FRAME_BYTES_MAX. One message always fits into a frame, because
    replication bounds the bytes that it sends at once.
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
