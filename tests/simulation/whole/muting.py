"""What nodes hear of each other while the replicas of some groups do not hear each other."""

from querator.model.ids import GroupId
from querator.raft.messages import (
    Envelope,
    Heartbeat,
    HeartbeatReply,
    PeerMessage,
    Stale,
    decode_frame,
    encode_frame,
)

REPLICAS_MAX = 9


def without(message: PeerMessage, stuck: frozenset[GroupId]) -> PeerMessage | None:
    """The part of a message that is heard while these groups are stuck; None: nothing."""
    if isinstance(message, Envelope):
        return None if message.group in stuck else message
    if isinstance(message, Heartbeat):
        beats = tuple(beat for beat in message.beats if beat.group not in stuck)
        return Heartbeat(message.round, message.wall_ms, beats)
    if isinstance(message, HeartbeatReply):
        # Otherwise the message would say that beats were followed that were not heard.
        unheard = tuple(
            Stale(group, 0, replica, 0) for group in stuck for replica in range(REPLICAS_MAX)
        )
        return HeartbeatReply(message.round, message.wall_ms, message.stale + unheard)
    return message


def heard(frame: bytes, stuck: frozenset[GroupId]) -> bytes:
    """The frame without the parts that are not heard."""
    left = [without(message, stuck) for message in decode_frame(frame)]
    return encode_frame([message for message in left if message is not None])
